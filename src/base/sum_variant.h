/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sum_variant: the body of every sum_<variant>.c. The including file defines, for its processor:
 *   SUM_NAME      "avx2"
 *   SUM_COPY(to, keep, from, nbytes)   reads a multiple of 64 bytes once, and writes them to two 64-byte aligned
 *                 places: past the cache to `to`, and to `keep`
 *   SUM_FENCE()   orders those stores before everything that follows
 * Private to src/base/sum*.c.
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <string.h>

#include "base/sum_ops.h"

/*
 * The unit in which copying and summing take turns. The sum is taken from a second copy in the cache, never from the
 * source: another thread may change that meanwhile, and then the sum must still be that of the bytes copied. Small, so
 * that the reads of one piece overlap with the stores of the one before.
 */
#define SUM_PIECE ((size_t)1024)
/* Shorter copies go through the cache: they are mostly the last thing written before the data is used. */
#define SUM_SMALL ((size_t)4096)

_Static_assert(sizeof(XXH3_state_t) <= sizeof(struct sum_stream), "sum_stream is too small");
_Static_assert(_Alignof(XXH3_state_t) <= _Alignof(struct sum_stream), "sum_stream is not aligned enough");

static struct sum128
from_xxh(XXH128_hash_t hash)
{
	return (struct sum128){.lo = hash.low64, .hi = hash.high64};
}

static XXH3_state_t *
state_of(struct sum_stream *s)
{
	return (XXH3_state_t *)(void *)s->state;
}

static struct sum128
variant_bytes(const void *ptr, size_t len)
{
	return from_xxh(XXH3_128bits(ptr, len));
}

static void
variant_init(struct sum_stream *s)
{
	XXH3_INITSTATE(state_of(s));
	XXH3_128bits_reset(state_of(s));
}

static void
variant_update(struct sum_stream *s, const void *ptr, size_t len)
{
	if (len > 0)
		XXH3_128bits_update(state_of(s), ptr, len);
}

static struct sum128
variant_final(const struct sum_stream *s)
{
	return from_xxh(XXH3_128bits_digest((const XXH3_state_t *)(const void *)s->state));
}

/* What was copied is read from the copy: the compiler must not read the source again instead. */
#define COPIED() __asm__ volatile("" ::: "memory")

/* Through the cache; the sum is taken from the copy. */
static void
copy_small(struct sum_stream *s, char *to, const char *from, size_t len)
{
	if (len == 0)
		return;
	memcpy(to, from, len);
	COPIED();
	if (s)
		XXH3_128bits_update(state_of(s), to, len);
}

static void
variant_copy(struct sum_stream *s, void *dst, const void *src, size_t len)
{
	_Alignas(64) char piece[SUM_PIECE];
	char *to = dst;
	const char *from = src;
	size_t head = len < SUM_SMALL ? len : (size_t)(-(uintptr_t)to & 63);
	size_t end = head + ((len - head) & ~(size_t)63);

	copy_small(s, to, from, head);
	for (size_t at = head; at < end;) {
		size_t n = end - at < SUM_PIECE ? end - at : SUM_PIECE;

		SUM_COPY(to + at, piece, from + at, n);
		COPIED();
		if (s)
			XXH3_128bits_update(state_of(s), piece, n);
		at += n;
	}
	copy_small(s, to + end, from + end, len - end);
	if (end > head)
		SUM_FENCE();
}

static const struct sum_ops variant_ops = {
	.name = SUM_NAME,
	.bytes = variant_bytes,
	.init = variant_init,
	.update = variant_update,
	.final = variant_final,
	.copy = variant_copy,
};
