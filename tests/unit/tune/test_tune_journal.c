/* SPDX-License-Identifier: Apache-2.0 */
/* The journal of a search: torn at every byte, damaged, lost; experiments that moved or begin with
 * another one's trials; clones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>
#include <cmocka.h>

#include "helpers/tune_bed.h"

#include "trial_checkpoints.h"

static const char document[] =
	"{\"name\": \"j\", \"metric\": \"loss\", \"num_samples\": 3, \"seed\": 3, \"space\": {\"lr\": {\"$loguniform\": [0.001, 0.5]}},"
	" \"stop\": {\"training_iteration\": 3}, \"checkpoint\": {\"keep\": 1}}";

struct bytes {
	char *ptr;
	size_t len;
};

static struct bytes
read_bytes(const char *root, const char *name)
{
	struct bytes b = {0};
	char path[300];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", root, name);
	file = fopen(path, "r");
	assert_non_null(file);
	fseek(file, 0, SEEK_END);
	b.len = (size_t)ftell(file);
	rewind(file);
	b.ptr = calloc(1, b.len + 1);
	assert_int_equal(fread(b.ptr, 1, b.len, file), b.len);
	fclose(file);
	return b;
}

static void
write_bytes(const char *root, const char *name, const char *ptr, size_t len)
{
	char path[300];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", root, name);
	file = fopen(path, "w");
	assert_non_null(file);
	assert_int_equal(fwrite(ptr, 1, len, file), len);
	fclose(file);
}

/* If the journal ends within the next entry, the state is that after the reports before it: a
 * prefix. */
static void
test_P4_a_journal_torn_at_any_byte_is_a_prefix(void **state)
{
	struct tune_bed *bed = *state;
	struct bed_driver d = {.e = bed_open(bed, document, "j", TUNE_NEW), .slots = 2, .save_every = 1};
	struct tune_counts before = {0}, counts;
	struct bytes whole;

	bed_drive(&d);
	tune_experiment_close(d.e);
	whole = read_bytes(bed->root, "j/journal");
	for (size_t len = 0; len <= whole.len; len++) {
		struct tune_experiment *e;
		write_bytes(bed->root, "j/journal", whole.ptr, len);
		e = bed_open(bed, NULL, "j", TUNE_READ);
		tune_experiment_counts(e, &counts);
		assert_true(counts.reports >= before.reports && counts.trials >= before.trials);
		assert_true(counts.reports <= before.reports + 1 && counts.trials <= before.trials + 1);
		before = counts;
		tune_experiment_close(e);
	}
	assert_int_equal(before.reports, 9);
	assert_int_equal(before.state[TUNE_TERMINATED], 3);
	free(whole.ptr);
}

/* The same experiment in a folder of its own, with a journal that ends early. */
static void
copy_with_journal(struct tune_bed *bed, const char *to, const char *ptr, size_t len)
{
	char path[128], name[64];

	snprintf(path, sizeof(path), "%s/%s", bed->root, to);
	bed_run("cp -r '%s/j' '%s'", bed->root, path);
	snprintf(name, sizeof(name), "%s/journal", to);
	write_bytes(bed->root, name, ptr, len);
}

static size_t
count_lines(struct tune_bed *bed, const char *folder, const char *trial, const char *file)
{
	char name[200];
	struct bytes b;
	size_t n = 0;

	snprintf(name, sizeof(name), "%s/%s/%s", folder, trial, file);
	b = read_bytes(bed->root, name);
	for (size_t i = 0; i < b.len; i++)
		n += b.ptr[i] == '\n';
	free(b.ptr);
	return n;
}

/* Run again with a torn journal: the torn end is cut off and the search has the same result. The
 * trials' files have every result that the journal has. */
