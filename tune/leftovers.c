/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leftovers: lists the checkpoints that may be removed from the folder to which an experiment is
 * synced, because retention has given them up here (R127). Reads the journal as any reader does.
 *
 * A name is listed when all of these hold:
 * - Before the sync, and again after it, the journal says that retention has given the checkpoint
 *   up.
 * - All checkpoints that the trial kept before the sync still exist here. The sync has thus sent
 *   them completely.
 * - The folder of the checkpoint does not exist here, so that no later sync brings it back.
 * - It was given up in the present attempt of the trial, or the trial does not run. An attempt that
 *   began later may be writing a new checkpoint of that name to the destination (trials of a
 *   cluster do that themselves).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/vec.h"
#include "experiment.h"
#include "trial_checkpoints.h"

struct tune_leftovers {
	struct tune_experiment *before;
	char **names;
	size_t n, cap;
};

static int
read_journal(const char *folder, struct tune_experiment **ret, struct pawl_error *err)
{
	const struct tune_open_opts opts = {.folder = folder, .resume = TUNE_READ};

	return tune_experiment_open(NULL, &opts, ret, err);
}

int
tune_leftovers_open(const char *folder, struct tune_leftovers **ret, struct pawl_error *err)
{
	struct tune_leftovers *l = mem_zalloc(1, sizeof(*l));
	const int r = l ? read_journal(folder, &l->before, err) : err_nomem(err, NULL);

	if (r < 0)
		tune_leftovers_close(l);
	else
		*ret = l;
	return r;
}

void
tune_leftovers_close(struct tune_leftovers *l)
{
	if (!l)
		return;
	for (size_t i = 0; i < l->n; i++)
		mem_free(l->names[i]);
	mem_free(l->names);
	tune_experiment_close(l->before);
	mem_free(l);
}

/* Has retention given up the i-th name for good? The list only grows. */
static bool
is_dropped(const struct trial *t, size_t i, const char *name)
{
	for (size_t k = 0; k < t->n_checkpoints; k++)
		if (strcmp(t->checkpoints[k].name, name) == 0)
			return false;
	return i >= (t->state == TUNE_RUNNING ? t->n_dropped_before : 0) && i < t->n_dropped &&
	       strcmp(t->dropped[i], name) == 0;
}

/* PAWL_ENOTFOUND: one of the trial's checkpoints is missing, or it has none. */
static int
find_all(const struct tune_experiment *e, const struct trial *t, struct pawl_error *err)
{
	for (size_t i = 0; i < t->n_checkpoints; i++)
		TRY(trial_checkpoint_find(e->dirfd, t->name, t->checkpoints[i].name, err));
	return t->n_checkpoints > 0 ? 0 : err_set(err, PAWL_ENOTFOUND, "%s: it has no checkpoint", t->name);
}

static int
add_name(struct tune_leftovers *l, const struct trial *t, const char *name, struct pawl_error *err)
{
	if (!array_reserve(l->names, l->cap, l->n + 1))
		return err_nomem(err, NULL);
	if (asprintf(&l->names[l->n], "%s/%s", t->name, name) < 0)
		return err_nomem(err, NULL);
	l->n++;
	return 0;
}

static int
add_trial(struct tune_leftovers *l, const struct trial *before, const struct trial *now, struct pawl_error *err)
{
	int r = find_all(l->before, before, err);

	for (size_t i = 0; r == 0 && i < before->n_dropped; i++) {
		const char *name = before->dropped[i];

		if (!is_dropped(before, i, name) || !is_dropped(now, i, name))
			continue;
		r = trial_checkpoint_find(l->before->dirfd, before->name, name, err);
		if (r == PAWL_ENOTFOUND)
			r = add_name(l, before, name, err);
	}
	return r == PAWL_ENOTFOUND ? 0 : r;
}

int
tune_leftovers_after(struct tune_leftovers *l, const char *const **ret, size_t *ret_n, struct pawl_error *err)
{
	struct tune_experiment *now = NULL;
	int r = read_journal(l->before->folder, &now, err);

	for (size_t i = 0; r == 0 && i < l->before->n_trials && i < now->n_trials; i++)
		r = add_trial(l, &l->before->trials[i], &now->trials[i], err);
	tune_experiment_close(now);
	if (r < 0)
		return r;
	*ret = (const char *const *)l->names;
	*ret_n = l->n;
	return 0;
}
