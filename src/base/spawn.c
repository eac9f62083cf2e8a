/* SPDX-License-Identifier: Apache-2.0 */
/* spawn: posix_spawn and not fork, because the process may have threads and many gigabytes. */
#include "base/spawn.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

static int
add_files(posix_spawn_file_actions_t *actions, const struct spawn_file *files, size_t n)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < n; i++)
		rc = files[i].path != NULL ? posix_spawn_file_actions_addopen(actions, files[i].fd, files[i].path,
		                                                              files[i].flags, 0666)
		                           : posix_spawn_file_actions_adddup2(actions, files[i].from, files[i].fd);
	return rc;
}

static int
set_attributes(posix_spawnattr_t *attr, enum spawn_leads leads)
{
	static const short leader[] = {
		[SPAWN_NONE] = 0, [SPAWN_GROUP] = POSIX_SPAWN_SETPGROUP, [SPAWN_SESSION] = POSIX_SPAWN_SETSID};
	sigset_t none, usual;
	int rc;

	(void)sigemptyset(&none);
	(void)sigemptyset(&usual);
	(void)sigaddset(&usual, SIGPIPE);
	(void)sigaddset(&usual, SIGINT);
	(void)sigaddset(&usual, SIGCHLD);
	rc = posix_spawnattr_setflags(attr, (short)(leader[leads] | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF));
	if (rc == 0)
		rc = posix_spawnattr_setsigmask(attr, &none);
	return rc == 0 ? posix_spawnattr_setsigdefault(attr, &usual) : rc;
}

int
spawn_program(pid_t *ret, char *const argv[], char *const env[], const struct spawn_file *files, size_t n_files,
              enum spawn_leads leads)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	int rc = posix_spawn_file_actions_init(&actions);

	if (rc != 0)
		return rc;
	rc = posix_spawnattr_init(&attr);
	if (rc == 0) {
		rc = add_files(&actions, files, n_files);
		if (rc == 0)
			rc = set_attributes(&attr, leads);
		if (rc == 0)
			rc = posix_spawnp(ret, argv[0], &actions, &attr, argv, env);
		(void)posix_spawnattr_destroy(&attr);
	}
	(void)posix_spawn_file_actions_destroy(&actions);
	return rc;
}

int
spawn_watch(pid_t pid)
{
#ifdef SYS_pidfd_open
	const int fd = (int)syscall(SYS_pidfd_open, pid, 0);

	if (fd >= 0)
		(void)fcntl(fd, F_SETFD, FD_CLOEXEC);
	return fd;
#else
	(void)pid;
	return -1;
#endif
}
