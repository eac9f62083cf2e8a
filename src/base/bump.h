/* SPDX-License-Identifier: Apache-2.0 */
/* bump: an allocator for things that are freed together. Not thread-safe. */
#ifndef PAWL_BASE_BUMP_H
#define PAWL_BASE_BUMP_H

#include <stdarg.h>

#include "base/mem.h"

/* Memory that is freed all at once. Zero-initialised = empty. */
struct bump_chunk;
struct bump {
	struct bump_chunk *chunks;
	char *next, *end;
	size_t used_bytes, limit_bytes; /* limit 0 = none */
};
/* Do nbytes more fit below the limit? */
bool bump_has_room(const struct bump *b, size_t nbytes);
/* 16-byte aligned, zeroed; NULL when out of memory or over the limit. */
void *bump_alloc(struct bump *b, size_t nbytes);
void *bump_array(struct bump *b, uint64_t n, size_t size); /* NULL also on overflow */
/* A copy of n items of this size. Zeros if items is NULL. */
void *bump_copy(struct bump *b, const void *items, uint64_t n, size_t size);
char *bump_strndup(struct bump *b, const char *text, size_t len);
char *bump_printf(struct bump *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
char *bump_vprintf(struct bump *b, const char *format, va_list args) __attribute__((format(printf, 2, 0)));
void bump_clear(struct bump *b);

#endif
