/* SPDX-License-Identifier: Apache-2.0 */
/* json: tables of documents to accept and refuse (RFC 8259 and the limits of the reader), exact
 * numbers, early stop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/bump.h"
#include "base/json.h"
#include "base/mem.h"
#include "helpers/comma_locale.h"

#define COUNT(rows) (sizeof(rows) / sizeof((rows)[0]))
#define LIT(text) text, sizeof(text) - 1

/* ------------------------------------------------------- accept and refuse */

struct row {
	const char *text;
	size_t len;
	int code;
};

/* clang-format off */
static const struct row rows[] = {
	/* values at the top */
	{LIT("null"), 0}, {LIT("true"), 0}, {LIT("false"), 0}, {LIT("0"), 0}, {LIT("\"\""), 0}, {LIT("[]"), 0}, {LIT("{}"), 0},
	{LIT(" \t\r\n[ 1 , 2 ]\n"), 0}, {LIT("{ \"a\" : { \"b\" : [ ] } }"), 0},
	{LIT(""), PAWL_ECORRUPT}, {LIT("   "), PAWL_ECORRUPT}, {LIT("[] []"), PAWL_ECORRUPT}, {LIT("1 2"), PAWL_ECORRUPT},
	{LIT("[]\0"), PAWL_ECORRUPT}, {LIT("[]x"), PAWL_ECORRUPT}, {LIT("\xef\xbb\xbf[]"), PAWL_ECORRUPT},
	{LIT("\xc2\xa0[]"), PAWL_ECORRUPT}, {LIT("\f[]"), PAWL_ECORRUPT}, {LIT("[]\v"), PAWL_ECORRUPT},
	/* words */
	{LIT("tru"), PAWL_ECORRUPT}, {LIT("True"), PAWL_ECORRUPT}, {LIT("nul"), PAWL_ECORRUPT}, {LIT("falsee"), PAWL_ECORRUPT},
	{LIT("NaN"), PAWL_ECORRUPT}, {LIT("nan"), PAWL_ECORRUPT}, {LIT("Infinity"), PAWL_ECORRUPT}, {LIT("-Infinity"), PAWL_ECORRUPT},
	{LIT("[NaN]"), PAWL_ECORRUPT}, {LIT("undefined"), PAWL_ECORRUPT},
	/* numbers */
	{LIT("-0"), 0}, {LIT("-1"), 0}, {LIT("1.5"), 0}, {LIT("1e5"), 0}, {LIT("1E+5"), 0}, {LIT("1e-5"), 0}, {LIT("-0.0e0"), 0},
	{LIT("0e0"), 0}, {LIT("1e-999"), 0}, {LIT("18446744073709551615"), 0}, {LIT("-9223372036854775808"), 0},
	{LIT("01"), PAWL_ECORRUPT}, {LIT("00"), PAWL_ECORRUPT}, {LIT("-01"), PAWL_ECORRUPT}, {LIT("-"), PAWL_ECORRUPT},
	{LIT("+1"), PAWL_ECORRUPT}, {LIT(".5"), PAWL_ECORRUPT}, {LIT("1."), PAWL_ECORRUPT}, {LIT("1.e1"), PAWL_ECORRUPT},
	{LIT("1e"), PAWL_ECORRUPT}, {LIT("1e+"), PAWL_ECORRUPT}, {LIT("1.5.5"), PAWL_ECORRUPT}, {LIT("0x10"), PAWL_ECORRUPT},
	{LIT("1_000"), PAWL_ECORRUPT}, {LIT("1,5"), PAWL_ECORRUPT}, {LIT("--1"), PAWL_ECORRUPT}, {LIT("- 1"), PAWL_ECORRUPT},
	{LIT("\xef\xbc\x91"), PAWL_ECORRUPT}, {LIT("1e999"), PAWL_ELIMIT}, {LIT("-1e999"), PAWL_ELIMIT},
	{LIT("18446744073709551616"), PAWL_ELIMIT}, {LIT("-9223372036854775809"), PAWL_ELIMIT},
	{LIT("100000000000000000000000000000000000000000"), PAWL_ELIMIT},
	/* strings */
	{LIT("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\""), 0}, {LIT("\"\xe2\x82\xac \xf0\x9f\x98\x80\""), 0},
	{LIT("\"\\ud83d\\ude00\""), 0}, {LIT("\"\\uFFFF\""), 0}, {LIT("\"\x7f\""), 0}, {LIT("\"'\""), 0},
	{LIT("\""), PAWL_ECORRUPT}, {LIT("\"abc"), PAWL_ECORRUPT}, {LIT("\"abc\\"), PAWL_ECORRUPT}, {LIT("\"abc\\\""), PAWL_ECORRUPT},
	{LIT("'a'"), PAWL_ECORRUPT}, {LIT("\"\\x41\""), PAWL_ECORRUPT}, {LIT("\"\\a\""), PAWL_ECORRUPT},
	{LIT("\"\\\0\""), PAWL_ECORRUPT}, {LIT("\"\\U0041\""), PAWL_ECORRUPT}, {LIT("\"\\u004\""), PAWL_ECORRUPT},
	{LIT("\"\\u00g0\""), PAWL_ECORRUPT}, {LIT("\"\\u0000\""), PAWL_ECORRUPT}, {LIT("\"\\ud800\""), PAWL_ECORRUPT},
	{LIT("\"\\udc00\""), PAWL_ECORRUPT}, {LIT("\"\\ud800\\u0041\""), PAWL_ECORRUPT}, {LIT("\"\\ud800\\ud800\""), PAWL_ECORRUPT},
	{LIT("\"\\ud800x\""), PAWL_ECORRUPT}, {LIT("\"\\ud800\\n\""), PAWL_ECORRUPT}, {LIT("\"\\ude00\\ud83d\""), PAWL_ECORRUPT},
	{LIT("\"a\nb\""), PAWL_ECORRUPT}, {LIT("\"a\tb\""), PAWL_ECORRUPT}, {LIT("\"a\0b\""), PAWL_ECORRUPT},
	{LIT("\"\x1f\""), PAWL_ECORRUPT}, {LIT("\"\x80\""), PAWL_ECORRUPT}, {LIT("\"\xc0\x80\""), PAWL_ECORRUPT},
	{LIT("\"\xed\xa0\x80\""), PAWL_ECORRUPT}, {LIT("\"\xf4\x90\x80\x80\""), PAWL_ECORRUPT}, {LIT("\"\xe2\x82\""), PAWL_ECORRUPT},
	{LIT("\"\xff\""), PAWL_ECORRUPT},
	/* arrays */
	{LIT("[1]"), 0}, {LIT("[[],[[]],{}]"), 0}, {LIT("["), PAWL_ECORRUPT}, {LIT("[1"), PAWL_ECORRUPT}, {LIT("[1,"), PAWL_ECORRUPT},
	{LIT("[1,]"), PAWL_ECORRUPT}, {LIT("[,1]"), PAWL_ECORRUPT}, {LIT("[,]"), PAWL_ECORRUPT}, {LIT("[1 2]"), PAWL_ECORRUPT},
	{LIT("[1:2]"), PAWL_ECORRUPT}, {LIT("]"), PAWL_ECORRUPT}, {LIT("[1}"), PAWL_ECORRUPT}, {LIT("[1]]"), PAWL_ECORRUPT},
	{LIT("[1,,2]"), PAWL_ECORRUPT}, {LIT("[1/**/]"), PAWL_ECORRUPT}, {LIT("[1]//"), PAWL_ECORRUPT},
	/* objects */
	{LIT("{\"a\":1,\"b\":2}"), 0}, {LIT("{\"\":0}"), 0}, {LIT("{\"a\":{\"a\":{\"a\":1}}}"), 0}, {LIT("[{\"a\":1},{\"a\":2}]"), 0},
	{LIT("{"), PAWL_ECORRUPT}, {LIT("{\"a\""), PAWL_ECORRUPT}, {LIT("{\"a\":"), PAWL_ECORRUPT}, {LIT("{\"a\":1"), PAWL_ECORRUPT},
	{LIT("{\"a\":1,"), PAWL_ECORRUPT}, {LIT("{\"a\":1,}"), PAWL_ECORRUPT}, {LIT("{,}"), PAWL_ECORRUPT}, {LIT("{a:1}"), PAWL_ECORRUPT},
	{LIT("{1:1}"), PAWL_ECORRUPT}, {LIT("{\"a\" 1}"), PAWL_ECORRUPT}, {LIT("{\"a\":}"), PAWL_ECORRUPT}, {LIT("{\"a\":1]"), PAWL_ECORRUPT},
	{LIT("{\"a\",\"b\"}"), PAWL_ECORRUPT}, {LIT("{\"a\":1 \"b\":2}"), PAWL_ECORRUPT}, {LIT("{\"a\"::1}"), PAWL_ECORRUPT},
	{LIT("{null:1}"), PAWL_ECORRUPT},
	/* the same key twice, also when it is spelled differently, at any place and depth */
	{LIT("{\"a\":1,\"a\":1}"), PAWL_ECORRUPT}, {LIT("{\"a\":1,\"\\u0061\":2}"), PAWL_ECORRUPT}, {LIT("{\"\":1,\"\":2}"), PAWL_ECORRUPT},
	{LIT("[{\"x\":{\"a\":1,\"b\":2,\"a\":3}}]"), PAWL_ECORRUPT},
	{LIT("{\"a\":0,\"b\":0,\"c\":0,\"d\":0,\"e\":0,\"f\":0,\"g\":0,\"h\":0,\"i\":0,\"j\":0,\"a\":0}"), PAWL_ECORRUPT},
	{LIT("{\"a\":0,\"b\":0,\"c\":0,\"d\":0,\"e\":0,\"f\":0,\"g\":0,\"h\":0,\"i\":0,\"j\":0,\"k\":0}"), 0},
};
/* clang-format on */

