/* SPDX-License-Identifier: Apache-2.0 */
/*
 * py_kind: values that are neither plain nor tensors, as a plain value and a kind. pawl._kinds has
 * the table of types.
 */
#include "py.h"

#include <string.h>

static bool
is_a(PyObject *obj, PyObject *type)
{
	return type && PyType_IsSubtype(Py_TYPE(obj), (PyTypeObject *)type);
}

bool
py_has_no_kind(struct py_state *st, PyObject *obj)
{
	return py_is_simple(obj) || PyDict_CheckExact(obj) || PyList_CheckExact(obj) || PyTuple_CheckExact(obj) ||
	       is_a(obj, st->torch.size) || (PyObject *)Py_TYPE(obj) == st->shard ||
	       (PyObject *)Py_TYPE(obj) == st->ordered_dict || is_a(obj, st->torch.tensor) ||
	       is_a(obj, st->numpy.ndarray) || is_a(obj, st->numpy.generic);
}

int
py_kind_parts(struct py_state *st, PyObject *obj, PyObject **ret_kind, PyObject **ret_value)
{
	*ret_kind = *ret_value = NULL;
	if (py_has_no_kind(st, obj))
		return 0;

	AUTO_REF table = PyImport_ImportModule("pawl._kinds");
	AUTO_REF pair = table ? PyObject_CallMethod(table, "parts", "(O)", obj) : NULL;

	if (!pair)
		return -1;
	if (pair == Py_None)
		return 0;
	return PyArg_ParseTuple(pair, "OO", ret_kind, ret_value) && Py_NewRef(*ret_kind) && Py_NewRef(*ret_value) ? 1
	                                                                                                          : -1;
}

int
py_kind_is_per_rank(PyObject *kind)
{
	AUTO_REF table = PyImport_ImportModule("pawl._kinds");
	AUTO_REF answer = table ? PyObject_CallMethod(table, "per_rank", "(O)", kind) : NULL;

	return answer ? PyObject_IsTrue(answer) : -1;
}

PyObject *
py_kind_make(const char *kind, PyObject *value)
{
	AUTO_REF table = *kind ? PyImport_ImportModule("pawl._kinds") : NULL;

	if (!*kind)
		return Py_NewRef(value);
	return table ? PyObject_CallMethod(table, "make", "sO", kind, value) : NULL;
}

PyObject *
py_kind_rebuild(const struct py_kinded *k, PyObject *value, const char *saved, bool in_place)
{
	AUTO_REF table = PyImport_ImportModule("pawl._kinds");

	return table ? PyObject_CallMethod(table, "rebuild", "OOOsO", k->live, k->kind, value, saved,
	                                   in_place ? Py_True : Py_False)
	             : NULL;
}

int
py_kind_is_plain(struct py_state *st, PyObject *live, int depth)
{
	PyObject *kind_slot, *value_slot;
	int rc = py_kind_parts(st, live, &kind_slot, &value_slot);
	AUTO_REF kind = kind_slot;
	AUTO_REF value = value_slot;

	if (rc < 0)
		PyErr_Clear();
	return rc <= 0 ? -1 : py_is_plain(st, value, depth + 1);
}

/* "a set", "a dict": what was saved. */
static PyObject *
name_of(const struct pawl_node *node)
{
	const char *kind = pawl_node_kind(node);
	const int type = pawl_node_type(node);

	return *kind ? PyUnicode_FromStringAndSize(kind, (Py_ssize_t)strcspn(kind, ":."))
	             : PyUnicode_FromString(type == PAWL_DICT || type == PAWL_ODICT ? "dict"
	                                    : type == PAWL_LIST                     ? "list"
	                                    : type == PAWL_TUPLE                    ? "tuple"
	                                                                            : "value");
}

/* ---- the live objects of a restore */

int
py_kind_push(struct py_restore *r, const struct pawl_node *node, PyObject *live, PyObject **ret_value)
{
	PyObject *kind, *value;
	int rc = py_kind_parts(r->st, live, &kind, &value);
	struct py_kinded *rows = rc > 0 ? py_grow(r->kinded, r->n_kinded, &r->cap_kinded, sizeof(*rows)) : NULL;

	if (rc > 0 && !rows) {
		Py_DECREF(kind);
		Py_DECREF(value);
	}
	if (!rows)
		return rc > 0 ? -1 : rc;
	r->kinded = rows;
	rows[r->n_kinded++] = (struct py_kinded){.node = node, .live = Py_NewRef(live), .kind = kind, .value = value};
	*ret_value = value;
	return 1;
}

/* The row that was pushed for this node, if it was the last one. */
static const struct py_kinded *
last_pushed(const struct py_restore *r, const struct pawl_node *node)
{
	const struct py_kinded *k = r->n_kinded ? &r->kinded[r->n_kinded - 1] : NULL;

	return k && k->node == node ? k : NULL;
}

int
py_kind_check(struct py_restore *r, const struct pawl_node *node, const struct py_path *path)
{
	const struct py_kinded *k = *pawl_node_kind(node) ? last_pushed(r, node) : NULL;
	const struct pawl_scalar *scalar = pawl_node_scalar(node);

	if (!k || !scalar || (scalar->len && !scalar->ptr)) /* a long text is not read yet */
		return 0;
	AUTO_REF value = py_scalar_object(scalar);
	AUTO_REF table = value ? PyImport_ImportModule("pawl._kinds") : NULL;
	AUTO_REF why = table ? PyObject_CallMethod(table, "misfit", "OsO", k->live, pawl_node_kind(node), value) : NULL;

	if (!why)
		return -1;
	return why == Py_None ? 0 : py_problem(r, "type", path, ": %U", why);
}

int
py_kind_differs(struct py_restore *r, const struct pawl_node *node, PyObject *live, const struct py_path *path)
{
	const struct py_kinded *k = last_pushed(r, node);
	AUTO_REF saved = name_of(node);
	AUTO_REF name = PyType_GetQualName(Py_TYPE(k ? k->live : live));

	return saved && name ? py_problem(r, "type", path, ": saved %s %U, live %s %U", py_article(saved), saved,
	                                  py_article(name), name)
	                     : -1;
}

bool
py_kind_has_fields(const struct py_restore *r, PyObject *value)
{
	static const char *const kinds[] = {"namedtuple", "dataclass", "attrs", "pytree"};
	const struct py_kinded *k = r->n_kinded ? &r->kinded[r->n_kinded - 1] : NULL;

	for (int i = 0; k && k->value == value && i < 4; i++)
		if (PyUnicode_CompareWithASCIIString(k->kind, kinds[i]) == 0)
			return true;
	return false;
}

const struct py_kinded *
py_kind_next(struct py_restore *r, const struct pawl_node *node, PyObject *live)
{
	const struct py_kinded *k = r->next_kinded < r->n_kinded ? &r->kinded[r->next_kinded] : NULL;

	if (!k || k->node != node || k->live != live)
		return NULL;
	r->next_kinded++;
	return k;
}

void
py_kind_clear(struct py_restore *r)
{
	for (size_t i = 0; i < r->n_kinded; i++) {
		Py_DECREF(r->kinded[i].live);
		Py_DECREF(r->kinded[i].kind);
		Py_DECREF(r->kinded[i].value);
	}
	PyMem_Free(r->kinded);
	r->kinded = NULL;
	r->n_kinded = r->cap_kinded = r->next_kinded = 0;
}
