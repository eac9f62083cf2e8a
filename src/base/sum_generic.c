/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sum_generic: sums for every processor, with what the compiler takes for granted on the target (SSE2 on
 * x86-64, NEON on 64-bit ARM). Called by sum.c only.
 */
#include "base/sum_ops.h"

#define SUM_NAME "generic"

#if defined(__SSE2__)
#include <emmintrin.h>

static void
copy_past_cache(char *to, char *keep, const char *from, size_t nbytes)
{
	for (size_t at = 0; at < nbytes; at += 64) {
		_mm_prefetch(from + at + SUM_AHEAD, _MM_HINT_T0);
		__m128i a = _mm_loadu_si128((const __m128i *)(const void *)(from + at));
		__m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + at + 16));
		__m128i c = _mm_loadu_si128((const __m128i *)(const void *)(from + at + 32));
		__m128i d = _mm_loadu_si128((const __m128i *)(const void *)(from + at + 48));
		_mm_store_si128((__m128i *)(void *)(keep + at), a);
		_mm_store_si128((__m128i *)(void *)(keep + at + 16), b);
		_mm_store_si128((__m128i *)(void *)(keep + at + 32), c);
		_mm_store_si128((__m128i *)(void *)(keep + at + 48), d);
		_mm_stream_si128((__m128i *)(void *)(to + at), a);
		_mm_stream_si128((__m128i *)(void *)(to + at + 16), b);
		_mm_stream_si128((__m128i *)(void *)(to + at + 32), c);
		_mm_stream_si128((__m128i *)(void *)(to + at + 48), d);
	}
}
#define SUM_COPY copy_past_cache
#define SUM_FENCE() _mm_sfence()
#else
#include <string.h>

static void
copy_past_cache(char *to, char *keep, const char *from, size_t nbytes)
{
	memcpy(keep, from, nbytes);
	memcpy(to, keep, nbytes);
}
#define SUM_COPY copy_past_cache
#define SUM_FENCE() ((void)0)
#endif

#include "base/sum_variant.h"

const struct sum_ops *
sum_ops_generic(void)
{
	return &variant_ops;
}
