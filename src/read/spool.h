/* SPDX-License-Identifier: Apache-2.0 */
/* spool: a file without a name in $TMPDIR (/var/tmp) for what has to be unpacked before it can be read at any place. */
#ifndef PAWL_SPOOL_H
#define PAWL_SPOOL_H

#include <stddef.h>
#include <stdint.h>

#include "pawl.h"

struct spool {
	const char *what; /* names what is unpacked in errors; borrowed */
	const char *folder;
	int fd; /* -1 = not needed so far */
	uint64_t nbytes;
};

void spool_init(struct spool *s, const char *what);
/* How much may be put there: nine tenths of what is free; 0 = that is not known. */
uint64_t spool_room(const struct spool *s);
/* Appends. arg: the spool, here and below (codec_spool). */
int spool_put(void *arg, const void *ptr, size_t nbytes, struct pawl_error *err);
/* Any threads, when all has been put. */
int spool_read(void *arg, uint64_t offset, void *dst, size_t n, struct pawl_error *err);
/* Idempotent. */
void spool_clear(struct spool *s);

#endif
