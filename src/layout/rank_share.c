/* SPDX-License-Identifier: Apache-2.0 */
/* rank_share: see rank_share.h. */
#include "layout/rank_share.h"

#include <string.h>

#include "base/err.h"

/* True if every rank has the complete tensor, so that the ranks share the writing. */
static bool
is_common(const struct state_tensor *t)
{
	return t->src.writer == PAWL_WRITER_AUTO && !t->src.offsets;
}

/* The number of rows that a tensor can be cut into, and their bytes; 1 = it is not cut. */
static uint64_t
rows_of(const struct state_tensor *t, uint64_t *ret_row_bytes)
{
	const struct pawl_tensor *src = &t->src;

	*ret_row_bytes = t->local_nbytes;
	if (t->local_nbytes < RANK_SHARE_CUT_BYTES || src->fill || t->is_blob || src->ndim == 0 ||
	    pawl_dtype_bits(src->dtype) % 8 != 0)
		return 1;
	*ret_row_bytes = t->local_nbytes / src->shape[0];
	return src->shape[0];
}

uint64_t
rank_share_cut(uint64_t total, uint32_t part, uint32_t parts)
{
	uint64_t whole = total / parts * part, rest = total % parts * part;

	return whole + (rest + parts - 1) / parts;
}

/* Makes rows from..to of a complete tensor a shard of it. */
static int
take_rows(struct state_tensor *t, uint64_t from, uint64_t to, uint64_t row_bytes, struct bump *memory,
          struct pawl_error *err)
{
	struct pawl_tensor *src = &t->src;
	uint64_t *shape = bump_array(memory, src->ndim, sizeof(*shape));
	uint64_t *offsets = bump_array(memory, src->ndim, sizeof(*offsets));

	if (!shape || !offsets)
		return err_nomem(err, "save");
	memcpy(shape, src->shape, src->ndim * sizeof(*shape));
	shape[0] = to - from;
	offsets[0] = from;
	if (!src->data) {
		; /* only the layout is wanted */
	} else if (t->contiguous) {
		src->data = (char *)src->data + from * row_bytes;
	} else {
		int64_t element = (int64_t)(pawl_dtype_bits(src->dtype) / 8);

		src->data = (char *)src->data + (int64_t)from * src->strides[0] * element;
	}
	src->global_shape = t->info.shape;
	src->shape = shape;
	src->offsets = offsets;
	t->local_nbytes = (to - from) * row_bytes;
	return 0;
}

/* Keeps the rows of a tensor that begin in [begin, end) of the common bytes. at: its offset in
 * them. */
static int
take_share(struct state_tensor *t, uint64_t at, uint64_t begin, uint64_t end, struct bump *memory,
           struct pawl_error *err)
{
	uint64_t row_bytes, rows = rows_of(t, &row_bytes), from = 0, to = rows;

	if (begin > at)
		from = (begin - at + row_bytes - 1) / row_bytes;
	if (end < at + rows * row_bytes)
		to = end > at ? (end - at + row_bytes - 1) / row_bytes : 0;
	if (from > rows)
		from = rows;
	t->elsewhere = from >= to;
	if (t->elsewhere || (from == 0 && to == rows))
		return 0;
	return take_rows(t, from, to, row_bytes, memory, err);
}

int
rank_share_of(const struct pawl_state *state, uint32_t rank, uint32_t world, struct bump *memory,
              struct pawl_state *ret, struct pawl_error *err)
{
	struct state_tensor *rows = bump_array(memory, (uint64_t)state->n_tensors + 1, sizeof(*rows));
	uint64_t total = 0, at = 0;

	if (!rows)
		return err_nomem(err, "save");
	for (size_t i = 0; i < state->n_tensors; i++)
		total += is_common(&state->tensors[i]) ? state->tensors[i].local_nbytes : 0;
	uint64_t begin = rank_share_cut(total, rank, world), end = rank_share_cut(total, rank + 1, world);

	for (size_t i = 0; i < state->n_tensors; i++) {
		struct state_tensor *t = &rows[i];

		*t = state->tensors[i];
		t->common = is_common(t);
		if (t->common && t->local_nbytes == 0) {
			t->elsewhere = rank != 0;
		} else if (t->common) {
			uint64_t here = at;

			at += t->local_nbytes;
			TRY(take_share(t, here, begin, end, memory, err));
		} else {
			bool is_empty = t->local_nbytes == 0 && t->info.nbytes > 0;

			t->elsewhere = t->src.writer == PAWL_WRITER_ELSEWHERE || is_empty;
		}
	}
	ret->tensors = rows;
	ret->n_tensors = state->n_tensors;
	return 0;
}
