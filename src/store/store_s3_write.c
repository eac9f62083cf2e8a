/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_s3_write: objects that are written in pieces, as uploads in parts. See store_s3.h.
 *
 * An object of more than one part begins an upload; each part goes off when its last byte is there: at once and
 * straight from the caller's memory where a piece is a whole part, else from a buffer that gathers it. An object of one
 * part is gathered and put whole. Nothing is visible before seal (P2).
 *
 *   create -> [upload begun] -> write ... -> seal: completed -> finish: freed
 *                                  abort: the upload is dropped
 *
 * Each object carries a random token in its metadata, so that a seal that is repeated after an unknown outcome can tell
 * its own object from somebody else's (P15).
 */
#include "store/store_s3.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/text.h"
#include "store/s3_xml.h"
#include "store/sigv4.h"

struct part {
	char *gathered; /* NULL until a piece of it comes */
	uint64_t n_gathered;
	bool sent;
	struct s3_part_sum sum;
};

struct s3_file {
	struct store_file base;
	uint64_t part_bytes;
	size_t n_parts;
	char *upload; /* NULL: it is put whole */
	char token[33];
	bool sealed;
	pthread_mutex_t lock; /* guards the parts' fields but sum, which is the sender's */
	struct part parts[];
};

static int
no_memory(struct pawl_error *err, const char *key)
{
	return err_set(err, PAWL_ENOMEM, "%s: out of memory", key);
}

/* ------------------------------------------------------------- the requests */

int
s3_upload_begin(struct s3_store *s, const char *key, const char *token, bool sums, char **ret_id,
                struct pawl_error *err)
{
	static const struct pawl_slice nothing = {"", 0};
	PAWL_CLEAN(s3_request_clear)
	struct s3_request rq = {.what = key,
	                        .verb = "begin an upload",
	                        .method = "POST",
	                        .key = key,
	                        .query = "uploads=",
	                        .body = &nothing,
	                        .n_body = 1};
	if (token != NULL)
		s3_add_header(&rq, "x-amz-meta-pawl-token", token);
	if (sums && s->config.sums)
		s3_add_header(&rq, "x-amz-checksum-algorithm", "CRC32C");
	TRY(s3_do(s, &rq, err));
	PAWL_CLEAN(buf_clear) struct buf id = {0};
	int rc =
		s3_xml_get(key, rq.call.text.ptr, rq.call.text.len, "InitiateMultipartUploadResult/UploadId", &id, err);
	if (rc < 0 || id.len == 0 || id.len > 2048)
		return err_set(err, PAWL_ETRANSIENT, "%s: cannot begin an upload: the answer names none", key);
	*ret_id = mem_strdup(buf_str(&id));
	return *ret_id != NULL ? 0 : no_memory(err, key);
}

static void
put_id(struct buf *query, const char *id)
{
	buf_puts(query, "uploadId=");
	sigv4_encode(query, id, false);
}

