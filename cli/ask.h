/* SPDX-License-Identifier: Apache-2.0 */
/* ask: the questions of a command to the person at the terminal, and the pager for what is long. */
#ifndef PAWL_CLI_ASK_H
#define PAWL_CLI_ASK_H

#include "cli.h"

#define YES_OPTION(type) {"yes", 'y', OPT_FLAG, offsetof(struct type, yes), NULL, "delete without a question"}

/* Must a question be asked before something is deleted? Only where a person can answer: standard
 * input and standard error are a terminal, and the output is not JSON. */
bool ask_is_needed(const struct cli *cli, bool yes);
/* Asks "text? [y/N] ". False: the answer was not yes; a line says that nothing was deleted. */
bool ask_confirm(struct cli *cli, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Sends what is printed from now on through $PAGER (default: less), if standard output is a
 * terminal and --no-pager is not given. Ends the work of this invocation: from here on Ctrl+C is
 * the pager's. */
void ask_page(struct cli *cli);
/* Waits until the person has left the pager. */
void ask_page_end(struct cli *cli);

#endif
