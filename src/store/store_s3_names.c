/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_s3_names: listing, removing and copying. See store_s3.h.
 *
 * Listings come in pages of at most 1,000 keys; a page is read whole before anything is done with it, a continuation
 * token that comes twice ends the listing with an error, and a page that is cut off is an error, never a short list
 * (P8). Names that are no keys of ours (control characters, "..", empty parts) are passed over.
 */
#include "store/store_s3.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/text.h"
#include "store/s3_xml.h"
#include "store/sigv4.h"

#define MAX_PAGE_KEYS 1000u
#define MAX_PAGES 100000u

static int
no_memory(struct pawl_error *err, const char *what)
{
	return err_set(err, PAWL_ENOMEM, "%s: out of memory", what[0] != '\0' ? what : "s3");
}

/* ---------------------------------------------------------------------- pages */

struct found {
	char *key; /* whole, in the bucket */
	bool is_folder;
	uint64_t nbytes;
	int64_t mtime_ns;
	char *upload; /* of a list of uploads */
};

struct page {
	struct bump memory;
	struct found items[MAX_PAGE_KEYS + 1];
	size_t n;
	struct found next_item; /* its fields as they come */
	bool encoded, truncated, complete, failed;
	char *token, *key_marker, *upload_marker;
};

static struct page *
page_new(void)
{
	return mem_zalloc(1, sizeof(struct page));
}

static void
page_free(struct page **pp)
{
	if (*pp != NULL)
		bump_clear(&(*pp)->memory);
	mem_free(*pp);
}

static void
page_reset(struct page *p)
{
	bump_clear(&p->memory);
	memset(p, 0, sizeof *p);
}

/* In place; what is malformed stays as it is. */
static void
decode(char *text)
{
	char *to = text;
	for (const char *c = text; *c != '\0'; c++) {
		int hi = c[0] == '%' ? text_hex_digit(c[1]) : -1, lo = hi >= 0 ? text_hex_digit(c[2]) : -1;
		if (lo >= 0 && hi * 16 + lo != 0) {
			*to++ = (char)(hi * 16 + lo);
			c += 2;
		} else {
			*to++ = *c == '+' ? ' ' : *c;
		}
	}
	*to = '\0';
}

static int
add_item(struct page *p, const char *key, size_t len, bool is_folder)
{
	if (p->n > MAX_PAGE_KEYS)
		return PAWL_ELIMIT;
	struct found *f = &p->items[p->n];
	*f = p->next_item;
	f->is_folder = is_folder;
	if (key != NULL)
		f->key = bump_strndup(&p->memory, key, len);
	p->next_item = (struct found){0};
	if (f->key == NULL)
		return key != NULL ? PAWL_ENOMEM : 0;
	p->n++;
	return 0;
}

static int
keep(struct page *p, char **ret, const char *text, size_t len)
{
	*ret = bump_strndup(&p->memory, text, len);
	return *ret != NULL ? 0 : PAWL_ENOMEM;
}

static int
take_element(void *arg, const char *path, const char *text, size_t len)
{
	struct page *p = arg;
	const char *leaf = strchr(path, '/');
	if (leaf == NULL) {
		p->complete = true;
		return 0;
	}
	leaf++;
	if (strcmp(leaf, "IsTruncated") == 0)
		p->truncated = strcmp(text, "true") == 0;
	else if (strcmp(leaf, "EncodingType") == 0)
		p->encoded = strcmp(text, "url") == 0;
	else if (strcmp(leaf, "NextContinuationToken") == 0)
		return keep(p, &p->token, text, len);
	else if (strcmp(leaf, "NextKeyMarker") == 0)
		return keep(p, &p->key_marker, text, len);
	else if (strcmp(leaf, "NextUploadIdMarker") == 0)
		return keep(p, &p->upload_marker, text, len);
	else if (strcmp(leaf, "CommonPrefixes/Prefix") == 0)
		return add_item(p, text, len, true);
	else if (strcmp(leaf, "Contents/Key") == 0 || strcmp(leaf, "Upload/Key") == 0)
		return keep(p, &p->next_item.key, text, len);
	else if (strcmp(leaf, "Contents/Size") == 0)
		p->next_item.nbytes = strtoull(text, NULL, 10);
	else if (strcmp(leaf, "Contents/LastModified") == 0 || strcmp(leaf, "Upload/Initiated") == 0) {
		int64_t seconds = s3_parse_time(text);
		p->next_item.mtime_ns = seconds > 0 && seconds < INT64_MAX / 1000000000 ? seconds * 1000000000 : 0;
	} else if (strcmp(leaf, "Upload/UploadId") == 0)
		return keep(p, &p->next_item.upload, text, len);
	else if (strcmp(leaf, "Contents") == 0 || strcmp(leaf, "Upload") == 0)
		return add_item(p, NULL, 0, false);
	return 0;
}

