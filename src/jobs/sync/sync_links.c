/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sync_links: files of a local folder that have the same inode: a clone of a trial's checkpoint, or
 * a pack that two checkpoints share. The table is sorted by inode. The state at the target is noted
 * as it is found.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/err.h"
#include "base/vec.h"
#include "jobs/sync/sync.h"

static int
compare_links(const void *a, const void *b)
{
	const struct sync_link *x = a, *y = b;
	if (x->device != y->device)
		return x->device < y->device ? -1 : 1;
	if (x->inode != y->inode)
		return x->inode < y->inode ? -1 : 1;
	return strcmp(x->key, y->key);
}

static int
add_link(struct sync_links *links, const struct stat *st, const char *key)
{
	if (!array_reserve(links->items, links->cap, links->n + 1))
		return PAWL_ENOMEM;
	links->items[links->n++] = (struct sync_link){.device = st->st_dev, .inode = st->st_ino, .key = key};
	return 0;
}

int
sync_links_find(struct sync_links *links, const char *root, const struct buf *names, struct pawl_error *err)
{
	for (size_t at = 0; at < names->len; at += strlen(names->ptr + at) + 1) {
		const char *key = names->ptr + at;
		PAWL_FREE char *path = mem_printf("%s/%s", root, key);
		struct stat st;
		if (path == NULL)
			return err_nomem(err, key);
		if (lstat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_nlink > 1 && add_link(links, &st, key) < 0)
			return err_nomem(err, key);
	}
	if (links->n > 1)
		qsort(links->items, links->n, sizeof *links->items, compare_links);
	return 0;
}

void
sync_links_clear(struct sync_links *links)
{
	mem_free(links->items);
	*links = (struct sync_links){0};
}

struct sync_link *
sync_links_get(const struct sync_links *links, const char *root, const char *key)
{
	struct stat st;
	PAWL_FREE char *path = links->n > 0 ? mem_printf("%s/%s", root, key) : NULL;
	if (path == NULL || lstat(path, &st) != 0)
		return NULL;
	const struct sync_link wanted = {.device = st.st_dev, .inode = st.st_ino, .key = key};
	return bsearch(&wanted, links->items, links->n, sizeof wanted, compare_links);
}

static bool
is_twin(const struct sync_link *a, const struct sync_link *b)
{
	return a->device == b->device && a->inode == b->inode;
}

struct sync_link *
sync_links_twins(const struct sync_links *links, struct sync_link *of, size_t *ret_n)
{
	struct sync_link *first = of, *end = of + 1;
	while (first > links->items && is_twin(first - 1, of))
		first--;
	while (end < links->items + links->n && is_twin(end, of))
		end++;
	*ret_n = (size_t)(end - first);
	return first;
}
