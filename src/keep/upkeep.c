/* SPDX-License-Identifier: Apache-2.0 */
/*
 * upkeep: acting on what retention decides: removals, pointers, pins, late scores. Called by save.c after a commit and
 * by users. Decides nothing itself (retain.c does). Promises P6, P7 (first the checkpoint stops to exist, durably, then
 * its bytes go), P8 (only checkpoints whose manifest names this run; a failing listing stops everything), P12.
 */
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "catalog/far.h"
#include "policy/retain.h"
#include "run/lease.h"
#include "run/run.h"

struct pawl_decisions {
	struct pawl_decision *rows;
	struct retain_decision *texts;
	size_t n;
};

void
pawl_decisions_free(struct pawl_decisions *d)
{
	if (!d)
		return;
	mem_free(d->rows);
	mem_free(d->texts);
	mem_free(d);
}

size_t
pawl_decisions_count(const struct pawl_decisions *d)
{
	return d->n;
}

const struct pawl_decision *
pawl_decisions_get(const struct pawl_decisions *d, size_t i)
{
	return i < d->n ? &d->rows[i] : NULL;
}

static void
decisions_clean(struct pawl_decisions **d)
{
	pawl_decisions_free(*d);
}

static int
decide(struct pawl *run, const struct pawl_retention *policy, struct pawl_decisions **ret, struct pawl_error *err)
{
	PAWL_CLEAN(decisions_clean) struct pawl_decisions *d = mem_zalloc(1, sizeof(*d));
	PAWL_FREE struct retain_item *items = NULL;

	if (!d)
		return err_set(err, PAWL_ENOMEM, "retention: out of memory");
	run_lock(run);
	int rc = catalog_items(run->catalog, &items, &d->n, err);

	run_unlock(run);
	TRY(rc);
	d->rows = mem_zalloc(d->n + 1, sizeof(*d->rows));
	d->texts = mem_zalloc(d->n + 1, sizeof(*d->texts));
	if (!d->rows || !d->texts)
		return err_set(err, PAWL_ENOMEM, "retention: out of memory");
	retain_decide(policy, items, d->n, (double)clock_unix_ns() / 1e9, d->texts);
	for (size_t i = 0; i < d->n; i++) {
		const struct catalog_entry *e = catalog_get(run->catalog, items[i].id);

		if (!d->texts[i].keep && (!e || strcmp(e->summary->run_id, run->run_id) != 0)) { /* P8 */
			d->texts[i].keep = true;
			snprintf(d->texts[i].reason, sizeof(d->texts[i].reason), "written by another run");
		}
		d->rows[i] = (struct pawl_decision){
			.id = items[i].id, .keep = d->texts[i].keep, .reason = d->texts[i].reason};
	}
	*ret = steal(&d);
	return 0;
}

struct pack_list {
	struct pawl *run;
	const char *folder;
};

static int
recycle_one(void *arg, const struct store_entry *entry)
{
	struct pack_list *list = arg;
	PAWL_FREE char *key = NULL;

	if (entry->is_folder || entry->is_link || entry->n_links != 1 || strcmp(entry->name, MANIFEST_NAME) == 0)
		return 0;
	key = mem_printf("%s/%s", list->folder, entry->name);
	if (key)
		recycle_put(list->run, key, entry->nbytes);
	return 0;
}

/* Renames a checkpoint's folder out of sight; who took hold of it or pinned it in the meantime gets it back (P6): they
 * put their hold or mark first and look for the manifest after that. */
static int
hide(struct pawl *run, struct catalog_entry *e, const char *folder, const char *hidden, struct pawl_error *err)
{
	bool pinned = false;

	TRY(store_publish(run->store, folder, hidden, err));
	int rc = catalog_reload_holds(run->catalog, err);

	if (rc == 0)
		rc = catalog_read_pin(run->catalog, e, &pinned, err);
	if (rc == 0 && e->held)
		rc = err_set(err, PAWL_EBUSY, "%s has just been taken hold of by a reader", e->name);
	if (rc == 0 && pinned && !e->pinned)
		rc = err_set(err, PAWL_EBUSY, "%s has just been pinned", e->name);
	if (rc < 0)
		store_publish(run->store, hidden, folder, NULL);
	return rc;
}

