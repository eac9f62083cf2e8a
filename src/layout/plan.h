/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan: where every tensor goes: packs, headers, offsets. Pure. The writer caches it while the
 * structure of the state stays the same. Pack 0's header holds what changes with every save, and
 * only those parts of it are rewritten.
 */
#ifndef PAWL_PLAN_H
#define PAWL_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/bump.h"
#include "base/mem.h"
#include "base/sum.h"
#include "layout/past.h"
#include "pawl.h"
#include "state/state.h"

struct plan_slot {
	size_t tensor;  /* index in the state's table */
	uint64_t begin; /* relative to the data, which starts at header.len */
	uint64_t nbytes;
};

struct plan_pack {
	char name[64];
	struct buf header;       /* 8-byte length + padded JSON */
	struct buf entries;      /* pack 0: the tensors' part of the header */
	struct buf special;      /* pack 0: "pawl.tensors" */
	struct sum128 layout;    /* checksum of the two above: equal if the same tensors have the same places */
	struct plan_slot *slots; /* ascending by begin; they fill the data without gaps */
	size_t n_slots;
	uint64_t data_nbytes, nbytes; /* nbytes = header.len + data_nbytes */
	uint64_t image_offset;        /* of the pack's image in a snapshot; a multiple of 4,096 */
	size_t n_blocks, first_block; /* in the plan's array of checksums */
};

/* Where pack 0's header holds the texts that may change, as last written. */
struct plan_head {
	size_t checkpoint, checkpoint_len; /* of "pawl.checkpoint", without its quotes */
	size_t state, state_len;           /* of "pawl.state" */
	size_t end;                        /* of the JSON; 0 = not known */
	struct buf state_text;             /* unquoted */
};

struct plan {
	struct bump memory;
	struct sum128 fingerprint;
	struct plan_pack *packs;
	size_t n_packs;
	uint64_t block_bytes;
	uint64_t nbytes;      /* of all files */
	uint64_t image_bytes; /* of a complete snapshot */
	uint64_t room_bytes;  /* the same with room for more packs, so that regrouping never needs more memory */
	size_t n_blocks;
	struct plan_head head;
	uint64_t pack_bytes;
	struct regroup_tensor *tensors; /* of the state, in its order; NULL if packs are not regrouped */
	size_t n_tensors;
};

struct plan_opts {
	uint64_t pack_bytes, block_bytes;
	unsigned rank;
	const char *run_id;
	bool regroup;               /* packs can be linked: tensors share them by what changes together (regroup.h) */
	const struct past *past;    /* input of regrouping; NULL = nothing is known */
	const uint64_t *probes;     /* of the tensors (regroup.h) */
	const unsigned char *rests; /* per tensor: it is expected to change rarely; NULL = not known */
};

/* Checksum over everything that the layout depends on. */
struct sum128 plan_fingerprint(const struct pawl_state *state, const struct plan_opts *opts);
/* Lays a state out. Pack 0's header is encoded later, by plan_refresh. */
int plan_make(const struct pawl_state *state, const struct plan_opts *opts, struct plan **ret, struct pawl_error *err);
/* Encodes pack 0's header with the metadata of this save and sets offsets and totals. */
int plan_refresh(struct plan *p, const struct plan_opts *opts, struct pawl_slice checkpoint_json,
                 struct pawl_slice state_json, struct pawl_error *err);
void plan_free(struct plan *p);
PAWL_DEFINE_CLEAN(struct plan, plan_free);

#endif
