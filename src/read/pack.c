/* SPDX-License-Identifier: Apache-2.0 */
/* pack: see pack.h. Called by gc.c, repair.c and foreign.c; calls format/safetensors and the store. Promises P8, P17.
 */
#include "read/pack.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "read/packed.h"

/* The digits at *at as a number with at least five of them, as the writer formats it. */
static bool
parse_number(const char **at, uint32_t *ret)
{
	size_t n = strspn(*at, "0123456789");
	uint64_t value = 0;

	if (n < 5 || n > 9 || (n > 5 && **at == '0'))
		return false;
	for (size_t i = 0; i < n; i++)
		value = value * 10 + (uint64_t)((*at)[i] - '0');
	*at += n;
	*ret = (uint32_t)value;
	return true;
}

static const char *const codecs[] = {"zst", "gz", "lz4", "xz", "bz2", "lzma", "planes"};

const char *
pack_codec_name(size_t i)
{
	return i < sizeof(codecs) / sizeof(*codecs) ? codecs[i] : NULL;
}

const struct codec *
pack_codec(const char *name)
{
	const struct codec *codec = codec_of_name(name);

	for (size_t i = 0; codec && pack_codec_name(i); i++)
		if (strcmp(codec_name(codec), pack_codec_name(i)) == 0)
			return codec;
	return NULL;
}

int
pack_find_codec(const char *name, const struct codec **ret, struct pawl_error *err)
{
	char file_name[16];

	if (strlen(name) < 8) {
		snprintf(file_name, sizeof(file_name), "x.%s", name);
		*ret = pack_codec(file_name);
		if (*ret)
			return 0;
	}
	char known[80] = "";

	for (size_t i = 0; pack_codec_name(i); i++) {
		const size_t used = strlen(known);

		snprintf(known + used, sizeof(known) - used, "%s, ", pack_codec_name(i));
	}
	return err_set(err, PAWL_EUSAGE, "compression: expected %snone or, of a run, auto, found '%.40s'", known, name);
}

int
pack_check_compression(const char *name, int level, const struct codec **ret, struct pawl_error *err)
{
	*ret = NULL;
	if (!name || !*name || strcmp(name, "none") == 0)
		return level ? err_set(err, PAWL_EUSAGE, "compression_level: expected a compression as well") : 0;
	TRY(pack_find_codec(name, ret, err));
	return codec_check_level(*ret, level, err);
}

bool
pack_parse_name(const char *name, uint32_t *ret_rank, uint32_t *ret_index)
{
	const char *at = name + 4;
	uint32_t rank, index;

	if (strncmp(name, "rank", 4) != 0 || !parse_number(&at, &rank) || *at++ != '-' || !parse_number(&at, &index))
		return false;
	if (*at == '-' && strspn(at + 1, "0123456789abcdef") == PACK_TOKEN_LEN)
		at += 1 + PACK_TOKEN_LEN;
	const struct codec *codec = pack_codec(at);
	const size_t len = codec ? codec_stem_len(codec, at) : strlen(at);

	if (len != strlen(PACK_SUFFIX) || strncmp(at, PACK_SUFFIX, len) != 0)
		return false;
	*ret_rank = rank;
	*ret_index = index;
	return true;
}

bool
pack_same_place(const char *a, const char *b)
{
	uint32_t rank_a, rank_b, index_a, index_b;

	return pack_parse_name(a, &rank_a, &index_a) && pack_parse_name(b, &rank_b, &index_b) && rank_a == rank_b &&
	       index_a == index_b;
}

struct open_pack {
	struct store *store;
	struct store_reader *reader;
	struct packed *packed; /* NULL = it is as it lies there */
};

static void
close_pack(struct open_pack *p)
{
	packed_close(p->packed);
	store_close_reader(p->store, p->reader);
}

static int
read_pack(const struct open_pack *p, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	return p->packed ? packed_read(p->packed, offset, dst, n, err)
	                 : store_read(p->store, p->reader, offset, dst, n, err);
}

/* One that is called compressed, but may be read through a store that shows it unpacked: a header is never so long that
 * its upper half is not 0. */
static bool
is_packed(const char *key, const unsigned char first8[8])
{
	uint32_t upper;

	memcpy(&upper, first8 + 4, sizeof(upper));
	return pack_codec(key) && (upper || codec_of_bytes(first8, 8));
}

int
pack_read_header(struct store *store, const char *key, struct bump *memory, struct st_table *ret, uint64_t *ret_nbytes,
                 struct pawl_error *err)
{
	PAWL_CLEAN(close_pack) struct open_pack p = {.store = store};
	unsigned char first8[8];
	uint64_t nbytes, json_len;

