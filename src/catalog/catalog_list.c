/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_list: see catalog_list.h.
 *
 * In a flat store one list of all keys shows which folders have a manifest, and whether it is the
 * known one. A page of a thousand keys is one request. New manifests are read by several threads,
 * since each read waits for the network.
 */
#include "catalog/catalog_list.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/pool.h"
#include "base/text.h"
#include "catalog/catalog_entry.h"

#define READERS 16
#define SECOND_NS 1000000000

void
catalog_listing_clear(struct catalog_listing *l)
{
	vec_free(&l->found);
	bump_clear(&l->memory);
}

static int
add_folder(struct catalog_listing *l, const char *name, size_t len, int64_t mtime_ns)
{
	if (l->found.n == CATALOG_MAX)
		return PAWL_ELIMIT;
	struct catalog_found *found = vec_add(&l->found);

	if (!found)
		return PAWL_ENOMEM;
	*found = (struct catalog_found){.name = bump_strndup(&l->memory, name, len), .mtime_ns = mtime_ns};
	return found->name ? 0 : PAWL_ENOMEM;
}

/* The time of change, with the size in it. Objects often have times in full seconds, and many
 * kernels give files the time of the last tick, up to 10 ms ago. The size of a folder says
 * nothing. */
static int64_t
time_of(const struct catalog_kind *kind, const struct store_entry *entry)
{
	const int64_t nbytes = (int64_t)(entry->nbytes % SECOND_NS);

	if (kind->is_by_manifest)
		return entry->mtime_ns / SECOND_NS * SECOND_NS + nbytes;
	return kind->is_file ? entry->mtime_ns ^ nbytes : entry->mtime_ns;
}

static int
add_if_checkpoint(void *arg, const struct store_entry *entry)
{
	struct catalog_listing *l = arg;

	if (entry->is_folder == l->kind->is_file || entry->is_link ||
	    (!l->is_single && !text_is_component(entry->name)))
		return 0;
	return add_folder(l, entry->name, strlen(entry->name),
	                  l->kind->is_file ? time_of(l->kind, entry) : entry->mtime_ns);
}

/* One key below the folder of checkpoints. The keys of one checkpoint follow each other. */
static int
add_key(void *arg, const struct store_entry *entry)
{
	struct catalog_listing *l = arg;
	const char *slash = strchr(entry->name, '/');
	char name[256];
	size_t len = slash ? (size_t)(slash - entry->name) : 0;

	if (len == 0 || len >= sizeof(name))
		return 0;
	memcpy(name, entry->name, len);
	name[len] = '\0';
	if (!text_is_component(name))
		return 0;
	if (l->found.n == 0 || strcmp(l->found.items[l->found.n - 1].name, name) != 0) {
		int rc = add_folder(l, name, len, 0);

		if (rc < 0)
			return rc;
		l->found.items[l->found.n - 1].is_known_empty = true;
	}
	struct catalog_found *found = &l->found.items[l->found.n - 1];

	if (strcmp(slash + 1, MANIFEST_NAME) == 0) {
		found->mtime_ns = time_of(l->kind, entry);
		found->is_known_empty = false;
	} else {
		found->has_packs = true;
	}
	return 0;
}

static int
compare_found(const void *a, const void *b)
{
	return strcmp(((const struct catalog_found *)a)->name, ((const struct catalog_found *)b)->name);
}

bool
catalog_is_unfinished(const struct catalog *c, const struct catalog_entry *e)
{
	return c->kind->is_by_manifest && e->problem && strcmp(e->problem, CATALOG_NO_MANIFEST) == 0;
}

/* ---- kinds */

static int
list_folder(const struct catalog *c, struct catalog_listing *l, struct pawl_error *err)
{
	return store_list(c->store, CATALOG_FOLDER, add_if_checkpoint, l, err);
}

static int
list_bucket(const struct catalog *c, struct catalog_listing *l, struct pawl_error *err)
{
	struct store_caps caps;

	store_get_caps(c->store, &caps);
	return caps.lists_all ? store_list_all(c->store, CATALOG_FOLDER, add_key, l, err) : list_folder(c, l, err);
}

static int
list_single(const struct catalog *c, struct catalog_listing *l, struct pawl_error *err)
{
	struct store_entry entry;

	l->is_single = true;
	TRY(store_stat(c->store, c->single_name, &entry, err));
	entry.name = c->single_name;
	return add_if_checkpoint(l, &entry);
}

const struct catalog_kind *
catalog_kind_of(const struct catalog *c, const struct store_caps *caps)
{
	static const struct catalog_kind in_folder = {
		.folder = CATALOG_FOLDER "/", .manifest = "/" MANIFEST_NAME, .is_run = true, .list = list_folder};
	static const struct catalog_kind in_bucket = {.folder = CATALOG_FOLDER "/",
	                                              .manifest = "/" MANIFEST_NAME,
	                                              .is_run = true,
	                                              .is_listed_whole = true,
	                                              .is_by_manifest = true,
	                                              .list = list_bucket};
	static const struct catalog_kind single = {
		.folder = "", .manifest = "/" MANIFEST_NAME, .is_listed_whole = true, .list = list_single};
	static const struct catalog_kind foreign_folder = {
		.folder = "", .manifest = "", .is_listed_whole = true, .list = list_single};
	static const struct catalog_kind foreign_file = {
		.folder = "", .manifest = "", .is_file = true, .is_listed_whole = true, .list = list_single};

	if (!c->single_name)
		return caps->flat ? &in_bucket : &in_folder;
	if (!c->foreign)
		return &single;
	return foreign_is_folder(c->foreign) ? &foreign_folder : &foreign_file;
}

