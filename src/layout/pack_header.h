/* SPDX-License-Identifier: Apache-2.0 */
/* pack_header: what a pack's header records about the run and its tensors. Pure. */
#ifndef PAWL_PACK_HEADER_H
#define PAWL_PACK_HEADER_H

#include <stdbool.h>

#include "base/json.h"
#include "format/safetensors/safetensors.h"

/* True if the run with that id wrote this pack. */
bool pack_header_is_of_run(const struct st_table *table, const char *run_id);

/* A tensor in one pack: its global dtype and shape, and the box of it that the pack holds. */
struct pack_header_box {
	int dtype;
	uint32_t ndim;
	const uint64_t *shape, *offsets, *lengths;
};
/* Reads the tensor's entry in the header. Shards and complex128 also have one in "pawl.tensors"
 * (else NULL). PAWL_ECORRUPT if the two contradict each other. The memory is the bump's and the
 * header's. */
int pack_header_read_box(const struct st_tensor *st, const struct json *special, struct bump *memory,
                         struct pack_header_box *ret, struct pawl_error *err);

#endif