static void
test_P4_R130_a_torn_journal_goes_on(void **state)
{
	struct tune_bed *bed = *state;
	struct bed_driver d = {.e = bed_open(bed, document, "j", TUNE_NEW), .slots = 2, .save_every = 1};
	struct pawl_error err = {0};
	char *expected, *found, folder[32];
	struct bytes whole;
	struct tune_trial t;

	bed_drive(&d);
	expected = bed_summary(d.e);
	tune_experiment_close(d.e);
	whole = read_bytes(bed->root, "j/journal");
	for (size_t len = whole.len - 5; len > whole.len / 8; len -= whole.len / 9) {
		snprintf(folder, sizeof(folder), "j%zu", len);
		copy_with_journal(bed, folder, whole.ptr, len);
		d = (struct bed_driver){.e = bed_open(bed, document, folder, TUNE_AUTO), .slots = 2, .save_every = 1};
		assert_non_null(strstr(tune_experiment_notice(d.e), "torn"));
		bed_drive(&d);
		found = bed_summary(d.e);
		assert_string_equal(found, expected);
		for (uint32_t i = 0; i < 3; i++) {
			assert_int_equal(tune_trial_info(d.e, i, &t, &err), 0);
			assert_true(count_lines(bed, folder, t.name, "result.json") >= 3);
			assert_int_equal(count_lines(bed, folder, t.name, "progress.csv"),
			                 count_lines(bed, folder, t.name, "result.json") + 1);
		}
		tune_experiment_close(d.e);
		free(found);
	}
	free(whole.ptr);
	free(expected);
}

/* A repair of a trial's files that fails, as on a full disk, is made again at the next start. */
static void
test_P4_a_repair_that_failed_is_made_again(void **state)
{
	struct tune_bed *bed = *state;
	struct bed_driver d = {
		.e = bed_open(bed, document, "j", TUNE_NEW), .slots = 3, .save_every = 1, .stop_after = 7};
	struct pawl_error err = {0};
	struct tune_start start;
	struct tune_trial t;
	enum tune_next next;

	bed_drive(&d);
	tune_experiment_close(d.e);
	d.e = bed_open(bed, document, "j", TUNE_AUTO);
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(tune_trial_info(d.e, i, &t, &err), 0);
		assert_true(t.iteration > 0);
		bed_run("cd '%s/j/%s' && rm result.json && mkdir result.json", bed->root, t.name);
	}
	assert_true(tune_experiment_next(d.e, &next, &start, &err) < 0);
	bed_run("rmdir '%s'/j/*/result.json%s", bed->root, "");
	assert_int_equal(tune_experiment_next(d.e, &next, &start, &err), 0);
	assert_int_equal(next, TUNE_START);
	assert_true(count_lines(bed, "j", start.name, "result.json") > 0);
	assert_int_equal(count_lines(bed, "j", start.name, "progress.csv"),
	                 count_lines(bed, "j", start.name, "result.json") + 1);
	tune_experiment_close(d.e);
}

/* Lost, or damaged in the middle: made again from the trials' folders. */
static void
test_P12_a_lost_or_damaged_journal_is_made_again(void **state)
{
	struct tune_bed *bed = *state;
	struct bed_driver d = {
		.e = bed_open(bed, document, "j", TUNE_NEW), .slots = 2, .save_every = 1, .stop_after = 7};
	struct pawl_error err = {0};
	struct bytes whole;
	struct tune_counts counts;

	bed_drive(&d);
	tune_experiment_close(d.e);
	whole = read_bytes(bed->root, "j/journal");
	copy_with_journal(bed, "damaged", whole.ptr, whole.len);
	whole.ptr[whole.len / 2] ^= 1;
	write_bytes(bed->root, "damaged/journal", whole.ptr, whole.len);
	assert_int_equal(bed_try_open(bed, NULL, "damaged", TUNE_READ, &d.e, &err), PAWL_ECORRUPT);
	assert_non_null(strstr(err.message, "damaged/journal: damaged after "));
	bed_run("mv '%s/j/journal' '%s/j/other'", bed->root, bed->root);
	bed_run("ln -s other '%s/j/journal'%s", bed->root, "");
	assert_int_equal(bed_try_open(bed, NULL, "j", TUNE_READ, &d.e, &err), PAWL_EIO);
	assert_non_null(strstr(err.message, "/j: journal: open: "));
	bed_run("rm '%s/j/journal'%s", bed->root, "");
	for (unsigned i = 0; i < 2; i++) {
		d = (struct bed_driver){
			.e = bed_open(bed, document, i ? "damaged" : "j", TUNE_AUTO), .slots = 2, .save_every = 1};
		assert_non_null(
			strstr(tune_experiment_notice(d.e), i ? "the journal was damaged" : "the journal was missing"));
		tune_experiment_counts(d.e, &counts);
		assert_int_equal(counts.reports, 7);
		bed_drive(&d);
		tune_experiment_counts(d.e, &counts);
		assert_int_equal(counts.state[TUNE_TERMINATED], 3);
		tune_experiment_close(d.e);
	}
	bed_run("test -f '%s/damaged/journal.damaged'%s", bed->root, "");
	free(whole.ptr);
}

