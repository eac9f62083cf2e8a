/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease: see lease.h.
 *
 * .lease names the holder; it is written only when the lease is taken. .lease.<token> records when
 * the holder last renewed it.
 *
 *   FREE --put--> HELD --renewed--> HELD --removed--> FREE
 *                  \--holder dead or silent: takeover with a lock file--> HELD by another
 *
 * Silent: the renewal has not changed for timeout_ms of the observer's own monotonic clock. The
 * times in the files are only compared with each other, since the clocks of two hosts may differ by
 * any amount.
 *
 * If the store fails, a process can leave a lease of its own that no handle holds. So each renewal
 * also states until when it is valid, by the monotonic clock of its host. Within the process that
 * wrote it, this clock decides.
 */
#include "run/lease.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/pool.h"
#include "run/lease_text.h"

#define TAKEOVER_KEY ".lease.takeover"
#define RENEWAL_PREFIX LEASE_KEY "." /* and the token: when its holder last renewed it */
#define TAKEOVER_TIMEOUT_MS 60000    /* a takeover takes two requests */
#define MAX_PAUSE_MS 2000            /* between two looks while waiting */

struct lease {
	struct store *store; /* borrowed */
	int64_t timeout_ms;
	struct lease_text mine; /* its times: the renewing thread's own */
	int64_t renewed_ms;     /* by clock_mono_ms, the renewing thread's own */
	struct pool *renewer;
	pthread_mutex_t lock; /* guards stop */
	pthread_cond_t changed;
	bool stop;
};

/* The renewals have a file of their own. So a holder that was overtaken while it renewed can
 * never overwrite the lease of its successor. A renewal counts even if the holder's clock was
 * set back. */
static void
read_renewal(struct store *store, struct lease_text *t)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0}, key = {0};
	struct lease_text later = {0};

	if (strlen(t->token) != 32 || strspn(t->token, "0123456789abcdef") != 32)
		return;
	buf_printf(&key, RENEWAL_PREFIX "%s", t->token);
	if (!key.failed && store_get(store, buf_str(&key), LEASE_MAX_BYTES, &text, NULL) == 0 &&
	    lease_decode(&text, &later, NULL) == 0 && strcmp(later.token, t->token) == 0)
		*t = later;
}

static bool
is_of_this_process(const struct lease_text *t)
{
	struct clock_process own;

	return clock_this_process(&own, NULL) == 0 && clock_is_same_process(&own, &t->holder);
}

/* As it was taken. */
static int
read_taken(struct store *store, struct lease_text *ret, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};

	TRY(store_get(store, LEASE_KEY, LEASE_MAX_BYTES, &text, err));
	return lease_decode(&text, ret, err);
}

/* As it was last renewed, if that matters. */
static int
read_lease(struct store *store, struct lease_text *ret, struct pawl_error *err)
{
	TRY(read_taken(store, ret, err));
	if (clock_seen_process_alive(&ret->holder, clock_unix_ns()) < 0 || is_of_this_process(ret))
		read_renewal(store, ret);
	return 0;
}

static void
note_renewal(struct lease *l)
{
	l->mine.renewed_unix_ns = clock_unix_ns();
	l->renewed_ms = clock_mono_ms();
	l->mine.until_mono_ms = clock_deadline_ms(l->timeout_ms);
}

static int
put_lease(const struct lease *l, const char *key, int flags, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};

	TRY(lease_encode(&l->mine, &text, err));
	return store_put_bytes(l->store, key, text.ptr, text.len, flags, err);
}

static void
remove_renewal(struct store *store, const char *token)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0};

	buf_printf(&key, RENEWAL_PREFIX "%s", token);
	if (!key.failed)
		store_remove(store, buf_str(&key), NULL);
}

/* Torn, or never a lease: no process holds it. */
static bool
is_broken(int rc)
{
	return rc == PAWL_ECORRUPT || rc == PAWL_ELIMIT;
}

