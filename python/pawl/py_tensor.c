/* SPDX-License-Identifier: Apache-2.0 */
/*
 * py_tensor: tensors of torch, NumPy and JAX as struct pawl_tensor, by address, shape and strides.
 * Data that the processor can read is not copied. The tag ("kind") saved with a tensor decides
 * which object a restore creates:
 *
 *   torch, torch_grad (requires_grad), torch_parameter, torch_parameter_nograd,
 *   numpy, numpy_scalar, jax
 *
 * A type that could not be restored as it was (sparse, quantised, subclasses with a meaning of
 * their own) is refused.
 */
#include "py.h"

#include <string.h>

void
py_tensor_clear(struct py_tensor *t)
{
	Py_CLEAR(t->owner);
}

static void
begin_tensor(struct py_tensor *t, const char *kind)
{
	t->raw = (struct pawl_tensor)PAWL_TENSOR_INIT;
	t->raw.shape = t->shape;
	t->raw.kind = kind;
	t->owner = NULL;
	t->on_device = t->fixed = false;
}

static int
refuse_tensor(struct py_state *st, const struct py_path *path, PyObject *obj, const char *why)
{
	AUTO_REF name = PyType_GetQualName(Py_TYPE(obj));
	AUTO_REF module = PyObject_GetAttrString((PyObject *)Py_TYPE(obj), "__module__");

	if (!name || !module)
		return -1;
	return py_raise_at(st, PAWL_EUNSUPPORTED, path, "a %S.%U cannot be held in a state: %s", module, name, why);
}

/* Reads a tuple of sizes or of strides. */
static int
read_shape(struct py_state *st, PyObject *tuple, const struct py_path *path, uint64_t *ret, uint32_t *ndim)
{
	Py_ssize_t n = PyTuple_Size(tuple);

	if (n < 0)
		return -1;
	if (n > PAWL_MAX_DIMS)
		return py_raise_at(st, PAWL_ELIMIT, path, "%zd dimensions, at most %d are possible", n, PAWL_MAX_DIMS);
	for (Py_ssize_t i = 0; i < n; i++) {
		ret[i] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(tuple, i));
		if (ret[i] == (uint64_t)-1 && PyErr_Occurred())
			return -1;
	}
	*ndim = (uint32_t)n;
	return 0;
}

/* Reads the strides, divided by unit, and sets the last argument if all are multiples of it.
 * Strides of a tensor without elements have no meaning. */
static int
read_strides(struct py_tensor *t, PyObject *tuple, int64_t unit, bool *whole)
{
	*whole = true;
	t->raw.strides = t->strides;
	for (uint32_t i = 0; i < t->raw.ndim; i++) {
		long long step = PyLong_AsLongLong(PyTuple_GetItem(tuple, (Py_ssize_t)i));

		if (step == -1 && PyErr_Occurred())
			return -1;
		if (step % unit)
			*whole = false;
		t->strides[i] = step / unit;
	}
	for (uint32_t i = 0; i < t->raw.ndim; i++)
		if (t->shape[i] == 0) {
			t->raw.strides = NULL;
			*whole = true;
		}
	return 0;
}

static bool
is_c_order(const struct py_tensor *t)
{
	int64_t step = 1;

	for (uint32_t i = t->raw.ndim; i-- > 0;) {
		if (t->shape[i] > 1 && t->strides[i] != step)
			return false;
		step *= (int64_t)t->shape[i];
	}
	return true;
}

static int
is_true(PyObject *obj, PyObject *name, bool call)
{
	AUTO_REF value = call ? PyObject_CallMethodObjArgs(obj, name, NULL) : PyObject_GetAttr(obj, name);

	return value ? PyObject_IsTrue(value) : -1;
}

/* torch's packed four-bit floats: an element contains two. Their strides cannot be expressed in
 * four-bit units, except those of C order. */
static int
pack_pairs(struct py_state *st, const struct py_path *path, struct py_tensor *t)
{
	if (t->raw.ndim == 0)
		return py_raise_at(st, PAWL_EUNSUPPORTED, path,
		                   "a float4_e2m1fn_x2 without dimensions cannot be held in a state");
	if (t->raw.strides && !is_c_order(t)) {
		AUTO_REF bytes = PyObject_CallMethodObjArgs(t->owner, st->s.view, st->torch.dtypes[PAWL_U8], NULL);
		PyObject *copy = bytes ? PyObject_CallMethodObjArgs(bytes, st->s.contiguous, NULL) : NULL;

		if (!copy)
			return -1;
		py_set(&t->owner, copy);
		t->fixed = true;
	}
	t->shape[t->raw.ndim - 1] *= 2;
	t->raw.strides = NULL;
	return 0;
}

