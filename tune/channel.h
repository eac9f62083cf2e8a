/* SPDX-License-Identifier: Apache-2.0 */
/* channel: the runner's end of the line to a trial: whole lines of text, whatever the pieces are that they come in. */
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
	bool ended;    /* nothing more will come */
	bool too_long; /* a line above the limit is being thrown away */
};
#define CHANNEL_INIT {.fd = -1}

/* Two ends: ours, and the one for the trial, closed in every program that is started unless it is handed over. */
int channel_open(struct channel *ret, int *ret_theirs, struct pawl_error *err);
void channel_clear(struct channel *c);
/* Takes what has come. */
int channel_fill(struct channel *c, struct pawl_error *err);
/* The next whole line, without its end; it may be written to until the next call. NULL: none. *ret_bad: there was one that was
 * too long (NULL is returned). */
char *channel_line(struct channel *c, size_t *ret_len, bool *ret_bad);
/* Sends a line. One that does not read its answers loses them. */
void channel_send(struct channel *c, const char *text);

#endif
