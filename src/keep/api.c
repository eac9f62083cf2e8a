/* SPDX-License-Identifier: Apache-2.0 */
/* api: pins, late scores and removals as users call them. Promises P6, P7, P12. */
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "catalog/mirrors.h"
#include "keep/pointers.h"
#include "keep/removal.h"
#include "policy/retain.h"
#include "run/run.h"

/* The valid entry of an id, also of a save that has just begun. Takes run_edit. */
static int
find_to_change(struct pawl *run, uint64_t id, struct catalog_entry **ret, struct pawl_error *err)
{
	run_wait_committed(run, -1);
	run_edit(run);
	TRY(catalog_reload(run->catalog, err));
	*ret = catalog_get(run->catalog, id);
	if (!*ret)
		return err_set(err, PAWL_ENOTFOUND, "%s has no checkpoint with id %llu", run->home.root,
		               (unsigned long long)id);
	return 0;
}

/* Another process may have deleted the checkpoint before the mark was made. A later deletion sees
 * the mark. *ret_name: of the checkpoint if its manifest is missing. */
static int
check_still_there(struct pawl *run, const struct catalog_entry *e, char **ret_name, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0};
	struct store_entry entry;

	catalog_manifest_key(run->catalog, e->name, &key);
	TRY(buf_check(&key, e->name, err));
	int rc = store_stat(run->store, buf_str(&key), &entry, err);

	if (rc != PAWL_ENOTFOUND)
		return rc;
	*ret_name = mem_strdup(e->name);
	return *ret_name ? 0 : err_nomem(err, e->name);
}

/* The mark of a deleted checkpoint would count for a later one of the same name. */
static int
expect_put_back(struct pawl *run, const char *name, struct pawl_error *err)
{
	int back = catalog_wait_put_back(run->catalog, NULL, name, err);

	if (back != 0) /* if the store cannot tell, the mark stays: the checkpoint may have been put back */
		return back < 0 ? back : 0;
	pins_write(run->store, &(struct pin_mark){.name = name}, NULL);
	return err_set(err, PAWL_ENOTFOUND, "%s has just been deleted", name);
}

/* pinned, metrics: NULL = leave. */
static int
change_mark(struct pawl *run, uint64_t id, const bool *pinned, const struct pawl_metric *metrics, size_t n,
            struct pawl_error *err)
{
	PAWL_FREE char *missing = NULL;
	struct catalog_entry *e;
	int rc = find_to_change(run, id, &e, err);

	if (rc == 0)
		rc = catalog_mark(run->catalog, e, pinned, metrics, n, err);
	if (rc == 0)
		rc = check_still_there(run, e, &missing, err);
	run_edited(run);
	if (rc == 0 && missing)
		rc = expect_put_back(run, missing, err);
	mirrors_wake(run);
	return rc;
}

static int
set_pin(struct pawl *run, uint64_t id, bool pinned, struct pawl_error *err)
{
	struct pawl_error own = {0};

	if (!run)
		return err_set(err, PAWL_EUSAGE, "pin: expected a run, found NULL");
	return err_give(err, change_mark(run, id, &pinned, NULL, 0, &own), &own);
}

int
pawl_pin(struct pawl *run, uint64_t id, struct pawl_error *err)
{
	return set_pin(run, id, true, err);
}

int
pawl_unpin(struct pawl *run, uint64_t id, struct pawl_error *err)
{
	return set_pin(run, id, false, err);
}

static int
add_score(struct pawl *run, uint64_t id, const struct pawl_metric *metrics, size_t n, struct pawl_error *err)
{
	if (!run || (n && !metrics))
		return err_set(err, PAWL_EUSAGE, "score: expected a run and metrics, found NULL");
	TRY(retain_check_names("score", metrics, n, err));
	for (size_t i = 0; i < n; i++)
		if (metrics[i].not_a_number)
			return err_set(err, PAWL_EUSAGE, "score: %s received a value that is not a number",
			               metrics[i].name);
	TRY(change_mark(run, id, NULL, metrics, n, err));
	return run->opts.read_only ? 0 : pointers_update(run, err); /* the training updates them after its next save */
}

int
pawl_score(struct pawl *run, uint64_t id, const struct pawl_metric *metrics, size_t n, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, add_score(run, id, metrics, n, &own), &own);
}

/* Checkpoints that are removed only with force. */
static int
check_precious(struct pawl *run, const struct catalog_entry *e, struct pawl_error *err)
{
	const char *why = e->pinned                                                   ? "pinned"
	                  : e == catalog_latest(run->catalog)                         ? "the latest"
	                  : e == catalog_best(run->catalog, &run->settings.retention) ? "the best"
	                                                                              : NULL;

	if (!why)
		return 0;
	return err_set(err, PAWL_EBUSY, "%s is %s; set force to remove it", e->name, why);
}

static int
remove_one(struct pawl *run, uint64_t id, int force, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf doomed = {0};
	struct catalog_entry *e;
	int rc;

	if (!run)
		return err_set(err, PAWL_EUSAGE, "remove: expected a run, found NULL");
	TRY(run_check_keeper(run, err));
	rc = find_to_change(run, id, &e, err);
	if (rc == 0 && e->at)
		rc = err_set(err, PAWL_EUNSUPPORTED, "%s is stored only in the mirror %s; remove it there", e->name,
		             e->at->root);
	if (rc == 0 && e->held)
		rc = err_set(err, PAWL_EBUSY, "%s is held by a reader", e->name);
	if (rc == 0 && !force)
		rc = check_precious(run, e, err);
	if (rc == 0)
		rc = removal_begin(run, e, "asked for", &doomed, err);
	run_edited(run);
	TRY(rc);
	TRY(removal_finish(run, &doomed, err));
	return pointers_update(run, err);
}

int
pawl_remove(struct pawl *run, uint64_t id, int force, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, remove_one(run, id, force, &own), &own);
}
