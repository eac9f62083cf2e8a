/* SPDX-License-Identifier: Apache-2.0 */
/* py_list: methods of Run for existing checkpoints: finding, listing, restoring, pins, scores,
 * deletion, holds. */
#include "py.h"

#include <string.h>

static struct py_state *
state_of(struct py_run *self)
{
	return py_state_of((PyObject *)self);
}

static PyObject *
nothing_or_error(struct py_run *self, int rc, const struct pawl_error *err)
{
	return rc < 0 ? py_raise(state_of(self), rc, err) : Py_NewRef(Py_None);
}

/* ---- facts ---- */

static int
put(PyObject *dict, const char *name, PyObject *value)
{
	AUTO_REF held = value;

	return held ? PyDict_SetItemString(dict, name, held) : -1;
}

static PyObject *
text(const char *s)
{
	return PyUnicode_DecodeUTF8(s ? s : "", s ? (Py_ssize_t)strlen(s) : 0, "surrogateescape");
}

static int
put_counter(PyObject *dict, const char *name, int64_t value)
{
	return value < 0 ? 0 : put(dict, name, PyLong_FromLongLong(value));
}

static int
put_clock(PyObject *dict, const char *name, double value)
{
	return value < 0 ? 0 : put(dict, name, PyFloat_FromDouble(value));
}

/* A dict of the known counters. */
static PyObject *
progress_dict(const struct pawl_progress *p)
{
	AUTO_REF dict = PyDict_New();

	if (!dict || put_counter(dict, "epoch", p->epoch) < 0 || put_counter(dict, "batch", p->batch) < 0 ||
	    put_counter(dict, "batch_in_epoch", p->batch_in_epoch) < 0 || put_counter(dict, "sample", p->sample) < 0 ||
	    put_counter(dict, "sample_in_epoch", p->sample_in_epoch) < 0 || put_counter(dict, "token", p->token) < 0 ||
	    put_counter(dict, "token_in_epoch", p->token_in_epoch) < 0 ||
	    put_counter(dict, "iteration", p->iteration) < 0 || put_clock(dict, "total_wct", p->total_wct) < 0 ||
	    put_clock(dict, "epoch_wct", p->epoch_wct) < 0 || put_clock(dict, "batch_wct", p->batch_wct) < 0 ||
	    put_clock(dict, "fraction", p->fraction) < 0)
		return NULL;
	return Py_NewRef(dict);
}

/* A dict of metrics without those that are not numbers. */
static PyObject *
metrics_dict(const struct pawl_metric *rows, size_t n)
{
	AUTO_REF dict = PyDict_New();

	for (size_t i = 0; dict && i < n; i++) {
		AUTO_REF name = text(rows[i].name);
		AUTO_REF value = PyFloat_FromDouble(rows[i].value);

		if (!name || !value || (!rows[i].not_a_number && PyDict_SetItem(dict, name, value) < 0))
			return NULL;
	}
	return Py_XNewRef(dict);
}

static int
put_marks(PyObject *dict, unsigned marks)
{
	const struct {
		const char *name;
		unsigned bit;
	} names[] = {{"latest", PAWL_MARK_LATEST}, {"best", PAWL_MARK_BEST},           {"pinned", PAWL_MARK_PINNED},
	             {"held", PAWL_MARK_HELD},     {"nonfinite", PAWL_MARK_NONFINITE}, {"bad", PAWL_MARK_BAD},
	             {"denied", PAWL_MARK_DENIED}};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (put(dict, names[i].name, PyBool_FromLong((marks & names[i].bit) != 0)) < 0)
			return -1;
	return 0;
}

static const char *
level_name(int level)
{
	return level == PAWL_LEVEL_REMOTE ? "remote" : level == PAWL_LEVEL_LOCAL ? "local" : "none";
}

