/* SPDX-License-Identifier: Apache-2.0 */
/* py_ticket: the types Ticket (a running or finished save), Hold (of a reader) and Watch (of
 * signals). */
#include "py.h"

#include <time.h>
#include <unistd.h>

#include "py_lazy.h"

struct py_ticket {
	PyObject_HEAD struct pawl_ticket *ticket;
	PyObject *keep;       /* owners of tensors that a lazy save may still be copying; NULL = none */
	struct py_lazy *lazy; /* for those tensors; NULL = none */
	PyObject *error;      /* the save's error once it is known */
	long long step;
	double held_seconds; /* in addition to the library's measurement: the walk over the state */
	pid_t pid;           /* of its process; a child of fork() does not have the threads of the save */
};

struct py_hold {
	PyObject_HEAD struct pawl_hold *hold; /* NULL once released, at the latest by the run */
	pid_t pid;                            /* of its process; a child of fork() must not release it */
	bool closing;                         /* a thread is releasing it now */
};

struct py_watch {
	PyObject_HEAD struct pawl_watch *watch;
};

/* ---- Ticket ---- */

/* The tensors of a lazy save must outlive its copy. */
static void
wait_staged(struct pawl_ticket *ticket)
{
	UNLOCKED(pawl_ticket_wait_for(ticket, PAWL_STAGE_STAGED, -1, NULL));
}

PyObject *
py_ticket_new(struct py_state *st, struct pawl_ticket *ticket, long long step, PyObject *keep, struct py_lazy *lazy)
{
	struct py_ticket *self = py_object_new((PyTypeObject *)st->ticket_type);

	if (!self) {
		if (keep)
			wait_staged(ticket);
		py_lazy_free(lazy);
		pawl_ticket_free(ticket);
		return NULL;
	}
	self->ticket = ticket;
	self->keep = Py_XNewRef(keep);
	self->lazy = lazy;
	self->step = step;
	self->pid = getpid();
	return (PyObject *)self;
}

void
py_ticket_held_since(PyObject *ticket, double begin)
{
	struct py_ticket *self = (struct py_ticket *)ticket;
	struct pawl_save_stats stats = PAWL_SAVE_STATS_INIT;
	double more;

	pawl_ticket_stats(self->ticket, &stats);
	more = py_now_seconds() - begin - stats.blocked_seconds;
	self->held_seconds = more > 0 ? more : 0;
}

bool
py_ticket_release(PyObject *ticket, bool force)
{
	struct py_ticket *self = (struct py_ticket *)ticket;

	if (self->keep && (force || pawl_ticket_stage(self->ticket) >= PAWL_STAGE_STAGED)) {
		Py_CLEAR(self->keep);
		py_lazy_free(self->lazy);
		self->lazy = NULL;
	}
	return !self->keep;
}

static void
ticket_dealloc(struct py_ticket *self)
{
	if (self->pid == getpid()) { /* in a child of fork() the copy does not end, and a lock may be held for ever */
		if (self->keep)      /* never for a run's own tickets; only for one the run could not keep */
			wait_staged(self->ticket);
		pawl_ticket_free(self->ticket);
	}
	py_lazy_free(self->lazy);
	Py_CLEAR(self->keep);
	Py_CLEAR(self->error);
	py_object_free((PyObject *)self);
}

static int
wait_ticket(void *arg, int64_t timeout_ms, struct pawl_error *err)
{
	return pawl_ticket_wait(arg, timeout_ms, err);
}

static int
wait_copied(void *arg, int64_t timeout_ms, struct pawl_error *err)
{
	return pawl_ticket_wait_for(arg, PAWL_STAGE_STAGED, timeout_ms, err);
}

int
py_ticket_fence(PyObject *ticket, PyObject *timeout)
{
	struct py_ticket *self = (struct py_ticket *)ticket;
	struct py_state *st = py_state_of(ticket);

	if (!self->lazy || py_lazy_is_current(self->lazy, st))
		return 0;
	return py_wait(st, timeout, wait_copied, self->ticket, "the tensors of step %lld were not copied", self->step);
}

