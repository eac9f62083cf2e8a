/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scenario: small but complete trainings that the proof programs interrupt at every point, and the check that must hold after
 * any interruption. Contents are a function of the step, so that every restored byte can be checked without a second copy.
 */
#ifndef PROOF_SCENARIO_H
#define PROOF_SCENARIO_H

#include <stdint.h>

#include "pawl.h"

struct scenario {
	const char *name;
	int mode;              /* enum pawl_mode */
	int lazy;
	int64_t num_to_keep;   /* 0 = all */
	int by_score;          /* best ones by a metric */
	uint32_t recycle;
	int frozen;            /* a large tensor that never changes: linked packs */
	int marks;             /* also pins, scores, removes */
	int on_busy;
	int saves;
};

extern const struct scenario scenarios[];
extern const int n_scenarios;

/* What the interrupted process tells the one that checks, in memory shared by both. */
struct scenario_progress {
	volatile int64_t begun_step;  /* highest step whose save was begun */
	volatile int64_t acked_step;  /* highest step reported committed and durable */
};

/* Runs the training in root. Returns 0 or the first error; a failed save is not tried again. */
int scenario_run(const struct scenario *sc, const char *root, struct scenario_progress *progress, struct pawl_error *err);

/* Checks every promise on what is there: each listed checkpoint verifies and holds exactly the bytes of its step; the newest
 * acknowledged one is there (P2, P3, P6); no step above the begun ones. then_use: opens for writing, saves once more, and nothing
 * may be left over. Returns 0, or -1 with the reason in why. */
int scenario_check(const struct scenario *sc, const char *root, const struct scenario_progress *progress, int then_use, char *why,
                   size_t why_len);

#endif
