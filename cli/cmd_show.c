/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_show: prints one checkpoint: its summary and its state tree. Reads the manifest only. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ask.h"
#include "base/folder.h"
#include "cli.h"
#include "folder.h"
#include "grid.h"
#include "human.h"
#include "info.h"
#include "search.h"
#include "target.h"
#include "tree.h"

#define SHOW_DEPTH 3

struct show_args {
	struct score score;
	uint64_t depth;
	bool all, tensors, files;
};

static const struct operand operands[] = {{"TARGET", OPERAND_TARGET, 0, 1}, OPERAND_LIST_END};

static const struct option options[] = {
	{"depth", 'd', OPT_COUNT, offsetof(struct show_args, depth), "N", "levels of the tree to show (default: 3)"},
	{"all", 'a', OPT_FLAG, offsetof(struct show_args, all), NULL, "show the complete tree"},
	{"tensors", 't', OPT_FLAG, offsetof(struct show_args, tensors), NULL, "list its tensors instead of the tree"},
	{"files", 'f', OPT_FLAG, offsetof(struct show_args, files), NULL, "list its files instead of the tree"},
	SCORE_OPTIONS(show_args),
	OPTION_END,
};

static const struct example examples[] = {
	{"pawl show runs/demo@best", "the best checkpoint"},
	{"pawl show runs/demo@400 --tensors | grep norm", "the norm layers of step 400"},
	{"pawl show runs/demo/latest --all", "every leaf of the latest one"},
	{"pawl show model.safetensors", "a file of another program"},
	{"pawl show checkpoint.pt", "one of torch.save; nothing in it is run"},
	EXAMPLE_END,
};

struct file {
	const char *name;
	uint64_t nbytes, links;
};

struct shown {
	const struct pawl_info *info;
	const struct pawl_state *state, *metadata;
	struct file *files;
	size_t n_files;
};

/* Lists the files in the checkpoint's folder; none if no folder can be read. */
static void
read_files(struct cli *cli, struct shown *shown)
{
	PAWL_CLEAN(folder_names_clear) struct folder_names names = {0};
	const char *path = shown->info->path; /* not absolute: it is in no folder of this host */
	const bool is_listed = path[0] == '/' && folder_list(AT_FDCWD, path, path, &names, NULL) == 0;

	shown->files = keep_alloc(&cli->keep, names.n + 1, sizeof(*shown->files));
	if (!is_listed && info_is_foreign(shown->info)) /* it is a single file */
		shown->files[shown->n_files++] = (struct file){shown->info->name, shown->info->bytes, 1};
	for (size_t i = 0; i < names.n; i++) {
		const char *name = keep_printf(&cli->keep, "%s", names.items[i]);
		struct stat st;

		if (name[0] != '.' && stat(keep_printf(&cli->keep, "%s/%s", path, name), &st) == 0)
			shown->files[shown->n_files++] =
				(struct file){name, (uint64_t)st.st_size, (uint64_t)st.st_nlink};
	}
}

static void
print_line(struct cli *cli, const char *label, const char *text, struct cell extra)
{
	(void)fprintf(stdout, "  ");
	term_put(&cli->out, STYLE_DIM, keep_printf(&cli->keep, "%-10s", label));
	(void)fprintf(stdout, " %s", text);
	for (const struct cell *c = &extra; c != NULL; c = c->more) {
		if (c->text == NULL)
			continue;
		(void)fputs("  ", stdout);
		term_put(&cli->out, c->style, c->text);
	}
	(void)fputc('\n', stdout);
}

static const char *
metrics_text(struct cli *cli, const struct pawl_info *info)
{
	const char *ret = "";

	for (size_t i = 0; i < info->n_metrics; i++)
		ret = keep_printf(&cli->keep, "%s%s%s %s", ret, i > 0 ? ", " : "",
		                  term_clean(&cli->keep, info->metrics[i].name),
		                  info->metrics[i].not_a_number ? "(no number)"
		                                                : human_number(&cli->keep, info->metrics[i].value, 6));
	return ret;
}

/* The size of a compressed checkpoint before compression; "" if it is not compressed. */
static const char *
plain_text(struct keep *keep, const struct pawl_info *info)
{
	if (info->plain_bytes == info->bytes || info->plain_bytes == 0)
		return "";
	return keep_printf(keep, " (%.0f%% of %s)", 100.0 * (double)info->bytes / (double)info->plain_bytes,
	                   human_bytes(keep, (double)info->plain_bytes));
}

