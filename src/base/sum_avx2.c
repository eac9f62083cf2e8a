/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sum_avx2: sums for x86-64 processors with AVX2. Built with -mavx2; empty otherwise. Called by sum.c
 * only, after it has asked the processor.
 */
#include "base/sum_ops.h"

#if defined(__AVX2__)
#include <immintrin.h>

static void
copy_past_cache(char *to, char *keep, const char *from, size_t nbytes)
{
	for (size_t at = 0; at < nbytes; at += 64) {
		_mm_prefetch(from + at + SUM_AHEAD, _MM_HINT_T0);
		__m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(from + at));
		__m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(from + at + 32));
		_mm256_store_si256((__m256i *)(void *)(keep + at), a);
		_mm256_store_si256((__m256i *)(void *)(keep + at + 32), b);
		_mm256_stream_si256((__m256i *)(void *)(to + at), a);
		_mm256_stream_si256((__m256i *)(void *)(to + at + 32), b);
	}
}

#define SUM_NAME "avx2"
#define SUM_COPY copy_past_cache
#define SUM_FENCE() _mm_sfence()
#include "base/sum_variant.h"

const struct sum_ops *
sum_ops_avx2(void)
{
	return &variant_ops;
}

#else

const struct sum_ops *
sum_ops_avx2(void)
{
	return NULL;
}

#endif
