/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reshard_strided: see reshard_strided.h. Pure. The dimensions of a grid are ordered by their steps
 * in the file, widest first, so that its runs ascend there. In the destination they may come in any
 * order. Promise P1.
 */
#include "layout/reshard_strided.h"

#include <string.h>

/* Inserts a dimension of the grid by its step in the file. */
static void
put_dimension(struct reshard_overlap *o, uint64_t count, uint64_t src_step, uint64_t dst_step)
{
	uint32_t at = PAWL_MAX_DIMS - ++o->n_outer;
	for (; at + 1 < PAWL_MAX_DIMS && o->src_steps[at + 1] > src_step; at++) {
		o->counts[at] = o->counts[at + 1];
		o->src_steps[at] = o->src_steps[at + 1];
		o->dst_steps[at] = o->dst_steps[at + 1];
	}
	o->counts[at] = count;
	o->src_steps[at] = src_step;
	o->dst_steps[at] = dst_step;
}

/* Joins the innermost dimensions that are contiguous on both sides into the run. */
static void
join_run(struct reshard_overlap *o)
{
	const uint32_t last = PAWL_MAX_DIMS - 1;
	while (o->n_outer > 0 && o->src_steps[last] == o->run && o->dst_steps[last] == o->run) {
		o->run *= o->counts[last];
		o->n_outer--;
		for (uint32_t d = last; d > last - o->n_outer; d--) {
			o->counts[d] = o->counts[d - 1];
			o->src_steps[d] = o->src_steps[d - 1];
			o->dst_steps[d] = o->dst_steps[d - 1];
		}
	}
}

bool
reshard_find_strided(uint32_t ndim, const struct manifest_piece *piece, const struct pawl_tensor *box,
                     const uint64_t *at, const uint64_t *n, struct reshard_overlap *o)
{
	uint64_t dst_stride = 1;
	memset(o, 0, sizeof *o);
	o->run = 1;
	for (uint32_t d = ndim; d-- > 0;) {
		uint64_t base = box->offsets ? box->offsets[d] : 0, first = base + at[d];
		uint64_t from = piece->offsets[d] > first ? piece->offsets[d] : first;
		uint64_t to = piece->offsets[d] + piece->lengths[d];
		to = first + n[d] < to ? first + n[d] : to;
		if (from >= to)
			return false;
		o->src += (from - piece->offsets[d]) * piece->strides[d];
		o->dst += (from - base) * dst_stride;
		if (to - from > 1)
			put_dimension(o, to - from, piece->strides[d], dst_stride);
		dst_stride *= box->shape[d];
	}
	join_run(o);
	return true;
}

void
reshard_next_box(uint32_t ndim, const uint64_t *shape, uint64_t *begin, uint64_t end, uint64_t *at, uint64_t *n)
{
	uint64_t rest = *begin, size = 1; /* elements of the dimensions that are complete so far */
	for (uint32_t d = ndim; d-- > 0;) {
		at[d] = rest % shape[d];
		rest /= shape[d];
		n[d] = 1;
	}
	uint64_t taken = 1;
	for (uint32_t d = ndim; d-- > 0;) {
		uint64_t left = (end - *begin) / size;
		n[d] = left < shape[d] - at[d] ? left : shape[d] - at[d];
		taken = size * n[d];
		if (n[d] < shape[d])
			break;
		size = taken;
	}
	*begin += taken;
}
