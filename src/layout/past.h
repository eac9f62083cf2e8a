/* SPDX-License-Identifier: Apache-2.0 */
/* past: the packs of the last checkpoint's tensors, and how often each tensor has changed (regroup.h). Pure. */
#ifndef PAWL_PAST_H
#define PAWL_PAST_H

#include "layout/regroup.h"
#include "state/manifest.h"
#include "state/state.h"

struct past {
	struct regroup_tensor *tensors;
	size_t n;
};

/* What this rank's packs of a checkpoint hold. */
int past_of_manifest(const struct manifest *m, uint32_t rank, struct past **ret, struct pawl_error *err);
int past_new(const struct regroup_tensor *tensors, size_t n, struct past **ret, struct pawl_error *err);
/* Writes one row for each tensor of the state, with what the past (may be NULL) knows of it. */
int past_match(const struct past *past, const struct pawl_state *state, struct regroup_tensor *ret,
               struct pawl_error *err);
void past_free(struct past *p);

#endif
