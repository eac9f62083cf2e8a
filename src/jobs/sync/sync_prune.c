/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sync_prune: removes folders at the target that its source no longer keeps: old checkpoints of a
 * search (R127). The caller names them, after a sync that copied the newer ones. Missing folders
 * are skipped. Before the first removal next to the newer ones, the store must have all of their
 * files. A folder's manifest is removed first, so that half a checkpoint is never taken for one.
 */
#include <string.h>

#include "base/err.h"
#include "jobs/sync/sync.h"
#include "state/manifest.h"
#include "store/store.h"

struct there {
	char *above; /* the folder listed last, or NULL */
	struct buf names;
	bool checked; /* the files sent to folders in `above`; rc and why: the outcome */
	int rc;
	struct pawl_error why;
};

static void
clear_there(struct there *t)
{
	mem_free(t->above);
	buf_clear(&t->names);
}

static int
note_folder(void *arg, const struct store_entry *entry)
{
	struct buf *names = arg;
	if (entry->is_folder)
		buf_put(names, entry->name, strlen(entry->name) + 1);
	return names->failed;
}

/* 1 if the folder exists, else 0. Folders with the same parent share one listing. */
static int
is_there(struct store *store, const char *folder, struct there *t, struct pawl_error *err)
{
	const char *slash = strrchr(folder, '/'), *name = slash != NULL ? slash + 1 : folder;
	const size_t len = slash != NULL ? (size_t)(slash - folder) : 0;
	if (t->above == NULL || strlen(t->above) != len || strncmp(t->above, folder, len) != 0) {
		struct pawl_error why = {0};
		clear_there(t);
		*t = (struct there){.above = mem_strndup(folder, len)};
		if (t->above == NULL)
			return err_nomem(err, "sync");
		int rc = store_list(store, t->above, note_folder, &t->names, &why);
		if (rc < 0 && rc != PAWL_ENOTFOUND)
			return err_give(err, rc, &why);
	}
	for (size_t at = 0; at < t->names.len; at += strlen(t->names.ptr + at) + 1)
		if (strcmp(t->names.ptr + at, name) == 0)
			return 1;
	return 0;
}

static int
remove_there(struct store *store, const char *folder, struct pawl_error *err)
{
	PAWL_FREE char *manifest = mem_printf("%s/" MANIFEST_NAME, folder);
	if (manifest == NULL)
		return err_nomem(err, "sync");
	TRY(store_remove(store, manifest, err));
	return store_remove_folder(store, folder, err);
}

int
sync_prune(struct store *store, const char *const *folders, size_t n, const struct sync_sent *sent,
           const struct sync_limit *limit, struct pawl_error *err)
{
	PAWL_CLEAN(clear_there) struct there t = {0};
	struct pawl_error why = {0};
	int rc = 0;
	for (size_t i = 0; i < n; i++) {
		TRY(sync_limit_check(limit, folders[i], err));
		int found = is_there(store, folders[i], &t, err);
		if (found < 0)
			return found;
		if (found == 0)
			continue;
		if (!t.checked)
			t.rc = sync_sent_check(sent, store, t.above, folders, n, limit, &t.why);
		t.checked = true;
		if (t.rc < 0 && rc == 0) {
			rc = t.rc;
			why = t.why;
		}
		if (t.rc == 0)
			TRY(remove_there(store, folders[i], err));
	}
	return rc < 0 ? err_give(err, rc, &why) : 0;
}
