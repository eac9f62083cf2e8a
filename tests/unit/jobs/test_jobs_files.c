/* SPDX-License-Identifier: Apache-2.0 */
/* Diff and export over what other rooms make: files of other programs, and the caller's error after
 * a success. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "helpers/model_file.h"
#include "pawl_jobs.h"

static void
test_R150_two_files_are_compared_by_their_bytes(void **state)
{
	struct small_run *r = *state;
	struct pawl *other = NULL;
	struct pawl_diff *diff = NULL;
	float *data = write_model(r, "a.safetensors");

	write_model(r, "b.safetensors");
	open_file(r, "a.safetensors");
	OK(open_named(r, "b.safetensors", &other, err));
	OK(pawl_diff_open(r->run, 1, other, 1, NULL, &diff, err));
	assert_int_equal(pawl_diff_count(diff), 0);
	pawl_diff_free(diff);
	pawl_close(other, NULL);
	data[200000] += 1;
	write_file(r, "b.safetensors",
	           "{\"layer/w.0\":{\"dtype\":\"F32\",\"shape\":[100,3000],\"data_offsets\":[0,1200000]},"
	           "\"half\":{\"dtype\":\"F16\",\"shape\":[2,2],\"data_offsets\":[1200000,1200008]},"
	           "\"two\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[1200008,1200012]}}",
	           data, (N + 3) * sizeof(float));
	OK(open_named(r, "b.safetensors", &other, err));
	OK(pawl_diff_open(r->run, 1, other, 1, NULL, &diff, err));
	assert_int_equal(pawl_diff_count(diff), 4);
	for (size_t i = 0; i < 4; i++) {
		const struct pawl_diff_row *row = pawl_diff_get(diff, i);
		int expected = strcmp(row->path, "two") == 0           ? PAWL_ADDED
		               : strcmp(row->path, "layer%2Fw.0") == 0 ? PAWL_CHANGED
		                                                       : PAWL_REMOVED;
		assert_int_equal(row->change, expected);
		if (expected == PAWL_CHANGED)
			assert_true(row->max_abs > 0.9 && row->max_abs < 1.1);
	}
	pawl_diff_free(diff);
	pawl_close(other, NULL);
}

static void
test_a_call_that_succeeds_leaves_the_error_alone(void **state)
{
	struct small_run *r = *state;
	struct small_path target = small_path(r, "out.safetensors");
	struct pawl_diff *diff;

	small_open(r);
	for (int64_t step = 1; step <= 2; step++)
		small_save(r, step, 0.5);
	QUIET(pawl_diff_open(r->run, 1, r->run, 2, NULL, &diff, err));
	QUIET(pawl_convert(r->run, 2, target.text, NULL, NULL, NULL, err));
	pawl_diff_free(diff);
}

int
main(void)
{
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, small_setup, small_teardown)
	const struct CMUnitTest tests[] = {
		CASE(test_R150_two_files_are_compared_by_their_bytes),
		CASE(test_a_call_that_succeeds_leaves_the_error_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