/* The one step that ends a checkpoint: `other` is the hidden folder, or on stores without renames the manifest's key.
 */
static int
end_existence(struct pawl *run, struct catalog_entry *e, const char *folder, const char *other, struct pawl_error *err)
{
	if (run->lease)
		TRY(lease_check(run->lease, err));
	if (e == &run->catalog->entries[run->catalog->n - 1])
		TRY(run_remember_id(run, e->id, err));
	if (run->caps.rename_folder)
		return hide(run, e, folder, other, err);
	TRY(store_remove(run->store, other, err));
	return store_sync(run->store, folder, err);
}

/* First half of a removal (P7): the checkpoint stops to exist in one durable step: its folder is renamed to a hidden
 * name that gc knows, or on stores without renames its manifest goes. Within run_edit. Appends name and folder
 * to doomed. */
static int
unlist(struct pawl *run, struct catalog_entry *e, struct buf *doomed, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf folder = {0}, other = {0};
	bool rename = run->caps.rename_folder;
	size_t before = doomed->len;
	char token[33];
	int rc;

	TRY(clock_token(token, err));
	catalog_key(run->catalog, e->name, &folder);
	TRY(buf_check(&folder, "remove", err));
	if (rename)
		buf_printf(&other, "%s.%s.%s.partial", run->single_name ? "" : CATALOG_FOLDER "/", e->name, token);
	else
		buf_printf(&other, "%s/" MANIFEST_NAME, buf_str(&folder));
	TRY(buf_check(&other, "remove", err));
	buf_puts(doomed, e->name);
	buf_putc(doomed, 0);
	buf_puts(doomed, rename ? buf_str(&other) : buf_str(&folder));
	buf_putc(doomed, 0);
	rc = buf_check(doomed, "remove", err);
	if (rc == 0)
		rc = end_existence(run, e, buf_str(&folder), buf_str(&other), err);
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

/* Second half: its bytes go, which takes long for large ones, so no lock is held. */
static int
discard(struct pawl *run, const char *name, const char *folder, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf mark = {0}, fields = {0};

	buf_printf(&mark, CATALOG_MARKS "/%s.json", name);
	buf_printf(&fields, "\"name\":\"%s\"", name);
	TRY(buf_check(&mark, "remove", err));
	TRY(buf_check(&fields, "remove", err));
	if (run->opts.recycle && run->writer)
		store_list(run->store, folder, recycle_one, &(struct pack_list){run, folder}, NULL);
	TRY(store_remove_folder(run->store, folder, err));
	store_remove(run->store, buf_str(&mark), NULL);
	run_event(run, "remove", buf_str(&fields));
	return 0;
}

static int
discard_all(struct pawl *run, const struct buf *doomed, struct pawl_error *err)
{
	for (const char *name = doomed->ptr; name && name < doomed->ptr + doomed->len;) {
		const char *folder = name + strlen(name) + 1;

		TRY(discard(run, name, folder, err));
		name = folder + strlen(folder) + 1;
	}
	return 0;
}

int
run_retain(struct pawl *run, const struct pawl_retention *policy, bool dry_run, struct pawl_decisions **ret,
           struct pawl_error *err)
{
	PAWL_CLEAN(decisions_clean) struct pawl_decisions *d = NULL;
	PAWL_CLEAN(buf_clear) struct buf doomed = {0};
	int rc;

	run_edit(run);
	rc = catalog_reload(run->catalog, err); /* pins and holds of other processes */
	if (rc == 0)
		rc = decide(run, policy, &d, err);
	for (size_t i = 0; rc == 0 && !dry_run && i < d->n; i++) {
		struct catalog_entry *e = d->rows[i].keep ? NULL : catalog_get(run->catalog, d->rows[i].id);

		if (e)
			rc = unlist(run, e, &doomed, err);
		if (rc == PAWL_EBUSY) /* held since the decision: the next retention sees it */
			rc = 0;
	}
	run_edited(run);
	TRY(rc); /* what was unlisted before an error is hidden; the next open removes it */
	TRY(discard_all(run, &doomed, err));
	if (ret)
		*ret = steal(&d);
	return 0;
}

static int
point(struct pawl *run, const char *pointer, const struct catalog_entry *e, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf target = {0};

	if (!e)
		return store_remove(run->store, pointer, err);
	catalog_key(run->catalog, e->name, &target);
	TRY(buf_check(&target, pointer, err));
	return store_pointer(run->store, pointer, buf_str(&target), err);
}

/* A pointer leads to what is in this folder; one that lies only in a mirror has none here. */
static const struct catalog_entry *
here(const struct catalog_entry *e)
{
	return e && !e->at ? e : NULL;
}

int
run_point(struct pawl *run, struct pawl_error *err)
{
	int rc;

	run_edit(run);
	rc = point(run, "latest", here(catalog_latest(run->catalog)), err);
	if (rc == 0)
		rc = point(run, "best", here(catalog_best(run->catalog, &run->retention)), err);
	run_edited(run);
	return rc;
}

/* "accuracy, loss": the metrics that checkpoints have, each once, as far as they fit. */
static void
list_metrics(const struct retain_item *items, size_t n, char *out, size_t cap)
{
	size_t len = 0;

	out[0] = '\0';
	for (size_t i = 0; i < n; i++) {
		for (size_t m = 0; m < items[i].n_metrics && len < cap; m++) {
			const char *name = items[i].metrics[m].name;
			bool seen = false;

			for (size_t k = 0; k < i && !seen; k++)
				for (size_t l = 0; l < items[k].n_metrics && !seen; l++)
					seen = strcmp(items[k].metrics[l].name, name) == 0;
			if (!seen)
				len += (size_t)snprintf(out + len, cap - len, "%s%s", len ? ", " : "", name);
		}
	}
}

/* A rule by a metric that no checkpoint has is a slip of the pen, and would keep what happens to be there. */
static int
check_attributes(struct pawl *run, const struct pawl_retention *policy, struct pawl_error *err)
{
	PAWL_FREE struct retain_item *items = NULL;
	char there[400];
	size_t n;

	run_lock(run);
	int rc = catalog_items(run->catalog, &items, &n, err);

	for (size_t a = 0; rc == 0 && n && a < policy->n_scores; a++) {
		bool found = false;

		for (size_t i = 0; i < n && !found; i++)
			for (size_t m = 0; m < items[i].n_metrics && !found; m++)
				found = strcmp(items[i].metrics[m].name, policy->score_attributes[a]) == 0;
		if (found)
			continue;
		list_metrics(items, n, there, sizeof(there));
		rc = err_set(err, PAWL_EUSAGE, "no checkpoint has the metric '%s' (expected one of: %s)",
		             policy->score_attributes[a], *there ? there : "there are none");
	}
	run_unlock(run);
	return rc;
}

static int
prune(struct pawl *run, const struct pawl_retention *policy, int dry_run, struct pawl_decisions **ret,
      struct pawl_error *err)
{
	struct pawl_retention own;

	if (!run)
		return err_set(err, PAWL_EUSAGE, "prune: expected a run, found NULL");
	if (!dry_run)
		TRY(run_check_keeper(run, err));
	if (policy && policy->num_to_keep == PAWL_KEEP_MEMORY)
		return err_set(err, PAWL_EUSAGE, "prune: memory only is a rule that a run is opened with");
	own = policy ? *policy : run->retention;
	if (policy && !own.n_scores && run->retention.n_scores) { /* P6: the best is what the training calls so */
		own.score_attributes = run->retention.score_attributes;
		own.score_orders = run->retention.score_orders;
		own.n_scores = run->retention.n_scores;
		retain_count_newest(&own);
	}
	TRY(retain_check(&own, err));
	if (policy && policy->n_scores)
		TRY(check_attributes(run, policy, err));
	TRY(run_retain(run, &own, dry_run, ret, err));
	return dry_run ? 0 : run_point(run, err);
}

int
pawl_prune(struct pawl *run, const struct pawl_retention *policy, int dry_run, struct pawl_decisions **ret,
           struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, prune(run, policy, dry_run, ret, &own), &own);
}

