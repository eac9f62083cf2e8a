/* SPDX-License-Identifier: Apache-2.0 */
/*
 * share: what one of many ranks writes of the state that it gives. Pure: the same on every rank, without a word between
 * them.
 *
 *   a shard                    the rank that gives it
 *   a whole tensor             all ranks have the same one. Their bytes, one tensor behind the other in the order of
 * the tree, are cut into equal lengths, one for each rank; large tensors are cut between rows, small ones belong to the
 * rank in whose length they begin PAWL_WRITER_HERE, _ELSEWHERE   as the caller says
 */
#ifndef PAWL_SHARE_H
#define PAWL_SHARE_H

#include "base/mem.h"
#include "state/state.h"

#define SHARE_CUT_BYTES ((uint64_t)1 << 20) /* a tensor below this is not cut */

/* ceil(total * part / parts) without overflow: where the length of a rank begins. */
uint64_t share_cut(uint64_t total, uint32_t part, uint32_t parts);
/* *ret: the state with the same rows, each cut down to what `rank` of `world` writes; a row of which it writes nothing
 * has elsewhere set, one that all ranks must have has common set. Arrays are the bump's, the rest is borrowed. */
int share_of_rank(const struct pawl_state *state, uint32_t rank, uint32_t world, struct bump *memory,
                  struct pawl_state *ret, struct pawl_error *err);

#endif
