/* SPDX-License-Identifier: Apache-2.0 */
/* text: tables of globs, names, UTF-8, base64 and numbers, good and bad. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "helpers/comma_locale.h"
#include "pawl.h"

#define COUNT(rows) (sizeof(rows) / sizeof((rows)[0]))

static void
test_globs(void **state)
{
	(void)state;
	const struct {
		const char *pattern, *text;
		bool matches;
	} rows[] = {
		{"", "", true},
		{"", "a", false},
		{"*", "", true},
		{"*", "a/b/c", true},
		{"**", "a", true},
		{"model", "model", true},
		{"model", "model/layer/w", true},
		{"model/", "model/layer", true},
		{"model", "models", false},
		{"model", "mode", false},
		{"model/*", "model/x", true},
		{"model/*", "model", false},
		{"state/model/layer*.weights", "state/model/layer1.weights", true},
		{"state/model/layer*.weights", "state/model/layer1/sub.weights", true},
		{"state/model/layer*.weights", "state/model/layer1.weights/deep", true},
		{"state/model/layer*.weights", "state/model/layer1.bias", false},
		{"*bias", "a/b.bias", true},
		{"*bias", "a/bias_correction", false},
		{"*bias", "a/bias_correction/bias", true},
		{"a?c", "abc", true},
		{"a?c", "a/c", true},
		{"a?c", "ac", false},
		{"a?", "a", false},
		{"a?c",
	         "a\xe2\x82\xac"
	         "c",
	         true},
		{"??", "\xe2\x82\xac", false},
		{"a*b*c", "aXbYc", true},
		{"a*b*c", "abcbc", true},
		{"a*b*c", "acb", false},
		{"*a*b", "aab/x", true},
		{"[a]", "a", false},
		{"[a]", "[a]", true},
		{"a\\*", "a*", false},
	};
	for (size_t i = 0; i < COUNT(rows); i++)
		if (text_glob(rows[i].pattern, rows[i].text) != rows[i].matches)
			fail_msg("\"%s\" on \"%s\": expected %d", rows[i].pattern, rows[i].text, rows[i].matches);
}

/* The definition, written down as recursion. */
static bool
naive_glob(const char *p, const char *t, const char *p0)
{
	if (*p == '\0')
		return *t == '\0' || *t == '/' || (p > p0 && p[-1] == '/');
	if (*p == '*')
		return naive_glob(p + 1, t, p0) || (*t != '\0' && naive_glob(p, t + 1, p0));
	return *t != '\0' && (*p == '?' || *p == *t) && naive_glob(p + 1, t + 1, p0);
}

static void
test_globs_agree_with_their_definition(void **state)
{
	(void)state;
	uint64_t seed = 88172645463325252u;
	unsigned matched = 0;
	for (int round = 0; round < 100000; round++) {
		char pattern[8] = {0}, text[10] = {0};
		for (size_t i = 0; i < 7; i++) {
			seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
			pattern[i] = "ab*?/\0*"[seed % 7];
		}
		for (size_t i = 0; i < 9; i++) {
			seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
			text[i] = "ab/\0ab"[seed % 6];
		}
		bool expected = naive_glob(pattern, text, pattern);
		matched += expected;
		if (text_glob(pattern, text) != expected)
			fail_msg("\"%s\" on \"%s\": expected %d", pattern, text, expected);
	}
	assert_true(matched > 1000);
}

static void
test_P16_a_hostile_glob_ends(void **state)
{
	(void)state;
	char pattern[401], text[20001];
	for (size_t i = 0; i < 400; i += 2)
		memcpy(pattern + i, "a*", 2);
	pattern[399] = 'b';
	pattern[400] = '\0';
	memset(text, 'a', 20000);
	text[20000] = '\0';
	assert_false(text_glob(pattern, text));
}

static void
test_P17_components(void **state)
{
	(void)state;
	const char *good[] = {"a", "checkpoint_000001", "rank00000-00000.safetensors", "A.B=c-d", "_x", "a..b"};
	const char *bad[] = {"",     ".",    "..",       ".hidden", "-x", "a/b", "a b",
	                     "a\nb", "a\\b", "\xc3\xa9", "a:b",     "a*", "~",   "/"};
	for (size_t i = 0; i < COUNT(good); i++)
		assert_true(text_is_component(good[i]));
	for (size_t i = 0; i < COUNT(bad); i++)
		assert_false(text_is_component(bad[i]));
	char name[130];
	memset(name, 'x', sizeof(name));
	name[128] = '\0';
	assert_true(text_is_component(name));
	name[128] = 'x';
	name[129] = '\0';
	assert_false(text_is_component(name));
}

