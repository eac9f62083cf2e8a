/* SPDX-License-Identifier: Apache-2.0 */
/*
 * planes: see planes.h. Each plane becomes one zstd frame, is stored as it is, or is one repeated
 * byte. Promise P17.
 */
#include "format/codec/planes.h"

#include <string.h>
#include <zstd.h>

/* The values are part of the format. */
enum plane_form { PLANE_STORED, PLANE_REPEATED, PLANE_ZSTD };
#define MAX_WIDTH PLANES_MAX_WIDTH
#define N_WIDTHS 4u

/* The width is chosen from this many runs of numbers, spread over the segment. */
#define N_RUNS 16u
#define RUN_NUMBERS 64u
#define SAMPLE_NUMBERS (N_RUNS * RUN_NUMBERS)
/* Bits for 256 bytes of a plane. A plane of higher entropy is stored without a try. */
#define HOPELESS_BITS (256u * 15 / 2)

struct planes_encoder {
	ZSTD_CCtx *zstd;
	unsigned char planes[PLANES_SEGMENT_BYTES];
};

struct planes_decoder {
	ZSTD_DCtx *zstd;
	unsigned char planes[PLANES_SEGMENT_BYTES];
};

/* Planes of weights have no repeated strings. These parameters leave little more of zstd than its
 * Huffman coder, at more than twice the speed of its level 1. */
static bool
set_parameters(ZSTD_CCtx *zstd)
{
	static const struct {
		ZSTD_cParameter name;
		int value;
	} parameters[] = {{ZSTD_c_strategy, ZSTD_fast}, {ZSTD_c_minMatch, 7},     {ZSTD_c_hashLog, 6},
	                  {ZSTD_c_windowLog, 17},       {ZSTD_c_targetLength, 0}, {ZSTD_c_contentSizeFlag, 0}};

	for (size_t i = 0; i < sizeof(parameters) / sizeof(parameters[0]); i++) {
		if (ZSTD_isError(ZSTD_CCtx_setParameter(zstd, parameters[i].name, parameters[i].value)))
			return false;
	}
	return true;
}

struct planes_encoder *
planes_encoder_new(void)
{
	struct planes_encoder *e = mem_alloc(sizeof(*e));

	if (!e)
		return NULL;
	e->zstd = ZSTD_createCCtx();
	if (e->zstd && set_parameters(e->zstd))
		return e;
	planes_encoder_free(e);
	return NULL;
}

void
planes_encoder_free(struct planes_encoder *e)
{
	if (!e)
		return;
	ZSTD_freeCCtx(e->zstd);
	mem_free(e);
}

struct planes_decoder *
planes_decoder_new(void)
{
	struct planes_decoder *d = mem_alloc(sizeof(*d));

	if (!d)
		return NULL;
	d->zstd = ZSTD_createDCtx();
	if (d->zstd)
		return d;
	planes_decoder_free(d);
	return NULL;
}

void
planes_decoder_free(struct planes_decoder *d)
{
	if (!d)
		return;
	ZSTD_freeDCtx(d->zstd);
	mem_free(d);
}

/* ------------------------------------------------------- numbers <-> planes */

/* Loops of a known length become wide instructions. */
#define STEP 64u
#define ALWAYS_INLINE __attribute__((always_inline)) inline

/* n numbers of one width from src to their planes, which start at `to`. */
#define SPLIT(name, type, bits)                                                               \
	static ALWAYS_INLINE void name(const unsigned char *src, size_t n, unsigned char *to) \
	{                                                                                     \
		size_t i = 0;                                                                 \
                                                                                              \
		for (; n - i >= STEP; i += STEP) {                                            \
			type x[STEP];                                                         \
			memcpy(x, src + i * sizeof(type), sizeof(x));                         \
			for (unsigned k = 0; k < STEP; k++)                                   \
				x[k] = (type)(x[k] << 1 | x[k] >> (bits - 1));                \
			for (unsigned plane = 0; plane < sizeof(type); plane++) {             \
				unsigned char *p = to + plane * n + i;                        \
				for (unsigned k = 0; k < STEP; k++)                           \
					p[k] = (unsigned char)(x[k] >> (8 * plane));          \
			}                                                                     \
		}                                                                             \
		for (; i < n; i++) {                                                          \
			type x;                                                               \
			memcpy(&x, src + i * sizeof(type), sizeof(x));                        \
			x = (type)(x << 1 | x >> (bits - 1));                                 \
			for (unsigned plane = 0; plane < sizeof(type); plane++)               \
				to[plane * n + i] = (unsigned char)(x >> (8 * plane));        \
		}                                                                             \
	}
