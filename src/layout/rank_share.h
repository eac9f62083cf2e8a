/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank_share: what one of many ranks writes of its state. Pure: all ranks compute the same result
 * without communication.
 *
 * - A shard is written by the rank that gives it.
 * - A complete tensor is the same on all ranks. The bytes of these tensors, one after the other in
 *   the order of the tree, are cut into equal lengths, one for each rank. Large tensors are cut
 *   between rows. A small one belongs to the rank in whose length it begins.
 * - PAWL_WRITER_HERE and PAWL_WRITER_ELSEWHERE: as the caller says.
 */
#ifndef PAWL_RANK_SHARE_H
#define PAWL_RANK_SHARE_H

#include "base/bump.h"
#include "base/mem.h"
#include "state/state.h"

#define RANK_SHARE_CUT_BYTES ((uint64_t)1 << 20) /* smaller tensors are not cut */

/* ceil(total * part / parts) without overflow: where a rank's length begins. */
uint64_t rank_share_cut(uint64_t total, uint32_t part, uint32_t parts);
/* *ret: the state with the same rows, each cut to what `rank` of `world` writes. A row of which it
 * writes nothing has `elsewhere` set. A row that all ranks must have has `common` set. Arrays are
 * the bump's, the rest is borrowed. */
int rank_share_of(const struct pawl_state *state, uint32_t rank, uint32_t world, struct bump *memory,
                  struct pawl_state *ret, struct pawl_error *err);

#endif