static int
wait_committed(void *arg, int64_t timeout_ms, struct pawl_error *err)
{
	return pawl_ticket_wait_for(arg, PAWL_STAGE_COMMITTED, timeout_ms, err);
}

static bool
is_done(const struct py_ticket *self)
{
	return pawl_ticket_stage(self->ticket) >= PAWL_STAGE_SETTLED;
}

static PyObject *
wait_for(struct py_ticket *self, PyObject *args, PyObject *kwargs, py_wait_fn *call, const char *what)
{
	static char *words[] = {"timeout", NULL};
	struct py_state *st = py_state_of((PyObject *)self);
	PyObject *timeout = Py_None;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:wait", words, &timeout))
		return NULL;
	if (self->pid != getpid() && !is_done(self))
		return py_raise_text(st, PAWL_EUSAGE, "the save of step %lld was begun before fork(), by process %ld",
		                     self->step, (long)self->pid);
	if (py_wait(st, timeout, call, self->ticket, "the save of step %lld was not %s", self->step, what) < 0)
		return NULL;
	py_ticket_release((PyObject *)self, false);
	Py_RETURN_NONE;
}

static PyObject *
ticket_wait(struct py_ticket *self, PyObject *args, PyObject *kwargs)
{
	return wait_for(self, args, kwargs, wait_ticket, "settled");
}

static PyObject *
ticket_wait_durable(struct py_ticket *self, PyObject *args, PyObject *kwargs)
{
	return wait_for(self, args, kwargs, wait_committed, "durable");
}

static PyObject *
get_stage(struct py_ticket *self, void *closure)
{
	static const char *const names[] = {"staging", "staged", "written", "committed",
	                                    "settled", "failed", "skipped"};
	int stage = pawl_ticket_stage(self->ticket);

	(void)closure;
	return PyUnicode_FromString(stage >= 0 && stage <= PAWL_STAGE_SKIPPED ? names[stage] : "unknown");
}

/* Reading the error marks the failure as reported. */
static PyObject *
get_error(struct py_ticket *self, void *closure)
{
	struct pawl_error err = {0};
	int rc;

	(void)closure;
	if (!self->error && pawl_ticket_stage(self->ticket) == PAWL_STAGE_FAILED) {
		rc = pawl_ticket_wait(self->ticket, 0, &err);
		if (rc < 0)
			self->error = py_error_new(py_state_of((PyObject *)self), rc, &err);
		if (rc < 0 && !self->error)
			return NULL;
	}
	return Py_NewRef(self->error ? self->error : Py_None);
}

static PyObject *
ticket_repr(struct py_ticket *self)
{
	AUTO_REF stage = get_stage(self, NULL);

	return stage ? PyUnicode_FromFormat("Ticket(step=%lld, stage=%R)", self->step, stage) : NULL;
}

static struct pawl_save_stats
stats_of(const struct py_ticket *self)
{
	struct pawl_save_stats stats = PAWL_SAVE_STATS_INIT;

	pawl_ticket_stats(self->ticket, &stats);
	return stats;
}

static PyObject *
get_id(struct py_ticket *self, void *closure)
{
	uint64_t id = stats_of(self).id;
	const bool skipped = pawl_ticket_stage(self->ticket) == PAWL_STAGE_SKIPPED; /* its id names no checkpoint */

	(void)closure;
	return id && !skipped ? PyLong_FromUnsignedLongLong(id) : Py_NewRef(Py_None);
}

/* ---- the methods of a concurrent.futures.Future ---- */

static PyObject *
ticket_done(struct py_ticket *self, PyObject *none)
{
	(void)none;
	return PyBool_FromLong(is_done(self));
}

static PyObject *
ticket_running(struct py_ticket *self, PyObject *none)
{
	(void)none;
	return PyBool_FromLong(!is_done(self));
}