/* The journal is lost, and so is the folder of a trial in the middle: it is drawn again, and has
 * the result that it would have had. Two folders that claim to be the same trial are refused, and
 * so is the folder of an impossible trial. Then nothing is changed. */
static void
test_P12_a_hole_in_the_folders_is_drawn_again(void **state)
{
	struct tune_bed *bed = *state;
	struct bed_driver d = {.e = bed_open(bed, document, "j", TUNE_NEW), .slots = 2, .save_every = 1};
	struct pawl_error err = {0};
	char *expected, *found;

	bed_drive(&d);
	expected = bed_summary(d.e);
	tune_experiment_close(d.e);
	bed_run("cd '%s' && cp -r j twice && cp -r j beyond%s", bed->root, "");
	bed_run("cd '%s/j' && rm -r journal trial_00001*%s", bed->root, "");
	d = (struct bed_driver){.e = bed_open(bed, document, "j", TUNE_AUTO), .slots = 2, .save_every = 1};
	assert_non_null(strstr(tune_experiment_notice(d.e), "rebuilt from the folders of 2 trials"));
	bed_drive(&d);
	found = bed_summary(d.e);
	assert_string_equal(found, expected);
	tune_experiment_close(d.e);
	bed_run("cd '%s/twice' && rm journal && sed -i 's/: 2,/: 1,/' trial_00002*/trial.json%s", bed->root, "");
	assert_int_equal(bed_try_open(bed, document, "twice", TUNE_AUTO, &d.e, &err), PAWL_ECORRUPT);
	assert_non_null(strstr(err.message, "and another folder say that they are trial 1"));
	bed_run("cd '%s/beyond' && rm journal && sed -i 's/: 2,/: 7,/' trial_00002*/trial.json%s", bed->root, "");
	assert_int_equal(bed_try_open(bed, document, "beyond", TUNE_AUTO, &d.e, &err), PAWL_ECORRUPT);
	assert_non_null(strstr(err.message, "says that it is trial 7"));
	bed_run("test -n \"$(ls -d '%s/beyond/'trial_00001*/checkpoint_*)\"%s", bed->root, "");
	free(expected);
	free(found);
}

static struct tune_start
start_next(struct tune_experiment *e)
{
	struct pawl_error err = {0};
	struct tune_start start;
	enum tune_next next;

	assert_int_equal(tune_experiment_next(e, &next, &start, &err), 0);
	assert_int_equal(next, TUNE_START);
	return start;
}

/* Removes the journal and opens the experiment, which is closed. */
static struct tune_experiment *
lose_journal(struct tune_bed *bed, const char *spec, const char *folder)
{
	struct tune_experiment *e;

	bed_run("rm '%s/%s/journal'", bed->root, folder);
	e = bed_open(bed, spec, folder, TUNE_AUTO);
	assert_non_null(strstr(tune_experiment_notice(e), "the journal was missing"));
	return e;
}

