/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cred: see cred.h. Finding keys may take a while. It runs under one lock, because every other
 * caller that needs keys at that moment needs the new ones.
 *
 * Keys with an expiry are renewed when a quarter of their life is left, five minutes at most. A
 * failed renewal is not an error as long as the old keys are valid.
 */
#include "store/object/cred.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/os.h"
#include "base/text.h"
#include "store/object/http/http.h"

#define MAX_FILE_BYTES (1u << 20)
#define RENEW_SECONDS 300
#define TRY_AGAIN_SECONDS 30

struct cred {
	cred_find_fn *find;
	char *region, *ca_bundle;
	pthread_mutex_t lock; /* guards all below */
	bool have;
	int64_t renew_s; /* unix time of the next lookup; 0 = never */
	struct cred_keys keys;
};

void
cred_keys_wipe(struct cred_keys *keys)
{
	os_wipe(keys, sizeof *keys);
}

const char *
cred_env(const char *name)
{
	const char *value = getenv(name);
	return value != NULL && value[0] != '\0' ? value : NULL;
}

void
cred_wipe_buf(struct buf *b)
{
	if (b->ptr != NULL)
		os_wipe(b->ptr, b->cap);
	buf_clear(b);
}

void
cred_wipe_call(struct http_call *call)
{
	cred_wipe_buf(&call->text);
	http_call_clear(call);
}

void
cred_close_http(struct http **h)
{
	http_free(*h);
}

int
cred_read_file(const char *path, struct buf *out, struct pawl_error *err)
{
	struct stat st;
	/* A link is followed: Kubernetes mounts each file of a secret as one. O_NONBLOCK: opening a
	 * pipe must not wait for a writer. */
	PAWL_FD int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT || errno == ENOTDIR ? 0 : err_sys(err, errno, "%.300s: cannot be read", path);
	if (fstat(fd, &st) < 0)
		return err_sys(err, errno, "%.300s: cannot be read", path);
	if ((st.st_mode & S_IWOTH) != 0)
		return err_set(err, PAWL_EAUTH, "%.300s: all users can write to it, expected mode 0600", path);
	/* One piece from the beginning, so that no copy stays behind in freed memory. */
	if (buf_grow(out, MAX_FILE_BYTES + 1) == NULL)
		return err_nomem(err, path);
	out->len = 0;
	return fd_read_opened(fd, path, MAX_FILE_BYTES, out, err);
}

bool
cred_is_busy(int status)
{
	return status == 408 || status == 429 || status >= 500;
}

const char *
cred_member(const struct json *object, const char *name)
{
	const struct json *value = json_get(object, name);
	return value != NULL && value->type == JSON_STRING ? value->str : NULL;
}

void
cred_wipe_member(const struct json *object, const char *name)
{
	const struct json *value = json_get(object, name);
	if (value != NULL && value->type == JSON_STRING)
		os_wipe((char *)(uintptr_t)value->str, value->len);
}

static int64_t
now_s(void)
{
	return clock_unix_ns() / 1000000000;
}

/* Copies printing ASCII without blanks, which is all that a header may hold. */
static bool
copy_key(char *dst, size_t cap, const char *src)
{
	for (const char *c = src; *c != '\0'; c++)
		if (*c <= ' ' || *c > '~')
			return false;
	return text_copy(dst, cap, src);
}

static int
check_expiry(const struct cred_keys *keys, struct pawl_error *err)
{
	int64_t now = now_s();
	if (keys->expires_s > 0 && keys->expires_s <= now)
		return err_set(err, PAWL_EAUTH, "%s: the credentials expired %" PRId64 " s ago", keys->source,
		               now - keys->expires_s);
	return 0;
}

