/* SPDX-License-Identifier: Apache-2.0 */
/* missing_ranks: names the ranks that are missing in a round (gather.h). Only for gather.c. */
#ifndef PAWL_MISSING_RANKS_H
#define PAWL_MISSING_RANKS_H

#include "ranks/gather.h"

/* Rank 0 has the parts of the ranks in `seen`. Fails with the names of the others, after
 * waited_ms. */
int missing_ranks_in_parts(const struct gather_round *round, const bool *seen, int64_t waited_ms,
                           struct pawl_error *err);
/* Another rank has no verdict after waited_ms: the same, as far as the files show. Always
 * PAWL_ETIMEOUT. */
int missing_ranks_in_verdict(const struct gather_round *round, int64_t waited_ms, struct pawl_error *err);
/* Rank 0: the ranks that have not opened the run will not open it. */
int missing_ranks_in_opening(const struct gather_round *round, const bool *unseen, int64_t waited_ms,
                             struct pawl_error *err);
/* Rank 0: shows the missing ranks in the round's ticket. unseen: those that have not opened the
 * run. */
void missing_ranks_note(const struct gather_round *round, const bool *seen, const bool *unseen);

#endif
