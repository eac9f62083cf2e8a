/* SPDX-License-Identifier: Apache-2.0 */
/* The experiment without processes: searches to their end, under each scheduler, with and without
 * being left in the middle. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>
#include <cmocka.h>

#include <sys/resource.h>

#include "helpers/tune_bed.h"

#define SPACE "\"space\": {\"lr\": {\"$loguniform\": [0.001, 0.5]}, \"opt\": {\"$grid\": [\"sgd\", \"adam\"]}}"

static const char fifo[] =
	"{\"name\": \"fifo\", \"metric\": \"loss\", \"num_samples\": 4, \"seed\": 3, " SPACE
	", \"stop\": {\"training_iteration\": 6}, \"checkpoint\": {\"keep\": 2, \"score_attr\": \"min-loss\"}}";
static const char asha[] =
	"{\"name\": \"asha\", \"metric\": \"loss\", \"num_samples\": 6, \"seed\": 3, " SPACE
	", \"scheduler\": {\"type\": \"asha\", \"max_t\": 16, \"grace_period\": 1, \"reduction_factor\": 2}}";
static const char hyperband[] = "{\"name\": \"hb\", \"metric\": \"loss\", \"num_samples\": 10, \"seed\": 3, " SPACE
				", \"scheduler\": {\"type\": \"hyperband\", \"max_t\": 9}}";
static const char pbt[] =
	"{\"name\": \"pbt\", \"metric\": \"loss\", \"num_samples\": 4, \"seed\": 3, " SPACE
	", \"stop\": {\"training_iteration\": 12}, \"scheduler\": {\"type\": \"pbt\", \"time_attr\": \"training_iteration\","
	" \"perturbation_interval\": 2, \"hyperparam_mutations\": {\"lr\": {\"$loguniform\": [0.001, 0.5]}}}}";
static const char pbt_synch[] =
	"{\"name\": \"pbts\", \"metric\": \"loss\", \"num_samples\": 4, \"seed\": 3, " SPACE
	", \"stop\": {\"training_iteration\": 12}, \"scheduler\": {\"type\": \"pbt\", \"time_attr\": \"training_iteration\","
	" \"perturbation_interval\": 3, \"synch\": true, \"hyperparam_mutations\": {\"lr\": [0.01, 0.1, 0.2]}}}";
static const char asha_in_step[] =
	"{\"name\": \"sha\", \"metric\": \"loss\", \"num_samples\": 6, \"seed\": 3, " SPACE
	", \"scheduler\": {\"type\": \"asha\", \"max_t\": 9, \"grace_period\": 2, \"reduction_factor\": 2, \"synch\": true}}";
static const char median[] =
	"{\"name\": \"median\", \"metric\": \"loss\", \"num_samples\": 6, \"seed\": 3, " SPACE
	", \"stop\": {\"training_iteration\": 8}, \"scheduler\": {\"type\": \"median\", \"grace_period\": 2,"
	" \"time_attr\": \"training_iteration\", \"hard_stop\": false}}";

static void
test_a_search_ends_with_its_best_trial(void **state)
{
	struct tune_bed *bed = *state;
	struct bed_driver d = {.e = bed_open(bed, fifo, "fifo", TUNE_NEW), .slots = 3, .save_every = 2};
	struct pawl_error err = {0};
	struct tune_counts counts;
	struct tune_trial t;
	uint32_t best = 99;
	double value;

	bed_drive(&d);
	tune_experiment_counts(d.e, &counts);
	assert_int_equal(counts.trials, 8);
	assert_int_equal(counts.state[TUNE_TERMINATED], 8);
	assert_int_equal(counts.reports, 48);
	assert_int_equal(tune_best(d.e, NULL, NULL, NULL, &best, &value, &err), 0);
	assert_int_equal(tune_trial_info(d.e, best, &t, &err), 0);
	assert_true(t.metric == value);
	assert_int_equal(t.iteration, 6);
	assert_true(t.n_checkpoints >= 2 && t.n_checkpoints <= 3);
	tune_experiment_close(d.e);
}

/* Left after every number of steps and opened again, the search ends with the same trials and the
 * same values. */
static void
left_anywhere(struct tune_bed *bed, const char *name, const char *spec, uint64_t every, bool exploits, bool pauses,
              bool same)
{
	struct bed_driver whole = {.e = bed_open(bed, spec, name, TUNE_NEW), .slots = 3, .save_every = every};
	char *expected, *found, folder[64];

	bed_drive(&whole);
	assert_int_equal(whole.n_exploits > 0, exploits);
	assert_int_equal(whole.n_pauses > 0, pauses);
	expected = bed_summary(whole.e);
	tune_experiment_close(whole.e);
	for (uint64_t at = 1; at < whole.steps; at += 1 + whole.steps / 20) {
		struct bed_driver d = {.slots = 3, .save_every = every, .stop_after = at, .deaf = at % 3 != 0};
		snprintf(folder, sizeof(folder), "%s-%llu", name, (unsigned long long)at);
		d.e = bed_open(bed, spec, folder, TUNE_AUTO);
		bed_drive(&d);
		tune_experiment_close(d.e);
		d = (struct bed_driver){.e = bed_open(bed, spec, folder, TUNE_AUTO), .slots = 3, .save_every = every};
		bed_drive(&d);
		found = bed_summary(d.e);
		if (same)
			assert_string_equal(found, expected);
		tune_experiment_close(d.e);
		free(found);
	}
	free(expected);
}

