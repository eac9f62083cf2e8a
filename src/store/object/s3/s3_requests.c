/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_requests: the requests that S3 shares with the XML interface of Google Cloud Storage: uploads
 * in parts, lists, copies. See object.h.
 */
#include "store/object/object.h"

#include <stdlib.h>
#include <string.h>

#include "base/crc.h"
#include "base/err.h"
#include "base/text.h"
#include "store/object/http/http.h"
#include "store/object/xml.h"

#define MAX_PAGES 100000u

/* The server keeps one checksum of all bytes, not one of the checksums of the parts. */
static const struct http_header WHOLE_SUM = {"x-amz-checksum-type", "FULL_OBJECT"};

/* A missing bucket is not a missing object: a run that finds no object would start anew (P8). */
const struct object_meaning s3_meanings[] = {
	{"NoSuchKey", PAWL_ENOTFOUND, "there is no such object"},
	{"NoSuchBucket", PAWL_EIO, "there is no such bucket"},
	{"InvalidAccessKeyId", PAWL_EAUTH, "the server does not know the access key"},
	{"SignatureDoesNotMatch", PAWL_EAUTH,
         "the server rejects the signature: the secret key does not match the access key"},
	{"AccessDenied", PAWL_EAUTH, "access is denied"},
	{"ExpiredToken", PAWL_EAUTH, "the session token has expired"},
	{"InvalidToken", PAWL_EAUTH, "the server does not accept the session token"},
	{"AllAccessDisabled", PAWL_EAUTH, "access is denied"},
	{"AccountProblem", PAWL_EAUTH, "there is a problem with the account"},
	{"SlowDown", PAWL_ETRANSIENT, "the server asks for fewer requests"},
	{"InternalError", PAWL_ETRANSIENT, "the server has failed"},
	{"ServiceUnavailable", PAWL_ETRANSIENT, "the server is busy"},
	{"RequestTimeout", PAWL_ETRANSIENT, "the server waited too long for the request"},
	{"OperationAborted", PAWL_ETRANSIENT, "another request is running"},
	{"ConditionalRequestConflict", PAWL_ETRANSIENT, "another request is running"},
	{"BadDigest", PAWL_ETRANSIENT, "the server received other bytes than were sent"},
	{"InvalidDigest", PAWL_ETRANSIENT, "the server received other bytes than were sent"},
	{"XAmzContentChecksumMismatch", PAWL_ETRANSIENT, "the server received other bytes than were sent"},
	{"XAmzContentSHA256Mismatch", PAWL_ETRANSIENT, "the server received other bytes than were sent"},
	{"IncompleteBody", PAWL_ETRANSIENT, "the server received too few bytes"},
	{"QuotaExceeded", PAWL_ENOSPACE, "the quota is used up"},
	{"InsufficientStorage", PAWL_ENOSPACE, "the server has no space left"},
	{"EntityTooLarge", PAWL_ELIMIT, "the object is too large for the server"},
	{"KeyTooLongError", PAWL_ELIMIT, "the key is too long for the server"},
	{"NotImplemented", PAWL_EUNSUPPORTED, "the server does not support this"},
	{"MethodNotAllowed", PAWL_EUNSUPPORTED, "the server does not allow this"},
	{"PermanentRedirect", PAWL_EUSAGE, "the bucket is in another region"},
	{"TemporaryRedirect", PAWL_EUSAGE, "the bucket is in another region"},
	{"AuthorizationHeaderMalformed", PAWL_EAUTH, "the signature is for another region"},
	{"InvalidSecurity", PAWL_EAUTH, "the server does not know the access key"},
	{"AuthenticationRequired", PAWL_EAUTH, "the server does not accept the token"},
	{"UserProjectMissing", PAWL_EAUTH, "the bucket wants the requester to pay"},
	{NULL, 0, NULL},
};

/* -------------------------------------------------------------------- uploads */

