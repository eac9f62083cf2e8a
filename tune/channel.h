/* SPDX-License-Identifier: Apache-2.0 */
/* channel: the runner's end of the connection to a trial. Returns complete lines of text, whatever
 * the pieces they arrive in. */
#ifndef PAWL_TUNE_CHANNEL_H
#define PAWL_TUNE_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>

#include "pawl.h"

#define CHANNEL_MAX_LINE ((size_t)1 << 20)

struct channel {
	int fd; /* does not block; -1 = none */
	char *ptr;
	size_t len, cap, taken;
	bool ended;    /* no more input will arrive */
	bool too_long; /* a line above the limit is being discarded */
};
#define CHANNEL_INIT {.fd = -1}

/* Two ends: ours, and *ret_theirs for the trial. The trial's end is closed on exec unless it is
 * passed on explicitly. */
int channel_open(struct channel *ret, int *ret_theirs, struct pawl_error *err);
void channel_clear(struct channel *c);
/* Reads the input that is available. */
int channel_fill(struct channel *c, struct pawl_error *err);
/* The next complete line, without its line feed; it may be modified until the next call. NULL:
 * none. *ret_bad: a line was too long (NULL is returned). */
char *channel_line(struct channel *c, size_t *ret_len, bool *ret_bad);
/* Sends a line. A trial that does not read its answers loses them. */
void channel_send(struct channel *c, const char *text);

#endif
