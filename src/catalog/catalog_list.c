/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_list: see catalog_list.h. Called by catalog.c; calls catalog_entry.c, the pool and the store.
 *
 * In a flat store one list of all keys tells which folders have a manifest and whether it is the one that is known
 * already, so that nothing is asked twice: a page of a thousand keys is one request. What is new is read by several
 * threads, as each read is a way there and back.
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

static int
out_of_memory(struct pawl_error *err)
{
	return err_set(err, PAWL_ENOMEM, "catalog: out of memory");
}

void
catalog_listing_clear(struct catalog_listing *l)
{
	mem_free(l->found);
	bump_clear(&l->memory);
}

static int
add_folder(struct catalog_listing *l, const char *name, size_t len, int64_t mtime_ns)
{
	if (l->n == CATALOG_MAX)
		return PAWL_ELIMIT;
	if (l->n == l->cap) {
		size_t cap = l->cap ? 2 * l->cap : 64;
		struct catalog_found *found = mem_resize(l->found, cap, sizeof(*found));

		if (!found)
			return PAWL_ENOMEM;
		l->found = found;
		l->cap = cap;
	}
	l->found[l->n] = (struct catalog_found){.name = bump_strndup(&l->memory, name, len), .mtime_ns = mtime_ns};
	return l->found[l->n++].name ? 0 : PAWL_ENOMEM;
}

static int
see_folder(void *arg, const struct store_entry *entry)
{
	struct catalog_listing *l = arg;

	if (entry->is_folder == l->is_file || entry->is_link || (!l->single && !text_is_component(entry->name)))
		return 0;
	return add_folder(l, entry->name, strlen(entry->name), entry->mtime_ns);
}

/* Times of objects are often in whole seconds, so the size tells two manifests of one second apart. */
static int64_t
time_of(const struct store_entry *manifest)
{
	return manifest->mtime_ns / SECOND_NS * SECOND_NS + (int64_t)(manifest->nbytes % SECOND_NS);
}

/* One key below the folder of checkpoints; those of one checkpoint come one after the other. */
static int
see_key(void *arg, const struct store_entry *entry)
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
	if (l->n == 0 || strcmp(l->found[l->n - 1].name, name) != 0) {
		int rc = add_folder(l, name, len, 0);

		if (rc < 0)
			return rc;
		l->found[l->n - 1].is_known_empty = true;
	}
	struct catalog_found *found = &l->found[l->n - 1];

	if (strcmp(slash + 1, MANIFEST_NAME) == 0) {
		found->mtime_ns = time_of(entry);
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

static bool
is_flat(const struct catalog *c)
{
	struct store_caps caps;

	store_get_caps(c->store, &caps);
	return caps.flat;
}

bool
catalog_is_unfinished(const struct catalog *c, const struct catalog_entry *e)
{
	return !c->single_name && e->problem && strcmp(e->problem, CATALOG_NO_MANIFEST) == 0 && is_flat(c);
}

static int
list_run(const struct catalog *c, struct catalog_listing *l, struct pawl_error *err)
{
	int rc = is_flat(c) ? store_list_all(c->store, CATALOG_FOLDER, see_key, l, err) : PAWL_EUNSUPPORTED;

	return rc == PAWL_EUNSUPPORTED ? store_list(c->store, CATALOG_FOLDER, see_folder, l, err) : rc;
}

static int
list_once(const struct catalog *c, struct catalog_listing *l, struct pawl_error *err)
{
	struct store_entry entry;
	int rc;

	if (c->single_name) {
		l->single = true;
		l->is_file = c->foreign && !foreign_is_folder(c->foreign);
		rc = store_stat(c->store, c->single_name, &entry, err);
		entry.name = c->single_name;
		if (rc == 0)
			rc = see_folder(l, &entry);
	} else {
		rc = list_run(c, l, err);
	}
	if (rc == PAWL_ENOTFOUND) /* nothing was ever saved here */
		return 0;
	if (rc == PAWL_ENOMEM)
		return out_of_memory(err);
	if (rc == PAWL_ELIMIT)
		return err_set(err, rc, CATALOG_FOLDER ": expected at most %u checkpoints, found more", CATALOG_MAX);
	if (rc == 0 && l->n)
		qsort(l->found, l->n, sizeof(*l->found), compare_found);
	return rc;
}

bool
catalog_listing_is_same(const struct catalog_listing *a, const struct catalog_listing *b)
{
	for (size_t i = 0; a->n == b->n && i < a->n; i++)
		if (strcmp(a->found[i].name, b->found[i].name) != 0)
			return false;
	return a->n == b->n;
}

/* A folder is listed until two lists agree. One list may lack a checkpoint that was deleted meanwhile and also the
 * newer one, and so all there is. The pages of a flat store's list are in the order of names. */
int
catalog_list_folders(const struct catalog *c, struct catalog_listing *l, struct pawl_error *err)
{
	bool is_settled = c->single_name || is_flat(c);

	TRY(list_once(c, l, err));
	for (unsigned looks = 1; !is_settled && looks < CATALOG_LOOKS; looks++) {
		struct catalog_listing again = {0};
		int rc = list_once(c, &again, err);

		is_settled = rc < 0 || catalog_listing_is_same(l, &again);
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
	bool flat = !c->single_name && is_flat(c);

	if (flat)
		catalog_manifest_key(c, name, &key);
	else
		catalog_key(c, name, &key);
	TRY(buf_check(&key, name, err));
	TRY(store_stat(c->store, buf_str(&key), &entry, err));
	*ret_ns = flat ? time_of(&entry) : entry.mtime_ns;
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

	if (n > 1 && is_flat(c) && read_by_many(c, wants, n))
		return 0;
	for (size_t i = 0; i < n; i++)
		if (!wants[i].ret->name) /* the one that failed, and who came after it: the error is this one's */
			TRY(read_one(c, &wants[i], &scratch, err));
	return 0;
}
