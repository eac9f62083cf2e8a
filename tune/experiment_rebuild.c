/* SPDX-License-Identifier: Apache-2.0 */
/*
 * experiment_rebuild: the journal from the folders of the trials where it is lost, and the files of a trial from the
 * journal where a crash came between the two. Called when an experiment is opened, and when a trial starts.
 */
#include "experiment.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "jsonx.h"
#include "space.h"
#include "trial_checkpoints.h"
#include "trial_files.h"
#include "tune_err.h"

/* ---- a trial's files from the journal ---- */

struct mend {
	struct tune_experiment *e;
	struct trial *trial;
	json_t *config; /* as it was then */
};

static int
write_again(void *arg, const json_t *entry, struct pawl_error *err)
{
	struct mend *m = arg;
	const char *kind = jsonx_text(entry, "e");
	const json_t *number = json_object_get(entry, "t");
	json_t *config;
	JSONX_CLEAN json_t *line = NULL;
	JSONX_TEXT char *text = NULL;

	if (!kind || !json_is_integer(number) || json_integer_value(number) != m->trial->number)
		return 0;
	if (strcmp(kind, "result") != 0 && (config = json_object_get(entry, "config"))) {
		json_decref(m->config);
		m->config = json_incref(config);
	}
	if (strcmp(kind, "result") != 0)
		return 0;
	line = jsonx_copy(json_object_get(entry, "r"));
	if (!line || json_object_set(line, "config", m->config) < 0 || !(text = jsonx_dump(line)))
		return tune_no_memory(err);
	return trial_files_result(m->e->dirfd, m->trial->name, line, text, &m->trial->columns, err);
}

int
experiment_mend(struct tune_experiment *e, struct trial *t, struct pawl_error *err)
{
	struct mend m = {.e = e, .trial = t};
	struct journal_found found;
	int r;

	if (trial_files_count(e->dirfd, t->name, "result.json") == t->n_results &&
	    trial_files_count(e->dirfd, t->name, "progress.csv") == t->n_results + (t->n_results > 0))
		return 0;
	free(t->columns);
	t->columns = NULL;
	r = trial_files_clear(e->dirfd, t->name, err);
	if (r == 0)
		r = journal_read(e->dirfd, "journal", write_again, &m, &found, err);
	json_decref(m.config);
	return r;
}

/* ---- the journal from the trials' files ---- */

struct known {
	char *folder;
	json_t *state;
	uint32_t number;
};

struct line {
	json_t *result;
	uint32_t trial;
	double stamp;
	size_t order;
};

struct all {
	struct known *trials;
	size_t n_trials, cap_trials;
	struct line *lines;
	size_t n_lines, cap_lines;
	uint32_t trial; /* whose lines are read */
};

static int
add_known(struct all *all, const char *folder, json_t *state, struct pawl_error *err)
{
	if (all->n_trials == all->cap_trials) {
		const size_t cap = all->cap_trials ? 2 * all->cap_trials : 64;
		struct known *more = realloc(all->trials, cap * sizeof(*more));
		if (!more)
			return tune_no_memory(err);
		all->trials = more;
		all->cap_trials = cap;
	}
	all->trials[all->n_trials] = (struct known){strdup(folder), json_incref(state),
	                                            (uint32_t)json_integer_value(json_object_get(state, "number"))};
	return all->trials[all->n_trials++].folder ? 0 : tune_no_memory(err);
}

