/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_ls: prints the checkpoints of a run as a table. Reads manifests only. */
#include <inttypes.h>
#include <string.h>

#include "ask.h"
#include "cli.h"
#include "folder.h"
#include "grid.h"
#include "human.h"
#include "info.h"
#include "search.h"
#include "target.h"

#define LS_METRICS 3 /* columns of metrics without -v */
#define LS_METRICS_VERBOSE 16

struct ls_args {
	struct score score;
	bool bad, names, recursive;
	uint64_t last;
};

static const struct operand operands[] = {{"RUN", OPERAND_RUN, 0, 1}, OPERAND_LIST_END};

static const struct option options[] = {
	{"bad", 0, OPT_FLAG, offsetof(struct ls_args, bad), NULL, "also list damaged checkpoints, with the reason"},
	{"recursive", 'r', OPT_FLAG, offsetof(struct ls_args, recursive), NULL,
         "list runs at any depth below the folder"},
	{"names", 0, OPT_FLAG, offsetof(struct ls_args, names), NULL, "print only the names, one per line"},
	{"last", 0, OPT_COUNT, offsetof(struct ls_args, last), "N", "list only the newest N"},
	SCORE_OPTIONS(ls_args),
	OPTION_END,
};

static const struct example examples[] = {
	{"pawl ls runs/demo", "all checkpoints, oldest first"},
	{"pawl ls runs/demo --by loss --order min", "mark as best the one with the least loss"},
	{"pawl ls -r experiments", "all runs below a folder"},
	{"pawl ls runs/demo --json | jq '.checkpoints[-1].metrics'", "for programs"},
	EXAMPLE_END,
};

struct names {
	const char *items[LS_METRICS_VERBOSE];
	size_t n;
};

static bool
has_name(const struct names *names, const char *name)
{
	for (size_t i = 0; i < names->n; i++)
		if (strcmp(names->items[i], name) == 0)
			return true;
	return false;
}

/* The rows to print, borrowed from the list. */
struct rows {
	const struct pawl_info **items;
	size_t n, n_damaged, n_unread; /* the latter two: of the complete list */
};

/* only: the id of the checkpoint that was named; 0 = all. */
static void
pick_rows(struct cli *cli, const struct ls_args *args, const struct pawl_list *list, uint64_t only, struct rows *ret)
{
	size_t n = pawl_list_count(list), from = 0;

	ret->items = keep_alloc(&cli->keep, n + 1, sizeof(struct pawl_info *));
	for (size_t i = 0; i < n; i++) {
		const struct pawl_info *info = pawl_list_get(list, i);
		bool bad = (info->marks & PAWL_MARK_BAD) != 0;

		if (only > 0 && info->id != only)
			continue;
		ret->n_damaged += info->code == PAWL_ECORRUPT;
		ret->n_unread += bad && info->code != PAWL_ECORRUPT;
		if (!bad || args->bad)
			ret->items[ret->n++] = info;
	}
	if (args->last > 0 && args->last < ret->n)
		from = ret->n - (size_t)args->last;
	ret->items += from;
	ret->n -= from;
}

/* Chooses the metrics that get a column: those of --by, then those of the newest checkpoint that
 * has metrics. */
static void
pick_metrics(const struct cli *cli, const struct ls_args *args, const struct rows *rows, struct names *ret)
{
	size_t most = cli->common.verbose ? LS_METRICS_VERBOSE : LS_METRICS;

	for (size_t i = 0; i < args->score.by.n && ret->n < most; i++)
		if (!has_name(ret, args->score.by.items[i]))
			ret->items[ret->n++] = args->score.by.items[i];
	for (size_t i = rows->n; i-- > 0;) {
		const struct pawl_info *info = rows->items[i];

		if (info->n_metrics == 0)
			continue;
		for (size_t m = 0; m < info->n_metrics && ret->n < most; m++)
			if (!has_name(ret, info->metrics[m].name))
				ret->items[ret->n++] = info->metrics[m].name;
		break;
	}
}

static const struct pawl_metric *
find_metric(const struct pawl_info *info, const char *name)
{
	for (size_t m = 0; m < info->n_metrics; m++)
		if (strcmp(info->metrics[m].name, name) == 0)
			return &info->metrics[m];
	return NULL;
}

