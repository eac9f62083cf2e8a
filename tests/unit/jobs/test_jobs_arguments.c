/* SPDX-License-Identifier: Apache-2.0 */
/* Odd arguments of the calls of pawl_jobs.h. They are refused in words, and nothing has changed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "helpers/small_run.h"
#include "pawl_jobs.h"

static const char *const hole[] = {"model/*", NULL};

static void
test_lists_of_names_that_are_NULL_are_refused(void **state)
{
	struct small_run *r = *state;
	struct small_path file = small_path(r, "out.safetensors"), folder = small_path(r, "out");
	struct pawl_syncer *syncer;

	small_open(r);
	small_save(r, 1, NAN);
	OK(pawl_syncer_open(r->root, folder.text, NULL, &syncer, err));
	for (int i = 0; i < 2; i++) {
		const char *const *list = i ? hole : NULL;
		const char *what = i ? "number 2 of 2 is NULL" : "expected 2 texts, found NULL";
		struct pawl_convert_opts convert[3];
		struct pawl_reshard_opts reshard[2];
		struct pawl_saver_opts saver = PAWL_SAVER_OPTS_INIT;
		struct pawl_saver *none;

		for (size_t k = 0; k < 3; k++)
			convert[k] = (struct pawl_convert_opts)PAWL_CONVERT_OPTS_INIT;
		convert[0].include = convert[1].exclude = convert[2].rename = list;
		convert[0].n_include = convert[1].n_exclude = convert[2].n_rename = 2;
		for (size_t k = 0; k < 3; k++)
			FAILS(PAWL_EUSAGE, what, pawl_convert(r->run, 1, file.text, &convert[k], NULL, NULL, err));
		for (size_t k = 0; k < 2; k++) {
			reshard[k] = (struct pawl_reshard_opts)PAWL_RESHARD_OPTS_INIT;
			reshard[k].world_size = 2;
		}
		reshard[0].rename = reshard[1].cast = list;
		reshard[0].n_rename = reshard[1].n_cast = 2;
		for (size_t k = 0; k < 2; k++)
			FAILS(PAWL_EUSAGE, what, pawl_reshard(r->run, 1, folder.text, &reshard[k], NULL, err));
		saver.folder = folder.text;
		saver.filename = "x.pt";
		saver.remote_file_name = NULL;
		saver.ignore_keys = list;
		saver.n_ignore_keys = 2;
		FAILS(PAWL_EUSAGE, what, pawl_saver_open(&saver, &none, err));
		FAILS(PAWL_EUSAGE, what, pawl_syncer_prune(syncer, list, 2, err));
	}
	pawl_syncer_close(syncer);
	assert_false(small_exists(r, "out") || small_exists(r, "out.safetensors"));
}

static void
test_ids_that_are_NULL_are_refused(void **state)
{
	struct small_run *r = *state;
	struct small_path to = small_path(r, "copy");
	struct pawl_copy_opts opts = PAWL_COPY_OPTS_INIT;

	small_open(r);
	small_save(r, 1, NAN);
	opts.n_ids = 1;
	FAILS(PAWL_EUSAGE, "expected 1 ids, found NULL", pawl_copy_run(r->run, to.text, &opts, NULL, NULL, err));
	assert_false(small_exists(r, "copy"));
}

static void
test_options_without_a_size_are_refused(void **state)
{
	struct small_run *r = *state;
	const struct pawl_syncer_opts sync = {.no_verify = 1};
	struct pawl_saver_opts saver = {.folder = r->root, .filename = "x.pt"};
	struct pawl_rank rank = {.world_size = 1};
	struct pawl_syncer *syncer;
	struct pawl_saver *s;
	char path[256];

	FAILS(PAWL_EUSAGE, "start from PAWL_SYNCER_OPTS_INIT",
	      pawl_syncer_open(r->root, small_path(r, "there").text, &sync, &syncer, err));
	FAILS(PAWL_EUSAGE, "start from PAWL_SAVER_OPTS_INIT", pawl_saver_open(&saver, &s, err));
	FAILS(PAWL_EUSAGE, "start from PAWL_SAVER_OPTS_INIT", pawl_saver_latest(&saver, path, sizeof(path), err));
	FAILS(PAWL_EUSAGE, "start from PAWL_SAVER_OPTS_INIT",
	      pawl_saver_bring(&saver, "latest", r->root, path, sizeof(path), err));
	saver = (struct pawl_saver_opts)PAWL_SAVER_OPTS_INIT;
	saver.rank = &rank;
	FAILS(PAWL_EUSAGE, "start from PAWL_RANK_INIT", pawl_saver_open(&saver, &s, err));
}

static void
test_a_NULL_is_an_error_of_every_call_that_can_fail(void **state)
{
	struct small_run *r = *state;
	const struct small_path there = small_path(r, "there"), folder = small_path(r, "saver");
	struct pawl_saver_opts opts = PAWL_SAVER_OPTS_INIT;
	struct pawl_progress now = PAWL_PROGRESS_INIT;
	struct pawl_syncer *syncer;
	struct pawl_saver *saver;
	char path[64];

	opts.folder = folder.text;
	opts.remote_file_name = opts.latest_remote_file_name = NULL;
	OK(pawl_syncer_open(r->root, there.text, NULL, &syncer, err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_syncer_open(r->root, there.text, NULL, NULL, err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_syncer_up(NULL, NULL, NULL, err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_syncer_down(NULL, NULL, NULL, err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_syncer_verify(NULL, 0, NULL, NULL, err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_syncer_prune(NULL, NULL, 0, err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_syncer_freeze(syncer, NULL, NULL, err));
	pawl_syncer_close(syncer);
	FAILS(PAWL_EUSAGE, "found NULL", pawl_saver_open(&opts, NULL, err));
	OK(pawl_saver_open(&opts, &saver, err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_saver_start(saver, NULL, err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_saver_due(saver, NULL, err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_saver_save(saver, &now, NULL, err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_saver_save_folder(saver, NULL, r->root, err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_saver_path(saver, NULL, 0, path, sizeof(path), err));
	FAILS(PAWL_EUSAGE, "no size", pawl_saver_get(saver, 0, 0, NULL, err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_saver_check(NULL, err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_saver_wait(NULL, 0, err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_saver_uploaded(NULL, 1, err));
	OK(pawl_saver_close(saver, err));
}

static void
test_a_timeout_that_no_clock_can_hold_is_refused(void **state)
{
	struct small_run *r = *state;
	const struct small_path here = small_path(r, "here"), there = small_path(r, "there");
	struct pawl_syncer_opts opts = PAWL_SYNCER_OPTS_INIT;
	struct pawl_syncer *syncer;

	r->opts.root = here.text;
	small_open(r);
	small_save(r, 1, NAN);
	pawl_close(r->run, NULL);
	r->run = NULL;
	opts.timeout_ms = INT64_MAX;
	FAILS(PAWL_EUSAGE, "a timeout of 0 to 1000000000000 ms",
	      pawl_syncer_open(here.text, there.text, &opts, &syncer, err));
	opts.timeout_ms = 1000000000000;
	OK(pawl_syncer_open(here.text, there.text, &opts, &syncer, err));
	OK(pawl_syncer_up(syncer, NULL, NULL, err));
	pawl_syncer_close(syncer);
}

/* ---- the caller's error, and what a failure leaves alone */

