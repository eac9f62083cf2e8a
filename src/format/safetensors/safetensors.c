/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors: encodes and decodes the header. Promises P1 (ranges tile the data exactly, so every
 * byte has one owner), P16, P17.
 *
 * Decoding parses (bounded, duplicate names refused) and checks each entry by itself: dtype, shape,
 * size, range inside the data. Then it sorts by range: each must start where the one before ended.
 */
#include "format/safetensors/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"

#define MAX_TENSORS 1000000u
#define MAX_NAME_BYTES 4096u
#define MAX_DEPTH 4u /* header, entry, shape: one to spare for unknown members */
#define MAX_VALUES 16000000u
#define MIN_JSON_BYTES 2u /* {} */
#define METADATA_KEY "__metadata__"

int
safetensors_nbytes(int dtype, uint32_t ndim, const uint64_t *shape, uint64_t *ret, struct pawl_error *err)
{
	unsigned bits = pawl_dtype_bits(dtype);
	uint64_t count = 1, nbits;
	bool fits = true, is_empty = false;

	if (bits == 0)
		return err_set(err, PAWL_ECORRUPT, "unknown dtype number %d", dtype);
	/* an extent of 0 does not excuse the others: readers multiply in different orders */
	for (uint32_t d = 0; d < ndim; d++) {
		is_empty = is_empty || shape[d] == 0;
		fits = fits && mem_mul_ok(count, shape[d] > 0 ? shape[d] : 1, &count);
	}
	if (!fits || !mem_mul_ok(count, bits, &nbits) || nbits / 8 > INT64_MAX)
		return err_set(err, PAWL_ECORRUPT, "shape: the number of elements does not fit 64 bits");
	if (is_empty)
		nbits = 0;
	if (nbits % 8 != 0)
		return err_set(err, PAWL_ECORRUPT, "shape: %llu elements of %s are not whole bytes",
		               (unsigned long long)count, pawl_dtype_name(dtype));
	*ret = nbits / 8;
	return 0;
}

/* --------------------------------------------------------------- encoding */

static int
compare_reference(const void *pa, const void *pb)
{
	const struct st_tensor *a = pa, *b = pb;

	if (a->dtype != b->dtype)
		return a->dtype > b->dtype ? -1 : 1;
	return strcmp(a->name, b->name);
}

int
safetensors_layout(struct st_tensor *tensors, size_t n, uint64_t *ret_data_len, struct pawl_error *err)
{
	uint64_t at = 0;

	if (n > 0)
		qsort(tensors, n, sizeof(*tensors), compare_reference);
	for (size_t i = 0; i < n; i++) {
		struct st_tensor *t = &tensors[i];
		uint64_t nbytes;
		if (t->dtype == PAWL_C128)
			return err_set(err, PAWL_EUSAGE, "tensor '%.200s': C128 is stored as F64", t->name);
		if (safetensors_nbytes(t->dtype, t->ndim, t->shape, &nbytes, err) < 0) {
			if (err)
				err->code = PAWL_EUSAGE;
			return err_prefix(err, PAWL_EUSAGE, "tensor '%.200s'", t->name);
		}
		t->begin = at;
		if (!mem_add_ok(at, nbytes, &at) || at > INT64_MAX - SAFETENSORS_MAX_HEADER - 8)
			return err_set(err, PAWL_ELIMIT, "tensor '%.200s': the file would be larger than 2^63 bytes",
			               t->name);
		t->end = at;
	}
	*ret_data_len = at;
	return 0;
}

static void
put_metadata(struct buf *out, const struct st_pair *metadata, size_t n)
{
	buf_puts(out, "\"" METADATA_KEY "\":{");
	for (size_t i = 0; i < n; i++) {
		json_add_key(out, metadata[i].key);
		json_put_string(out, metadata[i].value, metadata[i].value_len);
	}
	buf_putc(out, '}');
}

