/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease: see lease.h. Called by run.c (take, drop) and by commit.c and run.c before every commit and deletion (check).
 *
 * .lease says who; it is written only when the lease is taken. .lease.<token> says when that one last lived.
 *
 *   FREE --exclusive put--> HELD --renewed--> HELD --removed--> FREE
 *                            \--holder dead or silent: takeover under an exclusive lock file--> HELD by another
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
#include "base/json.h"
#include "base/mem.h"
#include "base/pool.h"

#define TAKEOVER_KEY ".lease.takeover"
#define RENEWAL_PREFIX LEASE_KEY "." /* and the token: when its holder last said that it lives */
#define LEASE_MAX_BYTES 4096u

struct lease_text {
	struct clock_process holder;
	char token[33];
	int64_t renewed_unix_ns;
};

struct lease {
	struct store *store; /* borrowed */
	int64_t timeout_ms;
	struct lease_text mine; /* renewed_unix_ns: the renewing thread's own */
	struct pool *renewer;
	pthread_mutex_t lock; /* guards stop */
	pthread_cond_t changed;
	bool stop;
};

static int
encode(const struct lease_text *t, struct buf *out, struct pawl_error *err)
{
	buf_puts(out, "{\"pawl_lease\":1,\"host\":");
	json_put_string(out, t->holder.host, strlen(t->holder.host));
	buf_puts(out, ",\"boot\":");
	json_put_string(out, t->holder.boot, strlen(t->holder.boot));
	buf_printf(out, ",\"pid\":%lld,\"start\":%llu,\"token\":\"%s\",\"renewed_unix_ns\":%lld}\n",
	           (long long)t->holder.pid, (unsigned long long)t->holder.start_ticks, t->token,
	           (long long)t->renewed_unix_ns);
	return buf_check(out, LEASE_KEY, err);
}

static int
decode(const struct buf *text, struct lease_text *ret, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct json_limits limits = {.max_bytes = LEASE_MAX_BYTES};
	struct json *root;
	const char *host, *boot, *token;

	TRY(json_parse(LEASE_KEY, text->ptr, text->len, &limits, &memory, &root, err));
	TRY(json_get_str(LEASE_KEY, root, "host", &host, err));
	TRY(json_get_str(LEASE_KEY, root, "boot", &boot, err));
	TRY(json_get_str(LEASE_KEY, root, "token", &token, err));
	TRY(json_get_i64(LEASE_KEY, root, "pid", &ret->holder.pid, err));
	TRY(json_get_u64(LEASE_KEY, root, "start", &ret->holder.start_ticks, err));
	TRY(json_get_i64(LEASE_KEY, root, "renewed_unix_ns", &ret->renewed_unix_ns, err));
	if (ret->renewed_unix_ns < 0)
		return err_set(err, PAWL_ECORRUPT, LEASE_KEY ": renewed_unix_ns: expected a number from 0, found %lld",
		               (long long)ret->renewed_unix_ns);
	snprintf(ret->holder.host, sizeof(ret->holder.host), "%s", host);
	snprintf(ret->holder.boot, sizeof(ret->holder.boot), "%s", boot);
	snprintf(ret->token, sizeof(ret->token), "%s", token);
	return 0;
}

/* The renewals lie in a file of their own: a holder that was overtaken while it renewed can so never write over the
 * lease of its successor. */
static void
read_renewal(struct store *store, struct lease_text *t)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0}, key = {0};
	struct lease_text later = {0};

	if (strlen(t->token) != 32 || strspn(t->token, "0123456789abcdef") != 32)
		return;
	buf_printf(&key, RENEWAL_PREFIX "%s", t->token);
	if (!key.failed && store_get(store, buf_str(&key), LEASE_MAX_BYTES, &text, NULL) == 0 &&
	    decode(&text, &later, NULL) == 0 && strcmp(later.token, t->token) == 0 &&
	    later.renewed_unix_ns > t->renewed_unix_ns)
		t->renewed_unix_ns = later.renewed_unix_ns;
}

static int
read_lease(struct store *store, struct lease_text *ret, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};

	TRY(store_get(store, LEASE_KEY, LEASE_MAX_BYTES, &text, err));
	TRY(decode(&text, ret, err));
	if (clock_process_alive(&ret->holder) < 0) /* else nobody asks when */
		read_renewal(store, ret);
	return 0;
}

