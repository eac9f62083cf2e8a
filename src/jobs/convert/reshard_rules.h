/* SPDX-License-Identifier: Apache-2.0 */
/* reshard_rules: other names and dtypes for a checkpoint that is written again. */
#ifndef PAWL_RESHARD_RULES_H
#define PAWL_RESHARD_RULES_H

#include "base/vec.h"
#include "layout/reshard.h"
#include "restore/restore.h"

/* Gives the state of a manifest the names and dtypes of the rules. A tensor whose path changes gets
 * the new path as its name, in memory of the manifest. */
int reshard_rules_apply(const struct restore_rules *rules, struct manifest *m, struct pawl_error *err);

/* Elements that are read as they were saved, then converted. */
struct reshard_rules_cast {
	const char *saved;
	char *to; /* nbytes of the new dtype; `skip` bytes of the first element are not wanted */
	uint64_t skip, nbytes;
	int from_dtype, to_dtype;
};
struct reshard_rules_casts {
	struct bump memory;
	VEC(struct reshard_rules_cast) rows;
	bool not_finite; /* after reshard_rules_run: a converted element is NaN or infinite */
};
/* usable as PAWL_CLEAN(reshard_rules_clear) */
void reshard_rules_clear(struct reshard_rules_casts *casts);
/* b asks for bytes [begin, end) of the tensor in dtype `to`. Makes it ask for the saved elements
 * instead, in memory of their own. */
int reshard_rules_add(struct reshard_rules_casts *casts, int to, struct reshard_binding *b, struct pawl_error *err);
/* Converts what was read. */
int reshard_rules_run(struct reshard_rules_casts *casts, struct pawl_error *err);

#endif
