/* SPDX-License-Identifier: Apache-2.0 */
/*
 * folder: see folder.h. Files are recognised by their names, or by their first bytes; runs are
 * opened for reading.
 */
#include "folder.h"

#include <dirent.h>
#include <fcntl.h>
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
#include "search.h"
#include "target.h"

#define MAX_LOOKS 1000u /* files of one listing whose first bytes are read */

/* A checkpoint file. */
struct file {
	const char *name; /* relative to the folder */
	uint64_t bytes;
	double unix_seconds;
	int64_t epoch, batch; /* -1 = not in the name */
	const char *links;    /* "latest-rank0.pt, ..": links in its folder that lead to it */
};

/* A run, a single checkpoint or a search. */
struct run {
	const char *name; /* relative to the folder */
	bool single, search;
	double unix_seconds; /* of a search: its last change; 0 = unknown */
	const char *problem; /* a folder that cannot be listed; else NULL */
};

struct found {
	struct cli *cli;
	const struct folder_opts *opts;
	const char *root;
	struct run *runs;
	size_t n_runs, n_problems;
	struct file *files;
	size_t n_files, n_looks;
};

static const char *
base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash != NULL ? slash + 1 : path;
}

/* A link counts, whatever it leads to: opening the place reports what is wrong with it. */
static bool
has_name(struct cli *cli, const char *folder, const char *name)
{
	struct stat st;

	return lstat(keep_printf(&cli->keep, "%s/%s", folder, name), &st) == 0;
}

/* "rank00000-00012.safetensors", "__0_0.distcp" (DCP): a part of a checkpoint. Only its manifest
 * explains it. */
