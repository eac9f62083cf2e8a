/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dcp: the `.metadata` of a folder of torch.distributed.checkpoint: what was saved, and in which
 * range of which file each piece is. It sees bytes only and runs nothing (pickle.h). Every range
 * holds one piece as torch.save wrote it (pt.h).
 *
 * Limits: 4,000,000 pieces; names of 4,096 bytes; 128 attributes of an object, 64 dimensions, 1,000
 * keys of a path. File names have safe components, so that no file is outside the folder.
 * Ranges that an extension transformed (compressed) are refused.
 */
#ifndef PAWL_FORMAT_DCP_H
#define PAWL_FORMAT_DCP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bump.h"
#include "base/mem.h"
#include "format/torch/pickle.h"

#define DCP_MAX_PIECES 4000000u

struct dcp_range {
	uint32_t file; /* number in dcp.files */
	uint64_t begin, nbytes;
};

struct dcp_chunk {
	const uint64_t *offsets, *sizes; /* box in the tensor */
	struct dcp_range range;
};

struct dcp_item {
	const char *name; /* flattened: "model.w"; not terminated */
	size_t name_len;
	struct pickle_node *const
		*path; /* keys (PICKLE_STR) and indices (PICKLE_INT); NULL = the name is the only key */
	size_t n_path;
	bool is_tensor;
	int dtype; /* enum pawl_dtype; 4-bit numbers count in pairs here, as torch counts */
	uint32_t ndim;
	const uint64_t *shape;
	struct dcp_chunk *chunks; /* of a tensor */
	size_t n_chunks;
	struct dcp_range range; /* of a value */
};

struct dcp {
	const char **files; /* names in the folder */
	size_t n_files;
	struct dcp_item *items; /* in the order of the file */
	size_t n;
};

/* The bytes must stay as long as what is returned; memory is the bump's. PAWL_ECORRUPT,
 * PAWL_ELIMIT, PAWL_EUNSUPPORTED. */
int dcp_decode(const char *what, const void *ptr, size_t len, struct bump *memory, struct dcp *ret,
               struct pawl_error *err);

#endif
