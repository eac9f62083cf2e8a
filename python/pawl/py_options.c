/* SPDX-License-Identifier: Apache-2.0 */
/*
 * py_options: what Run() is given, as pawl_open takes it. Called by py_run.c; nothing is opened here. The options that
 * people see, their defaults and their checks are those of CheckpointManager.
 */
#include "py.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

static int
read_scores(struct py_state *st, PyObject *names, PyObject *orders, struct py_options *ret)
{
	struct pawl_retention *retention = &ret->opts.retention;
	Py_ssize_t n = names ? PyTuple_Size(names) : 0;

	if (n == 0)
		return PyErr_Occurred() ? -1 : 0;
	if (n > PY_MAX_SCORES) {
		py_raise_text(st, PAWL_ELIMIT, "%zd score attributes, at most %d are possible", n, PY_MAX_SCORES);
		return -1;
	}
	for (Py_ssize_t i = 0; i < n; i++) {
		ret->score_names[i] = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(names, i), NULL);
		ret->score_orders[i] = orders ? (int)PyLong_AsLong(PyTuple_GetItem(orders, i)) : 1;
		if (!ret->score_names[i] || PyErr_Occurred())
			return -1;
	}
	retention->score_attributes = ret->score_names;
	retention->score_orders = ret->score_orders;
	retention->n_scores = (size_t)n;
	return 0;
}

/* The arena of the module; made by the first run that wants it. A child of fork() makes its own: the locks of its
 * parent's may have been copied while they were held. */
int
py_shared_arena(struct py_state *st, struct pawl_arena **ret)
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

/* What the exception that is being raised says. It stays raised. */
static void
put_exception(char *text, size_t cap)
{
	PyObject *kind, *value, *trace;

	PyErr_Fetch(&kind, &value, &trace);
	AUTO_REF shown = value ? PyObject_Str(value) : NULL;
	const char *words = shown ? PyUnicode_AsUTF8AndSize(shown, NULL) : NULL;

	PyErr_Clear();
	snprintf(text, cap, "the broadcast function has raised an exception%s%.400s", words && *words ? ": " : "",
	         words ? words : "");
	PyErr_Restore(kind, value, trace);
}

/* Calls the caller's function with bytes, and with a bytearray and the rank whose bytes count where there is one:
 * memory of Python's own, so that the function may keep it. It returns bytes, or None where it has filled the
 * bytearray. */
static int
call_broadcast(PyObject *function, const uint32_t *root, void *bytes, size_t nbytes, struct pawl_error *err)
{
	AUTO_REF given = root ? PyByteArray_FromStringAndSize(bytes, (Py_ssize_t)nbytes)
	                      : PyBytes_FromStringAndSize(bytes, (Py_ssize_t)nbytes);
	AUTO_REF rank = root ? PyLong_FromUnsignedLong(*root) : NULL;
	AUTO_REF answer = given ? PyObject_CallFunctionObjArgs(function, given, rank, NULL) : NULL;
	PyObject *from = root && answer == Py_None ? given : answer;
	bool good = false;
	Py_buffer view;

	if (from && PyObject_GetBuffer(from, &view, PyBUF_SIMPLE) == 0) {
		good = (size_t)view.len == nbytes;
		if (good)
			memcpy(bytes, view.buf, nbytes);
		PyBuffer_Release(&view);
	}
	if (good)
		return 0;
	if (answer)
		snprintf(err->message, sizeof(err->message),
		         "the broadcast function did not return bytes of the same length");
	else
		put_exception(err->message, sizeof(err->message));
	if (PyErr_Occurred())
		PyErr_WriteUnraisable(function);
	return err->code = PAWL_EUSAGE;
}

/* Both run inside of a call of the library, on the thread that gave up the GIL for it. */
static int
broadcast(void *arg, void *bytes, size_t nbytes, struct pawl_error *err)
{
	PyGILState_STATE gil = PyGILState_Ensure();
	struct pawl_error own = {0};
	int rc = call_broadcast(arg, NULL, bytes, nbytes, err ? err : &own);

	PyGILState_Release(gil);
	return rc;
}

