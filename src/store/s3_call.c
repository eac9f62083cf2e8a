/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_call: one signed request to S3, and what its answer means. Called by all of store_s3*.c; calls s3_cred, sigv4,
 * http.
 *
 * An engine does not retry. Two things are put right on the spot, once in a call, because they are no failures but
 * steps of the protocol: a clock that differs from the server's (told by the Date of its answer) and credentials that
 * have expired. Of what a server says about an error only the code is shown (P18: a server may send back what it was
 * sent).
 */
#include "store/store_s3.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/err.h"
#include "base/text.h"
#include "store/s3_xml.h"
#include "store/sigv4.h"

#define MAX_SKEW_SECONDS 300 /* servers allow 900; less is not what is wrong */

void
s3_add_header(struct s3_request *rq, const char *name, const char *value)
{
	if (rq->n_headers < sizeof rq->headers / sizeof rq->headers[0])
		rq->headers[rq->n_headers++] = (struct http_header){name, value};
}

void
s3_request_clear(struct s3_request *rq)
{
	http_call_clear(&rq->call);
}

static int64_t
now_s(const struct s3_store *s)
{
	return clock_unix_ns() / 1000000000 + atomic_load(&s->skew_s);
}

int64_t
s3_http_time(const char *text)
{
	static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
	char month[4] = "";
	struct tm tm = {0};
	const char *comma = text != NULL ? strchr(text, ',') : NULL;
	if (comma == NULL || sscanf(comma + 1, " %2d %3s %4d %2d:%2d:%2d", &tm.tm_mday, month, &tm.tm_year, &tm.tm_hour,
	                            &tm.tm_min, &tm.tm_sec) != 6)
		return -1;
	const char *found = strstr(months, month);
	if (found == NULL || strlen(month) != 3 || (found - months) % 3 != 0)
		return -1;
	tm.tm_mon = (int)(found - months) / 3;
	tm.tm_year -= 1900;
	return (int64_t)timegm(&tm);
}

bool
s3_content_length(const struct s3_request *rq, uint64_t *ret)
{
	const char *text = http_header_of(&rq->call, "content-length");
	if (text == NULL || !isdigit((unsigned char)text[0]) || strlen(text) > 19)
		return false;
	*ret = strtoull(text, NULL, 10);
	return true;
}

/* ----------------------------------------------------------------- signing */

/* What one attempt at one request needs besides the request itself. */
struct envelope {
	struct buf host, path, url, authorization;
	char date[17], payload[65];
};

static void
envelope_clear(struct envelope *e)
{
	if (e->authorization.ptr != NULL)
		explicit_bzero(e->authorization.ptr, e->authorization.cap);
	buf_clear(&e->host);
	buf_clear(&e->path);
	buf_clear(&e->url);
	buf_clear(&e->authorization);
}

static void
address(const struct s3_config *c, const struct s3_request *rq, struct envelope *e)
{
	if (!c->path_style)
		buf_printf(&e->host, "%s.", c->bucket);
	buf_puts(&e->host, c->host);
	sigv4_encode(&e->path, c->base_path, true);
	if (c->path_style)
		buf_printf(&e->path, "/%s", c->bucket);
	if (rq->key != NULL || !c->path_style)
		buf_putc(&e->path, '/');
	if (rq->key != NULL) {
		sigv4_encode(&e->path, c->prefix, true);
		sigv4_encode(&e->path, rq->key, true);
	}
	buf_printf(&e->url, "%s://%s%s%s%s", c->https ? "https" : "http", buf_str(&e->host), buf_str(&e->path),
	           rq->query != NULL ? "?" : "", rq->query != NULL ? rq->query : "");
}

/* The sums of the body: for the signature, and for the server to check. */
static int
sum_body(const struct s3_config *c, struct s3_request *rq, struct envelope *e, struct pawl_error *err)
{
	bool has_body = rq->n_body > 0;
	if (!has_body)
		memcpy(e->payload, SIGV4_EMPTY, sizeof e->payload);
	else if (c->https)
		memcpy(e->payload, SIGV4_UNSIGNED, sizeof SIGV4_UNSIGNED);
	else
		TRY(sigv4_sha256_hex(rq->body, rq->n_body, e->payload, err));
	rq->crc32c[0] = '\0';
	if (!rq->sum_body || !c->sums)
		return 0;
	uint32_t sum = 0;
	for (size_t i = 0; i < rq->n_body; i++)
		sum = crc32c(sum, rq->body[i].ptr, rq->body[i].len);
	const unsigned char bytes[4] = {(unsigned char)(sum >> 24), (unsigned char)(sum >> 16),
	                                (unsigned char)(sum >> 8), (unsigned char)sum};
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	text_put_base64(&text, bytes, 4);
	TRY(buf_check(&text, rq->what, err));
	text_copy(rq->crc32c, sizeof rq->crc32c, buf_str(&text));
	return 0;
}

static void
add(struct http_call *call, const char *name, const char *value)
{
	call->headers[call->n_headers++] = (struct http_header){name, value};
}

