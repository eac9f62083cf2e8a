/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sum: see sum.h. libxxhash chooses the widest vectors of this processor at run time, where it is
 * built to do so.
 */
#include "base/sum.h"

#include "base/stream_copy.h"

#define XXH_STATIC_LINKING_ONLY /* for the size of XXH3_state_t */
#ifdef HAVE_XXH_DISPATCH
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

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

struct sum128
sum_bytes(const void *ptr, size_t len)
{
	return from_xxh(XXH3_128bits(ptr, len));
}

void
sum_init(struct sum_stream *s)
{
	*s = (struct sum_stream){0}; /* the reset reads fields of it */
	XXH3_128bits_reset(state_of(s));
}

void
sum_update(struct sum_stream *s, const void *ptr, size_t len)
{
	if (len > 0)
		XXH3_128bits_update(state_of(s), ptr, len);
}

struct sum128
sum_final(const struct sum_stream *s)
{
	return from_xxh(XXH3_128bits_digest((const XXH3_state_t *)(const void *)s->state));
}

static void
add_piece(void *stream, const void *ptr, size_t len)
{
	sum_update(stream, ptr, len);
}

void
sum_copy(struct sum_stream *s, void *dst, const void *src, size_t len)
{
	stream_copy(dst, src, len, s ? add_piece : NULL, s);
}

const char *
sum_library(void)
{
#ifdef HAVE_XXH_DISPATCH
	return "libxxhash (chooses vector instructions at run time)";
#else
	return "libxxhash";
#endif
}

static void
put_hex(uint64_t half, char out[16])
{
	for (int i = 0; i < 16; i++)
		out[i] = "0123456789abcdef"[half >> (60 - 4 * i) & 15];
}

void
sum_to_hex(struct sum128 sum, char out[32])
{
	put_hex(sum.hi, out);
	put_hex(sum.lo, out + 16);
}

bool
sum_from_hex(const char text[32], struct sum128 *ret)
{
	uint64_t halves[2] = {0, 0};

	for (int i = 0; i < 32; i++) {
		char c = text[i];
		unsigned digit = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
		                 : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a') + 10
		                                        : 16;
		if (digit == 16)
			return false;
		halves[i / 16] = halves[i / 16] << 4 | digit;
	}
	*ret = (struct sum128){.hi = halves[0], .lo = halves[1]};
	return true;
}
