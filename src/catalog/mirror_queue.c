/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mirror_queue: the known contents of the mirrors, and what to upload next. The run's lock is held.
 * No I/O; mirror_choose and mirror_pause_ms are pure.
 */
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/vec.h"
#include "catalog/mirrors.h"

#define FIRST_PAUSE_MS 5000
#define LAST_PAUSE_MS 300000

/* ------------------------------------------------------------------- pure */

size_t
mirror_choose(const struct mirror_candidate *items, size_t n, int64_t now_ms, int64_t *ret_until_ms)
{
	size_t best = SIZE_MAX;
	*ret_until_ms = -1;
	for (size_t i = 0; i < n; i++) {
		if (!items[i].wanted)
			continue;
		if (items[i].not_before_ms > now_ms) {
			if (*ret_until_ms < 0 || items[i].not_before_ms < *ret_until_ms)
				*ret_until_ms = items[i].not_before_ms;
		} else if (best == SIZE_MAX || items[i].id > items[best].id) {
			best = i;
		}
	}
	return best;
}

int64_t
mirror_pause_ms(unsigned n)
{
	int64_t pause = FIRST_PAUSE_MS;
	while (n-- > 1 && pause < LAST_PAUSE_MS)
		pause *= 2;
	return pause < LAST_PAUSE_MS ? pause : LAST_PAUSE_MS;
}

/* -------------------------------------------------------------------- done */

