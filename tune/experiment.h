/* SPDX-License-Identifier: Apache-2.0 */
/*
 * experiment: declarations shared by its files. The state is a fold over the entries of the journal
 * (experiment_apply.c). The same code applies entries that are read and entries just written. A
 * decision makes an entry; an action follows it.
 *
 *   PENDING -start-> RUNNING -end-> TERMINATED | ERROR
 *                       | report: pause           | retry, or max_failures allows: PENDING
 *                       |-end-> PAUSED -start-> RUNNING; dropped: TERMINATED
 *                       | report: exploit
 *                       `-end-> PENDING, on the donor's checkpoint with new values
 */
#ifndef PAWL_TUNE_EXPERIMENT_H
#define PAWL_TUNE_EXPERIMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/value.h"
#include "journal.h"
#include "sched.h"
#include "spec.h"
#include "tune.h"

#define TUNE_FORMAT 1
#define TUNE_NAME_BYTES 128

/* A result: the n-th of a trial, from 1; n = 0: none. */
struct result_place {
	uint32_t trial;
	uint64_t n;
};

struct checkpoint {
	char *name;
	uint64_t iteration;
	double time_s, score, metric;
	double at; /* the scheduler's time at this checkpoint */
	struct result_place of;
};

struct trial {
	uint32_t number;
	enum tune_state state;
	enum tune_verdict_kind verdict; /* of the last report, while the trial runs */
	bool asked;                     /* verdict STOP, but from outside: its next report still counts */
	uint64_t catch_up;              /* synchronous PBT: it was to pause here, but a crash came before its save */
	bool owes_exploit;              /* to continue from the donor: the clone still has to be made */
	bool exploited;                 /* the clone exists, its process still has the state from before it */
	uint32_t donor;
	struct value *new_config; /* of the exploit */
	char *name, *id;
	struct value *config;
	struct value *result;            /* the last result, with the configuration */
	char *config_text, *result_text; /* result_text: made on demand */
	char *columns;                   /* columns of progress.csv */
	uint64_t iteration, n_results, from_iteration;
	struct result_place of;            /* the result of its present state; that of a clone is the donor's */
	double time_s, from_time_s, stamp; /* stamp: time of the start or of the last report */
	double metric, best;
	bool has_metric;
	struct checkpoint *checkpoints; /* kept ones, oldest first */
	size_t n_checkpoints, cap_checkpoints;
	char **dropped; /* names of checkpoints that retention gave up, oldest first; unless read-only, until removed */
	size_t n_dropped, cap_dropped, n_dropped_before; /* before: count at its last start */
	uint32_t attempts, failures;
	char *error, *host;
	int64_t pid;
	bool repaired; /* its files agree with the journal */
};

struct tune_experiment {
	struct tune_open_opts opts;
	char *folder, *spec_text, *notice;
	char token[17];
	int dirfd, lock;
	bool read_only, closed; /* closed: no further trial will be made */
	bool broken;            /* a write failed: the state in memory is ahead of the journal */
	int64_t last;           /* trial of the last entry read; < 0 = none */
	struct spec spec;
	struct sched *sched;
	struct journal journal;
	struct trial *trials;
	size_t n_trials, cap_trials;
	size_t n_running;
	uint64_t n_reports;
	double opened_s;
	char *path;       /* path returned by next() */
	char reason[160]; /* of the last verdict */
};

/* ---- experiment_apply.c: the fold ---- */

/* Applies an entry of the journal. replay: the scheduler has not seen its result yet. */
int experiment_apply(struct tune_experiment *e, const struct value *entry, bool replay, struct pawl_error *err);
/* Passes a result to the scheduler. */
int experiment_feed(struct tune_experiment *e, struct trial *t, const struct value *result, struct sched_decision *ret,
                    struct pawl_error *err);
int experiment_set(char **text, const char *value, struct pawl_error *err);
/* The last result as a line; NULL if there is none or memory is exhausted. Owned by the trial. */
const char *experiment_result_text(struct trial *t);
void experiment_free_trials(struct tune_experiment *e);

/* Is the value finite, and better than the best so far? NaN: there is none yet. */
bool experiment_improves(double value, double best, bool maximize);

/* ---- experiment_info.c ---- */

/* PAWL_ENOTFOUND: no trial has this number. */
int experiment_find(const struct tune_experiment *e, uint32_t trial, struct trial **ret, struct pawl_error *err);

/* ---- experiment_write.c: entries ---- */

/* Appends an entry (takes the reference) and applies it; then removes the checkpoints of its trial
 * that retention gave up. */
int experiment_put(struct tune_experiment *e, struct value *entry, bool durable, struct pawl_error *err);
/* After the journal was read: removes the checkpoints that retention gave up and that still exist.
 * A crash, or a fetch from another place, may have left any number of them. */
void experiment_remove_left(struct tune_experiment *e);
/* The trial, if the experiment may be changed. */
int experiment_check(struct tune_experiment *e, uint32_t trial, struct trial **ret, struct pawl_error *err);
/* Writes the present state of a trial to its trial.json. */
int experiment_note_state(struct tune_experiment *e, const struct trial *t, struct pawl_error *err);
int experiment_end(struct tune_experiment *e, struct trial *t, const char *how, const char *why,
                   struct pawl_error *err);
double experiment_now(const struct tune_experiment *e);

/* ---- experiment_next.c ---- */

/* Draws the configuration and the name of trial `number` of a search. *ret is a new reference. */
int experiment_draw(struct tune_experiment *e, uint32_t number, char name[TUNE_NAME_BYTES], struct value **ret,
                    struct pawl_error *err);
/* The configuration of a trial that continues from a donor; a new reference. */
int experiment_exploit_config(struct tune_experiment *e, const struct sched_decision *what, struct value **ret,
                              struct pawl_error *err);
/* Makes the clone that a trial needs, or declines the exploit if that is not possible. */
int experiment_exploit(struct tune_experiment *e, struct trial *t, struct pawl_error *err);
bool experiment_is_over_time(const struct tune_experiment *e);

/* ---- experiment_import.c ---- */

/* Imports the experiment of another folder, which is not changed. */
int experiment_import(struct tune_experiment *e, const char *folder, struct pawl_error *err);

/* ---- experiment_rebuild.c: the journal and the trials' files from each other ---- */

/* Writes a new journal from the folders of the trials. */
int experiment_rebuild(struct tune_experiment *e, uint64_t *ret_n, struct pawl_error *err);
/* Adds the results that a trial's files lack. */
int experiment_repair(struct tune_experiment *e, struct trial *t, struct pawl_error *err);

#endif
