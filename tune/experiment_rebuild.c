/* SPDX-License-Identifier: Apache-2.0 */
/*
 * experiment_rebuild: rebuilds a lost journal from the folders of the trials. Also completes a
 * trial's files from the journal, if a crash came between the two writes.
 */
#include "experiment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/folder.h"
#include "base/hidden.h"
#include "base/os.h"
#include "base/value.h"
#include "base/vec.h"
#include "space.h"
#include "trial_checkpoints.h"
#include "trial_files.h"

/* ---- a trial's files from the journal ---- */

struct repair {
	struct tune_experiment *e;
	struct trial *trial;
	struct value *config; /* as it was then */
};

static int
write_again(void *arg, const struct value *entry, struct pawl_error *err)
{
	struct repair *m = arg;
	const char *kind = value_get_text(entry, "e");
	const struct value *number = value_get(entry, "t"), *config = value_get(entry, "config");

	if (!kind || !value_is(number, JSON_INT) || value_int(number) != m->trial->number)
		return 0;
	if (strcmp(kind, "result") != 0) {
		if (config) {
			value_free(m->config);
			m->config = value_ref(config);
		}
		return 0;
	}
	PAWL_CLEAN(value_free_clean) struct value *line = value_copy(value_get(entry, "r"));
	if (!line || !value_set(line, "config", value_ref(m->config)))
		return err_nomem(err, NULL);
	PAWL_FREE char *text = value_print(line);
	if (!text)
		return err_nomem(err, NULL);
	return trial_files_result(m->e->dirfd, m->trial->name, line, text, &m->trial->columns, err);
}

int
experiment_repair(struct tune_experiment *e, struct trial *t, struct pawl_error *err)
{
	struct repair m = {.e = e, .trial = t};
	struct journal_found found;

	if (trial_files_count(e->dirfd, t->name, "result.json") == t->n_results &&
	    trial_files_count(e->dirfd, t->name, "progress.csv") == t->n_results + (t->n_results > 0))
		return 0;
	mem_free(t->columns);
	t->columns = NULL;
	TRY(trial_files_clear(e->dirfd, t->name, err));
	const int rc = journal_read(e->dirfd, "journal", write_again, &m, &found, err);
	value_free(m.config);
	return rc;
}

/* ---- the journal from the trials' files ---- */

struct known {
	char *folder;
	struct value *state;
	uint32_t number;
	int64_t n_results; /* written so far */
};

struct line {
	struct value *result;
	uint32_t trial;
	double stamp;
	size_t order;
};

struct all {
	VEC(struct known) trials;
	VEC(struct line) lines;
	uint32_t trial; /* the trial whose lines are read */
};

static void
all_clear(struct all *all)
{
	for (size_t i = 0; i < all->trials.n; i++) {
		mem_free(all->trials.items[i].folder);
		value_free(all->trials.items[i].state);
	}
	for (size_t i = 0; i < all->lines.n; i++)
		value_free(all->lines.items[i].result);
	vec_free(&all->trials);
	vec_free(&all->lines);
}

static int
add_known(struct all *all, const char *folder, struct value *state, struct pawl_error *err)
{
	struct known *added = vec_add(&all->trials);

	if (!added)
		return err_nomem(err, "journal");
	*added = (struct known){mem_strdup(folder), value_ref(state), (uint32_t)value_int(value_get(state, "number")),
	                        0};
	return added->folder ? 0 : err_nomem(err, "journal");
}

static int
add_line(void *arg, struct value *result, struct pawl_error *err)
{
	struct all *all = arg;
	struct line *added = vec_add(&all->lines);
	double stamp = 0;

	if (!added)
		return err_nomem(err, "journal");
	value_get_number(value_get(result, "timestamp"), &stamp);
	*added = (struct line){value_ref(result), all->trial, stamp, all->lines.n - 1};
	return 0;
}

static int
by_number(const void *a, const void *b)
{
	const struct known *x = a, *y = b;

	return (x->number > y->number) - (x->number < y->number);
}

static int
by_stamp(const void *a, const void *b)
{
	const struct line *x = a, *y = b;

	if (x->stamp != y->stamp)
		return x->stamp > y->stamp ? 1 : -1;
	return (x->order > y->order) - (x->order < y->order);
}

