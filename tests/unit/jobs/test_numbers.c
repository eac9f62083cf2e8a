/* SPDX-License-Identifier: Apache-2.0 */
/* numbers: every dtype as doubles, and the largest differences. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "helpers/small_floats.h"
#include "jobs/diff/numbers.h"

static void
check(int dtype, const void *bytes, uint64_t index, double want)
{
	double got = numbers_get(dtype, bytes, index);
	if (isnan(want) ? !isnan(got) : got != want || signbit(got) != signbit(want))
		fail_msg("%s: %g expected, %g found", pawl_dtype_name(dtype), want, got);
}

static void
check_code(int dtype, unsigned code, double want)
{
	unsigned char byte = (unsigned char)code;
	check(dtype, &byte, 0, want);
}

static void
test_integers_and_ieee_floats(void **state)
{
	(void)state;
	check(PAWL_BOOL, (uint8_t[]){0, 1}, 1, 1);
	check(PAWL_U8, (uint8_t[]){255}, 0, 255);
	check(PAWL_I8, (int8_t[]){-128}, 0, -128);
	check(PAWL_I16, (int16_t[]){0, -32768}, 1, -32768);
	check(PAWL_U16, (uint16_t[]){65535}, 0, 65535);
	check(PAWL_I32, (int32_t[]){INT32_MIN}, 0, -2147483648.0);
	check(PAWL_U32, (uint32_t[]){UINT32_MAX}, 0, 4294967295.0);
	check(PAWL_I64, (int64_t[]){INT64_MIN}, 0, -0x1p63);
	check(PAWL_U64, (uint64_t[]){UINT64_MAX}, 0, 0x1p64);
	check(PAWL_F32, (float[]){1, -0.1f}, 1, (double)-0.1f);
	check(PAWL_F64, (double[]){0.1}, 0, 0.1);
	check(PAWL_C64, (float[]){1, 2, 3, 4}, 3, 4);
	check(PAWL_C128, (double[]){1, 2, 3, 4}, 2, 3);
	assert_int_equal(numbers_parts(PAWL_C64), 2);
	assert_int_equal(numbers_parts(PAWL_F64), 1);
}

static void
test_half_floats(void **state)
{
	(void)state;
	static const struct {
		uint16_t code;
		double value;
	} rows[] = {{0x0000, 0.0},        {0x8000, -0.0},     {0x3c00, 1.0},       {0xc000, -2.0},
	            {0x7bff, 65504.0},    {0x0400, 0x1p-14},  {0x03ff, 0x3ffp-24}, {0x0001, 0x1p-24},
	            {0x3555, 0x1.554p-2}, {0x7c00, INFINITY}, {0xfc00, -INFINITY}, {0x7e01, NAN}};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		check(PAWL_F16, &rows[i].code, 0, rows[i].value);
	check(PAWL_BF16, (uint16_t[]){0x3f80}, 0, 1.0);
	check(PAWL_BF16, (uint16_t[]){0xc049}, 0, -3.140625);
	check(PAWL_BF16, (uint16_t[]){0x0001}, 0, 0x1p-133);
	check(PAWL_BF16, (uint16_t[]){0xff80}, 0, -INFINITY);
	check(PAWL_BF16, (uint16_t[]){0x7fc0}, 0, NAN);
}

static void
test_eight_bit_floats(void **state)
{
	(void)state;
	check_code(PAWL_F8_E4M3, 0x38, 1.0);
	check_code(PAWL_F8_E4M3, 0x7e, 448.0);
	check_code(PAWL_F8_E4M3, 0x01, 0x1p-9);
	check_code(PAWL_F8_E4M3, 0x80, -0.0);
	check_code(PAWL_F8_E4M3, 0x7f, NAN);
	check_code(PAWL_F8_E4M3, 0xff, NAN);
	check_code(PAWL_F8_E5M2, 0x3c, 1.0);
	check_code(PAWL_F8_E5M2, 0x7b, 57344.0);
	check_code(PAWL_F8_E5M2, 0x01, 0x1p-16);
	check_code(PAWL_F8_E5M2, 0xfc, -INFINITY);
	check_code(PAWL_F8_E5M2, 0x7d, NAN);
	check_code(PAWL_F8_E4M3FNUZ, 0x40, 1.0);
	check_code(PAWL_F8_E4M3FNUZ, 0x7f, 240.0);
	check_code(PAWL_F8_E4M3FNUZ, 0x01, 0x1p-10);
	check_code(PAWL_F8_E4M3FNUZ, 0x80, NAN);
	check_code(PAWL_F8_E5M2FNUZ, 0x40, 1.0);
	check_code(PAWL_F8_E5M2FNUZ, 0x7f, 57344.0);
	check_code(PAWL_F8_E5M2FNUZ, 0x80, NAN);
	check_code(PAWL_F8_E8M0, 127, 1.0);
	check_code(PAWL_F8_E8M0, 0, 0x1p-127);
	check_code(PAWL_F8_E8M0, 254, 0x1p127);
	check_code(PAWL_F8_E8M0, 255, NAN);
}

static void
test_packed_floats_below_a_byte(void **state)
{
	(void)state;
	static const double f4[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
	unsigned char bytes[8];
	for (unsigned i = 0; i < 8; i++)
		bytes[i] = (unsigned char)((2 * i) % 16 | (2 * i + 1) % 16 << 4);
	for (unsigned i = 0; i < 16; i++)
		check(PAWL_F4, bytes, i, i < 8 ? f4[i] : -f4[i - 8]);
	/* Codes 1, 2, 32 + 3, 31 of six bits each, from the lowest bit on. */
	const uint32_t packed = 1u | 2u << 6 | 35u << 12 | 31u << 18;
	check(PAWL_F6_E2M3, &packed, 0, 0.125);
	check(PAWL_F6_E2M3, &packed, 1, 0.25);
	check(PAWL_F6_E2M3, &packed, 2, -0.375);
	check(PAWL_F6_E2M3, &packed, 3, 7.5);
	check(PAWL_F6_E3M2, &packed, 0, 0.0625);
	check(PAWL_F6_E3M2, &packed, 1, 0.125);
	check(PAWL_F6_E3M2, &packed, 2, -0.1875);
	check(PAWL_F6_E3M2, &packed, 3, 28.0);
}

