/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place: is this folder where a run may be begun? Called by run.c when a run is opened to train; calls the store. A
 * path that is one folder too deep (a checkpoint's, or the one that holds the checkpoints of a run) would begin a new
 * run inside of another, which then has no checkpoint to go on from: it is refused with the path that was meant.
 */
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "run/run.h"
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

/* The run whose checkpoints lie in `folder`, appended to ret; nothing where it is no such folder. */
static int
find_run(const char *folder, size_t len, struct buf *ret, struct pawl_error *err)
{
	static const char name[] = "/" CATALOG_FOLDER;
	PAWL_CLEAN(clean_store) struct store *above = NULL;
	PAWL_CLEAN(buf_clear) struct buf path = {0};
	struct store_entry entry;

	if (len < sizeof(name) || strncmp(folder + len - strlen(name), name, strlen(name)) != 0)
		return 0;
	buf_put(&path, folder, len - strlen(name));
	TRY(buf_check(&path, folder, err));
	if (store_open(buf_str(&path), false, true, &above, NULL) < 0 || store_stat(above, RUN_KEY, &entry, NULL) < 0)
		return 0;
	buf_puts(ret, buf_str(&path));
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
