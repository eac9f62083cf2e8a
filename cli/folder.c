/* SPDX-License-Identifier: Apache-2.0 */
/* folder: see folder.h. Files are recognised by their names; runs are opened for reading. */
#include "folder.h"

#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ask.h"
#include "disk.h"
#include "grid.h"
#include "human.h"
#include "info.h"
#include "target.h"
#include "base/text.h"

#define MAX_DEPTH 32 /* levels below the folder that is listed */

/* A checkpoint file. */
struct file {
	const char *name; /* relative to the folder */
	uint64_t bytes;
	double unix_seconds;
	int64_t epoch, batch; /* -1 = not in the name */
	const char *links;    /* "latest-rank0.pt, ..": links in its folder that lead to it */
};

struct found {
	struct cli *cli;
	const struct folder_opts *opts;
	const char *root;
	const char **runs; /* relative to root */
	size_t n_runs, cap_runs;
	struct file *files;
	size_t n_files, cap_files;
};

/* Grows an array in the invocation's memory. NULL: it is large enough. */
static void *
grown(struct cli *cli, const void *items, size_t n, size_t *cap, size_t size)
{
	void *more;

	if (n < *cap)
		return NULL;
	*cap = *cap > 0 ? 2 * *cap : 16;
	more = keep_alloc(&cli->keep, *cap, size);
	if (n > 0)
		memcpy(more, items, n * size);
	return more;
}

/* A link counts, whatever it leads to: opening the place reports what is wrong with it. */
static bool
has(struct cli *cli, const char *folder, const char *name)
{
	struct stat st;

	return lstat(keep_printf(&cli->keep, "%s/%s", folder, name), &st) == 0;
}

/* "rank00000-00012.safetensors": a part of a checkpoint of pawl. Only its manifest explains it. */
static bool
is_pack_name(const char *name)
{
	return strncmp(name, "rank", 4) == 0 && strspn(name + 4, "0123456789") == 5 && name[9] == '-' &&
	       strspn(name + 10, "0123456789") == 5 && strncmp(name + 15, ".safetensors", 12) == 0;
}

/* "ep1-ba42-rank0.pt", "model.pt.zst", "weights.tar.gz": one of the words between dots decides. */
static bool
is_checkpoint_name(const char *name)
{
	static const char *const words[] = {"pt", "pth", "ckpt", "tar", "tgz", "safetensors", "npz"};

	if (is_pack_name(name))
		return false;
	for (const char *dot = strchr(name, '.'); dot != NULL; dot = strchr(dot + 1, '.')) {
		size_t len = strcspn(dot + 1, ".");

		for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
			if (strlen(words[i]) == len && strncmp(dot + 1, words[i], len) == 0)
				return true;
	}
	return false;
}

/* The number after a word in a name, such as "ep" in "ep1-ba42". The word is at the beginning, or
 * after a dash or an underscore. */
static int64_t
number_after(const char *name, const char *word)
{
	for (const char *at = strstr(name, word); at != NULL; at = strstr(at + 1, word)) {
		const char *digits = at + strlen(word);

		if ((at == name || at[-1] == '-' || at[-1] == '_') && *digits >= '0' && *digits <= '9')
			return strtoll(digits, NULL, 10);
	}
	return -1;
}

static int
compare_runs(const void *a, const void *b)
{
	return text_compare_path(*(const char *const *)a, *(const char *const *)b);
}

static int
compare_files(const void *a, const void *b)
{
	return text_compare_path(((const struct file *)a)->name, ((const struct file *)b)->name);
}

static const char *
joined(struct cli *cli, const char *folder, const char *name)
{
	return *folder != '\0' ? keep_printf(&cli->keep, "%s/%s", folder, name) : keep_printf(&cli->keep, "%s", name);
}

/* Adds a link to the file in its folder that it leads to, if that file is known. */
static void
note_link(struct found *f, size_t first, const char *whole, const char *name)
{
	char to[PATH_MAX];
	ssize_t len = readlink(whole, to, sizeof(to) - 1);
	const char *slash;

	if (len <= 0)
		return;
	to[len] = '\0';
	slash = strrchr(to, '/');
	for (size_t i = first; i < f->n_files; i++) {
		struct file *file = &f->files[i];
		const char *own = strrchr(file->name, '/');

		if (strcmp(own != NULL ? own + 1 : file->name, slash != NULL ? slash + 1 : to) == 0)
			file->links = file->links != NULL ? keep_printf(&f->cli->keep, "%s, %s", file->links, name)
			                                  : keep_printf(&f->cli->keep, "%s", name);
	}
}

