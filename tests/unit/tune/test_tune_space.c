/* SPDX-License-Identifier: Apache-2.0 */
/* Documents and spaces: every draw against its definition, names, the grid, and each wrong document
 * with its error message. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/value.h"
#include "helpers/comma_locale.h"
#include "space.h"
#include "tune.h"

static struct value *
parse(const char *text)
{
	struct pawl_error err = {0};
	struct value *value = NULL;

	if (value_parse(text, SIZE_MAX, "text", &value, &err) < 0)
		fail_msg("%s", err.message);
	return value;
}

static struct value *
draw(const struct value *space, uint64_t trial)
{
	struct pawl_error err = {0};
	struct value *config = NULL;

	if (space_config(space, 7, trial, &config, &err) < 0)
		fail_msg("%s", err.message);
	return config;
}

/* 20000 draws of each kind: within the bounds, multiples of the step, integers where they must be,
 * the expected mean. */
static void
test_draws_are_what_they_are_called(void **state)
{
	static const struct {
		const char *what;
		double low, high, step, mean, tolerance;
		bool whole;
	} rows[] = {
		{"{\"$uniform\": [-1, 3]}", -1, 3, 0, 1, 0.05, false},
		{"{\"$quniform\": [0, 1, 0.1]}", 0, 1, 0.1, 0.5, 0.02, false},
		{"{\"$quniform\": [3.2, 5.4, 0.2]}", 3.2, 5.4, 0.2, 4.3, 0.05, false},
		{"{\"$loguniform\": [0.0001, 0.1]}", 0.0001, 0.1, 0, 0.0144626, 0.001, false}, /* (b - a) / ln(b / a) */
		{"{\"$qloguniform\": [0.01, 1, 0.01]}", 0.01, 1, 0.01, 0.215, 0.02, false},
		{"{\"$randn\": [10, 2]}", -10, 30, 0, 10, 0.1, false},
		{"{\"$qrandn\": [10, 2, 0.5]}", -10, 30, 0.5, 10, 0.1, false},
		{"{\"$randint\": [0, 4]}", 0, 3, 1, 1.5, 0.05, true},
		{"{\"$qrandint\": [0, 10, 5]}", 0, 10, 5, 5, 0.2, true},
		{"{\"$lograndint\": [1, 1001]}", 1, 1000, 1, 144.3, 8, true},
		{"{\"$choice\": [2, 4, 9]}", 2, 9, 1, 5, 0.1, true},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		double sum = 0, value, least = HUGE_VAL, most = -HUGE_VAL;
		char text[200];
		struct value *space;
		uint64_t n_grid;
		snprintf(text, sizeof(text), "{\"base\": 2, \"x\": %s}", rows[i].what);
		space = parse(text);
		assert_int_equal(space_check(space, &n_grid, NULL), 0);
		for (uint64_t trial = 0; trial < 20000; trial++) {
			struct value *config = draw(space, trial), *x = value_get(config, "x");
			assert_int_equal(value_is(x, JSON_INT), rows[i].whole);
			value = value_number(x);
			if (!(value >= rows[i].low && value <= rows[i].high))
				fail_msg("%s: %.17g", text, value);
			if (rows[i].step > 0 && fabs(value / rows[i].step - rint(value / rows[i].step)) > 1e-9)
				fail_msg("%s: %.17g is no multiple", text, value);
			sum += value;
			least = fmin(least, value);
			most = fmax(most, value);
			value_free(config);
		}
		if (fabs(sum / 20000 - rows[i].mean) > rows[i].tolerance)
			fail_msg("%s: the mean is %g", text, sum / 20000);
		if (rows[i].whole && (least != rows[i].low || most > rows[i].high))
			fail_msg("%s: from %g to %g", text, least, most);
		value_free(space);
	}
}

/* Another key, another order of keys, more samples: what was drawn stays. */
static void
test_a_draw_hangs_on_seed_trial_and_path_alone(void **state)
{
	struct value *one =
		parse("{\"a\": {\"$uniform\": [0, 1]}, \"m\": {\"b\": {\"$choice\": [1, 2, 3, 4, 5, 6, 7, 8]}}}");
	struct value *two =
		parse("{\"z\": {\"$randn\": [0, 1]}, \"m\": {\"b\": {\"$choice\": [1, 2, 3, 4, 5, 6, 7, 8]}},"
	              " \"a\": {\"$uniform\": [0, 1]}}");
	unsigned n_equal = 0;

	(void)state;
	for (uint64_t trial = 0; trial < 200; trial++) {
		struct value *x = draw(one, trial), *y = draw(two, trial), *next = draw(one, trial + 1);
		assert_true(value_equal(value_get(x, "a"), value_get(y, "a")));
		assert_true(value_equal(value_at(x, "m/b"), value_at(y, "m/b")));
		assert_false(value_equal(value_get(x, "a"), value_get(next, "a")));
		n_equal += value_number(value_get(x, "a")) == value_number(value_get(y, "z"));
		value_free(x);
		value_free(y);
		value_free(next);
	}
	assert_int_equal(n_equal, 0);
	value_free(one);
	value_free(two);
}

