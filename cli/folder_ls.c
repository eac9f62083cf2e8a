/* SPDX-License-Identifier: Apache-2.0 */
/* folder_ls: prints what is in a folder. Runs are opened for reading; one that cannot be read is a
 * row with the reason. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "ask.h"
#include "disk.h"
#include "folder_own.h"
#include "grid.h"
#include "human.h"
#include "info.h"
#include "search.h"
#include "target.h"

enum {
	RUN_NAME,
	RUN_COUNT,
	RUN_STEP,
	RUN_SIZE,
	RUN_SHARED,
	RUN_LEFTOVER,
	RUN_AGE,
	RUN_STATE,
	RUN_PROBLEM,
	RUN_COLUMNS
};

/* Puts the reason into the row or the document, and its code into the exit status. */
static void
show_problem(struct found *f, const struct pawl_error *err, struct cell *row, struct jsonout *j)
{
	struct keep *keep = &f->cli->keep;

	if (f->problem == 0)
		f->problem = err->code;
	if (j != NULL)
		jsonout_text(j, "problem", err->message);
	if (row != NULL)
		row[RUN_PROBLEM] =
			(struct cell){term_clean(keep, keep_printf(keep, "%s", err->message)), STYLE_BAD, NULL};
}

/* Was it removed since the folder was listed? Then it is not shown. */
static bool
is_gone(const char *path, int code)
{
	struct stat st;

	return code == PAWL_ENOTFOUND && !target_is_url(path) && lstat(path, &st) < 0 && errno == ENOENT;
}

/* Prints a row for a search; with j its document instead. */
static void
show_search(struct found *f, const struct run *found, struct grid *grid, struct jsonout *j)
{
	struct keep *keep = &f->cli->keep;
	const char *whole = target_join(f->cli, f->root, found->name), *summary = NULL;
	struct pawl_error err = {0};
	uint32_t n = 0;
	int rc = search_summary(f->cli, whole, &summary, &n, &err);

	if (is_gone(whole, rc))
		return;
	if (grid != NULL) {
		struct cell *row = grid_row(grid);

		row[RUN_NAME] = (struct cell){term_clean(keep, found->name), STYLE_BOLD, NULL};
		if (rc < 0)
			show_problem(f, &err, row, NULL);
		else
			row[RUN_STATE].text = keep_printf(keep, "search, %s", summary);
		return;
	}
	jsonout_begin_object(j, NULL);
	jsonout_text(j, "search", whole);
	if (rc < 0)
		show_problem(f, &err, NULL, j);
	jsonout_uint(j, "trials", n);
	jsonout_end(j);
}

/* Opens a run or a single checkpoint for reading, and lists its checkpoints. */
static int
open_run(struct found *f, const struct run *found, struct pawl **ret, struct pawl_list **ret_list,
         struct pawl_error *err)
{
	const char *whole = target_join(f->cli, f->root, found->name);
	const struct target target = {.text = whole, .root = whole, .single = found->single};
	uint64_t id;

	if (found->problem != NULL)
		return err_set(err, PAWL_EAUTH, "%s", found->problem);
	TRY(target_open(f->cli, &target, false, NULL, ret, err));
	if (found->single)
		TRY(target_find(f->cli, *ret, &target, &id, err));
	return pawl_list_open(*ret, 0, ret_list, err);
}

