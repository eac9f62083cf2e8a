/* SPDX-License-Identifier: Apache-2.0 */
/* sync_sent: the files that a sync sent, and whether the target has them. */
#include <inttypes.h>
#include <string.h>

#include "base/err.h"
#include "base/vec.h"
#include "jobs/sync/sync.h"
#include "store/store.h"

void
sync_sent_clear(struct sync_sent *sent)
{
	bump_clear(&sent->memory);
	mem_free(sent->items);
	*sent = (struct sync_sent){0};
}

int
sync_sent_add(struct sync_sent *sent, const char *key, uint64_t nbytes, struct pawl_error *err)
{
	if (!array_reserve(sent->items, sent->cap, sent->n + 1))
		return err_nomem(err, "sync");
	const char *copy = bump_strndup(&sent->memory, key, strlen(key));
	if (copy == NULL)
		return err_nomem(err, "sync");
	sent->items[sent->n++] = (struct sync_file){copy, nbytes};
	return 0;
}

/* The part of a key below a folder, or NULL. */
static const char *
part_below(const char *key, const char *folder)
{
	const size_t len = strlen(folder);
	if (len == 0)
		return key;
	return strncmp(key, folder, len) == 0 && key[len] == '/' ? key + len + 1 : NULL;
}

static bool
is_in(const char *key, const char *const *folders, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (part_below(key, folders[i]) != NULL)
			return true;
	return false;
}

static int
check_file(const struct sync_file *file, struct store *store, struct pawl_error *err)
{
	struct store_entry entry = {0};
	struct pawl_error why = {0};
	int rc = store_stat(store, file->key, &entry, &why);
	if (rc == PAWL_ENOTFOUND)
		return err_set(err, PAWL_EIO, "%s: it was sent, but the store does not have it", file->key);
	if (rc < 0)
		return err_give(err, rc, &why);
	if (entry.nbytes < file->nbytes)
		return err_set(err, PAWL_EIO, "%s: %" PRIu64 " bytes were sent, but the store has %" PRIu64, file->key,
		               file->nbytes, entry.nbytes);
	return 0;
}

int
sync_sent_check(const struct sync_sent *sent, struct store *store, const char *above, const char *const *folders,
                size_t n, const struct sync_limit *limit, struct pawl_error *err)
{
	for (size_t i = 0; i < sent->n; i++) {
		const struct sync_file *file = &sent->items[i];
		const char *part = part_below(file->key, above);
		struct pawl_error why = {0};
		if (part == NULL || strchr(part, '/') == NULL)
			continue;
		TRY(sync_limit_check(limit, file->key, err));
		const int rc = check_file(file, store, &why);
		if (rc < 0 && !is_in(file->key, folders, n))
			return err_give(err, rc, &why);
	}
	return 0;
}
