/* SPDX-License-Identifier: Apache-2.0 */
/* writer_wait: waiting for saves, until they are staged, committed or settled; see writer.h. */
#include <errno.h>

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