/* A save cannot be cancelled. */
static PyObject *
ticket_cancel(PyObject *self, PyObject *none)
{
	(void)self;
	(void)none;
	Py_RETURN_FALSE;
}

static PyObject *
ticket_result(struct py_ticket *self, PyObject *args, PyObject *kwargs)
{
	AUTO_REF done = wait_for(self, args, kwargs, wait_ticket, "settled");

	return done ? get_id(self, NULL) : NULL;
}

static PyObject *
ticket_exception(struct py_ticket *self, PyObject *args, PyObject *kwargs)
{
	struct py_state *st = py_state_of((PyObject *)self);
	AUTO_REF done = wait_for(self, args, kwargs, wait_ticket, "settled");

	if (!done && (!is_done(self) || !PyErr_ExceptionMatches(st->errors[0])))
		return NULL; /* also one of a signal's handler */
	if (!done && pawl_ticket_stage(self->ticket) != PAWL_STAGE_FAILED &&
	    !PyErr_ExceptionMatches(st->errors[-PAWL_ETIMEOUT]))
		return NULL; /* not the save's: of the arguments */
	PyErr_Clear();
	return get_error(self, NULL);
}

/* Calls a function of pawl._future with this ticket and an argument. */
static PyObject *
call_future(PyObject *self, const char *name, PyObject *arg)
{
	AUTO_REF module = PyImport_ImportModule("pawl._future");

	return module ? PyObject_CallMethod(module, name, "OO", self, arg) : NULL;
}

static PyObject *
ticket_add_done_callback(PyObject *self, PyObject *fn)
{
	return call_future(self, "add_done_callback", fn);
}

static PyObject *
ticket_await(PyObject *self)
{
	return call_future(self, "wait", Py_None);
}

static PyObject *
get_step(struct py_ticket *self, void *closure)
{
	(void)closure;
	return PyLong_FromLongLong(self->step);
}

static PyObject *
get_blocked_seconds(struct py_ticket *self, void *closure)
{
	(void)closure;
	return PyFloat_FromDouble(stats_of(self).blocked_seconds + self->held_seconds);
}

static PyObject *
get_stats(struct py_ticket *self, void *closure)
{
	struct pawl_save_stats s = stats_of(self);

	(void)closure;
	return Py_BuildValue(
		"{s:K,s:K,s:K,s:d,s:d,s:d,s:d,s:d,s:K,s:K,s:K}", "nbytes", (unsigned long long)s.bytes, "written_bytes",
		(unsigned long long)s.written_bytes, "reused_bytes", (unsigned long long)s.reused_bytes,
		"blocked_seconds", s.blocked_seconds + self->held_seconds, "stage_seconds", s.stage_seconds,
		"write_seconds", s.write_seconds, "commit_seconds", s.commit_seconds, "total_seconds", s.total_seconds,
		"minor_faults", (unsigned long long)s.minor_faults, "plain_bytes", (unsigned long long)s.plain_bytes,
		"registered_bytes", (unsigned long long)s.registered_bytes);
}

#define ARG_TIMEOUT "\n\nArgs:\n    timeout: Longest wait, as a duration. Default: None, no limit.\n\n"
#define RAISES_TIMEOUT "Raises:\n    TimeoutError: The wait took too long."
#define RAISES_SAVE "Raises:\n    PawlError: The save has failed.\n    TimeoutError: The wait took too long."

