/* SPDX-License-Identifier: Apache-2.0 */
/*
 * py_run: the type Run: an open run. Methods may be called from any thread; close() waits for those that are under way.
 * What is about stored checkpoints is in py_list.c.
 */
#include "py.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_SCORES 16

struct py_state *
py_state_of(PyObject *self)
{
	return PyType_GetModuleState(Py_TYPE(self));
}

struct pawl *
py_run_enter(struct py_run *self)
{
	if (!self->run || self->closing) {
		py_raise_text(py_state_of((PyObject *)self), PAWL_EUSAGE, "the run is closed");
		return NULL;
	}
	if (self->pid != getpid()) {
		py_raise_text(py_state_of((PyObject *)self), PAWL_EUSAGE,
		              "the run was opened before fork(), by process %ld", (long)self->pid);
		return NULL;
	}
	self->calls++;
	return self->run;
}

void
py_run_leave(struct py_run *self)
{
	self->calls--;
}

/* ---- waiting ---- */

double
py_now_seconds(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static int64_t
now_ms(void)
{
	return (int64_t)(py_now_seconds() * 1000);
}

/* ret_seconds: negative where there is no limit. */
static int
deadline_of(struct py_state *st, PyObject *timeout, int64_t *ret, double *ret_seconds)
{
	double seconds;

	*ret = INT64_MAX;
	*ret_seconds = -1;
	if (timeout == Py_None)
		return 0;
	seconds = PyFloat_AsDouble(timeout);
	if (PyErr_Occurred() || isnan(seconds)) {
		PyErr_Clear();
		py_raise_text(st, PAWL_EUSAGE, "timeout must be None or a number of seconds, received %R", timeout);
		return -1;
	}
	*ret_seconds = seconds < 0 ? 0 : seconds;
	if (seconds < 1e12)
		*ret = now_ms() + (int64_t)(*ret_seconds * 1000 + 0.5);
	return 0;
}

/* "... within 0.3 seconds". Always returns -1. */
static int
raise_timeout(struct py_state *st, double seconds, const char *format, va_list args)
{
	AUTO_REF what = PyUnicode_FromFormatV(format, args);
	char *text = PyOS_double_to_string(seconds, seconds < 100 ? 'g' : 'f', seconds < 100 ? 3 : 0, 0, NULL);

	if (what && text)
		py_raise_text(st, PAWL_ETIMEOUT, "%U within %s second%s", what, text,
		              strcmp(text, "1") == 0 ? "" : "s");
	PyMem_Free(text);
	return -1;
}

int
py_wait(struct py_state *st, PyObject *timeout, py_wait_fn *call, void *arg, const char *format, ...)
{
	struct pawl_error err = {0};
	int64_t deadline, left;
	double seconds;
	va_list args;
	int rc;

	if (deadline_of(st, timeout, &deadline, &seconds) < 0)
		return -1;
	for (;;) {
		left = deadline - now_ms();
		if (left < 0)
			left = 0;
		Py_BEGIN_ALLOW_THREADS rc = call(arg, left < PY_SLICE_MS ? left : PY_SLICE_MS, &err);
		Py_END_ALLOW_THREADS
			/* what the library has said is not lost to a signal; that one is heard right after */
			if (rc != PAWL_ETIMEOUT) break;
		if (PyErr_CheckSignals() < 0)
			return -1;
		if (left <= PY_SLICE_MS)
			break;
	}
	if (rc == PAWL_ETIMEOUT) {
		va_start(args, format);
		raise_timeout(st, seconds, format, args);
		va_end(args);
		return -1;
	}
	if (rc < 0)
		py_raise(st, rc, &err);
	return rc < 0 ? -1 : 0;
}

static int
wait_saves(void *arg, int64_t timeout_ms, struct pawl_error *err)
{
	return pawl_wait(arg, timeout_ms, err);
}

static int
wait_fence(void *arg, int64_t timeout_ms, struct pawl_error *err)
{
	return pawl_fence(arg, timeout_ms, err);
}

void
py_run_prune_lazy(struct py_run *self, bool all)
{
	for (Py_ssize_t i = PyList_Size(self->lazy); i-- > 0;)
		if (py_ticket_release(PyList_GetItem(self->lazy, i), all))
			PyList_SetSlice(self->lazy, i, i + 1, NULL);
}

/* ---- opening ---- */

static int
to_size(PyObject *obj, void *ret)
{
	unsigned long long value = PyLong_AsUnsignedLongLong(obj);

	if (value == (unsigned long long)-1 && PyErr_Occurred()) {
		if (PyErr_ExceptionMatches(PyExc_OverflowError))
			PyErr_Format(PyExc_ValueError, "expected a whole number of 0 or more, found %R", obj);
		return 0;
	}
	*(uint64_t *)ret = value;
	return 1;
}

struct scores {
	const char *names[MAX_SCORES];
	int orders[MAX_SCORES];
};

static int
read_scores(struct py_state *st, PyObject *names, PyObject *orders, struct scores *ret,
            struct pawl_retention *retention)
{
	Py_ssize_t n = names ? PyTuple_Size(names) : 0;

	if (n == 0)
		return PyErr_Occurred() ? -1 : 0;
	if (n > MAX_SCORES) {
		py_raise_text(st, PAWL_ELIMIT, "%zd score attributes, at most %d are possible", n, MAX_SCORES);
		return -1;
	}
	for (Py_ssize_t i = 0; i < n; i++) {
		ret->names[i] = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(names, i), NULL);
		ret->orders[i] = orders ? (int)PyLong_AsLong(PyTuple_GetItem(orders, i)) : 1;
		if (!ret->names[i] || PyErr_Occurred())
			return -1;
	}
	retention->score_attributes = ret->names;
	retention->score_orders = ret->orders;
	retention->n_scores = (size_t)n;
	return 0;
}

