/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forker: a program of the caller's that has loaded once what all trials need, and forks a process for each of them. What it
 * is asked and answers, packets over a socket that it finds as descriptor 3:
 *
 *     to it     fork {"env": ["NAME=value", ..]}   with three descriptors: the trial's channel, standard output, error
 *               reap PID                           that process may be waited for, which frees its number
 *     from it   pid PID                            it runs, in a process group of its own; with a descriptor of the process
 *                                                  (pidfd_open), where the system has them
 *               no WHY                             it does not
 *               over PID STATUS                    it has ended, and is still to be waited for; as waitpid has the status
 *
 * It ends at the end of the socket. When it has gone itself, its processes live on; how they end is not known then, and whoever
 * inherits them may free their numbers at any time: that one has ended is believed by its descriptor, and a number only while
 * a process of the forker's session has it.
 */
#ifndef PAWL_TUNE_FORKER_H
#define PAWL_TUNE_FORKER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "pawl.h"

struct forker_end {
	pid_t pid;
	int status;
};

struct forker {
	int fd;    /* -1: there is none, or it has gone */
	pid_t pid; /* 0 = none */
	struct forker_end *ends; /* that nobody has asked for */
	size_t n_ends, cap_ends;
};
#define FORKER_INIT {.fd = -1}

int forker_open(struct forker *ret, char *const argv[], char *const env[], struct pawl_error *err);
/* False: it cannot, and the trial is to be started without it; after too long an answer it is given up. The descriptors stay
 * the caller's. *ret_pidfd: of the process, the caller's; -1: none. */
bool forker_start(struct forker *f, char *const env[], const int fds[3], pid_t *ret, int *ret_pidfd);
/* Takes what it has said. */
void forker_hear(struct forker *f);
/* Has the process ended? Its status; -1: not known. pidfd: as forker_start gave it, -1 = none. */
bool forker_has_ended(struct forker *f, pid_t pid, int pidfd, int *ret_status);
/* Is there a process of its process group that the forker has made? Else the number may be somebody else's. */
bool forker_has_group(struct forker *f, pid_t group);
/* Waits for its end, for so long. */
void forker_wait(struct forker *f, pid_t pid, int pidfd, int timeout_ms);
void forker_reap(struct forker *f, pid_t pid);
void forker_close(struct forker *f);

#endif
