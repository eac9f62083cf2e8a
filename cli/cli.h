/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cli: what every file of the command shares: one invocation (options, streams, memory), how a command is described,
 * and how results and failures are told. Data goes to stdout, text for people to stderr.
 *
 * A command is one constant `struct command` in its own cmd_<verb>.c. Parsing, help, the man page and the shell
 * completions are all derived from that description, so that they cannot disagree.
 */
#ifndef PAWL_CLI_H
#define PAWL_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "keep.h"
#include "options.h"
#include "pawl.h"
#include "term.h"
#include "work.h"

struct cli {
	struct common common;
	const struct command *command; /* NULL until it is known */
	char **operands;
	size_t n_operands;
	bool utf8; /* the locale's characters */
	struct term out, err;
	struct keep keep;  /* memory of this invocation, freed at its end */
	struct work *work; /* signals and the progress line */
	bool wrote_json;
};

/* Fills *err like the library does and returns code. */
int cli_error(struct pawl_error *err, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Tells a failure on stderr (with --json, if no document has been written yet, also as one on stdout); returns the
 * exit status of its code. */
int cli_fail(struct cli *cli, const struct pawl_error *err);
/* A mistake in how the command was called: the message, then where help is. Returns exit status 2. */
int cli_usage(struct cli *cli, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A line for people, unless -q. */
void cli_note(struct cli *cli, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A line that -q does not hide. */
void cli_warn(struct cli *cli, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Closes a run where a failure no longer matters (it was opened read-only, or another error is being told). */
void cli_close(struct pawl **run);
#define CLEANUP(fn) __attribute__((cleanup(fn)))

/* The table of commands (main.c), ended by NULL; in the order of help. */
const struct command *const *cli_commands(void);
const struct command *cli_find_command(const char *name);

extern const struct command cmd_ls, cmd_show, cmd_diff, cmd_verify, cmd_restore, cmd_cp, cmd_sync, cmd_convert, cmd_export,
	cmd_reshard, cmd_prune, cmd_pin, cmd_unpin, cmd_rm, cmd_gc, cmd_repair, cmd_doctor, cmd_bench,
	cmd_tune, cmd_report, cmd_version, cmd_help, cmd_completion, cmd_man;

#endif
