/* SPDX-License-Identifier: Apache-2.0 */
/*
 * numbers: see numbers.h. Layouts: IEEE 754 for 16 bits and more. The 8-bit floats follow the OCP
 * 8-bit floating point specification, and FNUZ (one zero, no infinities). The 4- and 6-bit floats
 * follow OCP microscaling (no infinities, no NaN), packed from the least significant bit on.
 */
#include "jobs/diff/numbers.h"

#include <complex.h>
#include <fenv.h>
#include <math.h>
#include <string.h>

#define CHUNK 1024 /* numbers converted at a time; a whole number of bytes for every dtype */

unsigned
numbers_parts(int dtype)
{
	return dtype == PAWL_C64 || dtype == PAWL_C128 ? 2 : 1;
}

/* Sign, exponent and mantissa without special values. */
static double
small_float(unsigned code, unsigned exponent_bits, unsigned mantissa_bits, int bias)
{
	const unsigned mantissa = code & ((1u << mantissa_bits) - 1);
	const unsigned exponent = (code >> mantissa_bits) & ((1u << exponent_bits) - 1);
	const int shift = bias + (int)mantissa_bits;
	double value = exponent == 0 ? ldexp(mantissa, 1 - shift)
	                             : ldexp(mantissa + (1u << mantissa_bits), (int)exponent - shift);
	return (code >> (exponent_bits + mantissa_bits)) & 1 ? -value : value;
}

static double
from_f16(uint16_t code)
{
	if ((code & 0x7c00) == 0x7c00)
		return code & 0x3ff ? (double)NAN : code & 0x8000 ? -(double)INFINITY : (double)INFINITY;
	/* Moves the fields to their places in a float, whose bias is larger by 112. */
	uint32_t bits = ((uint32_t)(code & 0x8000) << 16) | ((uint32_t)(code & 0x7fff) << 13);
	float value;
	memcpy(&value, &bits, sizeof value);
	return (double)value * 0x1p112;
}

static double
from_f8(int dtype, unsigned code)
{
	switch (dtype) {
	case PAWL_F8_E5M2:
		return from_f16((uint16_t)(code << 8));
	case PAWL_F8_E4M3:
		return (code & 0x7f) == 0x7f ? (double)NAN : small_float(code, 4, 3, 7);
	case PAWL_F8_E4M3FNUZ:
		return code == 0x80 ? (double)NAN : small_float(code, 4, 3, 8);
	case PAWL_F8_E5M2FNUZ:
		return code == 0x80 ? (double)NAN : small_float(code, 5, 2, 16);
	default: /* PAWL_F8_E8M0: powers of two */
		return code == 0xff ? (double)NAN : ldexp(1, (int)code - 127);
	}
}

static double
from_bits(int dtype, const unsigned char *bytes, uint64_t index)
{
	const unsigned bits = pawl_dtype_bits(dtype);
	const uint64_t at = index * bits;
	unsigned code = (unsigned)bytes[at / 8] >> (at % 8);
	if (at % 8 + bits > 8)
		code |= (unsigned)bytes[at / 8 + 1] << (8 - at % 8);
	code &= (1u << bits) - 1;
	if (dtype == PAWL_F4)
		return small_float(code, 2, 1, 1);
	return dtype == PAWL_F6_E2M3 ? small_float(code, 2, 3, 1) : small_float(code, 3, 2, 3);
}

#define COPY_AS(type)                                                                     \
	do {                                                                              \
		for (size_t i = 0; i < n; i++) {                                          \
			type value;                                                       \
			memcpy(&value, bytes + (first + i) * sizeof value, sizeof value); \
			out[i] = (double)value;                                           \
		}                                                                         \
	} while (0)

/* The n numbers from `first` on. */
static void
numbers_doubles(int dtype, const void *ptr, uint64_t first, size_t n, double *out)
{
	const unsigned char *bytes = ptr;
	switch (dtype) {
	case PAWL_BOOL:
	case PAWL_U8:
		COPY_AS(uint8_t);
		break;
	case PAWL_I8:
		COPY_AS(int8_t);
		break;
	case PAWL_I16:
		COPY_AS(int16_t);
		break;
	case PAWL_U16:
		COPY_AS(uint16_t);
		break;
	case PAWL_I32:
		COPY_AS(int32_t);
		break;
	case PAWL_U32:
		COPY_AS(uint32_t);
		break;
	case PAWL_I64:
		COPY_AS(int64_t);
		break;
	case PAWL_U64:
		COPY_AS(uint64_t);
		break;
	case PAWL_F32:
	case PAWL_C64:
		COPY_AS(float);
		break;
	case PAWL_F64:
	case PAWL_C128:
		COPY_AS(double);
		break;
	case PAWL_F16:
	case PAWL_BF16:
		for (size_t i = 0; i < n; i++) {
			uint16_t code;
			memcpy(&code, bytes + (first + i) * 2, 2);
			uint32_t wide = (uint32_t)code << 16;
			float value;
			memcpy(&value, &wide, sizeof value);
			out[i] = dtype == PAWL_BF16 ? (double)value : from_f16(code);
		}
		break;
	case PAWL_F4:
	case PAWL_F6_E2M3:
	case PAWL_F6_E3M2:
		for (size_t i = 0; i < n; i++)
			out[i] = from_bits(dtype, bytes, first + i);
		break;
	default:
		for (size_t i = 0; i < n; i++)
			out[i] = from_f8(dtype, bytes[first + i]);
	}
}

