/* SPDX-License-Identifier: Apache-2.0 */
/* folder: what is in a folder that is not a run: runs, single checkpoints, and checkpoint files in
 * the layout of Composer's CheckpointSaver. */
#ifndef PAWL_CLI_FOLDER_H
#define PAWL_CLI_FOLDER_H

#include "cli.h"

struct folder_opts {
	bool recursive, names;
	uint64_t last; /* only the newest runs, and the newest files; 0 = all */
};

/* Prints the content of a folder; a URL is taken to be one. Returns false and prints nothing if
 * `path` is something else or contains none. *ret_status: not 0 if it cannot be listed, or
 * something in it cannot be read. */
bool folder_ls(struct cli *cli, const char *path, const struct folder_opts *opts, int *ret_status);

/* The paths of the runs, single checkpoints and checkpoint files at any depth below such a folder.
 * They are in natural order. Folders that cannot be listed count, too. Returns their number; 0 if
 * `path` is something else. */
size_t folder_find(struct cli *cli, const char *path, const char ***ret);
/* The newest checkpoint file of such a folder: the one that its "latest" link names, else the one
 * that was written last. NULL if it has no file, or has runs. */
const char *folder_newest_file(struct cli *cli, const char *path);

#endif