static void
add_file(struct found *f, const char *path, const char *name, const struct stat *st)
{
	struct file *more = grown(f->cli, f->files, f->n_files, &f->cap_files, sizeof(*more));

	f->files = more != NULL ? more : f->files;
	f->files[f->n_files++] =
		(struct file){.name = path,
	                      .bytes = (uint64_t)st->st_size,
	                      .unix_seconds = (double)st->st_mtim.tv_sec + 1e-9 * (double)st->st_mtim.tv_nsec,
	                      .epoch = number_after(name, "ep"),
	                      .batch = number_after(name, "ba")};
}

static void
add_run(struct found *f, const char *path)
{
	const char **more = grown(f->cli, f->runs, f->n_runs, &f->cap_runs, sizeof(*more));

	f->runs = more != NULL ? more : f->runs;
	f->runs[f->n_runs++] = path;
}

static bool
is_listed(const struct found *f, const char *folder)
{
	return has(f->cli, folder, "run.json") || (f->opts->with_single && has(f->cli, folder, "manifest.json"));
}

/* below: the folder, relative to the root. Links are not followed. */
static void
scan(struct found *f, const char *below, unsigned depth)
{
	struct cli *cli = f->cli;
	const char *folder = *below != '\0' ? joined(cli, f->root, below) : f->root;
	const size_t first = f->n_files;
	struct dirent *entry;
	DIR *dir = opendir(folder);

	if (dir == NULL)
		return;
	for (int pass = 0; pass < 2; pass++) { /* links after all files are known */
		rewinddir(dir);
		while ((entry = readdir(dir)) != NULL) {
			const char *whole = joined(cli, folder, entry->d_name), *path;
			struct stat st;

			if (entry->d_name[0] == '.' || lstat(whole, &st) < 0)
				continue;
			path = joined(cli, below, entry->d_name);
			if (pass == 1 && S_ISLNK(st.st_mode))
				note_link(f, first, whole, entry->d_name);
			if (pass == 1)
				continue;
			if (S_ISREG(st.st_mode) && !f->opts->only_runs && is_checkpoint_name(entry->d_name))
				add_file(f, path, entry->d_name, &st);
			else if (S_ISDIR(st.st_mode) && is_listed(f, whole))
				add_run(f, path);
			else if (S_ISDIR(st.st_mode) && f->opts->recursive && depth < MAX_DEPTH)
				scan(f, path, depth + 1);
		}
	}
	(void)closedir(dir);
}

/* ---- output ---- */

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

