/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_du: what checkpoints take on the disk. Reads names and sizes of files, never a tensor. */
#include <inttypes.h>

#include "ask.h"
#include "cli.h"
#include "disk.h"
#include "folder.h"
#include "grid.h"
#include "human.h"
#include "info.h"
#include "target.h"

static const struct operand operands[] = {{"RUN", OPERAND_RUN, 0, 1}, OPERAND_LIST_END};

static const struct example examples[] = {
	{"pawl du runs/demo", "which checkpoint takes the space?"},
	{"pawl du runs", "which run?"},
	EXAMPLE_END,
};

static void
print_table(struct cli *cli, const struct pawl_list *list, const struct disk_use *uses)
{
	static const struct column columns[] = {
		{"id", true, RIGID, 0},  {"step", true, RIGID, 0},   {"size", true, RIGID, 0},
		{"own", true, RIGID, 0}, {"marks", false, RIGID, 0},
	};
	struct grid *grid = grid_new(&cli->keep, columns, 5);
	struct keep *keep = &cli->keep;

	for (size_t i = 0; i < pawl_list_count(list); i++) {
		const struct pawl_info *info = pawl_list_get(list, i);
		struct cell *row = grid_row(grid);

		row[0] = (struct cell){keep_printf(keep, "%" PRIu64, info->id), STYLE_BOLD, NULL};
		row[1].text = keep_printf(keep, "%" PRId64, info->step);
		row[4] = info_marks(keep, info);
		if (info_is_foreign(info)) /* what only pawl writes down */
			row[1] = row[4] = (struct cell){"-", STYLE_DIM, NULL};
		row[2].text = human_bytes(keep, (double)uses[i].bytes);
		row[3].text = human_bytes(keep, (double)uses[i].own);
	}
	grid_print(grid, &cli->out);
}

static void
print_json(struct cli *cli, const char *root, const struct pawl_list *list, const struct disk_use *uses,
           const struct disk_run *run)
{
	struct jsonout j;

	jsonout_init(&j, stdout);
	cli->wrote_json = true;
	jsonout_begin_object(&j, NULL);
	jsonout_text(&j, "command", "du");
	jsonout_text(&j, "run", root);
	jsonout_uint(&j, "bytes", run->bytes);
	jsonout_uint(&j, "used_bytes", run->used);
	jsonout_uint(&j, "leftover_bytes", run->leftover);
	jsonout_begin_array(&j, "checkpoints");
	for (size_t i = 0; i < pawl_list_count(list); i++) {
		const struct pawl_info *info = pawl_list_get(list, i);

		jsonout_begin_object(&j, NULL);
		jsonout_uint(&j, "id", info->id);
		jsonout_text(&j, "name", info->name);
		if (info_is_foreign(info))
			jsonout_null(&j, "step");
		else
			jsonout_int(&j, "step", info->step);
		jsonout_uint(&j, "bytes", uses[i].bytes);
		jsonout_uint(&j, "own_bytes", uses[i].own);
		jsonout_end(&j);
	}
	jsonout_end(&j);
	jsonout_end(&j);
}

static void
print_totals(struct cli *cli, size_t n, const struct disk_run *run)
{
	struct keep *keep = &cli->keep;

	cli_note(cli, "%s, %s on the disk, %s shared", human_count(keep, n, "checkpoint", "checkpoints"),
	         human_bytes(keep, (double)run->used),
	         human_bytes(keep, (double)(run->bytes + run->leftover - run->used)));
	if (run->leftover > 0)
		cli_note(cli, "%s of it is unfinished or left over; 'pawl gc' removes what crashes left",
		         human_bytes(keep, (double)run->leftover));
}

/* Mentions checkpoints that the table cannot show. */
static void
note_bad(struct cli *cli, struct pawl *run, size_t n_good)
{
	PAWL_CLEAN(pawl_list_free_clean) struct pawl_list *all = NULL;

	if (pawl_list_open(run, 1, &all, NULL) < 0 || pawl_list_count(all) <= n_good)
		return;
	cli_warn(cli, "%s be shown: 'pawl ls --bad' prints the reason",
	         human_count(&cli->keep, pawl_list_count(all) - n_good, "more cannot", "more cannot"));
}

static int
run_du(struct cli *cli, const void *args)
{
	const struct folder_opts folder = {.recursive = true};
	const char *place = cli->n_operands > 0 ? cli->operands[0] : ".";
	PAWL_CLEAN(cli_close) struct pawl *run = NULL;
	PAWL_CLEAN(pawl_list_free_clean) struct pawl_list *list = NULL;
	struct pawl_error err = {0};
	struct disk_run total;
	struct target target;
	uint64_t id;
	int rc, status;

	(void)args;
	if (!target_is_url(place) && folder_ls(cli, place, &folder, &status))
		return status;
	rc = target_parse(cli, place, &target, &err);
	if (rc == PAWL_ENOTFOUND && target_is_url(place) && folder_ls(cli, place, &folder, &status))
		return status;
	if (rc == 0 && !target.single)
		rc = target_parse_run(cli, place, &target, &err);
	if (rc < 0 || target_open(cli, &target, false, NULL, &run, &err) < 0 ||
	    (target.single && target_find(cli, run, &target, &id, &err) < 0) || pawl_list_open(run, 0, &list, &err) < 0)
		return cli_fail(cli, &err);
	size_t n = pawl_list_count(list);
	struct disk_use *uses = keep_alloc(&cli->keep, n + 1, sizeof(*uses));

	for (size_t i = 0; i < n; i++)
		disk_of_checkpoint(cli, pawl_list_get(list, i), &uses[i]);
	if (target.single)
		total = (struct disk_run){.bytes = n > 0 ? uses[0].bytes : 0, .used = n > 0 ? uses[0].bytes : 0};
	else
		disk_of_run(cli, pawl_root(run), list, &total);
	if (cli->common.json) {
		print_json(cli, pawl_root(run), list, uses, &total);
		return 0;
	}
	ask_page(cli);
	if (n > 0)
		print_table(cli, list, uses);
	print_totals(cli, n, &total);
	note_bad(cli, run, n);
	return 0;
}

const struct command cmd_du = {
	.name = "du",
	.group = GROUP_LOOK,
	.summary = "show what checkpoints take on the disk",
	.about =
		"Shows the size of the files of each checkpoint of RUN (default: the current folder). 'own' is the part "
		"that no other checkpoint shares: deleting the checkpoint frees it. Checkpoints share the packs "
		"that did not change. In a folder that is not a run, it lists all that 'pawl ls -r' "
		"lists below it.",
	.operands = operands,
	.examples = examples,
	.run = run_du,
};
