/* SPDX-License-Identifier: Apache-2.0 */
/*
 * azure_sign: SharedKey signatures of the Blob service, written from the published description
 * ("Authorize with Shared Key"). Pure. See store_azure.h. P18: the decoded key is wiped.
 */
#include "store/object/azure/store_azure.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/err.h"
#include "base/text.h"
#include "store/object/digest.h"

static const char *
value_of(const struct http_header *headers, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (strcasecmp(headers[i].name, name) == 0)
			return headers[i].value;
	return "";
}

static int
compare_names(const void *a, const void *b)
{
	return strcmp(((const struct http_header *)a)->name, ((const struct http_header *)b)->name);
}

/* Our header names are in lower case already. */
static void
put_headers(struct buf *out, const struct http_header *headers, size_t n)
{
	struct http_header sorted[HTTP_MAX_HEADERS] = {0};
	size_t count = 0;
	for (size_t i = 0; i < n && count < HTTP_MAX_HEADERS; i++)
		if (strncmp(headers[i].name, "x-ms-", 5) == 0)
			sorted[count++] = headers[i];
	qsort(sorted, count, sizeof sorted[0], compare_names);
	for (size_t i = 0; i < count; i++)
		buf_printf(out, "%s:%s\n", sorted[i].name, sorted[i].value);
}

/* Appends "a=1&b=%2F" as lines "a:1" and "b:/". Our queries are sorted already. */
static int
put_query(struct buf *out, const char *query, struct pawl_error *err)
{
	while (query[0] != '\0') {
		size_t len = strcspn(query, "&"), name = strcspn(query, "=&");
		PAWL_FREE char *value = name < len ? mem_strndup(query + name + 1, len - name - 1) : mem_strdup("");
		if (value == NULL)
			return err_nomem(err, "signature");
		object_decode(value);
		buf_printf(out, "\n%.*s:%s", (int)name, query, value);
		query += len + (query[len] == '&');
	}
	return 0;
}

int
azure_sign(const char *account, const char *key, const char *method, const struct http_header *headers,
           size_t n_headers, uint64_t content_length, const char *path, const char *query, struct buf *out,
           struct pawl_error *err)
{
	/* In this order; Date is empty, because x-ms-date holds it. */
	static const char *const names[] = {"content-md5",         "content-type", "date",
	                                    "if-modified-since",   "if-match",     "if-none-match",
	                                    "if-unmodified-since", "range"};
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	buf_printf(&text, "%s\n\n\n", method);
	if (content_length > 0)
		buf_printf(&text, "%" PRIu64, content_length);
	buf_putc(&text, '\n');
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
		buf_printf(&text, "%s\n", value_of(headers, n_headers, names[i]));
	put_headers(&text, headers, n_headers);
	buf_printf(&text, "/%s%s", account, path);
	TRY(put_query(&text, query, err));
	TRY(buf_check(&text, "signature", err));

	PAWL_CLEAN(cred_wipe_buf) struct buf raw = {0};
	unsigned char hash[32];
	if (text_get_base64(key, strlen(key), &raw, NULL) < 0)
		return err_set(err, PAWL_EAUTH, "the account key is malformed: expected base64");
	TRY(digest_hmac(raw.ptr, raw.len, text.ptr, text.len, hash, err));
	buf_printf(out, "SharedKey %s:", account);
	text_put_base64(out, hash, sizeof hash);
	return buf_check(out, "signature", err);
}