/* The valid entry of an id. Within run_edit. */
static int
want(struct pawl *run, uint64_t id, struct catalog_entry **ret, struct pawl_error *err)
{
	TRY(catalog_reload(run->catalog, err));
	*ret = catalog_get(run->catalog, id);
	if (!*ret)
		return err_set(err, PAWL_ENOTFOUND, "%s has no checkpoint with id %llu", run->root,
		               (unsigned long long)id);
	return 0;
}

/* Another process may have deleted it while the mark was made; if it comes after the mark, it sees the mark. */
static int
check_still_there(struct pawl *run, const struct catalog_entry *e, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0};
	struct store_entry entry;

	catalog_key(run->catalog, e->name, &key);
	buf_puts(&key, "/" MANIFEST_NAME);
	TRY(buf_check(&key, e->name, err));
	int rc = store_stat(run->store, buf_str(&key), &entry, err);

	return rc == PAWL_ENOTFOUND ? err_set(err, rc, "%s has just been deleted", e->name) : rc;
}

static int
set_pin(struct pawl *run, uint64_t id, bool pinned, struct pawl_error *err)
{
	struct catalog_entry *e;
	int rc;

	struct pawl_error own = {0};

	if (!run)
		return err_set(err, PAWL_EUSAGE, "pin: expected a run, found NULL");
	run_edit(run);
	rc = want(run, id, &e, &own);
	if (rc == 0)
		rc = catalog_mark(run->catalog, e, &pinned, NULL, 0, &own);
	if (rc == 0)
		rc = check_still_there(run, e, &own);
	run_edited(run);
	mirrors_wake(run);
	return err_give(err, rc, &own);
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
	struct catalog_entry *e;
	int rc;

	if (!run || (n && !metrics))
		return err_set(err, PAWL_EUSAGE, "score: expected a run and metrics, found NULL");
	for (size_t i = 0; i < n; i++)
		if (metrics[i].not_a_number)
			return err_set(err, PAWL_EUSAGE, "score: %s received a value that is no number",
			               metrics[i].name);
	run_edit(run);
	rc = want(run, id, &e, err);
	if (rc == 0)
		rc = catalog_mark(run->catalog, e, NULL, metrics, n, err);
	run_edited(run);
	TRY(rc);
	mirrors_wake(run);
	return run->opts.read_only ? 0 : run_point(run, err); /* the training points anew after its next save */
}

