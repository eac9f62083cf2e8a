/* SPDX-License-Identifier: Apache-2.0 */
/* option_table: defaults and ranges of the options of a run (see pawl_option_get). */
#ifndef PAWL_RUN_OPTION_TABLE_H
#define PAWL_RUN_OPTION_TABLE_H

#include <stdbool.h>

#include "pawl.h"

/* Replaces every zero that stands for a default, and checks the range of all numbers: PAWL_EUSAGE
 * names the option. run_options.c checks what depends on other options or on the machine. */
int option_table_complete(struct pawl_open_opts *opts, struct pawl_error *err);

#endif
