/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sync_check: copied files count as synced when their checkpoints verify by pawl's own checksums
 * (P14). Every byte of a checkpoint is read once. A checkpoint that this handle has verified is not
 * read again.
 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"
#include "catalog/catalog.h"
#include "jobs/sync/sync.h"
#include "keep/verify.h"
#include "run/run.h"
#include "store/store.h"

void
sync_seen_clear(struct sync_seen *seen)
{
	bump_clear(&seen->memory);
	mem_free(seen->names);
	*seen = (struct sync_seen){0};
}

static bool
has_seen(const struct sync_seen *seen, const char *name)
{
	for (size_t i = 0; i < seen->n; i++)
		if (strcmp(seen->names[i], name) == 0)
			return true;
	return false;
}

static int
remember_name(struct sync_seen *seen, const char *name, struct pawl_error *err)
{
	if (!array_reserve(seen->names, seen->cap, seen->n + 1))
		return err_nomem(err, "sync");
	seen->names[seen->n] = bump_strndup(&seen->memory, name, strlen(name));
	if (seen->names[seen->n] == NULL)
		return err_nomem(err, "sync");
	seen->n++;
	return 0;
}

struct check {
	const struct sync_place *target;
	struct sync_seen *seen;
	const struct sync_limit *limit;
	const struct sync_names *before;
	uint64_t n;
};

static void
close_run(struct pawl **run)
{
	if (*run != NULL)
		pawl_close(*run, NULL);
}

PAWL_DEFINE_CLEAN(struct pawl_list, pawl_list_free);

/* Identifies a checkpoint among all others of that name. */
static void
name_of(const char *run, const struct pawl_info *info, char out[1400])
{
	snprintf(out, 1400, "%.1000s/%.130s %.40s %llu %llu %.6f", run, info->name, info->run_id,
	         (unsigned long long)info->id, (unsigned long long)info->bytes, info->unix_seconds);
}

static int
verify_one(struct check *c, struct pawl *run, const char *path, const struct pawl_info *info, struct pawl_error *err)
{
	char name[1400];
	struct pawl_findings *findings = NULL;
	struct pawl_error why = {0};
	name_of(path, info, name);
	TRY(sync_limit_check(c->limit, info->name, err));
	c->n++;
	if (has_seen(c->seen, name))
		return 0;
	int rc = verify_until(run, info->id, c->limit->meter, c->limit->deadline_ms, &findings, &why);
	pawl_findings_free(findings);
	if (rc == PAWL_ETIMEOUT)
		TRY(sync_limit_check(c->limit, info->name, err));
	if (rc < 0)
		return err_set(err, rc, "%s%s%s/%s: the synced copy failed verification: %s", c->target->store,
		               path[0] ? "/" : "", path, info->name, why.message);
	return remember_name(c->seen, name, err);
}

static int
open_run(const struct pawl_stores *stores, const char *root, const char *path, struct pawl **ret,
         struct pawl_error *err)
{
	/* The options of a URL stay at its end. */
	const char *options = text_url_options(root);
	PAWL_FREE char *whole =
		mem_printf("%.*s%s%s%s", (int)(options - root), root, path[0] != '\0' ? "/" : "", path, options);
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	if (whole == NULL)
		return err_nomem(err, "sync");
	opts.root = whole;
	opts.io.stores = stores;
	opts.read_only = 1;
	return pawl_open(&opts, ret, err);
}

/* Verifies every checkpoint of a run; none may be damaged. */
static int
check_run(struct check *c, const char *path, struct pawl_error *err)
{
	PAWL_CLEAN(close_run) struct pawl *run = NULL;
	PAWL_CLEAN(pawl_list_free_clean) struct pawl_list *list = NULL;
	TRY(open_run(c->target->stores, c->target->store, path, &run, err));
	TRY(pawl_list_open(run, 1, &list, err));
	for (size_t i = 0; i < pawl_list_count(list); i++) {
		const struct pawl_info *info = pawl_list_get(list, i);
		if (info->marks & PAWL_MARK_BAD) {
			if (strcmp(info->problem, CATALOG_NO_MANIFEST) == 0)
				continue; /* still being written */
			return err_set(err, info->code, "%s%s%s/%s: the synced copy failed verification: %s",
			               c->target->store, path[0] ? "/" : "", path, info->name, info->problem);
		}
		TRY(verify_one(c, run, path, info, err));
	}
	return 0;
}