PyObject *
py_info_dict(const struct pawl_info *info)
{
	AUTO_REF dict = PyDict_New();

	if (!dict || put(dict, "id", PyLong_FromUnsignedLongLong(info->id)) < 0 ||
	    put(dict, "step", PyLong_FromLongLong(info->step)) < 0 || put(dict, "name", text(info->name)) < 0 ||
	    put(dict, "path", PyUnicode_DecodeFSDefault(info->path ? info->path : "")) < 0 ||
	    put(dict, "run_id", text(info->run_id)) < 0 ||
	    put(dict, "attempt", PyLong_FromUnsignedLongLong(info->attempt)) < 0 ||
	    put(dict, "time", PyFloat_FromDouble(info->unix_seconds)) < 0 ||
	    put(dict, "progress", progress_dict(&info->progress)) < 0 ||
	    put(dict, "metrics", metrics_dict(info->metrics, info->n_metrics)) < 0 ||
	    put(dict, "score", info->has_score ? PyFloat_FromDouble(info->score) : Py_NewRef(Py_None)) < 0 ||
	    put(dict, "nbytes", PyLong_FromUnsignedLongLong(info->bytes)) < 0 ||
	    put(dict, "new_bytes", PyLong_FromUnsignedLongLong(info->new_bytes)) < 0 ||
	    put(dict, "plain_bytes", PyLong_FromUnsignedLongLong(info->plain_bytes)) < 0 ||
	    put(dict, "n_tensors", PyLong_FromUnsignedLongLong(info->n_tensors)) < 0 ||
	    put(dict, "n_files", PyLong_FromUnsignedLongLong(info->n_files)) < 0 ||
	    put(dict, "world_size", PyLong_FromUnsignedLong(info->world_size)) < 0 ||
	    put(dict, "blocked_seconds", PyFloat_FromDouble(info->blocked_seconds)) < 0 ||
	    put(dict, "problem", text(info->problem)) < 0 || put(dict, "format", text(info->format)) < 0 ||
	    put(dict, "level", text(level_name(info->level))) < 0 ||
	    put(dict, "here", PyBool_FromLong(info->here)) < 0 ||
	    put(dict, "n_mirrors", PyLong_FromUnsignedLong(info->n_mirrors)) < 0 || put_marks(dict, info->marks) < 0)
		return NULL;
	return Py_NewRef(dict);
}

static struct pawl_list *
open_list(struct py_run *self, int with_bad)
{
	struct pawl *run = py_run_enter(self);
	struct pawl_list *list = NULL;
	struct pawl_error err = {0};
	int rc;

	if (!run)
		return NULL;
	Py_BEGIN_ALLOW_THREADS rc = pawl_list_open(run, with_bad, &list, &err);
	Py_END_ALLOW_THREADS py_run_leave(self);
	if (rc < 0)
		py_raise(state_of(self), rc, &err);
	return rc < 0 ? NULL : list;
}

PyObject *
py_run_list(struct py_run *self, PyObject *args)
{
	struct pawl_list *list;
	PyObject *rows;
	int with_bad = 0;

	if (!PyArg_ParseTuple(args, "|p:list", &with_bad) || !(list = open_list(self, with_bad)))
		return NULL;
	rows = PyList_New(0);
	for (size_t i = 0; rows && i < pawl_list_count(list); i++) {
		AUTO_REF row = py_info_dict(pawl_list_get(list, i));

		if (!row || PyList_Append(rows, row) < 0)
			Py_CLEAR(rows);
	}
	pawl_list_free(list);
	return rows;
}

PyObject *
py_run_info(struct py_run *self, PyObject *args)
{
	struct pawl_list *list;
	PyObject *row = NULL;
	unsigned long long id;

	if (!PyArg_ParseTuple(args, "K:info", &id) || !(list = open_list(self, 0)))
		return NULL;
	for (size_t i = 0; i < pawl_list_count(list) && !row && !PyErr_Occurred(); i++)
		if (pawl_list_get(list, i)->id == id)
			row = py_info_dict(pawl_list_get(list, i));
	pawl_list_free(list);
	if (!row && !PyErr_Occurred())
		py_raise_text(state_of(self), PAWL_ENOTFOUND, "there is no checkpoint with id %llu", id);
	return row;
}

PyObject *
py_run_find(struct py_run *self, PyObject *args)
{
	struct pawl_error err = {0};
	struct pawl *run;
	const char *selector;
	uint64_t id = 0;
	int rc;

	if (!PyArg_ParseTuple(args, "s:find", &selector) || !(run = py_run_enter(self)))
		return NULL;
	Py_BEGIN_ALLOW_THREADS rc = pawl_find(run, selector, &id, &err);
	Py_END_ALLOW_THREADS py_run_leave(self);
	return rc < 0 ? py_raise(state_of(self), rc, &err) : PyLong_FromUnsignedLongLong(id);
}

PyObject *
py_run_metadata(struct py_run *self, PyObject *args)
{
	struct pawl_error err = {0};
	struct pawl_state *state = NULL;
	PyObject *tree;
	struct pawl *run;
	unsigned long long id;
	int rc;

	if (!PyArg_ParseTuple(args, "K:metadata", &id) || !(run = py_run_enter(self)))
		return NULL;
	Py_BEGIN_ALLOW_THREADS rc = pawl_metadata(run, id, &state, &err);
	Py_END_ALLOW_THREADS py_run_leave(self);
	if (rc < 0)
		return py_raise(state_of(self), rc, &err);
	tree = state ? py_plain_object(pawl_state_root(state)) : PyDict_New();
	if (!tree)
		py_name_long_int(state_of(self), pawl_state_root(state));
	pawl_state_free(state);
	return tree;
}

