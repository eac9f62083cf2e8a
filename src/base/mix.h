/* SPDX-License-Identifier: Apache-2.0 */
/* mix: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014). A search that is resumed draws its numbers
 * anew from the seed, so they must never change. */
#ifndef PAWL_BASE_MIX_H
#define PAWL_BASE_MIX_H

#include <stdint.h>

/* 2^64 divided by the golden ratio: the step of a counter whose values are mixed. Its multiples
 * are spread over all 64 bits. */
#define MIX_STEP UINT64_C(0x9e3779b97f4a7c15)

/* Every bit of the result depends on all 64 bits. */
static inline uint64_t
mix_bits(uint64_t z)
{
	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

/* A number in [0, 1) from mixed bits. */
static inline double
mix_unit(uint64_t bits)
{
	return (double)(bits >> 11) * 0x1p-53;
}

#endif
