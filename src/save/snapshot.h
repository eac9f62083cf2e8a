/* SPDX-License-Identifier: Apache-2.0 */
/* snapshot: bytes of a pack's file image from live tensors: copied and summed in one pass. Pure of I/O; reentrant. */
#ifndef PAWL_SNAPSHOT_H
#define PAWL_SNAPSHOT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/sum.h"
#include "layout/plan.h"

/* Where a tensor's bytes come from; outlives the state it was taken from. */
struct snapshot_source {
	const char *data;                  /* contiguous bytes, or NULL when strided is set (or empty) */
	const struct pawl_tensor *strided; /* NULL when contiguous */
	int dtype;
};

/* Writes bytes [offset, offset + n) of a pack's image to dst and the sums of its blocks to sums. offset is a multiple of
 * the block size; n ends at a block border or at the end of the pack. A source that already lies at its place in dst is only
 * summed. With dst NULL nothing is copied: the sums are those of the sources as they are.
 * check_finite: returns the index of a tensor that holds NaN or Inf, else SIZE_MAX. */
size_t snapshot_unit(const struct plan *plan, size_t pack, const struct snapshot_source *sources, uint64_t offset, size_t n, char *dst,
                     struct sum128 *sums, bool check_finite);

/* The first slot of the pack that ends beyond an offset of its data. */
size_t snapshot_slot_at(const struct plan_pack *pack, uint64_t data_offset);

/* The live address of bytes [offset, offset + n) of a pack if one contiguous tensor holds them all and the address is a
 * multiple of memory_align, else NULL. */
const char *snapshot_in_place(const struct plan *plan, size_t pack, const struct snapshot_source *sources, uint64_t offset, size_t n,
                              size_t memory_align);

#endif
