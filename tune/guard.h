/* SPDX-License-Identifier: Apache-2.0 */
/* guard: a process that kills the trials when the runner is gone, however it ended. */
#ifndef PAWL_TUNE_GUARD_H
#define PAWL_TUNE_GUARD_H

#include <sys/types.h>

#include "pawl.h"

struct guard {
	int fd;
	pid_t pid; /* 0 = none */
};
#define GUARD_INIT {.fd = -1}

/* lock: a descriptor that the guard keeps open until it ends; -1 = none. So the lock held by it
 * becomes free only when the trials are dead. */
int guard_open(struct guard *ret, int lock, struct pawl_error *err);
/* Adds a process group to watch. Remove a group that has ended before its leader is waited for. */
void guard_add(struct guard *g, pid_t group);
void guard_remove(struct guard *g, pid_t group);
void guard_close(struct guard *g);

#endif
