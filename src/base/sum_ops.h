/* SPDX-License-Identifier: Apache-2.0 */
/* sum_ops: what each processor variant of sum provides. Private to src/base/sum*.c. */
#ifndef PAWL_BASE_SUM_OPS_H
#define PAWL_BASE_SUM_OPS_H

#include "base/sum.h"

struct sum_ops {
	const char *name;
	struct sum128 (*bytes)(const void *ptr, size_t len);
	void (*init)(struct sum_stream *s);
	void (*update)(struct sum_stream *s, const void *ptr, size_t len);
	struct sum128 (*final)(const struct sum_stream *s);
	void (*copy)(struct sum_stream *s, void *dst, const void *src, size_t len);
};

#define SUM_AHEAD 2048 /* how far copying prefetches, in bytes */

/* NULL where the compiler was not told to build the variant. */
const struct sum_ops *sum_ops_generic(void);
const struct sum_ops *sum_ops_avx2(void);
const struct sum_ops *sum_ops_avx512(void);

#endif
