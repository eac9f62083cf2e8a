/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the planes codec: what weights of each dtype shrink to; every size and kind comes
 * back; files of several dtypes. Damaged and hostile segments, without the checksums of a frame,
 * never write outside their memory.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "format/codec/codec.h"
#include "format/codec/planes.h"

#define N PLANES_SEGMENT_BYTES
#define ROOM (N + PLANES_HEAD_BYTES)

enum kind { BF16, FP16, FP32, FP64, INT64, INT8, TEXT, RANDOM, ZEROS, N_KINDS };

static uint64_t seed = 88172645463325252u;

static uint64_t
draw(void)
{
	seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
	return seed;
}

static double
draw_normal(void)
{
	const double u = ((double)(draw() >> 11) + 1) / 9007199254740993.0,
		     v = (double)(draw() >> 11) / 9007199254740992.0;

	return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* One number of a kind at p; returns its bytes. */
static size_t
draw_number(enum kind kind, double sigma, unsigned char *p)
{
	const double x = sigma * draw_normal();
	const float f = (float)x;
	uint32_t bits;

	memcpy(&bits, &f, 4);
	switch (kind) {
	case BF16: {
		const uint16_t half = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
		memcpy(p, &half, 2);
		return 2;
	}
	case FP16: { /* truncated; all of them are normal numbers or 0 */
		const int exponent = (int)(bits >> 23 & 255) - 127 + 15;
		const uint16_t half = (uint16_t)(bits >> 16 & 0x8000) |
		                      (uint16_t)(exponent > 0 ? exponent << 10 | (int)(bits >> 13 & 0x3ff) : 0);
		memcpy(p, &half, 2);
		return 2;
	}
	case FP32:
		memcpy(p, &f, 4);
		return 4;
	case FP64:
		memcpy(p, &x, 8);
		return 8;
	case INT64: {
		const int64_t i = (int64_t)(draw() % 50000);
		memcpy(p, &i, 8);
		return 8;
	}
	case INT8:
		*p = (unsigned char)(int)(20 * draw_normal());
		return 1;
	case TEXT:
		*p = (unsigned char)"etaoin shrdlu"[draw() % 13];
		return 1;
	case RANDOM:
		*p = (unsigned char)(draw() >> 32);
		return 1;
	default:
		*p = 0;
		return 1;
	}
}

static void
fill(enum kind kind, double sigma, unsigned char *p, size_t n)
{
	unsigned char number[8];

	for (size_t i = 0, size; i < n; i += size) {
		size = draw_number(kind, sigma, number);
		memcpy(p + i, number, size < n - i ? size : n - i);
	}
}

struct bench {
	struct planes_encoder *encoder;
	struct planes_decoder *decoder;
	unsigned char plain[N], packed[ROOM], back[N];
};

static struct bench *
bench_new(void)
{
	struct bench *b = malloc(sizeof(*b));

	assert_non_null(b);
	b->encoder = planes_encoder_new();
	b->decoder = planes_decoder_new();
	assert_true(b->encoder && b->decoder);
	return b;
}

static void
bench_free(struct bench *b)
{
	planes_encoder_free(b->encoder);
	planes_decoder_free(b->decoder);
	free(b);
}

/* Packs n bytes of b->plain and unpacks them; returns the packed size. */
static size_t
there_and_back(struct bench *b, size_t n)
{
	const size_t size = (size_t)(planes_encode(b->encoder, b->plain, n, b->packed) - b->packed);
	struct planes_input in = {b->packed, size};
	const char *why = NULL;

	assert_true(size <= n + PLANES_HEAD_BYTES);
	memset(b->back, 0xaa, n);
	assert_true(planes_decode(b->decoder, &in, b->back, n, &why));
	assert_int_equal(in.n, 0);
	assert_memory_equal(b->back, b->plain, n);
	return size;
}

static void
test_E11_weights_shrink_by_their_exponents(void **state)
{
	/* of 1000; and the width that is chosen */
	static const struct {
		size_t most;
		unsigned char width;
	} expected[N_KINDS] = {{680, 2}, {860, 2}, {840, 4}, {960, 8}, {300, 8}, {900, 1}, {480, 1}, {1001, 1}, {1, 1}};
	struct bench *b = bench_new();

	(void)state;
	for (unsigned kind = 0; kind < N_KINDS; kind++) {
		fill(kind, 0.02, b->plain, N);
		const size_t size = there_and_back(b, N);
		if (size * 1000 > N * expected[kind].most || b->packed[0] != expected[kind].width)
			fail_msg("kind %u: %zu of %zu bytes, width %u", kind, size, N, b->packed[0]);
	}
	bench_free(b);
}

static void
test_every_size_and_kind_comes_back(void **state)
{
	static const size_t sizes[] = {1, 2, 7, 63, 64, 65, 300, 4096, 8191, 8192, 8193, 70001, N - 1, N};
	struct bench *b = bench_new();

	(void)state;
	for (unsigned kind = 0; kind < N_KINDS; kind++) {
		for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
			fill(kind, 1, b->plain, sizes[i]);
			there_and_back(b, sizes[i]);
		}
	}
	bench_free(b);
}

