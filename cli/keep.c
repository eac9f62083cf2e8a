/* SPDX-License-Identifier: Apache-2.0 */
/* keep: a chunked allocator that is freed all at once; see keep.h. */
#include "keep.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEEP_CHUNK_BYTES (64u << 10)
#define KEEP_ALIGN 16u

struct keep_chunk {
	struct keep_chunk *next;
	size_t size;
	_Alignas(KEEP_ALIGN) char data[];
};

void
keep_die(void)
{
	(void)fputs("pawl: out of memory\n", stderr);
	exit(1);
}

void *
keep_alloc(struct keep *keep, size_t n, size_t size)
{
	struct keep_chunk *chunk = keep->chunks;
	size_t nbytes;
	void *ret;

	if (__builtin_mul_overflow(n, size, &nbytes) || nbytes > SIZE_MAX / 2)
		keep_die();
	nbytes = (nbytes + KEEP_ALIGN - 1) & ~(size_t)(KEEP_ALIGN - 1);
	if (chunk == NULL || nbytes > chunk->size - keep->used) {
		size_t room = nbytes > KEEP_CHUNK_BYTES ? nbytes : KEEP_CHUNK_BYTES;

		chunk = calloc(1, sizeof(*chunk) + room);
		if (chunk == NULL)
			keep_die();
		chunk->size = room;
		chunk->next = keep->chunks;
		keep->chunks = chunk;
		keep->used = 0;
	}
	ret = chunk->data + keep->used;
	keep->used += nbytes;
	return ret;
}

char *
keep_strndup(struct keep *keep, const char *text, size_t len)
{
	char *ret = keep_alloc(keep, len + 1, 1);

	memcpy(ret, text, len);
	return ret;
}

char *
keep_printf(struct keep *keep, const char *format, ...)
{
	va_list list;
	char *ret;
	int len;

	va_start(list, format);
	len = vsnprintf(NULL, 0, format, list);
	va_end(list);
	if (len < 0)
		keep_die();
	ret = keep_alloc(keep, (size_t)len + 1, 1);
	va_start(list, format);
	(void)vsnprintf(ret, (size_t)len + 1, format, list);
	va_end(list);
	return ret;
}

void
keep_clear(struct keep *keep)
{
	while (keep->chunks != NULL) {
		struct keep_chunk *next = keep->chunks->next;

		free(keep->chunks);
		keep->chunks = next;
	}
	keep->used = 0;
}
