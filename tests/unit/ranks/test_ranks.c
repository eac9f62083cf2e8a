/* SPDX-License-Identifier: Apache-2.0 */
/* Many ranks: real processes that save one checkpoint together and restore it on any number. P9 to
 * P11, P15. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <sys/stat.h>
#include <time.h>

#include "helpers/hang.h"
#include "helpers/ranks.h"
#include "helpers/scratch.h"

#define TIMEOUT_MS HANG_MS

static int
setup(void **state)
{
	char *root = malloc(256);

	*state = root;
	return scratch_make(root, 256, "ranks");
}

static int
teardown(void **state)
{
	scratch_remove(*state);
	free(*state);
	return 0;
}

/* Saves steps 1 to 3, waiting only for the last. */
static int
save_three(const struct rank_job *job)
{
	struct pawl_error err = {0};
	struct pawl *run = NULL;
	struct rank_state s;

	rank_state_init(&s, job->rank, job->world);
	RANK_TRY(rank_open(job, &run, &err));
	for (int64_t step = 1; step <= 3; step++)
		RANK_TRY(rank_save(run, job, &s, step, NULL, &err));
	RANK_TRY(pawl_wait(run, -1, &err));
	RANK_TRY(pawl_close(run, &err));
	rank_state_clear(&s);
	return 0;
}

struct expect {
	int saved_world, rank_values;
	int64_t step;
};

/* Restores the latest and compares every element. */
static int
restore_latest(const struct rank_job *job)
{
	const struct expect *expect = job->arg;
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	struct pawl_restore *restored = NULL;
	struct pawl_state *live = NULL;
	struct pawl_error err = {0};
	struct pawl *run = NULL;
	struct rank_state s;
	bool same_world = expect->saved_world == job->world;
	int own = same_world                                     ? job->rank
	          : expect->rank_values == PAWL_RANK_VALUES_WRAP ? job->rank % expect->saved_world
	                                                         : -1;

	rank_state_init(&s, job->rank, job->world);
	RANK_TRY(rank_open(job, &run, &err));
	RANK_TRY(rank_state_build(&s, job->rank, job->world, &live, &err));
	opts.rank_values = expect->rank_values;
	RANK_TRY(pawl_restore(run, &opts, live, &restored, &err));
	RANK_CHECK(pawl_restore_info(restored)->step == expect->step);
	RANK_CHECK(pawl_restore_info(restored)->world_size == (uint32_t)expect->saved_world);
	int differs = rank_state_differs(&s, own, expect->step);

	if (differs)
		fprintf(stderr, "rank %d: tensor %d is not what was saved\n", job->rank, differs);
	RANK_CHECK(differs == 0);
	double loss = 0;
	int64_t place = 0;

	RANK_TRY(pawl_state_get_float(pawl_restore_state(restored), "loss", &loss, &err));
	RANK_CHECK(loss == (own >= 0 ? own : 0) + (double)expect->step / 8);
	if (own >= 0) {
		RANK_TRY(pawl_state_get_int(pawl_restore_state(restored), "mine/place", &place, &err));
		RANK_CHECK(place == 1000 * own + expect->step);
	} else {
		for (size_t i = 0; i < pawl_restore_report_count(restored); i++)
			snprintf(err.message, sizeof(err.message), "%s", pawl_restore_report_get(restored, i));
		RANK_CHECK(pawl_restore_report_count(restored) == 1);
		RANK_CHECK(strncmp(pawl_restore_report_get(restored, 0), "dropped: mine: kept per rank by", 31) == 0);
		RANK_CHECK(s.seed[3] == 0);
	}
	pawl_restore_close(restored);
	pawl_state_free(live);
	RANK_TRY(pawl_close(run, &err));
	rank_state_clear(&s);
	return 0;
}

static void
count_checkpoints(const char *root, size_t n, uint32_t world)
{
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	struct pawl_findings *findings = NULL;
	struct pawl_error err = {0};
	struct pawl_list *list = NULL;
	struct pawl *run = NULL;

	opts.root = root;
	opts.read_only = 1;
	assert_int_equal(pawl_open(&opts, &run, &err), 0);
	assert_int_equal(pawl_list_open(run, 1, &list, &err), 0);
	assert_int_equal(pawl_list_count(list), n);
	for (size_t i = 0; i < n; i++)
		assert_int_equal(pawl_list_get(list, i)->world_size, world);
	pawl_list_free(list);
	if (pawl_verify(run, 0, NULL, &findings, &err) < 0)
		fail_msg("verify: %s", err.message);
	pawl_findings_free(findings);
	pawl_close(run, NULL);
}

