/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vec: arrays that grow. Zero-initialised = empty; the items move when the array grows, so keep
 * indices, not pointers. Not thread-safe.
 *
 * VEC(struct part) parts = {0};
 * struct part *part = vec_add(&parts);
 * if (!part)
 * 	return err_nomem(err, "parts");
 * for (size_t i = 0; i < parts.n; i++)
 * 	use(&parts.items[i]);
 * vec_free(&parts);
 */
#ifndef PAWL_BASE_VEC_H
#define PAWL_BASE_VEC_H

#include <stdbool.h>
#include <stddef.h>

#include "base/mem.h"

#define VEC(type)                   \
	struct {                    \
		type *items;        \
		size_t n, capacity; \
	}

/* Makes room for n items; false without memory (then the array is as it was). At least doubles what
 * it changes. */
bool vec_reserve_items(void **items, size_t *capacity, size_t n, size_t item_bytes);
#define vec_reserve(vec, count) \
	vec_reserve_items((void **)&(vec)->items, &(vec)->capacity, (count), sizeof(*(vec)->items))
/* The same for an array whose fields have other names. */
#define array_reserve(items, capacity, count) \
	vec_reserve_items((void **)&(items), &(capacity), (count), sizeof(*(items)))

/* A new last item, all zero, or NULL without memory. */
#define vec_add(vec)                                                                                 \
	((__typeof__((vec)->items))vec_add_item((void **)&(vec)->items, &(vec)->n, &(vec)->capacity, \
	                                        sizeof(*(vec)->items)))
void *vec_add_item(void **items, size_t *n, size_t *capacity, size_t item_bytes);

/* Frees the array, not what its items point to; it is empty afterwards. */
#define vec_free(vec)                           \
	do {                                    \
		mem_free((vec)->items);         \
		(vec)->items = NULL;            \
		(vec)->n = (vec)->capacity = 0; \
	} while (0)

#endif
