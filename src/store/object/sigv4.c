/* SPDX-License-Identifier: Apache-2.0 */
/* sigv4: see sigv4.h. P18: derived keys live on the stack and are wiped. */
#include "store/object/sigv4.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/bump.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/text.h"
#include "store/object/digest.h"

int
sigv4_payload(const struct pawl_slice *parts, size_t n, bool sign, char out[65], struct pawl_error *err)
{
	if (n > 0 && sign)
		return digest_sha256_hex(parts, n, out, err);
	text_copy(out, 65, n == 0 ? SIGV4_EMPTY : SIGV4_UNSIGNED);
	return 0;
}

void
sigv4_date(int64_t unix_seconds, char out[17])
{
	time_t seconds = (time_t)unix_seconds;
	struct tm tm;
	if (gmtime_r(&seconds, &tm) == NULL || strftime(out, 17, "%Y%m%dT%H%M%SZ", &tm) != 16)
		snprintf(out, 17, "19700101T000000Z");
}

/* -------------------------------------------------------------- the request */

static int
compare_headers(const void *a, const void *b)
{
	/* Names are in lower case here. If one name is the prefix of another, the shorter one comes
	 * first. */
	return strcmp(((const struct http_header *)a)->name, ((const struct http_header *)b)->name);
}

/* Copies the headers with lower-case names, sorted. */
static struct http_header *
sorted_headers(const struct sigv4_request *rq, struct bump *memory)
{
	struct http_header *headers = bump_array(memory, rq->n_headers, sizeof *headers);
	if (headers == NULL)
		return NULL;
	for (size_t i = 0; i < rq->n_headers; i++) {
		char *name = bump_strndup(memory, rq->headers[i].name, strlen(rq->headers[i].name));
		if (name == NULL)
			return NULL;
		for (char *c = name; *c != '\0'; c++)
			*c = (char)tolower((unsigned char)*c);
		headers[i] = (struct http_header){name, rq->headers[i].value};
	}
	qsort(headers, rq->n_headers, sizeof *headers, compare_headers);
	return headers;
}

/* Appends the value without surrounding blanks; a run of blanks becomes one. */
static void
put_value(struct buf *out, const char *value)
{
	while (*value == ' ' || *value == '\t')
		value++;
	for (; *value != '\0'; value++) {
		bool blank = *value == ' ' || *value == '\t';
		bool last = blank && (value[1] == ' ' || value[1] == '\t' || value[1] == '\0');
		if (!last)
			buf_putc(out, blank ? ' ' : *value);
	}
}

static void
put_names(struct buf *out, const struct http_header *headers, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (i > 0)
			buf_putc(out, ';');
		buf_puts(out, headers[i].name);
	}
}

static void
put_canonical(const struct sigv4_request *rq, const struct http_header *headers, struct buf *out)
{
	buf_printf(out, "%s\n%s\n%s\n", rq->method, rq->path, rq->query);
	for (size_t i = 0; i < rq->n_headers; i++) {
		buf_printf(out, "%s:", headers[i].name);
		put_value(out, headers[i].value);
		buf_putc(out, '\n');
	}
	buf_putc(out, '\n');
	put_names(out, headers, rq->n_headers);
	buf_printf(out, "\n%s", rq->payload);
}

int
sigv4_canonical(const struct sigv4_request *rq, struct buf *out, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	const struct http_header *headers = sorted_headers(rq, &memory);
	if (headers == NULL)
		return err_nomem(err, "signature");
	put_canonical(rq, headers, out);
	return buf_check(out, "signature", err);
}

static const char *
algorithm_of(const struct sigv4_request *rq)
{
	return rq->is_google ? "GOOG4-HMAC-SHA256" : "AWS4-HMAC-SHA256";
}

static const char *
end_of_scope(const struct sigv4_request *rq)
{
	return rq->is_google ? "goog4_request" : "aws4_request";
}

/* Derives the key of one day, region and service. */
static int
derive_key(const struct sigv4_request *rq, const char *secret_key, unsigned char out[DIGEST_SHA256_BYTES],
           struct pawl_error *err)
{
	PAWL_FREE char *first = mem_printf("%s%s", rq->is_google ? "GOOG4" : "AWS4", secret_key);
	if (first == NULL)
		return err_nomem(err, "signature");
	unsigned char key[DIGEST_SHA256_BYTES];
	int rc = digest_hmac(first, strlen(first), rq->date, 8, key, err);
	os_wipe(first, strlen(first));
	if (rc == 0)
		rc = digest_hmac(key, sizeof key, rq->region, strlen(rq->region), key, err);
	if (rc == 0)
		rc = digest_hmac(key, sizeof key, rq->service, strlen(rq->service), key, err);
	if (rc == 0)
		rc = digest_hmac(key, sizeof key, end_of_scope(rq), strlen(end_of_scope(rq)), out, err);
	os_wipe(key, sizeof key);
	return rc;
}

int
sigv4_sign(const struct sigv4_request *rq, const char *access_key, const char *secret_key, struct buf *out,
           struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	const struct http_header *headers = sorted_headers(rq, &memory);
	if (headers == NULL)
		return err_nomem(err, "signature");
	put_canonical(rq, headers, &text);
	TRY(buf_check(&text, "signature", err));

	char hash[65], signature[65];
	struct pawl_slice whole = {text.ptr, text.len};
	TRY(digest_sha256_hex(&whole, 1, hash, err));
	text.len = 0;
	buf_printf(&text, "%s\n%s\n%.8s/%s/%s/%s\n%s", algorithm_of(rq), rq->date, rq->date, rq->region, rq->service,
	           end_of_scope(rq), hash);
	TRY(buf_check(&text, "signature", err));
	unsigned char key[DIGEST_SHA256_BYTES], signed_bytes[DIGEST_SHA256_BYTES];
	int rc = derive_key(rq, secret_key, key, err);
	if (rc == 0)
		rc = digest_hmac(key, sizeof key, text.ptr, text.len, signed_bytes, err);
	os_wipe(key, sizeof key);
	TRY(rc);

	digest_hex(signed_bytes, sizeof signed_bytes, signature);
	buf_printf(out, "%s Credential=%s/%.8s/%s/%s/%s,SignedHeaders=", algorithm_of(rq), access_key, rq->date,
	           rq->region, rq->service, end_of_scope(rq));
	put_names(out, headers, rq->n_headers);
	buf_printf(out, ",Signature=%s", signature);
	return buf_check(out, "signature", err);
}