static int
add_line(void *arg, json_t *result, struct pawl_error *err)
{
	struct all *all = arg;
	double stamp = 0;

	if (all->n_lines == all->cap_lines) {
		const size_t cap = all->cap_lines ? 2 * all->cap_lines : 256;
		struct line *more = realloc(all->lines, cap * sizeof(*more));
		if (!more)
			return tune_no_memory(err);
		all->lines = more;
		all->cap_lines = cap;
	}
	jsonx_number(json_object_get(result, "timestamp"), &stamp);
	all->lines[all->n_lines] = (struct line){json_incref(result), all->trial, stamp, all->n_lines};
	all->n_lines++;
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
	const int fd = openat(e->dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *entry;
	int r = 0;

	if (!dir) {
		if (fd >= 0)
			close(fd);
		return tune_fail_sys(err, errno, "%s: list", e->folder);
	}
	while (r == 0 && (entry = readdir(dir))) {
		JSONX_CLEAN json_t *state = NULL;
		if (entry->d_name[0] == '.')
			continue;
		r = tune_file_read(e->dirfd, entry->d_name, "trial.json", &state, err);
		if (r == 0 && json_is_integer(json_object_get(state, "number")))
			r = add_known(all, entry->d_name, state, err);
		else if (r != PAWL_ENOMEM)
			r = 0; /* no folder of a trial */
	}
	closedir(dir);
	if (all->n_trials)
		qsort(all->trials, all->n_trials, sizeof(all->trials[0]), by_number);
	return r;
}

static int
put(struct journal *j, json_t *entry, struct pawl_error *err)
{
	JSONX_CLEAN json_t *owned = entry;

	return owned ? journal_put(j, owned, false, err) : tune_no_memory(err);
}

/* One that had not begun, or whose folder is gone: as it was drawn. Configurations that were given by a driver are
 * lost. */
static int
write_drawn(struct tune_experiment *e, uint32_t number, struct journal *j, struct pawl_error *err)
{
	JSONX_CLEAN json_t *config = NULL;
	char name[TUNE_NAME_BYTES];
	int r;

	if (e->spec.given)
		return tune_fail(err, PAWL_ECORRUPT,
		                 "%s: the journal is lost, and so is the folder of trial %u; the others are untouched",
		                 e->folder, number);
	r = experiment_draw(e, number, name, &config, err);
	return r < 0 ? r
	             : put(j,
	                   json_pack("{s:s, s:i, s:s, s:O}", "e", "add", "t", (int)number, "name", name, "config",
	                             config),
	                   err);
}

/* Trials without a folder had not begun: they are drawn again; those in between, too. */
static int
write_trials(struct tune_experiment *e, const struct all *all, struct journal *j, struct pawl_error *err)
{
	int r = put(j, json_pack("{s:s, s:i, s:s}", "e", "open", "format", TUNE_FORMAT, "token", e->token), err);
	uint32_t next = 0;

	for (size_t i = 0; r == 0 && i < all->n_trials; i++) {
		JSONX_CLEAN json_t *config = NULL;
		const struct known *known = &all->trials[i];
		if (known->number >= e->spec.n_trials || known->number >= SPACE_MAX_TRIALS)
			return tune_fail(err, PAWL_ECORRUPT, "%s: %s says that it is trial %u, the search has fewer",
			                 e->folder, known->folder, known->number);
		if (known->number < next)
			return tune_fail(err, PAWL_ECORRUPT, "%s: %s and another folder say that they are trial %u",
			                 e->folder, known->folder, known->number);
		while (r == 0 && next < known->number)
			r = write_drawn(e, next++, j, err);
		next++;
		if (r == 0)
			r = tune_file_read(e->dirfd, known->folder, "params.json", &config, err);
		if (r == 0)
			r = put(j,
			        json_pack("{s:s, s:i, s:s, s:O}", "e", "add", "t", (int)known->number, "name",
			                  known->folder, "config", config),
			        err);
		if (r == 0 && json_integer_value(json_object_get(known->state, "attempts")) > 0)
			r = put(j, json_pack("{s:s, s:i}", "e", "start", "t", (int)known->number), err);
	}
	return r;
}

static int
write_results(struct tune_experiment *e, const struct all *all, struct journal *j, struct pawl_error *err)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < all->n_lines; i++) {
		const struct line *line = &all->lines[i];
		const char *checkpoint = jsonx_text(line->result, "checkpoint_dir_name");
		if (checkpoint && (!checkpoint_is_name(checkpoint) ||
		                   !checkpoint_is_there(e->dirfd, all->trials[line->trial].folder, checkpoint)))
			checkpoint = NULL;
		json_object_del(line->result, "config");
		r = put(j,
		        jsonx_with(json_pack("{s:s, s:i, s:O}", "e", "result", "t",
		                             (int)all->trials[line->trial].number, "r", line->result),
		                   "c", checkpoint),
		        err);
	}
	return r;
}

static int
write_ends(const struct all *all, struct journal *j, struct pawl_error *err)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < all->n_trials; i++) {
		const char *status = jsonx_text(all->trials[i].state, "status"),
			   *why = jsonx_text(all->trials[i].state, "error");
		const char *how = !status                             ? NULL
		                  : strcmp(status, "TERMINATED") == 0 ? "finished"
		                  : strcmp(status, "ERROR") == 0      ? "error"
		                                                      : NULL;
		if (how)
			r = put(j,
			        jsonx_with(json_pack("{s:s, s:i, s:s}", "e", "end", "t", (int)all->trials[i].number,
			                             "how", how),
			                   "why", why),
			        err);
	}
	return r;
}

int
experiment_rebuild(struct tune_experiment *e, uint64_t *ret_n, struct pawl_error *err)
{
	struct journal j = {.fd = -1};
	struct all all = {0};
	int r = list_trials(e, &all, err);

	for (size_t i = 0; r == 0 && i < all.n_trials; i++) {
		all.trial = (uint32_t)i; /* its place in the list */
		r = trial_files_read(e->dirfd, all.trials[i].folder, add_line, &all, err);
	}
	if (all.n_lines)
		qsort(all.lines, all.n_lines, sizeof(all.lines[0]), by_stamp);
	if (r == 0)
		r = journal_open(e->dirfd, "journal.new", 0, &j, err);
	if (r == 0)
		r = write_trials(e, &all, &j, err);
	if (r == 0)
		r = write_results(e, &all, &j, err);
	if (r == 0)
		r = write_ends(&all, &j, err);
	if (r == 0 && (fsync(j.fd) < 0 || renameat(e->dirfd, "journal.new", e->dirfd, "journal") < 0))
		r = tune_fail_sys(err, errno, "%s/journal: write", e->folder);
	journal_close(&j);
	*ret_n = all.n_trials;
	for (size_t i = 0; i < all.n_trials; i++) {
		free(all.trials[i].folder);
		json_decref(all.trials[i].state);
	}
	for (size_t i = 0; i < all.n_lines; i++)
		json_decref(all.lines[i].result);
	free(all.trials);
	free(all.lines);
	return r;
}
