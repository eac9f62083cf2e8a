/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gcs_cred: see gcs_cred.h.
 *
 * P18: a secret is sent only by https or to this machine. The metadata server is the only
 * exception, and the only server that may be reached at a link-local address. This machine and
 * the metadata server are never reached through a proxy.
 */
#include "store/object/gcs/gcs_cred.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/text.h"
#include "store/object/http/http.h"

#define TOKEN_URI "https://oauth2.googleapis.com/token"
#define GRANT_JWT "urn:ietf:params:oauth:grant-type:jwt-bearer"
#define METADATA "the metadata server"
#define MAX_SKEW_SECONDS 300

static int64_t
now_s(void)
{
	return clock_unix_ns() / 1000000000;
}

/* ------------------------------------------------------------- token services */

/* Takes the access token from an answer, and wipes the text. */
static int
take_token(const char *source, struct http_call *call, struct cred_keys *ret, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct json *doc = NULL;
	int64_t seconds = 0;
	int rc = json_parse(source, call->text.ptr, call->text.len, NULL, &memory, &doc, err);
	if (rc == 0 && cred_member(doc, "access_token") == NULL)
		rc = err_set(err, PAWL_EAUTH, "%s: the answer has no access_token", source);
	if (rc == 0)
		rc = json_get_i64(source, doc, "expires_in", &seconds, err);
	if (rc == 0 && (seconds <= 0 || seconds > INT32_MAX))
		rc = err_set(err, PAWL_EAUTH, "%s: the answer has no valid expires_in", source);
	if (rc == 0)
		rc = cred_keys_set_token(ret, source, cred_member(doc, "access_token"), now_s() + seconds, err);
	cred_wipe_member(doc, "access_token");
	cred_wipe_buf(&call->text);
	return rc < 0 ? rc : 1;
}

/* The service's error code ("invalid_grant"), or "". */
static void
take_word(const struct http_call *call, char word[65])
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct json *doc = NULL;
	word[0] = '\0';
	if (call->text.len == 0 || json_parse("", call->text.ptr, call->text.len, NULL, &memory, &doc, NULL) < 0)
		return;
	const char *text = cred_member(doc, "error");
	if (text != NULL && strlen(text) <= 64 && strspn(text, "abcdefghijklmnopqrstuvwxyz_") == strlen(text))
		text_copy(word, 65, text);
}

static int
refuse_token(const char *source, const struct http_call *call, struct pawl_error *err)
{
	char word[65];
	int status = call->status;
	int64_t theirs = http_date_time(http_header_of(call, "date")), ahead = now_s() - theirs;
	take_word(call, word);
	if (theirs >= 0 && strcmp(word, "invalid_grant") == 0 &&
	    (ahead > MAX_SKEW_SECONDS || ahead < -MAX_SKEW_SECONDS))
		return err_set(err, PAWL_EAUTH, "%s: the clock of this machine is %" PRId64 " s %s the token service's",
		               source, ahead >= 0 ? ahead : -ahead, ahead >= 0 ? "ahead of" : "behind");
	return err_set(err, cred_is_busy(status) ? PAWL_ETRANSIENT : PAWL_EAUTH,
	               "%s: the token service answered with status %d%s%s", source, status, word[0] != '\0' ? " " : "",
	               word);
}

static void
put_parameter(struct buf *out, const char *name, const char *value)
{
	buf_printf(out, "%s%s=", out->len > 0 ? "&" : "", name);
	http_encode(out, value, false);
}

static int
ask_service(const char *source, const char *url, const struct buf *form, struct cred_keys *ret, struct pawl_error *err)
{
	if (strncmp(url, "https://", 8) != 0 && !(strncmp(url, "http://", 7) == 0 && http_is_loopback_url(url)))
		return err_set(err, PAWL_EAUTH, "%s: token_uri: expected https, or http to this machine", source);
	PAWL_CLEAN(cred_close_http) struct http *h = NULL;
	struct http_opts opts = {.connect_ms = 5000, .total_seconds = 30};
	TRY(http_new(&opts, &h, err));
	struct pawl_slice body = {form->ptr, form->len};
	PAWL_CLEAN(cred_wipe_call) struct http_call call = {.method = "POST", .url = url, .body = &body, .n_body = 1};
	call.headers[call.n_headers++] = (struct http_header){"Content-Type", "application/x-www-form-urlencoded"};
	int rc = http_run(h, &call, 1, err);
	if (rc < 0)
		return err_prefix(err, rc, "%s", source);
	return call.status == 200 ? take_token(source, &call, ret, err) : refuse_token(source, &call, err);
}

