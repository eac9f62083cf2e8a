/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The runner with processes in which an allocation fails, or a call that writes. It returns the
 * error, its trials have ended with it, and nothing is leaked. No trial has failed by that or
 * resumes before what was reported to it as safe (P3, P4). Run again, the search ends as it does
 * undisturbed (R128, R130). Thinned unless is_whole is set.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>
#include <cmocka.h>

#include <signal.h>

#include "helpers/hang.h"
#include "helpers/tune_bed.h"
#include "helpers/tune_faults.h"

#define PATIENCE_MS HANG_MS

/* A trial of two iterations that saves at each; its state is a number. It writes down every
 * answer. */
static const char script[] =
	"n=0\n"
	"[ -z \"$PAWL_TUNE_CHECKPOINT\" ] || read -r n <\"$PAWL_TUNE_CHECKPOINT/value\"\n"
	"echo \"start $n\" >>\"$2.$PAWL_TUNE_TRIAL\"\n"
	"cd \"$PAWL_TUNE_FOLDER\" || exit 1\n"
	"while [ $n -lt 2 ]; do\n"
	"	n=$((n + 1))\n"
	"	mkdir .checkpoint_x || exit 1\n"
	"	echo $n >.checkpoint_x/value\n"
	"	mv .checkpoint_x checkpoint_$n || exit 1\n"
	"	echo \"{\\\"report\\\": {\\\"loss\\\": $1$n}, \\\"checkpoint\\\": \\\"checkpoint_$n\\\"}\" >&3\n"
	"	read -r answer <&3 || exit 1\n"
	"	case $answer in\n"
	"	*verdict*) echo \"taken $n\" >>\"$2.$PAWL_TUNE_TRIAL\" ;;\n"
	"	*) exit 1 ;;\n"
	"	esac\n"
	"	case $answer in *continue*) ;; *) exit 0 ;; esac\n"
	"done\n";

struct life {
	int rc;
	struct pawl_error err;
	char *summary;
};

/* Runs until the end or a failure. */
static struct life
run_once(struct tune_bed *bed, bool disturbed)
{
	struct life life = {0};
	struct tune_experiment *e = NULL;
	struct tune_runner *runner = NULL;
	struct tune_event event = {.kind = TUNE_EVENT_NONE};
	const struct tune_runner_opts opts = {.cpus = 2, .gpus = -1};
	char spec[400];

	snprintf(
		spec, sizeof(spec),
		"{\"name\": \"x\", \"metric\": \"loss\", \"space\": {\"lr\": {\"$grid\": [3, 2, 1]}}, \"grace_s\": 600,"
		" \"run\": [\"sh\", \"%s/trial.sh\", \"{lr}\", \"%s/log\"]}",
		bed->root, bed->root);
	around(disturbed);
	life.rc = bed_try_open(bed, spec, "x", TUNE_AUTO, &e, &life.err);
	if (life.rc == 0)
		life.rc = tune_runner_new(e, &opts, &runner, &life.err);
	while (life.rc == 0 && event.kind != TUNE_EVENT_DONE) {
		life.rc = tune_runner_poll(runner, PATIENCE_MS, &event, &life.err);
		if (life.rc == 0 && event.kind == TUNE_EVENT_NONE)
			COMPLAIN("for %d s nothing has happened", PATIENCE_MS / 1000);
	}
	quiet();
	tune_runner_free(runner);
	if (life.rc == 0)
		life.summary = bed_summary(e);
	tune_experiment_close(e);
	return life;
}

static void
remove_logs(struct tune_bed *bed)
{
	DIR *dir = opendir(bed->root);
	struct dirent *entry;

	assert_non_null(dir);
	while ((entry = readdir(dir)))
		if (strncmp(entry->d_name, "log.", 4) == 0)
			clear(bed, entry->d_name);
	closedir(dir);
}

