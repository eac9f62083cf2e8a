/* SPDX-License-Identifier: Apache-2.0 */
/* ticket: see ticket.h; the public pawl_ticket_* live here too. Waiting never touches the run, so a
 * ticket outlives it.
 */
#include "run/ticket.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/pool.h"
#include "run/run.h"

int
ticket_new(struct pawl_ticket **ret, struct pawl_error *err)
{
	struct pawl_ticket *t = mem_zalloc(1, sizeof(*t));

	if (!t)
		return err_nomem(err, "save");
	pthread_mutex_init(&t->lock, NULL);
	pool_cond_init(&t->changed);
	t->refs = 1;
	t->stats.size = sizeof(t->stats);
	*ret = t;
	return 0;
}

struct pawl_ticket *
ticket_ref(struct pawl_ticket *t)
{
	pthread_mutex_lock(&t->lock);
	t->refs++;
	pthread_mutex_unlock(&t->lock);
	return t;
}

void
pawl_ticket_free(struct pawl_ticket *t)
{
	bool last;

	if (!t)
		return;
	pthread_mutex_lock(&t->lock);
	last = --t->refs == 0;
	pthread_mutex_unlock(&t->lock);
	if (!last)
		return;
	pthread_cond_destroy(&t->changed);
	pthread_mutex_destroy(&t->lock);
	mem_free(t);
}

void
ticket_stage(struct pawl_ticket *t, int stage)
{
	pthread_mutex_lock(&t->lock);
	if (stage > t->stage) {
		t->stage = stage;
		t->waits_for[0] = '\0';
	}
	pthread_cond_broadcast(&t->changed);
	pthread_mutex_unlock(&t->lock);
}

void
ticket_note(struct pawl_ticket *t, const char *waits_for)
{
	pthread_mutex_lock(&t->lock);
	snprintf(t->waits_for, sizeof(t->waits_for), "%s", waits_for);
	pthread_mutex_unlock(&t->lock);
}

void
ticket_waits_for(struct pawl_ticket *t, char *ret, size_t cap)
{
	pthread_mutex_lock(&t->lock);
	snprintf(ret, cap, "%s%s", t->waits_for[0] ? TICKET_WAITS : "", t->waits_for);
	pthread_mutex_unlock(&t->lock);
}

bool
ticket_take_error(struct pawl_ticket *t, struct pawl_error *err)
{
	bool fresh;

	pthread_mutex_lock(&t->lock);
	fresh = t->code < 0 && !t->seen;
	if (fresh && err)
		*err = t->error;
	t->seen = true;
	pthread_mutex_unlock(&t->lock);
	return fresh;
}

void
ticket_fail(struct pawl_ticket *t, int code, const struct pawl_error *err)
{
	pthread_mutex_lock(&t->lock);
	t->code = code;
	if (err)
		t->error = *err;
	t->error.code = code;
	pthread_mutex_unlock(&t->lock);
}

int
pawl_ticket_wait(struct pawl_ticket *t, int64_t timeout_ms, struct pawl_error *err)
{
	return pawl_ticket_wait_for(t, PAWL_STAGE_SETTLED, timeout_ms, err);
}

static const char *const stage_names[] = {
	"begun", "staged", "written", "committed", "settled", "failed", "skipped",
};

int
pawl_ticket_wait_for(struct pawl_ticket *t, int stage, int64_t timeout_ms, struct pawl_error *err)
{
	int64_t deadline_ms = clock_deadline_ms(timeout_ms);
	int rc = 0, code;

	if (!t)
		return err_set(err, PAWL_EUSAGE, "ticket: expected a ticket, found NULL");
	pthread_mutex_lock(&t->lock);
	if (stage < PAWL_STAGE_STAGED || stage > PAWL_STAGE_SETTLED) {
		pthread_mutex_unlock(&t->lock);
		return err_set(err, PAWL_EUSAGE, "ticket: expected a stage from %d to %d, found %d", PAWL_STAGE_STAGED,
		               PAWL_STAGE_SETTLED, stage);
	}
	while (t->stage < stage && rc == 0)
		rc = pool_cond_wait_until(&t->changed, &t->lock, deadline_ms);
	if (t->stage < stage) {
		rc = err_waited(err, "the save is %s, not yet %s, after %lld ms%s%s", stage_names[t->stage],
		                stage_names[stage], (long long)timeout_ms, t->waits_for[0] ? TICKET_WAITS : "",
		                t->waits_for);
		pthread_mutex_unlock(&t->lock);
		return rc;
	}
	code = t->stage == PAWL_STAGE_FAILED ? t->code : 0;
	if (code < 0) {
		t->seen = true;
		if (err)
			*err = t->error;
	}
	pthread_mutex_unlock(&t->lock);
	return code;
}

int
pawl_ticket_stage(const struct pawl_ticket *t)
{
	struct pawl_ticket *m = (struct pawl_ticket *)(uintptr_t)t;
	int stage;

	pthread_mutex_lock(&m->lock);
	stage = m->stage;
	pthread_mutex_unlock(&m->lock);
	return stage;
}

void
pawl_ticket_stats(const struct pawl_ticket *t, struct pawl_save_stats *ret)
{
	struct pawl_ticket *m = (struct pawl_ticket *)(uintptr_t)t;

	pthread_mutex_lock(&m->lock);
	struct pawl_save_stats stats = m->stats;
	pthread_mutex_unlock(&m->lock);

	stats.size = ret->size;
	memcpy(ret, &stats, ret->size < sizeof(stats) ? ret->size : sizeof(stats));
}