static void
test_R130_fifo_left_anywhere_comes_to_the_same(void **state)
{
	left_anywhere(*state, "fifo", fifo, 2, false, false, true);
}

static void
test_R130_asha_left_anywhere_ends(void **state)
{
	left_anywhere(*state, "asha", asha, 2, false, false, false);
}

static void
test_R105_hyperband_pauses_and_ends(void **state)
{
	left_anywhere(*state, "hb", hyperband, 0, false, true, true);
}

static void
test_R105_pbt_exploits_and_ends(void **state)
{
	left_anywhere(*state, "pbt", pbt, 1, true, true, false); /* more trials than places */
	left_anywhere(*state, "pbts", pbt_synch, 0, false, true, true);
}

/* Reports of the worse trial up to a verdict other than CONTINUE, and its end; the iteration of
 * that verdict. */
static uint64_t
report_until_told(struct tune_experiment *e, const struct tune_start *start, enum tune_verdict_kind expected)
{
	struct pawl_error err = {0};
	struct tune_verdict verdict = {.kind = TUNE_CONTINUE};
	uint64_t iteration = start->iteration;

	for (; verdict.kind == TUNE_CONTINUE && iteration < 100; iteration++)
		assert_int_equal(tune_experiment_report(e, start->trial, "{\"loss\": 5}", NULL, &verdict, &err), 0);
	assert_int_equal(verdict.kind, expected);
	assert_int_equal(tune_experiment_ended(e, start->trial, TUNE_FINISHED, NULL, NULL, &err), 0);
	return iteration;
}

/* Interval 10. Trial 1 is ranked and saves at 30, and is at 33 when trial 0 resumes from its
 * checkpoint. Trial 0 is then ranked at 40, not at its first report; also when the search was left
 * and opened again in between. */
static void
test_R158_a_clone_is_ranked_an_interval_after_its_donor(void **state)
{
	static const char spec[] =
		"{\"name\": \"clone\", \"metric\": \"loss\", \"num_samples\": 2, \"space\": {\"lr\": 0.1}, "
		"\"scheduler\": {\"type\": \"pbt\", \"time_attr\": \"training_iteration\", "
		"\"perturbation_interval\": 10, \"hyperparam_mutations\": {\"lr\": [0.1, 0.2]}}}";
	struct pawl_error err = {0};

	for (unsigned opens_again = 0; opens_again < 2; opens_again++) {
		struct tune_experiment *e = bed_open(*state, spec, opens_again ? "again" : "once", TUNE_NEW);
		struct tune_verdict verdict;
		struct tune_start start[2];
		enum tune_next next;
		char folder[512], checkpoint[64];
		for (unsigned i = 0; i < 2; i++) {
			assert_int_equal(tune_experiment_next(e, &next, &start[i], &err), 0);
			assert_int_equal(next, TUNE_START);
		}
		snprintf(folder, sizeof(folder), "%s", start[1].folder);
		for (uint64_t i = 1; i <= 33; i++) {
			struct bed_job job = {.iteration = i};
			snprintf(job.folder, sizeof(job.folder), "%s", folder);
			if (i == 30)
				bed_save(&job, checkpoint);
			assert_int_equal(tune_experiment_report(e, 1, "{\"loss\": 0}", i == 30 ? checkpoint : NULL,
			                                        &verdict, &err),
			                 0);
			assert_int_equal(verdict.kind, TUNE_CONTINUE);
		}
		assert_int_equal(report_until_told(e, &start[0], TUNE_EXPLOIT), 10);
		if (opens_again) {
			tune_experiment_close(e);
			e = bed_open(*state, spec, "again", TUNE_LOCAL);
		}
		do
			assert_int_equal(tune_experiment_next(e, &next, &start[0], &err), 0);
		while (next == TUNE_START && start[0].trial != 0);
		assert_int_equal(next, TUNE_START);
		assert_int_equal(start[0].iteration, 30);
		assert_int_equal(report_until_told(e, &start[0], TUNE_EXPLOIT), 40);
		tune_experiment_close(e);
	}
}

