/* SPDX-License-Identifier: Apache-2.0 */
/* The schedulers of trials, against the sizes and rules of the papers, and their properties over
 * random histories. */
#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "helpers/sched_bed.h"
#include "spec.h"

static enum sched_verdict
report(struct sched *s, uint32_t trial, double time, double metric)
{
	return decide(s, trial, time, metric).verdict;
}

static void
test_fifo_lets_all_go_on(void **state)
{
	struct sched *s = make((struct sched_opts){.algorithm = &sched_fifo}, 3);

	(void)state;
	for (unsigned i = 0; i < 3; i++)
		for (int t = 1; t < 50; t++)
			assert_int_equal(report(s, i, t, -t), SCHED_CONTINUE);
	sched_free(s);
}

/* Four trials with constant metrics 1, 2, 3 and 0 at time 10. The means of the others are 1, 2, 3;
 * the median is 2. */
static void
test_the_median_rule_stops_what_is_below(void **state)
{
	struct sched *s = make(
		(struct sched_opts){.algorithm = &sched_median, .maximize = true, .grace = 5, .hard_stop = true}, 4);

	(void)state;
	for (unsigned i = 0; i < 3; i++)
		for (int t = 1; t <= 10; t++)
			assert_int_equal(report(s, i, t, i + 1), SCHED_CONTINUE);
	for (int t = 1; t < 5; t++)
		assert_int_equal(report(s, 3, t, 0), SCHED_CONTINUE); /* grace */
	assert_int_equal(report(s, 3, 5, 0), SCHED_STOP);
	assert_int_equal(report(s, 3, 6, 9), SCHED_STOP); /* and stays so */
	sched_free(s);
}

/* Stopping is the default, and what true asks for. */
static void
test_a_document_chooses_between_stop_and_pause(void **state)
{
	static const struct {
		const char *hard_stop;
		enum sched_verdict expected;
	} rows[] = {{"", SCHED_STOP}, {", \"hard_stop\": true", SCHED_STOP}, {", \"hard_stop\": false", SCHED_PAUSE}};

	(void)state;
	for (size_t k = 0; k < sizeof(rows) / sizeof(rows[0]); k++) {
		struct pawl_error err = {0};
		struct sched *s;
		struct spec spec;
		char text[300];
		snprintf(text, sizeof text,
		         "{\"name\": \"a\", \"run\": [\"true\"], \"metric\": \"m\", \"mode\": \"max\", "
		         "\"scheduler\": {\"type\": \"median\", \"grace_period\": 1%s}}",
		         rows[k].hard_stop);
		if (spec_parse(text, &spec, &err) < 0 || spec_make_scheduler(&spec, &s, &err) < 0)
			fail_msg("%s", err.message);
		for (uint32_t i = 0; i < 4; i++) {
			assert_int_equal(sched_add(s, i, NULL, &err), 0);
			assert_int_equal(report(s, i, 1, -(double)i), i < 3 ? SCHED_CONTINUE : rows[k].expected);
		}
		sched_free(s);
		spec_clear(&spec);
	}
}

/* eta = 4, rungs 1, 4, 16, 64. 16 trials reach a rung, from the best to the worst. Only those stay
 * that are not below the quantile of the ones before. */
static void
test_asha_stops_below_the_quantile_of_a_rung(void **state)
{
	struct sched *s = make((struct sched_opts){.algorithm = &sched_asha, .maximize = true}, 16);
	int n = 0;

	(void)state;
	for (unsigned i = 0; i < 16; i++)
		n += report(s, i, 1, 16 - (double)i) == SCHED_CONTINUE;
	assert_int_equal(n, 1);
	assert_int_equal(report(s, 0, 4, 16), SCHED_CONTINUE);
	assert_int_equal(report(s, 0, 100, 16), SCHED_STOP); /* max_time */
	sched_free(s);
	s = make((struct sched_opts){.algorithm = &sched_asha, .maximize = false}, 16);
	for (unsigned i = 0; i < 16; i++)
		assert_int_equal(report(s, i, 1, 16 - (double)i), SCHED_CONTINUE); /* each one better than all before */
	sched_free(s);
}

