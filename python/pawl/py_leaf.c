/* SPDX-License-Identifier: Apache-2.0 */
/*
 * py_leaf: the destination of one saved tensor, for py_match. It is the live tensor, if dtype and
 * shape are equal and its memory can be written. Otherwise it is a new tensor, which is then copied
 * to a device or replaces the live one.
 */
#include "py.h"

#include <stdio.h>
#include <string.h>

/* ---- records ---- */

void *
py_grow(void *rows, size_t n, size_t *cap, size_t size)
{
	size_t bigger = *cap ? 2 * *cap : 64;
	void *moved;

	if (n < *cap)
		return rows;
	moved = PyMem_Realloc(rows, bigger * size);
	if (moved)
		*cap = bigger;
	else
		PyErr_NoMemory();
	return moved;
}

struct py_leaf *
py_leaf_push(struct py_restore *r)
{
	struct py_leaf *rows = py_grow(r->leaves, r->n_leaves, &r->cap_leaves, sizeof(*rows));

	if (!rows)
		return NULL;
	r->leaves = rows;
	rows[r->n_leaves] = (struct py_leaf){0};
	return &rows[r->n_leaves++];
}

/* True if strict mode will refuse anyway, so that nothing has to be created any more. */
static bool
is_refused(const struct py_restore *r)
{
	return !r->opts->non_strict && PyList_Size(r->problems) > 0;
}

int
py_problem(struct py_restore *r, const char *kind, const struct py_path *path, const char *format, ...)
{
	AUTO_REF where = path ? py_path_text(path) : PyUnicode_FromString("the state itself");
	va_list args;

	va_start(args, format);
	AUTO_REF what = PyUnicode_FromFormatV(format, args);

	va_end(args);
	if (!where || !what)
		return -1;

	AUTO_REF row = PyUnicode_FromFormat("%s: %U%U", kind, where, what);

	return row ? PyList_Append(r->problems, row) : -1;
}

/* ---- destinations ---- */

static int
bind_tensor(struct py_restore *r, size_t index, const struct pawl_tensor *dst)
{
	struct pawl_error err = {0};
	int rc = pawl_restore_bind(r->handle, index, dst, &err);

	if (rc < 0)
		py_raise(r->st, rc, &err);
	return rc < 0 ? -1 : 0;
}

/* A new tensor for a leaf, or the one that a tied leaf already has. */
static int
push_fresh(struct py_restore *r, const struct pawl_node *node)
{
	size_t index = pawl_node_tensor(node);
	struct py_leaf *leaf = py_leaf_push(r);
	struct py_tensor t;
	int rc;

	if (!leaf)
		return -1;
	if (is_refused(r))
		return 0;
	if (r->fresh[index]) {
		leaf->holder = Py_NewRef(r->leaves[r->fresh[index] - 1].holder);
		return 0;
	}
	leaf->holder = py_tensor_new(r->st, pawl_state_tensor(r->saved, index), pawl_node_kind(node), &t);
	if (!leaf->holder)
		return -1;
	rc = bind_tensor(r, index, &t.raw);
	py_tensor_clear(&t);
	r->fresh[index] = r->n_leaves;
	return rc;
}

/* Creates host memory for a live tensor, or a box of one, that is not read into. It is on a device,
 * or shares its memory with another one. The data is then copied into the live tensor. */
static int
push_copied(struct py_restore *r, const struct pawl_node *node, PyObject *live, const struct py_tensor *t)
{
	struct pawl_tensor_info info = *pawl_state_tensor(r->saved, pawl_node_tensor(node));
	struct py_leaf *leaf = py_leaf_push(r);
	struct py_tensor host;
	int rc;

	if (!leaf)
		return -1;
	leaf->live = Py_NewRef(live);
	leaf->copy_to = Py_NewRef(t->fixed ? live : t->owner);
	if (is_refused(r))
		return 0;
	info.shape = t->raw.shape;
	leaf->holder = py_tensor_new(r->st, &info, t->raw.kind, &host);
	if (!leaf->holder)
		return -1;
	host.raw.global_shape = t->raw.global_shape;
	host.raw.offsets = t->raw.offsets;
	rc = bind_tensor(r, pawl_node_tensor(node), &host.raw);
	py_tensor_clear(&host);
	return rc;
}

