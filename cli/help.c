/* SPDX-License-Identifier: Apache-2.0 */
/* help: see help.h. */
#include "help.h"

#include <string.h>

#define HELP_MAX_WIDTH 100
#define HELP_INDENT 2
#define HELP_COLUMN 28

static const struct example targets[] = {
	{"RUN", "a run folder; where one checkpoint is needed, its latest"},
	{"RUN@SELECTOR", "one checkpoint: latest, best, good (without NaN), 400 (a step), id:7 or its name"},
	{"RUN/checkpoints/NAME", "the same by path; RUN/latest and RUN/best are such paths too"},
	{"FOLDER", "a single checkpoint that belongs to no run"},
	{"FILE", "a file of safetensors or torch.save (.pt), as a checkpoint to read"},
	{"FOLDER", "with .metadata: a checkpoint of torch.distributed.checkpoint, to read"},
	EXAMPLE_END,
};

static const struct example exits[] = {
	{"0", "done"},
	{"1", "failed"},
	{"2", "wrong usage"},
	{"3", "no such run, checkpoint or file"},
	{"4", "bytes are not what was written"},
	{"5", "temporary failure; may work when tried again"},
	{"6", "in use or protected: by another writer, a reader, a pin"},
	{"7", "would overwrite something, or another writer was first"},
	{"8", "pawl report: the trial must end now"},
	{"130", "interrupted (143: terminated)"},
	EXAMPLE_END,
};

static const struct example environment[] = {
	{"NO_COLOR", "if set and not empty: no colour"},
	{"CLICOLOR", "if 0: no colour"},
	{"CLICOLOR_FORCE", "if set and not 0: colour even without a terminal"},
	{"PAWL_RUN", "the run where none is named; '@400' alone is its step 400"},
	{"PAGER", "shows long output on a terminal (default: less; empty: none)"},
	{"COLUMNS", "width of the terminal"},
	{"TERM", "if dumb or missing: no colour, no progress line"},
	EXAMPLE_END,
};

const struct example *
help_targets(void)
{
	return targets;
}

const struct example *
help_exits(void)
{
	return exits;
}

const struct example *
help_environment(void)
{
	return environment;
}

/* heading: "look", "use", ... */
static const char *
help_group(enum command_group group)
{
	switch (group) {
	case GROUP_LOOK:
		return "look";
	case GROUP_USE:
		return "extract";
	case GROUP_KEEP:
		return "keep and delete";
	case GROUP_MEND:
		return "repair and measure";
	case GROUP_SEARCH:
		return "search";
	case GROUP_MORE:
		return "more";
	case GROUP_HIDDEN:
		break;
	}
	return "";
}

static size_t
page_width(const struct term *term)
{
	size_t width = term->width > 0 ? (size_t)term->width : 80;

	return width > HELP_MAX_WIDTH ? HELP_MAX_WIDTH : width;
}

/* Prints text broken at blanks, so that lines stay below `width`. `column`: position of the cursor
 * and start of further lines. Ends with a line feed. */
static void
print_wrapped(const struct term *term, const char *text, size_t column, size_t width)
{
	size_t at = column;
	bool first = true;

	while (*text != '\0') {
		size_t len = strcspn(text, " \n");

		if (len == 0) {
			text++;
			continue;
		}
		if (!first && at + 1 + len >= width) {
			(void)fputc('\n', term->file);
			term_repeat(term, STYLE_PLAIN, " ", column);
			at = column;
			first = true;
		}
		if (!first)
			(void)fputc(' ', term->file);
		(void)fwrite(text, 1, len, term->file);
		at += len + !first;
		first = false;
		text += len;
	}
	(void)fputc('\n', term->file);
}