/* What the caller of lease_take observes while it waits. */
struct attempt {
	struct lease *lease;
	const struct lease_opts *opts;
	int64_t now_ms;
	struct lease_watch holder, takeover;
	bool is_living; /* the last refusal was by a holder known to live */
};

/* Notes a renewal. True when it has not changed for timeout_ms. */
static bool
watch_note(struct lease_watch *w, const char *token, int64_t renewed_unix_ns, int64_t now_ms, int64_t timeout_ms)
{
	const bool is_same = w->has_seen && strcmp(w->token, token) == 0 && w->renewed_unix_ns == renewed_unix_ns;

	if (!is_same) {
		w->has_changed = w->has_seen;
		w->has_seen = true;
		w->renewed_unix_ns = renewed_unix_ns;
		w->since_ms = now_ms;
		snprintf(w->token, sizeof(w->token), "%s", token);
	}
	return is_same && now_ms - w->since_ms >= timeout_ms;
}

/* May this lease be taken over? If this host can check the holder's process, only once it is dead;
 * else after long silence. If it is of this very process, once no handle renews it any more. */
static bool
is_abandoned(const struct lease_text *t, struct lease_watch *watch, int64_t now_ms, int64_t timeout_ms)
{
	const int alive = clock_seen_process_alive(&t->holder, t->renewed_unix_ns);
	const bool is_silent = watch_note(watch, t->token, t->renewed_unix_ns, now_ms, timeout_ms);

	if (is_of_this_process(t))
		return t->until_mono_ms > 0 && clock_mono_ms() > t->until_mono_ms;
	return alive >= 0 ? alive == 0 : is_silent;
}

static int
refuse_start(struct attempt *a, const struct lease_text *t, struct pawl_error *err)
{
	const char *root = a->lease->store->root, *host = t->holder.host;
	const long long pid = (long long)t->holder.pid;

	if (is_of_this_process(t)) {
		a->is_living = true;
		return err_set(err, PAWL_EBUSY,
		               "%s: this process has the run open already; close it first (manager.close(), "
		               "pawl_close). If it is closed, wait for timeouts.lease_ms",
		               root);
	}
	a->is_living = clock_process_alive(&t->holder) == 1 || a->holder.has_changed;
	if (a->is_living)
		return err_set(err, PAWL_EBUSY,
		               "%s: the run is being written by process %lld on host '%s', which is alive; end that "
		               "process first%s",
		               root, pid, host, a->opts->maintenance ? "" : ", or open the run to read only");
	return err_set(
		err, PAWL_EBUSY,
		"%s: the run is being written by process %lld on host '%s', or that process is dead. Its lease "
		"was not renewed in the last %lld s, and counts as abandoned after %lld s (timeouts.lease_ms). Wait "
		"that long (timeouts.lease_wait_ms), or delete " LEASE_KEY " there if that process is dead",
		root, pid, host, (long long)((a->now_ms - a->holder.since_ms) / 1000),
		(long long)((a->opts->timeout_ms + 999) / 1000));
}

/* Takes an abandoned lease with a put that replaces only what was read. Of several contenders,
 * however slow, one succeeds, and no lease is overwritten. PAWL_EUNSUPPORTED: the store has no such
 * put. */
static int
take_over_matching(struct attempt *a, struct pawl_error *err)
{
	struct lease *l = a->lease;
	PAWL_CLEAN(buf_clear) struct buf found = {0}, mine = {0};
	struct lease_text now = {0};
	char tag[STORE_TAG_BYTES];

	TRY(store_get_tagged(l->store, LEASE_KEY, LEASE_MAX_BYTES, &found, tag, err));
	int rc = lease_decode(&found, &now, err);

	if (rc < 0 && !is_broken(rc))
		return rc;
	if (rc == 0) {
		read_renewal(l->store, &now);
		if (!is_abandoned(&now, &a->holder, a->now_ms, l->timeout_ms))
			return refuse_start(a, &now, err);
	}
	TRY(lease_encode(&l->mine, &mine, err));
	rc = store_put_if(l->store, LEASE_KEY, tag, mine.ptr, mine.len, err);
	return rc == PAWL_ECONFLICT
	               ? err_set(err, PAWL_EBUSY, "%s: another process has just taken the run over", l->store->root)
	               : rc;
}