static int
read_page(struct s3_store *s, const char *what, const char *verb, const char *query, struct page *p,
          struct pawl_error *err)
{
	PAWL_CLEAN(s3_request_clear)
	struct s3_request rq = {.what = what[0] != '\0' ? what : s->base.root,
	                        .verb = verb,
	                        .method = "GET",
	                        .query = query,
	                        .text_max = S3_XML_MAX_BYTES};
	TRY(s3_do(s, &rq, err));
	page_reset(p);
	int rc = s3_xml_read(rq.what, rq.call.text.ptr, rq.call.text.len, take_element, p, err);
	if (rc == PAWL_ENOMEM)
		return no_memory(err, what);
	if (rc == PAWL_ELIMIT)
		return err_set(err, PAWL_ELIMIT, "%s: cannot %s: a page of the list has more than %u keys", rq.what,
		               verb, MAX_PAGE_KEYS);
	/* A list that is cut off comes from a connection or a server that has failed. */
	if (rc < 0 || !p->complete)
		return err_set(err, PAWL_ETRANSIENT, "%s: cannot %s: the list is damaged", rq.what, verb);
	for (size_t i = 0; i < p->n && p->encoded; i++)
		decode(p->items[i].key);
	return 0;
}

/* What a list of the whole keys below `folder` begins with: the store's prefix and the folder. */
static char *
whole_prefix(const struct s3_store *s, const char *folder)
{
	return mem_printf("%s%s%s", s->config.prefix, folder, folder[0] != '\0' ? "/" : "");
}

struct listing {
	struct s3_store *s;
	const char *folder, *verb;
	bool children;     /* direct ones only */
	unsigned max_keys; /* of a page; 0 = as many as there may be */
	char *prefix;
	char *token; /* of the next page, or NULL */
	unsigned n_pages;
	struct page *page;
};

static int
next_page(struct listing *l, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf query = {0};
	if (l->token != NULL) {
		buf_puts(&query, "continuation-token=");
		sigv4_encode(&query, l->token, false);
		buf_putc(&query, '&');
	}
	buf_printf(&query, "%sencoding-type=url&list-type=2", l->children ? "delimiter=%2F&" : "");
	if (l->max_keys > 0)
		buf_printf(&query, "&max-keys=%u", l->max_keys);
	buf_puts(&query, "&prefix=");
	sigv4_encode(&query, l->prefix, false);
	TRY(buf_check(&query, l->folder, err));
	TRY(read_page(l->s, l->folder, l->verb, buf_str(&query), l->page, err));
	PAWL_FREE char *before = steal(&l->token);
	if (!l->page->truncated)
		return 0;
	if (l->page->token == NULL || (before != NULL && strcmp(before, l->page->token) == 0) ||
	    ++l->n_pages == MAX_PAGES)
		return err_set(err, PAWL_EIO, "%s: cannot %s: the list does not end",
		               l->folder[0] != '\0' ? l->folder : l->s->base.root, l->verb);
	l->token = mem_strdup(l->page->token);
	return l->token != NULL ? 0 : no_memory(err, l->folder);
}

static int
listing_begin(struct listing *l, struct pawl_error *err)
{
	l->prefix = whole_prefix(l->s, l->folder);
	l->page = page_new();
	return l->prefix == NULL || l->page == NULL ? no_memory(err, l->folder) : next_page(l, err);
}

static void
listing_clear(struct listing *l)
{
	page_free(&l->page);
	mem_free(l->prefix);
	mem_free(l->token);
}

int
s3_has_any(struct s3_store *s, const char *folder, const char *verb, bool *ret, struct pawl_error *err)
{
	PAWL_CLEAN(listing_clear) struct listing l = {.s = s, .folder = folder, .verb = verb, .max_keys = 1};
	TRY(listing_begin(&l, err));
	*ret = l.page->n > 0;
	return 0;
}

