/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sum_avx512: sums for x86-64 processors with AVX-512. Built with -mavx512f; empty otherwise. Called by
 * sum.c only, after it has asked the processor.
 */
#include "base/sum_ops.h"

#if defined(__AVX512F__)
#include <immintrin.h>

static void
copy_past_cache(char *to, char *keep, const char *from, size_t nbytes)
{
	for (size_t at = 0; at < nbytes; at += 64) {
		_mm_prefetch(from + at + SUM_AHEAD, _MM_HINT_T0);
		__m512i a = _mm512_loadu_si512(from + at);
		_mm512_store_si512(keep + at, a);
		_mm512_stream_si512((__m512i *)(void *)(to + at), a);
	}
}

#define SUM_NAME "avx512"
#define SUM_COPY copy_past_cache
#define SUM_FENCE() _mm_sfence()
#include "base/sum_variant.h"

const struct sum_ops *
sum_ops_avx512(void)
{
	return &variant_ops;
}

#else

const struct sum_ops *
sum_ops_avx512(void)
{
	return NULL;
}

#endif
