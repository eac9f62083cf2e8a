/* SPDX-License-Identifier: Apache-2.0 */
/* check_root: see check_root.h. */
#include "run/check_root.h"

#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "state/manifest.h"

#define BEGINNING "{\"pawl_manifest\":"
#define BEGINNING_LEN (sizeof(BEGINNING) - 1)

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

int
check_root_open_run(const struct pawl_stores *stores, const char *folder, size_t len, struct store **ret,
                    struct pawl_error *err)
{
	static const char name[] = "/" CATALOG_FOLDER;
	PAWL_CLEAN(store_close_clean) struct store *above = NULL;
	PAWL_CLEAN(buf_clear) struct buf path = {0};
	struct store_entry entry;

	*ret = NULL;
	if (len < sizeof(name) || strncmp(folder + len - strlen(name), name, strlen(name)) != 0)
		return 0;
	buf_put(&path, folder, len - strlen(name));
	TRY(buf_check(&path, folder, err));
	if (store_open_with(stores, buf_str(&path), false, true, &above, NULL) < 0 ||
	    store_stat(above, RUN_KEY, &entry, NULL) < 0)
		return 0;
	*ret = steal(&above);
	return 0;
}

/* Appends the path of that run to ret; nothing if there is none. */
static int
find_run(const char *folder, size_t len, struct buf *ret, struct pawl_error *err)
{
	PAWL_CLEAN(store_close_clean) struct store *above = NULL;

	TRY(check_root_open_run(NULL, folder, len, &above, err));
	if (above)
		buf_puts(ret, above->root);
	return buf_check(ret, folder, err);
}

static bool
has_run(const char *folder, size_t len)
{
	PAWL_FREE char *file = mem_printf("%.*s/" RUN_KEY, (int)len, folder);

	return file && access(file, F_OK) == 0;
}

int
check_root_name(const char *root, struct pawl_error *err)
{
	const char *at = strrchr(root, '@');
	const size_t len = at ? (size_t)(at - root) : 0;

	if (!at || has_run(root, strlen(root)) || !has_run(root, len))
		return 0;
	return err_set(err, PAWL_EUSAGE, "%s names a checkpoint of the run %.*s; open the run", root, (int)len, root);
}

int
check_root(struct pawl *run, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf meant = {0};
	struct store_entry entry;

	if (!run->home.caps.local || run->home.single_name || run->opts.read_only || run->opts.maintenance)
		return 0;
	if (holds_manifest(run->store)) {
		const char *slash = strrchr(run->home.root, '/');

		TRY(find_run(run->home.root, slash ? (size_t)(slash - run->home.root) : 0, &meant, err));
		return err_set(err, PAWL_EUSAGE, "%s is a checkpoint, not a run; expected %s", run->home.root,
		               meant.len ? buf_str(&meant) : "the folder of a run");
	}
	if (store_stat(run->store, RUN_KEY, &entry, NULL) == 0)
		return 0;
	TRY(find_run(run->home.root, strlen(run->home.root), &meant, err));
	return meant.len ? err_set(err, PAWL_EUSAGE, "%s holds the checkpoints of a run; expected the run itself, %s",
	                           run->home.root, buf_str(&meant))
	                 : 0;
}
