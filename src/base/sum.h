/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sum: XXH3-128 checksums by libxxhash, alone and together with a copy past the cache. Promise P1.
 */
#ifndef PAWL_BASE_SUM_H
#define PAWL_BASE_SUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sum128 {
	uint64_t lo, hi; /* low64 and high64 of XXH128_hash_t */
};

/* The state of a checksum in progress, 64-byte aligned. It needs no destructor. */
struct sum_stream {
	_Alignas(64) unsigned char state[640];
};

struct sum128 sum_bytes(const void *ptr, size_t len);
void sum_init(struct sum_stream *s);
void sum_update(struct sum_stream *s, const void *ptr, size_t len);
struct sum128 sum_final(const struct sum_stream *s);

/* Copies len bytes and adds them to s (stream_copy.h). s gets the checksum of the bytes that were
 * copied, even if another thread changes src meanwhile. A NULL s copies only. dst and src must not
 * overlap. */
void sum_copy(struct sum_stream *s, void *dst, const void *src, size_t len);

static inline bool
sum_equal(struct sum128 a, struct sum128 b)
{
	return a.lo == b.lo && a.hi == b.hi;
}
/* 32 lower-case hex digits, high half first (the canonical XXH128 text form), no NUL. */
void sum_to_hex(struct sum128 sum, char out[32]);
bool sum_from_hex(const char text[32], struct sum128 *ret); /* false if not 32 lower-case hex digits */
/* Which library computes them, for people. Static. */
const char *sum_library(void);

#endif
