/* SPDX-License-Identifier: Apache-2.0 */
/* convert: elements of every dtype as doubles, and the largest difference of two tensors. Pure. */
#ifndef PAWL_CONVERT_H
#define PAWL_CONVERT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pawl.h"

/* Numbers in one element: 2 for complex dtypes (real, imaginary), else 1. */
unsigned convert_parts(int dtype);
/* Number `index` of an array; of complex ones, index counts parts. 64-bit integers are rounded to doubles. */
double convert_get(int dtype, const void *ptr, uint64_t index);
/* The n numbers from `first` on. */
void convert_doubles(int dtype, const void *ptr, uint64_t first, size_t n, double *out);

/* Differences found so far; zero-initialise. */
struct convert_difference {
	bool differs;    /* some element has other bits, and not both are NaN */
	double max_abs;  /* |a - b|, of complex numbers the modulus; infinite where only one is NaN */
	double max_rel;  /* |a - b| / max(|a|, |b|) */
};
/* Adds n elements. Together they must be whole bytes. Integers are compared exactly. */
void convert_compare(int dtype, const void *a, const void *b, uint64_t n, struct convert_difference *d);

#endif