static int
put_tensor(struct buf *out, const struct st_tensor *t, struct pawl_error *err)
{
	size_t name_len = strlen(t->name);

	if (name_len > MAX_NAME_BYTES || t->ndim > PAWL_MAX_DIMS)
		return err_set(err, PAWL_ELIMIT,
		               "tensor '%.200s': %zu bytes of name and %u dimensions, at most %u and %d are possible",
		               t->name, name_len, t->ndim, MAX_NAME_BYTES, PAWL_MAX_DIMS);
	json_put_string(out, t->name, name_len);
	buf_puts(out, ":{\"dtype\":\"");
	buf_puts(out, pawl_dtype_name(t->dtype));
	buf_putc(out, '"');
	json_add_u64s(out, "shape", t->shape, t->ndim);
	json_add_u64s(out, "data_offsets", (const uint64_t[]){t->begin, t->end}, 2);
	buf_putc(out, '}');
	return 0;
}

int
safetensors_encode_entries(const struct st_tensor *tensors, size_t n, struct buf *out, struct pawl_error *err)
{
	if (n > MAX_TENSORS)
		return err_set(err, PAWL_ELIMIT, "safetensors header: %zu tensors, at most %u are possible", n,
		               MAX_TENSORS);
	for (size_t i = 0; i < n; i++) {
		if (i > 0)
			buf_putc(out, ',');
		TRY(put_tensor(out, &tensors[i], err));
	}
	return buf_check(out, "safetensors header", err);
}

int
safetensors_wrap_entries(struct pawl_slice entries, const struct st_pair *metadata, size_t n_metadata, struct buf *out,
                         struct pawl_error *err)
{
	size_t start = out->len;

	buf_put(out, "\0\0\0\0\0\0\0\0", 8);
	buf_putc(out, '{');
	if (n_metadata > 0)
		put_metadata(out, metadata, n_metadata);
	if (n_metadata > 0 && entries.len > 0)
		buf_putc(out, ',');
	buf_put(out, entries.ptr, entries.len);
	buf_putc(out, '}');
	TRY(buf_check(out, "safetensors header", err));
	size_t padding = (size_t)(mem_round_up(out->len, SAFETENSORS_DATA_ALIGN) - out->len);
	char *spaces = buf_grow(out, padding);
	TRY(buf_check(out, "safetensors header", err));
	if (padding > 0)
		memset(spaces, ' ', padding);
	uint64_t json_len = out->len - start - 8;
	if (json_len > SAFETENSORS_MAX_HEADER)
		return err_set(err, PAWL_ELIMIT, "safetensors header: %llu bytes, at most %u are possible",
		               (unsigned long long)json_len, SAFETENSORS_MAX_HEADER);
	for (unsigned i = 0; i < 8; i++)
		out->ptr[start + i] = (char)(unsigned char)(json_len >> (8 * i) & 0xff);
	return 0;
}

int
safetensors_encode_header(const struct st_tensor *tensors, size_t n, const struct st_pair *metadata, size_t n_metadata,
                          struct buf *out, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf entries = {0};

	TRY(safetensors_encode_entries(tensors, n, &entries, err));
	return safetensors_wrap_entries((struct pawl_slice){entries.ptr, entries.len}, metadata, n_metadata, out, err);
}

/* --------------------------------------------------------------- decoding */

int
safetensors_header_len(const char *what, const unsigned char first8[8], uint64_t file_nbytes, uint64_t *ret_json_len,
                       struct pawl_error *err)
{
	uint64_t json_len = 0;

	if (file_nbytes < 8 + MIN_JSON_BYTES)
		return err_set(err, PAWL_ECORRUPT, "%s: %llu bytes are too few for a safetensors file", what,
		               (unsigned long long)file_nbytes);
	for (unsigned i = 8; i-- > 0;)
		json_len = json_len << 8 | first8[i];
	if (json_len > SAFETENSORS_MAX_HEADER)
		return err_set(err, PAWL_ELIMIT, "%s: header of %llu bytes, at most %u are possible", what,
		               (unsigned long long)json_len, SAFETENSORS_MAX_HEADER);
	if (json_len < MIN_JSON_BYTES || json_len > file_nbytes - 8)
		return err_set(err, PAWL_ECORRUPT, "%s: header of %llu bytes in a file of %llu bytes", what,
		               (unsigned long long)json_len, (unsigned long long)file_nbytes);
	*ret_json_len = json_len;
	return 0;
}

struct reader {
	const char *what;
	struct bump *memory;
	struct st_table table;
	struct pawl_error *err;
};

static int
refuse_entry(const struct reader *r, const struct json *entry, const char *expected)
{
	return err_set(r->err, PAWL_ECORRUPT, "%s: tensor '%.200s': expected %s", r->what, entry->key, expected);
}