/* Parses a copy that ends where the text ends, so that a read beyond it is seen. */
static int
parse(const char *text, size_t len, const struct json_limits *limits, struct bump *memory, struct json **ret,
      struct pawl_error *err)
{
	char *copy = mem_strndup(text, len), *exact = mem_alloc(len);

	memcpy(exact, copy, len);
	mem_free(copy);
	int rc = json_parse("doc", exact, len, limits, memory, ret, err);
	mem_free(exact);
	return rc;
}

static void
test_T2_documents_are_accepted_or_refused(void **state)
{
	(void)state;
	assert_true(COUNT(rows) >= 60);
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct bump memory = {0};
		struct json *root = NULL;
		struct pawl_error err = {0};
		int rc = parse(rows[i].text, rows[i].len, NULL, &memory, &root, &err);
		if (rc != rows[i].code)
			fail_msg("row %zu, %s: expected %d, found %d (%s)", i, rows[i].text, rows[i].code, rc,
			         err.message);
		if (rc < 0) {
			assert_null(root);
			assert_int_equal(err.code, rc);
			assert_memory_equal(err.message, "doc: byte ", 10);
		} else {
			assert_non_null(root);
		}
		bump_clear(&memory);
	}
}

static void
test_P17_every_truncation_is_refused(void **state)
{
	(void)state;
	const char text[] =
		"{\"a\":[1,-2.5e3,\"x\\u00e9\\ud83d\\ude00\xe2\x82\xac\",true,null],\"b\":{\"c\":false,\"d\":[]}}";
	for (size_t len = 0; len < sizeof(text) - 1; len++) {
		struct bump memory = {0};
		struct json *root;
		assert_int_equal(parse(text, len, NULL, &memory, &root, NULL), PAWL_ECORRUPT);
		bump_clear(&memory);
	}
}

