/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tune: a search over hyperparameters: trials that report, save, pause, clone, fail and go on. The only face of this part;
 * the command and the Python extension use nothing else of it.
 *
 *     tune_experiment_open -> loop { tune_experiment_next -> start a process, or whatever runs a trial
 *                                    tune_experiment_report for each of its reports -> tell it the verdict
 *                                    tune_experiment_ended when it is gone } -> tune_experiment_close
 *
 * The experiment (this file, upper half) starts no process and reads no clock but to stamp results; everything it decides is a
 * function of its document, its seed and the order of the calls, and is in its journal before a call returns. Killed at any
 * point, it goes on from there: what was running starts again from its last checkpoint.
 *
 *     <folder>/experiment.json                 the document, with defaults filled in; a token
 *     <folder>/journal                         a line for each call that changed something, with its sum; the truth
 *     <folder>/.lock                           held by the process that runs the experiment
 *     <folder>/<trial name>/params.json        its configuration
 *     <folder>/<trial name>/result.json        a line for each result; progress.csv: the same as a table
 *     <folder>/<trial name>/checkpoint_000010/ written by the trial: under a hidden name beside its place, synced, renamed
 *
 * Everything in a folder is relative: it may be moved. Not thread-safe: one experiment, one thread at a time. Errors as in
 * pawl.h. Numbers in JSON that are not finite are the strings "NaN", "Infinity", "-Infinity".
 */
#ifndef PAWL_TUNE_H
#define PAWL_TUNE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pawl.h"

/* ---- the experiment ---- */

struct tune_experiment;

enum tune_resume {
	TUNE_NEW = 0,          /* an experiment that lies there already is PAWL_EEXISTS */
	TUNE_AUTO = 1,         /* goes on with it, or begins */
	TUNE_LOCAL = 2,        /* goes on; PAWL_ENOTFOUND if there is none */
	TUNE_ERRORED_ONLY = 3, /* goes on, and trials that had failed are tried again, from their last checkpoint */
	TUNE_READ = 4          /* looks only, also while another process runs it: no lock, nothing is written */
};

/* What `judge` may want after a result. */
enum tune_wish { TUNE_GO_ON = 0, TUNE_STOP_TRIAL = 1, TUNE_STOP_ALL = 2 };

struct tune_open_opts {
	const char *folder;  /* the experiment's own; NULL = <local_dir>/<name> of the document */
	enum tune_resume resume;
	const char *restore; /* TUNE_NEW, TUNE_AUTO: begin with the trials of the experiment in this folder; NULL = none */
	/* Called in tune_experiment_report with the complete result, before the verdict; NULL = none (stop conditions that are a
	 * function). */
	enum tune_wish (*judge)(void *arg, uint32_t trial, const char *result_json);
	void *judge_arg;
	/* PBT: called with the configuration that a trial is to go on with, after values were changed; gives the one to take instead, to
	 * free(), or NULL: as it is. */
	char *(*explore)(void *arg, const char *config_json);
	void *explore_arg;
	double (*now_s)(void *arg); /* seconds since 1970, for tests; NULL = the system's clock */
	void *now_arg;
};

/* spec_json: the document (docs/tune.md); NULL = the one of the folder (not for a new one). On going on, what decides the
 * trials (space, search, seed, metric, mode, scheduler) must be as it was; num_samples may be larger, the rest may change.
 * PAWL_EBUSY: another process runs it; going on waits 3 s for it, and a minute for the trials of one that was killed. PAWL_EUSAGE
 * names what is wrong in the document. */
int tune_experiment_open(const char *spec_json, const struct tune_open_opts *opts, struct tune_experiment **ret,
                         struct pawl_error *err);
/* Releases the lock; nothing else: what runs is found as running, and starts again when the experiment is opened. */
void tune_experiment_close(struct tune_experiment *e);

/* The document with defaults filled in; the folder; a notice of the opening for people (a journal that was mended, trials that
 * start again), "" if none. The experiment's. */
