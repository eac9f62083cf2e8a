/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state_tensors: the table of a state's tensors: which are accepted, names, ties. Each row is one
 * piece of memory. Leaves that share memory, dtype, shape and strides share the row. So they are
 * stored once and restored tied.
 */
#include "state/state.h"

#include <string.h>

#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"
#include "format/safetensors/safetensors.h"
#include "state/state_build.h"

static struct state_tensor *
find_name(struct pawl_state *s, const char *name, uint64_t hash)
{
	uintptr_t index;

	for (size_t cursor = 0; table_next(&s->builder->names, hash, &cursor, &index);) {
		if (strcmp(s->tensors[index].info.name, name) == 0)
			return &s->tensors[index];
	}
	return NULL;
}

struct state_tensor *
state_find_tensor(struct pawl_state *s, const char *name)
{
	return find_name(s, name, table_hash((uintptr_t)s, name, strlen(name)));
}

/* A unique name for the tensor at builder.path. The name of the pack's own header key is taken
 * too. */
static int
unique_name(struct pawl_state *s, const char **ret, uint64_t *ret_hash, struct pawl_error *err)
{
	struct buf *path = &s->builder->path;
	uint64_t hash = table_hash((uintptr_t)s, buf_str(path), path->len);
	struct state_tensor *same = find_name(s, buf_str(path), hash);
	size_t base_len = path->len;

	if (same || strcmp(buf_str(path), "__metadata__") == 0) {
		unsigned from_2 = 0;
		unsigned *taken = same ? &s->builder->n_suffixes[same - s->tensors] : &from_2;
		do {
			path->len = base_len;
			buf_printf(path, "~%u", 2 + (*taken)++);
			hash = table_hash((uintptr_t)s, buf_str(path), path->len);
		} while (!path->failed && find_name(s, buf_str(path), hash));
	}
	TRY(buf_check(path, "state", err));
	if (path->len > STATE_MAX_NAME_BYTES)
		return err_set(err, PAWL_ELIMIT, "the path of a tensor is %zu bytes long, at most %d are possible",
		               path->len, STATE_MAX_NAME_BYTES);
	*ret = bump_strndup(&s->memory, buf_str(path), path->len);
	*ret_hash = hash;
	return *ret ? 0 : state_no_memory(err);
}

/* Makes room for one more row and its entries, so that nothing can fail after the row is filled. */
static int
reserve_tensor(struct pawl_state *s, struct pawl_error *err)
{
	struct state_builder *b = s->builder;

	if (table_reserve(&b->names, 1) < 0 || table_reserve(&b->ties, 1) < 0)
		return state_no_memory(err);
	size_t room = s->cap_tensors; /* both arrays grow alike */
	return array_reserve(b->n_suffixes, room, s->n_tensors + 1) &&
	                       array_reserve(s->tensors, s->cap_tensors, s->n_tensors + 1)
	               ? 0
	               : state_no_memory(err);
}

/* 1 if the box is a part of the global tensor, 0 if it is all of it, negative if it does not fit.
 * Elements of less than a byte can be divided only into complete rows of full bytes. */
static int
check_shard(const struct pawl_tensor *t, struct pawl_error *err)
{
	uint64_t row_bits = pawl_dtype_bits(t->dtype);
	bool is_part = false, in_rows = true;

	if (!t->global_shape != !t->offsets)
		return err_set(err, PAWL_EUSAGE, "global_shape and offsets go together");
	if (!t->offsets)
		return 0;
	for (uint32_t d = 0; d < t->ndim; d++) {
		if (t->offsets[d] > t->global_shape[d] || t->shape[d] > t->global_shape[d] - t->offsets[d])
			return err_set(
				err, PAWL_EUSAGE,
				"the shard is outside the global tensor in dimension %u: offset %llu and size %llu, "
				"but the tensor ends at %llu",
				d, (unsigned long long)t->offsets[d], (unsigned long long)t->shape[d],
				(unsigned long long)t->global_shape[d]);
		if (t->shape[d] == t->global_shape[d])
			row_bits = d > 0 ? row_bits * t->shape[d] : row_bits;
		else
			in_rows = in_rows && d == 0;
		is_part = is_part || t->shape[d] != t->global_shape[d];
	}
	if (is_part && pawl_dtype_bits(t->dtype) % 8 != 0 && (!in_rows || row_bits % 8 != 0))
		return err_set(err, PAWL_EUNSUPPORTED,
		               "shard of a %s tensor that does not consist of rows of whole bytes",
		               pawl_dtype_name(t->dtype));
	return is_part;
}

