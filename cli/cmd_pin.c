/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_pin: pin and unpin: set whether retention rules may delete a checkpoint. */
#include <inttypes.h>

#include "cli.h"
#include "info.h"
#include "target.h"

struct pin_args {
	struct score score;
};

static const struct operand operands[] = {{"TARGET", OPERAND_TARGET, 1, OPERAND_ANY}, OPERAND_LIST_END};

static const struct option options[] = {SCORE_OPTIONS(pin_args), OPTION_END};

static const struct example pin_examples[] = {
	{"pawl pin runs/demo@best", "never delete the best one"},
	{"pawl pin runs/demo@400 runs/demo@800", "several"},
	EXAMPLE_END,
};

static const struct example unpin_examples[] = {
	{"pawl unpin runs/demo@700", "rules may delete the checkpoint of step 700 again"},
	EXAMPLE_END,
};

/* *ret_was: it was pinned before. */
static int
pin_one(struct cli *cli, const char *text, const struct pin_args *args, bool pin, const struct pawl_info **ret,
        bool *ret_was, struct pawl_error *err)
{
	PAWL_CLEAN(target_release) struct taken from = {0};
	struct target *target = &from.target;

	TRY(target_parse(cli, text, target, err));
	if (target->single)
		return err_set(err, PAWL_EUSAGE, "%s belongs to no run, so no rule can delete it", text);
	if (target->selector == NULL)
		return err_set(err, PAWL_EUSAGE, "%s is a run; name a checkpoint, such as %s@latest", text, text);
	TRY(target_open(cli, target, false, &args->score, &from.run, err));
	TRY(target_hold(cli, from.run, target, &from.info, &from.hold, err));
	*ret_was = (from.info->marks & PAWL_MARK_PINNED) != 0;
	TRY(pin ? pawl_pin(from.run, from.info->id, err) : pawl_unpin(from.run, from.info->id, err));
	target_close_hold(&from.hold); /* the summary would count it as a reader's */
	return target_info(cli, from.run, from.info->id, ret, err);
}

static int
run_either(struct cli *cli, const struct pin_args *args, bool pin)
{
	const struct pawl_info **infos = keep_alloc(&cli->keep, cli->n_operands, sizeof(struct pawl_info *));
	struct pawl_error err = {0};
	struct jsonout j;

	for (size_t i = 0; i < cli->n_operands; i++) {
		bool was = false;

		if (pin_one(cli, cli->operands[i], args, pin, &infos[i], &was, &err) < 0)
			return cli_fail(cli, &err);
		const char *name = infos[i]->name;
		if (was == pin)
			cli_note(cli, "%s (step %" PRId64 ") was %s", name, infos[i]->step,
			         pin ? "pinned already" : "not pinned");
		else
			cli_note(cli, "%s %s (step %" PRId64 ")", pin ? "pinned" : "unpinned", name, infos[i]->step);
	}
	if (!cli->common.json)
		return 0;
	jsonout_init(&j, stdout);
	cli->wrote_json = true;
	jsonout_begin_object(&j, NULL);
	jsonout_text(&j, "command", cli->command->name);
	jsonout_begin_array(&j, "checkpoints");
	for (size_t i = 0; i < cli->n_operands; i++)
		info_json(&j, NULL, infos[i]);
	jsonout_end(&j);
	jsonout_end(&j);
	return 0;
}

static int
run_pin(struct cli *cli, const void *args)
{
	return run_either(cli, args, true);
}

static int
run_unpin(struct cli *cli, const void *args)
{
	return run_either(cli, args, false);
}

const struct command cmd_pin = {
	.name = "pin",
	.group = GROUP_KEEP,
	.summary = "protect a checkpoint from deletion by rules",
	.about = "Pins each TARGET. Neither retention nor 'pawl prune' deletes it until it is unpinned; 'pawl rm "
		 "--force' does.",
	.operands = operands,
	.options = options,
	.examples = pin_examples,
	.args_size = sizeof(struct pin_args),
	.run = run_pin,
};

const struct command cmd_unpin = {
	.name = "unpin",
	.group = GROUP_KEEP,
	.summary = "remove a pin",
	.about = "Unpins each TARGET: rules may delete it again.",
	.operands = operands,
	.options = options,
	.examples = unpin_examples,
	.args_size = sizeof(struct pin_args),
	.run = run_unpin,
};
