/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the state tree: building, reading, and its JSON form. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "state/state.h"
#include "helpers/trees.h"

#define TEXT(literal) {.type = PAWL_STR, .ptr = (literal), .len = sizeof(literal) - 1}
#define BYTES(literal) {.type = PAWL_BYTES, .ptr = (literal), .len = sizeof(literal) - 1}

static struct pawl_state *
new_state(void)
{
	struct pawl_state *s = NULL;

	assert_int_equal(pawl_state_new(&s, NULL), 0);
	return s;
}

static void
add_key(struct pawl_state *s, const char *key)
{
	struct pawl_scalar k = {.type = PAWL_STR, .ptr = key, .len = strlen(key)};

	assert_int_equal(pawl_state_key(s, &k, NULL), 0);
}

static int
decode(const char *text, size_t len, struct pawl_state **ret, struct pawl_error *err)
{
	struct json_limits limits = {.max_depth = 1000};
	struct bump memory = {0};
	struct json *value;
	int rc = json_parse("text", text, len, &limits, &memory, &value, err);

	if (rc == 0)
		rc = state_decode("text", value, ret, err);
	bump_clear(&memory);
	return rc;
}

/* encode -> decode -> encode: equal trees, equal text. Returns the text, to be freed. */
static char *
round_trip(const struct pawl_state *s)
{
	struct pawl_error err = {0};
	struct buf first = {0}, second = {0};
	struct pawl_state *back = NULL;

	assert_int_equal(state_encode(s, &first, &err), 0);
	if (decode(first.ptr, first.len, &back, &err) < 0)
		fail_msg("%s in %s", err.message, buf_str(&first));
	if (!tree_equal(s, back))
		fail_msg("not equal: %s", buf_str(&first));
	assert_int_equal(state_encode(back, &second, &err), 0);
	assert_int_equal(first.len, second.len);
	assert_memory_equal(first.ptr, second.ptr, first.len);
	pawl_state_free(back);
	buf_clear(&second);
	buf_str(&first);
	return first.ptr;
}

static void
assert_encodes(struct pawl_state *s, const char *expected)
{
	char *text = round_trip(s);

	assert_string_equal(text, expected);
	free(text);
	pawl_state_free(s);
}

static struct pawl_state *
with_scalar(struct pawl_scalar value)
{
	struct pawl_state *s = new_state();

	assert_int_equal(pawl_state_add(s, &value, NULL), 0);
	return s;
}