/* Resolves views with the conjugate or negative bit. */
static int
resolve_view(struct py_state *st, PyObject *obj, struct py_tensor *t)
{
	bool is_complex = t->raw.dtype == PAWL_C64 || t->raw.dtype == PAWL_C128;
	int conj = is_complex ? is_true(obj, st->s.is_conj, true) : 0;
	int neg = is_true(obj, st->s.is_neg, true);

	if (conj < 0 || neg < 0)
		return -1;
	t->owner = Py_NewRef(obj);
	if (!conj && !neg)
		return 0;

	AUTO_REF plain = PyObject_CallMethodObjArgs(obj, st->s.detach, NULL);
	AUTO_REF half = plain ? PyObject_CallMethodObjArgs(plain, st->s.resolve_conj, NULL) : NULL;
	PyObject *whole = half ? PyObject_CallMethodObjArgs(half, st->s.resolve_neg, NULL) : NULL;

	if (!whole)
		return -1;
	py_set(&t->owner, whole);
	t->fixed = true;
	return 0;
}

static int
torch_code(struct py_state *st, PyObject *obj, const struct py_path *path)
{
	AUTO_REF dtype = PyObject_GetAttr(obj, st->s.dtype);
	PyObject *code = dtype ? PyDict_GetItemWithError(st->torch.codes, dtype) : NULL; /* borrowed */

	if (code)
		return (int)PyLong_AsLong(code);
	if (!PyErr_Occurred())
		py_raise_at(st, PAWL_EUNSUPPORTED, path,
		            "a tensor of dtype %S cannot be held in a state; "
		            "convert it with .to(dtype), a quantized one with .dequantize()",
		            dtype);
	return -1;
}

/* After a failure: was the reason that the tensor is not dense? Checked only now: each check costs
 * a microsecond, and a state may have 20,000 tensors. */
static int
not_dense(struct py_state *st, PyObject *obj, const struct py_path *path)
{
	PyObject *type, *value, *trace;

	PyErr_Fetch(&type, &value, &trace);

	AUTO_REF layout = PyObject_GetAttr(obj, st->s.layout);

	if (layout && layout != st->torch.strided) {
		Py_XDECREF(type);
		Py_XDECREF(value);
		Py_XDECREF(trace);
		return refuse_tensor(st, path, obj, "its layout is not dense; convert it with .to_dense()");
	}
	PyErr_Restore(type, value, trace);
	return -1;
}

/* Reads one attribute at a time. */
static int
read_attributes(struct py_state *st, PyObject *obj, const struct py_path *path, struct py_tensor *t)
{
	int cpu = is_true(obj, st->s.is_cpu, false);

	t->raw.dtype = torch_code(st, obj, path);
	if (cpu < 0 || t->raw.dtype < 0)
		return -1;
	if (!cpu && is_true(obj, st->s.is_meta, false) != 0)
		return refuse_tensor(st, path, obj,
		                     "it is on the meta device and has no data; move it with .to_empty()");
	TRY(resolve_view(st, obj, t));

	AUTO_REF strides = PyObject_CallMethodObjArgs(t->owner, st->s.stride, NULL);

	if (!strides)
		return not_dense(st, obj, path);

	AUTO_REF shape = PyObject_GetAttr(t->owner, st->s.shape);
	bool whole;

	if (!shape || read_shape(st, shape, path, t->shape, &t->raw.ndim) < 0 ||
	    read_strides(t, strides, 1, &whole) < 0)
		return -1;
	if (t->raw.dtype == PAWL_F4 && pack_pairs(st, path, t) < 0)
		return -1;
	if (!cpu) {
		t->on_device = true;
		if (!py_device_describe(st, t))
			t->raw.strides = NULL;
		return 0;
	}

	AUTO_REF address = PyObject_CallMethodObjArgs(t->owner, st->s.data_ptr, NULL);

	if (!address)
		return not_dense(st, obj, path);
	t->raw.data = PyLong_AsVoidPtr(address);
	return PyErr_Occurred() ? -1 : 0;
}

static int
read_torch(struct py_state *st, PyObject *obj, const struct py_path *path, struct py_tensor *t)
{
	int neg;

	if (!py_dlpack_describe(st, obj, t))
		return read_attributes(st, obj, path, t);
	neg = is_true(obj, st->s.is_neg, true);
	if (neg)
		return neg < 0 ? -1 : read_attributes(st, obj, path, t);
	t->owner = Py_NewRef(obj);
	return 0;
}

