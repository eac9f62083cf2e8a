/* SPDX-License-Identifier: Apache-2.0 */
/* gather_late: who is missing in a round (gather.h), in words. For gather.c only. */
#ifndef PAWL_GATHER_LATE_H
#define PAWL_GATHER_LATE_H

#include "ranks/gather.h"

/* Rank 0, which has the parts of the ranks that are marked in `seen`: fails with who is missing, after so long. */
int gather_late_parts(const struct gather_round *round, const bool *seen, int64_t waited_ms, struct pawl_error *err);
/* Another rank, which has no verdict after so long: the same, as far as the files tell. Always PAWL_ETIMEOUT. */
int gather_late_verdict(const struct gather_round *round, int64_t waited_ms, struct pawl_error *err);
/* Rank 0: the ranks that have never opened the run will not come any more. */
int gather_late_opening(const struct gather_round *round, const bool *unseen, int64_t waited_ms, struct pawl_error *err);
/* Rank 0: tells the round's ticket whom it waits for. unseen: those of them that have not opened the run. */
void gather_late_note(const struct gather_round *round, const bool *seen, const bool *unseen);

#endif
