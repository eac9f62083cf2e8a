/* SPDX-License-Identifier: Apache-2.0 */
/* arena: staging memory that is mapped and faulted in once and kept between saves. Thread-safe. */
#ifndef PAWL_ARENA_H
#define PAWL_ARENA_H

#include <stdbool.h>
#include <stddef.h>

#include "pawl.h"

struct arena_region {
	void *ptr;     /* 2 MiB aligned */
	size_t nbytes; /* at least what was asked for */
	bool cold;     /* not faulted in yet, see arena_take_cold */
};

/* Takes a region of at least nbytes, faulted in; a kept one where possible. PAWL_ENOMEM; PAWL_ELIMIT above the limit. */
int arena_take(struct pawl_arena *a, size_t nbytes, struct arena_region *ret, struct pawl_error *err);
/* The same at once: a new region is not faulted in (`cold`). Whoever fills it may call arena_fault_in on the parts it fills,
 * and calls arena_warm when all is filled, so that later saves find it faulted in. */
int arena_take_cold(struct pawl_arena *a, size_t nbytes, struct arena_region *ret, struct pawl_error *err);
void arena_fault_in(void *ptr, size_t nbytes); /* whole pages around them; what is there already stays as it is */
void arena_warm(struct pawl_arena *a, struct arena_region *r);
/* Gives a region back for the next save; a zeroed region is fine. */
void arena_give(struct pawl_arena *a, struct arena_region *r);
size_t arena_limit(const struct pawl_arena *a); /* 0 = none */

#endif