const char *tune_experiment_spec(const struct tune_experiment *e);
const char *tune_experiment_folder(const struct tune_experiment *e);
const char *tune_experiment_notice(const struct tune_experiment *e);
/* Checks a document without a folder: its canonical form (to free()), how many trials it makes (0 = "search": "given"). */
int tune_spec_check(const char *spec_json, char **ret_canonical, uint64_t *ret_n_trials, struct pawl_error *err);
/* The configuration of one of its trials, to free(); for dry runs. */
int tune_spec_config(const char *spec_json, uint64_t sample, char **ret, struct pawl_error *err);

/* "search": "given": a further configuration (an object); the driver says when no more will come. A document with another
 * search refuses both. */
int tune_experiment_add(struct tune_experiment *e, const char *config_json, uint32_t *ret_trial, struct pawl_error *err);
int tune_experiment_close_search(struct tune_experiment *e, struct pawl_error *err);

enum tune_next {
	TUNE_WAIT = 0,  /* nothing to start now: the limit is reached, paused trials wait for others, or a configuration is missing */
	TUNE_START = 1,
	TUNE_DONE = 2   /* all trials have ended and no more will come (or the time budget is spent and nothing runs) */
};

struct tune_start {
	uint32_t trial;
	uint32_t attempt;        /* 1 for the first start of the trial */
	const char *name;        /* "trial_00003_lr=0.01" */
	const char *folder;      /* absolute or as the experiment's folder was given; exists, params.json is written */
	const char *config_json;
	const char *checkpoint;  /* name in the folder, or NULL: begin anew */
	uint64_t iteration;      /* of the checkpoint; 0 = none */
};

/* Which trial to start now, and marks it as running. Strings are the experiment's, until the next call of it. */
int tune_experiment_next(struct tune_experiment *e, enum tune_next *ret, struct tune_start *ret_start, struct pawl_error *err);
/* Who runs it, for pid and hostname of its results; not needed where the trial reports these itself. */
int tune_experiment_runs(struct tune_experiment *e, uint32_t trial, int64_t pid, const char *host, struct pawl_error *err);

enum tune_verdict_kind { TUNE_CONTINUE = 0, TUNE_PAUSE = 1, TUNE_STOP = 2, TUNE_EXPLOIT = 3 };

struct tune_verdict {
	enum tune_verdict_kind kind; /* all but CONTINUE: the process is to end; then tune_experiment_ended */
	bool save;               /* save now (before it ends): tune_experiment_checkpoint when that is done */
	bool stop_all;           /* the judge wants the whole experiment to stop */
	const char *result_json; /* the complete result as it was written; the experiment's, until the next call */
	const char *reason;      /* for people: "training_iteration >= 10", "median stopping"; "" */
};

/* A report of a running trial: metrics (an object), and the checkpoint in its folder that belongs to it, or NULL. The name is
 * plain, the folder is there, whole and durable. PAWL_EUSAGE: no object, or the metric is not in the first report (the message
 * names what is): end the trial as failed with this message. After another error nothing more is taken: close, and go on later. */
int tune_experiment_report(struct tune_experiment *e, uint32_t trial, const char *metrics_json, const char *checkpoint,
                           struct tune_verdict *ret, struct pawl_error *err);
/* A checkpoint of the last reported state, saved later than its report. */
int tune_experiment_checkpoint(struct tune_experiment *e, uint32_t trial, const char *checkpoint, struct pawl_error *err);

enum tune_end {
	TUNE_FINISHED = 0, /* by itself, or after a verdict */
	TUNE_FAILED = 1,   /* counts towards max_failures; why: what people are told */
	TUNE_LOST = 2      /* its place was taken away (a lost host, the runner stops): starts again, counts as no failure */
};

/* The trial's process is gone. `ret_again` (NULL is fine): it will be started again. */
int tune_experiment_ended(struct tune_experiment *e, uint32_t trial, enum tune_end how, const char *why, bool *ret_again,
                          struct pawl_error *err);
/* Stops a trial for good: at once if it does not run, else the runner ends its process and says so by tune_experiment_ended. */
int tune_experiment_stop_trial(struct tune_experiment *e, uint32_t trial, const char *why, struct pawl_error *err);