/* Everything but Content-Length, which libcurl adds, is signed. */
static int
prepare(struct s3_store *s, struct s3_request *rq, const struct s3_keys *keys, struct envelope *e,
        struct pawl_error *err)
{
	const struct s3_config *c = &s->config;
	address(c, rq, e);
	TRY(buf_check(&e->url, rq->what, err));
	TRY(sum_body(c, rq, e, err));
	sigv4_date(now_s(s), e->date);

	struct http_call *call = &rq->call;
	call->n_headers = 0;
	add(call, "Host", buf_str(&e->host));
	add(call, "x-amz-date", e->date);
	add(call, "x-amz-content-sha256", e->payload);
	if (keys->session_token[0] != '\0')
		add(call, "x-amz-security-token", keys->session_token);
	if (rq->crc32c[0] != '\0')
		add(call, "x-amz-checksum-crc32c", rq->crc32c);
	for (size_t i = 0; i < rq->n_headers; i++)
		add(call, rq->headers[i].name, rq->headers[i].value);
	if (strcmp(rq->method, "POST") == 0)
		add(call, "Content-Type", "application/xml");
	struct sigv4_request sign = {.method = rq->method,
	                             .path = buf_str(&e->path),
	                             .query = rq->query != NULL ? rq->query : "",
	                             .headers = call->headers,
	                             .n_headers = call->n_headers,
	                             .payload = e->payload,
	                             .region = c->region,
	                             .service = "s3",
	                             .date = e->date};
	TRY(sigv4_sign(&sign, keys->access_key, keys->secret_key, &e->authorization, err));
	add(call, "Authorization", buf_str(&e->authorization));

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
	return 0;
}

