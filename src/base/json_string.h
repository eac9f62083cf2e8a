/* SPDX-License-Identifier: Apache-2.0 */
/* json_string: the text between the quotes. Private to src/base/json*.c. */
#ifndef PAWL_BASE_JSON_STRING_H
#define PAWL_BASE_JSON_STRING_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Resolves escapes and checks UTF-8 from *at up to end, writing at most as many bytes to `to`.
 * Returns NULL and *ret_len, or what is wrong, with *at at the place. */
const char *json_decode_string(const char **at, const char *end, char *to, size_t *ret_len);

/* First byte at or after p that is not plain ASCII text: a quote, backslash, control character or a
 * byte of a longer UTF-8 character. */
static inline const char *
json_skip_plain(const char *p, const char *end)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	const uint64_t ones = 0x0101010101010101u, highs = 0x8080808080808080u;

	while (end - p >= 8) {
		uint64_t word;
		memcpy(&word, p, sizeof(word));
		uint64_t quote = word ^ ones * '"', backslash = word ^ ones * '\\';
		/* The top bit of a byte of (x - 1) & ~x is set where x is 0; of (x - 0x20) & ~x
		 * where x < 0x20. Borrows disturb only bytes above the first hit, and the first hit
		 * is what we look for. */
		uint64_t hit = (((quote - ones) & ~quote) | ((backslash - ones) & ~backslash) |
		                ((word - ones * 0x20) & ~word) | word) &
		               highs;
		if (hit != 0)
			return p + (__builtin_ctzll(hit) >> 3);
		p += 8;
	}
#endif
	while (p < end && *p != '"' && *p != '\\' && (unsigned char)*p >= 0x20 && (unsigned char)*p < 0x80)
		p++;
	return p;
}

#endif
