/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Searches in which an allocation fails, or a call that writes: the n-th, or all from the n-th on
 * (no memory, a full disk). The call returns the error and the search ends; nothing is leaked; what
 * was acknowledged exists (P3, P4). Opened again, the search ends as it does undisturbed (R128,
 * R130).
 *
 * Thinned unless is_whole is set. Allocations are intercepted in this program (failing_malloc.h),
 * so that those of libc count; the calls that write, where the library makes them (by the linker).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>
#include <cmocka.h>

#include <limits.h>
#include <sys/wait.h>

#include "helpers/tune_bed.h"
#include "helpers/tune_faults.h"

/* ---- a search ---- */

#define SPACE "\"space\": {\"lr\": {\"$loguniform\": [0.001, 0.5]}, \"opt\": {\"$grid\": [\"sgd\", \"adam\"]}}"

struct search {
	const char *what, *spec;
	uint64_t save_every;
	uint64_t left_after; /* steps, undisturbed, before the life that is disturbed */
	const char *lost;    /* this file of its folder goes in between; NULL = none */
	enum tune_resume resume;
	const char *restore; /* begins with the trials of this one */
	size_t slots;
};

#define FIFO                                                                                                                \
	"{\"name\": \"fifo\", \"metric\": \"loss\", \"num_samples\": 2, \"seed\": 3, " SPACE                                \
	", \"stop\": {\"training_iteration\": 3}, \"checkpoint\": {\"keep\": 1, \"score_attr\": \"min-loss\", \"at_end\": " \
	"true}}"
#define PBT                                                                                                                  \
	"{\"name\": \"pbts\", \"metric\": \"loss\", \"num_samples\": 2, \"seed\": 3, " SPACE                                 \
	", \"stop\": {\"training_iteration\": 6}, \"scheduler\": {\"type\": \"pbt\", \"time_attr\": \"training_iteration\"," \
	" \"perturbation_interval\": 2, \"synch\": true, \"hyperparam_mutations\": {\"lr\": [0.01, 0.1, 0.2]}}}"

static const struct search searches[] = {
	{.what = "fifo", .spec = FIFO, .save_every = 1, .resume = TUNE_NEW, .slots = 2},
	{.what = "fifo, opened again", .spec = FIFO, .save_every = 1, .left_after = 7, .resume = TUNE_AUTO, .slots = 2},
	{.what = "fifo, without its journal",
         .spec = FIFO,
         .save_every = 1,
         .left_after = 7,
         .lost = "journal",
         .resume = TUNE_AUTO,
         .slots = 2},
	{.what = "fifo, begun with another's trials",
         .spec = FIFO,
         .save_every = 1,
         .left_after = 7,
         .restore = "first",
         .resume = TUNE_NEW,
         .slots = 2},
	{.what = "asha in step",
         .spec = "{\"name\": \"sha\", \"metric\": \"loss\", \"num_samples\": 2, \"seed\": 3, " SPACE
                 ", \"scheduler\": {\"type\": \"asha\", \"max_t\": 4, \"grace_period\": 1, \"reduction_factor\": 2, "
                 "\"synch\": true}}",
         .left_after = 3,
         .resume = TUNE_AUTO,
         .slots = 2},
	{.what = "hyperband",
         .spec = "{\"name\": \"hb\", \"metric\": \"loss\", \"num_samples\": 2, \"seed\": 3, " SPACE
                 ", \"scheduler\": {\"type\": \"hyperband\", \"max_t\": 3}}",
         .resume = TUNE_NEW,
         .slots = 3},
	{.what = "pbt in step", .spec = PBT, .left_after = 5, .resume = TUNE_AUTO, .slots = 3},
};

struct life {
	int rc;
	struct pawl_error err;
	char *summary; /* what it came to; NULL when it did not get there */
	char notice[300];
};

/* All that only looks. */
static int
look(struct tune_experiment *e, struct pawl_error *err)
{
	struct tune_counts counts;
	struct tune_trial info;
	struct tune_checkpoint c;
	const char *name;
	uint32_t best;
	double value;
	int rc = 0;

	tune_experiment_counts(e, &counts);
	for (uint32_t i = 0; rc == 0 && i < counts.trials; i++) {
		rc = tune_trial_info(e, i, &info, err);
		for (uint32_t k = 0; rc == 0 && k < info.n_checkpoints; k++)
			rc = tune_trial_checkpoint(e, i, k, &c, err);
	}
	if (rc == 0)
		rc = tune_best(e, "loss", "min", "last-5-avg", &best, &value, err);
	if (rc == 0)
		rc = tune_best_checkpoint(e, best, "loss", "min", &name, err);
	return rc == PAWL_ENOTFOUND ? 0 : rc;
}