/* Algorithm 1 of the paper with R = 81 and eta = 3: brackets of 81, 34, 15, 8 and 5 trials that
 * begin with 1, 3, 9, 27 and 81 units. Runs a complete bracket of 81 and counts how far each trial
 * gets. */
static void
test_hyperband_halves_like_the_paper(void **state)
{
	static const unsigned sizes[] = {81, 34, 15, 8, 5};
	static const unsigned survivors[] = {27, 9, 3, 1};
	struct sched *s = make((struct sched_opts){.algorithm = &sched_hyperband, .maximize = true}, 143);
	struct sched_decision what;
	unsigned first = 0;
	double time = 1;

	(void)state;
	for (unsigned level = 0; level < 4; level++, time *= 3) {
		unsigned n = 0;
		for (unsigned i = 0; i < sizes[0]; i++) {
			sched_paused(s, i, &what);
			if (what.verdict == SCHED_CONTINUE)
				report(s, i, time, i);
		}
		for (unsigned i = 0; i < sizes[0]; i++) {
			sched_paused(s, i, &what);
			n += what.verdict == SCHED_CONTINUE;
			assert_int_equal(what.verdict,
			                 i >= 81 - survivors[level] ? SCHED_CONTINUE : SCHED_STOP); /* the best ones */
		}
		assert_int_equal(n, survivors[level]);
	}
	assert_int_equal(report(s, 80, 81, 1), SCHED_STOP);
	time = 1;
	for (unsigned b = 0; b < 5; first += sizes[b++], time *= 3) { /* all but the last pause at the first rung */
		if (b == 0)
			continue;
		for (unsigned i = 0; i + 1 < sizes[b]; i++)
			assert_int_equal(report(s, first + i, time, i), b == 4 ? SCHED_STOP : SCHED_PAUSE);
	}
	sched_free(s);
}

/* Successive halving in step, with the rungs of ASHA: 16 trials, eta 4, up to 20: 16 at 1, 4 at 4,
 * 1 at 16, then 20. No trial continues before all have reached the rung, and the order of their
 * arrival changes nothing. */
static void
test_asha_in_step_waits_for_all(void **state)
{
	struct sched_opts opts = {
		.algorithm = &sched_hyperband, .maximize = true, .in_step = true, .max_time = 20, .reduction = 4};
	struct pawl_error err = {0};
	struct sched_decision what;

	(void)state;
	for (unsigned step = 1; step < 16; step += 2) { /* odd: all are visited */
		struct sched *s = make(opts, 16);
		for (unsigned k = 0; k < 16; k++)
			assert_int_equal(report(s, k * step % 16, 1, k * step % 16), SCHED_PAUSE);
		for (unsigned i = 0; i < 16; i++) {
			sched_paused(s, i, &what);
			assert_int_equal(what.verdict, SCHED_PAUSE); /* one more may come */
		}
		sched_close(s);
		for (unsigned i = 0; i < 16; i++) {
			sched_paused(s, i, &what);
			assert_int_equal(what.verdict, i >= 12 ? SCHED_CONTINUE : SCHED_STOP);
		}
		for (unsigned i = 12; i < 15; i++)
			assert_int_equal(report(s, i, 4, i), SCHED_PAUSE);
		assert_int_equal(report(s, 15, 4, 15), SCHED_CONTINUE); /* the last one to come, and the best */
		assert_int_equal(report(s, 15, 16, 0), SCHED_CONTINUE); /* alone */
		assert_int_equal(report(s, 15, 20, 0), SCHED_STOP);
		sched_free(s);
	}
	opts.grace = 50;
	assert_int_equal(sched_new(&opts, &(struct sched *){NULL}, &err), PAWL_EUSAGE);
}