/* The arena of the module; made by the first run that wants it. A child of fork() makes its own: the locks of its
 * parent's may have been copied while they were held. */
static int
shared_arena(struct py_state *st, struct pawl_arena **ret)
{
	struct pawl_error err = {0};
	int rc = 0;

	if (!st->arena || st->arena_pid != getpid())
		rc = pawl_arena_new(0, &st->arena, &err);
	if (rc < 0) {
		py_raise(st, rc, &err);
		return -1;
	}
	st->arena_pid = getpid();
	*ret = st->arena;
	return 0;
}

static int
arm_fault(struct py_state *st, PyObject *tuple, struct pawl_fault **ret)
{
	struct pawl_error err = {0};
	const char *operation;
	uint64_t nth;
	int code, forever, rc;

	if (tuple == Py_None)
		return 0;
	if (!PyArg_ParseTuple(tuple, "sO&ip:fault", &operation, to_size, &nth, &code, &forever))
		return -1;
	rc = pawl_fault_new(operation, nth, code, forever, ret, &err);
	if (rc < 0)
		py_raise(st, rc, &err);
	return rc < 0 ? -1 : 0;
}

/* Options that the library takes in another form. */
struct more {
	PyObject *fault, *broadcast; /* borrowed */
	struct pawl_rank rank;
	const char *attempt;
};

/* Runs inside a call of the library, on the thread that gave up the GIL for it: bytes in, bytes out. */
static int
broadcast(void *arg, void *bytes, size_t nbytes, struct pawl_error *err)
{
	PyGILState_STATE gil = PyGILState_Ensure();
	AUTO_REF mine = PyBytes_FromStringAndSize(bytes, (Py_ssize_t)nbytes);
	AUTO_REF theirs = mine ? PyObject_CallFunctionObjArgs(arg, mine, NULL) : NULL;
	bool good = theirs && PyBytes_Check(theirs) && (size_t)PyBytes_Size(theirs) == nbytes;

	if (good)
		memcpy(bytes, PyBytes_AsString(theirs), nbytes);
	else if (err)
		snprintf(err->message, sizeof(err->message), "the broadcast function %s",
		         theirs ? "did not return bytes of the same length" : "has raised an exception");
	if (!good && err)
		err->code = PAWL_EUSAGE;
	if (PyErr_Occurred())
		PyErr_WriteUnraisable(arg);
	Py_CLEAR(theirs);
	Py_CLEAR(mine);
	PyGILState_Release(gil);
	return good ? 0 : PAWL_EUSAGE;
}

/* Who of how many; the text and the function live as long as the run. */
static void
take_more(struct py_run *self, struct more *more, struct pawl_open_opts *opts)
{
	if (more->attempt)
		snprintf(more->rank.attempt, sizeof(more->rank.attempt), "%s", more->attempt);
	opts->rank = &more->rank;
	if (more->broadcast != Py_None) {
		self->broadcast = Py_NewRef(more->broadcast);
		opts->broadcast = broadcast;
		opts->broadcast_arg = self->broadcast;
	}
}

