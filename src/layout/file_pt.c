/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file_pt: the layout of a file as torch.save of torch 2.13 writes it: a zip archive with one
 * folder, which contains
 *
 *   data.pkl  .format_version  .storage_alignment  byteorder  data/0  data/1  ..  version
 *   .data/serialization_id
 *
 * data.pkl is pickle protocol 2 and names only what torch.load(weights_only=True) accepts. Every
 * tensor of the state's table has its own storage, with its logical contents. Leaves that share a
 * tensor share the storage.
 *
 * Some values come back as another type: arrays of NumPy and JAX as torch tensors; values per rank
 * as this rank's own.
 */
#include <stdio.h>
#include <string.h>

#include "base/bump.h"
#include "base/crc.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/sum.h"
#include "format/archive/zip_write.h"
#include "format/torch/pickle_write.h"
#include "layout/file_plan.h"
#include "state/state.h"

#define RAW_PICKLE_KEY "$pickle"
#define FORMAT_VERSION "1"
#define ARCHIVE_VERSION "3\n"
#define ALIGNMENT "64"
#define BYTE_ORDER "little" /* pawl runs only on such machines */

/* Globals, by their number in the memo. */
enum {
	GLOBAL_TENSOR,
	GLOBAL_TENSOR_DTYPE,
	GLOBAL_PARAMETER,
	GLOBAL_ORDERED,
	GLOBAL_ENCODE,
	GLOBAL_UNTYPED,
	GLOBAL_STORAGE, /* + dtype */
	GLOBAL_DTYPE = GLOBAL_STORAGE + 32,
	GLOBALS = GLOBAL_DTYPE + 32
};

/* storage NULL: newer than the storage classes; written as bytes with a dtype. */
static const struct {
	const char *storage, *dtype;
} torch_types[32] = {
	[PAWL_BOOL] = {"BoolStorage", "bool"},
	[PAWL_U8] = {"ByteStorage", "uint8"},
	[PAWL_I8] = {"CharStorage", "int8"},
	[PAWL_I16] = {"ShortStorage", "int16"},
	[PAWL_I32] = {"IntStorage", "int32"},
	[PAWL_I64] = {"LongStorage", "int64"},
	[PAWL_F16] = {"HalfStorage", "float16"},
	[PAWL_BF16] = {"BFloat16Storage", "bfloat16"},
	[PAWL_F32] = {"FloatStorage", "float32"},
	[PAWL_F64] = {"DoubleStorage", "float64"},
	[PAWL_C64] = {"ComplexFloatStorage", "complex64"},
	[PAWL_C128] = {"ComplexDoubleStorage", "complex128"},
	[PAWL_U16] = {NULL, "uint16"},
	[PAWL_U32] = {NULL, "uint32"},
	[PAWL_U64] = {NULL, "uint64"},
	[PAWL_F4] = {NULL, "float4_e2m1fn_x2"},
	[PAWL_F8_E5M2] = {NULL, "float8_e5m2"},
	[PAWL_F8_E4M3] = {NULL, "float8_e4m3fn"},
	[PAWL_F8_E8M0] = {NULL, "float8_e8m0fnu"},
	[PAWL_F8_E4M3FNUZ] = {NULL, "float8_e4m3fnuz"},
	[PAWL_F8_E5M2FNUZ] = {NULL, "float8_e5m2fnuz"},
};

const char *
file_plan_torch_dtype(int dtype)
{
	return torch_types[dtype].dtype;
}

struct pickler {
	const struct pawl_state *state;
	const struct file_plan_opts *opts;
	struct buf *out;
	bool known[GLOBALS];
	struct pawl_error *err;
};

static void
put_global(struct pickler *p, unsigned number, const char *module, const char *name)
{
	if (p->known[number]) {
		pickle_put_again(p->out, number);
		return;
	}
	pickle_put_global(p->out, module, name);
	pickle_put_memo(p->out, number);
	p->known[number] = true;
}

static void
put_empty_odict(struct pickler *p)
{
	put_global(p, GLOBAL_ORDERED, "collections", "OrderedDict");
	pickle_put_op(p->out, PICKLE_OP_EMPTY_TUPLE);
	pickle_put_op(p->out, PICKLE_OP_REDUCE);
}

