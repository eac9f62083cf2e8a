/* SPDX-License-Identifier: Apache-2.0 */
/*
 * py_tune: Experiment, a struct tune_experiment, and the check of its document. Used from one
 * thread. py_tune_run.c has the runner of its trials. Documents, configurations and results are
 * JSON texts on both sides.
 */
#include "py_tune.h"

#include <stdlib.h>

#include "py_os.h"

PyObject *
py_text_or_none(const char *text)
{
	return text ? PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace") : Py_NewRef(Py_None);
}

static PyObject *
number_or_none(double number)
{
	return isnan(number) ? Py_NewRef(Py_None) : PyFloat_FromDouble(number);
}

struct py_experiment *
py_experiment_check(struct py_state *st, PyObject *obj)
{
	int is = PyObject_IsInstance(obj, st->experiment_type);

	if (is == 0)
		py_raise_text(st, PAWL_EUSAGE, "expected an Experiment, received %R", obj);
	return is == 1 ? (struct py_experiment *)obj : NULL;
}

struct tune_experiment *
py_experiment_of(struct py_experiment *self)
{
	if (!self->e)
		py_raise_text(py_state_of((PyObject *)self), PAWL_EUSAGE, "the experiment is closed");
	return self->e;
}

static PyObject *
raise_(struct py_experiment *self, int rc, const struct pawl_error *err)
{
	return py_raise(py_state_of((PyObject *)self), rc, err);
}

/* A tune_open_opts.judge: calls the caller's function. It takes the interpreter lock, which a
 * polling runner has released. Its exception is stored until the call that led here returns; it
 * ends the experiment's work. */
static enum tune_wish
judge_result(void *arg, uint32_t trial, const char *result_json)
{
	struct py_experiment *self = arg;
	PyGILState_STATE lock = PyGILState_Ensure();
	AUTO_REF answer = self->raised[0] ? NULL : PyObject_CallFunction(self->judge, "Is", trial, result_json);
	long wish = answer ? PyLong_AsLong(answer) : TUNE_GO_ON;

	if (PyErr_Occurred()) {
		PyErr_Fetch(&self->raised[0], &self->raised[1], &self->raised[2]);
		wish = TUNE_GO_ON;
	}
	PyGILState_Release(lock);
	return (enum tune_wish)wish;
}

/* A tune_open_opts.explore, in the same way. */
static char *
explore_config(void *arg, const char *config_json)
{
	struct py_experiment *self = arg;
	PyGILState_STATE lock = PyGILState_Ensure();
	AUTO_REF answer = self->raised[0] ? NULL : PyObject_CallFunction(self->explore, "s", config_json);
	AUTO_REF bytes = answer ? PyUnicode_AsUTF8String(answer) : NULL;
	const char *text = bytes ? PyBytes_AsString(bytes) : NULL;
	char *found = text ? strdup(text) : NULL;

	if (PyErr_Occurred())
		PyErr_Fetch(&self->raised[0], &self->raised[1], &self->raised[2]);
	Py_CLEAR(bytes);
	Py_CLEAR(answer);
	PyGILState_Release(lock);
	return found;
}

bool
py_experiment_raise(struct py_experiment *self)
{
	return py_raise_kept(self->raised);
}

static PyObject *
experiment_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"spec", "folder", "resume", "restore", "judge", "explore", NULL};
	struct py_state *st = PyType_GetModuleState(type);
	struct tune_open_opts opts = {0};
	struct pawl_error err = {0};
	const char *spec;
	PyObject *function = Py_None, *explorer = Py_None;
	int resume = TUNE_NEW, rc;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "zz|$izOO:Experiment", names, &spec, &opts.folder, &resume,
	                                 &opts.restore, &function, &explorer))
		return NULL;

	struct py_experiment *self = py_object_new(type);

	if (!self)
		return NULL;
	opts.resume = (enum tune_resume)resume;
	if (function != Py_None) {
		self->judge = Py_NewRef(function);
		opts.judge = judge_result;
		opts.judge_arg = self;
	}
	if (explorer != Py_None) {
		self->explore = Py_NewRef(explorer);
		opts.explore = explore_config;
		opts.explore_arg = self;
	}
	rc = tune_experiment_open(spec, &opts, &self->e, &err);
	if (rc < 0) {
		Py_DECREF((PyObject *)self);
		return py_raise(st, rc, &err);
	}
	return (PyObject *)self;
}