/* Prints paragraphs, separated by empty lines. Lines that start with a blank are not wrapped. */
static void
print_paragraphs(struct cli *cli, const struct term *term, const char *text)
{
	while (*text != '\0') {
		const char *end = strstr(text, "\n\n");
		size_t len = end != NULL ? (size_t)(end - text) : strlen(text);

		if (*text == ' ')
			(void)fprintf(term->file, "%.*s\n", (int)len, text);
		else
			print_wrapped(term, keep_strndup(&cli->keep, text, len), 0, page_width(term));
		(void)fputc('\n', term->file);
		text += len;
		text += strspn(text, "\n");
	}
}

static void
print_heading(const struct term *term, const char *text)
{
	term_put(term, STYLE_BOLD, text);
	(void)fputc('\n', term->file);
}

/* Prints "  left        right", the right side wrapped. If the left side is long, the right side
 * begins on the next line. */
static void
print_pair(const struct term *term, const char *left, const char *right, size_t column)
{
	size_t used = HELP_INDENT + term_width(left);

	term_repeat(term, STYLE_PLAIN, " ", HELP_INDENT);
	term_put(term, STYLE_ACCENT, left);
	if (used + 2 > column) {
		(void)fputc('\n', term->file);
		used = 0;
	}
	term_repeat(term, STYLE_PLAIN, " ", column - used);
	print_wrapped(term, right, column, page_width(term));
}

static void
option_list(struct cli *cli, const struct term *term, const struct option *options)
{
	for (; options != NULL && options->kind != OPT_END; options++) {
		const char *letter = options->letter != 0 ? keep_printf(&cli->keep, "-%c, ", options->letter) : "    ";
		const char *value = options->value != NULL ? keep_printf(&cli->keep, " %s", options->value) : "";
		const char *more = options->kind == OPT_TEXTS ? "..." : "";

		print_pair(term, keep_printf(&cli->keep, "%s--%s%s%s", letter, options->name, value, more),
		           options->help, HELP_COLUMN);
	}
}

void
help_overview(const struct term *term)
{
	static const enum command_group groups[] = {GROUP_LOOK, GROUP_USE,    GROUP_KEEP,
	                                            GROUP_MEND, GROUP_SEARCH, GROUP_MORE};

	(void)fputs("pawl: the checkpoints of a training run, without loading a tensor\n\n", term->file);
	(void)fputs("usage: pawl COMMAND [options] ...\n\n", term->file);
	for (size_t g = 0; g < sizeof(groups) / sizeof(groups[0]); g++) {
		print_heading(term, help_group(groups[g]));
		for (const struct command *const *c = cli_commands(); *c != NULL; c++)
			if ((*c)->group == groups[g])
				print_pair(term, (*c)->name, (*c)->summary, 14);
		(void)fputc('\n', term->file);
	}
	print_heading(term, "what a TARGET is");
	for (const struct example *e = targets; e->line != NULL; e++)
		print_pair(term, e->line, e->help, HELP_COLUMN);
	(void)fputc('\n', term->file);
	print_wrapped(
		term,
		"More: 'pawl help COMMAND', 'man pawl'. Data goes to standard output, messages to standard error; every "
		"command but 'completion' and 'man' takes --json.",
		0, page_width(term));
}

void
help_command(struct cli *cli, const struct term *term, const struct command *command)
{
	(void)fprintf(term->file, "pawl %s: %s\n\nusage: pawl %s %s\n\n", command->name, command->summary,
	              command->name, options_usage(&cli->keep, command));
	print_paragraphs(cli, term, command->about);
	if (command->options != NULL) {
		print_heading(term, "options");
		option_list(cli, term, command->options);
		(void)fputc('\n', term->file);
	}
	print_heading(term, "options of every command");
	option_list(cli, term, options_common());
	if (command->examples == NULL)
		return;
	(void)fputc('\n', term->file);
	print_heading(term, "examples");
	for (const struct example *e = command->examples; e->line != NULL; e++) {
		(void)fprintf(term->file, "  %s\n", e->line);
		term_repeat(term, STYLE_PLAIN, " ", 6);
		print_wrapped(term, e->help, 6, page_width(term));
	}
}
