/* SPDX-License-Identifier: Apache-2.0 */
/* pack_header: see pack_header.h. Promises P8, P17. */
#include "layout/pack_header.h"

#include <string.h>

#include "base/bump.h"
#include "base/err.h"

bool
pack_header_is_of_run(const struct st_table *table, const char *run_id)
{
	const struct st_pair *run = safetensors_metadata(table, "pawl.run");

	return run && run->value_len == strlen(run_id) && memcmp(run->value, run_id, run->value_len) == 0;
}

/* The extents of a tensor described in "pawl.tensors". */
static int
read_extents(const char *what, const struct json *array, struct bump *memory, uint32_t *ndim, const uint64_t **ret,
             struct pawl_error *err)
{
	if (array->len > PAWL_MAX_DIMS)
		return err_set(err, PAWL_ELIMIT, "%s: %zu dimensions, at most %d are possible", what, array->len,
		               PAWL_MAX_DIMS);
	uint64_t *extents = bump_array(memory, array->len, sizeof(*extents));
	if (!extents)
		return err_nomem(err, what);
	*ndim = 0;
	for (const struct json *e = array->first; e; e = e->next) {
		if (e->type != JSON_UINT && (e->type != JSON_INT || e->i < 0))
			return err_set(err, PAWL_ECORRUPT, "%s: expected whole numbers", what);
		extents[(*ndim)++] = e->u;
	}
	*ret = extents;
	return 0;
}

/* The header cannot express shards and complex128. A description in the metadata does. */
static int
read_special(const struct st_tensor *st, const struct json *special, struct bump *memory, struct pack_header_box *box,
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
pack_header_read_box(const struct st_tensor *st, const struct json *special, struct bump *memory,
                     struct pack_header_box *ret, struct pawl_error *err)
{
	*ret = (struct pack_header_box){.dtype = st->dtype, .ndim = st->ndim, .shape = st->shape, .lengths = st->shape};
	ret->offsets = bump_array(memory, st->ndim, sizeof(*ret->offsets));
	if (!ret->offsets)
		return err_nomem(err, st->name);
	return special ? read_special(st, special, memory, ret, err) : 0;
}