static int
put_scalar(struct pickler *p, const struct pawl_scalar *value)
{
	switch (value->type) {
	case PAWL_NONE:
		pickle_put_op(p->out, PICKLE_OP_NONE);
		return 0;
	case PAWL_BOOLEAN:
		pickle_put_bool(p->out, value->i != 0);
		return 0;
	case PAWL_FLOAT:
		pickle_put_float(p->out, value->f);
		return 0;
	case PAWL_INT:
		if (!value->ptr)
			pickle_put_int(p->out, value->i);
		else if (!pickle_put_decimal(p->out, value->ptr, value->len))
			return err_set(p->err, PAWL_EUNSUPPORTED,
			               "a .pt file holds integers of up to 2,039 bits, found %zu digits", value->len);
		return 0;
	default:
		if (value->len > UINT32_MAX / 2)
			return err_set(p->err, PAWL_EUNSUPPORTED,
			               "a .pt file holds texts of up to 2 GiB, found %zu bytes", value->len);
		if (value->type == PAWL_STR) {
			pickle_put_str(p->out, value->ptr, value->len);
			return 0;
		}
		put_global(p, GLOBAL_ENCODE, "_codecs", "encode");
		pickle_put_latin1(p->out, value->ptr, value->len);
		return 0;
	}
}

/* A tuple of numbers, most significant dimension first. halves: the last one counts pairs of 4
 * bits. */
static void
put_extents(struct pickler *p, const struct pawl_tensor_info *info, bool strides, bool halves)
{
	const uint32_t n = info->ndim;
	uint64_t extents[PAWL_MAX_DIMS], stride = 1;

	for (uint32_t d = n; d-- > 0;) {
		const uint64_t size = halves && d + 1 == n ? info->shape[d] / 2 : info->shape[d];

		extents[d] = strides ? stride : size;
		stride *= size > 0 ? size : 1;
	}
	pickle_put_op(p->out, PICKLE_OP_MARK);
	for (uint32_t d = 0; d < n; d++)
		pickle_put_int(p->out, (int64_t)extents[d]);
	pickle_put_op(p->out, PICKLE_OP_TUPLE);
}

/* ('storage', class, key, 'cpu', number of elements) as a persistent id. */
static void
put_storage(struct pickler *p, size_t tensor, const struct pawl_tensor_info *info)
{
	const char *class = torch_types[info->dtype].storage;
	const uint64_t n = class ? info->nbytes / (pawl_dtype_bits(info->dtype) / 8) : info->nbytes;
	char key[24];

	snprintf(key, sizeof(key), "%zu", tensor);
	pickle_put_op(p->out, PICKLE_OP_MARK);
	pickle_put_str(p->out, "storage", 7);
	if (class)
		put_global(p, GLOBAL_STORAGE + (unsigned)info->dtype, "torch", class);
	else
		put_global(p, GLOBAL_UNTYPED, "torch.storage", "UntypedStorage");
	pickle_put_str(p->out, key, strlen(key));
	pickle_put_str(p->out, "cpu", 3);
	pickle_put_int(p->out, (int64_t)n);
	pickle_put_op(p->out, PICKLE_OP_TUPLE);
	pickle_put_op(p->out, PICKLE_OP_PERSISTENT);
}

static void
put_rebuilt(struct pickler *p, size_t tensor, const struct pawl_tensor_info *info, bool requires_grad)
{
	const bool typed = torch_types[info->dtype].storage != NULL, halves = info->dtype == PAWL_F4;

	if (typed)
		put_global(p, GLOBAL_TENSOR, "torch._utils", "_rebuild_tensor_v2");
	else
		put_global(p, GLOBAL_TENSOR_DTYPE, "torch._utils", "_rebuild_tensor_v3");
	pickle_put_op(p->out, PICKLE_OP_MARK);
	put_storage(p, tensor, info);
	pickle_put_int(p->out, 0); /* its first element */
	put_extents(p, info, false, halves);
	put_extents(p, info, true, halves);
	pickle_put_bool(p->out, requires_grad);
	put_empty_odict(p); /* backward hooks */
	if (!typed)
		put_global(p, GLOBAL_DTYPE + (unsigned)info->dtype, "torch", torch_types[info->dtype].dtype);
	pickle_put_op(p->out, PICKLE_OP_TUPLE);
	pickle_put_op(p->out, PICKLE_OP_REDUCE);
}

static int
check_tensor(struct pickler *p, const struct state_tensor *t)
{
	const struct pawl_tensor_info *info = &t->info;

	if (t->src.offsets)
		return err_set(p->err, PAWL_EUNSUPPORTED, "a .pt file holds full tensors, found a piece of '%s'",
		               info->name);
	if (!torch_types[info->dtype].dtype)
		return err_set(p->err, PAWL_EUNSUPPORTED, "torch has no dtype for the %s of '%s'",
		               pawl_dtype_name(info->dtype), info->name);
	if (info->dtype == PAWL_F4 && (info->ndim == 0 || info->shape[info->ndim - 1] % 2 != 0))
		return err_set(p->err, PAWL_EUNSUPPORTED,
		               "torch packs two %s into a byte: the last dimension of '%s' must be even", "F4",
		               info->name);
	return 0;
}

