/* SPDX-License-Identifier: Apache-2.0 */
/* tree: folders as wholes. */
#ifndef PAWL_TUNE_TREE_H
#define PAWL_TUNE_TREE_H

#include "pawl.h"

#define TREE_MAX_DEPTH 64

/* Makes a file, or a folder and all in it, durable. Links are left alone. */
int tree_sync(const char *path, struct pawl_error *err);
/* A copy at `to`, which must not be there; not synced. Links stay links; other things than files and folders are refused. */
int tree_copy(const char *from, const char *to, struct pawl_error *err);
/* Removes it as far as that goes; what is not there is no error. */
void tree_remove(const char *path);
/* Brings a file or folder to `to` in the folder `in`, there whole and durable or not at all; one that is there is replaced in one
 * step. From another disk it is copied, then removed. A file becomes a folder that holds it. */
int tree_move_in(const char *from, const char *in, const char *to, struct pawl_error *err);

#endif
