/* SPDX-License-Identifier: Apache-2.0 */
/*
 * py_lazy: which tensors of a state an optimizer in it updates. A lazy save may copy these after
 * save() has returned. The first save of a run puts the others into files of their own, so that
 * later ones need not write them. It leaves out buffers: those of BatchNorm change at every
 * step.
 *
 * For lazy saves it also records torch's count of writes to each tensor (_version). The .data of a
 * parameter has another count than the parameter, so both are watched. Filled during the walk over
 * the state. Read by the save, and by the library's threads while the tensors are copied.
 */
#include "py_lazy.h"

#include <stdlib.h>
#include <string.h>

#define SMALL_BYTES 4096 /* always copied at once: the steps of an optimizer, biases */

struct seen {
	const char *begin;
	size_t nbytes;
	PyObject *tensor; /* of torch; NULL: its writes are not counted */
	size_t index;     /* in the state */
	unsigned long version;
	bool later, is_torch, of_optimizer, of_rank;
};

struct range {
	const char *begin, *end;
};

struct parameter {
	struct range range;
	PyObject *tensor; /* NULL: its writes are not counted */
	unsigned long version;
	size_t index; /* in the state: a tensor of these bytes that is copied later; SIZE_MAX = none */
	bool frozen;  /* without requires_grad */
	bool is_buffer;
};

/* The stream that was current when the save began, on one of its devices. */
struct current {
	int device;
	uint64_t stream;
};

struct py_lazy {
	struct current *streams;
	size_t n_streams, cap_streams;
	struct seen *rows;
	struct parameter *parameters;
	size_t n_rows, cap_rows, n_parameters, cap_parameters;
	unsigned char *at_once, *rests;
	PyObject *version; /* "_version" */
	bool is_first, has_optimizer;
};

struct py_lazy *
py_lazy_new(bool is_first)
{
	struct py_lazy *lazy = PyMem_Calloc(1, sizeof(*lazy));

	if (lazy)
		lazy->version = PyUnicode_InternFromString("_version");
	if (lazy && lazy->version) {
		lazy->is_first = is_first;
		return lazy;
	}
	PyMem_Free(lazy);
	PyErr_NoMemory();
	return NULL;
}

void
py_lazy_free(struct py_lazy *lazy)
{
	if (!lazy)
		return;
	for (size_t i = 0; i < lazy->n_rows; i++)
		Py_XDECREF(lazy->rows[i].tensor);
	for (size_t i = 0; i < lazy->n_parameters; i++)
		Py_XDECREF(lazy->parameters[i].tensor);
	Py_XDECREF(lazy->version);
	PyMem_Free(lazy->streams);
	PyMem_Free(lazy->rows);
	PyMem_Free(lazy->parameters);
	PyMem_Free(lazy->at_once);
	PyMem_Free(lazy->rests);
	PyMem_Free(lazy);
}

/* False, without an exception, if writes are not counted: tensors of inference mode. */
static bool
version_of(const struct py_lazy *lazy, PyObject *tensor, unsigned long *ret)
{
	AUTO_REF number = PyObject_GetAttr(tensor, lazy->version);

	*ret = number ? PyLong_AsUnsignedLong(number) : 0;
	if (!PyErr_Occurred())
		return true;
	PyErr_Clear();
	return false;
}

static struct range
range_of(const struct pawl_tensor *t)
{
	const char *first = t->data, *last = first;
	const int64_t bits = pawl_dtype_bits(t->dtype);
	uint64_t n = 1;

	for (uint32_t i = 0; i < t->ndim; i++) {
		int64_t extent = t->strides && t->shape[i] ? ((int64_t)t->shape[i] - 1) * t->strides[i] * bits / 8 : 0;

		*(extent < 0 ? &first : &last) += extent;
		n *= t->shape[i];
	}
	if (!t->strides)
		last = first + n * (uint64_t)bits / 8;
	else
		last += bits / 8;
	return (struct range){.begin = first, .end = last};
}

static int
add_stream(struct py_lazy *lazy, const struct py_tensor *t)
{
	for (size_t i = 0; i < lazy->n_streams; i++)
		if (lazy->streams[i].device == t->device)
			return 0;
	struct current *rows = py_grow(lazy->streams, lazy->n_streams, &lazy->cap_streams, sizeof(*rows));

	if (!rows)
		return -1;
	lazy->streams = rows;
	rows[lazy->n_streams++] = (struct current){t->device, t->raw.stream};
	return 0;
}