static void
test_the_grid_is_the_product_and_its_last_key_the_fastest(void **state)
{
	static const char *const expected[] = {
		"{\"a\": 1, \"b\": {\"c\": \"x\"}, \"k\": [0.5]}", "{\"a\": 1, \"b\": {\"c\": \"y\"}, \"k\": [0.5]}",
		"{\"a\": 2, \"b\": {\"c\": \"x\"}, \"k\": [0.5]}", "{\"a\": 2, \"b\": {\"c\": \"y\"}, \"k\": [0.5]}"};
	struct value *space =
		parse("{\"a\": {\"$grid\": [1, 2]}, \"b\": {\"c\": {\"$grid\": [\"x\", \"y\"]}}, \"k\": [0.5]}");
	struct pawl_error err = {0};
	char *canonical = NULL;
	uint64_t n;

	(void)state;
	assert_int_equal(space_check(space, &n, NULL), 0);
	assert_int_equal(n, 4);
	for (uint64_t i = 0; i < 8; i++) {
		struct value *config = draw(space, i);
		char *text = value_print(config);
		assert_string_equal(text, expected[i % 4]);
		free(text);
		value_free(config);
	}
	value_free(space);
	assert_int_equal(
		tune_spec_check("{\"name\": \"g\", \"num_samples\": 3, \"space\": {\"a\": {\"$grid\": [1, 2]}}}",
	                        &canonical, &n, &err),
		0);
	assert_int_equal(n, 6);
	assert_non_null(strstr(canonical, "\"max_failures\": 0"));
	free(canonical);
}

static void
test_numbers_are_written_shortly_in_every_locale(void **state)
{
	struct value *value = parse(
		"[0.1, 1e-7, 1.0, 123456789012345678, -0.30000000000000004, 1e300, \"a\\\"\\n\\u0001\", null, true]");
	char *text;

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		struct value *again;
		text = value_print(value);
		assert_string_equal(
			text,
			"[0.1, 1e-07, 1.0, 123456789012345678, -0.30000000000000004, 1e+300, \"a\\\"\\n\\u0001\", null, true]");
		again = parse(text);
		assert_true(value_equal(value, again));
		value_free(again);
		free(text);
		if (i == 0 && !comma_locale_set())
			break;
	}
	comma_locale_reset();
	value_free(value);
}

static void
test_tags_name_what_is_varied(void **state)
{
	struct value *space =
		parse("{\"lr\": {\"$uniform\": [0, 1]}, \"fixed\": 3, \"m\": {\"act\": {\"$choice\": [\"re/lu\"]}}}");
	struct value *config = parse("{\"lr\": 0.0123456, \"fixed\": 3, \"m\": {\"act\": \"re/lu\"}}");
	char text[100];

	(void)state;
	space_tag(space, config, text, sizeof(text));
	assert_string_equal(text, "lr=0.01235,act=re-lu");
	space_tag(NULL, config, text, sizeof(text));
	assert_string_equal(text, "lr=0.01235,fixed=3,act=re-lu");
	space_tag(NULL, config, text, 14);
	assert_string_equal(text, "lr=0.01235");
	value_free(space);
	value_free(config);
}

/* message: a part of the error; NULL = the document is right. */
struct document {
	const char *text, *message;
};

static void
check_documents(const struct document *rows, size_t n_rows)
{
	for (size_t i = 0; i < n_rows; i++) {
		struct pawl_error err = {0};
		char *canonical = NULL;
		uint64_t n;
		const int r = tune_spec_check(rows[i].text, &canonical, &n, &err);
		if (!rows[i].message)
			assert_int_equal(r, 0);
		else if ((r != PAWL_EUSAGE && r != PAWL_ELIMIT) || !strstr(err.message, rows[i].message))
			fail_msg("%s: expected '%s', found %d '%s'", rows[i].text, rows[i].message, r, err.message);
		free(canonical);
	}
}

