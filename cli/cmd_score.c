/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_score: adds metrics to a checkpoint after it was saved; the best is chosen again. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "info.h"
#include "target.h"

static const struct operand operands[] = {
	{"TARGET", OPERAND_TARGET, 1, 1}, {"NAME=VALUE", OPERAND_PATH, 1, OPERAND_ANY}, OPERAND_LIST_END};

static const struct example examples[] = {
	{"pawl score runs/demo@400 accuracy=0.91", "the result of an evaluation of step 400"},
	EXAMPLE_END,
};

/* "accuracy=0.91". */
static int
parse_metric(struct cli *cli, const char *text, struct pawl_metric *ret, struct pawl_error *err)
{
	const char *equals = strchr(text, '=');
	char *end = NULL;

	if (equals != NULL && equals != text && equals[1] != '\0') {
		ret->name = keep_strndup(&cli->keep, text, (size_t)(equals - text));
		ret->value = strtod(equals + 1, &end);
	}
	if (end == NULL || *end != '\0')
		return err_set(err, PAWL_EUSAGE, "'%s': expected NAME=NUMBER, such as accuracy=0.91", text);
	if (isinf(ret->value) && strpbrk(equals, "0123456789") != NULL)
		return err_set(err, PAWL_EUSAGE, "'%s': the number is too large; 'inf' is infinite", text);
	return 0;
}

static int
run_score(struct cli *cli, const void *args)
{
	const size_t n = cli->n_operands - 1;
	struct pawl_metric *metrics = keep_alloc(&cli->keep, n, sizeof(*metrics));
	PAWL_CLEAN(target_release) struct taken from = {0};
	struct target *target = &from.target;
	const struct pawl_info *info = NULL;
	struct pawl_error err = {0};
	struct jsonout j;

	(void)args;
	for (size_t i = 0; i < n; i++)
		if (parse_metric(cli, cli->operands[i + 1], &metrics[i], &err) < 0)
			return cli_usage(cli, "%s", err.message);
	if (target_parse(cli, cli->operands[0], target, &err) < 0)
		return cli_fail(cli, &err);
	if (target->single)
		return cli_usage(cli, "%s belongs to no run, which would keep its metrics", target->text);
	if (target->selector == NULL)
		return cli_usage(cli, "%s is a run; name a checkpoint, such as %s@latest", target->text, target->text);
	if (target_open(cli, target, false, NULL, &from.run, &err) < 0 ||
	    target_hold(cli, from.run, target, &from.info, &from.hold, &err) < 0 ||
	    pawl_score(from.run, from.info->id, metrics, n, &err) < 0 || pawl_reload(from.run, &err) < 0)
		return cli_fail(cli, &err);
	target_close_hold(&from.hold); /* the summary would count it as a reader's */
	if (target_info(cli, from.run, from.info->id, &info, &err) < 0)
		return cli_fail(cli, &err);
	for (size_t i = 0; i < n; i++)
		cli_note(cli, "%s (step %" PRId64 "): %s = %g", info->name, info->step, metrics[i].name,
		         metrics[i].value);
	if (cli->common.json) {
		jsonout_init(&j, stdout);
		cli->wrote_json = true;
		jsonout_begin_object(&j, NULL);
		jsonout_text(&j, "command", "score");
		info_json(&j, "checkpoint", info);
		jsonout_end(&j);
	}
	return 0;
}

const struct command cmd_score = {
	.name = "score",
	.group = GROUP_KEEP,
	.summary = "add metrics to a checkpoint",
	.about =
		"Adds metrics to the checkpoint TARGET, or replaces those of the same names, for example after an "
		"evaluation. A training run that runs uses them at its next decision about what is best and what is kept. "
		"The files of the checkpoint do not change.",
	.operands = operands,
	.examples = examples,
	.run = run_score,
};