/* Index of the first one with at least this id. */
static size_t
place_of(const struct mirror *m, uint64_t id)
{
	size_t lo = 0, hi = m->n_done;
	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		if (m->done[mid].id < id)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

bool
mirror_had(const struct mirror *m, uint64_t id, const char *token)
{
	size_t at = place_of(m, id);
	const struct mirror_done *done = at < m->n_done ? &m->done[at] : NULL;
	return done && done->id == id && !done->forgotten && strcmp(done->token, token) == 0;
}

bool
mirror_has(const struct mirror *m, uint64_t id, const char *token)
{
	return mirror_had(m, id, token) && !m->done[place_of(m, id)].retired;
}

bool
mirror_has_verified(const struct mirror *m, uint64_t id, const char *token)
{
	return mirror_has(m, id, token) && m->done[place_of(m, id)].verified;
}

bool
mirror_lacks(const struct mirror *m, uint64_t id, const char *token)
{
	return mirror_has(m, id, token) ? !mirror_has_verified(m, id, token) : !mirror_had(m, id, token);
}

int
mirror_note_done(struct mirror *m, uint64_t id, const char *token, bool retired, struct pawl_error *err)
{
	size_t at = place_of(m, id);
	if (strlen(token) >= sizeof m->done->token)
		return err_set(err, PAWL_ECORRUPT, "mirror: a token of %zu bytes", strlen(token));
	if (at == m->n_done || m->done[at].id != id) {
		if (!array_reserve(m->done, m->cap_done, m->n_done + 1))
			return err_nomem(err, "mirror");
		memmove(&m->done[at + 1], &m->done[at], (m->n_done - at) * sizeof *m->done);
		m->done[at] = (struct mirror_done){0};
		m->n_done++;
	}
	m->n_changes++;
	const bool is_same = !retired && strcmp(m->done[at].token, token) == 0;
	m->done[at].verified = is_same && m->done[at].verified;
	if (!is_same)
		m->done[at].marks = (struct sum128){0, 0};
	m->done[at].id = id;
	m->done[at].retired = retired;
	m->done[at].forgotten = false;
	memcpy(m->done[at].token, token, strlen(token) + 1);
	return 0;
}

void
mirror_forget_done(struct mirror *m)
{
	size_t n = 0;
	for (size_t i = 0; i < m->n_done; i++) {
		struct mirror_done *done = &m->done[i];
		if (!done->retired && (!done->verified || done->forgotten)) /* forgotten: the last listing lacked it */
			continue;
		done->forgotten = !done->retired;
		m->done[n++] = *done;
	}
	m->n_done = n;
	m->n_changes++;
}

struct mirror_done *
mirror_find_done(const struct mirror *m, uint64_t id)
{
	size_t at = place_of(m, id);
	return at < m->n_done && m->done[at].id == id ? &m->done[at] : NULL;
}

/* ------------------------------------------------------------------- marks */

struct sum128
mirror_marks_sum(bool pinned, const struct pawl_metric *late, size_t n)
{
	struct sum_stream s;
	char pin = (char)pinned;
	if (!pinned && n == 0)
		return (struct sum128){0, 0};
	sum_init(&s);
	sum_update(&s, &pin, 1);
	for (size_t i = 0; i < n; i++) {
		sum_update(&s, late[i].name, strlen(late[i].name) + 1);
		sum_update(&s, &late[i].value, sizeof late[i].value);
	}
	return sum_final(&s);
}

struct mirror_done *
mirror_stale_marks(const struct mirror *m, const struct catalog *c)
{
	for (size_t i = 0; i < c->n; i++) {
		const struct catalog_entry *e = &c->entries[i];
		if (!e->summary || e->at || !mirror_has(m, e->id, e->summary->token))
			continue;
		struct mirror_done *done = mirror_find_done(m, e->id);
		bool plain = !e->pinned && e->metrics == e->summary->metrics;
		if (plain && sum_equal(done->marks, (struct sum128){0, 0}))
			continue;
		PAWL_FREE struct pawl_metric *late = mem_zalloc(e->n_metrics, sizeof *late);
		size_t n = late ? pins_late(e->summary->metrics, e->summary->n_metrics, e->metrics, e->n_metrics, late)
		                : 0;
		if (late && !sum_equal(done->marks, mirror_marks_sum(e->pinned, late, n)))
			return done;
	}
	return NULL;
}

/* ---------------------------------------------------------------- failures */

static struct mirror_try *
find_try(const struct mirror *m, uint64_t id)
{
	for (size_t i = 0; i < m->n_tries; i++) {
		if (m->tries[i].id == id)
			return &m->tries[i];
	}
	return NULL;
}

void
mirror_note_failure(struct mirror *m, uint64_t id, int64_t begin_ns, const struct pawl_error *why)
{
	struct mirror_try *t = find_try(m, id);
	m->n_failed++;
	m->n_row++;
	m->last = *why;
	if (!t && !array_reserve(m->tries, m->cap_tries, m->n_tries + 1)) { /* then all of the mirror has a pause */
		m->not_before_ms = clock_mono_ms() + FIRST_PAUSE_MS;
		return;
	}
	if (!t) {
		t = &m->tries[m->n_tries++];
		*t = (struct mirror_try){.id = id};
	}
	t->n++;
	t->why = *why;
	t->seen = false;
	t->begin_ns = begin_ns;
	t->not_before_ms = clock_mono_ms() + mirror_pause_ms(t->n);
}

void
mirror_forget_failure(struct mirror *m, uint64_t id)
{
	struct mirror_try *t = find_try(m, id);
	if (t)
		*t = m->tries[--m->n_tries];
}

/* ---------------------------------------------------------------- questions */

uint32_t
mirrors_count(const struct mirrors *ms, const struct catalog_entry *e)
{
	uint32_t n = 0;
	for (size_t i = 0; ms && e->summary && i < ms->n; i++)
		n += mirror_has(&ms->list[i], e->id, e->summary->token);
	return n;
}

/* P6, P14: a checkpoint that only a listing has shown may be damaged in the mirror, and ours may be
 * the last good copy. So it counts as lacking until the queue has read it back. */
bool
mirrors_lack(const struct mirrors *ms, const struct catalog_entry *e)
{
	for (size_t i = 0; ms && e->summary && i < ms->n; i++) {
		if (mirror_lacks(&ms->list[i], e->id, e->summary->token))
			return true;
	}
	return false;
}

static bool
is_verified_in_all(const struct mirrors *ms, const struct catalog_entry *e)
{
	for (size_t i = 0; e->summary && i < ms->n; i++) {
		if (!mirror_has_verified(&ms->list[i], e->id, e->summary->token))
			return false;
	}
	return e->summary != NULL;
}

bool
mirrors_spend(const struct mirrors *ms, const struct catalog_entry *e)
{
	return ms && ms->run->opts.n_mirrors > 0 && ms->run->opts.uploads.delete_local && is_verified_in_all(ms, e);
}

static bool
is_wanted(const struct mirror *m, const struct catalog_entry *e)
{
	return e->summary && !e->at && mirror_lacks(m, e->id, e->summary->token);
}

/* A training run that was set back counts from its beginning again. */
static bool
is_due(const struct mirror *m, const struct pawl_progress *last, const struct pawl_progress *now)
{
	if (last && now->batch < last->batch)
		last = NULL;
	return triggers_due(&m->every, last, now, 0, NULL) != 0;
}

void
mirror_skip_undue(struct mirror *m, const struct catalog *c)
{
	const struct pawl_progress *last = NULL;

	for (size_t i = 0; m->every.n && i < c->n; i++) {
		const struct manifest *s = c->entries[i].summary;
		if (!s || (mirror_had(m, s->id, s->token) && !mirror_has(m, s->id, s->token)))
			continue;
		if (mirror_has(m, s->id, s->token) || is_due(m, last, &s->progress))
			last = &s->progress;
		else
			mirror_note_done(m, s->id, s->token, true, NULL);
	}
}

size_t
mirrors_outstanding(const struct mirrors *ms, int64_t since_ns, struct mirror_try **ret_failed)
{
	const struct catalog *c = ms->run->catalog;
	size_t n = 0;
	*ret_failed = NULL;
	for (size_t i = 0; i < ms->n; i++) {
		n += ms->list[i].uploading; /* an upload includes the steps that follow it */
		n += ms->list[i].marks_failed_ns < since_ns && mirror_stale_marks(&ms->list[i], c) != NULL;
		for (size_t k = 0; k < c->n; k++) {
			struct mirror_try *t = find_try(&ms->list[i], c->entries[k].id);
			if (!is_wanted(&ms->list[i], &c->entries[k]))
				continue;
			if (t && t->begin_ns >= since_ns)
				*ret_failed = t;
			else
				n++;
		}
	}
	return n;
}

bool
mirror_is_over_budget(const struct mirror *m)
{
	return m->n_row > m->run->opts.uploads.error_budget;
}

struct mirror_try *
mirrors_unseen(const struct mirrors *ms)
{
	for (size_t i = 0; i < ms->n; i++) {
		for (size_t k = 0; k < ms->list[i].n_tries && mirror_is_over_budget(&ms->list[i]); k++) {
			if (!ms->list[i].tries[k].seen)
				return &ms->list[i].tries[k];
		}
	}
	return NULL;
}

void
mirrors_see_all(struct mirrors *ms)
{
	for (size_t i = 0; i < ms->n; i++) {
		for (size_t k = 0; k < ms->list[i].n_tries; k++)
			ms->list[i].tries[k].seen = true;
	}
}

void
mirrors_hurry(struct mirrors *ms)
{
	for (size_t i = 0; i < ms->n; i++) {
		ms->list[i].marks_not_before_ms = ms->list[i].not_before_ms = 0;
		for (size_t k = 0; k < ms->list[i].n_tries; k++)
			ms->list[i].tries[k].not_before_ms = 0;
	}
}

int
mirrors_level(const struct mirrors *ms, const struct catalog *c, const struct catalog_entry *e)
{
	if (!e->summary)
		return PAWL_LEVEL_NONE;
	return e->at || (ms && ms->n > 0 && is_verified_in_all(ms, e)) ? PAWL_LEVEL_REMOTE : c->level;
}

struct store *
mirrors_store(const struct mirrors *ms, size_t i, const struct catalog_entry *e)
{
	struct store *store = atomic_load(&ms->list[i].store);
	return ms->list[i].given && e->summary && mirror_has(&ms->list[i], e->id, e->summary->token) ? store : NULL;
}

bool
mirrors_keep(const struct mirrors *ms, struct catalog_entry *e)
{
	for (size_t i = 0; ms && i < ms->n; i++) {
		struct store *store = mirrors_store(ms, i, e);
		if (!store)
			continue;
		e->at = store;
		e->held = e->pinned = false;
		e->mtime_ns = 0;
		return true;
	}
	return false;
}

const struct catalog_entry *
mirror_next(const struct mirror *m, const struct catalog *c, int64_t now_ms, int64_t *ret_until_ms)
{
	PAWL_FREE struct mirror_candidate *items = mem_zalloc(c->n, sizeof *items);
	*ret_until_ms = now_ms + FIRST_PAUSE_MS;
	if (!items)
		return NULL;
	if (now_ms < m->not_before_ms) {
		*ret_until_ms = m->not_before_ms;
		return NULL;
	}
	for (size_t i = 0; i < c->n; i++) {
		const struct catalog_entry *e = &c->entries[i];
		const struct mirror_try *t = find_try(m, e->id);
		items[i] = (struct mirror_candidate){
			.id = e->id,
			.wanted = is_wanted(m, e),
			.not_before_ms = t ? t->not_before_ms : 0,
		};
	}
	size_t at = mirror_choose(items, c->n, now_ms, ret_until_ms);
	return at < c->n ? &c->entries[at] : NULL;
}