static int
put_lease(const struct lease *l, const char *key, int flags, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};

	TRY(encode(&l->mine, &text, err));
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

/* Torn, or never a lease: nobody can live by it. */
static bool
is_broken(int rc)
{
	return rc == PAWL_ECORRUPT || rc == PAWL_ELIMIT;
}

/* May this lease be taken over? Same host: only from the dead. Other host: only after long silence. */
static bool
is_abandoned(const struct lease_text *t, int64_t timeout_ms)
{
	int alive = clock_process_alive(&t->holder);

	if (alive >= 0)
		return alive == 0;
	return clock_unix_ns() - t->renewed_unix_ns > timeout_ms * 1000000;
}

static int
refuse(struct store *store, struct lease_text *t, struct pawl_error *err)
{
	read_renewal(store, t);
	return err_set(err, PAWL_EBUSY,
	               "%s: the run is being written by process %lld on host '%s' (lease renewed %lld s ago)",
	               store->root, (long long)t->holder.pid, t->holder.host,
	               (long long)((clock_unix_ns() - t->renewed_unix_ns) / 1000000000));
}

/* Takes an abandoned lease where a put can be made to replace only what was read: of several contenders, however slow,
 * one comes through, and nobody's lease is written over. PAWL_EUNSUPPORTED: that cannot be had. */
static int
take_over_matching(struct lease *l, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf found = {0}, mine = {0};
	struct lease_text now = {0};
	char tag[STORE_TAG_BYTES];

	TRY(store_get_tagged(l->store, LEASE_KEY, LEASE_MAX_BYTES, &found, tag, err));
	int rc = decode(&found, &now, err);

	if (rc < 0 && !is_broken(rc))
		return rc;
	if (rc == 0) {
		read_renewal(l->store, &now);
		if (!is_abandoned(&now, l->timeout_ms))
			return refuse(l->store, &now, err);
	}
	TRY(encode(&l->mine, &mine, err));
	rc = store_put_if(l->store, LEASE_KEY, tag, mine.ptr, mine.len, err);
	return rc == PAWL_ECONFLICT
	               ? err_set(err, PAWL_EBUSY, "%s: another process has just taken the run over", l->store->root)
	               : rc;
}

/* The same elsewhere. The exclusive lock file lets one of several contenders through; one that crashed in here leaves
 * it behind, so an old one is removed. */
static int
take_over_locked(struct lease *l, struct pawl_error *err)
{
	struct lease_text now = {0};
	struct store_entry entry;
	int rc = store_put_bytes(l->store, TAKEOVER_KEY, l->mine.token, 32, STORE_EXCLUSIVE, err);

	if (rc == PAWL_EEXISTS) {
		if (store_stat(l->store, TAKEOVER_KEY, &entry, NULL) == 0 &&
		    clock_unix_ns() - entry.mtime_ns > (int64_t)60 * 1000000000)
			store_remove(l->store, TAKEOVER_KEY, NULL);
		return err_set(err, PAWL_EBUSY, "%s: another process is taking the run over just now", l->store->root);
	}
	TRY(rc);
	rc = read_lease(l->store, &now, err);
	if (rc == 0 && !is_abandoned(&now, l->timeout_ms))
		rc = refuse(l->store, &now, err);
	else if (rc == PAWL_ENOTFOUND) /* given up in between: a newcomer takes it without the lock file, and is not to
	                                * lose it again */
		rc = put_lease(l, LEASE_KEY, STORE_EXCLUSIVE, err);
	else if (rc == 0 || is_broken(rc))
		rc = put_lease(l, LEASE_KEY, 0, err);
	if (rc == PAWL_EEXISTS)
		rc = err_set(err, PAWL_EBUSY, "%s: another process has just taken the run", l->store->root);
	store_remove(l->store, TAKEOVER_KEY, NULL);
	return rc;
}

static int
take_over(struct lease *l, struct pawl_error *err)
{
	struct pawl_error why = {0};
	int rc = take_over_matching(l, &why);

	/* One that is too large to be read is broken, too. */
	return rc == PAWL_EUNSUPPORTED || rc == PAWL_ENOTFOUND || rc == PAWL_ELIMIT ? take_over_locked(l, err)
	                                                                            : err_give(err, rc, &why);
}

