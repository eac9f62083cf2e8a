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

/* ---- facts ---- */

static int
put_item(PyObject *dict, const char *name, PyObject *value)
{
	AUTO_REF held = value;

	return held ? PyDict_SetItemString(dict, name, held) : -1;
}

static PyObject *
text_or_empty(const char *s)
{
	return PyUnicode_DecodeUTF8(s ? s : "", s ? (Py_ssize_t)strlen(s) : 0, "surrogateescape");
}

/* A dict of metrics without those that are not numbers. */
static PyObject *
metrics_dict(const struct pawl_metric *rows, size_t n)
{
	AUTO_REF dict = PyDict_New();

	for (size_t i = 0; dict && i < n; i++) {
		AUTO_REF name = text_or_empty(rows[i].name);
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
		TRY(put_item(dict, names[i].name, PyBool_FromLong((marks & names[i].bit) != 0)));
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

	if (!dict || put_item(dict, "id", PyLong_FromUnsignedLongLong(info->id)) < 0 ||
	    put_item(dict, "step", PyLong_FromLongLong(info->step)) < 0 ||
	    put_item(dict, "name", text_or_empty(info->name)) < 0 ||
	    put_item(dict, "path", PyUnicode_DecodeFSDefault(info->path ? info->path : "")) < 0 ||
	    put_item(dict, "run_id", text_or_empty(info->run_id)) < 0 ||
	    put_item(dict, "attempt", PyLong_FromUnsignedLongLong(info->attempt)) < 0 ||
	    put_item(dict, "time", PyFloat_FromDouble(info->unix_seconds)) < 0 ||
	    put_item(dict, "progress", py_progress_dict(&info->progress)) < 0 ||
	    put_item(dict, "metrics", metrics_dict(info->metrics, info->n_metrics)) < 0 ||
	    put_item(dict, "score", info->has_score ? PyFloat_FromDouble(info->score) : Py_NewRef(Py_None)) < 0 ||
	    put_item(dict, "nbytes", PyLong_FromUnsignedLongLong(info->bytes)) < 0 ||
	    put_item(dict, "new_bytes", PyLong_FromUnsignedLongLong(info->new_bytes)) < 0 ||
	    put_item(dict, "plain_bytes", PyLong_FromUnsignedLongLong(info->plain_bytes)) < 0 ||
	    put_item(dict, "n_tensors", PyLong_FromUnsignedLongLong(info->n_tensors)) < 0 ||
	    put_item(dict, "n_files", PyLong_FromUnsignedLongLong(info->n_files)) < 0 ||
	    put_item(dict, "world_size", PyLong_FromUnsignedLong(info->world_size)) < 0 ||
	    put_item(dict, "blocked_seconds", PyFloat_FromDouble(info->blocked_seconds)) < 0 ||
	    put_item(dict, "problem", text_or_empty(info->problem)) < 0 ||
	    put_item(dict, "damaged", PyBool_FromLong(info->code == PAWL_ECORRUPT)) < 0 ||
	    put_item(dict, "format", text_or_empty(info->format)) < 0 ||
	    put_item(dict, "level", text_or_empty(level_name(info->level))) < 0 ||
	    put_item(dict, "here", PyBool_FromLong(info->here)) < 0 ||
	    put_item(dict, "n_mirrors", PyLong_FromUnsignedLong(info->n_mirrors)) < 0 ||
	    put_marks(dict, info->marks) < 0)
		return NULL;
	return Py_NewRef(dict);
}

static struct pawl_list *
open_list(struct py_run *self, int with_bad)
{
	AUTO_RUN in = py_run_enter(self);
	struct pawl_list *list = NULL;

	if (in)
		CALL(state_of(self), pawl_list_open(in->run, with_bad, &list, err));
	return list;
}
PY_DEFINE_CLEAN(struct pawl_list *, pawl_list_free);

PyObject *
py_run_list(struct py_run *self, PyObject *args)
{
	int with_bad = 0;

	if (!PyArg_ParseTuple(args, "|p:list", &with_bad))
		return NULL;
	PY_CLEAN(pawl_list_free) struct pawl_list *list = open_list(self, with_bad);
	AUTO_REF rows = list ? PyList_New(0) : NULL;

	for (size_t i = 0; rows && i < pawl_list_count(list); i++) {
		AUTO_REF row = py_info_dict(pawl_list_get(list, i));

		if (!row || PyList_Append(rows, row) < 0)
			return NULL;
	}
	return Py_XNewRef(rows);
}

PyObject *
py_run_info(struct py_run *self, PyObject *args)
{
	unsigned long long id;

	if (!PyArg_ParseTuple(args, "K:info", &id))
		return NULL;
	PY_CLEAN(pawl_list_free) struct pawl_list *list = open_list(self, 0);

	for (size_t i = 0; list && i < pawl_list_count(list); i++)
		if (pawl_list_get(list, i)->id == id)
			return py_info_dict(pawl_list_get(list, i));
	return list ? py_raise_text(state_of(self), PAWL_ENOTFOUND, "there is no checkpoint with id %llu", id) : NULL;
}

static int
wait_committed(void *arg, int64_t timeout_ms, struct pawl_error *err)
{
	return pawl_wait_committed(arg, timeout_ms, err);
}

/* Waits for the saves that have begun, in slices, so that Ctrl+C is handled. */
static int
wait_for_own(struct py_run *in)
{
	return py_wait(state_of(in), Py_None, wait_committed, in->run, "the saves did not end");
}

PyObject *
py_run_find(struct py_run *self, PyObject *args)
{
	struct pawl_error err = {0};
	AUTO_RUN in = NULL;
	const char *selector;
	uint64_t id = 0;

	if (!PyArg_ParseTuple(args, "s:find", &selector) || !(in = py_run_enter(self)) || wait_for_own(in) < 0)
		return NULL;
	int rc = UNLOCKED(pawl_find(in->run, selector, &id, &err));
	return rc < 0 ? py_raise(state_of(self), rc, &err) : PyLong_FromUnsignedLongLong(id);
}

PyObject *
py_metadata(struct py_state *st, const struct pawl_state *metadata)
{
	PyObject *tree = metadata ? py_plain_object(pawl_state_root(metadata)) : PyDict_New();

	if (!tree && metadata)
		py_name_long_int(st, pawl_state_root(metadata));
	return tree;
}

PyObject *
py_run_metadata(struct py_run *self, PyObject *args)
{
	struct pawl_state *metadata = NULL;
	AUTO_RUN in = NULL;
	unsigned long long id;

	if (!PyArg_ParseTuple(args, "K:metadata", &id) || !(in = py_run_enter(self)))
		return NULL;
	TRY_NULL(CALL(state_of(self), pawl_metadata(in->run, id, &metadata, err)));
	PyObject *tree = py_metadata(state_of(self), metadata);
	pawl_state_free(metadata);
	return tree;
}

/* ---- restoring ---- */

const char **
py_texts(PyObject *texts, size_t *ret_n)
{
	PyObject *(*const item)(PyObject *, Py_ssize_t) = PyTuple_Check(texts) ? PyTuple_GetItem : PyList_GetItem;
	const Py_ssize_t n = PyTuple_Check(texts) || PyList_Check(texts) ? PyObject_Size(texts) : -1;
	AUTO_TEXTS found = n < 0 ? NULL : PyMem_Calloc((size_t)n + 1, sizeof(*found));

	if (!found) {
		if (n < 0)
			PyErr_SetString(PyExc_TypeError, "expected a list of str");
		return n < 0 ? NULL : (const char **)PyErr_NoMemory();
	}
	for (Py_ssize_t i = 0; i < n; i++) {
		found[i] = PyUnicode_AsUTF8AndSize(item(texts, i), NULL);
		if (!found[i])
			return NULL;
	}
	*ret_n = (size_t)n;
	return PY_STEAL(found);
}

PyObject *
py_run_restore(struct py_run *self, PyObject *args, PyObject *kwargs)
{
	static char *words[] = {"state",       "selector",    "paths",  "strict", "fallback", "ring_bytes",
	                        "rank_values", "share_reads", "rename", "cast",   NULL};
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	PyObject *live = Py_None, *paths = NULL, *rename = NULL, *cast = NULL;
	AUTO_TEXTS globs = NULL;
	AUTO_TEXTS renames = NULL;
	AUTO_TEXTS casts = NULL;
	AUTO_RUN in = NULL;
	int strict = 1, fallback = 1, shares = 0;
	unsigned long long ring_bytes = 0;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OzO!ppKipO!O!:restore", words, &live, &opts.selector,
	                                 &PyTuple_Type, &paths, &strict, &fallback, &ring_bytes, &opts.rank_values,
	                                 &shares, &PyTuple_Type, &rename, &PyTuple_Type, &cast))
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
	if ((rename && !(renames = py_texts(rename, &opts.n_rename))) ||
	    (cast && !(casts = py_texts(cast, &opts.n_cast))))
		return NULL;
	opts.include = globs;
	opts.rename = renames;
	opts.cast = casts;
	if (!(in = py_run_enter(self)) || wait_for_own(in) < 0)
		return NULL;
	return py_restore_run(state_of(self), in->run, live == Py_None ? NULL : live, &opts);
}

