/* SPDX-License-Identifier: Apache-2.0 */
/* Searches and trials that are stopped before they end by themselves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>
#include <cmocka.h>

#include "helpers/tune_bed.h"

static enum tune_wish
stop_all(void *arg, uint32_t trial, const char *result_json)
{
	(void)arg, (void)trial, (void)result_json;
	return TUNE_STOP_ALL;
}

/* An experiment whose first result stops all. */
static struct tune_experiment *
open_judged(struct tune_bed *bed, const char *spec, const char *folder)
{
	char path[128];
	struct tune_open_opts opts = {.folder = path, .judge = stop_all, .now_s = bed_now, .now_arg = bed};
	struct tune_experiment *e = NULL;
	struct pawl_error err = {0};

	snprintf(path, sizeof(path), "%s/%s", bed->root, folder);
	if (tune_experiment_open(spec, &opts, &e, &err) < 0)
		fail_msg("open: %s", err.message);
	return e;
}

static enum tune_next
start_next(struct tune_experiment *e, struct tune_start *ret)
{
	struct pawl_error err = {0};
	enum tune_next next = TUNE_WAIT;

	assert_int_equal(tune_experiment_next(e, &next, ret, &err), 0);
	return next;
}

static struct tune_verdict
report(struct tune_experiment *e, uint32_t trial, const char *metrics)
{
	struct tune_verdict verdict = {0};
	struct pawl_error err = {0};

	if (tune_experiment_report(e, trial, metrics, NULL, &verdict, &err) < 0)
		fail_msg("report: %s", err.message);
	return verdict;
}

/* The search has n trials, and there is nothing to start. */
static void
assert_is_over(struct tune_experiment *e, uint32_t n)
{
	struct tune_counts counts;
	struct tune_start start;

	assert_int_equal(start_next(e, &start), TUNE_DONE);
	tune_experiment_counts(e, &counts);
	assert_int_equal(counts.trials, n);
	assert_int_equal(counts.expected, n);
	assert_int_equal(counts.state[TUNE_TERMINATED], n);
}

static void
test_a_judge_that_stops_all_ends_a_search_with_samples_left(void **state)
{
	static const char *const specs[] = {
		"{\"name\": \"a\", \"num_samples\": 4, \"space\": {\"lr\": {\"$uniform\": [0, 1]}}}",
		"{\"name\": \"a\", \"num_samples\": 4, \"max_concurrent\": 1, \"metric\": \"loss\", \"space\": {\"lr\": 1},"
		" \"scheduler\": {\"type\": \"pbt\", \"hyperparam_mutations\": {\"lr\": [1, 2]}}}",
		"{\"name\": \"a\", \"search\": \"given\"}",
	};
	const char *const added = "{\"lr\": 1}";

	for (size_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++) {
		struct pawl_error err = {0};
		struct tune_start start;
		char folder[16];
		snprintf(folder, sizeof(folder), "a%zu", i);
		struct tune_experiment *e = open_judged(*state, specs[i], folder);
		if (i == 2)
			assert_int_equal(tune_experiment_add(e, added, NULL, &err), 0);
		assert_int_equal(start_next(e, &start), TUNE_START);
		const struct tune_verdict verdict = report(e, 0, "{\"loss\": 1}");
		assert_int_equal(verdict.kind, TUNE_STOP);
		assert_true(verdict.stop_all);
		assert_int_equal(tune_experiment_ended(e, 0, TUNE_FINISHED, NULL, NULL, &err), 0);
		assert_is_over(e, 1);
		tune_experiment_close(e);
		e = bed_open(*state, specs[i], folder, TUNE_LOCAL);
		if (i == 2)
			assert_int_equal(tune_experiment_add(e, added, NULL, &err), PAWL_EUSAGE);
		assert_is_over(e, 1);
		tune_experiment_close(e);
	}
}

/* The first trial stops all, of two that are drawn. Then the journal is lost, before or after the
 * trials have ended. */
static void
test_P12_a_rebuilt_journal_of_a_search_that_a_judge_stopped_draws_no_more_samples(void **state)
{
	static const char spec[] = "{\"name\": \"r\", \"num_samples\": 4, \"space\": {\"lr\": {\"$uniform\": [0, 1]}}}";
	struct tune_bed *bed = *state;

	for (int has_ended = 0; has_ended < 2; has_ended++) {
		const char *const folder = has_ended ? "r1" : "r0";
		struct pawl_error err = {0};
		struct tune_start start;
		struct tune_experiment *e = open_judged(bed, spec, folder);

		for (int i = 0; i < 2; i++)
			assert_int_equal(start_next(e, &start), TUNE_START);
		assert_true(report(e, 0, "{\"loss\": 1}").stop_all);
		for (uint32_t i = 0; has_ended && i < 2; i++)
			assert_int_equal(tune_experiment_ended(e, i, TUNE_FINISHED, NULL, NULL, &err), 0);
		tune_experiment_close(e);
		bed_run("rm '%s/%s/journal'", bed->root, folder);
		e = bed_open(bed, spec, folder, TUNE_AUTO);
		assert_non_null(strstr(tune_experiment_notice(e), "rebuilt from the folders of 2 trials"));
		for (uint32_t i = 0; !has_ended && i < 2; i++) {
			assert_int_equal(start_next(e, &start), TUNE_START);
			assert_true(start.trial < 2);
			assert_int_equal(tune_experiment_ended(e, start.trial, TUNE_FINISHED, NULL, NULL, &err), 0);
		}
		assert_is_over(e, 2);
		tune_experiment_close(e);
	}
}

