/* SPDX-License-Identifier: Apache-2.0 */
/*
 * places: see places.h. A folder with run.json is a run, one with manifest.json a checkpoint. Each
 * folder costs one listing, on any store, and so does the kind of a root. A folder of which only
 * the kind matters is not read beyond LOOK_ENTRIES names; then the names that matter are asked for.
 */
#include "catalog/places.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/bump.h"
#include "base/err.h"
#include "base/err_path.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/vec.h"
#include "run/run_file.h"
#include "state/manifest.h"
#include "store/store.h"

#define MAX_DEPTH 32u
#define MAX_PLACES ((size_t)1 << 20)
#define LOOK_ENTRIES 1000u
#define TOO_DEEP "it is more than 32 folders deep; list this folder itself"
#define POINTER_SUFFIX ".symlink"
#define POINTER_MAX_BYTES 4096u
#define MAX_POINTERS 64u /* read in one call; more are links whose target is unknown */
#define ODD_NAME "its name has control characters; name this folder itself"

static int
has_file(struct store *store, const char *folder, const char *name, bool *ret, struct pawl_error *err)
{
	PAWL_FREE char *key = mem_printf("%s%s%s", folder, folder[0] ? "/" : "", name);
	struct store_entry entry;

	if (!key)
		return err_nomem(err, "places");
	int rc = store_stat(store, key, &entry, err);
	*ret = rc == 0;
	return rc == PAWL_ENOTFOUND ? 0 : rc;
}

/* A run.json next to a manifest and without checkpoints got there by mistake. */
static int
kind_by(bool run_file, bool manifest, bool checkpoints)
{
	if (run_file && (checkpoints || !manifest))
		return PAWL_KIND_RUN;
	return manifest ? PAWL_KIND_CHECKPOINT : PAWL_KIND_OTHER;
}

/* The kind by single questions, without a listing. */
static int
ask_kind(struct store *store, const char *folder, bool *ret_checkpoints, struct pawl_error *err)
{
	bool run_file, manifest;

	TRY(has_file(store, folder, RUN_KEY, &run_file, err));
	TRY(has_file(store, folder, MANIFEST_NAME, &manifest, err));
	TRY(has_file(store, folder, CATALOG_FOLDER, ret_checkpoints, err));
	return kind_by(run_file, manifest, *ret_checkpoints);
}

struct contents {
	bool files, folders;
};

static int
visit_content(void *arg, const struct store_entry *entry)
{
	struct contents *c = arg;

	c->files |= !entry->is_folder && entry->name[0] != '.';
	c->folders |= entry->is_folder && entry->name[0] != '.';
	return 0;
}

/* What has `checkpoints`, but neither run.json nor manifest.json: a run that lost its run.json has
 * folders there, Composer's saver only files. */
static int
kind_by_checkpoints(struct store *store, struct pawl_error *err)
{
	struct contents c = {0};
	int rc = store_list(store, CATALOG_FOLDER, visit_content, &c, err);

	if (rc < 0 && rc != PAWL_ENOTFOUND)
		return rc;
	return c.files && !c.folders ? PAWL_KIND_OTHER : PAWL_KIND_RUN;
}

/* ---- listing ---- */

struct pawl_places {
	struct bump memory;
	VEC(struct pawl_place) rows;
};

struct scan {
	struct pawl_places *places;
	struct store *store;
	bool recursive;
	unsigned n_pointers;
};

struct child {
	const char *name;
	bool is_folder, is_link;
	uint64_t bytes;
	int64_t mtime_ns;
};

struct listing {
	struct bump memory;
	VEC(struct child) children;
	size_t n, most;     /* names seen; the listing ends after `most` */
	int64_t journal_ns; /* the last change of a search; 0 = not seen */
	bool run_file, manifest, checkpoints, search, full;
	bool any; /* a name that is not of a process that looked here, or was killed while it did */
};

static void
listing_clear(struct listing *l)
{
	vec_free(&l->children);
	bump_clear(&l->memory);
}

static int
visit_entry(void *arg, const struct store_entry *entry)
{
	struct listing *l = arg;

	l->run_file |= strcmp(entry->name, RUN_KEY) == 0;
	l->manifest |= strcmp(entry->name, MANIFEST_NAME) == 0;
	l->checkpoints |= strcmp(entry->name, CATALOG_FOLDER) == 0;
	l->any |= strcmp(entry->name, ".lease") != 0 && strncmp(entry->name, ".probe.", 7) != 0 &&
	          strncmp(entry->name, ".doctor.", 8) != 0;
	l->search |= strcmp(entry->name, SEARCH_KEY) == 0;
	if (strcmp(entry->name, SEARCH_JOURNAL) == 0)
		l->journal_ns = entry->mtime_ns;
	l->full = ++l->n > l->most;
	if (l->full)
		return PAWL_ELIMIT;
	if (entry->name[0] == '.' || (!entry->is_folder && !text_is_key(entry->name)))
		return 0;
	struct child *c = vec_add(&l->children);
	if (!c)
		return PAWL_ENOMEM;
	*c = (struct child){.name = bump_strndup(&l->memory, entry->name, strlen(entry->name)),
	                    .is_folder = entry->is_folder,
	                    .is_link = entry->is_link,
	                    .bytes = entry->nbytes,
	                    .mtime_ns = entry->mtime_ns};
	return c->name ? 0 : PAWL_ENOMEM;
}