bool
py_lazy_is_current(const struct py_lazy *lazy, struct py_state *st)
{
	for (size_t i = 0; i < lazy->n_streams; i++)
		if (!py_device_is_current(st, lazy->streams[i].device, lazy->streams[i].stream))
			return false;
	return true;
}

int
py_lazy_add(struct py_lazy *lazy, struct py_state *st, PyObject *obj, const struct py_tensor *t, size_t index,
            bool of_optimizer, bool of_rank)
{
	struct seen *rows = py_grow(lazy->rows, lazy->n_rows, &lazy->cap_rows, sizeof(*rows));
	const struct range range = range_of(&t->raw);
	PyObject *tensor = NULL;

	if (!rows)
		return -1;
	lazy->rows = rows;
	if (st->torch.module && PyObject_TypeCheck(obj, (PyTypeObject *)st->torch.tensor))
		tensor = obj;
	else if (st->torch.module && PyObject_TypeCheck(t->owner, (PyTypeObject *)st->torch.tensor))
		tensor = t->owner;
	if (tensor && t->raw.device)
		TRY(add_stream(lazy, t));

	struct seen row = {.begin = range.begin,
	                   .nbytes = (size_t)(range.end - range.begin),
	                   .index = index,
	                   .is_torch = tensor != NULL,
	                   .of_optimizer = of_optimizer,
	                   .of_rank = of_rank};

	/* arrays of JAX never change */
	row.later = row.nbytes >= SMALL_BYTES && ((tensor && of_optimizer) || strcmp(t->raw.kind, "jax") == 0);
	if (tensor && version_of(lazy, tensor, &row.version))
		row.tensor = Py_NewRef(tensor);
	lazy->rows[lazy->n_rows++] = row;
	return 0;
}

static int
add_parameter(struct py_lazy *lazy, struct py_state *st, PyObject *parameter, bool is_buffer)
{
	struct parameter *rows =
		py_grow(lazy->parameters, lazy->n_parameters, &lazy->cap_parameters, sizeof(*lazy->parameters));
	struct py_tensor t;

	if (!rows)
		return -1;
	lazy->parameters = rows;
	AUTO_REF requires_grad = PyObject_GetAttrString(parameter, "requires_grad");

	PyErr_Clear();
	if (py_tensor_describe(st, parameter, NULL, &t) == 1) {
		if ((!t.on_device || t.raw.device) && t.raw.data) {
			struct parameter row = {.range = range_of(&t.raw),
			                        .index = SIZE_MAX,
			                        .frozen = requires_grad == Py_False && !is_buffer,
			                        .is_buffer = is_buffer};

			if (version_of(lazy, parameter, &row.version))
				row.tensor = Py_NewRef(parameter);
			rows[lazy->n_parameters++] = row;
		}
		py_tensor_clear(&t);
	}
	PyErr_Clear(); /* a parameter that cannot be described is copied at once */
	return 0;
}

int
py_lazy_optimizer(struct py_lazy *lazy, struct py_state *st, PyObject *obj)
{
	AUTO_REF groups = PyObject_GetAttrString(obj, "param_groups");
	Py_ssize_t n = groups && PyList_Check(groups) ? PyList_Size(groups) : 0;

	if (!groups && !PyErr_ExceptionMatches(PyExc_AttributeError))
		return -1;
	PyErr_Clear();
	for (Py_ssize_t i = 0; i < n; i++) {
		PyObject *group = PyList_GetItem(groups, i); /* borrowed, as the next two */
		PyObject *list = group && PyDict_Check(group) ? PyDict_GetItemString(group, "params") : NULL;

		for (Py_ssize_t j = 0; list && PyList_Check(list) && j < PyList_Size(list); j++)
			TRY(add_parameter(lazy, st, PyList_GetItem(list, j), false));
	}
	lazy->has_optimizer = lazy->has_optimizer || n > 0;
	return 0;
}

int
py_lazy_module(struct py_lazy *lazy, struct py_state *st, PyObject *obj)
{
	if (!lazy->is_first || !st->torch.module || !PyObject_TypeCheck(obj, (PyTypeObject *)st->torch.nn_module))
		return 0;
	AUTO_REF buffers = PyObject_CallMethod(obj, "buffers", NULL);

	if (!buffers)
		return -1;
	for (;;) {
		AUTO_REF buffer = PyIter_Next(buffers);

		if (!buffer)
			return PyErr_Occurred() ? -1 : 0;
		TRY(add_parameter(lazy, st, buffer, true));
	}
}

