/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_diff: shows what changed between two checkpoints. Tensors are streamed, a few blocks at a
 * time. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ask.h"
#include "cli.h"
#include "grid.h"
#include "human.h"
#include "info.h"
#include "target.h"

struct diff_args {
	struct score score;
	const char *sort;
	bool names;
};

static const struct operand operands[] = {{"A", OPERAND_TARGET, 1, 1}, {"B", OPERAND_TARGET, 1, 1}, OPERAND_LIST_END};

static const struct option options[] = {
	{"names", 0, OPT_FLAG, offsetof(struct diff_args, names), NULL, "print only the paths that differ"},
	{"sort", 0, OPT_TEXT, offsetof(struct diff_args, sort), "path|change",
         "order of the rows (default: path); change: the largest relative difference first"},
	SCORE_OPTIONS(diff_args),
	OPTION_END,
};

static const struct example examples[] = {
	{"pawl diff runs/demo@500 @700", "from step 500 to step 700 of the same run"},
	{"pawl diff runs/demo@500 @700 --sort change", "largest changes first"},
	{"pawl diff runs/a runs/b && echo the same", "are the latest checkpoints of two runs equal?"},
	EXAMPLE_END,
};

PAWL_DEFINE_CLEAN(struct pawl_diff, pawl_diff_free);

static const char *
change_name(int change)
{
	return change == PAWL_ADDED ? "added" : change == PAWL_REMOVED ? "removed" : "changed";
}

static enum style
change_style(int change)
{
	return change == PAWL_ADDED ? STYLE_GOOD : change == PAWL_REMOVED ? STYLE_BAD : STYLE_WARN;
}

static struct cell
number_cell(struct keep *keep, double value)
{
	if (isnan(value))
		return (struct cell){NULL, STYLE_PLAIN, NULL};
	return (struct cell){keep_printf(keep, "%.3g", value), STYLE_PLAIN, NULL};
}

/* What changed below one key of the state. */
struct branch {
	const char *name;
	size_t counts[4]; /* by enum pawl_change */
	double max_abs;   /* NaN = no tensor */
};

/* The rows of a branch follow each other. */
static size_t
count_branches(struct cli *cli, const struct pawl_diff *diff, struct branch *ret)
{
	size_t n = 0;

	for (size_t i = 0; i < pawl_diff_count(diff); i++) {
		const struct pawl_diff_row *row = pawl_diff_get(diff, i);
		const size_t len = strcspn(row->path, "/");

		if (n == 0 || strlen(ret[n - 1].name) != len || strncmp(ret[n - 1].name, row->path, len) != 0)
			ret[n++] = (struct branch){.name = keep_strndup(&cli->keep, row->path, len), .max_abs = NAN};
		struct branch *b = &ret[n - 1];

		if (row->change >= 0 && row->change < 4)
			b->counts[row->change]++;
		if (!isnan(row->max_abs) && !(b->max_abs >= row->max_abs))
			b->max_abs = row->max_abs;
	}
	return n;
}

static struct cell
count_cell(struct keep *keep, size_t n)
{
	return (struct cell){n > 0 ? keep_printf(keep, "%zu", n) : NULL, STYLE_PLAIN, NULL};
}

static void
print_branches(struct cli *cli, const struct pawl_diff *diff)
{
	static const struct column columns[] = {
		{"branch", false, CUT_END, 0}, {"changed", true, RIGID, 0}, {"added", true, RIGID, 0},
		{"removed", true, RIGID, 0},   {"max abs", true, RIGID, 0},
	};
	struct branch *branches = keep_alloc(&cli->keep, pawl_diff_count(diff), sizeof(*branches));
	const size_t n = count_branches(cli, diff, branches);
	struct grid *grid = grid_new(&cli->keep, columns, 5);

	for (size_t i = 0; i < n; i++) {
		struct cell *cells = grid_row(grid);

		cells[0] = (struct cell){term_clean(&cli->keep, branches[i].name), STYLE_BOLD, NULL};
		cells[1] = count_cell(&cli->keep, branches[i].counts[PAWL_CHANGED]);
		cells[2] = count_cell(&cli->keep, branches[i].counts[PAWL_ADDED]);
		cells[3] = count_cell(&cli->keep, branches[i].counts[PAWL_REMOVED]);
		cells[4] = number_cell(&cli->keep, branches[i].max_abs);
	}
	grid_print(grid, &cli->out);
	(void)fputc('\n', stdout);
}

