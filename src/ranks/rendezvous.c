/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rendezvous: see rendezvous.h.
 *
 *   rank 0:  host ──> door (rendezvous_door.c)
 *   others:  join-file ──> poll attempt.json ──own nonce──> in
 *                 ▲───────────────┘ (put again: rank 0 may have cleared the folder since)
 */
#include "ranks/rendezvous.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/sum.h"
#include "base/vec.h"
#include "ranks/rendezvous_own.h"
#include "run/lease.h"

#define POLL_LAST_MS 500
#define FAR_FACTOR 5     /* factor of all pauses in a bucket, where a look is a request that costs money */
#define ATTEMPT_DIGITS 8 /* of an attempt's token: the names of its folders begin with them */

uint32_t
rendezvous_rank(const struct rendezvous *m)
{
	return m->rank;
}

uint32_t
rendezvous_world(const struct rendezvous *m)
{
	return m->world;
}

const char *
rendezvous_nonce(const struct rendezvous *m)
{
	return m->by_broadcast ? m->pass.token : m->nonce; /* then all processes may have the same */
}

int64_t
rendezvous_since_ms(const struct rendezvous *m)
{
	return m->since_ms;
}

void
rendezvous_save_token(const struct rendezvous *m, uint64_t id, char ret[33])
{
	struct sum_stream s;

	sum_init(&s);
	sum_update(&s, m->pass.token, 32);
	sum_update(&s, &id, sizeof(id));
	sum_to_hex(sum_final(&s), ret);
	memcpy(ret, m->pass.token, ATTEMPT_DIGITS);
	ret[32] = 0;
}

void
rendezvous_note_id(struct rendezvous *m, uint64_t id)
{
	pthread_mutex_lock(&m->lock);
	if (id > m->pass.last_id)
		m->pass.last_id = id;
	pthread_mutex_unlock(&m->lock);
}

void
rendezvous_describe(const struct clock_process *p, char *who, size_t cap)
{
	snprintf(who, cap, "process %lld on host '%.100s'", (long long)p->pid, p->host);
}

void
rendezvous_nonce_of(struct rendezvous *m, uint32_t rank, char ret[33])
{
	pthread_mutex_lock(&m->lock);
	memcpy(ret, m->by_broadcast ? m->pass.token : m->members[rank].nonce, 33);
	pthread_mutex_unlock(&m->lock);
}

enum rendezvous_state
rendezvous_look(struct rendezvous *m, uint32_t rank, char *who, size_t who_cap)
{
	struct clock_process process;
	bool is_unseen;

	snprintf(who, who_cap, "its process");
	if (m->by_broadcast)
		return RENDEZVOUS_ALIVE;
	pthread_mutex_lock(&m->lock);
	is_unseen = !m->members[rank].nonce[0];
	process = m->members[rank].process;
	pthread_mutex_unlock(&m->lock);
	if (is_unseen)
		return RENDEZVOUS_UNSEEN;
	rendezvous_describe(&process, who, who_cap);
	return clock_process_alive(&process) == 0 ? RENDEZVOUS_DEAD : RENDEZVOUS_ALIVE;
}

bool
rendezvous_refused(struct rendezvous *m, uint32_t rank, char *why, size_t why_cap)
{
	bool is_refused = false;

	if (m->by_broadcast)
		return false;
	pthread_mutex_lock(&m->lock);
	const struct rendezvous_member *member = &m->members[rank];

	is_refused = !member->nonce[0] && member->refused;
	if (is_refused)
		snprintf(why, why_cap, "%s", member->refused);
	pthread_mutex_unlock(&m->lock);
	return is_refused;
}

void
rendezvous_find_unopened(struct rendezvous *m, bool *ret)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct rendezvous_attempt a = {0};

	memset(ret, 0, m->world * sizeof(*ret));
	if (m->by_broadcast)
		return;
	if (m->rank == 0) {
		pthread_mutex_lock(&m->lock);
		for (uint32_t r = 1; r < m->world; r++)
			ret[r] = !m->members[r].nonce[0];
		pthread_mutex_unlock(&m->lock);
		return;
	}
	if (store_get(m->store, RENDEZVOUS_ATTEMPT, RENDEZVOUS_MAX_ATTEMPT, &text, NULL) < 0 ||
	    rendezvous_get_attempt(RENDEZVOUS_ATTEMPT, &text, &memory, &a, NULL) < 0 || a.world != m->world ||
	    strcmp(a.pass.token, m->pass.token) != 0)
		return;
	for (uint32_t r = 1; r < m->world; r++)
		ret[r] = !a.members[r].nonce[0];
}

