/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hidden: names that no reader may use. A file or folder is written as ".<name>.<token><suffix>"
 * and gets its name when it is complete. Files that a crash left behind are found by
 * this form (P2, P4).
 */
#ifndef PAWL_BASE_HIDDEN_H
#define PAWL_BASE_HIDDEN_H

#include <stdbool.h>
#include <stddef.h>

#include "pawl.h"

#define HIDDEN_PARTIAL ".partial" /* being written, or taken away: a checkpoint's folder, a large file */
#define HIDDEN_TMP ".tmp"         /* about to replace a small file */
#define HIDDEN_TOKEN_LEN 32u      /* hexadecimal digits */
#define HIDDEN_NAME_BYTES 160u    /* holds every hidden name, with its 0 */

/* Writes ".<name>.<token><suffix>"; name is cut to 90 bytes, so that the result is always a valid
 * name. */
void hidden_name_of(const char *name, const char *token, const char *suffix, char ret[HIDDEN_NAME_BYTES]);
/* The same with a token that is made of the name: what a killed process left is written again. */
void hidden_name_fixed(const char *name, const char *suffix, char ret[HIDDEN_NAME_BYTES]);
/* The same with a new random token. */
int hidden_name(const char *name, const char *suffix, char ret[HIDDEN_NAME_BYTES], struct pawl_error *err);

/* Does the text begin with a token? */
bool hidden_is_token(const char *text);
/* Points to the token in ".<name>.<token><suffix>"; NULL if name does not have this form. */
const char *hidden_token(const char *name, const char *suffix);
/* Does the name begin with '.' and end with one of the two suffixes? Looser than hidden_token: for
 * names that must not be copied, listed or read. */
bool hidden_is(const char *name);

/*
 * A complete and synced file or folder gets its name. 0, or an errno value; then the name shows
 * what it showed before. Over NFS a call may fail although it has worked: that is success. Callers
 * make the names durable by fd_sync_parent.
 */
/* A file or a symbolic link. Without `replace`: EEXIST if the name is taken, ENOTSUP if the file
 * system cannot find that out and name the file in one step. */
int hidden_file_appear(int from_fd, const char *hidden, int to_fd, const char *name, bool replace);
/* A folder. Without `replace`: EEXIST if the name is taken. With it: EEXIST unless the name is free
 * or an empty folder. */
int hidden_folder_appear(int from_fd, const char *hidden, int to_fd, const char *name, bool replace);
/* Renames in one step unless the target exists (EEXIST). ENOTSUP where that cannot be done. */
int hidden_rename_new(int from_fd, const char *from, int to_fd, const char *to);
/* Swaps two names in one step. ENOTSUP where that cannot be done. */
int hidden_folder_exchange(int a_fd, const char *a, int b_fd, const char *b);

#endif