static double
float_of_bits(uint64_t bits)
{
	double f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

/* ------------------------------------------------------------- round trips */

static void
test_kinds_come_back_with_their_values(void **unused)
{
	(void)unused;
	struct pawl_error err = {0};
	struct pawl_state *s = NULL;
	struct pawl_scalar key = {.type = PAWL_STR, .ptr = "d", .len = 1},
			   day = {.type = PAWL_STR, .ptr = "x", .len = 1};

	assert_int_equal(pawl_state_new(&s, &err), 0);
	assert_int_equal(pawl_state_kind(s, "namedtuple", &err), 0);
	assert_int_equal(pawl_state_begin(s, PAWL_DICT, &err), 0);
	assert_int_equal(pawl_state_key(s, &key, &err), 0);
	assert_int_equal(pawl_state_kind(s, "date", &err), 0);
	assert_int_equal(pawl_state_add(s, &day, &err), 0);
	key.ptr = "s";
	assert_int_equal(pawl_state_key(s, &key, &err), 0);
	assert_int_equal(pawl_state_kind(s, "set", &err), 0);
	assert_int_equal(pawl_state_begin(s, PAWL_TUPLE, &err), 0);
	assert_int_equal(pawl_state_end(s, &err), 0);
	assert_int_equal(pawl_state_end(s, &err), 0);
	assert_string_equal(pawl_node_kind(pawl_state_root(s)), "namedtuple");
	char *json = round_trip(s);
	assert_string_equal(json, "{\"$value\":{\"d\":{\"$value\":\"x\",\"as\":\"date\"},"
	                          "\"s\":{\"$value\":{\"$tuple\":[]},\"as\":\"set\"}},\"as\":\"namedtuple\"}");
	free(json);
	assert_int_equal(pawl_state_kind(s, "a kind of more than thirty-two bytes", &err), PAWL_EUSAGE);
	pawl_state_free(s);
}

static void
test_P1_every_scalar_comes_back_bit_for_bit(void **unused)
{
	(void)unused;
	const struct {
		struct pawl_scalar value;
		const char *text;
	} cases[] = {
		{{.type = PAWL_NONE}, "null"},
		{{.type = PAWL_BOOLEAN, .i = 0}, "false"},
		{{.type = PAWL_BOOLEAN, .i = 7}, "true"},
		{{.type = PAWL_INT, .i = 0}, "0"},
		{{.type = PAWL_INT, .i = -1}, "-1"},
		{{.type = PAWL_INT, .i = 9007199254740992}, "9007199254740992"},
		{{.type = PAWL_INT, .i = -9007199254740992}, "-9007199254740992"},
		{{.type = PAWL_INT, .i = 9007199254740993}, "{\"$int\":\"9007199254740993\"}"},
		{{.type = PAWL_INT, .i = INT64_MAX}, "{\"$int\":\"9223372036854775807\"}"},
		{{.type = PAWL_INT, .i = INT64_MIN}, "{\"$int\":\"-9223372036854775808\"}"},
		{{.type = PAWL_INT, .ptr = "9223372036854775808", .len = 19}, "{\"$int\":\"9223372036854775808\"}"},
		{{.type = PAWL_INT, .ptr = "-170141183460469231731687303715884105728", .len = 40},
	         "{\"$int\":\"-170141183460469231731687303715884105728\"}"},
		{{.type = PAWL_FLOAT, .f = 0.0}, "0.0"},
		{{.type = PAWL_FLOAT, .f = -0.0}, "-0.0"},
		{{.type = PAWL_FLOAT, .f = 1.0}, "1.0"},
		{{.type = PAWL_FLOAT, .f = 0.1}, "0.1"},
		{{.type = PAWL_FLOAT, .f = (double)INFINITY}, "{\"$float\":\"7ff0000000000000\"}"},
		{{.type = PAWL_FLOAT, .f = (double)-INFINITY}, "{\"$float\":\"fff0000000000000\"}"},
		{{.type = PAWL_FLOAT, .f = float_of_bits(0x7ff8000000000000)}, "{\"$float\":\"7ff8000000000000\"}"},
		{{.type = PAWL_FLOAT, .f = float_of_bits(0xfff8dead0000beef)}, "{\"$float\":\"fff8dead0000beef\"}"},
		{{.type = PAWL_FLOAT, .f = float_of_bits(0x7ff0000000000001)}, "{\"$float\":\"7ff0000000000001\"}"},
		{TEXT(""), "\"\""},
		{TEXT("caf\xc3\xa9 \"$x\""), "\"caf\xc3\xa9 \\\"$x\\\"\""},
		{TEXT("a\0b"), "{\"$str\":\"YQBi\"}"},
		{BYTES(""), "{\"$bytes\":\"\"}"},
		{BYTES("\0\xff\0"), "{\"$bytes\":\"AP8A\"}"},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_encodes(with_scalar(cases[i].value), cases[i].text);
}

static void
test_an_int_given_as_text_is_the_same_int(void **unused)
{
	(void)unused;
	static const struct {
		const char *text;
		int64_t i;
		bool stays_text;
	} cases[] = {
		{"0", 0, false},
		{"-5", -5, false},
		{"9223372036854775807", INT64_MAX, false},
		{"-9223372036854775808", INT64_MIN, false},
		{"9223372036854775808", 0, true},
		{"-9223372036854775809", 0, true},
		{"18446744073709551615", 0, true},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct pawl_state *s = with_scalar(
			(struct pawl_scalar){.type = PAWL_INT, .ptr = cases[i].text, .len = strlen(cases[i].text)});
		const struct pawl_scalar *back = pawl_node_scalar(pawl_state_root(s));
		assert_int_equal(back->i, cases[i].i);
		if (cases[i].stays_text)
			assert_string_equal(back->ptr, cases[i].text);
		else
			assert_null(back->ptr);
		pawl_state_free(s);
	}
}

static void
test_text_that_is_no_int_is_refused(void **unused)
{
	(void)unused;
	static const char *const bad[] = {"", "-", "+1", "01", "-0", "-01", "1.0", "1e3", "0x10", " 1", "1 ", "12a"};
	struct pawl_state *s = new_state();

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct pawl_scalar value = {.type = PAWL_INT, .ptr = bad[i], .len = strlen(bad[i])};
		assert_int_equal(pawl_state_add(s, &value, NULL), PAWL_EUSAGE);
	}
	static char digits[60002];
	memset(digits, '9', 60001);
	struct pawl_scalar value = {.type = PAWL_INT, .ptr = digits, .len = 60001};
	assert_int_equal(pawl_state_add(s, &value, NULL), PAWL_ELIMIT);
	value.len = 60000;
	assert_int_equal(pawl_state_add(s, &value, NULL), 0);
	free(round_trip(s));
	pawl_state_free(s);
}

static void
test_containers_have_their_documented_forms(void **unused)
{
	(void)unused;
	struct pawl_state *s = new_state();
	struct pawl_scalar one = {.type = PAWL_INT, .i = 1};

	pawl_state_begin(s, PAWL_DICT, NULL);
	for (int type = PAWL_DICT; type <= PAWL_TUPLE; type++) {
		char name[2] = {(char)('a' + type - PAWL_DICT), '\0'}, full[2] = {(char)('A' + type - PAWL_DICT), '\0'};
		add_key(s, name);
		assert_int_equal(pawl_state_begin(s, type, NULL), 0);
		assert_int_equal(pawl_state_end(s, NULL), 0);
		add_key(s, full);
		assert_int_equal(pawl_state_begin(s, type, NULL), 0);
		for (int i = 0; i < 2; i++) {
			if (type == PAWL_DICT || type == PAWL_ODICT)
				add_key(s, i ? "y" : "x");
			assert_int_equal(pawl_state_add(s, &one, NULL), 0);
		}
		assert_int_equal(pawl_state_end(s, NULL), 0);
	}
	assert_int_equal(pawl_state_end(s, NULL), 0);
	assert_encodes(
		s, "{\"a\":{},\"A\":{\"x\":1,\"y\":1},\"b\":{\"$odict\":[]},\"B\":{\"$odict\":[[\"x\",1],[\"y\",1]]},"
		   "\"c\":[],\"C\":[1,1],\"d\":{\"$tuple\":[]},\"D\":{\"$tuple\":[1,1]}}");
}

static void
test_keys_of_every_type_come_back(void **unused)
{
	(void)unused;
	const struct pawl_scalar keys[] = {
		{.type = PAWL_NONE},
		{.type = PAWL_BOOLEAN, .i = 1},
		{.type = PAWL_INT, .i = 1},
		{.type = PAWL_INT, .ptr = "99999999999999999999", .len = 20},
		{.type = PAWL_FLOAT, .f = 1.0},
		{.type = PAWL_FLOAT, .f = float_of_bits(0x7ff8000000000001)},
		{.type = PAWL_FLOAT, .f = -0.0},
		{.type = PAWL_FLOAT, .f = 0.0},
		TEXT("1"),
		TEXT(""),
		TEXT("null"),
		TEXT("a/b%c"),
		TEXT("$tensor"),
		TEXT("x\0y"),
		BYTES("1"),
		BYTES("\0/\xff"),
	};
	static const char *const paths[] = {"null",    "true",  "1",    "99999999999999999999",
	                                    "1.0",     "nan",   "-0.0", "0.0",
	                                    "1",       "",      "null", "a%2Fb%25c",
	                                    "$tensor", "x%00y", "1",    "%00%2F%FF"};
	struct pawl_state *s = new_state();
	struct buf component = {0};

	pawl_state_begin(s, PAWL_DICT, NULL);
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		struct pawl_scalar value = {.type = PAWL_INT, .i = (int64_t)i};
		assert_int_equal(pawl_state_key(s, &keys[i], NULL), 0);
		assert_int_equal(pawl_state_add(s, &value, NULL), 0);
	}
	pawl_state_end(s, NULL);
	size_t i = 0;
	for (const struct pawl_node *n = pawl_node_first(pawl_state_root(s)); n; n = pawl_node_next(n), i++) {
		component.len = 0;
		state_put_component(&component, pawl_state_root(s), n, i);
		assert_string_equal(buf_str(&component), paths[i]);
		assert_int_equal(pawl_node_key(n)->type, keys[i].type);
	}
	assert_int_equal(i, 16);
	buf_clear(&component);
	free(round_trip(s));
	pawl_state_free(s);
}

static void
test_a_dict_with_a_dollar_key_is_not_mistaken_for_a_typed_form(void **unused)
{
	(void)unused;
	struct pawl_state *s = new_state();

	pawl_state_begin(s, PAWL_DICT, NULL);
	add_key(s, "$int");
	pawl_state_add(s, &(struct pawl_scalar)TEXT("5"), NULL);
	pawl_state_end(s, NULL);
	assert_encodes(s, "{\"$dict\":[[\"$int\",\"5\"]]}");
}

static void
test_P1_random_trees_come_back_equal(void **unused)
{
	(void)unused;
	size_t bytes = 0;

	for (uint64_t seed = 1; seed <= 1500; seed++) {
		struct pawl_state *s = tree_new(seed);
		char *text = round_trip(s);
		bytes += strlen(text);
		free(text);
		pawl_state_free(s);
	}
	assert_true(bytes > 100000); /* they were not all empty */
}

/* ----------------------------------------------------------------- building */