int
py_ticket_init(PyObject *module, struct py_state *st)
{
	static PyMethodDef methods[] = {
		{"wait", PY_METHOD(ticket_wait), METH_VARARGS | METH_KEYWORDS,
	         "Wait until the save is settled." ARG_TIMEOUT RAISES_SAVE},
		{"wait_durable", PY_METHOD(ticket_wait_durable), METH_VARARGS | METH_KEYWORDS,
	         "Wait until the checkpoint is durable; older ones may still be deleted then." ARG_TIMEOUT RAISES_SAVE},
		{"done", (PyCFunction)(void (*)(void))ticket_done, METH_NOARGS,
	         "Is the save over?\n\nReturns:\n    True once it is settled, skipped or failed."},
		{"running", (PyCFunction)(void (*)(void))ticket_running, METH_NOARGS,
	         "Is the save running?\n\nReturns:\n    True until it is done."},
		{"cancel", ticket_cancel, METH_NOARGS, "A save cannot be cancelled.\n\nReturns:\n    False."},
		{"cancelled", ticket_cancel, METH_NOARGS, "A save cannot be cancelled.\n\nReturns:\n    False."},
		{"result", (PyCFunction)(void (*)(void))ticket_result, METH_VARARGS | METH_KEYWORDS,
	         "Wait until the save is settled." ARG_TIMEOUT
	         "Returns:\n    Id of the checkpoint; None if it was skipped.\n\n" RAISES_SAVE},
		{"exception", (PyCFunction)(void (*)(void))ticket_exception, METH_VARARGS | METH_KEYWORDS,
	         "Wait until the save is settled." ARG_TIMEOUT
	         "Returns:\n    The save's error, or None.\n\n" RAISES_TIMEOUT},
		{"add_done_callback", ticket_add_done_callback, METH_O,
	         "Call a function once the save is done, on a separate thread unless it is done now.\n\nArgs:\n    fn: Called with the ticket."},
		{NULL, NULL, 0, NULL},
	};
	static PyGetSetDef getset[] = {
		{"stage", (getter)get_stage, NULL, "staging, staged, written, committed, settled, failed or skipped.",
	         NULL},
		{"error", (getter)get_error, NULL, "The save's error, or None.", NULL},
		{"id", (getter)get_id, NULL, "Id of the checkpoint; None if the save was skipped.", NULL},
		{"step", (getter)get_step, NULL, "The caller's step.", NULL},
		{"blocked_seconds", (getter)get_blocked_seconds, NULL, "How long save() held the caller.", NULL},
		{"stats", (getter)get_stats, NULL,
	         "Bytes and seconds of the save so far, a dict.\n\nKeys:\n"
	         "    nbytes, plain_bytes: Of the checkpoint, and the same before compression.\n"
	         "    written_bytes, reused_bytes: Written by this save, and taken over from an earlier one.\n"
	         "    blocked_seconds: How long save() held the caller.\n"
	         "    stage_seconds, write_seconds, commit_seconds, total_seconds: How long each part took.\n"
	         "    minor_faults: Page faults of the threads that copy.\n"
	         "    registered_bytes: Of the memory, known to the driver of a device.",
	         NULL},
		{NULL, NULL, NULL, NULL, NULL},
	};
	PyType_Slot slots[] = {
		{Py_tp_doc, "A running or finished save."},
		{Py_tp_dealloc, ticket_dealloc},
		{Py_tp_repr, ticket_repr},
		{Py_am_await, ticket_await},
		{Py_tp_methods, methods},
		{Py_tp_getset, getset},
		{0, NULL},
	};
	const PyType_Spec spec = {"pawl.Ticket", sizeof(struct py_ticket), 0,
	                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

	return py_add_type(module, spec, &st->ticket_type);
}

/* ---- Hold ---- */

PyObject *
py_hold_new(struct py_state *st, struct pawl_hold *hold)
{
	struct py_hold *self = py_object_new((PyTypeObject *)st->hold_type);

	if (!self) {
		UNLOCKED(pawl_hold_close(hold));
		return NULL;
	}
	self->hold = hold;
	self->pid = getpid();
	return (PyObject *)self;
}

void
py_hold_release(PyObject *hold)
{
	struct py_hold *self = (struct py_hold *)hold;
	struct pawl_hold *was = self->hold;
	struct timespec nap = {.tv_nsec = 1000000};

	self->hold = NULL;
	if (self->pid != getpid())
		return;
	while (self->closing) /* another thread releases it, in the run that the caller may be about to close */
		UNLOCKED(nanosleep(&nap, NULL));
	self->closing = true;
	UNLOCKED(pawl_hold_close(was));
	self->closing = false;
}

static PyObject *
hold_close(PyObject *self, PyObject *none)
{
	(void)none;
	py_hold_release(self);
	Py_RETURN_NONE;
}

static int
init_hold(PyObject *module, struct py_state *st)
{
	static PyMethodDef methods[] = {
		{"close", hold_close, METH_NOARGS, "Let go of the checkpoint."},
		{NULL, NULL, 0, NULL},
	};
	PyType_Slot slots[] = {{Py_tp_dealloc, py_object_free}, {Py_tp_methods, methods}, {0, NULL}};
	const PyType_Spec spec = {"pawl._pawl.Hold", sizeof(struct py_hold), 0,
	                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

	return py_add_type(module, spec, &st->hold_type);
}

/* ---- Watch ---- */

static PyObject *
watch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *words[] = {"grace_seconds", NULL};
	struct py_state *st = PyType_GetModuleState(type);
	struct pawl_error err = {0};
	struct py_watch *self;
	double grace_seconds = 0;
	int rc;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|d:Watch", words, &grace_seconds))
		return NULL;
	self = py_object_new(type);
	if (!self)
		return NULL;
	rc = pawl_watch_open(grace_seconds, &self->watch, &err);
	if (rc < 0) {
		Py_DECREF(self);
		return py_raise(st, rc, &err);
	}
	return (PyObject *)self;
}

static PyObject *
watch_close(struct py_watch *self, PyObject *none)
{
	struct pawl_watch *was = self->watch;

	(void)none;
	self->watch = NULL;
	pawl_watch_close(was);
	Py_RETURN_NONE;
}

static void
watch_dealloc(struct py_watch *self)
{
	pawl_watch_close(self->watch);
	py_object_free((PyObject *)self);
}

static PyObject *
get_signal(struct py_watch *self, void *closure)
{
	(void)closure;
	return PyLong_FromLong(pawl_watch_signal(self->watch));
}

static PyObject *
get_sender(struct py_watch *self, void *closure)
{
	(void)closure;
	return PyLong_FromLongLong(pawl_watch_sender(self->watch));
}

static PyObject *
get_seconds_left(struct py_watch *self, void *closure)
{
	double left = pawl_watch_seconds_left(self->watch);

	(void)closure;
	return left < 0 ? Py_NewRef(Py_None) : PyFloat_FromDouble(left);
}

static int
init_watch(PyObject *module, struct py_state *st)
{
	static PyMethodDef methods[] = {
		{"close", PY_METHOD(watch_close), METH_NOARGS, "Put the earlier signal handlers back."},
		{NULL, NULL, 0, NULL},
	};
	static PyGetSetDef getset[] = {
		{"signal", (getter)get_signal, NULL, "Number of the signal that came, or 0.", NULL},
		{"sender", (getter)get_sender, NULL, "The process that sent it; 0 = not known, or none came.", NULL},
		{"seconds_left", (getter)get_seconds_left, NULL, "Seconds until the process is killed; None = unknown.",
	         NULL},
		{NULL, NULL, NULL, NULL, NULL},
	};
	PyType_Slot slots[] = {
		{Py_tp_new, watch_new},
		{Py_tp_dealloc, watch_dealloc},
		{Py_tp_methods, methods},
		{Py_tp_getset, getset},
		{0, NULL},
	};
	const PyType_Spec spec = {"pawl._pawl.Watch", sizeof(struct py_watch), 0, Py_TPFLAGS_DEFAULT, slots};

	return py_add_type(module, spec, &st->watch_type);
}

int
py_hold_init(PyObject *module, struct py_state *st)
{
	return init_hold(module, st) < 0 ? -1 : init_watch(module, st);
}
