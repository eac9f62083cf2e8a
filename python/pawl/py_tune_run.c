/* SPDX-License-Identifier: Apache-2.0 */
/*
 * py_tune_run: TrialRunner, a struct tune_runner: the trials of an Experiment as processes of this
 * machine. Used from one thread. A wait releases the interpreter lock, for at most a tenth of a
 * second.
 */
#include "py_tune.h"

struct py_runner {
	PyObject_HEAD struct tune_runner *r; /* NULL once closed */
	struct py_experiment *experiment;
	bool busy; /* a poll runs; guarded by the interpreter lock */
};

static int
open_runner(struct py_runner *self, PyObject *command, PyObject *env, PyObject *forker, double cpus, long long gpus)
{
	size_t n;
	AUTO_TEXTS words = py_texts(command, &n);
	AUTO_TEXTS more = words ? py_texts(env, &n) : NULL;
	AUTO_TEXTS server = more && forker ? py_texts(forker, &n) : NULL;
	const struct tune_runner_opts opts = {
		.command = words, .env = more, .forker = server, .cpus = cpus, .gpus = gpus};
	struct pawl_error err = {0};

	if (!more || (forker && !server))
		return -1;
	int rc = tune_runner_new(self->experiment->e, &opts, &self->r, &err);
	if (rc < 0)
		py_raise(py_state_of((PyObject *)self), rc, &err);
	return rc;
}

static PyObject *
runner_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"experiment", "command", "env", "cpus", "gpus", "forker", NULL};
	PyObject *experiment, *command, *env, *forker = NULL;
	double cpus = 0;
	long long gpus = 0;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!O!|$dLO!:TrialRunner", names, &experiment, &PyList_Type,
	                                 &command, &PyList_Type, &env, &cpus, &gpus, &PyList_Type, &forker))
		return NULL;

	struct py_experiment *owner = py_experiment_check(PyType_GetModuleState(type), experiment);

	if (!owner || !py_experiment_of(owner))
		return NULL;

	struct py_runner *self = py_object_new(type);

	if (!self)
		return NULL;
	self->experiment = (struct py_experiment *)Py_NewRef(experiment);
	owner->users++;
	if (open_runner(self, command, env, forker, cpus, gpus) < 0)
		Py_CLEAR(self);
	return (PyObject *)self;
}

/* Frees the runner; trials that still run are killed. */
static void
let_go(struct py_runner *self)
{
	struct tune_runner *was = self->r;
	struct py_experiment *experiment = self->experiment;

	self->r = NULL;
	self->experiment = NULL;
	tune_runner_free(was);
	if (experiment) {
		experiment->users--;
		Py_DECREF((PyObject *)experiment);
	}
}

static void
runner_dealloc(struct py_runner *self)
{
	let_go(self);
	py_object_free((PyObject *)self);
}

static struct tune_runner *
enter_runner(struct py_runner *self)
{
	if (!self->r || self->busy)
		py_raise_text(py_state_of((PyObject *)self), PAWL_EUSAGE,
		              self->r ? "the runner is used by another thread" : "the runner is closed");
	return self->busy ? NULL : self->r;
}

static const char *
kind_name(enum tune_event_kind kind)
{
	switch (kind) {
	case TUNE_EVENT_STARTED:
		return "started";
	case TUNE_EVENT_REPORT:
		return "report";
	case TUNE_EVENT_CHECKPOINT:
		return "checkpoint";
	case TUNE_EVENT_ENDED:
		return "ended";
	case TUNE_EVENT_NOTICE:
		return "notice";
	case TUNE_EVENT_DONE:
		return "done";
	case TUNE_EVENT_NONE:
		break;
	}
	return "none";
}

/* (kind, trial, text, reason, verdict, how, again); None after a timeout. */
static PyObject *
runner_poll(struct py_runner *self, PyObject *args)
{
	struct tune_runner *r = enter_runner(self);
	struct tune_event event = {0};
	struct pawl_error err = {0};
	int timeout_ms, rc;

	if (!r || !PyArg_ParseTuple(args, "i:poll", &timeout_ms))
		return NULL;
	if (timeout_ms < 0 || timeout_ms > PY_SLICE_MS)
		timeout_ms = PY_SLICE_MS;
	self->busy = true;
	rc = UNLOCKED(tune_runner_poll(r, timeout_ms, &event, &err));
	self->busy = false;
	if (py_experiment_raise(self->experiment))
		return NULL;
	if (rc < 0)
		return py_raise(py_state_of((PyObject *)self), rc, &err);
	if (event.kind == TUNE_EVENT_NONE)
		Py_RETURN_NONE;
	return Py_BuildValue("(sINNisO)", kind_name(event.kind), event.trial, py_text_or_none(event.text),
	                     py_text_or_none(event.reason), (int)event.verdict,
	                     event.how == TUNE_FAILED ? "failed"
	                     : event.how == TUNE_LOST ? "lost"
	                                              : "finished",
	                     event.again ? Py_True : Py_False);
}

static PyObject *
runner_stop(struct py_runner *self, PyObject *args)
{
	struct tune_runner *r = enter_runner(self);
	int now;

	if (!r || !PyArg_ParseTuple(args, "p:stop", &now))
		return NULL;
	tune_runner_stop(r, now);
	Py_RETURN_NONE;
}

static PyObject *
runner_stop_trial(struct py_runner *self, PyObject *args)
{
	struct tune_runner *r = enter_runner(self);
	struct pawl_error err = {0};
	const char *why;
	unsigned trial;

	if (!r || !PyArg_ParseTuple(args, "Is:stop_trial", &trial, &why))
		return NULL;

	int rc = tune_runner_stop_trial(r, trial, why, &err);

	return rc < 0 ? py_raise(py_state_of((PyObject *)self), rc, &err) : Py_NewRef(Py_None);
}

static PyObject *
runner_close(struct py_runner *self, PyObject *none)
{
	(void)none;
	if (self->r && !enter_runner(self))
		return NULL;
	let_go(self);
	Py_RETURN_NONE;
}

int
py_tune_run_init(PyObject *module)
{
	static PyMethodDef methods[] = {
		{"poll", PY_METHOD(runner_poll), METH_VARARGS, "Wait for the next event of a trial."},
		{"stop", PY_METHOD(runner_stop), METH_VARARGS, "Ask all to save and end; continue polling."},
		{"stop_trial", PY_METHOD(runner_stop_trial), METH_VARARGS, "Stop a trial for good."},
		{"close", PY_METHOD(runner_close), METH_NOARGS, "Kill the running trials and free it."},
		{NULL, NULL, 0, NULL},
	};
	PyType_Slot slots[] = {
		{Py_tp_new, runner_new},
		{Py_tp_dealloc, runner_dealloc},
		{Py_tp_methods, methods},
		{0, NULL},
	};
	const PyType_Spec spec = {"pawl._pawl.TrialRunner", sizeof(struct py_runner), 0, Py_TPFLAGS_DEFAULT, slots};

	return py_add_type(module, spec, NULL);
}
