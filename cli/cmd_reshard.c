/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_reshard: writes a checkpoint as a different number of ranks would have written it. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli.h"
#include "copy.h"
#include "human.h"
#include "info.h"
#include "target.h"

struct reshard_args {
	struct score score;
	uint64_t world, level;
	const char *compression;
	bool drop_rank_values;
};

static const struct operand operands[] = {
	{"TARGET", OPERAND_TARGET, 1, 1},
	{"DEST", OPERAND_PATH, 1, 1},
	OPERAND_LIST_END,
};

static const struct option options[] = {
	{"world", 'w', OPT_COUNT, offsetof(struct reshard_args, world), "M", "number of ranks to write for (required)"},
	{"drop-rank-values", 0, OPT_FLAG, offsetof(struct reshard_args, drop_rank_values), NULL,
         "leave out per-rank values unless TARGET has M ranks"},
	{"compression", 0, OPT_TEXT, offsetof(struct reshard_args, compression), "zst|planes",
         "compress the new packs"},
	{"level", 0, OPT_COUNT, offsetof(struct reshard_args, level), "N", "compression level of the codec"},
	SCORE_OPTIONS(reshard_args),
	OPTION_END,
};

static const struct example examples[] = {
	{"pawl reshard runs/big@best big-for-8 --world 8 --drop-rank-values",
         "what 64 ranks saved, as 8 ranks would have written it"},
	{"pawl reshard runs/big one --world 1 --compression zst", "a checkpoint of one process, compressed"},
	EXAMPLE_END,
};

static int
check_dest(struct cli *cli, const char *dest, struct pawl_error *err)
{
	const char *parent = copy_parent(&cli->keep, dest);
	struct stat st;

	if (dest[0] == '\0')
		return err_set(err, PAWL_EUSAGE, "DEST is empty; name a new folder");
	TRY(copy_check_place(cli, dest, err));
	if (lstat(dest, &st) == 0)
		return err_set(err, PAWL_EEXISTS, "%s already exists", dest);
	if (stat(parent, &st) != 0 || !S_ISDIR(st.st_mode))
		return err_set(err, PAWL_ENOTFOUND, "%s: no such folder", parent);
	return 0;
}

static void
print_json(struct cli *cli, const struct pawl_info *info, const struct reshard_args *args, uint64_t bytes,
           double seconds)
{
	struct jsonout j;

	jsonout_init(&j, stdout);
	cli->wrote_json = true;
	jsonout_begin_object(&j, NULL);
	jsonout_text(&j, "command", "reshard");
	info_json(&j, "checkpoint", info);
	jsonout_text(&j, "to", cli->operands[1]);
	jsonout_uint(&j, "world_size", args->world);
	jsonout_uint(&j, "bytes", bytes);
	jsonout_real(&j, "seconds", seconds);
	jsonout_end(&j);
}

static int
run_reshard(struct cli *cli, const void *ptr)
{
	const struct reshard_args *args = ptr;
	struct pawl_reshard_opts opts = PAWL_RESHARD_OPTS_INIT;
	PAWL_CLEAN(target_release) struct taken from = {0};
	const char *dest = cli->operands[1];
	struct pawl_error err = {0};
	struct pawl_meter meter;
	double began = info_now();
	int rc;

	if (target_is_url(dest))
		return cli_usage(cli,
		                 "%s: reshard writes to a local path, not to a URL; 'pawl cp' copies it from "
		                 "there",
		                 dest);
	if (args->world == 0)
		return cli_usage(cli, "--world is missing; give the number of ranks");
	opts.world_size = args->world < UINT32_MAX ? (uint32_t)args->world : UINT32_MAX;
	opts.drop_rank_values = args->drop_rank_values;
	opts.compression = args->compression;
	opts.compression_level = args->level < INT32_MAX ? (int)args->level : INT32_MAX;
	if (check_dest(cli, dest, &err) < 0 || target_take(cli, cli->operands[0], &args->score, &from, &err) < 0)
		return cli_fail(cli, &err);
	work_begin(cli->work, "resharding", &meter, 0);
	rc = pawl_reshard(from.run, from.info->id, dest, &opts, &meter, &err);
	work_end(cli->work);
	if (rc == PAWL_EMISMATCH && !args->drop_rank_values)
		err_set(&err, rc, "%s; --drop-rank-values leaves them out", keep_printf(&cli->keep, "%s", err.message));
	if (rc < 0)
		return cli_fail(cli, &err);
	if (cli->common.json)
		print_json(cli, from.info, args, meter.done_bytes, info_now() - began);
	else
		(void)printf("%s\n", term_clean(&cli->keep, dest));
	cli_note(cli, "%s (step %" PRId64 ") of %" PRIu32 " rank%s, rewritten for %" PRIu64 ": %s of tensors in %s",
	         from.info->name, from.info->step, from.info->world_size, from.info->world_size == 1 ? "" : "s",
	         args->world, human_bytes(&cli->keep, (double)meter.done_bytes),
	         human_seconds(&cli->keep, info_now() - began));
	return 0;
}

const struct command cmd_reshard = {
	.name = "reshard",
	.group = GROUP_USE,
	.summary = "rewrite a checkpoint for another number of ranks",
	.about = "Writes the checkpoint TARGET again as the folder DEST, as --world ranks would have written it. Each "
		 "rank then finds its rows in packs of its own. Resuming on another number of ranks does not need "
		 "this: any checkpoint allows it. It saves the ranks from reading each other's packs at every restore. "
		 "Every byte is verified; memory does not grow with the size.\n\n"
		 "Per-rank values (a random generator, a position in the data) stay if the number of ranks is that of "
		 "TARGET. Otherwise they fit no rank: that is an error, or with --drop-rank-values they are left out. "
		 "Plain values that differed between ranks become those of rank 0.",
	.operands = operands,
	.options = options,
	.examples = examples,
	.args_size = sizeof(struct reshard_args),
	.run = run_reshard,
};
