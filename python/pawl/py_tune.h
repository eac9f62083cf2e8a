/* SPDX-License-Identifier: Apache-2.0 */
/* py_tune: what py_tune.c and py_tune_run.c share. */
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
	PyObject *judge;     /* the caller's function, or NULL */
	PyObject *raised[3]; /* by it, and not yet told */
	unsigned users;      /* runners */
};

/* The object as what it is; NULL with an exception if it is something else. */
struct py_experiment *py_experiment_check(struct py_state *st, PyObject *obj);
/* NULL with an exception if it is closed. */
struct tune_experiment *py_experiment_of(struct py_experiment *self);
/* Raises what the judge has raised, if it has. */
bool py_experiment_raise(struct py_experiment *self);

PyObject *py_tune_spec_check(PyObject *module, PyObject *args);
PyObject *py_tune_spec_config(PyObject *module, PyObject *args);
PyObject *py_tune_exchange(PyObject *module, PyObject *args);

#endif
