/* SPDX-License-Identifier: Apache-2.0 */
/* reshard_strided: overlaps with pieces that do not lie in C order. For reshard.c only. */
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

/* The overlap of a piece with strides and the part of a box that begins at `at` in it and has the extents `n`; false if
 * they do not meet. */
bool reshard_find_strided(uint32_t ndim, const struct manifest_piece *piece, const struct pawl_tensor *box,
                          const uint64_t *at, const uint64_t *n, struct reshard_overlap *o);
/* The elements [*begin, end) of a box in C order are a row of smaller boxes: makes the next one of these, where it begins
 * and its extents, and moves *begin behind it. */
void reshard_next_box(uint32_t ndim, const uint64_t *shape, uint64_t *begin, uint64_t end, uint64_t *at, uint64_t *n);

#endif