static void
test_errors_name_the_document_and_the_byte(void **state)
{
	(void)state;
	struct bump memory = {0};
	struct json *root;
	struct pawl_error err;
	parse(LIT("{\"a\":[1,x]}"), NULL, &memory, &root, &err);
	assert_string_equal(err.message, "doc: byte 8: expected a value, found 'x'");
	parse(LIT("[1"), NULL, &memory, &root, &err);
	assert_string_equal(err.message, "doc: byte 2: expected ',' or ']', found the end of the text");
	parse(LIT("{\"a\n\":1}"), NULL, &memory, &root, &err);
	assert_string_equal(err.message, "doc: byte 3: control character in a string");
	parse(LIT("{\"k\\n\":1,\"k\\n\":1}"), NULL, &memory, &root, &err);
	assert_string_equal(err.message, "doc: byte 17: the object that ends here has the key \"k?\" twice");
	bump_clear(&memory);
}

/* ----------------------------------------------------------------- limits */

static int
parse_with(struct json_limits limits, const char *text, size_t len)
{
	struct bump memory = {0};
	struct json *root;
	int rc = parse(text, len, &limits, &memory, &root, NULL);
	bump_clear(&memory);
	return rc;
}

static void
test_T2_depth_is_limited(void **state)
{
	(void)state;
	char text[5000];
	for (size_t depth = 1; depth <= 2000; depth += depth < 40 ? 1 : 173) {
		memset(text, '[', depth);
		memset(text + depth, ']', depth);
		struct json_limits any = {0}, four = {.max_depth = 4}, much = {.max_depth = 100000};
		assert_int_equal(parse_with(any, text, 2 * depth), depth <= 32 ? 0 : PAWL_ELIMIT);
		assert_int_equal(parse_with(four, text, 2 * depth), depth <= 4 ? 0 : PAWL_ELIMIT);
		assert_int_equal(parse_with(much, text, 2 * depth), depth <= 1024 ? 0 : PAWL_ELIMIT);
	}
}