static int
take_free(struct lease *l, struct pawl_error *err)
{
	const int rc = put_lease(l, LEASE_KEY, STORE_EXCLUSIVE, err);

	return rc == PAWL_EEXISTS
	               ? err_set(err, PAWL_EBUSY, "%s: another process has just taken the run", l->store->root)
	               : rc;
}

/* Another process is taking the run over, or crashed while it did. After a crash the lock file does
 * not change, and is removed. */
static int
look_at_takeover(struct attempt *a, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	char token[33];

	if (store_get(a->lease->store, TAKEOVER_KEY, sizeof(token) - 1, &text, NULL) == 0) {
		snprintf(token, sizeof(token), "%.32s", buf_str(&text));
		if (watch_note(&a->takeover, token, 0, a->now_ms, TAKEOVER_TIMEOUT_MS))
			store_remove(a->lease->store, TAKEOVER_KEY, NULL);
	}
	a->is_living = false;
	return err_set(
		err, PAWL_EBUSY,
		"%s: another process is taking over the run; try again, or wait longer (timeouts.lease_wait_ms). After "
		"%d s " TAKEOVER_KEY " counts as left by a crash",
		a->lease->store->root, TAKEOVER_TIMEOUT_MS / 1000);
}

/* The same on other stores. The exclusive lock file admits one of several contenders. */
static int
take_over_locked(struct attempt *a, struct pawl_error *err)
{
	struct lease *l = a->lease;
	struct lease_text now = {0};
	int rc = store_put_bytes(l->store, TAKEOVER_KEY, l->mine.token, 32, STORE_EXCLUSIVE, err);

	if (rc == PAWL_EEXISTS)
		return look_at_takeover(a, err);
	TRY(rc);
	rc = read_lease(l->store, &now, err);
	if (rc == 0 && !is_abandoned(&now, &a->holder, a->now_ms, l->timeout_ms))
		rc = refuse_start(a, &now, err);
	else if (rc == PAWL_ENOTFOUND) /* released meanwhile: a newcomer takes it without the lock file, and must keep
	                                * it */
		rc = take_free(l, err);
	else if (rc == 0 || is_broken(rc))
		rc = put_lease(l, LEASE_KEY, 0, err);
	store_remove(l->store, TAKEOVER_KEY, NULL);
	return rc;
}

static int
take_over_lease(struct attempt *a, struct pawl_error *err)
{
	struct pawl_error why = {0};
	int rc = take_over_matching(a, &why);

	/* A lease that is too large to be read is broken, too. */
	return rc == PAWL_EUNSUPPORTED || rc == PAWL_ENOTFOUND || rc == PAWL_ELIMIT ? take_over_locked(a, err)
	                                                                            : err_give(err, rc, &why);
}

static int
acquire_lease(struct attempt *a, struct pawl_error *err)
{
	struct lease *l = a->lease;
	struct lease_text now;
	int rc;

	a->is_living = true; /* of a process that is faster than this one */
	note_renewal(l);
	if (!a->holder.has_seen) {
		rc = put_lease(l, LEASE_KEY, STORE_EXCLUSIVE, err);
		if (rc != PAWL_EEXISTS)
			return rc;
	}
	rc = read_lease(l->store, &now, err);
	if (rc == PAWL_ENOTFOUND) /* released in between */
		return take_free(l, err);
	if (rc == 0 && strcmp(now.token, l->mine.token) == 0) /* the put took place, though its answer was lost */
		return 0;
	if (rc == 0 && !is_abandoned(&now, &a->holder, a->now_ms, l->timeout_ms))
		return refuse_start(a, &now, err);
	if (rc < 0 && !is_broken(rc))
		return rc;
	return take_over_lease(a, err);
}

