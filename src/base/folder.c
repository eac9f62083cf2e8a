/* SPDX-License-Identifier: Apache-2.0 */
/* folder: see folder.h. The folder is opened anew, so that no descriptor's position is shared. */
#include "base/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/vec.h"

void
folder_names_clear(struct folder_names *names)
{
	mem_free(names->items);
	bump_clear(&names->memory);
	*names = (struct folder_names){0};
}

static bool
add_name(struct folder_names *names, const char *name)
{
	char *copy = bump_strndup(&names->memory, name, strlen(name));

	if (copy == NULL || !array_reserve(names->items, names->capacity, names->n + 1))
		return false;
	names->items[names->n++] = copy;
	return true;
}

static int
compare_names(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

int
folder_list(int dirfd, const char *path, const char *what, struct folder_names *ret, struct pawl_error *err)
{
	PAWL_FD int fd = openat(dirfd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	PAWL_CLEAN(closedir_clean) DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *entry;

	*ret = (struct folder_names){0};
	if (dir == NULL)
		return err_sys(err, errno, "%s: list", what);
	fd = -1;                                          /* dir closes it */
	while ((errno = 0, entry = readdir(dir)) != NULL) /* NOLINT(concurrency-mt-unsafe): no other thread has dir */
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
		    !add_name(ret, entry->d_name))
			return err_nomem(err, what);
	if (errno != 0)
		return err_sys(err, errno, "%s: list", what);
	if (ret->n > 0)
		qsort(ret->items, ret->n, sizeof(ret->items[0]), compare_names);
	return 0;
}
