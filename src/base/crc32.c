/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crc32: see crc32.h. Called by format/zip.c, fetch_crc.c, files_copy.c; calls sum.c to copy. Eight bytes at a time by
 * eight tables, or, where the processor multiplies polynomials (PCLMULQDQ), 64 bytes at a time. A sum is a polynomial
 * over GF(2): to append n bytes is to multiply it by x^(8n), which the part of a stretch needs that is not its end.
 */
#include "base/crc32.h"

#include <string.h>

#include "base/crc_fold.h"
#include "base/sum.h"

#define COPY_BYTES ((size_t)4096)  /* summed and copied in turns */
#define AHEAD_BYTES ((size_t)2048) /* how far copying prefetches */
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
#if CRC_CAN_FOLD
	c->folds = crc_can_fold();
#else
	c->folds = false;
#endif
	c->powers[0] = 0x80000000u >> 8;
	for (unsigned k = 1; k < 64; k++)
		c->powers[k] = multiply(c->powers[k - 1], c->powers[k - 1]);
}

#if CRC_CAN_FOLD

static inline void
put(unsigned char *to, size_t at, __m128i bytes)
{
	_mm_stream_si128((__m128i *)(void *)(to + at), bytes);
}

/* The first len bytes, a multiple of 16 and at least CRC_FOLD_BYTES, become 16 that have the same remainder; value goes
 * in. to: where they are copied as well, past the cache; then len is a multiple of 64 and `to` aligned to 64 bytes. The
 * factors are x^n modulo the polynomial, reflected, for the distances of the two halves: 4 * 128 +- 32 and 128 +- 32.
 */
__attribute__((target("pclmul"), always_inline)) static inline void
fold_and_put(uint32_t value, const unsigned char *p, size_t len, unsigned char *to, unsigned char ret[16])
{
	const __m128i by_512 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
	const __m128i by_128 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
	__m128i next[4] = {crc_fold_load(p), crc_fold_load(p + 16), crc_fold_load(p + 32), crc_fold_load(p + 48)};
	__m128i a = _mm_xor_si128(next[0], _mm_cvtsi32_si128((int)value));
	__m128i b = next[1], c = next[2], d = next[3];

	for (unsigned i = 0; to && i < 4; i++)
		put(to, 16 * (size_t)i, next[i]);
	for (p += 64, len -= 64; len >= 64; p += 64, len -= 64) {
		for (unsigned i = 0; i < 4; i++)
			next[i] = crc_fold_load(p + 16 * (size_t)i);
		if (to) {
			_mm_prefetch((const char *)p + AHEAD_BYTES, _MM_HINT_T0);
			to += 64;
			for (unsigned i = 0; i < 4; i++)
				put(to, 16 * (size_t)i, next[i]);
		}
		a = crc_fold_lane(a, by_512, next[0]);
		b = crc_fold_lane(b, by_512, next[1]);
		c = crc_fold_lane(c, by_512, next[2]);
		d = crc_fold_lane(d, by_512, next[3]);
	}
	a = crc_fold_lane(crc_fold_lane(crc_fold_lane(a, by_128, b), by_128, c), by_128, d);
	for (; len >= 16; p += 16, len -= 16)
		a = crc_fold_lane(a, by_128, crc_fold_load(p));
	_mm_storeu_si128((__m128i *)(void *)ret, a);
}

__attribute__((target("pclmul"))) static void
fold_to_16(uint32_t value, const unsigned char *p, size_t len, unsigned char ret[16])
{
	fold_and_put(value, p, len, NULL, ret);
}

__attribute__((target("pclmul"))) static void
fold_copying(uint32_t value, const unsigned char *p, size_t len, unsigned char *to, unsigned char ret[16])
{
	fold_and_put(value, p, len, to, ret);
	_mm_sfence();
}

#else

static void
fold_to_16(uint32_t value, const unsigned char *p, size_t len, unsigned char ret[16])
{
	(void)value;
	(void)p;
	(void)len;
	memset(ret, 0, 16);
}

static void
fold_copying(uint32_t value, const unsigned char *p, size_t len, unsigned char *to, unsigned char ret[16])
{
	(void)to;
	fold_to_16(value, p, len, ret);
}

#endif

static uint32_t
update_by_tables(const struct crc32 *c, uint32_t value, const void *ptr, size_t len)
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

static uint32_t
update(const struct crc32 *c, uint32_t value, const void *ptr, size_t len)
{
	const size_t folded = c->folds && len >= CRC_FOLD_BYTES ? len & ~(size_t)15 : 0;
	unsigned char rest[16];

	if (folded > 0) {
		fold_to_16(value, ptr, folded, rest);
		value = update_by_tables(c, 0, rest, sizeof(rest));
	}
	return update_by_tables(c, value, (const unsigned char *)ptr + folded, len - folded);
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

static uint32_t
update_copying(const struct crc32 *c, uint32_t value, unsigned char *to, const unsigned char *from, size_t len)
{
	value = update(c, value, from, len);
	sum_copy(NULL, to, from, len);
	return value;
}

/* In one pass where the processor multiplies polynomials, else in turns: what is copied has just been read. */
uint32_t
crc32_copy_part(const struct crc32 *c, void *dst, const void *src, size_t len, uint64_t n_after)
{
	const unsigned char *from = src;
	unsigned char *to = dst, rest[16];
	uint32_t value = 0;

	if (c->folds && len >= COPY_BYTES) {
		const size_t head = (size_t)(-(uintptr_t)to & 63), bulk = (len - head) & ~(size_t)63;

		value = update_copying(c, value, to, from, head);
		fold_copying(value, from + head, bulk, to + head, rest);
		value = update_by_tables(c, 0, rest, sizeof(rest));
		from += head + bulk;
		to += head + bulk;
		len -= head + bulk;
	}
	for (size_t at = 0; at < len;) {
		const size_t n = len - at < COPY_BYTES ? len - at : COPY_BYTES;

		value = update_copying(c, value, to + at, from + at, n);
		at += n;
	}
	return append(c, value, n_after);
}

uint32_t
crc32_whole(const struct crc32 *c, uint32_t parts, uint64_t nbytes)
{
	return ~(parts ^ append(c, ~0u, nbytes));
}
