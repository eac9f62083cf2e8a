/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tune: a search over hyperparameters: trials that report, save, pause, clone, fail and resume.
 * This header is the complete interface of the search.
 *
 *     tune_experiment_open
 *     loop: tune_experiment_next -> start a process, or run the trial in another way
 *           tune_experiment_report for each of its reports -> pass the verdict to the trial
 *           tune_experiment_ended when it is gone
 *     tune_experiment_close
 *
 * The experiment (upper half of this file) starts no process and reads the clock only to stamp
 * results. Its decisions are a function of its document, its seed and the order of the calls. They
 * are in its journal before a call returns. If the process is killed at any point, the experiment
 * can be resumed: trials that were running start again from their last checkpoint.
 *
 *     <folder>/experiment.json            the document, with defaults filled in; a token
 *     <folder>/journal                    the authority: a line with its checksum per change
 *     <folder>/.lock                      held by the process that runs the experiment
 *     <folder>/<trial>/params.json        its configuration
 *     <folder>/<trial>/result.json        a line per result; progress.csv: the same as a table
 *     <folder>/<trial>/checkpoint_000010/ made by the trial: hidden name, sync, rename
 *
 * All paths inside a folder are relative: the folder may be moved. Not thread-safe: one thread at a
 * time per experiment. Errors as in pawl.h. Numbers in JSON that are not finite are the strings
 * "NaN", "Infinity", "-Infinity".
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
	TUNE_NEW = 0,          /* PAWL_EEXISTS if the folder has an experiment */
	TUNE_AUTO = 1,         /* resumes it, or begins */
	TUNE_LOCAL = 2,        /* resumes; PAWL_ENOTFOUND if there is none */
	TUNE_ERRORED_ONLY = 3, /* resumes, and tries failed trials again from their last checkpoint */
	/* Read only, even while another process runs it: takes no lock, writes nothing.
	 * PAWL_ECORRUPT: the journal is damaged; resuming rebuilds it. */
	TUNE_READ = 4
};

/* The judge's decision after a result. */
enum tune_wish { TUNE_GO_ON = 0, TUNE_STOP_TRIAL = 1, TUNE_STOP_ALL = 2 };

struct tune_open_opts {
	const char *folder; /* the experiment's own; NULL = <local_dir>/<name> of the document */
	enum tune_resume resume;
	const char *restore; /* TUNE_NEW, TUNE_AUTO: begin with the trials of this folder's experiment; NULL = none */
	/* Called in tune_experiment_report with the complete result, before the verdict: stop
	 * conditions as a function. NULL = none. */
	enum tune_wish (*judge)(void *arg, uint32_t trial, const char *result_json);
	void *judge_arg;
	/* PBT: called with the changed configuration that a trial is to continue with. Returns the
	 * one to use instead, to free(), or NULL = unchanged. */
	char *(*explore)(void *arg, const char *config_json);
	void *explore_arg;
	double (*now_s)(void *arg); /* seconds since 1970, for tests; NULL = the system's clock */
	void *now_arg;
};

/* spec_json: the document (docs/reference/tune.md); NULL = the one in the folder (not for a new
 * experiment). When resuming, the keys that decide the trials (space, search, seed, metric, mode,
 * scheduler) must be unchanged. num_samples may grow; other keys may change. PAWL_EBUSY: another
 * process runs it. Resuming waits 3 s for the lock, and a minute for the trials of a killed runner.
 * PAWL_EUSAGE names what is wrong in the document. */
int tune_experiment_open(const char *spec_json, const struct tune_open_opts *opts, struct tune_experiment **ret,
                         struct pawl_error *err);
/* Releases the lock, nothing else: running trials stay recorded as running, and start again when
 * the experiment is opened. */
void tune_experiment_close(struct tune_experiment *e);

/* The document with defaults filled in; the folder; a notice about the opening for people (a
 * repaired journal, trials that start again), "" if none. Owned by the experiment. */
const char *tune_experiment_spec(const struct tune_experiment *e);
const char *tune_experiment_folder(const struct tune_experiment *e);
const char *tune_experiment_notice(const struct tune_experiment *e);
/* Checks a document without a folder. Returns its canonical form (to free()) and the number of
 * trials it makes (0 = "search": "given"). */
