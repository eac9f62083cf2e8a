/* SPDX-License-Identifier: Apache-2.0 */
/*
 * py_run: the type Run: an open run. Methods may be called from any thread; close() waits for those
 * in progress. py_options.c reads the arguments of opening; py_list.c has the methods for stored
 * checkpoints.
 */
#include "py.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct py_state *
py_state_of(PyObject *self)
{
	return PyType_GetModuleState(Py_TYPE(self));
}

struct py_run *
py_run_enter(struct py_run *self)
{
	if (!self->run || self->closing) {
		py_raise_text(py_state_of((PyObject *)self), PAWL_EUSAGE, "%U: the run is closed; open it again",
		              self->root);
		return NULL;
	}
	if (self->pid != getpid()) {
		py_raise_text(py_state_of((PyObject *)self), PAWL_EUSAGE,
		              "the run was opened before fork(), by process %ld", (long)self->pid);
		return NULL;
	}
	self->calls++;
	return self;
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

bool
py_read_seconds(PyObject *value, double *ret)
{
	AUTO_REF method = PyObject_GetAttrString(value, "total_seconds");
	AUTO_REF number = method ? PyObject_CallObject(method, NULL) : NULL;

	PyErr_Clear();
	if (PyUnicode_Check(value)) {
		const char *text = PyUnicode_AsUTF8AndSize(value, NULL);

		return text && pawl_parse_seconds(text, ret, NULL) == 0;
	}
	*ret = PyFloat_AsDouble(number ? number : value);
	return !PyErr_Occurred() && !isnan(*ret);
}

/* ret_seconds: negative = no limit. */
static int
deadline_of(struct py_state *st, PyObject *timeout, int64_t *ret, double *ret_seconds)
{
	double seconds;

	*ret = INT64_MAX;
	*ret_seconds = -1;
	if (timeout == Py_None)
		return 0;
	if (!py_read_seconds(timeout, &seconds)) {
		PyErr_Clear();
		py_raise_received(st, timeout,
		                  "timeout must be None, a number of seconds, a timedelta or a text such as 5min");
		return -1;
	}
	*ret_seconds = seconds < 0 ? 0 : seconds;
	if (seconds < 1e12)
		*ret = now_ms() + (int64_t)(*ret_seconds * 1000 + 0.5);
	return 0;
}

/* "... within 0.3 seconds", and what the library reports that it waits for. Always returns -1. */
static int
raise_timeout(struct py_state *st, const struct pawl_error *err, double seconds, const char *format, va_list args)
{
	const char *waits_for = strstr(err->message, "; waiting for ");
	AUTO_REF what = PyUnicode_FromFormatV(format, args);
	char *text = PyOS_double_to_string(seconds, seconds < 100 ? 'g' : 'f',
	                                   seconds < 1     ? 2
	                                   : seconds < 100 ? 3
	                                                   : 0,
	                                   0, NULL);

	if (what && text)
		py_raise_text(st, PAWL_ETIMEOUT, "%U within %s second%s%s", what, text,
		              strcmp(text, "1") == 0 ? "" : "s", waits_for ? waits_for : "");
	PyMem_Free(text);
	return -1;
}

int
py_wait(struct py_state *st, PyObject *timeout, py_wait_fn *call, void *arg, const char *format, ...)
{
	struct pawl_error err;
	int64_t deadline, left;
	double seconds;
	va_list args;
	bool over; /* the time of this call or of the slice; false for a save that failed by its own deadline */
	int rc;

	TRY(deadline_of(st, timeout, &deadline, &seconds));
	for (;;) {
		left = deadline - now_ms();
		if (left < 0)
			left = 0;
		err = (struct pawl_error){0};
		rc = UNLOCKED(call(arg, left < PY_SLICE_MS ? left : PY_SLICE_MS, &err));
		/* a signal does not discard the library's answer; it is handled right
		 * after */
		over = rc == PAWL_ETIMEOUT && err.sys == PAWL_SYS_WAITED;
		if (!over)
			break;
		TRY(PyErr_CheckSignals());
		if (left <= PY_SLICE_MS)
			break;
	}
	if (over) {
		va_start(args, format);
		raise_timeout(st, &err, seconds, format, args);
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
wait_remote(void *arg, int64_t timeout_ms, struct pawl_error *err)
{
	return pawl_wait_level(arg, PAWL_LEVEL_REMOTE, timeout_ms, err);
}

/* Errors of uploads are reported when the run is closed. */
static int
wait_uploads(void *arg, int64_t timeout_ms, struct pawl_error *err)
{
	int rc = wait_remote(arg, timeout_ms, err);

	return rc == PAWL_ETIMEOUT && err->sys == PAWL_SYS_WAITED ? rc : 0;
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

static PyObject *
run_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	struct py_state *st = PyType_GetModuleState(type);
	struct pawl_error err = {0};
	struct py_options options;

	TRY_NULL(py_options_read(&options, st, args, kwargs));
	AUTO_REF object = py_object_new(type);
	struct py_run *self = (struct py_run *)object;
	if (!self)
		return NULL;
	self->pid = getpid();
	self->lazy = PyList_New(0);
	self->holds = PyList_New(0);
	if (!self->lazy || !self->holds || py_options_keep(&options, st, self) < 0)
		return NULL;
	int rc = UNLOCKED(pawl_open(&options.opts, &self->run, &err));
	if (rc < 0 && !py_raise_kept(options.raised))
		py_raise(st, rc, &err);
	if (rc < 0)
		return NULL;
	self->root = PyUnicode_DecodeFSDefault(pawl_root(self->run));
	if (!self->root)
		return NULL;
	self->waits_uploads = options.opts.n_mirrors > 0 && !options.opts.uploads.leave_uploads;
	return Py_NewRef(object);
}

/* ---- closing ---- */

/* Removes the handle from the object and closes it; returns the library's code. */
static int
close_handle(struct py_run *self, struct pawl_error *err)
{
	struct pawl *run = self->run;
	int rc;

	self->run = NULL;
	if (!run || self->pid != getpid())
		return 0; /* after fork() it belongs to the parent; its threads do not exist here */
	for (Py_ssize_t i = PyList_Size(self->holds); i-- > 0;)
		py_hold_release(PyList_GetItem(self->holds, i));
	PyList_SetSlice(self->holds, 0, PyList_Size(self->holds), NULL);
	rc = UNLOCKED(pawl_close(run, err));
	py_run_prune_lazy(self, true);
	return rc;
}

static void
run_dealloc(struct py_run *self)
{
	PyObject *kind, *value, *trace;

	PyErr_Fetch(&kind, &value, &trace);
	if (self->lazy && self->holds)
		close_handle(self, NULL);
	Py_CLEAR(self->lazy);
	Py_CLEAR(self->holds);
	Py_CLEAR(self->root);
	Py_CLEAR(self->broadcast);
	Py_CLEAR(self->keep);
	pawl_fault_free(self->fault);
	PyErr_Restore(kind, value, trace);
	py_object_free((PyObject *)self);
}

static int
wait_calls(void *arg, int64_t timeout_ms, struct pawl_error *err)
{
	struct timespec nap = {.tv_nsec = 1000000};

	(void)timeout_ms;
	nanosleep(&nap, NULL);
	if (!*(volatile unsigned *)arg)
		return 0;
	err->sys = PAWL_SYS_WAITED;
	return PAWL_ETIMEOUT;
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
	/* wait in slices first, so that Ctrl+C is handled: then the run stays open */
	if (py_wait(st, Py_None, wait_saves, self->run, "the saves were not settled") < 0) {
		if (!PyErr_ExceptionMatches(st->errors[0])) {
			self->closing = false;
			return NULL;
		}
		PyErr_Fetch(&type, &value, &trace);
	}
	if (!type && self->waits_uploads &&
	    py_wait(st, Py_None, wait_uploads, self->run, "the uploads did not end") < 0) {
		self->closing = false;
		return NULL;
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
		if (rc < 0)
			py_add_note(NULL, "pawl: closing the run failed too: %s", err.message);
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
	AUTO_RUN in = NULL;
	int remote = 0;

	if (!PyArg_ParseTuple(args, "|Op:wait", &timeout, &remote) || !(in = py_run_enter(self)))
		return NULL;
	TRY_NULL(py_wait(py_state_of((PyObject *)self), timeout, remote ? wait_remote : wait_saves, in->run,
	                 remote ? "the checkpoints of %s were not copied to its mirrors"
	                        : "the saves of %s were not settled",
	                 pawl_root(in->run)));
	py_run_prune_lazy(self, false);
	Py_RETURN_NONE;
}

static PyObject *
run_fence(struct py_run *self, PyObject *args)
{
	PyObject *timeout = Py_None;
	AUTO_RUN in = NULL;

	if (!PyArg_ParseTuple(args, "|O:fence", &timeout) || !(in = py_run_enter(self)))
		return NULL;
	for (Py_ssize_t i = 0; i < PyList_Size(self->lazy); i++) {
		AUTO_REF ticket = Py_NewRef(PyList_GetItem(self->lazy, i));

		TRY_NULL(py_ticket_fence(ticket, timeout));
	}
	TRY_NULL(py_wait(py_state_of((PyObject *)self), timeout, wait_fence, in->run,
	                 "the tensors of lazy saves of %s were not copied", pawl_root(in->run)));
	py_run_prune_lazy(self, false);
	Py_RETURN_NONE;
}

static PyObject *
run_check(struct py_run *self, PyObject *args)
{
	AUTO_RUN in = NULL;
	int saves = 0;

	if (!PyArg_ParseTuple(args, "|p:check", &saves) || !(in = py_run_enter(self)))
		return NULL;
	return py_none(CALL(py_state_of((PyObject *)self), (saves ? pawl_check_saves : pawl_check)(in->run, err)));
}

/* The oldest event that was not taken, as JSON, or None. */
static PyObject *
run_event(struct py_run *self, PyObject *none)
{
	AUTO_RUN in = py_run_enter(self);
	char *text = NULL;

	(void)none;
	if (!in)
		return NULL;
	if (pawl_event_take(in->run, &text, NULL) <= 0)
		Py_RETURN_NONE;
	PyObject *ret = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");

	pawl_event_free(text);
	return ret;
}

static PyObject *
run_mirrors(struct py_run *self, PyObject *none)
{
	AUTO_RUN in = py_run_enter(self);
	AUTO_REF list = in ? PyList_New(0) : NULL;

	(void)none;
	for (size_t i = 0; list && i < pawl_mirror_count(in->run); i++) {
		struct pawl_mirror_info m = PAWL_MIRROR_INFO_INIT;

		UNLOCKED(pawl_mirror_get(in->run, i, &m, NULL));
		AUTO_REF row = Py_BuildValue("{s:s,s:K,s:K,s:K,s:K,s:K,s:s}", "url", m.url, "n_done",
		                             (unsigned long long)m.n_done, "n_waiting", (unsigned long long)m.n_waiting,
		                             "n_failed", (unsigned long long)m.n_failed, "done_bytes",
		                             (unsigned long long)m.done_bytes, "total_bytes",
		                             (unsigned long long)m.total_bytes, "error", m.code < 0 ? m.message : "");
		if (!row || PyList_Append(list, row) < 0)
			return NULL;
	}
	return Py_XNewRef(list);
}

static PyObject *
run_is_saving(struct py_run *self, PyObject *none)
{
	AUTO_RUN in = py_run_enter(self);

	(void)none;
	return in ? PyBool_FromLong(UNLOCKED(pawl_is_saving(in->run))) : NULL;
}

static PyObject *
run_should_save(struct py_run *self, PyObject *args)
{
	struct py_state *st = py_state_of((PyObject *)self);
	PyObject *mapping = Py_None;
	struct pawl_progress progress;
	AUTO_RUN in = NULL;
	long long step;

	if (!PyArg_ParseTuple(args, "L|O:should_save", &step, &mapping) || py_progress(st, mapping, &progress) < 0 ||
	    !(in = py_run_enter(self)))
		return NULL;
	int rc = CALL(st, pawl_should_save(in->run, step, &progress, err));
	return rc < 0 ? NULL : PyBool_FromLong(rc);
}

/* ---- the type ---- */

static PyObject *
get_root(struct py_run *self, void *closure)
{
	(void)closure;
	return Py_NewRef(self->root);
}

static PyObject *
get_run_id(struct py_run *self, void *closure)
{
	(void)closure;
	return self->run ? PyUnicode_FromString(pawl_run_id(self->run)) : Py_NewRef(Py_None);
}

static PyObject *
get_warning(struct py_run *self, void *closure)
{
	const char *text = self->run ? pawl_warning(self->run) : NULL;

	(void)closure;
	return text ? PyUnicode_DecodeFSDefault(text) : Py_NewRef(Py_None);
}

static PyObject *
get_closed(struct py_run *self, void *closure)
{
	(void)closure;
	return PyBool_FromLong(!self->run || self->pid != getpid());
}

static PyObject *
get_fault_calls(struct py_run *self, void *closure)
{
	(void)closure;
	return PyLong_FromUnsignedLongLong(self->fault ? pawl_fault_calls(self->fault) : 0);
}

static PyMethodDef run_methods[] = {
	{"save", PY_METHOD(py_run_save), METH_VARARGS | METH_KEYWORDS, "Start a save; returns a Ticket."},
	{"prepare", PY_METHOD(py_run_prepare), METH_O, "Fault in the memory that saves of this state will use."},
	{"save_failed", PY_METHOD(py_run_save_failed), METH_VARARGS,
         "Report to the other ranks that this one cannot "
         "save."},
	{"wait", PY_METHOD(run_wait), METH_VARARGS, "Wait until all saves are settled, or also copied to all mirrors."},
	{"event", PY_METHOD(run_event), METH_NOARGS, "Take the oldest event, as JSON, or None."},
	{"mirrors", PY_METHOD(run_mirrors), METH_NOARGS, "Figures of the mirrors."},
	{"fence", PY_METHOD(run_fence), METH_VARARGS, "Wait until all tensors given to lazy saves may change."},
	{"check", PY_METHOD(run_check), METH_VARARGS, "Raise the first background error that no call has raised yet."},
	{"is_saving", PY_METHOD(run_is_saving), METH_NOARGS, "True while a save is running."},
	{"should_save", PY_METHOD(run_should_save), METH_VARARGS, "Is a save due by the run's interval?"},
	{"close", PY_METHOD(run_close), METH_NOARGS, "Wait for running saves and release the run."},
	{"restore", PY_METHOD(py_run_restore), METH_VARARGS | METH_KEYWORDS,
         "(tree, info, fallbacks, report, metadata)."},
	{"convert", PY_METHOD(py_run_convert), METH_VARARGS | METH_KEYWORDS, "Write it in another format: counts."},
	{"describe", PY_METHOD(py_run_describe), METH_VARARGS, "(tree, info, fallbacks), without tensors."},
	{"read", PY_METHOD(py_run_read), METH_VARARGS, "Boxes of a checkpoint's tensors, into memory that is given."},
	{"list", PY_METHOD(py_run_list), METH_VARARGS, "Facts of all checkpoints, oldest first."},
	{"find", PY_METHOD(py_run_find), METH_VARARGS, "Id for a selector."},
	{"info", PY_METHOD(py_run_info), METH_VARARGS, "Facts of one checkpoint."},
	{"metadata", PY_METHOD(py_run_metadata), METH_VARARGS, "The user's metadata of a checkpoint."},
	{"pin", PY_METHOD(py_run_pin), METH_VARARGS, "Pin a checkpoint."},
	{"unpin", PY_METHOD(py_run_unpin), METH_VARARGS, "Take the pin off."},
	{"score", PY_METHOD(py_run_score), METH_VARARGS, "Add metrics to a committed checkpoint."},
	{"remove", PY_METHOD(py_run_remove), METH_VARARGS, "Delete a checkpoint."},
	{"prune", PY_METHOD(py_run_prune), METH_VARARGS, "Apply the run's retention: [(id, keep, reason)]."},
	{"verify", PY_METHOD(py_run_verify), METH_VARARGS, "Read and check every byte: list of findings."},
	{"diff", PY_METHOD(py_run_diff), METH_VARARGS, "What changed from a checkpoint to one of a run."},
	{"copy", PY_METHOD(py_run_copy), METH_VARARGS, "Copy a checkpoint, or the run, to another place."},
	{"gc", PY_METHOD(py_run_gc), METH_VARARGS, "Remove what crashes left: (left-overs, bytes)."},
	{"repair", PY_METHOD(py_run_repair), METH_VARARGS, "Rebuild the manifest of a checkpoint."},
	{"reload", PY_METHOD(py_run_reload), METH_NOARGS, "See what other processes did."},
	{"wait_for_new", PY_METHOD(py_run_wait_for_new), METH_VARARGS, "Id of a checkpoint above the given one."},
	{"hold", PY_METHOD(py_run_hold), METH_VARARGS, "Hold a checkpoint against deletion."},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef run_getset[] = {
	{"root", (getter)get_root, NULL, "The run's folder.", NULL},
	{"run_id", (getter)get_run_id, NULL, "The run's id.", NULL},
	{"warning", (getter)get_warning, NULL, "What the store cannot promise, or None.", NULL},
	{"closed", (getter)get_closed, NULL, "True once close() is done, and in a child of fork().", NULL},
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
	const PyType_Spec spec = {"pawl._pawl.Run", sizeof(struct py_run), 0, Py_TPFLAGS_DEFAULT, slots};

	return py_add_type(module, spec, &st->run_type);
}
