/* SPDX-License-Identifier: Apache-2.0 */
/* cast: floating numbers of one dtype as another: rounded to the nearest, of two equally near ones to the even; what is too
 * large becomes infinite, NaN stays NaN. Pure. */
#ifndef PAWL_CAST_H
#define PAWL_CAST_H

#include <stdbool.h>
#include <stddef.h>

#include "pawl.h"

/* F16, BF16, F32 and F64: what is cast, and what it can be cast to. */
bool cast_is_float(int dtype);
/* "bf16", "fp16", "fp32", "fp64", pawl's own and torch's names of these; 0 = none of them. */
int cast_dtype(const char *name);
/* n numbers; both dtypes are such floats. The memories do not overlap and need no alignment. */
void cast_floats(int from, const void *src, int to, void *dst, size_t n);

#endif