/* Opens, continues until the end or a failure, closes. d: what was reported to it. */
static struct life
run_once(struct tune_bed *bed, const struct search *s, const char *folder, enum tune_resume resume, bool disturbed,
         uint64_t steps, struct bed_driver *d)
{
	struct life life = {0};
	char path[128], restore[128];
	struct tune_open_opts opts = {.folder = path, .resume = resume, .now_s = bed_now, .now_arg = bed};

	snprintf(path, sizeof(path), "%s/%s", bed->root, folder);
	snprintf(restore, sizeof(restore), "%s/%s", bed->root, s->restore ? s->restore : "");
	opts.restore = s->restore && (resume == TUNE_NEW || resume == TUNE_AUTO) ? restore : NULL;
	d->e = NULL;
	d->slots = s->slots;
	d->save_every = s->save_every;
	d->stop_after = steps;
	d->may_fail = disturbed;
	d->around = disturbed ? around : NULL;
	bed_before(d);
	life.rc = tune_experiment_open(s->spec, &opts, &d->e, &life.err);
	quiet();
	if (life.rc < 0) {
		assert_null(d->e);
		return life;
	}
	snprintf(life.notice, sizeof(life.notice), "%s", tune_experiment_notice(d->e));
	bed_drive(d);
	life.rc = d->rc;
	life.err = d->err;
	bed_before(d);
	if (life.rc == 0)
		life.rc = look(d->e, &life.err);
	quiet();
	if (life.rc == 0 && steps == 0)
		life.summary = bed_summary(d->e);
	tune_experiment_close(d->e);
	return life;
}

/* ---- what must hold ---- */

/* What the experiment said to have is there, for one that looks only. */
static void
check_told(struct tune_bed *bed, const char *folder, const struct bed_driver *d, const char *what)
{
	struct pawl_error err = {0};
	struct tune_experiment *e = NULL;
	struct tune_counts counts = {0};
	char path[200];
	uint64_t any = 0;

	for (size_t i = 0; i < BED_TRIALS; i++)
		any |= d->reported[i];
	snprintf(path, sizeof(path), "%s/%s/journal", bed->root, folder);
	if (access(path, F_OK) != 0 && !any)
		return;
	if (bed_try_open(bed, NULL, folder, TUNE_READ, &e, &err) < 0)
		COMPLAIN("%s: afterwards: %s", what, err.message);
	tune_experiment_counts(e, &counts);
	for (uint32_t i = 0; i < BED_TRIALS; i++) {
		struct tune_trial info = {0};
		struct tune_checkpoint c = {0};
		if (tune_trial_info(e, i, &info, &err) == 0 && info.n_checkpoints)
			assert_int_equal(tune_trial_checkpoint(e, i, info.n_checkpoints - 1, &c, &err), 0);
		if (info.iteration < d->reported[i] || c.iteration < d->saved[i])
			COMPLAIN("%s: trial %u had reported %llu and saved %llu, found %llu and %llu", what, i,
			         (unsigned long long)d->reported[i], (unsigned long long)d->saved[i],
			         (unsigned long long)info.iteration, (unsigned long long)c.iteration);
	}
	tune_experiment_close(e);
}

/* What comes before the life that is disturbed. */
static void
prepare(struct tune_bed *bed, const struct search *s)
{
	struct bed_driver first = {.deaf = true};
	struct search plain = *s;
	char path[200];
	struct life life;

	bed->now = 1.7e9;
	clear(bed, "x");
	clear(bed, "first");
	if (!s->left_after)
		return;
	plain.restore = NULL;
	life = run_once(bed, &plain, s->restore ? s->restore : "x", TUNE_NEW, false, s->left_after, &first);
	assert_int_equal(life.rc, 0);
	if (!s->lost)
		return;
	snprintf(path, sizeof(path), "%s/x/%s", bed->root, s->lost);
	assert_int_equal(unlink(path), 0);
}

static char *
undisturbed(struct tune_bed *bed, const struct search *s)
{
	struct bed_driver d = {0};
	struct life life;

	prepare(bed, s);
	life = run_once(bed, s, "x", s->resume, false, 0, &d);
	if (life.rc < 0)
		fail_msg("%s: not even undisturbed: %s", s->what, life.err.message);
	check_files(bed, "x", s->what);
	return life.summary;
}

/* What the controls do to a search, so that a check must find it. */
static enum sabotage {
	SABOTAGE_NONE,
	SABOTAGE_LEAK,
	SABOTAGE_TOLD,
	SABOTAGE_OUTCOME,
	SABOTAGE_FILES,
	N_SABOTAGES
} sabotage;
static void *volatile lost;