/* -------------------------------------------------------------------- the file */

struct account {
	const char *source, *uri;
	const struct json *doc;
};

static int
need_member(const struct account *a, const char *name, const char **ret, struct pawl_error *err)
{
	*ret = cred_member(a->doc, name);
	return *ret != NULL && (*ret)[0] != '\0' ? 0 : err_set(err, PAWL_EAUTH, "%s: has no %s", a->source, name);
}

static int
from_service_account(const struct account *a, struct cred_keys *ret, struct pawl_error *err)
{
	const char *email, *key;
	PAWL_CLEAN(cred_wipe_buf) struct buf jwt = {0};
	PAWL_CLEAN(cred_wipe_buf) struct buf form = {0};
	TRY(need_member(a, "client_email", &email, err));
	TRY(need_member(a, "private_key", &key, err));
	int rc = gcs_jwt(email, cred_member(a->doc, "private_key_id"), key, a->uri, now_s(), &jwt, err);
	if (rc < 0)
		return err_prefix(err, rc, "%s", a->source);
	put_parameter(&form, "grant_type", GRANT_JWT);
	put_parameter(&form, "assertion", buf_str(&jwt));
	TRY(buf_check(&form, a->source, err));
	return ask_service(a->source, a->uri, &form, ret, err);
}

static int
from_user(const struct account *a, struct cred_keys *ret, struct pawl_error *err)
{
	static const char *const names[] = {"client_id", "client_secret", "refresh_token"};
	PAWL_CLEAN(cred_wipe_buf) struct buf form = {0};
	put_parameter(&form, "grant_type", "refresh_token");
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		const char *value;
		TRY(need_member(a, names[i], &value, err));
		put_parameter(&form, names[i], value);
	}
	TRY(buf_check(&form, a->source, err));
	return ask_service(a->source, a->uri, &form, ret, err);
}

static int
from_document(const struct account *a, struct cred_keys *ret, struct pawl_error *err)
{
	const char *type;
	TRY(need_member(a, "type", &type, err));
	if (strcmp(type, "service_account") == 0)
		return from_service_account(a, ret, err);
	if (strcmp(type, "authorized_user") == 0)
		return from_user(a, ret, err);
	return err_set(err, PAWL_EAUTH, "%s: type: expected service_account or authorized_user, found \"%.40s\"",
	               a->source, type);
}

static int
from_file(const char *path, bool must_exist, struct cred_keys *ret, struct pawl_error *err)
{
	PAWL_CLEAN(cred_wipe_buf) struct buf text = {0};
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct json *doc = NULL;
	char source[160];
	TRY(cred_read_file(path, &text, err));
	if (text.len == 0 && !must_exist)
		return 0;
	if (text.len == 0)
		return err_set(err, PAWL_EAUTH, "%.300s: does not exist (GOOGLE_APPLICATION_CREDENTIALS)", path);
	snprintf(source, sizeof source, "%.150s", path);
	if (json_parse(source, text.ptr, text.len, NULL, &memory, &doc, NULL) < 0)
		return err_set(err, PAWL_EAUTH, "%s: expected a JSON document with credentials", source);
	struct account a = {.source = source, .uri = cred_member(doc, "token_uri"), .doc = doc};
	if (a.uri == NULL)
		a.uri = TOKEN_URI;
	int rc = from_document(&a, ret, err);
	cred_wipe_member(doc, "private_key");
	cred_wipe_member(doc, "client_secret");
	cred_wipe_member(doc, "refresh_token");
	return rc;
}

static int
from_files(struct cred_keys *ret, struct pawl_error *err)
{
	char path[1024];
	const char *named = cred_env("GOOGLE_APPLICATION_CREDENTIALS");
	const char *folder = cred_env("CLOUDSDK_CONFIG"), *home = cred_env("HOME");
	if (named != NULL)
		return from_file(named, true, ret, err);
	int n = folder != NULL ? snprintf(path, sizeof path, "%s/application_default_credentials.json", folder)
	                       : snprintf(path, sizeof path, "%s/.config/gcloud/application_default_credentials.json",
	                                  home != NULL ? home : ".");
	return n < (int)sizeof path ? from_file(path, false, ret, err) : 0;
}

