/* SPDX-License-Identifier: Apache-2.0 */
/*
 * py_device: torch's tensors on CUDA and HIP devices, by address and stream, for the library to
 * copy by the driver. Tensors on other devices are copied by torch.
 */
#include "py.h"

/* The driver that torch uses, if this process can use it, too: enum pawl_device, or -1. */
static int
find_driver(struct py_state *st)
{
	AUTO_REF version = PyObject_GetAttrString(st->torch.module, "version");
	AUTO_REF hip = version ? PyObject_GetAttrString(version, "hip") : NULL;
	const int driver = hip && hip != Py_None ? PAWL_DEVICE_HIP : PAWL_DEVICE_CUDA;

	PyErr_Clear();
	return pawl_device_check(driver, NULL) == 0 ? driver : -1;
}

/* torch's function that gives the handle of a device's current stream. False: it has none. */
static bool
load_stream(struct py_state *st)
{
	AUTO_REF inner = NULL;

	if (!st->torch.driver) {
		st->torch.driver = find_driver(st);
		inner = PyObject_GetAttrString(st->torch.module, "_C");
		st->torch.stream = inner ? PyObject_GetAttrString(inner, "_cuda_getCurrentRawStream") : NULL;
		PyErr_Clear();
	}
	return st->torch.driver > 0 && st->torch.stream;
}

/* False, without an exception, if it is not known. */
static bool
current_stream(struct py_state *st, int device, uint64_t *ret)
{
	AUTO_REF handle = PyObject_CallFunction(st->torch.stream, "i", device);

	*ret = handle ? PyLong_AsUnsignedLongLong(handle) : 0;
	if (!PyErr_Occurred())
		return true;
	PyErr_Clear();
	return false;
}

bool
py_device_describe(struct py_state *st, struct py_tensor *t)
{
	AUTO_REF is_cuda = PyObject_GetAttr(t->owner, st->s.is_cuda);
	AUTO_REF number = is_cuda == Py_True ? PyObject_CallMethodObjArgs(t->owner, st->s.get_device, NULL) : NULL;
	AUTO_REF address = number ? PyObject_CallMethodObjArgs(t->owner, st->s.data_ptr, NULL) : NULL;

	if (address && load_stream(st)) {
		t->device = (int)PyLong_AsLong(number);
		t->raw.data = PyLong_AsVoidPtr(address);
		if (!PyErr_Occurred() && current_stream(st, t->device, &t->raw.stream)) {
			t->raw.device = st->torch.driver;
			return true;
		}
	}
	PyErr_Clear();
	t->raw.data = NULL;
	return false;
}

bool
py_device_is_current(struct py_state *st, int device, uint64_t stream)
{
	uint64_t now;

	return current_stream(st, device, &now) && now == stream;
}