/* A trial may send a checkpoint before it reads that it continues from another trial's. */
static void
test_R158_a_trial_that_exploits_starts_from_the_clone_whatever_it_saves(void **state)
{
	static const char spec[] =
		"{\"name\": \"late\", \"metric\": \"loss\", \"num_samples\": 2, \"space\": {\"lr\": 0.1}, "
		"\"scheduler\": {\"type\": \"pbt\", \"time_attr\": \"training_iteration\", "
		"\"perturbation_interval\": 1, \"hyperparam_mutations\": {\"lr\": [0.1, 0.2]}}}";
	struct tune_experiment *e = bed_open(*state, spec, "late", TUNE_NEW);
	struct bed_job jobs[2] = {{.iteration = 1, .value = 3}, {.iteration = 1, .value = 7}};
	struct pawl_error err = {0};
	struct tune_verdict verdict;
	struct tune_start start;
	enum tune_next next;
	char checkpoint[64];

	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(tune_experiment_next(e, &next, &start, &err), 0);
		assert_int_equal(next, TUNE_START);
		snprintf(jobs[i].folder, sizeof(jobs[i].folder), "%s", start.folder);
		bed_save(&jobs[i], checkpoint);
	}
	assert_int_equal(tune_experiment_report(e, 1, "{\"loss\": 0}", checkpoint, &verdict, &err), 0);
	assert_int_equal(tune_experiment_report(e, 0, "{\"loss\": 5}", NULL, &verdict, &err), 0);
	assert_int_equal(verdict.kind, TUNE_EXPLOIT);
	assert_int_equal(tune_experiment_checkpoint(e, 0, checkpoint, &err), 0);
	assert_int_equal(tune_experiment_stop_trial(e, 1, NULL, &err), 0);
	assert_int_equal(tune_experiment_ended(e, 0, TUNE_FINISHED, NULL, NULL, &err), 0);
	assert_int_equal(tune_experiment_next(e, &next, &start, &err), 0);
	assert_int_equal(next, TUNE_START);
	assert_int_equal(start.trial, 0);
	assert_non_null(start.checkpoint);
	assert_true(bed_read(start.folder, start.checkpoint) == 7);
	/* From here on its saves count again. */
	jobs[0].iteration = 2;
	assert_int_equal(tune_experiment_report(e, 0, "{\"loss\": 0}", NULL, &verdict, &err), 0);
	bed_save(&jobs[0], checkpoint);
	assert_int_equal(tune_experiment_checkpoint(e, 0, checkpoint, &err), 0);
	assert_int_equal(tune_experiment_ended(e, 0, TUNE_LOST, NULL, NULL, &err), 0);
	assert_int_equal(tune_experiment_next(e, &next, &start, &err), 0);
	assert_int_equal(next, TUNE_START);
	assert_string_equal(start.checkpoint, checkpoint);
	tune_experiment_close(e);
}

static void
test_R130_asha_in_step_left_anywhere_comes_to_the_same(void **state)
{
	left_anywhere(*state, "sha", asha_in_step, 0, false, true, true);
}

static void
test_a_median_rule_that_pauses_ends(void **state)
{
	left_anywhere(*state, "median", median, 0, false, true, false);
}

static void
assert_error(int code, int expected, const struct pawl_error *err, const char *text)
{
	if (code != expected || !strstr(err->message, text))
		fail_msg("expected %d and '%s', found %d '%s'", expected, text, code, err->message);
}

static void
test_P10_two_runners_on_one_experiment_are_refused(void **state)
{
	struct tune_bed *bed = *state;
	struct tune_experiment *e = bed_open(bed, fifo, "fifo", TUNE_NEW), *other = NULL;
	struct pawl_error err = {0};

	assert_error(bed_try_open(bed, fifo, "fifo", TUNE_AUTO, &other, &err), PAWL_EBUSY, &err,
	             "another process runs this");
	assert_int_equal(bed_try_open(bed, NULL, "fifo", TUNE_READ, &other, &err), 0); /* looking is allowed */
	tune_experiment_close(other);
	tune_experiment_close(e);
	tune_experiment_close(bed_open(bed, fifo, "fifo", TUNE_AUTO));
	assert_error(bed_try_open(bed, fifo, "fifo", TUNE_NEW, &other, &err), PAWL_EEXISTS, &err,
	             "already exists here");
	assert_error(bed_try_open(bed, fifo, "other", TUNE_LOCAL, &other, &err), PAWL_ENOTFOUND, &err,
	             "there is no experiment here");
}

static void
test_R128_a_changed_document_is_named(void **state)
{
	struct tune_bed *bed = *state;
	struct tune_experiment *e = bed_open(bed, fifo, "x", TUNE_NEW);
	struct pawl_error err = {0};
	struct tune_counts counts;

	tune_experiment_close(e);
	assert_error(bed_try_open(bed, asha, "x", TUNE_AUTO, &e, &err), PAWL_EUSAGE, &err, "'scheduler' is");
	assert_error(bed_try_open(bed,
	                          "{\"name\": \"fifo\", \"metric\": \"loss\", \"num_samples\": 2, \"seed\": 3, " SPACE
	                          "}",
	                          "x", TUNE_AUTO, &e, &err),
	             PAWL_EUSAGE, &err, "it can only grow");
	e = bed_open(bed, "{\"name\": \"fifo\", \"metric\": \"loss\", \"num_samples\": 5, \"seed\": 3, " SPACE "}", "x",
	             TUNE_AUTO);
	tune_experiment_counts(e, &counts);
	assert_int_equal(counts.expected, 10);
	tune_experiment_close(e);
}