/* Rows without a number, which are something else now, come first. */
static double
weight_of(const struct pawl_diff_row *row)
{
	return isnan(row->max_rel) ? INFINITY : row->max_rel;
}

static int
compare_change(const void *a, const void *b)
{
	const double x = weight_of(*(const struct pawl_diff_row *const *)a),
		     y = weight_of(*(const struct pawl_diff_row *const *)b);

	return (x < y) - (x > y);
}

/* The rows in the order of --sort, borrowed. */
static const struct pawl_diff_row **
sort_rows(struct cli *cli, const struct diff_args *args, const struct pawl_diff *diff)
{
	const size_t n = pawl_diff_count(diff);
	const struct pawl_diff_row **ret = keep_alloc(&cli->keep, n + 1, sizeof(struct pawl_diff_row *));

	for (size_t i = 0; i < n; i++)
		ret[i] = pawl_diff_get(diff, i);
	if (args->sort != NULL && strcmp(args->sort, "change") == 0 && n > 0)
		qsort(ret, n, sizeof(struct pawl_diff_row *), compare_change);
	return ret;
}

static void
print_table(struct cli *cli, const struct pawl_diff_row **rows, size_t n)
{
	static const struct column columns[] = {
		{"", false, RIGID, 0},     {"path", false, CUT_START, 0}, {"from", false, CUT_END, 0},
		{"to", false, CUT_END, 0}, {"max abs", true, RIGID, 0},   {"max rel", true, RIGID, 1},
	};
	struct grid *grid = grid_new(&cli->keep, columns, 6);
	struct keep *keep = &cli->keep;

	for (size_t i = 0; i < n; i++) {
		const struct pawl_diff_row *row = rows[i];
		const char *was = row->was != NULL ? term_clean(keep, row->was) : NULL;
		const char *is = row->is != NULL ? term_clean(keep, row->is) : NULL;
		struct cell *cells = grid_row(grid);
		bool same = was != NULL && is != NULL && strcmp(was, is) == 0;

		cells[0] = (struct cell){row->change == PAWL_ADDED     ? "+"
		                         : row->change == PAWL_REMOVED ? "-"
		                                                       : "~",
		                         change_style(row->change), NULL};
		cells[1].text = term_clean(keep, row->path);
		cells[2].text = row->change == PAWL_ADDED ? NULL : was;
		cells[3].text = row->change == PAWL_REMOVED || same ? NULL : is;
		cells[4] = number_cell(keep, row->max_abs);
		cells[5] = number_cell(keep, row->max_rel);
	}
	grid_print(grid, &cli->out);
}

static void
count_changes(const struct pawl_diff *diff, size_t counts[4])
{
	for (size_t i = 0; i < pawl_diff_count(diff); i++) {
		int change = pawl_diff_get(diff, i)->change;

		if (change >= 0 && change < 4)
			counts[change]++;
	}
}

static void
print_json(struct cli *cli, const struct diff_args *args, const struct taken *a, const struct taken *b,
           const struct pawl_diff *diff)
{
	const struct pawl_diff_row **rows = sort_rows(cli, args, diff);
	size_t counts[4] = {0};
	struct jsonout j;

	count_changes(diff, counts);
	jsonout_init(&j, stdout);
	cli->wrote_json = true;
	jsonout_begin_object(&j, NULL);
	jsonout_text(&j, "command", "diff");
	info_json(&j, "from", a->info);
	info_json(&j, "to", b->info);
	jsonout_bool(&j, "equal", pawl_diff_count(diff) == 0);
	jsonout_uint(&j, "added", counts[PAWL_ADDED]);
	jsonout_uint(&j, "removed", counts[PAWL_REMOVED]);
	jsonout_uint(&j, "changed", counts[PAWL_CHANGED]);
	jsonout_begin_array(&j, "rows");
	for (size_t i = 0; i < pawl_diff_count(diff); i++) {
		const struct pawl_diff_row *row = rows[i];

		jsonout_begin_object(&j, NULL);
		jsonout_text(&j, "path", row->path);
		jsonout_text(&j, "change", change_name(row->change));
		jsonout_bool(&j, "tensor", row->is_tensor);
		jsonout_text(&j, "from", row->change == PAWL_ADDED ? NULL : row->was);
		jsonout_text(&j, "to", row->change == PAWL_REMOVED ? NULL : row->is);
		if (isnan(row->max_abs))
			jsonout_null(&j, "max_abs");
		else
			jsonout_real(&j, "max_abs", row->max_abs);
		if (isnan(row->max_rel))
			jsonout_null(&j, "max_rel");
		else
			jsonout_real(&j, "max_rel", row->max_rel);
		jsonout_end(&j);
	}
	jsonout_end(&j);
	jsonout_end(&j);
}