static void
test_a_key_twice_is_refused_and_names_the_path(void **unused)
{
	(void)unused;
	struct pawl_state *s = new_state();
	struct pawl_error err = {0};
	struct pawl_scalar number = {.type = PAWL_INT, .i = 3};

	pawl_state_begin(s, PAWL_DICT, NULL);
	add_key(s, "model");
	pawl_state_begin(s, PAWL_ODICT, NULL);
	pawl_state_key(s, &number, NULL);
	pawl_state_add(s, &number, NULL);
	assert_int_equal(pawl_state_key(s, &number, &err), PAWL_EEXISTS);
	assert_non_null(strstr(err.message, "model/3"));
	assert_non_null(strstr(err.message, "int"));
	/* the refusal has left nothing behind */
	add_key(s, "3");
	assert_int_equal(pawl_state_add(s, &number, NULL), 0);
	assert_int_equal(pawl_state_end(s, NULL), 0);
	assert_int_equal(pawl_state_end(s, NULL), 0);
	assert_encodes(s, "{\"model\":{\"$odict\":[[3,3],[\"3\",3]]}}");
}

static void
test_dicts_of_every_size_find_their_keys_and_refuse_them_twice(void **unused)
{
	(void)unused;
	struct pawl_state *s = new_state();
	char path[32];

	pawl_state_begin(s, PAWL_DICT, NULL);
	for (int64_t n = 0; n < 40; n++) {
		for (int64_t i = 0; i < n; i++) {
			struct pawl_scalar key = {.type = PAWL_INT, .i = i};
			assert_int_equal(pawl_state_key(s, &key, NULL), PAWL_EEXISTS);
			snprintf(path, sizeof(path), "%d", (int)i);
			assert_int_equal(pawl_node_scalar(pawl_state_at(s, path))->i, -i);
		}
		struct pawl_scalar key = {.type = PAWL_INT, .i = n}, value = {.type = PAWL_INT, .i = -n};
		snprintf(path, sizeof(path), "%d", (int)n);
		assert_null(pawl_state_at(s, path));
		assert_int_equal(pawl_state_key(s, &key, NULL), 0);
		assert_int_equal(pawl_state_add(s, &value, NULL), 0);
	}
	pawl_state_free(s);
}

static void
test_NULL_is_refused_everywhere(void **unused)
{
	(void)unused;
	struct pawl_state *s = new_state();
	struct pawl_tensor tensor = PAWL_TENSOR_INIT;
	const struct pawl_scalar none = {.type = PAWL_NONE};
	struct pawl_error err = {0};
	const char *text;
	int64_t number;
	double real;

	assert_int_equal(pawl_state_new(NULL, &err), PAWL_EUSAGE);
	for (int i = 0; i < 2; i++) { /* no state, then no path */
		struct pawl_state *where = i ? s : NULL;
		const char *path = i ? NULL : "a";

		assert_int_equal(pawl_state_set_none(where, path, &err), PAWL_EUSAGE);
		assert_int_equal(pawl_state_set_bool(where, path, 1, &err), PAWL_EUSAGE);
		assert_int_equal(pawl_state_set_int(where, path, 1, &err), PAWL_EUSAGE);
		assert_int_equal(pawl_state_set_float(where, path, 1, &err), PAWL_EUSAGE);
		assert_int_equal(pawl_state_set_str(where, path, "x", &err), PAWL_EUSAGE);
		assert_int_equal(pawl_state_set_bytes(where, path, "x", 1, &err), PAWL_EUSAGE);
		assert_int_equal(pawl_state_set_tensor(where, path, &tensor, &err), PAWL_EUSAGE);
		assert_int_equal(pawl_state_get_int(where, path, &number, &err), PAWL_EUSAGE);
		assert_int_equal(pawl_state_get_float(where, path, &real, &err), PAWL_EUSAGE);
		assert_int_equal(pawl_state_get_str(where, path, &text, &err), PAWL_EUSAGE);
	}
	assert_int_equal(pawl_state_set_str(s, "a", NULL, &err), PAWL_EUSAGE);
	assert_int_equal(pawl_state_set_bytes(s, "a", NULL, 1, &err), PAWL_EUSAGE);
	assert_int_equal(pawl_state_set_tensor(s, "a", NULL, &err), PAWL_EUSAGE);
	assert_int_equal(pawl_state_begin(NULL, PAWL_DICT, &err), PAWL_EUSAGE);
	assert_int_equal(pawl_state_end(NULL, &err), PAWL_EUSAGE);
	assert_int_equal(pawl_state_key(NULL, &none, &err), PAWL_EUSAGE);
	assert_int_equal(pawl_state_key(s, NULL, &err), PAWL_EUSAGE);
	assert_int_equal(pawl_state_add(NULL, &none, &err), PAWL_EUSAGE);
	assert_int_equal(pawl_state_add(s, NULL, &err), PAWL_EUSAGE);
	assert_int_equal(pawl_state_add_tensor(NULL, &tensor, &err), PAWL_EUSAGE);
	assert_int_equal(pawl_state_add_tensor(s, NULL, &err), PAWL_EUSAGE);
	assert_null(pawl_state_root(s));
	assert_int_equal(pawl_state_set_bytes(s, "empty", NULL, 0, &err), 0);
	pawl_state_free(s);
}

static void
test_calls_out_of_order_are_refused(void **unused)
{
	(void)unused;
	struct pawl_state *s = new_state();
	struct pawl_scalar one = {.type = PAWL_INT, .i = 1};
	struct buf out = {0};

	assert_int_equal(state_encode(s, &out, NULL), PAWL_EUSAGE);
	assert_int_equal(pawl_state_end(s, NULL), PAWL_EUSAGE);
	assert_int_equal(pawl_state_key(s, &one, NULL), PAWL_EUSAGE);
	assert_int_equal(pawl_state_begin(s, PAWL_STR, NULL), PAWL_EUSAGE);
	assert_int_equal(pawl_state_begin(s, 99, NULL), PAWL_EUSAGE);
	assert_int_equal(pawl_state_begin(s, PAWL_DICT, NULL), 0);
	assert_int_equal(pawl_state_add(s, &one, NULL), PAWL_EUSAGE);
	assert_int_equal(pawl_state_begin(s, PAWL_LIST, NULL), PAWL_EUSAGE);
	assert_int_equal(pawl_state_key(s, &one, NULL), 0);
	assert_int_equal(pawl_state_key(s, &one, NULL), PAWL_EUSAGE);
	assert_int_equal(pawl_state_end(s, NULL), PAWL_EUSAGE);
	assert_int_equal(pawl_state_begin(s, PAWL_LIST, NULL), 0);
	assert_int_equal(pawl_state_key(s, &one, NULL), PAWL_EUSAGE);
	assert_int_equal(pawl_state_set_int(s, "x", 1, NULL), PAWL_EUSAGE);
	assert_int_equal(state_check_complete(s, NULL), PAWL_EUSAGE);
	assert_int_equal(state_encode(s, &out, NULL), PAWL_EUSAGE);
	assert_int_equal(pawl_state_end(s, NULL), 0);
	assert_int_equal(pawl_state_end(s, NULL), 0);
	assert_int_equal(state_check_complete(s, NULL), 0);
	assert_int_equal(pawl_state_begin(s, PAWL_LIST, NULL), PAWL_EUSAGE);
	assert_int_equal(pawl_state_add(s, &one, NULL), PAWL_EUSAGE);
	assert_int_equal(out.len, 0);
	assert_encodes(s, "{\"$dict\":[[1,[]]]}");
}