static int
parse_options(PyObject *args, PyObject *kwargs, struct pawl_open_opts *o, PyObject **names, PyObject **orders,
              struct more *more)
{
	static char *words[] = {"root",
	                        "read_only",
	                        "single",
	                        "overwrite",
	                        "run_id",
	                        "name_template",
	                        "num_to_keep",
	                        "keep_last",
	                        "keep_best",
	                        "keep_every",
	                        "keep_seconds",
	                        "max_bytes",
	                        "score_attributes",
	                        "score_orders",
	                        "drop_latest",
	                        "strict_score",
	                        "mode",
	                        "on_busy",
	                        "arena_bytes",
	                        "ring_bytes",
	                        "pack_bytes",
	                        "block_bytes",
	                        "bandwidth",
	                        "copy_threads",
	                        "io_threads",
	                        "recycle",
	                        "no_reuse",
	                        "no_direct_io",
	                        "strict_latest",
	                        "lease_timeout_ms",
	                        "save_interval",
	                        "mtbf_seconds",
	                        "nonfinite",
	                        "fault",
	                        "rank",
	                        "world_size",
	                        "attempt",
	                        "commit_timeout_ms",
	                        "broadcast",
	                        NULL};
	struct pawl_retention *k = &o->retention;

	return PyArg_ParseTupleAndKeywords(
		args, kwargs, "s|$pppzzLO&O&O&dO&O!O!ppiiO&O&O&O&O&IIIpppLzdiOiizLO:Run", words, &o->root,
		&o->read_only, &o->single, &o->overwrite, &o->run_id, &o->name_template, &k->num_to_keep, to_size,
		&k->keep_last, to_size, &k->keep_best, to_size, &k->keep_every, &k->keep_seconds, to_size,
		&k->max_bytes, &PyTuple_Type, names, &PyTuple_Type, orders, &k->drop_latest, &k->strict_score, &o->mode,
		&o->on_busy, to_size, &o->arena_bytes, to_size, &o->ring_bytes, to_size, &o->pack_bytes, to_size,
		&o->block_bytes, to_size, &o->bandwidth_bytes_per_second, &o->copy_threads, &o->io_threads, &o->recycle,
		&o->no_reuse, &o->no_direct_io, &o->strict_latest, &o->lease_timeout_ms, &o->save_interval,
		&o->mtbf_seconds, &o->nonfinite, &more->fault, &more->rank.rank, &more->rank.world_size, &more->attempt,
		&o->commit_timeout_ms, &more->broadcast);
}

static PyObject *
run_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	struct py_state *st = PyType_GetModuleState(type);
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	struct more more = {.fault = Py_None, .broadcast = Py_None, .rank = PAWL_RANK_INIT};
	PyObject *names = NULL, *orders = NULL;
	struct pawl_error err = {0};
	struct scores scores;
	struct py_run *self;
	int rc;

	more.rank.world_size = 1;
	if (!parse_options(args, kwargs, &opts, &names, &orders, &more) ||
	    read_scores(st, names, orders, &scores, &opts.retention) < 0)
		return NULL;
	if (!opts.read_only && shared_arena(st, &opts.arena) < 0)
		return NULL;
	allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);

	self = (struct py_run *)alloc(type, 0);
	if (!self)
		return NULL;
	self->pid = getpid();
	self->lazy = PyList_New(0);
	self->holds = PyList_New(0);
	if (!self->lazy || !self->holds || arm_fault(st, more.fault, &self->fault) < 0) {
		Py_DECREF(self);
		return NULL;
	}
	opts.fault = self->fault;
	take_more(self, &more, &opts);
	Py_BEGIN_ALLOW_THREADS rc = pawl_open(&opts, &self->run, &err);
	Py_END_ALLOW_THREADS if (rc < 0)
	{
		py_raise(st, rc, &err);
		Py_DECREF(self);
		return NULL;
	}
	return (PyObject *)self;
}

/* ---- closing ---- */

/* Takes the handle away and closes it; returns the library's code. */
static int
close_handle(struct py_run *self, struct pawl_error *err)
{
	struct pawl *run = self->run;
	int rc;

	self->run = NULL;
	if (!run || self->pid != getpid())
		return 0; /* after fork() it is the parent's; its threads are not here */
	for (Py_ssize_t i = PyList_Size(self->holds); i-- > 0;)
		py_hold_release(PyList_GetItem(self->holds, i));
	PyList_SetSlice(self->holds, 0, PyList_Size(self->holds), NULL);
	Py_BEGIN_ALLOW_THREADS rc = pawl_close(run, err);
	Py_END_ALLOW_THREADS py_run_prune_lazy(self, true);
	return rc;
}