static const char *
side_text(struct cli *cli, const struct taken *side)
{
	const char *name = term_clean(&cli->keep, side->info->name);

	if (info_is_foreign(side->info))
		return name;
	return keep_printf(&cli->keep, "%s (step %" PRId64 ")", name, side->info->step);
}

static void
print_text(struct cli *cli, const struct diff_args *args, const struct taken *a, const struct taken *b,
           const struct pawl_diff *diff)
{
	const struct pawl_diff_row **rows = sort_rows(cli, args, diff);
	size_t counts[4] = {0}, n = pawl_diff_count(diff);

	if (args->names) {
		for (size_t i = 0; i < n; i++)
			(void)printf("%s\n", term_clean(&cli->keep, rows[i]->path));
		return;
	}
	cli_note(cli, "from %s to %s", side_text(cli, a), side_text(cli, b));
	if (n > 0) {
		ask_page(cli);
		print_branches(cli, diff);
		print_table(cli, rows, n);
	}
	count_changes(diff, counts);
	if (n == 0)
		cli_note(cli, "equal, bit for bit");
	else
		cli_note(cli, "%zu changed, %zu added, %zu removed", counts[PAWL_CHANGED], counts[PAWL_ADDED],
		         counts[PAWL_REMOVED]);
}

static int
run_diff(struct cli *cli, const void *ptr)
{
	const struct diff_args *args = ptr;
	PAWL_CLEAN(target_release) struct taken a = {0};
	PAWL_CLEAN(target_release) struct taken b = {0};
	PAWL_CLEAN(pawl_diff_free_clean) struct pawl_diff *diff = NULL;
	const char *second = cli->operands[1];
	struct pawl_meter meter = {0};
	struct pawl_error err = {0};
	int rc;

	if (target_take(cli, cli->operands[0], &args->score, &a, &err) < 0)
		return cli_fail(cli, &err);
	/* "@7" means the run of A */
	if (second[0] == '@' && !a.target.single)
		second = keep_printf(&cli->keep, "%s%s", a.target.root, second);
	if (target_take(cli, second, &args->score, &b, &err) < 0)
		return cli_fail(cli, &err);
	work_begin(cli->work, "comparing", &meter, 0);
	rc = pawl_diff_open(a.run, a.info->id, b.run, b.info->id, &meter, &diff, &err);
	work_end(cli->work);
	if (rc < 0)
		return cli_fail(cli, &err);
	if (cli->common.json)
		print_json(cli, args, &a, &b, diff);
	else
		print_text(cli, args, &a, &b, diff);
	return pawl_diff_count(diff) > 0 ? 1 : 0;
}

const struct command cmd_diff = {
	.name = "diff",
	.group = GROUP_LOOK,
	.summary = "compare two checkpoints",
	.about =
		"Counts what changed in each branch of the state, then lists what was added (+), removed (-) and changed "
		"(~) from checkpoint A to checkpoint B. For "
		"tensors of equal dtype and shape, it prints the largest absolute and relative difference of an "
		"element. A and B may belong to different runs; '@SELECTOR' alone as B means the run of A.\n\n"
		"The exit status is 0 if they are equal bit for bit and 1 if they differ. Tensors are streamed and "
		"verified; memory does not grow with their size.",
	.operands = operands,
	.options = options,
	.examples = examples,
	.args_size = sizeof(struct diff_args),
	.run = run_diff,
};
