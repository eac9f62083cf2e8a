/* SPDX-License-Identifier: Apache-2.0 */
/* hold_root: see hold_root.h; and the holds that users make. Promise P6. */
#include "catalog/hold_root.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "catalog/catalog.h"
#include "catalog/holds.h"
#include "run/check_root.h"

/* ---- a checkpoint of an open run */

struct pawl_hold {
	struct pawl *run;
	struct store *store; /* the run's, or the only mirror that has the checkpoint; borrowed */
	struct buf key;      /* of the hold's file; empty for a single checkpoint, which no retention deletes */
};

PAWL_DEFINE_CLEAN(struct pawl_hold, pawl_hold_close);

/* The store, name and manifest's key of a checkpoint. Reads the catalog again if it does not have
 * it yet. */
static int
find_folder(struct pawl *run, uint64_t id, struct store **ret, struct buf *name, struct buf *manifest_key,
            struct pawl_error *err)
{
	int rc = 0;

	run_edit(run);
	if (!catalog_get(run->catalog, id))
		rc = catalog_reload(run->catalog, err);
	struct catalog_entry *e = NULL;
	char selector[32];
	snprintf(selector, sizeof(selector), "id:%llu", (unsigned long long)id);
	if (rc == 0) {
		rc = catalog_find(run->catalog, &run->settings.retention, selector, &e, err);
		rc = rc < 0 ? err_prefix(err, rc, "%s", run->home.root) : 0;
	}
	if (rc == 0) {
		*ret = e->at ? e->at : run->store;
		buf_puts(name, e->name);
		catalog_manifest_key(run->catalog, e->name, manifest_key);
	}
	run_edited(run);
	TRY(rc);
	TRY(buf_check(name, "hold", err));
	return buf_check(manifest_key, "hold", err);
}

/* waits: if a deletion has begun, until it has ended or was called off. */
static int
hold_open(struct pawl *run, uint64_t id, bool waits, struct pawl_hold **ret, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf name = {0}, manifest_key = {0};
	struct store *store = NULL;
	struct store_entry entry;

	if (!run || !ret)
		return err_set(err, PAWL_EUSAGE,
		               "hold: expected a run and a pointer that receives the hold, found NULL");
	TRY(find_folder(run, id, &store, &name, &manifest_key, err));
	PAWL_CLEAN(pawl_hold_close_clean) struct pawl_hold *hold = mem_zalloc(1, sizeof(*hold));
	if (!hold)
		return err_nomem(err, "hold");
	hold->run = run;
	hold->store = store;
	if (run->catalog->kind->is_run)
		TRY(holds_make(store, buf_str(&name), &hold->key, err));
	/* It may have been deleted while the hold was made. Any later deletion sees the hold. */
	int rc = store_stat(store, buf_str(&manifest_key), &entry, err);
	if (rc == PAWL_ENOTFOUND && waits && hold->key.len) {
		int back = catalog_wait_put_back(run->catalog, store, buf_str(&name), err);

		TRY(back);
		rc = back ? 0 : rc;
	}
	if (rc == PAWL_ENOTFOUND)
		return err_set(err, rc, "%s has just been deleted", buf_str(&name));
	TRY(rc);
	run_edit(run);
	catalog_note_held(run->catalog, id);
	run_edited(run);
	*ret = steal(&hold);
	return 0;
}

int
pawl_hold_open(struct pawl *run, uint64_t id, struct pawl_hold **ret, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, hold_open(run, id, true, ret, &own), &own);
}

int
hold_for_reading(struct pawl *run, uint64_t id, struct pawl_hold **ret, struct pawl_error *err)
{
	struct pawl_error own = {0};

	*ret = NULL;
	return run->catalog->kind->is_run ? err_give(err, hold_open(run, id, false, ret, &own), &own) : 0;
}

void
hold_close_all(struct pawl *run, struct pawl_hold **holds, size_t n)
{
	bool was_made = false;

	for (size_t i = 0; i < n; i++) {
		if (!holds[i])
			continue;
		if (holds[i]->key.len) {
			store_remove(holds[i]->store, buf_str(&holds[i]->key), NULL);
			was_made = true;
		}
		buf_clear(&holds[i]->key);
		mem_free(holds[i]);
		holds[i] = NULL;
	}
	if (!was_made)
		return;
	run_edit(run);
	catalog_reload_holds(run->catalog, NULL); /* other holds may be on them */
	run_edited(run);
}

void
pawl_hold_close(struct pawl_hold *hold)
{
	if (hold)
		hold_close_all(hold->run, &hold, 1);
}

/* ---- a single checkpoint inside a run */

/* The length of the parent folder of the first len characters of a path. */
static size_t
folder_len(const char *path, size_t len)
{
	while (len > 0 && path[--len] != '/')
		;
	return len;
}

/* P6: retention of the run sees the hold. On read-only media none can be made. */
int
hold_root_take(struct pawl *run, struct pawl_error *err)
{
	size_t len = run->home.root ? strlen(run->home.root) : 0;

	if (!run->home.single_name || !run->opts.read_only)
		return 0;
	for (int i = 0; i < 2 && !run->home.hold_store; i++) { /* the checkpoint, or a file in it */
		const size_t folder = folder_len(run->home.root, len);
		PAWL_FREE char *name = mem_strndup(run->home.root + folder + 1, len - folder - 1);

		if (!name)
			return err_nomem(err, "run");
		TRY(check_root_open_run(run->opts.io.stores, run->home.root, folder, &run->home.hold_store, err));
		if (run->home.hold_store && holds_make(run->home.hold_store, name, &run->home.hold_key, NULL) < 0) {
			store_close(steal(&run->home.hold_store));
			return 0;
		}
		len = folder;
	}
	return 0;
}

void
hold_root_drop(struct pawl *run)
{
	if (run->home.hold_store)
		store_remove(run->home.hold_store, buf_str(&run->home.hold_key), NULL);
	store_close(run->home.hold_store);
	buf_clear(&run->home.hold_key);
}
