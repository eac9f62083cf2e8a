/* SPDX-License-Identifier: Apache-2.0 */
/* scratch: a folder of its own for a test, removed with everything in it. Below TMPDIR, else on a
 * disk. */
#ifndef PAWL_TESTS_SCRATCH_H
#define PAWL_TESTS_SCRATCH_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

/* Makes ".../pawl-<name>-XXXXXX" and leaves its path in `path`. 0, or -1. */
static inline int
scratch_make(char *path, size_t cap, const char *name)
{
	const char *base = getenv("TMPDIR");

	snprintf(path, cap, "%s/pawl-%s-XXXXXX", base ? base : "/var/tmp", name);
	return mkdtemp(path) ? 0 : -1;
}

static inline int
scratch_remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	(void)st, (void)flag, (void)ftw;
	return remove(path);
}

static inline void
scratch_remove(const char *path)
{
	nftw(path, scratch_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

#endif
