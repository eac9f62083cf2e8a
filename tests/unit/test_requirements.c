/* SPDX-License-Identifier: Apache-2.0 */
/* Requirements that no single source file answers for, through pawl.h: names and places, numbering, order of a save,
 * space. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <signal.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#include "../helpers/small_run.h"

static const struct pawl_info *
newest(struct pawl_list *list)
{
	assert_true(pawl_list_count(list) > 0);
	return pawl_list_get(list, pawl_list_count(list) - 1);
}

static void
use_scores(struct small_run *r, int64_t num_to_keep, int strict)
{
	r->opts.retention.num_to_keep = num_to_keep;
	r->opts.retention.score_attributes = small_scores;
	r->opts.retention.n_scores = 1;
	r->opts.retention.strict_score = strict;
}

/* Saves as small_save does and returns the id that the save was given; *ret_stage: how it ended. */
static uint64_t
save_for_id(struct small_run *r, int64_t step, double accuracy, int *ret_stage)
{
	struct pawl_metric metric = {.name = "accuracy", .value = accuracy};
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	struct pawl_save_stats stats;
	struct pawl_ticket *ticket = NULL;
	struct pawl_state *state;

	OK(pawl_state_new(&state, err));
	OK(pawl_state_set_int(state, "step", step, err));
	save.step = step;
	save.metrics = &metric;
	save.n_metrics = 1;
	OK(pawl_save(r->run, &save, state, &ticket, err));
	OK(pawl_ticket_wait(ticket, -1, err));
	pawl_ticket_stats(ticket, &stats);
	*ret_stage = pawl_ticket_stage(ticket);
	pawl_ticket_free(ticket);
	pawl_state_free(state);
	return stats.id;
}

static void
test_R3_memory_only_cannot_be_asked_of_checkpoints_on_disk(void **state)
{
	struct small_run *r = *state;
	struct pawl_retention memory = PAWL_RETENTION_INIT;

	memory.num_to_keep = PAWL_KEEP_MEMORY;
	small_open(r);
	small_save(r, 1, 0.5);
	small_save(r, 2, 0.5);
	FAILS(PAWL_EUSAGE, "memory", pawl_prune(r->run, &memory, 0, NULL, err));
	FAILS(PAWL_EUSAGE, "memory", pawl_prune(r->run, &memory, 1, NULL, err));
	ASSERT_IDS("1 2", r->run);
}

static void
test_R13_checkpoints_lie_in_checkpoints_of_the_run_folder(void **state)
{
	struct small_run *r = *state;
	struct pawl_list *list;
	char expected[256];

	small_mkdir(r, "elsewhere");
	assert_int_equal(chdir(r->root), 0);
	assert_int_equal(chdir(".."), 0);
	r->opts.root =
		strrchr(r->root, '/') + 1; /* relative; places do not depend on where the program goes from here */
	small_open(r);
	small_save(r, 1, 0.5);
	assert_int_equal(chdir(small_path(r, "elsewhere").text), 0);
	small_save(r, 2, 0.5);
	OK(pawl_list_open(r->run, 0, &list, err));
	for (size_t i = 0; i < 2; i++) {
		snprintf(expected, sizeof(expected), "%s/checkpoints/checkpoint_%06zu", r->root, i + 1);
		assert_string_equal(pawl_list_get(list, i)->path, expected);
		assert_int_equal(access(expected, F_OK), 0);
	}
	pawl_list_free(list);
	assert_int_equal(small_count(r, "elsewhere"), 0);
	assert_int_equal(chdir("/"), 0);
}

static void
test_R14_R15_R23_E1_a_skipped_save_uses_up_its_number(void **state)
{
	struct small_run *r = *state;
	uint64_t id = 77;
	int stage;

	use_scores(r, 1, 1);
	small_open(r);
	FAILS(PAWL_ENOTFOUND, "no checkpoint",
	      pawl_find(r->run, "latest", &id, err)); /* no name while nothing was saved */
	assert_int_equal(save_for_id(r, 10, 0.5, &stage), 1);
	assert_int_equal(stage, PAWL_STAGE_SETTLED);
	assert_int_equal(save_for_id(r, 20, 0.4, &stage), 2);
	assert_int_equal(stage, PAWL_STAGE_SKIPPED);
	FAILS(PAWL_ENOTFOUND, "checkpoint_000002",
	      pawl_find(r->run, "checkpoint_000002", &id, err)); /* named, not on disk */
	assert_int_equal(id, 77);
	assert_int_equal(save_for_id(r, 30, 0.9, &stage), 3); /* the next one goes to id + 1 */
	assert_int_equal(stage, PAWL_STAGE_SETTLED);
	ASSERT_IDS("3", r->run);
	assert_true(small_exists(r, "checkpoints/checkpoint_000003/manifest.json"));
	assert_int_equal(small_count(r, "checkpoints"), 1);
}