static void
experiment_dealloc(struct py_experiment *self)
{
	tune_experiment_close(self->e);
	Py_XDECREF(self->judge);
	Py_XDECREF(self->explore);
	for (size_t i = 0; i < 3; i++)
		Py_XDECREF(self->raised[i]);
	py_object_free((PyObject *)self);
}

static PyObject *
experiment_close(struct py_experiment *self, PyObject *none)
{
	struct tune_experiment *was = self->e;

	(void)none;
	if (self->users > 0)
		return py_raise_text(py_state_of((PyObject *)self), PAWL_EBUSY, "a runner still uses the experiment");
	self->e = NULL;
	tune_experiment_close(was);
	Py_RETURN_NONE;
}

/* (spec, folder, notice) */
static PyObject *
experiment_about(struct py_experiment *self, PyObject *none)
{
	struct tune_experiment *e = py_experiment_of(self);

	(void)none;
	return e ? Py_BuildValue("(sss)", tune_experiment_spec(e), tune_experiment_folder(e), tune_experiment_notice(e))
	         : NULL;
}

static PyObject *
experiment_add(struct py_experiment *self, PyObject *args)
{
	struct tune_experiment *e = py_experiment_of(self);
	struct pawl_error err = {0};
	const char *config;
	uint32_t trial;

	if (!e || !PyArg_ParseTuple(args, "s:add", &config))
		return NULL;

	int rc = tune_experiment_add(e, config, &trial, &err);

	return rc < 0 ? raise_(self, rc, &err) : PyLong_FromUnsignedLong(trial);
}

static PyObject *
experiment_close_search(struct py_experiment *self, PyObject *none)
{
	struct tune_experiment *e = py_experiment_of(self);
	struct pawl_error err = {0};

	(void)none;
	if (!e)
		return NULL;

	int rc = tune_experiment_close_search(e, &err);

	return rc < 0 ? raise_(self, rc, &err) : Py_NewRef(Py_None);
}

static PyObject *
experiment_counts(struct py_experiment *self, PyObject *none)
{
	struct tune_experiment *e = py_experiment_of(self);
	struct tune_counts c = {0};

	(void)none;
	if (!e)
		return NULL;
	tune_experiment_counts(e, &c);

	AUTO_REF states = PyDict_New();

	for (int i = 0; states && i < 5; i++) {
		AUTO_REF n = PyLong_FromUnsignedLong(c.state[i]);

		if (!n || PyDict_SetItemString(states, tune_state_name((enum tune_state)i), n) < 0)
			return NULL;
	}
	return Py_BuildValue("{s:I,s:K,s:O,s:K,s:d}", "trials", c.trials, "expected", (unsigned long long)c.expected,
	                     "states", states, "reports", (unsigned long long)c.reports, "time_s", c.time_s);
}

static PyObject *
trial_dict(const struct tune_trial *t)
{
	return Py_BuildValue("{s:I,s:s,s:s,s:s,s:K,s:d,s:N,s:N,s:s,s:N,s:N,s:I,s:I,s:I,s:N,s:N}", "number", t->number,
	                     "name", t->name, "id", t->id, "state", tune_state_name(t->state), "iteration",
	                     (unsigned long long)t->iteration, "time_s", t->time_s, "metric", number_or_none(t->metric),
	                     "best", number_or_none(t->best), "config", t->config_json, "result",
	                     py_text_or_none(t->result_json), "checkpoint", py_text_or_none(t->checkpoint),
	                     "n_checkpoints", t->n_checkpoints, "attempts", t->attempts, "failures", t->failures,
	                     "error", py_text_or_none(t->error), "host", py_text_or_none(t->host));
}

static PyObject *
experiment_trial(struct py_experiment *self, PyObject *args)
{
	struct tune_experiment *e = py_experiment_of(self);
	struct tune_trial info = {0};
	struct pawl_error err = {0};
	unsigned trial;

	if (!e || !PyArg_ParseTuple(args, "I:trial", &trial))
		return NULL;

	int rc = tune_trial_info(e, trial, &info, &err);

	return rc < 0 ? raise_(self, rc, &err) : trial_dict(&info);
}

