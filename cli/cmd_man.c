/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_man: prints the manual pages pawl(1) and pawl-COMMAND(1), in mdoc, made from the tables of
 * commands and options. The build runs it. */
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "help.h"

#define MAN_WIDTH 78

/* Escapes the characters that roff would interpret. Hyphens stay plain hyphens that can be copied.
 * Newlines become blanks. */
static const char *
escape_roff(struct keep *keep, const char *text)
{
	char *ret = keep_alloc(keep, strlen(text) * 2 + 3, 1), *to = ret;

	if (*text == '.' || *text == '\'') {
		*to++ = '\\';
		*to++ = '&';
	}
	for (; *text != '\0'; text++) {
		if (*text == '\\' || *text == '-')
			*to++ = '\\';
		*to++ = *text == '\n' ? ' ' : *text == '\\' ? 'e' : *text;
	}
	return ret;
}

/* Prints text in short lines; roff expects sentences to end where lines end. */
static void
put_text(struct keep *keep, const char *text)
{
	size_t column = 0;

	while (*text != '\0') {
		size_t len = strcspn(text, " \n");
		const char *word = escape_roff(keep, keep_strndup(keep, text, len)),
			   *next = text + len + strspn(text + len, " \n");
		bool ends = len > 0 && text[len - 1] == '.' && text[len] == ' ';

		if (column > 0 && column + 1 + strlen(word) > MAN_WIDTH) {
			(void)fputc('\n', stdout);
			column = 0;
		}
		/* escape() guards the first character, which roff interprets only at the start of a
		 * line */
		(void)printf("%s%s", column > 0 ? " " : "", word);
		column += strlen(word) + 1;
		if (ends && *next != '\0') {
			(void)fputc('\n', stdout);
			column = 0;
		}
		text = next;
	}
	(void)fputc('\n', stdout);
}

static void
put_paragraphs(struct keep *keep, const char *text)
{
	while (*text != '\0') {
		const char *end = strstr(text, "\n\n");
		size_t len = end != NULL ? (size_t)(end - text) : strlen(text);

		put_text(keep, keep_strndup(keep, text, len));
		text += len + strspn(text + len, "\n");
		if (*text != '\0')
			(void)puts(".Pp");
	}
}

static void
put_options(struct keep *keep, const struct option *o)
{
	(void)puts(".Bl -tag -width Ds");
	for (; o->kind != OPT_END; o++) {
		(void)printf(".It ");
		if (o->letter != 0)
			(void)printf("Fl %c , ", o->letter);
		(void)printf("Fl \\-%s", escape_roff(keep, o->name));
		if (o->value != NULL)
			(void)printf(" Ar %s", escape_roff(keep, o->value));
		if (o->kind == OPT_TEXTS)
			(void)printf(" ...");
		(void)fputc('\n', stdout);
		put_text(keep, keep_printf(keep, "%c%s.",
		                           o->help[0] >= 'a' && o->help[0] <= 'z' ? o->help[0] - 'a' + 'A' : o->help[0],
		                           o->help + 1));
	}
	(void)puts(".El");
}

static void
put_pairs(struct keep *keep, const char *macro, const struct example *e)
{
	(void)puts(".Bl -tag -width Ds");
	for (; e->line != NULL; e++) {
		(void)printf(".It %s %s\n", macro, escape_roff(keep, e->line));
		put_text(keep, e->help);
	}
	(void)puts(".El");
}

static void
put_command(struct keep *keep, const struct command *c)
{
	(void)printf(".Ss %s\n.D1 Nm Cm %s Oo Ar options Oc", c->name, c->name);
	for (const struct operand *o = c->operands; o != NULL && o->kind != OPERAND_END; o++)
		(void)printf(" %sAr %s%s%s", o->min == 0 ? "Oo " : "", o->name, o->max > 1 ? " ..." : "",
		             o->min == 0 ? " Oc" : "");
	(void)puts("\n.Pp");
	put_paragraphs(keep, c->about);
	if (c->options != NULL)
		put_options(keep, c->options);
}

static void
put_examples(struct keep *keep, const struct command *c)
{
	for (const struct example *e = c->examples; e != NULL && e->line != NULL; e++) {
		(void)printf("%c%s:\n", e->help[0] >= 'a' && e->help[0] <= 'z' ? e->help[0] - 'a' + 'A' : e->help[0],
		             escape_roff(keep, e->help + 1));
		(void)printf(".Bd -literal -offset indent\n%s\n.Ed\n", escape_roff(keep, e->line));
		if (e[1].line != NULL)
			(void)puts(".Pp");
	}
}

