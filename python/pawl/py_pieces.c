/* SPDX-License-Identifier: Apache-2.0 */
/*
 * py_pieces: methods of Run for callers that plan the reading themselves (pawl.torch). They return
 * a checkpoint's content and the pieces of its tensors without reading them, and read boxes of
 * tensors into given memory.
 */
#include "py.h"

struct describe {
	struct py_state *st;
	const struct pawl_restore *handle;
	PyObject *make; /* called for every tensor */
};

static PyObject *describe_node(const struct describe *d, const struct pawl_node *given);

static PyObject *
make_extents(const uint64_t *numbers, uint32_t n)
{
	PyObject *tuple = PyTuple_New((Py_ssize_t)n);

	for (uint32_t i = 0; tuple && i < n; i++) {
		PyObject *number = PyLong_FromUnsignedLongLong(numbers[i]);

		if (!number || PyTuple_SetItem(tuple, (Py_ssize_t)i, number) < 0)
			Py_CLEAR(tuple);
	}
	return tuple;
}

/* [(offsets, lengths)] */
static PyObject *
list_pieces(const struct describe *d, size_t index, uint32_t ndim)
{
	PyObject *rows = PyList_New(0);

	for (size_t i = 0; rows && i < pawl_restore_piece_count(d->handle, index); i++) {
		const uint64_t *offsets, *lengths;
		struct pawl_error err = {0};
		int rc = pawl_restore_piece(d->handle, index, i, &offsets, &lengths, &err);

		if (rc < 0)
			py_raise(d->st, rc, &err);

		AUTO_REF from = rc == 0 ? make_extents(offsets, ndim) : NULL;
		AUTO_REF size = from ? make_extents(lengths, ndim) : NULL;
		AUTO_REF row = size ? PyTuple_Pack(2, from, size) : NULL;

		if (!row || PyList_Append(rows, row) < 0)
			Py_CLEAR(rows);
	}
	return rows;
}

static PyObject *
describe_tensor(const struct describe *d, const struct pawl_node *node)
{
	const size_t index = pawl_node_tensor(node);
	const struct pawl_tensor_info *info = pawl_state_tensor(pawl_restore_state(d->handle), index);
	AUTO_REF shape = make_extents(info->shape, info->ndim);
	AUTO_REF rows = shape ? list_pieces(d, index, info->ndim) : NULL;

	if (!rows)
		return NULL;
	return PyObject_CallFunction(d->make, "nssOO", (Py_ssize_t)index, pawl_node_kind(node),
	                             pawl_dtype_name(info->dtype), shape, rows);
}

static PyObject *
describe_dict(const struct describe *d, const struct pawl_node *node)
{
	PyObject *dict = pawl_node_type(node) == PAWL_ODICT ? PyObject_CallNoArgs(d->st->ordered_dict) : PyDict_New();

	for (const struct pawl_node *child = pawl_node_first(node); dict && child; child = pawl_node_next(child)) {
		AUTO_REF key = py_scalar_object(pawl_node_key(child));
		AUTO_REF value = key ? describe_node(d, child) : NULL;

		if (!value || PyObject_SetItem(dict, key, value) < 0)
			Py_CLEAR(dict);
	}
	return dict;
}

static PyObject *
describe_list(const struct describe *d, const struct pawl_node *node)
{
	PyObject *list = PyList_New(0);

	for (const struct pawl_node *child = pawl_node_first(node); list && child; child = pawl_node_next(child)) {
		AUTO_REF value = describe_node(d, child);

		if (!value || PyList_Append(list, value) < 0)
			Py_CLEAR(list);
	}
	return list;
}

static PyObject *
describe_node(const struct describe *d, const struct pawl_node *given)
{
	const struct pawl_node *node = pawl_node_own(given);

	if (!node) /* values of other ranks */
		return describe_list(d, given);
	switch (pawl_node_type(node)) {
	case PAWL_TENSOR:
		return describe_tensor(d, node);
	case PAWL_DICT:
	case PAWL_ODICT:
		return describe_dict(d, node);
	case PAWL_LIST:
		return describe_list(d, node);
	case PAWL_TUPLE: {
		AUTO_REF list = describe_list(d, node);

		return list ? PyList_AsTuple(list) : NULL;
	}
	default:
		return py_scalar_object(pawl_node_scalar(node));
	}
}

static PyObject *
fallback_rows(const struct pawl_restore *handle)
{
	PyObject *list = PyList_New(0);

	for (size_t i = 0; list && i < pawl_restore_fallback_count(handle); i++) {
		AUTO_REF row = PyUnicode_FromString(pawl_restore_fallback_get(handle, i));

		if (!row || PyList_Append(list, row) < 0)
			Py_CLEAR(list);
	}
	return list;
}

static int
read_bound(struct py_state *st, struct pawl_restore *handle)
{
	return CALL(st, pawl_restore_read(handle, err));
}