/* ---- reading ---- */

enum tune_state { TUNE_PENDING = 0, TUNE_RUNNING = 1, TUNE_PAUSED = 2, TUNE_TERMINATED = 3, TUNE_ERROR = 4 };
/* "PENDING", .. Static. */
const char *tune_state_name(enum tune_state state);

struct tune_counts {
	uint32_t trials;    /* made so far */
	uint64_t expected;  /* in all; 0 = not known ("given") */
	uint32_t state[5];  /* by enum tune_state */
	uint64_t reports;
	double time_s;      /* since it was opened */
};
void tune_experiment_counts(const struct tune_experiment *e, struct tune_counts *ret);

struct tune_trial {
	uint32_t number;
	const char *name, *id;
	enum tune_state state;
	uint64_t iteration;        /* of the last result */
	double time_s;             /* trained in all */
	double metric, best;       /* of the last result, and the best so far; NaN = none */
	const char *config_json;
	const char *result_json;   /* the last, NULL = none */
	const char *checkpoint;    /* the newest, name in its folder; NULL = none */
	uint32_t n_checkpoints;
	uint32_t attempts, failures;
	const char *error;         /* of the last failure; NULL = none */
	const char *host;          /* who runs it, or ran it last; NULL = not known */
};
/* Strings are the experiment's, until the next call that changes it. PAWL_ENOTFOUND beyond the last. */
int tune_trial_info(const struct tune_experiment *e, uint32_t trial, struct tune_trial *ret, struct pawl_error *err);

struct tune_checkpoint {
	const char *name;      /* in the trial's folder */
	uint64_t iteration;
	double score, metric;  /* NaN = none */
};
/* The i-th of its checkpoints that are kept, oldest first. */
int tune_trial_checkpoint(const struct tune_experiment *e, uint32_t trial, uint32_t i, struct tune_checkpoint *ret,
                          struct pawl_error *err);

/* The best trial by a metric. metric, mode: NULL = the experiment's. scope: "last", "last-5-avg", "last-10-avg", "avg" or
 * "all" (the best ever reported); NULL = "last". Values that are not finite are never best; the older trial wins a tie.
 * PAWL_ENOTFOUND: no trial has reported it. ret_value may be NULL. */
int tune_best(const struct tune_experiment *e, const char *metric, const char *mode, const char *scope, uint32_t *ret_trial,
              double *ret_value, struct pawl_error *err);
/* The kept checkpoint of a trial whose result was best; the name is the experiment's. */
int tune_best_checkpoint(const struct tune_experiment *e, uint32_t trial, const char *metric, const char *mode, const char **ret,
                         struct pawl_error *err);

/* ---- what is kept at the place that an experiment is synced to ---- */

/* Around a sync: open before it, then ask which folders ("<trial>/<checkpoint>") may be removed at the place: checkpoints that
 * retention has given up, where all that their trial kept before the sync has come there. Another process or thread may run the
 * experiment. Names are the handle's; ask once. PAWL_ENOTFOUND: there is no experiment. Close accepts NULL. */
struct tune_leftovers;
int tune_leftovers_open(const char *folder, struct tune_leftovers **ret, struct pawl_error *err);
int tune_leftovers_after(struct tune_leftovers *l, const char *const **ret, size_t *ret_n, struct pawl_error *err);
void tune_leftovers_close(struct tune_leftovers *l);

/* ---- local processes ---- */

/* Runs the trials of an experiment as child processes of this one, each in a process group of its own, with a channel (docs/tune.md:
 * JSON lines over a socket that it inherits) and its standard output and error in its folder. When this process is gone, however
 * it ended, so are they, before the experiment's lock is free. One thread at a time. */
struct tune_runner;