static bool
is_unsigned(const struct json *value) /* and "-0" is not */
{
	return value->type == JSON_UINT || (value->type == JSON_INT && !__builtin_signbit(value->real));
}

static char *
keep_text(struct reader *r, const char *text, size_t len)
{
	char *copy = bump_strndup(r->memory, text, len);

	if (!copy)
		err_nomem(r->err, r->what);
	return copy;
}

static int
read_metadata(struct reader *r, const struct json *object)
{
	if (object->type != JSON_OBJECT)
		return refuse_entry(r, object, "an object of strings");
	r->table.metadata = bump_array(r->memory, object->len, sizeof(struct st_pair));
	if (!r->table.metadata)
		return err_nomem(r->err, r->what);
	for (const struct json *entry = object->first; entry; entry = entry->next) {
		if (entry->type != JSON_STRING)
			return err_set(r->err, PAWL_ECORRUPT, "%s: metadata '%.200s': expected a string", r->what,
			               entry->key);
		struct st_pair *pair = &r->table.metadata[r->table.n_metadata++];
		pair->key = keep_text(r, entry->key, entry->key_len);
		pair->value = keep_text(r, entry->str, entry->len);
		pair->value_len = entry->len;
		if (!pair->key || !pair->value)
			return PAWL_ENOMEM;
	}
	return 0;
}

static int
read_shape(struct reader *r, const struct json *entry, const struct json *shape, struct st_tensor *t)
{
	if (!shape || shape->type != JSON_ARRAY)
		return refuse_entry(r, entry, "shape as an array");
	if (shape->len > PAWL_MAX_DIMS)
		return err_set(r->err, PAWL_ELIMIT, "%s: tensor '%.200s': %zu dimensions, at most %d are possible",
		               r->what, entry->key, shape->len, PAWL_MAX_DIMS);
	uint64_t *extents = bump_array(r->memory, shape->len, sizeof(*extents));
	if (!extents)
		return err_nomem(r->err, r->what);
	for (const struct json *extent = shape->first; extent; extent = extent->next) {
		if (!is_unsigned(extent))
			return refuse_entry(r, entry, "shape of unsigned integers");
		extents[t->ndim++] = extent->u;
	}
	t->shape = extents;
	return 0;
}

static int
read_range(struct reader *r, const struct json *entry, const struct json *range, struct st_tensor *t)
{
	uint64_t nbytes = 0;

	if (!range || range->type != JSON_ARRAY || range->len != 2 || !is_unsigned(range->first) ||
	    !is_unsigned(range->first->next))
		return refuse_entry(r, entry, "data_offsets as two unsigned integers");
	t->begin = range->first->u;
	t->end = range->first->next->u;
	if (t->begin > t->end || t->end > r->table.data_len)
		return err_set(r->err, PAWL_ECORRUPT, "%s: tensor '%.200s': bytes %llu to %llu of %llu", r->what,
		               t->name, (unsigned long long)t->begin, (unsigned long long)t->end,
		               (unsigned long long)r->table.data_len);
	if (safetensors_nbytes(t->dtype, t->ndim, t->shape, &nbytes, r->err) < 0)
		return err_prefix(r->err, PAWL_ECORRUPT, "%s: tensor '%.200s'", r->what, t->name);
	if (t->end - t->begin != nbytes)
		return err_set(r->err, PAWL_ECORRUPT,
		               "%s: tensor '%.200s': dtype and shape make %llu bytes, its range has %llu", r->what,
		               t->name, (unsigned long long)nbytes, (unsigned long long)(t->end - t->begin));
	return 0;
}

static int
read_tensor(struct reader *r, const struct json *entry)
{
	struct st_tensor *t = &r->table.tensors[r->table.n_tensors];
	const struct json *dtype = json_get(entry, "dtype");

	if (entry->type != JSON_OBJECT)
		return refuse_entry(r, entry, "an object");
	if (entry->key_len > MAX_NAME_BYTES)
		return err_set(r->err, PAWL_ELIMIT,
		               "%s: tensor '%.200s...': name of %zu bytes, at most %u are possible", r->what,
		               entry->key, entry->key_len, MAX_NAME_BYTES);
	t->dtype = dtype && dtype->type == JSON_STRING ? pawl_dtype_from_name(dtype->str) : 0;
	if (t->dtype == 0 || t->dtype == PAWL_C128) /* C128 is pawl's own name, not one of the format */
		return refuse_entry(r, entry, "a known dtype");
	t->name = keep_text(r, entry->key, entry->key_len);
	if (!t->name)
		return PAWL_ENOMEM;
	TRY(read_shape(r, entry, json_get(entry, "shape"), t));
	TRY(read_range(r, entry, json_get(entry, "data_offsets"), t));
	r->table.n_tensors++;
	return 0;
}