static int
put_tensor(struct pickler *p, const struct pawl_node *node)
{
	const struct state_tensor *t = &p->state->tensors[node->tensor];
	const bool is_parameter = strncmp(node->kind, "torch_parameter", 15) == 0;

	TRY(check_tensor(p, t));
	if (!is_parameter) {
		put_rebuilt(p, node->tensor, &t->info, strcmp(node->kind, "torch_grad") == 0);
		return 0;
	}
	put_global(p, GLOBAL_PARAMETER, "torch._utils", "_rebuild_parameter");
	pickle_put_op(p->out, PICKLE_OP_MARK);
	put_rebuilt(p, node->tensor, &t->info, false);
	pickle_put_bool(p->out, strcmp(node->kind, "torch_parameter_nograd") != 0);
	put_empty_odict(p);
	pickle_put_op(p->out, PICKLE_OP_TUPLE);
	pickle_put_op(p->out, PICKLE_OP_REDUCE);
	return 0;
}

/* A dict of one key that represents opcodes; NULL = it does not. */
static const struct pawl_scalar *
raw_of(const struct pickler *p, const struct pawl_node *node)
{
	const struct pawl_node *only = node->count == 1 ? node->first : NULL;

	if (!p->opts->raw_pickle || !only || only->type != PAWL_BYTES || !only->key || only->key->type != PAWL_STR)
		return NULL;
	if (only->key->len != strlen(RAW_PICKLE_KEY) || memcmp(only->key->ptr, RAW_PICKLE_KEY, only->key->len) != 0)
		return NULL;
	return &only->scalar;
}

static int put_node(struct pickler *p, const struct pawl_node *node);

static int
put_children(struct pickler *p, const struct pawl_node *node, bool with_keys)
{
	for (const struct pawl_node *child = node->first; child; child = child->next) {
		if (with_keys)
			TRY(put_scalar(p, child->key));
		TRY(put_node(p, child));
	}
	return 0;
}

/* Containers nest at most STATE_MAX_DEPTH deep. */
static int
put_node(struct pickler *p, const struct pawl_node *node)
{
	const struct pawl_scalar *raw;

	switch (node->type) {
	case PAWL_TENSOR:
		return put_tensor(p, node);
	case PAWL_DICT:
	case PAWL_ODICT:
		raw = raw_of(p, node);
		if (raw) {
			buf_put(p->out, raw->ptr, raw->len);
			return 0;
		}
		if (node->type == PAWL_ODICT)
			put_empty_odict(p);
		else
			pickle_put_op(p->out, PICKLE_OP_EMPTY_DICT);
		pickle_put_op(p->out, PICKLE_OP_MARK);
		TRY(put_children(p, node, true));
		pickle_put_op(p->out, PICKLE_OP_SETITEMS);
		return 0;
	case PAWL_LIST:
		pickle_put_op(p->out, PICKLE_OP_EMPTY_LIST);
		pickle_put_op(p->out, PICKLE_OP_MARK);
		TRY(put_children(p, node, false));
		pickle_put_op(p->out, PICKLE_OP_APPENDS);
		return 0;
	case PAWL_TUPLE:
		pickle_put_op(p->out, PICKLE_OP_MARK);
		TRY(put_children(p, node, false));
		pickle_put_op(p->out, PICKLE_OP_TUPLE);
		return 0;
	case PAWL_PER_RANK:
	case PAWL_DIFFERS:
		if (!state_is_transparent(node))
			return err_set(p->err, PAWL_EUNSUPPORTED,
			               "a .pt file holds what one rank has, found values of %zu ranks", node->count);
		return put_node(p, node->first);
	default:
		return put_scalar(p, &node->scalar);
	}
}

/* ---- the archive */

struct archive {
	struct piece_plan *plan;
	uint64_t begin;      /* in the plan */
	size_t first_tensor; /* its number in the plan */
	struct bump memory;
	const char *folder;
	struct zip_entry *entries;
	size_t *tensors; /* of each entry; SIZE_MAX: its CRC is known */
	size_t n;
};

static const char *
full_name(struct archive *a, const char *name, struct pawl_error *err)
{
	const size_t len = strlen(a->folder) + strlen(name) + 2;
	char *full = bump_alloc(&a->memory, len);

	if (full)
		snprintf(full, len, "%s/%s", a->folder, name);
	else
		err_nomem(err, "layout of a file");
	return full;
}

static int
begin_member(struct archive *a, const char *name, uint64_t nbytes, uint32_t crc, struct pawl_error *err)
{
	struct zip_entry *entry = &a->entries[a->n];

	*entry = (struct zip_entry){full_name(a, name, err), 0, nbytes, crc};
	if (!entry->name)
		return PAWL_ENOMEM;
	zip_begin_member(entry, piece_plan_end(a->plan) - a->begin, &a->plan->bytes);
	return 0;
}

