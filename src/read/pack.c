/* SPDX-License-Identifier: Apache-2.0 */
/* pack: see pack.h. Promises P8, P17. */
#include "read/pack.h"

#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "read/packed.h"

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
