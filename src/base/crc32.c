/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crc32: see crc32.h. Called by format/zip.c and fetch.c. Eight bytes at a time by eight tables. A sum is a polynomial
 * over GF(2): to append n bytes is to multiply it by x^(8n), which the part of a stretch needs that is not its end.
 */
#include "base/crc32.h"

#include <string.h>

#define POLYNOMIAL 0xedb88320u

/* a * b; the coefficient of x^0 is the highest bit. */
static uint32_t
multiply(uint32_t a, uint32_t b)
{
	uint32_t product = 0;

	for (; a; a <<= 1) {
		if (a & 0x80000000u)
			product ^= b;
		b = (b >> 1) ^ (b & 1 ? POLYNOMIAL : 0);
	}
	return product;
}

void
crc32_init(struct crc32 *c)
{
	for (uint32_t i = 0; i < 256; i++) {
		uint32_t value = i;
		for (unsigned bit = 0; bit < 8; bit++)
			value = (value >> 1) ^ (value & 1 ? POLYNOMIAL : 0);
		c->table[0][i] = value;
	}
	for (unsigned k = 1; k < 8; k++) {
		for (unsigned i = 0; i < 256; i++)
			c->table[k][i] = (c->table[k - 1][i] >> 8) ^ c->table[0][c->table[k - 1][i] & 0xff];
	}
	c->powers[0] = 0x80000000u >> 8;
	for (unsigned k = 1; k < 64; k++)
		c->powers[k] = multiply(c->powers[k - 1], c->powers[k - 1]);
}

static uint32_t
update(const struct crc32 *c, uint32_t value, const void *ptr, size_t len)
{
	const unsigned char *p = ptr;

	for (; len >= 8; p += 8, len -= 8) {
		uint32_t low =
			value ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
		value = c->table[7][low & 0xff] ^ c->table[6][low >> 8 & 0xff] ^ c->table[5][low >> 16 & 0xff] ^
		        c->table[4][low >> 24] ^ c->table[3][p[4]] ^ c->table[2][p[5]] ^ c->table[1][p[6]] ^
		        c->table[0][p[7]];
	}
	for (; len > 0; p++, len--)
		value = (value >> 8) ^ c->table[0][(value ^ *p) & 0xff];
	return value;
}

/* value * x^(8n). */
static uint32_t
append(const struct crc32 *c, uint32_t value, uint64_t n)
{
	for (unsigned k = 0; n > 0; k++, n >>= 1) {
		if (n & 1)
			value = multiply(c->powers[k], value);
	}
	return value;
}

uint32_t
crc32_bytes(const struct crc32 *c, const void *ptr, size_t len)
{
	return ~update(c, ~0u, ptr, len);
}

uint32_t
crc32_part(const struct crc32 *c, const void *ptr, size_t len, uint64_t n_after)
{
	return append(c, update(c, 0, ptr, len), n_after);
}

uint32_t
crc32_whole(const struct crc32 *c, uint32_t parts, uint64_t nbytes)
{
	return ~(parts ^ append(c, ~0u, nbytes));
}
