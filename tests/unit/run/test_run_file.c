/* SPDX-License-Identifier: Apache-2.0 */
/* run_file: which ids a run gives out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/mem.h"
#include "run/run.h"

static void
test_E1_ids_grow_and_never_repeat(void **state)
{
	struct pawl *run = run_new();

	(void)state;
	assert_non_null(run);
	assert_int_equal(run_file_give_id(run, 0), 1);
	run_file_raise_id(run, 7);
	run_file_raise_id(run, 3);
	assert_int_equal(run_file_last_id(run), 7);
	assert_int_equal(run_file_give_id(run, 0), 8);
	assert_int_equal(run_file_give_id(run, 20), 20);
	assert_int_equal(run_file_give_id(run, 5), 5); /* of a rank that is behind: nothing goes back */
	assert_int_equal(run_file_give_id(run, 0), 21);
	run_delete(run);
}

static void
test_a_single_checkpoint_has_id_1(void **state)
{
	struct pawl *run = run_new();

	(void)state;
	assert_non_null(run);
	run->home.single_name = mem_strdup("model");
	run_file_raise_id(run, 7); /* of the one that is overwritten */
	assert_int_equal(run_file_give_id(run, 0), 1);
	assert_int_equal(run_file_give_id(run, 0), 1);
	run_delete(run);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_E1_ids_grow_and_never_repeat),
		cmocka_unit_test(test_a_single_checkpoint_has_id_1),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
