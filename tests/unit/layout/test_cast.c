/* SPDX-License-Identifier: Apache-2.0 */
/* cast and rename: rounding at its borders, and rules of names. test_convert.py compares with the
 * results of torch and numpy. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "helpers/small_floats.h"
#include "layout/cast.h"
#include "layout/rename.h"

static uint16_t
half_of(double value, int from, int to)
{
	uint16_t code;
	const float single = (float)value;

	cast_floats(from, from == PAWL_F64 ? (const void *)&value : (const void *)&single, to, &code, 1);
	return code;
}

static void
test_halves_are_rounded_to_the_nearest_and_then_the_even(void **state)
{
	(void)state;
	static const struct {
		double value;
		uint16_t f16, bf16;
	} rows[] = {
		{1, 0x3c00, 0x3f80},
		{-0.0, 0x8000, 0x8000},
		{65504, 0x7bff, 0x4780},
		{65519.99, 0x7bff, 0x4780},
		{65520, 0x7c00, 0x4780},
		{-1e30, 0xfc00, 0xf14a},
		{0x1p-24, 0x0001, 0x3380},
		{0x1p-25, 0x0000, 0x3300},
		{0x1.8p-25, 0x0001, 0x3340},
		{0x1.8p-24, 0x0002, 0x33c0},
		{0x1.ffcp-15, 0x0400, 0x3880},
		{1 + 0x1p-11, 0x3c00, 0x3f80},
		{1 + 0x1.8p-10, 0x3c02, 0x3f80},
		{1 + 0x1p-8, 0x3c04, 0x3f80},
		{1 + 0x1.8p-7, 0x3c0c, 0x3f82},
		{INFINITY, 0x7c00, 0x7f80},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		for (int from = PAWL_F32; from <= PAWL_F64; from += PAWL_F64 - PAWL_F32) {
			if (rows[i].value == 65519.99 && from == PAWL_F32)
				continue; /* is 65520 in bits of a float */
			assert_int_equal(half_of(rows[i].value, from, PAWL_F16), rows[i].f16);
			assert_int_equal(half_of(rows[i].value, from, PAWL_BF16), rows[i].bf16);
		}
	}
}

/* A double just above the middle of two halves: rounded to a float first it would be the middle. */
static void
test_doubles_are_rounded_once(void **state)
{
	(void)state;
	assert_int_equal(half_of(1 + 0x1p-11 + 0x1p-40, PAWL_F64, PAWL_F16), 0x3c01);
	assert_int_equal(half_of(1 + 0x1p-8 + 0x1p-50, PAWL_F64, PAWL_BF16), 0x3f81);
	assert_int_equal(half_of(1 + 0x1p-11 - 0x1p-40, PAWL_F64, PAWL_F16), 0x3c00);
	assert_int_equal(half_of(-1 - 0x1p-11 - 0x1p-40, PAWL_F64, PAWL_F16), 0xbc01);
	assert_int_equal(half_of(1e300, PAWL_F64, PAWL_BF16), 0x7f80);
	assert_int_equal(half_of(1e-300, PAWL_F64, PAWL_F16), 0);
}

/* The value of a half as its format defines it: sign, exponent and fraction. */
static double
value_of_half(int dtype, unsigned code)
{
	const int n_fraction = dtype == PAWL_F16 ? 10 : 7;
	const int most = dtype == PAWL_F16 ? 31 : 255, bias = most / 2; /* of the exponent */
	const int exponent = (int)(code >> n_fraction) & most;
	const int fraction = (int)code & ((1 << n_fraction) - 1);
	const double sign = code & 0x8000 ? -1 : 1;

	if (exponent == most)
		return fraction ? NAN : sign * INFINITY;
	if (exponent == 0)
		return sign * ldexp(fraction, 1 - bias - n_fraction);
	return sign * ldexp(fraction + (1 << n_fraction), exponent - bias - n_fraction);
}

/* All 65,536 codes in both directions: the same bits, and NaN stays NaN. */
static void
test_every_half_comes_back(void **state)
{
	(void)state;
	static const int dtypes[] = {PAWL_F16, PAWL_BF16};

	for (unsigned k = 0; k < 2; k++) {
		for (unsigned code = 0; code < 65536; code++) {
			const uint16_t half = (uint16_t)code;
			float single;
			double wide;
			uint16_t back[2];

			cast_floats(dtypes[k], &half, PAWL_F32, &single, 1);
			cast_floats(dtypes[k], &half, PAWL_F64, &wide, 1);
			cast_floats(PAWL_F32, &single, dtypes[k], &back[0], 1);
			cast_floats(PAWL_F64, &wide, dtypes[k], &back[1], 1);
			const double value = value_of_half(dtypes[k], code);
			if (isnan(value)) {
				assert_true(isnan(single) && isnan(wide));
				assert_true(isnan(value_of_half(dtypes[k], back[0])));
				assert_true(isnan(value_of_half(dtypes[k], back[1])));
				continue;
			}
			assert_true((double)single == value && wide == value);
			assert_true(back[0] == half && back[1] == half);
		}
	}
}