int
rendezvous_check_host(struct rendezvous *m, struct pawl_error *err)
{
	struct pawl_error why = {0};

	if (!m->pass.lease[0])
		return 0;
	if (lease_look(m->store, m->pass.lease, m->lease_timeout_ms, &m->host_watch, &why) != PAWL_ECONFLICT)
		return 0; /* what cannot be read now is ignored */
	return err_set(err, PAWL_ECONFLICT, "rank 0 is gone: %s", why.message);
}

bool
rendezvous_is_current(const struct rendezvous *m)
{
	return !m->pass.lease[0] || lease_is(m->store, m->pass.lease);
}

/* ---- life */

PAWL_DEFINE_CLEAN(struct rendezvous, rendezvous_leave);

static int
rendezvous_new(struct store *store, const struct rendezvous_opts *opts, struct rendezvous **ret, struct pawl_error *err)
{
	struct rendezvous *m = mem_zalloc(1, sizeof(*m));
	const char *job = opts->rank->attempt;
	struct store_caps caps;

	if (!m)
		return err_nomem(err, "run");
	pthread_mutex_init(&m->lock, NULL);
	pool_cond_init(&m->changed);
	m->store = store;
	m->rank = (uint32_t)opts->rank->rank;
	m->world = (uint32_t)opts->rank->world_size;
	m->lease_timeout_ms = opts->lease_timeout_ms;
	m->by_broadcast = opts->broadcast != NULL;
	m->since_ms = clock_mono_ms();
	store_get_caps(store, &caps);
	m->factor = caps.flat ? FAR_FACTOR : 1;
	if (*job)
		sum_to_hex(sum_bytes(job, strlen(job)), m->job);
	int rc = clock_token(m->nonce, err);

	if (rc < 0) {
		rendezvous_leave(m);
		return rc;
	}
	*ret = m;
	return 0;
}

/* With a broadcast: the complete attempt in one text of fixed size. */
static int
broadcast_attempt(struct rendezvous *m, const struct rendezvous_opts *opts, struct pawl_error *err)
{
	char bytes[1024] = {0};
	struct rendezvous_attempt a = {.pass = m->pass, .world = m->world};
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	PAWL_CLEAN(bump_clear) struct bump memory = {0};

	if (m->rank == 0) {
		rendezvous_put_attempt(&a, &text);
		TRY(buf_check(&text, "attempt", err));
		memcpy(bytes, text.ptr, text.len < sizeof(bytes) ? text.len : sizeof(bytes) - 1);
	}
	struct pawl_error why = {0};
	int rc = opts->broadcast(opts->broadcast_arg, bytes, sizeof(bytes), &why);

	if (err_of_caller(err, rc, &why, "the function") < 0)
		return err_prefix(err, rc, "the broadcast of rank 0's attempt");
	if (m->rank == 0)
		return 0;
	text.len = 0;
	bytes[sizeof(bytes) - 1] = 0;
	buf_puts(&text, bytes);
	TRY(buf_check(&text, "attempt", err));
	TRY(rendezvous_get_attempt("what rank 0 has broadcast", &text, &memory, &a, err));
	if (a.world != m->world)
		return err_set(err, PAWL_EMISMATCH, "rank %u has a world size of %u, rank 0 one of %u", m->rank,
		               m->world, a.world);
	m->pass = a.pass;
	return 0;
}

struct clearing {
	char last_token[33]; /* of the last attempt, "" if unknown */
	struct bump memory;
	VEC(const char *) files, folders;
};

static void
clearing_clear(struct clearing *c)
{
	vec_free(&c->files);
	vec_free(&c->folders);
	bump_clear(&c->memory);
}

static int
add_old(void *arg, const struct store_entry *entry)
{
	struct clearing *c = arg;
	bool is_last = c->last_token[0] && strncmp(entry->name, c->last_token, ATTEMPT_DIGITS) == 0;

	if (entry->is_folder && is_last)
		return 0;
	const char **key;

	if (entry->is_folder)
		key = vec_add(&c->folders);
	else
		key = vec_add(&c->files);
	if (key)
		*key = bump_printf(&c->memory, RENDEZVOUS_FOLDER "/%s", entry->name);
	return key && *key ? 0 : PAWL_ENOMEM;
}

