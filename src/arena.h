/* SPDX-License-Identifier: Apache-2.0 */
/* arena: staging memory that is mapped and faulted in once and kept between saves. Thread-safe. */
#ifndef PAWL_ARENA_H
#define PAWL_ARENA_H

#include <stddef.h>

#include "pawl.h"

struct arena_region {
	void *ptr;     /* 2 MiB aligned */
	size_t nbytes; /* at least what was asked for */
};

/* Takes a region of at least nbytes, faulted in; a kept one where possible. PAWL_ENOMEM; PAWL_ELIMIT above the limit. */
int arena_take(struct pawl_arena *a, size_t nbytes, struct arena_region *ret, struct pawl_error *err);
/* Gives a region back for the next save; a zeroed region is fine. */
void arena_give(struct pawl_arena *a, struct arena_region *r);
size_t arena_limit(const struct pawl_arena *a); /* 0 = none */

#endif