static void
save_file(struct pawl_saver *saver, const struct pawl_progress *now)
{
	struct pawl_state *tree;
	float data[4] = {1, 2, 3, 4};

	OK(pawl_state_new(&tree, err));
	small_add(tree, "state/model/w", PAWL_F32, COUNT(data), data);
	QUIET(pawl_saver_save(saver, now, tree, err));
	QUIET(pawl_saver_wait_saves(saver, -1, err));
	QUIET(pawl_saver_wait(saver, -1, err));
	QUIET(pawl_saver_check(saver, err));
	pawl_state_free(tree);
}

static void
test_a_call_that_succeeds_leaves_the_error_alone(void **state)
{
	struct small_run *r = *state;
	struct small_path folder = small_path(r, "saver/{run_name}"), copy = small_path(r, "copy.pt"), remote, again;
	struct pawl_saver_opts opts = PAWL_SAVER_OPTS_INIT;
	struct pawl_progress now = PAWL_PROGRESS_INIT;
	struct pawl_saved row = PAWL_SAVED_INIT;
	struct pawl_saver *saver;
	char path[512];

	snprintf(remote.text, sizeof(remote.text), "file://%.500s/there/ep{epoch}-ba{batch}.pt", r->root);
	snprintf(again.text, sizeof(again.text), "file://%.500s/there/latest-rank{rank}.pt", r->root);
	opts.folder = folder.text;
	opts.run_name = "r";
	opts.remote_file_name = remote.text;
	opts.latest_remote_file_name = again.text;
	now.epoch = 0;
	now.batch = 10;
	QUIET(pawl_saver_open(&opts, &saver, err));
	QUIET(pawl_saver_start(saver, &now, err));
	QUIET(pawl_saver_due(saver, &now, err));
	now.epoch = 1;
	now.batch = 20;
	QUIET(pawl_saver_due(saver, &now, err));
	save_file(saver, &now);
	QUIET(pawl_saver_get(saver, 0, 1, &row, err));
	QUIET(pawl_saver_path(saver, &row, 0, path, sizeof(path), err));
	QUIET(pawl_saver_uploaded(saver, row.seq, err));
	QUIET(pawl_saver_close(saver, err));
	QUIET(pawl_saver_open(&opts, &saver, err)); /* a later process */
	QUIET(pawl_saver_start(saver, &now, err));
	QUIET(pawl_saver_close(saver, err));
	QUIET(pawl_saver_latest(&opts, path, sizeof(path), err));
	snprintf(path, sizeof(path), "file://%.400s/there/ep1-ba20.pt", r->root);
	QUIET(pawl_saver_fetch(path, copy.text, err));
	small_open(r);
	small_save(r, 1, NAN);
	struct pawl_reshard_opts reshard = PAWL_RESHARD_OPTS_INIT;
	struct pawl_convert_opts convert = PAWL_CONVERT_OPTS_INIT;
	reshard.world_size = 2;
	QUIET(pawl_reshard(r->run, 1, small_path(r, "resharded").text, &reshard, NULL, err));
	QUIET(pawl_convert(r->run, 1, small_path(r, "x.safetensors").text, NULL, NULL, NULL, err));
	convert.to = "pawl";
	QUIET(pawl_convert(r->run, 1, small_path(r, "x").text, &convert, NULL, NULL, err));
}

