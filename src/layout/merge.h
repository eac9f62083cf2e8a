/* SPDX-License-Identifier: Apache-2.0 */
/*
 * merge: merges the parts of all ranks into one manifest. Pure. The checkpoint takes its run, id,
 * step, metrics, metadata and order of the tree from rank 0's part.
 *
 * Trees. Dicts are united by keys (a pipeline's ranks hold different layers). Lists must have the
 * same length, containers the same kind, tensors the same name, dtype and global shape. Plain
 * values that differ between ranks become PAWL_DIFFERS. Long ones (STATE_LONG_BYTES) must be equal,
 * since only one rank writes them. Values given per rank are combined as PAWL_PER_RANK.
 *
 * Pieces. A tensor's pieces are those of all ranks; together they must fill it exactly. If one rank
 * gives a complete tensor without a writer, all ranks must. Otherwise the bytes could add up by
 * chance although some ranks lack it.
 *
 * Conflicts are PAWL_EMISMATCH, naming ranks and tensors.
 */
#ifndef PAWL_MERGE_H
#define PAWL_MERGE_H

#include "base/buf.h"
#include "base/mem.h"
#include "state/manifest.h"

struct merge;

/* own: the text of rank 0's part. */
int merge_new(uint32_t world, const struct buf *own, struct merge **ret, struct pawl_error *err);
/* A gather_fn: adds the part of another rank. */
int merge_add(void *merge, uint32_t rank, const struct buf *text, struct pawl_error *err);
/* Call when all parts were added: appends the bytes of the manifest. blocked_seconds is the longest
 * of any rank. */
int merge_finish(struct merge *g, struct buf *out, struct pawl_error *err);
/* The files of the checkpoint, for checking that they exist. Borrowed. */
const struct manifest_file *merge_files(const struct merge *g, size_t *ret_n);
void merge_free(struct merge *g);
PAWL_DEFINE_CLEAN(struct merge, merge_free);

#endif
