/* SPDX-License-Identifier: Apache-2.0 */
/* writer_turn: see writer_turn.h. */
#include "save/writer_turn.h"

#include "base/clock.h"
#include "base/err.h"

/* Drops the staged save that waits behind the running one. The lock is held, and released
 * meanwhile. */
static void
replace_queued(struct writer *w)
{
	struct save *old = w->queued;
	struct pawl_error err = {0};

	if (!old)
		return;
	w->queued = NULL;
	pthread_mutex_unlock(&w->lock);
	stage_wait(&old->image);
	err_set(&err, PAWL_ECANCELLED, "save of step %lld was replaced by a newer one before it was written",
	        (long long)old->request.step);
	mark_outcome(w->run, old, false);
	ticket_fail(old->progress.ticket, PAWL_ECANCELLED, &err);
	ticket_stage(old->progress.ticket, PAWL_STAGE_FAILED);
	save_unref(old);
	pthread_mutex_lock(&w->lock);
}

int
writer_turn_ask(const struct pawl_save_opts *opts, struct pawl_error *err)
{
	if (!opts->interrupted(opts->interrupted_arg))
		return 0;
	return err_set(err, PAWL_ECANCELLED, "save of step %lld was interrupted by its caller while it waited",
	               (long long)opts->step);
}

/* The lock is held, and released meanwhile. opts may be NULL. PAWL_ECANCELLED: the caller
 * interrupts. */
static int
wait_changed(struct writer *w, const struct pawl_save_opts *opts, struct pawl_error *err)
{
	const bool asks = opts && opts->interrupted;

	pool_cond_wait_until(&w->changed, &w->lock, asks ? clock_deadline_ms(WRITER_TURN_ASK_MS) : -1);
	if (!asks)
		return 0;
	pthread_mutex_unlock(&w->lock);
	const int rc = writer_turn_ask(opts, err);

	pthread_mutex_lock(&w->lock);
	return rc;
}

int
writer_turn_admit(struct writer *w, int policy, const struct pawl_save_opts *opts, bool *ret_deferred,
                  struct pawl_error *err)
{
	int rc;

	pthread_mutex_lock(&w->lock);
	for (;;) {
		if (!w->admitting && !w->active && !w->queued)
			break;
		if (policy == PAWL_BUSY_SKIP) {
			pthread_mutex_unlock(&w->lock);
			return err_set(err, PAWL_EBUSY, "skipped: another save of this run is still being written");
		}
		if (policy == PAWL_BUSY_REPLACE && !w->admitting) {
			w->admitting = true;
			replace_queued(w);
			*ret_deferred = w->active != NULL;
			pthread_mutex_unlock(&w->lock);
			return 0;
		}
		rc = wait_changed(w, opts, err);
		if (rc < 0) {
			pthread_mutex_unlock(&w->lock);
			return rc;
		}
	}
	w->admitting = true;
	*ret_deferred = false;
	pthread_mutex_unlock(&w->lock);
	return 0;
}

void
writer_turn_give_up(struct writer *w, struct save *s)
{
	pthread_mutex_lock(&w->lock);
	w->admitting = false;
	w->preparing = NULL;
	if (s && s->image.plan && !w->plan && !s->image.packs) {
		w->plan = s->image.plan;
		s->image.plan = NULL;
	}
	pthread_cond_broadcast(&w->changed);
	pthread_mutex_unlock(&w->lock);
	save_unref(s);
}

int
writer_turn_hand_over(struct writer *w, struct save *s, struct pawl_error *err)
{
	int rc = 0;

	pthread_mutex_lock(&w->lock);
	atomic_fetch_add(&s->refs, 1);
	s->progress.stagers = 1; /* this call, until stage_start: the saver cannot overtake the copy */
	s->progress.is_held = !s->image.lazy && save_offers_late(&s->image);
	if (w->active) {
		w->queued = s;
	} else {
		rc = pool_add(w->saver, NULL, save_run, s, err);
		if (rc == 0)
			w->active = s;
	}
	if (rc < 0) {
		atomic_fetch_sub(&s->refs, 1);
	} else {
		w->admitting = false;
		w->preparing = NULL;
	}
	pthread_cond_broadcast(&w->changed);
	pthread_mutex_unlock(&w->lock);
	return rc;
}

int
writer_turn_wait_active(struct writer *w, const struct pawl_save_opts *opts, struct pawl_error *err)
{
	int rc = 0;

	pthread_mutex_lock(&w->lock);
	while (w->active && rc == 0)
		rc = wait_changed(w, opts, err);
	pthread_mutex_unlock(&w->lock);
	return rc;
}