double
numbers_get(int dtype, const void *ptr, uint64_t index)
{
	double value;
	numbers_doubles(dtype, ptr, index, 1, &value);
	return value;
}

static void
add_difference(struct numbers_difference *d, double size, double largest)
{
	double relative = size == 0 ? 0 : size / largest;
	if (isnan(size))
		size = (double)INFINITY; /* one of the two is NaN */
	if (isnan(relative))
		relative = (double)INFINITY;
	d->differs = true;
	d->max_abs = size > d->max_abs ? size : d->max_abs;
	d->max_rel = relative > d->max_rel ? relative : d->max_rel;
}

static bool
same_number(double a, double b)
{
	return (a == b && signbit(a) == signbit(b)) || (isnan(a) && isnan(b));
}

static void
compare_real(const double *a, const double *b, size_t n, struct numbers_difference *d)
{
	for (size_t i = 0; i < n; i++) {
		if (!same_number(a[i], b[i]))
			add_difference(d, fabs(a[i] - b[i]), fmax(fabs(a[i]), fabs(b[i])));
	}
}

/* By cabs: programs built with hypot of glibc 2.35 do not start with an older one. */
static double
complex_magnitude(double real, double imaginary)
{
	const double parts[2] = {real, imaginary};
	double complex number; /* C: it has the layout of this array */
	memcpy(&number, parts, sizeof number);
	return cabs(number);
}

static void
compare_complex(const double *a, const double *b, size_t n, struct numbers_difference *d)
{
	for (size_t i = 0; i + 1 < n; i += 2) {
		if (same_number(a[i], b[i]) && same_number(a[i + 1], b[i + 1]))
			continue;
		/* Parts that are equal (also two infinities, two NaN) have no difference. */
		double real = same_number(a[i], b[i]) ? 0 : a[i] - b[i];
		double imaginary = same_number(a[i + 1], b[i + 1]) ? 0 : a[i + 1] - b[i + 1];
		bool lost = isnan(real) || isnan(imaginary);
		add_difference(d, lost ? (double)NAN : complex_magnitude(real, imaginary),
		               fmax(complex_magnitude(a[i], a[i + 1]), complex_magnitude(b[i], b[i + 1])));
	}
}

/* 64-bit integers: as doubles, their differences would be rounded away. */
static void
compare_wide(int dtype, const unsigned char *a, const unsigned char *b, size_t n, struct numbers_difference *d)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t x, y;
		memcpy(&x, a + i * 8, 8);
		memcpy(&y, b + i * 8, 8);
		if (x == y)
			continue;
		bool less = dtype == PAWL_I64 ? (int64_t)x < (int64_t)y : x < y;
		double from = dtype == PAWL_I64 ? (double)(int64_t)x : (double)x;
		double to = dtype == PAWL_I64 ? (double)(int64_t)y : (double)y;
		add_difference(d, (double)(less ? y - x : x - y), fmax(fabs(from), fabs(to)));
	}
}

void
numbers_compare(int dtype, const void *a, const void *b, uint64_t n, struct numbers_difference *d)
{
	const unsigned parts = numbers_parts(dtype), bits = pawl_dtype_bits(dtype) / parts;
	const unsigned char *x = a, *y = b;
	double from[CHUNK], to[CHUNK];
	fenv_t callers;

	/* A thread that flushes small floats to zero would find them equal. */
	fegetenv(&callers);
	fesetenv(FE_DFL_ENV);
	for (uint64_t left = n * parts; left > 0;) {
		const size_t take = left < CHUNK ? (size_t)left : CHUNK, nbytes = take * bits / 8;
		if (memcmp(x, y, nbytes) != 0) {
			if (dtype == PAWL_I64 || dtype == PAWL_U64) {
				compare_wide(dtype, x, y, take, d);
			} else {
				numbers_doubles(dtype, x, 0, take, from);
				numbers_doubles(dtype, y, 0, take, to);
				if (parts == 2)
					compare_complex(from, to, take, d);
				else
					compare_real(from, to, take, d);
			}
		}
		x += nbytes;
		y += nbytes;
		left -= take;
	}
	fesetenv(&callers);
}
