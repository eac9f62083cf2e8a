/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object_call: one signed request to an object store, and the meaning of its answer.
 *
 * An engine does not retry. Two things are corrected at once, and only once in a call, because they
 * are steps of the protocol and not failures. The first is a clock that differs from the server's,
 * as the Date of the answer shows. The second is credentials that have expired. Of a server's error
 * only the code is shown (P18: a server may send back what it was sent).
 */
#include "store/object/object.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/text.h"
#include "store/object/http/http.h"
#include "store/object/xml.h"

#define MAX_SKEW_SECONDS 300 /* servers allow 900; a smaller skew is not the cause */

void
object_add_header(struct object_request *rq, const char *name, const char *value)
{
	if (rq->n_headers < sizeof rq->headers / sizeof rq->headers[0])
		rq->headers[rq->n_headers++] = (struct http_header){name, value};
}

void
object_request_clear(struct object_request *rq)
{
	http_call_clear(&rq->call);
}

static int64_t
now_s(const struct object_store *s)
{
	return clock_unix_ns() / 1000000000 + atomic_load(&s->skew_s);
}

const struct pawl_slice object_nothing = {"", 0};

bool
object_is_success(const struct object_request *rq)
{
	return rq->call.status >= 200 && rq->call.status <= 299;
}

bool
object_content_length(const struct object_request *rq, uint64_t *ret)
{
	const char *text = http_header_of(&rq->call, "content-length");
	if (text == NULL || !isdigit((unsigned char)text[0]) || strlen(text) > 19)
		return false;
	*ret = strtoull(text, NULL, 10);
	return true;
}

/* ----------------------------------------------------------------- signing */

static void
envelope_clear(struct object_envelope *e)
{
	cred_wipe_buf(&e->authorization);
	cred_wipe_buf(&e->url); /* a shared access signature is part of it */
	buf_clear(&e->host);
	buf_clear(&e->path);
}

static void
address_request(const struct object_config *c, const struct object_request *rq, struct object_envelope *e)
{
	if (!c->path_style)
		buf_printf(&e->host, "%s.", c->bucket);
	buf_puts(&e->host, c->host);
	http_encode(&e->path, c->base_path, true);
	if (c->path_style)
		buf_printf(&e->path, "/%s", c->bucket);
	if (rq->key != NULL || !c->path_style)
		buf_putc(&e->path, '/');
	if (rq->key != NULL) {
		http_encode(&e->path, c->prefix, true);
		http_encode(&e->path, rq->key, true);
	}
	buf_printf(&e->url, "%s://%s%s%s%s", c->https ? "https" : "http", buf_str(&e->host), buf_str(&e->path),
	           rq->query != NULL ? "?" : "", rq->query != NULL ? rq->query : "");
}

void
object_call_add(struct http_call *call, const char *name, const char *value)
{
	call->headers[call->n_headers++] = (struct http_header){name, value};
}

static int
prepare_request(struct object_store *s, struct object_request *rq, const struct cred_keys *keys,
                struct object_envelope *e, struct pawl_error *err)
{
	struct http_call *call = &rq->call;
	address_request(&s->config, rq, e);
	TRY(buf_check(&e->url, rq->what, err));
	e->now_s = now_s(s);
	rq->sum[0] = '\0';
	if (rq->sum_body && rq->sum_kind == OBJECT_SUM_NONE)
		rq->sum_kind = (enum object_sum)atomic_load(&s->sum);
	call->n_headers = 0;
	TRY(s->protocol->prepare(s, rq, keys, e, err));
	call->method = rq->method;
	call->url = buf_str(&e->url);
	call->body = rq->body;
	call->n_body = rq->n_body;
	call->dst = rq->dst;
	call->dst_bytes = rq->dst_bytes;
	call->dst_status = rq->dst_status;
	call->text_max = rq->text_max;
	call->slow_answer = rq->slow_answer;
	call->fresh = rq->fresh;
	return buf_check(&e->url, rq->what, err);
}

