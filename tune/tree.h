/* SPDX-License-Identifier: Apache-2.0 */
/* tree: operations on complete folders. */
#ifndef PAWL_TUNE_TREE_H
#define PAWL_TUNE_TREE_H

#include <stdbool.h>
#include <sys/types.h>

#include "pawl.h"

#define TREE_MAX_DEPTH 64

/* Makes a file, or a folder and its content, durable. Links are skipped. */
int tree_sync(const char *path, struct pawl_error *err);
/* Copies a file, folder or link to a name that does not exist. The copy is durable, its name is not
 * yet. Links stay links; sockets and pipes are left out. link: files become hard links where the
 * file system has them. */
int tree_copy(int from_dirfd, const char *from, int to_dirfd, const char *to, bool link, struct pawl_error *err);
int tree_copy_file(int from_dirfd, const char *name, int to_dirfd, const char *as, mode_t mode, struct pawl_error *err);
/* Moves a file or folder to `to` in the folder `in`. It appears there complete and durable, or not
 * at all. An existing entry is replaced in one step. Across file systems it is copied, then
 * removed. A file becomes a folder that contains it. */
int tree_move_in(const char *from, const char *in, const char *to, struct pawl_error *err);

#endif
