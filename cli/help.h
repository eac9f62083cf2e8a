/* SPDX-License-Identifier: Apache-2.0 */
/* help: texts made from the tables of commands and options, for the terminal. */
#ifndef PAWL_CLI_HELP_H
#define PAWL_CLI_HELP_H

#include "cli.h"

void help_overview(const struct term *term);
void help_command(struct cli *cli, const struct term *term, const struct command *command);
const char *help_group(enum command_group group); /* heading: "look", "use", ... */
/* What a TARGET is, in lines; exit statuses, in lines; ended by EXAMPLE_END. */
const struct example *help_targets(void);
const struct example *help_exits(void);
/* Environment variables that matter. */
const struct example *help_environment(void);

#endif
