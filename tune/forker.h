/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forker: a program given by the caller. It loads once what all trials need, and forks a process
 * for each of them. It exchanges packets with the runner over a socket, its descriptor 3:
 *
 *     to it     fork {"env": ["NAME=value", ..]}   with three descriptors: the trial's channel,
 *                                                  standard output, standard error
 *               reap PID                           wait for that process, which frees its number
 *     from it   pid PID                            the process runs, in a process group of its own;
 *                                                  with its pidfd_open descriptor, where supported
 *               no WHY                             the process could not be forked
 *               over PID STATUS                    it has ended and was not waited for yet; STATUS
 *                                                  as from waitpid
 *
 * The forker exits when the socket is closed. If it dies first, its processes live on, and their
 * exit statuses are unknown. Their new parent may free their numbers at any time. An end is then
 * recognised by the process's descriptor. A number is trusted only while a process of the forker's
 * session has it.
 */
#ifndef PAWL_TUNE_FORKER_H
#define PAWL_TUNE_FORKER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/vec.h"
#include "pawl.h"

struct forker_end {
	pid_t pid;
	int status;
};

struct forker {
	int fd;                      /* -1: no forker was started, or it has ended */
	pid_t pid;                   /* 0 = none */
	VEC(struct forker_end) ends; /* ends that the runner has not asked for yet */
};
#define FORKER_INIT {.fd = -1}

int forker_open(struct forker *ret, char *const argv[], char *const env[], struct pawl_error *err);
/* False: the forker cannot do it; start the trial without it. A forker that takes too long to
 * answer is given up. The caller keeps the descriptors. *ret_pidfd: descriptor of the process,
 * owned by the caller; -1: none. */
bool forker_start(struct forker *f, char *const env[], const int fds[3], pid_t *ret, int *ret_pidfd);
/* Has the process ended? *ret_status: its status, or -1 if unknown. pidfd: as from forker_start, -1
 * = none. */
bool forker_has_ended(struct forker *f, pid_t pid, int pidfd, int *ret_status);
/* Does a process made by the forker exist in this process group? If not, the number may belong to a
 * foreign process. */
bool forker_has_group(struct forker *f, pid_t group);
/* Waits up to timeout_ms for the process to end. */
void forker_wait(struct forker *f, pid_t pid, int pidfd, int timeout_ms);
void forker_reap(struct forker *f, pid_t pid);
void forker_close(struct forker *f);

#endif
