/* SPDX-License-Identifier: Apache-2.0 */
/*
 * py_dlpack: reads tensors by DLPack.
 * - A torch tensor, through the table of C functions that its type offers (a capsule,
 *   __dlpack_c_exchange_api__): one call instead of five attributes. The attributes are used if the
 *   table is missing, or for tensors that this file does not handle.
 * - An array on a device, through its methods __dlpack_device__ and __dlpack__.
 *
 * The layouts are those of DLPack 1.2 and later (major version 1), as its public header defines
 * them.
 */
#include "py.h"

#include <string.h>

#define DLPACK_MAJOR 1u

enum { DLPACK_CPU = 1, DLPACK_CUDA = 2, DLPACK_ROCM = 10 }; /* kinds of devices */

struct dl_tensor {
	char *data;
	struct {
		int32_t type, id;
	} device;
	int32_t ndim;
	struct {
		uint8_t code, bits;
		uint16_t lanes;
	} dtype;
	int64_t *shape, *strides; /* strides in elements */
	uint64_t byte_offset;
};

/* A function pointer of the table that is not used here. */
typedef void unused_fn(void);

struct dl_table {
	uint32_t major, minor;
	struct dl_table *older;
	unused_fn *allocate, *export_owned, *import_owned;
	int (*show)(void *object, struct dl_tensor *ret); /* 0, or -1 with an exception; may be NULL */
	unused_fn *stream;
};

void
py_dlpack_load(struct py_state *st)
{
	AUTO_REF capsule = PyObject_GetAttrString(st->torch.tensor, "__dlpack_c_exchange_api__");
	const struct dl_table *table = capsule ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : NULL;

	PyErr_Clear(); /* older versions lack it */
	while (table && table->major > DLPACK_MAJOR)
		table = table->older;
	st->torch.show = table && table->major == DLPACK_MAJOR ? table->show : NULL;
}

/* 0 = use the attributes: complex tensors may be conjugated views, small floats have several
 * forms. */
static int
dtype_of(const struct dl_tensor *d)
{
	enum { INT, UINT, FLOAT, OPAQUE, BFLOAT, COMPLEX, BOOLEAN };
	const unsigned bits = d->dtype.bits;

	if (d->dtype.lanes != 1)
		return 0;
	switch (d->dtype.code) {
	case INT:
		return bits == 64 ? PAWL_I64 : bits == 32 ? PAWL_I32 : bits == 16 ? PAWL_I16 : bits == 8 ? PAWL_I8 : 0;
	case UINT:
		return bits == 64 ? PAWL_U64 : bits == 32 ? PAWL_U32 : bits == 16 ? PAWL_U16 : bits == 8 ? PAWL_U8 : 0;
	case FLOAT:
		return bits == 64 ? PAWL_F64 : bits == 32 ? PAWL_F32 : bits == 16 ? PAWL_F16 : 0;
	case BFLOAT:
		return bits == 16 ? PAWL_BF16 : 0;
	case BOOLEAN:
		return bits == 8 ? PAWL_BOOL : 0;
	default:
		return 0;
	}
}

/* torch's integers of one to seven bits take a byte each and are shown as 8-bit ones. */
static bool
is_what_it_shows(struct py_state *st, PyObject *obj, int dtype)
{
	AUTO_REF real = NULL;

	if (dtype != PAWL_I8 && dtype != PAWL_U8)
		return true;
	real = PyObject_GetAttr(obj, st->s.dtype);
	if (!real)
		PyErr_Clear();
	return real && real == st->torch.dtypes[dtype];
}

bool
py_dlpack_describe(struct py_state *st, PyObject *obj, struct py_tensor *t)
{
	struct dl_tensor d;
	bool is_empty = false;

	if (!st->torch.show)
		return false;
	if (st->torch.show(obj, &d) != 0) {
		PyErr_Clear();
		return false;
	}
	t->raw.dtype = dtype_of(&d);
	if (d.device.type != DLPACK_CPU || d.ndim < 0 || d.ndim > PAWL_MAX_DIMS || !t->raw.dtype ||
	    (d.ndim > 0 && (!d.shape || !d.strides)) || !is_what_it_shows(st, obj, t->raw.dtype))
		return false;
	t->raw.ndim = (uint32_t)d.ndim;
	for (int32_t i = 0; i < d.ndim; i++) {
		t->shape[i] = (uint64_t)d.shape[i];
		t->strides[i] = d.strides[i];
		is_empty = is_empty || d.shape[i] == 0;
	}
	t->raw.strides = is_empty ? NULL : t->strides;
	t->raw.data = d.data ? d.data + d.byte_offset : NULL;
	return true;
}

/* The array's memory as a capsule, in the order of the device's default stream, which DLPack
 * numbers 1 on CUDA and 0 on ROCm. New reference, or NULL. */
static PyObject *
capsule_of(PyObject *obj, int device_type)
{
	AUTO_REF method = PyObject_GetAttrString(obj, "__dlpack__");
	AUTO_REF args = PyTuple_New(0);
	AUTO_REF kwargs = Py_BuildValue("{s:i}", "stream", device_type == DLPACK_CUDA ? 1 : 0);

	return method && args && kwargs ? PyObject_Call(method, args, kwargs) : NULL;
}

/* Fills t from what the capsule shows. False: it is not what was expected. */
static bool
take_device(struct py_tensor *t, const struct dl_tensor *d, int bits)
{
	int64_t whole = 1;

	if (d->ndim < 0 || d->ndim > PAWL_MAX_DIMS || d->dtype.lanes != 1 || d->dtype.bits != bits || bits % 8 != 0)
		return false;
	t->raw.ndim = (uint32_t)d->ndim;
	for (int32_t i = d->ndim - 1; i >= 0; i--) {
		t->shape[i] = (uint64_t)d->shape[i];
		t->strides[i] = d->strides ? d->strides[i] : whole;
		whole *= d->shape[i];
	}
	t->raw.strides = whole == 0 ? NULL : t->strides;
	t->raw.data = d->data ? d->data + d->byte_offset : NULL;
	return whole == 0 || t->raw.data;
}

bool
py_dlpack_device(PyObject *obj, int dtype, struct py_tensor *t)
{
	AUTO_REF where = PyObject_CallMethod(obj, "__dlpack_device__", NULL);
	int type = 0, id = 0;

	if (!where || !PyArg_ParseTuple(where, "ii", &type, &id) || (type != DLPACK_CUDA && type != DLPACK_ROCM)) {
		PyErr_Clear();
		return false;
	}
	const int device = type == DLPACK_CUDA ? PAWL_DEVICE_CUDA : PAWL_DEVICE_HIP;
	AUTO_REF capsule = pawl_device_check(device, NULL) == 0 ? capsule_of(obj, type) : NULL;
	const struct dl_tensor *d = capsule ? PyCapsule_GetPointer(capsule, "dltensor") : NULL;

	PyErr_Clear(); /* without a capsule the array is copied by its framework */
	if (!d || !take_device(t, d, (int)pawl_dtype_bits(dtype)))
		return false;
	t->raw.dtype = dtype;
	t->raw.device = device;
	t->raw.stream = 0;
	t->device = id;
	t->on_device = t->fixed = true;
	t->owner = PyTuple_Pack(2, obj, capsule);
	if (!t->owner)
		PyErr_Clear();
	return t->owner != NULL;
}
