/* SPDX-License-Identifier: Apache-2.0 */
/* py_object: creates and frees objects of the module's types, using the limited API. */
#include "py.h"

void *
py_object_new(PyTypeObject *type)
{
	allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);

	return alloc(type, 0);
}

void
py_object_free(PyObject *self)
{
	PyTypeObject *type = Py_TYPE(self);
	freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);

	release(self);
	Py_DECREF((PyObject *)type);
}
