/* SPDX-License-Identifier: Apache-2.0 */
/* device_copies: the copies between a tensor of any strides and contiguous bytes. Pure. */
#ifndef PAWL_DEVICE_DEVICE_COPIES_H
#define PAWL_DEVICE_DEVICE_COPIES_H

#include "base/vec.h"
#include "pawl.h"

/* `rows` pieces of nbytes each, whose beginnings are a pitch apart. The pitches count only where
 * rows > 1, and are at least nbytes there. */
struct device_copy {
	uint64_t to, from, nbytes, rows, to_pitch, from_pitch;
};
struct device_copies {
	VEC(struct device_copy) list;
};

/* Appends the copies of bytes [offset, offset + nbytes) of the tensor in C order. `bytes` is the
 * address of the first of them in the contiguous memory. to_tensor: they go into the tensor. An
 * element has element_bytes. PAWL_ENOMEM. */
int device_copies_add(struct device_copies *out, const struct pawl_tensor *t, uint64_t element_bytes, uint64_t offset,
                      uint64_t nbytes, uint64_t bytes, bool to_tensor, struct pawl_error *err);

/* Sorts the copies, and drops those that are listed twice, as tied tensors are. The driver may do
 * the copies of a batch at the same time. */
void device_copies_drop_twins(struct device_copies *c);

void device_copies_clear(struct device_copies *c);

#endif
