/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_cred: see s3_cred.h. Called by s3_call.c before each request; calls the providers, which may take a while, under
 * one lock: whoever else needs keys at that moment needs the new ones.
 *
 * Keys with an expiry are renewed when a quarter of their life is left, five minutes at most. A renewal that fails is
 * no error as long as the old ones are valid.
 */
#include "store/s3_cred.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/proc.h"
#include "base/text.h"

#define RENEW_SECONDS 300
#define TRY_AGAIN_SECONDS 30
#define PROCESS_MS 60000
#define MAX_PROCESS_BYTES (64u << 10)

struct s3_cred {
	char *region, *ca_bundle;
	pthread_mutex_t lock; /* guards all below */
	bool have;
	int64_t renew_s; /* when to look again; 0 = never */
	struct s3_keys keys;
};

void
s3_keys_wipe(struct s3_keys *keys)
{
	explicit_bzero(keys, sizeof *keys);
}

static int64_t
now_s(void)
{
	return clock_unix_ns() / 1000000000;
}

int64_t
s3_parse_time(const char *text)
{
	struct tm tm = {0};
	const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
	if (rest == NULL)
		return -1;
	if (*rest == '.') {
		rest++;
		rest += strspn(rest, "0123456789");
	}
	int hours = 0, minutes = 0;
	if ((*rest == '+' || *rest == '-') && sscanf(rest + 1, "%2d:%2d", &hours, &minutes) == 2) {
		int sign = *rest == '-' ? 1 : -1;
		return (int64_t)timegm(&tm) + sign * (hours * 3600 + minutes * 60);
	}
	return strcmp(rest, "Z") == 0 ? (int64_t)timegm(&tm) : -1;
}

/* Printing ASCII without blanks: what may stand in a header. */
static bool
copy_key(char *dst, size_t cap, const char *src)
{
	for (const char *c = src; *c != '\0'; c++)
		if (*c <= ' ' || *c > '~')
			return false;
	return text_copy(dst, cap, src);
}

int
s3_keys_set(struct s3_keys *ret, const char *source, const char *access_key, const char *secret_key,
            const char *session_token, const char *expiration, struct pawl_error *err)
{
	s3_keys_wipe(ret);
	text_copy(ret->source, sizeof ret->source, source);
	if (!copy_key(ret->access_key, sizeof ret->access_key, access_key) || access_key[0] == '\0')
		return err_set(err, PAWL_EAUTH, "%s: the access key id is malformed", source);
	if (!copy_key(ret->secret_key, sizeof ret->secret_key, secret_key) || secret_key[0] == '\0')
		return err_set(err, PAWL_EAUTH, "%s: the secret access key is malformed", source);
	if (!copy_key(ret->session_token, sizeof ret->session_token, session_token != NULL ? session_token : ""))
		return err_set(err, PAWL_EAUTH, "%s: the session token is malformed", source);
	if (expiration == NULL || expiration[0] == '\0')
		return 0;
	ret->expires_s = s3_parse_time(expiration);
	if (ret->expires_s < 0)
		return err_set(err, PAWL_EAUTH, "%s: the time of expiry is malformed: \"%.40s\"", source, expiration);
	int64_t now = now_s();
	if (ret->expires_s <= now)
		return err_set(err, PAWL_EAUTH, "%s: the credentials expired %" PRId64 " s ago", source,
		               now - ret->expires_s);
	return 0;
}

/* A string member, or NULL. */
static const char *
member(const struct json *object, const char *name)
{
	const struct json *value = json_get(object, name);
	return value != NULL && value->type == JSON_STRING ? value->str : NULL;
}

static void
wipe_member(const struct json *object, const char *name)
{
	const struct json *value = json_get(object, name);
	if (value != NULL && value->type == JSON_STRING)
		explicit_bzero((char *)(uintptr_t)value->str, value->len);
}

int
s3_keys_from_json(struct s3_keys *ret, const char *source, const char *token_name, struct buf *text,
                  struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct json *doc = NULL;
	int rc = json_parse(source, text->ptr, text->len, NULL, &memory, &doc, err);
	if (rc == 0) {
		const char *access_key = member(doc, "AccessKeyId"), *secret_key = member(doc, "SecretAccessKey");
		if (access_key == NULL || secret_key == NULL)
			rc = err_set(err, PAWL_EAUTH, "%s: the answer has no AccessKeyId or no SecretAccessKey",
			             source);
		else
			rc = s3_keys_set(ret, source, access_key, secret_key, member(doc, token_name),
			                 member(doc, "Expiration"), err);
		wipe_member(doc, "SecretAccessKey");
		wipe_member(doc, token_name);
	}
	if (text->ptr != NULL)
		explicit_bzero(text->ptr, text->cap);
	buf_clear(text);
	return rc < 0 ? rc : 1;
}

/* ----------------------------------------------------------- the providers */

