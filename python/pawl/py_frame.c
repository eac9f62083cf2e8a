/* SPDX-License-Identifier: Apache-2.0 */
/*
 * py_frame: torch, NumPy and JAX. Saving checks only frameworks that are already imported: a state
 * cannot contain tensors of the others. Restoring imports what the saved tensors need.
 */
#include "py.h"

#include <string.h>

struct dtype_name {
	int code;
	const char *name;
};

static const struct dtype_name torch_names[] = {
	{PAWL_F4, "float4_e2m1fn_x2"},
	{PAWL_BOOL, "bool"},
	{PAWL_U8, "uint8"},
	{PAWL_I8, "int8"},
	{PAWL_F8_E5M2, "float8_e5m2"},
	{PAWL_F8_E4M3, "float8_e4m3fn"},
	{PAWL_F8_E8M0, "float8_e8m0fnu"},
	{PAWL_F8_E4M3FNUZ, "float8_e4m3fnuz"},
	{PAWL_F8_E5M2FNUZ, "float8_e5m2fnuz"},
	{PAWL_I16, "int16"},
	{PAWL_U16, "uint16"},
	{PAWL_F16, "float16"},
	{PAWL_BF16, "bfloat16"},
	{PAWL_I32, "int32"},
	{PAWL_U32, "uint32"},
	{PAWL_F32, "float32"},
	{PAWL_C64, "complex64"},
	{PAWL_F64, "float64"},
	{PAWL_I64, "int64"},
	{PAWL_U64, "uint64"},
	{PAWL_C128, "complex128"},
};

/* In NumPy, types smaller than a byte take a byte per element. They differ from F4, the first
 * entry, which is therefore omitted. */
static const struct dtype_name *const numpy_names = torch_names + 1;
enum { N_TORCH_NAMES = sizeof(torch_names) / sizeof(torch_names[0]), N_NUMPY_NAMES = N_TORCH_NAMES - 1 };

/* Sets *slot to an attribute, if it exists and *slot is not set yet. False if it is missing
 * (without an exception). */
static bool
take_attr(PyObject *from, const char *name, PyObject **slot)
{
	if (!*slot)
		*slot = PyObject_GetAttrString(from, name);
	if (!*slot)
		PyErr_Clear();
	return *slot != NULL;
}

static int
load_torch(struct py_state *st, PyObject *module)
{
	struct py_torch *t = &st->torch;
	AUTO_REF nn = NULL;

	/* A module that is still being imported lacks names: check it again next time. */
	if (!take_attr(module, "Tensor", &t->tensor) || !take_attr(module, "nn", &nn) ||
	    !take_attr(nn, "Parameter", &t->parameter) || !take_attr(nn, "Module", &t->nn_module) ||
	    !take_attr(module, "Size", &t->size) || !take_attr(module, "strided", &t->strided))
		return 0;
	if (!t->codes)
		t->codes = PyDict_New();
	if (!t->codes)
		return -1;
	for (size_t i = 0; i < N_TORCH_NAMES; i++) {
		int code = torch_names[i].code;
		AUTO_REF number = PyLong_FromLong(code);

		if (!number)
			return -1;
		if (take_attr(module, torch_names[i].name, &t->dtypes[code]) &&
		    PyDict_SetItem(t->codes, t->dtypes[code], number) < 0)
			return -1;
	}
	py_dlpack_load(st);
	t->module = Py_NewRef(module);
	return 0;
}

static int
load_numpy(struct py_state *st, PyObject *module)
{
	struct py_numpy *n = &st->numpy;

	if (!take_attr(module, "ndarray", &n->ndarray) || !take_attr(module, "generic", &n->generic) ||
	    !take_attr(module, "memmap", &n->memmap))
		return 0;
	if (!n->codes)
		n->codes = PyDict_New();
	if (!n->codes)
		return -1;
	n->module = Py_NewRef(module);
	return 0;
}

static int
load_jax(struct py_state *st, PyObject *module)
{
	if (take_attr(module, "Array", &st->jax.array) && take_attr(module, "ShapeDtypeStruct", &st->jax.shape))
		st->jax.module = Py_NewRef(module);
	return 0;
}

int
py_frames_refresh(struct py_state *st)
{
	PyObject *modules, *module;

	if (st->torch.module && st->numpy.module && st->jax.module)
		return 0;
	modules = PyImport_GetModuleDict(); /* borrowed */
	if (!st->torch.module && (module = PyDict_GetItemString(modules, "torch")) && load_torch(st, module) < 0)
		return -1;
	if (!st->numpy.module && (module = PyDict_GetItemString(modules, "numpy")) && load_numpy(st, module) < 0)
		return -1;
	if (!st->jax.module && (module = PyDict_GetItemString(modules, "jax")) && load_jax(st, module) < 0)
		return -1;
	return 0;
}

/* Imports a framework that a saved tensor needs. */
static int
import_needed(struct py_state *st, PyObject **slot, const char *name, const char *why)
{
	if (*slot)
		return 0;

	AUTO_REF module = PyImport_ImportModule(name);

	if (!module) {
		py_add_note(NULL, "needed for tensor '%s' of the checkpoint", why);
		return -1;
	}
	TRY(py_frames_refresh(st));
	if (*slot)
		return 0;
	py_raise_text(st, PAWL_EUNSUPPORTED, "tensor '%s' needs %s, but this version of it lacks what pawl uses", why,
	              name);
	return -1;
}

