/* SPDX-License-Identifier: Apache-2.0 */
/* manifest_check: the rules that connect the parts of a manifest. Its encoder and its decoder share
 * them. */
#ifndef PAWL_MANIFEST_CHECK_H
#define PAWL_MANIFEST_CHECK_H

#include "state/manifest.h"

#define MANIFEST_MAX_ROWS 1000000u /* tensors; files; metrics */
#define MANIFEST_MAX_NAME_BYTES 4096u
#define MANIFEST_DIGEST "\n\"digest\":\""
#define MANIFEST_END "\"}\n"
#define MANIFEST_TAIL_BYTES (sizeof(MANIFEST_DIGEST) - 1 + 32 + sizeof(MANIFEST_END) - 1)

/* Of all divided tensors together. Bounds memory and time on hostile input. */
#define MANIFEST_MAX_CORNERS ((uint64_t)1 << 24)

/* The counters of a progress, in the order in which they are written: int64_t or double. */
struct manifest_counter {
	const char *name;
	size_t offset; /* in struct pawl_progress */
	bool is_float;
};
extern const struct manifest_counter manifest_counters[];
extern const size_t manifest_n_counters;

/* The summary members. PAWL_ECORRUPT, PAWL_ELIMIT. */
int manifest_check_summary(const struct manifest *m, struct pawl_error *err);
/* Files, tensors and pieces of a complete manifest. The caller checks that tensor names are
 * unique. */
int manifest_check_rows(const struct manifest *m, struct pawl_error *err);
/* Do the boxes of a tensor's pieces neither overlap nor leave holes? The boxes are inside the
 * tensor. The places of their bytes are not checked. *corners_left: MANIFEST_MAX_CORNERS at first.
 * PAWL_ECORRUPT, PAWL_ELIMIT. */
int manifest_check_tiling(const struct manifest_tensor *tensor, uint64_t *corners_left, struct pawl_error *err);

#endif
