/* SPDX-License-Identifier: Apache-2.0 */
/*
 * piece_plan: the contents of a file before anything is read or written: constant bytes, complete
 * tensors and CRC-32s, in order and without gaps. Pure.
 *
 * Constant bytes are appended to plan.bytes, in their order in the file. They become pieces when
 * something else follows them, and at the end by piece_plan_finish.
 */
#ifndef PAWL_PIECE_PLAN_H
#define PAWL_PIECE_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/vec.h"

enum file_piece_kind {
	FILE_BYTES,
	FILE_TENSOR, /* its logical contents in C order */
	FILE_CRC,    /* 4 bytes, little-endian: CRC-32 of a tensor's range, which ended before */
	FILE_BEGIN,  /* a tensor's range begins; no bytes */
	FILE_END,
};

struct file_piece {
	enum file_piece_kind kind;
	uint64_t at, nbytes; /* in the file */
	size_t bytes_at;     /* FILE_BYTES: offset in the plan's bytes */
	size_t tensor;       /* all others: the caller's number of the tensor */
};

/* Zero-initialise. */
struct piece_plan {
	struct buf bytes;
	size_t n_placed;               /* number of the bytes that are in pieces */
	VEC(struct file_piece) pieces; /* ascending by at */
	uint64_t nbytes;               /* of all pieces */
};

void piece_plan_clear(struct piece_plan *plan); /* usable as PAWL_CLEAN(piece_plan_clear) */
/* Where in the file the next byte goes. */
uint64_t piece_plan_end(const struct piece_plan *plan);
/* FILE_TENSOR, FILE_BEGIN or FILE_END. */
int piece_plan_add(struct piece_plan *plan, enum file_piece_kind kind, size_t tensor, uint64_t nbytes,
                   struct pawl_error *err);
/* The four bytes at that offset of plan->bytes become the CRC-32 of the tensor's range. */
int piece_plan_add_crc(struct piece_plan *plan, size_t tensor, size_t bytes_at, struct pawl_error *err);
/* All of plan->bytes are in pieces afterwards. */
int piece_plan_finish(struct piece_plan *plan, struct pawl_error *err);
/* The first piece that ends after offset; plan->pieces.n = none. */
size_t piece_plan_find(const struct piece_plan *plan, uint64_t offset);

#endif
