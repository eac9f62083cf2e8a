/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object_read: reading by ranged GET, straight into the caller's memory. See object.h.
 *
 * A reader is pinned to the ETag that it found when it was opened. If the object was replaced
 * meanwhile, a read returns PAWL_ECONFLICT, never a mix of two objects. The server is asked
 * to check that (If-Match), and the ETag of its answer is checked again, as are range and length.
 */
#include "store/object/object.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/text.h"

#define PIECE_BYTES ((size_t)8 << 20) /* a larger read is done by several requests at a time */

struct object_reader {
	struct store_reader base;
	char etag[160];
};

int
object_open(struct store *base, const char *key, struct store_reader **ret, uint64_t *ret_nbytes,
            struct pawl_error *err)
{
	struct object_head head;
	TRY(object_get_head((struct object_store *)base, key, "open", &head, err));
	PAWL_FREE struct object_reader *r = mem_zalloc(1, sizeof *r);
	char *name = mem_strdup(key);
	if (r == NULL || name == NULL) {
		mem_free(name);
		return err_nomem(err, key);
	}
	r->base = (struct store_reader){.key = name, .nbytes = head.nbytes};
	text_copy(r->etag, sizeof r->etag, head.etag);
	*ret_nbytes = head.nbytes;
	*ret = &r->base;
	r = NULL;
	return 0;
}

void
object_close_reader(struct store *base, struct store_reader *br)
{
	(void)base;
	mem_free(br->key);
	mem_free(br);
}

/* Ignores quotes and a leading W/. */
static bool
is_same_etag(const char *a, const char *b)
{
	char plain[2][160];
	const char *from[2] = {a, b};
	for (int i = 0; i < 2; i++) {
		size_t n = 0;
		if (strncmp(from[i], "W/", 2) == 0)
			from[i] += 2;
		for (const char *c = from[i]; *c != '\0' && n + 1 < sizeof plain[i]; c++)
			if (*c != '"')
				plain[i][n++] = *c;
		plain[i][n] = '\0';
	}
	return strcmp(plain[0], plain[1]) == 0;
}

static int
refuse_replaced(const struct object_reader *r, struct pawl_error *err)
{
	return err_set(err, PAWL_ECONFLICT, "%s: has been replaced while it was read", r->base.key);
}

/* Checks that the answer is the requested range of the object that was opened. */
static int
check_answer(struct object_store *s, const struct object_reader *r, const struct object_request *rq, uint64_t begin,
             uint64_t end, struct pawl_error *err)
{
	const struct http_call *call = &rq->call;
	if (call->status == 412)
		return refuse_replaced(r, err);
	if (call->status == 416)
		return err_set(err, PAWL_ECORRUPT, "%s: ends before byte %" PRIu64, r->base.key, end);
	if (call->status != 200 && call->status != 206)
		return object_fail(s, rq, err);
	const char *etag = http_header_of(call, "etag");
	if (etag != NULL && r->etag[0] != '\0' && !is_same_etag(etag, r->etag))
		return refuse_replaced(r, err);
	if (call->status != rq->dst_status)
		return err_set(err, PAWL_EUNSUPPORTED, "%s: cannot read: the server does not give ranges (status %d)",
		               r->base.key, call->status);
	char expected[96];
	const char *range = http_header_of(call, "content-range");
	int n = snprintf(expected, sizeof expected, "bytes %" PRIu64 "-%" PRIu64 "/", begin, end - 1);
	if (call->status == 206 && (range == NULL || strncmp(range, expected, (size_t)n) != 0))
		return err_set(err, PAWL_ETRANSIENT, "%s: the answer has another range than %" PRIu64 " to %" PRIu64,
		               r->base.key, begin, end);
	return 0;
}

struct piece {
	uint64_t begin, end;
	char range[64];
};

static void
fill_request(const struct object_reader *r, struct piece *p, char *dst, struct object_request *rq)
{
	bool whole = p->begin == 0 && p->end == r->base.nbytes;
	*rq = (struct object_request){.what = r->base.key,
	                              .verb = "read",
	                              .method = "GET",
	                              .key = r->base.key,
	                              .dst = dst,
	                              .dst_bytes = (size_t)(p->end - p->begin),
	                              .dst_status = whole ? 200 : 206};
	if (r->etag[0] != '\0')
		object_add_header(rq, "If-Match", r->etag);
	snprintf(p->range, sizeof p->range, "bytes=%" PRIu64 "-%" PRIu64, p->begin, p->end - 1);
	if (!whole)
		object_add_header(rq, "Range", p->range);
}

/* Reads n bytes by up to HTTP_MAX_PARALLEL requests at a time. */
static int
read_some(struct object_store *s, struct object_reader *r, uint64_t offset, char *dst, size_t n, struct pawl_error *err)
{
	struct object_request rqs[HTTP_MAX_PARALLEL];
	struct piece pieces[HTTP_MAX_PARALLEL];
	size_t count = 0;
	for (size_t at = 0; at < n; count++) {
		size_t len = n - at < PIECE_BYTES + PIECE_BYTES / 2 ? n - at : PIECE_BYTES;
		pieces[count] = (struct piece){.begin = offset + at, .end = offset + at + len};
		fill_request(r, &pieces[count], dst + at, &rqs[count]);
		at += len;
	}
	int rc = object_send(s, rqs, count, err);
	for (size_t i = 0; rc == 0 && i < count; i++)
		rc = check_answer(s, r, &rqs[i], pieces[i].begin, pieces[i].end, err);
	for (size_t i = 0; i < count; i++)
		object_request_clear(&rqs[i]);
	return rc;
}

int
object_read(struct store *base, struct store_reader *br, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	const size_t most = PIECE_BYTES * HTTP_MAX_PARALLEL;
	for (size_t done = 0; done < n;) {
		size_t len = n - done < most ? n - done : most;
		TRY(read_some((struct object_store *)base, (struct object_reader *)br, offset + done,
		              (char *)dst + done, len, err));
		done += len;
	}
	return 0;
}

int
object_get(struct store *base, const char *key, size_t max, struct buf *out, char *tag, struct pawl_error *err)
{
	PAWL_CLEAN(object_request_clear)
	struct object_request rq = {
		.what = key, .verb = "read", .method = "GET", .key = key, .text_max = max > 65536 ? max : 65536};
	uint64_t nbytes;
	struct pawl_error why = {0};
	int rc = object_send((struct object_store *)base, &rq, 1, &why);
	bool too_long = rc == PAWL_ELIMIT || (rc == 0 && rq.call.status == 200 && rq.call.text.len > max);
	if (too_long && object_content_length(&rq, &nbytes))
		return err_set(err, PAWL_ELIMIT, "%s: expected at most %zu bytes, found %" PRIu64, key, max, nbytes);
	if (rc < 0) {
		if (err != NULL)
			*err = why;
		return rc;
	}
	if (rq.call.status != 200)
		return object_fail((struct object_store *)base, &rq, err);
	if (too_long)
		return err_set(err, PAWL_ELIMIT, "%s: expected at most %zu bytes, found more", key, max);
	const char *etag = http_header_of(&rq.call, ((struct object_store *)base)->protocol->tag);
	if (tag != NULL && (etag == NULL || !text_copy(tag, STORE_TAG_BYTES, etag)))
		return err_set(err, PAWL_EUNSUPPORTED, "%s: the answer has no %s", key,
		               ((struct object_store *)base)->protocol->tag);
	buf_put(out, rq.call.text.ptr, rq.call.text.len);
	return buf_check(out, key, err);
}
