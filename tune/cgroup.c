/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cgroup: see cgroup.h. Follows Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of
 * the kernel.
 */
#include "cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/folder.h"

#define FOLDER (O_RDONLY | O_DIRECTORY | O_CLOEXEC)
#define REMOVE_TRIES 100 /* killed processes need a moment to disappear */

static bool
read_text(int dirfd, const char *name, char *text, size_t nbytes)
{
	const int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC);
	const ssize_t n = fd >= 0 ? read(fd, text, nbytes - 1) : -1;

	if (fd >= 0)
		(void)close(fd);
	text[n > 0 ? n : 0] = '\0';
	return n >= 0;
}

static bool
write_text(int dirfd, const char *name, const char *text)
{
	const size_t len = strlen(text);
	const int fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	const bool ok = fd >= 0 && write(fd, text, len) == (ssize_t)len;

	if (fd >= 0)
		(void)close(fd);
	return ok;
}

/* Is "memory" one of the words in the file? */
static bool
has_memory(int dirfd, const char *name)
{
	char text[512], *rest = NULL;

	if (!read_text(dirfd, name, text, sizeof(text)))
		return false;
	for (char *word = strtok_r(text, " \n", &rest); word != NULL; word = strtok_r(NULL, " \n", &rest))
		if (strcmp(word, "memory") == 0)
			return true;
	return false;
}

/* The path of our own group: in the hierarchy of version 2, or in the version 1 hierarchy that has
 * the memory controller. */
static bool
own_path(const char *self, bool v1, char *path, size_t nbytes)
{
	char text[PATH_MAX + 1024], *rest = NULL;

	if (!read_text(AT_FDCWD, self, text, sizeof(text)))
		return false;
	for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
		const char *names = strchr(line, ':'), *at = names != NULL ? strchr(names + 1, ':') : NULL;
		const char *found = names != NULL ? strstr(names, "memory") : NULL;

		if (at == NULL || strstr(at, "/..") != NULL)
			continue;
		if (v1 ? found != NULL && found < at : strncmp(line, "0::", 3) == 0)
			return (size_t)snprintf(path, nbytes, "%s", at + 1) < nbytes;
	}
	return false;
}

/* Opens the folder in which groups of version 2 are made; -1 if there is none. */
static int
open_v2(const char *root, const char *path)
{
	char whole[2 * PATH_MAX], limit[32];
	int own, found = -1;

	(void)snprintf(whole, sizeof(whole), "%s%s", root, path);
	own = open(whole, FOLDER);
	if (own < 0 || has_memory(own, "cgroup.subtree_control"))
		return own;
	if (strcmp(path, "/") != 0 && has_memory(own, "cgroup.controllers") &&
	    read_text(own, "memory.max", limit, sizeof(limit)) && strncmp(limit, "max", 3) == 0)
		found = openat(own, "..", FOLDER);
	(void)close(own);
	return found;
}

/* Removes groups of killed runners, because no other process does. Groups that are not empty
 * stay. */
static void
remove_left(int dirfd)
{
	PAWL_CLEAN(folder_names_clear) struct folder_names names = {0};

	(void)folder_list(dirfd, ".", "cgroup", &names, NULL);
	for (size_t i = 0; i < names.n; i++) {
		long maker;
		unsigned trial;
		char more;

		if (sscanf(names.items[i], "pawl-%ld-%u%c", &maker, &trial, &more) == 2 && maker > 0 &&
		    kill((pid_t)maker, 0) != 0 && errno == ESRCH)
			(void)unlinkat(dirfd, names.items[i], AT_REMOVEDIR);
	}
}

void
cgroups_open(struct cgroups *ret, const char *root, const char *self)
{
	char path[PATH_MAX], whole[2 * PATH_MAX];

	*ret = (struct cgroups)CGROUPS_INIT;
	ret->maker = getpid();
	if (own_path(self, false, path, sizeof(path)))
		ret->dirfd = open_v2(root, path);
	if (ret->dirfd < 0 && own_path(self, true, path, sizeof(path))) {
		(void)snprintf(whole, sizeof(whole), "%s/memory%s", root, path);
		ret->dirfd = open(whole, FOLDER);
		ret->is_v1 = true;
	}
	if (ret->dirfd >= 0)
		remove_left(ret->dirfd);
}

static void
name_of(const struct cgroups *c, uint32_t trial, char *name, size_t nbytes)
{
	(void)snprintf(name, nbytes, "pawl-%ld-%u", (long)c->maker, trial);
}

int
cgroups_make(struct cgroups *c, uint32_t trial, uint64_t memory_bytes, pid_t pid)
{
	char name[64], number[32];
	int fd;

	if (c->dirfd < 0)
		return -1;
	name_of(c, trial, name, sizeof(name));
	if (mkdirat(c->dirfd, name, 0755) != 0 && errno != EEXIST) {
		cgroups_close(c); /* making a group is not permitted now and will not be later */
		return -1;
	}
	fd = openat(c->dirfd, name, FOLDER);
	(void)snprintf(number, sizeof(number), "%llu", (unsigned long long)memory_bytes);
	if (fd >= 0 && write_text(fd, c->is_v1 ? "memory.limit_in_bytes" : "memory.max", number)) {
		/* The trial must not swap what exceeds the limit. Where the system does not count
		 * swap, this limit cannot be set. */
		(void)write_text(fd, c->is_v1 ? "memory.memsw.limit_in_bytes" : "memory.swap.max",
		                 c->is_v1 ? number : "0");
		if (!c->is_v1)
			(void)write_text(fd, "memory.oom.group", "1");
		(void)snprintf(number, sizeof(number), "%ld", (long)pid);
		if (write_text(fd, "cgroup.procs", number))
			return fd;
	}
	cgroups_remove(c, trial, fd);
	return -1;
}

bool
cgroups_was_too_large(int group_fd)
{
	char text[512];
	const char *at;
	unsigned long long n;

	if (group_fd < 0 || !(read_text(group_fd, "memory.events", text, sizeof(text)) ||
	                      read_text(group_fd, "memory.oom_control", text, sizeof(text))))
		return false;
	at = strstr(text, "oom_kill ");
	return at != NULL && sscanf(at, "oom_kill %llu", &n) == 1 && n > 0;
}

void
cgroups_remove(struct cgroups *c, uint32_t trial, int group_fd)
{
	const struct timespec slice = {.tv_nsec = 5000000};
	char name[64];

	if (group_fd < 0)
		return;
	(void)write_text(group_fd, "cgroup.kill", "1");
	(void)close(group_fd);
	name_of(c, trial, name, sizeof(name));
	for (int i = 0; i < REMOVE_TRIES && c->dirfd >= 0; i++) {
		if (unlinkat(c->dirfd, name, AT_REMOVEDIR) == 0 || errno != EBUSY)
			return;
		(void)nanosleep(&slice, NULL);
	}
}

void
cgroups_close(struct cgroups *c)
{
	if (c->dirfd >= 0)
		(void)close(c->dirfd);
	c->dirfd = -1;
}
