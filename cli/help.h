/* SPDX-License-Identifier: Apache-2.0 */
/* help: terminal texts made from the tables of commands and options. */
#ifndef PAWL_CLI_HELP_H
#define PAWL_CLI_HELP_H

#include "cli.h"

void help_overview(const struct term *term);
void help_command(struct cli *cli, const struct term *term, const struct command *command);
/* The forms of a TARGET, line by line; the exit statuses, line by line. EXAMPLE_END ends each
 * list. */
const struct example *help_targets(void);
const struct example *help_exits(void);
/* Environment variables that the command reads. */
const struct example *help_environment(void);

#endif