/* No trial began before a report that was acknowledged to it with its checkpoint. */
static void
check_logs(struct tune_bed *bed, const char *what)
{
	DIR *dir = opendir(bed->root);
	struct dirent *entry;

	assert_non_null(dir);
	while ((entry = readdir(dir))) {
		char path[400], word[16];
		unsigned n, taken = 0;
		FILE *file;

		if (strncmp(entry->d_name, "log.", 4) != 0)
			continue;
		snprintf(path, sizeof(path), "%s/%s", bed->root, entry->d_name);
		file = fopen(path, "r");
		assert_non_null(file);
		while (fscanf(file, "%15s %u", word, &n) == 2) {
			if (word[0] == 's' && n < taken)
				COMPLAIN("%s: %s began from %u, %u had been taken", what, entry->d_name, n, taken);
			taken = n > taken ? n : taken;
		}
		fclose(file);
	}
	closedir(dir);
}

/* A disturbed life, and then one in peace. Was the point reached? */
static bool
attempt(struct tune_bed *bed, const struct fault *f, const char *expected)
{
	struct life life;
	size_t blocks;
	bool reached;

	clear(bed, "x");
	remove_logs(bed);
	blocks = count_live();
	set_fault(f);
	life = run_once(bed, true);
	reached = was_reached(f);
	free(life.summary);
	if (count_live() != blocks)
		COMPLAIN("%s: %zd blocks are left (%d: %s)", describe(f), (ssize_t)count_live() - (ssize_t)blocks,
		         life.rc, life.err.message);
	if (life.rc < 0 && (!reached || !is_expected(f, life.rc) || life.err.code != life.rc || !life.err.message[0]))
		COMPLAIN("%s: returned %d, the error says %d '%s'", describe(f), life.rc, life.err.code,
		         life.err.message);
	life = run_once(bed, false);
	if (life.rc < 0)
		COMPLAIN("%s: afterwards: %s", describe(f), life.err.message);
	if (strcmp(life.summary, expected) != 0)
		COMPLAIN("%s: came to\n%sundisturbed it is\n%s", describe(f), life.summary, expected);
	free(life.summary);
	check_files(bed, "x", describe(f));
	check_logs(bed, describe(f));
	return reached;
}

static char *
prepare(struct tune_bed *bed)
{
	struct life life;
	char path[128];
	FILE *file;

	snprintf(path, sizeof(path), "%s/trial.sh", bed->root);
	file = fopen(path, "w");
	assert_non_null(file);
	fputs(script, file);
	fclose(file);
	life = run_once(bed, false);
	if (life.rc < 0)
		fail_msg("not even undisturbed: %s", life.err.message);
	check_files(bed, "x", "undisturbed");
	check_logs(bed, "undisturbed");
	return life.summary;
}

static void
sweep(struct tune_bed *bed, enum fault_kind kind)
{
	char *expected = prepare(bed);
	long n_points = 0;

	assert_non_null(strstr(expected, "TERMINATED 2 12 "));
	for (int forever = 0; forever <= 1; forever++) {
		struct fault f = {kind, 1 + forever, forever != 0};
		for (; attempt(bed, &f, expected); f.nth += faults_step(kind))
			n_points++;
	}
	assert_true(n_points > 1);
	if (is_whole)
		print_message("# %5ld points\n", n_points);
	free(expected);
}

static void
test_R128_P4_memory_of_the_runner_that_runs_out(void **state)
{
	sweep(*state, FAULT_MEMORY);
}

static void
test_R128_P4_P5_writes_of_the_runner_that_fail(void **state)
{
	sweep(*state, FAULT_WRITE);
}

int
main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_R128_P4_memory_of_the_runner_that_runs_out, bed_setup,
	                                        bed_teardown),
		cmocka_unit_test_setup_teardown(test_R128_P4_P5_writes_of_the_runner_that_fail, bed_setup,
	                                        bed_teardown),
	};

	faults_setup(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
