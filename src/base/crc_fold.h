/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crc_fold: reflected sums by multiplication of polynomials (PCLMULQDQ), 64 bytes at a time. A message becomes 16 bytes with
 * the same remainder, which the caller divides in its own way. Called by crc32.c, crc32c.c, crc64nvme.c; private to base.
 *
 * The factors are x^n modulo the sum's polynomial, reflected in 64 bits, for the distances of the two halves of a lane: d + 63
 * (the half that comes first) and d - 1, where d is 4 * 128 or 128 bits.
 */
#ifndef PAWL_BASE_CRC_FOLD_H
#define PAWL_BASE_CRC_FOLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CRC_FOLD_BYTES 64u /* the least that is worth it */

struct crc_factors {
	uint64_t by_512[2], by_128[2]; /* each of the first half, of the second */
};

#if defined(__x86_64__)
#include <wmmintrin.h>
#define CRC_CAN_FOLD 1

/* Moves 128 bits of the message on and adds what stands there. by: what the two halves are multiplied with. */
__attribute__((target("pclmul"))) static inline __m128i
crc_fold_lane(__m128i sum, __m128i by, __m128i next)
{
	const __m128i low = _mm_clmulepi64_si128(sum, by, 0x00), high = _mm_clmulepi64_si128(sum, by, 0x11);

	return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

static inline __m128i
crc_fold_load(const unsigned char *p)
{
	return _mm_loadu_si128((const __m128i *)(const void *)p);
}

static inline bool
crc_can_fold(void)
{
	return __builtin_cpu_supports("pclmul") != 0;
}

/* The first len bytes, a multiple of 16 and at least CRC_FOLD_BYTES, become 16; value, what the sum is so far, goes in. */
void crc_fold(const struct crc_factors *factors, uint64_t value, const unsigned char *p, size_t len,
              unsigned char ret[16]);

#else
#define CRC_CAN_FOLD 0
#endif

#endif
