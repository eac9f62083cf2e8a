/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mem: every heap allocation of the library goes through here (so tests can fail the n-th one),
 * checked size arithmetic, and scope-bound cleanup.
 */
#ifndef PAWL_BASE_MEM_H
#define PAWL_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pawl.h"

/* NULL on failure (also on overflow of n * size); n == 0 gives a unique non-NULL pointer. */
void *mem_alloc(size_t nbytes);
void *mem_zalloc(size_t n, size_t size);
/* Grows or shrinks to n * size; the old block stays valid on failure. */
void *mem_resize(void *ptr, size_t n, size_t size);
void mem_free(void *ptr);
char *mem_strdup(const char *text);
char *mem_strndup(const char *text, size_t len);
/* printf into a new string; NULL on failure. */
char *mem_printf(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* true and *ret set if the result fits. */
static inline bool
mem_add_ok(uint64_t a, uint64_t b, uint64_t *ret)
{
	return !__builtin_add_overflow(a, b, ret);
}
static inline bool
mem_mul_ok(uint64_t a, uint64_t b, uint64_t *ret)
{
	return !__builtin_mul_overflow(a, b, ret);
}
/* Rounds up to a multiple of the power of two `to`; the caller knows that it fits. */
static inline uint64_t
mem_round_up(uint64_t value, uint64_t to)
{
	return (value + to - 1) & ~(to - 1);
}

/* PAWL_CLEAN(fn) type var = INIT;  calls fn(&var) at the end of the scope. */
#define PAWL_CLEAN(fn) __attribute__((cleanup(fn)))
void mem_clean_free(void *pointer_to_pointer);

/* Puts these pages on the memory node of this number where it has room, also those that are
 * filled already; a preference only. Does nothing for -1 and where the system has no such call. */
void mem_prefer_node(void *ptr, size_t nbytes, int node);
#define PAWL_FREE PAWL_CLEAN(mem_clean_free)
/* Defines fn##_clean, so that PAWL_CLEAN(fn##_clean) type *var = ...; calls fn(var) at the end of
 * the scope unless var is NULL by then. */
#define PAWL_DEFINE_CLEAN(type, fn)                   \
	static inline void fn##_clean(type **pointer) \
	{                                             \
		if (*pointer)                         \
			fn(*pointer);                 \
	}                                             \
	struct pawl_error /* takes the semicolon */
/* Takes the value out of a scope-bound pointer: return steal(&var). */
#define steal(pp)                                   \
	__extension__({                             \
		__typeof__(*(pp)) steal_p_ = *(pp); \
		*(pp) = NULL;                       \
		steal_p_;                           \
	})

#endif