static int
put_sink(void *arg, const void *ptr, size_t n, struct pawl_error *err)
{
	buf_put(arg, ptr, n);
	return buf_check(arg, "sink", err);
}

/* The segments of a file follow what is in them, without being told. */
static void
test_E11_a_file_of_several_dtypes(void **state)
{
	static const enum kind kinds[] = {FP32, BF16, RANDOM, FP64, ZEROS, INT64, FP16};
	const size_t each = 4 * N, n = each * (sizeof(kinds) / sizeof(kinds[0]));
	unsigned char *plain = malloc(n);
	struct codec_writer *w = NULL;
	struct buf packed = {0};

	(void)state;
	for (size_t i = 0; i < n / each; i++)
		fill(kinds[i], 0.02, plain + i * each, each);
	assert_int_equal(codec_writer_new(codec_of_name("x.planes"), 0, 1, put_sink, &packed, &w, NULL), 0);
	assert_int_equal(codec_writer_put(w, plain, n, NULL), 0);
	assert_int_equal(codec_writer_finish(w, NULL, NULL, NULL), 0);
	codec_writer_free(w);
	/* 0.832, 0.663, 1, 0.95, 0, 0.25, 0.86: 4.56 of 7 */
	assert_true(packed.len * 7 < n * 47 / 10);
	buf_clear(&packed);
	free(plain);
}

/* Damaged in random ways: refused, or exactly as many bytes. It never accesses memory outside of
 * what is given (the sanitizers check this: both sides are memory of their own). */
static void
test_P17_damaged_segments_lead_nowhere(void **state)
{
	struct bench *b = bench_new();
	size_t n_refused = 0;

	(void)state;
	for (unsigned round = 0; round < 600; round++) {
		const size_t n = 1 + draw() % (round % 10 ? 3000 : 60000);
		fill(round % N_KINDS, 0.02, b->plain, n);
		const size_t size = (size_t)(planes_encode(b->encoder, b->plain, n, b->packed) - b->packed);
		for (unsigned k = 0; k < 4; k++) {
			const size_t cut = k == 0 ? 1 + draw() % size : size;
			const size_t n_out = k == 3 ? 1 + draw() % (n + 50) : n;
			unsigned char *in = malloc(cut), *out = malloc(n_out);
			memcpy(in, b->packed, cut);
			for (unsigned flips = 0; k > 0 && flips < 1 + round % 3; flips++)
				in[draw() % (round % 2 && cut > 160 ? 160 : cut)] ^= (unsigned char)(1u << draw() % 8);
			struct planes_input rest = {in, cut};
			const char *why = NULL;
			const bool taken = planes_decode(b->decoder, &rest, out, n_out, &why);
			assert_true(taken ? rest.n <= cut : why != NULL);
			n_refused += !taken;
			free(in);
			free(out);
		}
	}
	assert_true(n_refused > 600); /* the control: damage is there */
	bench_free(b);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_E11_weights_shrink_by_their_exponents),
		cmocka_unit_test(test_every_size_and_kind_comes_back),
		cmocka_unit_test(test_E11_a_file_of_several_dtypes),
		cmocka_unit_test(test_P17_damaged_segments_lead_nowhere),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
