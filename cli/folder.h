/* SPDX-License-Identifier: Apache-2.0 */
/* folder: lists a folder that is not a run: the runs in it, and checkpoint files in the layout of
 * Composer's CheckpointSaver. */
#ifndef PAWL_CLI_FOLDER_H
#define PAWL_CLI_FOLDER_H

#include "cli.h"

struct folder_opts {
	bool recursive, names;
	uint64_t last; /* only the newest files; 0 = all */
};

/* Prints the content of the local folder. Returns false and prints nothing if `path` is something
 * else or contains neither. */
bool folder_ls(struct cli *cli, const char *path, const struct folder_opts *opts);

#endif
