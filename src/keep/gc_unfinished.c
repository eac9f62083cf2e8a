/* SPDX-License-Identifier: Apache-2.0 */
/* gc_unfinished: how unfinished saves are taken away and deleted; see gc.h. Promises P2, P10. */
#include <string.h>

#include "base/bump.h"
#include "base/err.h"
#include "base/hidden.h"
#include "base/mem.h"
#include "base/vec.h"
#include "catalog/catalog.h"
#include "keep/gc.h"
#include "ranks/abort_commit.h"

#define WITHDRAWN "withdrawn"

bool
gc_is_withdrawn(const char *name)
{
	return strncmp(name, "." WITHDRAWN ".", sizeof(WITHDRAWN) + 1) == 0;
}

/* ---- by renaming the folder */

/* Renames the folder in one step, so that no process can publish it afterwards. */
static int
rename_one(struct store *store, const char *folder, struct buf *ret, struct pawl_error *err)
{
	char hidden[HIDDEN_NAME_BYTES];

	TRY(hidden_name(WITHDRAWN, HIDDEN_PARTIAL, hidden, err));
	buf_printf(ret, CATALOG_FOLDER "/%s", hidden);
	TRY(buf_check(ret, "gc", err));
	return store_publish(store, folder, buf_str(ret), err);
}

struct partials {
	struct bump memory;
	VEC(const char *) keys;
};

static void
partials_clear(struct partials *p)
{
	vec_free(&p->keys);
	bump_clear(&p->memory);
}

static int
add_partial(void *arg, const struct store_entry *entry)
{
	struct partials *p = arg;

	if (!entry->is_folder || entry->is_link || !hidden_token(entry->name, HIDDEN_PARTIAL) ||
	    gc_is_withdrawn(entry->name))
		return 0;
	const char **key = vec_add(&p->keys);

	if (key)
		*key = bump_printf(&p->memory, CATALOG_FOLDER "/%s", entry->name);
	return key && *key ? 0 : PAWL_ENOMEM;
}

static int
rename_all(struct pawl *run, struct pawl_error *err)
{
	PAWL_CLEAN(partials_clear) struct partials p = {0};
	int rc = store_list(run->store, CATALOG_FOLDER, add_partial, &p, err);

	if (rc == PAWL_ENOMEM)
		return err_nomem(err, "gc");
	if (rc == PAWL_ENOTFOUND)
		return 0;
	TRY(rc);
	for (size_t i = 0; i < p.keys.n; i++) {
		PAWL_CLEAN(buf_clear) struct buf aside = {0};

		rc = rename_one(run->store, p.keys.items[i], &aside, err);
		if (rc < 0 && rc != PAWL_ENOTFOUND)
			return rc;
	}
	return 0;
}

const struct gc_ops gc_by_rename = {
	.hide_unfinished = rename_all,
	.take_unfinished = rename_one,
	.drop_unfinished = store_remove_folder,
};

/* ---- by putting what aborts the commit in the manifest's place */

/* Without conditional puts nothing can be aborted; one process writes there. */
static int
abort_all(struct pawl *run, struct pawl_error *err)
{
	return run->home.caps.exclusive_put ? abort_commit_all(run->store, CATALOG_FOLDER, err) : 0;
}

/* The folder stays where it is: drop_unfinished aborts it. */
static int
keep_place(struct store *store, const char *folder, struct buf *ret, struct pawl_error *err)
{
	(void)store;
	buf_puts(ret, folder);
	return buf_check(ret, "gc", err);
}

const struct gc_ops gc_by_manifest = {
	.hide_unfinished = abort_all,
	.take_unfinished = keep_place,
	.drop_unfinished = abort_commit_remove,
	.leaves_orphans = true,
};