/* Does the name repeat the id, as "checkpoint_000007" does? */
static bool
is_plain_name(const struct pawl_info *info)
{
	char plain[64];

	(void)snprintf(plain, sizeof(plain), "checkpoint_%06" PRIu64, info->id);
	return strcmp(plain, info->name) == 0;
}

static struct cell
metric_cell(struct keep *keep, const struct pawl_info *info, const char *name)
{
	const struct pawl_metric *metric = find_metric(info, name);
	bool finite;

	if (metric == NULL || metric->not_a_number)
		return (struct cell){(info->marks & PAWL_MARK_BAD) != 0 ? NULL : "-", STYLE_DIM, NULL};
	finite = metric->value - metric->value == 0;
	return (struct cell){human_number(keep, metric->value, 5), finite ? STYLE_PLAIN : STYLE_WARN, NULL};
}

enum { LS_ID, LS_NAME, LS_STEP, LS_EPOCH, LS_METRIC, LS_AFTER = LS_METRIC + LS_METRICS_VERBOSE };
enum {
	LS_SIZE = LS_AFTER,
	LS_RATIO,
	LS_NEW,
	LS_AGE,
	LS_BLOCKED,
	LS_STATE,
	LS_MARKS,
	LS_MIRRORS,
	LS_PROBLEM,
	LS_COLUMNS
};

static void
fill_row(struct cli *cli, const struct pawl_info *info, const struct names *metrics, size_t n_mirrors, double now,
         struct cell *row)
{
	static const struct cell unknown = {"-", STYLE_DIM, NULL};
	struct keep *keep = &cli->keep;

	if (info->id > 0)
		row[LS_ID].text = keep_printf(keep, "%" PRIu64, info->id);
	row[LS_ID].style = (info->marks & PAWL_MARK_BAD) != 0 ? STYLE_BAD : STYLE_BOLD;
	if (cli->common.verbose || !is_plain_name(info))
		row[LS_NAME].text = term_clean(keep, info->name);
	row[LS_STATE] = info_state(info);
	row[LS_MARKS] = info_marks(keep, info);
	if ((info->marks & PAWL_MARK_BAD) != 0) {
		row[LS_PROBLEM].text = term_clean(keep, info->problem);
		return;
	}
	row[LS_STEP].text = keep_printf(keep, "%" PRId64, info->step);
	if (info->progress.epoch >= 0)
		row[LS_EPOCH].text = keep_printf(keep, "%" PRId64, info->progress.epoch);
	for (size_t m = 0; m < metrics->n; m++)
		row[LS_METRIC + m] = metric_cell(keep, info, metrics->items[m]);
	row[LS_SIZE].text = human_bytes(keep, (double)info->bytes);
	if (info->plain_bytes != info->bytes && info->plain_bytes > 0)
		row[LS_RATIO].text =
			keep_printf(keep, "%.0f%%", 100.0 * (double)info->bytes / (double)info->plain_bytes);
	row[LS_NEW].text = human_bytes(keep, (double)info->new_bytes);
	row[LS_AGE].text = human_age(keep, now - info->unix_seconds);
	row[LS_BLOCKED].text = human_seconds(keep, info->blocked_seconds);
	if (info_is_foreign(info)) /* what only pawl writes down */
		row[LS_STEP] = row[LS_NEW] = row[LS_BLOCKED] = row[LS_STATE] = row[LS_MARKS] = unknown;
	if (n_mirrors > 0) {
		row[LS_MIRRORS].text = keep_printf(keep, "%" PRIu32 "/%zu", info->n_mirrors, n_mirrors);
		row[LS_MIRRORS].style = info->n_mirrors < n_mirrors ? STYLE_WARN : STYLE_DIM;
	}
}

