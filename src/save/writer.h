/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writer: the threads of a run that is open for writing, admission of saves, and what saves share:
 * plan, packs to link, recycled files. One save is being written at a time. With PAWL_BUSY_REPLACE
 * one more may wait, staged.
 */
#ifndef PAWL_WRITER_H
#define PAWL_WRITER_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/pool.h"
#include "device/device_set.h"
#include "layout/plan.h"
#include "save/save.h"

struct writer {
	struct pawl *run;
	struct save_env env;
	struct pool *copiers; /* at least one thread: the caller copies, too, except for a lazy save */
	struct pool *writers;
	struct pool *saver; /* one thread: save_run */
	struct device_set devices;
	atomic_bool is_staging; /* a save uses the memory of these devices */

	pthread_mutex_t lock; /* guards below */
	pthread_cond_t changed;
	struct save *active, *queued;
	unsigned settling;      /* saves that are committed, while retention and pointers still run */
	bool admitting;         /* a caller is between admission and hand-over */
	struct save *preparing; /* that caller's, as soon as it has a token */
	bool closing;
	bool warming;        /* the job that faults memory in is queued or running */
	bool is_cold;        /* some memory is not faulted in yet */
	struct plan *plan;   /* cached, NULL while a save has it */
	struct reuse *reuse; /* of the last commit; changed only while no save is active */
	struct past *past;   /* for the next new plan; NULL = nothing is known */
};

int writer_new(struct pawl *run, struct writer **ret, struct pawl_error *err);
/* Waits for all saves, joins the threads. */
void writer_free(struct writer *w);
/* The caller's half of a save; see pawl_save. */
int writer_save(struct writer *w, const struct pawl_save_opts *opts, const struct pawl_state *state,
                struct pawl_ticket **ret, struct pawl_error *err);
/* Faults in the memory for a save of about nbytes, in the background; see pawl_prepare. */
void writer_prepare(struct writer *w, uint64_t nbytes);
/* Faults in what is still cold, in the background. Without memory for that, the next save does
 * it. */
void writer_warm(struct writer *w);
/* A plan of the next save of such a state; nearly, since pack 0's header has no texts yet. */
int writer_plan(struct writer *w, const struct pawl_state *share, struct plan **ret, struct pawl_error *err);
int writer_prepare_state(struct writer *w, const struct pawl_state *state, struct pawl_error *err);
/* This rank cannot take part in the save that the others begin now: waits for its turn and reports
 * that to them. Returns code. */
int writer_skip(struct writer *w, int code, struct pawl_error *err);
/* Called by save_run when s has been committed or has failed: takes plan and memory back, lets the
 * next save begin. */
void writer_release(struct writer *w, struct save *s, struct reuse *reuse);
/* Called by save_run when s has settled. */
void writer_settled(struct writer *w);
int writer_fence(struct writer *w, int64_t deadline_ms);
int writer_wait(struct writer *w, int64_t deadline_ms);
/* Waits until the saves that have begun are in the catalog or have failed, not for later ones. */
int writer_wait_committed(struct writer *w, int64_t deadline_ms);
/* The files of the checkpoint with this key are damaged: later saves link none of them. */
void writer_distrust(struct writer *w, const char *folder);
/* Waits only for saves that are being written, not for those that settle. */
int writer_wait_turn(struct writer *w, int64_t deadline_ms);
#define WRITER_ASK_MS 100 /* between questions to the caller of a save that waits */
/* Asks the caller of pawl_save. opts has `interrupted`. PAWL_ECANCELLED: it interrupts. */
int writer_ask(const struct pawl_save_opts *opts, struct pawl_error *err);
/* Waits for a turn by a rule (enum pawl_on_busy). opts NULL: no caller is asked. After success
 * w->admitting is set. deferred: another save is still being written. */
int writer_admit(struct writer *w, int policy, const struct pawl_save_opts *opts, bool *ret_deferred,
                 struct pawl_error *err);
/* Waits until no save is being written. */
int writer_wait_active(struct writer *w, const struct pawl_save_opts *opts, struct pawl_error *err);
/* What the save that is being written waits for: "; waiting for ..." or "". */
void writer_waits_for(struct writer *w, char *ret, size_t cap);

#endif