int
py_broadcast_from(void *arg, uint32_t root, void *bytes, size_t nbytes, struct pawl_error *err)
{
	PyGILState_STATE gil = PyGILState_Ensure();
	struct pawl_error own = {0};
	int rc = call_broadcast(arg, &root, bytes, nbytes, err ? err : &own);

	PyGILState_Release(gil);
	return rc;
}

/* Calls the caller's function at the first look, and handlers of signals at each. An exception of either ends the wait;
 * it is kept for py_options_raise, since the library may call Python before it returns. */
static int
tell_lease_wait(void *arg, int64_t waited_ms, const char *why, struct pawl_error *err)
{
	PyGILState_STATE gil = PyGILState_Ensure();
	struct py_options *o = arg;
	bool fails = false;

	if (waited_ms == 0 && o->on_lease_wait != Py_None) {
		AUTO_REF answer = PyObject_CallFunction(o->on_lease_wait, "s", why);

		fails = !answer;
	}
	fails = fails || PyErr_CheckSignals() < 0;
	if (fails)
		PyErr_Fetch(&o->raised[0], &o->raised[1], &o->raised[2]);
	PyGILState_Release(gil);
	if (fails && err)
		*err = (struct pawl_error){.code = PAWL_ECANCELLED,
		                           .message = "the wait for the lease was interrupted"};
	return fails ? PAWL_ECANCELLED : 0;
}

bool
py_options_raise(struct py_options *o)
{
	if (!o->raised[0])
		return false;
	PyErr_Restore(o->raised[0], o->raised[1], o->raised[2]);
	return true;
}

static int
parse_words(PyObject *args, PyObject *kwargs, struct py_options *more, PyObject **names, PyObject **orders)
{
	struct pawl_open_opts *o = &more->opts;
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
	                        "read_bandwidth",
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
	                        "local_world_size",
	                        "node_rank",
	                        "node_folder",
	                        "partner",
	                        "n_nodes",
	                        "mirrors",
	                        "mirror_keep",
	                        "num_concurrent_uploads",
	                        "upload_timeout_ms",
	                        "upload_memory",
	                        "drop_mirrored",
	                        "mirror_errors",
	                        "leave_uploads",
	                        "after_id",
	                        "upload_bandwidth",
	                        "upload_error_budget",
	                        "compression",
	                        "compression_level",
	                        "lease_wait_ms",
	                        "on_lease_wait",
	                        NULL};
	struct pawl_retention *k = &o->retention;

	return PyArg_ParseTupleAndKeywords(
		args, kwargs, "s|$pppzzLO&O&O&dO&O!O!ppiiO&O&O&O&O&O&IIIpppLzdiOiizLOiizIIO!O!ILO&pppO&O&IziLO:Run",
		words, &o->root, &o->read_only, &o->single, &o->overwrite, &o->run_id, &o->name_template,
		&k->num_to_keep, to_size, &k->keep_last, to_size, &k->keep_best, to_size, &k->keep_every,
		&k->keep_seconds, to_size, &k->max_bytes, &PyTuple_Type, names, &PyTuple_Type, orders, &k->drop_latest,
		&k->strict_score, &o->mode, &o->on_busy, to_size, &o->arena_bytes, to_size, &o->ring_bytes, to_size,
		&o->pack_bytes, to_size, &o->block_bytes, to_size, &o->bandwidth_bytes_per_second, to_size,
		&o->read_bandwidth_bytes_per_second, &o->copy_threads, &o->io_threads, &o->recycle, &o->no_reuse,
		&o->no_direct_io, &o->strict_latest, &o->lease_timeout_ms, &o->save_interval, &o->mtbf_seconds,
		&o->nonfinite, &more->fault, &more->rank.rank, &more->rank.world_size, &more->attempt,
		&o->commit_timeout_ms, &more->broadcast, &more->rank.local_world_size, &more->rank.node_rank,
		&o->node_folder, &o->partner, &o->n_nodes, &PyTuple_Type, &more->mirrors, &PyDict_Type,
		&more->mirror_keep, &o->num_concurrent_uploads, &o->upload_timeout_ms, to_size, &o->upload_memory_bytes,
		&o->drop_mirrored, &o->mirror_errors, &o->leave_uploads, to_size, &o->after_id, to_size,
		&o->upload_bandwidth_bytes_per_second, &o->upload_error_budget, &o->compression, &o->compression_level,
		&o->lease_wait_ms, &more->on_lease_wait);
}

