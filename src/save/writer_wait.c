/* SPDX-License-Identifier: Apache-2.0 */
/* writer_wait: waiting for a turn to save, and for the stages of saves; see writer.h. */
#include <errno.h>

#include "base/clock.h"
#include "base/err.h"
#include "run/ticket.h"
#include "save/from_device.h"
#include "save/writer.h"

/* References to the saves that have not reached a stage; their number. */
static unsigned
find_before(struct writer *w, int stage, struct save *ret[2])
{
	struct save *saves[2];
	unsigned n = 0;

	pthread_mutex_lock(&w->lock);
	saves[0] = w->active;
	saves[1] = w->queued;
	for (int i = 0; i < 2; i++)
		if (saves[i] && pawl_ticket_stage(saves[i]->progress.ticket) < stage) {
			atomic_fetch_add(&saves[i]->refs, 1);
			ret[n++] = saves[i];
		}
	pthread_mutex_unlock(&w->lock);
	return n;
}

static int
wait_stage(struct pawl_ticket *t, int stage, int64_t deadline_ms)
{
	int rc = 0;

	pthread_mutex_lock(&t->lock);
	while (t->stage < stage && rc == 0)
		rc = pool_cond_wait_until(&t->changed, &t->lock, deadline_ms);
	pthread_mutex_unlock(&t->lock);
	return rc;
}

/* Waits until the caller may change the tensors of a save. */
static int
wait_for_fence(struct save *s, int64_t deadline_ms)
{
	int rc = from_device_fence(&s->image, deadline_ms);

	if (rc != 0)
		return rc == ETIMEDOUT ? rc : 0;
	return wait_stage(s->progress.ticket, PAWL_STAGE_STAGED, deadline_ms);
}

static int
wait_committed(struct save *s, int64_t deadline_ms)
{
	return wait_stage(s->progress.ticket, PAWL_STAGE_COMMITTED, deadline_ms);
}

/* Waits for each save that has not reached a stage. */
static int
wait_each(struct writer *w, int stage, int (*wait)(struct save *, int64_t), int64_t deadline_ms)
{
	struct save *saves[2];
	const unsigned n = find_before(w, stage, saves);
	int rc = 0;

	for (unsigned i = 0; i < n; i++) {
		rc = rc == 0 ? wait(saves[i], deadline_ms) : rc;
		save_unref(saves[i]);
	}
	return rc;
}

int
writer_fence(struct writer *w, int64_t deadline_ms)
{
	return wait_each(w, PAWL_STAGE_STAGED, wait_for_fence, deadline_ms);
}

int
writer_wait_committed(struct writer *w, int64_t deadline_ms)
{
	return wait_each(w, PAWL_STAGE_COMMITTED, wait_committed, deadline_ms);
}

/* Waits until no save is written, and with `settled` until none settles. */
static int
wait_idle(struct writer *w, bool settled, int64_t deadline_ms)
{
	int rc = 0;

	pthread_mutex_lock(&w->lock);
	while ((w->active || w->queued || w->admitting || (settled && w->settling)) && rc == 0)
		rc = pool_cond_wait_until(&w->changed, &w->lock, deadline_ms);
	pthread_mutex_unlock(&w->lock);
	return rc;
}

int
writer_wait(struct writer *w, int64_t deadline_ms)
{
	return wait_idle(w, true, deadline_ms);
}

int
writer_wait_turn(struct writer *w, int64_t deadline_ms)
{
	return wait_idle(w, false, deadline_ms);
}

void
writer_waits_for(struct writer *w, char *ret, size_t cap)
{
	*ret = '\0';
	pthread_mutex_lock(&w->lock);
	if (w->active)
		ticket_waits_for(w->active->progress.ticket, ret, cap);
	pthread_mutex_unlock(&w->lock);
}

/* ---- for a turn ---- */

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
writer_ask(const struct pawl_save_opts *opts, struct pawl_error *err)
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

	pool_cond_wait_until(&w->changed, &w->lock, asks ? clock_deadline_ms(WRITER_ASK_MS) : -1);
	if (!asks)
		return 0;
	pthread_mutex_unlock(&w->lock);
	const int rc = writer_ask(opts, err);

	pthread_mutex_lock(&w->lock);
	return rc;
}

int
writer_admit(struct writer *w, int policy, const struct pawl_save_opts *opts, bool *ret_deferred,
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

int
writer_wait_active(struct writer *w, const struct pawl_save_opts *opts, struct pawl_error *err)
{
	int rc = 0;

	pthread_mutex_lock(&w->lock);
	while (w->active && rc == 0)
		rc = wait_changed(w, opts, err);
	pthread_mutex_unlock(&w->lock);
	return rc;
}
