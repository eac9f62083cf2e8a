/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_export: writes the tensors of a checkpoint as files for other programs. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "copy.h"
#include "human.h"
#include "info.h"
#include "target.h"

struct export_args {
	struct score score;
	struct texts include;
	const char *strip_prefix;
	uint64_t shard_bytes;
	bool model, dots, overwrite;
};

static const struct operand operands[] = {
	{"TARGET", OPERAND_TARGET, 1, 1},
	{"DEST", OPERAND_PATH, 1, 1},
	OPERAND_LIST_END,
};

static const struct option options[] = {
	{"include", 'i', OPT_TEXTS, offsetof(struct export_args, include), "GLOB",
         "write only these paths, such as 'model/*'"},
	{"model", 'm', OPT_FLAG, offsetof(struct export_args, model), NULL,
         "write only the model, for its load_state_dict"},
	{"strip-prefix", 0, OPT_TEXT, offsetof(struct export_args, strip_prefix), "TEXT",
         "remove TEXT from the start of names (model/)"},
	{"dots", 0, OPT_FLAG, offsetof(struct export_args, dots), NULL, "replace '/' by '.' in names"},
	{"shard-size", 0, OPT_BYTES, offsetof(struct export_args, shard_bytes), "SIZE",
         "split into files of about SIZE, in the folder DEST"},
	{"overwrite", 0, OPT_FLAG, offsetof(struct export_args, overwrite), NULL, "replace DEST if it exists"},
	SCORE_OPTIONS(export_args),
	OPTION_END,
};

static const struct example examples[] = {
	{"pawl export runs/demo@best m.pt --model", "for model.load_state_dict(torch.load(\"m.pt\"))"},
	{"pawl export runs/demo m.safetensors -i 'ema/*' --strip-prefix ema/", "another part of the state"},
	{"pawl export runs/demo hub/ --shard-size 5GB", "a sharded set for the Hugging Face hub"},
	EXAMPLE_END,
};

static int
run_export(struct cli *cli, const void *ptr)
{
	const struct export_args *args = ptr;
	struct pawl_export_opts opts = PAWL_EXPORT_OPTS_INIT;
	PAWL_CLEAN(target_release) struct taken from = {0};
	const char *dest = cli->operands[1];
	struct pawl_error err = {0};
	struct pawl_meter meter;
	struct jsonout j;
	double began = info_now();
	int rc;

	opts.include = args->include.items;
	opts.n_include = args->include.n;
	opts.strip_prefix = args->strip_prefix;
	opts.max_shard_bytes = args->shard_bytes;
	opts.dots = args->dots;
	opts.model = args->model;
	opts.overwrite = args->overwrite;
	if (target_is_url(dest))
		return cli_usage(cli, "%s: export writes to a local path, not to a URL; copy the files from there",
		                 dest);
	if (copy_check_place(cli, dest, &err) < 0 || target_take(cli, cli->operands[0], &args->score, &from, &err) < 0)
		return cli_fail(cli, &err);
	work_begin(cli->work, "exporting", &meter, 0);
	rc = pawl_export(from.run, from.info->id, dest, &opts, &meter, &err);
	work_end(cli->work);
	if (rc < 0)
		return cli_fail(cli, &err);
	if (cli->common.json) {
		jsonout_init(&j, stdout);
		cli->wrote_json = true;
		jsonout_begin_object(&j, NULL);
		jsonout_text(&j, "command", "export");
		info_json(&j, "checkpoint", from.info);
		jsonout_text(&j, "to", dest);
		jsonout_uint(&j, "bytes", meter.done_bytes);
		jsonout_real(&j, "seconds", info_now() - began);
		jsonout_end(&j);
	} else {
		(void)printf("%s\n", text_clean(&cli->keep, dest));
	}
	cli_note(cli, "%s (step %" PRId64 "), %s of tensors in %s", from.info->name, from.info->step,
	         human_bytes(&cli->keep, (double)meter.done_bytes), human_seconds(&cli->keep, info_now() - began));
	return 0;
}

const struct command cmd_export = {
	.name = "export",
	.group = GROUP_USE,
	.summary = "write tensors as safetensors, torch or numpy files",
	.about = "Writes the tensors of TARGET to DEST: one file in the format of its suffix (.safetensors, .pt, .npz; "
		 "safetensors without a suffix), or with --shard-size a folder with a Hugging Face set of shards and "
		 "its index. A .pt holds one flat dict. --model writes only the model's state dict: the state itself "
		 "or its 'model', 'state/model' (Composer), 'state_dict', 'model_state_dict' or 'module'. Every byte "
		 "is verified; memory does not grow with the size. Values that are not tensors are left out; 'pawl "
		 "show --json' prints them.\n\n"
		 "In GLOBs, '*' stands for any characters, '/' included, and '?' for one; a path also selects "
		 "everything below it.",
	.operands = operands,
	.options = options,
	.examples = examples,
	.args_size = sizeof(struct export_args),
	.run = run_export,
};
