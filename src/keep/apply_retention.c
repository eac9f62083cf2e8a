/* SPDX-License-Identifier: Apache-2.0 */
/* apply_retention: see apply_retention.h. */
#include "keep/apply_retention.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "catalog/mirrors.h"
#include "keep/pointers.h"
#include "keep/removal.h"
#include "policy/retain.h"

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

PAWL_DEFINE_CLEAN(struct pawl_decisions, pawl_decisions_free);

/* Asks the caller's rule. */
static int
ask_rule(const struct pawl_retention *policy, struct retain_item *items, size_t n, struct pawl_error *err)
{
	PAWL_FREE struct pawl_candidate *candidates = mem_zalloc(n + 1, sizeof(*candidates));
	PAWL_FREE unsigned char *keep = mem_zalloc(n + 1, 1);
	struct pawl_error why = {0};

	if (!candidates || !keep)
		return err_nomem(err, "retention");
	for (size_t i = 0; i < n; i++)
		candidates[i] = (struct pawl_candidate){.id = items[i].id,
		                                        .step = items[i].step,
		                                        .unix_seconds = items[i].unix_seconds,
		                                        .bytes = items[i].bytes,
		                                        .metrics = items[i].metrics,
		                                        .n_metrics = items[i].n_metrics,
		                                        .pinned = items[i].pinned,
		                                        .nonfinite = items[i].nonfinite};
	int rc = policy->keep(policy->keep_arg, candidates, n, keep, &why);

	TRY(err_of_caller(err, rc, &why, "retention: the rule of the caller"));
	for (size_t i = 0; i < n; i++)
		items[i].ruled = keep[i] != 0;
	return 0;
}

static int
decide_all(struct pawl *run, const struct pawl_retention *policy, struct pawl_decisions **ret, struct pawl_error *err)
{
	PAWL_CLEAN(pawl_decisions_free_clean) struct pawl_decisions *d = mem_zalloc(1, sizeof(*d));
	PAWL_FREE struct retain_item *items = NULL;

	if (!d)
		return err_nomem(err, "retention");
	run_lock(run);
	int rc = catalog_items(run->catalog, &items, &d->n, err);

	run_unlock(run);
	TRY(rc);
	d->rows = mem_zalloc(d->n + 1, sizeof(*d->rows));
	d->texts = mem_zalloc(d->n + 1, sizeof(*d->texts));
	if (!d->rows || !d->texts)
		return err_nomem(err, "retention");
	if (policy->keep)
		TRY(ask_rule(policy, items, d->n, err));
	retain_decide(policy, items, d->n, (double)clock_unix_ns() / 1e9, d->texts);
	for (size_t i = 0; i < d->n; i++) {
		const struct catalog_entry *e = catalog_get(run->catalog, items[i].id);

		if (!d->texts[i].keep && (!e || strcmp(e->summary->run_id, run->self.run_id) != 0)) { /* P8 */
			d->texts[i].keep = true;
			snprintf(d->texts[i].reason, sizeof(d->texts[i].reason), "written by another run");
		}
		d->rows[i] = (struct pawl_decision){
			.id = items[i].id, .keep = d->texts[i].keep, .reason = d->texts[i].reason};
	}
	*ret = steal(&d);
	return 0;
}

int
apply_retention(struct pawl *run, const struct pawl_retention *policy, bool dry_run, struct pawl_decisions **ret,
                struct pawl_error *err)
{
	PAWL_CLEAN(pawl_decisions_free_clean) struct pawl_decisions *d = NULL;
	PAWL_CLEAN(buf_clear) struct buf doomed = {0};
	int rc;

	run_edit(run);
	rc = catalog_reload(run->catalog, err); /* pins and holds of other processes */
	if (rc == 0)
		rc = decide_all(run, policy, &d, err);
	for (size_t i = 0; rc == 0 && !dry_run && i < d->n; i++) {
		struct catalog_entry *e = d->rows[i].keep ? NULL : catalog_get(run->catalog, d->rows[i].id);

		if (e)
			rc = removal_begin(run, e, d->rows[i].reason, &doomed, err);
		if (rc == PAWL_EBUSY) { /* held or pinned since the decision: it stays */
			d->rows[i].keep = 1;
			snprintf(d->texts[i].reason, sizeof(d->texts[i].reason), "%s",
			         e->held ? "held by a reader" : "pinned");
			rc = 0;
		}
	}
	run_edited(run);
	TRY(rc); /* checkpoints that ended before the error are hidden; the next open removes them */
	TRY(removal_finish(run, &doomed, err));
	if (ret)
		*ret = steal(&d);
	return 0;
}

/* Writes "accuracy, loss": the metrics of the checkpoints, each once, as many as fit. */
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

/* A rule by a metric that no checkpoint has is a mistake: it would keep arbitrary checkpoints. */
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
prune_run(struct pawl *run, const struct pawl_retention *policy, int dry_run, struct pawl_decisions **ret,
          struct pawl_error *err)
{
	PAWL_CLEAN(pawl_decisions_free_clean) struct pawl_decisions *decisions = NULL;
	struct pawl_retention own = run ? run->settings.retention : (struct pawl_retention){0};

	if (!run)
		return err_set(err, PAWL_EUSAGE, "prune: expected a run, found NULL");
	if (policy)
		TRY(retain_take(policy, &own, err));
	if (!dry_run)
		TRY(run_check_keeper(run, err));
	if (policy && own.num_to_keep == PAWL_KEEP_MEMORY)
		return err_set(err, PAWL_EUSAGE, "prune: memory only is a rule for opening a run, not for prune");
	if (policy && !own.n_scores &&
	    run->settings.retention.n_scores) { /* P6: the best is the best of the training */
		own.score_attributes = run->settings.retention.score_attributes;
		own.score_orders = run->settings.retention.score_orders;
		own.n_scores = run->settings.retention.n_scores;
		retain_count_newest(&own);
	}
	TRY(retain_check(&own, err));
	if (policy && policy->n_scores)
		TRY(check_attributes(run, &own, err));
	TRY(apply_retention(run, &own, dry_run, &decisions, err));
	if (!dry_run)
		TRY(pointers_update(run, err));
	if (ret)
		*ret = steal(&decisions);
	return 0;
}

int
pawl_prune(struct pawl *run, const struct pawl_retention *policy, int dry_run, struct pawl_decisions **ret,
           struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, prune_run(run, policy, dry_run, ret, &own), &own);
}