static int
push_live(struct py_restore *r, PyObject *live)
{
	struct py_leaf *leaf = py_leaf_push(r);

	if (leaf)
		leaf->value = Py_NewRef(live);
	return leaf ? 0 : -1;
}

static PyObject *
shape_text(uint32_t ndim, const uint64_t *shape)
{
	PyObject *list = PyList_New(0);

	for (uint32_t i = 0; list && i < ndim; i++) {
		AUTO_REF extent = PyLong_FromUnsignedLongLong(shape[i]);

		if (!extent || PyList_Append(list, extent) < 0)
			Py_CLEAR(list);
	}
	return list;
}

static const uint64_t *
whole_shape(const struct pawl_tensor *t)
{
	return t->global_shape ? t->global_shape : t->shape;
}

static bool
same_shape(const struct pawl_tensor *t, const struct pawl_tensor_info *info)
{
	return t->ndim == info->ndim &&
	       (t->ndim == 0 || memcmp(whole_shape(t), info->shape, t->ndim * sizeof(*t->shape)) == 0);
}

/* 1 = fits, 0 = differs, which the caller's rules may report as a problem. */
static int
compare_tensor(struct py_restore *r, const struct py_tensor *t, const struct pawl_tensor_info *info, enum py_rule rule,
               const struct py_path *path)
{
	bool fits = t->raw.dtype == info->dtype && same_shape(&t->raw, info);

	if (fits || rule == PY_OBJECT)
		return fits;
	if (t->raw.dtype != info->dtype && py_problem(r, "dtype", path, ": saved %s, live %s",
	                                              pawl_dtype_name(info->dtype), pawl_dtype_name(t->raw.dtype)) < 0)
		return -1;
	if (same_shape(&t->raw, info))
		return 0;

	AUTO_REF was = shape_text(info->ndim, info->shape);
	AUTO_REF is = shape_text(t->raw.ndim, whole_shape(&t->raw));

	if (!was || !is || py_problem(r, "shape", path, ": saved %S, live %S", was, is) < 0)
		return -1;
	return 0;
}

/* Elements that share memory (an expanded tensor) cannot have different values. */
static bool
has_overlap(const struct pawl_tensor *t)
{
	for (uint32_t i = 0; t->strides && i < t->ndim; i++)
		if (t->strides[i] == 0 && t->shape[i] > 1)
			return true;
	return false;
}

/* ---- memory of live tensors ---- */

/* The bytes from the first element to the last. False if it has none. */
static bool
find_range(const struct pawl_tensor *t, struct py_range *ret)
{
	const int64_t bits = (int64_t)pawl_dtype_bits(t->dtype);
	int64_t n = 1, below = 0, above = 0;

	for (uint32_t i = 0; i < t->ndim; i++) {
		int64_t last = (int64_t)t->shape[i] - 1, step = t->strides ? t->strides[i] : 0;

		n *= last + 1;
		below += step < 0 ? last * step : 0;
		above += step > 0 ? last * step : 0;
	}
	if (!t->data || n == 0)
		return false;
	ret->from = (uintptr_t)((intptr_t)t->data + below * bits / 8);
	ret->to = (uintptr_t)((intptr_t)t->data + ((t->strides ? above + 1 : n) * bits + 7) / 8);
	return true;
}

