/* SPDX-License-Identifier: Apache-2.0 */
/* Documents in TOML: every kind of value, tables in each way, and what is refused with the line it stands in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "tune.h"

static void
check(const char *toml, const char *json)
{
	struct pawl_error err = {0};
	char *text = NULL;
	int rc = tune_toml_to_json(toml, strlen(toml), "x.toml", &text, &err);

	if (rc != 0)
		fail_msg("%s: %s", toml, err.message);
	json_t *found = json_loads(text, 0, NULL), *expected = json_loads(json, 0, NULL);

	assert_non_null(expected);
	if (!json_equal(found, expected))
		fail_msg("%s: expected %s, found %s", toml, json, text);
	json_decref(found);
	json_decref(expected);
	free(text);
}

static void
refuse(const char *toml, const char *message)
{
	struct pawl_error err = {0};
	char *text = NULL;

	if (tune_toml_to_json(toml, strlen(toml), "x.toml", &text, &err) == 0)
		fail_msg("taken: %s -> %s", toml, text);
	if (strstr(err.message, message) == NULL)
		fail_msg("%s: expected '%s', found '%s'", toml, message, err.message);
}

static void
test_values(void **state)
{
	(void)state;
	check("", "{}");
	check("\xef\xbb\xbf# only\r\n\r\n  # this", "{}");
	check("a = 1\nb = -2\nc = +3\nd = 1_000\ne = 0\nf = -0",
	      "{\"a\":1,\"b\":-2,\"c\":3,\"d\":1000,\"e\":0,\"f\":0}");
	check("a = 0x1F\nb = 0o17\nc = 0b101\nd = 0xdead_beef", "{\"a\":31,\"b\":15,\"c\":5,\"d\":3735928559}");
	check("a = 9223372036854775807\nb = -9223372036854775808",
	      "{\"a\":9223372036854775807,\"b\":-9223372036854775808}");
	check("a = 0.5\nb = 1e-4\nc = -2.5E+3\nd = +1.0\ne = 6_0.2_5",
	      "{\"a\":0.5,\"b\":0.0001,\"c\":-2500.0,\"d\":1.0,\"e\":60.25}");
	check("a = inf\nb = -inf\nc = nan\nd = true\ne = false",
	      "{\"a\":\"Infinity\",\"b\":\"-Infinity\",\"c\":\"NaN\",\"d\":true,\"e\":false}");
	check("a = [1, 2,\n # two\n 3,\n]\nb = []\nc = [[1], ['x', {y = 2}]]",
	      "{\"a\":[1,2,3],\"b\":[],\"c\":[[1],[\"x\",{\"y\":2}]]}");
}

static void
test_texts(void **state)
{
	(void)state;
	check("a = \"x\\ty\\\"\\\\ \\u00e9 \\U0001F600\"", "{\"a\":\"x\\ty\\\"\\\\ \xc3\xa9 \xf0\x9f\x98\x80\"}");
	check("a = 'C:\\n'", "{\"a\":\"C:\\\\n\"}");
	check("a = \"\"\nb = ''", "{\"a\":\"\",\"b\":\"\"}");
	check("a = \"\"\"\nx\ny\"\"\"", "{\"a\":\"x\\ny\"}");
	check("a = \"\"\"x \\\n   \n  y\"\"\"", "{\"a\":\"x y\"}");
	check("a = '''it's ''two'''''", "{\"a\":\"it's ''two''\"}");
	check("a = \"\"\"\"quoted\"\"\"\"", "{\"a\":\"\\\"quoted\\\"\"}");
}

static void
test_tables(void **state)
{
	(void)state;
	check("[a]\nx = 1\n[a.b]\ny = 2\n[c]\n", "{\"a\":{\"x\":1,\"b\":{\"y\":2}},\"c\":{}}");
	check("[a.b]\ny = 2\n[a]\nx = 1\n", "{\"a\":{\"b\":{\"y\":2},\"x\":1}}");
	check("a.b.c = 1\na.b.d = 2\n", "{\"a\":{\"b\":{\"c\":1,\"d\":2}}}");
	check("[[t]]\nx = 1\n[t.s]\ny = 2\n[[t]]\nx = 3\n", "{\"t\":[{\"x\":1,\"s\":{\"y\":2}},{\"x\":3}]}");
	check("a = { b = 1, c.d = 'x', e = {} }", "{\"a\":{\"b\":1,\"c\":{\"d\":\"x\"},\"e\":{}}}");
	check("[space]\nlr = { \"$loguniform\" = [1e-5, 0.1] }\n'key with blanks' = 1\n1-a = 2",
	      "{\"space\":{\"lr\":{\"$loguniform\":[0.00001,0.1]},\"key with blanks\":1,\"1-a\":2}}");
}

static void
test_what_is_wrong_is_named_with_its_line(void **state)
{
	(void)state;
	refuse("\n\na 1", "x.toml:3: expected '=' after the key, found '1'");
	refuse("a = ", "x.toml:1: expected a value, found the end of the file");
	refuse("a = \nb = 1", "x.toml:1: expected a value, found the end of the line");
	refuse("a = 1 b = 2", "x.toml:1: expected the end of the line, found 'b'");
	refuse("a = 1\na = 2", "x.toml:2: 'a' has a value already");
	refuse("a = {b = 1}\na.c = 2", "x.toml:2: 'a' has a value already");
	refuse("a = {b = 1}\n[a.c]", "x.toml:2: 'a' has a value already");
	refuse("a = [1]\n[[a]]", "x.toml:2: 'a' has a value already");
	refuse("[a]\n[a]", "x.toml:2: the table 'a' is there already");
	refuse("[a]\nb.c = 1\n[a.b]", "x.toml:3: 'b' has a value already");
	refuse("[a.b]\n[a]\nb.c = 1", "x.toml:3: 'b' has a value already");
	refuse("[a\nb = 1", "expected ']', found the end of the line");
	refuse("a = \"x\nb = 1", "x.toml:1: the text has no end: expected \"");
	refuse("a = '''x", "the text has no end: expected three 's");
	refuse("a = \"\\q\"", "expected one of b t n f r \" \\ u U after a backslash, found 'q\"'");
	refuse("a = \"\\ud800\"", "U+D800 is no character");
	refuse("a = 1979-05-27", "'1979-05-27': dates and times are not read");
	refuse("a = 07:32:00", "dates and times are not read");
	refuse("a = adam", "expected a value (a text stands in quotes), found 'adam'");
	refuse("a = 012", "expected a value");
	refuse("a = 1__0", "an underscore stands between two digits");
	refuse("a = _1", "an underscore");
	refuse("a = 1.", "expected a value");
	refuse("a = .5", "expected a value");
	refuse("a = 0x0x5", "expected a value");
	refuse("a = 99999999999999999999", "does not fit into 64 bits");
	refuse("a = [1 2]", "expected ',' or ']' in an array, found '2]'");
	refuse("a = {b = 1,}", "expected a key");
	refuse("a = {\nb = 1}", "expected a key");
	refuse("= 1", "expected a key");
	refuse("a = \"\xff\"", "a text that is not UTF-8");
	refuse("a = \"\x01\"", "control character");
}

static void
test_P16_depth_is_limited_and_any_cut_is_survived(void **state)
{
	static const char text[] =
		"a = [1, {b = \"x\\u00e9\", c.d = '''y'''}]\n[t.'s']\nx = 0x1f # y\n[[u]]\nv = 1.5e3\nw = \"\"\"q\"\"\"\n";
	char deep[400];

	(void)state;
	memset(deep, '[', sizeof(deep));
	memcpy(deep, "a = ", 4);
	deep[sizeof(deep) - 1] = '\0';
	refuse(deep, "deeper than 64");
	for (size_t i = 0; i < 200; i++)
		memcpy(deep + 2 * i, "a.", 2);
	deep[sizeof(deep) - 1] = '\0';
	refuse(deep, "a key of more than 64 parts");
	for (size_t len = 0; len < sizeof(text); len++)
		for (int change = 0; change < 2; change++) {
			struct pawl_error err = {0};
			char *copy = malloc(len + 1), *json = NULL; /* exactly as long, for the address sanitizer */

			memcpy(copy, text, len);
			if (change && len > 0)
				copy[len / 2] = (char)(copy[len / 2] ^ 0x15);
			(void)tune_toml_to_json(copy, len, "x.toml", &json, &err);
			free(json);
			free(copy);
		}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_values),
		cmocka_unit_test(test_texts),
		cmocka_unit_test(test_tables),
		cmocka_unit_test(test_what_is_wrong_is_named_with_its_line),
		cmocka_unit_test(test_P16_depth_is_limited_and_any_cut_is_survived),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
