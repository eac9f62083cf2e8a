/* SPDX-License-Identifier: Apache-2.0 */
/*
 * experiment_write: one way to change an experiment: an entry into the journal, then into the state, then what follows
 * from it on the disk. Called by all that changes something. After a failure the state in memory may be ahead of the
 * journal: nothing more is taken.
 */
#include "experiment.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "jsonx.h"
#include "trial_checkpoints.h"
#include "trial_files.h"
#include "tune_err.h"

double
experiment_now(const struct tune_experiment *e)
{
	struct timespec now;

	if (e->opts.now_s)
		return e->opts.now_s(e->opts.now_arg);
	clock_gettime(CLOCK_REALTIME, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void
remove_doomed(struct tune_experiment *e)
{
	/* What cannot be removed now is tried again when the experiment is opened. */
	for (size_t i = 0; i < e->n_doomed; i++) {
		checkpoint_remove(e->dirfd, e->trials[e->doomed[i].trial].name, e->doomed[i].name, NULL);
		free(e->doomed[i].name);
	}
	e->n_doomed = 0;
}

static int
check_writable(struct tune_experiment *e, struct pawl_error *err)
{
	if (e->read_only)
		return tune_fail(err, PAWL_EREADONLY, "%s was opened to be read only", e->folder);
	if (e->broken)
		return tune_fail(err, PAWL_EIO, "%s: an earlier write has failed; open the experiment again",
		                 e->folder);
	return 0;
}

int
experiment_put(struct tune_experiment *e, json_t *entry, bool durable, struct pawl_error *err)
{
	JSONX_CLEAN json_t *owned = entry;
	int r = check_writable(e, err);

	if (r < 0)
		return r;
	r = owned ? journal_put(&e->journal, owned, durable, err) : tune_no_memory(err);
	if (r == 0)
		r = experiment_apply(e, owned, false, err);
	e->broken = r < 0;
	if (r == 0)
		remove_doomed(e);
	return r;
}

int
experiment_check(struct tune_experiment *e, uint32_t trial, struct trial **ret, struct pawl_error *err)
{
	const int r = check_writable(e, err);

	if (r < 0)
		return r;
	if (trial >= e->n_trials)
		return tune_fail(err, PAWL_ENOTFOUND, "trial %u is not there; there are %zu", trial, e->n_trials);
	*ret = &e->trials[trial];
	return 0;
}

int
experiment_note_state(struct tune_experiment *e, const struct trial *t, struct pawl_error *err)
{
	JSONX_CLEAN json_t *state =
		json_pack("{s:i, s:s, s:s, s:s, s:i, s:i, s:s?}", "number", (int)t->number, "name", t->name, "trial_id",
	                  t->id, "status", tune_state_name(t->state), "attempts", (int)t->attempts, "failures",
	                  (int)t->failures, "error", t->error);

	return state ? trial_files_state(e->dirfd, t->name, state, err) : tune_no_memory(err);
}

int
experiment_end(struct tune_experiment *e, struct trial *t, const char *how, const char *why, struct pawl_error *err)
{
	const bool failed = strcmp(how, "failed") == 0 || strcmp(how, "error") == 0;
	json_t *entry = json_pack("{s:s, s:i, s:s}", "e", "end", "t", (int)t->number, "how", how);
	int r = experiment_put(e, jsonx_with(entry, "why", why), true, err);

	if (r == 0 && failed)
		r = trial_files_error(e->dirfd, t->name, why ? why : "", err);
	if (r == 0 && t->attempts)
		r = experiment_note_state(e, t, err);
	return r;
}
