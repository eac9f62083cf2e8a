/* SPDX-License-Identifier: Apache-2.0 */
/* spawn: a program as a process of its own: the trials', the guard, the one that forks trials. */
#ifndef PAWL_TUNE_SPAWN_H
#define PAWL_TUNE_SPAWN_H

#include <stddef.h>
#include <sys/types.h>

/* What it finds as descriptor fd: a file, or what is our descriptor `from`. In the order given. */
struct spawn_file {
	int fd;
	const char *path; /* NULL: `from` */
	int flags;        /* of open; what it makes has mode 0666, less the umask */
	int from;
};
enum spawn_leads {
	SPAWN_GROUP,  /* a process group */
	SPAWN_SESSION /* a session: no Ctrl+C reaches it */
};

/* 0 or an errno value; ENOENT: there is no such program. It blocks no signal, and SIGPIPE, SIGINT, SIGCHLD mean what they do in
 * a new process. Descriptors that are not in files and close on exec stay here. */
int spawn_program(pid_t *ret, char *const argv[], char *const env[], const struct spawn_file *files, size_t n_files,
                  enum spawn_leads leads);
/* A descriptor that is readable once the process has ended; -1: the system has none. The caller knows that the number is that
 * process's: it is its parent, or has just been told. */
int spawn_watch(pid_t pid);

#endif
