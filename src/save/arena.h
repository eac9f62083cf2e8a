/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arena: staging memory that is mapped and faulted in once and kept between saves. Thread-safe.
 *
 * The first bytes of a region are warm: faulted in. The rest is cold. A region is faulted in by the
 * caller of arena_take, by the threads that fill it, or ahead of its first use by arena_warm_step.
 */
#ifndef PAWL_ARENA_H
#define PAWL_ARENA_H

#include <stdbool.h>
#include <stddef.h>

#include "pawl.h"

#define ARENA_STEP_BYTES ((size_t)2 << 20) /* faulted in at a time: a huge page */

struct device;
struct device_spans;

struct arena_region {
	void *ptr;         /* aligned to ARENA_STEP_BYTES; NULL = none */
	size_t nbytes;     /* at least what was asked for */
	size_t warm_bytes; /* faulted in, from the start */
};

/* Takes a warm region of at least nbytes; a kept one where possible. PAWL_ENOMEM; PAWL_ELIMIT above
 * the limit. */
int arena_take(struct pawl_arena *a, size_t nbytes, struct arena_region *ret, struct pawl_error *err);
/* The same without waiting: the region keeps its present warm part. The caller faults in the parts
 * that it fills and reports them by arena_note_warm. */
int arena_take_cold(struct pawl_arena *a, size_t nbytes, struct arena_region *ret, struct pawl_error *err);
/* Faults in the pages around these bytes. Their contents stay as they are. */
void arena_fault_in(void *ptr, size_t nbytes);
/* The first warm_bytes of the region are faulted in by now. */
void arena_note_warm(struct pawl_arena *a, struct arena_region *r, size_t warm_bytes);
/* Returns a region for the next save; a zeroed region is fine. */
void arena_give(struct pawl_arena *a, struct arena_region *r);
/* Registers a region (NULL: every one) with a driver of accelerators, in the background and once.
 * Puts it on the memory nodes of the spans (see device_pin_new). Without success it works too, more
 * slowly. */
void arena_pin(struct pawl_arena *a, const struct arena_region *r, struct device *d, int ordinal,
               const struct device_spans *spans);
/* Bytes from the beginning of a region that are registered by now. */
size_t arena_registered(struct pawl_arena *a, const struct arena_region *r);

/* Maps a region of room_bytes, of which arena_warm_step faults in nbytes. Does nothing if such a
 * region exists. Errors as of arena_take. */
int arena_prepare(struct pawl_arena *a, size_t nbytes, size_t room_bytes, struct pawl_error *err);
/* Has arena_warm_step anything to do? */
bool arena_is_cold(struct pawl_arena *a);
/* Faults in the next ARENA_STEP_BYTES of a free region. False if no free region is both requested
 * and cold. A caller of arena_take waits only for the step that is running. */
bool arena_warm_step(struct pawl_arena *a);

#endif
