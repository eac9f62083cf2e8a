/* SPDX-License-Identifier: Apache-2.0 */
/* past: in which packs the tensors of the last checkpoint are, and what has been seen of them (regroup.h). Pure. */
#ifndef PAWL_PAST_H
#define PAWL_PAST_H

#include "state/manifest.h"
#include "layout/regroup.h"
#include "state/state.h"

struct past {
	struct regroup_tensor *tensors;
	size_t n;
};

/* What this rank's packs of a checkpoint hold. */
int past_of_manifest(const struct manifest *m, uint32_t rank, struct past **ret, struct pawl_error *err);
int past_new(const struct regroup_tensor *tensors, size_t n, struct past **ret, struct pawl_error *err);
/* One row for each tensor of the state, with all that the past (may be NULL) has of it. */
int past_match(const struct past *past, const struct pawl_state *state, struct regroup_tensor *ret,
               struct pawl_error *err);
void past_free(struct past *p);

#endif
