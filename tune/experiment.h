/* SPDX-License-Identifier: Apache-2.0 */
/*
 * experiment: what its files share. The state is a fold over the entries of the journal (experiment_apply.c), the same ones
 * whether they are read or have just been written; what decides makes an entry, what does follows it.
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

#include <jansson.h>

#include "journal.h"
#include "sched.h"
#include "spec.h"
#include "tune.h"

#define TUNE_FORMAT 1
#define TUNE_NAME_BYTES 128

struct checkpoint {
	char *name;
	uint64_t iteration;
	double time_s, score, metric;
	double at;      /* what the scheduler counts by, there */
	json_t *config; /* with which a trial goes on from it */
};

struct trial {
	uint32_t number;
	enum tune_state state;
	enum tune_verdict_kind verdict; /* of the last report, while it runs */
	uint64_t catch_up;              /* synchronous PBT: it was to pause here, but a crash came before it had saved */
	uint64_t exploited_from;        /* iteration of its newest checkpoint at its last exploit; 0 = none */
	bool owes_exploit;              /* to go on from the donor: the clone is still to be made */
	uint32_t donor;
	json_t *new_config; /* of the exploit */
	char *name, *id;
	json_t *config, *first_config; /* first: as it was added */
	json_t *result; /* the last, with the configuration */
	char *config_text, *result_text; /* result_text: made when somebody asks */
	char *columns; /* of progress.csv */
	uint64_t iteration, n_results, from_iteration;
	double time_s, from_time_s, stamp; /* stamp: of the start, or of the last report */
	double metric, best;
	bool has_metric;
	struct checkpoint *checkpoints; /* kept, oldest first */
	size_t n_checkpoints, cap_checkpoints;
	char **dropped; /* while it is read only: names that retention has given up, oldest first */
	size_t n_dropped, n_dropped_before; /* before: its last start */
	uint32_t attempts, failures;
	char *error, *host;
	int64_t pid;
	bool mended; /* its files hold what the journal says */
};

/* A folder that retention has given up. */
struct doomed {
	uint32_t trial;
	char *name;
};

struct tune_experiment {
	struct tune_open_opts opts;
	char *folder, *spec_text, *notice;
	char token[17];
	int dirfd, lock;
	bool read_only, closed; /* closed: no further trial will be made */
	bool broken;            /* a write failed: the state in memory is ahead of the journal */
	int64_t last;           /* the trial of the last entry that was read, < 0 = none */
	struct spec spec;
	struct sched *sched;
	struct journal journal;
	struct trial *trials;
	size_t n_trials, cap_trials;
	size_t n_running;
	uint64_t n_reports;
	double opened_s;
	struct doomed doomed[16]; /* the newest ones */
	size_t n_doomed;
	char *path; /* what next() handed out */
	char reason[160]; /* of the last verdict */
};

/* ---- experiment_apply.c: the fold ---- */

/* Takes an entry of the journal in. replay: the scheduler has not seen its result yet. */
int experiment_apply(struct tune_experiment *e, const json_t *entry, bool replay, struct pawl_error *err);
/* Shows a result to the scheduler. */
int experiment_feed(struct tune_experiment *e, struct trial *t, const json_t *result, struct sched_decision *ret,
                    struct pawl_error *err);
/* The values of a replay that goes on from a checkpoint before that of its last change, which is gone (it did not come
 * over to this machine), and comes to the change again; borrowed. NULL = those that it has. from: NULL = anew. */
json_t *experiment_rewound(const struct tune_experiment *e, const struct trial *t, const struct checkpoint *from);
int experiment_set(char **text, const char *value, struct pawl_error *err);
/* The last result as a line; NULL if there is none, or no memory for it. The trial's. */
const char *experiment_result_text(struct trial *t);
void experiment_free_trials(struct tune_experiment *e);

/* ---- experiment_write.c: entries ---- */

/* Appends an entry (takes the reference) and applies it; then removes what retention gave up. */
int experiment_put(struct tune_experiment *e, json_t *entry, bool durable, struct pawl_error *err);
int experiment_check(struct tune_experiment *e, uint32_t trial, struct trial **ret, struct pawl_error *err);
/* trial.json of a trial as it is now. */
int experiment_note_state(struct tune_experiment *e, const struct trial *t, struct pawl_error *err);
int experiment_end(struct tune_experiment *e, struct trial *t, const char *how, const char *why, struct pawl_error *err);
double experiment_now(const struct tune_experiment *e);

/* ---- experiment_next.c ---- */

/* The configuration that trial `number` of a search is drawn, a new reference, and the name that it gets. */
int experiment_draw(struct tune_experiment *e, uint32_t number, char name[TUNE_NAME_BYTES], json_t **ret, struct pawl_error *err);
/* The configuration of a trial that goes on from a donor; a new reference. */
int experiment_exploit_config(struct tune_experiment *e, const struct sched_decision *what, json_t **ret, struct pawl_error *err);
/* Makes the clone that a trial owes, or declines when that cannot be. */
int experiment_exploit(struct tune_experiment *e, struct trial *t, struct pawl_error *err);
bool experiment_is_over_time(const struct tune_experiment *e);

/* ---- experiment_import.c ---- */

/* Takes over the experiment of another folder, which stays as it is. */
int experiment_import(struct tune_experiment *e, const char *folder, struct pawl_error *err);

/* ---- leftovers.c ---- */

/* Takes the name of a checkpoint that retention has given up. */
void experiment_note_dropped(struct trial *t, char *name);

/* ---- experiment_rebuild.c: the journal and the trials' files from each other ---- */

/* Writes the journal anew from the folders of the trials. */
int experiment_rebuild(struct tune_experiment *e, uint64_t *ret_n, struct pawl_error *err);
/* Sees to it that a trial's files hold all of its results. */
int experiment_mend(struct tune_experiment *e, struct trial *t, struct pawl_error *err);

#endif