int
cred_keys_set(struct cred_keys *ret, const char *source, const char *access_key, const char *secret_key,
              const char *session_token, const char *expiration, struct pawl_error *err)
{
	cred_keys_wipe(ret);
	text_copy(ret->source, sizeof ret->source, source);
	if (!copy_key(ret->access_key, sizeof ret->access_key, access_key) || access_key[0] == '\0')
		return err_set(err, PAWL_EAUTH, "%s: the access key id is malformed", source);
	if (!copy_key(ret->secret_key, sizeof ret->secret_key, secret_key) || secret_key[0] == '\0')
		return err_set(err, PAWL_EAUTH, "%s: the secret access key is malformed", source);
	if (!copy_key(ret->session_token, sizeof ret->session_token, session_token != NULL ? session_token : ""))
		return err_set(err, PAWL_EAUTH, "%s: the session token is malformed", source);
	if (expiration == NULL || expiration[0] == '\0')
		return 0;
	ret->expires_s = http_iso_time(expiration);
	if (ret->expires_s < 0)
		return err_set(err, PAWL_EAUTH, "%s: the time of expiry is malformed: \"%.40s\"", source, expiration);
	return check_expiry(ret, err);
}

int
cred_keys_set_token(struct cred_keys *ret, const char *source, const char *token, int64_t expires_s,
                    struct pawl_error *err)
{
	cred_keys_wipe(ret);
	text_copy(ret->source, sizeof ret->source, source);
	if (!copy_key(ret->session_token, sizeof ret->session_token, token) || token[0] == '\0')
		return err_set(err, PAWL_EAUTH, "%s: the token is malformed", source);
	ret->expires_s = expires_s;
	return check_expiry(ret, err);
}

/* ------------------------------------------------------------------ the face */

int
cred_new(cred_find_fn *find, const struct cred_where *where, struct cred **ret, struct pawl_error *err)
{
	struct cred *c = mem_zalloc(1, sizeof *c);
	if (c == NULL)
		return err_nomem(err, "credentials");
	pthread_mutex_init(&c->lock, NULL);
	c->find = find;
	c->region = where->region != NULL ? mem_strdup(where->region) : NULL;
	c->ca_bundle = where->ca_bundle != NULL ? mem_strdup(where->ca_bundle) : NULL;
	if ((where->region != NULL && c->region == NULL) || (where->ca_bundle != NULL && c->ca_bundle == NULL)) {
		cred_free(c);
		return err_nomem(err, "credentials");
	}
	*ret = c;
	return 0;
}

void
cred_free(struct cred *c)
{
	if (c == NULL)
		return;
	cred_keys_wipe(&c->keys);
	pthread_mutex_destroy(&c->lock);
	mem_free(c->region);
	mem_free(c->ca_bundle);
	mem_free(c);
}

/* Called with the lock held. */
static int
renew_keys(struct cred *c, bool refused, struct pawl_error *err)
{
	PAWL_CLEAN(cred_keys_wipe) struct cred_keys fresh = {0};
	int64_t now = now_s();
	int rc = c->find(&(struct cred_where){c->region, c->ca_bundle}, &fresh, err);
	if (rc < 0) {
		bool still_good = c->have && !refused && (c->keys.expires_s == 0 || c->keys.expires_s > now);
		if (!still_good)
			return rc;
		c->renew_s = now + TRY_AGAIN_SECONDS;
		return 0;
	}
	int64_t life = fresh.expires_s - now, margin = life / 4 < RENEW_SECONDS ? life / 4 : RENEW_SECONDS;
	c->keys = fresh;
	c->have = true;
	c->renew_s = fresh.expires_s == 0 ? 0 : fresh.expires_s - margin;
	return 0;
}

int
cred_get(struct cred *c, bool renew, struct cred_keys *ret, struct pawl_error *err)
{
	int rc = 0;
	pthread_mutex_lock(&c->lock);
	if (!c->have || renew || (c->renew_s > 0 && now_s() >= c->renew_s))
		rc = renew_keys(c, renew, err);
	if (rc == 0)
		*ret = c->keys;
	pthread_mutex_unlock(&c->lock);
	return rc;
}
