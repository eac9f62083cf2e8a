/* SPDX-License-Identifier: Apache-2.0 */
/* cast: converts floats of one dtype to another. Rounds to nearest, ties to even. Too large values
 * become infinite; NaN stays NaN. Pure. */
#ifndef PAWL_CAST_H
#define PAWL_CAST_H

#include <stdbool.h>
#include <stddef.h>

#include "pawl.h"

/* F16, BF16, F32 and F64 can be cast to each other. */
bool cast_is_float(int dtype);
/* "bf16", "fp16", "fp32", "fp64", pawl's own and torch's names of these; 0 = another name. */
int cast_dtype(const char *name);
/* n numbers; both dtypes are such floats. The buffers do not overlap and need no alignment. */
void cast_floats(int from, const void *src, int to, void *dst, size_t n);

#endif
