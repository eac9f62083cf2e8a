/* SPDX-License-Identifier: Apache-2.0 */
/*
 * press: a pack that is compressed while it is written (option compression). Units come on any thread and in any order;
 * each is compressed by the thread that brings it, and put behind those before it by whoever happens to be there when its
 * turn has come, so that nobody waits.
 *
 * Memory: what has been compressed and whose turn has not come, and one piece of 8 MiB; of stores that must know a file's
 * size beforehand (store_caps.can_cut) all of the pack's, until its end.
 */
#ifndef PAWL_PRESS_H
#define PAWL_PRESS_H

#include "base/sum.h"
#include "format/codec/codec.h"
#include "save/save.h"

/* The most that a file of so many plain bytes can become: no codec adds more to what cannot be compressed. It is cut when its
 * size is known. */
static inline uint64_t
press_most_bytes(uint64_t nbytes)
{
	return nbytes + nbytes / 16 + ((uint64_t)1 << 20);
}

struct press;
/* For a pack of so many units. */
int press_new(struct save_pack *pack, const struct codec *codec, size_t n_units, struct press **ret,
              struct pawl_error *err);
/* Takes one unit; its memory is not needed any more after that, unless it is the pack's image. */
int press_unit(struct press *p, const struct save_unit *u, struct pawl_error *err);
/* All units have been taken: the end, and everything to the store; pack->file is to be finished then. */
int press_finish(struct press *p, struct pawl_error *err);
/* Of the file as it lies there; known after press_finish. */
uint64_t press_bytes(const struct press *p);
const struct sum128 *press_sums(const struct press *p, size_t *ret_n);
void press_free(struct press *p); /* NULL is fine */

#endif