static void
put_list(struct buf *out, const struct s3_part_sum *parts, size_t n)
{
	buf_puts(out, "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
	for (size_t i = 0; i < n; i++) {
		buf_printf(out, "<Part><PartNumber>%zu</PartNumber><ETag>", i + 1);
		s3_xml_escape(out, parts[i].etag);
		buf_puts(out, "</ETag>");
		if (parts[i].crc32c[0] != '\0')
			buf_printf(out, "<ChecksumCRC32C>%s</ChecksumCRC32C>", parts[i].crc32c);
		buf_puts(out, "</Part>");
	}
	buf_puts(out, "</CompleteMultipartUpload>");
}

int
s3_upload_end(struct s3_store *s, const char *key, const char *id, const struct s3_part_sum *parts, size_t n,
              bool exclusive, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf query = {0}, list = {0};
	put_id(&query, id);
	put_list(&list, parts, n);
	TRY(buf_check(&query, key, err));
	TRY(buf_check(&list, key, err));
	struct pawl_slice body = {list.ptr, list.len};
	PAWL_CLEAN(s3_request_clear)
	struct s3_request rq = {.what = key,
	                        .verb = "complete the upload",
	                        .method = "POST",
	                        .key = key,
	                        .query = buf_str(&query),
	                        .body = &body,
	                        .n_body = 1,
	                        .slow_answer = true};
	if (exclusive)
		s3_add_header(&rq, "If-None-Match", "*");
	TRY(s3_do(s, &rq, err));
	/* It is begun with 200 before it is done: only the closing element says that it is. */
	PAWL_CLEAN(buf_clear) struct buf ignored = {0};
	if (s3_xml_get(key, rq.call.text.ptr, rq.call.text.len, "CompleteMultipartUploadResult", &ignored, NULL) < 0)
		return err_set(err, PAWL_ETRANSIENT,
		               "%s: cannot complete the upload: the answer does not say that it is", key);
	return 0;
}

void
s3_upload_drop(struct s3_store *s, const char *key, const char *id)
{
	PAWL_CLEAN(buf_clear) struct buf query = {0};
	put_id(&query, id);
	if (query.failed)
		return;
	PAWL_CLEAN(s3_request_clear)
	struct s3_request rq = {
		.what = key, .verb = "drop an upload", .method = "DELETE", .key = key, .query = buf_str(&query)};
	s3_do(s, &rq, NULL);
}

static int
send_part(struct s3_store *s, struct s3_file *f, size_t i, const void *ptr, size_t len, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf query = {0};
	buf_printf(&query, "partNumber=%zu&", i + 1);
	put_id(&query, f->upload);
	TRY(buf_check(&query, f->base.key, err));
	struct pawl_slice body = {ptr, len};
	PAWL_CLEAN(s3_request_clear)
	struct s3_request rq = {.what = f->base.key,
	                        .verb = "write",
	                        .method = "PUT",
	                        .key = f->base.key,
	                        .query = buf_str(&query),
	                        .body = &body,
	                        .n_body = 1,
	                        .sum_body = true};
	TRY(s3_do(s, &rq, err));
	const char *etag = http_header_of(&rq.call, "etag");
	if (etag == NULL || etag[0] == '\0' || !text_copy(f->parts[i].sum.etag, sizeof f->parts[i].sum.etag, etag))
		return err_set(err, PAWL_ETRANSIENT, "%s: cannot write: the answer has no ETag", f->base.key);
	text_copy(f->parts[i].sum.crc32c, sizeof f->parts[i].sum.crc32c, rq.crc32c);
	return 0;
}

/* ------------------------------------------------------------------- writing */

static void
free_file(struct s3_file *f)
{
	for (size_t i = 0; i < f->n_parts; i++)
		mem_free(f->parts[i].gathered);
	pthread_mutex_destroy(&f->lock);
	mem_free(f->upload);
	mem_free(f->base.key);
	mem_free(f);
}

/* The usual part, or as much more as keeps their number within the limit. */
static uint64_t
part_bytes_for(uint64_t nbytes)
{
	const uint64_t mib = UINT64_C(1) << 20;
	uint64_t least = (nbytes + S3_MAX_PARTS - 1) / S3_MAX_PARTS;
	return least <= S3_PART_BYTES ? S3_PART_BYTES : (least + mib - 1) / mib * mib;
}

static int
check_absent(struct s3_store *s, const char *key, struct pawl_error *err)
{
	struct s3_head head;
	struct pawl_error why = {0};
	int rc = s3_head_object(s, key, "create", &head, &why);
	if (rc == 0)
		return err_set(err, PAWL_EEXISTS, "%s: exists already", key);
	if (rc != PAWL_ENOTFOUND && err != NULL)
		*err = why;
	return rc == PAWL_ENOTFOUND ? 0 : rc;
}

int
s3_create(struct store *base, const char *key, const struct store_create *opts, struct store_file **ret,
          struct pawl_error *err)
{
	struct s3_store *s = (struct s3_store *)base;
	if (opts->nbytes > S3_MAX_OBJECT_BYTES)
		return err_set(err, PAWL_ELIMIT, "%s: %" PRIu64 " bytes are more than an object may have", key,
		               opts->nbytes);
	TRY(check_absent(s, key, err));
	uint64_t part_bytes = part_bytes_for(opts->nbytes);
	size_t n = opts->nbytes == 0 ? 1 : (size_t)((opts->nbytes + part_bytes - 1) / part_bytes);
	struct s3_file *f = mem_zalloc(1, sizeof *f + n * sizeof f->parts[0]);
	if (f == NULL)
		return no_memory(err, key);
	pthread_mutex_init(&f->lock, NULL);
	f->n_parts = n;
	f->part_bytes = part_bytes;
	f->base.nbytes = opts->nbytes;
	f->base.offset_align = 1;
	f->base.key = mem_strdup(key);
	int rc = f->base.key == NULL ? no_memory(err, key) : clock_token(f->token, err);
	if (rc == 0 && n > 1)
		rc = s3_upload_begin(s, key, f->token, true, &f->upload, err);
	if (rc < 0) {
		free_file(f);
		return rc;
	}
	*ret = &f->base;
	return 0;
}

static uint64_t
length_of(const struct s3_file *f, size_t i)
{
	uint64_t begin = (uint64_t)i * f->part_bytes;
	return f->base.nbytes - begin < f->part_bytes ? f->base.nbytes - begin : f->part_bytes;
}

enum turn { TURN_DONE, TURN_SEND_GATHERED, TURN_SEND_STRAIGHT };

/* Takes a piece of part i into its buffer, unless it is sent already or can be sent as it lies. */
static int
gather(struct s3_file *f, size_t i, uint64_t at, const void *ptr, size_t len, enum turn *ret, struct pawl_error *err)
{
	struct part *p = &f->parts[i];
	uint64_t whole = length_of(f, i);
	int rc = 0;
	*ret = TURN_DONE;
	pthread_mutex_lock(&f->lock);
	if (!p->sent && len == whole && f->upload != NULL && p->gathered == NULL) {
		*ret = TURN_SEND_STRAIGHT;
	} else if (!p->sent) {
		if (p->gathered == NULL)
			p->gathered = mem_alloc((size_t)whole);
		if (p->gathered == NULL) {
			rc = no_memory(err, f->base.key);
		} else {
			memcpy(p->gathered + at, ptr, len);
			p->n_gathered += len;
			if (p->n_gathered == whole && f->upload != NULL)
				*ret = TURN_SEND_GATHERED;
		}
	}
	pthread_mutex_unlock(&f->lock);
	return rc;
}

static int
write_part(struct s3_store *s, struct s3_file *f, size_t i, uint64_t at, const void *ptr, size_t len,
           struct pawl_error *err)
{
	enum turn turn;
	struct part *p = &f->parts[i];
	TRY(gather(f, i, at, ptr, len, &turn, err));
	if (turn == TURN_DONE)
		return 0;
	bool straight = turn == TURN_SEND_STRAIGHT;
	int rc = send_part(s, f, i, straight ? ptr : p->gathered, (size_t)length_of(f, i), err);
	pthread_mutex_lock(&f->lock);
	p->sent = rc == 0;
	if (rc < 0 && !straight)
		p->n_gathered -= len; /* the same piece comes again, or nothing does */
	if (rc == 0) {
		mem_free(p->gathered);
		p->gathered = NULL;
	}
	pthread_mutex_unlock(&f->lock);
	return rc;
}

int
s3_write(struct store *base, struct store_file *bf, uint64_t offset, const void *ptr, size_t len,
         struct pawl_error *err)
{
	struct s3_file *f = (struct s3_file *)bf;
	uint64_t left = bf->nbytes - offset;
	size_t todo = len < left ? len : (size_t)left; /* less the padding */
	for (size_t done = 0; done < todo;) {
		size_t i = (size_t)((offset + done) / f->part_bytes);
		uint64_t at = offset + done - (uint64_t)i * f->part_bytes;
		size_t room = (size_t)(length_of(f, i) - at), n = todo - done < room ? todo - done : room;
		TRY(write_part((struct s3_store *)base, f, i, at, (const char *)ptr + done, n, err));
		done += n;
	}
	return 0;
}

/* ------------------------------------------------------------------ finishing */

static int
complete(struct s3_store *s, struct s3_file *f, struct pawl_error *err)
{
	bool exclusive = atomic_load(&s->exclusive) == S3_YES;
	if (f->upload == NULL) {
		struct pawl_slice whole = {f->parts[0].gathered, (size_t)f->base.nbytes};
		return s3_put_object(s, f->base.key, &whole, f->base.nbytes > 0, f->token, exclusive, err);
	}
	PAWL_FREE struct s3_part_sum *sums = mem_zalloc(f->n_parts, sizeof *sums);
	if (sums == NULL)
		return no_memory(err, f->base.key);
	for (size_t i = 0; i < f->n_parts; i++)
		sums[i] = f->parts[i].sum;
	return s3_upload_end(s, f->base.key, f->upload, sums, f->n_parts, exclusive, err);
}

int
s3_seal(struct store *base, struct store_file *bf, struct pawl_error *err)
{
	struct s3_store *s = (struct s3_store *)base;
	struct s3_file *f = (struct s3_file *)bf;
	struct pawl_error why = {0};
	struct s3_head head;
	if (f->sealed)
		return 0;
	int rc = complete(s, f, &why);
	/* It exists already, or the upload does not any more: an earlier try may have done it. */
	if ((rc == PAWL_EEXISTS || rc == PAWL_ENOTFOUND || rc == PAWL_EIO) &&
	    s3_head_object(s, bf->key, "finish", &head, NULL) == 0 && strcmp(head.token, f->token) == 0 &&
	    head.nbytes == bf->nbytes)
		rc = 0;
	f->sealed = rc == 0;
	if (rc == PAWL_ENOTFOUND)
		return err_set(err, PAWL_EIO, "%s: the upload has been taken away", bf->key);
	if (rc < 0 && err != NULL)
		*err = why;
	return rc;
}

int
s3_finish(struct store *base, struct store_file *bf, struct pawl_error *err)
{
	int rc = s3_seal(base, bf, err);
	if (rc < 0)
		s3_abort(base, bf);
	else
		free_file((struct s3_file *)bf);
	return rc;
}

void
s3_abort(struct store *base, struct store_file *bf)
{
	struct s3_file *f = (struct s3_file *)bf;
	if (f->upload != NULL)
		s3_upload_drop((struct s3_store *)base, bf->key, f->upload);
	free_file(f);
}
