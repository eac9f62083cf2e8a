/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table: a hash table from a 64-bit hash to a value (an index, or a pointer as uintptr_t). The
 * caller holds the keys and compares them, so one type serves names, paths and memory ranges.
 * Values are never removed.
 */
#ifndef PAWL_TABLE_H
#define PAWL_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct table_slot {
	uint64_t hash; /* 0 = free; the lowest bit of a used one is set */
	uintptr_t value;
};

/* Zero-initialised = empty. Not thread-safe. */
struct table {
	struct table_slot *slots;
	size_t cap, n;
};

/* Makes room for n more values, so that the next n table_add cannot fail. PAWL_ENOMEM. */
int table_reserve(struct table *t, size_t n);
/* Adds a value under a hash (equal hashes may be added many times). Needs a table_reserve
 * before. */
void table_add(struct table *t, uint64_t hash, uintptr_t value);
/* Candidates with this hash, one per call: true and *ret set, or false at the end. *cursor starts
 * at 0. */
bool table_next(const struct table *t, uint64_t hash, size_t *cursor, uintptr_t *ret);
void table_clear(struct table *t); /* frees and zeroes */

/* Hash of bytes. seed: a secret, such as an address, so that hostile names cannot be chosen to
 * collide. */
uint64_t table_hash(uint64_t seed, const void *ptr, size_t len);
/* Mixes one more number into a hash. */
uint64_t table_mix(uint64_t hash, uint64_t value);

#endif
