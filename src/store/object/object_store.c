/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object_store: what every object store can do: opening, small objects, capabilities. See object.h
 * and docs/how-to/stores.
 *
 * Only the retry layer decides which calls are repeated: every operation here is one try, and may
 * be repeated. Objects appear complete, by one PUT or by completing an upload in parts (P2). The
 * claims of a server are not trusted: whether it honours conditions is tried.
 */
#include "store/object/object.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/hidden.h"
#include "base/text.h"

/* ------------------------------------------------------------ small objects */

/* True if the answer reports that the server does not support a header. */
static bool
is_refused_header(const struct object_request *rq)
{
	char code[65];
	object_error_code(rq, code);
	return rq->call.status == 501 || (rq->call.status == 400 && (strcmp(code, "InvalidRequest") == 0 ||
	                                                             strcmp(code, "InvalidArgument") == 0));
}

/* If the checksum may be the reason of a refusal, MD5 is tried, which every server of S3 knows. If
 * that helps, MD5 is kept. */
static int
send_with_sum(struct object_store *s, struct object_request *rq, struct pawl_error *err)
{
	TRY(object_send(s, rq, 1, err));
	const bool chosen = rq->sum[0] != '\0' && s->protocol->lists_sums && rq->sum_kind != OBJECT_SUM_MD5;
	if (!chosen || !is_refused_header(rq))
		return 0;
	rq->sum_kind = OBJECT_SUM_MD5;
	TRY(object_send(s, rq, 1, err));
	if (!is_refused_header(rq))
		atomic_store(&s->sum, OBJECT_SUM_MD5);
	return 0;
}

int
object_put_whole(struct object_store *s, const char *key, const struct pawl_slice *parts, size_t n_parts,
                 const char *token, bool exclusive, struct pawl_error *err)
{
	PAWL_CLEAN(object_request_clear)
	struct object_request rq = {.what = key,
	                            .verb = "put",
	                            .method = "PUT",
	                            .key = key,
	                            .body = n_parts > 0 ? parts : &object_nothing,
	                            .n_body = n_parts > 0 ? n_parts : 1,
	                            .sum_body = true};
	if (exclusive)
		object_add_header(&rq, s->protocol->exclusive.name, s->protocol->exclusive.value);
	if (token != NULL)
		object_add_header(&rq, s->protocol->token, token);
	if (s->protocol->put.name != NULL)
		object_add_header(&rq, s->protocol->put.name, s->protocol->put.value);
	/* An empty object that is sent twice would find itself already there. */
	rq.fresh = exclusive;
	for (size_t i = 0; i < n_parts; i++)
		rq.fresh = rq.fresh && parts[i].len == 0;
	TRY(send_with_sum(s, &rq, err));
	char code[65];
	object_error_code(&rq, code);
	if (rq.call.status == 412 || (exclusive && strcmp(code, "BlobAlreadyExists") == 0))
		return err_set(err, PAWL_EEXISTS, "%s: already exists", key);
	return object_is_success(&rq) ? 0 : object_fail(s, &rq, err);
}

static int
object_put(struct store *base, const char *key, const struct pawl_slice *parts, size_t n_parts, int flags,
           struct pawl_error *err)
{
	struct object_store *s = (struct object_store *)base;
	if ((flags & STORE_EXCLUSIVE) == 0)
		return object_put_whole(s, key, parts, n_parts, NULL, false, err);
	TRY(object_probe_exclusive(s, err));
	if (atomic_load(&s->exclusive) != OBJECT_YES)
		return err_set(err, PAWL_EUNSUPPORTED, "%s: cannot be put exclusively: %s does not honour %s", key,
		               s->config.host, s->protocol->exclusive.name);
	return object_put_whole(s, key, parts, n_parts, NULL, true, err);
}

/* Puts one object twice, exclusively. The server must refuse the second put. */
int
object_probe_exclusive(struct object_store *s, struct pawl_error *err)
{
	char key[HIDDEN_NAME_BYTES];
	struct pawl_slice text = {"probe\n", 6};
	if (atomic_load(&s->exclusive) != OBJECT_UNKNOWN)
		return 0;
	TRY(hidden_name("probe", HIDDEN_TMP, key, err));
	int rc = object_put_whole(s, key, &text, 1, NULL, true, err);
	bool refused = rc == PAWL_EUNSUPPORTED; /* the header itself */
	if (rc < 0 && !refused)
		return rc;
	int second = refused ? 0 : object_put_whole(s, key, &text, 1, NULL, true, err);
	if (!refused)
		object_remove(&s->base, key, NULL);
	if (second < 0 && second != PAWL_EEXISTS)
		return second;
	atomic_store(&s->exclusive, second == PAWL_EEXISTS ? OBJECT_YES : OBJECT_NO);
	return 0;
}

