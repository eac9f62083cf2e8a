/* SPDX-License-Identifier: Apache-2.0 */
/* trigger: time strings, thresholds crossed, the end of training, and Young's and Daly's
 * interval. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "policy/trigger.h"

#define COUNT(rows) (sizeof(rows) / sizeof((rows)[0]))

static const struct pawl_progress unknown = PAWL_PROGRESS_INIT;

static void
test_R91_time_strings_and_bare_epochs(void **state)
{
	(void)state;
	const struct {
		const char *text;
		enum trigger_unit unit;
		double every;
	} rows[] = {
		{"1ep", TRIGGER_EPOCH, 1},        {"5it", TRIGGER_ITERATION, 5},
		{"5iter", TRIGGER_ITERATION, 5},  {"10ba", TRIGGER_BATCH, 10},
		{"5000sp", TRIGGER_SAMPLE, 5000}, {"1000000tok", TRIGGER_TOKEN, 1e6},
		{"1e6tok", TRIGGER_TOKEN, 1e6},   {"30sec", TRIGGER_SECOND, 30},
		{"0.5sec", TRIGGER_SECOND, 0.5},  {"0.25dur", TRIGGER_DURATION, 0.25},
		{"1dur", TRIGGER_DURATION, 1},    {"3", TRIGGER_EPOCH, 3},
		{"1", TRIGGER_EPOCH, 1},          {"5min", TRIGGER_SECOND, 300},
		{"1.5h", TRIGGER_SECOND, 5400},   {"500 steps", TRIGGER_BATCH, 500},
		{"500steps", TRIGGER_BATCH, 500}, {"2 hours", TRIGGER_SECOND, 7200},
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct trigger t = {0};
		struct pawl_error err;
		if (trigger_parse(rows[i].text, &t, &err) < 0)
			fail_msg("\"%s\": %s", rows[i].text, err.message);
		assert_int_equal(t.unit, rows[i].unit);
		assert_true(t.every == rows[i].every);
	}
	struct trigger t;
	assert_int_equal(trigger_parse("auto", &t, NULL), 0);
	assert_int_equal(t.unit, TRIGGER_AUTO);
}

static void
test_R92_bad_time_strings_are_refused_with_the_units(void **state)
{
	(void)state;
	const char *bad[] = {"",     "ep",      "1 ep",  "1Ep",   "1epoch",   "ep1",     "-1ep",  "0ep",
	                     "0",    "1.5ep",   "0.5ba", "nanep", "infsec",   "1,5sec",  "1.5",   "2dur",
	                     "0dur", "-0.5dur", "autos", "1auto", "1e400tok", "1e17tok", "0x1ep", "1ep ",
	                     " 1ep", "1ep2ba",  "1mins", "Auto",  "+1ep"};
	for (size_t i = 0; i < COUNT(bad); i++) {
		struct trigger t = {.unit = TRIGGER_BATCH, .every = 77};
		struct pawl_error err = {0};
		if (trigger_parse(bad[i], &t, &err) != PAWL_EUSAGE)
			fail_msg("\"%s\" was accepted", bad[i]);
		assert_non_null(strstr(err.message, bad[i]));
		assert_true(t.unit == TRIGGER_BATCH && t.every == 77);
	}
	struct trigger t;
	struct pawl_error err;
	trigger_parse("10 batches", &t, &err);
	assert_string_equal(
		err.message,
		"interval \"10 batches\": expected 1ep, 5it, 10ba, 500 steps, 5000sp, 1000000tok, 30sec, 5min, "
		"0.25dur, auto or first");
}

static int
due(const char *interval, const struct pawl_progress *last, const struct pawl_progress *now)
{
	struct pawl_error err = {0};
	int rc = pawl_interval_due(interval, last, now, &err);
	if (rc < 0)
		fail_msg("\"%s\": %s", interval, err.message);
	return rc;
}

/* How often a training run of n steps, one unit each, saves. */
static int
count_saves(const char *interval, size_t offset, int64_t n)
{
	struct pawl_progress last = unknown, now = unknown;
	int saves = 0;
	for (int64_t i = 1; i <= n; i++) {
		memcpy((char *)&now + offset, &i, sizeof(i));
		if (due(interval, &last, &now)) {
			saves++;
			last = now;
		}
	}
	return saves;
}

static void
test_R92_every_unit_saves_at_its_interval(void **state)
{
	(void)state;
	assert_int_equal(count_saves("1ep", offsetof(struct pawl_progress, epoch), 10), 10);
	assert_int_equal(count_saves("3", offsetof(struct pawl_progress, epoch), 10), 3);
	assert_int_equal(count_saves("5it", offsetof(struct pawl_progress, iteration), 52), 10);
	assert_int_equal(count_saves("10ba", offsetof(struct pawl_progress, batch), 99), 9);
	assert_int_equal(count_saves("10ba", offsetof(struct pawl_progress, batch), 100), 10);
	assert_int_equal(count_saves("50sp", offsetof(struct pawl_progress, sample), 100), 2);
	assert_int_equal(count_saves("100tok", offsetof(struct pawl_progress, token), 1000), 10);
}

