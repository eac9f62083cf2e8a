/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_s3: the engine for object stores that speak S3: s3://bucket/prefix. See docs/stores/s3.md.
 *
 * Called through the table by store.c and the retry layer, which decides alone what is tried again: every operation
 * here is one attempt, and may be repeated. Objects appear whole, by one PUT or by completing an upload in parts (P2).
 * Nothing is taken from what a server claims to be: whether it honours If-None-Match is tried (P20).
 */
#include "store/store_s3.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/text.h"
#include "store/sigv4.h"

#define MAX_APPEND_BYTES ((size_t)8 << 20)

static int
no_memory(struct pawl_error *err, const char *what)
{
	return err_set(err, PAWL_ENOMEM, "%s: out of memory", what);
}

/* ------------------------------------------------------------ small objects */

int
s3_put_object(struct s3_store *s, const char *key, const struct pawl_slice *parts, size_t n_parts, const char *token,
              bool exclusive, struct pawl_error *err)
{
	static const struct pawl_slice nothing = {"", 0};
	PAWL_CLEAN(s3_request_clear)
	struct s3_request rq = {.what = key,
	                        .verb = "put",
	                        .method = "PUT",
	                        .key = key,
	                        .body = n_parts > 0 ? parts : &nothing,
	                        .n_body = n_parts > 0 ? n_parts : 1,
	                        .sum_body = true};
	if (exclusive)
		s3_add_header(&rq, "If-None-Match", "*");
	if (token != NULL)
		s3_add_header(&rq, "x-amz-meta-pawl-token", token);
	/* An empty one that is sent twice would find itself there already. */
	rq.fresh = exclusive;
	for (size_t i = 0; i < n_parts; i++)
		rq.fresh = rq.fresh && parts[i].len == 0;
	TRY(s3_send(s, &rq, 1, err));
	if (rq.call.status == 412)
		return err_set(err, PAWL_EEXISTS, "%s: exists already", key);
	return rq.call.status >= 200 && rq.call.status <= 299 ? 0 : s3_fail(s, &rq, err);
}

static int
object_put(struct store *base, const char *key, const struct pawl_slice *parts, size_t n_parts, int flags,
           struct pawl_error *err)
{
	struct s3_store *s = (struct s3_store *)base;
	if ((flags & STORE_EXCLUSIVE) == 0)
		return s3_put_object(s, key, parts, n_parts, NULL, false, err);
	TRY(s3_probe_exclusive(s, err));
	if (atomic_load(&s->exclusive) != S3_YES)
		return err_set(err, PAWL_EUNSUPPORTED,
		               "%s: cannot be put exclusively: %s does not honour If-None-Match", key, s->config.host);
	return s3_put_object(s, key, parts, n_parts, NULL, true, err);
}

/* Puts one object twice, exclusively; the second must be refused. */
int
s3_probe_exclusive(struct s3_store *s, struct pawl_error *err)
{
	char token[33], key[64];
	struct pawl_slice text = {"probe\n", 6};
	if (atomic_load(&s->exclusive) != S3_UNKNOWN)
		return 0;
	TRY(clock_token(token, err));
	snprintf(key, sizeof key, ".probe.%s.tmp", token);
	int rc = s3_put_object(s, key, &text, 1, NULL, true, err);
	bool refused = rc == PAWL_EUNSUPPORTED; /* the header itself */
	if (rc < 0 && !refused)
		return rc;
	int second = refused ? 0 : s3_put_object(s, key, &text, 1, NULL, true, err);
	if (!refused)
		s3_remove(&s->base, key, NULL);
	if (second < 0 && second != PAWL_EEXISTS)
		return second;
	atomic_store(&s->exclusive, second == PAWL_EEXISTS ? S3_YES : S3_NO);
	return 0;
}

static void
copy_header(const struct s3_request *rq, const char *name, char *dst, size_t cap)
{
	const char *value = http_header_of(&rq->call, name);
	if (value == NULL || !text_copy(dst, cap, value))
		dst[0] = '\0';
}

