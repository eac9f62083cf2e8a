/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reshard: computes which byte ranges of which files are needed to fill some memory, and where each
 * byte goes. Pure: it reads a manifest and the shapes of the destinations, never data.
 *
 * A move is the overlap of one stored piece with one destination box. If the overlap is contiguous
 * in both, it is one run of bytes. Otherwise it is a regular grid of runs. The grid is described,
 * not listed, so a plan stays small for any sharding. Runs of a move ascend in the file. They also
 * ascend in the destination, except for pieces with strides.
 *
 * A unit is one read: a block-aligned range of one file. Its parts name the moves that have bytes
 * in it.
 */
#ifndef PAWL_RESHARD_H
#define PAWL_RESHARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bump.h"
#include "base/mem.h"
#include "pawl.h"
#include "state/manifest.h"

#define RESHARD_UNIT_BYTES (8u << 20) /* the usual size of a unit: disks prefer large reads */

/* A box of a tensor and the memory it goes to. dst.offsets NULL = the box starts at the origin.
 * With begin and end, only these bytes of the box's logical contents (C order) are wanted. Then dst
 * must be contiguous, and byte `begin` goes to dst.data. */
struct reshard_binding {
	size_t tensor; /* row of the manifest's tensor table */
	struct pawl_tensor dst;
	bool contiguous;     /* dst is in C order */
	uint64_t begin, end; /* end 0 = everything */
};

struct reshard_move {
	uint32_t binding, file;
	uint32_t n_outer; /* dimensions of the grid of runs; 0 = a single run */
	uint64_t run_bytes;
	uint64_t src, dst; /* of the first run: offset in the file, in the box's logical contents */
	const uint64_t *counts, *src_steps, *dst_steps; /* n_outer each, outermost first; steps in bytes */
	uint64_t src_begin, src_end; /* the wanted bytes of the file, cut to the binding's begin and end */
	uint64_t dst_base;           /* binding's begin */
	uint64_t dst_end;            /* if not 0: bytes of a run outside dst_base..dst_end are not wanted */
};

/* Bytes of one move inside one unit: its runs in [begin, end). Runs may reach beyond that range. A
 * move can have several parts in a unit, each with other runs. */
struct reshard_part {
	uint32_t move;
	uint64_t begin, end; /* in the file */
};

struct reshard_unit {
	uint32_t file;
	uint64_t begin, end;        /* begin is a multiple of the file's block size; end too, or the file's size */
	size_t first_part, n_parts; /* parts ascend by begin */
};

struct reshard_plan {
	struct bump memory;
	struct reshard_move *moves;
	struct reshard_part *parts;
	struct reshard_unit *units; /* ascending by file and begin, disjoint */
	size_t n_moves, n_parts, n_units;
	uint64_t nbytes; /* of all units */
};

/* unit_bytes: largest unit, rounded down to a multiple of the file's block size, but at least one
 * block. PAWL_EUSAGE for a box outside its tensor. PAWL_EUNSUPPORTED if elements of less than a
 * byte would be split. PAWL_ECORRUPT for a piece outside its file. */
int reshard_plan(const struct manifest *m, const struct reshard_binding *bindings, size_t n, uint64_t unit_bytes,
                 struct reshard_plan **ret, struct pawl_error *err);
/* Plans reading every byte of every file, without destinations. */
int reshard_plan_all(const struct manifest *m, uint64_t unit_bytes, struct reshard_plan **ret, struct pawl_error *err);
void reshard_free(struct reshard_plan *plan); /* NULL is fine */
PAWL_DEFINE_CLEAN(struct reshard_plan, reshard_free);

struct reshard_run {
	uint64_t src; /* offset in the file */
	uint64_t dst; /* offset in the binding's memory, in bytes of logical contents (minus its begin) */
	uint64_t nbytes;
};

/* Walks the runs of a move in [begin, end) of the file (those of a part, or less), cut to that
 * range. */
struct reshard_cursor {
	const struct reshard_move *move;
	uint64_t begin, end;
	uint64_t src, dst; /* of the current run, uncut */
	bool done;
	uint64_t index[PAWL_MAX_DIMS];
};
void reshard_seek(struct reshard_cursor *c, const struct reshard_move *move, uint64_t begin, uint64_t end);
bool reshard_next(struct reshard_cursor *c, struct reshard_run *ret);

#endif