static void
test_what_cannot_be_held_is_refused_with_path_and_type(void **unused)
{
	(void)unused;
	struct pawl_state *s = new_state();
	struct pawl_error err = {0};
	struct pawl_scalar odd = {.type = 42}, text = TEXT("\xff"), none = {.type = PAWL_STR, .len = 3};
	struct pawl_scalar container = {.type = PAWL_DICT};

	pawl_state_begin(s, PAWL_DICT, NULL);
	add_key(s, "rng");
	pawl_state_begin(s, PAWL_LIST, NULL);
	pawl_state_add(s, &(struct pawl_scalar){.type = PAWL_NONE}, NULL);
	assert_int_equal(pawl_state_add(s, &odd, &err), PAWL_EUNSUPPORTED);
	assert_non_null(strstr(err.message, "rng/1"));
	assert_non_null(strstr(err.message, "type 42"));
	assert_int_equal(pawl_state_add(s, &text, &err), PAWL_EUSAGE);
	assert_non_null(strstr(err.message, "rng/1: str"));
	assert_int_equal(pawl_state_add(s, &none, NULL), PAWL_EUSAGE);
	assert_int_equal(pawl_state_add(s, &container, NULL), PAWL_EUSAGE);
	pawl_state_begin(s, PAWL_DICT, NULL);
	assert_int_equal(pawl_state_key(s, &container, NULL), PAWL_EUSAGE);
	static char long_key[5000];
	memset(long_key, 'k', sizeof(long_key));
	struct pawl_scalar key = {.type = PAWL_STR, .ptr = long_key, .len = 4097};
	assert_int_equal(pawl_state_key(s, &key, &err), PAWL_ELIMIT);
	assert_non_null(strstr(err.message, "rng/1"));
	key.len = 4096;
	assert_int_equal(pawl_state_key(s, &key, NULL), 0);
	pawl_state_free(s);
}

static int
build_nested(struct pawl_state *s, int type, unsigned depth, struct pawl_error *err)
{
	int rc = 0;

	for (unsigned i = 0; i < depth && rc == 0; i++) {
		rc = pawl_state_begin(s, type, err);
		if (rc == 0 && type == PAWL_DICT)
			add_key(s, "$k");
	}
	return rc;
}

static void
test_256_levels_are_held_and_300_refused(void **unused)
{
	(void)unused;
	for (int type = PAWL_DICT; type <= PAWL_TUPLE; type += PAWL_TUPLE - PAWL_DICT) {
		struct pawl_state *s = new_state();
		struct pawl_error err = {0};
		assert_int_equal(build_nested(s, type, 256, NULL), 0);
		assert_int_equal(pawl_state_begin(s, PAWL_LIST, &err), PAWL_ELIMIT);
		assert_non_null(strstr(err.message, "list"));
		assert_int_equal(pawl_state_add(s, &(struct pawl_scalar){.type = PAWL_NONE}, NULL), 0);
		for (int i = 0; i < 256; i++)
			assert_int_equal(pawl_state_end(s, NULL), 0);
		free(round_trip(s));
		pawl_state_free(s);
		s = new_state();
		assert_int_equal(build_nested(s, type, 300, &err), PAWL_ELIMIT);
		pawl_state_free(s);
	}
}

static void
test_P17_deep_text_is_refused(void **unused)
{
	(void)unused;
	struct buf text = {0};
	struct pawl_state *s = NULL;

	for (int i = 0; i < 300; i++)
		buf_putc(&text, '[');
	for (int i = 0; i < 300; i++)
		buf_putc(&text, ']');
	assert_int_equal(decode(text.ptr, text.len, &s, NULL), PAWL_ELIMIT);
	text.len = 0;
	for (int i = 0; i < 257; i++)
		buf_puts(&text, "{\"$tuple\":[");
	for (int i = 0; i < 257; i++)
		buf_puts(&text, "]}");
	assert_int_equal(decode(text.ptr, text.len, &s, NULL), PAWL_ELIMIT);
	assert_null(s);
	buf_clear(&text);
}

/* ------------------------------------------------------------------ tensors */

static struct pawl_tensor
tensor_of(int dtype, uint32_t ndim, const uint64_t *shape, void *data)
{
	struct pawl_tensor t = PAWL_TENSOR_INIT;

	t.dtype = dtype;
	t.ndim = ndim;
	t.shape = shape;
	t.data = data;
	return t;
}

static void
test_tied_tensors_share_one_row(void **unused)
{
	(void)unused;
	static float data[64];
	uint64_t shape[2] = {4, 4}, column[2] = {16, 1};
	int64_t strides[2] = {4, 1}, turned[2] = {1, 4}, odd[2] = {1, 77};
	struct pawl_state *s = new_state();
	struct pawl_tensor t = tensor_of(PAWL_F32, 2, shape, data);

	assert_int_equal(pawl_state_set_tensor(s, "embed", &t, NULL), 0);
	t.strides = strides; /* says the same */
	t.kind = "torch";
	assert_int_equal(pawl_state_set_tensor(s, "head", &t, NULL), 0);
	t.strides = turned;
	assert_int_equal(pawl_state_set_tensor(s, "turned", &t, NULL), 0);
	t.strides = NULL;
	t.dtype = PAWL_I32;
	assert_int_equal(pawl_state_set_tensor(s, "other dtype", &t, NULL), 0);
	t = tensor_of(PAWL_F32, 2, column, data);
	assert_int_equal(pawl_state_set_tensor(s, "other shape", &t, NULL), 0);
	t.strides = odd; /* the stride of an extent of 1 says nothing */
	assert_int_equal(pawl_state_set_tensor(s, "same column", &t, NULL), 0);
	t = tensor_of(PAWL_F32, 2, shape, data + 1);
	assert_int_equal(pawl_state_set_tensor(s, "view", &t, NULL), 0);

	assert_int_equal(pawl_state_tensor_count(s), 5);
	assert_int_equal(pawl_node_tensor(pawl_state_at(s, "head")), 0);
	assert_string_equal(pawl_node_kind(pawl_state_at(s, "head")), "torch");
	assert_string_equal(pawl_node_kind(pawl_state_at(s, "embed")), "");
	assert_string_equal(pawl_state_tensor(s, 0)->name, "embed");
	assert_int_equal(pawl_node_tensor(pawl_state_at(s, "same column")),
	                 pawl_node_tensor(pawl_state_at(s, "other shape")));
	assert_false(s->tensors[1].contiguous);
	assert_null(pawl_state_tensor(s, 5));
	free(round_trip(s));
	pawl_state_free(s);
}

static void
test_tensors_without_memory_are_not_tied(void **unused)
{
	(void)unused;
	static char data[8];
	uint64_t empty[2] = {0, 3};
	struct pawl_state *s = new_state();
	struct pawl_tensor t = tensor_of(PAWL_F64, 2, empty, data);

	for (int i = 0; i < 2; i++) {
		t.data = NULL;
		assert_int_equal(pawl_state_set_tensor(s, i ? "b" : "a", &t, NULL), 0);
		t.data = data;
		assert_int_equal(pawl_state_set_tensor(s, i ? "d" : "c", &t, NULL), 0);
	}
	assert_int_equal(pawl_state_tensor_count(s), 4);
	assert_int_equal(pawl_state_tensor(s, 0)->nbytes, 0);
	free(round_trip(s));
	pawl_state_free(s);
}

