/* SPDX-License-Identifier: Apache-2.0 */
/* folder_own: what folder.c finds in a folder, for folder_ls.c. */
#ifndef PAWL_CLI_FOLDER_OWN_H
#define PAWL_CLI_FOLDER_OWN_H

#include "folder.h"

/* A checkpoint file. */
struct file {
	const char *name; /* relative to the folder */
	uint64_t bytes;
	double unix_seconds;
	int64_t epoch, batch; /* -1 = not in the name */
	const char *links;    /* "latest-rank0.pt, ..": links in its folder that lead to it */
};

/* A run, a single checkpoint or a search. */
struct run {
	const char *name; /* relative to the folder */
	bool single, search;
	double unix_seconds; /* of a search: its last change; 0 = unknown */
	const char *problem; /* a folder that cannot be listed; else NULL */
};

/* What is in a folder. */
struct found {
	struct cli *cli;
	const struct folder_opts *opts;
	const char *root;
	struct run *runs;
	size_t n_runs;
	struct file *files;
	size_t n_files, n_looks;
	int problem; /* code of the first row with a problem; 0 = none */
};

/* Fills f, whose cli, opts and root are given. PAWL_ENOTFOUND: it is no such folder, or has
 * nothing. */
int folder_find_all(struct found *f, struct pawl_error *err);

#endif