/* A rank that leaves removes its own file; one that is late may put another, which the next call
 * removes. */
static bool
is_cleared(int rc)
{
	return rc == 0 || rc == PAWL_ENOTFOUND || rc == PAWL_EEXISTS;
}

/* Removes what earlier attempts left. The folders of the last one stay until the next call: a rank
 * of it may not have read its verdict yet. */
static int
clear_attempts(struct store *store, struct pawl_error *err)
{
	PAWL_CLEAN(clearing_clear) struct clearing c = {0};
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	struct rendezvous_attempt last = {0};

	if (store_get(store, RENDEZVOUS_ATTEMPT, RENDEZVOUS_MAX_ATTEMPT, &text, NULL) == 0 &&
	    rendezvous_get_attempt(RENDEZVOUS_ATTEMPT, &text, &c.memory, &last, NULL) == 0)
		memcpy(c.last_token, last.pass.token, sizeof(c.last_token));
	int rc = store_list(store, RENDEZVOUS_FOLDER, add_old, &c, err);

	for (size_t i = 0; i < c.files.n && is_cleared(rc); i++)
		rc = store_remove(store, c.files.items[i], err);
	for (size_t i = 0; i < c.folders.n && is_cleared(rc); i++)
		rc = store_remove_folder(store, c.folders.items[i], err);
	return is_cleared(rc) ? 0 : rc;
}

int
rendezvous_host(struct store *store, const struct rendezvous_opts *opts, struct rendezvous_pass *pass,
                struct rendezvous **ret, struct pawl_error *err)
{
	PAWL_CLEAN(rendezvous_leave_clean) struct rendezvous *m = NULL;

	TRY(rendezvous_new(store, opts, &m, err));
	m->members = mem_zalloc(m->world, sizeof(*m->members));
	if (!m->members)
		return err_nomem(err, "run");
	for (uint32_t r = 0; r < m->world; r++)
		m->members[r].last_id = pass->last_id;
	TRY(clock_token(pass->token, err));
	m->pass = *pass;
	TRY(clear_attempts(store, err));
	if (m->by_broadcast) {
		TRY(broadcast_attempt(m, opts, err));
	} else {
		TRY(rendezvous_door_open(m, err));
	}
	*ret = steal(&m);
	return 0;
}

/* According to the launcher the attempt is of this start of the job. But its rank 0 has closed the
 * run, and will probably not open it again. */
static int
check_left(struct rendezvous *m, const struct rendezvous_attempt *a, struct pawl_error *err)
{
	bool is_left =
		a->job[0] && strcmp(a->job, m->job) == 0 && a->pass.lease[0] && !lease_is(m->store, a->pass.lease);

	if (!is_left)
		m->left_ms = 0;
	else if (m->left_ms == 0)
		m->left_ms = clock_mono_ms();
	else if (clock_mono_ms() > m->left_ms + RENDEZVOUS_LINGER_MS)
		return err_set(err, PAWL_ECONFLICT, "rank 0 opened and closed the run before rank %u joined", m->rank);
	return 0;
}

/* Can an error of the store be gone at the next look? A missing permission stays. */
static bool
is_passing(int code)
{
	return code != PAWL_EAUTH && code != PAWL_EREADONLY;
}

/* Has rank 0 answered? 1 = admitted, 0 = not yet, or an error. An attempt.json that cannot be read
 * counts as missing, since rank 0 replaces it: an earlier one may be cut after a power failure.
 * *ret_trouble: why it could not be read. */
static int
find_answer(struct rendezvous *m, struct rendezvous_pass *ret, struct pawl_error *ret_trouble, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct rendezvous_attempt a = {0};
	struct pawl_error why = {0};
	int rc = store_get(m->store, RENDEZVOUS_ATTEMPT, RENDEZVOUS_MAX_ATTEMPT, &text, &why);

	if (rc == PAWL_ENOTFOUND)
		return 0;
	if (rc < 0 && !is_passing(rc))
		return err_give(err, rc, &why);
	if (rc < 0 || rendezvous_get_attempt(RENDEZVOUS_ATTEMPT, &text, &memory, &a, &why) < 0) {
		*ret_trouble = why;
		return 0;
	}
	for (size_t i = 0; i < a.n_refusals; i++)
		if (strcmp(a.refusals[i].nonce, m->nonce) == 0)
			return err_set(err, a.world == m->world ? PAWL_EBUSY : PAWL_EMISMATCH, "%s", a.refusals[i].why);
	if (m->rank >= a.world || strcmp(a.members[m->rank].nonce, m->nonce) != 0)
		return check_left(m, &a, err);
	if (a.pass.lease[0] && lease_is_another(m->store, a.pass.lease))
		return 0; /* an earlier rank 0 that has not noticed that it was overtaken */
	*ret = a.pass;
	ret->last_id = a.members[m->rank].last_id;
	return 1;
}

