/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_azure: the engine for Azure Blob storage: az://container/prefix. See
 * docs/how-to/stores/azure.md, and object.h for the table that this file fills in.
 *
 * Large objects are block blobs. Parts are put as blocks, whose names begin with the object's
 * token, and a list of the blocks makes the blob (P2). Blocks that are in no list are invisible,
 * and the service drops them after a week.
 */
#include "store/object/azure/store_azure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/text.h"
#include "store/object/http/http.h"

#define VERSION "2021-12-02" /* of the service's interface */
#define MAX_BLOCKS 50000u
#define MAX_BLOCK_BYTES (UINT64_C(4000) << 20)
#define COPY_MS 3600000 /* limit for a copy that the service makes in the background */
#define COPY_STEP_MS 1000

static const struct object_meaning meanings[] = {
	{"BlobNotFound", PAWL_ENOTFOUND, "there is no such object"},
	{"ResourceNotFound", PAWL_ENOTFOUND, "there is no such object"},
	{"CannotVerifyCopySource", PAWL_ENOTFOUND, "there is no such object"},
	{"ContainerNotFound", PAWL_EIO, "there is no such container"},
	{"BlobAlreadyExists", PAWL_EEXISTS, "it already exists"},
	{"AuthenticationFailed", PAWL_EAUTH, "the server rejects the signature: the key or the token is wrong"},
	{"AuthorizationFailure", PAWL_EAUTH, "access is denied"},
	{"AuthorizationPermissionMismatch", PAWL_EAUTH, "the token does not allow this"},
	{"AuthorizationResourceTypeMismatch", PAWL_EAUTH, "the token does not allow this"},
	{"AuthorizationServiceMismatch", PAWL_EAUTH, "the token is for another service"},
	{"AuthorizationProtocolMismatch", PAWL_EAUTH, "the token is for https only"},
	{"AuthorizationSourceIPMismatch", PAWL_EAUTH, "the token is for another address"},
	{"KeyBasedAuthenticationNotPermitted", PAWL_EAUTH, "the account does not take keys"},
	{"NoAuthenticationInformation", PAWL_EAUTH, "access is denied"},
	{"PublicAccessNotPermitted", PAWL_EAUTH, "access is denied"},
	{"InsufficientAccountPermissions", PAWL_EAUTH, "access is denied"},
	{"AccountIsDisabled", PAWL_EAUTH, "the account is disabled"},
	{"InvalidAuthenticationInfo", PAWL_EAUTH, "the server does not understand the credentials"},
	{"BlobImmutableDueToPolicy", PAWL_EAUTH, "the object may not be changed"},
	{"LeaseIdMissing", PAWL_EBUSY, "another client holds a lease on the object"},
	{"SnapshotsPresent", PAWL_EUNSUPPORTED, "the object has snapshots"},
	{"InvalidBlockList", PAWL_EIO, "the blocks no longer exist"},
	{"InvalidBlockId", PAWL_EIO, "the object has blocks of another kind"},
	{"Md5Mismatch", PAWL_ETRANSIENT, "the server received other bytes than were sent"},
	{"ServerBusy", PAWL_ETRANSIENT, "the server asks for fewer requests"},
	{"OperationTimedOut", PAWL_ETRANSIENT, "the server took too long"},
	{"InternalError", PAWL_ETRANSIENT, "the server has failed"},
	{"RequestBodyTooLarge", PAWL_ELIMIT, "the object is too large for the server"},
	{NULL, 0, NULL},
};

/* ----------------------------------------------------------------- signing */

static int
prepare_request(struct object_store *s, struct object_request *rq, const struct cred_keys *keys,
                struct object_envelope *e, struct pawl_error *err)
{
	struct http_call *call = &rq->call;
	uint64_t nbytes = 0;
	for (size_t i = 0; i < rq->n_body; i++)
		nbytes += rq->body[i].len;
	if (rq->sum_body) {
		TRY(object_sum_body(OBJECT_SUM_MD5, rq, err));
		object_call_add(call, s->protocol->sum, rq->sum);
	}
	http_put_date(e->now_s, e->date);
	object_call_add(call, "x-ms-date", e->date);
	object_call_add(call, "x-ms-version", VERSION);
	for (size_t i = 0; i < rq->n_headers; i++)
		object_call_add(call, rq->headers[i].name, rq->headers[i].value);
	if (keys->session_token[0] != '\0') {
		buf_printf(&e->url, "%c%s", rq->query != NULL ? '&' : '?', keys->session_token);
		return 0;
	}
	TRY(azure_sign(s->config.account, keys->secret_key, rq->method, call->headers, call->n_headers, nbytes,
	               buf_str(&e->path), rq->query != NULL ? rq->query : "", &e->authorization, err));
	object_call_add(call, "Authorization", buf_str(&e->authorization));
	return 0;
}