int tune_spec_check(const char *spec_json, char **ret_canonical, uint64_t *ret_n_trials, struct pawl_error *err);
/* The configuration of one of its trials, to free(); for dry runs. */
int tune_spec_config(const char *spec_json, uint64_t sample, char **ret, struct pawl_error *err);

/* For "search": "given": adds a configuration (an object), and declares that no more will follow.
 * Both are refused for any other search. */
int tune_experiment_add(struct tune_experiment *e, const char *config_json, uint32_t *ret_trial,
                        struct pawl_error *err);
int tune_experiment_close_search(struct tune_experiment *e, struct pawl_error *err);

enum tune_next {
	TUNE_WAIT = 0, /* nothing to start now: limit reached, paused trials wait, or a configuration is missing */
	TUNE_START = 1,
	TUNE_DONE = 2 /* all trials have ended and no more will come, or the budget is spent and none runs */
};

struct tune_start {
	uint32_t trial;
	uint32_t attempt;   /* 1 for the first start of the trial */
	const char *name;   /* "trial_00003_lr=0.01" */
	const char *folder; /* absolute, or relative as the experiment's folder was given; contains params.json */
	const char *config_json;
	const char *checkpoint; /* name in the folder; NULL: begin from scratch */
	uint64_t iteration;     /* of the checkpoint; 0 = none */
};

/* Chooses the trial to start now and marks it as running. The experiment owns the strings, until
 * the next call on it. */
int tune_experiment_next(struct tune_experiment *e, enum tune_next *ret, struct tune_start *ret_start,
                         struct pawl_error *err);
/* Sets the process that runs the trial, for pid and hostname in its results. Not needed if the
 * trial reports these itself. */
int tune_experiment_runs(struct tune_experiment *e, uint32_t trial, int64_t pid, const char *host,
                         struct pawl_error *err);

enum tune_verdict_kind { TUNE_CONTINUE = 0, TUNE_PAUSE = 1, TUNE_STOP = 2, TUNE_EXPLOIT = 3 };

struct tune_verdict {
	enum tune_verdict_kind kind; /* all but CONTINUE: end the process, then call tune_experiment_ended */
	bool save;                   /* save now (before it ends), then call tune_experiment_checkpoint */
	bool stop_all;               /* the judge stops the experiment: no further trial is made; stop the others */
	const char *result_json;     /* the complete result as written; owned by the experiment until the next call */
	const char *reason;          /* for people: "training_iteration >= 10", "median stopping"; "" */
};

/* A report of a running trial: metrics (an object), and the checkpoint in its folder that belongs
 * to it, or NULL. The checkpoint's name is plain; its folder exists, complete and durable.
 * PAWL_EUSAGE: metrics is not an object, or the first report lacks the metric (the message names
 * those it has). Then end the trial as failed with this message. After another error no further
 * call succeeds: close the experiment and resume later. */
int tune_experiment_report(struct tune_experiment *e, uint32_t trial, const char *metrics_json, const char *checkpoint,
                           struct tune_verdict *ret, struct pawl_error *err);
/* A checkpoint of the last reported state that was saved after the report. */
int tune_experiment_checkpoint(struct tune_experiment *e, uint32_t trial, const char *checkpoint,
                               struct pawl_error *err);

enum tune_end {
	TUNE_FINISHED = 0, /* by itself, or after a verdict */
	TUNE_FAILED = 1,   /* counts towards max_failures; why: the message for people */
	TUNE_LOST = 2      /* its place was taken away (lost host, runner stops): restarted, no failure */
};

/* The trial's process has ended. ret_again (may be NULL): it will be started again. */
int tune_experiment_ended(struct tune_experiment *e, uint32_t trial, enum tune_end how, const char *why,
                          bool *ret_again, struct pawl_error *err);
/* Stops a trial for good: at once if it does not run. Otherwise its next report has the verdict
 * STOP; the runner ends its process and calls tune_experiment_ended. */
int tune_experiment_stop_trial(struct tune_experiment *e, uint32_t trial, const char *why, struct pawl_error *err);

