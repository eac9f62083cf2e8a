/* SPDX-License-Identifier: Apache-2.0 */
/* ring: the slots that the units of a save pass through, in the region of its image. Writing frees
 * a slot, and the next unit takes it. */
#ifndef PAWL_RING_H
#define PAWL_RING_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct save_image;
struct save_unit;

/* Makes slots of the first nbytes of the image's region. Its mode is PAWL_MODE_RING afterwards. */
int ring_make(struct save_image *m, uint64_t nbytes, struct pawl_error *err);
/* A slot for a unit of n bytes. Waits until one is free. One on this memory node is preferred; -1 =
 * any. NULL: the save has failed meanwhile. */
char *ring_take_slot(struct save_image *m, size_t n, int node);
/* The unit is written: its slot is free. */
void ring_give_slot(struct save_image *m, const struct save_unit *u);

#endif
