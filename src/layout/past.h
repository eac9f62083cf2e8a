/* SPDX-License-Identifier: Apache-2.0 */
/* past: the packs of the last checkpoint's tensors, and how often each tensor has changed
 * (regroup.h). Pure. */
#ifndef PAWL_PAST_H
#define PAWL_PAST_H

#include "base/mem.h"
#include "layout/regroup.h"
#include "state/manifest.h"
#include "state/state.h"

struct past {
	struct regroup_tensor *tensors;
	size_t n;
};

/* From this rank's packs in a checkpoint. */
int past_of_manifest(const struct manifest *m, uint32_t rank, struct past **ret, struct pawl_error *err);
int past_new(const struct regroup_tensor *tensors, size_t n, struct past **ret, struct pawl_error *err);
/* Writes one row for each tensor of the state, with its data from the past (may be NULL). */
int past_match(const struct past *past, const struct pawl_state *state, struct regroup_tensor *ret,
               struct pawl_error *err);
void past_free(struct past *p);
PAWL_DEFINE_CLEAN(struct past, past_free);

#endif