/* [(name, iteration, score)], oldest first */
static PyObject *
experiment_checkpoints(struct py_experiment *self, PyObject *args)
{
	struct tune_experiment *e = py_experiment_of(self);
	struct tune_trial info = {0};
	struct pawl_error err = {0};
	unsigned trial;

	if (!e || !PyArg_ParseTuple(args, "I:checkpoints", &trial))
		return NULL;

	int rc = tune_trial_info(e, trial, &info, &err);
	uint32_t n = rc < 0 ? 0 : info.n_checkpoints;
	AUTO_REF list = PyList_New(0);

	for (uint32_t i = 0; list && rc >= 0 && i < n; i++) {
		struct tune_checkpoint c = {0};

		rc = tune_trial_checkpoint(e, trial, i, &c, &err);

		AUTO_REF row =
			rc < 0 ? NULL
			       : Py_BuildValue("(sKNIK)", c.name, (unsigned long long)c.iteration,
		                               number_or_none(c.score), c.of_trial, (unsigned long long)c.of_result);

		if (rc >= 0 && (!row || PyList_Append(list, row) < 0))
			return NULL;
	}
	if (rc < 0)
		return raise_(self, rc, &err);
	return Py_XNewRef(list);
}

/* (trial, value), None if no trial has reported the metric */
static PyObject *
experiment_best(struct py_experiment *self, PyObject *args)
{
	struct tune_experiment *e = py_experiment_of(self);
	struct pawl_error err = {0};
	const char *metric, *mode, *scope;
	uint32_t trial;
	double value;

	if (!e || !PyArg_ParseTuple(args, "zzz:best", &metric, &mode, &scope))
		return NULL;

	int rc = tune_best(e, metric, mode, scope, &trial, &value, &err);

	if (rc == PAWL_ENOTFOUND)
		Py_RETURN_NONE;
	return rc < 0 ? raise_(self, rc, &err) : Py_BuildValue("(Id)", trial, value);
}

static PyObject *
experiment_best_checkpoint(struct py_experiment *self, PyObject *args)
{
	struct tune_experiment *e = py_experiment_of(self);
	struct pawl_error err = {0};
	const char *metric, *mode, *name;
	unsigned trial;

	if (!e || !PyArg_ParseTuple(args, "Izz:best_checkpoint", &trial, &metric, &mode))
		return NULL;

	int rc = tune_best_checkpoint(e, trial, metric, mode, &name, &err);

	if (rc == PAWL_ENOTFOUND)
		Py_RETURN_NONE;
	return rc < 0 ? raise_(self, rc, &err) : PyUnicode_FromString(name);
}

static PyObject *
experiment_stop_trial(struct py_experiment *self, PyObject *args)
{
	struct tune_experiment *e = py_experiment_of(self);
	struct pawl_error err = {0};
	const char *why;
	unsigned trial;

	if (!e || !PyArg_ParseTuple(args, "Is:stop_trial", &trial, &why))
		return NULL;

	int rc = tune_experiment_stop_trial(e, trial, why, &err);

	return rc < 0 ? raise_(self, rc, &err) : Py_NewRef(Py_None);
}

PyObject *
py_tune_spec_check(PyObject *module, PyObject *args)
{
	struct pawl_error err = {0};
	char *canonical = NULL;
	const char *spec;
	uint64_t n = 0;

	if (!PyArg_ParseTuple(args, "s:tune_spec_check", &spec))
		return NULL;

	int rc = tune_spec_check(spec, &canonical, &n, &err);

	if (rc < 0)
		return py_raise(PyModule_GetState(module), rc, &err);

	PyObject *found = Py_BuildValue("(sK)", canonical, (unsigned long long)n);

	free(canonical);
	return found;
}

PyObject *
py_tune_spec_config(PyObject *module, PyObject *args)
{
	struct pawl_error err = {0};
	unsigned long long sample;
	char *config = NULL;
	const char *spec;

	if (!PyArg_ParseTuple(args, "sK:tune_spec_config", &spec, &sample))
		return NULL;

	int rc = tune_spec_config(spec, sample, &config, &err);

	if (rc < 0)
		return py_raise(PyModule_GetState(module), rc, &err);

	PyObject *found = PyUnicode_FromString(config);

	free(config);
	return found;
}

static void
leftovers_free(PyObject *capsule)
{
	tune_leftovers_close(PyCapsule_GetPointer(capsule, "pawl.leftovers"));
}

