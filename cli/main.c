/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main: the command `pawl`: the table of commands, and one invocation from its arguments to its
 * exit status:
 *
 *     arguments -> options of the command -> streams -> work -> run -> flush
 *
 * Uses the public headers, and base/ for what every program needs.
 */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ask.h"
#include "base/denied.h"
#include "base/mem.h"
#include "base/names.h"
#include "cli.h"
#include "help.h"
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
	(void)fprintf(stderr, "%s\n", text_clean(&cli->keep, text));
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
say(struct cli *cli, enum style style, const char *format, va_list list)
{
	char text[2048];

	(void)vsnprintf(text, sizeof(text), format, list);
	work_hide(cli->work);
	(void)fflush(stdout);
	term_put(&cli->err, style, text_clean(&cli->keep, text));
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
	say(cli, STYLE_DIM, format, list);
	va_end(list);
}

void
cli_warn(struct cli *cli, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	say(cli, STYLE_WARN, format, list);
	va_end(list);
}

void
cli_close(struct pawl **run)
{
	if (*run != NULL)
		(void)pawl_close(*run, NULL);
	*run = NULL;
}

static void
open_streams(struct cli *cli)
{
	term_open(&cli->out, stdout, cli->utf8, cli->common.color);
	term_open(&cli->err, stderr, cli->utf8, cli->common.color);
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

/* Runs the command with the arguments argv[0..argc). */
static int
run_command(struct cli *cli, int argc, char **argv)
{
	const struct command *command = cli->command;
	void *args = keep_alloc(&cli->keep, command->args_size + 1, 1);
	const char *message = NULL;
	int rc, status;

	rc = options_parse(&cli->keep, command, argc, argv, &cli->common, args, &cli->operands, &cli->n_operands,
	                   &message);
	open_streams(cli);
	if (rc < 0)
		return cli_usage(cli, "%s", message);
	if (cli->common.help) {
		ask_page(cli);
		help_command(cli, &cli->out, command);
		ask_page_end(cli);
		return 0;
	}
	if (cli->common.version)
		return cmd_version.run(cli, NULL);
	if (cli->common.chdir != NULL && chdir(cli->common.chdir) != 0) {
		struct pawl_error err = {0};

		(void)err_path(&err, errno, cli->common.chdir, false, "cannot be entered");
		return cli_fail(cli, &err);
	}
	cli->work = work_open(&cli->err, !cli->common.quiet && !cli->common.no_progress);
	status = command->run(cli, args);
	work_close(cli->work);
	cli->work = NULL;
	ask_page_end(cli);
	return status;
}

static int
run_cli(struct cli *cli, int argc, char **argv)
{
	const char *message = NULL;
	int at = 1, rc;

	open_streams(cli);
	rc = options_parse_common(&cli->keep, argc, argv, &at, &cli->common, &message);
	open_streams(cli);
	if (rc < 0)
		return cli_usage(cli, "%s", message);
	if (at < argc) {
		const char *name = argv[at++];

		cli->command = cli_find_command(name);
		return cli->command != NULL ? run_command(cli, argc - at, argv + at) : cli_unknown_command(cli, name);
	}
	if (cli->common.version) {
		cli->command = &cmd_version;
		return run_command(cli, 0, argv);
	}
	if (cli->common.help) {
		ask_page(cli);
		help_overview(&cli->out);
		ask_page_end(cli);
		return 0;
	}
	help_overview(&cli->err);
	return pawl_code_exit_status(PAWL_EUSAGE);
}

static void
see_signal(int number)
{
	(void)number;
}

/* Makes a write beyond the limit of file sizes fail, so that it is reported. Uses a handler,
 * because child processes would inherit an ignored signal. */
static void
survive_file_limit(void)
{
	struct sigaction action = {.sa_handler = see_signal, .sa_flags = SA_RESTART};
	struct sigaction before;

	if (sigaction(SIGXFSZ, NULL, &before) == 0 && before.sa_handler == SIG_DFL)
		(void)sigaction(SIGXFSZ, &action, NULL);
}

int
main(int argc, char **argv)
{
	struct cli cli = {0};
	int status;

	survive_file_limit();

	cli.utf8 = term_locale();
	status = run_cli(&cli, argc, argv);
	/* a full disk must not look like success */
	if (cli.pager == 0 && (fflush(stdout) != 0 || ferror(stdout))) {
		(void)fprintf(stderr, "pawl: error: standard output: %s\n", strerror(errno));
		status = status == 0 ? 1 : status;
	}
	keep_clear(&cli.keep);
	return status;
}