int
s3_head_object(struct s3_store *s, const char *key, const char *verb, struct s3_head *ret, struct pawl_error *err)
{
	PAWL_CLEAN(s3_request_clear) struct s3_request rq = {.what = key, .verb = verb, .method = "HEAD", .key = key};
	TRY(s3_do(s, &rq, err));
	*ret = (struct s3_head){0};
	if (!s3_content_length(&rq, &ret->nbytes))
		return err_set(err, PAWL_ETRANSIENT, "%s: cannot %s: the answer names no size", key, verb);
	copy_header(&rq, "etag", ret->etag, sizeof ret->etag);
	copy_header(&rq, "x-amz-meta-pawl-token", ret->token, sizeof ret->token);
	int64_t modified = s3_http_time(http_header_of(&rq.call, "last-modified"));
	ret->mtime_ns = modified > 0 ? modified * 1000000000 : 0;
	return 0;
}

static int
object_stat(struct store *base, const char *key, struct store_entry *ret, struct pawl_error *err)
{
	struct s3_store *s = (struct s3_store *)base;
	struct s3_head head;
	struct pawl_error why = {0};
	bool is_folder;
	int rc = s3_head_object(s, key, "stat", &head, &why);
	if (rc == 0) {
		*ret = (struct store_entry){.nbytes = head.nbytes, .mtime_ns = head.mtime_ns, .n_links = 1};
		return 0;
	}
	if (rc != PAWL_ENOTFOUND) {
		if (err != NULL)
			*err = why;
		return rc;
	}
	TRY(s3_has_any(s, key, "stat", &is_folder, err));
	if (!is_folder)
		return err_set(err, PAWL_ENOTFOUND, "%s: there is no such object", key);
	*ret = (struct store_entry){.is_folder = true, .n_links = 1};
	return 0;
}

static int
object_pointer(struct store *base, const char *key, const char *target, struct pawl_error *err)
{
	struct pawl_slice line[] = {{target, strlen(target)}, {"\n", 1}};
	return object_put(base, key, line, 2, 0, err);
}

/* Object stores cannot append: the object is read and put back longer. One process at a time does so (the run's lease);
 * within it the lock keeps lines whole. */
static int
object_append(struct store *base, const char *key, const void *ptr, size_t len, struct pawl_error *err)
{
	struct s3_store *s = (struct s3_store *)base;
	PAWL_CLEAN(buf_clear) struct buf old = {0};
	pthread_mutex_lock(&s->append_lock);
	int rc = s3_get(base, key, MAX_APPEND_BYTES, &old, err);
	if (rc == PAWL_ENOTFOUND)
		rc = 0;
	if (rc == 0 && len > MAX_APPEND_BYTES - old.len)
		rc = err_set(err, PAWL_ELIMIT, "%s: cannot append: it would be larger than %zu bytes", key,
		             MAX_APPEND_BYTES);
	struct pawl_slice both[] = {{old.ptr, old.len}, {ptr, len}};
	if (rc == 0)
		rc = s3_put_object(s, key, old.len > 0 ? both : both + 1, old.len > 0 ? 2 : 1, NULL, false, err);
	pthread_mutex_unlock(&s->append_lock);
	return rc;
}

/* ------------------------------------------------------------- what there is not */

static int
object_view(struct store *base, struct store_reader *r, uint64_t offset, size_t n, struct store_view *ret)
{
	(void)base, (void)r, (void)offset, (void)n, (void)ret;
	return 0;
}

static void
object_drop_view(struct store *base, struct store_view *view)
{
	(void)base, (void)view;
}

static int
object_publish(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	(void)base, (void)from;
	return err_set(err, PAWL_EUNSUPPORTED, "%s: folders cannot be renamed in an object store", to);
}

static int
object_sync(struct store *base, const char *folder, struct pawl_error *err)
{
	(void)base, (void)folder, (void)err;
	return 0;
}

static int
object_space(struct store *base, uint64_t *ret_free_bytes, struct pawl_error *err)
{
	(void)base, (void)err;
	*ret_free_bytes = UINT64_MAX;
	return 0;
}

/* ---------------------------------------------------------------- the store */

static void
object_caps(struct store *base, struct store_caps *ret)
{
	struct s3_store *s = (struct s3_store *)base;
	*ret = (struct store_caps){.exclusive_put = atomic_load(&s->exclusive) == S3_YES,
	                           .link = true,
	                           .flat = true,
	                           .offset_align = 1,
	                           .memory_align = 1,
	                           .unit_bytes = S3_PART_BYTES,
	                           .max_object_bytes = S3_MAX_OBJECT_BYTES};
}