static int
fill_nothing(void *arg, void *dst, size_t nbytes, struct pawl_error *err)
{
	(void)arg;
	(void)dst;
	(void)nbytes;
	(void)err;
	return 0;
}

static void
test_filled_tensors_tie_on_argument_shape_and_dtype(void **unused)
{
	(void)unused;
	static char one, two;
	uint64_t shape[1] = {6}, folded[2] = {2, 3};
	int64_t strides[1] = {5};
	struct pawl_state *s = new_state();
	struct pawl_tensor t = tensor_of(PAWL_BF16, 1, shape, NULL);

	t.fill = fill_nothing;
	t.fill_arg = &one;
	assert_int_equal(pawl_state_set_tensor(s, "a", &t, NULL), 0);
	t.data = &two;
	t.strides = strides; /* fill delivers C order anyway */
	assert_int_equal(pawl_state_set_tensor(s, "tied", &t, NULL), 0);
	t.strides = NULL;
	t.fill_arg = &two;
	assert_int_equal(pawl_state_set_tensor(s, "other argument", &t, NULL), 0);
	t.dtype = PAWL_F16;
	assert_int_equal(pawl_state_set_tensor(s, "other dtype", &t, NULL), 0);
	t.ndim = 2;
	t.shape = folded;
	assert_int_equal(pawl_state_set_tensor(s, "other shape", &t, NULL), 0);
	t.fill_arg = NULL; /* nothing to tell two of them apart by */
	assert_int_equal(pawl_state_set_tensor(s, "none", &t, NULL), 0);
	assert_int_equal(pawl_state_set_tensor(s, "none too", &t, NULL), 0);
	assert_int_equal(pawl_node_tensor(pawl_state_at(s, "tied")), 0);
	assert_int_equal(pawl_state_tensor_count(s), 6);
	pawl_state_free(s);
}

static void
test_names_of_tensors_are_unique(void **unused)
{
	(void)unused;
	static float data[8];
	const struct pawl_scalar keys[] = {TEXT("1"),   {.type = PAWL_INT, .i = 1}, TEXT("1~2"),
	                                   BYTES("1"),  TEXT("__metadata__"),       TEXT("a/b"),
	                                   BYTES("a/b")};
	static const char *const names[] = {"1", "1~2", "1~2~2", "1~3", "__metadata__~2", "a%2Fb", "a%2Fb~2"};
	struct pawl_state *s = new_state();

	pawl_state_begin(s, PAWL_DICT, NULL);
	for (size_t i = 0; i < 7; i++) {
		struct pawl_tensor t = tensor_of(PAWL_F32, 0, NULL, &data[i]);
		assert_int_equal(pawl_state_key(s, &keys[i], NULL), 0);
		assert_int_equal(pawl_state_add_tensor(s, &t, NULL), 0);
	}
	pawl_state_end(s, NULL);
	for (size_t i = 0; i < 7; i++) {
		assert_string_equal(pawl_state_tensor(s, i)->name, names[i]);
		assert_ptr_equal(state_find_tensor(s, names[i]), &s->tensors[i]);
	}
	assert_null(state_find_tensor(s, "2"));
	free(round_trip(s));
	pawl_state_free(s);
}

static void
test_a_lone_tensor_is_a_state(void **unused)
{
	(void)unused;
	static float data;
	struct pawl_state *s = new_state();
	struct pawl_tensor t = tensor_of(PAWL_F32, 0, NULL, &data);

	t.kind = "numpy";
	assert_int_equal(pawl_state_add_tensor(s, &t, NULL), 0);
	assert_string_equal(pawl_state_tensor(s, 0)->name, "");
	assert_encodes(s, "{\"$tensor\":\"\",\"as\":\"numpy\"}");
}

static void
test_too_long_a_tensor_path_is_refused(void **unused)
{
	(void)unused;
	static char key[4001];
	static float data;
	struct pawl_state *s = new_state();
	struct pawl_tensor t = tensor_of(PAWL_F32, 0, NULL, &data);
	struct pawl_error err = {0};

	memset(key, 'k', 4000);
	pawl_state_begin(s, PAWL_DICT, NULL);
	add_key(s, key);
	pawl_state_begin(s, PAWL_DICT, NULL);
	key[96] = '\0';
	add_key(s, key);
	assert_int_equal(pawl_state_add_tensor(s, &t, &err), PAWL_ELIMIT);
	assert_non_null(strstr(err.message, "4097 bytes"));
	assert_int_equal(pawl_state_tensor_count(s), 0);
	pawl_state_add(s, &(struct pawl_scalar){.type = PAWL_NONE}, NULL);
	key[95] = '\0';
	add_key(s, key);
	assert_int_equal(pawl_state_add_tensor(s, &t, &err), 0);
	pawl_state_free(s);
}

static void
test_bad_tensors_are_refused_and_leave_nothing_behind(void **unused)
{
	(void)unused;
	static char data[64];
	static uint64_t shape[65] = {2, 3}, huge[3] = {1ull << 32, 1ull << 32, 2}, offsets[2] = {1, 0},
			global[2] = {2, 3};
	static const int64_t far[2] = {INT64_MAX, 1}, turned[2] = {1, 2};
#define BAD(...) {{.size = sizeof(struct pawl_tensor), __VA_ARGS__}, PAWL_EUSAGE}
	const struct {
		struct pawl_tensor t;
		int code;
	} cases[] = {
		{{.size = 0, .dtype = PAWL_U8, .ndim = 2, .shape = shape, .data = data}, PAWL_EUSAGE},
		BAD(.dtype = 0, .ndim = 2, .shape = shape, .data = data),
		BAD(.dtype = 24, .ndim = 2, .shape = shape, .data = data),
		BAD(.dtype = PAWL_U8, .ndim = 65, .shape = shape, .data = data),
		BAD(.dtype = PAWL_U8, .ndim = 2, .data = data),
		BAD(.dtype = PAWL_U8, .ndim = 2, .shape = shape),
		BAD(.dtype = PAWL_U8, .ndim = 3, .shape = huge, .data = data),
		BAD(.dtype = PAWL_F64, .ndim = 2, .shape = huge, .data = data),
		BAD(.dtype = PAWL_F32, .ndim = 2, .shape = shape, .strides = far, .data = data),
		BAD(.dtype = PAWL_F4, .ndim = 1, .shape = shape + 1, .data = data),
		BAD(.dtype = PAWL_U8, .ndim = 2, .shape = shape, .data = data, .offsets = offsets),
		BAD(.dtype = PAWL_U8, .ndim = 2, .shape = shape, .data = data, .offsets = offsets,
	            .global_shape = global),
		BAD(.dtype = PAWL_U8, .shape = shape, .data = data, .kind = "a tag that is longer than 32 bytes"),
		BAD(.dtype = PAWL_U8, .shape = shape, .data = data, .kind = "\xff"),
		{{.size = sizeof(struct pawl_tensor), .dtype = PAWL_F4, .ndim = 2, .shape = shape, .strides = turned},
	         PAWL_EUNSUPPORTED},
	};
#undef BAD
	struct pawl_state *s = new_state();

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct pawl_error err = {0};
		int rc = pawl_state_set_tensor(s, "model/w", &cases[i].t, &err);
		if (rc != cases[i].code || err.code != rc || !strstr(err.message, "model/w") ||
		    !strstr(err.message, "tensor"))
			fail_msg("case %zu: %d (%s)", i, rc, err.message);
	}
	assert_null(pawl_state_root(s));
	assert_int_equal(pawl_state_tensor_count(s), 0);
	pawl_state_begin(s, PAWL_LIST, NULL);
	struct pawl_error err = {0};
	assert_int_equal(pawl_state_add_tensor(s, &cases[1].t, &err), PAWL_EUSAGE);
	assert_non_null(strstr(err.message, "state: 0: tensor"));
	pawl_state_free(s);
}

