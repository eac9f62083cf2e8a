/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sync_clone: copies a folder to another place of the same store. It uses links, or copies that the
 * server makes, with one or a few requests for each file (R158). It is for folders that do not
 * belong to a run: it does not write a manifest.
 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/text.h"
#include "jobs/sync/sync.h"
#include "pawl_jobs.h"
#include "store/store.h"

/* Two places of one store: the store above both, and a key for each. */
struct pair {
	char *root, *from, *to;
};

static void
pair_clear(struct pair *p)
{
	mem_free(p->root);
	mem_free(p->from);
	mem_free(p->to);
}

/* Length of the shortest valid place in a URL or path: "s3://bucket", "ssh://host", "/". */
static size_t
least_root(const char *text)
{
	const char *scheme = strstr(text, "://");
	return scheme != NULL ? (size_t)(scheme - text) + 3 + strcspn(scheme + 3, "/") : 0;
}

static size_t
length_of(const char *text)
{
	size_t len = (size_t)(text_url_options(text) - text);
	while (len > 1 && text[len - 1] == '/')
		len--;
	return len;
}

static int
pair_make(const char *from, const char *to, struct pair *ret, struct pawl_error *err)
{
	size_t least = least_root(from), from_len = length_of(from), to_len = length_of(to), at = least, slash = least;
	if (least != least_root(to) || strncmp(from, to, least) != 0 ||
	    strcmp(text_url_options(from), text_url_options(to)) != 0)
		return err_set(err, PAWL_EUNSUPPORTED, "%.200s and %.200s are not in one store", from, to);
	for (; at < from_len && at < to_len && from[at] == to[at]; at++)
		if (from[at] == '/')
			slash = at;
	/* One may continue where the other's name ends: "trial_1" and "trial_10". */
	bool within = (at == from_len && (at == to_len || to[at] == '/')) || (at == to_len && from[at] == '/');
	if (slash >= from_len || slash >= to_len || from[slash] != '/' || to[slash] != '/' || within)
		return err_set(err, PAWL_EUSAGE,
		               "%.200s and %.200s: expected two folders, neither of them in the other", from, to);
	ret->root = mem_printf("%.*s%s", slash > 0 ? (int)slash : 1, slash > 0 ? from : "/", text_url_options(from));
	ret->from = mem_printf("%.*s", (int)(from_len - slash - 1), from + slash + 1);
	ret->to = mem_printf("%.*s", (int)(to_len - slash - 1), to + slash + 1);
	if (ret->root == NULL || ret->from == NULL || ret->to == NULL)
		return err_nomem(err, "clone");
	if (!text_is_key(ret->from) || !text_is_key(ret->to))
		return err_set(err, PAWL_EUSAGE, "%.200s, %.200s: expected plain paths", from, to);
	return 0;
}

/* An existing file of the name is replaced: it may be half of an earlier try. */
static int
clone_file(struct store *s, const struct pair *p, const char *name, struct pawl_error *err)
{
	PAWL_FREE char *from = mem_printf("%s/%s", p->from, name);
	PAWL_FREE char *to = mem_printf("%s/%s", p->to, name);
	if (from == NULL || to == NULL)
		return err_nomem(err, "clone");
	int rc = store_link(s, from, to, err);
	if (rc != PAWL_EEXISTS)
		return rc;
	TRY(store_remove(s, to, err));
	return store_link(s, from, to, err);
}

static int
clone_all(struct store *s, const struct pair *p, const struct buf *names, const struct sync_limit *limit,
          struct pawl_error *err)
{
	for (size_t at = 0; at < names->len; at += strlen(names->ptr + at) + 1) {
		TRY(sync_limit_check(limit, p->to, err));
		TRY(clone_file(s, p, names->ptr + at, err));
	}
	return 0;
}

/* Makes the names durable. In a store without folders there is nothing to do. */
static int
make_durable(struct store *s, const struct pair *p, const struct buf *names, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf last = {0};
	for (size_t at = 0; at < names->len; at += strlen(names->ptr + at) + 1) {
		const char *name = names->ptr + at, *slash = strrchr(name, '/');
		int len = slash != NULL ? (int)(slash - name) : 0;
		PAWL_FREE char *folder = mem_printf("%s%s%.*s", p->to, len > 0 ? "/" : "", len, name);
		if (folder == NULL)
			return err_nomem(err, "clone");
		if (last.len > 0 && strcmp(folder, buf_str(&last)) == 0)
			continue;
		TRY(store_sync(s, folder, err));
		last.len = 0;
		buf_puts(&last, folder);
	}
	return 0;
}

static int
clone_folder(const char *from, const char *to, struct pawl_meter *meter, struct pawl_error *err)
{
	PAWL_CLEAN(pair_clear) struct pair p = {0};
	PAWL_CLEAN(sync_names_clear) struct sync_names names = {0};
	PAWL_CLEAN(store_close_clean) struct store *source = NULL, *s = NULL;
	const struct sync_limit limit = {.deadline_ms = INT64_MAX, .meter = meter};
	struct store_caps caps;
	TRY(pair_make(from, to, &p, err));
	TRY(store_open(from, false, true, &source, err));
	TRY(store_open(p.root, true, true, &s, err));
	store_get_caps(s, &caps);
	if (!caps.link)
		return err_set(err, PAWL_EUNSUPPORTED, "%s: this store cannot make a file from another one", p.root);
	TRY(sync_list(source, &limit, &names, err));
	const struct buf *all[] = {&names.packs, caps.flat ? &names.pointers : NULL, &names.manifests, &names.searches};
	if (names.packs.len + names.manifests.len + names.searches.len + (caps.flat ? names.pointers.len : 0) == 0)
		return err_set(err, PAWL_ENOTFOUND, "%s: there are no files to clone", from);
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		if (all[i] != NULL) {
			TRY(clone_all(s, &p, all[i], &limit, err));
			TRY(make_durable(s, &p, all[i], err));
		}
	return 0;
}

int
pawl_clone_folder(const char *from, const char *to, struct pawl_meter *meter, struct pawl_error *err)
{
	struct sync_place a = {0}, b = {0};
	struct pawl_error own = {0};
	int rc = sync_place_read(from, &a, &own);
	if (rc == 0)
		rc = sync_place_read(to, &b, &own);
	if (rc == 0 && (a.store == NULL || b.store == NULL))
		rc = err_set(&own, PAWL_EUNSUPPORTED, "%.200s: pawl cannot copy there by itself",
		             a.store == NULL ? from : to);
	if (rc == 0)
		rc = clone_folder(a.store, b.store, meter, &own);
	sync_place_clear(&a);
	sync_place_clear(&b);
	return err_give(err, rc, &own);
}