int
s3_upload_begin(struct object_store *s, const char *key, const char *token, bool sums, char **ret_id,
                struct pawl_error *err)
{
	PAWL_CLEAN(object_request_clear)
	struct object_request rq = {.what = key,
	                            .verb = "begin an upload",
	                            .method = "POST",
	                            .key = key,
	                            .query = "uploads=",
	                            .body = &object_nothing,
	                            .n_body = 1};
	if (token != NULL)
		object_add_header(&rq, s->protocol->token, token);
	const enum object_sum sum =
		sums && s->protocol->lists_sums ? (enum object_sum)atomic_load(&s->sum) : OBJECT_SUM_NONE;
	if (object_sum_element(sum) != NULL)
		object_add_header(&rq, "x-amz-checksum-algorithm", object_sum_name(sum));
	if (sum == OBJECT_SUM_CRC64NVME)
		object_add_header(&rq, WHOLE_SUM.name, WHOLE_SUM.value);
	TRY(object_do(s, &rq, err));
	PAWL_CLEAN(buf_clear) struct buf id = {0};
	int rc = xml_get(key, rq.call.text.ptr, rq.call.text.len, "InitiateMultipartUploadResult/UploadId", &id, err);
	if (rc < 0 || id.len == 0 || id.len > 2048)
		return err_set(err, PAWL_ETRANSIENT, "%s: cannot begin an upload: the answer names none", key);
	*ret_id = mem_strdup(buf_str(&id));
	return *ret_id != NULL ? 0 : err_nomem(err, key);
}

static void
put_id(struct buf *query, const char *id)
{
	buf_puts(query, "uploadId=");
	http_encode(query, id, false);
}