static void
print_foreign_head(struct cli *cli, const struct pawl_info *info)
{
	static const struct cell none = {NULL, STYLE_PLAIN, NULL};
	struct keep *keep = &cli->keep;
	struct cell age = {keep_printf(keep, "%s ago", human_age(keep, info_now() - info->unix_seconds)), STYLE_DIM,
	                   NULL};

	term_put(&cli->out, STYLE_BOLD, term_clean(keep, info->name));
	(void)fputc('\n', stdout);
	print_line(cli, "path", term_clean(keep, info->path), none);
	print_line(cli, "format", info->format,
	           (struct cell){info_has_no_sums(info) ? "without checksums of its bytes"
	                                                : "with the CRCs of its archive, if it has them",
	                         STYLE_DIM, NULL});
	print_line(cli, "changed", human_time(keep, info->unix_seconds), age);
	print_line(cli, "size",
	           keep_printf(keep, "%s; %s", human_bytes(keep, (double)info->bytes),
	                       human_count(keep, info->n_tensors, "tensor", "tensors")),
	           none);
	(void)fputc('\n', stdout);
}

static void
print_head(struct cli *cli, struct pawl *run, const struct pawl_info *info)
{
	static const struct cell none = {NULL, STYLE_PLAIN, NULL};
	struct keep *keep = &cli->keep;
	const char *progress = info_progress(keep, &info->progress);
	struct cell marks = info_marks(keep, info), age = {NULL, STYLE_DIM, NULL};
	bool single = *pawl_run_id(run) == '\0';

	term_put(&cli->out, STYLE_BOLD, term_clean(keep, info->name));
	for (const struct cell *c = single ? NULL : marks.more; c != NULL; c = c->more) {
		(void)fputs("  ", stdout);
		term_put(&cli->out, c->style, c->text);
	}
	if ((info->marks & PAWL_MARK_NONFINITE) != 0)
		term_put(&cli->out, STYLE_WARN, "  holds NaN or Inf");
	(void)fputs("\n", stdout);
	if (!single)
		print_line(cli, "run", term_clean(keep, pawl_root(run)),
		           (struct cell){cli->common.verbose ? pawl_run_id(run) : NULL, STYLE_DIM, NULL});
	else
		print_line(cli, "path", term_clean(keep, info->path), none);
	age.text = keep_printf(keep, "%s ago", human_age(keep, info_now() - info->unix_seconds));
	print_line(cli, "saved", human_time(keep, info->unix_seconds), age);
	print_line(cli, "step", keep_printf(keep, "%" PRId64, info->step),
	           (struct cell){*progress != '\0' ? progress : NULL, STYLE_DIM, NULL});
	if (info->n_metrics > 0)
		print_line(cli, "metrics", metrics_text(cli, info), none);
	print_line(cli, "size",
	           keep_printf(keep, "%s%s in %s, %s new; %s; %s", human_bytes(keep, (double)info->bytes),
	                       plain_text(keep, info), human_count(keep, info->n_files, "file", "files"),
	                       human_bytes(keep, (double)info->new_bytes),
	                       human_count(keep, info->n_tensors, "tensor", "tensors"),
	                       human_count(keep, info->world_size, "rank", "ranks")),
	           none);
	print_line(cli, "blocked", human_seconds(keep, info->blocked_seconds), none);
	if (cli->common.verbose) {
		print_line(cli, "id", keep_printf(keep, "%" PRIu64 ", attempt %" PRIu64, info->id, info->attempt),
		           none);
		print_line(cli, "path", term_clean(keep, info->path), none);
	}
	(void)fputc('\n', stdout);
}

static void
print_files(struct cli *cli, const struct shown *shown)
{
	static const struct column columns[] = {
		{"file", false, CUT_END, 0}, {"size", true, RIGID, 0}, {"", false, RIGID, 1}};
	struct grid *grid = grid_new(&cli->keep, columns, 3);

	for (size_t i = 0; i < shown->n_files; i++) {
		struct cell *cells = grid_row(grid);

		cells[0].text = term_clean(&cli->keep, shown->files[i].name);
		cells[1].text = human_bytes(&cli->keep, (double)shown->files[i].nbytes);
		if (shown->files[i].links > 1)
			cells[2] = (struct cell){keep_printf(&cli->keep, "shared by %" PRIu64, shown->files[i].links),
			                         STYLE_DIM, NULL};
	}
	grid_print(grid, &cli->out);
}

