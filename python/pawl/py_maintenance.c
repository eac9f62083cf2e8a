/* SPDX-License-Identifier: Apache-2.0 */
/* py_maintenance: methods of Run that check, compare, copy, clean and repair checkpoints. */
#include "py_work.h"

/* A meaning of py_work's result. NULL with an exception: rc < 0. */
static PyObject *
raise_work(struct py_state *st, int rc, const struct pawl_error *err)
{
	return err->code < 0 ? py_raise(st, rc, err) : NULL;
}

static PyObject *
finding_rows(const struct pawl_findings *findings)
{
	AUTO_REF rows = PyList_New(0);

	for (size_t i = 0; rows && i < pawl_findings_count(findings); i++) {
		const struct pawl_finding *f = pawl_findings_get(findings, i);
		AUTO_REF row = Py_BuildValue("{s:K,s:s,s:K,s:K,s:s,s:s}", "id", (unsigned long long)f->id, "file",
		                             f->file, "begin", (unsigned long long)f->begin, "end",
		                             (unsigned long long)f->end, "tensor", f->tensor, "message", f->message);

		if (!row || PyList_Append(rows, row) < 0)
			return NULL;
	}
	return Py_XNewRef(rows);
}

PY_DEFINE_CLEAN(struct pawl_findings *, pawl_findings_free);

struct verifying {
	struct pawl *run;
	uint64_t id;
	struct pawl_findings **ret;
};

static int
run_verify(void *arg, struct pawl_meter *meter, struct pawl_error *err)
{
	const struct verifying *v = arg;

	return pawl_verify(v->run, v->id, meter, v->ret, err);
}

PyObject *
py_run_verify(struct py_run *self, PyObject *args)
{
	PY_CLEAN(pawl_findings_free) struct pawl_findings *findings = NULL;
	struct py_state *st = py_state_of((PyObject *)self);
	PyObject *progress = Py_None;
	struct pawl_error err;
	unsigned long long id = 0;
	AUTO_RUN in = NULL;

	if (!PyArg_ParseTuple(args, "|KO:verify", &id, &progress) || !(in = py_run_enter(self)))
		return NULL;
	struct verifying v = {in->run, id, &findings};
	int rc = py_work(st, progress, run_verify, &v, &err);

	if (rc < 0 && !(rc == PAWL_ECORRUPT && findings))
		return raise_work(st, rc, &err);
	return finding_rows(findings);
}

struct comparing {
	struct pawl *a, *b;
	uint64_t id_a, id_b;
	struct pawl_diff *ret;
};

static int
run_compare(void *arg, struct pawl_meter *meter, struct pawl_error *err)
{
	struct comparing *c = arg;

	return pawl_diff_open(c->a, c->id_a, c->b, c->id_b, meter, &c->ret, err);
}

static PyObject *
difference_rows(const struct pawl_diff *diff)
{
	AUTO_REF rows = PyList_New(0);

	for (size_t i = 0; rows && i < pawl_diff_count(diff); i++) {
		const struct pawl_diff_row *d = pawl_diff_get(diff, i);
		AUTO_REF row = Py_BuildValue("(sizzdd)", d->path, d->change, d->change == PAWL_ADDED ? NULL : d->was,
		                             d->change == PAWL_REMOVED ? NULL : d->is, d->max_abs, d->max_rel);

		if (!row || PyList_Append(rows, row) < 0)
			return NULL;
	}
	return Py_XNewRef(rows);
}