static void
test_shards_keep_their_box(void **unused)
{
	(void)unused;
	static float data[12];
	uint64_t shape[2] = {2, 3}, global[2] = {4, 3}, offsets[2] = {2, 0}, zeros[2] = {0, 0};
	struct pawl_state *s = new_state();
	struct pawl_tensor t = tensor_of(PAWL_F32, 2, shape, data);

	t.global_shape = global;
	t.offsets = offsets;
	assert_int_equal(pawl_state_set_tensor(s, "part", &t, NULL), 0);
	assert_int_equal(s->tensors[0].local_nbytes, 24);
	assert_int_equal(pawl_state_tensor(s, 0)->nbytes, 48);
	assert_int_equal(pawl_state_tensor(s, 0)->shape[0], 4);
	offsets[0] = 1; /* its own copy is not touched */
	assert_int_equal(s->tensors[0].src.offsets[0], 2);
	assert_int_equal(pawl_state_set_tensor(s, "elsewhere", &t, NULL), 0);
	t.global_shape = shape;
	t.offsets = zeros;
	assert_int_equal(pawl_state_set_tensor(s, "all of it", &t, NULL), 0);
	assert_null(s->tensors[2].src.offsets);
	assert_int_equal(pawl_state_tensor_count(s), 3);
	pawl_state_free(s);
}

static void
test_shards_of_small_elements_are_whole_rows(void **unused)
{
	(void)unused;
	static char data[64];
	uint64_t shape[2] = {2, 4}, global[2] = {4, 4}, offsets[2] = {1, 0};
	struct pawl_state *s = new_state();
	struct pawl_tensor t = tensor_of(PAWL_F4, 2, shape, data);

	t.global_shape = global;
	t.offsets = offsets;
	assert_int_equal(pawl_state_set_tensor(s, "rows", &t, NULL), 0);
	global[1] = 8;
	assert_int_equal(pawl_state_set_tensor(s, "columns", &t, NULL), PAWL_EUNSUPPORTED);
	global[1] = shape[1] = 3; /* rows of a byte and a half */
	assert_int_equal(pawl_state_set_tensor(s, "half bytes", &t, NULL), PAWL_EUNSUPPORTED);
	pawl_state_free(s);
}

static void
test_long_text_becomes_a_tensor_of_bytes(void **unused)
{
	(void)unused;
	static char text[5001];
	struct pawl_state *s = new_state();

	memset(text, 'x', 5000);
	assert_int_equal(pawl_state_set_bytes(s, "short", text, 4096, NULL), 0);
	assert_int_equal(pawl_state_set_bytes(s, "rng/long", text, 4097, NULL), 0);
	assert_int_equal(pawl_state_set_str(s, "text", text, NULL), 0);
	assert_int_equal(pawl_state_tensor_count(s), 2);
	const struct pawl_node *node = pawl_state_at(s, "rng/long");
	assert_int_equal(pawl_node_type(node), PAWL_BYTES);
	assert_int_equal(pawl_node_tensor(node), SIZE_MAX); /* to the outside it is not a tensor */
	assert_int_equal(node->tensor, 0);
	assert_int_equal(pawl_node_scalar(node)->len, 4097);
	assert_memory_equal(pawl_node_scalar(node)->ptr, text, 4097);
	assert_string_equal(pawl_state_tensor(s, 0)->name, "rng/long");
	assert_int_equal(pawl_state_tensor(s, 0)->dtype, PAWL_U8);
	assert_int_equal(pawl_state_tensor(s, 0)->shape[0], 4097);
	assert_ptr_equal(s->tensors[0].src.data, pawl_node_scalar(node)->ptr);
	assert_true(s->tensors[0].is_blob);
	char *json = round_trip(s);
	assert_non_null(strstr(json, "{\"$bytes_in\":\"rng/long\"}"));
	assert_non_null(strstr(json, "\"text\":{\"$str_in\":\"text\"}"));
	free(json);
	pawl_state_free(s);
}

static void
test_describing_decoded_tensors(void **unused)
{
	(void)unused;
	static const char text[] = "[{\"$tensor\":\"w\"},{\"$str_in\":\"s\"}]";
	struct pawl_state *s = NULL;
	uint64_t shape[2] = {3, 5}, huge[2] = {UINT64_MAX, 2};

	assert_int_equal(decode(text, sizeof(text) - 1, &s, NULL), 0);
	assert_int_equal(state_describe_tensor(s, &s->tensors[0], PAWL_C128, 2, shape, NULL), 0);
	shape[0] = 9;
	assert_int_equal(pawl_state_tensor(s, 0)->nbytes, 240);
	assert_int_equal(pawl_state_tensor(s, 0)->shape[0], 3);
	assert_string_equal(pawl_state_tensor(s, 0)->name, "w");
	assert_int_equal(state_describe_tensor(s, &s->tensors[0], PAWL_U8, 2, huge, NULL), PAWL_ECORRUPT);
	assert_int_equal(state_describe_tensor(s, &s->tensors[0], 0, 2, shape, NULL), PAWL_ECORRUPT);
	assert_int_equal(state_describe_tensor(s, &s->tensors[0], PAWL_U8, 65, shape, NULL), PAWL_ELIMIT);
	assert_int_equal(state_describe_tensor(s, &s->tensors[1], PAWL_U8, 2, shape, NULL), PAWL_ECORRUPT);
	assert_int_equal(state_describe_tensor(s, &s->tensors[1], PAWL_I8, 1, shape, NULL), PAWL_ECORRUPT);
	assert_int_equal(state_describe_tensor(s, &s->tensors[1], PAWL_U8, 1, shape, NULL), 0);
	const char *value;
	struct pawl_error err;
	assert_int_equal(pawl_state_get_str(s, "1", &value, &err), PAWL_EUSAGE); /* its bytes are still in the file */
	pawl_state_free(s);
}

/* --------------------------------------------------------------------- paths */