/* Prints a row for a run; with j also its document. */
static void
show_run(struct found *f, const char *path, struct cell *row, struct jsonout *j)
{
	struct keep *keep = &f->cli->keep;
	PAWL_CLEAN(cli_close) struct pawl *run = NULL;
	PAWL_CLEAN(pawl_list_free_clean) struct pawl_list *list = NULL;
	const char *whole = joined(f->cli, f->root, path);
	struct target target = {.text = whole, .root = whole};
	const struct pawl_info *last = NULL;
	struct pawl_error err = {0};
	struct disk_run disk;
	size_t n = 0;
	int rc = target_open(f->cli, &target, false, NULL, &run, &err);

	if (rc == 0)
		rc = pawl_list_open(run, 0, &list, &err);
	for (size_t i = 0; rc == 0 && i < pawl_list_count(list); i++) {
		last = pawl_list_get(list, i);
		n++;
	}
	disk_of_run(f->cli, whole, &disk);
	if (j != NULL) {
		jsonout_begin_object(j, NULL);
		jsonout_text(j, "run", whole);
		if (rc < 0)
			jsonout_text(j, "problem", err.message);
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
	row[RUN_NAME] = (struct cell){text_clean(keep, path), STYLE_BOLD, NULL};
	if (rc < 0) {
		row[RUN_PROBLEM] = (struct cell){text_clean(keep, err.message), STYLE_BAD, NULL};
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
		show_run(f, f->runs[i], grid_row(grid), NULL);
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

		row[0] = (struct cell){text_clean(keep, file->name), STYLE_BOLD, NULL};
		row[1].text = file->epoch >= 0 ? keep_printf(keep, "%" PRId64, file->epoch) : NULL;
		row[2].text = file->batch >= 0 ? keep_printf(keep, "%" PRId64, file->batch) : NULL;
		row[3].text = human_bytes(keep, (double)file->bytes);
		row[4].text = human_age(keep, now - file->unix_seconds);
		if (file->links != NULL)
			row[5] = (struct cell){text_clean(keep, file->links), STYLE_ACCENT, NULL};
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
		show_run(f, f->runs[i], NULL, &j);
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

/* A run that lost its run.json has folders in `checkpoints`; a folder of Composer has files
 * there. */
static bool
is_other(struct cli *cli, const char *path)
{
	struct stat st;

	if (target_is_url(path) || stat(path, &st) < 0 || !S_ISDIR(st.st_mode))
		return false;
	if (has(cli, path, "run.json") || has(cli, path, "manifest.json") || target_is_foreign(cli, path, true))
		return false;
	/* a checkpoint without its manifest */
	return !has(cli, keep_printf(&cli->keep, "%s/../..", path), "run.json");
}

/* False: the folder is something else, or has nothing. */
static bool
find_all(struct found *f)
{
	if (!is_other(f->cli, f->root))
		return false;
	scan(f, "", 0);
	if (has(f->cli, f->root, "checkpoints") && !f->opts->recursive)
		scan(f, "checkpoints", 0); /* the default folder of CheckpointSaver */
	if (f->n_runs > 0)
		qsort(f->runs, f->n_runs, sizeof(*f->runs), compare_runs);
	if (f->n_files > 0)
		qsort(f->files, f->n_files, sizeof(*f->files), compare_files);
	return f->n_runs > 0 || f->n_files > 0;
}

size_t
folder_find(struct cli *cli, const char *path, const char ***ret)
{
	const struct folder_opts opts = {.recursive = true, .with_single = true};
	struct found f = {.cli = cli, .opts = &opts, .root = path};

	if (!find_all(&f))
		return 0;
	*ret = keep_alloc(&cli->keep, f.n_runs + f.n_files, sizeof(**ret));
	for (size_t i = 0; i < f.n_runs; i++)
		(*ret)[i] = joined(cli, path, f.runs[i]);
	for (size_t i = 0; i < f.n_files; i++)
		(*ret)[f.n_runs + i] = joined(cli, path, f.files[i].name);
	return f.n_runs + f.n_files;
}

const char *
folder_newest_file(struct cli *cli, const char *path)
{
	const struct folder_opts opts = {0};
	struct found f = {.cli = cli, .opts = &opts, .root = path};
	const struct file *newest = NULL;

	if (!find_all(&f) || f.n_runs > 0)
		return NULL;
	for (size_t i = 0; i < f.n_files; i++) {
		const struct file *file = &f.files[i];

		if (file->links != NULL && strstr(file->links, "latest") != NULL)
			return joined(cli, path, file->name);
		if (newest == NULL || file->unix_seconds >= newest->unix_seconds)
			newest = file;
	}
	return joined(cli, path, newest->name);
}

bool
folder_ls(struct cli *cli, const char *path, const struct folder_opts *opts)
{
	struct found f = {.cli = cli, .opts = opts, .root = path};

	if (!find_all(&f))
		return false;
	if (opts->last > 0 && opts->last < f.n_files) {
		f.files += f.n_files - opts->last;
		f.n_files = (size_t)opts->last;
	}
	if (cli->common.json) {
		print_json(&f);
	} else if (opts->names) {
		for (size_t i = 0; i < f.n_runs; i++)
			(void)printf("%s\n", text_clean(&cli->keep, f.runs[i]));
		for (size_t i = 0; i < f.n_files; i++)
			(void)printf("%s\n", text_clean(&cli->keep, f.files[i].name));
	} else {
		ask_page(cli);
		if (f.n_runs > 0)
			print_runs(&f);
		if (f.n_files > 0)
			print_files(&f);
	}
	return true;
}