static int
send_once(struct object_store *s, struct object_request *rqs, size_t n, bool renew, struct pawl_error *err)
{
	PAWL_CLEAN(cred_keys_wipe) struct cred_keys keys = {0};
	struct object_envelope envelopes[HTTP_MAX_PARALLEL] = {0};
	struct http_call calls[HTTP_MAX_PARALLEL];
	int rc = n > HTTP_MAX_PARALLEL
	                 ? err_set(err, PAWL_EINTERNAL, "%s: %zu requests at a time", s->protocol->name, n)
	                 : cred_get(s->cred, renew, &keys, err);
	for (size_t i = 0; rc == 0 && i < n; i++) {
		rc = prepare_request(s, &rqs[i], &keys, &envelopes[i], err);
		calls[i] = rqs[i].call;
	}
	if (rc == 0) {
		rc = http_run(s->http, calls, n, err);
		for (size_t i = 0; i < n; i++) {
			rqs[i].call = calls[i];
			rqs[i].call.url = NULL;
			rqs[i].call.n_headers = 0;
		}
	}
	for (size_t i = 0; i < n && i < HTTP_MAX_PARALLEL; i++)
		envelope_clear(&envelopes[i]);
	if (rc < 0)
		return err_prefix(err, rc, "%s: cannot %s", rqs[0].what, rqs[0].verb);
	return 0;
}

/* ------------------------------------------------------------ what came back */

/* Copies letters and digits only, or nothing. */
static void
take_word(char code[65], const char *text, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (len > 64 || !isalnum((unsigned char)text[i]))
			return;
	memcpy(code, text, len);
	code[len] = '\0';
}

static int
take_code(void *arg, const char *path, const char *text, size_t len)
{
	char *code = arg;
	if (code[0] == '\0' && (strcmp(path, "Error/Code") == 0 || strcmp(path, "ErrorResponse/Error/Code") == 0))
		take_word(code, text, len);
	return 0;
}

void
object_error_code(const struct object_request *rq, char code[65])
{
	/* Azure also sends the code in a header, which an answer to HEAD has. */
	const char *header = http_header_of(&rq->call, "x-ms-error-code");
	code[0] = '\0';
	if (header != NULL)
		take_word(code, header, strlen(header));
	if (code[0] == '\0' && rq->call.text.len > 0)
		xml_read(rq->what, rq->call.text.ptr, rq->call.text.len, take_code, code, NULL);
}

/* True if the server's clock differs from the one of the signature. *ret: how far it is ahead of
 * this machine's clock. */
static bool
has_skew(const struct object_store *s, const struct object_request *rq, const char *code, int64_t *ret)
{
	int64_t theirs = http_date_time(http_header_of(&rq->call, "date"));
	if (theirs < 0 || rq->call.status < 400 || rq->call.status > 403)
		return false;
	/* The answer to HEAD has no body that could name the reason. */
	if (strcmp(code, s->protocol->skew_code) != 0 && code[0] != '\0')
		return false;
	int64_t rest = theirs - now_s(s);
	*ret = theirs - clock_unix_ns() / 1000000000;
	return rest > MAX_SKEW_SECONDS || rest < -MAX_SKEW_SECONDS;
}

static bool
is_expired(const char *code)
{
	return strcmp(code, "ExpiredToken") == 0 || strcmp(code, "ExpiredTokenException") == 0 ||
	       strcmp(code, "TokenRefreshRequired") == 0;
}

int
object_send(struct object_store *s, struct object_request *rqs, size_t n, struct pawl_error *err)
{
	bool renew = false;
	for (int round = 0;; round++) {
		bool again = false;
		TRY(send_once(s, rqs, n, renew, err));
		for (size_t i = 0; i < n && round == 0 && !again; i++) {
			char code[65];
			int64_t skew;
			if (rqs[i].call.status < 400 || rqs[i].call.status > 403)
				continue;
			object_error_code(&rqs[i], code);
			/* Renew only if that can help: the token was revoked or is too old. */
			renew = rqs[i].call.status == 401 || is_expired(code);
			again = renew;
			if (has_skew(s, &rqs[i], code, &skew)) {
				atomic_store(&s->skew_s, skew);
				again = true;
			}
		}
		if (!again)
			return 0;
	}
}

static int
code_of_status(int status)
{
	switch (status) {
	case 401:
	case 403:
	case 407:
		return PAWL_EAUTH;
	case 404:
	case 410:
		return PAWL_ENOTFOUND;
	case 412:
		return PAWL_EEXISTS;
	case 405:
	case 501:
		return PAWL_EUNSUPPORTED;
	case 408:
	case 409:
	case 425:
	case 429:
		return PAWL_ETRANSIENT;
	case 413:
		return PAWL_ELIMIT;
	case 507:
		return PAWL_ENOSPACE;
	default:
		return status >= 500 ? PAWL_ETRANSIENT : PAWL_EIO;
	}
}