static int
list_trials(struct tune_experiment *e, struct all *all, struct pawl_error *err)
{
	PAWL_CLEAN(folder_names_clear) struct folder_names names = {0};

	TRY(folder_list(e->dirfd, ".", e->folder, &names, err));
	for (size_t i = 0; i < names.n; i++) {
		PAWL_CLEAN(value_free_clean) struct value *state = NULL;
		const char *name = names.items[i];

		if (name[0] == '.')
			continue;
		const int rc = trial_file_read(e->dirfd, name, "trial.json", &state, err);
		if (rc == PAWL_ENOMEM || rc == PAWL_ETRANSIENT)
			return rc;
		if (rc == 0 && value_is(value_get(state, "number"), JSON_INT)) /* else not the folder of a trial */
			TRY(add_known(all, name, state, err));
	}
	if (all->trials.n)
		qsort(all->trials.items, all->trials.n, sizeof(all->trials.items[0]), by_number);
	return 0;
}

static int
put_entry(struct journal *j, struct value *entry, struct pawl_error *err)
{
	PAWL_CLEAN(value_free_clean) struct value *owned = entry;

	return owned ? journal_put(j, owned, false, err) : err_nomem(err, NULL);
}

static int
put_add(struct journal *j, uint32_t number, const char *name, const struct value *config, struct pawl_error *err)
{
	return put_entry(j,
	                 VALUE_OBJECT({"e", value_new_text("add")}, {"t", value_new_int(number)},
	                              {"name", value_new_text(name)}, {"config", value_ref(config)}),
	                 err);
}

/* Writes a trial that had not begun, or whose folder is missing, as it was drawn. Configurations
 * given by a driver are lost. */
static int
write_drawn(struct tune_experiment *e, uint32_t number, struct journal *j, struct pawl_error *err)
{
	PAWL_CLEAN(value_free_clean) struct value *config = NULL;
	char name[TUNE_NAME_BYTES];

	if (e->spec.given)
		return err_set(err, PAWL_ECORRUPT,
		               "%s: the journal is lost, and so is the folder of trial %u; the others are untouched",
		               e->folder, number);
	TRY(experiment_draw(e, number, name, &config, err));
	return put_add(j, number, name, config, err);
}

/* Trials without a folder had not begun: they are drawn again, including those between other
 * trials. */
static int
write_trials(struct tune_experiment *e, const struct all *all, struct journal *j, struct pawl_error *err)
{
	uint32_t next = 0;

	TRY(put_entry(j,
	              VALUE_OBJECT({"e", value_new_text("open")}, {"format", value_new_int(TUNE_FORMAT)},
	                           {"token", value_new_text(e->token)}),
	              err));
	for (size_t i = 0; i < all->trials.n; i++) {
		PAWL_CLEAN(value_free_clean) struct value *config = NULL;
		const struct known *known = &all->trials.items[i];
		if (known->number >= e->spec.n_trials || known->number >= SPACE_MAX_TRIALS)
			return err_set(err, PAWL_ECORRUPT, "%s: %s says that it is trial %u, the search has fewer",
			               e->folder, known->folder, known->number);
		if (known->number < next)
			return err_set(err, PAWL_ECORRUPT, "%s: %s and another folder say that they are trial %u",
			               e->folder, known->folder, known->number);
		while (next < known->number)
			TRY(write_drawn(e, next++, j, err));
		next++;
		TRY(trial_file_read(e->dirfd, known->folder, "params.json", &config, err));
		TRY(put_add(j, known->number, known->folder, config, err));
		if (value_int(value_get(known->state, "attempts")) > 0)
			TRY(put_entry(j,
			              VALUE_OBJECT({"e", value_new_text("start")}, {"t", value_new_int(known->number)}),
			              err));
	}
	return 0;
}

/* Keeps *name if it is the name of an existing checkpoint of the trial; else sets it to NULL. */
static int
check_name(const struct tune_experiment *e, const struct known *known, const char **name, struct pawl_error *err)
{
	const int rc = *name && trial_checkpoint_is_name(*name)
	                       ? trial_checkpoint_find(e->dirfd, known->folder, *name, err)
	                       : PAWL_ENOTFOUND;

	if (rc == PAWL_ENOTFOUND)
		*name = NULL;
	return rc == PAWL_ENOTFOUND ? 0 : rc;
}

