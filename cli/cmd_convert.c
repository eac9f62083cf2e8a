/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_convert: writes the tensors of a checkpoint, or of a foreign file, in another format. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "copy.h"
#include "human.h"
#include "info.h"
#include "target.h"

struct convert_args {
	struct score score;
	struct texts include, exclude, rename;
	const char *to, *dtype, *step, *strip_prefix;
	uint64_t shard_bytes;
	bool model, dots, overwrite;
};

static const struct operand operands[] = {
	{"SRC", OPERAND_TARGET, 1, 1},
	{"DST", OPERAND_PATH, 1, 1},
	OPERAND_LIST_END,
};

static const struct option options[] = {
	{"to", 0, OPT_TEXT, offsetof(struct convert_args, to), "safetensors|hf|pt|dcp|pawl|npz|npy",
         "format of DST (default: from its suffix)"},
	{"step", 0, OPT_TEXT, offsetof(struct convert_args, step), "N", "of a run, the checkpoint of this step"},
	{"include", 'i', OPT_TEXTS, offsetof(struct convert_args, include), "GLOB",
         "write only these paths, such as 'model/*'"},
	{"exclude", 'x', OPT_TEXTS, offsetof(struct convert_args, exclude), "GLOB", "leave out these paths"},
	{"model", 'm', OPT_FLAG, offsetof(struct convert_args, model), NULL,
         "write only the model, for its load_state_dict"},
	{"strip-prefix", 0, OPT_TEXT, offsetof(struct convert_args, strip_prefix), "TEXT",
         "remove TEXT from the start of names (model/)"},
	{"rename", 'r', OPT_TEXTS, offsetof(struct convert_args, rename), "GLOB=TEMPLATE",
         "rename tensors, such as 'old/*=new/*'"},
	{"dots", 0, OPT_FLAG, offsetof(struct convert_args, dots), NULL, "replace '/' by '.' in names"},
	{"dtype", 0, OPT_TEXT, offsetof(struct convert_args, dtype), "fp16|bf16|fp32|fp64",
         "cast floating-point tensors to this dtype"},
	{"max-shard-size", 0, OPT_BYTES, offsetof(struct convert_args, shard_bytes), "SIZE",
         "split into files of about SIZE each (hf, dcp)"},
	{"overwrite", 0, OPT_FLAG, offsetof(struct convert_args, overwrite), NULL, "replace DST if it exists"},
	SCORE_OPTIONS(convert_args),
	OPTION_END,
};

static const struct example examples[] = {
	{"pawl convert model.pt model.safetensors", "without running what is in the file"},
	{"pawl convert runs/demo@best m.pt --model", "for model.load_state_dict(torch.load(\"m.pt\"))"},
	{"pawl convert runs/demo hub/ --model --dtype bf16 --max-shard-size 5GB", "a model for the Hugging Face hub"},
	EXAMPLE_END,
};

static void
print_json(struct cli *cli, const struct pawl_info *info, const struct pawl_convert_report *report, double seconds)
{
	struct jsonout j;

	jsonout_init(&j, stdout);
	cli->wrote_json = true;
	jsonout_begin_object(&j, NULL);
	jsonout_text(&j, "command", cli->command->name);
	info_json(&j, "checkpoint", info);
	jsonout_text(&j, "to", cli->operands[1]);
	jsonout_uint(&j, "tensors", report->n_tensors);
	jsonout_uint(&j, "files", report->n_files);
	jsonout_uint(&j, "bytes", report->bytes);
	jsonout_uint(&j, "left_behind", report->n_left);
	jsonout_real(&j, "seconds", seconds);
	jsonout_end(&j);
}

/* Takes SRC, with --step as its selector. Release *ret also after an error. */
static int
take_source(struct cli *cli, const struct convert_args *args, struct taken *ret, struct pawl_error *err)
{
	TRY(target_parse(cli, cli->operands[0], &ret->target, err));
	if (args->step != NULL && (ret->target.single || ret->target.selector != NULL))
		return err_set(err, PAWL_EUSAGE, "%s names one checkpoint; --step chooses from a run",
		               cli->operands[0]);
	if (args->step != NULL)
		ret->target.selector = keep_printf(&cli->keep, "step:%s", args->step);
	TRY(target_open(cli, &ret->target, false, &args->score, &ret->run, err));
	return target_hold(cli, ret->run, &ret->target, &ret->info, &ret->hold, err);
}

