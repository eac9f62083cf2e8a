/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object_names: listing, removing and copying. See object.h.
 *
 * Listings come in pages of at most 1,000 keys. A page is read completely before it is used. A
 * continuation token that comes twice ends the listing with an error. A page that is cut off is an
 * error, never a short list (P8). Names that are not valid keys (control characters, "..", empty
 * parts) are skipped.
 */
#include "store/object/object.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/text.h"
#include "store/object/xml.h"

#define MAX_PAGES 100000u

static int
no_memory(struct pawl_error *err, const char *what)
{
	return err_set(err, PAWL_ENOMEM, "%s: out of memory", what[0] != '\0' ? what : "object store");
}

/* ---------------------------------------------------------------------- pages */

struct object_page *
object_page_new(void)
{
	return mem_zalloc(1, sizeof(struct object_page));
}

void
object_page_free(struct object_page **pp)
{
	if (*pp != NULL)
		bump_clear(&(*pp)->memory);
	mem_free(*pp);
}

static void
page_reset(struct object_page *p)
{
	bump_clear(&p->memory);
	memset(p, 0, sizeof *p);
}

/* Decodes in place. Malformed parts stay as they are. */
void
object_decode(char *text)
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

int
object_page_add(struct object_page *p, const char *key, size_t len, bool is_folder)
{
	if (p->n > OBJECT_PAGE_KEYS)
		return PAWL_ELIMIT;
	struct object_found *f = &p->items[p->n];
	*f = p->next_item;
	f->is_folder = is_folder;
	if (key != NULL)
		f->key = bump_strndup(&p->memory, key, len);
	p->next_item = (struct object_found){0};
	if (f->key == NULL)
		return key != NULL ? PAWL_ENOMEM : 0;
	p->n++;
	return 0;
}

int
object_page_keep(struct object_page *p, char **ret, const char *text, size_t len)
{
	*ret = bump_strndup(&p->memory, text, len);
	return *ret != NULL ? 0 : PAWL_ENOMEM;
}

int
object_read_page(struct object_store *s, const char *what, const char *verb, const char *query, struct object_page *p,
                 struct pawl_error *err)
{
	PAWL_CLEAN(object_request_clear)
	struct object_request rq = {.what = what[0] != '\0' ? what : s->base.root,
	                            .verb = verb,
	                            .method = "GET",
	                            .query = query,
	                            .text_max = XML_MAX_BYTES};
	TRY(object_do(s, &rq, err));
	return object_take_page(s, &rq, p, err);
}

int
object_take_page(struct object_store *s, const struct object_request *rq, struct object_page *p, struct pawl_error *err)
{
	page_reset(p);
	int rc = xml_read(rq->what, rq->call.text.ptr, rq->call.text.len, s->protocol->take_element, p, err);
	if (rc == PAWL_ENOMEM)
		return no_memory(err, rq->what);
	if (rc == PAWL_ELIMIT)
		return err_set(err, PAWL_ELIMIT, "%s: cannot %s: a page of the list has more than %u keys", rq->what,
		               rq->verb, OBJECT_PAGE_KEYS);
	/* A list is cut off if the connection or the server has failed. */
	if (rc < 0 || !p->complete)
		return err_set(err, PAWL_ETRANSIENT, "%s: cannot %s: the list is damaged", rq->what, rq->verb);
	for (size_t i = 0; i < p->n && p->encoded; i++)
		object_decode(p->items[i].key);
	return 0;
}

/* The prefix of a list of the complete keys below `folder`: the store's prefix and the folder. */
static char *
object_whole_prefix(const struct object_store *s, const char *folder)
{
	return mem_printf("%s%s%s", s->config.prefix, folder, folder[0] != '\0' ? "/" : "");
}

struct listing {
	struct object_store *s;
	const char *folder, *verb;
	bool children;     /* direct ones only */
	unsigned max_keys; /* of a page; 0 = the most that a page can hold */
	char *prefix;
	char *token; /* of the next page, or NULL */
	unsigned n_pages;
	struct object_page *page;
};

static int
next_page(struct listing *l, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf query = {0};
	l->s->protocol->list_query(&query, l->prefix, l->children, l->max_keys, l->token);
	TRY(buf_check(&query, l->folder, err));
	TRY(object_read_page(l->s, l->folder, l->verb, buf_str(&query), l->page, err));
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
	l->prefix = object_whole_prefix(l->s, l->folder);
	l->page = object_page_new();
	return l->prefix == NULL || l->page == NULL ? no_memory(err, l->folder) : next_page(l, err);
}

static void
listing_clear(struct listing *l)
{
	object_page_free(&l->page);
	mem_free(l->prefix);
	mem_free(l->token);
}

int
object_has_any(struct object_store *s, const char *folder, const char *verb, bool *ret, struct pawl_error *err)
{
	PAWL_CLEAN(listing_clear) struct listing l = {.s = s, .folder = folder, .verb = verb, .max_keys = 1};
	TRY(listing_begin(&l, err));
	/* A page may be empty although another follows. */
	while (l.page->n == 0 && l.token != NULL)
		TRY(next_page(&l, err));
	*ret = l.page->n > 0;
	return 0;
}

