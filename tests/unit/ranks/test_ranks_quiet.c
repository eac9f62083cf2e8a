/* SPDX-License-Identifier: Apache-2.0 */
/* A rank whose program wants no errors: the others learn from it all the same why a restore fails.
 * P11. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>

#include "base/err.h"
#include "helpers/hang.h"
#include "helpers/rank_answers.h"

#define WORLD 2

enum call { ALL_IN_ONE, IN_STEPS };

static int
build(uint64_t n, float *data, struct pawl_state **ret, struct pawl_error *err)
{
	struct pawl_tensor t = PAWL_TENSOR_INIT;

	t.dtype = PAWL_F32;
	t.ndim = 1;
	t.shape = &n;
	t.data = data;
	TRY(pawl_state_new(ret, err));
	return pawl_state_set_tensor(*ret, "w", &t, err);
}

static int
save_once(const struct rank_job *job)
{
	struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;
	struct pawl_state *state = NULL;
	struct pawl_error err = {0};
	struct pawl *run = NULL;
	float data[8] = {0};

	RANK_TRY(rank_open(job, &run, &err));
	RANK_TRY(build(8, data, &state, &err));
	RANK_TRY(pawl_save(run, &opts, state, NULL, &err));
	pawl_state_free(state);
	RANK_TRY(pawl_close(run, &err));
	return 0;
}

/* In rank 1 the tensor has another shape, and its program wants no error. */
static int
restore_quietly(const struct rank_job *job)
{
	struct answer *answer = &answers[job->rank];
	struct pawl_error *wanted = job->rank == 0 ? &answer->err : NULL, err = {0};
	struct pawl_restore *restore = NULL;
	struct pawl_state *live = NULL;
	struct pawl *run = NULL;
	float data[8] = {0};

	RANK_TRY(rank_open(job, &run, &err));
	RANK_TRY(build(job->rank == 0 ? 8 : 5, data, &live, &err));
	if (*(const enum call *)job->arg == ALL_IN_ONE) {
		answer->code = pawl_restore(run, NULL, live, NULL, wanted);
	} else {
		RANK_TRY(pawl_restore_open(run, NULL, &restore, &err));
		answer->code = pawl_restore_match(restore, live, wanted);
		if (answer->code == 0)
			answer->code = pawl_restore_read(restore, wanted);
		pawl_restore_close(restore);
	}
	pawl_state_free(live);
	pawl_close(run, NULL);
	return 0;
}

static void
test_P11_a_rank_without_an_error_tells_the_others_why(void **state)
{
	assert_int_equal(ranks_run(*state, WORLD, HANG_MS, save_once, NULL), 0);
	for (enum call call = ALL_IN_ONE; call <= IN_STEPS; call++) {
		memset(answers, 0, WORLD * sizeof(*answers));
		assert_int_equal(ranks_run(*state, WORLD, HANG_MS, restore_quietly, &call), 0);
		for (int r = 0; r < WORLD; r++)
			assert_int_equal(answers[r].code, PAWL_EMISMATCH);
		if (!strstr(answers[0].err.message, "shape: w: saved [8], live [5]"))
			fail_msg("call %d: %s", call, answers[0].err.message);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_P11_a_rank_without_an_error_tells_the_others_why, answers_setup,
	                                        answers_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