static void
test_T2_size_strings_and_values_are_limited(void **state)
{
	(void)state;
	assert_int_equal(parse_with((struct json_limits){.max_bytes = 6}, LIT("[1, 2]")), 0);
	assert_int_equal(parse_with((struct json_limits){.max_bytes = 5}, LIT("[1, 2]")), PAWL_ELIMIT);
	assert_int_equal(parse_with((struct json_limits){.max_values = 3}, LIT("[1, 2]")), 0);
	assert_int_equal(parse_with((struct json_limits){.max_values = 2}, LIT("[1, 2]")), PAWL_ELIMIT);
	assert_int_equal(parse_with((struct json_limits){.max_string = 3}, LIT("{\"abc\":\"abc\"}")), 0);
	assert_int_equal(parse_with((struct json_limits){.max_string = 2}, LIT("{\"abc\":0}")), PAWL_ELIMIT);
	assert_int_equal(parse_with((struct json_limits){.max_string = 2}, LIT("\"abc\"")), PAWL_ELIMIT);
	/* What counts is the string, not its spelling. */
	assert_int_equal(parse_with((struct json_limits){.max_string = 3}, LIT("\"\\u0061\\u0062\\u0063\"")), 0);
	assert_int_equal(parse_with((struct json_limits){.max_string = 2}, LIT("\"\\u0061\\u0062\\u0063\"")),
	                 PAWL_ELIMIT);

	struct buf text = {0};
	buf_putc(&text, '"');
	memset(buf_grow(&text, 65536), 'x', 65536);
	buf_putc(&text, '"');
	assert_int_equal(parse_with((struct json_limits){0}, text.ptr, text.len), 0);
	text.ptr[text.len - 1] = 'x';
	buf_putc(&text, '"');
	assert_int_equal(parse_with((struct json_limits){0}, text.ptr, text.len), PAWL_ELIMIT);
	buf_clear(&text);
}

static void
test_P16_memory_is_limited_by_the_bump(void **state)
{
	(void)state;
	struct bump memory = {.limit_bytes = 2000};
	struct json *root;
	struct buf text = {0};
	buf_puts(&text, "[0");
	for (int i = 0; i < 200; i++)
		buf_puts(&text, ",0");
	buf_puts(&text, "]");
	struct pawl_error err;
	assert_int_equal(json_parse("doc", text.ptr, text.len, NULL, &memory, &root, &err), PAWL_ELIMIT);
	bump_clear(&memory);
	/* Wherever the memory ends, the limit is what is reported. */
	int rc = PAWL_ELIMIT;
	for (memory.limit_bytes = 1; memory.limit_bytes < 9000; memory.limit_bytes++) {
		int before = rc;
		rc = json_parse("doc", LIT("[\"abc\", [[]]]"), NULL, &memory, &root, &err);
		assert_true(rc == before || rc == 0);
		bump_clear(&memory);
	}
	assert_int_equal(rc, 0);
	buf_clear(&text);
}

static void
test_P16_numbers_are_limited_in_length(void **state)
{
	(void)state;
	char text[3000];
	memset(text, '0', sizeof(text));
	memcpy(text, "0.", 2);
	assert_int_equal(parse_with((struct json_limits){0}, text, 1000), 0);
	assert_int_equal(parse_with((struct json_limits){0}, text, 3000), PAWL_ELIMIT);
	memset(text, '9', sizeof(text));
	assert_int_equal(parse_with((struct json_limits){0}, text, 3000), PAWL_ELIMIT);
}