/* Passes the names of a page to fn; *ret_n counts them. */
static int
give_names(const struct listing *l, store_list_fn *fn, void *arg, size_t *ret_n)
{
	size_t skip = strlen(l->prefix);
	for (size_t i = 0; i < l->page->n; i++) {
		const struct object_found *f = &l->page->items[i];
		if (strncmp(f->key, l->prefix, skip) != 0)
			continue;
		char *name = f->key + skip;
		size_t len = strlen(name);
		if (f->is_folder && len > 0 && name[len - 1] == '/')
			name[--len] = '\0';
		/* Some tools make a key for the folder itself ("a/"), which is not a child. */
		*ret_n += 1;
		if (len == 0 || (l->children && strchr(name, '/') != NULL) || !text_is_key(name))
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

static int
list_names(struct object_store *s, const char *folder, bool children, store_list_fn *fn, void *arg, size_t *ret_n,
           struct pawl_error *err)
{
	PAWL_CLEAN(listing_clear)
	struct listing l = {.s = s, .folder = folder, .verb = "list", .children = children};
	*ret_n = 0;
	TRY(listing_begin(&l, err));
	for (;;) {
		TRY(give_names(&l, fn, arg, ret_n));
		if (l.token == NULL)
			return 0;
		TRY(next_page(&l, err));
	}
}

int
object_list_all(struct store *base, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	size_t n;
	return list_names((struct object_store *)base, folder, false, fn, arg, &n, err);
}

int
object_list(struct store *base, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	size_t n;
	TRY(list_names((struct object_store *)base, folder, true, fn, arg, &n, err));
	return n > 0 || folder[0] == '\0' ? 0 : err_set(err, PAWL_ENOTFOUND, "%s: there is no such folder", folder);
}

/* ------------------------------------------------------------------- removing */

int
object_remove(struct store *base, const char *key, struct pawl_error *err)
{
	PAWL_CLEAN(object_request_clear)
	struct object_request rq = {.what = key, .verb = "remove", .method = "DELETE", .key = key};
	int rc = object_do((struct object_store *)base, &rq, err);
	return rc == PAWL_ENOTFOUND ? 0 : rc;
}

const char *
object_below_prefix(const struct object_store *s, const char *key)
{
	return key + strlen(s->config.prefix);
}

/* Removes keys one by one, a few at a time. */
static int
remove_some(struct object_store *s, const struct object_page *p, size_t begin, size_t n, struct pawl_error *err)
{
	struct object_request rqs[HTTP_MAX_PARALLEL];
	for (size_t i = 0; i < n; i++) {
		const char *key = object_below_prefix(s, p->items[begin + i].key);
		rqs[i] = (struct object_request){.what = key, .verb = "remove", .method = "DELETE", .key = key};
	}
	int rc = object_send(s, rqs, n, err);
	for (size_t i = 0; i < n; i++) {
		bool gone = object_is_success(&rqs[i]) || rqs[i].call.status == 404;
		if (rc == 0 && !gone)
			rc = object_fail(s, &rqs[i], err);
		object_request_clear(&rqs[i]);
	}
	return rc;
}

static int
remove_page(struct object_store *s, const char *folder, const struct object_page *p, bool *batches,
            struct pawl_error *err)
{
	if (*batches && p->n > 1) {
		int rc = s->protocol->remove_batch(s, folder, p, err);
		if (rc != PAWL_EUNSUPPORTED)
			return rc;
		*batches = false;
	}
	for (size_t i = 0; i < p->n; i += HTTP_MAX_PARALLEL)
		TRY(remove_some(s, p, i, p->n - i < HTTP_MAX_PARALLEL ? p->n - i : HTTP_MAX_PARALLEL, err));
	return 0;
}

int
object_remove_folder(struct store *base, const char *folder, struct pawl_error *err)
{
	struct object_store *s = (struct object_store *)base;
	PAWL_CLEAN(listing_clear) struct listing l = {.s = s, .folder = folder, .verb = "remove"};
	bool batches = s->protocol->remove_batch != NULL;
	TRY(listing_begin(&l, err));
	for (;;) {
		/* Whatever a server lists, remove nothing outside the folder. */
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
copy_object(struct object_store *s, const char *from, const char *to, struct pawl_error *err)
{
	struct object_head head;
	TRY(object_get_head(s, from, "copy", &head, err));
	return s->protocol->copy(s, from, to, &head, err);
}

/* Not exclusive against other writers, but no other process writes to a run's own checkpoint. */
int
object_link(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	struct object_store *s = (struct object_store *)base;
	struct object_head head;
	struct pawl_error why = {0};
	int rc = object_get_head(s, to, "link", &head, &why);
	if (rc == 0) {
		TRY(object_get_head(s, from, "link", &head, err));
		return err_set(err, PAWL_EEXISTS, "%s: already exists", to);
	}
	if (rc != PAWL_ENOTFOUND) {
		if (err != NULL)
			*err = why;
		return rc;
	}
	return copy_object(s, from, to, err);
}

int
object_sweep(struct store *base, int64_t before_ns, uint64_t *ret_n, struct pawl_error *err)
{
	const struct object_protocol *protocol = ((struct object_store *)base)->protocol;
	*ret_n = 0;
	return protocol->sweep != NULL ? protocol->sweep(base, before_ns, ret_n, err) : 0;
}

int
object_move(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	TRY(copy_object((struct object_store *)base, from, to, err));
	return object_remove(base, from, err);
}
