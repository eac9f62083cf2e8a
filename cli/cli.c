/* SPDX-License-Identifier: Apache-2.0 */
/* cli: the table of commands; what every command prints about a failure. */
#include "cli.h"

#include <stdarg.h>
#include <string.h>

#include "base/buf.h"
#include "base/names.h"
#include "jsonout.h"

static const struct command *const commands[] = {
	&cmd_ls,     &cmd_du,      &cmd_show,       &cmd_diff,    &cmd_verify, &cmd_restore, &cmd_cp,
	&cmd_sync,   &cmd_convert, &cmd_export,     &cmd_reshard, &cmd_prune,  &cmd_pin,     &cmd_unpin,
	&cmd_score,  &cmd_rm,      &cmd_gc,         &cmd_repair,  &cmd_doctor, &cmd_bench,   &cmd_tune,
	&cmd_report, &cmd_help,    &cmd_completion, &cmd_version, &cmd_man,    NULL,
};

const struct command *const *
cli_commands(void)
{
	return commands;
}

const struct command *
cli_find_command(const char *name)
{
	for (size_t i = 0; commands[i] != NULL; i++)
		if (strcmp(commands[i]->name, name) == 0)
			return commands[i];
	return NULL;
}

/* Prints "pawl ls: error: text" on stderr. */
static void
print_problem(struct cli *cli, enum style style, const char *word, const char *text)
{
	work_hide(cli->work);
	(void)fflush(stdout);
	(void)fprintf(stderr, "pawl%s%s: ", cli->command != NULL ? " " : "",
	              cli->command != NULL ? cli->command->name : "");
	if (*word != '\0') {
		term_put(&cli->err, style, word);
		(void)fputs(": ", stderr);
	}
	(void)fprintf(stderr, "%s\n", term_clean(&cli->keep, text));
	work_show(cli->work);
}

/* Adds the error to the open document, or prints a document of it. */
static void
error_document(struct cli *cli, struct jsonout *open, int code, int exit_status, const char *message)
{
	struct jsonout own = {0}, *j = open != NULL ? open : &own;

	if (open == NULL && (!cli->common.json || cli->wrote_json))
		return;
	cli->wrote_json = true;
	if (open == NULL) {
		jsonout_init(j, stdout);
		jsonout_begin_object(j, NULL);
		jsonout_text(j, "command", cli->command != NULL ? cli->command->name : NULL);
	}
	jsonout_begin_object(j, "error");
	jsonout_text(j, "code", pawl_code_name(code));
	jsonout_int(j, "exit_status", exit_status);
	jsonout_text(j, "message", message);
	jsonout_end(j);
	if (open == NULL)
		jsonout_end(j);
}

int
cli_fail_in(struct cli *cli, struct jsonout *open, const struct pawl_error *err)
{
	int number = work_signal(cli->work), status = pawl_code_exit_status(err->code);

	if (err->code == PAWL_ECANCELLED && number != 0) {
		print_problem(cli, STYLE_WARN, "", "interrupted");
		error_document(cli, open, err->code, 128 + number, "interrupted");
		return 128 + number;
	}
	print_problem(cli, STYLE_BAD, "error", err->message);
	error_document(cli, open, err->code, status, err->message);
	return status;
}

int
cli_fail(struct cli *cli, const struct pawl_error *err)
{
	return cli_fail_in(cli, NULL, err);
}

int
cli_usage(struct cli *cli, const char *format, ...)
{
	struct pawl_error err = {.code = PAWL_EUSAGE};
	va_list list;

	va_start(list, format);
	(void)vsnprintf(err.message, sizeof(err.message), format, list);
	va_end(list);
	print_problem(cli, STYLE_BAD, "error", err.message);
	if (!cli->common.quiet)
		(void)fprintf(stderr, "try 'pawl help%s%s'\n", cli->command != NULL ? " " : "",
		              cli->command != NULL ? cli->command->name : "");
	error_document(cli, NULL, err.code, pawl_code_exit_status(err.code), err.message);
	return pawl_code_exit_status(err.code);
}

static void __attribute__((format(printf, 3, 0)))
say_line(struct cli *cli, enum style style, const char *format, va_list list)
{
	char text[2048];

	(void)vsnprintf(text, sizeof(text), format, list);
	work_hide(cli->work);
	(void)fflush(stdout);
	term_put(&cli->err, style, term_clean(&cli->keep, text));
	(void)fputc('\n', stderr);
	work_show(cli->work);
}

void
cli_note(struct cli *cli, const char *format, ...)
{
	va_list list;

	if (cli->common.quiet)
		return;
	va_start(list, format);
	say_line(cli, STYLE_DIM, format, list);
	va_end(list);
}

void
cli_warn(struct cli *cli, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	say_line(cli, STYLE_WARN, format, list);
	va_end(list);
}

void
cli_close(struct pawl **run)
{
	if (*run != NULL)
		(void)pawl_close(*run, NULL);
	*run = NULL;
}

int
cli_unknown_command(struct cli *cli, const char *name)
{
	const char *names[sizeof(commands) / sizeof(commands[0])], *near;
	PAWL_CLEAN(buf_clear) struct buf known = {0};
	size_t n = 0;

	for (size_t i = 0; commands[i] != NULL; i++)
		if (commands[i]->group != GROUP_HIDDEN)
			names[n++] = commands[i]->name;
	near = names_nearest(name, names, n);
	names_put(&known, names, n);
	if (near != NULL)
		return cli_usage(cli, "unknown command '%s'; did you mean '%s'? (known: %s)", name, near,
		                 buf_str(&known));
	return cli_usage(cli, "unknown command '%s' (known: %s)", name, buf_str(&known));
}
