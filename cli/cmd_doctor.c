/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_doctor: tests what a folder's filesystem, or a store, supports for checkpoints. */
#include "cli.h"
#include "grid.h"
#include "jsonout.h"

static const struct operand operands[] = {{"PLACE", OPERAND_FOLDER, 0, 1}, OPERAND_LIST_END};

static const struct example examples[] = {
	{"pawl doctor /mnt/scratch", "will saves be fast and safe there?"},
	{"pawl doctor s3://bucket/runs", "endpoint, credentials, clock, and what the server honours"},
	EXAMPLE_END,
};

PAWL_DEFINE_CLEAN(struct pawl_rows, pawl_rows_free);

static int
run_doctor(struct cli *cli, const void *args)
{
	static const struct column columns[] = {{"what", false, RIGID, 0}, {"found", false, RUN_OVER, 0}};
	PAWL_CLEAN(pawl_rows_free_clean) struct pawl_rows *rows = NULL;
	const char *folder = cli->n_operands > 0 ? cli->operands[0] : ".";
	struct pawl_error err = {0};
	struct grid *grid;
	struct jsonout j;

	(void)args;
	if (pawl_doctor(folder, &rows, &err) < 0)
		return cli_fail(cli, &err);
	if (cli->common.json) {
		jsonout_init(&j, stdout);
		cli->wrote_json = true;
		jsonout_begin_object(&j, NULL);
		jsonout_text(&j, "command", "doctor");
		jsonout_text(&j, "folder", folder);
		jsonout_begin_object(&j, "found");
		for (size_t i = 0; i < pawl_rows_count(rows); i++)
			jsonout_text(&j, pawl_rows_key(rows, i), pawl_rows_value(rows, i));
		jsonout_end(&j);
		jsonout_end(&j);
		return 0;
	}
	grid = grid_new(&cli->keep, columns, 2);
	for (size_t i = 0; i < pawl_rows_count(rows); i++) {
		struct cell *cells = grid_row(grid);

		cells[0] = (struct cell){term_clean(&cli->keep, pawl_rows_key(rows, i)), STYLE_ACCENT, NULL};
		cells[1].text = term_clean(&cli->keep, pawl_rows_value(rows, i));
	}
	grid_print(grid, &cli->out);
	return 0;
}

const struct command cmd_doctor = {
	.name = "doctor",
	.group = GROUP_MEND,
	.summary = "report what a folder's filesystem or a store can do",
	.about = "Tests in PLACE, a folder (default: the current one) or a URL, what saves rely on, and prints the "
		 "results. Of a folder: atomic renames, links, direct I/O, durable writes, free space. Of a store: its "
		 "endpoint, the source of the credentials (never the credentials), its clock compared with this one, "
		 "and the round trip. It also tests whether the store keeps, lists, copies and removes objects, and "
		 "refuses to replace one. Nothing is left behind. The exit status is 0 whatever was found, unless "
		 "PLACE cannot be reached.",
	.operands = operands,
	.examples = examples,
	.run = run_doctor,
};