static void
test_P17_keys(void **state)
{
	(void)state;
	const char *good[] = {
		"a",      "a/b",    ".pawl/marks", "checkpoints/.checkpoint_000008.ab.partial/manifest.json",
		".lease", "a/...x", "final model", "-x/caf\xc3\xa9@2+(1)"};
	const char *bad[] = {"", "/", "/a", "a/", "a//b", ".", "..", "a/..", "../a", "a/./b", "a\nb", "a/b\x7f"};
	for (size_t i = 0; i < COUNT(good); i++)
		assert_true(text_is_key(good[i]));
	for (size_t i = 0; i < COUNT(bad); i++)
		assert_false(text_is_key(bad[i]));
	char key[1100];
	for (size_t i = 0; i < sizeof(key); i++)
		key[i] = i % 100 == 99 ? '/' : 'x';
	key[1024] = '\0';
	assert_true(text_is_key(key));
	key[1024] = 'x';
	key[1025] = '\0';
	assert_false(text_is_key(key));
}

static void
test_utf8(void **state)
{
	(void)state;
	const char *good[] = {"",
	                      "ascii",
	                      "\xc2\x80",
	                      "\xdf\xbf",
	                      "\xe0\xa0\x80",
	                      "\xed\x9f\xbf",
	                      "\xee\x80\x80",
	                      "\xef\xbf\xbf",
	                      "\xf0\x90\x80\x80",
	                      "\xf4\x8f\xbf\xbf",
	                      "sixteen bytes of \xe2\x82\xac text and more"};
	const char *bad[] = {"\x80",
	                     "\xc0\x80",
	                     "\xc1\xbf",
	                     "\xc2",
	                     "\xc2"
	                     "a",
	                     "\xe0\x9f\xbf",
	                     "\xed\xa0\x80",
	                     "\xed\xbf\xbf",
	                     "\xe2\x82",
	                     "\xe2\x82"
	                     "x",
	                     "\xf0\x8f\xbf\xbf",
	                     "\xf4\x90\x80\x80",
	                     "\xf5\x80\x80\x80",
	                     "\xff",
	                     "eight by\xfe",
	                     "\xf0\x90\x80"};
	for (size_t i = 0; i < COUNT(good); i++)
		assert_true(text_is_utf8(good[i], strlen(good[i])));
	for (size_t i = 0; i < COUNT(bad); i++)
		assert_false(text_is_utf8(bad[i], strlen(bad[i])));
	assert_true(text_is_utf8("a\0b", 3));
	assert_int_equal(text_utf8_char("", 0), 0);
	assert_int_equal(text_utf8_char("\xf0\x9f\x98\x80", 4), 4);
}

static void
test_base64_vectors(void **state)
{
	(void)state;
	const struct {
		const char *plain, *coded;
	} rows[] = {{"", ""},
	            {"f", "Zg=="},
	            {"fo", "Zm8="},
	            {"foo", "Zm9v"},
	            {"foob", "Zm9vYg=="},
	            {"fooba", "Zm9vYmE="},
	            {"foobar", "Zm9vYmFy"}};
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct buf coded = {0}, plain = {0};
		text_put_base64(&coded, rows[i].plain, strlen(rows[i].plain));
		assert_string_equal(buf_str(&coded), rows[i].coded);
		assert_int_equal(text_get_base64(coded.ptr, coded.len, &plain, NULL), 0);
		assert_string_equal(buf_str(&plain), rows[i].plain);
		buf_clear(&coded);
		buf_clear(&plain);
	}
}

static void
test_base64_brings_all_bytes_back(void **state)
{
	(void)state;
	unsigned char bytes[515];
	for (size_t len = 0; len < sizeof(bytes); len++) {
		struct buf coded = {0}, plain = {0};
		for (size_t i = 0; i < len; i++)
			bytes[i] = (unsigned char)(i * 167 + len);
		text_put_base64(&coded, bytes, len);
		assert_int_equal(coded.len, (len + 2) / 3 * 4);
		assert_int_equal(text_get_base64(coded.ptr, coded.len, &plain, NULL), 0);
		assert_int_equal(plain.len, len);
		if (len > 0)
			assert_memory_equal(plain.ptr, bytes, len);
		buf_clear(&coded);
		buf_clear(&plain);
	}
}

static void
test_base64_is_strict(void **state)
{
	(void)state;
	const char *bad[] = {"Z",        "Zg",   "Zg=",   "Zg===",  "Zh==", "Zm9=", "Z===", "====",
	                     "Zg==Zg==", "Zm 9", "Zm9\n", "Zm9v\n", "Zm_v", "Zm-v", "=Zg=", "Zm9\xff"};
	for (size_t i = 0; i < COUNT(bad); i++) {
		struct buf out = {0};
		struct pawl_error err;
		buf_puts(&out, "kept");
		if (text_get_base64(bad[i], strlen(bad[i]), &out, &err) != PAWL_ECORRUPT)
			fail_msg("\"%s\" was accepted", bad[i]);
		assert_string_equal(buf_str(&out), "kept");
		buf_clear(&out);
	}
}

