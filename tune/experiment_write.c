/* SPDX-License-Identifier: Apache-2.0 */
/*
 * experiment_write: the one way to change an experiment. An entry is written to the journal, then
 * applied to the state; actions on the disk follow. After a failure the state in memory may be
 * ahead of the journal, so further changes are refused.
 */
#include "experiment.h"

#include <string.h>
#include <time.h>

#include "base/err.h"
#include "base/value.h"
#include "trial_checkpoints.h"
#include "trial_files.h"

double
experiment_now(const struct tune_experiment *e)
{
	struct timespec now;

	if (e->opts.now_s)
		return e->opts.now_s(e->opts.now_arg);
	clock_gettime(CLOCK_REALTIME, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static bool
has_name(char *const *names, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(names[i], name) == 0)
			return true;
	return false;
}

/* A trial may use the name of a dropped checkpoint again. */
static bool
is_kept(const struct trial *t, const char *name)
{
	for (size_t i = 0; i < t->n_checkpoints; i++)
		if (strcmp(t->checkpoints[i].name, name) == 0)
			return true;
	return false;
}

static void
remove_dropped(struct tune_experiment *e, struct trial *t)
{
	/* A folder that cannot be removed now is tried again when the experiment is opened. */
	for (size_t i = 0; i < t->n_dropped; i++) {
		if (!is_kept(t, t->dropped[i]))
			trial_checkpoint_remove(e->dirfd, t->name, t->dropped[i], NULL);
		mem_free(t->dropped[i]);
	}
	t->n_dropped = 0;
}

/* Forgets the dropped checkpoints that do not exist. Listing the folder once is cheaper than trying
 * each name: a long search has dropped thousands. */
static void
forget_missing(struct tune_experiment *e, struct trial *t)
{
	PAWL_CLEAN(strings_clear) struct strings found = {0};
	size_t n = 0;

	/* Without the checkpoint that it continues from, a trial loses no other one. */
	const bool may = t->n_checkpoints > 0 &&
	                 trial_checkpoint_find(e->dirfd, t->name, t->checkpoints[t->n_checkpoints - 1].name, NULL) == 0;
	if (may)
		trial_checkpoint_list(e->dirfd, t->name, &found);
	for (size_t i = 0; i < t->n_dropped; i++) {
		if (has_name(found.items, found.n, t->dropped[i]))
			t->dropped[n++] = t->dropped[i];
		else
			mem_free(t->dropped[i]);
	}
	t->n_dropped = n;
}

void
experiment_remove_left(struct tune_experiment *e)
{
	for (size_t i = 0; i < e->n_trials; i++) {
		if (e->trials[i].n_dropped == 0)
			continue;
		trial_checkpoint_sweep(e->dirfd, e->trials[i].name);
		forget_missing(e, &e->trials[i]);
		remove_dropped(e, &e->trials[i]);
	}
}

static int
check_writable(struct tune_experiment *e, struct pawl_error *err)
{
	if (e->read_only)
		return err_set(err, PAWL_EREADONLY, "%s was opened to be read only", e->folder);
	if (e->broken)
		return err_set(err, PAWL_EIO, "%s: an earlier write has failed; open the experiment again", e->folder);
	return 0;
}

int
experiment_put(struct tune_experiment *e, struct value *entry, bool durable, struct pawl_error *err)
{
	PAWL_CLEAN(value_free_clean) struct value *owned = entry;

	TRY(check_writable(e, err));
	int rc = owned ? journal_put(&e->journal, owned, durable, err) : err_nomem(err, NULL);
	if (rc < 0)
		err_prefix(err, rc, "%s", e->folder);
	if (rc == 0)
		rc = experiment_apply(e, owned, false, err);
	e->broken = rc < 0;
	TRY(rc);
	const struct value *trial = value_get(owned, "t");
	if (trial)
		remove_dropped(e, &e->trials[value_int(trial)]);
	return 0;
}

int
experiment_check(struct tune_experiment *e, uint32_t trial, struct trial **ret, struct pawl_error *err)
{
	TRY(check_writable(e, err));
	return experiment_find(e, trial, ret, err);
}

/* The checkpoints that the trial keeps, as entries of the journal without "e" and "t". */
static struct value *
list_checkpoints(const struct trial *t)
{
	struct value *list = value_new_array();

	for (size_t i = 0; list && i < t->n_checkpoints; i++) {
		const struct checkpoint *c = &t->checkpoints[i];
		if (value_append(
			    list,
			    VALUE_OBJECT(
				    {"c", value_new_text(c->name)}, {"iteration", value_new_int((int64_t)c->iteration)},
				    {"time_s", value_new_real(c->time_s)}, {"score", value_new_real(c->score)},
				    {"metric", value_new_real(c->metric)}, {"at", value_new_real(c->at)},
				    {"of", VALUE_ARRAY(value_new_int(c->of.trial), value_new_int((int64_t)c->of.n))})))
			continue;
		value_free(list);
		return NULL;
	}
	return list;
}

int
experiment_note_state(struct tune_experiment *e, const struct trial *t, struct pawl_error *err)
{
	const bool is_cut = e->closed && e->n_trials < e->spec.n_trials; /* the journal may get lost */
	PAWL_CLEAN(value_free_clean)
	struct value *state =
		VALUE_OBJECT({"number", value_new_int(t->number)}, {"name", value_new_text(t->name)},
	                     {"trial_id", value_new_text(t->id)}, {"status", value_new_text(tune_state_name(t->state))},
	                     {"attempts", value_new_int(t->attempts)}, {"failures", value_new_int(t->failures)},
	                     {"error", t->error ? value_new_text(t->error) : value_new_null()},
	                     {"results", value_new_int((int64_t)t->n_results)}, {"closed", value_new_bool(is_cut)},
	                     {"checkpoints", list_checkpoints(t)});

	return state ? trial_files_state(e->dirfd, t->name, state, err) : err_nomem(err, NULL);
}

int
experiment_end(struct tune_experiment *e, struct trial *t, const char *how, const char *why, struct pawl_error *err)
{
	const bool failed = strcmp(how, "failed") == 0 || strcmp(how, "error") == 0;
	struct value *entry = VALUE_OBJECT({"e", value_new_text("end")}, {"t", value_new_int(t->number)},
	                                   {"how", value_new_text(how)});

	TRY(experiment_put(e, value_with_text(entry, "why", why), true, err));
	if (failed)
		TRY(trial_files_error(e->dirfd, t->name, why ? why : "", err));
	return t->attempts ? experiment_note_state(e, t, err) : 0;
}
