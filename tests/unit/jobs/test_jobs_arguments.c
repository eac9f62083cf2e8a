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

int
main(void)
{
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, small_setup, small_teardown)
	const struct CMUnitTest tests[] = {
		CASE(test_lists_of_names_that_are_NULL_are_refused),
		CASE(test_ids_that_are_NULL_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
