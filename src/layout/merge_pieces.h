/* SPDX-License-Identifier: Apache-2.0 */
/*
 * merge_pieces: describes what is wrong with the pieces that ranks gave of one tensor, for an
 * error. Pure. manifest_check.h decides whether they are right.
 */
#ifndef PAWL_MERGE_PIECES_H
#define PAWL_MERGE_PIECES_H

#include "base/buf.h"
#include "state/manifest.h"

/* A set of the ranks 0 to world - 1; bit r % 64 of word r / 64 is rank r's. */
#define RANKS_WORDS(world) (((uint64_t)(world) + 63) / 64)
static inline void
merge_ranks_add(uint64_t *ranks, uint32_t r)
{
	ranks[r / 64] |= (uint64_t)1 << r % 64;
}
static inline bool
merge_ranks_have(const uint64_t *ranks, uint32_t r)
{
	return ranks[r / 64] >> r % 64 & 1;
}
/* "rank 3"; "ranks 1 to 6, 9 and 4,081 more". */
void merge_ranks_put(struct buf *out, const uint64_t *ranks, uint32_t world);

/* "F32 [4, 8]" */
void merge_put_shape(struct buf *out, int dtype, uint32_t ndim, const uint64_t *shape);

/* A box that a rank gave; never empty, and inside the tensor. */
struct given_box {
	uint32_t rank;
	const uint64_t *offsets, *lengths;
};

/* Appends the first clash ("ranks 2 and 3 both give [8:12, 0:2]") and the first hole, which no rank
 * gives. Either may be missing. First means in C order. The work is bounded. For very many badly
 * arranged boxes it may find neither; then it only states that they overlap or leave holes. Sorts
 * the boxes. PAWL_ENOMEM. */
int merge_put_fault(struct buf *out, uint32_t ndim, const uint64_t *shape, struct given_box *boxes, size_t n,
                    struct pawl_error *err);

#endif
