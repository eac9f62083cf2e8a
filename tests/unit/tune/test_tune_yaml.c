/* SPDX-License-Identifier: Apache-2.0 */
/* Documents in YAML: every kind of value, and what is refused with its line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/value.h"
#include "tune.h"

static void
check(const char *yaml, const char *json)
{
	struct pawl_error err = {0};
	char *text = NULL;
	int rc = tune_yaml_to_json(yaml, strlen(yaml), "x.yaml", &text, &err);

	if (rc != 0)
		fail_msg("%s: %s", yaml, err.message);
	struct value *found = value_from_text(text), *expected = value_from_text(json);

	assert_non_null(expected);
	if (!value_equal(found, expected))
		fail_msg("%s: expected %s, found %s", yaml, json, text);
	value_free(found);
	value_free(expected);
	free(text);
}

static int
refuse(const char *yaml, const char *message)
{
	struct pawl_error err = {0};
	char *text = NULL;
	int rc = tune_yaml_to_json(yaml, strlen(yaml), "x.yaml", &text, &err);

	if (rc == 0)
		fail_msg("accepted: %s -> %s", yaml, text);
	if (strstr(err.message, message) == NULL)
		fail_msg("%s: expected '%s', found '%s'", yaml, message, err.message);
	return rc;
}

static void
test_numbers_follow_the_core_schema(void **state)
{
	(void)state;
	check("a: 1\nb: -2\nc: +3\nd: 012\ne: 0\nf: -0", "{\"a\":1,\"b\":-2,\"c\":3,\"d\":12,\"e\":0,\"f\":0}");
	check("a: 0x1F\nb: 0o17\nc: 0xdeadbeef", "{\"a\":31,\"b\":15,\"c\":3735928559}");
	check("a: 9223372036854775807\nb: -9223372036854775808",
	      "{\"a\":9223372036854775807,\"b\":-9223372036854775808}");
	check("a: 1e-4\nb: 0.5\nc: -2.5E+3\nd: +1.0\ne: .5\nf: 5.\ng: -.5e1\nh: 5.e-1\ni: 1E5",
	      "{\"a\":0.0001,\"b\":0.5,\"c\":-2500.0,\"d\":1.0,\"e\":0.5,\"f\":5.0,\"g\":-5.0,\"h\":0.5,\"i\":100000.0}");
	check("a: .inf\nb: -.INF\nc: .NaN\nd: +.Inf",
	      "{\"a\":\"Infinity\",\"b\":\"-Infinity\",\"c\":\"NaN\",\"d\":\"Infinity\"}");
	check("a: 1_000\nb: 0b101\nc: 1e\nd: .\ne: 0x\nf: 1.2.3\nh: +-1\ni: 07:32:00\nj: 2020-01-01\nk: e5\nl: -0x1",
	      "{\"a\":\"1_000\",\"b\":\"0b101\",\"c\":\"1e\",\"d\":\".\",\"e\":\"0x\",\"f\":\"1.2.3\","
	      "\"h\":\"+-1\",\"i\":\"07:32:00\",\"j\":\"2020-01-01\",\"k\":\"e5\",\"l\":\"-0x1\"}");
}

static void
test_words_follow_the_core_schema(void **state)
{
	(void)state;
	check("a: true\nb: False\nc: TRUE\nd: null\ne: ~\nf:\ng: Null",
	      "{\"a\":true,\"b\":false,\"c\":true,\"d\":null,\"e\":null,\"f\":null,\"g\":null}");
	check("a: yes\nb: no\nc: on\nd: tRUE\ne: nil\nf: y",
	      "{\"a\":\"yes\",\"b\":\"no\",\"c\":\"on\",\"d\":\"tRUE\",\"e\":\"nil\",\"f\":\"y\"}");
	check("a: '1'\nb: \"true\"\nc: '~'\nd: |\n  1\ne: >\n  x\n  y\nf: ''",
	      "{\"a\":\"1\",\"b\":\"true\",\"c\":\"~\",\"d\":\"1\\n\",\"e\":\"x y\\n\",\"f\":\"\"}");
	check("a: \"x\\ty\\\"\\\\ \\u00e9 \\U0001F600\"\nb: 'it''s'",
	      "{\"a\":\"x\\ty\\\"\\\\ \xc3\xa9 \xf0\x9f\x98\x80\",\"b\":\"it's\"}");
}

static void
test_structure(void **state)
{
	(void)state;
	check("", "{}");
	check("\xef\xbb\xbf# only\r\n\r\n  # this", "{}");
	check("%YAML 1.2\n---\na: 1\n...\n", "{\"a\":1}");
	check("space:\n  lr: {$loguniform: [1e-5, 0.1]}\n  key with blanks: 1\nrun: [sh, -c, 'echo {lr}']",
	      "{\"space\":{\"lr\":{\"$loguniform\":[0.00001,0.1]},\"key with blanks\":1},"
	      "\"run\":[\"sh\",\"-c\",\"echo {lr}\"]}");
	check("a:\n- 1\n- - 2\n  - b: 3\n- []\n- {}", "{\"a\":[1,[2,{\"b\":3}],[],{}]}");
	/* keys are strings, whatever they look like */
	check("1: a\ntrue: b\n'': c\n'<<': d", "{\"1\":\"a\",\"true\":\"b\",\"\":\"c\",\"<<\":\"d\"}");
}

static void
test_JSON_is_read_as_it_is(void **state)
{
	static const char json[] =
		"{\"name\":\"x\",\"space\":{\"lr\":{\"$loguniform\":[1e-05,0.1]},\"n\":[1,2.5,\"a\",true,null]},\n"
		"\t\"stop\": {\"a/b\": -3, \"url\": \"http:\\/\\/x\"}, \"empty\": [], \"e\": {}}\n";

	(void)state;
	check(json, json);
}