/* ---- the kind of a root ---- */

static int
find_kind(struct store *store, struct pawl_error *err)
{
	PAWL_CLEAN(listing_clear) struct listing l = {.most = LOOK_ENTRIES};
	struct pawl_error why = {0};
	int rc = store_list(store, "", visit_entry, &l, &why);

	if (rc == PAWL_ENOTFOUND)
		return PAWL_KIND_NOTHING;
	if (l.full)
		rc = 0;
	/* where names may not be listed, they may still be asked for */
	int kind = l.full || rc < 0 ? ask_kind(store, "", &l.checkpoints, err)
	                            : kind_by(l.run_file, l.manifest, l.checkpoints);

	if (kind != PAWL_KIND_OTHER)
		return kind;
	if (l.checkpoints)
		return kind_by_checkpoints(store, err);
	if (rc < 0)
		return err_give(err, rc, &why);
	return l.any ? PAWL_KIND_OTHER : PAWL_KIND_NOTHING;
}

int
places_kind_of(const char *root, const struct pawl_stores *stores, struct pawl_error *err)
{
	PAWL_CLEAN(store_close_clean) struct store *store = NULL;

	if (!root)
		return err_set(err, PAWL_EUSAGE, "kind: expected a root, found NULL");
	int rc = store_open_with(stores, root, false, true, &store, err);
	if (rc == PAWL_ENOTFOUND && (!err || err->sys != ENXIO))
		return PAWL_KIND_NOTHING;
	TRY(rc);
	return find_kind(store, err);
}

int
pawl_kind_of(const char *root, const struct pawl_stores *stores, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, places_kind_of(root, stores, &own), &own);
}

/* ---- below a folder ---- */

static int
add_place(struct scan *s, const struct pawl_place *place, const char *path, struct pawl_error *err)
{
	struct pawl_places *p = s->places;

	if (p->rows.n == MAX_PLACES)
		return err_set(err, PAWL_ELIMIT, "%s: more than %zu files and runs; list a folder in it",
		               s->store->root, MAX_PLACES);
	struct pawl_place *row = vec_add(&p->rows);
	if (!row)
		return err_nomem(err, "places");
	*row = *place;
	row->path = bump_strndup(&p->memory, path, strlen(path));
	if (place->problem)
		row->problem = bump_strndup(&p->memory, place->problem, strlen(place->problem));
	if (place->target)
		row->target = bump_strndup(&p->memory, place->target, strlen(place->target));
	return row->path ? 0 : err_nomem(err, "places");
}

/* A folder below the root that cannot be listed becomes a row; one that is gone does not. */
static int
add_problem(struct scan *s, const char *folder, int rc, struct pawl_error *why, struct pawl_error *err)
{
	PAWL_FREE char *path = mem_printf("%s/%s", s->store->root, folder);

	if (rc == PAWL_ENOTFOUND && folder[0])
		return 0;
	if (rc != PAWL_EAUTH || !folder[0])
		return err_give(err, rc, why);
	if (path && err_is_denied(why->sys))
		err_denied(why, why->sys, path, false);
	return add_place(s, &(struct pawl_place){.kind = PAWL_KIND_OTHER, .problem = why->message}, folder, err);
}

static int
add_search(struct scan *s, const char *folder, const struct listing *l, struct pawl_error *err)
{
	struct store_entry journal = {.mtime_ns = l->journal_ns};

	if (l->full && l->journal_ns == 0) {
		PAWL_FREE char *key = mem_printf("%s/" SEARCH_JOURNAL, folder);

		if (!key)
			return err_nomem(err, "places");
		if (store_stat(s->store, key, &journal, NULL) < 0)
			journal.mtime_ns = 0;
	}
	return add_place(
		s, &(struct pawl_place){.kind = PAWL_KIND_SEARCH, .unix_seconds = 1e-9 * (double)journal.mtime_ns},
		folder, err);
}

/* A store without links has text objects with the name of a file instead. One that cannot be read
 * is still a link. */
static void
read_pointer(struct scan *s, const char *path, uint64_t nbytes, struct buf *ret)
{
	if (nbytes > POINTER_MAX_BYTES || s->n_pointers >= MAX_POINTERS)
		return;
	s->n_pointers++;
	if (store_get(s->store, path, POINTER_MAX_BYTES, ret, NULL) < 0)
		ret->len = 0;
	while (ret->len > 0 && strchr("\r\n \t/", ret->ptr[ret->len - 1]))
		ret->len--;
}

