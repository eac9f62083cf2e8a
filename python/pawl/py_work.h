/* SPDX-License-Identifier: Apache-2.0 */
/* py_work: long work of the library on a thread of its own. The calling thread meanwhile handles
 * Ctrl+C, which cancels the work, and reports its progress. */
#ifndef PAWL_PY_WORK_H
#define PAWL_PY_WORK_H

#include "py.h"

/* Called on the other thread, without the GIL. */
typedef int py_work_fn(void *arg, struct pawl_meter *meter, struct pawl_error *err);

/* Waits until fn has ended. progress: None, or called on the calling thread with (done bytes, total
 * bytes) a few times a second and at the end. Returns fn's result, below 0 with *err; or -1 with an
 * exception of a signal handler or of progress, and err->code 0. */
int py_work(struct py_state *st, PyObject *progress, py_work_fn *fn, void *arg, struct pawl_error *err);

#endif