static void
print_table(struct cli *cli, const struct rows *rows, const struct names *metrics, size_t n_mirrors)
{
	struct column columns[LS_COLUMNS] = {
		[LS_ID] = {"id", true, RIGID, 0},
		[LS_NAME] = {"name", false, CUT_END, 0},
		[LS_STEP] = {"step", true, RIGID, 0},
		[LS_EPOCH] = {"epoch", true, RIGID, 3},
		[LS_SIZE] = {"size", true, RIGID, 2},
		[LS_RATIO] = {"ratio", true, RIGID, 6},
		[LS_NEW] = {"new", true, RIGID, 6},
		[LS_AGE] = {"age", true, RIGID, 1},
		[LS_BLOCKED] = {"blocked", true, RIGID, 5},
		[LS_STATE] = {"state", false, RIGID, 4},
		[LS_MARKS] = {"marks", false, RIGID, 0},
		[LS_MIRRORS] = {"mirrors", true, RIGID, 0},
		[LS_PROBLEM] = {"problem", false, RUN_OVER, 0},
	};
	double now = info_now();
	struct grid *grid;

	for (size_t m = 0; m < LS_METRICS_VERBOSE; m++) {
		columns[LS_METRIC + m].title = m < metrics->n ? term_clean(&cli->keep, metrics->items[m]) : "";
		columns[LS_METRIC + m].right = true;
		columns[LS_METRIC + m].drop = m == 0 ? 0 : 7 + (int)m;
	}
	grid = grid_new(&cli->keep, columns, LS_COLUMNS);
	for (size_t i = 0; i < rows->n; i++)
		fill_row(cli, rows->items[i], metrics, n_mirrors, now, grid_row(grid));
	grid_print(grid, &cli->out);
}

static void
saving_json(struct jsonout *j, const struct pawl_saving *saving)
{
	jsonout_begin_object(j, "saving");
	jsonout_uint(j, "id", saving->id);
	jsonout_text(j, "name", saving->name);
	jsonout_int(j, "step", saving->step);
	jsonout_real(j, "unix_seconds", saving->unix_seconds);
	jsonout_uint(j, "plain_bytes", saving->plain_bytes);
	jsonout_uint(j, "done_bytes", saving->done_bytes);
	jsonout_uint(j, "written_bytes", saving->written_bytes);
	jsonout_end(j);
}

static void
print_json(struct cli *cli, struct pawl *run, const struct rows *rows)
{
	struct pawl_saving saving = PAWL_SAVING_INIT;
	struct jsonout j;

	jsonout_init(&j, stdout);
	cli->wrote_json = true;
	jsonout_begin_object(&j, NULL);
	jsonout_text(&j, "command", "ls");
	jsonout_text(&j, "run", pawl_root(run));
	jsonout_text(&j, "run_id", pawl_run_id(run));
	jsonout_begin_array(&j, "checkpoints");
	for (size_t i = 0; i < rows->n; i++)
		info_json(&j, NULL, rows->items[i]);
	jsonout_end(&j);
	if (pawl_saving(run, &saving, NULL) == 0)
		saving_json(&j, &saving);
	jsonout_end(&j);
}

/* Prints the totals for people, and the number of bad checkpoints, which the table may not show. */
static void
print_totals(struct cli *cli, struct pawl *run, const struct rows *rows, const struct ls_args *args)
{
	struct pawl_saving saving = PAWL_SAVING_INIT;
	size_t n = 0;
	double bytes = 0;

	if (pawl_saving(run, &saving, NULL) == 0)
		cli_note(cli, "%s is being saved: %.0f%% of %s compressed, %s written",
		         term_clean(&cli->keep, saving.name),
		         100.0 * (double)saving.done_bytes / (double)(saving.plain_bytes ? saving.plain_bytes : 1),
		         human_bytes(&cli->keep, (double)saving.plain_bytes),
		         human_bytes(&cli->keep, (double)saving.written_bytes));
	for (size_t i = 0; i < rows->n; i++) {
		n += (rows->items[i]->marks & PAWL_MARK_BAD) == 0;
		bytes += (double)rows->items[i]->new_bytes;
	}
	if (n == 0)
		cli_note(cli, "%s: no checkpoints", pawl_root(run));
	else if (cli->out.width > 0)
		cli_note(cli, "%s, %s", human_count(&cli->keep, n, "checkpoint", "checkpoints"),
		         human_bytes(&cli->keep, bytes));
	if (rows->n_damaged > 0 && !args->bad)
		cli_warn(cli, "%s damaged: 'pawl ls --bad' prints the reason",
		         human_count(&cli->keep, rows->n_damaged, "more is", "more are"));
	if (rows->n_unread > 0 && !args->bad)
		cli_warn(cli, "%s be read: 'pawl ls --bad' prints the reason",
		         human_count(&cli->keep, rows->n_unread, "more cannot", "more cannot"));
}