/* Random, so that the tree is balanced whatever the order of the addresses (splitmix64). */
static uint64_t
priority_of(const struct py_range *range)
{
	uint64_t x = (uint64_t)range->from;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static struct py_range *
find_read_into(const struct py_restore *r, const struct py_range *range)
{
	for (size_t at = r->read_into; at;) {
		struct py_range *known = &r->ranges[at - 1];

		if (range->from < known->to && known->from < range->to)
			return known;
		at = range->from < known->from ? known->left : known->right;
	}
	return NULL;
}

static bool
is_copied_to(const struct py_restore *r, const struct py_range *range)
{
	for (size_t at = r->copied_to; at; at = r->ranges[at - 1].left)
		if (range->from < r->ranges[at - 1].to && r->ranges[at - 1].from < range->to)
			return true;
	return false;
}

/* 1 + the row of a new range; 0 with an exception. */
static size_t
add_range(struct py_restore *r, const struct py_range *range)
{
	struct py_range *rows = py_grow(r->ranges, r->n_ranges, &r->cap_ranges, sizeof(*rows));

	if (!rows)
		return 0;
	r->ranges = rows;
	rows[r->n_ranges] = *range;
	return ++r->n_ranges;
}

/* Puts a range that overlaps no other one into the tree: above the first one of lower priority,
 * whose tree is split by address. */
static int
add_read_into(struct py_restore *r, const struct py_range *range)
{
	const size_t added = add_range(r, range);
	struct py_range *rows = r->ranges;
	size_t *link = &r->read_into, *left, *right;

	if (!added)
		return -1;
	while (*link && priority_of(&rows[*link - 1]) >= priority_of(range))
		link = range->from < rows[*link - 1].from ? &rows[*link - 1].left : &rows[*link - 1].right;
	left = &rows[added - 1].left;
	right = &rows[added - 1].right;
	for (size_t at = *link; at;) {
		if (rows[at - 1].from < range->from) {
			*left = at;
			left = &rows[at - 1].right;
			at = *left;
		} else {
			*right = at;
			right = &rows[at - 1].left;
			at = *right;
		}
	}
	*left = *right = 0;
	*link = added;
	return 0;
}

static int
add_copied_to(struct py_restore *r, const struct py_range *range)
{
	const size_t added = add_range(r, range);

	if (!added)
		return -1;
	r->ranges[added - 1].left = r->copied_to;
	r->copied_to = added;
	return 0;
}

static bool
same_layout(const struct pawl_tensor *a, const struct pawl_tensor *b)
{
	int64_t a_step = 1, b_step = 1; /* of C order, in which strides may be left out */

	if (a->data != b->data || a->dtype != b->dtype || a->ndim != b->ndim || !a->offsets != !b->offsets)
		return false;
	for (uint32_t i = a->ndim; i-- > 0;) {
		if (a->shape[i] != b->shape[i] || (a->offsets && a->offsets[i] != b->offsets[i]))
			return false;
		if (a->shape[i] > 1 && (a->strides ? a->strides[i] : a_step) != (b->strides ? b->strides[i] : b_step))
			return false;
		a_step *= (int64_t)a->shape[i];
		b_step *= (int64_t)b->shape[i];
	}
	return true;
}

/* Does the tensor of this range show the same elements in the same order? */
static int
is_same(struct py_restore *r, const struct py_range *range, const struct py_tensor *t, const struct py_path *path)
{
	struct py_tensor other;
	int rc = py_tensor_describe(r->st, r->leaves[range->leaf].value, path, &other);

	if (rc <= 0)
		return rc;
	rc = same_layout(&t->raw, &other.raw);
	py_tensor_clear(&other);
	return rc;
}

/* The torch module whose state_dict is being matched, or NULL. */
struct py_object *
py_module_of(struct py_restore *r)
{
	return r->object && r->objects[r->object - 1].is_module ? &r->objects[r->object - 1] : NULL;
}

/* A module's state_dict may contain copies of its tensors; data read into those would be lost. */
static int
note_module(struct py_restore *r, PyObject *live, const struct py_tensor *t)
{
	struct py_object *o = py_module_of(r);
	AUTO_REF address = NULL;
	int known;

	if (!o || o->must_load)
		return 0;
	address = t->on_device ? PyObject_CallMethodObjArgs(t->fixed ? live : t->owner, r->st->s.data_ptr, NULL)
	                       : PyLong_FromVoidPtr(t->raw.data);
	known = address ? PySet_Contains(r->memory, address) : -1;
	if (known == 0)
		o->must_load = true;
	return known < 0 ? -1 : 0;
}

void
py_module_must_load(struct py_restore *r)
{
	struct py_object *o = py_module_of(r);

	if (o)
		o->must_load = true;
}

/* Two live tensors that are the same memory cannot receive two saved ones. */
static int
refuse_tie(struct py_restore *r, const struct pawl_node *node, PyObject *live, const struct py_tensor *t,
           const struct py_range *known, enum py_rule rule, const struct py_path *path)
{
	if (rule != PY_OBJECT && py_problem(r, "tied", path, ": shares its memory with %s, but was saved apart",
	                                    pawl_state_tensor(r->saved, known->index)->name) < 0)
		return -1;
	if (t->raw.offsets)
		return push_copied(r, node, live, t);
	py_module_must_load(r);
	return push_fresh(r, node);
}

/* Handles a live tensor that can be read into. It may show memory of an earlier one in another way,
 * transposed or only in part. Then both must not be read into at the same time. The later one is
 * copied after reading, in the order of the leaves. */
static int
match_memory(struct py_restore *r, const struct pawl_node *node, PyObject *live, const struct py_tensor *t,
             enum py_rule rule, const struct py_path *path)
{
	struct py_range range = {.index = pawl_node_tensor(node), .leaf = r->n_leaves};
	const bool has_memory = find_range(&t->raw, &range);
	const struct py_range *known = has_memory ? find_read_into(r, &range) : NULL;
	const bool is_copied = has_memory && is_copied_to(r, &range);
	int same = known ? is_same(r, known, t, path) : 0;

	if (same < 0)
		return -1;
	if (same && known->index != range.index)
		return refuse_tie(r, node, live, t, known, rule, path);
	if (is_copied || (known && !same))
		return add_copied_to(r, &range) < 0 ? -1 : push_copied(r, node, live, t);
	if (has_memory && !known)
		TRY(add_read_into(r, &range));
	return bind_tensor(r, range.index, &t->raw) < 0 ? -1 : push_live(r, live);
}

/* Handles a live tensor with the dtype and shape of the saved one. */
static int
match_fitting(struct py_restore *r, const struct pawl_node *node, PyObject *live, struct py_tensor *t,
              enum py_rule rule, const struct py_path *path)
{
	bool is_torch = strncmp(t->raw.kind, "torch", 5) == 0;

	if (t->raw.offsets && t->fixed)
		return py_raise_at(r->st, PAWL_EUNSUPPORTED, path,
		                   "a shard can only be restored in place, into writable memory");
	if ((t->on_device && !t->raw.device) || (is_torch && t->fixed))
		return note_module(r, live, t) < 0 ? -1 : push_copied(r, node, live, t);
	if (t->fixed || has_overlap(&t->raw)) {
		py_module_must_load(r);
		TRY(push_fresh(r, node));
		if (strcmp(t->raw.kind, "jax") == 0)
			r->leaves[r->n_leaves - 1].live = Py_NewRef(live);
		return 0;
	}
	return note_module(r, live, t) < 0 ? -1 : match_memory(r, node, live, t, rule, path);
}

/* Handles a live leaf that is not a tensor, or one that cannot be read into. */
static int
match_other(struct py_restore *r, const struct pawl_node *node, PyObject *live, enum py_rule rule,
            const struct py_path *path)
{
	const char *kind = pawl_node_kind(node);
	bool was_scalar =
		strcmp(kind, "numpy_scalar") == 0 || (strcmp(kind, "jax") == 0 && /* a counter that began as a number */
	                                              pawl_state_tensor(r->saved, pawl_node_tensor(node))->ndim == 0);
	AUTO_REF name = NULL;

	py_module_must_load(r);
	if (rule == PY_USER && live != Py_None && !(was_scalar && py_is_plain(r->st, live, 0))) {
		name = PyType_GetQualName(Py_TYPE(live));
		if (!name || py_problem(r, "type", path, ": saved a tensor, live %s %U", py_article(name), name) < 0)
			return -1;
	}
	return push_fresh(r, node);
}

int
py_match_tensor(struct py_restore *r, const struct pawl_node *node, PyObject *live, enum py_rule rule,
                const struct py_path *path)
{
	struct py_tensor t;
	int rc;

	if (!live)
		return push_fresh(r, node);
	rc = py_tensor_describe_shape(r->st, live, path, &t);
	if (rc == 0)
		rc = py_tensor_describe(r->st, live, path, &t);
	if (rc < 0 && rule != PY_USER && PyErr_ExceptionMatches(r->st->errors[-PAWL_EUNSUPPORTED])) {
		PyErr_Clear(); /* the object that owns it accepts the new one, or raises an error */
		rc = 0;
	}
	if (rc <= 0)
		return rc < 0 ? -1 : match_other(r, node, live, rule, path);
	rc = compare_tensor(r, &t, pawl_state_tensor(r->saved, pawl_node_tensor(node)), rule, path);
	if (rc > 0) {
		rc = match_fitting(r, node, live, &t, rule, path);
	} else if (rc == 0) {
		py_module_must_load(r);
		rc = push_fresh(r, node);
	}
	py_tensor_clear(&t);
	return rc;
}
