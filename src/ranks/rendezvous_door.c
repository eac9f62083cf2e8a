/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rendezvous_door: how rank 0 admits the others (rendezvous.h), on a thread of its own. Promises
 * P2, P10, P16.
 *
 *   list joins ──new──> admit or refuse ──> attempt.json ──┐
 *        ▲──────────────────────────────────────────────────┘
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/vec.h"
#include "ranks/rendezvous_own.h"
#include "run/lease.h"

#define DOOR_BUSY_MS 50   /* between two looks while a rank is missing */
#define DOOR_IDLE_MS 2000 /* when all have joined: only a rank that was started again can join */
#define POLL_LAST_MS 500

/* Admits a process, or notes why it was refused. The lock is held. True if the attempt's text has
 * changed. */
static bool
admit_process(struct rendezvous *m, const struct rendezvous_request *r)
{
	struct rendezvous_member *member = r->rank < m->world ? &m->members[r->rank] : NULL;
	struct rendezvous_refusal *refusal;
	char why[256];

	if (strcmp(r->job, m->job) != 0 && r->job[0] && m->job[0])
		return false; /* of another start of the job */
	if (member && strcmp(member->nonce, r->nonce) == 0)
		return false;
	for (size_t i = 0; i < m->n_refusals; i++)
		if (strcmp(m->refusals[i].nonce, r->nonce) == 0)
			return false;
	if (member && r->world == m->world && (!member->nonce[0] || clock_process_alive(&member->process) == 0)) {
		bool again = member->nonce[0] != 0;

		member->process = r->process;
		memcpy(member->nonce, r->nonce, sizeof(member->nonce));
		/* A rank that joins for the first time, however late, takes part from the first
		 * save on. */
		member->last_id = again ? m->pass.last_id : member->last_id;
		m->n_members += !again;
		pthread_cond_broadcast(&m->changed);
		return true;
	}
	if (member && r->world == m->world && clock_is_same_process(&member->process, &r->process))
		return false; /* it opens the run again, and waits for rank 0 to do so too */
	if (!member || r->world != m->world) {
		snprintf(why, sizeof(why), "rank %u has a world size of %u, rank 0 one of %u", r->rank, r->world,
		         m->world);
	} else {
		char who[160];

		rendezvous_describe(&member->process, who, sizeof(who));
		snprintf(why, sizeof(why), "rank %u of this run is already %s", r->rank, who);
	}
	refusal = mem_resize(m->refusals, m->n_refusals + 1, sizeof(*refusal));
	if (!refusal)
		return false;
	m->refusals = refusal;
	refusal += m->n_refusals;
	memcpy(refusal->nonce, r->nonce, sizeof(refusal->nonce));
	refusal->why = bump_strndup(&m->memory, why, strlen(why));
	if (!refusal->why)
		return false;
	m->n_refusals++;
	if (member && !member->nonce[0]) {
		member->refused = refusal->why;
		pthread_cond_broadcast(&m->changed);
	}
	return true;
}

static int
put_attempt(struct rendezvous *m, struct pawl_error *err)
{
	struct rendezvous_attempt a = {.pass = m->pass, .world = m->world};
	PAWL_CLEAN(buf_clear) struct buf text = {0};

	memcpy(a.job, m->job, sizeof(a.job));
	pthread_mutex_lock(&m->lock);
	a.members = m->members;
	a.refusals = m->refusals;
	a.n_refusals = m->n_refusals;
	rendezvous_put_attempt(&a, &text);
	pthread_mutex_unlock(&m->lock);
	TRY(buf_check(&text, RENDEZVOUS_ATTEMPT, err));
	return store_put_bytes(m->store, RENDEZVOUS_ATTEMPT, text.ptr, text.len, 0, err);
}

struct visitor {
	struct rendezvous *m;
	struct bump memory;
	VEC(const char *) keys;
	size_t n; /* counted */
};

/* Only new names are read. */
static int
add_join(void *arg, const struct store_entry *entry)
{
	struct visitor *v = arg;
	uint32_t rank;
	char nonce[33];

	if (entry->is_folder || entry->is_link || !rendezvous_parse_join(entry->name, &rank, nonce) || rank == 0)
		return 0;
	pthread_mutex_lock(&v->m->lock);
	bool known = rank < v->m->world && strcmp(v->m->members[rank].nonce, nonce) == 0;

	pthread_mutex_unlock(&v->m->lock);
	if (known)
		return 0;
	const char **key = vec_add(&v->keys);

	if (key)
		*key = bump_printf(&v->memory, RENDEZVOUS_FOLDER "/%s", entry->name);
	return key && *key ? 0 : PAWL_ENOMEM;
}