static int
parse_keys(size_t n, size_t twice)
{
	struct buf text = {0};
	buf_putc(&text, '{');
	for (size_t i = 0; i < n; i++)
		buf_printf(&text, "%s\"model.layers.%zu.weight\":0", i ? "," : "", twice && i == n - 1 ? twice : i);
	buf_putc(&text, '}');
	struct json_limits limits = {0};
	int rc = parse_with(limits, text.ptr, text.len);
	buf_clear(&text);
	return rc;
}

static void
test_T1_duplicates_are_found_among_many_keys(void **state)
{
	(void)state;
	const size_t sizes[] = {2, 8, 9, 32, 33, 1000, 100000};
	for (size_t i = 0; i < COUNT(sizes); i++) {
		assert_int_equal(parse_keys(sizes[i], 0), 0);
		if (sizes[i] > 2)
			assert_int_equal(parse_keys(sizes[i], sizes[i] / 2), PAWL_ECORRUPT);
	}
}

/* ----------------------------------------------------------------- values */

static void
test_the_tree_is_as_written(void **state)
{
	(void)state;
	struct bump memory = {0};
	struct json *root;
	const char text[] = "{\"n\":null,\"t\":true,\"arr\":[1,[2],\"s\"],\"k\\u00e9y\":{\"x\":-1}}";
	assert_int_equal(parse(LIT(text), NULL, &memory, &root, NULL), 0);
	assert_int_equal(root->type, JSON_OBJECT);
	assert_int_equal(root->len, 4);
	assert_null(root->key);
	assert_null(root->next);
	const struct json *n = root->first, *t = n->next, *arr = t->next, *key = arr->next;
	assert_int_equal(n->type, JSON_NULL);
	assert_string_equal(n->key, "n");
	assert_int_equal(t->type, JSON_BOOL);
	assert_true(t->boolean);
	assert_int_equal(arr->len, 3);
	assert_int_equal(arr->first->i, 1);
	assert_null(arr->first->key);
	assert_int_equal(arr->first->next->first->u, 2);
	assert_null(arr->first->next->first->key);
	assert_string_equal(arr->first->next->next->str, "s");
	assert_null(arr->first->next->next->key);
	assert_string_equal(key->key, "k\xc3\xa9y");
	assert_int_equal(key->key_len, 4);
	assert_int_equal(key->first->i, -1);
	assert_string_equal(key->first->key, "x");
	assert_null(key->next);
	bump_clear(&memory);
}

static const struct json *
parse_one(const char *text, struct bump *memory)
{
	struct json *root = NULL;
	assert_int_equal(parse(text, strlen(text), NULL, memory, &root, NULL), 0);
	return root;
}

static void
test_T2_integers_are_exact(void **state)
{
	(void)state;
	struct bump memory = {0};
	const struct json *v = parse_one("9223372036854775807", &memory);
	assert_int_equal(v->type, JSON_INT);
	assert_true(v->i == INT64_MAX && v->u == (uint64_t)INT64_MAX);
	v = parse_one("9223372036854775808", &memory);
	assert_int_equal(v->type, JSON_UINT);
	assert_true(v->u == UINT64_C(9223372036854775808) && v->i == 0);
	v = parse_one("18446744073709551615", &memory);
	assert_int_equal(v->type, JSON_UINT);
	assert_true(v->u == UINT64_MAX);
	v = parse_one("-9223372036854775808", &memory);
	assert_int_equal(v->type, JSON_INT);
	assert_true(v->i == INT64_MIN && v->u == 0 && v->real == -0x1p63);
	v = parse_one("9007199254740993", &memory);
	assert_true(v->i == INT64_C(9007199254740993));
	v = parse_one("-0", &memory);
	assert_int_equal(v->type, JSON_INT);
	assert_true(v->i == 0 && signbit(v->real));
	v = parse_one("1.0", &memory);
	assert_int_equal(v->type, JSON_REAL);
	v = parse_one("1e2", &memory);
	assert_int_equal(v->type, JSON_REAL);
	assert_true(v->real == 100);
	bump_clear(&memory);
}