static int
read_mirrors(struct py_state *st, struct py_options *o)
{
	Py_ssize_t n = o->mirrors ? PyTuple_Size(o->mirrors) : 0;

	if (n > PY_MAX_MIRRORS) {
		py_raise_text(st, PAWL_ELIMIT, "%zd mirrors, at most %d are possible", n, PY_MAX_MIRRORS);
		return -1;
	}
	for (Py_ssize_t i = 0; i < n; i++) {
		o->mirror_urls[i] = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(o->mirrors, i), NULL);
		if (!o->mirror_urls[i])
			return -1;
	}
	o->opts.mirrors = n ? o->mirror_urls : NULL;
	o->opts.n_mirrors = (size_t)n;
	return 0;
}

/* What the mirrors keep; an empty dict = all. CheckpointManager has checked names and values. */
static int
read_mirror_keep(struct py_options *o)
{
	struct pawl_retention *k = &o->mirror_retention;
	static char *words[] = {"num_to_keep",  "keep_last", "keep_best", "keep_every",
	                        "keep_seconds", "max_bytes", NULL};

	if (!o->mirror_keep || PyDict_Size(o->mirror_keep) == 0)
		return PyErr_Occurred() ? -1 : 0;
	*k = (struct pawl_retention)PAWL_RETENTION_INIT;
	k->score_attributes = o->opts.retention.score_attributes;
	k->score_orders = o->opts.retention.score_orders;
	k->n_scores = o->opts.retention.n_scores;
	AUTO_REF nothing = PyTuple_New(0);
	if (!nothing || !PyArg_ParseTupleAndKeywords(nothing, o->mirror_keep, "|$LO&O&O&dO&:mirror_keep", words,
	                                             &k->num_to_keep, to_size, &k->keep_last, to_size, &k->keep_best,
	                                             to_size, &k->keep_every, &k->keep_seconds, to_size, &k->max_bytes))
		return -1;
	o->opts.mirror_retention = k;
	return 0;
}

int
py_options_read(struct py_options *o, struct py_state *st, PyObject *args, PyObject *kwargs)
{
	PyObject *names = NULL, *orders = NULL;

	*o = (struct py_options){
		.opts = PAWL_OPEN_OPTS_INIT, .fault = Py_None, .broadcast = Py_None, .on_lease_wait = Py_None};
	o->rank = (struct pawl_rank)PAWL_RANK_INIT;
	o->rank.world_size = 1;
	o->rank.local_world_size = o->rank.node_rank = -1;
	if (!parse_words(args, kwargs, o, &names, &orders) || read_scores(st, names, orders, o) < 0 ||
	    read_mirrors(st, o) < 0 || read_mirror_keep(o) < 0)
		return -1;
	o->opts.on_lease_wait = tell_lease_wait;
	o->opts.on_lease_wait_arg = o;
	return o->opts.read_only ? 0 : py_shared_arena(st, &o->opts.arena);
}

int
py_options_keep(struct py_options *o, struct py_state *st, struct py_run *self)
{
	if (arm_fault(st, o->fault, &self->fault) < 0)
		return -1;
	o->opts.fault = self->fault;
	o->opts.stores = &py_stores;
	if (o->attempt)
		snprintf(o->rank.attempt, sizeof(o->rank.attempt), "%s", o->attempt);
	o->opts.rank = &o->rank;
	if (o->broadcast != Py_None) {
		self->broadcast = Py_NewRef(o->broadcast);
		o->opts.broadcast = broadcast;
		o->opts.broadcast_arg = self->broadcast;
	}
	return 0;
}
