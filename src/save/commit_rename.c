/* SPDX-License-Identifier: Apache-2.0 */
/* commit_rename: the commit where folders can be renamed. The files and the manifest are in a
 * hidden folder. Giving it the checkpoint's name is the commit: one atomic and exclusive step. */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "catalog/catalog.h"
#include "keep/gc.h"
#include "ranks/agree.h"
#include "run/lease.h"
#include "save/commit.h"
#include "save/save.h"

/* In a hidden folder a file may be written under its own name. That saves one journal commit
 * compared with a put. */
static int
write_hidden(struct store *store, const char *key, const struct buf *text, struct pawl_error *err)
{
	struct store_file *file;

	TRY(store_create(store, key, &(struct store_create){.nbytes = text->len, .buffered = true}, &file, err));
	int rc = store_write(store, file, 0, text->ptr, text->len, err);

	if (rc < 0) {
		store_abort(store, file);
		return rc;
	}
	return store_finish(store, file, err);
}

static int
put_manifest(struct save *s, const struct buf *text, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0};

	buf_printf(&key, "%s/" MANIFEST_NAME, s->image.partial);
	TRY(buf_check(&key, "commit", err));
	return write_hidden(s->run->store, buf_str(&key), text, err);
}

/* A single checkpoint replaces the one before it: swapped in one step where possible. Else the old
 * one is moved aside first, and moved back if the new one cannot be published. The old one ends
 * under the partial name and is removed. */
static int
replace_single(struct save *s, struct pawl_error *err)
{
	struct store *store = s->run->store;
	PAWL_CLEAN(buf_clear) struct buf aside = {0};
	int rc = store_exchange(store, s->image.partial, s->folder, err);

	if (rc == 0) {
		store_remove_folder(store, s->image.partial, NULL);
		return 0;
	}
	if (rc != PAWL_EUNSUPPORTED)
		return rc;
	buf_printf(&aside, ".%s.%s.old", s->name, s->image.token);
	TRY(buf_check(&aside, "commit", err));
	TRY(store_publish(store, s->folder, buf_str(&aside), err));
	rc = store_publish(store, s->image.partial, s->folder, err);
	if (rc < 0 && store_publish(store, buf_str(&aside), s->folder, NULL) < 0)
		return err_prefix(err, rc, "%s: the checkpoint before this one remains in %s; rename it to %s",
		                  store->root, buf_str(&aside), s->folder);
	if (rc < 0)
		return rc;
	store_remove_folder(store, buf_str(&aside), NULL);
	return 0;
}

static int
rename_folder(struct save *s, struct pawl_error *err)
{
	s->is_publishing = true;
	return store_publish(s->run->store, s->image.partial, s->folder, err);
}

static int
complete_folder(struct save *s, const struct buf *text, const struct manifest_file *files, size_t n,
                struct pawl_error *err)
{
	if (s->run->self.lease)
		TRY(lease_check(s->run->self.lease, err));
	TRY(put_manifest(s, text, err));
	return commit_check_files(s, files, n, err);
}

static int
publish_by_rename(struct save *s, const struct buf *text, const struct manifest_file *files, size_t n,
                  struct pawl_error *err)
{
	TRY(complete_folder(s, text, files, n, err));
	return rename_folder(s, err);
}

static int
publish_by_exchange(struct save *s, const struct buf *text, const struct manifest_file *files, size_t n,
                    struct pawl_error *err)
{
	TRY(complete_folder(s, text, files, n, err));
	const int rc = rename_folder(s, err);

	return rc == PAWL_EEXISTS ? replace_single(s, err) : rc;
}

/* No other process knows of the save, and its rename has failed. */
static int
resolve_alone(struct save *s, struct pawl_error *err)
{
	(void)s, (void)err;
	return 0;
}

/* Renames the hidden folder, so that no process can publish it. PAWL_ENOTFOUND if it does not
 * exist, or no longer. */
static int
put_aside(struct save *s, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf aside = {0};

	TRY(gc_by_rename.take_unfinished(s->run->store, s->image.partial, &aside, err));
	store_remove_folder(s->run->store, buf_str(&aside), NULL);
	return 0;
}

static void
withdraw_rename(struct save *s)
{
	put_aside(s, NULL);
}

/* Has this save become a checkpoint? *ret_name: its name. */
static int
find_published(struct save *s, char **ret_name, struct pawl_error *err)
{
	int found = 0;

	run_edit(s->run);
	int rc = catalog_reload(s->run->catalog, err);

	for (size_t i = 0; rc == 0 && i < s->run->catalog->n && !found; i++) {
		const struct catalog_entry *e = &s->run->catalog->entries[i];

		if (!e->summary && e->id == s->request.id && e->code != PAWL_ENOTFOUND)
			found = err_set(err, PAWL_EIO, "%s", e->problem);
		if (!e->summary || strcmp(e->summary->token, s->image.token) != 0)
			continue;
		*ret_name = mem_strdup(e->name);
		found = *ret_name ? 1 : err_nomem(err, "save");
	}
	run_edited(s->run);
	return rc < 0 ? rc : found;
}

/* If another training has taken the run over, a missing checkpoint may have existed and been
 * deleted. */
static int
find_by_catalog(struct save *s, char **ret_name, struct pawl_error *err)
{
	int rc = find_published(s, ret_name, err);

	if (rc != 0 || s->run->modes.agree->is_current(s->run))
		return rc;
	return err_set(err, PAWL_ECONFLICT, "the run no longer belongs to this job");
}

static int
abort_by_rename(struct save *s, char **ret_name, struct pawl_error *err)
{
	int rc = put_aside(s, err);

	return rc == PAWL_ENOTFOUND ? find_by_catalog(s, ret_name, err) : rc;
}

const struct commit_ops commit_by_exchange = {.is_hidden = true,
                                              .publish = publish_by_exchange,
                                              .resolve = resolve_alone,
                                              .find = find_by_catalog,
                                              .withdraw = withdraw_rename,
                                              .abort = abort_by_rename};

const struct commit_ops commit_by_rename = {.is_hidden = true,
                                            .publish = publish_by_rename,
                                            .resolve = resolve_alone,
                                            .find = find_by_catalog,
                                            .withdraw = withdraw_rename,
                                            .abort = abort_by_rename};