static void
put_head(const char *title)
{
	(void)printf(".\\\" SPDX-License-Identifier: Apache-2.0\n.\\\" Made by 'pawl man' from the table of options.\n"
	             ".Dd November 23, 2026\n.Dt %s 1\n.Os\n.Sh NAME\n",
	             title);
}

static void
put_page(struct keep *keep, const struct command *c)
{
	char title[64];
	size_t n = (size_t)snprintf(title, sizeof(title), "PAWL-%s", c->name);

	for (size_t i = 5; i < n; i++)
		title[i] = (char)(title[i] >= 'a' && title[i] <= 'z' ? title[i] - 'a' + 'A' : title[i]);
	put_head(title);
	(void)printf(".Nm pawl\\-%s\n.Nd %s\n.Sh SYNOPSIS\n.Nm pawl Cm %s\n.Op Ar options\n", c->name,
	             escape_roff(keep, c->summary), c->name);
	for (const struct operand *o = c->operands; o != NULL && o->kind != OPERAND_END; o++)
		(void)printf(o->min == 0 ? ".Op Ar %s%s\n" : ".Ar %s%s\n", o->name, o->max > 1 ? " ..." : "");
	(void)puts(".Sh DESCRIPTION");
	put_paragraphs(keep, c->about);
	if (c->options != NULL) {
		(void)puts(".Sh OPTIONS");
		put_options(keep, c->options);
	}
	if (c->examples != NULL) {
		(void)puts(".Sh EXAMPLES");
		put_examples(keep, c);
	}
	(void)puts(
		".Sh SEE ALSO\npawl(1)\nfor the options of every command, what an argument may be, and the exit status.");
}

static void
put_overview(struct keep *keep)
{
	put_head("PAWL");
	(void)puts(".Nm pawl\n"
	           ".Nd the checkpoints of a training run, without loading a tensor\n"
	           ".Sh SYNOPSIS\n.Nm\n.Ar command\n.Op Ar options\n.Op Ar argument ...\n.Sh DESCRIPTION\n.Nm\n"
	           "lists, compares, verifies, extracts, prunes and repairs the checkpoints\n"
	           "that a training run has saved with the pawl library.\n"
	           "It reads manifests where it can and tensors in a stream where it must;\nit never loads a state.\n"
	           ".Pp\nData goes to standard output, messages and progress to standard error.\n"
	           "Sizes are in powers of 1024, rates in powers of 1000.\n.Ss What a TARGET is");
	put_pairs(keep, "Ar", help_targets());
	(void)puts(".Pp\nA path that exists is taken as a path, whatever it contains.\n.Ss Options of every command");
	put_options(keep, options_common());
	(void)puts(".Sh COMMANDS");
	for (const struct command *const *c = cli_commands(); *c != NULL; c++)
		if ((*c)->group != GROUP_HIDDEN)
			put_command(keep, *c);
	(void)puts(".Sh ENVIRONMENT");
	put_pairs(keep, "Ev", help_environment());
	(void)puts(".Sh EXIT STATUS");
	put_pairs(keep, "Li", help_exits());
	(void)puts(".Sh EXAMPLES");
	for (const struct command *const *c = cli_commands(); *c != NULL; c++) {
		put_examples(keep, *c);
		if ((*c)->examples != NULL)
			(void)puts(".Pp");
	}
	(void)puts("Every command takes\n.Fl \\-help ,\nand has a page of its own, such as pawl-ls(1).");
}

static int
run_man(struct cli *cli, const void *args)
{
	const struct command *command = cli->n_operands > 0 ? cli_find_command(cli->operands[0]) : NULL;

	(void)args;
	if (cli->n_operands > 0 && command == NULL)
		return cli_usage(cli, "no command is called '%s'", cli->operands[0]);
	if (command != NULL)
		put_page(&cli->keep, command);
	else
		put_overview(&cli->keep);
	return 0;
}

static const struct operand operands[] = {{"COMMAND", OPERAND_COMMAND, 0, 1}, OPERAND_LIST_END};

const struct command cmd_man = {
	.name = "man",
	.group = GROUP_HIDDEN,
	.summary = "print the manual page",
	.about = "Prints the manual page, or that of one command, in mdoc.",
	.operands = operands,
	.run = run_man,
};
