/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pt_tensor: the calls that make tensors, as torch.save writes them. Every argument is checked.
 *
 *   _rebuild_parameter(tensor, requires_grad, hooks[, state])
 *   _rebuild_from_type_v2(function, type, arguments, state)
 *   _rebuild_tensor_v2(storage, offset, shape, strides, requires_grad, hooks[, metadata])
 *   _rebuild_tensor_v3(storage, offset, shape, strides, requires_grad, hooks, dtype[, metadata])
 *   storage: ('storage', class, key, location, number of elements[, view]) outside the stream
 *
 * Promise P17: no byte is read before offset, shape and strides are known to be within the storage.
 * The storage is as long as its member.
 */
#include <string.h>

#include "base/err.h"
#include "format/safetensors/safetensors.h"
#include "format/torch/pt_names.h"

#define MAX_WRAPS 8u   /* calls around calls: a parameter with attributes needs two */
#define MAX_FLAGS 128u /* of a tensor; many tensors may share one dict of them */

/* What a call around the tensor adds to it. */
struct wraps {
	bool parameter;
	int grad; /* -1 = not given */
};

static int
refuse_tensor(const char *why, struct pawl_error *err)
{
	return err_set(err, PAWL_ECORRUPT, "a tensor %s", why);
}

static int
not_read(const char *what, struct pawl_error *err)
{
	return err_set(err, PAWL_EUNSUPPORTED, "%s, which pawl does not read", what);
}

static int
refuse_kind(const struct pickle_global *g, struct pawl_error *err)
{
	switch (g->tag) {
	case PT_SPARSE:
		return not_read("a sparse tensor", err);
	case PT_QUANTISED:
		return not_read("a quantised tensor", err);
	case PT_NESTED:
		return not_read("a nested tensor", err);
	case PT_META:
		return not_read("a meta tensor, without data", err);
	case PT_SUBCLASS:
		return not_read("a tensor of a subclass", err);
	default:
		return not_read("a tensor of a device that keeps its data elsewhere", err);
	}
}

/* ---------------------------------------------------------------- unwrapping */

/* The call below the wraps: *ret_call a function that makes a tensor, with these arguments. */
static int
unwrap_call(struct pickle_node *node, struct wraps *wraps, const struct pickle_global **ret_call,
            const struct pickle_node **ret_args, struct pawl_error *err)
{
	const struct pickle_global *call = node->global;
	const struct pickle_node *args = node->args;

	for (unsigned n = 0; n < MAX_WRAPS; n++) {
		struct pickle_node *const *items = args->items;

		if (call->tag == PT_PARAMETER) {
			if (args->len < 3 || args->len > 4 || items[1]->type != PICKLE_BOOL ||
			    items[0]->type != PICKLE_CALL)
				return refuse_tensor("that is not a parameter as torch writes it", err);
			wraps->parameter = true;
			if (wraps->grad < 0)
				wraps->grad = (int)items[1]->i;
			call = items[0]->global;
			args = items[0]->args;
		} else if (call->tag == PT_FROM_TYPE) {
			if (args->len != 4 || items[0]->type != PICKLE_GLOBAL || items[2]->type != PICKLE_TUPLE ||
			    !pickle_is(items[1], PT_CLASS))
				return refuse_tensor("that is not a tensor with attributes as torch writes it", err);
			call = items[0]->global;
			args = items[2];
		} else {
			*ret_call = call;
			*ret_args = args;
			return 0;
		}
	}
	return refuse_tensor("nested too deeply", err);
}

/* ------------------------------------------------------------------ storages */

/* Where the bytes of a storage are. */
static int
find_storage(const struct pt *pt, const struct pickle_node *key, uint64_t *ret_begin, uint64_t *ret_nbytes,
             struct pawl_error *err)
{
	char name[64];

	if (key->type != PICKLE_STR || key->len == 0 || key->len > 32 || memchr(key->text, 0, key->len))
		return refuse_tensor("without the name of its storage", err);
	memcpy(name, "data/", 5);
	memcpy(name + 5, key->text, key->len);
	const struct zip_member *member = zip_find(&pt->zip, name, key->len + 5);
	if (!member)
		return refuse_tensor("whose storage is not in the file", err);
	*ret_begin = member->begin;
	*ret_nbytes = member->nbytes;
	return 0;
}

/* The storage that a persistent id names. *dtype: in: 0 = the storage's own; out: that of the
 * elements. */
static int
read_storage(const struct pt *pt, const struct pickle_node *id, int *dtype, uint64_t *ret_begin, uint64_t *ret_nbytes,
             struct pawl_error *err)
{
	const struct pickle_node *args = id->type == PICKLE_PERSID ? id->args : NULL;
	uint64_t unit = 1, expected;

