/* SPDX-License-Identifier: Apache-2.0 */
/*
 * runner_inner: what runner.c (the loop, the face), runner_start.c and runner_trial.c (one trial: its start; what it says, its
 * end) share. A trial's way:
 *
 *     start ──> RUNNING ── told to end: by a verdict, or by the runner ──> LEAVING ── grace_s ──> TERM ── grace_s ──> KILL
 *                  │                                                          │                    │               │
 *                  └─────────── its process has gone ─────────────────────────┴────────────────────┴───────────────┴──> over
 */
#ifndef PAWL_TUNE_RUNNER_INNER_H
#define PAWL_TUNE_RUNNER_INNER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "cgroup.h"
#include "channel.h"
#include "command.h"
#include "forker.h"
#include "guard.h"
#include "slots.h"
#include "tune.h"

enum phase { PHASE_RUNNING, PHASE_LEAVING, PHASE_TERM, PHASE_KILL };

struct process {
	uint32_t trial;
	pid_t pid; /* and its process group */
	int pidfd; /* or -1: the system has none */
	int group; /* of control; or -1 */
	bool forked; /* by the forker, which tells how it ends */
	struct channel channel;
	struct share share;
	enum phase phase;
	double deadline; /* of the phase; 0 = none */
	double heard;    /* when it last said something */
	uint64_t iteration;
	bool asked;                     /* by the runner: to save and end at the next report */
	bool told;                      /* it has its verdict */
	enum tune_verdict_kind verdict; /* that one */
	unsigned ignored;               /* reports after that */
	bool lost;                      /* what becomes of it is no failure */
	bool done;                      /* it says that it is finished */
	char *failure;                  /* why it has failed */
	char *errors;                   /* where its standard error goes */
	int64_t errors_from;            /* and where this attempt's begins */
};

struct queued {
	struct tune_event event; /* its texts are our own */
};

struct tune_runner {
	struct tune_experiment *e;
	struct guard guard;
	struct forker forker;
	struct slots slots;
	struct cgroups cgroups; /* where a trial has a limit of memory */
	struct strings env;
	json_t *run; /* arguments */
	double cpu, gpu, grace_s, heartbeat_s, budget_s;
	double memory_bytes, look; /* of a trial, 0 = no limit; when it is looked at next */
	struct process **running;
	size_t n, cap;
	struct queued *queue;
	size_t n_queued, queue_cap;
	struct tune_event last; /* given out: its texts are freed at the next call */
	bool stopping, started_all, done;
};

double runner_now(void);
/* Copies the texts. */
int runner_queue(struct tune_runner *r, const struct tune_event *event, struct pawl_error *err);

/* Starts the process of p, whose trial and share are set, with its files and its channel. why: what a trial may fail with. */
int process_launch(struct tune_runner *r, struct process *p, const struct tune_start *start, struct pawl_error *why);
/* Starts the process of a trial. A program that cannot be run is the trial's failure, no error. */
int process_start(struct tune_runner *r, const struct tune_start *start, const struct share *share, struct pawl_error *err);
/* Takes what it has said. */
int process_hear(struct tune_runner *r, struct process *p, struct pawl_error *err);
/* It has gone: the last it said, its end, its place. p is freed. */
int process_end(struct tune_runner *r, struct process *p, struct pawl_error *err);
bool process_has_gone(struct tune_runner *r, const struct process *p);
/* The next phase, when its time has come or at once. */
void process_press(struct tune_runner *r, struct process *p);
/* It is to end at its next report, or when its grace is over. */
void process_ask(struct tune_runner *r, struct process *p);
/* Kills it without asking and forgets it. */
void process_drop(struct tune_runner *r, struct process *p);

#endif