/* ---- changing ---- */

static PyObject *
by_id(struct py_run *self, PyObject *args, int (*call)(struct pawl *, uint64_t, struct pawl_error *))
{
	AUTO_RUN in = NULL;
	unsigned long long id;

	if (!PyArg_ParseTuple(args, "K", &id) || !(in = py_run_enter(self)))
		return NULL;
	return py_none(CALL(state_of(self), call(in->run, id, err)));
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
	AUTO_RUN in = NULL;
	unsigned long long id;
	int force = 0;

	if (!PyArg_ParseTuple(args, "K|p:remove", &id, &force) || !(in = py_run_enter(self)))
		return NULL;
	return py_none(CALL(state_of(self), pawl_remove(in->run, id, force, err)));
}

PyObject *
py_run_score(struct py_run *self, PyObject *args)
{
	struct pawl_metric *rows = NULL;
	PyObject *mapping;
	AUTO_REF keep = NULL;
	AUTO_RUN in = NULL;
	unsigned long long id;
	size_t n;

	if (!PyArg_ParseTuple(args, "KO:score", &id, &mapping) || !(in = py_run_enter(self)))
		return NULL;
	int rc = py_metrics(state_of(self), mapping, &rows, &n, &keep);
	if (rc == 0)
		rc = CALL(state_of(self), pawl_score(in->run, id, rows, n, err));
	PyMem_Free(rows);
	return py_none(rc);
}

