/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crc32: the checksum of zip archives (polynomial 0xEDB88320, reflected). What we write carries XXH3 (sum.h); this one
 * is for what others wrote. Leaf module.
 *
 * The parts of a stretch may be summed in any order, by any thread: the sum of the whole is crc32_whole of the XOR of
 * every part's crc32_part.
 */
#ifndef PAWL_BASE_CRC32_H
#define PAWL_BASE_CRC32_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct crc32 {
	uint32_t table[8][256];
	uint32_t powers[64]; /* x to the power of 8 * 2^k */
	bool folds;          /* the processor multiplies polynomials */
};

void crc32_init(struct crc32 *c); /* some microseconds */
uint32_t crc32_bytes(const struct crc32 *c, const void *ptr, size_t len);
/* The share of len bytes after which n_after more follow. */
uint32_t crc32_part(const struct crc32 *c, const void *ptr, size_t len, uint64_t n_after);
/* The same, and copies them to dst, where they do not overlap, past the cache if there are many. */
uint32_t crc32_copy_part(const struct crc32 *c, void *dst, const void *src, size_t len, uint64_t n_after);
uint32_t crc32_whole(const struct crc32 *c, uint32_t parts, uint64_t nbytes);

#endif
