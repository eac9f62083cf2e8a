/* SPDX-License-Identifier: Apache-2.0 */
/* tree: operations on complete folders. */
#ifndef PAWL_TUNE_TREE_H
#define PAWL_TUNE_TREE_H

#include "pawl.h"

#define TREE_MAX_DEPTH 64

/* Makes a file, or a folder and its content, durable. Links are skipped. */
int tree_sync(const char *path, struct pawl_error *err);
/* Moves a file or folder to `to` in the folder `in`. It appears there complete and durable, or not
 * at all. An existing entry is replaced in one step. Across file systems it is copied, then
 * removed. A file becomes a folder that contains it. */
int tree_move_in(const char *from, const char *in, const char *to, struct pawl_error *err);

#endif