static void
test_bytes_for_people(void **state)
{
	(void)state;
	const struct {
		double nbytes;
		const char *text;
	} rows[] = {
		{0, "0 B"},
		{1, "1 B"},
		{1023, "1023 B"},
		{1024, "1.00 KiB"},
		{1536, "1.50 KiB"},
		{1048575, "1.00 MiB"},
		{1048576, "1.00 MiB"},
		{1288490189, "1.20 GiB"},
		{0x1p40, "1.00 TiB"},
		{0x1p50, "1.00 PiB"},
		{0x1p64, "16.0 EiB"},
		{-5, "0 B"},
		{10235, "10.0 KiB"},
		{102348, "99.9 KiB"},
		{102400, "100 KiB"},
		{1048064, "1.00 MiB"},
		{NAN, "0 B"},
		{INFINITY, "999999 EiB"},
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		char text[32];
		text_bytes(rows[i].nbytes, text);
		assert_string_equal(text, rows[i].text);
	}
}

static void
test_copies_are_bounded_and_ended(void **state)
{
	(void)state;
	char out[4] = "zzz";
	assert_true(text_copy(out, 4, "abc"));
	assert_string_equal(out, "abc");
	assert_false(text_copy(out, 4, "defg"));
	assert_string_equal(out, "def");
	assert_false(text_copy(out, 0, ""));
	assert_string_equal(out, "def");
}

static void
test_numbers(void **state)
{
	(void)state;
	const struct {
		const char *text;
		size_t used;
		double value;
	} rows[] = {
		{"0", 1, 0},
		{"12", 2, 12},
		{"-3.5x", 4, -3.5},
		{"0.25dur", 4, 0.25},
		{"1e3tok", 3, 1000},
		{"5ep", 1, 5},
		{"1e", 1, 1},
		{"1e+", 1, 1},
		{"1.", 1, 1},
		{"1.e5", 1, 1},
		{"007", 3, 7},
		{"", 0, 0},
		{"-", 0, 0},
		{".5", 0, 0},
		{"+1", 0, 0},
		{"nan", 0, 0},
		{"inf", 0, 0},
		{"0x10", 1, 0},
		{"1e400", 0, 0},
		{"1e-400", 6, 0},
		{"1e99999999999999999999", 0, 0},
		{"0e99999999999999999999", 22, 0},
		{"123456789012345678901234567890", 30, 123456789012345678901234567890.0},
		{"9007199254740993", 16, 9007199254740992.0},
		{"0.1", 3, 0.1},
		{"1.7976931348623157e308", 22, 1.7976931348623157e308},
		{"1.7976931348623159e308", 0, 0},
		{"4.9406564584124654e-324", 23, 4.9406564584124654e-324},
		{"2.2250738585072011e-308", 23, 2.2250738585072011e-308},
		{"0.000000000000000000000000000000000001", 38, 1e-36},
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		double value = 0;
		size_t used = text_get_number(rows[i].text, strlen(rows[i].text), &value);
		if (used != rows[i].used || (used > 0 && value != rows[i].value))
			fail_msg("\"%s\": used %zu, value %.17g", rows[i].text, used, value);
	}
	double value = 0;
	assert_int_equal(text_get_number("-0.0", 4, &value), 4);
	assert_true(signbit(value));
	assert_int_equal(text_get_number("12345", 3, &value), 3);
	assert_true(value == 123);
}

static void
test_numbers_agree_with_the_c_library(void **state)
{
	(void)state;
	uint64_t seed = 1234567;
	for (int round = 0; round < 20000; round++) {
		seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
		double value, back = 0;
		memcpy(&value, &seed, sizeof(value));
		if (!isfinite(value))
			continue;
		char text[64];
		int len = snprintf(text, sizeof(text), "%.*g", 3 + round % 20, value);
		double expected = strtod(text, NULL);
		if (!isfinite(expected))
			continue;
		assert_int_equal(text_get_number(text, (size_t)len, &back), len);
		assert_memory_equal(&back, &expected, sizeof(back));
	}
}