static struct numbers_difference
compare(int dtype, const void *a, const void *b, uint64_t n)
{
	struct numbers_difference d = {0};
	numbers_compare(dtype, a, b, n, &d);
	return d;
}

static void
test_largest_differences(void **state)
{
	(void)state;
	struct numbers_difference d = compare(PAWL_F32, (float[]){1, 100, 5}, (float[]){1.5f, 101, 5}, 3);
	assert_true(d.differs && d.max_abs == 1 && fabs(d.max_rel - 0.5 / 1.5) < 1e-12);
	d = compare(PAWL_F64, (double[]){1, 2}, (double[]){1, 2}, 2);
	assert_true(!d.differs && d.max_abs == 0 && d.max_rel == 0);
	d = compare(PAWL_F64, (double[]){0}, (double[]){3}, 1);
	assert_true(d.max_abs == 3 && d.max_rel == 1);
	d = compare(PAWL_BOOL, (uint8_t[]){0, 1, 1}, (uint8_t[]){0, 1, 0}, 3);
	assert_true(d.differs && d.max_abs == 1);
	d = compare(PAWL_C64, (float[]){0, 0, 1, 1}, (float[]){3, 4, 1, 1}, 2);
	assert_true(d.max_abs == 5 && d.max_rel == 1);
	d = compare(PAWL_F4, (uint8_t[]){0x21}, (uint8_t[]){0x71}, 2);
	assert_true(d.differs && d.max_abs == 5);
}