static int64_t
now_of(const struct lease_opts *o)
{
	return o->now_ms ? o->now_ms(o->clock_arg) : clock_mono_ms();
}

static void
pause_between_looks(const struct lease_opts *o, int64_t waited_ms)
{
	int64_t pause_ms = o->timeout_ms / 40 + 1;

	pause_ms = pause_ms < MAX_PAUSE_MS ? pause_ms : MAX_PAUSE_MS;
	if (o->wait_ms > 0 && o->wait_ms - waited_ms < pause_ms)
		pause_ms = o->wait_ms - waited_ms;
	if (o->sleep_ms)
		o->sleep_ms(o->clock_arg, pause_ms);
	else
		clock_sleep_ms(pause_ms);
}

static int
report_wait(const struct lease_opts *o, int64_t waited_ms, const char *message, struct pawl_error *err)
{
	struct pawl_error why = {0};
	int rc = o->on_wait(o->on_wait_arg, waited_ms, message, &why);

	return err_of_caller(err, rc, &why, "the caller's function for the wait for the lease");
}

/* Until the lease is ours, its holder is known to live, or the wait has lasted too long. */
static int
acquire_in_time(struct lease *l, const struct lease_opts *o, struct pawl_error *err)
{
	struct attempt a = {.lease = l, .opts = o};
	const int64_t begin_ms = now_of(o);

	for (a.now_ms = begin_ms;; a.now_ms = now_of(o)) {
		const int64_t waited_ms = a.now_ms - begin_ms;
		struct pawl_error why = {0};
		int rc = acquire_lease(&a, &why);

		if (rc != PAWL_EBUSY || o->wait_ms < 0 || (o->wait_ms == 0 && a.is_living) ||
		    (o->wait_ms > 0 && waited_ms >= o->wait_ms))
			return err_give(err, store_at_root(l->store, LEASE_KEY, rc, &why), &why);
		if (o->on_wait)
			TRY(report_wait(o, waited_ms, why.message, err));
		pause_between_looks(o, waited_ms);
	}
}

int
lease_check(struct lease *l, struct pawl_error *err)
{
	struct lease_text now = {0};
	int rc = read_taken(l->store, &now, err);

	if (rc == PAWL_ENOTFOUND)
		return err_set(err, PAWL_ECONFLICT,
		               "the run's lease is gone: the folder was moved, removed or taken over");
	TRY(rc);
	if (strcmp(now.token, l->mine.token) != 0)
		return err_set(err, PAWL_ECONFLICT, "the run was taken over by process %lld on host '%s'",
		               (long long)now.holder.pid, now.holder.host);
	return 0;
}

const char *
lease_token(const struct lease *l)
{
	return l->mine.token;
}

int
lease_is(struct store *store, const char *token)
{
	struct lease_text now = {0};

	return read_taken(store, &now, NULL) == 0 && strcmp(now.token, token) == 0;
}

int
lease_is_another(struct store *store, const char *token)
{
	struct lease_text now = {0};

	return read_taken(store, &now, NULL) == 0 && strcmp(now.token, token) != 0;
}

int
lease_is_held(struct store *store, int64_t timeout_ms)
{
	struct lease_text now = {0};

	if (read_lease(store, &now, NULL) < 0)
		return 0;
	const int alive = clock_seen_process_alive(&now.holder, now.renewed_unix_ns);
	const int64_t age_ms = (clock_unix_ns() - now.renewed_unix_ns) / 1000000;

	return alive >= 0 ? alive : -timeout_ms <= age_ms && age_ms <= timeout_ms;
}

int
lease_look(struct store *store, const char *token, int64_t timeout_ms, struct lease_watch *watch,
           struct pawl_error *err)
{
	struct lease_text now = {0};
	int rc = read_lease(store, &now, err);

