/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place: see place.h.
 *
 * To train, a path that is one folder too deep (a checkpoint's, or the one that holds the checkpoints of a run) would
 * begin a new run inside of another, which then has no checkpoint to go on from: it is refused with the path that was
 * meant. To read, the checkpoint of a run that is opened by its own path is held until it is closed (P6).
 */
#include "catalog/place.h"

#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "catalog/holds.h"
#include "state/manifest.h"

#define BEGINNING "{\"pawl_manifest\":"
#define BEGINNING_LEN (sizeof(BEGINNING) - 1)

static void
clean_store(struct store **s)
{
	store_close(*s);
}

/* Other programs have a manifest.json too. */
static bool
holds_manifest(struct store *store)
{
	char found[BEGINNING_LEN];
	struct store_reader *reader;
	uint64_t nbytes;

	if (store_open_reader(store, MANIFEST_NAME, &reader, &nbytes, NULL) < 0)
		return false;
	bool ours = nbytes >= sizeof(found) && store_read(store, reader, 0, found, sizeof(found), NULL) == 0 &&
	            memcmp(found, BEGINNING, sizeof(found)) == 0;
	store_close_reader(store, reader);
	return ours;
}

/* Opens the run whose checkpoints lie in `folder`; *ret is NULL where it is no such folder. */
static int
open_run_of(const char *folder, size_t len, struct store **ret, struct pawl_error *err)
{
	static const char name[] = "/" CATALOG_FOLDER;
	PAWL_CLEAN(clean_store) struct store *above = NULL;
	PAWL_CLEAN(buf_clear) struct buf path = {0};
	struct store_entry entry;

	*ret = NULL;
	if (len < sizeof(name) || strncmp(folder + len - strlen(name), name, strlen(name)) != 0)
		return 0;
	buf_put(&path, folder, len - strlen(name));
	TRY(buf_check(&path, folder, err));
	if (store_open(buf_str(&path), false, true, &above, NULL) < 0 || store_stat(above, RUN_KEY, &entry, NULL) < 0)
		return 0;
	*ret = steal(&above);
	return 0;
}

/* Its path, appended to ret; nothing where it is no such folder. */
static int
find_run(const char *folder, size_t len, struct buf *ret, struct pawl_error *err)
{
	PAWL_CLEAN(clean_store) struct store *above = NULL;

	TRY(open_run_of(folder, len, &above, err));
	if (above)
		buf_puts(ret, above->root);
	return buf_check(ret, folder, err);
}

int
run_check_place(struct pawl *run, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf meant = {0};
	struct store_entry entry;

	if (!run->caps.local || run->single_name || run->opts.read_only || run->opts.upkeep)
		return 0;
	if (holds_manifest(run->store)) {
		const char *slash = strrchr(run->root, '/');

		TRY(find_run(run->root, slash ? (size_t)(slash - run->root) : 0, &meant, err));
		return err_set(err, PAWL_EUSAGE, "%s is a checkpoint, no run; expected %s", run->root,
		               meant.len ? buf_str(&meant) : "the folder of a run");
	}
	if (store_stat(run->store, RUN_KEY, &entry, NULL) == 0)
		return 0;
	TRY(find_run(run->root, strlen(run->root), &meant, err));
	return meant.len ? err_set(err, PAWL_EUSAGE, "%s holds the checkpoints of a run; expected the run itself, %s",
	                           run->root, buf_str(&meant))
	                 : 0;
}

/* The length of the folder that holds what the first len characters of a path lead to. */
static size_t
folder_len(const char *path, size_t len)
{
	while (len > 0 && path[--len] != '/')
		;
	return len;
}

/* P6: retention of the run sees the hold. Where none can be made (read-only media) reading goes on without a map. */
int
run_hold_place(struct pawl *run, struct pawl_error *err)
{
	size_t len = run->root ? strlen(run->root) : 0;

	if (!run->caps.local || !run->single_name || !run->opts.read_only)
		return 0;
	for (int i = 0; i < 2 && !run->hold_store; i++) { /* the checkpoint, or a file in it */
		const size_t folder = folder_len(run->root, len);
		PAWL_FREE char *name = mem_strndup(run->root + folder + 1, len - folder - 1);

		if (!name)
			return err_set(err, PAWL_ENOMEM, "run: out of memory");
		TRY(open_run_of(run->root, folder, &run->hold_store, err));
		if (run->hold_store && holds_make(run->hold_store, name, &run->hold_key, NULL) < 0) {
			store_close(steal(&run->hold_store));
			run->lacks_hold = true;
			return 0;
		}
		len = folder;
	}
	return 0;
}

bool
run_place_is_safe(const struct pawl *run)
{
	return run->single_name && !run->foreign && !run->lacks_hold;
}

void
run_drop_place(struct pawl *run)
{
	if (run->hold_store)
		store_remove(run->hold_store, buf_str(&run->hold_key), NULL);
	store_close(run->hold_store);
	buf_clear(&run->hold_key);
}
