/* SPDX-License-Identifier: Apache-2.0 */
/* crc_fold: see crc_fold.h. */
#include "base/crc_fold.h"

#if CRC_CAN_FOLD

__attribute__((target("pclmul"))) void
crc_fold(const struct crc_factors *factors, uint64_t value, const unsigned char *p, size_t len, unsigned char ret[16])
{
	const __m128i by_512 = _mm_set_epi64x((long long)factors->by_512[1], (long long)factors->by_512[0]);
	const __m128i by_128 = _mm_set_epi64x((long long)factors->by_128[1], (long long)factors->by_128[0]);
	__m128i a = _mm_xor_si128(crc_fold_load(p), _mm_set_epi64x(0, (long long)value));
	__m128i b = crc_fold_load(p + 16), c = crc_fold_load(p + 32), d = crc_fold_load(p + 48);

	for (p += 64, len -= 64; len >= 64; p += 64, len -= 64) {
		a = crc_fold_lane(a, by_512, crc_fold_load(p));
		b = crc_fold_lane(b, by_512, crc_fold_load(p + 16));
		c = crc_fold_lane(c, by_512, crc_fold_load(p + 32));
		d = crc_fold_lane(d, by_512, crc_fold_load(p + 48));
	}
	a = crc_fold_lane(crc_fold_lane(crc_fold_lane(a, by_128, b), by_128, c), by_128, d);
	for (; len >= 16; p += 16, len -= 16)
		a = crc_fold_lane(a, by_128, crc_fold_load(p));
	_mm_storeu_si128((__m128i *)(void *)ret, a);
}

#endif