static void
test_64_bit_integers_are_compared_exactly(void **state)
{
	(void)state;
	const int64_t big = (int64_t)1 << 60;
	struct numbers_difference d = compare(PAWL_I64, (int64_t[]){big, -1}, (int64_t[]){big + 1, -1}, 2);
	assert_true(d.differs && d.max_abs == 1 && d.max_rel > 0);
	d = compare(PAWL_I64, (int64_t[]){INT64_MIN}, (int64_t[]){INT64_MAX}, 1);
	assert_true(d.max_abs == 0x1p64 && d.max_rel == 2);
	d = compare(PAWL_U64, (uint64_t[]){UINT64_MAX}, (uint64_t[]){UINT64_MAX - 2}, 1);
	assert_true(d.max_abs == 2);
}

static void
test_nan_equals_nan_and_nothing_else(void **state)
{
	(void)state;
	uint32_t quiet = 0x7fc00000, payload = 0x7fc00123;
	struct numbers_difference d = compare(PAWL_F32, &quiet, &payload, 1);
	assert_false(d.differs);
	d = compare(PAWL_F32, &quiet, (float[]){1}, 1);
	assert_true(d.differs && isinf(d.max_abs) && isinf(d.max_rel));
	d = compare(PAWL_F64, (double[]){INFINITY, 1}, (double[]){INFINITY, 2}, 2);
	assert_true(d.differs && d.max_abs == 1);
	d = compare(PAWL_F64, (double[]){INFINITY}, (double[]){-INFINITY}, 1);
	assert_true(isinf(d.max_abs) && isinf(d.max_rel));
	/* Not the same bits, though nothing is between them. */
	d = compare(PAWL_F32, (float[]){0.0f}, (float[]){-0.0f}, 1);
	assert_true(d.differs && d.max_abs == 0 && d.max_rel == 0);
}

static void
test_differences_far_into_long_arrays_are_found(void **state)
{
	(void)state;
	enum { N = 5003 };
	static uint16_t a[N], b[N];
	for (unsigned i = 0; i < N; i++)
		a[i] = b[i] = 0x3c00;
	for (unsigned i = 0; i < N; i += 1001) {
		b[i] = 0x4000;
		struct numbers_difference d = compare(PAWL_F16, a, b, N);
		assert_true(d.differs && d.max_abs == 1 && d.max_rel == 0.5);
		b[i] = 0x3c00;
	}
	b[N - 1] = 0;
	assert_false(compare(PAWL_F16, a, b, N - 1).differs);
	assert_true(compare(PAWL_F16, a, b, N).differs);
}

static void
test_small_floats_are_compared_in_a_thread_that_flushes_them_to_zero(void **state)
{
	(void)state;
	static const float a[] = {0x1p-149f, -0x1p-130f, 0x1p-24f}, b[] = {0x1p-148f, -0x1p-130f, 0x1p-24f};
	struct numbers_difference found = {0};

	if (!flush_small_floats(true))
		skip();
	numbers_compare(PAWL_F32, a, b, 3, &found);
	volatile float small = a[0];
	volatile bool still_flushes = small == 0; /* volatile: compared before the next call */

	flush_small_floats(false);
	assert_true(still_flushes); /* the caller's choice stays */
	assert_true(found.differs && found.max_abs == 0x1p-149);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_integers_and_ieee_floats),
		cmocka_unit_test(test_half_floats),
		cmocka_unit_test(test_eight_bit_floats),
		cmocka_unit_test(test_packed_floats_below_a_byte),
		cmocka_unit_test(test_largest_differences),
		cmocka_unit_test(test_64_bit_integers_are_compared_exactly),
		cmocka_unit_test(test_nan_equals_nan_and_nothing_else),
		cmocka_unit_test(test_differences_far_into_long_arrays_are_found),
		cmocka_unit_test(test_small_floats_are_compared_in_a_thread_that_flushes_them_to_zero),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