static void
test_hyperband_waits_for_nobody_who_has_gone(void **state)
{
	struct sched *s = make((struct sched_opts){.algorithm = &sched_hyperband, .maximize = true}, 6);
	struct sched_decision what;

	(void)state;
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(report(s, i, 1, i), SCHED_PAUSE);
	sched_end(s, 5);
	sched_paused(s, 4, &what);
	assert_int_equal(what.verdict, SCHED_PAUSE); /* more may come */
	sched_close(s);
	sched_paused(s, 4, &what);
	assert_int_equal(what.verdict, SCHED_CONTINUE);
	sched_paused(s, 0, &what);
	assert_int_equal(what.verdict, SCHED_STOP);
	sched_free(s);
}

static void
test_pbt_takes_from_the_best_and_changes_values(void **state)
{
	const struct sched_mutation lr = {"lr", 0, 1e-4, 1e-1, true, false};
	struct sched_opts opts = {.algorithm = &sched_pbt,
	                          .maximize = true,
	                          .interval = 2,
	                          .mutations = &lr,
	                          .n_mutations = 1,
	                          .seed = 7,
	                          .resample = 0};
	struct pawl_error err = {0};
	struct sched_decision what;
	struct sched *s = NULL;
	double value[8];

	(void)state;
	assert_int_equal(sched_new(&opts, &s, &err), 0);
	for (unsigned i = 0; i < 8; i++) {
		value[i] = 1e-3 * (i + 1);
		assert_int_equal(sched_add(s, i, &value[i], &err), 0);
	}
	for (unsigned i = 0; i < 8; i++)
		assert_int_equal(report(s, i, 1, i), SCHED_CONTINUE); /* no interval has passed */
	for (unsigned i = 0; i < 8; i++) { /* each one the best so far: it saves, others may take from it */
		assert_int_equal(sched_report(s, i, 2, i, false, &what, &err), 0);
		assert_int_equal(what.verdict, SCHED_CONTINUE);
		assert_int_equal(what.save, i > 0);
	}
	assert_int_equal(sched_report(s, 0, 4, 0, false, &what, &err), 0);
	assert_int_equal(what.verdict, SCHED_EXPLOIT);
	assert_true(what.donor == 7 || what.donor == 6);
	assert_true(fabs(what.values[0] / value[what.donor] - 1.2) < 1e-9 ||
	            fabs(what.values[0] / value[what.donor] - 0.8) < 1e-9);
	sched_report(s, 7, 4, 9, false, &what, &err);
	assert_int_equal(what.verdict, SCHED_CONTINUE);
	assert_true(what.save);
	sched_free(s);
}

/* Six trials, two places: from one perturbation to the next each has had its turn, and the one that
 * waited longest continues. */