static int describe_shard(struct py_state *st, PyObject *obj, const struct py_path *path, struct py_tensor *t);

/* A subclass of torch.Tensor. A DTensor or a ShardedTensor describes which box of the global tensor
 * is local. */
static int
describe_distributed(struct py_state *st, PyObject *obj, const struct py_path *path, struct py_tensor *t)
{
	AUTO_REF helper = PyImport_ImportModule("pawl._torch");
	AUTO_REF box = helper ? PyObject_CallMethod(helper, "box", "O", obj) : NULL;

	if (!box)
		return py_wrap_at(st, path, obj);
	if (box == Py_None)
		return refuse_tensor(
			st, path, obj,
			"a subclass of torch.Tensor would come back as a plain one; convert it with .as_subclass(torch.Tensor)");
	if ((PyObject *)Py_TYPE(box) != st->shard)
		return py_tensor_describe(st, box, path, t);
	return describe_shard(st, box, path, t);
}

static int
describe_torch(struct py_state *st, PyObject *obj, const struct py_path *path, struct py_tensor *t)
{
	bool is_parameter = (PyObject *)Py_TYPE(obj) == st->torch.parameter;
	int grad;

	begin_tensor(t, "torch");
	if (!is_parameter && (PyObject *)Py_TYPE(obj) != st->torch.tensor)
		return describe_distributed(st, obj, path, t);
	grad = is_true(obj, st->s.requires_grad, false);
	if (grad < 0)
		return py_wrap_at(st, path, obj);
	if (is_parameter)
		t->raw.kind = grad ? "torch_parameter" : "torch_parameter_nograd";
	else if (grad)
		t->raw.kind = "torch_grad";
	if (read_torch(st, obj, path, t) < 0) {
		py_tensor_clear(t);
		return py_wrap_at(st, path, obj);
	}
	return 1;
}

/* Reads the address from __array_interface__. */
static int
numpy_address(struct py_state *st, struct py_tensor *t)
{
	AUTO_REF face = PyObject_GetAttr(t->owner, st->s.__array_interface__);
	PyObject *data = face ? PyDict_GetItemString(face, "data") : NULL; /* borrowed, as the next */
	PyObject *address = data ? PyTuple_GetItem(data, 0) : NULL;
	PyObject *readonly = data ? PyTuple_GetItem(data, 1) : NULL;

	if (!address || !readonly) {
		if (!PyErr_Occurred())
			PyErr_SetString(PyExc_TypeError, "its __array_interface__ names no address");
		return -1;
	}
	t->raw.data = PyLong_AsVoidPtr(address);
	if (readonly == Py_True)
		t->fixed = true;
	return PyErr_Occurred() ? -1 : 0;
}

static int
numpy_layout(struct py_state *st, const struct py_path *path, struct py_tensor *t, bool *whole)
{
	AUTO_REF shape = PyObject_GetAttr(t->owner, st->s.shape);
	AUTO_REF strides = PyObject_GetAttr(t->owner, st->s.strides);

	if (!shape || !strides || read_shape(st, shape, path, t->shape, &t->raw.ndim) < 0)
		return -1;
	return read_strides(t, strides, pawl_dtype_bits(t->raw.dtype) / 8, whole);
}

/* t->owner is an array of a dtype that a state can contain. */
static int
read_numpy(struct py_state *st, const struct py_path *path, struct py_tensor *t)
{
	bool whole;

	TRY(numpy_layout(st, path, t, &whole));
	if (!whole) { /* a field of a record array: its strides are not multiples of the element size */
		PyObject *copy = PyObject_CallMethod(t->owner, "copy", "s", "C");

		if (!copy)
			return -1;
		py_set(&t->owner, copy);
		t->fixed = true;
		TRY(numpy_layout(st, path, t, &whole));
	}
	return numpy_address(st, t);
}

/* An array of a dtype that no checkpoint has. Always returns -1. */
static int
refuse_array(struct py_state *st, const struct py_path *path, PyObject *dtype)
{
	AUTO_REF kind = PyObject_GetAttrString(dtype, "kind");
	AUTO_REF names = kind ? PyObject_GetAttrString(dtype, "names") : NULL;
	const char *letter = names ? PyUnicode_AsUTF8AndSize(kind, NULL) : NULL;

	if (!letter)
		return -1;
	return py_raise_at(st, PAWL_EUNSUPPORTED, path, "a numpy array of dtype %S cannot be held in a state; %s",
	                   dtype,
	                   names != Py_None          ? "save its fields in a dict"
	                   : strchr("OSTU", *letter) ? "convert it with .tolist()"
	                   : strchr("mM", *letter)   ? "convert it with .astype('int64')"
	                                             : "convert it with .astype() to a dtype in native byte order");
}