static void
run_dealloc(struct py_run *self)
{
	PyTypeObject *type = Py_TYPE((PyObject *)self);
	freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
	PyObject *kind, *value, *trace;

	PyErr_Fetch(&kind, &value, &trace);
	if (self->lazy && self->holds)
		close_handle(self, NULL);
	Py_CLEAR(self->lazy);
	Py_CLEAR(self->holds);
	Py_CLEAR(self->broadcast);
	pawl_fault_free(self->fault);
	PyErr_Restore(kind, value, trace);
	release(self);
	Py_DECREF(type);
}

static int
wait_calls(void *arg, int64_t timeout_ms, struct pawl_error *err)
{
	struct timespec nap = {.tv_nsec = 1000000};

	(void)timeout_ms;
	(void)err;
	nanosleep(&nap, NULL);
	return *(volatile unsigned *)arg ? PAWL_ETIMEOUT : 0;
}

static PyObject *
run_close(struct py_run *self, PyObject *none)
{
	struct py_state *st = py_state_of((PyObject *)self);
	struct pawl_error err = {0};
	PyObject *type = NULL, *value = NULL, *trace = NULL;
	int rc;

	(void)none;
	if (!self->run || self->closing || self->pid != getpid())
		Py_RETURN_NONE;
	self->closing = true;
	/* in slices first, so that Ctrl+C is heard: then the run stays open */
	if (py_wait(st, Py_None, wait_saves, self->run, "the saves were not settled") < 0) {
		if (!PyErr_ExceptionMatches(st->errors[0])) {
			self->closing = false;
			return NULL;
		}
		PyErr_Fetch(&type, &value, &trace);
	}
	if (self->calls && py_wait(st, Py_None, wait_calls, &self->calls, "calls did not end") < 0) {
		Py_XDECREF(type);
		Py_XDECREF(value);
		Py_XDECREF(trace);
		self->closing = false;
		return NULL;
	}
	rc = close_handle(self, &err);
	if (type) {
		PyErr_Restore(type, value, trace);
		return NULL;
	}
	if (rc < 0)
		return py_raise(st, rc, &err);
	Py_RETURN_NONE;
}

/* ---- waiting, asking ---- */

