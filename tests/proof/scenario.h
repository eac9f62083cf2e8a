/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scenario: small but complete trainings that the proof programs interrupt at every point, and the
 * check that must hold after any interruption. Contents are a function of the step, so that every
 * restored byte can be checked without a second copy.
 */
#ifndef PROOF_SCENARIO_H
#define PROOF_SCENARIO_H

#include <stdint.h>

#include "pawl.h"

struct scenario {
	const char *name;
	int mode; /* enum pawl_mode */
	int lazy;
	int64_t num_to_keep; /* 0 = all */
	int by_score;        /* best ones by a metric */
	uint32_t recycle;
	int frozen;        /* a large and a small tensor that never change: linked and divided packs */
	const char *codec; /* packs are compressed */
	int nodes;         /* packs in the folders of two nodes, which are in the run's */
	int marks;         /* also pins, scores, removes */
	int on_busy;
	int saves;
	/* What differs from pass to pass; see scenario_vary. */
	uint32_t n_moving, copy_threads, io_threads;
	uint64_t pack_bytes;
	int64_t seed;           /* of the contents and the scores */
	int64_t expect_at_most; /* controls only: the check wants this many, whatever num_to_keep says; 0 = num_to_keep
	                         */
};

extern const struct scenario scenarios[];
extern const int n_scenarios;

/* Training number `which` as pass `pass` runs it: other sizes, packs, threads, contents and
 * scores. */
struct scenario scenario_vary(int which, long pass);

/* What the interrupted process tells the one that checks, in memory shared by both. */
struct scenario_progress {
	volatile int64_t begun_step;    /* highest step whose save was begun */
	volatile int64_t acked_step;    /* highest step reported committed and durable */
	volatile uint32_t acked_mask;   /* bit n: step n was reported so */
	volatile int64_t pinned_step;   /* pin reported, unpinning not begun; 0 = none */
	volatile int64_t unpinned_step; /* unpinning reported; 0 = none */
	volatile int64_t best_step;     /* best one reported, late scores included; 0 = none */
	volatile double best_score;
};

enum { SCENARIO_BAD = -1, SCENARIO_LOST = -2 /* what was acknowledged is gone or damaged */ };

/* Runs the training in root. Returns 0 or the first error; a failed save is not tried again. */
int scenario_run(const struct scenario *sc, const char *root, struct scenario_progress *progress,
                 struct pawl_error *err);

/* Checks the promises on the files that exist. Each listed checkpoint holds exactly the bytes of
 * its step (P1, P2). Of the acknowledged ones (P3) these exist: the newest, those that num_to_keep
 * keeps, the pinned one, still pinned, and where scores decide the best one (P6). No step above the
 * begun ones is listed (P2). then_use: opens for writing, saves once more, then checks all that
 * again. Then no more than num_to_keep unpinned ones are left (and the latest in addition to the
 * best ones), and no leftovers remain (P4). Returns 0, or an enum value above with the reason in
 * why. */
int scenario_check(const struct scenario *sc, const char *root, const struct scenario_progress *progress, int then_use,
                   char *why, size_t why_len);

#endif