/* diff(id, other run, other id, progress) -> [(path, change, was, is, max_abs, max_rel)] */
PyObject *
py_run_diff(struct py_run *self, PyObject *args)
{
	struct py_state *st = py_state_of((PyObject *)self);
	PyObject *other, *progress, *rows = NULL;
	struct comparing c = {0};
	struct pawl_error err;
	unsigned long long a, b;
	AUTO_RUN in = NULL;
	AUTO_RUN other_in = NULL;

	if (!PyArg_ParseTuple(args, "KO!KO:diff", &a, (PyTypeObject *)st->run_type, &other, &b, &progress) ||
	    !(in = py_run_enter(self)) || !(other_in = py_run_enter((struct py_run *)other)))
		return NULL;
	c = (struct comparing){.a = in->run, .b = other_in->run, .id_a = a, .id_b = b};
	int rc = py_work(st, progress, run_compare, &c, &err);

	rows = rc < 0 ? raise_work(st, rc, &err) : difference_rows(c.ret);
	pawl_diff_free(c.ret);
	return rows;
}

struct copying {
	struct pawl *run;
	const char *to;
	uint64_t id;
	bool is_run;
	struct pawl_copies *ret;
};

static int
run_copy(void *arg, struct pawl_meter *meter, struct pawl_error *err)
{
	struct copying *c = arg;

	return c->is_run ? pawl_copy_run(c->run, c->to, NULL, meter, &c->ret, err)
	                 : pawl_copy(c->run, c->id, c->to, NULL, meter, &c->ret, err);
}

static PyObject *
copy_rows(const struct pawl_copies *copies)
{
	AUTO_REF rows = PyList_New(0);

	for (size_t i = 0; rows && copies && i < pawl_copies_count(copies); i++) {
		const struct pawl_copied *c = pawl_copies_get(copies, i);
		AUTO_REF row =
			Py_BuildValue("(KsKNKs)", (unsigned long long)c->id, c->name, (unsigned long long)c->bytes,
		                      PyBool_FromLong(c->was_there), (unsigned long long)c->sent_bytes, c->problem);

		if (!row || PyList_Append(rows, row) < 0)
			return NULL;
	}
	return Py_XNewRef(rows);
}

/* copy(id or None, to, progress) -> rows of what happened to a checkpoint, or to each of a run.
 * Damaged checkpoints of a run are in the rows. */
PyObject *
py_run_copy(struct py_run *self, PyObject *args)
{
	struct py_state *st = py_state_of((PyObject *)self);
	PyObject *id, *progress, *rows = NULL;
	struct copying c = {0};
	struct pawl_error err;
	AUTO_RUN in = NULL;

	if (!PyArg_ParseTuple(args, "OsO:copy", &id, &c.to, &progress))
		return NULL;
	c.is_run = Py_IsNone(id);
	c.id = c.is_run ? 0 : PyLong_AsUnsignedLongLong(id);
	if (PyErr_Occurred() || !(in = py_run_enter(self)))
		return NULL;
	c.run = in->run;
	int rc = py_work(st, progress, run_copy, &c, &err);

	rows = rc < 0 && !(rc == PAWL_ECORRUPT && c.ret) ? raise_work(st, rc, &err) : copy_rows(c.ret);
	pawl_copies_free(c.ret);
	return rows;
}

struct pruning {
	struct pawl *run;
	int dry_run;
	struct pawl_decisions *ret;
};

static int
run_prune(void *arg, struct pawl_meter *meter, struct pawl_error *err)
{
	struct pruning *p = arg;

	(void)meter;
	return pawl_prune(p->run, NULL, p->dry_run, &p->ret, err);
}

static PyObject *
decision_rows(const struct pawl_decisions *decisions)
{
	AUTO_REF rows = PyList_New(0);

	for (size_t i = 0; rows && i < pawl_decisions_count(decisions); i++) {
		const struct pawl_decision *d = pawl_decisions_get(decisions, i);
		AUTO_REF row = Py_BuildValue("(KNs)", (unsigned long long)d->id, PyBool_FromLong(d->keep), d->reason);

		if (!row || PyList_Append(rows, row) < 0)
			return NULL;
	}
	return Py_XNewRef(rows);
}

