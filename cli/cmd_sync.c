/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_sync: updates copies of a run at other places; may be repeated at any time. */
#include <inttypes.h>
#include <string.h>

#include "cli.h"
#include "grid.h"
#include "info.h"
#include "target.h"
#include "transfer.h"

struct sync_args {
	struct transfer_args transfer;
};

static const struct operand operands[] = {
	{"RUN", OPERAND_RUN, 1, 1},
	{"DEST", OPERAND_PATH, 0, OPERAND_ANY},
	OPERAND_LIST_END,
};

static const struct option options[] = {TRANSFER_OPTIONS(sync_args), OPTION_END};

static const struct example examples[] = {
	{"pawl sync runs/demo", "copy what its mirrors lack"},
	{"pawl sync runs/demo s3://bucket/demo", "copy what the bucket lacks"},
	{"pawl sync runs/demo s3://bucket/demo /mnt/nas/demo -n", "what would be copied, and where"},
	EXAMPLE_END,
};

static void
print_json(struct cli *cli, const struct transfer *transfers, size_t n)
{
	struct jsonout j;

	jsonout_init(&j, stdout);
	cli->wrote_json = true;
	jsonout_begin_object(&j, NULL);
	jsonout_text(&j, "command", "sync");
	jsonout_text(&j, "run", cli->operands[0]);
	jsonout_begin_array(&j, "targets");
	for (size_t i = 0; i < n; i++) {
		jsonout_begin_object(&j, NULL);
		transfer_json(&j, &transfers[i]);
		jsonout_end(&j);
	}
	jsonout_end(&j);
	jsonout_end(&j);
}

static void
mirrors_json(struct cli *cli, struct pawl *run, const struct transfer *t)
{
	struct pawl_mirror_info info = PAWL_MIRROR_INFO_INIT;
	struct jsonout j;

	jsonout_init(&j, stdout);
	cli->wrote_json = true;
	jsonout_begin_object(&j, NULL);
	jsonout_text(&j, "command", "sync");
	jsonout_text(&j, "run", cli->operands[0]);
	jsonout_begin_array(&j, "mirrors");
	for (size_t i = 0; pawl_mirror_get(run, i, &info, NULL) == 0; i++) {
		jsonout_begin_object(&j, NULL);
		jsonout_text(&j, "url", info.url);
		jsonout_uint(&j, "done", info.n_done);
		jsonout_uint(&j, "waiting", info.n_waiting);
		jsonout_text(&j, "code", info.code < 0 ? pawl_code_name(info.code) : NULL);
		jsonout_text(&j, "message", info.code < 0 ? info.message : NULL);
		jsonout_end(&j);
	}
	jsonout_end(&j);
	jsonout_real(&j, "seconds", t->seconds);
	jsonout_end(&j);
}

static void
mirrors_print(struct cli *cli, struct pawl *run)
{
	static const struct column columns[] = {{"mirror", false, CUT_START, 0},
	                                        {"there", true, RIGID, 1},
	                                        {"waiting", true, RIGID, 0},
	                                        {"", false, RUN_OVER, 0}};
	struct pawl_mirror_info info = PAWL_MIRROR_INFO_INIT;
	struct grid *grid = grid_new(&cli->keep, columns, 4);
	struct keep *keep = &cli->keep;

	for (size_t i = 0; pawl_mirror_get(run, i, &info, NULL) == 0; i++) {
		struct cell *cells = grid_row(grid);

		cells[0].text = term_clean(keep, keep_printf(keep, "%s", info.url));
		cells[1].text = keep_printf(keep, "%" PRIu64, info.n_done);
		cells[2].text = keep_printf(keep, "%" PRIu64, info.n_waiting);
		if (info.code < 0)
			cells[3] =
				(struct cell){term_clean(keep, keep_printf(keep, "%s", info.message)), STYLE_BAD, NULL};
	}
	grid_print(grid, &cli->out);
}