static int
put_matching(struct object_store *s, const char *key, const char *tag, const struct pawl_slice *text,
             struct pawl_error *err)
{
	PAWL_CLEAN(object_request_clear)
	struct object_request rq = {
		.what = key, .verb = "put", .method = "PUT", .key = key, .body = text, .n_body = 1, .sum_body = true};
	object_add_header(&rq, s->protocol->match, tag);
	if (s->protocol->put.name != NULL)
		object_add_header(&rq, s->protocol->put.name, s->protocol->put.value);
	TRY(object_send(s, &rq, 1, err));
	if (rq.call.status == 412 || rq.call.status == 404)
		return err_set(err, PAWL_ECONFLICT, "%s: was replaced in the meantime", key);
	return object_is_success(&rq) ? 0 : object_fail(s, &rq, err);
}

/* The server must refuse to replace an object under a tag that it never had. It must accept the tag
 * that it reported itself: some servers compare it including its quotes. */
static int
probe_matching(struct object_store *s, const char *key, enum object_known *ret, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf found = {0};
	const struct pawl_slice text = {"probe\n", 6};
	char tag[STORE_TAG_BYTES];
	TRY(object_put_whole(s, key, &text, 1, NULL, false, err));
	TRY(object_get(&s->base, key, text.len, &found, tag, err));
	int wrong = put_matching(s, key, s->protocol->wrong_tag, &text, err);
	int right = wrong == PAWL_ECONFLICT ? put_matching(s, key, tag, &text, err) : wrong;
	*ret = wrong == PAWL_ECONFLICT && right == 0 ? OBJECT_YES : OBJECT_NO;
	return right < 0 && right != PAWL_ECONFLICT && right != PAWL_EUNSUPPORTED ? right : 0;
}

static int
probe_conditional(struct object_store *s, struct pawl_error *err)
{
	char key[HIDDEN_NAME_BYTES];
	enum object_known known;
	if (atomic_load(&s->conditional) != OBJECT_UNKNOWN)
		return 0;
	TRY(hidden_name("probe", HIDDEN_TMP, key, err));
	int rc = probe_matching(s, key, &known, err);
	object_remove(&s->base, key, NULL);
	if (rc == 0)
		atomic_store(&s->conditional, (int)known);
	return rc;
}

static int
object_put_if(struct store *base, const char *key, const char *tag, const struct pawl_slice *text,
              struct pawl_error *err)
{
	struct object_store *s = (struct object_store *)base;
	TRY(probe_conditional(s, err));
	if (atomic_load(&s->conditional) != OBJECT_YES)
		return err_set(err, PAWL_EUNSUPPORTED, "%s: %s does not honour %s of a put", key, s->config.host,
		               s->protocol->match);
	return put_matching(s, key, tag, text, err);
}

static void
copy_header(const struct object_request *rq, const char *name, char *dst, size_t cap)
{
	const char *value = http_header_of(&rq->call, name);
	if (value == NULL || !text_copy(dst, cap, value))
		dst[0] = '\0';
}

int
object_get_head(struct object_store *s, const char *key, const char *verb, struct object_head *ret,
                struct pawl_error *err)
{
	PAWL_CLEAN(object_request_clear)
	struct object_request rq = {.what = key, .verb = verb, .method = "HEAD", .key = key};
	TRY(object_do(s, &rq, err));
	*ret = (struct object_head){0};
	if (!object_content_length(&rq, &ret->nbytes))
		return err_set(err, PAWL_ETRANSIENT, "%s: cannot %s: the answer names no size", key, verb);
	copy_header(&rq, "etag", ret->etag, sizeof ret->etag);
	copy_header(&rq, s->protocol->token, ret->token, sizeof ret->token);
	int64_t modified = http_date_time(http_header_of(&rq.call, "last-modified"));
	ret->mtime_ns = modified > 0 ? modified * 1000000000 : 0;
	return 0;
}

static int
object_stat(struct store *base, const char *key, struct store_entry *ret, struct pawl_error *err)
{
	struct object_store *s = (struct object_store *)base;
	struct object_head head;
	struct pawl_error why = {0};
	bool is_folder;
	int rc = object_get_head(s, key, "stat", &head, &why);
	if (rc == 0) {
		*ret = (struct store_entry){.nbytes = head.nbytes, .mtime_ns = head.mtime_ns, .n_links = 1};
		return 0;
	}
	if (rc != PAWL_ENOTFOUND) {
		if (err != NULL)
			*err = why;
		return rc;
	}
	TRY(object_has_any(s, key, "stat", &is_folder, err));
	if (!is_folder)
		return err_set(err, PAWL_ENOTFOUND, "%s: there is no such object", key);
	*ret = (struct store_entry){.is_folder = true, .n_links = 1};
	return 0;
}

/* ---------------------------------------------------------------- the store */

