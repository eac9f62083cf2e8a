/* SPDX-License-Identifier: Apache-2.0 */
/* snapshot: copies live tensors to a pack's image and checksums them in one pass. No I/O;
 * reentrant. */
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
	bool on_device; /* the processor cannot read it: its bytes have been copied to their place in dst */
};

/* Writes bytes [offset, offset + n) of a pack's image to dst and the checksums of its blocks to
 * sums. offset is a multiple of the block size; n ends at a block border or at the end of the pack.
 * A source that is already in its place in dst is only checksummed. With dst NULL nothing is
 * copied, and the checksums are those of the sources. check_finite: returns the index of a tensor
 * that holds NaN or Inf, else SIZE_MAX. */
size_t snapshot_unit(const struct plan *plan, size_t pack, const struct snapshot_source *sources, uint64_t offset,
                     size_t n, char *dst, struct sum128 *sums, bool check_finite);

/* The first slot of the pack that ends beyond an offset of its data. */
size_t snapshot_slot_at(const struct plan_pack *pack, uint64_t data_offset);

#endif