	TRY(store_open_reader(store, key, &p.reader, &nbytes, err));
	if (nbytes < sizeof(first8))
		return err_set(err, PAWL_ECORRUPT, "%s: expected a header, found %llu bytes", key,
		               (unsigned long long)nbytes);
	TRY(store_read(store, p.reader, 0, first8, sizeof(first8), err));
	if (is_packed(key, first8)) {
		TRY(packed_open(store, p.reader, key, nbytes, UINT64_MAX, 0, &p.packed, err));
		TRY(packed_size(p.packed, &nbytes, err));
		TRY(read_pack(&p, 0, first8, sizeof(first8), err));
	}
	TRY(st_header_len(key, first8, nbytes, &json_len, err));
	PAWL_FREE char *json = mem_alloc((size_t)json_len);
	if (!json)
		return err_set(err, PAWL_ENOMEM, "%s: out of memory", key);
	TRY(read_pack(&p, sizeof(first8), json, (size_t)json_len, err));
	TRY(st_decode(key, json, (size_t)json_len, nbytes, memory, ret, err));
	*ret_nbytes = nbytes;
	return 0;
}

bool
pack_is_of_run(const struct st_table *table, const char *run_id)
{
	const struct st_pair *run = st_metadata(table, "pawl.run");

	return run && run->value_len == strlen(run_id) && memcmp(run->value, run_id, run->value_len) == 0;
}

/* An array of extents of a tensor described in "pawl.tensors". */
static int
read_extents(const char *what, const struct json *array, struct bump *memory, uint32_t *ndim, const uint64_t **ret,
             struct pawl_error *err)
{
	if (array->len > PAWL_MAX_DIMS)
		return err_set(err, PAWL_ELIMIT, "%s: %zu dimensions, at most %d are possible", what, array->len,
		               PAWL_MAX_DIMS);
	uint64_t *extents = bump_array(memory, array->len, sizeof(*extents));
	if (!extents)
		return err_set(err, PAWL_ENOMEM, "%s: out of memory", what);
	*ndim = 0;
	for (const struct json *e = array->first; e; e = e->next) {
		if (e->type != JSON_UINT && (e->type != JSON_INT || e->i < 0))
			return err_set(err, PAWL_ECORRUPT, "%s: expected whole numbers", what);
		extents[(*ndim)++] = e->u;
	}
	*ret = extents;
	return 0;
}

/* Shards and complex128 are described besides the header, which cannot express them. */
static int
read_special(const struct st_tensor *st, const struct json *special, struct bump *memory, struct pack_box *box,
             struct pawl_error *err)
{
	const struct json *dtype, *shape, *offsets = json_get(special, "offsets");
	uint32_t n_offsets = st->ndim;

	TRY(json_get_type(st->name, special, "dtype", JSON_STRING, &dtype, err));
	TRY(json_get_type(st->name, special, "shape", JSON_ARRAY, &shape, err));
	box->dtype = pawl_dtype_from_name(dtype->str);
	bool pairs = box->dtype == PAWL_C128;
	if (pairs && (st->dtype != PAWL_F64 || st->ndim == 0 || st->shape[st->ndim - 1] != 2))
		return err_set(err, PAWL_ECORRUPT, "%.200s: expected pairs of F64 for C128", st->name);
	TRY(read_extents(st->name, shape, memory, &box->ndim, &box->shape, err));
	n_offsets = box->ndim;
	if (offsets && offsets->type != JSON_ARRAY)
		return err_set(err, PAWL_ECORRUPT, "%.200s: \"offsets\": expected an array", st->name);
	if (offsets)
		TRY(read_extents(st->name, offsets, memory, &n_offsets, &box->offsets, err));
	if ((!pairs && box->dtype != st->dtype) || box->ndim + (pairs ? 1u : 0u) != st->ndim || n_offsets != box->ndim)
		return err_set(err, PAWL_ECORRUPT,
		               "%.200s: its description does not fit its dtype and shape in the header", st->name);
	return 0;
}

int
pack_read_box(const struct st_tensor *st, const struct json *special, struct bump *memory, struct pack_box *ret,
              struct pawl_error *err)
{
	*ret = (struct pack_box){.dtype = st->dtype, .ndim = st->ndim, .shape = st->shape, .lengths = st->shape};
	ret->offsets = bump_array(memory, st->ndim, sizeof(*ret->offsets));
	if (!ret->offsets)
		return err_set(err, PAWL_ENOMEM, "%s: out of memory", st->name);
	return special ? read_special(st, special, memory, ret, err) : 0;
}
