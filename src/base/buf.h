/* SPDX-License-Identifier: Apache-2.0 */
/* buf: a growable byte buffer with a maximum; errors stick, so that writers need only check
 * once. */
#ifndef PAWL_BASE_BUF_H
#define PAWL_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pawl.h"

struct buf {
	char *ptr;
	size_t len, cap;
	size_t max; /* 0 = none */
	int failed; /* 0, PAWL_ENOMEM or PAWL_ELIMIT: nothing is appended any more */
};

void buf_clear(struct buf *b); /* frees and zeroes all but max; usable as PAWL_CLEAN(buf_clear) */
void buf_put(struct buf *b, const void *ptr, size_t len);
void buf_puts(struct buf *b, const char *text);
void buf_putc(struct buf *b, char c);
void buf_printf(struct buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Reserves len bytes at the end and returns them (uninitialised), or NULL. */
char *buf_grow(struct buf *b, size_t len);
/* Always NUL-terminated (the NUL is not counted in len); "" when empty. */
const char *buf_str(struct buf *b);
/* 0, or the sticky failure as an error naming `what`. */
int buf_check(const struct buf *b, const char *what, struct pawl_error *err);

#endif