static struct pawl_restore *
open_restore(struct py_state *st, struct pawl *run, const struct pawl_restore_opts *opts)
{
	struct pawl_restore *handle = NULL;

	TRY_NULL(CALL(st, pawl_restore_open(run, opts, &handle, err)));
	return handle;
}

static void
close_restore(struct pawl_restore *handle)
{
	UNLOCKED(pawl_restore_close(handle)); /* releases the hold, perhaps in a bucket */
}
PY_DEFINE_CLEAN(struct pawl_restore *, close_restore);

static PyObject *
describe_all(struct describe *d)
{
	const struct pawl_node *root = pawl_state_root(pawl_restore_state(d->handle));
	AUTO_REF tree = root ? describe_node(d, root) : PyDict_New();
	AUTO_REF info = tree ? py_info_dict(pawl_restore_info(d->handle)) : NULL;
	AUTO_REF rows = info ? fallback_rows(d->handle) : NULL;

	if (!rows)
		py_name_long_int(d->st, root);
	return rows ? PyTuple_Pack(3, tree, info, rows) : NULL;
}

PyObject *
py_run_describe(struct py_run *self, PyObject *args)
{
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	struct describe d = {.st = py_state_of((PyObject *)self)};
	AUTO_RUN in = NULL;

	if (!PyArg_ParseTuple(args, "zO:describe", &opts.selector, &d.make) || !(in = py_run_enter(self)))
		return NULL;
	PY_CLEAN(close_restore) struct pawl_restore *handle = open_restore(d.st, in->run, &opts);
	if (!handle || read_bound(d.st, handle) < 0) /* reads only long texts */
		return NULL;
	d.handle = handle;
	return describe_all(&d);
}

/* ---- boxes ---- */

/* row: (index, offsets, tensor). *ret keeps the tensor's memory alive until it is cleared. */
static int
bind_box(struct py_state *st, struct pawl_restore *handle, PyObject *row, struct py_tensor *ret)
{
	struct pawl_error err = {0};
	PyObject *offsets, *tensor;
	Py_ssize_t index;
	int rc;

	if (!PyArg_ParseTuple(row, "nO!O:read", &index, &PyTuple_Type, &offsets, &tensor))
		return -1;

	const struct pawl_tensor_info *info = pawl_state_tensor(pawl_restore_state(handle), (size_t)index);

	if (!info)
		return py_raise_text(st, PAWL_EUSAGE, "there is no tensor %zd", index), -1;
	rc = py_tensor_describe(st, tensor, NULL, ret);
	if (rc < 0)
		return -1;
	if (rc == 0 || ret->on_device || ret->fixed || PyTuple_Size(offsets) != (Py_ssize_t)info->ndim ||
	    ret->raw.ndim != info->ndim)
		return py_raise_text(st, PAWL_EUSAGE,
		                     "%s: expected a tensor of %u dimensions that can be written in place", info->name,
		                     info->ndim),
		       -1;
	for (uint32_t i = 0; i < info->ndim; i++)
		ret->offsets[i] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(offsets, (Py_ssize_t)i));
	if (PyErr_Occurred())
		return -1;
	ret->raw.offsets = ret->offsets;
	ret->raw.global_shape = info->shape;
	rc = pawl_restore_bind(handle, (size_t)index, &ret->raw, &err);
	if (rc < 0)
		py_raise(st, rc, &err);
	return rc;
}

static int
read_boxes(struct py_state *st, struct pawl_restore *handle, PyObject *rows)
{
	Py_ssize_t n = PyList_Size(rows);
	AUTO_REF owners = PyList_New(0);
	int rc = 0;

	for (Py_ssize_t i = 0; owners && i < n; i++) {
		struct py_tensor t = {0};

		rc = bind_box(st, handle, PyList_GetItem(rows, i), &t);
		if (rc == 0 && t.owner)
			rc = PyList_Append(owners, t.owner);
		py_tensor_clear(&t);
		if (rc < 0)
			return -1;
	}
	return owners ? read_bound(st, handle) : -1;
}

PyObject *
py_run_read(struct py_run *self, PyObject *args)
{
	static const char *const no_text = "%"; /* matches no path: the texts are not read again */
	struct py_state *st = py_state_of((PyObject *)self);
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	PyObject *rows;
	AUTO_RUN in = NULL;

	opts.include = &no_text;
	opts.n_include = 1;
	if (!PyArg_ParseTuple(args, "sO!:read", &opts.selector, &PyList_Type, &rows) || py_frames_refresh(st) < 0 ||
	    !(in = py_run_enter(self)))
		return NULL;
	PY_CLEAN(close_restore) struct pawl_restore *handle = open_restore(st, in->run, &opts);
	return handle ? py_none(read_boxes(st, handle, rows)) : NULL;
}
