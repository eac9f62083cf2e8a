/* SPDX-License-Identifier: Apache-2.0 */
/*
 * planes: see planes.h. Compiled once for every kind of processor (src/meson.build); all give the same bytes. Called by
 * codec_planes.c, calls huffman.c. Promise P17.
 */
#include "format/codec/planes.h"

#include <string.h>

#ifndef PLANES_OPS
#define PLANES_OPS planes_generic
#endif

enum { PLANE_AS_IT_IS, PLANE_ONE_BYTE, PLANE_CODES };
#define MAX_WIDTH PLANES_MAX_WIDTH
#define N_WIDTHS 4u

/* What is looked at to choose: runs of numbers, all over the segment. */
#define RUNS 16u
#define RUN 64u
#define SAMPLE (RUNS * RUN)
/* Of a plane, in bits per 256 bytes: above it codes are not worth a try. */
#define HOPELESS (256u * 15 / 2)

/* ------------------------------------------------------- numbers <-> planes */

#define STEP 64u /* so that the loops below are of a known length, for wide instructions */

/* One plane's bytes, n numbers of a width, from src to `to`. */
#define SPLIT(name, type, bits)                                                        \
	static void name(const unsigned char *src, size_t n, unsigned char *to)        \
	{                                                                              \
		size_t i = 0;                                                          \
                                                                                       \
		for (; n - i >= STEP; i += STEP) {                                     \
			type x[STEP];                                                  \
			memcpy(x, src + i * sizeof(type), sizeof(x));                  \
			for (unsigned k = 0; k < STEP; k++)                            \
				x[k] = (type)(x[k] << 1 | x[k] >> (bits - 1));         \
			for (unsigned plane = 0; plane < sizeof(type); plane++) {      \
				unsigned char *p = to + plane * n + i;                 \
				for (unsigned k = 0; k < STEP; k++)                    \
					p[k] = (unsigned char)(x[k] >> (8 * plane));   \
			}                                                              \
		}                                                                      \
		for (; i < n; i++) {                                                   \
			type x;                                                        \
			memcpy(&x, src + i * sizeof(type), sizeof(x));                 \
			x = (type)(x << 1 | x >> (bits - 1));                          \
			for (unsigned plane = 0; plane < sizeof(type); plane++)        \
				to[plane * n + i] = (unsigned char)(x >> (8 * plane)); \
		}                                                                      \
	}
#define JOIN(name, type, bits)                                                                           \
	static void name(const unsigned char *const *planes, size_t n, unsigned char *to)                \
	{                                                                                                \
		size_t i = 0;                                                                            \
                                                                                                         \
		for (; n - i >= STEP; i += STEP) {                                                       \
			type x[STEP] = {0};                                                              \
			for (unsigned plane = 0; plane < sizeof(type); plane++)                          \
				for (unsigned k = 0; k < STEP; k++)                                      \
					x[k] = (type)(x[k] | (type)planes[plane][i + k] << (8 * plane)); \
			for (unsigned k = 0; k < STEP; k++)                                              \
				x[k] = (type)(x[k] >> 1 | x[k] << (bits - 1));                           \
			memcpy(to + i * sizeof(type), x, sizeof(x));                                     \
		}                                                                                        \
		for (; i < n; i++) {                                                                     \
			type x = 0;                                                                      \
			for (unsigned plane = 0; plane < sizeof(type); plane++)                          \
				x = (type)(x | (type)planes[plane][i] << (8 * plane));                   \
			x = (type)(x >> 1 | x << (bits - 1));                                            \
			memcpy(to + i * sizeof(type), &x, sizeof(x));                                    \
		}                                                                                        \
	}
SPLIT(split2, uint16_t, 16)
SPLIT(split4, uint32_t, 32)
SPLIT(split8, uint64_t, 64)
JOIN(join2, uint16_t, 16)
JOIN(join4, uint32_t, 32)
JOIN(join8, uint64_t, 64)

static void
split(unsigned width, const unsigned char *src, size_t n, unsigned char *to)
{
	if (width == 1)
		memcpy(to, src, n);
	else
		(width == 2 ? split2 : width == 4 ? split4 : split8)(src, n, to);
}

static void
join(unsigned width, const unsigned char *const *planes, size_t n, unsigned char *to)
{
	if (width == 1)
		memcpy(to, planes[0], n);
	else
		(width == 2 ? join2 : width == 4 ? join4 : join8)(planes, n, to);
}

/* ------------------------------------------------------- what a plane costs */

/* log2, 256ths of it, near enough and without fractions, so that every machine chooses alike. */
static uint32_t
log2_256(uint32_t x)
{
	const unsigned top = 31u - (unsigned)__builtin_clz(x);

	return top * 256u + (uint32_t)(((uint64_t)x << 8 >> top) & 255u);
}

/* Bits for 256 of the sample's bytes, if codes had fractions. */
static uint32_t
entropy(const unsigned char *sample)
{
	uint16_t counts[256] = {0};
	uint32_t sum = 0;

	for (unsigned i = 0; i < SAMPLE; i++)
		counts[sample[i]]++;
	for (unsigned i = 0; i < 256; i++)
		if (counts[i])
			sum += counts[i] * (log2_256(SAMPLE) - log2_256(counts[i]));
	return sum / SAMPLE;
}