static void
test_setting_by_path_makes_dicts_on_the_way(void **unused)
{
	(void)unused;
	struct pawl_state *s = new_state();
	struct pawl_error err = {0};

	assert_int_equal(pawl_state_set_int(s, "a/b/c", 1, NULL), 0);
	assert_int_equal(pawl_state_set_none(s, "a/b/d", NULL), 0);
	assert_int_equal(pawl_state_set_bool(s, "x%2Fy/%25", 5, NULL), 0);
	assert_int_equal(pawl_state_set_float(s, "a/f", 0.5, NULL), 0);
	assert_int_equal(pawl_state_set_str(s, "s", "text", NULL), 0);
	assert_int_equal(pawl_state_set_int(s, "a/b/c", 2, &err), PAWL_EEXISTS);
	assert_non_null(strstr(err.message, "a/b/c"));
	assert_int_equal(pawl_state_set_int(s, "a/b", 2, NULL), PAWL_EEXISTS);
	assert_int_equal(pawl_state_set_int(s, "s/below", 2, &err), PAWL_EEXISTS);
	assert_non_null(strstr(err.message, "s: has type str"));
	assert_int_equal(pawl_state_set_str(s, "new/dict", "\xff", NULL), PAWL_EUSAGE);
	assert_null(pawl_state_at(s, "new"));
	static const char *const bad[] = {"", "/", "/a", "z/", "z//b", "z/a%", "z/a%2", "z/a%zz", "z/\xff", "z/%FF"};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(pawl_state_set_int(s, bad[i], 1, NULL), PAWL_EUSAGE);
	assert_encodes(s, "{\"a\":{\"b\":{\"c\":1,\"d\":null},\"f\":0.5},\"x/y\":{\"%\":true},\"s\":\"text\"}");
}

static void
test_a_path_into_something_else_than_a_dict_is_refused(void **unused)
{
	(void)unused;
	struct pawl_state *s = new_state();

	pawl_state_begin(s, PAWL_LIST, NULL);
	pawl_state_end(s, NULL);
	assert_int_equal(pawl_state_set_int(s, "0", 1, NULL), PAWL_EUSAGE);
	pawl_state_free(s);
}

static void
test_values_are_found_by_path(void **unused)
{
	(void)unused;
	static const char text[] =
		"{\"model\":{\"$dict\":[[\"7\",1],[7,2],[8,3],[1.5,4],[null,5],[\"\",6],[{\"$bytes\":\"AP8=\"},7],"
		"[{\"$int\":\"99999999999999999999\"},8]]},\"list\":[10,{\"$tuple\":[20,30]}],\"\":{\"\":9}}";
	static const struct {
		const char *path;
		int64_t value; /* -1: nothing there */
	} cases[] = {
		{"model/7", 1},
		{"model/8", 3},
		{"model/1.5", 4},
		{"model/null", 5},
		{"model/", 6},
		{"model/%00%FF", 7},
		{"model/99999999999999999999", 8},
		{"list/0", 10},
		{"list/1/1", 30},
		{"/", 9},
		{"model/9", -1},
		{"list/2", -1},
		{"list/00", -1},
		{"list/x", -1},
		{"list/", -1},
		{"list/1/1/0", -1},
		{"list/999999999999", -1},
		{"nothing", -1},
		{"model/%", -1},
		{"model/%0", -1},
		{"model/08", -1},
	};
	struct pawl_state *s = NULL;

	assert_int_equal(decode(text, sizeof(text) - 1, &s, NULL), 0);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct pawl_node *node = pawl_state_at(s, cases[i].path);
		if ((cases[i].value < 0) != !node || (node && pawl_node_scalar(node)->i != cases[i].value))
			fail_msg("%s", cases[i].path);
	}
	assert_ptr_equal(pawl_state_at(s, ""), pawl_state_root(s));
	assert_int_equal(pawl_node_count(pawl_state_at(s, "model")), 8);
	assert_null(pawl_node_scalar(pawl_state_at(s, "model")));
	assert_null(pawl_node_key(pawl_state_at(s, "list/0")));
	pawl_state_free(s);
}

static void
test_getters_check_the_type(void **unused)
{
	(void)unused;
	struct pawl_state *s = new_state();
	struct pawl_error err = {0};
	int64_t i = 5;
	double f = 5;
	const char *text = "untouched";

	pawl_state_set_int(s, "i", 3, NULL);
	pawl_state_set_float(s, "f", 2.5, NULL);
	pawl_state_set_str(s, "s", "word", NULL);
	assert_int_equal(pawl_state_get_int(s, "f", &i, &err), PAWL_EMISMATCH);
	assert_non_null(strstr(err.message, "f has type float, expected int"));
	assert_int_equal(pawl_state_get_float(s, "i", &f, NULL), PAWL_EMISMATCH);
	assert_int_equal(pawl_state_get_str(s, "none", &text, NULL), PAWL_ENOTFOUND);
	assert_true(i == 5 && f == 5.0);
	assert_string_equal(text, "untouched");
	assert_int_equal(pawl_state_get_int(s, "i", &i, NULL), 0);
	assert_int_equal(pawl_state_get_float(s, "f", &f, NULL), 0);
	assert_int_equal(pawl_state_get_str(s, "s", &text, NULL), 0);
	assert_true(i == 3 && f == 2.5);
	assert_string_equal(text, "word");
	pawl_state_free(s);

	s = with_scalar((struct pawl_scalar){.type = PAWL_INT, .ptr = "18446744073709551615", .len = 20});
	assert_int_equal(pawl_state_get_int(s, "", &i, NULL), PAWL_ELIMIT);
	pawl_state_free(s);
	s = new_state();
	assert_null(pawl_state_root(s));
	assert_null(pawl_state_at(s, ""));
	assert_null(pawl_state_at(s, "x"));
	pawl_state_free(s);
	pawl_state_free(NULL);
}

/* ------------------------------------------------------------------ decoding */

static void
test_P17_hostile_trees_are_refused(void **unused)
{
	(void)unused;
	static const char *const corrupt[] = {
		"{\"$what\":1}",
		"{\"$\":1}",
		"{\"a\":1,\"$b\":2}",
		"{\"$int\":5}",
		"{\"$int\":\"\"}",
		"{\"$int\":\"1.5\"}",
		"{\"$int\":\"0x1\"}",
		"{\"$int\":\"1\",\"x\":2}",
		"{\"$float\":\"7ff\"}",
		"{\"$float\":\"7FF8000000000000\"}",
		"{\"$float\":1.5}",
		"{\"$float\":\"7ff8000000000000\",\"x\":1}",
		"{\"$bytes\":\"%%%%\"}",
		"{\"$bytes\":\"QQ\"}",
		"{\"$bytes\":[]}",
		"{\"$str\":\"/w==\"}",
		"{\"$str\":null}",
		"{\"$tuple\":{}}",
		"{\"$tuple\":[],\"x\":1}",
		"{\"$dict\":{}}",
		"{\"$dict\":[1]}",
		"{\"$dict\":[[1]]}",
		"{\"$dict\":[[1,2,3]]}",
		"{\"$dict\":[[[],1]]}",
		"{\"$dict\":[[{},1]]}",
		"{\"$dict\":[[{\"$tuple\":[]},1]]}",
		"{\"$dict\":[[{\"$tensor\":\"a\"},1]]}",
		"{\"$dict\":[[1,2],[1,3]]}",
		"{\"$odict\":[[\"a\",2],[\"a\",3]]}",
		"{\"$dict\":[[{\"$int\":\"5\"},2],[5,3]]}",
		"{\"$dict\":[[true,2],[true,3]]}",
		"{\"$dict\":[],\"y\":1}",
		"{\"$tensor\":5}",
		"{\"$tensor\":\"a\",\"as\":5}",
		"{\"$tensor\":\"a\",\"is\":\"b\"}",
		"{\"$tensor\":\"a\",\"as\":\"b\",\"c\":1}",
		"{\"$str_in\":\"a\",\"as\":\"b\"}",
		"{\"$bytes_in\":1}",
		"[{\"$tensor\":\"a\"},{\"$str_in\":\"a\"}]",
		"[{\"$str_in\":\"a\"},{\"$tensor\":\"a\"}]",
		"[{\"$str_in\":\"a\"},{\"$str_in\":\"a\"}]",
		"{\"$str_in\":[]}",
	};

	for (size_t i = 0; i < sizeof(corrupt) / sizeof(corrupt[0]); i++) {
		struct pawl_state *s = NULL;
		struct pawl_error err = {0};
		int rc = decode(corrupt[i], strlen(corrupt[i]), &s, &err);
		if (rc != PAWL_ECORRUPT || err.code != rc || strncmp(err.message, "text: ", 6) != 0 || s)
			fail_msg("%s: %d (%s)", corrupt[i], rc, err.message);
	}
}

