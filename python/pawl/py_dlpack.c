/* SPDX-License-Identifier: Apache-2.0 */
/*
 * py_dlpack: reads a torch tensor through the table of C functions that its type offers for DLPack
 * (a capsule, __dlpack_c_exchange_api__): one call instead of five attributes. The attributes are
 * used if the table is missing, or for tensors that this file does not handle.
 *
 * The layouts are those of DLPack 1.2 and later (major version 1), as its public header defines
 * them.
 */
#include "py.h"

#include <string.h>

#define DLPACK_MAJOR 1u
#define DLPACK_CPU 1

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
