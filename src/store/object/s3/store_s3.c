/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_s3: the engine for object stores that use the S3 protocol: s3://bucket/prefix. See
 * docs/how-to/stores/s3.md, and object.h for the table that this file fills in: how a request is
 * signed, and the meaning of the server's codes.
 */
#include "store/object/object.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/text.h"
#include "store/object/s3/s3_cred.h"
#include "store/object/http/http.h"
#include "store/object/sigv4.h"
#include "store/object/xml.h"

/* ----------------------------------------------------------------- signing */

/* Signs everything except Content-Length, which libcurl adds. */
static int
prepare_request(struct object_store *s, struct object_request *rq, const struct cred_keys *keys,
                struct object_envelope *e, struct pawl_error *err)
{
	const struct object_config *c = &s->config;
	struct http_call *call = &rq->call;
	TRY(sigv4_payload(rq->body, rq->n_body, c->sign_bodies, e->payload, err));
	if (rq->sum_body)
		TRY(object_sum_body(rq->sum_kind, rq, err));
	sigv4_date(e->now_s, e->date);
	object_call_add(call, "Host", buf_str(&e->host));
	object_call_add(call, "x-amz-date", e->date);
	object_call_add(call, "x-amz-content-sha256", e->payload);
	if (keys->session_token[0] != '\0')
		object_call_add(call, "x-amz-security-token", keys->session_token);
	if (rq->sum[0] != '\0')
		object_call_add(call, object_sum_header(rq->sum_kind), rq->sum);
	for (size_t i = 0; i < rq->n_headers; i++)
		object_call_add(call, rq->headers[i].name, rq->headers[i].value);
	if (strcmp(rq->method, "POST") == 0)
		object_call_add(call, "Content-Type", "application/xml");
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
	object_call_add(call, "Authorization", buf_str(&e->authorization));
	return 0;
}

/* ------------------------------------------------------------------ regions */

/* The region that the server names, in a header or in the body. */
static void
hinted_region(const struct object_request *rq, char region[65])
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	const char *header = http_header_of(&rq->call, "x-amz-bucket-region");
	region[0] = '\0';
	if (header == NULL && rq->call.text.len > 0 &&
	    xml_get(rq->what, rq->call.text.ptr, rq->call.text.len, "Error/Region", &text, NULL) == 0)
		header = buf_str(&text);
	if (header == NULL || !text_copy(region, 65, header) ||
	    strspn(region, "abcdefghijklmnopqrstuvwxyz0123456789-") != strlen(region))
		region[0] = '\0';
}

static int
explain_region(struct object_store *s, const struct object_request *rq, struct pawl_error *err)
{
	char region[65];
	hinted_region(rq, region);
	if (region[0] == '\0' || strcmp(region, s->config.region) == 0)
		return 0;
	return err_set(err, PAWL_EUSAGE,
	               "%s: cannot %s: the bucket is in region \"%s\", expected it in \"%s\" (AWS_REGION)", rq->what,
	               rq->verb, region, s->config.region);
}

/* If no region was configured, the one that the server names is used. */
static int
look_again(struct object_store *s, const struct object_request *rq, struct pawl_error *err)
{
	const char *region = http_header_of(&rq->call, "x-amz-bucket-region");
	if (s->config.region_given || region == NULL || strcmp(region, s->config.region) == 0)
		return 0;
	s->config.region_given = true;
	TRY(s3_config_set_region(&s->config, region, err));
	return 1;
}

/* -------------------------------------------------------- removing, copying */

static int
remove_batch(struct object_store *s, const char *folder, const struct object_page *p, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf body = {0};
	buf_puts(&body, "<Delete><Quiet>true</Quiet>");
	for (size_t i = 0; i < p->n; i++) {
		buf_puts(&body, "<Object><Key>");
		xml_escape(&body, p->items[i].key);
		buf_puts(&body, "</Key></Object>");
	}
	buf_puts(&body, "</Delete>");
	TRY(buf_check(&body, folder, err));
	struct pawl_slice whole = {body.ptr, body.len};
	PAWL_CLEAN(object_request_clear)
	struct object_request rq = {.what = folder,
	                            .verb = "remove",
	                            .method = "POST",
	                            .query = "delete=",
	                            .body = &whole,
	                            .n_body = 1,
	                            .text_max = XML_MAX_BYTES,
	                            .slow_answer = true,
	                            .sum_body = true,
	                            .sum_kind = OBJECT_SUM_MD5}; /* servers insist on MD5 here */
	TRY(object_do(s, &rq, err));
	PAWL_CLEAN(buf_clear) struct buf code = {0}, ignored = {0};
	if (rq.call.text.len == 0) /* nothing failed, and the request was quiet */
		return 0;
	/* Only a complete answer names every key that is left. */
	if (xml_get(folder, rq.call.text.ptr, rq.call.text.len, "DeleteResult", &ignored, NULL) < 0)
		return err_set(err, PAWL_ETRANSIENT, "%s: cannot remove: the answer does not confirm it", folder);
	if (xml_get(folder, rq.call.text.ptr, rq.call.text.len, "DeleteResult/Error/Code", &code, NULL) < 0)
		return 0;
	bool denied = strcmp(buf_str(&code), "AccessDenied") == 0;
	return err_set(err, denied ? PAWL_EAUTH : PAWL_ETRANSIENT, "%s: cannot remove all of it: %.64s", folder,
	               denied ? "AccessDenied" : "the server has failed");
}