	if (!args || args->type != PICKLE_TUPLE || args->len < 5 || args->len > 6 ||
	    args->items[0]->type != PICKLE_STR || args->items[0]->len != 7 ||
	    memcmp(args->items[0]->text, "storage", 7) != 0 || args->items[1]->type != PICKLE_GLOBAL ||
	    args->items[4]->type != PICKLE_INT || args->items[4]->text || args->items[4]->i < 0)
		return refuse_tensor("without a storage as torch writes it", err);
	if (args->len == 6 && args->items[5]->type != PICKLE_NONE)
		return not_read("a view of a storage as torch had it before version 0.4", err);
	const int tag = args->items[1]->global->tag;
	if (tag >= PT_STORAGE) {
		if (tag == PT_STORAGE)
			return not_read("a storage of quantised numbers", err);
		unit = pawl_dtype_bits(tag - PT_STORAGE) / 8;
		*dtype = *dtype ? *dtype : tag - PT_STORAGE;
	} else if (tag != PT_UNTYPED) {
		return refuse_tensor("without a storage as torch writes it", err);
	}
	*dtype = *dtype ? *dtype : PAWL_U8;
	TRY(find_storage(pt, args->items[2], ret_begin, ret_nbytes, err));
	if (!mem_mul_ok((uint64_t)args->items[4]->i, unit, &expected) || expected != *ret_nbytes)
		return err_set(err, PAWL_ECORRUPT,
		               "a tensor whose storage should have %lld elements, but its bytes are %llu",
		               (long long)args->items[4]->i, (unsigned long long)*ret_nbytes);
	return 0;
}

/* --------------------------------------------------------------------- views */

/* Whole numbers, none negative. */
int
pt_read_extents(const struct pt *pt, const struct pickle_node *node, uint32_t *ret_n, const uint64_t **ret,
                struct pawl_error *err)
{
	uint64_t *extents;

	if (node->type != PICKLE_TUPLE)
		return refuse_tensor("without a shape", err);
	if (node->len > PAWL_MAX_DIMS)
		return err_set(err, PAWL_ELIMIT, "a tensor of %zu dimensions, at most %d are possible", node->len,
		               PAWL_MAX_DIMS);
	*ret_n = (uint32_t)node->len;
	extents = bump_array(pt->memory, node->len + 1, sizeof(*extents));
	if (!extents)
		return err_nomem(err, NULL);
	for (size_t d = 0; d < node->len; d++) {
		const struct pickle_node *n = node->items[d];

		if (n->type != PICKLE_INT || n->text || n->i < 0)
			return refuse_tensor("whose shape or strides are not numbers", err);
		extents[d] = (uint64_t)n->i;
	}
	*ret = extents;
	return 0;
}

static bool
in_c_order(const struct pt_tensor *t)
{
	uint64_t expected = 1;

	for (uint32_t d = t->ndim; d-- > 0;) {
		if (t->shape[d] != 1 && t->strides[d] != expected)
			return false;
		if (t->shape[d] > 1 && !mem_mul_ok(expected, t->shape[d], &expected))
			return false;
	}
	return true;
}

/* Elements from the first to the last, both included; false if that is too much. */
static bool
reach_of(const struct pt_tensor *t, uint64_t *ret)
{
	*ret = 1;
	for (uint32_t d = 0; d < t->ndim; d++) {
		uint64_t step;
		if (!mem_mul_ok(t->shape[d] - 1, t->strides[d], &step) || !mem_add_ok(*ret, step, ret))
			return false;
	}
	return true;
}

/* torch counts pairs of four bits, pawl the numbers in them. */
static int
split_pairs(const struct pt *pt, struct pt_tensor *t, struct pawl_error *err)
{
	uint64_t *shape = bump_array(pt->memory, t->ndim + 1u, sizeof(*shape));

	if (!shape)
		return err_nomem(err, NULL);
	if (t->ndim == 0 || t->strides)
		return not_read("a tensor of four-bit numbers that is a scalar or not contiguous", err);
	memcpy(shape, t->shape, t->ndim * sizeof(*shape));
	if (!mem_mul_ok(shape[t->ndim - 1], 2, &shape[t->ndim - 1]))
		return refuse_tensor("that is too large", err);
	t->shape = shape;
	return 0;
}

/* Fills in begin, shape and strides of a view that starts at element `offset` of a storage. */
static int
place_view(const struct pt *pt, struct pt_tensor *t, uint64_t offset, uint64_t begin, uint64_t nbytes,
           struct pawl_error *err)
{
	const uint64_t item = t->dtype == PAWL_F4 ? 1 : pawl_dtype_bits(t->dtype) / 8;
	bool is_empty = false;
	uint64_t n;