/* The result and the checkpoint of a trial that ends. */
static void
assert_last(struct tune_experiment *e, uint32_t n_checkpoints)
{
	struct tune_checkpoint checkpoint;
	struct pawl_error err = {0};
	struct tune_trial t;

	assert_int_equal(tune_trial_info(e, 0, &t, &err), 0);
	assert_int_equal(t.iteration, 2);
	assert_true(t.metric == 1);
	assert_int_equal(t.n_checkpoints, n_checkpoints);
	for (uint32_t i = 0; i < n_checkpoints; i++) {
		assert_int_equal(tune_trial_checkpoint(e, 0, i, &checkpoint, &err), 0);
		assert_int_equal(checkpoint.iteration, 2);
		assert_true(checkpoint.metric == 1);
	}
}

static void
test_a_trial_that_is_stopped_from_outside_reports_and_saves_once_more(void **state)
{
	static const char spec[] = "{\"name\": \"s\", \"metric\": \"loss\", \"checkpoint\": {\"at_end\": true}}";
	struct tune_experiment *e = bed_open(*state, spec, "s", TUNE_NEW);
	struct bed_job job = {.iteration = 2};
	struct pawl_error err = {0};
	struct tune_verdict verdict;
	struct tune_counts counts;
	struct tune_start start;
	char checkpoint[64];

	assert_int_equal(start_next(e, &start), TUNE_START);
	snprintf(job.folder, sizeof(job.folder), "%s", start.folder);
	assert_int_equal(report(e, 0, "{\"loss\": 5}").kind, TUNE_CONTINUE);
	for (unsigned i = 0; i < 2; i++) /* asked twice */
		assert_int_equal(tune_experiment_stop_trial(e, 0, "enough", &err), 0);
	verdict = report(e, 0, "{\"loss\": 1}");
	assert_int_equal(verdict.kind, TUNE_STOP);
	assert_true(verdict.save);
	assert_string_equal(verdict.reason, "stopped from outside");
	assert_last(e, 0);
	assert_int_equal(tune_experiment_stop_trial(e, 0, "enough", &err), 0);
	assert_int_equal(report(e, 0, "{\"loss\": 7}").kind, TUNE_STOP); /* after its verdict: not recorded */
	bed_save(&job, checkpoint);
	assert_int_equal(tune_experiment_checkpoint(e, 0, checkpoint, &err), 0);
	assert_last(e, 1);
	assert_int_equal(tune_experiment_ended(e, 0, TUNE_FINISHED, NULL, NULL, &err), 0);
	tune_experiment_close(e);
	e = bed_open(*state, spec, "s", TUNE_LOCAL); /* the same from the journal */
	assert_last(e, 1);
	tune_experiment_counts(e, &counts);
	assert_int_equal(counts.reports, 2);
	assert_is_over(e, 1);
	tune_experiment_close(e);
}

/* Before its first report, and in an experiment that was left meanwhile. */
static void
test_a_trial_that_is_stopped_from_outside_need_not_report(void **state)
{
	static const char spec[] = "{\"name\": \"n\"}";

	for (unsigned is_left = 0; is_left < 2; is_left++) {
		const char *const folder = is_left ? "left" : "ended";
		struct tune_experiment *e = bed_open(*state, spec, folder, TUNE_NEW);
		struct pawl_error err = {0};
		struct tune_start start;
		assert_int_equal(start_next(e, &start), TUNE_START);
		assert_int_equal(tune_experiment_stop_trial(e, 0, "enough", &err), 0);
		if (!is_left)
			assert_int_equal(tune_experiment_ended(e, 0, TUNE_FAILED, "killed", NULL, &err), 0);
		tune_experiment_close(e);
		e = bed_open(*state, spec, folder, TUNE_LOCAL);
		assert_is_over(e, 1);
		tune_experiment_close(e);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_a_judge_that_stops_all_ends_a_search_with_samples_left, bed_setup,
	                                        bed_teardown),
		cmocka_unit_test_setup_teardown(
			test_P12_a_rebuilt_journal_of_a_search_that_a_judge_stopped_draws_no_more_samples, bed_setup,
			bed_teardown),
		cmocka_unit_test_setup_teardown(test_a_trial_that_is_stopped_from_outside_reports_and_saves_once_more,
	                                        bed_setup, bed_teardown),
		cmocka_unit_test_setup_teardown(test_a_trial_that_is_stopped_from_outside_need_not_report, bed_setup,
	                                        bed_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