/* ---- restoring ---- */

const char **
py_texts(PyObject *tuple, size_t *ret_n)
{
	Py_ssize_t n = PyTuple_Size(tuple);
	const char **texts = PyMem_Calloc((size_t)n + 1, sizeof(*texts));

	if (!texts) {
		PyErr_NoMemory();
		return NULL;
	}
	for (Py_ssize_t i = 0; i < n; i++) {
		texts[i] = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(tuple, i), NULL);
		if (!texts[i]) {
			PyMem_Free(texts);
			return NULL;
		}
	}
	*ret_n = (size_t)n;
	return texts;
}

PyObject *
py_run_restore(struct py_run *self, PyObject *args, PyObject *kwargs)
{
	static char *words[] = {"state",      "selector",    "paths",       "strict", "fallback",
	                        "ring_bytes", "rank_values", "share_reads", NULL};
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	PyObject *live = Py_None, *paths = NULL, *result = NULL;
	const char **globs = NULL;
	int strict = 1, fallback = 1, shares = 0;
	unsigned long long ring_bytes = 0;
	struct pawl *run;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OzO!ppKip:restore", words, &live, &opts.selector,
	                                 &PyTuple_Type, &paths, &strict, &fallback, &ring_bytes, &opts.rank_values,
	                                 &shares))
		return NULL;
	if (shares && !self->broadcast)
		return py_raise_text(state_of(self), PAWL_EUSAGE,
		                     "share_reads needs the broadcast function that the run is opened with");
	opts.share_reads = shares ? py_broadcast_from : NULL;
	opts.share_arg = self->broadcast;
	opts.non_strict = !strict;
	opts.no_fallback = !fallback;
	opts.ring_bytes = ring_bytes;
	if (paths && !(globs = py_texts(paths, &opts.n_include)))
		return NULL;
	opts.include = globs;
	run = py_run_enter(self);
	if (run) {
		result = py_restore_run(state_of(self), run, live == Py_None ? NULL : live, &opts);
		py_run_leave(self);
	}
	PyMem_Free(globs);
	return result;
}

/* ---- changing ---- */

static PyObject *
by_id(struct py_run *self, PyObject *args, int (*call)(struct pawl *, uint64_t, struct pawl_error *))
{
	struct pawl_error err = {0};
	struct pawl *run;
	unsigned long long id;
	int rc;

	if (!PyArg_ParseTuple(args, "K", &id) || !(run = py_run_enter(self)))
		return NULL;
	Py_BEGIN_ALLOW_THREADS rc = call(run, id, &err);
	Py_END_ALLOW_THREADS py_run_leave(self);
	return nothing_or_error(self, rc, &err);
}

PyObject *
py_run_pin(struct py_run *self, PyObject *args)
{
	return by_id(self, args, pawl_pin);
}

PyObject *
py_run_unpin(struct py_run *self, PyObject *args)
{
	return by_id(self, args, pawl_unpin);
}

PyObject *
py_run_remove(struct py_run *self, PyObject *args)
{
	struct pawl_error err = {0};
	struct pawl *run;
	unsigned long long id;
	int rc, force = 0;

	if (!PyArg_ParseTuple(args, "K|p:remove", &id, &force) || !(run = py_run_enter(self)))
		return NULL;
	Py_BEGIN_ALLOW_THREADS rc = pawl_remove(run, id, force, &err);
	Py_END_ALLOW_THREADS py_run_leave(self);
	return nothing_or_error(self, rc, &err);
}

PyObject *
py_run_score(struct py_run *self, PyObject *args)
{
	struct pawl_error err = {0};
	struct pawl_metric *rows = NULL;
	PyObject *mapping, *result = NULL;
	AUTO_REF keep = NULL;
	struct pawl *run;
	unsigned long long id;
	size_t n;
	int rc;

	if (!PyArg_ParseTuple(args, "KO:score", &id, &mapping) || !(run = py_run_enter(self)))
		return NULL;
	if (py_metrics(state_of(self), mapping, &rows, &n, &keep) == 0) {
		Py_BEGIN_ALLOW_THREADS rc = pawl_score(run, id, rows, n, &err);
		Py_END_ALLOW_THREADS result = nothing_or_error(self, rc, &err);
	}
	py_run_leave(self);
	PyMem_Free(rows);
	return result;
}

static PyObject *
decision_rows(const struct pawl_decisions *decisions)
{
	PyObject *rows = PyList_New(0);

	for (size_t i = 0; rows && i < pawl_decisions_count(decisions); i++) {
		const struct pawl_decision *d = pawl_decisions_get(decisions, i);
		AUTO_REF reason = text(d->reason);
		AUTO_REF row =
			reason ? Py_BuildValue("(KOO)", (unsigned long long)d->id, d->keep ? Py_True : Py_False, reason)
			       : NULL;

		if (!row || PyList_Append(rows, row) < 0)
			Py_CLEAR(rows);
	}
	return rows;
}