static void
test_strings_are_unescaped(void **state)
{
	(void)state;
	struct bump memory = {0};
	const struct json *v = parse_one(
		"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e9\\u20AC\\ud83d\\ude00 plain and long \xe2\x82\xac text\"",
		&memory);
	assert_string_equal(v->str,
	                    "\"\\/\b\f\n\r\tA\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 plain and long \xe2\x82\xac text");
	assert_int_equal(v->len, strlen(v->str));
	bump_clear(&memory);
}

static void
test_special_bytes_are_found_at_every_place(void **state)
{
	(void)state;
	/* The scan takes eight bytes at a time: a control character at each of them, and quotes,
	 * must be seen. */
	for (size_t len = 1; len < 40; len++)
		for (size_t at = 0; at < len; at++)
			for (int c = 0; c < 256; c++) {
				char text[50];
				memset(text, 'x', sizeof(text));
				text[0] = '"';
				text[len + 1] = '"';
				text[at + 1] = (char)c;
				if (c == '"' || c == '\\')
					continue;
				struct bump memory = {0};
				struct json *root;
				int rc = json_parse("doc", text, len + 2, NULL, &memory, &root, NULL);
				assert_int_equal(rc, c >= 0x20 && c < 0x80 ? 0 : PAWL_ECORRUPT);
				bump_clear(&memory);
			}
}

/* -------------------------------------------------------------- early stop */

static void
test_reading_stops_at_the_stop_key(void **state)
{
	(void)state;
	struct json_limits limits = {.stop_key = "stop"};
	struct bump memory = {0};
	struct json *root;
	assert_int_equal(parse(LIT("{\"a\":1,\"b\":{\"stop\":2},\"stop\" \xff garbage"), &limits, &memory, &root, NULL),
	                 0);
	assert_int_equal(root->len, 2);
	assert_int_equal(json_get(root, "a")->i, 1);
	assert_int_equal(json_get(json_get(root, "b"), "stop")->i, 2);
	assert_null(json_get(root, "stop"));

	assert_int_equal(parse(LIT("{\"stop\""), &limits, &memory, &root, NULL), 0);
	assert_int_equal(root->len, 0);
	assert_int_equal(parse(LIT("{\"a\":1,\"stop"), &limits, &memory, &root, NULL), PAWL_ECORRUPT);
	assert_int_equal(parse(LIT("{\"a\":1,\"a\":1,\"stop\""), &limits, &memory, &root, NULL), PAWL_ECORRUPT);
	/* Only a key of the top-level object stops; a document without it is read to its end. */
	assert_int_equal(parse(LIT("[{\"stop\" x"), &limits, &memory, &root, NULL), PAWL_ECORRUPT);
	assert_int_equal(parse(LIT("[\"stop\"]"), &limits, &memory, &root, NULL), 0);
	assert_int_equal(parse(LIT("{\"stopper\":1}"), &limits, &memory, &root, NULL), 0);
	assert_int_equal(root->len, 1);
	assert_int_equal(parse(LIT("{\"a\":1} x"), &limits, &memory, &root, NULL), PAWL_ECORRUPT);
	bump_clear(&memory);
}

/* --------------------------------------------------------------- look-ups */

static void
test_typed_members_are_checked(void **state)
{
	(void)state;
	struct bump memory = {0};
	struct json *root;
	struct pawl_error err;
	uint64_t u = 7;
	int64_t i = 7;
	const char *s = "kept";
	const struct json *v = NULL;
	assert_int_equal(parse(LIT("{\"u\":18446744073709551615,\"i\":-5,\"s\":\"x\",\"r\":1.5,\"o\":{}}"), NULL,
	                       &memory, &root, NULL),
	                 0);
	assert_int_equal(json_get_u64("doc", root, "u", &u, &err), 0);
	assert_true(u == UINT64_MAX);
	assert_int_equal(json_get_i64("doc", root, "i", &i, &err), 0);
	assert_int_equal(i, -5);
	assert_int_equal(json_get_str("doc", root, "s", &s, &err), 0);
	assert_string_equal(s, "x");
	assert_int_equal(json_get_type("doc", root, "o", JSON_OBJECT, &v, &err), 0);
	assert_int_equal(json_get_type("doc", root, "i", JSON_REAL, &v, &err), 0);
	assert_true(v->real == -5);

	u = 7, i = 7, s = "kept";
	assert_int_equal(json_get_u64("doc", root, "i", &u, &err), PAWL_ECORRUPT);
	assert_string_equal(err.message, "doc: \"i\": expected a non-negative integer, found -5");
	assert_int_equal(json_get_i64("doc", root, "u", &i, &err), PAWL_ECORRUPT);
	assert_int_equal(json_get_u64("doc", root, "r", &u, &err), PAWL_ECORRUPT);
	assert_int_equal(json_get_i64("doc", root, "s", &i, &err), PAWL_ECORRUPT);
	assert_int_equal(json_get_str("doc", root, "o", &s, &err), PAWL_ECORRUPT);
	assert_string_equal(err.message, "doc: \"o\": expected a string, found an object");
	assert_int_equal(json_get_str("doc", root, "none", &s, &err), PAWL_ECORRUPT);
	assert_string_equal(err.message, "doc: \"none\": expected a string, found nothing");
	assert_int_equal(json_get_type("doc", root, "s", JSON_REAL, &v, &err), PAWL_ECORRUPT);
	assert_int_equal(json_get_u64("doc", NULL, "u", &u, &err), PAWL_ECORRUPT);
	assert_true(u == 7 && i == 7 && strcmp(s, "kept") == 0);
	assert_null(json_get(json_get(root, "s"), "x"));
	bump_clear(&memory);
}