static void
object_caps(struct store *base, struct store_caps *ret)
{
	struct object_store *s = (struct object_store *)base;
	*ret = (struct store_caps){.exclusive_put = atomic_load(&s->exclusive) == OBJECT_YES,
	                           .link = true,
	                           .flat = true,
	                           .lists_all = true,
	                           .unit_bytes = OBJECT_PART_BYTES,
	                           .max_object_bytes = s->protocol->max_object_bytes};
}

static void
object_close(struct store *base)
{
	struct object_store *s = (struct object_store *)base;
	http_free(s->http);
	cred_free(s->cred);
	bump_clear(&s->config.memory);
}

static const struct store_ops object_ops = {
	.put = object_put,
	.create = object_create,
	.write = object_write,
	.finish = object_finish,
	.abort = object_abort,
	.remove = object_remove,
	.remove_folder = object_remove_folder,
	.open = object_open,
	.read = object_read,
	.close_reader = object_close_reader,
	.stat = object_stat,
	.list = object_list,
	.close = object_close,
	.caps = object_caps,
	.sweep = object_sweep,
	.notes = object_notes,
	.seal = object_seal,
	.link = object_link,
	.move = object_move,
	.put_if = object_put_if,
	.get = object_get,
	.list_all = object_list_all,
};

/* Asks for the first key below the root. One request then shows whether the server, the
 * credentials, the region and the bucket are right. */
static int
find_any_key(struct object_store *s, bool *ret_any, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf query = {0};
	s->protocol->list_query(&query, s->config.prefix, false, 1, NULL);
	TRY(buf_check(&query, s->base.root, err));
	PAWL_CLEAN(object_page_free) struct object_page *page = object_page_new();
	PAWL_CLEAN(object_request_clear)
	struct object_request rq = {
		.what = s->base.root, .verb = "open", .method = "GET", .query = buf_str(&query), .text_max = 1 << 20};
	if (page == NULL)
		return err_nomem(err, s->base.root);
	TRY(object_send(s, &rq, 1, err));
	if (rq.call.status == 200) {
		TRY(object_take_page(s, &rq, page, err));
		*ret_any = page->n > 0;
		return *ret_any || !page->truncated ? 0 : object_has_any(s, "", "open", ret_any, err);
	}
	int again = s->protocol->look_again != NULL ? s->protocol->look_again(s, &rq, err) : 0;
	if (again != 0)
		return again < 0 ? again : find_any_key(s, ret_any, err);
	if (rq.call.status != 404)
		return object_fail(s, &rq, err);
	int rc = err_set(err, PAWL_ENOTFOUND,
	                 "%s: there is no %s \"%s\" at %s; create it, or check its name and the endpoint", s->base.root,
	                 s->protocol->kind, s->config.bucket, s->config.host);
	if (err != NULL)
		err->sys = ENXIO; /* not only is nothing below the prefix: places_kind_of */
	return rc;
}

#define MAX_STALL_SECONDS 3600

/* How long a transfer may stall: PAWL_STALL_SECONDS, or the default in http.h. */
static int
read_stall(unsigned *ret, struct pawl_error *err)
{
	const char *text = getenv("PAWL_STALL_SECONDS");
	if (text == NULL || text[0] == '\0')
		return 0;
	char *end = NULL;
	long n = strtol(text, &end, 10);
	if (*end != '\0' || n < 1 || n > MAX_STALL_SECONDS)
		return err_set(err, PAWL_EUSAGE, "PAWL_STALL_SECONDS: expected 1 to %d, found '%.40s'",
		               MAX_STALL_SECONDS, text);
	*ret = (unsigned)n;
	return 0;
}

static int
start_store(struct object_store *s, cred_find_fn *find, bool create, struct pawl_error *err)
{
	struct http_opts opts = {.ca_bundle = s->config.ca_bundle};
	bool any;
	TRY(read_stall(&opts.low_speed_seconds, err));
	TRY(http_new(&opts, &s->http, err));
	TRY(cred_new(find, &(struct cred_where){s->config.region, s->config.ca_bundle}, &s->cred, err));
	TRY(find_any_key(s, &any, err));
	if (create)
		return object_probe_exclusive(s, err);
	if (!any && s->config.prefix[0] != '\0')
		return err_set(err, PAWL_ENOTFOUND, "%s: there is nothing below it", s->base.root);
	return 0;
}

int
object_open_store(const struct object_protocol *protocol, struct object_config *config, cred_find_fn *find, bool create,
                  struct store **ret, struct pawl_error *err)
{
	struct object_store *s = mem_zalloc(1, sizeof *s);
	int rc =
		s ? store_init(&s->base, &object_ops, protocol->name, config->root, err) : err_nomem(err, config->root);
	if (rc < 0) {
		mem_free(s);
		bump_clear(&config->memory);
		return rc;
	}
	s->protocol = protocol;
	s->config = *config;
	atomic_init(&s->sum, config->sum);
	rc = start_store(s, find, create, err);
	if (rc < 0) {
		store_close(&s->base);
		return rc;
	}
	*ret = &s->base;
	return 0;
}
