/* SPDX-License-Identifier: Apache-2.0 */
/*
 * apply_retention: removes what retention decided to remove. It decides nothing itself
 * (policy/retain.h). Promises P6, P7, P8 (only checkpoints whose manifest names this run; a failed
 * listing changes nothing), P12.
 */
#ifndef PAWL_APPLY_RETENTION_H
#define PAWL_APPLY_RETENTION_H

#include <stdbool.h>

#include "run/run.h"

/* Decides by policy, then removes the checkpoints that it does not keep. Neither lock of the run is
 * held. ret: NULL, or the decisions. */
int apply_retention(struct pawl *run, const struct pawl_retention *policy, bool dry_run, struct pawl_decisions **ret,
                    struct pawl_error *err);

#endif
