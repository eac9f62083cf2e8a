/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_rm: deletes named checkpoints, manifest first (P7). */
#include <inttypes.h>

#include "ask.h"
#include "cli.h"
#include "disk.h"
#include "human.h"
#include "info.h"
#include "target.h"

struct rm_args {
	struct score score;
	bool force, dry_run, yes;
};

static const struct operand operands[] = {{"TARGET", OPERAND_TARGET, 1, OPERAND_ANY}, OPERAND_LIST_END};

static const struct option options[] = {
	{"force", 'f', OPT_FLAG, offsetof(struct rm_args, force), NULL,
         "also delete the latest, the best or a pinned one"},
	{"dry-run", 'n', OPT_FLAG, offsetof(struct rm_args, dry_run), NULL,
         "print what would be deleted; change nothing"},
	YES_OPTION(rm_args),
	SCORE_OPTIONS(rm_args),
	OPTION_END,
};

static const struct example examples[] = {
	{"pawl rm runs/demo@400", "delete the checkpoint of step 400"},
	{"pawl rm runs/demo@latest --force", "go back to the one before"},
	EXAMPLE_END,
};

/* Checks what the library refuses without --force, so that a dry run reports it, too. */
static int
check_marks(const struct pawl_info *info, const struct rm_args *args, struct pawl_error *err)
{
	const char *why = (info->marks & PAWL_MARK_PINNED) != 0   ? "pinned"
	                  : (info->marks & PAWL_MARK_LATEST) != 0 ? "the latest"
	                  : (info->marks & PAWL_MARK_BEST) != 0   ? "the best"
	                                                          : NULL;

	if ((info->marks & PAWL_MARK_HELD) != 0)
		return err_set(err, PAWL_EBUSY, "%s is in use by a reader", info->name);
	if (why == NULL || args->force)
		return 0;
	return err_set(err, PAWL_EBUSY, "%s is %s; --force deletes it anyway", info->name, why);
}

/* *ret stays NULL if the person says no. *ret_bytes: what that frees. */
static int
remove_one(struct cli *cli, const char *text, const struct rm_args *args, const struct pawl_info **ret,
           uint64_t *ret_bytes, struct pawl_error *err)
{
	PAWL_CLEAN(cli_close) struct pawl *run = NULL;
	const struct pawl_info *info = NULL;
	struct disk_use use = {0};
	struct target target;
	uint64_t id = 0;

	TRY(target_parse(cli, text, &target, err));
	if (target.single)
		return err_set(err, PAWL_EUSAGE, "%s belongs to no run; it is an ordinary %s, which '%s' deletes", text,
		               target.file ? "file" : "folder", target.file ? "rm" : "rm -r");
	if (target.selector == NULL)
		return err_set(err, PAWL_EUSAGE, "%s is a run; name a checkpoint, such as %s@400", text, text);
	TRY(target_open(cli, &target, !args->dry_run, &args->score, &run, err));
	TRY(target_find(cli, run, &target, &id, err));
	TRY(target_info(cli, run, id, &info, err));
	TRY(check_marks(info, args, err));
	disk_of_checkpoint(cli, info, &use);
	if (!args->dry_run && ask_is_needed(cli, args->yes) &&
	    !ask_confirm(cli, "delete %s (step %" PRId64 "), which frees %s", info->name, info->step,
	                 human_bytes(&cli->keep, (double)use.own)))
		return 0;
	if (!args->dry_run)
		TRY(pawl_remove(run, id, args->force, err));
	*ret = info;
	*ret_bytes = use.own;
	return 0;
}

static int
run_rm(struct cli *cli, const void *ptr)
{
	const struct rm_args *args = ptr;
	const struct pawl_info **infos = keep_alloc(&cli->keep, cli->n_operands, sizeof(struct pawl_info *));
	struct pawl_error err = {0};
	uint64_t bytes = 0;
	struct jsonout j;

	for (size_t i = 0; i < cli->n_operands; i++) {
		if (remove_one(cli, cli->operands[i], args, &infos[i], &bytes, &err) < 0)
			return cli_fail(cli, &err);
		if (infos[i] == NULL)
			return 1;
		cli_note(cli, "%s %s (step %" PRId64 "), which %s %s", args->dry_run ? "would delete" : "deleted",
		         infos[i]->name, infos[i]->step, args->dry_run ? "frees" : "freed",
		         human_bytes(&cli->keep, (double)bytes));
	}
	if (!cli->common.json)
		return 0;
	jsonout_init(&j, stdout);
	cli->wrote_json = true;
	jsonout_begin_object(&j, NULL);
	jsonout_text(&j, "command", "rm");
	jsonout_bool(&j, "dry_run", args->dry_run);
	jsonout_begin_array(&j, "checkpoints");
	for (size_t i = 0; i < cli->n_operands; i++)
		info_json(&j, NULL, infos[i]);
	jsonout_end(&j);
	jsonout_end(&j);
	return 0;
}

const struct command cmd_rm = {
	.name = "rm",
	.group = GROUP_KEEP,
	.summary = "delete checkpoints",
	.about =
		"Deletes each TARGET, which must name a checkpoint. One that is pinned, the latest or the best is "
		"deleted only with --force. One that a reader holds is never deleted. In both cases the exit status is "
		"6. The manifest is deleted first, so after an interruption no part of a checkpoint looks like a "
		"complete one; 'pawl gc' removes the rest.",
	.operands = operands,
	.options = options,
	.examples = examples,
	.args_size = sizeof(struct rm_args),
	.run = run_rm,
};