int
state_check_tensor(const struct pawl_tensor *t, struct state_tensor *ret, struct pawl_error *err)
{
	struct state_tensor row = {.contiguous = true};

	if (t->size < offsetof(struct pawl_tensor, writer))
		return err_set(err, PAWL_EUSAGE, "tensor: size is %zu, set it by PAWL_TENSOR_INIT", t->size);
	if (t->size >= offsetof(struct pawl_tensor, device) &&
	    (t->writer < PAWL_WRITER_AUTO || t->writer > PAWL_WRITER_ELSEWHERE))
		return err_set(err, PAWL_EUSAGE, "tensor: writer: expected 0 to %d, found %d", PAWL_WRITER_ELSEWHERE,
		               t->writer);
	if (t->size >= sizeof(*t) && (t->device < PAWL_DEVICE_HOST || t->device > PAWL_DEVICE_HIP))
		return err_set(err, PAWL_EUSAGE, "tensor: device: expected 0 to %d, found %d", PAWL_DEVICE_HIP,
		               t->device);
	if (t->size >= sizeof(*t) && t->device && t->fill)
		return err_set(err, PAWL_EUSAGE, "tensor: expected a device or fill, found both");
	if (t->kind && (strlen(t->kind) > STATE_MAX_KIND_BYTES || !text_is_utf8(t->kind, strlen(t->kind))))
		return err_set(err, PAWL_EUSAGE, "tensor: kind must be UTF-8 of at most %d bytes",
		               STATE_MAX_KIND_BYTES);
	int rc = tensor_nbytes(t, &row.local_nbytes, err);
	if (rc == 0)
		rc = check_shard(t, err);
	if (rc < 0)
		return err_prefix(err, rc, "tensor");
	memcpy(&row.src, t, t->size < sizeof(*t) ? t->size : sizeof(*t)); /* a caller may know fewer fields */
	if (t->size < sizeof(*t))
		row.src.device = PAWL_DEVICE_HOST;
	row.src.size = sizeof(row.src);
	row.src.kind = NULL;
	row.contiguous = tensor_is_contiguous(t);
	if (row.contiguous || t->fill)
		row.src.strides = NULL;
	row.info = (struct pawl_tensor_info){
		.dtype = t->dtype, .ndim = t->ndim, .shape = t->shape, .nbytes = row.local_nbytes};
	if (rc == 0) {
		row.src.global_shape = row.src.offsets = NULL;
	} else {
		row.info.shape = t->global_shape;
		if (safetensors_nbytes(t->dtype, t->ndim, t->global_shape, &row.info.nbytes, err) < 0) {
			if (err)
				err->code = PAWL_EUSAGE;
			return err_prefix(err, PAWL_EUSAGE, "tensor: global shape");
		}
	}
	if (row.local_nbytes > 0 && !t->fill && !t->data)
		return err_set(err, PAWL_EUSAGE, "tensor: %llu bytes, but data is NULL",
		               (unsigned long long)row.local_nbytes);
	*ret = row;
	return 0;
}

