/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cast: see cast.h. Everything goes through floats, a block at a time. The loops have no branches,
 * so that compilers vectorise them.
 *
 * A double that becomes 16 bits is first rounded to a float "to odd": towards zero, with the last
 * bit set if anything was lost. A float has enough extra bits that the second rounding then gives
 * the result of a single one.
 */
#include "layout/cast.h"

#include <fenv.h>
#include <stdint.h>
#include <string.h>

#define BLOCK 1024u

bool
cast_is_float(int dtype)
{
	return dtype == PAWL_F16 || dtype == PAWL_BF16 || dtype == PAWL_F32 || dtype == PAWL_F64;
}

int
cast_dtype(const char *name)
{
	static const struct {
		const char *name;
		int dtype;
	} names[] = {
		{"fp16", PAWL_F16}, {"f16", PAWL_F16},   {"F16", PAWL_F16},       {"float16", PAWL_F16},
		{"half", PAWL_F16}, {"bf16", PAWL_BF16}, {"bfloat16", PAWL_BF16}, {"BF16", PAWL_BF16},
		{"fp32", PAWL_F32}, {"f32", PAWL_F32},   {"float32", PAWL_F32},   {"F32", PAWL_F32},
		{"fp64", PAWL_F64}, {"f64", PAWL_F64},   {"float64", PAWL_F64},   {"F64", PAWL_F64},
	};
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (strcmp(names[i].name, name) == 0)
			return names[i].dtype;
	}
	return 0;
}

/* ------------------------------------------------------------------ to floats */

static void
floats_of_f16(const unsigned char *src, float *out, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint16_t code;
		memcpy(&code, src + 2 * i, 2);
		/* Moves the fields to their places in a float, whose bias is larger by 112. */
		uint32_t bits = (uint32_t)(code & 0x7fff) << 13;
		float value;
		memcpy(&value, &bits, 4);
		value *= 0x1p112f;
		memcpy(&bits, &value, 4);
		bits |= (code & 0x7c00) == 0x7c00 ? 0x7f800000u | (uint32_t)(code & 0x3ff) << 13 : 0;
		bits |= (uint32_t)(code & 0x8000) << 16;
		memcpy(&out[i], &bits, 4);
	}
}

static void
floats_of_bf16(const unsigned char *src, float *out, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint16_t code;
		memcpy(&code, src + 2 * i, 2);
		const uint32_t bits = (uint32_t)code << 16;
		memcpy(&out[i], &bits, 4);
	}
}

static void
floats_of_f64(const unsigned char *src, float *out, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		double value;
		memcpy(&value, src + 8 * i, 8);
		out[i] = (float)value;
	}
}

static void
odd_floats_of_f64(const unsigned char *src, float *out, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		double value, size;
		uint32_t bits;
		memcpy(&value, src + 8 * i, 8);
		const float nearest = (float)value;
		const double back = (double)nearest;
		size = value < 0 ? -value : value;
		const double back_size = back < 0 ? -back : back;
		memcpy(&bits, &nearest, 4);
		bits -= back_size > size ? 1 : 0; /* one closer to zero */
		bits |= back != value ? 1 : 0;    /* NaN stays NaN, too */
		memcpy(&out[i], &bits, 4);
	}
}

static void
to_floats(int from, const unsigned char *src, int to, float *out, size_t n)
{
	switch (from) {
	case PAWL_F16:
		floats_of_f16(src, out, n);
		break;
	case PAWL_BF16:
		floats_of_bf16(src, out, n);
		break;
	case PAWL_F32:
		memcpy(out, src, n * 4);
		break;
	default:
		if (to == PAWL_F32)
			floats_of_f64(src, out, n);
		else
			odd_floats_of_f64(src, out, n);
	}
}

/* ---------------------------------------------------------------- from floats */

static void
floats_to_f16(const float *in, unsigned char *dst, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint32_t bits, small;
		memcpy(&bits, &in[i], 4);
		const uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
		float value;
		memcpy(&value, &size, 4);
		value += 0.5f; /* its last bit is the least F16, so the addition rounds correctly */
		memcpy(&small, &value, 4);
		small -= 0x3f000000;
		const uint32_t usual = (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13;
		uint32_t code = size < 0x38800000 ? small : usual;
		code = size >= 0x47800000 ? 0x7c00 : code;
		code = size > 0x7f800000 ? 0x7e00 | (size >> 13 & 0x3ff) : code;
		const uint16_t half = (uint16_t)(code | sign);
		memcpy(dst + 2 * i, &half, 2);
	}
}

static void
floats_to_bf16(const float *in, unsigned char *dst, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint32_t bits;
		memcpy(&bits, &in[i], 4);
		const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
		const uint32_t code = (bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : rounded;
		const uint16_t half = (uint16_t)code;
		memcpy(dst + 2 * i, &half, 2);
	}
}

static void
floats_to_f64(const float *in, unsigned char *dst, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const double value = (double)in[i];
		memcpy(dst + 8 * i, &value, 8);
	}
}

static void
from_floats(int to, const float *in, unsigned char *dst, size_t n)
{
	switch (to) {
	case PAWL_F16:
		floats_to_f16(in, dst, n);
		break;
	case PAWL_BF16:
		floats_to_bf16(in, dst, n);
		break;
	case PAWL_F32:
		memcpy(dst, in, n * 4);
		break;
	default:
		floats_to_f64(in, dst, n);
	}
}

void
cast_floats(int from, const void *src, int to, void *dst, size_t n)
{
	const size_t src_bytes = pawl_dtype_bits(from) / 8, dst_bytes = pawl_dtype_bits(to) / 8;
	const unsigned char *in = src;
	unsigned char *out = dst;
	float floats[BLOCK];
	fenv_t callers;

	if (from == to) {
		memcpy(dst, src, n * src_bytes);
		return;
	}
	/* A thread may flush small floats to zero (torch.set_flush_denormal), or round in another
	 * way. Threads inherit that. */
	fegetenv(&callers);
	fesetenv(FE_DFL_ENV);
	for (size_t left = n; left > 0;) {
		const size_t take = left < BLOCK ? left : BLOCK;
		to_floats(from, in, to, floats, take);
		from_floats(to, floats, out, take);
		in += take * src_bytes;
		out += take * dst_bytes;
		left -= take;
	}
	fesetenv(&callers);
}
