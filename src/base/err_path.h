/* SPDX-License-Identifier: Apache-2.0 */
/* err_path: the one wording of errors about missing permission for files and folders. */
#ifndef PAWL_BASE_ERR_PATH_H
#define PAWL_BASE_ERR_PATH_H

#include <stdbool.h>

#include "pawl.h"

/* Does the errno value mean that this user may not do it, or no user on this mount? */
bool err_is_denied(int sys);
/* "<path>: user <name> may not read this; .." or, if it was to be written, "may not write here".
 * path: what a user thinks of, never a file that only the program knows. PAWL_EAUTH, or
 * PAWL_EREADONLY for a file system that is mounted so. */
int err_denied(struct pawl_error *err, int sys, const char *path, bool writes);
/* A failed system call about a path: as err_denied, or "<path>: <what>: <strerror>". */
int err_path(struct pawl_error *err, int sys, const char *path, bool writes, const char *what);
/* The same of a path that cannot be made: what may not be written to is the folder above it. */
int err_path_new(struct pawl_error *err, int sys, const char *path, const char *what);

#endif