/* prune(dry_run, progress) -> [(id, keep, reason)]; progress is called without counts. */
PyObject *
py_run_prune(struct py_run *self, PyObject *args)
{
	struct py_state *st = py_state_of((PyObject *)self);
	struct pruning p = {0};
	PyObject *progress = Py_None, *rows;
	struct pawl_error err;
	AUTO_RUN in = NULL;

	if (!PyArg_ParseTuple(args, "|pO:prune", &p.dry_run, &progress) || !(in = py_run_enter(self)))
		return NULL;
	p.run = in->run;
	int rc = py_work(st, progress, run_prune, &p, &err);

	rows = rc < 0 ? raise_work(st, rc, &err) : decision_rows(p.ret);
	pawl_decisions_free(p.ret);
	return rows;
}

struct cleaning {
	struct pawl *run;
	int dry_run;
	uint64_t count, bytes;
};

static int
run_clean(void *arg, struct pawl_meter *meter, struct pawl_error *err)
{
	struct cleaning *c = arg;

	return pawl_gc(c->run, c->dry_run, meter, &c->count, &c->bytes, err);
}

/* gc(dry_run, progress) -> (left-overs, bytes) */
PyObject *
py_run_gc(struct py_run *self, PyObject *args)
{
	struct py_state *st = py_state_of((PyObject *)self);
	struct cleaning c = {0};
	PyObject *progress = Py_None;
	struct pawl_error err;
	AUTO_RUN in = NULL;

	if (!PyArg_ParseTuple(args, "p|O:gc", &c.dry_run, &progress) || !(in = py_run_enter(self)))
		return NULL;
	c.run = in->run;
	int rc = py_work(st, progress, run_clean, &c, &err);

	if (rc < 0)
		return raise_work(st, rc, &err);
	return Py_BuildValue("(KK)", (unsigned long long)c.count, (unsigned long long)c.bytes);
}

struct repairing {
	struct pawl *run;
	const char *name;
	int dry_run;
};

static int
run_repair(void *arg, struct pawl_meter *meter, struct pawl_error *err)
{
	const struct repairing *r = arg;

	return pawl_repair(r->run, r->name, r->dry_run, meter, err);
}

/* repair(name, dry_run, progress) */
PyObject *
py_run_repair(struct py_run *self, PyObject *args)
{
	struct py_state *st = py_state_of((PyObject *)self);
	struct repairing r = {0};
	PyObject *progress = Py_None;
	struct pawl_error err;
	AUTO_RUN in = NULL;

	if (!PyArg_ParseTuple(args, "sp|O:repair", &r.name, &r.dry_run, &progress) || !(in = py_run_enter(self)))
		return NULL;
	r.run = in->run;
	int rc = py_work(st, progress, run_repair, &r, &err);

	return rc < 0 ? raise_work(st, rc, &err) : Py_NewRef(Py_None);
}

struct trying {
	const char *root;
	struct pawl_rows *ret;
};

static int
try_place(void *arg, struct pawl_meter *meter, struct pawl_error *err)
{
	struct trying *t = arg;

	(void)meter;
	return pawl_doctor(t->root, &t->ret, err);
}

static PyObject *
doctor_rows(const struct pawl_rows *rows)
{
	AUTO_REF dict = PyDict_New();

	for (size_t i = 0; dict && i < pawl_rows_count(rows); i++) {
		AUTO_REF value = PyUnicode_FromString(pawl_rows_value(rows, i));

		if (!value || PyDict_SetItemString(dict, pawl_rows_key(rows, i), value) < 0)
			return NULL;
	}
	return Py_XNewRef(dict);
}

/* doctor(root, progress) -> {what: found} */
PyObject *
py_doctor(PyObject *module, PyObject *args)
{
	struct py_state *st = PyModule_GetState(module);
	struct trying t = {0};
	PyObject *progress = Py_None;
	struct pawl_error err;

	if (!PyArg_ParseTuple(args, "s|O:doctor", &t.root, &progress))
		return NULL;
	int rc = py_work(st, progress, try_place, &t, &err);
	PyObject *rows = rc < 0 ? raise_work(st, rc, &err) : doctor_rows(t.ret);

	pawl_rows_free(t.ret);
	return rows;
}