/* ------------------------------------------------------------------ the machine */

/* Returns 0 if no server answers, or if the answer is not one of a metadata server. */
static int
from_metadata(struct cred_keys *ret, struct pawl_error *err)
{
	char url[400];
	const char *host = cred_env("GCE_METADATA_HOST"), *off = cred_env("NO_GCE_CHECK");
	if (off != NULL && strcasecmp(off, "true") == 0)
		return 0;
	int n = snprintf(url, sizeof url, "http://%s/computeMetadata/v1/instance/service-accounts/default/token",
	                 host != NULL ? host : "169.254.169.254");
	if (n >= (int)sizeof url || (host != NULL && strpbrk(host, "/?#@ ") != NULL))
		return err_set(err, PAWL_EAUTH, "GCE_METADATA_HOST: expected host:port");
	PAWL_CLEAN(cred_close_http) struct http *h = NULL;
	struct http_opts opts = {.connect_ms = 1000, .total_seconds = 5, .no_proxy = true, .link_local = true};
	TRY(http_new(&opts, &h, err));
	PAWL_CLEAN(cred_wipe_call) struct http_call call = {.method = "GET", .url = url};
	call.headers[call.n_headers++] = (struct http_header){"Metadata-Flavor", "Google"};
	struct pawl_error why = {0};
	int rc = http_run(h, &call, 1, &why);
	if (rc < 0)
		return rc == PAWL_ENOMEM ? err_nomem(err, METADATA) : 0;
	const char *flavor = http_header_of(&call, "metadata-flavor");
	if (flavor == NULL || strcmp(flavor, "Google") != 0)
		return 0;
	if (call.status == 200)
		return take_token(METADATA, &call, ret, err);
	return err_set(err, cred_is_busy(call.status) ? PAWL_ETRANSIENT : PAWL_EAUTH,
	               METADATA ": no token for the service account of this machine (status %d)", call.status);
}

static int
from_environment(struct cred_keys *ret, struct pawl_error *err)
{
	const char *access_key = cred_env("GS_ACCESS_KEY_ID"), *secret_key = cred_env("GS_SECRET_ACCESS_KEY");
	const char *token = cred_env("GOOGLE_OAUTH_ACCESS_TOKEN");
	if ((access_key == NULL) != (secret_key == NULL))
		return err_set(err, PAWL_EAUTH, "the environment has %s, but no %s",
		               access_key != NULL ? "GS_ACCESS_KEY_ID" : "GS_SECRET_ACCESS_KEY",
		               access_key != NULL ? "GS_SECRET_ACCESS_KEY" : "GS_ACCESS_KEY_ID");
	if (access_key != NULL)
		TRY(cred_keys_set(ret, "the environment", access_key, secret_key, NULL, NULL, err));
	else if (token != NULL)
		TRY(cred_keys_set_token(ret, "the environment", token, 0, err));
	return access_key != NULL || token != NULL;
}

int
gcs_cred_find(const struct cred_where *where, struct cred_keys *ret, struct pawl_error *err)
{
	(void)where;
	bool emulated = cred_env("STORAGE_EMULATOR_HOST") != NULL;
	int rc = from_environment(ret, err);
	if (rc == 0)
		rc = from_files(ret, err);
	/* An emulator needs no credentials, and a machine that runs one has no metadata server. */
	if (rc == 0 && (!emulated || cred_env("GCE_METADATA_HOST") != NULL))
		rc = from_metadata(ret, err);
	if (rc == 0 && emulated) {
		cred_keys_wipe(ret);
		text_copy(ret->source, sizeof ret->source, "none (STORAGE_EMULATOR_HOST)");
		return 0;
	}
	if (rc == 0)
		rc = err_set(
			err, PAWL_EAUTH,
			"no credentials for Google Cloud Storage: not in the environment (GS_ACCESS_KEY_ID and "
			"GS_SECRET_ACCESS_KEY, or GOOGLE_APPLICATION_CREDENTIALS), no default credentials of gcloud, no "
			"metadata server");
	return rc < 0 ? rc : 0;
}
