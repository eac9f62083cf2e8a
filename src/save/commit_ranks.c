/* SPDX-License-Identifier: Apache-2.0 */
/*
 * commit_ranks: how a save of many ranks ends, on each rank's saver thread. Called by save.c; calls commit.c, merge.c,
 * gather.c, meet.c. Promises P2, P4, P10, P11, P15; the protocol is docs/multi-rank.md.
 *
 *   rank 0:  all parts ──> manifest ──> RENAME ──> verdict "committed"
 *               │                          └─ failed, or it says so ──> it is there: committed
 *               └─ one is missing, wrong or late ──> WITHDRAW ──> verdict "failed, because"
 *   others:  part ──> verdict ──────────────────────────────────────────────> committed, or failed
 *                └─ rank 0 has gone, or is late ──> WITHDRAW ──┬─ done ──────> failed
 *                                                              └─ no source ─> it is there: committed
 *                                                                              else, if the run is ours: failed
 *
 * RENAME gives the hidden folder the checkpoint's name; WITHDRAW gives it another hidden name. One folder can be
 * renamed only once, so whoever comes first decides, and all come to know the same. In a bucket it is one key that can
 * be put only once, by either (withdraw.h).
 */
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "catalog/catalog.h"
#include "layout/merge.h"
#include "ranks/gather.h"
#include "ranks/withdraw.h"
#include "save/save.h"

static struct gather_round
round_of(const struct save *s)
{
	return (struct gather_round){.store = s->run->store,
	                             .m = s->run->meet,
	                             .token = s->token,
	                             .kind = GATHER_SAVE,
	                             .timeout_ms = s->run->opts.commit_timeout_ms,
	                             .ticket = s->ticket};
}

/* Takes the hidden folder away from whoever may want to publish it. PAWL_ENOTFOUND if it is not there (any more). */
static int
withdraw(struct save *s, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf aside = {0};
	char token[33];

	TRY(clock_token(token, err));
	buf_printf(&aside, CATALOG_FOLDER "/.withdrawn.%s.partial", token);
	TRY(buf_check(&aside, "save", err));
	TRY(store_publish(s->run->store, s->partial, buf_str(&aside), err));
	store_remove_folder(s->run->store, buf_str(&aside), NULL);
	return 0;
}

/* Is there a checkpoint that was made of this save? *ret_name: its name. */
static int
find_published(struct save *s, char **ret_name, struct pawl_error *err)
{
	int found = 0;

	run_edit(s->run);
	int rc = catalog_reload(s->run->catalog, err);

	for (size_t i = 0; rc == 0 && i < s->run->catalog->n && !found; i++) {
		const struct catalog_entry *e = &s->run->catalog->entries[i];

		if (!e->summary && e->id == s->id && e->code != PAWL_ENOTFOUND)
			found = err_set(err, PAWL_EIO, "%s", e->problem);
		if (!e->summary || strcmp(e->summary->token, s->token) != 0)
			continue;
		*ret_name = mem_strdup(e->name);
		found = *ret_name ? 1 : err_set(err, PAWL_ENOMEM, "save: out of memory");
	}
	run_edited(s->run);
	return rc < 0 ? rc : found;
}

/* A checkpoint that is not there may have been there, and be deleted by now, if another training has taken the run over
 * meanwhile. */
static int
check_still_ours(struct save *s, struct pawl_error *err)
{
	if (meet_is_current(s->run->meet))
		return 0;
	return err_set(err, PAWL_ECONFLICT, "the run is not this job's any more");
}

static int
tell_unknown(int code, const struct pawl_error *why, const struct pawl_error *trouble, struct pawl_error *err)
{
	return err_set(err, code, "%s; and how the save has ended is not known: %s", why->message, trouble->message);
}

/* ---- rank 0 */

static void
merge_clean(struct merge **g)
{
	merge_free(*g);
}

/* Everybody has left the saves before this one, failed or not: what they needed can go. */
static void
clear_before(struct save *s)
{
	struct pawl *run = s->run;
	char token[33];

	for (uint64_t id = run->meet_cleared + 1; id < s->id; id++) {
		meet_save_token(run->meet, id, token);
		gather_clear(run->store, token);
	}
	run->meet_cleared = s->id - 1;
	if (run->left_behind)
		store_remove_folder(run->store, run->left_behind, NULL);
	mem_free(run->left_behind);
	run->left_behind = NULL;
}

static int
commit_all(struct save *s, struct pawl_error *err)
{
	PAWL_CLEAN(merge_clean) struct merge *g = NULL;
	PAWL_CLEAN(buf_clear) struct buf own = {0}, text = {0};
	const struct gather_round round = round_of(s);
	const struct manifest_file *files;
	size_t n;

	TRY(commit_describe(s, true, NULL, &own, err));
	TRY(merge_new(s->run->world, &own, &g, err));
	TRY(gather_parts(&round, merge_add, g, err));
	clear_before(s);
	TRY(merge_finish(g, &text, err));
	files = merge_files(g, &n);
	return commit_bytes(s, &text, files, n, err);
}