/* A trial saves after its second report, and is lost after its third. */
static void
test_P12_a_rebuilt_journal_has_the_checkpoints_that_were_saved_after_a_report(void **state)
{
	static const char spec[] = "{\"name\": \"l\", \"metric\": \"loss\", \"stop\": {\"training_iteration\": 9}}";
	struct tune_experiment *e = bed_open(*state, spec, "l", TUNE_NEW);
	struct bed_job job = {.iteration = 2};
	struct tune_checkpoint before, after;
	struct pawl_error err = {0};
	struct tune_verdict verdict;
	struct tune_start start = start_next(e);
	char checkpoint[64];

	snprintf(job.folder, sizeof(job.folder), "%s", start.folder);
	for (unsigned i = 1; i <= 3; i++) {
		assert_int_equal(
			tune_experiment_report(e, 0, i == 2 ? "{\"loss\": 2}" : "{\"loss\": 5}", NULL, &verdict, &err),
			0);
		if (i != 2)
			continue;
		bed_save(&job, checkpoint);
		assert_int_equal(tune_experiment_checkpoint(e, 0, checkpoint, &err), 0);
	}
	assert_int_equal(tune_trial_checkpoint(e, 0, 0, &before, &err), 0);
	tune_experiment_close(e);
	e = lose_journal(*state, spec, "l");
	assert_int_equal(tune_trial_checkpoint(e, 0, 0, &after, &err), 0);
	assert_int_equal(after.iteration, 2);
	assert_true(after.metric == before.metric && after.metric == 2);
	start = start_next(e);
	assert_non_null(start.checkpoint);
	assert_string_equal(start.checkpoint, checkpoint);
	assert_int_equal(start.iteration, 2);
	/* What a report names afterwards is newer. */
	job.iteration = 3;
	bed_save(&job, checkpoint);
	assert_int_equal(tune_experiment_report(e, 0, "{\"loss\": 1}", checkpoint, &verdict, &err), 0);
	tune_experiment_close(e);
	e = lose_journal(*state, spec, "l");
	assert_int_equal(tune_trial_checkpoint(e, 0, 0, &after, &err), 0);
	assert_int_equal(after.iteration, 2);
	start = start_next(e);
	assert_string_equal(start.checkpoint, checkpoint);
	tune_experiment_close(e);
}

/* The journal is lost after a trial was cloned from another one, before it starts again. */
static void
test_P12_R158_a_rebuilt_journal_has_the_clones(void **state)
{
	static const char spec[] =
		"{\"name\": \"c\", \"metric\": \"loss\", \"space\": {\"lr\": {\"$grid\": [1, 2]}}, "
		"\"scheduler\": {\"type\": \"pbt\", \"time_attr\": \"training_iteration\", \"perturbation_interval\": 2, "
		"\"resample_probability\": 0, \"hyperparam_mutations\": {\"lr\": [1, 2, 3, 4]}}}";
	struct tune_experiment *e = bed_open(*state, spec, "c", TUNE_NEW);
	struct bed_job jobs[2] = {{.value = 3}, {.value = 7}};
	struct pawl_error err = {0};
	struct tune_verdict verdict;
	struct tune_start start;
	struct tune_trial t;
	char checkpoint[64], config[200];

	for (unsigned i = 0; i < 2; i++) {
		start = start_next(e);
		snprintf(jobs[i].folder, sizeof(jobs[i].folder), "%s", start.folder);
	}
	for (unsigned i = 1; i <= 2; i++)
		for (unsigned trial = 2; trial-- > 0;) {
			jobs[trial].iteration = i;
			bed_save(&jobs[trial], checkpoint);
			assert_int_equal(tune_experiment_report(e, trial,
			                                        trial == 0 ? "{\"loss\": 5}" : "{\"loss\": 1}",
			                                        checkpoint, &verdict, &err),
			                 0);
		}
	assert_int_equal(verdict.kind, TUNE_EXPLOIT);
	assert_int_equal(tune_trial_info(e, 0, &t, &err), 0);
	snprintf(config, sizeof(config), "%s", t.config_json);
	tune_experiment_close(e);
	e = lose_journal(*state, spec, "c");
	start = start_next(e);
	assert_int_equal(start.trial, 0);
	assert_string_equal(start.config_json, config);
	assert_non_null(start.checkpoint);
	assert_true(bed_read(start.folder, start.checkpoint) == 7);
	assert_int_equal(start.iteration, 2);
	tune_experiment_close(e);
}

static void
assert_best(const struct tune_experiment *e, const char *expected)
{
	struct tune_checkpoint own, clone;
	struct pawl_error err = {0};
	const char *best = NULL;

	assert_int_equal(tune_best_checkpoint(e, 1, NULL, NULL, &best, &err), 0);
	assert_string_equal(best, expected);
	assert_int_equal(tune_trial_checkpoint(e, 1, 0, &own, &err), 0);
	assert_int_equal(tune_trial_checkpoint(e, 1, 1, &clone, &err), 0);
	assert_true(own.of_trial == 1 && own.of_result == 1);
	assert_true(clone.of_trial == 0 && clone.of_result == 1);
}