static void
put_list(struct buf *out, const struct object_part_sum *parts, size_t n, const char *element)
{
	buf_puts(out, "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
	for (size_t i = 0; i < n; i++) {
		buf_printf(out, "<Part><PartNumber>%zu</PartNumber><ETag>", i + 1);
		xml_escape(out, parts[i].etag);
		buf_puts(out, "</ETag>");
		if (element != NULL && parts[i].sum[0] != '\0')
			buf_printf(out, "<%s>%s</%s>", element, parts[i].sum, element);
		buf_puts(out, "</Part>");
	}
	buf_puts(out, "</CompleteMultipartUpload>");
}

/* Joins the checksums of the parts to that of the complete object; "" if a part has none. */
static int
join_sums(const struct object_part_sum *parts, size_t n, char out[48], struct pawl_error *err)
{
	uint64_t crc = 0;
	out[0] = '\0';
	for (size_t i = 0; i < n; i++) {
		if (parts[i].sum[0] == '\0')
			return 0;
		crc = crc64nvme_join(crc, parts[i].crc, parts[i].nbytes);
	}
	return object_sum_text(crc, sizeof crc, out, err);
}

int
s3_upload_end(struct object_store *s, const char *key, const char *id, const struct object_part_sum *parts, size_t n,
              bool exclusive, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf query = {0}, list = {0};
	put_id(&query, id);
	const enum object_sum sum = s->protocol->lists_sums ? (enum object_sum)atomic_load(&s->sum) : OBJECT_SUM_NONE;
	char whole[48] = "";
	put_list(&list, parts, n, object_sum_element(sum));
	if (sum == OBJECT_SUM_CRC64NVME)
		TRY(join_sums(parts, n, whole, err));
	TRY(buf_check(&query, key, err));
	TRY(buf_check(&list, key, err));
	struct pawl_slice body = {list.ptr, list.len};
	PAWL_CLEAN(object_request_clear)
	struct object_request rq = {.what = key,
	                            .verb = "complete the upload",
	                            .method = "POST",
	                            .key = key,
	                            .query = buf_str(&query),
	                            .body = &body,
	                            .n_body = 1,
	                            .slow_answer = true};
	if (exclusive)
		object_add_header(&rq, s->protocol->exclusive.name, s->protocol->exclusive.value);
	if (whole[0] != '\0') {
		object_add_header(&rq, WHOLE_SUM.name, WHOLE_SUM.value);
		object_add_header(&rq, object_sum_header(sum), whole);
	}
	TRY(object_do(s, &rq, err));
	/* The answer begins with 200 before the upload is complete. Only the closing element
	 * confirms it. */
	PAWL_CLEAN(buf_clear) struct buf ignored = {0};
	if (xml_get(key, rq.call.text.ptr, rq.call.text.len, "CompleteMultipartUploadResult", &ignored, NULL) < 0)
		return err_set(err, PAWL_ETRANSIENT,
		               "%s: cannot complete the upload: the answer does not say that it is", key);
	return 0;
}

int
s3_upload_drop(struct object_store *s, const char *key, const char *id, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf query = {0};
	put_id(&query, id);
	TRY(buf_check(&query, key, err));
	PAWL_CLEAN(object_request_clear)
	struct object_request rq = {
		.what = key, .verb = "drop an upload", .method = "DELETE", .key = key, .query = buf_str(&query)};
	int rc = object_do(s, &rq, err);
	return rc == PAWL_ENOTFOUND ? 0 : rc;
}

int
s3_upload_part(struct object_store *s, const char *key, const char *id, size_t i, const void *ptr, size_t len,
               struct object_part_sum *ret, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf query = {0};
	buf_printf(&query, "partNumber=%zu&", i + 1);
	put_id(&query, id);
	TRY(buf_check(&query, key, err));
	PAWL_CLEAN(object_request_clear) struct object_request rq = {0};
	TRY(object_send_part(s, key, buf_str(&query), ptr, len, &rq, err));
	const char *etag = http_header_of(&rq.call, "etag");
	if (etag == NULL || etag[0] == '\0' || !text_copy(ret->etag, sizeof ret->etag, etag))
		return err_set(err, PAWL_ETRANSIENT, "%s: cannot write: the answer has no ETag", key);
	text_copy(ret->sum, sizeof ret->sum, rq.sum);
	ret->crc = rq.crc;
	ret->nbytes = len;
	return 0;
}

/* ---------------------------------------------------------------------- lists */

void
s3_list_query(struct buf *query, const char *prefix, bool children, unsigned max_keys, const char *token)
{
	if (token != NULL) {
		buf_puts(query, "continuation-token=");
		http_encode(query, token, false);
		buf_putc(query, '&');
	}
	buf_printf(query, "%sencoding-type=url&list-type=2", children ? "delimiter=%2F&" : "");
	if (max_keys > 0)
		buf_printf(query, "&max-keys=%u", max_keys);
	buf_puts(query, "&prefix=");
	http_encode(query, prefix, false);
}

int
s3_take_element(void *arg, const char *path, const char *text, size_t len)
{
	struct object_page *p = arg;
	const char *leaf = strchr(path, '/');
	if (leaf == NULL) {
		p->complete = strcmp(path, "ListBucketResult") == 0 || strcmp(path, "ListMultipartUploadsResult") == 0;
		return 0;
	}
	leaf++;
	if (strcmp(leaf, "IsTruncated") == 0)
		p->truncated = strcmp(text, "true") == 0;
	else if (strcmp(leaf, "EncodingType") == 0)
		p->encoded = strcmp(text, "url") == 0;
	else if (strcmp(leaf, "NextContinuationToken") == 0)
		return object_page_keep(p, &p->token, text, len);
	else if (strcmp(leaf, "NextKeyMarker") == 0)
		return object_page_keep(p, &p->key_marker, text, len);
	else if (strcmp(leaf, "NextUploadIdMarker") == 0)
		return object_page_keep(p, &p->upload_marker, text, len);
	else if (strcmp(leaf, "CommonPrefixes/Prefix") == 0)
		return object_page_add(p, text, len, true);
	else if (strcmp(leaf, "Contents/Key") == 0 || strcmp(leaf, "Upload/Key") == 0)
		return object_page_keep(p, &p->next_item.key, text, len);
	else if (strcmp(leaf, "Contents/Size") == 0)
		p->next_item.nbytes = strtoull(text, NULL, 10);
	else if (strcmp(leaf, "Contents/LastModified") == 0 || strcmp(leaf, "Upload/Initiated") == 0) {
		int64_t seconds = http_iso_time(text);
		p->next_item.mtime_ns = seconds > 0 && seconds < INT64_MAX / 1000000000 ? seconds * 1000000000 : 0;
	} else if (strcmp(leaf, "Upload/UploadId") == 0)
		return object_page_keep(p, &p->next_item.upload, text, len);
	else if (strcmp(leaf, "Contents") == 0 || strcmp(leaf, "Upload") == 0)
		return object_page_add(p, NULL, 0, false);
	return 0;
}

/* --------------------------------------------------------------------- copies */

int
s3_copy_source(const struct object_store *s, const char *key, struct buf *out, struct pawl_error *err)
{
	buf_printf(out, "%s/", s->config.bucket);
	http_encode(out, s->config.prefix, true);
	http_encode(out, key, true);
	return buf_check(out, key, err);
}

int
s3_copy_whole(struct object_store *s, const char *from, const char *to, const struct object_head *head,
              const char *source_header, const char *match_header, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf source = {0};
	TRY(s3_copy_source(s, from, &source, err));
	PAWL_CLEAN(object_request_clear) struct object_request rq = {0};
	TRY(object_send_copy(s, from, to, head, &(struct http_header){source_header, buf_str(&source)}, match_header,
	                     &rq, err));
	char code[65];
	object_error_code(&rq, code);
	return !object_is_success(&rq) || code[0] != '\0' ? object_fail(s, &rq, err) : 0;
}

/* ------------------------------------------------------------------- sweeping */

static int
uploads_page(struct object_store *s, const char *key_marker, const char *upload_marker, struct object_page *p,
             struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf query = {0};
	buf_puts(&query, "encoding-type=url");
	if (key_marker != NULL) {
		buf_puts(&query, "&key-marker=");
		http_encode(&query, key_marker, false);
	}
	buf_puts(&query, "&prefix=");
	http_encode(&query, s->config.prefix, false);
	if (key_marker != NULL && upload_marker != NULL) {
		buf_puts(&query, "&upload-id-marker=");
		http_encode(&query, upload_marker, false);
	}
	buf_puts(&query, "&uploads=");
	TRY(buf_check(&query, s->base.root, err));
	TRY(object_read_page(s, "", "list uploads", buf_str(&query), p, err));
	if (p->encoded && p->key_marker != NULL)
		object_decode(p->key_marker);
	return 0;
}

int
s3_sweep(struct store *base, int64_t before_ns, uint64_t *ret_n, struct pawl_error *err)
{
	struct object_store *s = (struct object_store *)base;
	PAWL_CLEAN(object_page_free) struct object_page *p = object_page_new();
	PAWL_FREE char *key_marker = NULL;
	PAWL_FREE char *upload_marker = NULL;
	size_t skip = strlen(s->config.prefix);
	struct pawl_error why = {0};
	int rc = 0; /* the first failure, which does not keep the other uploads */
	*ret_n = 0;
	if (p == NULL)
		return err_nomem(err, base->root);
	for (unsigned pages = 0; pages < MAX_PAGES; pages++) {
		TRY(uploads_page(s, key_marker, upload_marker, p, err));
		for (size_t i = 0; i < p->n; i++) {
			const struct object_found *f = &p->items[i];
			if (f->upload == NULL || f->mtime_ns == 0 || f->mtime_ns >= before_ns ||
			    strncmp(f->key, s->config.prefix, skip) != 0)
				continue;
			int dropped =
				s3_upload_drop(s, object_below_prefix(s, f->key), f->upload, rc == 0 ? &why : NULL);
			*ret_n += dropped == 0;
			rc = rc == 0 ? dropped : rc;
		}
		if (!p->truncated)
			return err_give(err, rc, &why);
		if (p->key_marker == NULL ||
		    (key_marker != NULL && strcmp(key_marker, p->key_marker) == 0 && upload_marker != NULL &&
		     p->upload_marker != NULL && strcmp(upload_marker, p->upload_marker) == 0))
			break;
		mem_free(key_marker);
		mem_free(upload_marker);
		key_marker = mem_strdup(p->key_marker);
		upload_marker = p->upload_marker != NULL ? mem_strdup(p->upload_marker) : NULL;
		if (key_marker == NULL)
			return err_nomem(err, base->root);
	}
	return err_set(err, PAWL_EIO, "%s: the list of uploads does not end", base->root);
}
