/* SPDX-License-Identifier: Apache-2.0 */
/* folder: the names in a folder. */
#ifndef PAWL_BASE_FOLDER_H
#define PAWL_BASE_FOLDER_H

#include "base/bump.h"

/* Zero-initialised = empty. */
struct folder_names {
	char **items;
	size_t n, capacity;
	struct bump memory; /* of the names */
};
void folder_names_clear(struct folder_names *names); /* usable as PAWL_CLEAN(folder_names_clear) */
/* The names in the folder `path` below dirfd, "." for dirfd itself: in ascending order, without "."
 * and "..". what: the folder's name in errors. After an error, *ret is to be cleared as well. */
int folder_list(int dirfd, const char *path, const char *what, struct folder_names *ret, struct pawl_error *err);

#endif