/* ---------------------------------------------------------------- writing */

static void
assert_double_text(double value, const char *text)
{
	struct buf out = {0};
	json_put_double(&out, value);
	assert_string_equal(buf_str(&out), text);
	buf_clear(&out);
}

static void
test_doubles_are_written_short_and_with_a_point(void **state)
{
	(void)state;
	assert_double_text(0, "0.0");
	assert_double_text(-0.0, "-0.0");
	assert_double_text(1, "1.0");
	assert_double_text(-3, "-3.0");
	assert_double_text(0.1, "0.1");
	assert_double_text(0.5, "0.5");
	assert_double_text(1e300, "1e+300");
	assert_double_text(1e-7, "1e-07");
	assert_double_text(123456789012345678.0, "1.2345678901234568e+17");
	assert_double_text(0.30000000000000004, "0.30000000000000004");
	assert_double_text(DBL_MAX, "1.7976931348623157e+308");
	assert_double_text(5e-324, "4.94065645841247e-324");
}

static void
check_double(double value)
{
	struct buf out = {0};
	struct bump memory = {0};
	struct json *root = NULL;
	json_put_double(&out, value);
	assert_int_equal(json_parse("doc", out.ptr, out.len, NULL, &memory, &root, NULL), 0);
	assert_int_equal(root->type, JSON_REAL);
	assert_memory_equal(&root->real, &value, sizeof(value));
	bump_clear(&memory);
	buf_clear(&out);
}

static void
test_P1_doubles_come_back_bit_for_bit_in_every_locale(void **state)
{
	(void)state;
	for (int comma = 0; comma < 2; comma++) {
		if (comma)
			assert_true(comma_locale_set());
		uint64_t seed = 424242;
		for (int i = 0; i < 20000; i++) {
			double value;
			seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
			memcpy(&value, &seed, sizeof(value));
			if (isfinite(value))
				check_double(value);
			check_double((double)(int64_t)(seed >> 40) / 1000);
		}
		check_double(0.1);
		check_double(DBL_MIN / 3);
		assert_double_text(1.5, "1.5");
		assert_double_text(1.2345678901234567, "1.2345678901234567");
	}
	comma_locale_reset();
}

static void
test_what_json_cannot_hold_fails_the_buffer(void **state)
{
	(void)state;
	const double bad[] = {NAN, INFINITY, -INFINITY};
	for (size_t i = 0; i < COUNT(bad); i++) {
		struct buf out = {0};
		json_put_double(&out, bad[i]);
		assert_true(buf_check(&out, "doc", NULL) < 0);
		assert_int_equal(out.len, 0);
		buf_clear(&out);
	}
	struct buf out = {0};
	json_put_string(&out, "a\0b", 3);
	assert_true(buf_check(&out, "doc", NULL) < 0);
	buf_clear(&out);
}

static void
test_integers_are_written(void **state)
{
	(void)state;
	struct buf out = {0};
	json_put_i64(&out, INT64_MIN);
	buf_putc(&out, ' ');
	json_put_u64(&out, UINT64_MAX);
	assert_string_equal(buf_str(&out), "-9223372036854775808 18446744073709551615");
	buf_clear(&out);
}