static void
test_a_path_that_is_too_long_is_not_given_in_part(void **state)
{
	struct small_run *r = *state;
	struct pawl_saver_opts opts = PAWL_SAVER_OPTS_INIT;
	struct pawl_progress now = PAWL_PROGRESS_INIT;
	struct pawl_saved row = PAWL_SAVED_INIT;
	const struct small_path folder = small_path(r, "saver");
	struct pawl_saver *saver;
	char path[8] = "as was";

	opts.folder = folder.text;
	opts.remote_file_name = opts.latest_remote_file_name = NULL;
	now.epoch = 1;
	now.batch = 20;
	OK(pawl_saver_open(&opts, &saver, err));
	save_file(saver, &now);
	OK(pawl_saver_get(saver, 0, 1, &row, err));
	FAILS(PAWL_ELIMIT, "too long", pawl_saver_path(saver, &row, 0, path, sizeof(path), err));
	FAILS(PAWL_ELIMIT, "too long", pawl_saver_latest(&opts, path, sizeof(path), err));
	assert_string_equal(path, "as was");
	OK(pawl_saver_close(saver, err));
}

/* ---- converting */

static void
test_a_checkpoint_of_pawl_overwrites_nothing(void **state)
{
	struct small_run *r = *state;
	struct pawl_convert_opts opts = PAWL_CONVERT_OPTS_INIT;
	struct small_path target = small_path(r, "run");
	struct pawl_open_opts there = PAWL_OPEN_OPTS_INIT;
	struct pawl *run;

	small_open(r);
	small_save(r, 1, NAN);
	there.root = target.text;
	OK(pawl_open(&there, &run, err));
	OK(pawl_close(run, err));
	opts.to = "pawl";
	opts.overwrite = 1;
	FAILS(PAWL_EEXISTS, "a checkpoint of pawl replaces nothing; remove it, or choose another name",
	      pawl_convert(r->run, 1, target.text, &opts, NULL, NULL, err));
	assert_true(small_exists(r, "run/run.json"));
	assert_false(small_exists(r, "run/manifest.json"));
	OK(pawl_convert(r->run, 1, small_path(r, "free").text, &opts, NULL, NULL, err));
}

int
main(void)
{
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, small_setup, small_teardown)
	const struct CMUnitTest tests[] = {
		CASE(test_lists_of_names_that_are_NULL_are_refused),
		CASE(test_ids_that_are_NULL_are_refused),
		CASE(test_options_without_a_size_are_refused),
		CASE(test_a_NULL_is_an_error_of_every_call_that_can_fail),
		CASE(test_a_timeout_that_no_clock_can_hold_is_refused),
		CASE(test_a_call_that_succeeds_leaves_the_error_alone),
		CASE(test_a_path_that_is_too_long_is_not_given_in_part),
		CASE(test_a_checkpoint_of_pawl_overwrites_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