static void
test_what_is_wrong_is_named_with_its_line(void **state)
{
	(void)state;
	refuse("a: &x 1\nb: 2", "x.yaml:1: anchors are not supported");
	refuse("b: 1\na: &x {c: 1}", "x.yaml:2: anchors are not supported");
	refuse("a: 1\nb: &x\n- 1", "x.yaml:2: anchors are not supported");
	refuse("&x a: 1", "x.yaml:1: anchors are not supported");
	refuse("a: 1\nb: *x", "x.yaml:2: aliases are not supported");
	refuse("a: 1\n*x : 2", "x.yaml:2: aliases are not supported");
	refuse("a: 1\nb: !!str 1", "x.yaml:2: tags are not supported");
	refuse("a: ! 1", "x.yaml:1: tags are not supported");
	refuse("a: !python/object:os.system {}", "x.yaml:1: tags are not supported");
	refuse("a: 1\n\n<<: {b: 1}", "x.yaml:3: merge keys are not supported");
	refuse("a: 1\nb: 2\na: 3", "x.yaml:3: the key 'a' already exists");
	refuse("a: {b: 1, b: 1}", "x.yaml:1: the key 'b' already exists");
	refuse("a: 1\n---\nb: 2", "x.yaml:2: expected one document, found another");
	refuse("- 1\n- 2", "x.yaml:1: expected keys and values at the top");
	refuse("just text", "x.yaml:1: expected keys and values at the top");
	refuse("# c\n---\n", "expected keys and values at the top");
	refuse("? [a]\n: 1", "x.yaml:1: expected a key, found a list or a mapping");
	refuse("?\n: 1", "x.yaml:1: expected a key before ':'");
	refuse("run: [1,\n2 3\n4: 5]\n", "x.yaml:");
	refuse("a: [1, 2\nb: 3", "x.yaml:2: while parsing a flow sequence: did not find expected ',' or ']'");
	refuse("a: b: c", "x.yaml:1: mapping values are not allowed in this context");
	refuse("a:\n\tb: 1", "x.yaml:2: ");
	refuse("a: 'x", "x.yaml:1: ");
	refuse("a: \"\\ud800\"", "x.yaml:1: ");
	refuse("a: 1\nb: \"\\0\"", "x.yaml:2: a string contains a NUL character");
	refuse("a: 1\nb: \xff", "x.yaml:2: expected UTF-8 text without control characters");
	refuse("a: \x01", "x.yaml:1: expected UTF-8 text without control characters");
	refuse("a: 99999999999999999999", "x.yaml:1: the integer does not fit into 64 bits");
	refuse("a: -9223372036854775809", "x.yaml:1: the integer does not fit into 64 bits");
	refuse("a: 0xfffffffffffffffff", "x.yaml:1: the integer does not fit into 64 bits");
	refuse("a: 1e400", "x.yaml:1: the number is too large");
}

static void
test_P16_size_is_limited(void **state)
{
	char *text = malloc(5 << 20);
	size_t at = 0;

	(void)state;
	assert_non_null(text);
	memset(text, '[', 400);
	memcpy(text, "a: ", 3);
	text[400] = '\0';
	assert_int_equal(refuse(text, "x.yaml:1: nested deeper than 64"), PAWL_ELIMIT);
	for (int i = 0; i < 70; i++)
		at += (size_t)sprintf(text + at, "%*sa:\n", i, "");
	assert_int_equal(refuse(text, "nested deeper than 64"), PAWL_ELIMIT);
	at = 0;
	for (int i = 0; i < 5000; i++)
		at += (size_t)sprintf(text + at, "k%d: 1\n", i);
	assert_int_equal(refuse(text, "x.yaml:4097: expected at most 4096 keys"), PAWL_ELIMIT);
	memset(text, ' ', 5 << 20);
	text[(5 << 20) - 1] = '\0';
	assert_int_equal(refuse(text, "expected at most 4194304 bytes"), PAWL_ELIMIT);
	strcpy(text, "a: ");
	memset(text + 3, '1', 2000);
	text[2003] = '\0';
	refuse(text, "x.yaml:1: the integer does not fit");
	strcpy(text + 2003, ".5");
	refuse(text, "x.yaml:1: the number has too many digits");
	free(text);
}

static void
test_P16_any_cut_is_survived(void **state)
{
	static const char text[] = "a: [1, {b: \"x\\u00e9\", c: '''y'''}]\nt:\n  - s: 0x1f # y\n    u: |\n     v\n"
				   "w: &x !t {1.5e3: *x}\n<<: ~\n";

	(void)state;
	for (size_t len = 0; len < sizeof(text); len++)
		for (int change = 0; change < 2; change++) {
			struct pawl_error err = {0};
			char *copy = malloc(len + 1), *json = NULL; /* exactly as long, for the address sanitizer */

			memcpy(copy, text, len);
			if (change && len > 0)
				copy[len / 2] = (char)(copy[len / 2] ^ 0x15);
			(void)tune_yaml_to_json(copy, len, "x.yaml", &json, &err);
			free(json);
			free(copy);
		}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_numbers_follow_the_core_schema),
		cmocka_unit_test(test_words_follow_the_core_schema),
		cmocka_unit_test(test_structure),
		cmocka_unit_test(test_JSON_is_read_as_it_is),
		cmocka_unit_test(test_what_is_wrong_is_named_with_its_line),
		cmocka_unit_test(test_P16_size_is_limited),
		cmocka_unit_test(test_P16_any_cut_is_survived),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
