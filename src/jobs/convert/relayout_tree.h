/* SPDX-License-Identifier: Apache-2.0 */
/* relayout_tree: what becomes of a tree of many ranks when the checkpoint is written anew for other ranks. Pure. */
#ifndef PAWL_RELAYOUT_TREE_H
#define PAWL_RELAYOUT_TREE_H

#include <stdbool.h>

#include "base/buf.h"
#include "state/state.h"

#define RELAYOUT_OF_ALL UINT32_MAX /* a tensor that all ranks have alike, or each a piece of */
#define RELAYOUT_OF_NOBODY (UINT32_MAX - 1)

/* Appends the tree's JSON as `rank` of `world` has given it: of values per rank and of those that differ its own. With
 * rank SIZE_MAX what is left for another world: no values per rank (None where a list has one), of those that differ
 * rank 0's. */
int relayout_view(const struct pawl_state *from, size_t rank, uint32_t world, struct buf *out, struct pawl_error *err);
/* owner[tensor]: RELAYOUT_OF_ALL; of tensors in values per rank that rank, or unless same_world RELAYOUT_OF_NOBODY,
 * and *lost is appended the paths of such values, the first few ("a, b, ..."). */
int relayout_owners(const struct pawl_state *from, bool same_world, uint32_t *owner, struct buf *lost,
                    struct pawl_error *err);

#endif