/* ---- reading ---- */

enum tune_state { TUNE_PENDING = 0, TUNE_RUNNING = 1, TUNE_PAUSED = 2, TUNE_TERMINATED = 3, TUNE_ERROR = 4 };
/* "PENDING", .. A static string. */
const char *tune_state_name(enum tune_state state);

struct tune_counts {
	uint32_t trials;   /* created so far */
	uint64_t expected; /* in all; 0 = unknown ("given") */
	uint32_t state[5]; /* by enum tune_state */
	uint64_t reports;
	double time_s; /* since it was opened */
};
void tune_experiment_counts(const struct tune_experiment *e, struct tune_counts *ret);

struct tune_trial {
	uint32_t number;
	const char *name, *id;
	enum tune_state state;
	uint64_t iteration;  /* of the last result */
	double time_s;       /* training time in all */
	double metric, best; /* last result and best so far; NaN = none */
	const char *config_json;
	const char *result_json; /* the last, NULL = none */
	const char *checkpoint;  /* the newest, name in its folder; NULL = none */
	uint32_t n_checkpoints;
	uint32_t attempts, failures;
	const char *error; /* of the last failure; NULL = none */
	const char *host;  /* host that runs it, or ran it last; NULL = unknown */
};
/* Strings are owned by the experiment, until the next call that changes it. PAWL_ENOTFOUND: no
 * trial has this number. */
int tune_trial_info(const struct tune_experiment *e, uint32_t trial, struct tune_trial *ret, struct pawl_error *err);

struct tune_checkpoint {
	const char *name; /* in the trial's folder */
	uint64_t iteration;
	double score, metric; /* NaN = none */
	/* Its result: the n-th of a trial, from 1; 0 = none. That of a clone is the donor's. */
	uint32_t of_trial;
	uint64_t of_result;
};
/* The i-th of the checkpoints that are kept, oldest first. */
int tune_trial_checkpoint(const struct tune_experiment *e, uint32_t trial, uint32_t i, struct tune_checkpoint *ret,
                          struct pawl_error *err);

/* The best trial by a metric. metric, mode: NULL = the experiment's. scope: "last", "last-5-avg",
 * "last-10-avg", "avg" or "all" (the best ever reported); NULL = "last". Values that are not finite
 * are never best; the older trial wins a tie. PAWL_ENOTFOUND: no trial has reported it. ret_value
 * may be NULL. */
int tune_best(const struct tune_experiment *e, const char *metric, const char *mode, const char *scope,
              uint32_t *ret_trial, double *ret_value, struct pawl_error *err);
/* The kept checkpoint of a trial whose result was best. The experiment owns the name. */
int tune_best_checkpoint(const struct tune_experiment *e, uint32_t trial, const char *metric, const char *mode,
                         const char **ret, struct pawl_error *err);

/* ---- leftovers in the folder to which an experiment is synced ---- */

/* Use around a sync: open before it. After it, ask which folders ("<trial>/<checkpoint>") may be
 * removed at the destination. These are checkpoints that retention has given up, of trials whose
 * kept checkpoints have all been sent. Another process or thread may run the experiment. The handle
 * owns the names; ask once. PAWL_ENOTFOUND: the folder has no experiment. Close accepts NULL. */
struct tune_leftovers;
int tune_leftovers_open(const char *folder, struct tune_leftovers **ret, struct pawl_error *err);
int tune_leftovers_after(struct tune_leftovers *l, const char *const **ret, size_t *ret_n, struct pawl_error *err);
void tune_leftovers_close(struct tune_leftovers *l);

/* ---- local processes ---- */

/* Runs the trials of an experiment as child processes. Each has its own process group, a channel
 * (docs/reference/tune.md: JSON lines over an inherited socket), and its standard output and error
 * in its folder. When this process ends, for any reason, the trials are ended before the
 * experiment's lock is released. One thread at a time. */
struct tune_runner;