static int
add_file(struct scan *s, const char *path, const struct child *c, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf target = {0};
	const size_t len = strlen(c->name), n = strlen(POINTER_SUFFIX);
	const bool is_pointer = !c->is_link && len > n && strcmp(c->name + len - n, POINTER_SUFFIX) == 0;

	if (is_pointer)
		read_pointer(s, path, c->bytes, &target);
	return add_place(s,
	                 &(struct pawl_place){.kind = PAWL_KIND_OTHER,
	                                      .is_link = c->is_link || is_pointer,
	                                      .bytes = c->bytes,
	                                      .unix_seconds = 1e-9 * (double)c->mtime_ns,
	                                      .target = target.len > 0 ? buf_str(&target) : NULL},
	                 path, err);
}

/* inside: files in the folder are listed, too; otherwise only its kind is determined. */
static int
scan_folder(struct scan *s, const char *folder, unsigned depth, bool inside, struct pawl_error *err)
{
	PAWL_CLEAN(listing_clear) struct listing l = {.most = inside ? MAX_PLACES : LOOK_ENTRIES};
	struct pawl_error why = {0};
	int rc = store_list(s->store, folder, visit_entry, &l, &why);

	if (l.full && inside)
		return err_set(err, PAWL_ELIMIT, "%s/%s has more than %zu entries", s->store->root, folder, MAX_PLACES);
	if (rc == PAWL_ENOMEM)
		return err_nomem(err, "places");
	if (l.full)
		rc = 0;
	if (rc < 0)
		return add_problem(s, folder, rc, &why, err);
	int kind = l.full ? ask_kind(s->store, folder, &l.checkpoints, err)
	                  : kind_by(l.run_file, l.manifest, l.checkpoints);
	TRY(kind);
	if (kind != PAWL_KIND_OTHER)
		return add_place(s, &(struct pawl_place){.kind = kind}, folder, err);
	if (l.full)
		TRY(has_file(s->store, folder, SEARCH_KEY, &l.search, err));
	if (l.search && folder[0])
		TRY(add_search(s, folder, &l, err));
	for (size_t i = 0; inside && i < l.children.n; i++) {
		const struct child *c = &l.children.items[i];
		PAWL_FREE char *path = mem_printf("%s%s%s", folder, folder[0] ? "/" : "", c->name);
		bool deeper = s->recursive || (depth == 0 && strcmp(c->name, CATALOG_FOLDER) == 0);

		if (!path)
			return err_nomem(err, "places");
		if (c->is_folder && !text_is_key(c->name))
			TRY(add_place(s, &(struct pawl_place){.kind = PAWL_KIND_OTHER, .problem = ODD_NAME}, path,
			              err));
		else if (c->is_folder && depth == MAX_DEPTH)
			TRY(add_place(s, &(struct pawl_place){.kind = PAWL_KIND_OTHER, .problem = TOO_DEEP}, path,
			              err));
		else if (c->is_folder)
			TRY(scan_folder(s, path, depth + 1, deeper, err));
		else
			TRY(add_file(s, path, c, err));
	}
	return 0;
}

static int
compare_places(const void *a, const void *b)
{
	return text_compare_path(((const struct pawl_place *)a)->path, ((const struct pawl_place *)b)->path);
}

static int
places_open(struct pawl_places *places, const char *root, int recursive, struct pawl_error *err)
{
	PAWL_CLEAN(store_close_clean) struct store *store = NULL;

	if (!root)
		return err_set(err, PAWL_EUSAGE, "places: expected a folder, found NULL");
	TRY(store_open(root, false, true, &store, err));
	struct scan s = {.places = places, .store = store, .recursive = recursive != 0};

	TRY(scan_folder(&s, "", 0, true, err));
	if (places->rows.n > 0)
		qsort(places->rows.items, places->rows.n, sizeof(*places->rows.items), compare_places);
	return 0;
}

int
pawl_places_open(const char *root, int recursive, struct pawl_places **ret, struct pawl_error *err)
{
	struct pawl_error own = {0};

	if (!ret)
		return err_set(err, PAWL_EUSAGE, "places: expected a pointer that receives the list, found NULL");
	struct pawl_places *places = mem_zalloc(1, sizeof(*places));
	if (!places)
		return err_nomem(err, "places");
	int rc = places_open(places, root, recursive, &own);
	if (rc < 0)
		pawl_places_free(places);
	else
		*ret = places;
	return err_give(err, rc, &own);
}

size_t
pawl_places_count(const struct pawl_places *places)
{
	return places->rows.n;
}

const struct pawl_place *
pawl_places_get(const struct pawl_places *places, size_t i)
{
	return i < places->rows.n ? &places->rows.items[i] : NULL;
}

void
pawl_places_free(struct pawl_places *places)
{
	if (!places)
		return;
	vec_free(&places->rows);
	bump_clear(&places->memory);
	mem_free(places);
}