static void
test_small_floats_are_kept_in_a_thread_that_flushes_them_to_zero(void **state)
{
	(void)state;
	static const uint16_t halves[] = {0x0001, 0x8001, 0x03ff};
	static const float singles[] = {0x1p-149f, -0x1p-130f, 0x1p-24f};
	static const double doubles[] = {0x1p-149, -0x1p-130, 0x1p-24};
	uint16_t back[3];
	float narrow[3], of_half[3];
	double wide[3];

	if (!flush_small_floats(true))
		skip();
	cast_floats(PAWL_F16, halves, PAWL_F32, of_half, 3);
	cast_floats(PAWL_F32, of_half, PAWL_F16, back, 3);
	cast_floats(PAWL_F32, singles, PAWL_F64, wide, 3);
	cast_floats(PAWL_F64, doubles, PAWL_F32, narrow, 3);
	volatile float small = singles[0];
	volatile bool still_flushes = small == 0; /* volatile: compared before the next call */

	flush_small_floats(false);
	assert_true(still_flushes); /* the caller's choice stays */
	assert_true(of_half[0] == 0x1p-24f && of_half[1] == -0x1p-24f);
	assert_memory_equal(back, halves, sizeof(halves));
	assert_memory_equal(wide, doubles, sizeof(doubles));
	assert_memory_equal(narrow, singles, sizeof(singles));
}

static void
test_names_of_dtypes(void **state)
{
	(void)state;
	assert_true(cast_dtype("bf16") == PAWL_BF16 && cast_dtype("float16") == PAWL_F16 &&
	            cast_dtype("F64") == PAWL_F64);
	assert_true(cast_dtype("int8") == 0 && cast_dtype("") == 0 && cast_dtype("fp8") == 0);
	assert_true(cast_is_float(PAWL_F32) && !cast_is_float(PAWL_C64) && !cast_is_float(PAWL_F8_E4M3));
}

static void
assert_renamed(const char *rule, const char *name, const char *expected)
{
	PAWL_CLEAN(buf_clear) struct buf out = {0};
	struct pawl_error err = {0};

	if (rename_check(rule, &err) < 0)
		fail_msg("%s", err.message);
	rename_apply(&rule, 1, name, &out);
	assert_string_equal(buf_str(&out), expected);
}

static void
test_names_by_rules(void **state)
{
	(void)state;
	assert_renamed("model/*={1}", "model/a.w", "a.w");
	assert_renamed("model/*={1}", "other/a.w", "other/a.w");
	assert_renamed("*.h.*.w={1}/{2}", "x.h.3.w", "x/3");
	assert_renamed("*.w={1}", "a.w.w", "a.w");
	assert_renamed("*.*={2}-{1}", "a.b.c", "b.c-a");
	assert_renamed("l/*=m/*", "l/a.w", "m/a.w");
	assert_renamed("*.h.*.w=*/x{1}*", "a.h.3.w", "a/xa3");
	assert_renamed("layer?.w={1}{{{0}}}", "layer7.w", "7{layer7.w}");
}

static void
test_rules_that_are_none_are_refused(void **state)
{
	(void)state;
	static const char *const bad[] = {"",
	                                  "a",
	                                  "=b",
	                                  "a=",
	                                  "*={2}",
	                                  "*={",
	                                  "*=}",
	                                  "*={x}",
	                                  "*={1",
	                                  "a={1}",
	                                  "a=*",
	                                  "*={-1}",
	                                  "*={99999999999}",
	                                  "*****************={1}"};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct pawl_error err = {0};

		assert_int_equal(rename_check(bad[i], &err), PAWL_EUSAGE);
		assert_non_null(strstr(err.message, "rename"));
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_halves_are_rounded_to_the_nearest_and_then_the_even),
		cmocka_unit_test(test_doubles_are_rounded_once),
		cmocka_unit_test(test_every_half_comes_back),
		cmocka_unit_test(test_small_floats_are_kept_in_a_thread_that_flushes_them_to_zero),
		cmocka_unit_test(test_names_of_dtypes),
		cmocka_unit_test(test_names_by_rules),
		cmocka_unit_test(test_rules_that_are_none_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