/* After a failure: 0 if the checkpoint is there all the same; else nobody publishes the folder any more. */
static int
settle_as_host(struct save *s, const struct pawl_error *why, struct pawl_error *err)
{
	struct pawl_error trouble = {0};
	PAWL_FREE char *name = NULL;
	bool in_bucket = !s->run->caps.rename_folder;
	int rc = 0;

	if (s->is_publishing) { /* what was done can be told as failed */
		rc = in_bucket ? commit_settle(s, &trouble) : find_published(s, &name, &trouble);
		if (rc == 1) {
			rc = store_sync(s->run->store, CATALOG_FOLDER, &trouble);
			s->committed_ns = clock_mono_ns();
			return rc < 0 ? tell_unknown(rc, why, &trouble, err) : 0;
		}
		if (rc == 0 && !in_bucket)
			rc = check_still_ours(s, &trouble);
	}
	if (!in_bucket) /* there nobody else can put the manifest of this save */
		withdraw(s, NULL);
	if (rc < 0)
		return tell_unknown(rc, why, &trouble, err);
	/* One that could not wait any longer has called the save off: its reason is everybody's. */
	rc = gather_read_verdict(s->run->store, s->token, &name, &trouble);
	if (rc < 0)
		return err_set(err, rc, "%s", trouble.message);
	return err_set(err, why->code, "%s", why->message);
}

static int
commit_as_host(struct save *s, struct pawl_error *err)
{
	struct pawl_error cause = {0}, why = {0};
	int rc = commit_all(s, &cause);

	if (rc < 0) {
		cause.code = rc;
		rc = settle_as_host(s, &cause, &why);
	}
	gather_put_verdict(s->run->store, s->token, rc, s->name, &why);
	return rc < 0 ? err_set(err, rc, "save of step %lld: %s", (long long)s->step, why.message) : 0;
}

/* ---- the others */

/* No verdict came: makes sure that there will never be a checkpoint of this save, or finds that there is one. */
static int
settle_alone(struct save *s, char **ret_name, const struct pawl_error *why, struct pawl_error *err)
{
	struct pawl_error trouble = {0};
	bool in_bucket = !s->run->caps.rename_folder;
	int rc = in_bucket ? commit_settle(s, &trouble) : withdraw(s, &trouble);

	if (rc == 1) {
		*ret_name = mem_strdup(s->name);
		return *ret_name ? 0 : err_set(err, PAWL_ENOMEM, "save: out of memory");
	}
	if (rc == PAWL_ENOTFOUND && !in_bucket) {
		rc = find_published(s, ret_name, &trouble);
		if (rc == 1)
			return 0;
		if (rc == 0)
			rc = check_still_ours(s, &trouble);
	}
	if (rc < 0)
		return tell_unknown(rc, why, &trouble, err);
	gather_put_verdict(s->run->store, s->token, why->code, NULL, why);
	return err_set(err, why->code, "%s", why->message);
}

static int
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
		gather_put_fault(s->run->store, s->run->meet, s->token, &why);
		return err_set(err, rc, "%s", why.message);
	}
	rc = gather_put_part(s->run->store, s->run->meet, s->token, &text, &why);
	if (rc < 0) { /* it may be there all the same */
		why.code = rc;
		gather_put_fault(s->run->store, s->run->meet, s->token, &why);
		rc = 0;
	} else {
		rc = gather_verdict(&round, &name, &why);
	}
	if (rc == 0) {
		cause = why;
		rc = settle_alone(s, &name, &cause, &why);
	}
	if (rc < 0)
		return err_set(err, rc, "save of step %lld: %s", (long long)s->step, why.message);
	s->name = bump_strndup(&s->memory, name, strlen(name));
	s->folder = bump_printf(&s->memory, CATALOG_FOLDER "/%s", name);
	s->committed_ns = clock_mono_ns();
	return s->name && s->folder ? 0 : err_set(err, PAWL_ENOMEM, "save: out of memory");
}

int
commit_ranks(struct save *s, struct pawl_error *err)
{
	return s->run->rank == 0 ? commit_as_host(s, err) : commit_as_guest(s, err);
}

void
commit_report_failure(struct pawl *run, uint64_t id, const struct pawl_error *why)
{
	char token[33];

	if (!run->meet)
		return;
	meet_save_token(run->meet, id, token);
	if (run->rank == 0)
		gather_put_verdict(run->store, token, why->code, NULL, why);
	else
		gather_put_fault(run->store, run->meet, token, why);
}
