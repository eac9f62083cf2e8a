/* SPDX-License-Identifier: Apache-2.0 */
/* numbers: elements of every dtype as doubles, and the largest difference of two tensors. Pure. */
#ifndef PAWL_NUMBERS_H
#define PAWL_NUMBERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pawl.h"

/* Numbers in one element: 2 for complex dtypes (real, imaginary), else 1. */
unsigned numbers_parts(int dtype);
/* Number `index` of an array; for complex dtypes, index counts parts. 64-bit integers are rounded
 * to doubles. */
double numbers_get(int dtype, const void *ptr, uint64_t index);

/* Differences found so far; zero-initialise. */
struct numbers_difference {
	bool differs;   /* some element has other bits, and is not NaN on both sides */
	double max_abs; /* |a - b|, for complex numbers the modulus; infinite if only one is NaN */
	double max_rel; /* |a - b| / max(|a|, |b|) */
};
/* Adds n elements. Together they must be a whole number of bytes. Integers are compared exactly. */
void numbers_compare(int dtype, const void *a, const void *b, uint64_t n, struct numbers_difference *d);

#endif