static void
test_R92_a_threshold_that_is_jumped_over_counts_once(void **state)
{
	(void)state;
	struct pawl_progress last = unknown, now = unknown;
	now.sample = 4999;
	assert_int_equal(due("5000sp", &last, &now), 0);
	now.sample = 5001;
	assert_int_equal(due("5000sp", &last, &now), 1);
	last.sample = 5001;
	assert_int_equal(due("5000sp", &last, &now), 0);
	now.sample = 9999;
	assert_int_equal(due("5000sp", &last, &now), 0);
	now.sample = 26000;
	assert_int_equal(due("5000sp", &last, &now), 1);
	/* After going back (a restore), nothing is due until the old mark is passed. */
	last.sample = 26000;
	now.sample = 12000;
	assert_int_equal(due("5000sp", &last, &now), 0);
	now.sample = 30000;
	assert_int_equal(due("5000sp", &last, &now), 1);
}

static void
test_R92_seconds_and_fractions(void **state)
{
	(void)state;
	struct pawl_progress last = unknown, now = unknown;
	now.total_wct = 29.9;
	assert_int_equal(due("30sec", &last, &now), 0);
	now.total_wct = 30;
	assert_int_equal(due("30sec", NULL, &now), 1);
	last.total_wct = 31;
	now.total_wct = 59;
	assert_int_equal(due("30sec", &last, &now), 0);
	now.total_wct = 60.5;
	assert_int_equal(due("30sec", &last, &now), 1);

	/* Tenths are not exact in binary; each is still due exactly once, at its own step. */
	for (int parts = 2; parts <= 100; parts++) {
		struct pawl_progress before = unknown, at = unknown;
		char interval[40];
		snprintf(interval, sizeof(interval), "%.17gdur", 1.0 / parts);
		for (int i = 1; i <= 10 * parts; i++) {
			at.fraction = (double)i / (10 * parts);
			assert_int_equal(due(interval, &before, &at), i % 10 == 0);
			before.fraction = at.fraction;
		}
	}
}

static void
test_the_end_of_training_is_always_due_once(void **state)
{
	(void)state;
	struct pawl_progress last = unknown, now = unknown;
	now.epoch = 7;
	now.fraction = 1;
	last.epoch = 6;
	assert_int_equal(due("10ep", &last, &now), 1);
	last.fraction = 0.9;
	assert_int_equal(due("10ep", &last, &now), 1);
	last.fraction = 1;
	assert_int_equal(due("10ep", &last, &now), 0);
	now.fraction = 0.99;
	last.fraction = 0.9;
	assert_int_equal(due("10ep", &last, &now), 0);
}

static void
test_an_unknown_counter_is_named(void **state)
{
	(void)state;
	const struct {
		const char *interval, *counter;
	} rows[] = {{"1ep", "epoch"},  {"1it", "iteration"},  {"1ba", "batch"},      {"1sp", "sample"},
	            {"1tok", "token"}, {"1sec", "total_wct"}, {"0.1dur", "fraction"}};
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct pawl_error err = {0};
		assert_int_equal(pawl_interval_due(rows[i].interval, NULL, &unknown, &err), PAWL_EUSAGE);
		assert_non_null(strstr(err.message, rows[i].counter));
	}
	struct pawl_progress now = unknown;
	now.total_wct = NAN;
	assert_int_equal(pawl_interval_due("1sec", NULL, &now, NULL), PAWL_EUSAGE);
	assert_int_equal(pawl_interval_due(NULL, NULL, &now, NULL), PAWL_EUSAGE);
	assert_int_equal(pawl_interval_due("1ep", NULL, NULL, NULL), PAWL_EUSAGE);
}

static void
test_R154_auto_waits_for_the_interval_given(void **state)
{
	(void)state;
	const struct trigger t = {.unit = TRIGGER_AUTO};
	struct pawl_progress last = unknown, now = unknown;
	now.total_wct = 100;
	assert_int_equal(trigger_due(&t, &last, &now, 150, NULL), 0);
	assert_int_equal(trigger_due(&t, &last, &now, 100, NULL), 1);
	last.total_wct = 60;
	assert_int_equal(trigger_due(&t, &last, &now, 50, NULL), 0);
	assert_int_equal(trigger_due(&t, &last, &now, 40, NULL), 1);
	/* Nothing measured yet: save, which measures. */
	assert_int_equal(trigger_due(&t, &last, &now, 0, NULL), 1);
	now.fraction = 1;
	assert_int_equal(trigger_due(&t, &last, &now, 1000, NULL), 1);
	assert_int_equal(trigger_due(&t, &last, &unknown, 1, NULL), PAWL_EUSAGE);
	assert_int_equal(pawl_interval_due("auto", &last, &now, NULL), PAWL_EUSAGE);
}

