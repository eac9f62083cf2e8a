/* SPDX-License-Identifier: Apache-2.0 */
/* py_lazy: what the first save and lazy saves must know about their tensors. */
#ifndef PAWL_PY_LAZY_H
#define PAWL_PY_LAZY_H

#include "py.h"

/* is_first: of the first save of a run. NULL with an exception. */
struct py_lazy *py_lazy_new(bool is_first);
void py_lazy_free(struct py_lazy *lazy);
/* Adds a tensor of the state: obj as found there, described by t, with its index in the state.
 * of_rank: it is below a value per rank, such as a random generator. */
int py_lazy_add(struct py_lazy *lazy, struct py_state *st, PyObject *obj, const struct py_tensor *t, size_t index,
                bool of_optimizer, bool of_rank);
/* Records the parameters of obj, if it is an optimizer. -1 with an exception. */
int py_lazy_optimizer(struct py_lazy *lazy, struct py_state *st, PyObject *obj);
/* Records the buffers of obj, if it is a module and the save the first. -1 with an exception. */
int py_lazy_module(struct py_lazy *lazy, struct py_state *st, PyObject *obj);
/* Does the dict look like the state_dict() of a torch optimizer? */
bool py_lazy_is_optimizer_state(PyObject *dict);
/* For pawl_save_opts, when all tensors have been added; lives as long as *lazy. NULL with an
 * exception. */
const unsigned char *py_lazy_at_once(struct py_lazy *lazy, size_t n_tensors);
/* The same, after py_lazy_at_once: tensors of torch that no optimizer in the state updates, and
 * that are neither buffers nor below a value per rank. */
const unsigned char *py_lazy_rests(const struct py_lazy *lazy);
/* A pawl_changed_fn; arg is the struct py_lazy. */
size_t py_lazy_changed(void *arg, int later);
/* Are torch's current streams those of the save? Else a fence on these does not hold later work. */
bool py_lazy_is_current(const struct py_lazy *lazy, struct py_state *st);

#endif