/* Prints a row for a run; with j its document instead. */
static void
show_run(struct found *f, const struct run *found, struct grid *grid, struct jsonout *j)
{
	struct keep *keep = &f->cli->keep;
	PAWL_CLEAN(cli_close) struct pawl *run = NULL;
	PAWL_CLEAN(pawl_list_free_clean) struct pawl_list *list = NULL;
	const char *whole = target_join(f->cli, f->root, found->name);
	struct pawl_error err = {0};
	struct disk_run disk = {0};
	struct disk_use use = {0};
	const int rc = open_run(f, found, &run, &list, &err);
	const size_t n = rc == 0 ? pawl_list_count(list) : 0;
	const struct pawl_info *last = n > 0 ? pawl_list_get(list, n - 1) : NULL;

	if (is_gone(whole, rc))
		return;
	if (rc == 0 && !found->single)
		disk_of_run(f->cli, whole, list, &disk);
	else if (last != NULL)
		disk_of_checkpoint(f->cli, last, &use);
	if (found->single)
		disk.bytes = disk.used = use.bytes;
	if (grid == NULL) {
		jsonout_begin_object(j, NULL);
		jsonout_text(j, "run", whole);
		if (rc < 0)
			show_problem(f, &err, NULL, j);
		jsonout_uint(j, "checkpoints", n);
		jsonout_uint(j, "bytes", disk.used);
		jsonout_uint(j, "shared_bytes", disk.bytes + disk.leftover - disk.used);
		jsonout_uint(j, "leftover_bytes", disk.leftover);
		jsonout_bool(j, "open", rc == 0 && pawl_is_open(run));
		if (last != NULL)
			info_json(j, "latest", last);
		jsonout_end(j);
		return;
	}
	struct cell *row = grid_row(grid);

	row[RUN_NAME] = (struct cell){term_clean(keep, found->name), STYLE_BOLD, NULL};
	if (rc < 0) {
		show_problem(f, &err, row, NULL);
		return;
	}
	row[RUN_COUNT].text = keep_printf(keep, "%zu", n);
	row[RUN_SIZE].text = human_bytes(keep, (double)disk.used);
	row[RUN_SHARED].text = human_bytes(keep, (double)(disk.bytes + disk.leftover - disk.used));
	if (disk.leftover > 0)
		row[RUN_LEFTOVER].text = human_bytes(keep, (double)disk.leftover);
	if (pawl_is_open(run))
		row[RUN_STATE] = (struct cell){"open", STYLE_GOOD, NULL};
	if (last == NULL)
		return;
	row[RUN_STEP].text = keep_printf(keep, "%" PRId64, last->step);
	row[RUN_AGE].text = human_age(keep, info_now() - last->unix_seconds);
}

static void
print_runs(struct found *f)
{
	static const struct column columns[] = {
		[RUN_NAME] = {"run", false, CUT_START, 0},       [RUN_COUNT] = {"checkpoints", true, RIGID, 2},
		[RUN_STEP] = {"step", true, RIGID, 0},           [RUN_SIZE] = {"size", true, RIGID, 0},
		[RUN_SHARED] = {"shared", true, RIGID, 3},       [RUN_LEFTOVER] = {"left over", true, RIGID, 4},
		[RUN_AGE] = {"last save", true, RIGID, 1},       [RUN_STATE] = {"state", false, RIGID, 0},
		[RUN_PROBLEM] = {"problem", false, RUN_OVER, 0},
	};
	struct grid *grid = grid_new(&f->cli->keep, columns, RUN_COLUMNS);

	for (size_t i = 0; i < f->n_runs; i++)
		(f->runs[i].search ? show_search : show_run)(f, &f->runs[i], grid, NULL);
	grid_print(grid, &f->cli->out);
}

static void
print_files(struct found *f)
{
	static const struct column columns[] = {
		{"file", false, CUT_START, 0}, {"epoch", true, RIGID, 2}, {"batch", true, RIGID, 3},
		{"size", true, RIGID, 0},      {"age", true, RIGID, 1},   {"links", false, CUT_END, 0},
	};
	struct keep *keep = &f->cli->keep;
	struct grid *grid = grid_new(keep, columns, 6);
	double now = info_now();

	for (size_t i = 0; i < f->n_files; i++) {
		const struct file *file = &f->files[i];
		struct cell *row = grid_row(grid);

		row[0] = (struct cell){term_clean(keep, file->name), STYLE_BOLD, NULL};
		row[1].text = file->epoch >= 0 ? keep_printf(keep, "%" PRId64, file->epoch) : NULL;
		row[2].text = file->batch >= 0 ? keep_printf(keep, "%" PRId64, file->batch) : NULL;
		row[3].text = human_bytes(keep, (double)file->bytes);
		row[4].text = human_age(keep, now - file->unix_seconds);
		if (file->links != NULL)
			row[5] = (struct cell){term_clean(keep, file->links), STYLE_ACCENT, NULL};
	}
	grid_print(grid, &f->cli->out);
}

