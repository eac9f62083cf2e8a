/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main: the command `pawl`: one invocation from its arguments to its exit status:
 *
 *     arguments -> options of the command -> streams -> work -> run -> flush
 *
 * Uses the public headers, and base/ for what every program needs.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "ask.h"
#include "base/err_path.h"
#include "cli.h"
#include "help.h"

static void
open_streams(struct cli *cli)
{
	term_open(&cli->out, stdout, cli->utf8, cli->common.color);
	term_open(&cli->err, stderr, cli->utf8, cli->common.color);
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
note_signal(int number)
{
	(void)number;
}

/* Makes a write beyond the limit of file sizes fail, so that it is reported. Uses a handler,
 * because child processes would inherit an ignored signal. */
static void
survive_file_limit(void)
{
	struct sigaction action = {.sa_handler = note_signal, .sa_flags = SA_RESTART};
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