bool
py_lazy_is_optimizer_state(PyObject *dict)
{
	PyObject *groups = PyDict_GetItemString(dict, "param_groups"); /* borrowed, as the next */
	PyObject *state = PyDict_GetItemString(dict, "state");

	return groups && PyList_Check(groups) && state && PyDict_Check(state);
}

static int
by_begin(const void *a, const void *b)
{
	const struct parameter *x = a, *y = b;

	return (x->range.begin > y->range.begin) - (x->range.begin < y->range.begin);
}

/* The number of parameters that begin before an address. */
static size_t
count_before(const struct py_lazy *lazy, const char *address)
{
	size_t low = 0, high = lazy->n_parameters;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (lazy->parameters[mid].range.begin >= address)
			high = mid;
		else
			low = mid + 1;
	}
	return low;
}

/* The parameter that has the byte at an address, or NULL. */
static const struct parameter *
find_parameter(const struct py_lazy *lazy, const char *begin)
{
	const size_t n = count_before(lazy, begin + 1);

	return n > 0 && begin < lazy->parameters[n - 1].range.end ? &lazy->parameters[n - 1] : NULL;
}

/* All parameters that share bytes with a tensor of the state are watched for it. */
static void
watch_parameters(struct py_lazy *lazy, const struct seen *row)
{
	for (size_t i = count_before(lazy, row->begin + row->nbytes);
	     i > 0 && lazy->parameters[i - 1].range.end > row->begin; i--)
		lazy->parameters[i - 1].index = row->index;
}

const unsigned char *
py_lazy_at_once(struct py_lazy *lazy, size_t n_tensors)
{
	lazy->at_once = PyMem_Malloc(n_tensors + 1);
	lazy->rests = PyMem_Calloc(n_tensors + 1, 1);
	if (!lazy->at_once || !lazy->rests) {
		PyErr_NoMemory();
		return NULL;
	}
	memset(lazy->at_once, 1, n_tensors + 1);
	if (lazy->n_parameters)
		qsort(lazy->parameters, lazy->n_parameters, sizeof(*lazy->parameters), by_begin);
	for (size_t i = 0; i < lazy->n_rows; i++) {
		struct seen *row = &lazy->rows[i];
		const struct parameter *parameter = row->is_torch ? find_parameter(lazy, row->begin) : NULL;

		row->later = row->later || (row->nbytes >= SMALL_BYTES && row->tensor && parameter &&
		                            !parameter->is_buffer && !parameter->frozen);
		lazy->rests[row->index] = lazy->has_optimizer && row->is_torch && !row->of_optimizer && !row->of_rank &&
		                          (!parameter || parameter->frozen);
		if (row->later)
			lazy->at_once[row->index] = 0;
	}
	for (size_t i = 0; i < lazy->n_rows; i++) { /* two names of one tensor are copied together */
		lazy->rows[i].later = !lazy->at_once[lazy->rows[i].index];
		if (lazy->rows[i].later && lazy->rows[i].is_torch)
			watch_parameters(lazy, &lazy->rows[i]);
	}
	return lazy->at_once;
}

const unsigned char *
py_lazy_rests(const struct py_lazy *lazy)
{
	return lazy->rests;
}

/* Has torch counted a write to the tensor (NULL: to none) since the version? */
static bool
was_written(const struct py_lazy *lazy, PyObject *tensor, unsigned long version)
{
	unsigned long now;

	return tensor && version_of(lazy, tensor, &now) && now != version;
}

size_t
py_lazy_changed(void *arg, int later)
{
	struct py_lazy *lazy = arg;
	PyGILState_STATE gil = PyGILState_Ensure();
	size_t found = SIZE_MAX;

	for (size_t i = 0; i < lazy->n_rows && found == SIZE_MAX; i++) {
		const struct seen *row = &lazy->rows[i];

		if (row->later == (later != 0) && was_written(lazy, row->tensor, row->version))
			found = row->index;
	}
	for (size_t i = 0; later && i < lazy->n_parameters && found == SIZE_MAX; i++) {
		const struct parameter *p = &lazy->parameters[i];

		if (p->index != SIZE_MAX && was_written(lazy, p->tensor, p->version))
			found = p->index;
	}
	PyGILState_Release(gil);
	return found;
}