static void
test_R19_a_new_run_has_no_checkpoint_and_no_best(void **state)
{
	struct small_run *r = *state;
	struct pawl_list *list;
	uint64_t id = 77;
	int stage;

	use_scores(r, 2, 0);
	small_open(r);
	OK(pawl_list_open(r->run, 1, &list, err));
	assert_int_equal(pawl_list_count(list), 0);
	pawl_list_free(list);
	FAILS(PAWL_ENOTFOUND, "", pawl_find(r->run, "latest", &id, err));
	FAILS(PAWL_ENOTFOUND, "", pawl_find(r->run, "best", &id, err));
	assert_int_equal(id, 77);
	assert_int_equal(save_for_id(r, 0, 0.1, &stage), 1); /* counting begins at 1 */
}

static void
test_R20_E7_opening_sets_the_rules_and_goes_on_with_numbers_scores_and_best(void **state)
{
	struct small_run *r = *state;
	uint64_t id;
	int stage;

	use_scores(r, 0, 0);
	r->opts.retention.keep_last = 10;
	small_open(r);
	small_save(r, 1, 0.9);
	small_save(r, 2, 0.2);
	small_save(r, 3, 0.3);
	r->opts.retention.keep_last = 0;
	use_scores(r, 1, 0);
	small_open(r);
	OK(pawl_find(r->run, "best", &id, err));
	assert_int_equal(id, 1);
	ASSERT_IDS("1 2 3", r->run);
	assert_int_equal(save_for_id(r, 4, 0.5, &stage), 4); /* the number after the newest one */
	ASSERT_IDS("1 4", r->run);                           /* the new rules: the best one, and the latest */
}

static void
test_R30_folders_are_made_and_nothing_half_written_has_the_name(void **state)
{
	struct small_run *r = *state;
	struct small_path root = small_path(r, "made/by/opening");
	struct pawl_fault *fault = NULL;
	uint64_t id;

	r->opts.root = root.text;
	small_open(r);
	small_open(r); /* existing ones are fine */
	small_save(r, 1, NAN);
	assert_true(small_exists(r, "made/by/opening/checkpoints/checkpoint_000001/manifest.json"));
	OK(pawl_fault_new("finish", 1, PAWL_EIO, 1, &fault, err));
	r->opts.fault = fault;
	small_open(r);
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	struct pawl_state *one;
	OK(pawl_state_new(&one, err));
	OK(pawl_state_set_int(one, "x", 1, err));
	struct pawl_error why = {0};
	int rc = pawl_save(r->run, &save, one, NULL, &why);
	rc = rc < 0 ? rc : pawl_wait(r->run, -1, &why);
	assert_int_equal(rc, PAWL_EIO);
	pawl_state_free(one);
	FAILS(PAWL_ENOTFOUND, "", pawl_find(r->run, "checkpoint_000002", &id, err));
	assert_int_equal(small_count(r, "made/by/opening/checkpoints"), 1);
	pawl_close(r->run, NULL);
	r->run = NULL;
	pawl_fault_free(fault);
}

static void
test_R42_a_run_keeps_everything_in_its_own_folder(void **state)
{
	struct small_run *r = *state;
	struct small_path roots[2];
	struct pawl_list *list;

	for (int i = 0; i < 2; i++) {
		roots[i] = small_path(r, i == 0 ? "first" : "second");
		r->opts.root = roots[i].text;
		small_open(r);
		small_save(r, i + 1, 0.5);
		OK(pawl_list_open(r->run, 0, &list, err));
		assert_int_equal(pawl_list_count(list), 1);
		assert_memory_equal(newest(list)->path, roots[i].text, strlen(roots[i].text));
		pawl_list_free(list);
	}
	pawl_close(r->run, NULL);
	r->run = NULL;
	assert_int_equal(small_count(r, ""), 2);
}