static int
from_environment(struct s3_keys *ret, struct pawl_error *err)
{
	const char *access_key = s3_env("AWS_ACCESS_KEY_ID"), *secret_key = s3_env("AWS_SECRET_ACCESS_KEY");
	if (access_key == NULL && secret_key == NULL)
		return 0;
	if (access_key == NULL || secret_key == NULL)
		return err_set(err, PAWL_EAUTH, "the environment has %s, but no %s",
		               access_key != NULL ? "AWS_ACCESS_KEY_ID" : "AWS_SECRET_ACCESS_KEY",
		               access_key != NULL ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID");
	const char *token = s3_env("AWS_SESSION_TOKEN");
	TRY(s3_keys_set(ret, "the environment", access_key, secret_key, token, NULL, err));
	return 1;
}

static int
from_process(const char *source, const char *line, struct s3_keys *ret, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	char **argv;
	int rc = proc_split(line, &memory, &argv, err);
	if (rc == 0 && buf_grow(&text, MAX_PROCESS_BYTES + 1) == NULL)
		rc = err_set(err, PAWL_ENOMEM, "out of memory");
	text.len = 0;
	if (rc == 0)
		rc = proc_capture(argv, PROCESS_MS, MAX_PROCESS_BYTES, &text, err);
	if (rc < 0) {
		if (text.ptr != NULL)
			explicit_bzero(text.ptr, text.cap);
		int code = rc == PAWL_ENOMEM ? PAWL_ENOMEM : PAWL_EAUTH;
		if (err != NULL)
			err->code = code;
		return err_prefix(err, code, "%s: credential_process", source);
	}
	return s3_keys_from_json(ret, source, "SessionToken", &text, err);
}

static int
from_profile(const struct s3_profile *p, const struct s3_cred *c, struct s3_keys *ret, struct pawl_error *err)
{
	char source[192];
	snprintf(source, sizeof source, "profile \"%s\"", p->name);
	const char *access_key = s3_profile_get(p, "aws_access_key_id");
	const char *secret_key = s3_profile_get(p, "aws_secret_access_key");
	const char *role = s3_profile_get(p, "role_arn"), *process = s3_profile_get(p, "credential_process");
	const char *token_file = s3_profile_get(p, "web_identity_token_file");
	if (role != NULL && token_file != NULL)
		return s3_cred_web_identity(token_file, role, s3_profile_get(p, "role_session_name"), c->region,
		                            c->ca_bundle, ret, err);
	if (access_key != NULL && secret_key != NULL && role == NULL) {
		TRY(s3_keys_set(ret, source, access_key, secret_key, s3_profile_get(p, "aws_session_token"), NULL,
		                err));
		return 1;
	}
	if (process != NULL)
		return from_process(source, process, ret, err);
	if (role != NULL || s3_profile_get(p, "sso_start_url") != NULL || s3_profile_get(p, "sso_session") != NULL)
		return err_set(err, PAWL_EAUTH,
		               "%s: roles and single sign-on are not followed here; let credential_process do it, for "
		               "instance \"aws configure export-credentials\"",
		               source);
	if (access_key != NULL || secret_key != NULL)
		return err_set(err, PAWL_EAUTH, "%s: has no %s", source,
		               access_key != NULL ? "aws_secret_access_key" : "aws_access_key_id");
	return 0;
}

static int
from_web_environment(const struct s3_cred *c, struct s3_keys *ret, struct pawl_error *err)
{
	const char *file = s3_env("AWS_WEB_IDENTITY_TOKEN_FILE"), *role = s3_env("AWS_ROLE_ARN");
	if (file == NULL || role == NULL)
		return 0;
	return s3_cred_web_identity(file, role, s3_env("AWS_ROLE_SESSION_NAME"), c->region, c->ca_bundle, ret, err);
}

static int
find(const struct s3_cred *c, struct s3_keys *ret, struct pawl_error *err)
{
	PAWL_CLEAN(s3_profile_clear) struct s3_profile profile = {0};
	int rc = 0;
	/* A profile that is asked for by name goes before the environment, as with other tools. */
	if (s3_env("AWS_PROFILE") == NULL)
		rc = from_environment(ret, err);
	if (rc == 0)
		rc = from_web_environment(c, ret, err);
	if (rc != 0)
		return rc;
	TRY(s3_profile_read(&profile, err));
	rc = from_profile(&profile, c, ret, err);
	if (rc == 0)
		rc = s3_cred_container(ret, c->ca_bundle, err);
	if (rc == 0)
		rc = s3_cred_instance(ret, err);
	if (rc == 0)
		rc = err_set(
			err, PAWL_EAUTH,
			"no credentials for S3: not in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), not "
			"in profile \"%s\", no web identity, no container, no instance role",
			profile.name);
	return rc;
}

/* ------------------------------------------------------------------ the face */

int
s3_cred_new(const char *region, const char *ca_bundle, struct s3_cred **ret, struct pawl_error *err)
{
	struct s3_cred *c = mem_zalloc(1, sizeof *c);
	if (c == NULL)
		return err_set(err, PAWL_ENOMEM, "credentials: out of memory");
	pthread_mutex_init(&c->lock, NULL);
	c->region = mem_strdup(region);
	c->ca_bundle = ca_bundle != NULL ? mem_strdup(ca_bundle) : NULL;
	if (c->region == NULL || (ca_bundle != NULL && c->ca_bundle == NULL)) {
		s3_cred_free(c);
		return err_set(err, PAWL_ENOMEM, "credentials: out of memory");
	}
	*ret = c;
	return 0;
}

void
s3_cred_free(struct s3_cred *c)
{
	if (c == NULL)
		return;
	s3_keys_wipe(&c->keys);
	pthread_mutex_destroy(&c->lock);
	mem_free(c->region);
	mem_free(c->ca_bundle);
	mem_free(c);
}

/* Under the lock. */
static int
renew_keys(struct s3_cred *c, bool refused, struct pawl_error *err)
{
	PAWL_CLEAN(s3_keys_wipe) struct s3_keys fresh = {0};
	int64_t now = now_s();
	int rc = find(c, &fresh, err);
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
s3_cred_get(struct s3_cred *c, bool renew, struct s3_keys *ret, struct pawl_error *err)
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
