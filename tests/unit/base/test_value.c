/* SPDX-License-Identifier: Apache-2.0 */
/* value: reading, printing, changing and copying. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "base/value.h"

static void
assert_prints(const struct value *v, const char *expected)
{
	char *text = value_print(v);

	assert_non_null(text);
	assert_string_equal(text, expected);
	mem_free(text);
}

static void
test_a_text_is_printed_as_it_was(void **state)
{
	static const char *const texts[] = {
		"null",
		"true",
		"false",
		"0",
		"-9223372036854775808",
		"9223372036854775807",
		"0.1",
		"1e-05",
		"-2.5",
		"1.0",
		"1e+300",
		"\"\"",
		"\"a\\\"\\\\\\n\\t\\u0001\xc3\xa9\"",
		"[]",
		"{}",
		"[1, [2, {\"b\": [], \"a\": {}}], \"x\"]",
		"{\"z\": 1, \"a\": 2, \"m\": {\"k\": null}}",
	};

	(void)state;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		struct value *v = value_from_text(texts[i]);
		if (!v)
			fail_msg("%s was refused", texts[i]);
		assert_prints(v, texts[i]);
		value_free(v);
	}
}

static void
test_styles(void **state)
{
	static const struct {
		enum value_style style;
		const char *text;
	} rows[] = {
		{VALUE_LINE, "{\"a\": [1, {}], \"b\": {\"c\": 2}}"},
		{VALUE_COMPACT, "{\"a\":[1,{}],\"b\":{\"c\":2}}"},
		{VALUE_INDENTED, "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": {\n    \"c\": 2\n  }\n}"},
	};
	struct value *v = value_from_text(rows[0].text);

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char *text = value_print_as(v, rows[i].style);
		assert_string_equal(text, rows[i].text);
		mem_free(text);
	}
	value_free(v);
	assert_null(value_print(NULL));
}

static void
test_what_is_not_JSON_is_refused_as_a_mistake_of_the_caller(void **state)
{
	static const struct {
		const char *text, *message;
		int code;
	} rows[] = {
		{"", "the text: byte 0: expected a value, found the end of the text", PAWL_EUSAGE},
		{"{\"a\": 1, \"a\": 2}", "has the key \"a\" twice", PAWL_EUSAGE},
		{"[1] x", "the text: byte 4: expected the end of the text, found 'x'", PAWL_EUSAGE},
		{"9223372036854775808", "the text: expected an integer below 2^63, found 9223372036854775808",
	         PAWL_EUSAGE},
		{"[18446744073709551616]", "does not fit 64 bits", PAWL_ELIMIT},
		{"1e999", "too large", PAWL_ELIMIT},
		{"NaN", "expected a value", PAWL_EUSAGE},
	};
	char deep[200];

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct pawl_error err = {0};
		struct value *v = NULL;
		assert_int_equal(value_parse(rows[i].text, SIZE_MAX, "the text", &v, &err), rows[i].code);
		assert_int_equal(err.code, rows[i].code);
		assert_null(v);
		if (!strstr(err.message, rows[i].message))
			fail_msg("%s: found '%s'", rows[i].text, err.message);
		assert_int_equal(value_parse(rows[i].text, SIZE_MAX, "the text", &v, NULL), rows[i].code);
	}
	memset(deep, '[', sizeof(deep));
	memset(deep + 65, ']', 65);
	assert_int_equal(value_parse(deep, 130, "x", &(struct value *){NULL}, NULL), PAWL_ELIMIT);
	struct value *v = NULL;
	assert_int_equal(value_parse(deep + 1, 128, "x", &v, NULL), 0);
	value_free(v);
	assert_int_equal(value_parse(NULL, SIZE_MAX, "x", &v, NULL), PAWL_EUSAGE);
}

static void
test_members(void **state)
{
	struct value *v = value_from_text("{\"a\": {\"b\": {\"c\": 1}}, \"a/x\": 2, \"n\": \"NaN\"}"), *member;
	const char *key;
	size_t n = 0;
	double number;

	(void)state;
	assert_int_equal(value_int(value_at(v, "a/b/c")), 1);
	assert_int_equal(value_int(value_at(v, "a/x")), 2);
	assert_null(value_at(v, "a/b/d"));
	assert_null(value_at(v, "a/b/c/d"));
	assert_null(value_at(NULL, "a"));
	assert_string_equal(value_get_text(v, "n"), "NaN");
	assert_null(value_get_text(v, "a"));
	assert_true(value_get_number(value_get(v, "n"), &number) && isnan(number));
	assert_false(value_get_number(value_get(v, "a"), &number));
	assert_string_equal(value_first_key(v), "a");
	VALUE_MEMBERS(v, key, member) {
		assert_ptr_equal(member, value_get(v, key));
		n++;
	}
	assert_int_equal(n, 3);
	assert_true(value_set(v, "a", value_new_int(5))); /* keeps its place */
	assert_true(value_set_at(v, "new/inner", value_new_bool(true)));
	assert_false(value_set_at(v, "a/below", value_new_int(1))); /* a number is in the way */
	assert_true(value_set_at(v, "a/x", value_new_real(-HUGE_VAL)));
	value_remove(v, "n");
	value_remove(v, "none");
	assert_prints(v, "{\"a\": 5, \"a/x\": \"-Infinity\", \"new\": {\"inner\": true}}");
	assert_false(value_set(value_get(v, "a"), "b", value_new_int(1)));
	assert_false(value_append(v, value_new_int(1)));
	assert_false(value_set(v, "b", NULL));
	assert_int_equal(value_n_items(v), 0);
	assert_null(value_item(v, 0));
	value_free(v);
}