/* A child that saves one checkpoint and is killed in the middle of the next, when nearly all of it is written. */
static void
be_killed(struct small_run *r)
{
	pid_t pid = fork();

	if (pid == 0) {
		struct pawl_open_opts opts = r->opts;
		struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
		struct pawl_state *state = NULL;
		struct pawl *run = NULL;

		if (pawl_open(&opts, &run, NULL) < 0 || pawl_state_new(&state, NULL) < 0 ||
		    pawl_state_set_int(state, "epoch", 7, NULL) < 0)
			_exit(1);
		save.step = 7;
		if (pawl_save(run, &save, state, NULL, NULL) < 0 || pawl_wait(run, -1, NULL) < 0)
			_exit(1);
		/* What a kill leaves: a folder without its name, and the lease of a dead process. */
		if (mkdir(small_path(r, "checkpoints/.checkpoint_000002.00000000000000000000000000000001.partial").text,
		          0777) < 0)
			_exit(1);
		kill(getpid(), SIGKILL);
	}
	int status;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void
test_R55_the_newest_checkpoint_is_found_after_a_kill_and_none_in_a_new_run(void **state)
{
	struct small_run *r = *state;
	struct pawl_restore *restore = NULL;
	int64_t epoch;

	small_open(r);
	FAILS(PAWL_ENOTFOUND, "no checkpoint", pawl_restore(r->run, NULL, NULL, &restore, err));
	pawl_close(r->run, NULL);
	r->run = NULL;
	be_killed(r);
	assert_true(small_exists(r, ".lease"));
	small_open(r);
	OK(pawl_restore(r->run, NULL, NULL, &restore, err));
	OK(pawl_state_get_int(pawl_restore_state(restore), "epoch", &epoch, err));
	assert_int_equal(epoch, 7);
	assert_int_equal(pawl_restore_info(restore)->step, 7);
	pawl_restore_close(restore);
	assert_int_equal(small_count(r, "checkpoints"), 1);
}

static void
test_R143_too_little_space_is_told_with_both_figures_before_anything_is_written(void **state)
{
	struct small_run *r = *state;
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	struct pawl_tensor tensor = PAWL_TENSOR_INIT;
	struct pawl_state *one;
	struct pawl_error why = {0};
	struct statvfs fs;
	uint64_t shape[] = {(uint64_t)1 << 20, (uint64_t)1 << 32}, need = 0, found = 0;
	int64_t strides[] = {0, 0};
	char byte = 1, path[256];

	small_open(r);
	small_save(r, 1, 0.5);
	tensor.dtype = PAWL_U8; /* one byte, 2^52 times: no disk holds it, and no memory is needed to say so */
	tensor.ndim = 2;
	tensor.shape = shape;
	tensor.strides = strides;
	tensor.data = &byte;
	OK(pawl_state_new(&one, err));
	OK(pawl_state_set_tensor(one, "huge", &tensor, err));
	assert_int_equal(pawl_save(r->run, &save, one, NULL, &why), PAWL_ENOSPACE);
	pawl_state_free(one);
	const char *at = strstr(why.message, "needs about ");
	assert_non_null(at);
	assert_int_equal(
		sscanf(at, "needs about %" SCNu64 " bytes, but %255s has %" SCNu64 " bytes free", &need, path, &found),
		3);
	assert_true(need > (uint64_t)1 << 52 && need < ((uint64_t)1 << 52) + (1 << 24));
	assert_string_equal(path, r->root);
	assert_int_equal(statvfs(r->root, &fs), 0);
	assert_true(found > 0 && found <= (uint64_t)fs.f_blocks * fs.f_frsize);
	assert_int_equal(small_count(r, "checkpoints"), 1);
	ASSERT_IDS("1", r->run);
	small_save(r, 2, 0.5); /* and the run goes on */
}

int
main(void)
{
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, small_setup, small_teardown)
	const struct CMUnitTest tests[] = {
		CASE(test_R3_memory_only_cannot_be_asked_of_checkpoints_on_disk),
		CASE(test_R13_checkpoints_lie_in_checkpoints_of_the_run_folder),
		CASE(test_R14_R15_R23_E1_a_skipped_save_uses_up_its_number),
		CASE(test_R19_a_new_run_has_no_checkpoint_and_no_best),
		CASE(test_R20_E7_opening_sets_the_rules_and_goes_on_with_numbers_scores_and_best),
		CASE(test_R30_folders_are_made_and_nothing_half_written_has_the_name),
		CASE(test_R42_a_run_keeps_everything_in_its_own_folder),
		CASE(test_R55_the_newest_checkpoint_is_found_after_a_kill_and_none_in_a_new_run),
		CASE(test_R143_too_little_space_is_told_with_both_figures_before_anything_is_written),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
