/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_help: prints what the command can do; with --json, the tables that the help is made from. */
#include "ask.h"
#include "cli.h"
#include "help.h"
#include "jsonout.h"

static const struct operand operands[] = {{"COMMAND", OPERAND_COMMAND, 0, 1}, OPERAND_LIST_END};

static void
options_json(struct jsonout *j, const struct option *o)
{
	jsonout_begin_array(j, "options");
	for (; o != NULL && o->kind != OPT_END; o++) {
		const char letter[2] = {o->letter, '\0'};

		jsonout_begin_object(j, NULL);
		jsonout_text(j, "name", o->name);
		jsonout_text(j, "letter", o->letter != 0 ? letter : NULL);
		jsonout_text(j, "value", o->value);
		jsonout_bool(j, "repeats", o->kind == OPT_TEXTS);
		jsonout_text(j, "help", o->help);
		jsonout_end(j);
	}
	jsonout_end(j);
}

static void
print_json(struct cli *cli, const struct command *only)
{
	struct jsonout j;

	jsonout_init(&j, stdout);
	cli->wrote_json = true;
	jsonout_begin_object(&j, NULL);
	jsonout_text(&j, "command", "help");
	options_json(&j, options_common());
	jsonout_begin_array(&j, "commands");
	for (const struct command *const *c = cli_commands(); *c != NULL; c++) {
		if ((*c)->group == GROUP_HIDDEN || (only != NULL && *c != only))
			continue;
		jsonout_begin_object(&j, NULL);
		jsonout_text(&j, "name", (*c)->name);
		jsonout_text(&j, "summary", (*c)->summary);
		jsonout_text(&j, "usage",
		             keep_printf(&cli->keep, "pawl %s %s", (*c)->name, options_usage(&cli->keep, *c)));
		jsonout_text(&j, "about", (*c)->about);
		options_json(&j, (*c)->options);
		jsonout_end(&j);
	}
	jsonout_end(&j);
	jsonout_end(&j);
}

static int
run_help(struct cli *cli, const void *args)
{
	const struct command *only = NULL;

	(void)args;
	if (cli->n_operands > 0) {
		only = cli_find_command(cli->operands[0]);
		if (only == NULL)
			return cli_unknown_command(cli, cli->operands[0]);
	}
	if (!cli->common.json)
		ask_page(cli);
	if (cli->common.json)
		print_json(cli, only);
	else if (only != NULL)
		help_command(cli, &cli->out, only);
	else
		help_overview(&cli->out);
	return 0;
}

const struct command cmd_help = {
	.name = "help",
	.group = GROUP_MORE,
	.summary = "print help, or that of one command",
	.about = "Prints an overview, or what COMMAND does with all its options and examples.",
	.operands = operands,
	.run = run_help,
};
