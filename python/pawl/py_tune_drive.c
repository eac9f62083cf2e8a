/* SPDX-License-Identifier: Apache-2.0 */
/*
 * py_tune_drive: methods of Experiment for a driver other than TrialRunner: which trial starts now,
 * its reports, its end. Used from one thread.
 */
#include "py_tune.h"

/* Raises the exception of the judge, or the experiment's own error, if there is one. */
static bool
raise_failure(struct py_experiment *self, int rc, const struct pawl_error *err)
{
	if (py_experiment_raise(self))
		return true;
	if (rc < 0)
		py_raise(py_state_of((PyObject *)self), rc, err);
	return rc < 0;
}

/* "wait", "done", or (trial, attempt, name, folder, config, checkpoint, iteration) of a trial that
 * runs from now on. */
PyObject *
py_experiment_next(struct py_experiment *self, PyObject *none)
{
	struct tune_experiment *e = py_experiment_of(self);
	enum tune_next next = TUNE_WAIT;
	struct tune_start start = {0};
	struct pawl_error err = {0};

	(void)none;
	if (!e || raise_failure(self, tune_experiment_next(e, &next, &start, &err), &err))
		return NULL;
	if (next != TUNE_START)
		return PyUnicode_FromString(next == TUNE_DONE ? "done" : "wait");
	return Py_BuildValue("(IIssszK)", start.trial, start.attempt, start.name, start.folder, start.config_json,
	                     start.checkpoint, (unsigned long long)start.iteration);
}

PyObject *
py_experiment_runs(struct py_experiment *self, PyObject *args)
{
	struct tune_experiment *e = py_experiment_of(self);
	struct pawl_error err = {0};
	const char *host;
	unsigned trial;
	long long pid;

	if (!e || !PyArg_ParseTuple(args, "ILs:runs", &trial, &pid, &host) ||
	    raise_failure(self, tune_experiment_runs(e, trial, pid, host, &err), &err))
		return NULL;
	Py_RETURN_NONE;
}

/* (verdict, save, stop all, result, reason) */
PyObject *
py_experiment_report(struct py_experiment *self, PyObject *args)
{
	struct tune_experiment *e = py_experiment_of(self);
	struct tune_verdict verdict = {0};
	struct pawl_error err = {0};
	const char *metrics, *checkpoint;
	unsigned trial;

	if (!e || !PyArg_ParseTuple(args, "Isz:report", &trial, &metrics, &checkpoint) ||
	    raise_failure(self, tune_experiment_report(e, trial, metrics, checkpoint, &verdict, &err), &err))
		return NULL;
	return Py_BuildValue("(iOOsN)", (int)verdict.kind, verdict.save ? Py_True : Py_False,
	                     verdict.stop_all ? Py_True : Py_False, verdict.result_json,
	                     py_text_or_none(verdict.reason));
}

PyObject *
py_experiment_checkpoint(struct py_experiment *self, PyObject *args)
{
	struct tune_experiment *e = py_experiment_of(self);
	struct pawl_error err = {0};
	const char *name;
	unsigned trial;

	if (!e || !PyArg_ParseTuple(args, "Is:checkpoint", &trial, &name) ||
	    raise_failure(self, tune_experiment_checkpoint(e, trial, name, &err), &err))
		return NULL;
	Py_RETURN_NONE;
}

/* Will it start again? */
PyObject *
py_experiment_ended(struct py_experiment *self, PyObject *args)
{
	struct tune_experiment *e = py_experiment_of(self);
	struct pawl_error err = {0};
	bool again = false;
	const char *why;
	unsigned trial;
	int how;

	if (!e || !PyArg_ParseTuple(args, "Iis:ended", &trial, &how, &why) ||
	    raise_failure(self, tune_experiment_ended(e, trial, (enum tune_end)how, why, &again, &err), &err))
		return NULL;
	return PyBool_FromLong(again);
}