static int
send_once(struct s3_store *s, struct s3_request *rqs, size_t n, bool renew, struct pawl_error *err)
{
	PAWL_CLEAN(s3_keys_wipe) struct s3_keys keys = {0};
	struct envelope envelopes[HTTP_MAX_PARALLEL] = {0};
	struct http_call calls[HTTP_MAX_PARALLEL];
	int rc = n > HTTP_MAX_PARALLEL ? err_set(err, PAWL_EINTERNAL, "s3: %zu requests at a time", n)
	                               : s3_cred_get(s->cred, renew, &keys, err);
	for (size_t i = 0; rc == 0 && i < n; i++) {
		rc = prepare(s, &rqs[i], &keys, &envelopes[i], err);
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

static int
take_code(void *arg, const char *path, const char *text, size_t len)
{
	char *code = arg;
	if (code[0] == '\0' && (strcmp(path, "Error/Code") == 0 || strcmp(path, "ErrorResponse/Error/Code") == 0) &&
	    len < 65) {
		for (size_t i = 0; i < len; i++)
			if (!isalnum((unsigned char)text[i]))
				return 0;
		memcpy(code, text, len + 1);
	}
	return 0;
}

void
s3_error_code(const struct s3_request *rq, char code[65])
{
	code[0] = '\0';
	if (rq->call.text.len > 0)
		s3_xml_read(rq->what, rq->call.text.ptr, rq->call.text.len, take_code, code, NULL);
}

/* Is the server's clock another than the one that was signed with? *ret: how much it is ahead of this machine's. */
static bool
has_skew(const struct s3_store *s, const struct s3_request *rq, const char *code, int64_t *ret)
{
	int64_t theirs = s3_http_time(http_header_of(&rq->call, "date"));
	if (theirs < 0 || (rq->call.status != 403 && rq->call.status != 400))
		return false;
	/* The answer to HEAD has no body to name the reason in. */
	if (strcmp(code, "RequestTimeTooSkewed") != 0 && code[0] != '\0')
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
s3_send(struct s3_store *s, struct s3_request *rqs, size_t n, struct pawl_error *err)
{
	bool renew = false;
	for (int round = 0;; round++) {
		bool again = false;
		TRY(send_once(s, rqs, n, renew, err));
		for (size_t i = 0; i < n && round == 0 && !again; i++) {
			char code[65];
			int64_t skew;
			if (rqs[i].call.status != 403 && rqs[i].call.status != 400)
				continue;
			s3_error_code(&rqs[i], code);
			renew = is_expired(code);
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

struct meaning {
	const char *code; /* of the answer's body */
	int is;
	const char *text; /* for people; NULL = status and code only */
};

static const struct meaning meanings[] = {
	{"NoSuchKey", PAWL_ENOTFOUND, "there is no such object"},
	{"NoSuchBucket", PAWL_ENOTFOUND, "there is no such bucket"},
	{"InvalidAccessKeyId", PAWL_EAUTH, "the server does not know the access key"},
	{"SignatureDoesNotMatch", PAWL_EAUTH,
         "the server finds the signature wrong: the secret key does not fit the access key"},
	{"AccessDenied", PAWL_EAUTH, "access is denied"},
	{"ExpiredToken", PAWL_EAUTH, "the session token has expired"},
	{"InvalidToken", PAWL_EAUTH, "the server does not accept the session token"},
	{"AllAccessDisabled", PAWL_EAUTH, "access is denied"},
	{"AccountProblem", PAWL_EAUTH, "there is a problem with the account"},
	{"SlowDown", PAWL_ETRANSIENT, "the server asks for fewer requests"},
	{"InternalError", PAWL_ETRANSIENT, "the server has failed"},
	{"ServiceUnavailable", PAWL_ETRANSIENT, "the server is busy"},
	{"RequestTimeout", PAWL_ETRANSIENT, "the server has waited for the request too long"},
	{"OperationAborted", PAWL_ETRANSIENT, "another request is under way"},
	{"ConditionalRequestConflict", PAWL_ETRANSIENT, "another request is under way"},
	{"BadDigest", PAWL_ETRANSIENT, "the server has received other bytes than were sent"},
	{"InvalidDigest", PAWL_ETRANSIENT, "the server has received other bytes than were sent"},
	{"XAmzContentSHA256Mismatch", PAWL_ETRANSIENT, "the server has received other bytes than were sent"},
	{"IncompleteBody", PAWL_ETRANSIENT, "the server has received too few bytes"},
	{"QuotaExceeded", PAWL_ENOSPACE, "the quota is used up"},
	{"InsufficientStorage", PAWL_ENOSPACE, "the server has no space left"},
	{"EntityTooLarge", PAWL_ELIMIT, "the object is too large for the server"},
	{"KeyTooLongError", PAWL_ELIMIT, "the key is too long for the server"},
	{"NotImplemented", PAWL_EUNSUPPORTED, "the server does not support this"},
	{"MethodNotAllowed", PAWL_EUNSUPPORTED, "the server does not allow this"},
	{"PermanentRedirect", PAWL_EUSAGE, "the bucket is somewhere else"},
	{"TemporaryRedirect", PAWL_EUSAGE, "the bucket is somewhere else"},
	{"AuthorizationHeaderMalformed", PAWL_EAUTH, "the signature is for another region"},
};

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

/* The region that the server names, as a header or in the body. */
static void
hinted_region(const struct s3_request *rq, char region[65])
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	const char *header = http_header_of(&rq->call, "x-amz-bucket-region");
	region[0] = '\0';
	if (header == NULL && rq->call.text.len > 0 &&
	    s3_xml_get(rq->what, rq->call.text.ptr, rq->call.text.len, "Error/Region", &text, NULL) == 0)
		header = buf_str(&text);
	if (header == NULL || !text_copy(region, 65, header) ||
	    strspn(region, "abcdefghijklmnopqrstuvwxyz0123456789-") != strlen(region))
		region[0] = '\0';
}

int
s3_fail(struct s3_store *s, const struct s3_request *rq, struct pawl_error *err)
{
	char code[65], region[65];
	int status = rq->call.status;
	s3_error_code(rq, code);
	int64_t theirs = s3_http_time(http_header_of(&rq->call, "date"));
	int64_t ahead = clock_unix_ns() / 1000000000 - theirs;
	if (strcmp(code, "RequestTimeTooSkewed") == 0 && theirs >= 0)
		return err_set(err, PAWL_EAUTH,
		               "%s: cannot %s: the clock of this machine is %" PRId64 " s %s the server's", rq->what,
		               rq->verb, ahead >= 0 ? ahead : -ahead, ahead >= 0 ? "ahead of" : "behind");
	hinted_region(rq, region);
	if (region[0] != '\0' && strcmp(region, s->config.region) != 0)
		return err_set(err, PAWL_EUSAGE,
		               "%s: cannot %s: the bucket is in region \"%s\", expected it in \"%s\" (AWS_REGION)",
		               rq->what, rq->verb, region, s->config.region);
	const struct meaning *m = NULL;
	for (size_t i = 0; i < sizeof meanings / sizeof meanings[0]; i++)
		if (strcmp(meanings[i].code, code) == 0)
			m = &meanings[i];
	int is = m != NULL ? m->is : code_of_status(status);
	if (m == NULL && is == PAWL_ENOTFOUND && code[0] == '\0')
		return err_set(err, is, "%s: there is no such object", rq->what);
	PAWL_CLEAN(s3_keys_wipe) struct s3_keys keys = {0};
	if (is == PAWL_EAUTH && s3_cred_get(s->cred, false, &keys, NULL) < 0)
		keys.source[0] = '\0';
	return err_set(err, is, "%s: cannot %s: %s%sstatus %d%s%s from %s%s%s%s", rq->what, rq->verb,
	               m != NULL ? m->text : "", m != NULL ? " (" : "", status, code[0] != '\0' ? " " : "", code,
	               s->config.host, keys.source[0] != '\0' ? ", credentials from " : "", keys.source,
	               m != NULL ? ")" : "");
}

int
s3_do(struct s3_store *s, struct s3_request *rq, struct pawl_error *err)
{
	TRY(s3_send(s, rq, 1, err));
	if (rq->call.status < 200 || rq->call.status > 299)
		return s3_fail(s, rq, err);
	/* Requests that take long are begun with 200; what became of them stands in the body. */
	char code[65];
	s3_error_code(rq, code);
	return code[0] != '\0' ? s3_fail(s, rq, err) : 0;
}