static int
list_once(const struct catalog *c, struct catalog_listing *l, struct pawl_error *err)
{
	l->kind = c->kind;
	int rc = c->kind->list(c, l, err);

	if (rc == PAWL_ENOTFOUND) /* no save has been made here */
		return 0;
	if (rc == PAWL_ENOMEM)
		return err_nomem(err, "catalog");
	if (rc == PAWL_ELIMIT)
		return err_set(err, rc, CATALOG_FOLDER ": expected at most %u checkpoints, found more", CATALOG_MAX);
	if (rc == 0 && l->found.n)
		qsort(l->found.items, l->found.n, sizeof(*l->found.items), compare_found);
	return rc;
}

bool
catalog_listing_is_same(const struct catalog_listing *a, const struct catalog_listing *b)
{
	for (size_t i = 0; a->found.n == b->found.n && i < a->found.n; i++)
		if (strcmp(a->found.items[i].name, b->found.items[i].name) != 0)
			return false;
	return a->found.n == b->found.n;
}

/* 0: unknown. */
static int64_t
folder_time(const struct catalog *c)
{
	struct store_entry entry;

	return store_stat(c->store, CATALOG_FOLDER, &entry, NULL) == 0 ? entry.mtime_ns : 0;
}

/* A folder is listed until two lists agree and nothing was renamed meanwhile. A list may lack a
 * checkpoint that was deleted while it was made and also the newer one, and so show none at all.
 * While saves are fast, even two in a row may. The pages of a flat store's list are in the order
 * of names. */
int
catalog_list_folders(const struct catalog *c, struct catalog_listing *l, struct pawl_error *err)
{
	bool is_settled = c->kind->is_listed_whole;
	int64_t before_ns = is_settled ? 0 : folder_time(c);

	TRY(list_once(c, l, err));
	for (unsigned looks = 1; !is_settled && looks < CATALOG_LOOKS; looks++) {
		struct catalog_listing again = {0};
		int rc = list_once(c, &again, err);
		int64_t after_ns = folder_time(c);

		is_settled = rc < 0 || (after_ns == before_ns && catalog_listing_is_same(l, &again));
		before_ns = after_ns;
		catalog_listing_clear(l);
		*l = again;
		TRY(rc);
	}
	return 0;
}

int
catalog_list_time(const struct catalog *c, const char *name, int64_t *ret_ns, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0};
	struct store_entry entry;

	if (c->kind->is_by_manifest)
		catalog_manifest_key(c, name, &key);
	else
		catalog_key(c, name, &key);
	TRY(buf_check(&key, name, err));
	TRY(store_stat(c->store, buf_str(&key), &entry, err));
	*ret_ns = time_of(c->kind, &entry);
	return 0;
}

/* -------------------------------------------------------------------- reading */

struct reading {
	const struct catalog *c;
	const struct catalog_want *wants;
	size_t n;
	atomic_size_t next;
	atomic_int failed;
};

static int
read_one(const struct catalog *c, const struct catalog_want *want, struct buf *scratch, struct pawl_error *err)
{
	if (want->found->is_known_empty)
		return catalog_entry_empty(c, want->found->name, want->ret, err);
	return catalog_entry_read(c, want->found->name, want->found->mtime_ns, scratch, false, want->ret, err);
}

/* Job: one of the readers. */
static void
read_some(void *arg)
{
	struct reading *r = arg;
	PAWL_CLEAN(buf_clear) struct buf scratch = {0};

	for (size_t i; (i = atomic_fetch_add(&r->next, 1)) < r->n && !atomic_load(&r->failed);)
		if (read_one(r->c, &r->wants[i], &scratch, NULL) < 0)
			atomic_store(&r->failed, 1);
}

/* False: some are not read. */
static bool
read_by_many(const struct catalog *c, const struct catalog_want *wants, size_t n)
{
	struct reading r = {.c = c, .wants = wants, .n = n};
	size_t threads = n < READERS ? n : READERS;
	struct pool *pool;

	if (pool_new("pawl-manifests", (unsigned)threads, &pool, NULL) < 0)
		return false;
	for (size_t i = 0; i < threads; i++)
		if (pool_add(pool, NULL, read_some, &r, NULL) < 0)
			atomic_store(&r.failed, 1);
	pool_free(pool); /* waits */
	return !atomic_load(&r.failed);
}

int
catalog_list_read(const struct catalog *c, const struct catalog_want *wants, size_t n, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf scratch = {0};

	if (n > 1 && c->kind->is_by_manifest && read_by_many(c, wants, n))
		return 0;
	for (size_t i = 0; i < n; i++)
		if (!wants[i].ret->name) /* the one that failed, or one after it: the error is that of the failed one */
			TRY(read_one(c, &wants[i], &scratch, err));
	return 0;
}
