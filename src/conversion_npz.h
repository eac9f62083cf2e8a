/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conversion_npz: what of a .npz file is not the arrays' contents: headers, descriptors and the directory of a zip archive
 * whose members are stored. Sums stand as zeros, for who writes the file to fill in. Pure. For conversion_plan.c.
 */
#ifndef PAWL_CONVERSION_NPZ_H
#define PAWL_CONVERSION_NPZ_H

#include "base/buf.h"

struct npz_member {
	const char *name;
	uint64_t header, nbytes; /* where its header begins in the file; of the member */
};

struct npz_builder {
	struct buf *out; /* all constant bytes, one behind the other */
	struct npz_member *members; /* room for all */
	size_t n;
	uint64_t at; /* in the file */
};

/* One more array. ends[0..2]: where in `out` its local header ends, the array's own header, and its descriptor, of which the
 * sum is left out: it stands 4 bytes behind ends[1]. PAWL_ELIMIT for a name that is too long. */
int npz_add(struct npz_builder *b, const char *name, int dtype, uint32_t ndim, const uint64_t *shape, uint64_t nbytes,
            size_t ends[3], struct pawl_error *err);
/* The directory. ends[i]: where in `out` the sum of member i is left out. */
int npz_finish(struct npz_builder *b, size_t *ends, struct pawl_error *err);

#endif
