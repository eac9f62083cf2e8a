/* SPDX-License-Identifier: Apache-2.0 */
/* explain: an address that names nothing is answered with what exists near it or below it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "helpers/small_run.h"

/* Two runs, a folder with a search, a file and a folder of other files, with the scratch folder as
 * the current one. */
static void
make_places(struct small_run *r)
{
	static const char *const roots[] = {"runs/demo", "runs/other"};
	static const char *const folders[] = {"data", "tuned", "tuned/first", "tuned/first/trial_0"};
	static const char *const files[] = {"data/notes.txt", "tuned/first/experiment.json"};
	FILE *file;

	assert_int_equal(chdir(r->root), 0);
	for (size_t i = 0; i < COUNT(roots); i++) {
		r->opts.root = roots[i];
		small_open(r);
		small_save(r, 10, 0.1);
		pawl_close(r->run, NULL);
		r->run = NULL;
	}
	for (size_t i = 0; i < COUNT(folders); i++)
		assert_int_equal(mkdir(folders[i], 0700), 0);
	for (size_t i = 0; i < COUNT(files); i++) {
		file = fopen(files[i], "w");
		assert_non_null(file);
		assert_int_equal(fclose(file), 0);
	}
}

static void
test_a_wrong_address_is_answered_with_what_exists(void **state)
{
	struct small_run *r = *state;
	const struct {
		const char *address;
		int code;
		const char *text;
	} rows[] = {
		{"runs/dmo", PAWL_ENOTFOUND, "runs/dmo: no such file or folder; did you mean runs/demo?"},
		{"runs/dmo@10", PAWL_ENOTFOUND, "runs/dmo: no such file or folder; did you mean runs/demo?"},
		{"file://runs/dmo", PAWL_ENOTFOUND, "runs/dmo: no such file or folder; did you mean runs/demo?"},
		{"run/demo", PAWL_ENOTFOUND, "did you mean runs/demo?"},
		{"run/nothing", PAWL_ENOTFOUND, "did you mean runs?"},
		{"runs/nothing", PAWL_ENOTFOUND, "no such file or folder; below runs: demo, other"},
		{"runs/demo/10", PAWL_ENOTFOUND, "did you mean runs/demo@10?"},
		{"runs/demo:10", PAWL_ENOTFOUND, "did you mean runs/demo@10?"},
		{"node7:runs/demo", PAWL_ENOTFOUND, "a folder of another machine is ssh://USER@HOST/PATH"},
		{"runs", PAWL_ENOTFOUND,
	         "runs: no run and no checkpoint here (expected run.json, manifest.json or "
	         ".metadata); below it: demo, other"},
		{"runs@10", PAWL_ENOTFOUND, "; below it: demo, other"},
		{"runs/demo/checkpoints", PAWL_ENOTFOUND, "runs/demo/checkpoints: a part of the run /"},
		{"tuned", PAWL_ENOTFOUND,
	         "tuned: no run and no checkpoint here (expected run.json, manifest.json or "
	         ".metadata); below it: first"},
		{"tuned/first/trial_0", PAWL_ENOTFOUND, "tuned/first/trial_0: a trial of the search /"},
		{"tuned/first/trial_0", PAWL_ENOTFOUND, "/tuned/first trial_0' shows it"},
		{"runs/demo", PAWL_ENOTFOUND, "runs/demo is a run; name a checkpoint, such as runs/demo@latest"},
		{"runs/demo@10", PAWL_EUSAGE, "runs/demo@10 names a checkpoint, expected a run; name runs/demo"},
		{"runs/demo@", PAWL_EUSAGE, "nothing after '@' (expected latest, best, good, a step, id:N or"},
		{"data/notes.txt", PAWL_ENOTFOUND, "data/notes.txt is a file, but not a checkpoint"},
		{"data/notes.txt@3", PAWL_EUSAGE, "data/notes.txt is a file, so '@3' selects nothing in it"},
		{"runs/demo/checkpoints/checkpoint_000001@3", PAWL_EUSAGE,
	         "is one checkpoint, so '@3' selects nothing"},
		{"@10", PAWL_ENOTFOUND, "@10: the current folder is not a run; write RUN@10"},
		{"s3:/bucket/run", PAWL_EUSAGE, "a URL has two slashes, expected s3://bucket/run"},
		{"s3:bucket/run", PAWL_EUSAGE, "a URL has two slashes, expected s3://bucket/run"},
		{"mem:", PAWL_EUSAGE, "mem: is lost when it is closed; expected a folder or a URL"},
		{"mem:/", PAWL_EUSAGE, "mem:/: mem: is lost when it is closed"},
		{"own://place/run", PAWL_ENOTFOUND, "own://place/run: no run and no checkpoint here"},
	};

	make_places(r);
	for (size_t i = 0; i < COUNT(rows); i++)
		FAILS(rows[i].code, rows[i].text, pawl_explain_address(rows[i].address, err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_explain_address(NULL, err));
	assert_int_equal(pawl_explain_address("none", NULL), PAWL_ENOTFOUND);
}

static void
test_a_long_list_of_runs_is_cut_with_a_count(void **state)
{
	struct small_run *r = *state;
	char name[32];
	FILE *file;

	assert_int_equal(chdir(r->root), 0);
	for (int i = 0; i < 13; i++) {
		snprintf(name, sizeof(name), "run%d", i);
		assert_int_equal(mkdir(name, 0700), 0);
		snprintf(name, sizeof(name), "run%d/run.json", i);
		file = fopen(name, "w");
		assert_non_null(file);
		assert_int_equal(fclose(file), 0);
	}
	FAILS(PAWL_ENOTFOUND, "below it: run0, run1, run2, run3, run4, run5, run6, run7, run8, run9, ... and 3 more",
	      pawl_explain_address(".", err));
}

/* A reader never makes what it does not find, and is never shown an empty run instead. */
static void
test_a_reader_of_a_wrong_place_is_told_what_exists(void **state)
{
	struct small_run *r = *state;
	const struct {
		const char *root, *text;
		int read_only, maintenance, single;
	} rows[] = {
		{"runs/dmo", "did you mean runs/demo?", 1, 0, 0},
		{"runs/dmo", "did you mean runs/demo?", 0, 1, 0},
		{"run/demo", "run/demo: no such file or folder; did you mean runs/demo?", 1, 0, 1},
		{"data", "data: no run and no checkpoint here", 1, 0, 0},
		{"data", "data: no run and no checkpoint here", 0, 1, 0},
		{"runs", "; below it: demo, other", 1, 0, 0},
		{"runs/demo/checkpoints", "a part of the run", 0, 1, 0},
	};

	make_places(r);
	for (size_t i = 0; i < COUNT(rows); i++) {
		r->opts.root = rows[i].root;
		r->opts.read_only = rows[i].read_only;
		r->opts.maintenance = rows[i].maintenance;
		r->opts.single = rows[i].single;
		FAILS(PAWL_ENOTFOUND, rows[i].text, pawl_open(&r->opts, &r->run, err));
		assert_null(r->run);
	}
	assert_int_not_equal(access("runs/dmo", F_OK), 0);
	assert_int_not_equal(access("data/.pawl", F_OK), 0);
	/* An empty folder is a run that has not begun. */
	assert_int_equal(mkdir("empty", 0700), 0);
	r->opts = (struct pawl_open_opts)PAWL_OPEN_OPTS_INIT;
	r->opts.root = "empty";
	r->opts.read_only = 1;
	OK(pawl_open(&r->opts, &r->run, err));
}

int
main(void)
{
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, small_setup, small_teardown)
	const struct CMUnitTest tests[] = {
		CASE(test_a_wrong_address_is_answered_with_what_exists),
		CASE(test_a_long_list_of_runs_is_cut_with_a_count),
		CASE(test_a_reader_of_a_wrong_place_is_told_what_exists),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