/* Puts this process's request if it does not exist. Rank 0 clears the folder when it opens, so it
 * may be gone, even while it is put. *ret_trouble: why it could not be put now. */
static int
put_request(struct rendezvous *m, struct buf *key, const struct buf *text, struct pawl_error *ret_trouble,
            struct pawl_error *err)
{
	struct pawl_error why = {0};
	struct store_entry there;

	if (store_stat(m->store, buf_str(key), &there, NULL) != PAWL_ENOTFOUND)
		return 0;
	int rc = store_put_bytes(m->store, buf_str(key), text->ptr, text->len, 0, &why);

	if (rc == 0 || rc == PAWL_ENOTFOUND)
		return 0;
	if (!is_passing(rc))
		return err_give(err, rc, &why);
	*ret_trouble = why;
	return 0;
}

/* trouble: of the last look, if there was any. */
static int
report_no_answer(const struct rendezvous *m, int64_t timeout_ms, const struct pawl_error *trouble,
                 struct pawl_error *err)
{
	const double seconds = (double)timeout_ms / 1000;

	if (trouble->code < 0)
		return err_set(err, trouble->code, "rank %u of %u waited %.1f s for rank 0 to open the run: %s",
		               m->rank, m->world, seconds, trouble->message);
	return err_set(err, PAWL_ETIMEOUT,
	               "rank %u of %u waited %.1f s for rank 0 to open the run; every rank must open it", m->rank,
	               m->world, seconds);
}

static int
wait_for_answer(struct rendezvous *m, const struct rendezvous_opts *opts, struct pawl_error *err)
{
	struct rendezvous_request mine = {.rank = m->rank, .world = m->world};
	PAWL_CLEAN(buf_clear) struct buf key = {0}, text = {0};
	int64_t deadline_ms = clock_mono_ms() + opts->timeout_ms, pause_ms = RENDEZVOUS_POLL_FIRST_MS * m->factor;
	int rc;

	memcpy(mine.nonce, m->nonce, sizeof(mine.nonce));
	memcpy(mine.job, m->job, sizeof(mine.job));
	TRY(clock_this_process(&mine.process, err));
	rendezvous_put_request(&mine, &text);
	buf_printf(&key, RENDEZVOUS_FOLDER "/join-%05u-%s.json", m->rank, m->nonce);
	TRY(buf_check(&key, "run", err));
	TRY(buf_check(&text, "run", err));
	for (;;) {
		struct pawl_error trouble = {0};

		rc = put_request(m, &key, &text, &trouble, err);
		if (rc == 0)
			rc = find_answer(m, &m->pass, &trouble, err);
		if (rc != 0)
			break;
		if (clock_mono_ms() >= deadline_ms) {
			rc = report_no_answer(m, opts->timeout_ms, &trouble, err);
			break;
		}
		clock_sleep_ms(pause_ms);
		pause_ms = pause_ms * 2 < POLL_LAST_MS * m->factor ? pause_ms * 2 : POLL_LAST_MS * m->factor;
	}
	store_remove(m->store, buf_str(&key), NULL);
	return rc < 0 ? rc : 0;
}

int
rendezvous_join(struct store *store, const struct rendezvous_opts *opts, struct rendezvous_pass *ret_pass,
                struct rendezvous **ret, struct pawl_error *err)
{
	PAWL_CLEAN(rendezvous_leave_clean) struct rendezvous *m = NULL;

	TRY(rendezvous_new(store, opts, &m, err));
	TRY(m->by_broadcast ? broadcast_attempt(m, opts, err) : wait_for_answer(m, opts, err));
	*ret_pass = m->pass;
	*ret = steal(&m);
	return 0;
}

void
rendezvous_leave(struct rendezvous *m)
{
	if (!m)
		return;
	rendezvous_door_close(m);
	mem_free(m->members);
	mem_free(m->refusals);
	bump_clear(&m->memory);
	pthread_cond_destroy(&m->changed);
	pthread_mutex_destroy(&m->lock);
	mem_free(m);
}
