/* SPDX-License-Identifier: Apache-2.0 */
/* search: shows or stops a search by its folder, for `pawl tune ls|show|best|export|stop`. */
#ifndef PAWL_CLI_SEARCH_H
#define PAWL_CLI_SEARCH_H

#include <stdbool.h>
#include <stdint.h>

#include "cli.h"
#include "tune.h"

struct tune_args {
	bool resume, retry_failed, dry_run;
	uint64_t cpus, gpus;
	const char *metric, *mode, *scope;
};

/* Is the folder or URL that of a search? */
bool search_is(struct cli *cli, const char *path);
/* Prints the trials of the search in a folder or at a URL. names: only their names. last: only the
 * newest so many; 0 = all. False: there is none. */
bool search_ls_folder(struct cli *cli, const char *path, bool names, uint64_t last, int *ret_status);
/* "2 trials: 2 finished" of such a search, and their number. */
int search_summary(struct cli *cli, const char *path, const char **ret, uint32_t *ret_trials, struct pawl_error *err);
void search_close(struct tune_experiment **e);
/* Each returns the exit status; operand 1 is the folder. */
int search_ls(struct cli *cli, const struct tune_args *args);
int search_show(struct cli *cli, const struct tune_args *args);
int search_best(struct cli *cli, const struct tune_args *args);
int search_export(struct cli *cli, const struct tune_args *args);
int search_stop(struct cli *cli, const struct tune_args *args);

#endif
