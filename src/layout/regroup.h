/* SPDX-License-Identifier: Apache-2.0 */
/*
 * regroup: which tensors share a pack. Pure.
 *
 * A pack is linked instead of written when nothing in it has changed, so tensors that change at the same saves belong
 * together. The packs of the last checkpoint are the memory of that: packs stay as they are until one of them holds
 * both what has changed and what has not. Then it is divided, once.
 *
 *   not known yet      what is small goes to pack 0, what is large has a pack of its own, the rest fine packs
 *   divided            what had not changed goes to new fine packs, what had changed to others (in pack 0: it stays)
 *   merged             what changes at every save shares large packs; very many small packs that never change, fine ones
 *
 * A fine pack holds 1/32 of pack_bytes: that is the most that one tensor which begins or ceases to change makes others
 * be written with it.
 */
#ifndef PAWL_REGROUP_H
#define PAWL_REGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/sum.h"
#include "pawl.h"

#define REGROUP_SMALL_BYTES 65536    /* smaller tensors begin in pack 0 */
#define REGROUP_NEW UINT32_MAX       /* pack of a tensor that has none yet */
#define REGROUP_NONE (UINT32_MAX - 1) /* of one that another rank writes */

enum regroup_seen { REGROUP_UNKNOWN, REGROUP_SAME, REGROUP_CHANGED };

struct regroup_tensor {
	struct sum128 who; /* over name, dtype, shape and box: by this it is found again */
	uint64_t nbytes;
	uint32_t pack;
	int16_t streak;   /* saves in a row at which it had changed; negative: had not */
	uint8_t seen;     /* enum regroup_seen, at the last save */
	bool has_rested;  /* it had not changed at some save */
};

/* Notes what the last save has shown of a tensor. */
void regroup_note(struct regroup_tensor *t, enum regroup_seen seen);
/* Gives packs to tensors that have none. */
int regroup_place_new(struct regroup_tensor *tensors, size_t n, uint64_t pack_bytes, struct pawl_error *err);
/* Divides and merges packs by what was noted; *ret: has any tensor another pack now? Packs are numbered from 0 without
 * gaps; those that stay the same keep their numbers where that leaves none. */
int regroup_decide(struct regroup_tensor *tensors, size_t n, uint64_t pack_bytes, bool *ret, struct pawl_error *err);
/* About as many packs as so many bytes are ever divided into. */
uint64_t regroup_most_packs(uint64_t nbytes, uint64_t pack_bytes);
/* The number of packs, at least 1. */
size_t regroup_count(const struct regroup_tensor *tensors, size_t n);

#endif
