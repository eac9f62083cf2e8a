/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched: decides which trial continues, pauses or stops after a report, and which one runs next.
 * Pure: it uses no clock, file or process, and chance only by a seed. The same calls give the same
 * verdicts: a runner that starts again replays the reports of its journal and continues. One file
 * per algorithm: sched_median.c, sched_asha.c, sched_hyperband.c, sched_pbt.c. To add one, see
 * docs/how-to/extending.md.
 *
 *   sched_new -> sched_add for each trial -> sched_report for each of its reports
 *                                            sched_next when a place is free
 *                                            sched_end when a trial has ended
 *
 * The caller numbers the trials from 0 without gaps. Reports of one trial come in the order of
 * their times. A trial that resumed from an older checkpoint may report a time again, which changes
 * nothing.
 */
#ifndef PAWL_TUNE_SCHED_H
#define PAWL_TUNE_SCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pawl.h"

enum sched_verdict {
	SCHED_CONTINUE = 0,
	SCHED_PAUSE = 1, /* save, then give the place to others */
	SCHED_STOP = 2,
	SCHED_EXPLOIT = 3 /* continue from the donor's checkpoint with new values (PBT) */
};

/* Each in a file of its own, which names its paper. */
struct sched_algorithm;
extern const struct sched_algorithm sched_fifo, sched_median, sched_asha, sched_hyperband, sched_pbt;

/* How one hyperparameter is explored: numbers by a factor, lists by a neighbour. */
struct sched_mutation {
	const char *name;      /* path in the configuration */
	uint32_t n_choices;    /* > 0: an ordered list of this many values; the value is its index */
	double low, high;      /* n_choices 0: the range for new draws */
	bool log_scale, whole; /* how new values are drawn, and whether they are rounded to integers */
};

struct sched_opts {
	const struct sched_algorithm *algorithm; /* NULL = sched_fifo */
	bool maximize;                           /* larger metrics are better */
	double grace;                            /* no stop before this time; 0 = 1 */
	double max_time;               /* ASHA, HyperBand: the largest time of a trial; 0 = 100 (81 for HyperBand) */
	double reduction;              /* ASHA, HyperBand: eta; 0 = 4 (3 for HyperBand) */
	uint32_t brackets;             /* ASHA; 0 = 1 */
	bool in_step;                  /* HyperBand: one bracket of all trials from `grace` on (synchronous ASHA) */
	uint32_t min_samples;          /* median: other trials that must have reported; 0 = 3 */
	bool hard_stop;                /* median: stop; else pause */
	double interval;               /* PBT: time between perturbations; 0 = 60 */
	double burn_in;                /* PBT: none before this time */
	double quantile;               /* PBT: share of donors and of exploiters; 0 = 0.25; at most 0.5 */
	double resample;               /* PBT: chance to draw a value anew; < 0 = 0.25 */
	double factor_up, factor_down; /* PBT; 0 = 1.2, 0.8 */
	bool custom_explore;           /* PBT: the caller changes values, too: mutations may be empty */
	bool synchronous;              /* PBT: all trials wait for the slowest at each perturbation */
	bool takes_turns;              /* PBT: a trial that reaches a perturbation leaves its place to waiting ones */
	const struct sched_mutation *mutations; /* PBT; borrowed */
	size_t n_mutations;
	uint64_t seed;
	bool complete; /* sched_set_defaults has set the defaults: now 0 is a value */
};

struct sched;

struct sched_decision {
	enum sched_verdict verdict;
	bool save;            /* CONTINUE: save now, others may continue from this checkpoint (PBT) */
	uint32_t donor;       /* EXPLOIT: owner of the checkpoint */
	const double *values; /* EXPLOIT: a new value for each mutation; the scheduler's, until the next call */
};

/* A trial that waits for a place: it has not begun yet, was paused, or was interrupted. */
struct sched_candidate {
	uint32_t trial;
	bool paused, interrupted;
};

/* Sets each option that is 0 to its default. Set options that may be 0 after it. sched_new does it,
 * too, unless the options are complete. */
void sched_set_defaults(struct sched_opts *o);
/* PAWL_EUSAGE names the option, what was expected and what was found. */
int sched_new(const struct sched_opts *opts, struct sched **ret, struct pawl_error *err);
void sched_free(struct sched *s);

/* Adds a trial. values: of its mutations (PBT), else NULL. */
int sched_add(struct sched *s, uint32_t trial, const double *values, struct pawl_error *err);
/* A trial's report at `time` (iterations, seconds or the experiment's time attribute). A metric
 * that is not finite ranks worst. others_wait: the experiment has more trials than places. */
int sched_report(struct sched *s, uint32_t trial, double time, double metric, bool others_wait,
                 struct sched_decision *ret, struct pawl_error *err);
/* The trial has ended by itself or has failed for good: other trials do not wait for it any
 * more. */
void sched_end(struct sched *s, uint32_t trial);
/* A trial that had ended runs again. */
void sched_revive(struct sched *s, uint32_t trial);
/* The trial has its new values and, with PBT, the donor's state at time `at`. Its later reports
 * count; it is ranked again one interval after the donor's last perturbation, or after `at` if that
 * is older. */
void sched_exploited(struct sched *s, uint32_t trial, uint32_t donor, double at);
/* PBT: the trial continues unchanged, with its old values, because the donor's checkpoint does not
 * exist. */
void sched_decline(struct sched *s, uint32_t trial, const double *values);
/* No further trial will be added, so none is waited for. */
void sched_close(struct sched *s);
/* The state of a paused trial: CONTINUE or EXPLOIT if it may continue, STOP if it was dropped,
 * PAUSE if it still has to wait. */
void sched_paused(const struct sched *s, uint32_t trial, struct sched_decision *ret);
/* Chooses the trial to start among the `n` without a place; returns its index. n = a further trial,
 * if may_add; < 0 = none now. */
int64_t sched_next(const struct sched *s, const struct sched_candidate *candidates, size_t n, bool may_add);

#endif