#define JOIN(name, type, bits)                                                                           \
	static ALWAYS_INLINE void name(const unsigned char *const *planes, size_t n, unsigned char *to)  \
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

static ALWAYS_INLINE void
split_by_width(unsigned width, const unsigned char *src, size_t n, unsigned char *to)
{
	switch (width) {
	case 2:
		split2(src, n, to);
		break;
	case 4:
		split4(src, n, to);
		break;
	case 8:
		split8(src, n, to);
		break;
	default:
		memcpy(to, src, n);
	}
}

static ALWAYS_INLINE void
join_by_width(unsigned width, const unsigned char *const *planes, size_t n, unsigned char *to)
{
	switch (width) {
	case 2:
		join2(planes, n, to);
		break;
	case 4:
		join4(planes, n, to);
		break;
	case 8:
		join8(planes, n, to);
		break;
	default:
		memcpy(to, planes[0], n);
	}
}

#if defined(__x86_64__)

__attribute__((target("avx2"))) static void
split_avx2(unsigned width, const unsigned char *src, size_t n, unsigned char *to)
{
	split_by_width(width, src, n, to);
}

__attribute__((target("avx2"))) static void
join_avx2(unsigned width, const unsigned char *const *planes, size_t n, unsigned char *to)
{
	join_by_width(width, planes, n, to);
}

static bool
has_avx2(void)
{
	return __builtin_cpu_supports("avx2") != 0;
}

#else
#define split_avx2 split_by_width
#define join_avx2 join_by_width

static bool
has_avx2(void)
{
	return false;
}

#endif

static void
split_planes(unsigned width, const unsigned char *src, size_t n, unsigned char *to)
{
	if (has_avx2())
		split_avx2(width, src, n, to);
	else
		split_by_width(width, src, n, to);
}

static void
join_planes(unsigned width, const unsigned char *const *planes, size_t n, unsigned char *to)
{
	if (has_avx2())
		join_avx2(width, planes, n, to);
	else
		join_by_width(width, planes, n, to);
}

/* ------------------------------------------------------- what a plane costs */

/* log2 in 256ths, without fractions, so that every machine makes the same choice. */
static uint32_t
log2_256(uint32_t x)
{
	const unsigned top = 31u - (unsigned)__builtin_clz(x);

	return top * 256u + (uint32_t)(((uint64_t)x << 8 >> top) & 255u);
}

/* The entropy of the sample: bits for 256 bytes. */
static uint32_t
measure_entropy(const unsigned char *sample)
{
	uint16_t counts[256] = {0};
	uint32_t sum = 0;

	for (unsigned i = 0; i < SAMPLE_NUMBERS; i++)
		counts[sample[i]]++;
	for (unsigned i = 0; i < 256; i++) {
		if (counts[i])
			sum += counts[i] * (log2_256(SAMPLE_NUMBERS) - log2_256(counts[i]));
	}
	return sum / SAMPLE_NUMBERS;
}

/* The cost of each plane for one width, from a sample. Returns their mean. */
static uint32_t
measure_width(const unsigned char *src, size_t n, unsigned width, uint32_t ret[MAX_WIDTH])
{
	unsigned char sample[SAMPLE_NUMBERS * MAX_WIDTH], planes[SAMPLE_NUMBERS * MAX_WIDTH];
	const size_t n_numbers = n / width, run_bytes = (size_t)RUN_NUMBERS * width;
	uint32_t sum = 0;

	for (unsigned i = 0; i < N_RUNS; i++) {
		const size_t begin = (n_numbers - RUN_NUMBERS) * i / (N_RUNS - 1);
		memcpy(sample + i * run_bytes, src + begin * width, run_bytes);
	}
	split_planes(width, sample, SAMPLE_NUMBERS, planes);
	for (unsigned plane = 0; plane < width; plane++) {
		ret[plane] = measure_entropy(planes + (size_t)plane * SAMPLE_NUMBERS);
		sum += ret[plane] < HOPELESS_BITS ? ret[plane] : 8 * 256;
	}
	return sum / width;
}

