/* SPDX-License-Identifier: Apache-2.0 */
/* py_tune: declarations shared by the files of Experiment and TrialRunner. */
#ifndef PAWL_PY_TUNE_H
#define PAWL_PY_TUNE_H

#include "py.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tune.h"

struct py_experiment {
	PyObject_HEAD struct tune_experiment *e; /* NULL once closed */
	PyObject *judge;                         /* functions of the caller, or NULL */
	PyObject *explore;
	PyObject *raised[3]; /* by one of them, and not raised yet */
	unsigned users;      /* runners */
};

/* Casts the object; NULL with an exception if it is of another type. */
struct py_experiment *py_experiment_check(struct py_state *st, PyObject *obj);
/* The experiment; NULL with an exception if it is closed. */
struct tune_experiment *py_experiment_of(struct py_experiment *self);
/* Raises the stored exception of the judge, if there is one. */
bool py_experiment_raise(struct py_experiment *self);

/* A text that may be cut or not UTF-8; None for NULL. */
PyObject *py_text_or_none(const char *text);

/* Methods of Experiment: py_tune_drive.c. */
PyObject *py_experiment_next(struct py_experiment *self, PyObject *none);
PyObject *py_experiment_runs(struct py_experiment *self, PyObject *args);
PyObject *py_experiment_report(struct py_experiment *self, PyObject *args);
PyObject *py_experiment_checkpoint(struct py_experiment *self, PyObject *args);
PyObject *py_experiment_ended(struct py_experiment *self, PyObject *args);

PyObject *py_tune_spec_check(PyObject *module, PyObject *args);
PyObject *py_tune_spec_config(PyObject *module, PyObject *args);
PyObject *py_tune_leftovers(PyObject *module, PyObject *args);
PyObject *py_tune_leftovers_after(PyObject *module, PyObject *capsule);
PyObject *py_tune_exchange(PyObject *module, PyObject *args);

#endif