static PyObject *
run_wait(struct py_run *self, PyObject *args)
{
	PyObject *timeout = Py_None;
	struct pawl *run;
	int rc;

	if (!PyArg_ParseTuple(args, "|O:wait", &timeout) || !(run = py_run_enter(self)))
		return NULL;
	rc = py_wait(py_state_of((PyObject *)self), timeout, wait_saves, run, "the saves of %s were not settled",
	             pawl_root(run));
	if (rc == 0)
		py_run_prune_lazy(self, false);
	py_run_leave(self);
	return rc < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *
run_fence(struct py_run *self, PyObject *args)
{
	PyObject *timeout = Py_None;
	struct pawl *run;
	int rc;

	if (!PyArg_ParseTuple(args, "|O:fence", &timeout) || !(run = py_run_enter(self)))
		return NULL;
	rc = py_wait(py_state_of((PyObject *)self), timeout, wait_fence, run,
	             "the tensors of lazy saves of %s were not copied", pawl_root(run));
	if (rc == 0)
		py_run_prune_lazy(self, false);
	py_run_leave(self);
	return rc < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *
run_check(struct py_run *self, PyObject *none)
{
	struct pawl *run = py_run_enter(self);
	struct pawl_error err = {0};
	int rc;

	(void)none;
	if (!run)
		return NULL;
	rc = pawl_check(run, &err);
	py_run_leave(self);
	return rc < 0 ? py_raise(py_state_of((PyObject *)self), rc, &err) : Py_NewRef(Py_None);
}

static PyObject *
run_is_saving(struct py_run *self, PyObject *none)
{
	struct pawl *run = py_run_enter(self);
	int yes;

	(void)none;
	if (!run)
		return NULL;
	yes = pawl_is_saving(run);
	py_run_leave(self);
	return PyBool_FromLong(yes);
}

static PyObject *
run_should_save(struct py_run *self, PyObject *args)
{
	struct py_state *st = py_state_of((PyObject *)self);
	PyObject *mapping = Py_None;
	struct pawl_progress progress;
	struct pawl_error err = {0};
	struct pawl *run;
	long long step;
	int rc;

	if (!PyArg_ParseTuple(args, "L|O:should_save", &step, &mapping) || py_progress(st, mapping, &progress) < 0 ||
	    !(run = py_run_enter(self)))
		return NULL;
	rc = pawl_should_save(run, step, &progress, &err);
	py_run_leave(self);
	return rc < 0 ? py_raise(st, rc, &err) : PyBool_FromLong(rc);
}

/* ---- the type ---- */

static PyObject *
get_root(struct py_run *self, void *closure)
{
	(void)closure;
	return self->run ? PyUnicode_DecodeFSDefault(pawl_root(self->run)) : Py_NewRef(Py_None);
}

static PyObject *
get_run_id(struct py_run *self, void *closure)
{
	(void)closure;
	return self->run ? PyUnicode_FromString(pawl_run_id(self->run)) : Py_NewRef(Py_None);
}

static PyObject *
get_closed(struct py_run *self, void *closure)
{
	(void)closure;
	return PyBool_FromLong(!self->run);
}

static PyObject *
get_fault_calls(struct py_run *self, void *closure)
{
	(void)closure;
	return PyLong_FromUnsignedLongLong(self->fault ? pawl_fault_calls(self->fault) : 0);
}

#define METHOD(f) ((PyCFunction)(void (*)(void))(f))

static PyMethodDef run_methods[] = {
	{"save", METHOD(py_run_save), METH_VARARGS | METH_KEYWORDS, "Start a save; returns a Ticket."},
	{"save_failed", METHOD(py_run_save_failed), METH_VARARGS, "Tell the other ranks that this one cannot save."},
	{"wait", METHOD(run_wait), METH_VARARGS, "Wait until all saves are settled."},
	{"fence", METHOD(run_fence), METH_VARARGS, "Wait until all tensors given to lazy saves may change."},
	{"check", METHOD(run_check), METH_NOARGS, "Raise the first background error nobody has seen."},
	{"is_saving", METHOD(run_is_saving), METH_NOARGS, "True while a save is running."},
	{"should_save", METHOD(run_should_save), METH_VARARGS, "Is a save due by the run's interval?"},
	{"close", METHOD(run_close), METH_NOARGS, "Wait for running saves and release the run."},
	{"restore", METHOD(py_run_restore), METH_VARARGS | METH_KEYWORDS, "(tree, info, fallbacks, report, metadata)."},
	{"describe", METHOD(py_run_describe), METH_VARARGS, "(tree, info, fallbacks), without tensors."},
	{"read", METHOD(py_run_read), METH_VARARGS, "Boxes of a checkpoint's tensors, into memory that is given."},
	{"list", METHOD(py_run_list), METH_VARARGS, "Facts of all checkpoints, oldest first."},
	{"find", METHOD(py_run_find), METH_VARARGS, "Id for a selector, or None."},
	{"info", METHOD(py_run_info), METH_VARARGS, "Facts of one checkpoint."},
	{"metadata", METHOD(py_run_metadata), METH_VARARGS, "The user's metadata of a checkpoint."},
	{"pin", METHOD(py_run_pin), METH_VARARGS, "Pin a checkpoint."},
	{"unpin", METHOD(py_run_unpin), METH_VARARGS, "Take the pin off."},
	{"score", METHOD(py_run_score), METH_VARARGS, "Add metrics to a committed checkpoint."},
	{"remove", METHOD(py_run_remove), METH_VARARGS, "Delete a checkpoint."},
	{"prune", METHOD(py_run_prune), METH_VARARGS, "Apply the run's retention: [(id, keep, reason)]."},
	{"verify", METHOD(py_run_verify), METH_VARARGS, "Read and check every byte: list of findings."},
	{"reload", METHOD(py_run_reload), METH_NOARGS, "See what other processes did."},
	{"wait_for_new", METHOD(py_run_wait_for_new), METH_VARARGS, "Id of a checkpoint above the given one."},
	{"hold", METHOD(py_run_hold), METH_VARARGS, "Hold a checkpoint against deletion."},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef run_getset[] = {
	{"root", (getter)get_root, NULL, "The run's folder.", NULL},
	{"run_id", (getter)get_run_id, NULL, "The run's id.", NULL},
	{"closed", (getter)get_closed, NULL, "True once close() is done.", NULL},
	{"fault_calls", (getter)get_fault_calls, NULL, "Calls that the fault layer has counted.", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

int
py_run_init(PyObject *module, struct py_state *st)
{
	PyType_Slot slots[] = {
		{Py_tp_doc, "An open run. Use pawl.CheckpointManager."},
		{Py_tp_new, run_new},
		{Py_tp_dealloc, run_dealloc},
		{Py_tp_methods, run_methods},
		{Py_tp_getset, run_getset},
		{0, NULL},
	};
	PyType_Spec spec = {.name = "pawl._pawl.Run",
	                    .basicsize = sizeof(struct py_run),
	                    .flags = Py_TPFLAGS_DEFAULT,
	                    .slots = slots};

	st->run_type = PyType_FromModuleAndSpec(module, &spec, NULL);
	return st->run_type ? PyModule_AddObjectRef(module, "Run", st->run_type) : -1;
}