/* The width that costs least, and what its planes cost. Of equal widths, the smallest. */
static unsigned
choose_width(const unsigned char *src, size_t n, uint32_t ret[MAX_WIDTH])
{
	uint32_t least = UINT32_MAX, costs[MAX_WIDTH] = {0};
	unsigned best = 1;

	memset(ret, 0, MAX_WIDTH * sizeof(*ret));
	if (n < SAMPLE_NUMBERS * MAX_WIDTH) /* too small for a sample */
		return 1;
	for (unsigned i = 0; i < N_WIDTHS; i++) {
		const uint32_t cost = measure_width(src, n, 1u << i, costs);
		if (cost >= least - least / 32) /* by chance, numbers in pairs look slightly better than alone */
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
	for (unsigned i = 0; i < 4; i++)
		to[i] = (unsigned char)(value >> (8 * i));
}

static bool
is_repeated(const unsigned char *plane, size_t n)
{
	return n > 0 && (n == 1 || memcmp(plane, plane + 1, n - 1) == 0);
}

static unsigned char *
put_plane(struct planes_encoder *e, const unsigned char *plane, size_t n, uint32_t cost, unsigned char *to)
{
	if (is_repeated(plane, n)) {
		*to++ = PLANE_REPEATED;
		*to++ = plane[0];
		return to;
	}
	const size_t most = n - n / 64; /* a frame that saves less takes longer to read than it is worth */
	if (cost < HOPELESS_BITS && most > 4) {
		const size_t size = ZSTD_compress2(e->zstd, to + 5, most - 4, plane, n);
		if (!ZSTD_isError(size)) { /* it is one if the frame does not fit */
			*to = PLANE_ZSTD;
			put_u32(to + 1, (uint32_t)size);
			return to + 5 + size;
		}
	}
	*to++ = PLANE_STORED;
	memcpy(to, plane, n);
	return to + n;
}

unsigned char *
planes_encode(struct planes_encoder *e, const unsigned char *src, size_t n, unsigned char *to)
{
	uint32_t costs[MAX_WIDTH];
	const unsigned width = choose_width(src, n, costs);
	const size_t n_numbers = n / width, n_rest = n % width;

	*to++ = (unsigned char)width;
	split_planes(width, src, n_numbers, e->planes);
	for (unsigned plane = 0; plane < width; plane++)
		to = put_plane(e, e->planes + plane * n_numbers, n_numbers, costs[plane], to);
	memcpy(to, src + n - n_rest, n_rest);
	return to + n_rest;
}

/* ------------------------------------------------------------------ reading */

static uint32_t
get_u32(const unsigned char *p)
{
	return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* The next n bytes of the input, or NULL if there are fewer. */
static const unsigned char *
take_bytes(struct planes_input *in, size_t n)
{
	const unsigned char *p = in->ptr;

	if (n > in->n)
		return NULL;
	in->ptr += n;
	in->n -= n;
	return p;
}

static const unsigned char *
decode_zstd(struct planes_decoder *d, struct planes_input *in, size_t n, unsigned char *room, const char **why)
{
	const unsigned char *p = take_bytes(in, 4);
	const size_t size = p ? get_u32(p) : 0;

	p = p ? take_bytes(in, size) : NULL;
	if (!p)
		return NULL;
	*why = "a zstd frame of a plane is damaged";
	return ZSTD_decompressDCtx(d->zstd, room, n, p, size) == n ? room : NULL;
}

/* The n bytes of a plane, either in the input itself or decoded into `room`. On NULL, *why is
 * set. */
static const unsigned char *
take_plane(struct planes_decoder *d, struct planes_input *in, size_t n, unsigned char *room, const char **why)
{
	const unsigned char *form = take_bytes(in, 1), *p;

	*why = "a plane is longer than the frame";
	if (!form)
		return NULL;
	switch (*form) {
	case PLANE_STORED:
		return take_bytes(in, n);
	case PLANE_REPEATED:
		p = take_bytes(in, 1);
		if (p)
			memset(room, *p, n);
		return p ? room : NULL;
	case PLANE_ZSTD:
		return decode_zstd(d, in, n, room, why);
	default:
		*why = "a plane has an unknown form";
		return NULL;
	}
}

bool
planes_decode(struct planes_decoder *d, struct planes_input *in, unsigned char *out, size_t n, const char **why)
{
	const unsigned char *planes[MAX_WIDTH], *head = take_bytes(in, 1);
	const unsigned width = head ? *head : 0;

	*why = "the numbers of a segment are not 1, 2, 4 or 8 bytes wide";
	if (width != 1 && width != 2 && width != 4 && width != 8)
		return false;
	const size_t n_numbers = n / width, n_rest = n % width;
	for (unsigned plane = 0; plane < width; plane++) {
		planes[plane] = take_plane(d, in, n_numbers, d->planes + plane * n_numbers, why);
		if (!planes[plane])
			return false;
	}
	join_planes(width, planes, n_numbers, out);
	const unsigned char *end = take_bytes(in, n_rest);
	*why = "a segment is longer than the frame";
	if (end)
		memcpy(out + n - n_rest, end, n_rest);
	return end != NULL;
}