/* Of each plane for one width, from a sample; returns their mean. */
static uint32_t
look(const unsigned char *src, size_t n, unsigned width, uint32_t ret[MAX_WIDTH])
{
	unsigned char sample[SAMPLE * MAX_WIDTH], planes[SAMPLE * MAX_WIDTH];
	const size_t n_numbers = n / width;
	uint32_t sum = 0;

	for (unsigned i = 0; i < RUNS; i++) {
		const size_t begin = (n_numbers - RUN) * i / (RUNS - 1);
		memcpy(sample + (size_t)i * RUN * width, src + begin * width, (size_t)RUN * width);
	}
	split(width, sample, SAMPLE, planes);
	for (unsigned plane = 0; plane < width; plane++) {
		ret[plane] = entropy(planes + (size_t)plane * SAMPLE);
		sum += ret[plane] < HOPELESS ? ret[plane] : 8 * 256;
	}
	return sum / width;
}

/* The width that costs least, the smaller one of equals; and what its planes cost. */
static unsigned
choose_width(const unsigned char *src, size_t n, uint32_t ret[MAX_WIDTH])
{
	uint32_t least = UINT32_MAX, costs[MAX_WIDTH] = {0};
	unsigned best = 1;

	memset(ret, 0, MAX_WIDTH * sizeof(*ret));
	if (n < SAMPLE * MAX_WIDTH) /* small: all are tried as bytes */
		return 1;
	for (unsigned i = 0; i < N_WIDTHS; i++) {
		const uint32_t cost = look(src, n, 1u << i, costs);
		if (cost >= least - least / 32) /* of a sample: numbers in pairs look as good as by themselves */
			continue;
		least = cost;
		best = 1u << i;
		memcpy(ret, costs, sizeof(costs));
	}
	return best;
}

/* ------------------------------------------------------------------ writing */

static void
put_u32(unsigned char *to, uint32_t value)
{
	memcpy(to, &value, sizeof(value));
}

static unsigned char *
put_plane(struct planes_packer *e, const unsigned char *plane, size_t n, uint32_t cost, unsigned char *to)
{
	if (n > 0 && (n == 1 || memcmp(plane, plane + 1, n - 1) == 0)) {
		*to++ = PLANE_ONE_BYTE;
		*to++ = plane[0];
		return to;
	}
	const size_t packed = cost < HOPELESS ? huffman_encode(&e->huffman, plane, n, n - n / 64, to + 5) : 0;
	if (packed > 0) {
		*to = PLANE_CODES;
		put_u32(to + 1, (uint32_t)packed);
		return to + 5 + packed;
	}
	*to++ = PLANE_AS_IT_IS;
	memcpy(to, plane, n);
	return to + n;
}

static unsigned char *
put_segment(struct planes_packer *e, const unsigned char *src, size_t n, unsigned char *to)
{
	uint32_t costs[MAX_WIDTH];
	const unsigned width = choose_width(src, n, costs);
	const size_t n_numbers = n / width, rest = n % width;

	*to++ = (unsigned char)width;
	split(width, src, n_numbers, e->planes);
	for (unsigned plane = 0; plane < width; plane++)
		to = put_plane(e, e->planes + plane * n_numbers, n_numbers, costs[plane], to);
	memcpy(to, src + n - rest, rest);
	return to + rest;
}

/* ------------------------------------------------------------------ reading */

static uint32_t
get_u32(const unsigned char *p)
{
	uint32_t value;

	memcpy(&value, p, sizeof(value));
	return value;
}

static const unsigned char *
take(struct planes_rest *r, size_t n)
{
	const unsigned char *p = r->ptr;

	if (n > r->n)
		return NULL;
	r->ptr += n;
	r->n -= n;
	return p;
}

/* Where the plane's bytes are: in the frame itself, or unpacked into `room`. NULL: *why. */
static const unsigned char *
take_plane(struct planes_unpacker *u, struct planes_rest *r, size_t n, unsigned char *room, const char **why)
{
	const unsigned char *how = take(r, 1), *p;

	*why = "a plane is longer than the frame";
	if (!how)
		return NULL;
	switch (*how) {
	case PLANE_AS_IT_IS:
		return take(r, n);
	case PLANE_ONE_BYTE:
		p = take(r, 1);
		if (p)
			memset(room, *p, n);
		return p ? room : NULL;
	case PLANE_CODES:
		p = take(r, 4);
		const size_t size = p ? get_u32(p) : 0;
		p = p ? take(r, size) : NULL;
		if (p)
			*why = huffman_decode(&u->huffman, p, size, room, n);
		return p && !*why ? room : NULL;
	default:
		*why = "a plane in a form that is not known";
		return NULL;
	}
}

static bool
take_segment(struct planes_unpacker *u, struct planes_rest *r, unsigned char *out, size_t n, const char **why)
{
	const unsigned char *planes[MAX_WIDTH], *head = take(r, 1);
	const unsigned width = head ? *head : 0;

	*why = "a segment whose numbers are not of 1, 2, 4 or 8 bytes";
	if (width != 1 && width != 2 && width != 4 && width != 8)
		return false;
	const size_t n_numbers = n / width, left = n % width;
	for (unsigned plane = 0; plane < width; plane++) {
		planes[plane] = take_plane(u, r, n_numbers, u->planes + plane * n_numbers, why);
		if (!planes[plane])
			return false;
	}
	join(width, planes, n_numbers, out);
	const unsigned char *end = take(r, left);
	*why = "a segment is longer than the frame";
	if (end)
		memcpy(out + n - left, end, left);
	return end != NULL;
}

const struct planes_ops PLANES_OPS = {.put = put_segment, .take = take_segment};