struct tune_runner_opts {
	const char *const *command; /* of every trial, NULL at its end; NULL = "run" of the document. {name} in an argument: the value
	                             * of that key of the configuration; {{ and }}: braces */
	const char *const *env;     /* "NAME=value", NULL at its end: more of these, on top of the document's */
	double cpus;                /* to share out; 0 = as many as this process may use */
	int64_t gpus;               /* the same; 0 = those of CUDA_VISIBLE_DEVICES, else those that are there; -1 = none */
	const char *const *forker;  /* a program that forks a process for each trial, and its arguments (forker.h); NULL at its end.
	                             * Where it cannot, `command` is run. NULL = none */
};

enum tune_event_kind {
	TUNE_EVENT_NONE = 0,       /* the time is over, nothing happened */
	TUNE_EVENT_STARTED = 1,    /* text: its checkpoint, or NULL */
	TUNE_EVENT_REPORT = 2,     /* text: the result; verdict, reason */
	TUNE_EVENT_CHECKPOINT = 3, /* one that was saved after its report; text: its name */
	TUNE_EVENT_ENDED = 4,      /* how, again; text: why, "" */
	TUNE_EVENT_NOTICE = 5,     /* for people: text */
	TUNE_EVENT_DONE = 6        /* no trial runs, and none will: all have ended, the runner was stopped, or the budget is spent */
};

struct tune_event {
	enum tune_event_kind kind;
	uint32_t trial;
	enum tune_verdict_kind verdict;
	enum tune_end how;
	bool again;         /* ENDED: it starts again */
	const char *text;   /* the runner's, until its next call */
	const char *reason; /* REPORT: of the verdict, "" */
};

/* e is borrowed until tune_runner_free. PAWL_EUSAGE: a trial needs more than there is, no command, an unknown placeholder. */
int tune_runner_new(struct tune_experiment *e, const struct tune_runner_opts *opts, struct tune_runner **ret,
                    struct pawl_error *err);
/* Starts what may start, takes what came, for at most timeout_ms until something happened (< 0: no limit). After an error
 * nothing more is done: free the runner, close the experiment, go on later. */
int tune_runner_poll(struct tune_runner *r, int timeout_ms, struct tune_event *ret, struct pawl_error *err);
/* No more starts. Each trial is asked to save and to end at its next report, for which it has the document's grace_s; then comes
 * SIGTERM, and after grace_s more SIGKILL. They count as lost: they go on when the experiment is run again. `now`: SIGTERM at
 * once. Poll until DONE. */
void tune_runner_stop(struct tune_runner *r, bool now);
/* Ends one trial for good, likewise. */
int tune_runner_stop_trial(struct tune_runner *r, uint32_t trial, const char *why, struct pawl_error *err);
/* How many trials run now. */
uint32_t tune_runner_count(const struct tune_runner *r);
/* What still runs is killed. NULL is fine. */
void tune_runner_free(struct tune_runner *r);

/* ---- in a trial ---- */

struct tune_answer {
	enum tune_verdict_kind verdict; /* all but CONTINUE: the trial is to end now */
	bool save;                      /* save first */
	char checkpoint[256];           /* how the checkpoint is called that was handed in, "" */
};

/* Reports to the runner by PAWL_TUNE_FD and waits for its answer. checkpoint: a folder or file that is moved into the trial's
 * folder, whole and durable first, or NULL. step: of its name, checkpoint_<step>; < 0 = the iteration that is reported.
 * PAWL_ENOTFOUND: this is no trial. PAWL_EUSAGE: what the runner has against it. PAWL_ECANCELLED: the runner is gone. */
int tune_trial_report(const char *metrics_json, const char *checkpoint, int64_t step, struct tune_answer *ret,
                      struct pawl_error *err);

/* ---- documents ---- */

/* A document of TOML 1.0 as JSON, to free(); dates are not read. name: what messages call it. PAWL_EUSAGE: "NAME:LINE: ..". */
int tune_toml_to_json(const char *text, size_t len, const char *name, char **ret, struct pawl_error *err);
/* The names in braces of a document's "run" that its space does not have: PAWL_EUSAGE. The command of a configuration, one
 * argument a line, to free(). */
int tune_command_text(const char *spec_json, const char *config_json, char **ret, struct pawl_error *err);

#endif