int
pawl_score(struct pawl *run, uint64_t id, const struct pawl_metric *metrics, size_t n, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, add_score(run, id, metrics, n, &own), &own);
}

/* What force is needed for. */
static int
check_precious(struct pawl *run, const struct catalog_entry *e, struct pawl_error *err)
{
	const char *why = e->pinned                                          ? "pinned"
	                  : e == catalog_latest(run->catalog)                ? "the latest"
	                  : e == catalog_best(run->catalog, &run->retention) ? "the best"
	                                                                     : NULL;

	if (!why)
		return 0;
	return err_set(err, PAWL_EBUSY, "%s is %s; removing it needs force", e->name, why);
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
	run_edit(run);
	rc = want(run, id, &e, err);
	if (rc == 0 && e->at)
		rc = err_set(err, PAWL_EUNSUPPORTED, "%s lies only in the mirror %s; remove it there", e->name,
		             e->at->root);
	if (rc == 0 && e->held)
		rc = err_set(err, PAWL_EBUSY, "%s is held by a reader", e->name);
	if (rc == 0 && !force)
		rc = check_precious(run, e, err);
	if (rc == 0)
		rc = unlist(run, e, &doomed, err);
	run_edited(run);
	TRY(rc);
	TRY(discard_all(run, &doomed, err));
	return run->single_name ? 0 : run_point(run, err);
}

int
pawl_remove(struct pawl *run, uint64_t id, int force, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, remove_one(run, id, force, &own), &own);
}
