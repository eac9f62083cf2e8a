/* SPDX-License-Identifier: Apache-2.0 */
/* ask: see ask.h. */
#include "ask.h"

#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os.h"
#include "base/spawn.h"

bool
ask_is_needed(const struct cli *cli, bool yes)
{
	return !yes && !cli->common.json && isatty(STDIN_FILENO) == 1 && isatty(STDERR_FILENO) == 1;
}

bool
ask_confirm(struct cli *cli, const char *format, ...)
{
	char question[1024], answer[16] = "";
	va_list list;

	va_start(list, format);
	(void)vsnprintf(question, sizeof(question), format, list);
	va_end(list);
	(void)fflush(stdout);
	(void)fprintf(stderr, "%s? [y/N] ", term_clean(&cli->keep, question));
	(void)fflush(stderr);
	if (fgets(answer, sizeof(answer), stdin) == NULL)
		(void)fputc('\n', stderr);
	if (answer[0] == 'y' || answer[0] == 'Y')
		return true;
	cli_note(cli, "nothing was deleted");
	return false;
}

/* The pager's command line: NULL = none. If the shell cannot start the pager, nothing has read the
 * output yet, and cat prints it. The trap keeps the shell alive after Ctrl+C, which a pager may
 * handle. */
static const char *
pager_command(struct cli *cli)
{
	const char *pager = getenv("PAGER");

	if (!cli->out.tty || cli->common.json || cli->common.no_pager)
		return NULL;
	if (pager == NULL)
		return "command -v less >/dev/null && exec less; exec cat";
	if (*pager == '\0' || strcmp(pager, "cat") == 0)
		return NULL;
	return keep_printf(&cli->keep, "trap : INT\n%s\ncase $? in 126|127) exec cat;; esac", pager);
}

/* Starts the pager with the pipe as its input, and with options for less: colours, and no wait if
 * everything fits on one screen. */
static bool
start_pager(const char *command, int input, pid_t *ret)
{
	char shell[] = "/bin/sh", flag[] = "-c";
	char *const argv[] = {shell, flag, (char *)(uintptr_t)command, NULL};

	(void)setenv("LESS", "FRX", 0);
	return spawn_program(ret, argv, os_environ(), &(struct spawn_file){.fd = STDIN_FILENO, .from = input}, 1,
	                     SPAWN_NONE) == 0;
}

void
ask_page(struct cli *cli)
{
	const char *command = pager_command(cli);
	int ends[2];

	if (cli->pager != 0 || command == NULL)
		return;
	(void)fflush(stdout);
	if (os_pipe(ends) != 0)
		return;
	if (start_pager(command, ends[0], &cli->pager) && dup2(ends[1], STDOUT_FILENO) >= 0) {
		work_close(cli->work);
		cli->work = NULL;
		(void)signal(SIGINT, SIG_IGN);
		(void)signal(SIGPIPE, SIG_IGN);
	}
	(void)close(ends[0]);
	(void)close(ends[1]);
}

void
ask_page_end(struct cli *cli)
{
	int status;

	if (cli->pager == 0)
		return;
	(void)fflush(stdout); /* fails if the person has left the pager */
	(void)fclose(stdout);
	(void)waitpid(cli->pager, &status, 0);
}