/* True if the checkpoint existed before the sync began. */
static bool
was_there(const struct check *c, const char *path, const char *name)
{
	char key[1400];
	const struct buf *all = &c->before->manifests;
	snprintf(key, sizeof key, "%.1000s%s" CATALOG_FOLDER "/%.200s/" MANIFEST_NAME, path, path[0] ? "/" : "", name);
	for (size_t at = 0; at < all->len; at += strlen(all->ptr + at) + 1)
		if (strcmp(all->ptr + at, key) == 0)
			return true;
	return false;
}

/* A missing checkpoint is fine if the run's retention has removed it meanwhile. there: what the
 * target has. */
static int
check_missing(struct check *c, struct pawl *ours, const struct pawl_info *want, const struct pawl_list *there,
              struct pawl_error *err)
{
	PAWL_CLEAN(pawl_list_free_clean) struct pawl_list *now = NULL;
	uint64_t id = want->id;
	char name[200];
	bool here = false;
	snprintf(name, sizeof name, "%.199s", want->name);
	TRY(pawl_reload(ours, err));
	TRY(pawl_list_open(ours, 0, &now, err));
	for (size_t i = 0; i < pawl_list_count(now); i++)
		here = here || pawl_list_get(now, i)->id == id;
	for (size_t i = 0; here && i < pawl_list_count(there); i++)
		if (strcmp(pawl_list_get(there, i)->name, name) == 0)
			return err_set(
				err, PAWL_ECONFLICT,
				"%s: another checkpoint %s of this run is stored there; choose another place, or "
				"remove it there",
				c->target->store, name);
	return here ? err_set(err, PAWL_ENOTFOUND, "%s: %s was not copied completely", c->target->store, name) : 0;
}

/* Checks that the target has every checkpoint that the expected run had. */
static int
check_against(struct check *c, const char *expected, const char *path, struct pawl_error *err)
{
	PAWL_CLEAN(close_run) struct pawl *ours = NULL;
	PAWL_CLEAN(close_run) struct pawl *run = NULL;
	PAWL_CLEAN(pawl_list_free_clean) struct pawl_list *wanted = NULL;
	PAWL_CLEAN(pawl_list_free_clean) struct pawl_list *list = NULL;
	char name[1400], other[1400];
	TRY(open_run(NULL, expected, path, &ours, err));
	TRY(pawl_list_open(ours, 0, &wanted, err));
	if (pawl_list_count(wanted) == 0)
		return 0;
	int rc = open_run(c->target->stores, c->target->store, path, &run, err);
	if (rc == PAWL_ENOTFOUND)
		return err_set(err, rc, "%s%s%s: the run was not copied", c->target->store, path[0] ? "/" : "", path);
	TRY(rc);
	TRY(pawl_list_open(run, 0, &list, err));
	for (size_t i = 0; i < pawl_list_count(wanted); i++) {
		const struct pawl_info *want = pawl_list_get(wanted, i), *found = NULL;
		if (!was_there(c, path, want->name))
			continue;
		name_of(path, want, name);
		for (size_t j = 0; j < pawl_list_count(list) && found == NULL; j++) {
			name_of(path, pawl_list_get(list, j), other);
			if (strcmp(name, other) == 0)
				found = pawl_list_get(list, j);
		}
		if (found == NULL)
			TRY(check_missing(c, ours, want, list, err));
		if (found != NULL)
			TRY(verify_one(c, run, path, found, err));
	}
	return 0;
}

static int
check_all(struct check *c, const char *expected, const struct sync_names *names, struct pawl_error *err)
{
	static const char key[] = RUN_KEY;
	for (size_t at = 0; at < names->packs.len; at += strlen(names->packs.ptr + at) + 1) {
		const char *name = names->packs.ptr + at, *slash = strrchr(name, '/');
		if (strcmp(slash != NULL ? slash + 1 : name, key) != 0)
			continue;
		PAWL_FREE char *path = mem_strndup(name, slash != NULL ? strlen(name) - sizeof key : 0);
		if (path == NULL)
			return err_nomem(err, "sync");
		TRY(expected != NULL ? check_against(c, expected, path, err) : check_run(c, path, err));
	}
	return 0;
}

int
sync_check(const struct sync_place *target, const char *expected, const struct sync_names *before,
           struct sync_seen *seen, const struct sync_limit *limit, uint64_t *ret_n, struct pawl_error *err)
{
	struct check c = {.target = target, .seen = seen, .limit = limit, .before = before};
	PAWL_CLEAN(sync_names_clear) struct sync_names names = {0};
	struct store *store;
	int rc = 0;
	if (expected == NULL) {
		TRY(sync_place_open(target, false, &store, err));
		rc = sync_list(store, limit, &names, err);
		store_close(store);
	}
	if (rc == 0)
		rc = check_all(&c, expected, expected != NULL ? before : &names, err);
	*ret_n = c.n;
	return rc;
}