/* Takes the last line that has the word, and all after it, from a file of the folder. */
static void
cut_from(struct tune_bed *bed, const char *name, const char *word)
{
	char path[400], *line = NULL;
	long at = 0, cut = -1;
	size_t cap = 0;
	FILE *file;

	snprintf(path, sizeof(path), "%s/x/%s", bed->root, name);
	file = fopen(path, "r");
	assert_non_null(file);
	for (; getline(&line, &cap, file) > 0; at = ftell(file))
		cut = strstr(line, word) ? at : cut;
	free(line);
	fclose(file);
	assert_true(cut >= 0);
	assert_int_equal(truncate(path, cut), 0);
}

/* A disturbed life, and then one in peace. Was the point reached? */
static bool
attempt(struct tune_bed *bed, const struct search *s, const struct fault *f, const char *expected)
{
	struct bed_driver d = {0}, again = {0};
	struct life life;
	size_t blocks;
	bool reached;
	char what[200];

	snprintf(what, sizeof(what), "%s, %s", s->what, describe(f));
	prepare(bed, s);
	blocks = count_live();
	set_fault(f);
	life = run_once(bed, s, "x", s->resume, true, 0, &d);
	reached = was_reached(f);
	free(life.summary);
	if (sabotage == SABOTAGE_LEAK)
		lost = malloc(1);
	if (count_live() != blocks)
		COMPLAIN("%s: %zd blocks are left (%d: %s)", what, (ssize_t)count_live() - (ssize_t)blocks, life.rc,
		         life.err.message);
	if (life.rc < 0 && (!reached || !is_expected(f, life.rc) || life.err.code != life.rc || !life.err.message[0]))
		COMPLAIN("%s: returned %d, the error says %d '%s'", what, life.rc, life.err.code, life.err.message);
	if (sabotage == SABOTAGE_TOLD)
		cut_from(bed, "journal", "\"e\": \"result\"");
	if (!s->lost && !s->restore)
		check_told(bed, "x", &d, what);
	life = run_once(bed, s, "x", TUNE_AUTO, false, 0, &again);
	if (life.rc < 0)
		COMPLAIN("%s: afterwards: %s", what, life.err.message);
	if (strcmp(life.summary, expected) != 0)
		COMPLAIN("%s: came to\n%sundisturbed it is\n%s", what, life.summary, expected);
	if (!s->lost && strstr(life.notice, "rebuilt"))
		COMPLAIN("%s: %s", what, life.notice);
	if (sabotage == SABOTAGE_FILES)
		cut_from(bed, "trial_00001_lr=0.0127,opt=adam/progress.csv", ",");
	check_files(bed, "x", what);
	free(life.summary);
	return reached;
}

static void
sweep(struct tune_bed *bed, enum fault_kind kind)
{
	for (size_t i = 0; i < sizeof(searches) / sizeof(searches[0]); i++) {
		char *expected = undisturbed(bed, &searches[i]);
		long n_points = 0;
		for (int forever = 0; forever <= 1; forever++) {
			struct fault f = {kind, 1 + (long)i, forever != 0};
			for (; attempt(bed, &searches[i], &f, expected); f.nth += faults_step(kind))
				n_points++;
		}
		assert_true(n_points > 1);
		if (is_whole)
			print_message("# %-40s %5ld points\n", searches[i].what, n_points);
		free(expected);
	}
}

static void
test_R128_P4_memory_that_runs_out(void **state)
{
	sweep(*state, FAULT_MEMORY);
}

static void
test_R128_P4_P5_writes_that_fail(void **state)
{
	sweep(*state, FAULT_WRITE);
}

static void
test_R128_P4_writes_that_are_cut_short(void **state)
{
	sweep(*state, FAULT_SHORT);
}

/* Each check finds what it is for; undisturbed, none finds anything. */
static void
test_controls(void **state)
{
	const struct fault never = {FAULT_MEMORY, LONG_MAX, false};
	char *expected = undisturbed(*state, &searches[0]);

	for (sabotage = SABOTAGE_NONE; sabotage < N_SABOTAGES; sabotage++) {
		int status = 0;
		const pid_t pid = fork();
		if (pid == 0) {
			is_control = true;
			attempt(*state, &searches[0], &never, sabotage == SABOTAGE_OUTCOME ? "another" : expected);
			_exit(0);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), sabotage != SABOTAGE_NONE);
	}
	sabotage = SABOTAGE_NONE;
	free(expected);
}

int
main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_R128_P4_memory_that_runs_out, bed_setup, bed_teardown),
		cmocka_unit_test_setup_teardown(test_R128_P4_P5_writes_that_fail, bed_setup, bed_teardown),
		cmocka_unit_test_setup_teardown(test_R128_P4_writes_that_are_cut_short, bed_setup, bed_teardown),
		cmocka_unit_test_setup_teardown(test_controls, bed_setup, bed_teardown),
	};

	faults_setup(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