static void
test_items(void **state)
{
	struct value *v = VALUE_ARRAY(value_new_int(1), value_new_text("x"), value_new_null());

	(void)state;
	assert_int_equal(value_n_items(v), 3);
	assert_int_equal(value_n_members(v), 0);
	assert_true(value_set_item(v, 2, value_new_real(0.5)));
	assert_false(value_set_item(v, 3, value_new_real(0.5)));
	assert_false(value_set_item(v, 0, NULL));
	assert_prints(v, "[1, \"x\", 0.5]");
	assert_null(value_item(v, 3));
	assert_null(value_first_key(v));
	assert_null(VALUE_ARRAY(value_new_int(1), NULL));
	value_free(v);
}

static void
test_a_value_is_shared_until_it_is_copied(void **state)
{
	struct value *inner = value_from_text("{\"x\": 1}");
	struct value *one = VALUE_OBJECT({"in", value_ref(inner)}), *two = value_copy(one),
		     *three = value_copy_deep(one);

	(void)state;
	value_free(inner);
	assert_true(value_equal(one, two) && value_equal(one, three));
	assert_true(value_set_at(one, "in/x", value_new_int(2)));
	assert_prints(two, "{\"in\": {\"x\": 2}}");
	assert_prints(three, "{\"in\": {\"x\": 1}}");
	assert_true(value_set(two, "in", value_new_int(3)));
	assert_prints(one, "{\"in\": {\"x\": 2}}");
	assert_false(value_equal(one, two));
	value_free(one);
	value_free(two);
	value_free(three);
	assert_null(value_copy(NULL));
	assert_null(VALUE_OBJECT({"a", value_new_int(1)}, {"b", NULL}));
}

static void
test_equal(void **state)
{
	static const struct {
		const char *a, *b;
		bool equal;
	} rows[] = {
		{"1", "1.0", false},
		{"0", "false", false},
		{"true", "false", false},
		{"\"a\"", "\"b\"", false},
		{"[1, 2]", "[2, 1]", false},
		{"[1]", "[1, 2]", false},
		{"{\"a\": 1, \"b\": [2]}", "{\"b\": [2], \"a\": 1}", true},
		{"{\"a\": 1}", "{\"b\": 1}", false},
		{"{\"a\": 1}", "{\"a\": 2}", false},
		{"0.1", "0.1", true},
		{"null", "null", true},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct value *a = value_from_text(rows[i].a), *b = value_from_text(rows[i].b);
		if (value_equal(a, b) != rows[i].equal || value_equal(b, a) != rows[i].equal)
			fail_msg("%s and %s", rows[i].a, rows[i].b);
		value_free(a);
		value_free(b);
	}
}

static void
test_texts_are_UTF8(void **state)
{
	struct value *v = value_new_text("a\xff\xc3\xa9\xe2\x82");

	(void)state;
	assert_string_equal(value_text(v), "a?\xc3\xa9??");
	value_free(v);
	v = value_new_text_n("a\0b", 3);
	assert_string_equal(value_text(v), "a?b");
	assert_int_equal(value_text_bytes(v), 3);
	value_free(v);
	assert_null(value_new_text(NULL));
	v = value_with_text(value_with_text(value_new_object(), "a", NULL), "b", "\xff");
	assert_prints(v, "{\"b\": \"?\"}");
	value_free(v);
	assert_null(value_with_text(NULL, "a", "b"));
	assert_null(value_with_text(NULL, "a", NULL));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_text_is_printed_as_it_was),
		cmocka_unit_test(test_styles),
		cmocka_unit_test(test_what_is_not_JSON_is_refused_as_a_mistake_of_the_caller),
		cmocka_unit_test(test_members),
		cmocka_unit_test(test_items),
		cmocka_unit_test(test_a_value_is_shared_until_it_is_copied),
		cmocka_unit_test(test_equal),
		cmocka_unit_test(test_texts_are_UTF8),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
