/* SPDX-License-Identifier: Apache-2.0 */
/* finite: looks for NaN and infinities in the bytes of a tensor. Pure. */
#ifndef PAWL_BASE_FINITE_H
#define PAWL_BASE_FINITE_H

#include <stdbool.h>
#include <stddef.h>

#include "pawl.h"

/* n bytes of complete elements; they need no alignment. True if none is NaN or infinite, and of a
 * dtype that has neither. */
bool finite_all(int dtype, const void *bytes, size_t n);

#endif
