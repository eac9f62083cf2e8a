/* SPDX-License-Identifier: Apache-2.0 */
/* removal: see removal.h. */
#include "keep/removal.h"

#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/hidden.h"
#include "base/json.h"
#include "base/mem.h"
#include "catalog/mirrors.h"
#include "run/lease.h"

/* A reader that made a hold on the checkpoint meanwhile, or a process that pinned it, gets it back
 * (P6). They make their hold or mark first and look for the manifest afterwards. */
static int
check_unclaimed(struct pawl *run, const struct catalog_entry *e, struct pawl_error *err)
{
	bool pinned = false;

	TRY(catalog_reload_holds(run->catalog, err));
	TRY(catalog_read_pin(run->catalog, e, &pinned, err));
	if (e->held)
		return err_set(err, PAWL_EBUSY, "%s is now held by a reader", e->name);
	if (pinned && !e->pinned)
		return err_set(err, PAWL_EBUSY, "%s has just been pinned", e->name);
	return 0;
}

/* ---- by renaming the folder */

static int
put_hidden(struct pawl *run, const struct catalog_entry *e, const char *folder, struct buf *ret, struct pawl_error *err)
{
	char hidden[HIDDEN_NAME_BYTES];

	(void)folder;
	TRY(hidden_name(e->name, HIDDEN_PARTIAL, hidden, err));
	buf_printf(ret, "%s%s", run->catalog->kind->folder, hidden);
	return buf_check(ret, "remove", err);
}

/* The next opening of the run deletes the hidden folder, so its name matters. */
static int
rename_back(struct pawl *run, const struct catalog_entry *e, const char *folder, const char *rest,
            struct pawl_error *err)
{
	struct pawl_error why = {0};
	int rc = store_publish(run->store, rest, folder, &why);

	return rc < 0 ? err_set(err, rc,
	                        "%s must stay, but could not be renamed back; rename %s to %s before the run is opened "
	                        "again: %s",
	                        e->name, rest, folder, why.message)
	              : 0;
}

static int
rename_folder(struct pawl *run, struct catalog_entry *e, const char *folder, const char *rest, struct pawl_error *err)
{
	TRY(store_publish(run->store, folder, rest, err));
	int rc = check_unclaimed(run, e, err);

	if (rc < 0)
		TRY(rename_back(run, e, folder, rest, err));
	return rc;
}

const struct removal_ops removal_by_rename = {.put_rest = put_hidden, .end = rename_folder};

/* ---- by removing the manifest */

static int
put_folder(struct pawl *run, const struct catalog_entry *e, const char *folder, struct buf *ret, struct pawl_error *err)
{
	(void)run, (void)e;
	buf_puts(ret, folder);
	return buf_check(ret, "remove", err);
}

/* Nothing is put over what another process has put there meanwhile, where the store can tell. */
static int
put_manifest_back(struct pawl *run, const struct catalog_entry *e, const char *key, const struct buf *text,
                  struct pawl_error *err)
{
	const int flags = STORE_DURABLE | (run->home.caps.exclusive_put ? STORE_EXCLUSIVE : 0);
	struct pawl_error why = {0};
	int rc = store_put_bytes(run->store, key, text->ptr, text->len, flags, &why);

	return rc < 0 ? err_set(err, rc, "%s must stay, but its manifest could not be put back; repair it: %s", e->name,
	                        why.message)
	              : 0;
}

static int
remove_manifest(struct pawl *run, struct catalog_entry *e, const char *folder, const char *rest, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0}, text = {0};

	(void)rest;
	buf_printf(&key, "%s/" MANIFEST_NAME, folder);
	TRY(buf_check(&key, "remove", err));
	int rc = store_get(run->store, buf_str(&key), MANIFEST_MAX_BYTES, &text, err);

	if (rc == PAWL_ENOTFOUND) /* it has ended already */
		return 0;
	TRY(rc);
	TRY(store_remove(run->store, buf_str(&key), err));
	rc = store_sync(run->store, folder, err);
	if (rc == 0)
		rc = check_unclaimed(run, e, err);
	if (rc < 0)
		TRY(put_manifest_back(run, e, buf_str(&key), &text, err));
	return rc;
}

const struct removal_ops removal_by_manifest = {.put_rest = put_folder, .end = remove_manifest};

/* ---- first half */

static int
end_existence(struct pawl *run, struct catalog_entry *e, const char *folder, const char *rest, struct pawl_error *err)
{
	if (run->self.lease)
		TRY(lease_check(run->self.lease, err));
	if (e == &run->catalog->entries[run->catalog->n - 1])
		TRY(run_file_remember_id(run, e->id, err));
	return run->modes.removal->end(run, e, folder, rest, err);
}

int
removal_begin(struct pawl *run, struct catalog_entry *e, const char *reason, struct buf *doomed, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf folder = {0}, rest = {0};
	const size_t before = doomed->len;

	catalog_key(run->catalog, e->name, &folder);
	TRY(buf_check(&folder, "remove", err));
	TRY(run->modes.removal->put_rest(run, e, buf_str(&folder), &rest, err));
	buf_puts(doomed, e->name);
	buf_putc(doomed, 0);
	buf_puts(doomed, buf_str(&rest));
	buf_putc(doomed, 0);
	json_add_u64(doomed, "id", e->id);
	json_add_i64(doomed, "step", e->summary ? e->summary->step : 0);
	json_add_text(doomed, "name", e->name);
	json_add_text(doomed, "reason", reason);
	buf_putc(doomed, 0);
	int rc = buf_check(doomed, "remove", err);

	if (rc == 0)
		rc = end_existence(run, e, buf_str(&folder), buf_str(&rest), err);
	if (rc < 0) {
		doomed->len = before; /* it stays */
		return rc;
	}
	run_lock(run);
	if (!mirrors_keep(run->mirrors, e))
		catalog_drop(run->catalog, e->id); /* e is gone from here on */
	run_unlock(run);
	return 0;
}

/* ---- second half */

struct kept_folder {
	struct recycle *recycle;
	const char *key;
};

static int
recycle_pack(void *arg, const struct store_entry *entry)
{
	const struct kept_folder *folder = arg;
	PAWL_FREE char *key = NULL;

	if (entry->is_folder || entry->is_link || entry->n_links != 1 || strcmp(entry->name, MANIFEST_NAME) == 0)
		return 0;
	key = mem_printf("%s/%s", folder->key, entry->name);
	if (key)
		recycle_put(folder->recycle, key, entry->nbytes);
	return 0;
}

static int
delete_bytes(struct pawl *run, const char *name, const char *folder, const char *fields, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf mark = {0};

	buf_printf(&mark, PINS_FOLDER "/%s.json", name);
	TRY(buf_check(&mark, "remove", err));
	if (run->opts.packs.recycle && run->saves.writer)
		store_list(run->store, folder, recycle_pack, &(struct kept_folder){&run->saves.recycle, folder}, NULL);
	TRY(store_remove_folder(run->store, folder, err));
	store_remove(run->store, buf_str(&mark), NULL);
	events_add(&run->events, "remove", fields);
	return 0;
}

int
removal_finish(struct pawl *run, const struct buf *doomed, struct pawl_error *err)
{
	for (const char *name = doomed->ptr; name && name < doomed->ptr + doomed->len;) {
		const char *folder = name + strlen(name) + 1;

		const char *fields = folder + strlen(folder) + 1;

		TRY(delete_bytes(run, name, folder, fields, err));
		name = fields + strlen(fields) + 1;
	}
	return 0;
}
