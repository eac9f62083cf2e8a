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
		rc = cond_wait_until(&t->changed, &t->lock, deadline_ms);
	pthread_mutex_unlock(&t->lock);
	return rc;
}

/* Waits until the caller may change the tensors of a save. */
static int
fence(struct save *s, int64_t deadline_ms)
{
	int rc = from_device_fence(&s->image, deadline_ms);

	if (rc != 0)
		return rc == ETIMEDOUT ? rc : 0;
	return wait_stage(s->progress.ticket, PAWL_STAGE_STAGED, deadline_ms);
}

int
writer_fence(struct writer *w, int64_t deadline_ms)
{
	struct save *saves[2];
	const unsigned n = find_before(w, PAWL_STAGE_STAGED, saves);
	int rc = 0;

	for (unsigned i = 0; i < n; i++) {
		rc = rc == 0 ? fence(saves[i], deadline_ms) : rc;
		save_unref(saves[i]);
	}
	return rc;
}

int
writer_wait_committed(struct writer *w, int64_t deadline_ms)
{
	struct save *saves[2];
	const unsigned n = find_before(w, PAWL_STAGE_COMMITTED, saves);
	int rc = 0;

	for (unsigned i = 0; i < n; i++) {
		rc = rc == 0 ? wait_stage(saves[i]->progress.ticket, PAWL_STAGE_COMMITTED, deadline_ms) : rc;
		save_unref(saves[i]);
	}
	return rc;
}

int
writer_wait(struct writer *w, int64_t deadline_ms)
{
	int rc = 0;

	pthread_mutex_lock(&w->lock);
	while ((w->active || w->queued || w->admitting || w->settling) && rc == 0)
		rc = cond_wait_until(&w->changed, &w->lock, deadline_ms);
	pthread_mutex_unlock(&w->lock);
	return rc;
}

int
writer_wait_turn(struct writer *w, int64_t deadline_ms)
{
	int rc = 0;

	pthread_mutex_lock(&w->lock);
	while ((w->active || w->queued || w->admitting) && rc == 0)
		rc = cond_wait_until(&w->changed, &w->lock, deadline_ms);
	pthread_mutex_unlock(&w->lock);
	return rc;
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
