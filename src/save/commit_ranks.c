/* SPDX-License-Identifier: Apache-2.0 */
/*
 * commit_ranks: how a save of many ranks ends, on each rank's saver thread. Promises P2, P4, P10,
 * P11, P15; the protocol is in docs/explanation/multi-rank.md.
 *
 *   rank 0:  all parts ──> manifest ──> RENAME ──> verdict "committed"
 *               │                          └─ returned an error ──> it exists: committed
 *               │                          └─ it cannot be known whether it exists: no verdict
 *               └─ one is missing, wrong or late ──> WITHDRAW ──> verdict "failed, because"
 *   others:  part ──> verdict ─────────────────────────────────> committed, or failed
 *                └─ rank 0 gone, or late ──> WITHDRAW ──┬─ done ──────> failed
 *                                                       └─ no source ─> it exists: committed
 *                                                                       else, if ours: failed
 *
 * RENAME gives the hidden folder the checkpoint's name. WITHDRAW gives it another hidden name. A
 * folder can be renamed only once, so the first one decides, and all ranks learn the same result.
 * In a bucket both put the same key, which can be put only once (abort_commit.h).
 */
#include <string.h>

#include "base/bump.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "catalog/catalog.h"
#include "layout/merge.h"
#include "ranks/agree.h"
#include "ranks/gather.h"
#include "save/commit.h"
#include "save/save.h"

static struct gather_round
round_of(const struct save *s)
{
	return (struct gather_round){.store = s->run->store,
	                             .m = s->run->group.rendezvous,
	                             .token = s->image.token,
	                             .kind = GATHER_SAVE,
	                             .timeout_ms = s->run->opts.timeouts.commit_ms,
	                             .ticket = s->progress.ticket};
}

/* ---- rank 0 */

/* All ranks have left the saves before this one, failed or not: their files can be removed. */
static void
clear_before(struct save *s)
{
	struct pawl *run = s->run;
	char token[33];

	for (uint64_t id = run->group.cleared_id + 1; id < s->request.id; id++) {
		rendezvous_save_token(run->group.rendezvous, id, token);
		gather_clear(run->store, token);
	}
	run->group.cleared_id = s->request.id - 1;
	if (run->group.left_behind)
		store_remove_folder(run->store, run->group.left_behind, NULL);
	mem_free(run->group.left_behind);
	run->group.left_behind = NULL;
}

static int
commit_all(struct save *s, struct pawl_error *err)
{
	PAWL_CLEAN(merge_free_clean) struct merge *g = NULL;
	PAWL_CLEAN(buf_clear) struct buf own = {0}, text = {0};
	const struct gather_round round = round_of(s);
	const struct manifest_file *files;
	size_t n;

	TRY(commit_describe(s, true, NULL, &own, err));
	TRY(merge_new(s->run->group.world, &own, &g, err));
	TRY(gather_parts(&round, merge_add, g, err));
	clear_before(s);
	TRY(merge_finish(g, &text, err));
	files = merge_files(g, &n);
	return commit_bytes(s, &text, files, n, err);
}

/* After an error: 0 if the checkpoint exists nevertheless; else no process will publish the
 * folder. */
static int
resolve_as_host(struct save *s, const struct pawl_error *why, struct pawl_error *err)
{
	struct pawl_error trouble = {0};
	PAWL_FREE char *name = NULL;
	const struct commit_ops *ops = s->run->modes.commit;
	int rc = 0;

	if (s->is_publishing) { /* the last step may have happened although it returned an error */
		rc = ops->find(s, &name, &trouble);
		if (rc == 1) {
			rc = store_sync(s->run->store, CATALOG_FOLDER, &trouble);
			s->progress.committed_ns = clock_mono_ns();
			return rc < 0 ? commit_report_unknown(s, rc, why, &trouble, err) : 0;
		}
	}
	ops->withdraw(s);
	if (rc < 0)
		return commit_report_unknown(s, rc, why, &trouble, err);
	/* A rank that could not wait longer has aborted the save: all ranks report its reason. */
	rc = gather_read_verdict(s->run->store, s->image.token, &name, &trouble);
	if (rc < 0)
		return err_set(err, rc, "%s", trouble.message);
	return err_set(err, why->code, "%s", why->message);
}

int
commit_as_host(struct save *s, struct pawl_error *err)
{
	struct pawl_error cause = {0}, why = {0};
	int rc = commit_all(s, &cause);

	if (rc < 0) {
		cause.code = rc;
		rc = resolve_as_host(s, &cause, &why);
	}
	/* Without a verdict the others find the outcome by themselves. */
	if (!s->in_doubt)
		gather_put_verdict(s->run->store, s->image.token, rc, s->name, &why);
	return rc < 0 ? err_set(err, rc, "save of step %lld: %s", (long long)s->request.step, why.message) : 0;
}

/* ---- the others */

/* Without a verdict: makes sure that this save never becomes a checkpoint, or finds that it has
 * become one. */
static int
resolve_alone(struct save *s, char **ret_name, const struct pawl_error *why, struct pawl_error *err)
{
	struct pawl_error trouble = {0};
	int rc = s->run->modes.commit->abort(s, ret_name, &trouble);

	if (rc == 1)
		return 0;
	if (rc < 0)
		return commit_report_unknown(s, rc, why, &trouble, err);
	gather_put_verdict(s->run->store, s->image.token, why->code, NULL, why);
	return err_set(err, why->code, "%s", why->message);
}

/* The checkpoint has the name that rank 0 gave it. Without memory this rank keeps its own name for
 * it, which is mostly the same: nothing makes a committed save fail. */
static void
take_name(struct save *s, const char *name)
{
	char *own = bump_strndup(&s->image.memory, name, strlen(name));
	char *folder = bump_printf(&s->image.memory, CATALOG_FOLDER "/%s", name);

	if (!own || !folder)
		return;
	s->name = own;
	s->folder = folder;
}

int
commit_as_guest(struct save *s, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	PAWL_FREE char *name = NULL;
	struct pawl_error why = {0}, cause = {0};
	const struct gather_round round = round_of(s);
	int rc;

	rc = commit_describe(s, true, NULL, &text, &why);
	if (rc < 0) {
		why.code = rc;
		gather_put_fault(s->run->store, s->run->group.rendezvous, s->image.token, &why);
		return err_set(err, rc, "%s", why.message);
	}
	rc = gather_put_part(s->run->store, s->run->group.rendezvous, s->image.token, &text, &why);
	if (rc < 0) { /* it may have been put nevertheless */
		why.code = rc;
		gather_put_fault(s->run->store, s->run->group.rendezvous, s->image.token, &why);
		rc = 0;
	} else {
		rc = gather_verdict(&round, &name, &why);
	}
	if (rc == 0) {
		cause = why;
		rc = resolve_alone(s, &name, &cause, &why);
	}
	if (rc < 0)
		return err_set(err, rc, "save of step %lld: %s", (long long)s->request.step, why.message);
	take_name(s, name);
	s->progress.committed_ns = clock_mono_ns();
	return 0;
}

int
commit_guest_unwritten(struct save *s, int code, struct pawl_error *err)
{
	PAWL_FREE char *name = NULL;
	struct pawl_error why = {0};

	s->run->modes.agree->report_save(s->run, s->request.id, &s->progress.error);
	if (code != PAWL_ENOTFOUND)
		return code;
	const struct gather_round round = round_of(s);
	const int rc = gather_verdict(&round, &name, &why);

	return rc < 0 ? err_set(err, rc, "save of step %lld: %s", (long long)s->request.step, why.message) : code;
}
