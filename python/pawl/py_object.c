/* SPDX-License-Identifier: Apache-2.0 */
/* py_object: the module's types and their objects, using the limited API. */
#include "py.h"

#include <string.h>

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

int
py_add_type(PyObject *module, PyType_Spec spec, PyObject **ret)
{
	AUTO_REF type = PyType_FromModuleAndSpec(module, &spec, NULL);

	if (!type)
		return -1;
	TRY(PyModule_AddObjectRef(module, strrchr(spec.name, '.') + 1, type));
	if (ret)
		py_set(ret, Py_NewRef(type));
	return 0;
}

bool
py_raise_kept(PyObject *kept[3])
{
	if (!kept[0])
		return false;
	PyErr_Restore(kept[0], kept[1], kept[2]);
	memset(kept, 0, 3 * sizeof(*kept));
	return true;
}