PyObject *
py_run_prune(struct py_run *self, PyObject *args)
{
	struct pawl_decisions *decisions = NULL;
	struct pawl_error err = {0};
	struct pawl *run;
	PyObject *rows;
	int rc, dry_run = 0;

	if (!PyArg_ParseTuple(args, "|p:prune", &dry_run) || !(run = py_run_enter(self)))
		return NULL;
	Py_BEGIN_ALLOW_THREADS rc = pawl_prune(run, NULL, dry_run, &decisions, &err);
	Py_END_ALLOW_THREADS py_run_leave(self);
	if (rc < 0)
		return py_raise(state_of(self), rc, &err);
	rows = decision_rows(decisions);
	pawl_decisions_free(decisions);
	return rows;
}

static PyObject *
finding_rows(const struct pawl_findings *findings)
{
	PyObject *rows = PyList_New(0);

	for (size_t i = 0; rows && i < pawl_findings_count(findings); i++) {
		const struct pawl_finding *f = pawl_findings_get(findings, i);
		AUTO_REF row = Py_BuildValue("{s:K,s:s,s:K,s:K,s:s,s:s}", "id", (unsigned long long)f->id, "file",
		                             f->file, "begin", (unsigned long long)f->begin, "end",
		                             (unsigned long long)f->end, "tensor", f->tensor, "message", f->message);

		if (!row || PyList_Append(rows, row) < 0)
			Py_CLEAR(rows);
	}
	return rows;
}

PyObject *
py_run_verify(struct py_run *self, PyObject *args)
{
	struct pawl_findings *findings = NULL;
	struct pawl_error err = {0};
	unsigned long long id = 0;
	struct pawl *run;
	PyObject *rows;
	int rc;

	if (!PyArg_ParseTuple(args, "|K:verify", &id) || !(run = py_run_enter(self)))
		return NULL;
	Py_BEGIN_ALLOW_THREADS rc = pawl_verify(run, id, NULL, &findings, &err);
	Py_END_ALLOW_THREADS py_run_leave(self);
	if (rc < 0 && !(rc == PAWL_ECORRUPT && findings)) {
		pawl_findings_free(findings);
		return py_raise(state_of(self), rc, &err);
	}
	rows = finding_rows(findings);
	pawl_findings_free(findings);
	return rows;
}

PyObject *
py_run_reload(struct py_run *self, PyObject *none)
{
	struct pawl *run = py_run_enter(self);
	struct pawl_error err = {0};
	int rc;

	(void)none;
	if (!run)
		return NULL;
	Py_BEGIN_ALLOW_THREADS rc = pawl_reload(run, &err);
	Py_END_ALLOW_THREADS py_run_leave(self);
	return nothing_or_error(self, rc, &err);
}

/* ---- consumers ---- */

struct newer {
	struct pawl *run;
	uint64_t after, id;
};

static int
wait_newer(void *arg, int64_t timeout_ms, struct pawl_error *err)
{
	struct newer *n = arg;

	return pawl_wait_for_new(n->run, n->after, timeout_ms, &n->id, err);
}

PyObject *
py_run_wait_for_new(struct py_run *self, PyObject *args)
{
	struct newer n = {0};
	PyObject *timeout = Py_None;
	unsigned long long after;
	int rc;

	if (!PyArg_ParseTuple(args, "K|O:wait_for_new", &after, &timeout) || !(n.run = py_run_enter(self)))
		return NULL;
	n.after = after;
	rc = py_wait(state_of(self), timeout, wait_newer, &n, "no checkpoint after id %llu came in %s", after,
	             pawl_root(n.run));
	py_run_leave(self);
	return rc < 0 ? NULL : PyLong_FromUnsignedLongLong(n.id);
}

PyObject *
py_run_hold(struct py_run *self, PyObject *args)
{
	struct pawl_hold *hold = NULL;
	struct pawl_error err = {0};
	PyObject *result;
	struct pawl *run;
	unsigned long long id;
	int rc;

	if (!PyArg_ParseTuple(args, "K:hold", &id) || !(run = py_run_enter(self)))
		return NULL;
	Py_BEGIN_ALLOW_THREADS rc = pawl_hold_open(run, id, &hold, &err);
	Py_END_ALLOW_THREADS result = rc < 0 ? py_raise(state_of(self), rc, &err) : py_hold_new(state_of(self), hold);
	if (result && PyList_Append(self->holds, result) < 0)
		Py_CLEAR(result);
	py_run_leave(self); /* from now on the run may be closed, which frees the content of the list */
	return result;
}
