/* SPDX-License-Identifier: Apache-2.0 */
/* py_make: creates tensors of torch, NumPy and JAX for saved data, by the kind recorded with it. */
#include "py.h"

#include <string.h>

static PyObject *
shape_tuple(const struct pawl_tensor_info *info, bool pairs)
{
	PyObject *shape = PyTuple_New((Py_ssize_t)info->ndim);

	for (uint32_t i = 0; shape && i < info->ndim; i++) {
		uint64_t extent = pairs && i + 1 == info->ndim ? info->shape[i] / 2 : info->shape[i];
		PyObject *item = PyLong_FromUnsignedLongLong(extent);

		if (!item || PyTuple_SetItem(shape, (Py_ssize_t)i, item) < 0)
			Py_CLEAR(shape);
	}
	return shape;
}

static PyObject *
new_torch(struct py_state *st, const struct pawl_tensor_info *info)
{
	PyObject *dtype;

	TRY_NULL(py_need_torch(st, info->name));
	dtype = st->torch.dtypes[info->dtype];
	if (!dtype)
		return py_raise_text(st, PAWL_EUNSUPPORTED, "tensor '%s': this torch has no dtype for %s", info->name,
		                     pawl_dtype_name(info->dtype));
	if (info->dtype == PAWL_F4 && (info->ndim == 0 || info->shape[info->ndim - 1] % 2))
		return py_raise_text(st, PAWL_EUNSUPPORTED, "tensor '%s': torch holds F4 in pairs only", info->name);

	AUTO_REF shape = shape_tuple(info, info->dtype == PAWL_F4);
	AUTO_REF args = shape ? PyTuple_Pack(1, shape) : NULL;
	AUTO_REF kwargs = Py_BuildValue("{s:O,s:s}", "dtype", dtype, "device", "cpu");
	AUTO_REF empty = PyObject_GetAttr(st->torch.module, st->s.empty);

	return args && kwargs && empty ? PyObject_Call(empty, args, kwargs) : NULL;
}

static PyObject *
new_numpy(struct py_state *st, const struct pawl_tensor_info *info)
{
	PyObject *dtype;

	TRY_NULL(py_need_numpy(st, info->name));
	dtype = py_numpy_dtype(st, info->dtype, info->name);
	if (!dtype)
		return NULL;

	AUTO_REF shape = shape_tuple(info, false);

	return shape ? PyObject_CallMethodObjArgs(st->numpy.module, st->s.empty, shape, dtype, NULL) : NULL;
}

/* Tensors of other programs have no recorded kind. They become torch tensors if the program uses
 * torch, so that all are of one kind. Otherwise they become NumPy arrays, except for dtypes that
 * only torch has. */
static bool
wants_torch(const struct py_state *st, const char *kind, int dtype)
{
	bool is_numpy = strcmp(kind, "numpy") == 0 || strcmp(kind, "numpy_scalar") == 0 || strcmp(kind, "jax") == 0;

	if (strncmp(kind, "torch", 5) == 0)
		return true;
	return !is_numpy && ((st->torch.module && st->torch.dtypes[dtype]) || dtype == PAWL_BF16 ||
	                     (dtype >= PAWL_F8_E5M2 && dtype <= PAWL_F8_E5M2FNUZ) || dtype == PAWL_F4);
}

PyObject *
py_tensor_new(struct py_state *st, const struct pawl_tensor_info *info, const char *kind, struct py_tensor *ret)
{
	PyObject *holder = wants_torch(st, kind, info->dtype) ? new_torch(st, info) : new_numpy(st, info);

	if (holder && py_tensor_describe(st, holder, NULL, ret) < 0)
		Py_CLEAR(holder);
	return holder;
}

/* JAX narrows 64-bit types by default; the result would differ from what was saved. */
static PyObject *
finish_jax(struct py_state *st, PyObject *holder, const char *name)
{
	TRY_NULL(py_need_jax(st, name));

	AUTO_REF jnp = PyImport_ImportModule("jax.numpy");
	AUTO_REF array = jnp ? PyObject_CallMethod(jnp, "array", "O", holder) : NULL;
	AUTO_REF is = array ? PyObject_GetAttr(array, st->s.dtype) : NULL;
	AUTO_REF was = is ? PyObject_GetAttr(holder, st->s.dtype) : NULL;
	int same = was ? PyObject_RichCompareBool(is, was, Py_EQ) : -1;

	if (same < 0)
		return NULL;
	if (!same)
		return py_raise_text(st, PAWL_EMISMATCH,
		                     "tensor '%s' was saved as %S, which JAX holds only with the option jax_enable_x64",
		                     name, was);
	return Py_NewRef(array);
}

/* The holder as an object of the framework that the kind names. Leaves of several kinds may be
 * tied; then they share the memory. */
static PyObject *
in_framework(struct py_state *st, PyObject *given, const char *kind, const struct pawl_tensor_info *info)
{
	bool is_torch = st->torch.tensor && PyType_IsSubtype(Py_TYPE(given), (PyTypeObject *)st->torch.tensor);
	bool to_torch = wants_torch(st, kind, info->dtype);
	PyObject *dtype;

	if (is_torch == to_torch)
		return Py_NewRef(given);
	TRY_NULL((to_torch ? py_need_torch(st, info->name) : py_need_numpy(st, info->name)));
	dtype = to_torch ? st->torch.dtypes[info->dtype] : py_numpy_dtype(st, info->dtype, info->name);
	if (!dtype && !PyErr_Occurred())
		py_raise_text(st, PAWL_EUNSUPPORTED, "tensor '%s': this torch has no dtype for %s", info->name,
		              pawl_dtype_name(info->dtype));
	if (!dtype)
		return NULL;

	AUTO_REF helper = PyImport_ImportModule("pawl._torch");

	return helper ? PyObject_CallMethod(helper, to_torch ? "as_tensor" : "as_array", "OO", given, dtype) : NULL;
}

PyObject *
py_tensor_finish(struct py_state *st, PyObject *given, const char *kind, const struct pawl_tensor_info *info)
{
	AUTO_REF holder = in_framework(st, given, kind, info);

	if (!holder)
		return NULL;
	if (strcmp(kind, "torch_grad") == 0) { /* a tied leaf may lack requires_grad */
		AUTO_REF own = PyObject_CallMethodObjArgs(holder, st->s.detach, NULL);

		return own ? PyObject_CallMethod(own, "requires_grad_", NULL) : NULL;
	}
	if (strcmp(kind, "torch_parameter") == 0 || strcmp(kind, "torch_parameter_nograd") == 0)
		return PyObject_CallFunction(st->torch.parameter, "OO", holder,
		                             strcmp(kind, "torch_parameter") == 0 ? Py_True : Py_False);
	if (strcmp(kind, "numpy_scalar") == 0) {
		AUTO_REF nothing = PyTuple_New(0);

		return nothing ? PyObject_GetItem(holder, nothing) : NULL;
	}
	if (strcmp(kind, "jax") == 0)
		return finish_jax(st, holder, info->name);
	return Py_NewRef(holder);
}
