/* SPDX-License-Identifier: Apache-2.0 */
/* trigger: when to save. Time strings, thresholds, Young/Daly: pure. */
#ifndef PAWL_TRIGGER_H
#define PAWL_TRIGGER_H

#include <stdbool.h>

#include "pawl.h"

enum trigger_unit {
	TRIGGER_EPOCH,
	TRIGGER_ITERATION,
	TRIGGER_BATCH,
	TRIGGER_SAMPLE,
	TRIGGER_TOKEN,
	TRIGGER_SECOND,
	TRIGGER_DURATION,
	TRIGGER_AUTO,
	TRIGGER_FIRST /* nothing has been saved yet */
};
#define TRIGGER_MAX 8

struct trigger {
	enum trigger_unit unit;
	double every; /* > 0; an integer for counters; fraction for TRIGGER_DURATION */
};

struct triggers {
	struct trigger rows[TRIGGER_MAX];
	size_t n;
};

/* "1ep" "5it" (or "5iter") "10ba" (or "10 steps") "5000sp" "1000000tok" "30sec" "0.25dur" "auto"; a
 * bare integer = epochs (R91). PAWL_EUSAGE names the text and the known units. */
int trigger_parse(const char *text, struct trigger *ret, struct pawl_error *err);
/* Several of them, and "first", with commas between. */
int triggers_parse(const char *text, struct triggers *ret, struct pawl_error *err);
/* The same without "auto", which needs the measured cost of a run's saves. */
int triggers_parse_fixed(const char *text, struct triggers *ret, struct pawl_error *err);
/* Threshold crossing: floor(now / every) > floor(last / every). The first call (last all unknown)
 * counts from 0. Also true when now->fraction reaches 1 (end of training) and last->fraction had
 * not. AUTO: total_wct has advanced by `auto_seconds` since last. PAWL_EUSAGE names a counter that
 * is needed and unknown. Returns 1, 0 or a code. */
int trigger_due(const struct trigger *t, const struct pawl_progress *last, const struct pawl_progress *now,
                double auto_seconds, struct pawl_error *err);
/* Does any of them use the clock, which differs between processes? */
bool triggers_use_clock(const struct triggers *t);
/* 1 if any is due. last NULL: nothing has been saved. auto_seconds 0 = not known yet. */
int triggers_due(const struct triggers *t, const struct pawl_progress *last, const struct pawl_progress *now,
                 double auto_seconds, struct pawl_error *err);

#endif
