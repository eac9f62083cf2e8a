/* SPDX-License-Identifier: Apache-2.0 */
/*
 * runner_own: declarations shared by the files of the runner: the loop, and the start, messages
 * and end of one trial. The phases of a trial:
 *
 *     start ──> RUNNING ── told to end ──> LEAVING ── grace_s ──> TERM ── grace_s ──> KILL
 *                 │                           │                    │                   │
 *                 └── its process has ended ──┴────────────────────┴───────────────────┴──> over
 *
 * A verdict or the runner tells it to end.
 */
#ifndef PAWL_TUNE_RUNNER_OWN_H
#define PAWL_TUNE_RUNNER_OWN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/value.h"
#include "base/vec.h"
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
	pid_t pid;   /* also its process group */
	int pidfd;   /* -1: the system does not support it */
	int group;   /* folder of its control group; -1 = none */
	bool forked; /* by the forker, which reports its end */
	struct channel channel;
	struct share share;
	enum phase phase;
	double deadline; /* end of the phase; 0 = none */
	double heard;    /* time of its last message */
	uint64_t iteration;
	bool asked;                     /* the runner has asked it to save and end at the next report */
	bool told;                      /* its verdict was sent */
	enum tune_verdict_kind verdict; /* that verdict */
	unsigned ignored;               /* reports after the verdict */
	bool lost;                      /* its end does not count as a failure */
	bool done;                      /* it has reported that it is finished */
	char *failure;                  /* why it has failed */
	char *errors;                   /* path of its standard error */
	int64_t errors_from;            /* offset at which this attempt's output begins */
};

struct queued {
	struct tune_event event; /* the texts are owned here */
};

struct tune_runner {
	struct tune_experiment *e;
	struct guard guard;
	struct forker forker;
	struct slots slots;
	struct cgroups cgroups; /* used if a trial has a limit of memory */
	struct strings env;
	struct value *run; /* arguments */
	double cpu, gpu, grace_s, heartbeat_s, budget_s;
	double memory_bytes, look; /* memory of a trial, 0 = no limit; time of the next check */
	struct process **running;
	size_t n, cap;
	VEC(struct queued) queue;
	struct tune_event last; /* returned by the last call: its texts are freed at the next one */
	bool stopping, started_all, done;
	bool full; /* the system has refused another process: trials wait until one has ended */
};

double runner_now(void);
/* Copies the texts. */
int runner_queue(struct tune_runner *r, const struct tune_event *event, struct pawl_error *err);

/* Starts the process of p, whose trial and share are set, with its files and its channel. why: the
 * message if the trial fails to start. */
int process_launch(struct tune_runner *r, struct process *p, const struct tune_start *start, struct pawl_error *why);
/* Starts the process of a trial. If the program cannot be run, the trial fails; that does not count
 * as an error here. */
int process_start(struct tune_runner *r, const struct tune_start *start, const struct share *share,
                  struct pawl_error *err);
/* Reads and handles its messages. */
int process_hear(struct tune_runner *r, struct process *p, struct pawl_error *err);
/* Handles a process that has ended: its last messages, its result, its place. Frees p. */
int process_end(struct tune_runner *r, struct process *p, struct pawl_error *err);
bool process_has_gone(struct tune_runner *r, const struct process *p);
/* Enters the next phase: when its time is over, or at once. */
void process_press(struct tune_runner *r, struct process *p);
/* Asks it to end at its next report; ends it when the grace period is over. */
void process_ask(struct tune_runner *r, struct process *p);
/* Kills the process without asking and forgets it. */
void process_drop(struct tune_runner *r, struct process *p);

#endif