static int
run_convert(struct cli *cli, const void *ptr)
{
	const struct convert_args *args = ptr;
	struct pawl_convert_opts opts = PAWL_CONVERT_OPTS_INIT;
	struct pawl_convert_report report = PAWL_CONVERT_REPORT_INIT;
	PAWL_CLEAN(target_release) struct taken from = {0};
	const char *dest = cli->operands[1];
	struct pawl_error err = {0};
	struct pawl_meter meter;
	double began = info_now();
	int rc;

	opts.to = args->to;
	opts.include = args->include.items;
	opts.n_include = args->include.n;
	opts.exclude = args->exclude.items;
	opts.n_exclude = args->exclude.n;
	opts.rename = args->rename.items;
	opts.n_rename = args->rename.n;
	opts.dtype = args->dtype;
	opts.max_shard_bytes = args->shard_bytes;
	opts.strip_prefix = args->strip_prefix;
	opts.model = args->model;
	opts.dots = args->dots;
	opts.overwrite = args->overwrite;
	if (target_is_url(dest))
		return cli_usage(cli, "%s: '%s' writes to a local path, not to a URL; copy the files from there", dest,
		                 cli->command->name);
	if (copy_check_place(cli, dest, &err) < 0 || take_source(cli, args, &from, &err) < 0)
		return cli_fail(cli, &err);
	work_begin(cli->work, "converting", &meter, 0);
	rc = pawl_convert(from.run, from.info->id, dest, &opts, &meter, &report, &err);
	work_end(cli->work);
	if (rc < 0)
		return cli_fail(cli, &err);
	if (cli->common.json)
		print_json(cli, from.info, &report, info_now() - began);
	else
		(void)printf("%s\n", term_clean(&cli->keep, dest));
	cli_note(cli, "%s: %" PRIu64 " tensor%s, %s in %s", from.info->name, report.n_tensors,
	         report.n_tensors == 1 ? "" : "s", human_bytes(&cli->keep, (double)report.bytes),
	         human_seconds(&cli->keep, info_now() - began));
	if (report.n_left > 0)
		cli_note(cli, "left out %" PRIu64 " value%s that %s tensor%s ('pawl show --json' prints them)",
		         report.n_left, report.n_left == 1 ? "" : "s", report.n_left == 1 ? "is not a" : "are not",
		         report.n_left == 1 ? "" : "s");
	return 0;
}

const struct command cmd_convert = {
	.name = "convert",
	.group = GROUP_USE,
	.summary = "write tensors as safetensors, torch, numpy, Hugging Face",
	.about =
		"Reads SRC and writes its tensors to DST. SRC is a run, a checkpoint, or what another program wrote: "
		".safetensors, .pt, .npz, .npy, a folder of Hugging Face or of torch.distributed.checkpoint. The "
		"suffix of DST or --to selects the format; without a suffix it is safetensors, and for a folder "
		"(or with --max-shard-size) hf. No code in a file is run, and memory does not grow with "
		"the size. DST appears only when it is complete. Values that are not tensors are left out, except "
		"with dcp and pawl; a .pt gets one flat dict.\n\n"
		"--model writes only the model's state dict: the state itself or its 'model', 'state/model' (Composer), "
		"'state_dict', 'model_state_dict' or 'module'.\n\n"
		"In GLOBs, '*' stands for any characters, '/' included, and '?' for one. In the TEMPLATE of --rename, "
		"the n-th '*' and {n} stand for what the n-th wildcard matched. {0} is the complete name; {{ and }} are "
		"braces. The first rule that matches the complete name is used. Names that no rule matches stay.\n\n"
		"--dtype casts only tensors of 16, 32 and 64 bit floats. It rounds to the nearest value, of two "
		"equally near ones to the even one. NaN stays NaN, and a value that is too large becomes infinite.",
	.operands = operands,
	.options = options,
	.examples = examples,
	.args_size = sizeof(struct convert_args),
	.run = run_convert,
};

const struct command cmd_export = {
	.name = "export",
	.group = GROUP_USE,
	.summary = "the same as convert",
	.about = "Another name of 'pawl convert'.",
	.operands = operands,
	.options = options,
	.examples = examples,
	.args_size = sizeof(struct convert_args),
	.run = run_convert,
};