/* Passes a page's names on; *ret_n counts them. */
static int
give_names(const struct listing *l, store_list_fn *fn, void *arg, size_t *ret_n)
{
	size_t skip = strlen(l->prefix);
	for (size_t i = 0; i < l->page->n; i++) {
		const struct found *f = &l->page->items[i];
		if (strncmp(f->key, l->prefix, skip) != 0)
			continue;
		char *name = f->key + skip;
		size_t len = strlen(name);
		if (f->is_folder && len > 0 && name[len - 1] == '/')
			name[--len] = '\0';
		/* A key that is the folder itself ("a/"), as some tools make it, is no child. */
		*ret_n += 1;
		if (len == 0 || strchr(name, '/') != NULL || !text_is_key(name))
			continue;
		struct store_entry entry = {.name = name,
		                            .is_folder = f->is_folder,
		                            .nbytes = f->nbytes,
		                            .mtime_ns = f->mtime_ns,
		                            .n_links = 1};
		TRY(fn(arg, &entry));
	}
	return 0;
}

int
s3_list(struct store *base, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	PAWL_CLEAN(listing_clear)
	struct listing l = {.s = (struct s3_store *)base, .folder = folder, .verb = "list", .children = true};
	size_t n = 0;
	TRY(listing_begin(&l, err));
	for (;;) {
		TRY(give_names(&l, fn, arg, &n));
		if (l.token == NULL)
			break;
		TRY(next_page(&l, err));
	}
	return n > 0 || folder[0] == '\0' ? 0 : err_set(err, PAWL_ENOTFOUND, "%s: there is no such folder", folder);
}

/* ------------------------------------------------------------------- removing */

int
s3_remove(struct store *base, const char *key, struct pawl_error *err)
{
	PAWL_CLEAN(s3_request_clear)
	struct s3_request rq = {.what = key, .verb = "remove", .method = "DELETE", .key = key};
	int rc = s3_do((struct s3_store *)base, &rq, err);
	return rc == PAWL_ENOTFOUND ? 0 : rc;
}

/* The part of a whole key that the callers know. */
static const char *
below_prefix(const struct s3_store *s, const char *key)
{
	return key + strlen(s->config.prefix);
}

/* All of a page by one request. PAWL_EUNSUPPORTED: the server has no such request. */
static int
remove_batch(struct s3_store *s, const char *folder, const struct page *p, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf body = {0}, md5 = {0};
	buf_puts(&body, "<Delete><Quiet>true</Quiet>");
	for (size_t i = 0; i < p->n; i++) {
		buf_puts(&body, "<Object><Key>");
		s3_xml_escape(&body, p->items[i].key);
		buf_puts(&body, "</Key></Object>");
	}
	buf_puts(&body, "</Delete>");
	TRY(buf_check(&body, folder, err));
	struct pawl_slice whole = {body.ptr, body.len};
	PAWL_CLEAN(s3_request_clear)
	struct s3_request rq = {.what = folder,
	                        .verb = "remove",
	                        .method = "POST",
	                        .query = "delete=",
	                        .body = &whole,
	                        .n_body = 1,
	                        .text_max = S3_XML_MAX_BYTES,
	                        .slow_answer = true,
	                        .sum_body = true};
	TRY(sigv4_md5_base64(&whole, 1, &md5, err));
	s3_add_header(&rq, "Content-MD5", buf_str(&md5));
	TRY(s3_do(s, &rq, err));
	PAWL_CLEAN(buf_clear) struct buf code = {0};
	if (rq.call.text.len == 0 ||
	    s3_xml_get(folder, rq.call.text.ptr, rq.call.text.len, "DeleteResult/Error/Code", &code, NULL) < 0)
		return 0;
	bool denied = strcmp(buf_str(&code), "AccessDenied") == 0;
	return err_set(err, denied ? PAWL_EAUTH : PAWL_ETRANSIENT, "%s: cannot remove all of it: %.64s", folder,
	               denied ? "AccessDenied" : "the server has failed");
}

static int
remove_page(struct s3_store *s, const char *folder, const struct page *p, bool *batches, struct pawl_error *err)
{
	if (*batches && p->n > 1) {
		int rc = remove_batch(s, folder, p, err);
		if (rc != PAWL_EUNSUPPORTED)
			return rc;
		*batches = false;
	}
	for (size_t i = 0; i < p->n; i++)
		TRY(s3_remove(&s->base, below_prefix(s, p->items[i].key), err));
	return 0;
}