static void
test_P16_values_over_a_limit_are_refused(void **unused)
{
	(void)unused;
	static char filling[70000];
	static const struct {
		const char *before, *after;
		size_t len; /* of what is between; the largest that is taken is one less */
	} cases[] = {
		{"\"", "\"", 4097},
		{"{\"", "\":1}", 4097},
		{"{\"$int\":\"1", "\"}", 60000},
		{"{\"$tensor\":\"", "\"}", 4097},
		{"{\"$tensor\":\"a\",\"as\":\"", "\"}", 33},
	};

	memset(filling, '1', sizeof(filling));
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		for (size_t less = 0; less < 2; less++) {
			struct pawl_state *s = NULL;
			struct buf text = {0};
			buf_puts(&text, cases[i].before);
			buf_put(&text, filling, cases[i].len - less);
			buf_puts(&text, cases[i].after);
			int rc = decode(text.ptr, text.len, &s, NULL);
			if (rc != (less ? 0 : PAWL_ELIMIT))
				fail_msg("case %zu, %zu less: %d", i, less, rc);
			pawl_state_free(s);
			buf_clear(&text);
		}
	}
}

static void
test_tolerated_spellings_become_the_usual_ones(void **unused)
{
	(void)unused;
	static const char *const cases[][2] = {
		{" { \"a\" : [ 1 ] } ", "{\"a\":[1]}"},
		{"18446744073709551615", "{\"$int\":\"18446744073709551615\"}"},
		{"9223372036854775807", "{\"$int\":\"9223372036854775807\"}"},
		{"{\"$int\":\"5\"}", "5"},
		{"{\"$float\":\"3ff8000000000000\"}", "1.5"},
		{"{\"$str\":\"YWI=\"}", "\"ab\""},
		{"{\"$dict\":[[\"a\",1]]}", "{\"a\":1}"},
		{"1e2", "100.0"},
		{"\"\\u00e9\"", "\"\xc3\xa9\""},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct pawl_state *s = NULL;
		assert_int_equal(decode(cases[i][0], strlen(cases[i][0]), &s, NULL), 0);
		assert_encodes(s, cases[i][1]);
	}
}

static void
test_running_out_of_memory_is_an_error_at_every_point(void **unused)
{
	(void)unused;
	static float data[4];
	static char text[5000];
	uint64_t shape[1] = {2};
	size_t refused = 0;

	memset(text, 'x', sizeof(text) - 1);
	for (size_t room = 0; room < 12000; room += 16) {
		struct pawl_state *s = new_state();
		struct pawl_tensor t = tensor_of(PAWL_F32, 1, shape, data);
		struct pawl_error err = {0};
		s->memory.limit_bytes = room + 1;
		int rc = pawl_state_set_tensor(s, "a/b", &t, &err);
		if (rc == 0)
			rc = pawl_state_set_str(s, "a/c", "text", &err);
		if (rc == 0)
			rc = pawl_state_set_str(s, "d", text, &err);
		if (rc < 0) {
			assert_int_equal(rc, PAWL_ENOMEM);
			assert_int_equal(err.code, PAWL_ENOMEM);
			refused++;
		}
		s->memory.limit_bytes = 0; /* what is there can still be used */
		assert_int_equal(pawl_state_set_int(s, "e", 1, &err), 0);
		free(round_trip(s));
		pawl_state_free(s);
	}
	assert_true(refused > 100);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kinds_come_back_with_their_values),
		cmocka_unit_test(test_P1_every_scalar_comes_back_bit_for_bit),
		cmocka_unit_test(test_an_int_given_as_text_is_the_same_int),
		cmocka_unit_test(test_text_that_is_no_int_is_refused),
		cmocka_unit_test(test_containers_have_their_documented_forms),
		cmocka_unit_test(test_keys_of_every_type_come_back),
		cmocka_unit_test(test_a_dict_with_a_dollar_key_is_not_mistaken_for_a_typed_form),
		cmocka_unit_test(test_P1_random_trees_come_back_equal),
		cmocka_unit_test(test_a_key_twice_is_refused_and_names_the_path),
		cmocka_unit_test(test_dicts_of_every_size_find_their_keys_and_refuse_them_twice),
		cmocka_unit_test(test_NULL_is_refused_everywhere),
		cmocka_unit_test(test_calls_out_of_order_are_refused),
		cmocka_unit_test(test_what_cannot_be_held_is_refused_with_path_and_type),
		cmocka_unit_test(test_256_levels_are_held_and_300_refused),
		cmocka_unit_test(test_P17_deep_text_is_refused),
		cmocka_unit_test(test_tied_tensors_share_one_row),
		cmocka_unit_test(test_tensors_without_memory_are_not_tied),
		cmocka_unit_test(test_filled_tensors_tie_on_argument_shape_and_dtype),
		cmocka_unit_test(test_names_of_tensors_are_unique),
		cmocka_unit_test(test_a_lone_tensor_is_a_state),
		cmocka_unit_test(test_too_long_a_tensor_path_is_refused),
		cmocka_unit_test(test_bad_tensors_are_refused_and_leave_nothing_behind),
		cmocka_unit_test(test_shards_keep_their_box),
		cmocka_unit_test(test_shards_of_small_elements_are_whole_rows),
		cmocka_unit_test(test_long_text_becomes_a_tensor_of_bytes),
		cmocka_unit_test(test_describing_decoded_tensors),
		cmocka_unit_test(test_setting_by_path_makes_dicts_on_the_way),
		cmocka_unit_test(test_a_path_into_something_else_than_a_dict_is_refused),
		cmocka_unit_test(test_values_are_found_by_path),
		cmocka_unit_test(test_getters_check_the_type),
		cmocka_unit_test(test_P17_hostile_trees_are_refused),
		cmocka_unit_test(test_P16_values_over_a_limit_are_refused),
		cmocka_unit_test(test_tolerated_spellings_become_the_usual_ones),
		cmocka_unit_test(test_running_out_of_memory_is_an_error_at_every_point),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