/* Both checkpoints of the worse trial are of iteration 1: its own, and the clone of the better
 * one's. */
static void
test_P12_R158_the_best_checkpoint_is_a_clone_if_its_donor_was_better(void **state)
{
	static const char spec[] =
		"{\"name\": \"b\", \"metric\": \"loss\", \"num_samples\": 2, \"space\": {\"lr\": 1}, "
		"\"scheduler\": {\"type\": \"pbt\", \"time_attr\": \"training_iteration\", \"perturbation_interval\": 1, "
		"\"hyperparam_mutations\": {\"lr\": [1, 2]}}}";
	struct tune_experiment *e = bed_open(*state, spec, "b", TUNE_NEW);
	struct pawl_error err = {0};
	struct tune_verdict verdict;
	char checkpoint[64];

	for (uint32_t i = 0; i < 2; i++) {
		struct bed_job job = {.iteration = 1};
		snprintf(job.folder, sizeof(job.folder), "%s", start_next(e).folder);
		bed_save(&job, checkpoint);
	}
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(
			tune_experiment_report(e, i, i ? "{\"loss\": 9}" : "{\"loss\": 1}", checkpoint, &verdict, &err),
			0);
	assert_int_equal(verdict.kind, TUNE_EXPLOIT);
	assert_best(e, "checkpoint_000001_of_00000_1");
	tune_experiment_close(e);
	e = bed_open(*state, spec, "b", TUNE_READ);
	assert_best(e, "checkpoint_000001_of_00000_1");
	tune_experiment_close(e);
	e = lose_journal(*state, spec, "b");
	assert_best(e, "checkpoint_000001_of_00000_1");
	tune_experiment_close(e);
}

static void
test_R152_an_experiment_that_was_moved_goes_on(void **state)
{
	struct tune_bed *bed = *state;
	struct bed_driver d = {
		.e = bed_open(bed, document, "j", TUNE_NEW), .slots = 2, .save_every = 1, .stop_after = 4};
	struct tune_counts counts;

	bed_drive(&d);
	tune_experiment_close(d.e);
	bed_run("mv '%s/j' '%s/elsewhere'", bed->root, bed->root);
	d = (struct bed_driver){.e = bed_open(bed, NULL, "elsewhere", TUNE_LOCAL), .slots = 2, .save_every = 1};
	bed_drive(&d);
	tune_experiment_counts(d.e, &counts);
	assert_int_equal(counts.state[TUNE_TERMINATED], 3);
	assert_int_equal(counts.reports, 9);
	tune_experiment_close(d.e);
}

/* restore=: the trials of another experiment under another name; that one stays as it is. */
static void
test_R131_another_experiment_begins_with_its_trials(void **state)
{
	struct tune_bed *bed = *state;
	struct bed_driver d = {
		.e = bed_open(bed, document, "j", TUNE_NEW), .slots = 2, .save_every = 1, .stop_after = 4};
	char from[128], to[128], *expected, *found;
	struct tune_open_opts opts = {
		.folder = to, .resume = TUNE_NEW, .restore = from, .now_s = bed_now, .now_arg = bed};
	struct pawl_error err = {0};
	struct tune_experiment *e = NULL;
	struct bytes before, after;

	bed_drive(&d);
	snprintf(from, sizeof(from), "%s/j", bed->root);
	snprintf(to, sizeof(to), "%s/k", bed->root);
	assert_int_equal(tune_experiment_open(document, &opts, &e, &err), PAWL_EBUSY); /* it still runs */
	tune_experiment_close(d.e);
	before = read_bytes(bed->root, "j/journal");
	if (tune_experiment_open(document, &opts, &e, &err) < 0)
		fail_msg("%s", err.message);
	d = (struct bed_driver){.e = e, .slots = 2, .save_every = 1};
	bed_drive(&d);
	found = bed_summary(e);
	tune_experiment_close(e);
	after = read_bytes(bed->root, "j/journal");
	assert_int_equal(before.len, after.len);
	assert_memory_equal(before.ptr, after.ptr, after.len);
	d = (struct bed_driver){.e = bed_open(bed, document, "j", TUNE_AUTO), .slots = 2, .save_every = 1};
	bed_drive(&d);
	expected = bed_summary(d.e);
	tune_experiment_close(d.e);
	assert_string_equal(found, expected);
	snprintf(from, sizeof(from), "%s/nothing", bed->root);
	snprintf(to, sizeof(to), "%s/m", bed->root);
	assert_int_equal(tune_experiment_open(document, &opts, &e, &err), PAWL_ENOTFOUND);
	assert_non_null(strstr(err.message, "restore: there is no experiment in"));
	free(before.ptr);
	free(after.ptr);
	free(expected);
	free(found);
}

