/* SPDX-License-Identifier: Apache-2.0 */
/* child: a program that runs next to this process and whose output is read here. No shell. */
#ifndef PAWL_BASE_CHILD_H
#define PAWL_BASE_CHILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"

enum {
	CHILD_TALK = 1,   /* stdin and stdout are one socket, ours is `talk`; else stdin is /dev/null */
	CHILD_FEED = 2,   /* stdin alone is that socket; stdout goes where stderr does */
	CHILD_MERGED = 4, /* stdout goes where stderr does; else, without CHILD_TALK, it is thrown away */
	CHILD_CAPTURE = 8 /* alone: what it prints to stdout comes to `said`, and stderr is thrown away */
};

struct child {
	pid_t pid; /* and its process group; 0 = none */
	int talk;  /* or -1; does not block */
	int said;  /* what it prints to stderr, or see CHILD_CAPTURE; does not block */
};
#define CHILD_INIT {.talk = -1, .said = -1}

/* Starts argv (NULL at its end, looked for in PATH) in a process group of its own. PAWL_ENOTFOUND:
 * there is no such program. Messages name argv[0] only. */
int child_start(char *const argv[], unsigned flags, struct child *ret, struct pawl_error *err);
/* Waits up to grace_ms until it ends by itself, kills all that is left of its process group, closes
 * our ends. Returns its wait status; the child is none any more. `fed` and descendants that left
 * the group are not waited for. */
int child_end(struct child *c, int64_t grace_ms);
/* True once it has ended; it stays to be taken away by child_end. */
bool child_has_ended(const struct child *c);
/* Takes what has been said into the last bytes of *tail (at most max are kept). False at its
 * end. */
bool child_listen(int fd, struct buf *tail, size_t max);
/* Sends without SIGPIPE: bytes taken, 0 if it would block, -1 with errno. */
ssize_t child_send(int fd, const void *ptr, size_t len);

#endif