/* One trial that reports the given losses, each with a checkpoint. */
static void
report_all(struct tune_experiment *e, const char *folder, const double *losses, size_t n)
{
	struct bed_job job = {.trial = 0};
	struct tune_verdict verdict;
	struct pawl_error err = {0};
	char metrics[64], checkpoint[64];

	snprintf(job.folder, sizeof(job.folder), "%s", folder);
	for (size_t i = 0; i < n; i++) {
		job.iteration = i + 1;
		bed_save(&job, checkpoint);
		if (isnan(losses[i]))
			snprintf(metrics, sizeof(metrics), "{\"loss\": \"NaN\"}");
		else
			snprintf(metrics, sizeof(metrics), "{\"loss\": %g}", losses[i]);
		if (tune_experiment_report(e, 0, metrics, checkpoint, &verdict, &err) < 0)
			fail_msg("%s", err.message);
	}
}

static void
assert_kept(const struct tune_experiment *e, const char *folder, const char *expected)
{
	struct tune_checkpoint c;
	struct pawl_error err = {0};
	char found[256] = "", path[800];
	size_t len = 0, n = 0, n_folders = 0;
	struct dirent *entry;
	DIR *dir;

	for (; tune_trial_checkpoint(e, 0, (uint32_t)n, &c, &err) == 0; n++)
		len += (size_t)snprintf(found + len, sizeof(found) - len, "%s%llu", n ? " " : "",
		                        (unsigned long long)c.iteration);
	assert_string_equal(found, expected);
	snprintf(path, sizeof(path), "%s", folder);
	dir = opendir(path);
	assert_non_null(dir);
	while ((entry = readdir(dir)))
		n_folders += strstr(entry->d_name, "checkpoint_") != NULL;
	closedir(dir);
	assert_int_equal(n_folders, n);
}

static void
test_R127_the_best_checkpoints_are_kept_and_the_newest(void **state)
{
	static const double losses[] = {5, 3, 4, NAN, 3, 2, 9};
	static const struct {
		const char *name, *checkpoint, *kept;
	} rows[] = {
		{"a", "{\"keep\": 2, \"score_attr\": \"min-loss\"}", "2 6 7"},
		{"b", "{\"keep\": 2, \"score_attr\": \"loss\"}", "1 7"},
		{"c", "{\"keep\": 2, \"score_attr\": \"max-loss\"}", "1 7"},
		{"d", "{\"keep\": 3}", "5 6 7"},
		{"e", "{}", "1 2 3 4 5 6 7"},
		{"f", "{\"keep\": 1, \"score_attr\": \"min-loss\"}", "6 7"},
	};
	struct tune_bed *bed = *state;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct pawl_error err = {0};
		struct tune_experiment *e;
		struct tune_start start;
		enum tune_next next;
		char document[300], folder[500];
		const char *best;
		snprintf(document, sizeof(document), "{\"name\": \"k\", \"metric\": \"loss\", \"checkpoint\": %s}",
		         rows[i].checkpoint);
		e = bed_open(bed, document, rows[i].name, TUNE_NEW);
		assert_int_equal(tune_experiment_next(e, &next, &start, &err), 0);
		assert_int_equal(next, TUNE_START);
		snprintf(folder, sizeof(folder), "%s", start.folder);
		report_all(e, folder, losses, sizeof(losses) / sizeof(losses[0]));
		assert_kept(e, folder, rows[i].kept);
		if (i == 0) {
			assert_int_equal(tune_best_checkpoint(e, 0, NULL, NULL, &best, &err), 0);
			assert_string_equal(best, "checkpoint_000006");
		}
		tune_experiment_close(e);
		e = bed_open(bed, NULL, rows[i].name, TUNE_LOCAL); /* the same from the journal */
		assert_kept(e, folder, rows[i].kept);
		tune_experiment_close(e);
	}
}

#define N_LOST 40

/* A trial of N_LOST steps that keeps one checkpoint. Then all older ones are made again, as if the
 * folder had been fetched from a place that still has them. */
