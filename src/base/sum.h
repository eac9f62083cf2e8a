/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sum: XXH3-128 (xxHash, header-only from the system package), alone and fused with a copy by
 * non-temporal stores. One file per processor variant, chosen at run time.
 */
#ifndef PAWL_BASE_SUM_H
#define PAWL_BASE_SUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sum128 {
	uint64_t lo, hi; /* low64 and high64 of XXH128_hash_t */
};

/* Opaque streaming state, 64-byte aligned, no destructor. */
struct sum_stream {
	_Alignas(64) unsigned char state[640];
};

struct sum128 sum_bytes(const void *ptr, size_t len);
void sum_init(struct sum_stream *s);
void sum_update(struct sum_stream *s, const void *ptr, size_t len);
struct sum128 sum_final(const struct sum_stream *s);

/* Copies len bytes while adding them to s, by non-temporal stores where len is 4 KiB or more. Each byte of src is read
 * once, so the sum is that of the bytes copied even while another thread changes src. A NULL s copies only. dst and src
 * must not overlap. Ends with a store fence. */
void sum_copy(struct sum_stream *s, void *dst, const void *src, size_t len);

static inline bool sum_equal(struct sum128 a, struct sum128 b) { return a.lo == b.lo && a.hi == b.hi; }
/* 32 lower-case hex digits, high half first (the canonical XXH128 text form), no NUL. */
void sum_to_hex(struct sum128 sum, char out[32]);
bool sum_from_hex(const char text[32], struct sum128 *ret); /* false if not 32 lower-case hex digits */

/* "avx512", "avx2" or "generic": what runs here. Static. */
const char *sum_variant(void);

#endif
