/* SPDX-License-Identifier: Apache-2.0 */
/* sched_own: declarations shared by the schedulers. */
#ifndef PAWL_TUNE_SCHED_OWN_H
#define PAWL_TUNE_SCHED_OWN_H

#include "sched.h"

struct sched_trial {
	bool known, ended, stopped, paused;
	bool go_on; /* paused, but may run again */
	uint32_t bracket;
	double time, metric; /* of the last report; larger metrics are better here, in any mode */
	bool others_wait;    /* for a place, at the last report */
	double best;
	double *times, *sums; /* median: time of each report, and the sum of the metrics up to it */
	size_t n_reports, cap_reports;
	double perturbed, score; /* PBT: time of the last perturbation, and the metric then */
	uint32_t rungs_done;     /* ASHA: one bit for each rung that has its metric */
	bool is_kept, dropped;   /* HyperBand: kept at its last rung; dropped ones are not compared any more */
	bool exploits;           /* PBT: continues from the donor */
	uint32_t donor;
	double *values; /* PBT: n_mutations */
};

struct sched_rung {
	double time;
	double *metrics; /* ASHA: of all trials that reached it, ascending */
	size_t n, cap;
};

struct sched_bracket {
	struct sched_rung *rungs;
	size_t n_rungs;
	uint32_t capacity, n_trials, first; /* HyperBand: its trials have consecutive numbers */
	uint32_t level;                     /* HyperBand: the rung that its trials run towards */
};

struct sched {
	struct sched_opts opts;
	struct sched_mutation *mutations;
	struct sched_trial *trials;
	size_t n_trials, cap_trials;
	struct sched_bracket *brackets;
	size_t n_brackets, cap_brackets;
	bool closed;
	double *values; /* returned with the last decision */
	uint64_t drawn; /* numbers drawn so far */
};

/* One per algorithm; NULL = nothing to do. */
struct sched_algorithm {
	const char *name; /* for people */
	int (*init)(struct sched *s, struct pawl_error *err);
	int (*add)(struct sched *s, uint32_t trial, struct pawl_error *err);
	int (*report)(struct sched *s, uint32_t trial, struct sched_decision *ret, struct pawl_error *err);
	void (*settle)(struct sched *s); /* trials have ended, or no more will come: which need not wait? */
	/* As sched_next; NULL = sched_next_furthest. */
	int64_t (*next)(const struct sched *s, const struct sched_candidate *candidates, size_t n, bool may_add);
};

/* The trial is neither dropped nor waiting for others. */
bool sched_may_run(const struct sched *s, const struct sched_candidate *candidate);
/* Chooses interrupted trials first, then the paused trial that is furthest: the most expensive work
 * ends soonest. Adds a further trial only when no other may run. */
int64_t sched_next_furthest(const struct sched *s, const struct sched_candidate *candidates, size_t n, bool may_add);
/* The next number of the seed's sequence, in [0, 1). */
double sched_draw(struct sched *s);
/* The time of a rung, computed in floating point; within rounding of an integer it becomes that
 * integer. */
double sched_rung_time(double time);
int sched_rung_put(struct sched_rung *rung, double metric, struct pawl_error *err);
int sched_bracket_add(struct sched *s, size_t n_rungs, struct sched_bracket **ret, struct pawl_error *err);

#endif
