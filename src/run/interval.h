/* SPDX-License-Identifier: Apache-2.0 */
/*
 * interval: the progress from which save intervals are counted. A save moves it forward when it
 * begins, and back if it fails. Any thread may call these functions.
 */
#ifndef PAWL_INTERVAL_H
#define PAWL_INTERVAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "pawl.h"

struct interval {
	pthread_mutex_t lock;            /* guards below; no other lock is taken while it is held */
	struct pawl_progress last_saved; /* the latest save, or what was restored */
	bool has_saved;
	uint64_t marking_id;            /* the save that set last_saved and may still fail; 0 = none */
	struct pawl_progress last_good; /* before it: of a save that was committed, or of what was restored */
	bool has_good;
	double wct_before;        /* training seconds up to wct_from_ns, as far as known */
	int64_t wct_from_ns;      /* monotonic: when the run was opened, or a checkpoint was restored */
	double save_cost_seconds; /* measured, for "auto"; 0 = not known yet */
};

/* The training continues from here; NULL = it begins. */
void interval_restart(struct interval *i, const struct pawl_progress *progress);
/* Fills in the training seconds up to now, unless the caller gave them. */
void interval_add_wct(struct interval *i, struct pawl_progress *progress);
/* Intervals count from here, also if the save fails. */
void interval_mark(struct interval *i, const struct pawl_progress *progress);
/* How long the latest save blocked the training. */
void interval_note_cost(struct interval *i, double seconds);
/* Copies what a decision needs. False: nothing has been saved yet. */
bool interval_read(struct interval *i, struct pawl_progress *ret_last, double *ret_cost_seconds);

#endif