static void
object_close(struct store *base)
{
	struct s3_store *s = (struct s3_store *)base;
	http_free(s->http);
	s3_cred_free(s->cred);
	bump_clear(&s->config.memory);
	pthread_mutex_destroy(&s->append_lock);
	mem_free(s->base.root);
	mem_free(s);
}

static const struct store_ops s3_ops = {
	.name = "s3",
	.close = object_close,
	.caps = object_caps,
	.put = object_put,
	.create = s3_create,
	.write = s3_write,
	.seal = s3_seal,
	.finish = s3_finish,
	.abort = s3_abort,
	.open = s3_open,
	.read = s3_read,
	.view = object_view,
	.drop_view = object_drop_view,
	.close_reader = s3_close_reader,
	.get = s3_get,
	.stat = object_stat,
	.list = s3_list,
	.remove = s3_remove,
	.remove_folder = s3_remove_folder,
	.link = s3_link,
	.move = s3_move,
	.publish = object_publish,
	.pointer = object_pointer,
	.sync = object_sync,
	.space = object_space,
	.append = object_append,
	.sweep = s3_sweep,
};

/* Asks for the first key below the root, which shows in one request whether the server, the credentials, the region and
 * the bucket are right. */
static int
look(struct s3_store *s, bool *ret_any, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf query = {0};
	buf_puts(&query, "list-type=2&max-keys=1&prefix=");
	sigv4_encode(&query, s->config.prefix, false);
	PAWL_CLEAN(s3_request_clear)
	struct s3_request rq = {.what = s->base.root, .verb = "open", .method = "GET", .query = buf_str(&query)};
	TRY(buf_check(&query, s->base.root, err));
	TRY(s3_send(s, &rq, 1, err));
	if (rq.call.status == 200) {
		*ret_any = rq.call.text.len > 0 && memmem(rq.call.text.ptr, rq.call.text.len, "<Contents>", 10) != NULL;
		return 0;
	}
	char code[65];
	s3_error_code(&rq, code);
	const char *region = http_header_of(&rq.call, "x-amz-bucket-region");
	/* Nobody has named a region: the one that the server names is the one that was meant. */
	if (!s->config.region_given && region != NULL && strcmp(region, s->config.region) != 0) {
		s->config.region_given = true;
		TRY(s3_config_set_region(&s->config, region, err));
		return look(s, ret_any, err);
	}
	if (rq.call.status == 404)
		return err_set(err, PAWL_ENOTFOUND, "%s: there is no bucket \"%s\" at %s", s->base.root,
		               s->config.bucket, s->config.host);
	return s3_fail(s, &rq, err);
}

static int
start(struct s3_store *s, bool create, struct pawl_error *err)
{
	struct http_opts opts = {.ca_bundle = s->config.ca_bundle};
	bool any;
	TRY(http_new(&opts, &s->http, err));
	TRY(s3_cred_new(s->config.region, s->config.ca_bundle, &s->cred, err));
	TRY(look(s, &any, err));
	if (create)
		return s3_probe_exclusive(s, err);
	if (!any && s->config.prefix[0] != '\0')
		return err_set(err, PAWL_ENOTFOUND, "%s: there is nothing below it", s->base.root);
	return 0;
}

int
store_s3_open(const char *url, bool create, struct store **ret, struct pawl_error *err)
{
	struct s3_store *s = mem_zalloc(1, sizeof *s);
	if (s == NULL)
		return no_memory(err, url);
	pthread_mutex_init(&s->append_lock, NULL);
	s->base.ops = &s3_ops;
	s->max_copy_bytes = S3_MAX_COPY_BYTES;
	int rc = s3_config_read(url, &s->config, err);
	if (rc == 0) {
		s->base.root = mem_strdup(s->config.root);
		rc = s->base.root == NULL ? no_memory(err, url) : start(s, create, err);
	}
	if (rc < 0) {
		object_close(&s->base);
		return rc;
	}
	*ret = &s->base;
	return 0;
}
