/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cli: what all files of the command share: one invocation (options, streams, memory), the
 * description of a command, and the output of results and failures. Data goes to stdout, text for
 * people to stderr.
 *
 * A command is one constant `struct command` in its own cmd_<verb>.c. Parsing, help, the man page
 * and the shell completions are all derived from that description, so that they cannot disagree.
 */
#ifndef PAWL_CLI_H
#define PAWL_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/mem.h"
#include "keep.h"
#include "options.h"
#include "pawl.h"
#include "pawl_jobs.h"
#include "term.h"
#include "work.h"

struct jsonout;

struct cli {
	struct common common;
	const struct command *command; /* NULL until it is known */
	char **operands;
	size_t n_operands;
	bool utf8; /* the locale uses UTF-8 */
	struct term out, err;
	struct keep keep;  /* memory of this invocation, freed at its end */
	struct work *work; /* signals and the progress line */
	bool wrote_json;
	pid_t pager; /* 0 = none (ask.h) */
};

/* Prints a failure on stderr. With --json, also prints it on stdout as a document, if none was
 * written yet. Returns the exit status of its code. */
int cli_fail(struct cli *cli, const struct pawl_error *err);
/* The same within the open document; NULL = there is none. */
int cli_fail_in(struct cli *cli, struct jsonout *open, const struct pawl_error *err);
/* Prints a usage error, then where to find help. Returns exit status 2. */
int cli_usage(struct cli *cli, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints a line for people, unless -q is set. */
void cli_note(struct cli *cli, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints a line that -q does not hide. */
void cli_warn(struct cli *cli, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Closes a run and ignores a failure: the run was opened read-only, or another error is already
 * being reported. */
void cli_close(struct pawl **run);

/* The table of commands (cli.c), in the order of help; NULL at its end. */
const struct command *const *cli_commands(void);
const struct command *cli_find_command(const char *name);
/* A usage error that names the commands. Returns exit status 2. */
int cli_unknown_command(struct cli *cli, const char *name);

extern const struct command cmd_ls, cmd_du, cmd_show, cmd_diff, cmd_verify, cmd_restore, cmd_cp, cmd_sync, cmd_convert,
	cmd_export, cmd_reshard, cmd_prune, cmd_pin, cmd_unpin, cmd_score, cmd_rm, cmd_gc, cmd_repair, cmd_doctor,
	cmd_bench, cmd_tune, cmd_report, cmd_version, cmd_help, cmd_completion, cmd_man;

PAWL_DEFINE_CLEAN(struct pawl_list, pawl_list_free);

#endif