int
state_add_row(struct pawl_state *s, struct state_tensor *row, size_t *ret, struct pawl_error *err)
{
	struct state_builder *b = s->builder;
	uint32_t ndim = row->info.ndim;
	uint64_t hash = 0;

	TRY(reserve_tensor(s, err));
	for (unsigned i = 0; i < b->depth; i++)
		if (b->stack[i].node->type == PAWL_PER_RANK) /* only this rank has it */
			row->src.writer = PAWL_WRITER_HERE;
	state_path_forth(b);
	int rc = unique_name(s, &row->info.name, &hash, err);
	state_path_back(b);
	if (rc < 0)
		return rc;
	row->src.shape = bump_copy(&s->memory, row->src.shape, ndim, sizeof(uint64_t));
	if (!row->src.shape)
		return state_no_memory(err);
	if (row->src.offsets) {
		row->src.offsets = bump_copy(&s->memory, row->src.offsets, ndim, sizeof(uint64_t));
		row->src.global_shape = bump_copy(&s->memory, row->src.global_shape, ndim, sizeof(uint64_t));
		if (!row->src.offsets || !row->src.global_shape)
			return state_no_memory(err);
	}
	if (row->src.strides) {
		row->src.strides = bump_copy(&s->memory, row->src.strides, ndim, sizeof(uint64_t));
		if (!row->src.strides)
			return state_no_memory(err);
	}
	row->info.shape = row->src.offsets ? row->src.global_shape : row->src.shape;
	s->tensors[s->n_tensors] = *row;
	b->n_suffixes[s->n_tensors] = 0;
	table_add(&b->names, hash, s->n_tensors);
	*ret = s->n_tensors++;
	return 0;
}

static bool
is_tied(const struct state_tensor *a, const struct state_tensor *b)
{
	const struct pawl_tensor *x = &a->src, *y = &b->src;
	bool same_memory = x->fill ? x->fill == y->fill && x->fill_arg == y->fill_arg : !y->fill && x->data == y->data;

	return same_memory && x->dtype == y->dtype && x->ndim == y->ndim &&
	       tensor_same_extents(x->shape, y->shape, x->ndim) &&
	       tensor_same_extents(x->strides, y->strides, x->ndim) &&
	       tensor_same_extents(x->offsets, y->offsets, x->ndim) &&
	       tensor_same_extents(x->global_shape, y->global_shape, x->ndim);
}

/* 0 for a tensor without memory of its own, which is never tied. */
static uint64_t
tie_hash(const struct pawl_state *s, const struct state_tensor *row)
{
	const struct pawl_tensor *t = &row->src;
	uintptr_t memory = t->fill ? (uintptr_t)t->fill_arg : (uintptr_t)t->data;
	uint64_t hash = table_mix((uintptr_t)s, memory);

	if (memory == 0 || row->local_nbytes == 0)
		return 0;
	hash = table_mix(hash, (uint64_t)t->dtype << 32 | t->ndim);
	for (uint32_t d = 0; d < t->ndim; d++)
		hash = table_mix(hash, t->shape[d]);
	return hash | 1;
}

/* The row of a tensor: an earlier one with the same memory, or a new one. */
static int
find_or_add_row(struct pawl_state *s, struct state_tensor *row, size_t *ret, struct pawl_error *err)
{
	uint64_t hash = tie_hash(s, row);
	uintptr_t index;

	for (size_t cursor = 0; hash && table_next(&s->builder->ties, hash, &cursor, &index);) {
		if (is_tied(&s->tensors[index], row)) {
			*ret = index;
			return 0;
		}
	}
	TRY(state_add_row(s, row, ret, err));
	if (hash)
		table_add(&s->builder->ties, hash, *ret);
	return 0;
}

static const char *
copy_kind(struct pawl_state *s, const char *kind)
{
	/* nearly always all tensors of a state are of one kind */
	const struct pawl_node *parent = s->builder->depth > 0 ? s->builder->stack[s->builder->depth - 1].node : NULL;
	const char *last = parent && parent->last ? parent->last->kind : "";

	if (!kind || !*kind)
		return "";
	return strcmp(kind, last) == 0 ? last : bump_strndup(&s->memory, kind, strlen(kind));
}

