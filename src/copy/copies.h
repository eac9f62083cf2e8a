/* SPDX-License-Identifier: Apache-2.0 */
/* copies: what happened to each checkpoint that was copied. */
#ifndef PAWL_COPIES_H
#define PAWL_COPIES_H

#include "base/bump.h"
#include "base/mem.h"
#include "copy/copy.h"

struct pawl_copies {
	struct bump memory;
	struct pawl_copied *rows;
	size_t n, cap;
};

PAWL_DEFINE_CLEAN(struct pawl_copies, pawl_copies_free);

/* Adds a row, with copies of the texts; NULL if out of memory. The next call may move it. */
struct pawl_copied *copies_add(struct pawl_copies *c, uint64_t id, const char *name, const char *problem);
/* The figures of a copy that has succeeded. */
void copies_set(struct pawl_copied *row, const struct copy_result *result);

#endif