static void
test_bad_documents_are_named(void **state)
{
	static const struct document rows[] = {
		{"{\"name\": \"a\"}", NULL}, /* the control */
		{"{\"name\": \"a\"", "document: byte 12"},
		{"[1]", "document: expected an object"},
		{"{}", "'name' must be the name of a folder"},
		{"{\"name\": \"a/b\"}",
	         "'name' must be the name of a folder (not empty, no '/', no '.' first), found 'a/b'"},
		{"{\"name\": \"a\", \"local_dir\": \"s3:/b/x\"}",
	         "'local_dir' must be a folder of this machine, found 's3:/b/x'; give a URL as upload_dir of 'sync'"},
		{"{\"name\": \"a\", \"local_dir\": \"./s3:/b/x\"}", NULL},
		{"{\"name\": \"a\", \"nome\": 1}",
	         "document: key 'nome' is not known; did you mean 'name'? (known: name, local_dir, run, env, metric"},
		{"{\"name\": \"a\", \"num_samples\": \"x\"}", "document: 'num_samples' must be an integer"},
		{"{\"name\": \"a\", \"num_samples\": 0}",
	         "'num_samples' must be 1 or more, or -1 (without end), found 0"},
		{"{\"name\": \"a\", \"num_samples\": -1}", "needs a 'time_budget_s'"},
		{"{\"name\": \"a\", \"mode\": \"best\"}", "'mode' must be 'min' or 'max', found 'best'"},
		{"{\"name\": \"a\", \"search\": \"tpe\"}", "'search' must be 'grid-random' or 'given', found 'tpe'"},
		{"{\"name\": \"a\", \"resources\": {\"cpus\": 1}}",
	         "document: resources: key 'cpus' is not known; did you mean 'cpu'? (known: cpu, gpu, memory_bytes)"},
		{"{\"name\": \"a\", \"checkpoint\": {\"keep\": 0}}",
	         "document: checkpoint: 'keep' must be 1 or more, found 0"},
		{"{\"name\": \"a\", \"stop\": {\"loss\": \"low\"}}", "document: stop: 'loss' must be a number"},
		{"{\"name\": \"a\", \"scheduler\": \"sha\"}",
	         "expected fifo, median, asha, hyperband, bohb or pbt, found 'sha'"},
		{"{\"name\": \"a\", \"scheduler\": {\"type\": \"pbt_replay\"}}",
	         "scheduler: pbt_replay is no longer supported; the trial itself can follow"},
		{"{\"name\": \"a\", \"scheduler\": \"asha\"}",
	         "scheduler: asha needs the document's 'metric', found none"},
		{"{\"name\": \"a\", \"metric\": \"x\", \"scheduler\": {\"type\": \"asha\", \"max_time\": 3}}",
	         "scheduler: key 'max_time' is not known (known: type, time_attr, metric, mode, max_t, grace_period"},
		{"{\"name\": \"a\", \"metric\": \"x\", \"scheduler\": {\"type\": \"asha\", \"reduction_factor\": 1}}",
	         "reduction must be"},
		{"{\"name\": \"a\", \"metric\": \"x\", \"scheduler\": {\"type\": \"pbt\"}}",
	         "needs a hyperparameter to mutate"},
		{"{\"name\": \"a\", \"metric\": \"x\", \"scheduler\": {\"type\": \"pbt\", \"hyperparam_mutations\": {\"lr\": 3}}}",
	         "hyperparam_mutations: 'lr' must be a list of values"},
		{"{\"name\": \"a\", \"metric\": \"x\", \"scheduler\": {\"type\": \"fifo\", \"metric\": \"y\"}}",
	         "its metric 'y' is not the document's 'x'"},
	};

	(void)state;
	check_documents(rows, sizeof(rows) / sizeof(rows[0]));
}

static void
test_bad_search_spaces_are_named(void **state)
{
	static const struct document rows[] = {
		{"{\"name\": \"a\", \"space\": {\"lr\": {\"$uniform\": [1, 0]}}}",
	         "'lr': $uniform takes the lower end first, found 1 and 0"},
		{"{\"name\": \"a\", \"space\": {\"lr\": {\"$uniform\": 3}}}",
	         "'lr': $uniform takes a list of 2 numbers"},
		{"{\"name\": \"a\", \"space\": {\"lr\": {\"$loguniform\": [0, 1]}}}",
	         "'lr': $loguniform takes a lower end above 0, found 0"},
		{"{\"name\": \"a\", \"space\": {\"m\": {\"n\": {\"$randint\": [0.5, 2]}}}}",
	         "'m/n': $randint takes a list of 2 integers"},
		{"{\"name\": \"a\", \"space\": {\"lr\": {\"$quniform\": [0, 1, 0]}}}", "a step above 0, found 0"},
		{"{\"name\": \"a\", \"space\": {\"lr\": {\"$unifrom\": [0, 1]}}}",
	         "'lr': '$unifrom' is not known; did you mean '$uniform'? (known: $uniform"},
		{"{\"name\": \"a\", \"space\": {\"lr\": {\"$uniform\": [0, 1], \"x\": 1}}}",
	         "expected '$uniform' to stand alone"},
		{"{\"name\": \"a\", \"space\": {\"o\": {\"$choice\": []}}}",
	         "'o': $choice takes a list of one value or more"},
		{"{\"name\": \"a\", \"space\": {\"o\": {\"$choice\": [{\"$grid\": [1]}]}}}",
	         "a $grid cannot stand inside"},
		{"{\"name\": \"a\", \"space\": {\"o\": {\"$expr\": \"2 + 2\"}}}", "'o': '$expr' is not known"},
		{"{\"name\": \"a\", \"num_samples\": 10000000, \"space\": {\"o\": {\"$grid\": [1, 2]}}}",
	         "are more than 10000000 trials"},
	};

	(void)state;
	check_documents(rows, sizeof(rows) / sizeof(rows[0]));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_draws_are_what_they_are_called),
		cmocka_unit_test(test_a_draw_hangs_on_seed_trial_and_path_alone),
		cmocka_unit_test(test_the_grid_is_the_product_and_its_last_key_the_fastest),
		cmocka_unit_test(test_numbers_are_written_shortly_in_every_locale),
		cmocka_unit_test(test_tags_name_what_is_varied),
		cmocka_unit_test(test_bad_documents_are_named),
		cmocka_unit_test(test_bad_search_spaces_are_named),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
