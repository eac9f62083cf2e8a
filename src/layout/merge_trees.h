/* SPDX-License-Identifier: Apache-2.0 */
/* merge_trees: merges the trees of all ranks into one (rules in merge.h). Pure. */
#ifndef PAWL_MERGE_TREES_H
#define PAWL_MERGE_TREES_H

#include "state/manifest.h"

/* parts[rank]: with their states; NULL = the same tree as rank 0's. *ret has names, but its tensors
 * are not described. */
int merge_trees(struct manifest *const *parts, uint32_t world, struct pawl_state **ret, struct pawl_error *err);

/* The same from the JSON of each rank's tree, one for each of the `world` ranks. what: its name in
 * errors. */
struct merge_text {
	const char *what;
	struct pawl_slice json;
};
int merge_texts(const struct merge_text *texts, uint32_t world, struct pawl_state **ret, struct pawl_error *err);

#endif
