/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sum_variant: the body of every sum_<variant>.c. The including file defines, for its processor:
 *   SUM_NAME      "avx2"
 *   SUM_COPY(to, from, nbytes)   copies a multiple of 64 bytes to a 64-byte aligned place, past the cache
 *   SUM_FENCE()   orders those stores before everything that follows
 * Private to src/base/sum*.c.
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <string.h>

#include "base/sum_ops.h"

/*
 * The unit in which summing and copying take turns. Small, so that the reads of one piece overlap with the
 * stores of the one before: 1 KiB with a prefetch two pieces ahead runs as fast as memcpy alone, 64 KiB
 * pieces at 0.8 of that, two passes at 0.7.
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

static void
variant_copy(struct sum_stream *s, void *dst, const void *src, size_t len)
{
	char *to = dst;
	const char *from = src;

	if (len < SUM_SMALL) {
		if (len == 0)
			return;
		if (s)
			XXH3_128bits_update(state_of(s), from, len);
		memcpy(to, from, len);
		return;
	}
	size_t head = (size_t)(-(uintptr_t)to & 63);
	size_t bulk = (len - head) & ~(size_t)63;
	if (head > 0) {
		if (s)
			XXH3_128bits_update(state_of(s), from, head);
		memcpy(to, from, head);
	}
	for (size_t at = head; at < head + bulk;) {
		size_t n = head + bulk - at < SUM_PIECE ? head + bulk - at : SUM_PIECE;
		if (s)
			XXH3_128bits_update(state_of(s), from + at, n);
		SUM_COPY(to + at, from + at, n);
		at += n;
	}
	size_t tail = len - head - bulk;
	if (tail > 0) {
		if (s)
			XXH3_128bits_update(state_of(s), from + head + bulk, tail);
		memcpy(to + head + bulk, from + head + bulk, tail);
	}
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