static void
test_P11_four_ranks_save_one_checkpoint_and_restore_it(void **state)
{
	struct expect expect = {.saved_world = 4, .step = 3};

	assert_int_equal(ranks_run(*state, 4, TIMEOUT_MS, save_three, NULL), 0);
	count_checkpoints(*state, 3, 4);
	assert_int_equal(ranks_run(*state, 4, TIMEOUT_MS, restore_latest, &expect), 0);
}

static void
test_R160_what_n_ranks_saved_m_ranks_restore(void **state)
{
	static const int worlds[] = {1, 2, 3, 4, 7, 1};

	for (size_t i = 0; i + 1 < sizeof(worlds) / sizeof(worlds[0]); i++) {
		char root[300];

		snprintf(root, sizeof(root), "%s/%zu", (char *)*state, i);
		assert_int_equal(ranks_run(root, worlds[i], TIMEOUT_MS, save_three, NULL), 0);
		for (int world = 1; world <= 5; world += 2) {
			struct expect expect = {.saved_world = worlds[i],
			                        .step = 3,
			                        .rank_values =
			                                world == 3 ? PAWL_RANK_VALUES_WRAP : PAWL_RANK_VALUES_DROP};

			assert_int_equal(ranks_run(root, world, TIMEOUT_MS, restore_latest, &expect), 0);
		}
	}
}

/* Rank 1 would not wait for its turn in step 1: that fails on all ranks, and step 2 is saved. */
static int
save_without_waiting(const struct rank_job *job)
{
	const int *on_busy = job->arg;
	struct pawl_error err = {0};
	struct pawl *run = NULL;
	struct rank_state s;

	rank_state_init(&s, job->rank, job->world);
	RANK_TRY(rank_open(job, &run, &err));
	for (int64_t step = 1; step <= 2; step++) {
		struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;
		struct pawl_ticket *ticket = NULL;
		struct pawl_state *state = NULL;

		rank_state_fill(&s, job->rank, step);
		RANK_TRY(rank_state_build(&s, job->rank, job->world, &state, &err));
		opts.step = step;
		opts.on_busy = job->rank == 1 && step == 1 ? *on_busy : PAWL_BUSY_WAIT + 1;
		int rc = pawl_save(run, &opts, state, &ticket, &err);

		pawl_state_free(state);
		if (rc == 0)
			rc = pawl_ticket_wait(ticket, -1, &err);
		pawl_ticket_free(ticket);
		RANK_CHECK(rc == (step == 1 ? PAWL_EUSAGE : 0));
		RANK_CHECK(rc == 0 || strstr(err.message, "with 2 ranks, on_busy: expected wait"));
	}
	pawl_close(run, NULL);
	rank_state_clear(&s);
	return 0;
}

static void
test_P11_a_save_of_many_ranks_that_does_not_wait_for_its_turn_is_refused_on_all(void **state)
{
	static const int rules[] = {PAWL_BUSY_SKIP + 1, PAWL_BUSY_REPLACE + 1};

	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
		char root[300];
		int on_busy = rules[i];

		snprintf(root, sizeof(root), "%s/%zu", (char *)*state, i);
		assert_int_equal(ranks_run(root, 2, TIMEOUT_MS, save_without_waiting, &on_busy), 0);
		count_checkpoints(root, 1, 2);
	}
}

/* What many ranks have saved is rebuilt from their packs alone: the union of their trees, values
 * per rank too. */
static void
test_a_lost_manifest_of_many_ranks_is_made_anew_from_the_packs(void **state)
{
	struct expect expect = {.saved_world = 3, .step = 3};
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	struct pawl_error err = {0};
	struct pawl *run = NULL;
	char path[400];

	assert_int_equal(ranks_run(*state, 3, TIMEOUT_MS, save_three, NULL), 0);
	snprintf(path, sizeof(path), "%s/checkpoints/checkpoint_000003/manifest.json", (char *)*state);
	assert_int_equal(remove(path), 0);
	opts.root = *state;
	opts.maintenance = 1;
	assert_int_equal(pawl_open(&opts, &run, &err), 0);
	if (pawl_repair(run, "checkpoint_000003", 0, NULL, &err) < 0)
		fail_msg("repair: %s", err.message);
	assert_int_equal(pawl_close(run, &err), 0);
	count_checkpoints(*state, 3, 3);
	assert_int_equal(ranks_run(*state, 3, TIMEOUT_MS, restore_latest, &expect), 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_P11_four_ranks_save_one_checkpoint_and_restore_it, setup,
	                                        teardown),
		cmocka_unit_test_setup_teardown(test_a_lost_manifest_of_many_ranks_is_made_anew_from_the_packs, setup,
	                                        teardown),
		cmocka_unit_test_setup_teardown(
			test_P11_a_save_of_many_ranks_that_does_not_wait_for_its_turn_is_refused_on_all, setup,
			teardown),
		cmocka_unit_test_setup_teardown(test_R160_what_n_ranks_saved_m_ranks_restore, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