	if (rc == PAWL_ENOTFOUND)
		return err_set(err, PAWL_ECONFLICT, "it has closed the run");
	TRY(rc);
	if (strcmp(now.token, token) != 0)
		return err_set(err, PAWL_ECONFLICT, "the run was taken over by process %lld on host '%s'",
		               (long long)now.holder.pid, now.holder.host);
	if (is_abandoned(&now, watch, clock_mono_ms(), timeout_ms))
		return err_set(err, PAWL_ECONFLICT, "process %lld on host '%s' is gone", (long long)now.holder.pid,
		               now.holder.host);
	return 0;
}

int
lease_read(struct store *store, struct clock_process *ret_holder, int64_t *ret_renewed_ns, struct pawl_error *err)
{
	struct lease_text now = {0};

	TRY(read_lease(store, &now, err));
	*ret_holder = now.holder;
	*ret_renewed_ns = now.renewed_unix_ns;
	return 0;
}

static void
put_renewal(const struct lease *l)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0};

	buf_printf(&key, RENEWAL_PREFIX "%s", l->mine.token);
	if (!key.failed)
		put_lease(l, buf_str(&key), 0, NULL);
}

/* Job: renews until it is stopped. A lease that is no longer ours is left alone; the next commit
 * notices. */
static void
renew_lease(void *arg)
{
	struct lease *l = arg;

	pthread_mutex_lock(&l->lock);
	while (!l->stop) {
		if (pool_cond_wait_until(&l->changed, &l->lock, clock_mono_ms() + l->timeout_ms / 4) != ETIMEDOUT)
			continue;
		pthread_mutex_unlock(&l->lock);
		if (lease_check(l, NULL) == 0) {
			note_renewal(l);
			put_renewal(l);
		}
		pthread_mutex_lock(&l->lock);
	}
	pthread_mutex_unlock(&l->lock);
}

/* A put that failed may still have taken place. Left there, the lease of this living process would
 * refuse every later one until it is out of date. */
static void
remove_unsure(const struct lease *l)
{
	if (lease_is(l->store, l->mine.token))
		store_remove(l->store, LEASE_KEY, NULL);
}

static void
free_lease(struct lease *l)
{
	pthread_cond_destroy(&l->changed);
	pthread_mutex_destroy(&l->lock);
	mem_free(l);
}

int
lease_take(struct store *store, const struct lease_opts *opts, struct lease **ret, struct pawl_error *err)
{
	struct lease *l = mem_zalloc(1, sizeof(*l));
	int rc;

	if (!l)
		return err_nomem(err, "lease");
	l->store = store;
	l->timeout_ms = opts->timeout_ms;
	pthread_mutex_init(&l->lock, NULL);
	pool_cond_init(&l->changed);
	rc = clock_this_process(&l->mine.holder, err);
	if (rc == 0)
		rc = clock_token(l->mine.token, err);
	if (rc == 0) {
		rc = acquire_in_time(l, opts, err);
		if (rc < 0 && rc != PAWL_EBUSY)
			remove_unsure(l);
	}
	if (rc < 0) {
		free_lease(l);
		return rc;
	}
	rc = pool_new("pawl-lease", 1, &l->renewer, err);
	if (rc == 0)
		rc = pool_add(l->renewer, NULL, renew_lease, l, err);
	if (rc < 0) {
		lease_drop(l);
		return rc;
	}
	*ret = l;
	return 0;
}

void
lease_drop(struct lease *l)
{
	if (!l)
		return;
	pthread_mutex_lock(&l->lock);
	l->stop = true;
	pthread_cond_broadcast(&l->changed);
	pthread_mutex_unlock(&l->lock);
	pool_free(l->renewer);
	int rc = lease_check(l, NULL);
	/* Without memory to check: no process can have taken over what was renewed just now, and
	 * this process may retry the renewal. */
	if (rc == PAWL_ENOMEM && clock_mono_ms() - l->renewed_ms < l->timeout_ms / 2)
		rc = 0;
	if (rc == 0)
		store_remove(l->store, LEASE_KEY, NULL);
	remove_renewal(l->store, l->mine.token);
	free_lease(l);
}