/* An earlier rank 0 that has not noticed that it was overtaken may have admitted a rank. */
static bool
is_overwritten(struct rendezvous *m)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct rendezvous_attempt a = {0};

	if (store_get(m->store, RENDEZVOUS_ATTEMPT, RENDEZVOUS_MAX_ATTEMPT, &text, NULL) < 0 ||
	    rendezvous_get_attempt(RENDEZVOUS_ATTEMPT, &text, &memory, &a, NULL) < 0)
		return false;
	return strcmp(a.pass.token, m->pass.token) != 0 && rendezvous_is_current(m);
}

/* Admits the ranks that have joined. Requests that cannot be read are tried again next time. */
static void
open_door(struct rendezvous *m)
{
	struct visitor v = {.m = m};
	bool changed = false;

	store_list(m->store, RENDEZVOUS_FOLDER, add_join, &v, NULL);
	for (size_t i = 0; i < v.keys.n; i++) {
		PAWL_CLEAN(buf_clear) struct buf text = {0};
		struct rendezvous_request r = {0};

		if (store_get(m->store, v.keys.items[i], RENDEZVOUS_MAX_JOIN, &text, NULL) < 0 ||
		    rendezvous_get_request(v.keys.items[i], &text, &r, NULL) < 0)
			continue;
		if (r.rank == 0)
			continue;
		pthread_mutex_lock(&m->lock);
		changed = admit_process(m, &r) || changed;
		pthread_mutex_unlock(&m->lock);
	}
	bump_clear(&v.memory);
	vec_free(&v.keys);
	m->untold = m->untold || changed;
	if (m->untold || is_overwritten(m))
		m->untold = put_attempt(m, NULL) < 0;
}

/* Job: the door's thread. */
static void
keep_door(void *arg)
{
	struct rendezvous *m = arg;

	pthread_mutex_lock(&m->lock);
	while (!m->stop) {
		pthread_mutex_unlock(&m->lock);
		open_door(m);
		pthread_mutex_lock(&m->lock);
		int64_t pause_ms = m->n_members + 1 < m->world ? DOOR_BUSY_MS : DOOR_IDLE_MS;
		int64_t until = clock_mono_ms() + pause_ms * m->factor;

		while (!m->stop && pool_cond_wait_until(&m->changed, &m->lock, until) != ETIMEDOUT)
			;
	}
	pthread_mutex_unlock(&m->lock);
}

int
rendezvous_door_open(struct rendezvous *m, struct pawl_error *err)
{
	TRY(put_attempt(m, err));
	TRY(pool_new("pawl-door", 1, &m->door, err));
	return pool_add(m->door, NULL, keep_door, m, err);
}

/* ---- closing */

/* The lock is held. */
static bool
is_expecting(const struct rendezvous *m)
{
	uint32_t n = 0;

	for (uint32_t r = 1; r < m->world; r++)
		n += m->members[r].nonce[0] || m->members[r].refused;
	return n + 1 < m->world;
}

/* Counts the ranks that were admitted but have not read it yet. A rank that has read it removes its
 * request. */
static int
count_untold(void *arg, const struct store_entry *entry)
{
	struct visitor *v = arg;
	struct clock_process *process;
	uint32_t rank;
	char nonce[33];

	if (rendezvous_parse_join(entry->name, &rank, nonce) && rank < v->m->world &&
	    strcmp(v->m->members[rank].nonce, nonce) == 0) {
		process = &v->m->members[rank].process;
		v->n += clock_process_alive(process) != 0;
	}
	return 0;
}

/* Rank 0 admits no more ranks. All must read that they are in the attempt before it ends. Otherwise
 * they would wait for the next one, with their program a step behind. */
static void
wait_until_told(struct rendezvous *m)
{
	int64_t deadline_ms = clock_mono_ms() + RENDEZVOUS_LINGER_MS, pause_ms = RENDEZVOUS_POLL_FIRST_MS * m->factor;

	for (;;) {
		struct visitor v = {.m = m};

		if (m->untold)
			m->untold = put_attempt(m, NULL) < 0;
		if (store_list(m->store, RENDEZVOUS_FOLDER, count_untold, &v, NULL) < 0 || v.n == 0 ||
		    clock_mono_ms() > deadline_ms || !rendezvous_is_current(m))
			return;
		clock_sleep_ms(pause_ms);
		pause_ms = pause_ms * 2 < POLL_LAST_MS ? pause_ms * 2 : POLL_LAST_MS;
	}
}

void
rendezvous_door_close(struct rendezvous *m)
{
	if (!m->door)
		return;
	pthread_mutex_lock(&m->lock);
	/* Late ranks should learn the outcome instead of waiting in vain. */
	int64_t until = m->since_ms + RENDEZVOUS_LINGER_MS;

	while (is_expecting(m) && pool_cond_wait_until(&m->changed, &m->lock, until) != ETIMEDOUT)
		;
	m->stop = true;
	pthread_cond_broadcast(&m->changed);
	pthread_mutex_unlock(&m->lock);
	pool_free(m->door);
	wait_until_told(m);
}