static int
acquire(struct lease *l, struct pawl_error *err)
{
	struct lease_text now;
	int rc = put_lease(l, LEASE_KEY, STORE_EXCLUSIVE, err);

	if (rc != PAWL_EEXISTS)
		return rc;
	rc = read_lease(l->store, &now, err);
	if (rc == PAWL_ENOTFOUND) /* given up in between */
		return put_lease(l, LEASE_KEY, STORE_EXCLUSIVE, err);
	if (rc == 0 && !is_abandoned(&now, l->timeout_ms))
		return refuse(l->store, &now, err);
	if (rc < 0 && !is_broken(rc))
		return rc;
	return take_over(l, err);
}

int
lease_check(struct lease *l, struct pawl_error *err)
{
	struct lease_text now = {0};
	int rc = read_lease(l->store, &now, err);

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

	return read_lease(store, &now, NULL) == 0 && strcmp(now.token, token) == 0;
}

int
lease_is_another(struct store *store, const char *token)
{
	struct lease_text now = {0};

	return read_lease(store, &now, NULL) == 0 && strcmp(now.token, token) != 0;
}

int
lease_is_held(struct store *store, int64_t timeout_ms)
{
	struct lease_text now = {0};

	return read_lease(store, &now, NULL) == 0 && !is_abandoned(&now, timeout_ms);
}

int
lease_look(struct store *store, const char *token, int64_t timeout_ms, struct pawl_error *err)
{
	struct lease_text now = {0};
	int rc = read_lease(store, &now, err);

	if (rc == PAWL_ENOTFOUND)
		return err_set(err, PAWL_ECONFLICT, "it has closed the run");
	TRY(rc);
	if (strcmp(now.token, token) != 0)
		return err_set(err, PAWL_ECONFLICT, "the run was taken over by process %lld on host '%s'",
		               (long long)now.holder.pid, now.holder.host);
	if (is_abandoned(&now, timeout_ms))
		return err_set(err, PAWL_ECONFLICT, "process %lld on host '%s' is gone", (long long)now.holder.pid,
		               now.holder.host);
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

/* Job: renews until told to stop. A lease that is not ours any more is left alone; the next commit finds out. */
static void
renew(void *arg)
{
	struct lease *l = arg;

	pthread_mutex_lock(&l->lock);
	while (!l->stop) {
		if (cond_wait_until(&l->changed, &l->lock, clock_mono_ms() + l->timeout_ms / 4) != ETIMEDOUT)
			continue;
		pthread_mutex_unlock(&l->lock);
		if (lease_check(l, NULL) == 0) {
			l->mine.renewed_unix_ns = clock_unix_ns();
			put_renewal(l);
		}
		pthread_mutex_lock(&l->lock);
	}
	pthread_mutex_unlock(&l->lock);
}

static void
free_lease(struct lease *l)
{
	pthread_cond_destroy(&l->changed);
	pthread_mutex_destroy(&l->lock);
	mem_free(l);
}

int
lease_take(struct store *store, int64_t timeout_ms, struct lease **ret, struct pawl_error *err)
{
	struct lease *l = mem_zalloc(1, sizeof(*l));
	int rc;

	if (!l)
		return err_set(err, PAWL_ENOMEM, "lease: out of memory");
	l->store = store;
	l->timeout_ms = timeout_ms;
	pthread_mutex_init(&l->lock, NULL);
	cond_init(&l->changed);
	rc = clock_this_process(&l->mine.holder, err);
	if (rc == 0)
		rc = clock_token(l->mine.token, err);
	l->mine.renewed_unix_ns = clock_unix_ns();
	if (rc == 0)
		rc = acquire(l, err);
	if (rc < 0) {
		free_lease(l);
		return rc;
	}
	rc = pool_new("pawl-lease", 1, &l->renewer, err);
	if (rc == 0)
		rc = pool_add(l->renewer, NULL, renew, l, err);
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
	/* Without memory to look: nobody can have taken over what was renewed just now, and this process may want it
	 * again. */
	if (rc == PAWL_ENOMEM && clock_unix_ns() - l->mine.renewed_unix_ns < l->timeout_ms * 500000)
		rc = 0;
	if (rc == 0)
		store_remove(l->store, LEASE_KEY, NULL);
	remove_renewal(l->store, l->mine.token);
	free_lease(l);
}