static int
add_tensor(struct pawl_state *s, const struct pawl_tensor *t, struct pawl_error *err)
{
	struct state_tensor row = {0};

	TRY(state_check_tensor(t, &row, err));
	struct pawl_node *node = state_new_node(s, PAWL_TENSOR);
	const char *kind = copy_kind(s, t->kind);
	if (!node || !kind)
		return state_no_memory(err);
	TRY(find_or_add_row(s, &row, &node->tensor, err));
	s->last_tensor = node->tensor + 1;
	node->kind = kind;
	state_link_node(s, node);
	return 0;
}

int
pawl_state_add_tensor(struct pawl_state *s, const struct pawl_tensor *t, struct pawl_error *err)
{
	if (!s || !t)
		return err_set(err, PAWL_EUSAGE, "state: expected a state and a tensor, found NULL");
	TRY(state_check_place(s, PAWL_TENSOR, err));
	int rc = add_tensor(s, t, err);
	return rc < 0 ? state_at_path(s, rc, err) : 0;
}

int
state_add_named(struct pawl_state *s, int type, const char *name, const char *kind, struct pawl_error *err)
{
	struct state_builder *b = s->builder;
	size_t name_len = strlen(name);
	bool is_blob = type != PAWL_TENSOR;

	TRY(state_check_place(s, type, err));
	if (name_len > STATE_MAX_NAME_BYTES)
		return err_set(err, PAWL_ELIMIT, "state: tensor name of %zu bytes, at most %d are possible", name_len,
		               STATE_MAX_NAME_BYTES);
	if (kind && strlen(kind) > STATE_MAX_KIND_BYTES)
		return err_set(err, PAWL_ELIMIT, "state: kind of tensor '%.200s' is longer than %d bytes", name,
		               STATE_MAX_KIND_BYTES);
	struct pawl_node *node = state_new_node(s, type);
	kind = kind ? copy_kind(s, kind) : node ? node->kind : NULL;
	if (!node || !kind)
		return state_no_memory(err);
	node->kind = kind;
	node->scalar.type = type;
	struct state_tensor *t = state_find_tensor(s, name);
	if (t && (is_blob || t->is_blob))
		return err_set(err, PAWL_ECORRUPT, "state: '%.200s' is both a long value and something else", name);
	if (!t) {
		TRY(reserve_tensor(s, err));
		t = &s->tensors[s->n_tensors];
		*t = (struct state_tensor){.info.name = bump_strndup(&s->memory, name, name_len), .is_blob = is_blob};
		if (!t->info.name)
			return state_no_memory(err);
		b->n_suffixes[s->n_tensors] = 0;
		table_add(&b->names, table_hash((uintptr_t)s, name, name_len), s->n_tensors++);
	}
	node->tensor = (size_t)(t - s->tensors);
	state_link_node(s, node);
	return 0;
}

int
state_describe_tensor(struct pawl_state *s, struct state_tensor *t, int dtype, uint32_t ndim, const uint64_t *shape,
                      struct pawl_error *err)
{
	struct pawl_tensor_info info = {.name = t->info.name, .dtype = dtype, .ndim = ndim};

	if (ndim > PAWL_MAX_DIMS)
		return err_set(err, PAWL_ELIMIT, "tensor '%.200s': %u dimensions, at most %d are possible", info.name,
		               ndim, PAWL_MAX_DIMS);
	if (safetensors_nbytes(dtype, ndim, shape, &info.nbytes, err) < 0)
		return err_prefix(err, PAWL_ECORRUPT, "tensor '%.200s'", info.name);
	if (t->is_blob && (dtype != PAWL_U8 || ndim != 1))
		return err_set(err, PAWL_ECORRUPT,
		               "tensor '%.200s' holds a long value: expected U8 with 1 dimension, found %s with %u",
		               info.name, pawl_dtype_name(dtype), ndim);
	info.shape = bump_copy(&s->memory, shape, ndim, sizeof(uint64_t));
	if (!info.shape)
		return state_no_memory(err);
	t->info = info;
	return 0;
}