/* Explains a clock that is still wrong after its correction, or a correction that the server
 * refuses. */
static int
explain_skew(const struct object_store *s, const struct object_request *rq, const char *code, struct pawl_error *err)
{
	int64_t theirs = http_date_time(http_header_of(&rq->call, "date"));
	int64_t ahead = clock_unix_ns() / 1000000000 - theirs;
	bool late = ahead > MAX_SKEW_SECONDS || ahead < -MAX_SKEW_SECONDS;
	bool certain = strcmp(code, "RequestTimeTooSkewed") == 0;
	if (strcmp(code, s->protocol->skew_code) != 0 || theirs < 0 || (!certain && !late))
		return 0;
	return err_set(err, PAWL_EAUTH, "%s: cannot %s: the clock of this machine is %" PRId64 " s %s the server's",
	               rq->what, rq->verb, ahead >= 0 ? ahead : -ahead, ahead >= 0 ? "ahead of" : "behind");
}

int
object_fail(struct object_store *s, const struct object_request *rq, struct pawl_error *err)
{
	char code[65];
	int status = rq->call.status;
	object_error_code(rq, code);
	TRY(explain_skew(s, rq, code, err));
	if (s->protocol->explain != NULL)
		TRY(s->protocol->explain(s, rq, err));
	const struct object_meaning *m = NULL;
	for (const struct object_meaning *each = s->protocol->meanings; each->code != NULL && m == NULL; each++)
		if (strcmp(each->code, code) == 0)
			m = each;
	int is = m != NULL ? m->is : code_of_status(status);
	if (m == NULL && is == PAWL_ENOTFOUND && code[0] == '\0')
		return err_set(err, is, "%s: there is no such object", rq->what);
	PAWL_CLEAN(cred_keys_wipe) struct cred_keys keys = {0};
	if (is == PAWL_EAUTH && cred_get(s->cred, false, &keys, NULL) < 0)
		keys.source[0] = '\0';
	return err_set(err, is, "%s: cannot %s: %s%sstatus %d%s%s from %s%s%s%s", rq->what, rq->verb,
	               m != NULL ? m->text : "", m != NULL ? " (" : "", status, code[0] != '\0' ? " " : "", code,
	               s->config.host, keys.source[0] != '\0' ? ", credentials from " : "", keys.source,
	               m != NULL ? ")" : "");
}

int
object_do(struct object_store *s, struct object_request *rq, struct pawl_error *err)
{
	TRY(object_send(s, rq, 1, err));
	if (!object_is_success(rq))
		return object_fail(s, rq, err);
	/* Slow requests are answered with 200 first; the body holds their result. */
	char code[65];
	object_error_code(rq, code);
	return code[0] != '\0' ? object_fail(s, rq, err) : 0;
}

/* ---------------------------------------------------- requests that servers share */

int
object_send_part(struct object_store *s, const char *key, const char *query, const void *ptr, size_t len,
                 struct object_request *rq, struct pawl_error *err)
{
	const struct pawl_slice body = {ptr, len};
	*rq = (struct object_request){.what = key,
	                              .verb = "write",
	                              .method = "PUT",
	                              .key = key,
	                              .query = query,
	                              .body = &body,
	                              .n_body = 1,
	                              .sum_body = true};
	int rc = object_do(s, rq, err);
	rq->body = &object_nothing;
	return rc;
}

int
object_send_copy(struct object_store *s, const char *from, const char *to, const struct object_head *head,
                 const struct http_header *source, const char *match, struct object_request *rq, struct pawl_error *err)
{
	*rq = (struct object_request){.what = from,
	                              .verb = "copy",
	                              .method = "PUT",
	                              .key = to,
	                              .body = &object_nothing,
	                              .n_body = 1,
	                              .slow_answer = true};
	object_add_header(rq, source->name, source->value);
	if (head->etag[0] != '\0')
		object_add_header(rq, match, head->etag);
	TRY(object_send(s, rq, 1, err));
	if (rq->call.status == 412)
		return err_set(err, PAWL_ECONFLICT, "%s: has been replaced while it was copied", from);
	return 0;
}
