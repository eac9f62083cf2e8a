/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crc: see crc.h. A checksum is a polynomial over GF(2); to append n bytes is to multiply it by
 * x^(8n).
 */
#include "base/crc.h"

#include <isa-l/crc.h>
#include <isa-l/crc64.h>
#include <zlib.h>

#include "base/stream_copy.h"

/* ISA-L takes the length as an int. */
#define CRC32C_MAX_BYTES ((size_t)1 << 30)
#define CRC64NVME_POLYNOMIAL UINT64_C(0x9a6c9329ac4bc9b5) /* reflected */

/* Without the inversions before and after, which cannot be joined by XOR. */
static uint32_t
add_bytes(uint32_t value, const void *ptr, size_t len)
{
	return ~crc32_gzip_refl(~value, ptr, len);
}

/* value * x^(8n). */
static uint32_t
shift_value(uint32_t value, uint64_t n)
{
	return (uint32_t)crc32_combine(value, 0, (z_off_t)n);
}

uint32_t
crc32_bytes(const void *ptr, size_t len)
{
	return crc32_gzip_refl(0, ptr, len);
}

uint32_t
crc32_part(const void *ptr, size_t len, uint64_t n_after)
{
	return shift_value(add_bytes(0, ptr, len), n_after);
}

static void
add_piece(void *value, const void *ptr, size_t len)
{
	*(uint32_t *)value = add_bytes(*(uint32_t *)value, ptr, len);
}

uint32_t
crc32_copy_part(void *dst, const void *src, size_t len, uint64_t n_after)
{
	uint32_t value = 0;

	stream_copy(dst, src, len, add_piece, &value);
	return shift_value(value, n_after);
}

uint32_t
crc32_whole(uint32_t parts, uint64_t n_bytes)
{
	return ~(parts ^ shift_value(~0u, n_bytes));
}

uint32_t
crc32c(uint32_t before, const void *ptr, size_t len)
{
	const unsigned char *from = ptr;
	uint32_t value = ~before;

	for (size_t n; len > 0; from += n, len -= n) {
		n = len < CRC32C_MAX_BYTES ? len : CRC32C_MAX_BYTES;
		value = crc32_iscsi((unsigned char *)(uintptr_t)from, (int)n, value);
	}
	return ~value;
}

#ifdef HAVE_CRC64NVME

bool
crc64nvme_exists(void)
{
	return true;
}

uint64_t
crc64nvme(uint64_t before, const void *ptr, size_t len)
{
	return crc64_rocksoft_refl(before, ptr, len);
}

#else

bool
crc64nvme_exists(void)
{
	return false;
}

uint64_t
crc64nvme(uint64_t before, const void *ptr, size_t len)
{
	(void)ptr;
	(void)len;
	return before;
}

#endif

/* a * b modulo the polynomial. The highest bit is the coefficient of x^0. */
static uint64_t
multiply_polynomials(uint64_t a, uint64_t b)
{
	uint64_t product = 0;

	for (; a != 0; a <<= 1) {
		if (a >> 63)
			product ^= b;
		b = (b >> 1) ^ (b & 1 ? CRC64NVME_POLYNOMIAL : 0);
	}
	return product;
}

uint64_t
crc64nvme_join(uint64_t first, uint64_t second, uint64_t n_second)
{
	uint64_t power = UINT64_C(1) << (63 - 8); /* x^8 */

	for (; n_second > 0; n_second >>= 1, power = multiply_polynomials(power, power)) {
		if (n_second & 1)
			first = multiply_polynomials(first, power);
	}
	return first ^ second;
}