/* obj: an ndarray. kind: as given. */
static int
describe_array(struct py_state *st, PyObject *obj, const struct py_path *path, const char *kind, struct py_tensor *t)
{
	AUTO_REF dtype = PyObject_GetAttr(obj, st->s.dtype);
	int code = dtype ? py_numpy_code(st, dtype) : -1;

	begin_tensor(t, kind);
	if (code < 0)
		return py_wrap_at(st, path, obj);
	if (code == 0)
		return refuse_array(st, path, dtype);
	t->raw.dtype = code;
	t->owner = Py_NewRef(obj);
	if (read_numpy(st, path, t) < 0) {
		py_tensor_clear(t);
		return py_wrap_at(st, path, obj);
	}
	return 1;
}

static int
describe_numpy(struct py_state *st, PyObject *obj, const struct py_path *path, struct py_tensor *t)
{
	if ((PyObject *)Py_TYPE(obj) != st->numpy.ndarray && (PyObject *)Py_TYPE(obj) != st->numpy.memmap)
		return refuse_tensor(
			st, path, obj,
			"a subclass of numpy.ndarray would come back as a plain one; convert it with numpy.array()");
	return describe_array(st, obj, path, "numpy", t);
}

/* An object that is converted to an array: a numpy scalar, an array of JAX. */
static int
describe_as_array(struct py_state *st, PyObject *obj, const struct py_path *path, const char *kind, struct py_tensor *t)
{
	AUTO_REF array = PyObject_CallMethod(st->numpy.module, "asarray", "O", obj);
	int rc;

	if (!array)
		return py_wrap_at(st, path, obj);
	rc = describe_array(st, array, path, kind, t);
	if (rc == 1)
		t->fixed = true;
	return rc;
}

/* Fills one array of a shard from a sequence of ndim ints. */
static int
read_box(struct py_state *st, PyObject *shard, PyObject *name, const struct py_path *path, uint32_t ndim, uint64_t *ret)
{
	AUTO_REF attr = PyObject_GetAttr(shard, name);
	AUTO_REF tuple = attr ? PySequence_Tuple(attr) : NULL;
	uint32_t n = 0;

	if (!tuple || read_shape(st, tuple, path, ret, &n) < 0)
		return -1;
	if (n != ndim)
		return py_raise_at(st, PAWL_EUSAGE, path, "%U of a shard has %u numbers, its tensor %u dimensions",
		                   name, n, ndim);
	return 0;
}

/* A number of enum pawl_writer, or -1. */
static int
shard_writer(struct py_state *st, PyObject *obj, const struct py_path *path)
{
	static const char *const words[] = {"auto", "here", "elsewhere"};
	AUTO_REF word = PyObject_GetAttr(obj, st->s.writer);

	for (int i = 0; word && PyUnicode_Check(word) && i < 3; i++)
		if (PyUnicode_CompareWithASCIIString(word, words[i]) == 0)
			return i;
	if (word)
		py_raise_at(st, PAWL_EUSAGE, path, "writer of a shard: expected \"auto\", \"here\" or \"elsewhere\"");
	return -1;
}

static int
describe_shard(struct py_state *st, PyObject *obj, const struct py_path *path, struct py_tensor *t)
{
	AUTO_REF tensor = PyObject_GetAttr(obj, st->s.tensor);
	int rc, writer = shard_writer(st, obj, path);

	if (!tensor || writer < 0)
		return -1;
	if ((PyObject *)Py_TYPE(tensor) == st->shard)
		return py_raise_at(st, PAWL_EUSAGE, path, "a shard of a shard");
	rc = py_tensor_describe(st, tensor, path, t);
	if (rc == 0)
		return py_raise_at(st, PAWL_EUSAGE, path, "a shard of something that is not a tensor");
	if (rc < 0)
		return -1;
	if (read_box(st, obj, st->s.global_shape, path, t->raw.ndim, t->global_shape) < 0 ||
	    read_box(st, obj, st->s.offsets, path, t->raw.ndim, t->offsets) < 0) {
		py_tensor_clear(t);
		return -1;
	}
	t->raw.global_shape = t->global_shape;
	t->raw.offsets = t->offsets;
	t->raw.writer = writer;
	return 1;
}

static bool
is_a(PyObject *obj, PyObject *type)
{
	return type && PyType_IsSubtype(Py_TYPE(obj), (PyTypeObject *)type);
}

