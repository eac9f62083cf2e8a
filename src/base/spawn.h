/* SPDX-License-Identifier: Apache-2.0 */
/* spawn: starts a program, in a process group or session of its own if wanted. child.h adds pipes
 * and waiting. */
#ifndef PAWL_BASE_SPAWN_H
#define PAWL_BASE_SPAWN_H

#include <stddef.h>
#include <sys/types.h>

/* What the program has as descriptor fd: a file, or a copy of our descriptor `from`. Made in this
 * order. */
struct spawn_file {
	int fd;
	const char *path; /* NULL: `from` */
	int flags;        /* of open; what it makes has mode 0666, less the umask */
	int from;
};
enum spawn_leads {
	SPAWN_NONE,   /* stays in our process group */
	SPAWN_GROUP,  /* a process group */
	SPAWN_SESSION /* a session: no Ctrl+C reaches it */
};

/* 0 or an errno value; ENOENT: the program does not exist. argv[0] is looked up in PATH. The
 * program blocks no signals, and SIGPIPE, SIGINT and SIGCHLD have their default actions.
 * Descriptors that close on exec are not passed on unless in files. */
int spawn_program(pid_t *ret, char *const argv[], char *const env[], const struct spawn_file *files, size_t n_files,
                  enum spawn_leads leads);
/* A descriptor that is readable once the process has ended; -1 if the system has none. The number
 * must still be that of the process: the caller is its parent, or has just received it. */
int spawn_watch(pid_t pid);

#endif
