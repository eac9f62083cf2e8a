/* SPDX-License-Identifier: Apache-2.0 */
/* file_plan: lays out a single file with a state in it, before any tensor is read. Pure. */
#ifndef PAWL_FILE_PLAN_H
#define PAWL_FILE_PLAN_H

#include <stdbool.h>

#include "layout/piece_plan.h"
#include "pawl.h"

struct file_plan_opts {
	const char *stem;    /* of the file's name: the folder that holds all records of a .pt */
	bool raw_pickle;     /* .pt: see pawl_file_opts */
	size_t first_tensor; /* number of the state's first tensor in the plan */
};

/* Appends the file to the plan, and borrows nothing from the state. A state that the format cannot
 * hold is PAWL_EUNSUPPORTED, naming the path and the type. */
int file_plan_pt(const struct pawl_state *state, const struct file_plan_opts *opts, struct piece_plan *ret,
                 struct pawl_error *err);
/* All tensors. The metadata holds the tree with all other values, as in a checkpoint's first
 * pack. */
int file_plan_safetensors(const struct pawl_state *state, const struct file_plan_opts *opts, struct piece_plan *ret,
                          struct pawl_error *err);
/* torch's name for a dtype, without "torch."; NULL = it has none. */
const char *file_plan_torch_dtype(int dtype);

#endif