static bool
is_pack_name(const char *name)
{
	const size_t len = strlen(name), n = strlen(".distcp");

	if (len > n && strcmp(name + len - n, ".distcp") == 0)
		return true;
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

/* Does the local file begin as torch.save writes one? That is a zip archive whose first file is
 * NAME/data.pkl. Composer's files need no suffix. */
static bool
looks_like_checkpoint(struct found *f, const struct pawl_place *place)
{
	enum { NAME_LEN_AT = 26, NAME_AT = 30 };
	static const char last[] = "/data.pkl";
	unsigned char head[NAME_AT + 300];
	int fd;

	/* A device has no bytes, and is not opened. */
	if (target_is_url(f->root) || place->bytes <= NAME_AT || is_pack_name(base_name(place->path)) ||
	    f->n_looks++ >= MAX_LOOKS)
		return false;
	fd = open(target_join(f->cli, f->root, place->path), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return false;
	const ssize_t n = read(fd, head, sizeof(head));

	(void)close(fd);
	if (n < NAME_AT || memcmp(head, "PK\003\004", 4) != 0)
		return false;
	const size_t len = head[NAME_LEN_AT] | (size_t)head[NAME_LEN_AT + 1] << 8, n_last = sizeof(last) - 1;

	return len > n_last && NAME_AT + len <= (size_t)n && memcmp(head + NAME_AT + len - n_last, last, n_last) == 0;
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

static void
add_link(struct found *f, struct file *file, const char *link)
{
	file->links = keep_printf(&f->cli->keep, "%s%s%s", file->links != NULL ? file->links : "",
	                          file->links != NULL ? ", " : "", base_name(link));
}

/* Adds a link to the file in its folder that it leads to, if that file is known. */
static void
note_link(struct found *f, const char *link)
{
	const size_t folder = (size_t)(base_name(link) - link);
	char to[PATH_MAX];
	ssize_t len = readlink(target_join(f->cli, f->root, link), to, sizeof(to) - 1);

	if (len <= 0)
		return;
	to[len] = '\0';
	for (size_t i = 0; i < f->n_files; i++) {
		struct file *file = &f->files[i];
		const char *name = base_name(file->name);

		if ((size_t)(name - file->name) == folder && strncmp(file->name, link, folder) == 0 &&
		    strcmp(name, base_name(to)) == 0)
			add_link(f, file, link);
	}
}

/* The same for a text object, which holds the name of a file from the beginning of the store. */
static void
note_pointer(struct found *f, const struct pawl_place *place)
{
	const char *target = keep_printf(&f->cli->keep, "/%s", place->target);
	const size_t len = strlen(target);

	for (size_t i = 0; i < f->n_files; i++) {
		if (strcmp(base_name(f->files[i].name), base_name(target)) != 0)
			continue;
		const char *path = target_join(f->cli, f->root, f->files[i].name);
		const size_t n = target_is_url(path) ? strcspn(path, "?") : strlen(path);

		if (n >= len && strncmp(path + n - len, target, len) == 0)
			add_link(f, &f->files[i], keep_printf(&f->cli->keep, "%s", place->path));
	}
}

static void
add_file(struct found *f, const struct pawl_place *place)
{
	const char *path = keep_printf(&f->cli->keep, "%s", place->path), *name = base_name(path);

	f->files[f->n_files++] = (struct file){.name = path,
	                                       .bytes = place->bytes,
	                                       .unix_seconds = place->unix_seconds,
	                                       .epoch = number_after(name, "ep"),
	                                       .batch = number_after(name, "ba")};
}

static void
add_run(struct found *f, const struct pawl_place *place)
{
	f->runs[f->n_runs++] = (struct run){
		.name = keep_printf(&f->cli->keep, "%s", place->path),
		.single = place->kind == PAWL_KIND_CHECKPOINT,
		.search = place->kind == PAWL_KIND_SEARCH,
		.unix_seconds = place->unix_seconds,
		.problem = place->problem != NULL ? keep_printf(&f->cli->keep, "%s", place->problem) : NULL,
	};
	f->n_problems += place->problem != NULL;
}

/* Is the real path that of a listed place, or of something in one? */
static bool
is_listed(struct found *f, const struct pawl_places *places, const char *real)
{
	char root[PATH_MAX];
	const size_t len = realpath(f->root, root) != NULL ? strlen(root) : 0;

	if (len == 0 || strncmp(real, root, len) != 0)
		return false;
	real += len + strspn(real + len, "/");
	for (size_t i = 0; i < pawl_places_count(places); i++) {
		const struct pawl_place *place = pawl_places_get(places, i);
		const size_t n = strlen(place->path);

		if (place->kind != PAWL_KIND_OTHER && strncmp(real, place->path, n) == 0 &&
		    (real[n] == '\0' || real[n] == '/'))
			return true;
	}
	return false;
}

/* A link in the root itself to a run or a checkpoint that is not listed already. */
static void
add_linked_run(struct found *f, const struct pawl_places *places, const struct pawl_place *link)
{
	char real[PATH_MAX];
	struct stat st;

	if (target_is_url(f->root) || strchr(link->path, '/') != NULL ||
	    realpath(target_join(f->cli, f->root, link->path), real) == NULL || stat(real, &st) < 0 ||
	    !S_ISDIR(st.st_mode) || is_listed(f, places, real))
		return;
	const int kind = pawl_kind_of(real, NULL, NULL);

	if (kind == PAWL_KIND_RUN || kind == PAWL_KIND_CHECKPOINT)
		add_run(f, &(struct pawl_place){.path = link->path, .kind = kind});
}

/* Sorts the places below the root into runs and files. */
static void
sort_out(struct found *f, const struct pawl_places *places)
{
	const size_t n = pawl_places_count(places);

	f->runs = keep_alloc(&f->cli->keep, n + 1, sizeof(*f->runs));
	f->files = keep_alloc(&f->cli->keep, n + 1, sizeof(*f->files));
	for (size_t i = 0; i < n; i++) {
		const struct pawl_place *place = pawl_places_get(places, i);

		if (place->problem != NULL || place->kind != PAWL_KIND_OTHER)
			add_run(f, place);
		else if (place->is_link)
			add_linked_run(f, places, place);
		else if (is_checkpoint_name(base_name(place->path)) || looks_like_checkpoint(f, place))
			add_file(f, place);
	}
	for (size_t i = 0; i < n; i++) {
		const struct pawl_place *place = pawl_places_get(places, i);

		if (place->target != NULL)
			note_pointer(f, place);
		else if (place->is_link && !target_is_url(f->root))
			note_link(f, place->path);
	}
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

/* Prints a row for a search, or its document. */
static void
show_search(struct found *f, const struct run *found, struct cell *row, struct jsonout *j)
{
	struct keep *keep = &f->cli->keep;
	const char *whole = target_join(f->cli, f->root, found->name), *summary = NULL;
	struct pawl_error err = {0};
	uint32_t n = 0;
	int rc = search_summary(f->cli, whole, &summary, &n, &err);

	if (j == NULL) {
		row[RUN_NAME] = (struct cell){term_clean(keep, found->name), STYLE_BOLD, NULL};
		if (rc < 0)
			row[RUN_PROBLEM] =
				(struct cell){term_clean(keep, keep_printf(keep, "%s", err.message)), STYLE_BAD, NULL};
		else
			row[RUN_STATE].text = keep_printf(keep, "search, %s", summary);
		return;
	}
	jsonout_begin_object(j, NULL);
	jsonout_text(j, "search", whole);
	if (rc < 0)
		jsonout_text(j, "problem", err.message);
	jsonout_uint(j, "trials", n);
	jsonout_end(j);
}

/* Prints a row for a run; with j also its document. */
static void
show_run(struct found *f, const struct run *found, struct cell *row, struct jsonout *j)
{
	struct keep *keep = &f->cli->keep;
	PAWL_CLEAN(cli_close) struct pawl *run = NULL;
	PAWL_CLEAN(pawl_list_free_clean) struct pawl_list *list = NULL;
	const char *whole = target_join(f->cli, f->root, found->name);
	struct target target = {.text = whole, .root = whole, .single = found->single};
	const struct pawl_info *last = NULL;
	struct pawl_error err = {0};
	struct disk_run disk = {0};
	struct disk_use use = {0};
	size_t n = 0;
	int rc = 0;

	if (found->problem != NULL)
		rc = err_set(&err, PAWL_EAUTH, "%s", found->problem);
	if (rc == 0)
		rc = target_open(f->cli, &target, false, NULL, &run, &err);
	if (rc == 0)
		rc = pawl_list_open(run, 0, &list, &err);
	n = rc == 0 ? pawl_list_count(list) : 0;
	last = n > 0 ? pawl_list_get(list, n - 1) : NULL;
	if (rc == 0 && !found->single)
		disk_of_run(f->cli, whole, list, &disk);
	else if (last != NULL)
		disk_of_checkpoint(f->cli, last, &use);
	if (found->single)
		disk.bytes = disk.used = use.bytes;
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
	row[RUN_NAME] = (struct cell){term_clean(keep, found->name), STYLE_BOLD, NULL};
	if (rc < 0) {
		row[RUN_PROBLEM] =
			(struct cell){keep_printf(keep, "%s", term_clean(keep, err.message)), STYLE_BAD, NULL};
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
		(f->runs[i].search ? show_search : show_run)(f, &f->runs[i], grid_row(grid), NULL);
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

/* Is the local path a folder that is neither a run, nor a checkpoint, nor a part of one? */
static bool
is_other(struct cli *cli, const char *path)
{
	return pawl_kind_of(path, NULL, NULL) == PAWL_KIND_OTHER && !target_is_foreign(cli, path, true) &&
	       !has_name(cli, keep_printf(&cli->keep, "%s/..", path), "run.json") &&
	       !has_name(cli, keep_printf(&cli->keep, "%s/../..", path), "run.json");
}

/* PAWL_ENOTFOUND: the folder is something else, or has nothing. */
static int
find_all(struct found *f, struct pawl_error *err)
{
	struct pawl_places *places = NULL;

	if (!target_is_url(f->root) && !is_other(f->cli, f->root))
		return PAWL_ENOTFOUND;
	TRY(pawl_places_open(f->root, f->opts->recursive, &places, err));
	sort_out(f, places);
	pawl_places_free(places);
	return f->n_runs > 0 || f->n_files > 0 ? 0 : PAWL_ENOTFOUND;
}

size_t
folder_find(struct cli *cli, const char *path, const char ***ret)
{
	const struct folder_opts opts = {.recursive = true};
	struct found f = {.cli = cli, .opts = &opts, .root = path};

	if (find_all(&f, NULL) < 0)
		return 0;
	*ret = keep_alloc(&cli->keep, f.n_runs + f.n_files, sizeof(**ret));
	for (size_t i = 0; i < f.n_runs; i++)
		(*ret)[i] = target_join(cli, path, f.runs[i].name);
	for (size_t i = 0; i < f.n_files; i++)
		(*ret)[f.n_runs + i] = target_join(cli, path, f.files[i].name);
	return f.n_runs + f.n_files;
}

const char *
folder_newest_file(struct cli *cli, const char *path)
{
	const struct folder_opts opts = {0};
	struct found f = {.cli = cli, .opts = &opts, .root = path};
	const struct file *newest = NULL;

	if (find_all(&f, NULL) < 0 || f.n_runs > 0)
		return NULL;
	for (size_t i = 0; i < f.n_files; i++) {
		const struct file *file = &f.files[i];

		if (file->links != NULL && strstr(file->links, "latest") != NULL)
			return target_join(cli, path, file->name);
		if (newest == NULL || file->unix_seconds >= newest->unix_seconds)
			newest = file;
	}
	return target_join(cli, path, newest->name);
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
	const char *whole = target_join(f->cli, f->root, found->name);
	const struct target target = {.text = whole, .root = whole, .single = found->single};

	if (found->search)
		return found->unix_seconds;
	if (found->problem != NULL || target_open(f->cli, &target, false, NULL, &run, NULL) < 0 ||
	    pawl_list_open(run, 0, &list, NULL) < 0 || pawl_list_count(list) == 0)
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
	int rc = find_all(&f, &err);

	if (rc == PAWL_ENOTFOUND)
		return false;
	if (rc < 0) {
		*ret_status = cli_fail(cli, &err);
		return true;
	}
	*ret_status = f.n_problems > 0 ? pawl_code_exit_status(PAWL_EAUTH) : 0;
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
	return true;
}