/* A member whose bytes are all known. */
static int
add_text(struct archive *a, const char *name, const void *ptr, size_t len, struct pawl_error *err)
{
	TRY(begin_member(a, name, len, crc32_bytes(ptr, len), err));
	buf_put(&a->plan->bytes, ptr, len);
	zip_end_member(&a->entries[a->n], &a->plan->bytes);
	a->tensors[a->n++] = SIZE_MAX;
	return 0;
}

static int
add_tensor(struct archive *a, size_t row, uint64_t nbytes, struct pawl_error *err)
{
	const size_t tensor = a->first_tensor + row;
	char name[32];

	snprintf(name, sizeof(name), "data/%zu", row);
	TRY(begin_member(a, name, nbytes, 0, err));
	a->tensors[a->n] = nbytes > 0 ? tensor : SIZE_MAX;
	const struct zip_entry *entry = &a->entries[a->n++];
	if (nbytes == 0) {
		zip_end_member(entry, &a->plan->bytes);
		return 0;
	}
	TRY(piece_plan_add(a->plan, FILE_BEGIN, tensor, 0, err));
	TRY(piece_plan_add(a->plan, FILE_TENSOR, tensor, nbytes, err));
	TRY(piece_plan_add(a->plan, FILE_END, tensor, 0, err));
	return piece_plan_add_crc(a->plan, tensor, zip_end_member(entry, &a->plan->bytes), err);
}

static int
add_directory(struct archive *a, struct pawl_error *err)
{
	size_t *sums = bump_array(&a->memory, a->n, sizeof(*sums));

	if (!sums)
		return err_nomem(err, "layout of a file");
	zip_put_directory(a->entries, a->n, piece_plan_end(a->plan) - a->begin, &a->plan->bytes, sums);
	for (size_t i = 0; i < a->n; i++)
		if (a->tensors[i] != SIZE_MAX)
			TRY(piece_plan_add_crc(a->plan, a->tensors[i], sums[i], err));
	return piece_plan_finish(a->plan, err);
}

/* 40 digits that identify a file, as torch's own do: from the names and the object's description.
 * No reader checks them. */
static int
add_identity(struct archive *a, const struct buf *pickle, struct pawl_error *err)
{
	const struct sum128 sum = sum_bytes(pickle->ptr, pickle->len);
	char text[48];

	snprintf(text, sizeof(text), "%020llu%020llu", (unsigned long long)sum.lo, (unsigned long long)sum.hi);
	return add_text(a, ".data/serialization_id", text, 40, err);
}

static int
add_members(struct archive *a, const struct pawl_state *state, const struct buf *pickle, struct pawl_error *err)
{
	TRY(add_text(a, "data.pkl", pickle->ptr, pickle->len, err));
	TRY(add_text(a, ".format_version", FORMAT_VERSION, strlen(FORMAT_VERSION), err));
	TRY(add_text(a, ".storage_alignment", ALIGNMENT, strlen(ALIGNMENT), err));
	TRY(add_text(a, "byteorder", BYTE_ORDER, strlen(BYTE_ORDER), err));
	for (size_t i = 0; i < state->n_tensors; i++)
		if (!state->tensors[i].is_blob)
			TRY(add_tensor(a, i, state->tensors[i].local_nbytes, err));
	TRY(add_text(a, "version", ARCHIVE_VERSION, strlen(ARCHIVE_VERSION), err));
	TRY(add_identity(a, pickle, err));
	return add_directory(a, err);
}

int
file_plan_pt(const struct pawl_state *state, const struct file_plan_opts *opts, struct piece_plan *ret,
             struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf pickle = {0};
	struct pickler p = {.state = state, .opts = opts, .out = &pickle, .err = err};
	struct archive a = {
		.plan = ret, .begin = ret->nbytes, .first_tensor = opts->first_tensor, .folder = opts->stem};
	const size_t n = state->n_tensors + 6;
	int r;

	if (!state->root)
		return err_set(err, PAWL_EUSAGE, "a .pt file needs a state with a value in it, found an empty one");
	pickle_put_begin(&pickle);
	TRY(put_node(&p, state->root));
	pickle_put_end(&pickle);
	TRY(buf_check(&pickle, "data.pkl", err));
	a.entries = bump_array(&a.memory, n, sizeof(*a.entries));
	a.tensors = bump_array(&a.memory, n, sizeof(*a.tensors));
	if (a.entries && a.tensors)
		r = add_members(&a, state, &pickle, err);
	else
		r = err_nomem(err, "layout of a file");
	bump_clear(&a.memory);
	return r;
}