static void
print_json(struct found *f)
{
	struct jsonout j;

	jsonout_init(&j, stdout);
	f->cli->wrote_json = true;
	jsonout_begin_object(&j, NULL);
	jsonout_text(&j, "command", f->cli->command->name);
	jsonout_text(&j, "folder", f->root);
	jsonout_begin_array(&j, "runs");
	for (size_t i = 0; i < f->n_runs; i++)
		if (!f->runs[i].search)
			show_run(f, &f->runs[i], NULL, &j);
	jsonout_end(&j);
	jsonout_begin_array(&j, "searches");
	for (size_t i = 0; i < f->n_runs; i++)
		if (f->runs[i].search)
			show_search(f, &f->runs[i], NULL, &j);
	jsonout_end(&j);
	jsonout_begin_array(&j, "files");
	for (size_t i = 0; i < f->n_files; i++) {
		const struct file *file = &f->files[i];

		jsonout_begin_object(&j, NULL);
		jsonout_text(&j, "name", file->name);
		jsonout_uint(&j, "bytes", file->bytes);
		jsonout_real(&j, "unix_seconds", file->unix_seconds);
		if (file->epoch >= 0)
			jsonout_int(&j, "epoch", file->epoch);
		if (file->batch >= 0)
			jsonout_int(&j, "batch", file->batch);
		if (file->links != NULL)
			jsonout_text(&j, "links", file->links);
		jsonout_end(&j);
	}
	jsonout_end(&j);
	jsonout_end(&j);
}

static void
print_names(struct found *f)
{
	for (size_t i = 0; i < f->n_runs; i++)
		(void)printf("%s\n", term_clean(&f->cli->keep, f->runs[i].name));
	for (size_t i = 0; i < f->n_files; i++)
		(void)printf("%s\n", term_clean(&f->cli->keep, f->files[i].name));
}

/* The time of the last save, or of a search's last change; 0 = unknown. */
static double
time_of_run(struct found *f, const struct run *found)
{
	PAWL_CLEAN(cli_close) struct pawl *run = NULL;
	PAWL_CLEAN(pawl_list_free_clean) struct pawl_list *list = NULL;

	if (found->search)
		return found->unix_seconds;
	if (open_run(f, found, &run, &list, NULL) < 0 || pawl_list_count(list) == 0)
		return 0;
	return pawl_list_get(list, pawl_list_count(list) - 1)->unix_seconds;
}

/* Leaves only the newest runs, in the order of their names. */
static void
drop_old_runs(struct found *f, uint64_t n_kept)
{
	double *times = keep_alloc(&f->cli->keep, f->n_runs + 1, sizeof(*times));

	for (size_t i = 0; i < f->n_runs && n_kept < f->n_runs; i++)
		times[i] = time_of_run(f, &f->runs[i]);
	while (n_kept < f->n_runs) {
		size_t oldest = 0, after;

		for (size_t i = 1; i < f->n_runs; i++)
			if (times[i] < times[oldest])
				oldest = i;
		after = --f->n_runs - oldest;
		memmove(&f->runs[oldest], &f->runs[oldest + 1], after * sizeof(f->runs[0]));
		memmove(&times[oldest], &times[oldest + 1], after * sizeof(times[0]));
	}
}

bool
folder_ls(struct cli *cli, const char *path, const struct folder_opts *opts, int *ret_status)
{
	struct found f = {.cli = cli, .opts = opts, .root = path};
	struct pawl_error err = {0};
	int rc = folder_find_all(&f, &err);

	if (rc == PAWL_ENOTFOUND)
		return false;
	if (rc < 0) {
		*ret_status = cli_fail(cli, &err);
		return true;
	}
	if (opts->last > 0)
		drop_old_runs(&f, opts->last);
	if (opts->last > 0 && opts->last < f.n_files) {
		f.files += f.n_files - opts->last;
		f.n_files = (size_t)opts->last;
	}
	if (cli->common.json) {
		print_json(&f);
	} else if (opts->names) {
		print_names(&f);
	} else {
		ask_page(cli);
		if (f.n_runs > 0)
			print_runs(&f);
		if (f.n_files > 0)
			print_files(&f);
	}
	*ret_status = f.problem != 0 ? pawl_code_exit_status(f.problem) : 0;
	return true;
}
