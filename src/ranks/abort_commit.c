/* SPDX-License-Identifier: Apache-2.0 */
/* abort_commit: see abort_commit.h. Promises P2, P10. */
#include "ranks/abort_commit.h"

#include <string.h>

#include "base/buf.h"
#include "base/bump.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "catalog/catalog.h"
#include "run/lease.h"
#include "run/run.h"
#include "state/manifest.h"
#include "state/pack_name.h"

#define AGE_NS ((int64_t)7 * 86400 * 1000000000)

static int
manifest_key(const char *folder, struct buf *out, struct pawl_error *err)
{
	buf_printf(out, "%s/" MANIFEST_NAME, folder);
	return buf_check(out, folder, err);
}

int
abort_commit_put(struct store *store, const char *folder, const char *token, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0}, text = {0};
	char by[33];

	TRY(clock_token(by, err)); /* unique, so that a retried put recognises its own */
	TRY(manifest_key(folder, &key, err));
	buf_printf(&text, MANIFEST_WITHDRAWN_BEGIN "\"token\":\"%s\",\"by\":\"%s\"}\n", token ? token : "", by);
	TRY(buf_check(&text, folder, err));
	return store_put_bytes(store, buf_str(&key), text.ptr, text.len, STORE_EXCLUSIVE | STORE_DURABLE, err);
}

/* ---------------------------------------------------------- all that are open */

struct folders {
	struct bump memory;
	struct folder_seen {
		const char *name;
		bool is_decided, is_save;
		struct folder_seen *next;
	} *first; /* the latest; keys come in order, so a folder's are together */
};

static int
visit_key(void *arg, const struct store_entry *entry)
{
	struct folders *f = arg;
	const char *slash = strchr(entry->name, '/');
	size_t len = slash ? (size_t)(slash - entry->name) : 0;

	if (!slash)
		return 0;
	if (!f->first || strlen(f->first->name) != len || memcmp(f->first->name, entry->name, len) != 0) {
		struct folder_seen *seen = bump_alloc(&f->memory, sizeof(*seen));

		if (!seen)
			return PAWL_ENOMEM;
		seen->name = bump_strndup(&f->memory, entry->name, len);
		if (!seen->name)
			return PAWL_ENOMEM;
		seen->next = f->first;
		f->first = seen;
	}
	uint32_t rank, index;
	if (strcmp(slash + 1, MANIFEST_NAME) == 0)
		f->first->is_decided = true;
	if (pack_parse_name(slash + 1, &rank, &index))
		f->first->is_save = true;
	return 0;
}

static void
folders_clear(struct folders *f)
{
	bump_clear(&f->memory);
}

int
abort_commit_all(struct store *store, const char *folder, struct pawl_error *err)
{
	PAWL_CLEAN(folders_clear) struct folders f = {0};
	int rc = store_list_all(store, folder, visit_key, &f, err);

	if (rc == PAWL_ENOMEM)
		return err_set(err, rc, "%s: out of memory", folder);
	TRY(rc);
	for (const struct folder_seen *seen = f.first; seen; seen = seen->next) {
		PAWL_CLEAN(buf_clear) struct buf key = {0};

		if (seen->is_decided || !seen->is_save) /* or of another program */
			continue;
		buf_printf(&key, "%s/%s", folder, seen->name);
		TRY(buf_check(&key, folder, err));
		rc = abort_commit_put(store, buf_str(&key), NULL, err);
		if (rc < 0 && rc != PAWL_EEXISTS) /* else it was decided just now */
			return rc;
	}
	return 0;
}

struct clearing {
	struct store *store;
	const char *folder;
	struct pawl_error *err;
};

static int
clear_one(void *arg, const struct store_entry *entry)
{
	const struct clearing *c = arg;
	PAWL_CLEAN(buf_clear) struct buf key = {0};

	if (entry->is_folder || strcmp(entry->name, MANIFEST_NAME) == 0)
		return 0;
	buf_printf(&key, "%s/%s", c->folder, entry->name);
	TRY(buf_check(&key, c->folder, c->err));
	return store_remove(c->store, buf_str(&key), c->err);
}

int
abort_commit_remove(struct store *store, const char *folder, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0}, text = {0};
	int rc = abort_commit_put(store, folder, NULL, err);

	if (rc == PAWL_EEXISTS) {
		TRY(manifest_key(folder, &key, err));
		TRY(store_get(store, buf_str(&key), MANIFEST_MAX_BYTES, &text, err));
		if (!manifest_is_withdrawn(text.ptr, text.len))
			return err_set(err, PAWL_EEXISTS, "%s is a checkpoint", folder);
	} else if (rc != PAWL_EUNSUPPORTED) { /* saves cannot be aborted on this store, and one process writes */
		TRY(rc);
	}
	rc = store_list(store, folder, clear_one, &(struct clearing){store, folder, err}, err);
	return rc == PAWL_ENOTFOUND ? 0 : rc;
}

int
abort_commit_forget(struct pawl *run, bool dry_run, uint64_t *count, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	const uint64_t last_id = run_file_last_id(run);
	size_t n = 0;

	run_lock(run);
	const char **keys = bump_array(&memory, run->catalog->n_withdrawn, sizeof(*keys));

	for (size_t i = 0; keys && i < run->catalog->n_withdrawn; i++) {
		const struct catalog_entry *e = &run->catalog->withdrawn[i];

		if (clock_unix_ns() - e->mtime_ns < AGE_NS || e->id >= last_id) /* its id is not given out again */
			continue;
		keys[n] = bump_printf(&memory, CATALOG_FOLDER "/%s/" MANIFEST_NAME, e->name);
		n += keys[n] != NULL;
	}
	run_unlock(run);
	for (size_t i = 0; i < n; i++) {
		if (!dry_run && run->self.lease)
			TRY(lease_check(run->self.lease, err));
		if (!dry_run)
			TRY(store_remove(run->store, keys[i], err));
		++*count;
	}
	return 0;
}
