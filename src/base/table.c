/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table: open addressing with linear probing, at most three quarters full, a power of two of slots.
 */
#include "base/table.h"

#include "base/mem.h"
#include "base/mix.h"
#include "base/sum.h"
#include "pawl.h"

#define TABLE_MIN_SLOTS 64

/* The finaliser of a 64-bit mixer: every bit of the input moves about half of the output bits. */
uint64_t
table_mix(uint64_t hash, uint64_t value)
{
	uint64_t x = hash ^ (value * MIX_STEP);

	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93u;
	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93u;
	x ^= x >> 32;
	return x;
}

uint64_t
table_hash(uint64_t seed, const void *ptr, size_t len)
{
	struct sum128 sum = sum_bytes(ptr, len);

	return table_mix(table_mix(seed, sum.lo), sum.hi);
}

static void
place_value(struct table *t, uint64_t hash, uintptr_t value)
{
	size_t at = (size_t)(hash >> 1) & (t->cap - 1);

	while (t->slots[at].hash)
		at = (at + 1) & (t->cap - 1);
	t->slots[at] = (struct table_slot){hash | 1, value};
	t->n++;
}

int
table_reserve(struct table *t, size_t n)
{
	if (n <= t->cap / 4 * 3 - t->n)
		return 0;
	struct table grown = {.cap = t->cap ? t->cap * 2 : TABLE_MIN_SLOTS};
	while (grown.cap / 4 * 3 < t->n + n)
		grown.cap *= 2;
	grown.slots = mem_zalloc(grown.cap, sizeof(*grown.slots));
	if (!grown.slots)
		return PAWL_ENOMEM;
	for (size_t i = 0; i < t->cap; i++) {
		if (t->slots[i].hash)
			place_value(&grown, t->slots[i].hash, t->slots[i].value);
	}
	mem_free(t->slots);
	*t = grown;
	return 0;
}

void
table_add(struct table *t, uint64_t hash, uintptr_t value)
{
	place_value(t, hash, value);
}

bool
table_next(const struct table *t, uint64_t hash, size_t *cursor, uintptr_t *ret)
{
	if (t->cap == 0)
		return false;
	for (size_t step = *cursor;; step++) {
		const struct table_slot *slot = &t->slots[((size_t)(hash >> 1) + step) & (t->cap - 1)];
		if (!slot->hash)
			return false;
		if (slot->hash == (hash | 1)) {
			*cursor = step + 1;
			*ret = slot->value;
			return true;
		}
	}
}

void
table_clear(struct table *t)
{
	mem_free(t->slots);
	*t = (struct table){0};
}