struct tune_runner_opts {
	const char *const *command; /* of every trial, ends with NULL; NULL = "run" of the
	                             * document. {name} in an argument: the value of that key of
	                             * the configuration; {{ and }}: braces */
	const char *const *env;     /* "NAME=value", ends with NULL: added to the document's */
	double cpus;                /* to assign; 0 = as many as this process may use */
	int64_t gpus;               /* the same; 0 = those of CUDA_VISIBLE_DEVICES, else all; -1 = none */
	const char *const *forker;  /* a program that forks a process for each trial, and its
	                             * arguments (forker.h); ends with NULL. If it cannot fork,
	                             * `command` is run. NULL = none */
};

enum tune_event_kind {
	TUNE_EVENT_NONE = 0,       /* timeout, nothing happened */
	TUNE_EVENT_STARTED = 1,    /* text: its checkpoint, or NULL */
	TUNE_EVENT_REPORT = 2,     /* text: the result; verdict, reason */
	TUNE_EVENT_CHECKPOINT = 3, /* saved after its report; text: its name */
	TUNE_EVENT_ENDED = 4,      /* how, again; text: why, or "" */
	TUNE_EVENT_NOTICE = 5,     /* for people: text */
	TUNE_EVENT_DONE = 6        /* no trial runs or will run: all ended, runner stopped, or budget spent */
};

struct tune_event {
	enum tune_event_kind kind;
	uint32_t trial;
	enum tune_verdict_kind verdict;
	enum tune_end how;
	bool again;         /* ENDED: it starts again */
	const char *text;   /* owned by the runner until its next call */
	const char *reason; /* REPORT: of the verdict, or "" */
};

/* e is borrowed until tune_runner_free. PAWL_EUSAGE: a trial needs more than the machine has, no
 * command, an unknown placeholder. */
int tune_runner_new(struct tune_experiment *e, const struct tune_runner_opts *opts, struct tune_runner **ret,
                    struct pawl_error *err);
/* Starts trials and handles events. Waits at most timeout_ms until something happens (< 0: no
 * limit). After an error nothing more is done: free the runner, close the experiment, resume
 * later. */
int tune_runner_poll(struct tune_runner *r, int timeout_ms, struct tune_event *ret, struct pawl_error *err);
/* Starts no more trials. Each running trial is asked to save and to end at its next report, within
 * the document's grace_s. Then it gets SIGTERM, and after another grace_s SIGKILL. These trials
 * count as lost: they continue when the experiment is run again. `now`: SIGTERM at once. Poll until
 * DONE. */
void tune_runner_stop(struct tune_runner *r, bool now);
/* Ends one trial for good, in the same way. */
int tune_runner_stop_trial(struct tune_runner *r, uint32_t trial, const char *why, struct pawl_error *err);
/* The number of trials that run now. */
uint32_t tune_runner_count(const struct tune_runner *r);
/* Kills trials that still run. NULL is allowed. */
void tune_runner_free(struct tune_runner *r);

/* ---- in a trial ---- */

struct tune_answer {
	enum tune_verdict_kind verdict; /* all but CONTINUE: the trial must end now */
	bool save;                      /* save first */
	char checkpoint[256];           /* name given to the checkpoint that was passed in, or "" */
};

/* Reports to the runner through PAWL_TUNE_FD and waits for its answer. checkpoint: a folder or file
 * to move into the trial's folder, made complete and durable first; or NULL. step: for its name,
 * checkpoint_<step>; < 0 = the reported iteration. PAWL_ENOTFOUND: this process is not a trial.
 * PAWL_EUSAGE: why the runner refused it. PAWL_ECANCELLED: the runner is gone. */
int tune_trial_report(const char *metrics_json, const char *checkpoint, int64_t step, struct tune_answer *ret,
                      struct pawl_error *err);

/* ---- documents ---- */

/* A YAML document as JSON, to free(). name: for messages. PAWL_EUSAGE: "NAME:LINE: ..". */
int tune_yaml_to_json(const char *text, size_t len, const char *name, char **ret, struct pawl_error *err);
/* The command of a configuration, one argument a line, to free(). PAWL_EUSAGE: names in braces of
 * the document's "run" that its space does not have. */
int tune_command_text(const char *spec_json, const char *config_json, char **ret, struct pawl_error *err);

#endif