/* Syncs the queue of the run's own mirrors. */
static int
sync_mirrors(struct cli *cli, const struct sync_args *args, const struct target *target)
{
	const struct pawl_uploads limits = {.n_streams = transfer_streams(&args->transfer),
	                                    .memory_bytes = args->transfer.memory_bytes};
	struct target limited = *target;
	PAWL_CLEAN(cli_close) struct pawl *run = NULL;
	struct pawl_error err = {0};
	struct pawl_meter meter = {0};
	struct transfer t = {0};
	double began = info_now();
	int rc;

	limited.uploads = &limits;
	limited.upload_ms = transfer_timeout_ms(&args->transfer);
	if (target_open(cli, &limited, !args->transfer.dry_run, NULL, &run, &err) < 0)
		return cli_fail(cli, &err);
	if (pawl_mirror_count(run) == 0)
		return cli_usage(cli, "%s has no mirrors; name a DEST to copy it to", target->root);
	if (!args->transfer.dry_run) {
		work_begin(cli->work, "uploading", &meter, 0);
		work_limit(cli->work, args->transfer.timeout_seconds);
		t.code = pawl_sync(run, &meter, &err);
		work_end(cli->work);
	}
	if (t.code == PAWL_ECANCELLED && work_timed_out(cli->work))
		t.code = err_set(&err, PAWL_ETIMEOUT, "%s: uploading exceeded its time limit", target->root);
	t.seconds = info_now() - began;
	rc = t.code;
	if (cli->common.json)
		mirrors_json(cli, run, &t);
	else
		mirrors_print(cli, run);
	return rc < 0 ? cli_fail(cli, &err) : 0;
}

static int
run_sync(struct cli *cli, const void *ptr)
{
	const struct sync_args *args = ptr;
	PAWL_CLEAN(cli_close) struct pawl *run = NULL;
	size_t n = cli->n_operands - 1, done = 0;
	struct transfer *transfers = keep_alloc(&cli->keep, n + 1, sizeof(*transfers));
	struct pawl_error err = {0};
	struct target target;
	int status = 0;

	for (size_t i = 0; i < n; i++)
		if (transfer_check_place(cli, cli->operands[i + 1], &err) < 0)
			return cli_fail(cli, &err);
	if (target_parse_run(cli, cli->operands[0], &target, &err) < 0)
		return cli_fail(cli, &err);
	target.bandwidth = args->transfer.bandwidth;
	if (n == 0)
		return sync_mirrors(cli, args, &target);
	if (target_open(cli, &target, false, NULL, &run, &err) < 0)
		return cli_fail(cli, &err);
	/* If one place cannot be reached, continue with the next; Ctrl+C stops. */
	for (bool stop = false; done < n && !stop; done++) {
		struct transfer *t = &transfers[done];

		*t = (struct transfer){.to = cli->operands[done + 1]};
		transfer_run(cli, run, &args->transfer, t);
		if (!cli->common.json)
			transfer_print(cli, t);
		stop = t->code == PAWL_ECANCELLED;
	}
	if (cli->common.json)
		print_json(cli, transfers, done);
	for (size_t i = 0; i < done; i++) {
		if (transfers[i].code < 0) {
			(void)err_set(&err, transfers[i].code, "%s", transfers[i].message);
			int one = cli_fail(cli, &err);

			status = status == 0 ? one : status;
		}
		transfer_clear(&transfers[i]);
	}
	return status;
}

const struct command cmd_sync = {
	.name = "sync",
	.group = GROUP_USE,
	.summary = "copy what is missing of a run to its mirrors or another place",
	.about =
		"Without DEST: uploads what the training has not uploaded to its mirrors yet, the newest first. It "
		"needs the lease of the run, so it cannot work during a training run.\n\n"
		"With DEST: copies to each DEST what it lacks of RUN. It is 'pawl cp RUN DEST' for several places; "
		"if one fails, the others continue. It also works during a training run, and can be repeated: only new "
		"checkpoints are copied, the newest first. Nothing at DEST is removed.",
	.operands = operands,
	.options = options,
	.examples = examples,
	.args_size = sizeof(struct sync_args),
	.run = run_sync,
};