static void
test_numbers_do_not_depend_on_the_locale(void **state)
{
	(void)state;
	assert_true(comma_locale_set());
	double value = 0;
	assert_int_equal(text_get_number("1.25", 4, &value), 4);
	assert_true(value == 1.25);
	/* Too long for exact arithmetic: the way that asks the C library. */
	assert_int_equal(text_get_number("0.1234567890123456789012345", 27, &value), 27);
	assert_true(value == 0x1.f9add3746f65fp-4);
	char text[32];
	text_bytes(1536, text);
	assert_string_equal(text, "1.50 KiB");
	comma_locale_reset();
}

static void
test_sizes_and_durations(void **state)
{
	(void)state;
	const struct {
		const char *text;
		double nbytes, seconds; /* -1 = refused */
	} rows[] = {
		{"500MB", 5e8, -1},    {"2GiB", 0x1p31, -1},
		{"2G", 0x1p31, -1},    {"1.5kB/s", 1500, -1},
		{"7", 7, 7},           {"0", 0, 0},
		{"90s", -1, 90},       {"5 min", -1, 300},
		{"250ms", -1, 0.25},   {"2w", -1, 1209600},
		{"", -1, -1},          {"GB", -1, -1},
		{"-1s", -1, -1},       {"0x10", -1, -1},
		{"0.5B", -1, -1},      {"1e30GB", -1, -1},
		{"1 GBs", -1, -1},     {"1  h", -1, -1},
		{"nan", -1, -1},       {"/s", -1, -1},
		{"10gb", 1e10, -1},    {"10 gib", 10 * 0x1p30, -1},
		{"3k", 3072, -1},      {"5b", 5, -1},
		{"1Mb/s", -1, -1},     {"1MB/S", -1, -1},
		{"2 hours", -1, 7200}, {"1 Day", -1, 86400},
		{"5MIN", -1, 300},     {"3weeks", -1, 1814400},
		{"1 year", -1, -1},    {"10gbs", -1, -1},
	};

	for (size_t i = 0; i < COUNT(rows); i++) {
		uint64_t nbytes = 0;
		double seconds = 0;
		int rc = pawl_parse_bytes(rows[i].text, &nbytes, NULL);

		assert_int_equal(rc, rows[i].nbytes < 0 ? PAWL_EUSAGE : 0);
		assert_true(rc < 0 || (double)nbytes == rows[i].nbytes);
		rc = pawl_parse_seconds(rows[i].text, &seconds, NULL);
		assert_int_equal(rc, rows[i].seconds < 0 ? PAWL_EUSAGE : 0);
		assert_true(rc < 0 || seconds == rows[i].seconds);
	}
	assert_int_equal(pawl_parse_bytes(NULL, NULL, NULL), PAWL_EUSAGE);
}

static void
test_paths_in_natural_order(void **state)
{
	(void)state;
	assert_true(text_compare_path("layer2/w", "layer10/a") < 0);
	assert_true(text_compare_path("h.2.w", "h.10.w") < 0);
	assert_true(text_compare_path("a1/z", "a01/a") < 0);
	assert_true(text_compare_path("a/b", "a-b/a") < 0);
	assert_true(text_compare_path("a", "a/b") < 0);
	assert_int_equal(text_compare_path("a/7", "a/7"), 0);
}

static void
test_addresses_are_paths_or_urls(void **state)
{
	(void)state;
	assert_string_equal(text_skip_file("file:///a/b"), "/a/b");
	assert_string_equal(text_skip_file("file:/a"), "file:/a");
	assert_string_equal(text_skip_file("s3://a/b"), "s3://a/b");
	assert_string_equal(text_url_options("s3://a/b?region=x"), "?region=x");
	assert_string_equal(text_url_options("s3://a/b"), "");
	assert_string_equal(text_url_options("/a?b"), "");
	assert_true(text_is_url("s3://a/b"));
	assert_false(text_is_url("file:///a"));
	assert_false(text_is_url("a/b:c"));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_globs),
		cmocka_unit_test(test_sizes_and_durations),
		cmocka_unit_test(test_globs_agree_with_their_definition),
		cmocka_unit_test(test_P16_a_hostile_glob_ends),
		cmocka_unit_test(test_P17_components),
		cmocka_unit_test(test_P17_keys),
		cmocka_unit_test(test_utf8),
		cmocka_unit_test(test_base64_vectors),
		cmocka_unit_test(test_base64_brings_all_bytes_back),
		cmocka_unit_test(test_base64_is_strict),
		cmocka_unit_test(test_bytes_for_people),
		cmocka_unit_test(test_paths_in_natural_order),
		cmocka_unit_test(test_addresses_are_paths_or_urls),
		cmocka_unit_test(test_copies_are_bounded_and_ended),
		cmocka_unit_test(test_numbers),
		cmocka_unit_test(test_numbers_agree_with_the_c_library),
		cmocka_unit_test(test_numbers_do_not_depend_on_the_locale),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