int
s3_remove_folder(struct store *base, const char *folder, struct pawl_error *err)
{
	struct s3_store *s = (struct s3_store *)base;
	PAWL_CLEAN(listing_clear) struct listing l = {.s = s, .folder = folder, .verb = "remove"};
	bool batches = true;
	TRY(listing_begin(&l, err));
	for (;;) {
		/* Whatever a server lists, nothing outside the folder is removed. */
		for (size_t i = 0; i < l.page->n; i++)
			if (strncmp(l.page->items[i].key, l.prefix, strlen(l.prefix)) != 0)
				return err_set(err, PAWL_EIO, "%s: cannot remove: the list has keys of other folders",
				               folder);
		if (l.page->n > 0)
			TRY(remove_page(s, folder, l.page, &batches, err));
		if (l.token == NULL)
			return 0;
		TRY(next_page(&l, err));
	}
}

/* -------------------------------------------------------------------- copying */

static int
copy_source(const struct s3_store *s, const char *key, struct buf *out, struct pawl_error *err)
{
	buf_printf(out, "/%s/", s->config.bucket);
	sigv4_encode(out, s->config.prefix, true);
	sigv4_encode(out, key, true);
	return buf_check(out, key, err);
}

static int
copy_whole(struct s3_store *s, const char *from, const char *to, const struct s3_head *head, const char *source,
           struct pawl_error *err)
{
	static const struct pawl_slice nothing = {"", 0};
	PAWL_CLEAN(s3_request_clear)
	struct s3_request rq = {.what = from,
	                        .verb = "copy",
	                        .method = "PUT",
	                        .key = to,
	                        .body = &nothing,
	                        .n_body = 1,
	                        .slow_answer = true};
	s3_add_header(&rq, "x-amz-copy-source", source);
	if (head->etag[0] != '\0')
		s3_add_header(&rq, "x-amz-copy-source-if-match", head->etag);
	TRY(s3_send(s, &rq, 1, err));
	if (rq.call.status == 412)
		return err_set(err, PAWL_ECONFLICT, "%s: has been replaced while it was copied", from);
	char code[65];
	s3_error_code(&rq, code);
	return rq.call.status < 200 || rq.call.status > 299 || code[0] != '\0' ? s3_fail(s, &rq, err) : 0;
}

struct copy {
	struct s3_store *s;
	const char *from, *to, *upload, *source;
	const struct s3_head *head;
};

static int
copy_part(const struct copy *c, size_t i, uint64_t begin, uint64_t end, struct s3_part_sum *sum, struct pawl_error *err)
{
	static const struct pawl_slice nothing = {"", 0};
	char range[64];
	PAWL_CLEAN(buf_clear) struct buf query = {0}, etag = {0};
	buf_printf(&query, "partNumber=%zu&uploadId=", i + 1);
	sigv4_encode(&query, c->upload, false);
	TRY(buf_check(&query, c->to, err));
	snprintf(range, sizeof range, "bytes=%" PRIu64 "-%" PRIu64, begin, end - 1);
	PAWL_CLEAN(s3_request_clear)
	struct s3_request rq = {.what = c->from,
	                        .verb = "copy",
	                        .method = "PUT",
	                        .key = c->to,
	                        .query = buf_str(&query),
	                        .body = &nothing,
	                        .n_body = 1,
	                        .slow_answer = true};
	s3_add_header(&rq, "x-amz-copy-source", c->source);
	s3_add_header(&rq, "x-amz-copy-source-range", range);
	if (c->head->etag[0] != '\0')
		s3_add_header(&rq, "x-amz-copy-source-if-match", c->head->etag);
	TRY(s3_do(c->s, &rq, err));
	TRY(s3_xml_get(c->from, rq.call.text.ptr, rq.call.text.len, "CopyPartResult/ETag", &etag, err));
	return text_copy(sum->etag, sizeof sum->etag, buf_str(&etag))
	               ? 0
	               : err_set(err, PAWL_EIO, "%s: cannot copy: the ETag is too long", c->from);
}