static void
test_members_are_separated_by_commas(void **state)
{
	(void)state;
	struct buf out = {0};
	const uint64_t numbers[] = {1, 23};
	json_add_u64(&out, "a", 1);
	json_add_i64(&out, "b", -1);
	assert_string_equal(buf_str(&out), "\"a\":1,\"b\":-1");
	buf_clear(&out);

	buf_putc(&out, '{');
	json_add_text(&out, "\"", "\n");
	json_add_bool(&out, "t", true);
	json_add_bool(&out, "f", false);
	json_add_u64s(&out, "none", numbers, 0);
	json_add_u64s(&out, "two", numbers, 2);
	json_add_key(&out, "o");
	buf_putc(&out, '{');
	json_add_text(&out, "", "");
	buf_putc(&out, '}');
	json_add_u64(&out, "last", 0);
	buf_puts(&out, ",\n");
	json_add_u64(&out, "line", 0);
	buf_putc(&out, '\0');
	json_add_u64(&out, "next", 0);
	assert_memory_equal(out.ptr,
	                    "{\"\\\"\":\"\\n\",\"t\":true,\"f\":false,\"none\":[],\"two\":[1,23],\"o\":{\"\":\"\"},"
	                    "\"last\":0,\n\"line\":0\0\"next\":0",
	                    out.len);
	buf_clear(&out);
}

static void
test_strings_come_back(void **state)
{
	(void)state;
	char all[128 + 16];
	size_t len = 0;
	for (int c = 1; c < 128; c++)
		all[len++] = (char)c;
	memcpy(all + len, "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9);
	len += 9;
	struct buf out = {0};
	json_put_string(&out, all, len);
	struct bump memory = {0};
	struct json *root;
	assert_int_equal(json_parse("doc", out.ptr, out.len, NULL, &memory, &root, NULL), 0);
	assert_int_equal(root->len, len);
	assert_memory_equal(root->str, all, len);
	buf_clear(&out);

	json_put_string(&out, "", 0);
	json_put_string(&out, "\"\\\n\x01/", 5);
	assert_string_equal(buf_str(&out), "\"\"\"\\\"\\\\\\n\\u0001/\"");
	buf_clear(&out);

	/* Bytes that are not text still give a document that can be read. */
	json_put_string(&out,
	                "a\xff"
	                "b\xe2\x82",
	                5);
	assert_string_equal(buf_str(&out), "\"a\xef\xbf\xbd"
	                                   "b\xef\xbf\xbd\xef\xbf\xbd\"");
	buf_clear(&out);
	bump_clear(&memory);

	json_put_printable(&out, "a\0\x7f\xc2\x9b\xc2\xa0\x1b\n\xc2", 10);
	assert_string_equal(buf_str(&out), "\"a\\u0000\\u007f\\u009b\xc2\xa0\\u001b\\n\xef\xbf\xbd\"");
	buf_clear(&out);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_T2_documents_are_accepted_or_refused),
		cmocka_unit_test(test_P17_every_truncation_is_refused),
		cmocka_unit_test(test_errors_name_the_document_and_the_byte),
		cmocka_unit_test(test_T2_depth_is_limited),
		cmocka_unit_test(test_T2_size_strings_and_values_are_limited),
		cmocka_unit_test(test_P16_memory_is_limited_by_the_bump),
		cmocka_unit_test(test_P16_numbers_are_limited_in_length),
		cmocka_unit_test(test_T1_duplicates_are_found_among_many_keys),
		cmocka_unit_test(test_the_tree_is_as_written),
		cmocka_unit_test(test_T2_integers_are_exact),
		cmocka_unit_test(test_strings_are_unescaped),
		cmocka_unit_test(test_special_bytes_are_found_at_every_place),
		cmocka_unit_test(test_reading_stops_at_the_stop_key),
		cmocka_unit_test(test_typed_members_are_checked),
		cmocka_unit_test(test_doubles_are_written_short_and_with_a_point),
		cmocka_unit_test(test_P1_doubles_come_back_bit_for_bit_in_every_locale),
		cmocka_unit_test(test_what_json_cannot_hold_fails_the_buffer),
		cmocka_unit_test(test_integers_are_written),
		cmocka_unit_test(test_members_are_separated_by_commas),
		cmocka_unit_test(test_strings_come_back),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
