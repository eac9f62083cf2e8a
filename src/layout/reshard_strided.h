/* SPDX-License-Identifier: Apache-2.0 */
/* reshard_strided: overlaps with pieces that are not in C order. */
#ifndef PAWL_RESHARD_STRIDED_H
#define PAWL_RESHARD_STRIDED_H

#include <stdbool.h>
#include <stdint.h>

#include "pawl.h"
#include "state/manifest.h"

/* The overlap of a piece with a box, in elements. */
struct reshard_overlap {
	uint32_t n_outer;
	uint64_t run, src, dst;
	uint64_t counts[PAWL_MAX_DIMS], src_steps[PAWL_MAX_DIMS], dst_steps[PAWL_MAX_DIMS];
};

/* The overlap of a piece with strides and the part of a box that begins at `at` in it and has the
 * extents `n`. False if they do not overlap. */
bool reshard_find_strided(uint32_t ndim, const struct manifest_piece *piece, const struct pawl_tensor *box,
                          const uint64_t *at, const uint64_t *n, struct reshard_overlap *o);
/* The elements [*begin, end) of a box in C order form a row of smaller boxes. Returns the start and
 * the extents of the next one, and moves *begin past it. */
void reshard_next_box(uint32_t ndim, const uint64_t *shape, uint64_t *begin, uint64_t end, uint64_t *at, uint64_t *n);

#endif
