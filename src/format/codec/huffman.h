/* SPDX-License-Identifier: Apache-2.0 */
/*
 * huffman: bytes -> codes of 1 to 11 bits, by how often each occurs (D. A. Huffman, 1952; canonical codes as in RFC 1951,
 * 3.2.2; lengths in place by A. Moffat and J. Katajainen, 1995). Called by codec_planes.c; pure. No processor gives other
 * bytes than another.
 *
 *   128 bytes: for each byte value its code's length in 4 bits, the even ones in the low half; 0 = does not occur
 *   u32 x 3: bytes of the first three streams; then the four streams, one behind the other. Each of the first three has a quarter of
 *   the bytes (rounded down), the last one the rest; bits from the lowest of a byte to the highest, the first bit of a
 *   code first; at the end zeros to a whole byte.
 *
 * Speed: two bytes at once are looked up when encoding, up to six when decoding, four streams beside each other.
 */
#ifndef PAWL_FORMAT_HUFFMAN_H
#define PAWL_FORMAT_HUFFMAN_H

#include <stddef.h>
#include <stdint.h>

#define HUFFMAN_MAX_BITS 11u
#define HUFFMAN_PAD 8u /* writable bytes behind what huffman_encode fills */

/* Tables; one thread at a time. Nothing needs to be set. */
struct huffman_encoder {
	uint32_t pairs[65536];
};
struct huffman_decoder {
	uint64_t steps[1u << HUFFMAN_MAX_BITS];
};

/* The most that huffman_encode writes for n bytes. */
size_t huffman_bound(size_t n);
/* How many bytes it takes; 0 = not less than `most`, or n is below 64, or all bytes are the same: nothing of use is in dst then.
 * dst: huffman_bound(n) + HUFFMAN_PAD bytes. n is below 2^31. */
size_t huffman_encode(struct huffman_encoder *e, const unsigned char *src, size_t n, size_t most, unsigned char *dst);
/* Exactly n bytes out of exactly n_src, whatever these are; NULL, or what is wrong with them. */
const char *huffman_decode(struct huffman_decoder *d, const unsigned char *src, size_t n_src, unsigned char *dst,
                           size_t n);

#endif