/* ---------------------------------------------------------------------- lists */

static void
list_query(struct buf *query, const char *prefix, bool children, unsigned max_keys, const char *token)
{
	buf_printf(query, "comp=list%s", children ? "&delimiter=%2F" : "");
	if (token != NULL) {
		buf_puts(query, "&marker=");
		http_encode(query, token, false);
	}
	buf_printf(query, "&maxresults=%u&prefix=", max_keys > 0 ? max_keys : OBJECT_PAGE_KEYS);
	http_encode(query, prefix, false);
	buf_puts(query, "&restype=container");
}

static int
take_element(void *arg, const char *path, const char *text, size_t len)
{
	struct object_page *p = arg;
	const char *leaf = strchr(path, '/');
	if (leaf == NULL) {
		p->complete = strcmp(path, "EnumerationResults") == 0;
		return 0;
	}
	leaf++;
	if (strcmp(leaf, "NextMarker") == 0) {
		p->truncated = len > 0;
		return len > 0 ? object_page_keep(p, &p->token, text, len) : 0;
	}
	if (strcmp(leaf, "Blobs/BlobPrefix/Name") == 0)
		return object_page_add(p, text, len, true);
	if (strcmp(leaf, "Blobs/Blob/Name") == 0)
		return object_page_keep(p, &p->next_item.key, text, len);
	if (strcmp(leaf, "Blobs/Blob/Properties/Content-Length") == 0)
		p->next_item.nbytes = strtoull(text, NULL, 10);
	else if (strcmp(leaf, "Blobs/Blob/Properties/Last-Modified") == 0) {
		int64_t seconds = http_date_time(text);
		p->next_item.mtime_ns = seconds > 0 && seconds < INT64_MAX / 1000000000 ? seconds * 1000000000 : 0;
	} else if (strcmp(leaf, "Blobs/Blob") == 0)
		return object_page_add(p, NULL, 0, false);
	return 0;
}

/* --------------------------------------------------------------------- blocks */

/* Nothing to begin: blocks are put under names of their own. */
static int
upload_begin(struct object_store *s, const char *key, const char *token, bool sums, char **ret_id,
             struct pawl_error *err)
{
	(void)s, (void)sums;
	*ret_id = mem_strdup(token);
	return *ret_id != NULL ? 0 : err_nomem(err, key);
}

/* The names have equal length, as the service demands. */
static void
put_block_name(struct buf *out, const char *id, size_t i)
{
	char name[64];
	int n = snprintf(name, sizeof name, "%.32s%08zu", id, i);
	text_put_base64(out, name, (size_t)n);
}

static int
upload_part(struct object_store *s, const char *key, const char *id, size_t i, const void *ptr, size_t len,
            struct object_part_sum *ret, struct pawl_error *err)
{
	(void)ret;
	PAWL_CLEAN(buf_clear) struct buf query = {0}, name = {0};
	put_block_name(&name, id, i);
	buf_puts(&query, "blockid=");
	http_encode(&query, buf_str(&name), false);
	buf_puts(&query, "&comp=block");
	TRY(buf_check(&name, key, err));
	TRY(buf_check(&query, key, err));
	PAWL_CLEAN(object_request_clear) struct object_request rq = {0};
	return object_send_part(s, key, buf_str(&query), ptr, len, &rq, err);
}

static int
upload_end(struct object_store *s, const char *key, const char *id, const struct object_part_sum *parts, size_t n,
           bool exclusive, struct pawl_error *err)
{
	(void)parts;
	PAWL_CLEAN(buf_clear) struct buf list = {0};
	buf_puts(&list, "<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList>");
	for (size_t i = 0; i < n; i++) {
		buf_puts(&list, "<Latest>");
		put_block_name(&list, id, i);
		buf_puts(&list, "</Latest>");
	}
	buf_puts(&list, "</BlockList>");
	TRY(buf_check(&list, key, err));
	struct pawl_slice body = {list.ptr, list.len};
	PAWL_CLEAN(object_request_clear)
	struct object_request rq = {.what = key,
	                            .verb = "complete the upload",
	                            .method = "PUT",
	                            .key = key,
	                            .query = "comp=blocklist",
	                            .body = &body,
	                            .n_body = 1,
	                            .slow_answer = true,
	                            .sum_body = true};
	object_add_header(&rq, s->protocol->token, id);
	if (exclusive)
		object_add_header(&rq, s->protocol->exclusive.name, s->protocol->exclusive.value);
	return object_do(s, &rq, err);
}