/* Call before a sync of an experiment's folder. None if the folder has no readable experiment. */
PyObject *
py_tune_leftovers(PyObject *module, PyObject *args)
{
	struct tune_leftovers *l = NULL;
	const char *folder;
	int rc;

	(void)module;
	if (!PyArg_ParseTuple(args, "s:tune_leftovers", &folder))
		return NULL;
	rc = UNLOCKED(tune_leftovers_open(folder, &l, NULL));
	if (rc < 0)
		Py_RETURN_NONE;

	PyObject *capsule = PyCapsule_New(l, "pawl.leftovers", leftovers_free);

	if (!capsule)
		tune_leftovers_close(l);
	return capsule;
}

/* Call after the sync: lists what may be removed at the destination. */
PyObject *
py_tune_leftovers_after(PyObject *module, PyObject *capsule)
{
	struct tune_leftovers *l = PyCapsule_GetPointer(capsule, "pawl.leftovers");
	struct pawl_error err = {0};
	const char *const *names = NULL;
	size_t n = 0;
	int rc;

	if (!l)
		return NULL;
	rc = UNLOCKED(tune_leftovers_after(l, &names, &n, &err));
	if (rc < 0)
		return py_raise(PyModule_GetState(module), rc, &err);

	AUTO_REF list = PyList_New(0);

	for (size_t i = 0; list && i < n; i++) {
		AUTO_REF name = PyUnicode_FromString(names[i]);

		if (!name || PyList_Append(list, name) < 0)
			return NULL;
	}
	return Py_XNewRef(list);
}

/* Exchanges the names of two folders in one step. OSError where the system cannot. */
PyObject *
py_tune_exchange(PyObject *module, PyObject *args)
{
	const char *a, *b;

	(void)module;
	if (!PyArg_ParseTuple(args, "ss:exchange", &a, &b))
		return NULL;
	if (py_os_exchange(a, b) < 0)
		return PyErr_SetFromErrnoWithFilename(PyExc_OSError, b);
	Py_RETURN_NONE;
}

int
py_tune_init(PyObject *module, struct py_state *st)
{
	static PyMethodDef methods[] = {
		{"about", PY_METHOD(experiment_about), METH_NOARGS, "(document, folder, notice)"},
		{"add", PY_METHOD(experiment_add), METH_VARARGS, "Add a configuration."},
		{"close_search", PY_METHOD(experiment_close_search), METH_NOARGS, "Add no more trials."},
		{"counts", PY_METHOD(experiment_counts), METH_NOARGS, "Number of trials in each state."},
		{"trial", PY_METHOD(experiment_trial), METH_VARARGS, "One trial as a dict."},
		{"checkpoints", PY_METHOD(experiment_checkpoints), METH_VARARGS, "The checkpoints of a trial."},
		{"best", PY_METHOD(experiment_best), METH_VARARGS, "(trial, value) by a metric."},
		{"best_checkpoint", PY_METHOD(experiment_best_checkpoint), METH_VARARGS,
	         "The name of a trial's best checkpoint."},
		{"stop_trial", PY_METHOD(experiment_stop_trial), METH_VARARGS, "Stop a trial for good."},
		{"next", PY_METHOD(py_experiment_next), METH_NOARGS, "Choose the trial to start now."},
		{"runs", PY_METHOD(py_experiment_runs), METH_VARARGS, "Record the process that runs a trial."},
		{"report", PY_METHOD(py_experiment_report), METH_VARARGS, "Record a report of a trial."},
		{"checkpoint", PY_METHOD(py_experiment_checkpoint), METH_VARARGS,
	         "Record the checkpoint of the last result."},
		{"ended", PY_METHOD(py_experiment_ended), METH_VARARGS, "Record the end of a trial."},
		{"close", PY_METHOD(experiment_close), METH_NOARGS, "Free it."},
		{NULL, NULL, 0, NULL},
	};
	PyType_Slot slots[] = {
		{Py_tp_new, experiment_new},
		{Py_tp_dealloc, experiment_dealloc},
		{Py_tp_methods, methods},
		{0, NULL},
	};
	const PyType_Spec spec = {"pawl._pawl.Experiment", sizeof(struct py_experiment), 0, Py_TPFLAGS_DEFAULT, slots};

	return py_add_type(module, spec, &st->experiment_type);
}