static void
test_R158_pbt_gives_each_trial_its_turn(void **state)
{
	const struct sched_mutation m = {"n", 4, 0, 0, false, false};
	struct sched_opts opts = {.algorithm = &sched_pbt,
	                          .maximize = true,
	                          .takes_turns = true,
	                          .interval = 2,
	                          .mutations = &m,
	                          .n_mutations = 1};
	struct sched *s = make(opts, 0);
	struct sched_candidate waiting[6] = {0};
	size_t n_waiting = 0, n_exploits = 0;
	struct sched_decision what;
	struct pawl_error err = {0};
	uint32_t n_trials = 0, running[2] = {0};
	double time[6] = {0};
	int64_t at;

	(void)state;
	for (unsigned turn = 0; turn < 30; turn++) {
		const unsigned place = turn % 2;
		at = sched_next(s, waiting, n_waiting, n_trials < 6);
		assert_true(at >= 0);
		if ((size_t)at == n_waiting) {
			assert_int_equal(sched_add(s, n_trials, NULL, &err), 0);
			running[place] = n_trials++;
		} else {
			running[place] = waiting[at].trial;
			memmove(&waiting[at], &waiting[at + 1], (--n_waiting - (size_t)at) * sizeof(waiting[0]));
		}
		if (turn == 0)
			continue; /* two places */
		const uint32_t ends = running[!place];
		assert_int_equal(sched_report(s, ends, ++time[ends], ends, true, &what, &err), 0);
		assert_int_equal(what.verdict, SCHED_CONTINUE); /* no perturbation */
		assert_int_equal(sched_report(s, ends, ++time[ends], ends, true, &what, &err), 0);
		assert_true(what.verdict == SCHED_PAUSE || what.verdict == SCHED_EXPLOIT);
		if (what.verdict == SCHED_EXPLOIT) {
			n_exploits++;
			time[ends] = time[what.donor]; /* where its newest checkpoint is */
			sched_exploited(s, ends, what.donor, time[ends]);
		}
		sched_paused(s, ends, &what);
		assert_int_equal(what.verdict, SCHED_CONTINUE); /* as soon as there is a place */
		waiting[n_waiting++] = (struct sched_candidate){ends, true, false};
		for (unsigned i = 0; i < n_trials; i++)
			assert_true(time[i] + 4 >= time[ends] || turn < 6); /* no trial is two turns ahead */
	}
	assert_true(n_trials == 6 && n_exploits > 0);
	for (unsigned i = 0; i < 6; i++)
		assert_true(time[i] >= 8);
	/* Negative control: where no trial waits, none leaves. */
	assert_int_equal(sched_report(s, 5, 100, 100, false, &what, &err), 0);
	assert_int_equal(what.verdict, SCHED_CONTINUE);
	sched_free(s);
}

/* Interval 10, the donor ranked at 30 and saved at `at`. The clone is ranked when the donor is
 * ranked again (the rule of Ray Tune), whether the donor was ahead or behind. From a state before
 * 30, it is ranked ten units after that state. */
static void
test_R158_a_clone_keeps_the_perturbation_interval(void **state)
{
	static const struct {
		double own, at, next; /* the trial's time, the donor's checkpoint, when the clone is ranked */
	} rows[] = {{10, 30, 40}, {10, 34, 40}, {10, 25, 35}, {80, 30, 40}, {80, 34, 40}, {80, 25, 35}, {30, 30, 40}};
	const struct sched_mutation m = {"n", 4, 0, 0, false, false};
	const struct sched_opts opts = {
		.algorithm = &sched_pbt, .maximize = true, .interval = 10, .mutations = &m, .n_mutations = 1};

	(void)state;
	for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
		struct sched *s = make(opts, 2);
		struct sched_decision what;
		assert_int_equal(report(s, 1, 30, 1), SCHED_CONTINUE);
		for (double time = 31; time < 40; time++)
			assert_int_equal(report(s, 1, time, 1), SCHED_CONTINUE);
		what = decide(s, 0, rows[r].own, 0);
		assert_int_equal(what.verdict, SCHED_EXPLOIT);
		assert_int_equal(what.donor, 1);
		sched_exploited(s, 0, 1, rows[r].at);
		for (double time = rows[r].at + 1; time < rows[r].next; time++)
			assert_int_equal(report(s, 0, time, 0), SCHED_CONTINUE);
		assert_int_equal(report(s, 0, rows[r].next, 0), SCHED_EXPLOIT);
		sched_free(s);
	}
}

/* The order of those that wait: what was interrupted, what has advanced furthest, what has not
 * begun, a further one. With PBT: the trial that was perturbed the longest ago. */
