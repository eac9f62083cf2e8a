/* SPDX-License-Identifier: Apache-2.0 */
/* py_build: values of a state as Python objects. Tensors are made by py_match and py_restore. */
#include "py.h"

#include <string.h>

static PyObject *
big_int(const struct pawl_scalar *s)
{
	AUTO_REF text = PyUnicode_DecodeUTF8(s->ptr, (Py_ssize_t)s->len, NULL);

	return text ? PyObject_CallFunctionObjArgs((PyObject *)&PyLong_Type, text, NULL) : NULL;
}

PyObject *
py_scalar_object(const struct pawl_scalar *s)
{
	switch (s->type) {
	case PAWL_BOOLEAN:
		return PyBool_FromLong(s->i != 0);
	case PAWL_INT:
		return s->ptr ? big_int(s) : PyLong_FromLongLong(s->i);
	case PAWL_FLOAT:
		return PyFloat_FromDouble(s->f);
	case PAWL_STR:
		return PyUnicode_DecodeUTF8(s->ptr, (Py_ssize_t)s->len, NULL);
	case PAWL_BYTES:
		return PyBytes_FromStringAndSize(s->ptr, (Py_ssize_t)s->len);
	default:
		return Py_NewRef(Py_None);
	}
}

static PyObject *
plain_dict(const struct pawl_node *node)
{
	PyObject *dict = PyDict_New();

	for (const struct pawl_node *child = pawl_node_first(node); dict && child; child = pawl_node_next(child)) {
		AUTO_REF key = py_scalar_object(pawl_node_key(child));
		AUTO_REF value = key ? py_plain_object(child) : NULL;

		if (!value || PyDict_SetItem(dict, key, value) < 0)
			Py_CLEAR(dict);
	}
	return dict;
}

static PyObject *
plain_list(const struct pawl_node *node)
{
	PyObject *list = PyList_New(0);

	for (const struct pawl_node *child = pawl_node_first(node); list && child; child = pawl_node_next(child)) {
		AUTO_REF value = py_plain_object(child);

		if (!value || PyList_Append(list, value) < 0)
			Py_CLEAR(list);
	}
	return list;
}

/* Finds the first integer that Python does not convert, as a value or in a key. 1 = raised, 0 =
 * none found. */
static int
find_long_int(struct py_state *st, const struct pawl_node *node, const struct py_path *path)
{
	const struct pawl_scalar *own = pawl_node_scalar(node), *key = pawl_node_key(node), *found = NULL;
	AUTO_REF made = own && own->type == PAWL_INT ? py_scalar_object(own) : NULL;
	Py_ssize_t index = 0;
	int rc = 0;

	if (own && own->type == PAWL_INT && !made)
		found = own;
	for (const struct pawl_node *child = pawl_node_first(node); child && !rc && !found;
	     child = pawl_node_next(child), index++) {
		key = pawl_node_key(child);

		AUTO_REF name = key ? py_scalar_object(key) : NULL;
		struct py_path here = {.up = path, .key = name, .index = index};

		if (key && !name)
			found = key;
		else
			rc = find_long_int(st, child, &here);
	}
	if (!found)
		return rc;
	PyErr_Clear();
	py_raise_at(st, PAWL_ELIMIT, path,
	            "an integer of %zu digits is longer than this Python converts; sys.set_int_max_str_digits(%zu) "
	            "allows it",
	            found->len, found->len);
	return 1;
}

void
py_name_long_int(struct py_state *st, const struct pawl_node *root)
{
	PyObject *type, *value, *trace;

	if (!root || !PyErr_ExceptionMatches(PyExc_ValueError) || PyErr_ExceptionMatches(st->errors[0]))
		return;
	PyErr_Fetch(&type, &value, &trace);
	if (find_long_int(st, root, NULL) == 0) {
		PyErr_Clear();
		PyErr_Restore(type, value, trace);
		return;
	}
	Py_XDECREF(type);
	Py_XDECREF(value);
	Py_XDECREF(trace);
}

static PyObject *
value_of(const struct pawl_node *node)
{
	switch (pawl_node_type(node)) {
	case PAWL_DICT:
	case PAWL_ODICT:
		return plain_dict(node);
	case PAWL_LIST:
		return plain_list(node);
	case PAWL_TUPLE: {
		AUTO_REF list = plain_list(node);

		return list ? PyList_AsTuple(list) : NULL;
	}
	case PAWL_TENSOR:
		return Py_NewRef(Py_None);
	default:
		return py_scalar_object(pawl_node_scalar(node));
	}
}

PyObject *
py_plain_object(const struct pawl_node *node)
{
	AUTO_REF value = node ? value_of(node) : Py_NewRef(Py_None);

	if (!value || !node || pawl_node_type(node) == PAWL_TENSOR)
		return Py_XNewRef(value);
	return py_kind_make(pawl_node_kind(node), value);
}
