/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_mem_table: sorted keys and shared contents. store_mem.c holds the lock around every call
 * here.
 */
#include "store/mem/store_mem_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/vec.h"

#define MAX_KEY_BYTES 1024 /* text_is_key */

struct mem_blob *
mem_blob_new(size_t len, size_t cap)
{
	struct mem_blob *b = mem_zalloc(1, sizeof *b);
	if (b == NULL)
		return NULL;
	b->ptr = mem_alloc(cap);
	if (b->ptr == NULL) {
		mem_free(b);
		return NULL;
	}
	b->len = len;
	b->cap = cap;
	return b;
}

void
mem_blob_drop(struct mem_blob *b)
{
	if (b == NULL || b->n_keys > 0 || b->n_readers > 0)
		return;
	mem_free(b->ptr);
	mem_free(b);
}

void
mem_blob_clean(struct mem_blob **pb)
{
	mem_blob_drop(*pb);
}

/* Index of the first object whose key is not below `key`. */
static size_t
lower_bound(const struct mem_table *t, const char *key)
{
	size_t lo = 0, hi = t->n_objects;
	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		if (strcmp(t->objects[mid].key, key) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

struct mem_object *
mem_table_find(const struct mem_table *t, const char *key)
{
	size_t i = lower_bound(t, key);
	return i < t->n_objects && strcmp(t->objects[i].key, key) == 0 ? &t->objects[i] : NULL;
}

void
mem_table_find_folder(const struct mem_table *t, const char *folder, size_t *begin, size_t *end)
{
	char prefix[MAX_KEY_BYTES + 2];
	size_t len = strlen(folder);
	snprintf(prefix, sizeof prefix, "%s%s", folder, len > 0 ? "/" : "");
	*begin = *end = lower_bound(t, prefix);
	while (*end < t->n_objects && strncmp(t->objects[*end].key, prefix, strlen(prefix)) == 0)
		(*end)++;
}

bool
mem_table_is_folder(const struct mem_table *t, const char *key)
{
	size_t begin, end;
	mem_table_find_folder(t, key, &begin, &end);
	return begin < end;
}

int
mem_table_check_place(const struct mem_table *t, const char *key, struct pawl_error *err)
{
	char part[MAX_KEY_BYTES + 1];
	for (const char *slash = strchr(key, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
		snprintf(part, sizeof part, "%.*s", (int)(slash - key), key);
		if (mem_table_find(t, part) != NULL)
			return err_set(err, PAWL_EEXISTS, "%s: %s is not a folder", key, part);
	}
	if (mem_table_is_folder(t, key))
		return err_set(err, PAWL_EEXISTS, "%s: is a folder, expected a file or nothing", key);
	return 0;
}

int
mem_table_bind(struct mem_table *t, const char *key, struct mem_blob *blob, bool exclusive, struct pawl_error *err)
{
	TRY(mem_table_check_place(t, key, err));
	struct mem_object *old = mem_table_find(t, key);
	if (old != NULL && exclusive)
		return err_set(err, PAWL_EEXISTS, "%s: already exists", key);
	if (old != NULL) {
		struct mem_blob *was = old->blob;
		old->blob = blob;
		old->mtime_ns = clock_unix_ns();
		blob->n_keys++;
		was->n_keys--;
		mem_blob_drop(was);
		return 0;
	}

	if (!array_reserve(t->objects, t->cap_objects, t->n_objects + 1))
		return err_nomem(err, key);
	char *name = mem_strdup(key);
	if (name == NULL)
		return err_nomem(err, key);
	size_t i = lower_bound(t, key);
	memmove(&t->objects[i + 1], &t->objects[i], (t->n_objects - i) * sizeof *t->objects);
	t->objects[i] = (struct mem_object){name, blob, clock_unix_ns()};
	t->n_objects++;
	blob->n_keys++;
	return 0;
}

void
mem_table_unbind(struct mem_table *t, size_t begin, size_t end)
{
	for (size_t i = begin; i < end; i++) {
		t->objects[i].blob->n_keys--;
		mem_blob_drop(t->objects[i].blob);
		mem_free(t->objects[i].key);
	}
	if (begin < end)
		memmove(&t->objects[begin], &t->objects[end], (t->n_objects - end) * sizeof *t->objects);
	t->n_objects -= end - begin;
}

void
mem_table_unbind_one(struct mem_table *t, const struct mem_object *object)
{
	size_t i = (size_t)(object - t->objects);
	mem_table_unbind(t, i, i + 1);
}

void
mem_table_clear(struct mem_table *t)
{
	mem_table_unbind(t, 0, t->n_objects);
	mem_free(t->objects);
	*t = (struct mem_table){0};
}

static int
compare_objects(const void *a, const void *b)
{
	return strcmp(((const struct mem_object *)a)->key, ((const struct mem_object *)b)->key);
}

int
mem_table_rename_folder(struct mem_table *t, const char *from, const char *to, struct pawl_error *err)
{
	size_t begin, end, n_made = 0;
	mem_table_find_folder(t, from, &begin, &end);
	if (begin == end)
		return err_set(err, PAWL_ENOTFOUND, "%s: is not a folder", from);
	if (mem_table_find(t, to) != NULL)
		return err_set(err, PAWL_EEXISTS, "%s: already exists", to);
	TRY(mem_table_check_place(t, to, err));

	/* Make all new keys first, then exchange them, which cannot fail. */
	PAWL_FREE char **keys = mem_zalloc(end - begin, sizeof *keys);
	while (keys != NULL && n_made < end - begin) {
		keys[n_made] = mem_printf("%s%s", to, t->objects[begin + n_made].key + strlen(from));
		if (keys[n_made] == NULL)
			break;
		n_made++;
	}
	bool complete = n_made == end - begin;
	for (size_t i = 0; i < n_made; i++) {
		char **key = &t->objects[begin + i].key;
		mem_free(complete ? *key : keys[i]);
		if (complete)
			*key = keys[i];
	}
	if (!complete)
		return err_nomem(err, to);
	qsort(t->objects, t->n_objects, sizeof *t->objects, compare_objects);
	return 0;
}