static void
test_who_is_next(void **state)
{
	static const struct sched_opts kinds[] = {
		{.algorithm = &sched_fifo}, {.algorithm = &sched_pbt}, {.algorithm = &sched_pbt, .takes_turns = true}};
	static const struct {
		struct sched_candidate candidates[3];
		size_t n;
		bool may_add;
		int64_t furthest, turns;
	} rows[] = {
		{{{0}}, 0, false, -1, -1},
		{{{0}}, 0, true, 0, 0},
		{{{1, true, false}, {2, true, false}, {3, false, false}}, 3, true, 1, 2},
		{{{1, true, false}, {2, true, false}}, 2, true, 1, 2},
		{{{1, true, false}, {2, true, false}}, 2, false, 1, 0},
		{{{2, true, false}, {1, false, true}}, 2, false, 1, 1},
		{{{1, true, false}, {2, false, true}}, 2, false, 1, 0},
	};
	const struct sched_mutation m = {"n", 4, 0, 0, false, false};
	const double values[1] = {0};

	(void)state;
	for (size_t k = 0; k < 3; k++) {
		struct sched_opts opts = kinds[k];
		struct sched *s;
		struct sched_decision what;
		struct pawl_error err = {0};
		opts.interval = 1;
		opts.quantile = 1e-9;
		opts.mutations = &m;
		opts.n_mutations = 1;
		s = make(opts, 4);
		for (uint32_t i = 1; i < 3; i++) {
			assert_int_equal(sched_report(s, i, 4 * i, -(double)i, true, &what, &err), 0);
			sched_decline(s, i, values);
		}
		for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
			assert_int_equal(sched_next(s, rows[i].candidates, rows[i].n, rows[i].may_add),
			                 opts.takes_turns ? rows[i].turns : rows[i].furthest);
		sched_free(s);
	}
}

/* The same reports give the same verdicts, so that a journal can be fed in again. */
static void
test_verdicts_depend_on_the_reports_alone(void **state)
{
	static const struct sched_algorithm *const kinds[] = {&sched_median, &sched_asha, &sched_hyperband, &sched_pbt};
	const struct sched_mutation m = {"n", 4, 0, 0, false, false};

	(void)state;
	for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
		enum sched_verdict seen[2][2000];
		for (unsigned pass = 0; pass < 2; pass++) {
			struct sched *s = make((struct sched_opts){.algorithm = kinds[k],
			                                           .interval = 3,
			                                           .mutations = &m,
			                                           .n_mutations = 1,
			                                           .seed = 3,
			                                           .brackets = 2},
			                       40);
			double time[40] = {0};
			struct sched_decision what;
			srand(1);
			for (unsigned i = 0; i < 2000; i++) {
				const uint32_t trial = (uint32_t)rand() % 40;
				const double metric = rand() % 100 == 0 ? NAN : (double)rand();
				sched_paused(s, trial, &what);
				seen[pass][i] = what.verdict;
				if (what.verdict == SCHED_CONTINUE || what.verdict == SCHED_EXPLOIT)
					seen[pass][i] = report(s, trial, ++time[trial], metric);
			}
			sched_free(s);
		}
		assert_memory_equal(seen[0], seen[1], sizeof(seen[0]));
	}
}

static int
make_documented(const char *scheduler, struct sched **ret, struct pawl_error *err)
{
	struct spec spec = {0};
	char text[400];
	int rc;

	snprintf(text, sizeof text, "{\"name\": \"a\", \"run\": [\"true\"], \"metric\": \"m\", \"scheduler\": {%s}}",
	         scheduler);
	rc = spec_parse(text, &spec, err);
	if (rc == 0)
		rc = spec_make_scheduler(&spec, ret, err);
	spec_clear(&spec);
	return rc;
}

