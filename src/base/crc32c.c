/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crc32c: see crc32c.h. Called by the S3 engine. By the processor's own instruction where it has one (about 8 bytes in
 * three cycles), long stretches by multiplication of polynomials, which is some three times as fast; else a nibble at a
 * time, which needs no table worth the name and is only for machines without it.
 */
#include "base/crc32c.h"

#include <string.h>

#include "base/crc_fold.h"

uint32_t
crc32c_generic(uint32_t before, const void *ptr, size_t len)
{
	static const uint32_t nibble[16] = {0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
	                                    0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
	                                    0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75};
	uint32_t sum = ~before;
	for (const unsigned char *b = ptr, *end = b + len; b < end; b++) {
		sum ^= *b;
		sum = (sum >> 4) ^ nibble[sum & 15];
		sum = (sum >> 4) ^ nibble[sum & 15];
	}
	return ~sum;
}

#if defined(__x86_64__)

#define LONG_BYTES 256u

/* The sum as it is between bytes, without the inversions at both ends. */
__attribute__((target("sse4.2"))) static uint32_t
update_sse42(uint32_t before, const unsigned char *b, size_t len)
{
	uint64_t sum = before;
	for (; len >= 8; b += 8, len -= 8) {
		uint64_t word;
		memcpy(&word, b, 8);
		sum = __builtin_ia32_crc32di(sum, word);
	}
	for (; len > 0; b++, len--)
		sum = __builtin_ia32_crc32qi((uint32_t)sum, *b);
	return (uint32_t)sum;
}

static uint32_t
crc32c_sse42(uint32_t before, const void *ptr, size_t len)
{
	static const struct crc_factors factors = {.by_512 = {0x1c19243b00000000, 0x75bba45b00000000},
	                                           .by_128 = {0x3743f7bd00000000, 0x3171d43000000000}};
	const size_t folded = len >= LONG_BYTES && crc_can_fold() ? len & ~(size_t)15 : 0;
	uint32_t sum = ~before;
	if (folded > 0) {
		unsigned char rest[16];
		crc_fold(&factors, sum, ptr, folded, rest);
		sum = update_sse42(0, rest, sizeof rest);
	}
	return ~update_sse42(sum, (const unsigned char *)ptr + folded, len - folded);
}

uint32_t
crc32c(uint32_t before, const void *ptr, size_t len)
{
	return __builtin_cpu_supports("sse4.2") ? crc32c_sse42(before, ptr, len) : crc32c_generic(before, ptr, len);
}

#elif defined(__ARM_FEATURE_CRC32)

#include <arm_acle.h>

uint32_t
crc32c(uint32_t before, const void *ptr, size_t len)
{
	const unsigned char *b = ptr;
	uint32_t sum = ~before;
	for (; len >= 8; b += 8, len -= 8) {
		uint64_t word;
		memcpy(&word, b, 8);
		sum = __crc32cd(sum, word);
	}
	for (; len > 0; b++, len--)
		sum = __crc32cb(sum, *b);
	return ~sum;
}

#else

uint32_t
crc32c(uint32_t before, const void *ptr, size_t len)
{
	return crc32c_generic(before, ptr, len);
}

#endif