/* --------------------------------------------------------------------- copies */

/* Appends a complete URL. If a shared access signature gives access, the URL must carry one,
 * too. */
static int
put_source(struct object_store *s, const char *key, struct buf *out, struct pawl_error *err)
{
	const struct object_config *c = &s->config;
	PAWL_CLEAN(cred_keys_wipe) struct cred_keys keys = {0};
	TRY(cred_get(s->cred, false, &keys, err));
	buf_printf(out, "%s://%s", c->https ? "https" : "http", c->host);
	http_encode(out, c->base_path, true);
	buf_printf(out, "/%s/", c->bucket);
	http_encode(out, c->prefix, true);
	http_encode(out, key, true);
	if (keys.session_token[0] != '\0')
		buf_printf(out, "?%s", keys.session_token);
	return buf_check(out, key, err);
}

/* Waits until the copy is done. The service may answer before that. */
static int
await_copy(struct object_store *s, const char *from, const char *to, const char *first, struct pawl_error *err)
{
	char status[16];
	int64_t deadline_ms = clock_mono_ms() + COPY_MS, step_ms = 10;
	text_copy(status, sizeof status, first != NULL ? first : "success");
	while (strcmp(status, "pending") == 0 && clock_mono_ms() < deadline_ms) {
		clock_sleep_ms(step_ms);
		step_ms = step_ms * 2 < COPY_STEP_MS ? step_ms * 2 : COPY_STEP_MS;
		PAWL_CLEAN(object_request_clear)
		struct object_request rq = {.what = to, .verb = "copy", .method = "HEAD", .key = to};
		TRY(object_do(s, &rq, err));
		const char *now = http_header_of(&rq.call, "x-ms-copy-status");
		text_copy(status, sizeof status, now != NULL ? now : "success");
	}
	if (strcmp(status, "success") == 0)
		return 0;
	return err_set(err, PAWL_ETRANSIENT, "%s: cannot copy to %s: the service has not finished it", from, to);
}

static int
copy_blob(struct object_store *s, const char *from, const char *to, const struct object_head *head,
          struct pawl_error *err)
{
	PAWL_CLEAN(cred_wipe_buf) struct buf source = {0};
	TRY(put_source(s, from, &source, err));
	PAWL_CLEAN(object_request_clear) struct object_request rq = {0};
	TRY(object_send_copy(s, from, to, head, &(struct http_header){"x-ms-copy-source", buf_str(&source)},
	                     "x-ms-source-if-match", &rq, err));
	if (!object_is_success(&rq))
		return object_fail(s, &rq, err);
	return await_copy(s, from, to, http_header_of(&rq.call, "x-ms-copy-status"), err);
}

/* ---------------------------------------------------------------- the store */

static const struct object_protocol azure_protocol = {
	.name = "azure",
	.kind = "container",
	.token = "x-ms-meta-pawl_token",
	.sum = "Content-MD5",
	.put = {"x-ms-blob-type", "BlockBlob"},
	.exclusive = {"If-None-Match", "*"},
	.completes_exclusively = true,
	.match = "If-Match",
	.tag = "etag",
	.wrong_tag = "\"0x000000000000000\"",
	.skew_code = "AuthenticationFailed",
	.max_object_bytes = MAX_BLOCKS * MAX_BLOCK_BYTES,
	.max_parts = MAX_BLOCKS,
	.meanings = meanings,
	.prepare = prepare_request,
	.list_query = list_query,
	.take_element = take_element,
	.upload_begin = upload_begin,
	.upload_part = upload_part,
	.upload_end = upload_end,
	.copy = copy_blob,
};

int
store_azure_open(const char *url, bool create, struct store **ret, struct pawl_error *err)
{
	struct object_config config;
	TRY(azure_config_read(url, &config, err));
	return object_open_store(&azure_protocol, &config, azure_cred_find, create, ret, err);
}