/* Lists a search, or a folder of runs and files. False: the place is something else. */
static bool
list_folder(struct cli *cli, const char *place, const struct ls_args *args, int *ret_status)
{
	const struct folder_opts opts = {.recursive = args->recursive, .names = args->names, .last = args->last};

	const bool is_listed = search_ls_folder(cli, place, args->names, args->last, ret_status) ||
	                       folder_ls(cli, place, &opts, ret_status);

	if (is_listed && args->score.by.n > 0)
		cli_warn(cli, "--by %s changes nothing here: it is for the checkpoints of one run",
		         args->score.by.items[0]);
	return is_listed;
}

static int
run_ls(struct cli *cli, const void *ptr)
{
	const struct ls_args *args = ptr;
	PAWL_CLEAN(cli_close) struct pawl *run = NULL;
	PAWL_CLEAN(pawl_list_free_clean) struct pawl_list *list = NULL;
	struct pawl_error err = {0};
	struct names metrics = {0};
	struct rows rows = {0};
	const char *place = cli->n_operands > 0 ? cli->operands[0] : ".", **deeper;
	uint64_t only = 0;
	struct target target;
	int rc, status;

	if (!target_is_url(place) && list_folder(cli, place, args, &status))
		return status;
	rc = target_parse_or_folder(cli, place, &target, &err);
	if (rc == PAWL_ENOTFOUND && target_is_url(place)) {
		if (list_folder(cli, place, args, &status))
			return status;
		rc = target_parse(cli, place, &target, &err);
	}
	if (rc == PAWL_ENOTFOUND && !args->recursive && !target_is_url(place) && folder_find(cli, place, &deeper) > 0)
		(void)err_set(&err, rc, "%s; 'pawl ls -r %s' lists what is deeper", err.message, place);
	if (rc < 0 || target_open(cli, &target, false, &args->score, &run, &err) < 0 ||
	    ((target.selector != NULL || (target.single && !args->bad)) &&
	     target_find(cli, run, &target, &only, &err) < 0) ||
	    pawl_list_open(run, 1, &list, &err) < 0)
		return cli_fail(cli, &err);
	pick_rows(cli, args, list, only, &rows);
	if (cli->common.json) {
		print_json(cli, run, &rows);
		return 0;
	}
	if (args->names) {
		for (size_t i = 0; i < rows.n; i++)
			(void)printf("%s\n", term_clean(&cli->keep, rows.items[i]->name));
		return 0;
	}
	pick_metrics(cli, args, &rows, &metrics);
	ask_page(cli);
	if (rows.n > 0)
		print_table(cli, &rows, &metrics, pawl_mirror_count(run));
	print_totals(cli, run, &rows, args);
	return 0;
}

const struct command cmd_ls = {
	.name = "ls",
	.group = GROUP_LOOK,
	.summary = "list the checkpoints of a run, or the runs of a folder",
	.about =
		"Lists the checkpoints of RUN (default: the current folder), oldest first; RUN@SELECTOR lists one. Only "
		"manifests are read, never tensors. In a folder or URL that is not a run it lists runs, single "
		"checkpoints and searches by name (with -r at any depth). It also lists checkpoint files, such as those of "
		"Composer's CheckpointSaver. Of a search it lists the trials.\n\n"
		"'ratio' is the size of a compressed checkpoint relative to its uncompressed size. 'new' is what the "
		"checkpoint added to the disk: packs that did not change are shared with the one before. 'blocked' is "
		"how long the training waited for the save. 'state' is saved, nonfinite (it holds NaN or Inf), bad, "
		"or denied (no permission to read it). 'marks' shows which one is the latest and the best, and which "
		"ones are pinned or held by a reader. The progress of a compressed save is shown as its writer "
		"reports it once a second. 'mirrors' is the number of mirrors that have the checkpoint.\n\n"
		"On a narrow terminal the least important columns are left out; elsewhere all are printed.",
	.operands = operands,
	.options = options,
	.examples = examples,
	.args_size = sizeof(struct ls_args),
	.run = run_ls,
};