static void
bring_back(struct tune_bed *bed, const char *name, char folder[500])
{
	static const char document[] = "{\"name\": \"k\", \"metric\": \"loss\", \"checkpoint\": {\"keep\": 1}}";
	struct tune_experiment *e = bed_open(bed, document, name, TUNE_NEW);
	struct bed_job job = {.trial = 0};
	struct pawl_error err = {0};
	struct tune_start start;
	double losses[N_LOST];
	enum tune_next next;
	char made[64];

	assert_int_equal(tune_experiment_next(e, &next, &start, &err), 0);
	assert_int_equal(next, TUNE_START);
	snprintf(folder, 500, "%s", start.folder);
	for (size_t i = 0; i < N_LOST; i++)
		losses[i] = 1;
	report_all(e, folder, losses, N_LOST);
	assert_kept(e, folder, "40");
	tune_experiment_close(e);
	snprintf(job.folder, sizeof(job.folder), "%s", folder);
	for (job.iteration = 1; job.iteration < N_LOST; job.iteration++)
		bed_save(&job, made);
}

static void
test_all_checkpoints_that_retention_gave_up_are_removed_when_the_search_is_opened(void **state)
{
	struct tune_experiment *e;
	char folder[500];

	bring_back(*state, "all", folder);
	e = bed_open(*state, NULL, "all", TUNE_LOCAL);
	assert_kept(e, folder, "40");
	tune_experiment_close(e);
}

static void
test_a_trial_whose_newest_checkpoint_is_missing_loses_no_other_one(void **state)
{
	struct tune_experiment *e;
	char folder[500];

	bring_back(*state, "none", folder);
	bed_run("rm -r '%s'/%s", folder, "checkpoint_000040");
	e = bed_open(*state, NULL, "none", TUNE_LOCAL);
	tune_experiment_close(e);
	for (int i = 1; i < N_LOST; i++) {
		char path[600];
		snprintf(path, sizeof(path), "%s/checkpoint_%06d", folder, i);
		assert_int_equal(access(path, F_OK), 0);
	}
}

static void
test_failures_are_counted_and_tried_again(void **state)
{
	static const char document[] = "{\"name\": \"f\", \"metric\": \"loss\", \"max_failures\": 2}";
	struct tune_bed *bed = *state;
	struct bed_driver d = {.e = bed_open(bed, document, "f", TUNE_NEW), .slots = 1, .save_every = 1};
	struct pawl_error err = {0};
	enum tune_next next;
	struct tune_trial t;

	for (unsigned i = 0; i < 3; i++) {
		assert_true(bed_start(&d, &d.jobs[0], &next));
		assert_int_equal(d.jobs[0].iteration, i); /* from its last checkpoint */
		bed_step(&d, &d.jobs[0]);
		bed_end(&d, &d.jobs[0], i == 1 ? TUNE_LOST : TUNE_FAILED, "it fell over");
	}
	assert_true(bed_start(&d, &d.jobs[0], &next));
	bed_end(&d, &d.jobs[0], TUNE_FAILED, "it fell over again");
	assert_false(bed_start(&d, &d.jobs[0], &next));
	assert_int_equal(next, TUNE_DONE);
	assert_int_equal(tune_trial_info(d.e, 0, &t, &err), 0);
	assert_int_equal(t.state, TUNE_ERROR);
	assert_int_equal(t.failures, 3);
	assert_string_equal(t.error, "it fell over again");
	tune_experiment_close(d.e);
	d.e = bed_open(bed, NULL, "f", TUNE_ERRORED_ONLY);
	assert_true(bed_start(&d, &d.jobs[0], &next));
	assert_int_equal(d.jobs[0].iteration, 3);
	bed_end(&d, &d.jobs[0], TUNE_FINISHED, NULL);
	assert_int_equal(tune_trial_info(d.e, 0, &t, &err), 0);
	assert_int_equal(t.state, TUNE_TERMINATED);
	tune_experiment_close(d.e);
}