/* A clone has the donor's inodes: a call per file and no bytes; each of the two may go. */
static void
test_R158_a_clone_is_links_and_lives_by_itself(void **state)
{
	struct tune_bed *bed = *state;
	struct pawl_error err = {0};
	struct stat a, b;
	const int fd = open(bed->root, O_RDONLY | O_DIRECTORY);

	bed_run("mkdir -p '%s/donor/checkpoint_1/inner' '%s/taker'", bed->root, bed->root);
	bed_run("echo weights > '%s/donor/checkpoint_1/inner/w'; echo x > '%s/donor/checkpoint_1/x'", bed->root,
	        bed->root);
	assert_int_equal(trial_checkpoint_clone(fd, "donor", "checkpoint_1", fd, "taker", "checkpoint_2", &err), 0);
	assert_int_equal(fstatat(fd, "donor/checkpoint_1/inner/w", &a, 0), 0);
	assert_int_equal(fstatat(fd, "taker/checkpoint_2/inner/w", &b, 0), 0);
	assert_int_equal(a.st_ino, b.st_ino);
	assert_int_equal(trial_checkpoint_remove(fd, "donor", "checkpoint_1", &err), 0);
	assert_int_equal(trial_checkpoint_find(fd, "donor", "checkpoint_1", &err), PAWL_ENOTFOUND);
	bed_run("grep -q weights '%s/taker/checkpoint_2/inner/w'%s", bed->root, "");
	assert_int_equal(trial_checkpoint_clone(fd, "donor", "checkpoint_1", fd, "taker", "checkpoint_3", &err),
	                 PAWL_ENOTFOUND);
	assert_int_equal(trial_checkpoint_find(fd, "taker", "checkpoint_3", &err), PAWL_ENOTFOUND);
	bed_run("test -z \"$(find '%s' -name '.checkpoint*')\"%s", bed->root, "");
	close(fd);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_P4_a_journal_torn_at_any_byte_is_a_prefix, bed_setup,
	                                        bed_teardown),
		cmocka_unit_test_setup_teardown(test_P4_R130_a_torn_journal_goes_on, bed_setup, bed_teardown),
		cmocka_unit_test_setup_teardown(test_P4_a_repair_that_failed_is_made_again, bed_setup, bed_teardown),
		cmocka_unit_test_setup_teardown(test_P12_a_lost_or_damaged_journal_is_made_again, bed_setup,
	                                        bed_teardown),
		cmocka_unit_test_setup_teardown(test_P12_a_hole_in_the_folders_is_drawn_again, bed_setup, bed_teardown),
		cmocka_unit_test_setup_teardown(
			test_P12_a_rebuilt_journal_has_the_checkpoints_that_were_saved_after_a_report, bed_setup,
			bed_teardown),
		cmocka_unit_test_setup_teardown(test_P12_R158_a_rebuilt_journal_has_the_clones, bed_setup,
	                                        bed_teardown),
		cmocka_unit_test_setup_teardown(test_P12_R158_the_best_checkpoint_is_a_clone_if_its_donor_was_better,
	                                        bed_setup, bed_teardown),
		cmocka_unit_test_setup_teardown(test_R152_an_experiment_that_was_moved_goes_on, bed_setup,
	                                        bed_teardown),
		cmocka_unit_test_setup_teardown(test_R131_another_experiment_begins_with_its_trials, bed_setup,
	                                        bed_teardown),
		cmocka_unit_test_setup_teardown(test_R158_a_clone_is_links_and_lives_by_itself, bed_setup,
	                                        bed_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
