/* SPDX-License-Identifier: Apache-2.0 */
/*
 * regroup: which tensors share a pack. Pure.
 *
 * A save links a pack when nothing in it has changed. So tensors that change at the same saves
 * share packs. The packs of the last checkpoint record these groups. A pack stays as it is until it
 * holds both changed and unchanged tensors; then it is divided, once.
 *
 * - Nothing known: small tensors share pack 0, each large tensor has its own pack, the others share
 *   fine packs. Those that the caller expects to rest share fine packs of their own.
 * - Divide: unchanged tensors move to new fine packs. Changed ones move to others, or stay in pack
 *   0. A save expects what has changed by probes of its tensors, and divides packs that it would
 *   have to write anyway.
 * - Merge: tensors that change at every save share large packs. Many small packs that never change
 *   become few.
 *
 * A fine pack holds 1/32 of pack_bytes. So when one tensor begins or stops changing, few others are
 * written with it.
 */
#ifndef PAWL_REGROUP_H
#define PAWL_REGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/sum.h"
#include "pawl.h"

#define REGROUP_SMALL_BYTES 65536     /* smaller tensors begin in pack 0 */
#define REGROUP_NEW UINT32_MAX        /* pack of a tensor that has none yet */
#define REGROUP_NONE (UINT32_MAX - 1) /* of one that another rank writes */

#define REGROUP_NO_PROBE 0
#define REGROUP_BAD_PROBE 1 /* the tensor has changed although its probe had not: never used again */

enum regroup_seen { REGROUP_UNKNOWN, REGROUP_SAME, REGROUP_CHANGED };

struct regroup_tensor {
	struct sum128 who; /* checksum of name, dtype, shape and box; identifies the tensor at the next save */
	uint64_t nbytes;
	uint64_t probe; /* of the last save; REGROUP_NO_PROBE, or REGROUP_BAD_PROBE */
	uint32_t pack;
	int16_t streak;  /* number of saves in a row at which it had changed; negative: had not changed */
	uint8_t seen;    /* enum regroup_seen, at the last save */
	bool has_rested; /* at some save it had not changed */
};

/* Notes what the last save has shown of a tensor, and the probe of that save. */
void regroup_note(struct regroup_tensor *t, enum regroup_seen seen, uint64_t probe);
/* Gives packs to tensors that have none. rests: per tensor, does the caller expect that it rarely
 * changes? NULL = it expects nothing. */
int regroup_place_new(struct regroup_tensor *tensors, size_t n, const unsigned char *rests, uint64_t pack_bytes,
                      struct pawl_error *err);
/* Before a save with these probes: divides packs of which a part is expected to have changed. The
 * rest as regroup_decide. */
int regroup_expect(struct regroup_tensor *tensors, size_t n, const uint64_t *probes, uint64_t pack_bytes, bool *ret,
                   struct pawl_error *err);
/* Divides and merges packs; *ret: has any tensor another pack now? Packs are numbered from 0
 * without gaps. A pack that stays the same keeps its number, unless it must fill a gap. */
int regroup_decide(struct regroup_tensor *tensors, size_t n, uint64_t pack_bytes, bool *ret, struct pawl_error *err);
/* An estimate of the largest number of packs for so many bytes. */
uint64_t regroup_most_packs(uint64_t nbytes, uint64_t pack_bytes);
/* The number of packs, at least 1. */
size_t regroup_count(const struct regroup_tensor *tensors, size_t n);

#endif