int
py_need_torch(struct py_state *st, const char *why)
{
	return import_needed(st, &st->torch.module, "torch", why);
}

int
py_need_numpy(struct py_state *st, const char *why)
{
	return import_needed(st, &st->numpy.module, "numpy", why);
}

int
py_need_jax(struct py_state *st, const char *why)
{
	return import_needed(st, &st->jax.module, "jax", why);
}

/* The state's number for a numpy dtype of this name; 0 if none. */
static int
code_of_name(struct py_state *st, PyObject *dtype)
{
	AUTO_REF native = PyObject_GetAttr(dtype, st->s.isnative);
	AUTO_REF name = PyObject_GetAttr(dtype, st->s.name);
	AUTO_REF size = PyObject_GetAttr(dtype, st->s.itemsize);

	if (!native || !name || !size)
		return -1;
	if (native != Py_True)
		return 0;
	for (size_t i = 0; i < N_NUMPY_NAMES; i++)
		if (PyUnicode_CompareWithASCIIString(name, numpy_names[i].name) == 0 &&
		    PyLong_AsLong(size) * 8 == (long)pawl_dtype_bits(numpy_names[i].code))
			return numpy_names[i].code;
	return 0;
}

int
py_numpy_code(struct py_state *st, PyObject *dtype)
{
	PyObject *known = PyDict_GetItemWithError(st->numpy.codes, dtype); /* borrowed */
	int code;

	if (known)
		return (int)PyLong_AsLong(known);
	if (PyErr_Occurred())
		return -1;
	code = code_of_name(st, dtype);
	if (code < 0)
		return -1;

	AUTO_REF number = PyLong_FromLong(code);

	if (!number || PyDict_SetItem(st->numpy.codes, dtype, number) < 0)
		return -1;
	return code;
}

static bool
is_ml_dtype(int code)
{
	return code == PAWL_BF16 || (code >= PAWL_F8_E5M2 && code <= PAWL_F8_E5M2FNUZ);
}

PyObject *
py_numpy_dtype(struct py_state *st, int code, const char *why)
{
	PyObject **slot = &st->numpy.dtypes[code];
	const char *name = NULL;

	if (*slot)
		return *slot;
	for (size_t i = 0; i < N_NUMPY_NAMES; i++)
		if (numpy_names[i].code == code)
			name = numpy_names[i].name;
	if (!name)
		return py_raise_text(st, PAWL_EUNSUPPORTED, "tensor '%s': numpy has no dtype for %s", why,
		                     pawl_dtype_name(code));

	AUTO_REF from = PyImport_ImportModule(is_ml_dtype(code) ? "ml_dtypes" : "numpy");
	AUTO_REF type = from ? PyObject_GetAttrString(from, strcmp(name, "bool") == 0 ? "bool_" : name) : NULL;

	if (type)
		*slot = PyObject_CallMethod(st->numpy.module, "dtype", "O", type);
	if (!*slot)
		py_add_note(NULL, "needed for tensor '%s' of the checkpoint (%s)", why, pawl_dtype_name(code));
	return *slot;
}

int
py_frames_traverse(struct py_state *st, visitproc visit, void *arg)
{
	Py_VISIT(st->torch.module);
	Py_VISIT(st->torch.tensor);
	Py_VISIT(st->torch.parameter);
	Py_VISIT(st->torch.nn_module);
	Py_VISIT(st->torch.size);
	Py_VISIT(st->torch.codes);
	Py_VISIT(st->torch.stream);
	Py_VISIT(st->numpy.module);
	Py_VISIT(st->numpy.ndarray);
	Py_VISIT(st->numpy.generic);
	Py_VISIT(st->numpy.memmap);
	Py_VISIT(st->numpy.codes);
	Py_VISIT(st->jax.module);
	Py_VISIT(st->jax.array);
	Py_VISIT(st->jax.shape);
	return 0;
}

void
py_frames_clear(struct py_state *st)
{
	Py_CLEAR(st->torch.module);
	Py_CLEAR(st->torch.tensor);
	Py_CLEAR(st->torch.parameter);
	Py_CLEAR(st->torch.nn_module);
	Py_CLEAR(st->torch.size);
	Py_CLEAR(st->torch.strided);
	Py_CLEAR(st->torch.codes);
	Py_CLEAR(st->torch.stream);
	Py_CLEAR(st->numpy.module);
	Py_CLEAR(st->numpy.ndarray);
	Py_CLEAR(st->numpy.generic);
	Py_CLEAR(st->numpy.memmap);
	Py_CLEAR(st->numpy.codes);
	Py_CLEAR(st->jax.module);
	Py_CLEAR(st->jax.array);
	Py_CLEAR(st->jax.shape);
	for (int i = 0; i < PY_N_DTYPES; i++) {
		Py_CLEAR(st->torch.dtypes[i]);
		Py_CLEAR(st->numpy.dtypes[i]);
	}
}
