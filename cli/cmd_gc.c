/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_gc: removes what crashes left behind. */
#include "ask.h"
#include "cli.h"
#include "human.h"
#include "info.h"
#include "target.h"

struct gc_args {
	bool dry_run, yes;
};

static const struct operand operands[] = {{"RUN", OPERAND_RUN, 0, 1}, OPERAND_LIST_END};

static const struct option options[] = {
	{"dry-run", 'n', OPT_FLAG, offsetof(struct gc_args, dry_run), NULL,
         "print what would be removed; change nothing"},
	YES_OPTION(gc_args),
	OPTION_END,
};

static const struct example examples[] = {
	{"pawl gc runs/demo -n", "how much did crashes leave?"},
	EXAMPLE_END,
};

static int
run_gc(struct cli *cli, const void *ptr)
{
	const struct gc_args *args = ptr;
	PAWL_CLEAN(cli_close) struct pawl *run = NULL;
	uint64_t count = 0, bytes = 0;
	struct pawl_error err = {0};
	struct target target;
	struct jsonout j;

	if (target_parse_run(cli, cli->n_operands > 0 ? cli->operands[0] : ".", &target, &err) < 0 ||
	    target_open(cli, &target, false, NULL, &run, &err) < 0 || pawl_gc(run, 1, NULL, &count, &bytes, &err) < 0)
		return cli_fail(cli, &err);
	if (!args->dry_run && count > 0 && ask_is_needed(cli, args->yes) &&
	    !ask_confirm(cli, "remove %s, %s", human_count(&cli->keep, count, "left-over", "left-overs"),
	                 human_bytes(&cli->keep, (double)bytes)))
		return 1;
	if (!args->dry_run) {
		cli_close(&run);
		if (target_open(cli, &target, true, NULL, &run, &err) < 0 ||
		    pawl_gc(run, 0, NULL, &count, &bytes, &err) < 0)
			return cli_fail(cli, &err);
	}
	if (cli->common.json) {
		jsonout_init(&j, stdout);
		cli->wrote_json = true;
		jsonout_begin_object(&j, NULL);
		jsonout_text(&j, "command", "gc");
		jsonout_text(&j, "run", pawl_root(run));
		jsonout_bool(&j, "dry_run", args->dry_run);
		jsonout_uint(&j, "removed", count);
		jsonout_uint(&j, "bytes", bytes);
		jsonout_end(&j);
	}
	if (count == 0)
		cli_note(cli, "nothing was left behind");
	else
		cli_note(cli, "%s %s, %s", args->dry_run ? "would remove" : "removed",
		         human_count(&cli->keep, count, "left-over", "left-overs"),
		         human_bytes(&cli->keep, (double)bytes));
	return 0;
}

const struct command cmd_gc = {
	.name = "gc",
	.group = GROUP_MEND,
	.summary = "remove what crashes left behind",
	.about = "Removes what interrupted saves and deletions left in RUN (default: the current folder). These are "
		 "unfinished folders of dead writers, folders of this run without a manifest, holds of dead "
		 "processes, and files set aside for reuse. A training run does the same each time it opens "
		 "its run, except for folders without a manifest. Only this command removes those, since 'pawl repair' "
		 "may still rebuild a lost manifest.",
	.operands = operands,
	.options = options,
	.examples = examples,
	.args_size = sizeof(struct gc_args),
	.run = run_gc,
};
