/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory: see memory.h. Reads /proc, which needs no rights. Control groups (cgroup.h) may be
 * unavailable, and a limit of the address space also counts memory that is never touched.
 */
#include "memory.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The first bytes of /proc/<pid>/<name>; "" if the process is gone. */
static void
read_file(const char *pid, const char *name, char *text, size_t nbytes)
{
	char path[64];
	ssize_t n;
	int fd;

	(void)snprintf(path, sizeof(path), "/proc/%.20s/%s", pid, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd >= 0 ? read(fd, text, nbytes - 1) : 0;
	text[n > 0 ? n : 0] = '\0';
	if (fd >= 0)
		(void)close(fd);
}

/* The process group of a process, or 0. The program's name, in brackets before it, may contain any
 * character. */
static pid_t
group_of(const char *pid)
{
	char text[512], *at;
	long group = 0;

	read_file(pid, "stat", text, sizeof(text));
	at = strrchr(text, ')');
	return at != NULL && sscanf(at + 1, " %*c %*d %ld", &group) == 1 ? (pid_t)group : 0;
}

static uint64_t
own_bytes(const char *pid)
{
	char text[256];
	unsigned long long resident = 0, shared = 0;
	long page = sysconf(_SC_PAGESIZE);

	read_file(pid, "statm", text, sizeof(text));
	if (sscanf(text, "%*u %llu %llu", &resident, &shared) != 2 || resident < shared || page <= 0)
		return 0;
	return (uint64_t)(resident - shared) * (uint64_t)page;
}

void
memory_of_groups(const pid_t *groups, size_t n, uint64_t *ret)
{
	DIR *dir = opendir("/proc");
	struct dirent *entry;

	memset(ret, 0, n * sizeof(*ret));
	while (dir != NULL && (entry = readdir(dir)) != NULL) {
		pid_t group = entry->d_name[0] >= '1' && entry->d_name[0] <= '9' ? group_of(entry->d_name) : 0;

		for (size_t i = 0; group > 0 && i < n; i++)
			if (groups[i] == group) {
				ret[i] += own_bytes(entry->d_name);
				break;
			}
	}
	if (dir != NULL)
		(void)closedir(dir);
}