struct copy {
	struct object_store *s;
	const char *from, *to, *upload, *source;
	const struct object_head *head;
};

static int
copy_part(const struct copy *c, size_t i, uint64_t begin, uint64_t end, struct object_part_sum *sum,
          struct pawl_error *err)
{
	char range[64];
	PAWL_CLEAN(buf_clear) struct buf query = {0}, etag = {0};
	buf_printf(&query, "partNumber=%zu&uploadId=", i + 1);
	http_encode(&query, c->upload, false);
	TRY(buf_check(&query, c->to, err));
	snprintf(range, sizeof range, "bytes=%" PRIu64 "-%" PRIu64, begin, end - 1);
	PAWL_CLEAN(object_request_clear)
	struct object_request rq = {.what = c->from,
	                            .verb = "copy",
	                            .method = "PUT",
	                            .key = c->to,
	                            .query = buf_str(&query),
	                            .body = &object_nothing,
	                            .n_body = 1,
	                            .slow_answer = true};
	object_add_header(&rq, "x-amz-copy-source", c->source);
	object_add_header(&rq, "x-amz-copy-source-range", range);
	if (c->head->etag[0] != '\0')
		object_add_header(&rq, "x-amz-copy-source-if-match", c->head->etag);
	TRY(object_do(c->s, &rq, err));
	TRY(xml_get(c->from, rq.call.text.ptr, rq.call.text.len, "CopyPartResult/ETag", &etag, err));
	return text_copy(sum->etag, sizeof sum->etag, buf_str(&etag))
	               ? 0
	               : err_set(err, PAWL_EIO, "%s: cannot copy: the ETag is too long", c->from);
}

/* Copies objects that are too large for one request. */
static int
copy_in_parts(struct object_store *s, const char *from, const char *to, const struct object_head *head,
              const char *source, struct pawl_error *err)
{
	uint64_t part = s->max_copy_bytes / 4 > S3_MIN_PART_BYTES ? s->max_copy_bytes / 4 : S3_MIN_PART_BYTES;
	while (head->nbytes / part >= S3_MAX_PARTS)
		part *= 2;
	size_t n = (size_t)((head->nbytes + part - 1) / part);
	PAWL_FREE struct object_part_sum *sums = mem_zalloc(n, sizeof *sums);
	PAWL_FREE char *upload = NULL;
	if (sums == NULL)
		return err_nomem(err, to);
	TRY(s3_upload_begin(s, to, NULL, false, &upload, err));
	struct copy c = {.s = s, .from = from, .to = to, .upload = upload, .source = source, .head = head};
	int rc = 0;
	for (size_t i = 0; rc == 0 && i < n; i++) {
		uint64_t begin = (uint64_t)i * part, end = begin + part < head->nbytes ? begin + part : head->nbytes;
		rc = copy_part(&c, i, begin, end, &sums[i], err);
	}
	if (rc == 0)
		rc = s3_upload_end(s, to, upload, sums, n, false, err);
	if (rc < 0)
		s3_upload_drop(s, to, upload, NULL);
	return rc;
}

static int
copy_object(struct object_store *s, const char *from, const char *to, const struct object_head *head,
            struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf source = {0};
	if (head->nbytes <= s->max_copy_bytes)
		return s3_copy_whole(s, from, to, head, "x-amz-copy-source", "x-amz-copy-source-if-match", err);
	TRY(s3_copy_source(s, from, &source, err));
	return copy_in_parts(s, from, to, head, buf_str(&source), err);
}

/* ---------------------------------------------------------------- the store */

static const struct object_protocol s3_protocol = {
	.name = "s3",
	.kind = "bucket",
	.token = "x-amz-meta-pawl-token",
	.exclusive = {"If-None-Match", "*"},
	.lists_sums = true,
	.completes_exclusively = true,
	.match = "If-Match",
	.tag = "etag",
	.wrong_tag = "\"00000000000000000000000000000000\"",
	.skew_code = "RequestTimeTooSkewed",
	.max_object_bytes = S3_MAX_OBJECT_BYTES,
	.max_parts = S3_MAX_PARTS,
	.meanings = s3_meanings,
	.prepare = prepare_request,
	.explain = explain_region,
	.look_again = look_again,
	.list_query = s3_list_query,
	.take_element = s3_take_element,
	.upload_begin = s3_upload_begin,
	.upload_part = s3_upload_part,
	.upload_end = s3_upload_end,
	.upload_drop = s3_upload_drop,
	.copy = copy_object,
	.remove_batch = remove_batch,
	.sweep = s3_sweep,
};

int
store_s3_open(const char *url, bool create, struct store **ret, struct pawl_error *err)
{
	struct object_config config;
	TRY(s3_config_read(url, &config, err));
	TRY(object_open_store(&s3_protocol, &config, s3_cred_find, create, ret, err));
	((struct object_store *)*ret)->max_copy_bytes = S3_MAX_COPY_BYTES;
	return 0;
}