	for (uint32_t d = 0; d < t->ndim; d++)
		is_empty = is_empty || t->shape[d] == 0;
	t->begin = begin;
	if (!is_empty) {
		if (!reach_of(t, &n) || !mem_add_ok(n, offset, &n) || !mem_mul_ok(n, item, &n) || n > nbytes)
			return refuse_tensor("that reaches beyond its storage", err);
		t->begin += offset * item;
	}
	if (is_empty || in_c_order(t))
		t->strides = NULL;
	if (t->dtype == PAWL_F4)
		TRY(split_pairs(pt, t, err));
	return safetensors_nbytes(t->dtype, t->ndim, t->shape, &t->nbytes, err);
}

/* A conjugate or a negative is a flag; the bytes are the same. */
static int
check_metadata(const struct pickle_node *node, struct pawl_error *err)
{
	if (node->type == PICKLE_NONE)
		return 0;
	if (node->type != PICKLE_DICT && node->type != PICKLE_ODICT)
		return refuse_tensor("whose metadata is not a dict", err);
	if (node->len / 2 > MAX_FLAGS)
		return err_set(err, PAWL_ELIMIT, "a tensor with %zu flags, at most %u are possible", node->len / 2,
		               MAX_FLAGS);
	for (size_t i = 0; i + 1 < node->len; i += 2) {
		const struct pickle_node *value = node->items[i + 1];

		if (value->type != PICKLE_BOOL || value->i != 0)
			return not_read("a tensor with flags (conjugate, negative)", err);
	}
	return 0;
}

static int
build_tensor(const struct pt *pt, const struct pickle_global *call, const struct pickle_node *args, struct wraps *wraps,
             struct pt_tensor *t, struct pawl_error *err)
{
	const bool is_v3 = call->tag == PT_TENSOR_V3, is_v1 = call->tag == PT_TENSOR_V1;
	const size_t least = is_v1 ? 4 : is_v3 ? 7 : 6;
	struct pickle_node *const *items = args->items;
	const uint64_t *shape = NULL, *strides = NULL;
	uint64_t begin = 0, nbytes = 0;
	uint32_t n_strides = 0;

	if (args->len < least || args->len > least + !is_v1 || items[1]->type != PICKLE_INT || items[1]->text ||
	    items[1]->i < 0)
		return refuse_tensor("that is not as torch writes them", err);
	if (is_v3) {
		if (items[6]->type != PICKLE_GLOBAL || !pt_is_dtype(items[6]->global->tag))
			return refuse_tensor("without a dtype", err);
		t->dtype = items[6]->global->tag - PT_DTYPE;
		if (t->dtype == 0)
			return err_set(err, PAWL_EUNSUPPORTED, "a tensor of torch.%s, which pawl does not have",
			               items[6]->global->name);
	}
	if (!is_v1) {
		if (items[4]->type != PICKLE_BOOL || items[5]->type != PICKLE_ODICT)
			return refuse_tensor("that is not as torch writes them", err);
		if (items[5]->len > 0)
			return not_read("a tensor with hooks", err);
		if (wraps->grad < 0)
			wraps->grad = (int)items[4]->i;
		if (args->len > least)
			TRY(check_metadata(items[least], err));
	}
	TRY(read_storage(pt, items[0], &t->dtype, &begin, &nbytes, err));
	TRY(pt_read_extents(pt, items[2], &t->ndim, &shape, err));
	TRY(pt_read_extents(pt, items[3], &n_strides, &strides, err));
	if (n_strides != t->ndim)
		return refuse_tensor("with more strides than dimensions, or fewer", err);
	t->shape = shape;
	t->strides = strides;
	return place_view(pt, t, (uint64_t)items[1]->i, begin, nbytes, err);
}

int
pt_make_tensor(const struct pt *pt, struct pickle_node *node, const struct pt_tensor **ret, struct pawl_error *err)
{
	const struct pickle_global *call;
	const struct pickle_node *args;
	struct wraps wraps = {.grad = -1};

	*ret = node->user;
	if (node->user || node->global->tag < PT_TENSOR_V1 || node->global->tag > PT_FROM_NUMPY)
		return 0;
	TRY(unwrap_call(node, &wraps, &call, &args, err));
	if (call->tag < PT_TENSOR_V1 || call->tag > PT_TENSOR_V3)
		return call->tag >= PT_SPARSE && call->tag <= PT_FROM_NUMPY
		               ? refuse_kind(call, err)
		               : refuse_tensor("that is made in a way that torch does not write", err);
	struct pt_tensor *t = bump_alloc(pt->memory, sizeof(*t));
	if (!t)
		return err_nomem(err, NULL);
	TRY(build_tensor(pt, call, args, &wraps, t, err));
	if (wraps.parameter)
		t->kind = wraps.grad > 0 ? "torch_parameter" : "torch_parameter_nograd";
	else
		t->kind = wraps.grad > 0 ? "torch_grad" : "torch";
	node->user = t;
	*ret = t;
	return 0;
}