static void
print_text(struct cli *cli, struct pawl *run, const struct show_args *args, const struct shown *shown)
{
	struct tree_opts tree = {"state", args->depth > 0 ? args->depth : args->all ? 0 : SHOW_DEPTH, args->all};
	struct tree_opts extra = {"metadata", 0, true};

	ask_page(cli);
	if (!args->tensors && !args->files && info_is_foreign(shown->info))
		print_foreign_head(cli, shown->info);
	else if (!args->tensors && !args->files)
		print_head(cli, run, shown->info);
	if (args->files) {
		print_files(cli, shown);
		return;
	}
	if (args->tensors) {
		tree_print_tensors(cli, shown->state);
		return;
	}
	if (shown->metadata != NULL) {
		tree_print(cli, shown->metadata, &extra);
		(void)fputc('\n', stdout);
	}
	tree_print(cli, shown->state, &tree);
}

static void
print_json(struct cli *cli, struct pawl *run, const struct shown *shown)
{
	struct jsonout j;

	jsonout_init(&j, stdout);
	cli->wrote_json = true;
	jsonout_begin_object(&j, NULL);
	jsonout_text(&j, "command", "show");
	jsonout_text(&j, "run", *pawl_run_id(run) != '\0' ? pawl_root(run) : NULL);
	info_json(&j, "checkpoint", shown->info);
	jsonout_begin_array(&j, "files");
	for (size_t i = 0; i < shown->n_files; i++) {
		jsonout_begin_object(&j, NULL);
		jsonout_text(&j, "name", shown->files[i].name);
		jsonout_uint(&j, "bytes", shown->files[i].nbytes);
		jsonout_uint(&j, "links", shown->files[i].links);
		jsonout_end(&j);
	}
	jsonout_end(&j);
	tree_json(&j, "metadata", shown->metadata);
	tree_json(&j, "state", shown->state);
	tree_tensors_json(&j, "tensors", shown->state);
	jsonout_end(&j);
}

PAWL_DEFINE_CLEAN(struct pawl_restore, pawl_restore_close);

PAWL_DEFINE_CLEAN(struct pawl_state, pawl_state_free);

static int
run_show(struct cli *cli, const void *ptr)
{
	const struct show_args *args = ptr;
	PAWL_CLEAN(target_release) struct taken from = {0};
	PAWL_CLEAN(pawl_restore_close_clean) struct pawl_restore *restore = NULL;
	PAWL_CLEAN(pawl_state_free_clean) struct pawl_state *metadata = NULL;
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	struct pawl_error err = {0};
	struct shown shown = {0};

	if (args->tensors && args->files)
		return cli_usage(cli, "--tensors and --files cannot be combined; give one of them");
	const char *place = cli->n_operands > 0 ? cli->operands[0] : ".", *newest = NULL;
	int rc, status;

	if (!target_is_url(place)) {
		if (search_ls_folder(cli, place, false, 0, &status))
			return status;
		newest = folder_newest_file(cli, place);
	}
	rc = target_take(cli, newest != NULL ? newest : place, &args->score, &from, &err);
	if (rc == PAWL_ENOTFOUND && target_is_url(place) && from.run == NULL) {
		if (search_ls_folder(cli, place, false, 0, &status))
			return status;
		newest = folder_newest_file(cli, place);
		if (newest != NULL)
			rc = target_take(cli, newest, &args->score, &from, &err);
	}
	if (rc < 0)
		return cli_fail(cli, &err);
	shown.info = from.info;
	opts.selector = keep_printf(&cli->keep, "id:%" PRIu64, shown.info->id);
	opts.no_fallback = 1;
	if (pawl_restore_open(from.run, &opts, &restore, &err) < 0 ||
	    pawl_metadata(from.run, shown.info->id, &metadata, &err) < 0)
		return cli_fail(cli, &err);
	shown.state = pawl_restore_state(restore);
	shown.metadata = metadata;
	if (args->files || cli->common.json)
		read_files(cli, &shown);
	if (cli->common.json)
		print_json(cli, from.run, &shown);
	else
		print_text(cli, from.run, args, &shown);
	return 0;
}

const struct command cmd_show = {
	.name = "show",
	.group = GROUP_LOOK,
	.summary = "show one checkpoint: summary, state tree, tensors, files",
	.about =
		"Shows what TARGET holds (default: the latest checkpoint of the current folder). It prints its "
		"position in the training, its metrics and the state tree. Each branch has dtype, shape and bytes. "
		"Only the manifest is read, never a tensor. In a folder of checkpoint files, such as Composer's, it shows the "
		"newest; of a search, its trials.\n\n"
		"The tree is cut at three levels and long branches are shortened; --depth and --all show more. A "
		"tensor that shares the memory of an earlier one is shown as tied to it and counts no bytes.",
	.operands = operands,
	.options = options,
	.examples = examples,
	.args_size = sizeof(struct show_args),
	.run = run_show,
};
