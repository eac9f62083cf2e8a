/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crc64nvme: see crc64nvme.h. Called by the object stores. By multiplication of polynomials where the processor has it,
 * 64 bytes at a time; else a nibble at a time, as in crc32c.c.
 */
#include "base/crc64nvme.h"

#include "base/crc_fold.h"

#define POLYNOMIAL 0x9a6c9329ac4bc9b5u /* reflected */

/* The sum as it is between bytes, without the inversions at both ends. */
static uint64_t
update(uint64_t sum, const unsigned char *b, size_t len)
{
	static const uint64_t nibble[16] = {
		0x0000000000000000, 0x78e0ff3b88be6f81, 0xf1c1fe77117cdf02, 0x8921014c99c2b083,
		0xd75adabd7a6e2d6f, 0xafba2586f2d042ee, 0x269b24ca6b12f26d, 0x5e7bdbf1e3ac9dec,
		0x9a6c9329ac4bc9b5, 0xe28c6c1224f5a634, 0x6bad6d5ebd3716b7, 0x134d926535897936,
		0x4d364994d625e4da, 0x35d6b6af5e9b8b5b, 0xbcf7b7e3c7593bd8, 0xc41748d84fe75459};
	for (const unsigned char *end = b + len; b < end; b++) {
		sum ^= *b;
		sum = (sum >> 4) ^ nibble[sum & 15];
		sum = (sum >> 4) ^ nibble[sum & 15];
	}
	return sum;
}

uint64_t
crc64nvme_generic(uint64_t before, const void *ptr, size_t len)
{
	return ~update(~before, ptr, len);
}

#if CRC_CAN_FOLD

uint64_t
crc64nvme(uint64_t before, const void *ptr, size_t len)
{
	static const struct crc_factors factors = {.by_512 = {0x0c32cdb31e18a84a, 0x62242240ace5045a},
	                                           .by_128 = {0xeadc41fd2ba3d420, 0x21e9761e252621ac}};
	const size_t folded = len >= CRC_FOLD_BYTES && crc_can_fold() ? len & ~(size_t)15 : 0;
	uint64_t sum = ~before;
	if (folded > 0) {
		unsigned char rest[16];
		crc_fold(&factors, sum, ptr, folded, rest);
		sum = update(0, rest, sizeof rest);
	}
	return ~update(sum, (const unsigned char *)ptr + folded, len - folded);
}

#else

uint64_t
crc64nvme(uint64_t before, const void *ptr, size_t len)
{
	return crc64nvme_generic(before, ptr, len);
}

#endif

/* a * b modulo the polynomial; the coefficient of x^0 is the highest bit. */
static uint64_t
multiply(uint64_t a, uint64_t b)
{
	uint64_t product = 0;
	for (; a != 0; a <<= 1) {
		if (a >> 63)
			product ^= b;
		b = (b >> 1) ^ (b & 1 ? POLYNOMIAL : 0);
	}
	return product;
}

/* To append n bytes is to multiply by x^(8n); the inversions at the ends cancel out. */
uint64_t
crc64nvme_join(uint64_t first, uint64_t second, uint64_t n_second)
{
	uint64_t power = UINT64_C(1) << (63 - 8); /* x^8 */
	for (; n_second > 0; n_second >>= 1, power = multiply(power, power))
		if (n_second & 1)
			first = multiply(first, power);
	return first ^ second;
}