/* Above what one request copies. */
static int
copy_in_parts(struct s3_store *s, const char *from, const char *to, const struct s3_head *head, const char *source,
              struct pawl_error *err)
{
	uint64_t part = s->max_copy_bytes / 4 > S3_MIN_PART_BYTES ? s->max_copy_bytes / 4 : S3_MIN_PART_BYTES;
	while (head->nbytes / part >= S3_MAX_PARTS)
		part *= 2;
	size_t n = (size_t)((head->nbytes + part - 1) / part);
	PAWL_FREE struct s3_part_sum *sums = mem_zalloc(n, sizeof *sums);
	PAWL_FREE char *upload = NULL;
	if (sums == NULL)
		return no_memory(err, to);
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
		s3_upload_drop(s, to, upload);
	return rc;
}

static int
copy(struct s3_store *s, const char *from, const char *to, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf source = {0};
	struct s3_head head;
	TRY(s3_head_object(s, from, "copy", &head, err));
	TRY(copy_source(s, from, &source, err));
	return head.nbytes > s->max_copy_bytes ? copy_in_parts(s, from, to, &head, buf_str(&source), err)
	                                       : copy_whole(s, from, to, &head, buf_str(&source), err);
}

/* Not exclusive against other writers: nobody else writes where a run's own checkpoint is made. */
int
s3_link(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	struct s3_store *s = (struct s3_store *)base;
	struct s3_head head;
	struct pawl_error why = {0};
	int rc = s3_head_object(s, to, "link", &head, &why);
	if (rc == 0) {
		TRY(s3_head_object(s, from, "link", &head, err));
		return err_set(err, PAWL_EEXISTS, "%s: exists already", to);
	}
	if (rc != PAWL_ENOTFOUND) {
		if (err != NULL)
			*err = why;
		return rc;
	}
	return copy(s, from, to, err);
}

int
s3_move(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	TRY(copy((struct s3_store *)base, from, to, err));
	return s3_remove(base, from, err);
}

/* ------------------------------------------------------------------- sweeping */

static int
uploads_page(struct s3_store *s, const char *key_marker, const char *upload_marker, struct page *p,
             struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf query = {0};
	buf_puts(&query, "encoding-type=url");
	if (key_marker != NULL) {
		buf_puts(&query, "&key-marker=");
		sigv4_encode(&query, key_marker, false);
	}
	buf_puts(&query, "&prefix=");
	sigv4_encode(&query, s->config.prefix, false);
	if (key_marker != NULL && upload_marker != NULL) {
		buf_puts(&query, "&upload-id-marker=");
		sigv4_encode(&query, upload_marker, false);
	}
	buf_puts(&query, "&uploads=");
	TRY(buf_check(&query, s->base.root, err));
	TRY(read_page(s, "", "list uploads", buf_str(&query), p, err));
	if (p->encoded && p->key_marker != NULL)
		decode(p->key_marker);
	return 0;
}

int
s3_sweep(struct store *base, int64_t before_ns, uint64_t *ret_n, struct pawl_error *err)
{
	struct s3_store *s = (struct s3_store *)base;
	PAWL_CLEAN(page_free) struct page *p = page_new();
	PAWL_FREE char *key_marker = NULL;
	PAWL_FREE char *upload_marker = NULL;
	size_t skip = strlen(s->config.prefix);
	*ret_n = 0;
	if (p == NULL)
		return no_memory(err, base->root);
	for (unsigned pages = 0; pages < MAX_PAGES; pages++) {
		TRY(uploads_page(s, key_marker, upload_marker, p, err));
		for (size_t i = 0; i < p->n; i++) {
			const struct found *f = &p->items[i];
			if (f->upload == NULL || f->mtime_ns == 0 || f->mtime_ns >= before_ns ||
			    strncmp(f->key, s->config.prefix, skip) != 0)
				continue;
			s3_upload_drop(s, below_prefix(s, f->key), f->upload);
			++*ret_n;
		}
		if (!p->truncated)
			return 0;
		if (p->key_marker == NULL ||
		    (key_marker != NULL && strcmp(key_marker, p->key_marker) == 0 && upload_marker != NULL &&
		     p->upload_marker != NULL && strcmp(upload_marker, p->upload_marker) == 0))
			break;
		mem_free(key_marker);
		mem_free(upload_marker);
		key_marker = mem_strdup(p->key_marker);
		upload_marker = p->upload_marker != NULL ? mem_strdup(p->upload_marker) : NULL;
		if (key_marker == NULL)
			return no_memory(err, base->root);
	}
	return err_set(err, PAWL_EIO, "%s: the list of uploads does not end", base->root);
}
