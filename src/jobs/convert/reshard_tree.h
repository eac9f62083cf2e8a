/* SPDX-License-Identifier: Apache-2.0 */
/* reshard_tree: what becomes of a tree of many ranks when the checkpoint is rewritten for other
 * ranks. Pure. */
#ifndef PAWL_RESHARD_TREE_H
#define PAWL_RESHARD_TREE_H

#include <stdbool.h>

#include "base/buf.h"
#include "state/state.h"

#define RESHARD_TREE_OF_ALL UINT32_MAX /* a tensor that is the same on all ranks, or of which each has a piece */
#define RESHARD_TREE_OF_NOBODY (UINT32_MAX - 1)

/* Appends the tree's JSON as `rank` of `world` gave it: values per rank and values that differ are
 * its own. With rank SIZE_MAX, for another world: without values per rank (None if one is in a
 * list), and with rank 0's of those that differ. */
int reshard_tree_view(const struct pawl_state *from, size_t rank, uint32_t world, struct buf *out,
                      struct pawl_error *err);
/* Sets owner[tensor]. RESHARD_TREE_OF_ALL is the usual owner. A tensor in values per rank has that
 * rank, or RESHARD_TREE_OF_NOBODY unless same_world. The first few paths of such lost values are
 * appended to *lost ("a, b, ..."). */
int reshard_tree_owners(const struct pawl_state *from, bool same_world, uint32_t *owner, struct buf *lost,
                        struct pawl_error *err);
/* Metadata of another program: a dict of plain values. A text that is too long for a manifest
 * becomes the list of its parts. */
int reshard_tree_metadata(const struct pawl_state *from, struct pawl_state **ret, struct pawl_error *err);

#endif