PyObject *
py_run_reload(struct py_run *self, PyObject *none)
{
	AUTO_RUN in = py_run_enter(self);

	(void)none;
	return in ? py_none(CALL(state_of(self), pawl_reload(in->run, err))) : NULL;
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
	AUTO_RUN in = NULL;

	if (!PyArg_ParseTuple(args, "K|O:wait_for_new", &after, &timeout) || !(in = py_run_enter(self)))
		return NULL;
	n.run = in->run;
	n.after = after;
	TRY_NULL(py_wait(state_of(self), timeout, wait_newer, &n, "no checkpoint after id %llu came in %s", after,
	                 pawl_root(n.run)));
	return PyLong_FromUnsignedLongLong(n.id);
}

PyObject *
py_run_hold(struct py_run *self, PyObject *args)
{
	struct pawl_hold *hold = NULL;
	unsigned long long id;
	AUTO_RUN in = NULL; /* once it is left the run may be closed, which frees the content of the list */

	if (!PyArg_ParseTuple(args, "K:hold", &id) || !(in = py_run_enter(self)))
		return NULL;
	TRY_NULL(CALL(state_of(self), pawl_hold_open(in->run, id, &hold, err)));
	AUTO_REF result = py_hold_new(state_of(self), hold);
	return result && PyList_Append(self->holds, result) == 0 ? Py_NewRef(result) : NULL;
}