/* Sets the limit so that no file can be opened; returns the limit before. */
static struct rlimit
open_no_more_files(void)
{
	const int lowest = dup(0);
	struct rlimit before, limit;

	assert_true(lowest >= 0);
	close(lowest);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	limit = (struct rlimit){.rlim_cur = (rlim_t)lowest, .rlim_max = before.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	return before;
}

static void
test_R107_a_checkpoint_that_cannot_be_looked_at_is_not_forgotten(void **state)
{
	struct tune_experiment *e = bed_open(*state, "{\"name\": \"f\", \"metric\": \"loss\"}", "f", TUNE_NEW);
	struct bed_job job = {.iteration = 1};
	struct pawl_error err = {0};
	struct tune_verdict verdict;
	struct tune_start start;
	struct rlimit before;
	enum tune_next next;
	char checkpoint[64];

	assert_int_equal(tune_experiment_next(e, &next, &start, &err), 0);
	assert_int_equal(next, TUNE_START);
	snprintf(job.folder, sizeof(job.folder), "%s", start.folder);
	bed_save(&job, checkpoint);
	before = open_no_more_files();
	assert_error(tune_experiment_report(e, 0, "{\"loss\": 1}", checkpoint, &verdict, &err), PAWL_ETRANSIENT, &err,
	             "Too many open files");
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	assert_int_equal(tune_experiment_report(e, 0, "{\"loss\": 1}", checkpoint, &verdict, &err), 0);
	assert_int_equal(tune_experiment_ended(e, 0, TUNE_LOST, NULL, NULL, &err), 0);
	before = open_no_more_files();
	assert_error(tune_experiment_next(e, &next, &start, &err), PAWL_ETRANSIENT, &err, "Too many open files");
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	assert_int_equal(tune_experiment_next(e, &next, &start, &err), 0);
	assert_int_equal(next, TUNE_START);
	assert_non_null(start.checkpoint);
	assert_string_equal(start.checkpoint, checkpoint);
	tune_experiment_close(e);
}

static void
test_bad_reports_are_named(void **state)
{
	static const struct {
		const char *metrics, *checkpoint, *text;
	} rows[] = {
		{"{\"acc\": 1, \"auc\": 2}", NULL,
	         "its first report has no 'loss', which the experiment needs (it has 'acc', 'auc')"},
		{"{\"loss\": \"low\"}", NULL, "its metric 'loss' must be a number"},
		{"[1]", NULL, "expected an object of metrics"},
		{"{\"loss\": 1", NULL, "report: byte 10"},
		{"{\"loss\": 1}", "../x", "expected the plain name of a folder as its checkpoint, found '../x'"},
		{"{\"loss\": 1}", "checkpoint_000009", "its checkpoint 'checkpoint_000009' is not a folder"},
		{"{\"loss\": 1, \"training_iteration\": \"one\"}", NULL, "'training_iteration' must be an integer"},
	};
	struct tune_bed *bed = *state;
	struct tune_experiment *e = bed_open(bed, "{\"name\": \"f\", \"metric\": \"loss\"}", "f", TUNE_NEW);
	struct pawl_error err = {0};
	struct tune_verdict verdict;
	struct tune_start start;
	enum tune_next next;
	struct tune_trial t;

	assert_int_equal(tune_experiment_next(e, &next, &start, &err), 0);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		assert_error(tune_experiment_report(e, 0, rows[i].metrics, rows[i].checkpoint, &verdict, &err),
		             PAWL_EUSAGE, &err, rows[i].text);
	assert_int_equal(tune_experiment_report(e, 0, "{\"loss\": 1}", NULL, &verdict, &err), 0); /* the control */
	assert_int_equal(tune_experiment_report(e, 0, "{\"acc\": 1}", NULL, &verdict, &err),
	                 0); /* between validations */
	assert_int_equal(tune_experiment_ended(e, 0, TUNE_FINISHED, NULL, NULL, &err), 0);
	assert_error(tune_experiment_report(e, 0, "{\"loss\": 1}", NULL, &verdict, &err), PAWL_EUSAGE, &err,
	             "does not run");
	tune_experiment_close(e);
	e = bed_open(bed, "{\"name\": \"g\", \"metric\": \"loss\"}", "g", TUNE_NEW);
	assert_int_equal(tune_experiment_next(e, &next, &start, &err), 0);
	assert_int_equal(tune_experiment_ended(e, 0, TUNE_FINISHED, NULL, NULL, &err), 0);
	assert_int_equal(tune_trial_info(e, 0, &t, &err), 0);
	assert_int_equal(t.state, TUNE_ERROR);
	assert_non_null(strstr(t.error, "without a report of 'loss'"));
	tune_experiment_close(e);
}

static void
test_R27_R127_a_score_that_the_first_report_lacks_is_named(void **state)
{
	struct tune_bed *bed = *state;
	struct tune_experiment *e =
		bed_open(bed, "{\"name\": \"s\", \"checkpoint\": {\"score_attr\": \"min-los\"}}", "s", TUNE_NEW);
	struct pawl_error err = {0};
	struct tune_verdict verdict;
	struct tune_start start;
	enum tune_next next;

	assert_int_equal(tune_experiment_next(e, &next, &start, &err), 0);
	assert_error(tune_experiment_report(e, 0, "{\"loss\": 1, \"acc\": 2}", NULL, &verdict, &err), PAWL_EUSAGE, &err,
	             "its first report has no metric 'los', by which checkpoints are kept");
	assert_non_null(strstr(err.message, "it has 'loss', 'acc'"));
	assert_error(tune_experiment_report(e, 0, "{\"los\": \"low\"}", NULL, &verdict, &err), PAWL_EUSAGE, &err,
	             "has no number 'los'");
	assert_int_equal(tune_experiment_report(e, 0, "{\"los\": \"NaN\"}", NULL, &verdict, &err), 0);
	assert_int_equal(tune_experiment_report(e, 0, "{\"loss\": 1}", NULL, &verdict, &err), 0); /* a later one may */
	tune_experiment_close(e);
}

/* The first report of an experiment of this document is an error, which has this text and names the
 * metrics. It changes nothing: then a complete report counts, and one that lacks the name. */
static void
assert_first_is_refused(struct tune_bed *bed, const char *spec, const char *bad, const char *text, const char *good)
{
	static unsigned n;
	char folder[16];
	struct pawl_error err = {0};
	struct tune_verdict verdict;
	struct tune_start start;
	enum tune_next next;
	struct tune_counts counts;

	snprintf(folder, sizeof(folder), "first%u", n++);
	struct tune_experiment *e = bed_open(bed, spec, folder, TUNE_NEW);
	assert_int_equal(tune_experiment_next(e, &next, &start, &err), 0);
	assert_error(tune_experiment_report(e, 0, bad, NULL, &verdict, &err), PAWL_EUSAGE, &err, text);
	assert_non_null(strstr(err.message, "it has 'loss'"));
	assert_non_null(strstr(err.message, "and pawl adds 'training_iteration', 'time_total_s' and others"));
	tune_experiment_counts(e, &counts);
	assert_int_equal(counts.reports, 0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(tune_experiment_report(e, 0, i == 0 ? good : bad, NULL, &verdict, &err), 0);
		assert_int_equal(verdict.kind, TUNE_CONTINUE);
	}
	tune_experiment_close(e);
}

static void
test_a_limit_that_the_first_report_lacks_is_named(void **state)
{
	static const char none[] = "its first report has no metric 'itt', by which the trial ends (stop)";
	static const char itt[] = "{\"name\": \"l\", \"stop\": {\"training_iteration\": 9, \"itt\": 3}}";
	static const struct {
		const char *spec, *bad, *text, *good;
	} rows[] = {
		{itt, "{\"loss\": 1}", none, "{\"loss\": 1, \"itt\": 1}"},
		{itt, "{\"loss\": 1, \"itt\": \"one\"}", "has no number 'itt'", "{\"loss\": 1, \"itt\": \"NaN\"}"},
		{"{\"name\": \"l\", \"stop\": {\"a/itt\": 3}}", "{\"loss\": 1, \"a\": {\"b\": 2}}",
	         "has no metric 'a/itt'", "{\"loss\": 1, \"a\": {\"itt\": 2}}"},
		{"{\"name\": \"l\", \"stop\": {\"itt\": true}}", "{\"loss\": 1}", none, "{\"itt\": false}"},
		{"{\"name\": \"l\", \"stop\": {\"itt\": true}}", "{\"loss\": 1, \"itt\": 1}", "has no flag 'itt'",
	         "{\"itt\": false}"},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		assert_first_is_refused(*state, rows[i].spec, rows[i].bad, rows[i].text, rows[i].good);
}

/* Also those that pawl adds, and none if the first report ends the trial. */
static void
test_limits_that_the_first_report_has_are_accepted(void **state)
{
	struct tune_bed *bed = *state;
	struct tune_experiment *e = bed_open(bed,
	                                     "{\"name\": \"k\", \"num_samples\": 2, \"stop\": {\"time_total_s\": 1e9,"
	                                     " \"iterations_since_restore\": 9, \"done\": true, \"loss\": 5}}",
	                                     "k", TUNE_NEW);
	struct pawl_error err = {0};
	struct tune_verdict verdict;
	struct tune_start start;
	enum tune_next next;

	for (int i = 0; i < 2; i++)
		assert_int_equal(tune_experiment_next(e, &next, &start, &err), 0);
	assert_int_equal(tune_experiment_report(e, 0, "{\"loss\": 1}", NULL, &verdict, &err), 0);
	assert_int_equal(verdict.kind, TUNE_CONTINUE);
	assert_int_equal(tune_experiment_report(e, 0, "{\"loss\": 5}", NULL, &verdict, &err), 0);
	assert_string_equal(verdict.reason, "loss >= 5");
	assert_int_equal(tune_experiment_report(e, 1, "{\"done\": true}", NULL, &verdict, &err), 0);
	assert_int_equal(verdict.kind, TUNE_STOP);
	tune_experiment_close(e);
}

static void
test_a_flag_reaches_a_limit_that_is_a_number(void **state)
{
	struct tune_bed *bed = *state;
	struct tune_experiment *e = bed_open(bed, "{\"name\": \"f\", \"stop\": {\"over\": 1}}", "f", TUNE_NEW);
	struct pawl_error err = {0};
	struct tune_verdict verdict;
	struct tune_start start;
	enum tune_next next;

	assert_int_equal(tune_experiment_next(e, &next, &start, &err), 0);
	assert_int_equal(tune_experiment_report(e, 0, "{\"over\": false}", NULL, &verdict, &err), 0);
	assert_int_equal(verdict.kind, TUNE_CONTINUE);
	assert_int_equal(tune_experiment_report(e, 0, "{\"over\": true}", NULL, &verdict, &err), 0);
	assert_int_equal(verdict.kind, TUNE_STOP);
	tune_experiment_close(e);
}

static void
test_a_time_that_the_first_report_lacks_is_named(void **state)
{
	static const char text[] =
		"its first report has no metric 'epch', by which the scheduler measures time (time_attr)";
	static const char *const types[] = {"asha", "hyperband", "bohb", "median",
	                                    "pbt\", \"hyperparam_mutations\": {\"lr\": [1, 2]}, \"mode\": \"min"};
	struct tune_bed *bed = *state;
	struct pawl_error err = {0};
	struct tune_verdict verdict;
	struct tune_start start;
	enum tune_next next;
	char spec[300];

	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		snprintf(spec, sizeof(spec),
		         "{\"name\": \"t\", \"metric\": \"loss\", \"space\": {\"lr\": 1}, "
		         "\"scheduler\": {\"time_attr\": \"epch\", \"type\": \"%s\"}}",
		         types[i]);
		assert_first_is_refused(bed, spec, "{\"loss\": 1}", text, "{\"loss\": 1, \"epch\": 0.5}");
		assert_first_is_refused(bed, spec, "{\"loss\": 1, \"epch\": \"one\"}", "has no number 'epch'",
		                        "{\"loss\": 1, \"epch\": 0.5}");
	}
	struct tune_experiment *e = bed_open(
		bed, "{\"name\": \"u\", \"scheduler\": {\"type\": \"fifo\", \"time_attr\": \"epch\"}}", "u", TUNE_NEW);
	assert_int_equal(tune_experiment_next(e, &next, &start, &err), 0);
	assert_int_equal(tune_experiment_report(e, 0, "{\"loss\": 1}", NULL, &verdict, &err),
	                 0); /* has no use for it */
	tune_experiment_close(e);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_R27_R127_a_score_that_the_first_report_lacks_is_named, bed_setup,
	                                        bed_teardown),
		cmocka_unit_test_setup_teardown(test_a_limit_that_the_first_report_lacks_is_named, bed_setup,
	                                        bed_teardown),
		cmocka_unit_test_setup_teardown(test_limits_that_the_first_report_has_are_accepted, bed_setup,
	                                        bed_teardown),
		cmocka_unit_test_setup_teardown(test_a_flag_reaches_a_limit_that_is_a_number, bed_setup, bed_teardown),
		cmocka_unit_test_setup_teardown(test_a_time_that_the_first_report_lacks_is_named, bed_setup,
	                                        bed_teardown),
		cmocka_unit_test_setup_teardown(test_a_search_ends_with_its_best_trial, bed_setup, bed_teardown),
		cmocka_unit_test_setup_teardown(test_R130_fifo_left_anywhere_comes_to_the_same, bed_setup,
	                                        bed_teardown),
		cmocka_unit_test_setup_teardown(test_R130_asha_left_anywhere_ends, bed_setup, bed_teardown),
		cmocka_unit_test_setup_teardown(test_R105_hyperband_pauses_and_ends, bed_setup, bed_teardown),
		cmocka_unit_test_setup_teardown(test_R105_pbt_exploits_and_ends, bed_setup, bed_teardown),
		cmocka_unit_test_setup_teardown(test_R158_a_clone_is_ranked_an_interval_after_its_donor, bed_setup,
	                                        bed_teardown),
		cmocka_unit_test_setup_teardown(test_R158_a_trial_that_exploits_starts_from_the_clone_whatever_it_saves,
	                                        bed_setup, bed_teardown),
		cmocka_unit_test_setup_teardown(test_R130_asha_in_step_left_anywhere_comes_to_the_same, bed_setup,
	                                        bed_teardown),
		cmocka_unit_test_setup_teardown(test_a_median_rule_that_pauses_ends, bed_setup, bed_teardown),
		cmocka_unit_test_setup_teardown(test_P10_two_runners_on_one_experiment_are_refused, bed_setup,
	                                        bed_teardown),
		cmocka_unit_test_setup_teardown(test_R128_a_changed_document_is_named, bed_setup, bed_teardown),
		cmocka_unit_test_setup_teardown(test_R127_the_best_checkpoints_are_kept_and_the_newest, bed_setup,
	                                        bed_teardown),
		cmocka_unit_test_setup_teardown(
			test_all_checkpoints_that_retention_gave_up_are_removed_when_the_search_is_opened, bed_setup,
			bed_teardown),
		cmocka_unit_test_setup_teardown(test_a_trial_whose_newest_checkpoint_is_missing_loses_no_other_one,
	                                        bed_setup, bed_teardown),
		cmocka_unit_test_setup_teardown(test_failures_are_counted_and_tried_again, bed_setup, bed_teardown),
		cmocka_unit_test_setup_teardown(test_R107_a_checkpoint_that_cannot_be_looked_at_is_not_forgotten,
	                                        bed_setup, bed_teardown),
		cmocka_unit_test_setup_teardown(test_bad_reports_are_named, bed_setup, bed_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
