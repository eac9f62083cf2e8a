/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshot: the one pass over the caller's memory. Promise P1: checksums are those of the bytes
 * copied.
 *
 * Large contiguous pieces go through sum_copy: non-temporal stores and the checksum of the copy, in
 * steps of the cache's size. Small or strided pieces are gathered into the destination and
 * checksummed while they are in the cache.
 */
#include "save/snapshot.h"

#include <string.h>

#include "base/finite.h"
#include "state/state.h"

#define SMALL_PIECE_BYTES 16384u /* for smaller pieces the combined copy is slower */
#define PENDING_BYTES 65536u     /* gathered bytes are checksummed before they leave the cache */

size_t
snapshot_slot_at(const struct plan_pack *pack, uint64_t data_offset)
{
	size_t low = 0, high = pack->n_slots;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (pack->slots[mid].begin + pack->slots[mid].nbytes > data_offset)
			high = mid;
		else
			low = mid + 1;
	}
	return low;
}

/* A block under construction: the bytes in [pending, at) of dst are not in the checksum yet. */
struct block {
	struct sum_stream sum;
	char *pending, *at;
};

static void
block_flush(struct block *b)
{
	if (b->at > b->pending)
		sum_update(&b->sum, b->pending, (size_t)(b->at - b->pending));
	b->pending = b->at;
}

static void
block_put(struct block *b, const char *src, size_t n)
{
	if (!b->at) { /* only the checksum is needed */
		sum_update(&b->sum, src, n);
		return;
	}
	if (src == b->at) {
		b->at += n;
	} else if (n < SMALL_PIECE_BYTES) {
		memcpy(b->at, src, n);
		b->at += n;
	} else {
		block_flush(b);
		sum_copy(&b->sum, b->at, src, n);
		b->at += n;
		b->pending = b->at;
		return;
	}
	if (b->at - b->pending >= PENDING_BYTES)
		block_flush(b);
}

static void
sum_strided(struct block *b, const struct pawl_tensor *t, uint64_t offset, size_t n)
{
	char bytes[SMALL_PIECE_BYTES];

	while (n) {
		size_t step = n < sizeof(bytes) ? n : sizeof(bytes);

		tensor_gather(t, offset, step, bytes);
		sum_update(&b->sum, bytes, step);
		offset += step;
		n -= step;
	}
}

/* Gathers a strided piece in cache-sized steps. */
static void
block_gather(struct block *b, const struct pawl_tensor *t, uint64_t offset, size_t n)
{
	if (!b->at) {
		sum_strided(b, t, offset, n);
		return;
	}
	while (n) {
		size_t step = n < PENDING_BYTES ? n : PENDING_BYTES;

		tensor_gather(t, offset, step, b->at);
		b->at += step;
		offset += step;
		n -= step;
		if (b->at - b->pending >= PENDING_BYTES)
			block_flush(b);
	}
}

/* Puts [offset, end) of the pack into the block. Returns a tensor that is not finite, or
 * SIZE_MAX. */
static size_t
fill_block(const struct plan_pack *pack, const struct snapshot_source *sources, uint64_t offset, uint64_t end,
           struct block *b, bool check_finite)
{
	size_t slot = offset < pack->header.len ? 0 : snapshot_slot_at(pack, offset - pack->header.len);
	size_t not_finite = SIZE_MAX;

	while (offset < end) {
		if (offset < pack->header.len) {
			uint64_t stop = end < pack->header.len ? end : pack->header.len;

			block_put(b, pack->header.ptr + offset, (size_t)(stop - offset));
			offset = stop;
			continue;
		}
		const struct plan_slot *s = &pack->slots[slot++];
		const struct snapshot_source *source = &sources[s->tensor];
		uint64_t at = offset - pack->header.len - s->begin;
		size_t n = (size_t)(s->nbytes - at < end - offset ? s->nbytes - at : end - offset);
		char *begin = b->at;

		if (!n)
			continue;
		const char *bytes = source->strided || source->on_device ? begin : source->data + at;

		if (source->strided && !source->on_device)
			block_gather(b, source->strided, at, n);
		else
			block_put(b, bytes, n);
		/* Elements never straddle a block: data starts at a multiple of 4,096, and wider
		 * dtypes come first. */
		if (check_finite && !finite_all(source->dtype, bytes, n))
			not_finite = s->tensor;
		offset += n;
	}
	return not_finite;
}

size_t
snapshot_unit(const struct plan *plan, size_t pack, const struct snapshot_source *sources, uint64_t offset, size_t n,
              char *dst, struct sum128 *sums, bool check_finite)
{
	const struct plan_pack *p = &plan->packs[pack];
	uint64_t end = offset + n;
	size_t not_finite = SIZE_MAX;

	while (offset < end) {
		uint64_t stop = offset + plan->block_bytes < end ? offset + plan->block_bytes : end;
		struct block b = {.pending = dst, .at = dst};
		size_t found;

		sum_init(&b.sum);
		found = fill_block(p, sources, offset, stop, &b, check_finite);
		if (found != SIZE_MAX)
			not_finite = found;
		block_flush(&b);
		*sums++ = sum_final(&b.sum);
		if (dst)
			dst += stop - offset;
		offset = stop;
	}
	return not_finite;
}