/* An array of JAX: by address on a device, else as an array of NumPy. */
static int
describe_jax(struct py_state *st, PyObject *obj, const struct py_path *path, struct py_tensor *t)
{
	AUTO_REF dtype = PyObject_GetAttr(obj, st->s.dtype);
	const int code = dtype ? py_numpy_code(st, dtype) : -1;

	if (code < 0)
		return py_wrap_at(st, path, obj);
	begin_tensor(t, "jax");
	return code && py_dlpack_device(obj, code, t) ? 1 : describe_as_array(st, obj, path, "jax", t);
}

int
py_tensor_describe_shape(struct py_state *st, PyObject *obj, const struct py_path *path, struct py_tensor *ret)
{
	if (!st->numpy.module || !is_a(obj, st->jax.shape))
		return 0;
	AUTO_REF dtype = PyObject_GetAttr(obj, st->s.dtype);
	AUTO_REF shape = PyObject_GetAttr(obj, st->s.shape);
	const int code = dtype ? py_numpy_code(st, dtype) : -1;

	if (code <= 0 || !shape) /* 0: a dtype that no tensor has, such as that of keys */
		return code == 0 && shape ? 0 : py_wrap_at(st, path, obj);
	begin_tensor(ret, "jax");
	ret->raw.dtype = code;
	ret->fixed = true;
	return read_shape(st, shape, path, ret->shape, &ret->raw.ndim) < 0 ? -1 : 1;
}

int
py_tensor_describe(struct py_state *st, PyObject *obj, const struct py_path *path, struct py_tensor *ret)
{
	int is_jax;

	ret->owner = NULL;
	if (st->torch.module && is_a(obj, st->torch.tensor))
		return describe_torch(st, obj, path, ret);
	if (st->numpy.module && is_a(obj, st->numpy.ndarray))
		return describe_numpy(st, obj, path, ret);
	if (st->numpy.module && is_a(obj, st->numpy.generic)) {
		if (PyUnicode_Check(obj) || PyBytes_Check(obj))
			return 0; /* numpy.str_ and numpy.bytes_ are texts */
		return describe_as_array(st, obj, path, "numpy_scalar", ret);
	}
	if (st->shard && (PyObject *)Py_TYPE(obj) == st->shard)
		return describe_shard(st, obj, path, ret);
	if (!st->jax.module || !st->numpy.module)
		return 0;
	is_jax = PyObject_IsInstance(obj, st->jax.array);
	if (is_jax <= 0)
		return is_jax;
	return describe_jax(st, obj, path, ret);
}

/* owner: (array, ...) */
static int
fetch_array(struct py_state *st, PyObject *owner, void *dst, size_t nbytes)
{
	AUTO_REF array = PyObject_CallMethod(st->numpy.module, "asarray", "O", PyTuple_GetItem(owner, 0));
	AUTO_REF bytes = array ? PyObject_CallMethod(array, "tobytes", NULL) : NULL;

	if (!bytes)
		return -1;
	if ((size_t)PyBytes_Size(bytes) != nbytes) {
		PyErr_SetString(PyExc_RuntimeError, "an array's size differs from its shape and dtype");
		return -1;
	}
	memcpy(dst, PyBytes_AsString(bytes), nbytes);
	return 0;
}

int
py_tensor_fetch(struct py_state *st, PyObject *tensor, void *dst, size_t nbytes)
{
	if (PyTuple_Check(tensor))
		return fetch_array(st, tensor, dst, nbytes);

	PyObject *bytes_type = st->torch.dtypes[PAWL_U8];
	AUTO_REF memory = PyMemoryView_FromMemory(dst, (Py_ssize_t)nbytes, PyBUF_WRITE);
	AUTO_REF from = PyObject_GetAttrString(st->torch.module, "frombuffer");
	AUTO_REF args = memory ? PyTuple_Pack(1, memory) : NULL;
	AUTO_REF kwargs = Py_BuildValue("{s:O}", "dtype", bytes_type);
	AUTO_REF host = from && args && kwargs ? PyObject_Call(from, args, kwargs) : NULL;
	AUTO_REF plain = host ? PyObject_CallMethodObjArgs(tensor, st->s.detach, NULL) : NULL;
	AUTO_REF dense = plain ? PyObject_CallMethodObjArgs(plain, st->s.contiguous, NULL) : NULL;
	AUTO_REF flat = dense ? PyObject_CallMethod(dense, "reshape", "i", -1) : NULL;
	AUTO_REF bytes = flat ? PyObject_CallMethodObjArgs(flat, st->s.view, bytes_type, NULL) : NULL;
	AUTO_REF done = bytes ? PyObject_CallMethodObjArgs(host, st->s.copy_, bytes, NULL) : NULL;

	return done ? 0 : -1;
}
