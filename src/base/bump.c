/* SPDX-License-Identifier: Apache-2.0 */
/* bump: see bump.h. Chunks double in size up to a limit. */
#include "base/bump.h"

#include <stdio.h>
#include <string.h>

#define BUMP_ALIGN 16u
#define BUMP_FIRST_CHUNK ((size_t)4 << 10)
#define BUMP_LAST_CHUNK ((size_t)1 << 20)

struct bump_chunk {
	_Alignas(BUMP_ALIGN) struct bump_chunk *next;
	size_t nbytes; /* of data */
	char data[];
};

_Static_assert(sizeof(struct bump_chunk) % BUMP_ALIGN == 0, "chunk data must be aligned");

static bool
bump_add_chunk(struct bump *b, size_t need)
{
	size_t nbytes = b->chunks ? b->chunks->nbytes * 2 : BUMP_FIRST_CHUNK;

	if (nbytes > BUMP_LAST_CHUNK)
		nbytes = BUMP_LAST_CHUNK;
	if (nbytes < need)
		nbytes = need;
	if (nbytes > SIZE_MAX - sizeof(struct bump_chunk))
		return false;
	struct bump_chunk *chunk = mem_alloc(sizeof(*chunk) + nbytes);
	if (!chunk)
		return false;
	chunk->nbytes = nbytes;
	chunk->next = b->chunks;
	b->chunks = chunk;
	b->next = chunk->data;
	b->end = chunk->data + nbytes;
	return true;
}

/* What an allocation takes; 0 = more than can be. */
static size_t
bump_step(size_t nbytes)
{
	return nbytes > SIZE_MAX - BUMP_ALIGN ? 0 : (size_t)mem_round_up(nbytes > 0 ? nbytes : 1, BUMP_ALIGN);
}

bool
bump_has_room(const struct bump *b, size_t nbytes)
{
	size_t step = bump_step(nbytes);

	return b->limit_bytes == 0 ||
	       (step > 0 && b->used_bytes <= b->limit_bytes && step <= b->limit_bytes - b->used_bytes);
}

static char *
bump_take(struct bump *b, size_t nbytes)
{
	if (!bump_has_room(b, nbytes))
		return NULL;
	nbytes = bump_step(nbytes);
	if (nbytes == 0)
		return NULL;
	if ((size_t)(b->end - b->next) < nbytes && !bump_add_chunk(b, nbytes))
		return NULL;
	char *ptr = b->next;
	b->next += nbytes;
	b->used_bytes += nbytes;
	return ptr;
}

void *
bump_alloc(struct bump *b, size_t nbytes)
{
	char *ptr = bump_take(b, nbytes);

	if (ptr)
		memset(ptr, 0, nbytes);
	return ptr;
}

void *
bump_array(struct bump *b, uint64_t n, size_t size)
{
	uint64_t nbytes;

	if (!mem_mul_ok(n, size, &nbytes) || nbytes > SIZE_MAX)
		return NULL;
	return bump_alloc(b, (size_t)nbytes);
}

void *
bump_copy(struct bump *b, const void *items, uint64_t n, size_t size)
{
	void *copy = bump_array(b, n, size);

	if (copy && items && n > 0)
		memcpy(copy, items, (size_t)n * size);
	return copy;
}

char *
bump_strndup(struct bump *b, const char *text, size_t len)
{
	if (len == SIZE_MAX)
		return NULL;
	char *copy = bump_take(b, len + 1);
	if (!copy)
		return NULL;
	memcpy(copy, text, len);
	copy[len] = '\0';
	return copy;
}

char *
bump_vprintf(struct bump *b, const char *format, va_list args)
{
	va_list again;

	va_copy(again, args);
	const int len = vsnprintf(NULL, 0, format, args);
	char *text = len < 0 ? NULL : bump_take(b, (size_t)len + 1);

	if (text)
		vsnprintf(text, (size_t)len + 1, format, again);
	va_end(again);
	return text;
}

char *
bump_printf(struct bump *b, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	char *text = bump_vprintf(b, format, args);
	va_end(args);
	return text;
}

void
bump_clear(struct bump *b)
{
	size_t limit_bytes = b->limit_bytes;

	for (struct bump_chunk *chunk = b->chunks, *next; chunk; chunk = next) {
		next = chunk->next;
		mem_free(chunk);
	}
	*b = (struct bump){.limit_bytes = limit_bytes};
}
