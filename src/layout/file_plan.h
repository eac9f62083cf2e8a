/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file_plan: the layout of a single file with a state in it, before any tensor is read. It has
 * constant bytes, complete tensors, and CRC-32s of tensors, in order and without gaps. Pure.
 */
#ifndef PAWL_FILE_PLAN_H
#define PAWL_FILE_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "pawl.h"

enum file_piece_kind {
	FILE_BYTES,
	FILE_TENSOR, /* its logical contents in C order */
	FILE_CRC     /* 4 bytes, little-endian: CRC-32 of an earlier tensor */
};

struct file_piece {
	enum file_piece_kind kind;
	uint64_t at, nbytes; /* in the file */
	size_t bytes_at;     /* FILE_BYTES: offset in the plan's bytes */
	size_t tensor;       /* FILE_TENSOR, FILE_CRC: row of the state's table */
};

/* Zero-initialise; it borrows nothing from the state. */
struct file_plan {
	struct buf bytes;
	struct file_piece *pieces; /* ascending by at */
	size_t n, cap;
	uint64_t nbytes; /* of the file */
};

struct file_plan_opts {
	const char *stem; /* of the file's name: the folder that holds all records of a .pt */
	bool raw_pickle;  /* .pt: see pawl_file_opts */
};

/* A state that the format cannot hold is PAWL_EUNSUPPORTED, naming the path and the type. */
int file_plan_pt(const struct pawl_state *state, const struct file_plan_opts *opts, struct file_plan *ret,
                 struct pawl_error *err);
/* All tensors. The metadata holds the tree with all other values, as in a checkpoint's first
 * pack. */
int file_plan_safetensors(const struct pawl_state *state, const struct file_plan_opts *opts, struct file_plan *ret,
                          struct pawl_error *err);
/* torch's name for a dtype, without "torch."; NULL = it has none. */
const char *file_plan_torch_dtype(int dtype);
void file_plan_clear(struct file_plan *plan);
/* The first piece that ends after offset; plan->n = none. */
size_t file_plan_at(const struct file_plan *plan, uint64_t offset);

/* For file_pt.c: appends a piece. bytes: those from bytes_at up to the end of plan->bytes; no piece
 * if there are none. */
int file_plan_bytes(struct file_plan *plan, size_t bytes_at, struct pawl_error *err);
int file_plan_tensor(struct file_plan *plan, size_t tensor, uint64_t nbytes, struct pawl_error *err);
int file_plan_crc(struct file_plan *plan, size_t tensor, struct pawl_error *err);

#endif