/* Writes the checkpoints that the trial kept when its state was last written. */
static int
write_checkpoints(struct tune_experiment *e, const struct known *known, struct journal *j, struct pawl_error *err)
{
	const struct value *list = value_get(known->state, "checkpoints");

	for (size_t i = 0; i < value_n_items(list); i++) {
		const struct value *item = value_item(list, i);
		const char *name = value_get_text(item, "c");

		TRY(check_name(e, known, &name, err));
		if (!name || !value_is(value_get(item, "iteration"), JSON_INT) ||
		    value_int(value_get(item, "iteration")) < 0)
			continue;
		struct value *entry = value_copy(item);
		if (!value_set(entry, "e", value_new_text("checkpoint")) ||
		    !value_set(entry, "t", value_new_int(known->number))) {
			value_free(entry);
			return err_nomem(err, NULL);
		}
		TRY(put_entry(j, entry, err));
	}
	return 0;
}

static int
write_results(struct tune_experiment *e, struct all *all, struct journal *j, struct pawl_error *err)
{
	for (size_t i = 0; i < all->lines.n; i++) {
		const struct line *line = &all->lines.items[i];
		struct known *known = &all->trials.items[line->trial];
		const char *checkpoint = value_get_text(line->result, "checkpoint_dir_name");

		TRY(check_name(e, known, &checkpoint, err));
		value_remove(line->result, "config");
		struct value *entry = VALUE_OBJECT({"e", value_new_text("result")}, {"t", value_new_int(known->number)},
		                                   {"r", value_ref(line->result)});
		TRY(put_entry(j, value_with_text(entry, "c", checkpoint), err));
		if (++known->n_results == value_int(value_get(known->state, "results")))
			TRY(write_checkpoints(e, known, j, err));
	}
	for (size_t i = 0; i < all->trials.n; i++) { /* of trials whose last results are missing */
		const struct known *known = &all->trials.items[i];
		if (known->n_results < value_int(value_get(known->state, "results")))
			TRY(write_checkpoints(e, known, j, err));
	}
	return 0;
}

/* A search that was closed before all of its samples were drawn draws no more. */
static int
write_close(const struct all *all, struct journal *j, struct pawl_error *err)
{
	for (size_t i = 0; i < all->trials.n; i++)
		if (value_is_true(value_get(all->trials.items[i].state, "closed")))
			return put_entry(j, VALUE_OBJECT({"e", value_new_text("close")}), err);
	return 0;
}

static int
write_ends(const struct all *all, struct journal *j, struct pawl_error *err)
{
	for (size_t i = 0; i < all->trials.n; i++) {
		const struct known *known = &all->trials.items[i];
		const char *status = value_get_text(known->state, "status");
		const char *how = !status                             ? NULL
		                  : strcmp(status, "TERMINATED") == 0 ? "finished"
		                  : strcmp(status, "ERROR") == 0      ? "error"
		                                                      : NULL;

		if (!how)
			continue;
		struct value *entry = VALUE_OBJECT({"e", value_new_text("end")}, {"t", value_new_int(known->number)},
		                                   {"how", value_new_text(how)});
		TRY(put_entry(j, value_with_text(entry, "why", value_get_text(known->state, "error")), err));
	}
	return 0;
}

int
experiment_rebuild(struct tune_experiment *e, uint64_t *ret_n, struct pawl_error *err)
{
	PAWL_CLEAN(journal_close) struct journal j = {.fd = -1};
	PAWL_CLEAN(all_clear) struct all all = {0};

	TRY(list_trials(e, &all, err));
	for (size_t i = 0; i < all.trials.n; i++) {
		all.trial = (uint32_t)i; /* its place in the list */
		TRY(trial_files_read(e->dirfd, all.trials.items[i].folder, add_line, &all, err));
	}
	if (all.lines.n)
		qsort(all.lines.items, all.lines.n, sizeof(all.lines.items[0]), by_stamp);
	TRY(journal_open(e->dirfd, "journal.new", 0, &j, err));
	TRY(write_trials(e, &all, &j, err));
	TRY(write_results(e, &all, &j, err));
	TRY(write_close(&all, &j, err));
	TRY(write_ends(&all, &j, err));
	const int sys =
		os_sync(j.fd) < 0 ? errno : hidden_file_appear(e->dirfd, "journal.new", e->dirfd, "journal", true);
	if (sys != 0)
		return err_sys(err, sys, "%s/journal: write", e->folder);
	*ret_n = all.trials.n;
	return fd_sync(e->dirfd, e->folder, err);
}
