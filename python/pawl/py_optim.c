/* SPDX-License-Identifier: Apache-2.0 */
/*
 * py_optim: the tensors of a torch optimizer that has not stepped yet, for py_match. Its state_dict
 * has none, but the parameter of each saved tensor is known. If that is a DTensor, a tensor of its
 * shape must have the same layout, because the next step computes with both. The tensor is created
 * in advance and read in place, so that a rank reads only its own piece.
 */
#include "py.h"

#include <string.h>

/* The child of a saved dict with this key, or NULL. */
static const struct pawl_node *
child_named(const struct pawl_node *dict, const char *name)
{
	const size_t len = strlen(name);

	for (const struct pawl_node *child = pawl_node_first(dict); child; child = pawl_node_next(child)) {
		const struct pawl_scalar *key = pawl_node_key(child);

		if (key && key->type == PAWL_STR && key->ptr && key->len == len && memcmp(key->ptr, name, len) == 0)
			return pawl_node_own(child);
	}
	return NULL;
}

/* The saved numbers of one group's parameters. Only these are read: a long text may not have been
 * loaded yet. */
static PyObject *
numbers_of_group(const struct pawl_node *group)
{
	const struct pawl_node *params = group ? child_named(group, "params") : NULL;
	PyObject *list = PyList_New(0);

	for (const struct pawl_node *child = params ? pawl_node_first(params) : NULL; list && child;
	     child = pawl_node_next(child)) {
		const struct pawl_scalar *number = pawl_node_scalar(child);
		AUTO_REF item = number && number->type == PAWL_INT && !number->ptr ? PyLong_FromLongLong(number->i)
		                                                                   : Py_NewRef(Py_None);

		if (!item || PyList_Append(list, item) < 0)
			Py_CLEAR(list);
	}
	return list;
}

int
py_optim_look(struct py_restore *r, const struct pawl_node *node, struct py_object *o)
{
	const struct pawl_node *saved = r->st->torch.module ? child_named(node, "param_groups") : NULL;
	AUTO_REF groups = saved ? PyList_New(0) : NULL;

	if (!saved)
		return 0;
	for (const struct pawl_node *child = pawl_node_first(saved); groups && child; child = pawl_node_next(child)) {
		AUTO_REF numbers = numbers_of_group(pawl_node_own(child));

		if (!numbers || PyList_Append(groups, numbers) < 0)
			return -1;
	}

	AUTO_REF helper = groups ? PyImport_ImportModule("pawl._torch") : NULL;

	if (helper)
		o->parameters = PyObject_CallMethod(helper, "distributed_parameters", "OO", o->live, groups);
	return o->parameters ? 0 : -1;
}

/* The parameter whose state is at path, a position in the object being matched:
 * <optimizer>/state/<number>/<name>. Borrowed. NULL, perhaps with an exception, if there is none or
 * it is not a DTensor. */
static PyObject *
parameter_at(const struct py_object *o, const struct py_path *path)
{
	const struct py_path *number = path ? path->up : NULL, *state = number ? number->up : NULL;

	if (!state || state->up != o->where || !number->key || !state->key || !PyUnicode_Check(state->key) ||
	    PyUnicode_CompareWithASCIIString(state->key, "state") != 0)
		return NULL;
	/* torch leaves "step" unchanged for every parameter; a parameter without dimensions has the
	 * same shape */
	if (!path->key || (PyUnicode_Check(path->key) && PyUnicode_CompareWithASCIIString(path->key, "step") == 0))
		return NULL;
	return PyDict_GetItemWithError(o->parameters, number->key);
}

PyObject *
py_optim_tensor(struct py_restore *r, const struct pawl_node *node, const struct py_path *path)
{
	const struct pawl_tensor_info *info = pawl_state_tensor(r->saved, pawl_node_tensor(node));
	const struct py_object *o = r->object ? &r->objects[r->object - 1] : NULL;
	PyObject *parameter = o && o->parameters ? parameter_at(o, path) : NULL;
	PyObject *dtype = r->st->torch.dtypes[info->dtype];

	if (!parameter || !dtype || info->dtype == PAWL_F4) /* torch counts F4 in pairs */
		return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);

	AUTO_REF shape = PyTuple_New((Py_ssize_t)info->ndim);

	for (uint32_t i = 0; shape && i < info->ndim; i++) {
		PyObject *extent = PyLong_FromUnsignedLongLong(info->shape[i]);

		if (!extent || PyTuple_SetItem(shape, (Py_ssize_t)i, extent) < 0)
			return NULL;
	}

	AUTO_REF helper = shape ? PyImport_ImportModule("pawl._torch") : NULL;

	return helper ? PyObject_CallMethod(helper, "laid_out_as", "OOO", parameter, shape, dtype) : NULL;
}