/* An option of 0 is not an option that is missing. */
static void
test_a_document_may_set_options_to_zero(void **state)
{
	static const char pbt[] = "\"type\": \"pbt\", \"time_attr\": \"training_iteration\", "
				  "\"hyperparam_mutations\": {\"x\": [1, 2]}, ";
	static const struct {
		const char *option, *error;
	} bad[] = {
		{"\"type\": \"asha\", \"grace_period\": 0", "grace must be 1e-09 to inf, found 0"},
		{"\"type\": \"asha\", \"synch\": true, \"grace_period\": 0", "grace must be 1e-09 to inf, found 0"},
		{"\"type\": \"asha\", \"max_t\": 0", "max_time must be 1 to 1e+15, found 0"},
		{"\"type\": \"hyperband\", \"max_t\": 0", "max_time must be 1 to 1e+15, found 0"},
		{"\"type\": \"hyperband\", \"reduction_factor\": 0", "reduction must be 1 to 1e+06, found 0"},
		{"\"type\": \"pbt\", \"hyperparam_mutations\": {\"x\": [1]}, \"perturbation_interval\": 0",
	         "interval must be 1e-09 to inf, found 0"},
	};
	struct pawl_error err = {0};
	struct sched *s = NULL;
	char text[300];

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(make_documented(bad[i].option, &s, &err), PAWL_EUSAGE);
		if (!strstr(err.message, bad[i].error))
			fail_msg("expected '%s', found '%s'", bad[i].error, err.message);
	}
	for (int is_zero = 0; is_zero < 2; is_zero++) {
		snprintf(text, sizeof text, "%s\"perturbation_interval\": 1%s", pbt,
		         is_zero ? ", \"quantile_fraction\": 0" : "");
		assert_int_equal(make_documented(text, &s, &err), 0);
		for (uint32_t i = 0; i < 4; i++)
			assert_int_equal(sched_add(s, i, (double[]){0}, &err), 0);
		for (uint32_t i = 0; i < 3; i++)
			assert_int_equal(report(s, i, 1, -(double)i), SCHED_CONTINUE);
		assert_int_equal(report(s, 3, 1, 3), is_zero ? SCHED_CONTINUE : SCHED_EXPLOIT);
		sched_free(s);
	}
	assert_int_equal(
		make_documented("\"type\": \"median\", \"grace_period\": 0, \"min_samples_required\": 1", &s, &err), 0);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(sched_add(s, i, NULL, &err), 0);
	assert_int_equal(report(s, 0, 0.5, 0), SCHED_CONTINUE);
	assert_int_equal(report(s, 1, 0.5, 1), SCHED_STOP);
	sched_free(s);
}

static void
test_bad_options_are_named(void **state)
{
	static const struct {
		struct sched_opts opts;
		const char *text;
	} rows[] = {
		{{.algorithm = &sched_pbt}, "pbt needs a hyperparameter to mutate, found none"},
		{{.algorithm = &sched_asha, .reduction = 1}, "reduction must be 1 to 1e+06, found 1"},
		{{.algorithm = &sched_asha, .grace = 10, .max_time = 5}, "max_time must be 10 to 1e+15, found 5"},
		{{.algorithm = &sched_pbt, .quantile = 0.7}, "quantile must be 0 to 0.5, found 0.7"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct pawl_error err = {0};
		struct sched *s = NULL;
		assert_int_equal(sched_new(&rows[i].opts, &s, &err), PAWL_EUSAGE);
		if (!strstr(err.message, rows[i].text))
			fail_msg("'%s' is not in '%s'", rows[i].text, err.message);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fifo_lets_all_go_on),
		cmocka_unit_test(test_the_median_rule_stops_what_is_below),
		cmocka_unit_test(test_a_document_chooses_between_stop_and_pause),
		cmocka_unit_test(test_asha_stops_below_the_quantile_of_a_rung),
		cmocka_unit_test(test_hyperband_halves_like_the_paper),
		cmocka_unit_test(test_asha_in_step_waits_for_all),
		cmocka_unit_test(test_hyperband_waits_for_nobody_who_has_gone),
		cmocka_unit_test(test_pbt_takes_from_the_best_and_changes_values),
		cmocka_unit_test(test_R158_pbt_gives_each_trial_its_turn),
		cmocka_unit_test(test_R158_a_clone_keeps_the_perturbation_interval),
		cmocka_unit_test(test_who_is_next),
		cmocka_unit_test(test_verdicts_depend_on_the_reports_alone),
		cmocka_unit_test(test_a_document_may_set_options_to_zero),
		cmocka_unit_test(test_bad_options_are_named),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