static void
test_R154_the_interval_is_the_one_of_Daly(void **state)
{
	(void)state;
	/* Figures 3 to 5 of the article, in minutes: a cost of 5 at 24 h, 6 h and 15 min between
	 * failures. */
	assert_true(fabs(pawl_optimal_interval_seconds(300, 24 * 3600) / 60 - 117) < 0.5);
	assert_true(fabs(pawl_optimal_interval_seconds(300, 6 * 3600) / 60 - 57) < 0.5);
	assert_true(fabs(pawl_optimal_interval_seconds(300, 15 * 60) / 60 - 9.1) < 0.05);
}

/* Time wasted per time of work by Daly's complete model: work of `every` between saves that cost
 * `cost`. */
static double
waste(double every, double cost, double mtbf)
{
	return mtbf * expm1((every + cost) / mtbf) / every;
}

static void
test_R154_no_other_interval_wastes_much_less(void **state)
{
	(void)state;
	const double costs[] = {0.1, 1, 5, 60, 600}, mtbfs[] = {3600, 86400, 30 * 86400.0};
	for (size_t i = 0; i < COUNT(costs); i++)
		for (size_t k = 0; k < COUNT(mtbfs); k++) {
			double best = pawl_optimal_interval_seconds(costs[i], mtbfs[k]);
			for (double factor = 0.25; factor < 4; factor *= 1.1)
				assert_true(waste(best, costs[i], mtbfs[k]) <=
				            waste(best * factor, costs[i], mtbfs[k]) * 1.0005);
			/* And it approaches Young's when saves are cheap. */
			double young = sqrt(2 * costs[i] * mtbfs[k]);
			assert_true(best < young && best > young - costs[i]);
		}
}

static void
test_R154_extremes_have_an_answer(void **state)
{
	(void)state;
	assert_true(pawl_optimal_interval_seconds(200, 100) == 100);
	assert_true(pawl_optimal_interval_seconds(1e9, 100) == 100);
	assert_true(pawl_optimal_interval_seconds(199.9, 100) > 0);
	assert_true(pawl_optimal_interval_seconds(0, 100) == 0);
	assert_true(pawl_optimal_interval_seconds(-1, 100) == 0);
	assert_true(pawl_optimal_interval_seconds(1, 0) == 0);
	assert_true(pawl_optimal_interval_seconds(NAN, 100) == 0);
	assert_true(pawl_optimal_interval_seconds(1, NAN) == 0);
	assert_true(isinf(pawl_optimal_interval_seconds(1, INFINITY)));
}

static void
test_first_is_due_until_something_has_been_saved(void **state)
{
	struct pawl_progress last = PAWL_PROGRESS_INIT, now = PAWL_PROGRESS_INIT;
	struct pawl_error err = {0};
	struct triggers t;
	(void)state;

	now.batch = 3;
	assert_int_equal(triggers_parse("first,10ba", &t, &err), 0);
	assert_int_equal(t.n, 2);
	assert_int_equal(triggers_due(&t, NULL, &now, 0, &err), 1);
	last.batch = 3;
	assert_int_equal(triggers_due(&t, &last, &now, 0, &err), 0);
	now.batch = 10;
	assert_int_equal(triggers_due(&t, &last, &now, 0, &err), 1);
}

static void
test_any_of_several_intervals_is_enough(void **state)
{
	struct pawl_progress last = PAWL_PROGRESS_INIT, now = PAWL_PROGRESS_INIT;
	struct pawl_error err = {0};
	struct triggers t;
	(void)state;

	last.batch = 8, last.epoch = 1;
	now.batch = 9, now.epoch = 2;
	assert_int_equal(pawl_interval_due("10ba", &last, &now, &err), 0);
	assert_int_equal(pawl_interval_due("10ba,1ep", &last, &now, &err), 1);
	assert_int_equal(triggers_parse("1ep,,2ba", &t, &err), PAWL_EUSAGE);
	assert_int_equal(triggers_parse("1ep,", &t, &err), PAWL_EUSAGE);
	assert_int_equal(triggers_parse("1ba,2ba,3ba,4ba,5ba,6ba,7ba,8ba,9ba", &t, &err), PAWL_EUSAGE);
	assert_non_null(strstr(err.message, "at most 8"));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_R91_time_strings_and_bare_epochs),
		cmocka_unit_test(test_R92_bad_time_strings_are_refused_with_the_units),
		cmocka_unit_test(test_R92_every_unit_saves_at_its_interval),
		cmocka_unit_test(test_R92_a_threshold_that_is_jumped_over_counts_once),
		cmocka_unit_test(test_R92_seconds_and_fractions),
		cmocka_unit_test(test_the_end_of_training_is_always_due_once),
		cmocka_unit_test(test_an_unknown_counter_is_named),
		cmocka_unit_test(test_R154_auto_waits_for_the_interval_given),
		cmocka_unit_test(test_R154_the_interval_is_the_one_of_Daly),
		cmocka_unit_test(test_R154_no_other_interval_wastes_much_less),
		cmocka_unit_test(test_R154_extremes_have_an_answer),
		cmocka_unit_test(test_first_is_due_until_something_has_been_saved),
		cmocka_unit_test(test_any_of_several_intervals_is_enough),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