static int
compare_ranges(const void *pa, const void *pb)
{
	const struct st_tensor *a = pa, *b = pb;

	if (a->begin != b->begin)
		return a->begin < b->begin ? -1 : 1;
	if (a->end != b->end)
		return a->end < b->end ? -1 : 1;
	return strcmp(a->name, b->name);
}

static int
check_tiling(struct reader *r)
{
	uint64_t at = 0;

	if (r->table.n_tensors > 0)
		qsort(r->table.tensors, r->table.n_tensors, sizeof(*r->table.tensors), compare_ranges);
	for (size_t i = 0; i < r->table.n_tensors; i++) {
		const struct st_tensor *t = &r->table.tensors[i];
		if (t->begin != at)
			return err_set(r->err, PAWL_ECORRUPT, "%s: tensor '%.200s' begins at byte %llu, expected %llu",
			               r->what, t->name, (unsigned long long)t->begin, (unsigned long long)at);
		at = t->end;
	}
	if (at != r->table.data_len)
		return err_set(r->err, PAWL_ECORRUPT, "%s: tensors end at byte %llu, the data at %llu", r->what,
		               (unsigned long long)at, (unsigned long long)r->table.data_len);
	return 0;
}

static int
read_table(struct reader *r, const struct json *header)
{
	if (header->type != JSON_OBJECT)
		return err_set(r->err, PAWL_ECORRUPT, "%s: header is not a JSON object", r->what);
	if (header->len > MAX_TENSORS + 1u)
		return err_set(r->err, PAWL_ELIMIT, "%s: %zu tensors, at most %u are possible", r->what, header->len,
		               MAX_TENSORS);
	r->table.tensors = bump_array(r->memory, header->len, sizeof(struct st_tensor));
	if (!r->table.tensors)
		return err_nomem(r->err, r->what);
	for (const struct json *entry = header->first; entry; entry = entry->next) {
		if (strcmp(entry->key, METADATA_KEY) == 0)
			TRY(read_metadata(r, entry));
		else
			TRY(read_tensor(r, entry));
	}
	return check_tiling(r);
}

int
safetensors_decode(const char *what, const void *json, size_t json_len, uint64_t file_nbytes, struct bump *memory,
                   struct st_table *ret, struct pawl_error *err)
{
	struct json_limits limits = {.max_bytes = SAFETENSORS_MAX_HEADER,
	                             .max_depth = MAX_DEPTH,
	                             .max_string = SAFETENSORS_MAX_HEADER,
	                             .max_values = MAX_VALUES};
	struct reader r = {.what = what, .memory = memory, .err = err};
	PAWL_CLEAN(bump_clear) struct bump scratch = {0};
	struct json *header;

	if (json_len > SAFETENSORS_MAX_HEADER)
		return err_set(err, PAWL_ELIMIT, "%s: header of %zu bytes, at most %u are possible", what, json_len,
		               SAFETENSORS_MAX_HEADER);
	if (file_nbytes < 8 || json_len > file_nbytes - 8)
		return err_set(err, PAWL_ECORRUPT, "%s: header of %zu bytes in a file of %llu bytes", what, json_len,
		               (unsigned long long)file_nbytes);
	r.table.data_begin = 8 + (uint64_t)json_len;
	r.table.data_len = file_nbytes - r.table.data_begin;
	TRY(json_parse(what, json, json_len, &limits, &scratch, &header, err));
	TRY(read_table(&r, header));
	*ret = r.table;
	return 0;
}

const struct st_pair *
safetensors_metadata(const struct st_table *t, const char *key)
{
	for (size_t i = 0; i < t->n_metadata; i++) {
		if (strcmp(t->metadata[i].key, key) == 0)
			return &t->metadata[i];
	}
	return NULL;
}
