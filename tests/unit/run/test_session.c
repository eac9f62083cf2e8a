/* SPDX-License-Identifier: Apache-2.0 */
/* What a training run finds when it opens, restores and resumes: the mark of the intervals, the
 * remembered best, a run.json that is damaged, a root that is the wrong one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "helpers/small_run.h"
#include "pawl_jobs.h"

/* Is a save due by the run's interval? */
static int
is_due(struct small_run *r, int64_t step)
{
	struct pawl_error err = {0};
	int due = pawl_should_save(r->run, step, NULL, &err);

	if (due < 0)
		fail_msg("should_save: %s", err.message);
	return due;
}

static void
restore(struct small_run *r, const char *selector)
{
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	struct pawl_tensor tensor = PAWL_TENSOR_INIT;
	struct pawl_state *live;
	uint64_t shape[] = {64};
	float data[64];

	tensor.dtype = PAWL_F32;
	tensor.ndim = 1;
	tensor.shape = shape;
	tensor.data = data;
	OK(pawl_state_new(&live, err));
	OK(pawl_state_set_tensor(live, "model/w", &tensor, err));
	opts.non_strict = 1;
	opts.selector = selector;
	OK(pawl_restore(r->run, &opts, live, NULL, err));
	pawl_state_free(live);
}

static uint64_t
find(struct small_run *r, const char *selector)
{
	uint64_t id = 0;

	OK(pawl_find(r->run, selector, &id, err));
	return id;
}

static int
holds(const struct small_run *r, const char *file, const char *text)
{
	size_t len;
	char *bytes = small_read(r, file, &len);
	int found = strstr(bytes, text) != NULL;

	free(bytes);
	return found;
}

/* ---- the mark */

static void
test_R137_intervals_count_from_the_checkpoint_that_was_restored(void **state)
{
	struct small_run *r = *state;

	r->opts.save_interval = "10ba";
	small_open(r);
	small_save(r, 10, NAN);
	small_save(r, 50, NAN);
	restore(r, "step:10"); /* in mid-session */
	assert_false(is_due(r, 19));
	assert_true(is_due(r, 20));
	small_save(r, 20, NAN);
	assert_false(is_due(r, 21));
	small_open(r); /* and by a new process: the newest is that of step 20 */
	assert_false(is_due(r, 29));
	restore(r, "step:10");
	assert_true(is_due(r, 20));
}

static void
test_R137_intervals_count_from_the_older_one_that_a_fallback_took(void **state)
{
	struct small_run *r = *state;

	r->opts.save_interval = "10ba";
	small_open(r);
	small_save(r, 10, NAN);
	small_save(r, 50, NAN);
	small_open(r);
	assert_false(is_due(r, 55));
	/* not seen by the opening, as the manifest is complete */
	small_damage(r, "checkpoints/checkpoint_000002/rank00000-00000.safetensors", -1);
	restore(r, NULL);
	assert_true(is_due(r, 20));
}

static void
test_R137_the_clock_goes_on_from_the_checkpoint_that_was_restored(void **state)
{
	struct small_run *r = *state;
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	struct pawl_state *empty;

	r->opts.save_interval = "100000sec";
	small_open(r);
	OK(pawl_state_new(&empty, err));
	OK(pawl_state_set_int(empty, "x", 1, err));
	for (int i = 1; i <= 2; i++) {
		save.step = i;
		save.progress.total_wct = i == 1 ? 90 : 1e6;
		OK(pawl_save(r->run, &save, empty, NULL, err));
	}
	OK(pawl_wait(r->run, -1, err));
	pawl_state_free(empty);
	small_open(r);
	restore(r, "step:1");
	assert_false(is_due(r, 3)); /* the clock says 90, as the mark does */
	small_save(r, 4, NAN);
	struct pawl_list *list;
	OK(pawl_list_open(r->run, 0, &list, err));
	double wct = pawl_list_get(list, 2)->progress.total_wct;
	assert_true(wct >= 90 && wct < 1e6);
	pawl_list_free(list);
}

static void
test_after_a_failed_save_the_next_point_is_due(void **state)
{
	struct small_run *r = *state;
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	struct pawl_fault *fault;
	struct pawl_state *tree;

	OK(pawl_fault_new("publish", 2, PAWL_EIO, 0, &fault, err));
	OK(pawl_state_new(&tree, err));
	OK(pawl_state_set_int(tree, "x", 1, err));
	r->opts.io.fault = fault;
	r->opts.save_interval = "10ba";
	small_open(r);
	small_save(r, 10, NAN);
	assert_false(is_due(r, 11));
	save.step = 20;
	OK(pawl_save(r->run, &save, tree, NULL, err));
	FAILS(PAWL_EIO, "", pawl_wait(r->run, -1, err));
	assert_true(is_due(r, 21));
	small_save(r, 21, NAN);
	assert_false(is_due(r, 22));
	pawl_close(r->run, NULL);
	r->run = NULL;
	r->opts.io.fault = NULL;
	pawl_fault_free(fault);
	pawl_state_free(tree);
}

/* ---- the remembered best */

static void
use_scores(struct small_run *r, uint64_t keep_best)
{
	r->opts.retention = (struct pawl_retention)PAWL_RETENTION_INIT;
	r->opts.retention.keep_best = keep_best;
	r->opts.retention.score_attributes = small_scores;
	r->opts.retention.n_scores = 1;
}

static void
test_E7_P6_a_plain_opening_knows_the_best_and_spares_it(void **state)
{
	struct small_run *r = *state;
	char link[256];

	use_scores(r, 5);
	small_open(r);
	small_save(r, 1, 0.9);
	small_save(r, 2, 0.2);
	r->opts.retention = (struct pawl_retention)PAWL_RETENTION_INIT;
	small_open(r);
	assert_int_equal(find(r, "best"), 1);
	small_save(r, 3, NAN); /* a remembered attribute is not a demand */
	assert_int_equal(find(r, "best"), 1);
	ssize_t n = readlink(small_path(r, "best").text, link, sizeof(link) - 1);
	assert_true(n > 0);
	link[n] = '\0';
	assert_string_equal(link, "checkpoints/checkpoint_000001");
	assert_true(holds(r, "run.json", "\"scores\":[[\"accuracy\",1]]"));
	r->opts.retention.keep_last = 1;
	small_open(r);
	small_save(r, 4, NAN);
	ASSERT_IDS("1 4", r->run);
	r->opts.retention.keep_last = 0;
	r->opts.retention.num_to_keep = 2; /* the newest two, as without remembered scores; and the best */
	small_open(r);
	small_save(r, 5, NAN);
	small_save(r, 6, NAN);
	ASSERT_IDS("1 5 6", r->run);
	assert_true(holds(r, "run.json", "\"scores\":[[\"accuracy\",1]]"));
}

static void
test_P6_a_rule_on_request_spares_the_best_of_the_training(void **state)
{
	struct small_run *r = *state;
	struct pawl_retention policy = PAWL_RETENTION_INIT;

	use_scores(r, 5);
	small_open(r);
	small_save(r, 1, 0.9);
	small_save(r, 2, 0.2);
	small_save(r, 3, 0.3);
	policy.keep_last = 1;
	OK(pawl_prune(r->run, &policy, 0, NULL, err));
	ASSERT_IDS("1 3", r->run);
}

static void
test_P13_a_rule_by_a_metric_that_no_checkpoint_has_is_an_error(void **state)
{
	static const char *const slip[] = {"acuracy"};
	struct small_run *r = *state;
	struct pawl_retention policy = PAWL_RETENTION_INIT;

	small_open(r);
	policy.keep_best = 1;
	policy.score_attributes = slip;
	policy.n_scores = 1;
	OK(pawl_prune(r->run, &policy, 0, NULL, err)); /* nothing is there that it could be about */
	small_save(r, 1, 0.9);
	small_save(r, 2, 0.2);
	FAILS(PAWL_EUSAGE, "'acuracy' (expected one of: accuracy)", pawl_prune(r->run, &policy, 0, NULL, err));
	FAILS(PAWL_EUSAGE, "'acuracy' (expected one of: accuracy)", pawl_prune(r->run, &policy, 1, NULL, err));
	ASSERT_IDS("1 2", r->run);
	policy.score_attributes = small_scores;
	OK(pawl_prune(r->run, &policy, 0, NULL, err));
}

/* ---- run.json */

static void
test_E7_a_damaged_run_file_counts_as_lost(void **state)
{
	static const char *const damages[] = {"",
	                                      "{",
	                                      "[1]",
	                                      "{\"pawl_run\":\"x\"}",
	                                      "{\"pawl_run\":1}",
	                                      "{\"pawl_run\":1,\"run\":\"xyz\",\"attempt\":3}"};
	struct small_run *r = *state;
	char id[33];

	small_open(r);
	small_save(r, 1, NAN);
	snprintf(id, sizeof(id), "%s", pawl_run_id(r->run));
	pawl_close(r->run, NULL);
	r->run = NULL;
	for (size_t i = 0; i < COUNT(damages); i++) {
		small_write(r, "run.json", damages[i], strlen(damages[i]));
		r->opts.read_only = 1;
		small_open(r);
		assert_string_equal(pawl_run_id(r->run), id);
		r->opts.read_only = 0;
		small_remove(r, "events.jsonl");
		small_open(r);
		assert_string_equal(pawl_run_id(r->run), id);
		assert_true(holds(r, "run.json", id));
		assert_true(holds(r, "events.jsonl", "\"what\":\"warning\""));
		assert_true(holds(r, "events.jsonl", "run.json"));
		pawl_close(r->run, NULL);
		r->run = NULL;
	}
}

static void
test_a_damaged_run_file_of_an_empty_run_is_begun_anew(void **state)
{
	struct small_run *r = *state;

	small_write(r, "run.json", "{", 1);
	small_open(r);
	assert_int_equal(strlen(pawl_run_id(r->run)), 32);
	assert_true(holds(r, "run.json", pawl_run_id(r->run)));
}

static void
test_a_run_file_of_a_newer_version_or_another_program_is_left_alone(void **state)
{
	static const char newer[] = "{\"pawl_run\":99,\"new\":true}", other[] = "{\"name\":\"theirs\"}";
	struct small_run *r = *state;

	small_write(r, "run.json", newer, strlen(newer));
	FAILS(PAWL_EVERSION, small_path(r, "run.json").text, pawl_open(&r->opts, &r->run, err));
	assert_true(holds(r, "run.json", newer));
	small_write(r, "run.json", other, strlen(other));
	FAILS(PAWL_EEXISTS, small_path(r, "run.json").text, pawl_open(&r->opts, &r->run, err));
	assert_true(holds(r, "run.json", other));
}

/* ---- the wrong root */

static void
test_a_run_is_not_begun_inside_of_another(void **state)
{
	struct small_run *r = *state;
	struct small_path folder = small_path(r, "checkpoints"), one = small_path(r, "checkpoints/checkpoint_000001");
	char root[128], expected[300];

	small_open(r);
	small_save(r, 1, NAN);
	snprintf(root, sizeof(root), "%s", pawl_root(r->run));
	pawl_close(r->run, NULL);
	r->run = NULL;
	r->opts.root = folder.text;
	snprintf(expected, sizeof(expected), "holds the checkpoints of a run; expected the run itself, %s", root);
	FAILS(PAWL_EUSAGE, expected, pawl_open(&r->opts, &r->run, err));
	r->opts.root = one.text;
	snprintf(expected, sizeof(expected), "is a checkpoint, not a run; expected %s", root);
	FAILS(PAWL_EUSAGE, expected, pawl_open(&r->opts, &r->run, err));
	assert_false(small_exists(r, "checkpoints/run.json"));
	assert_false(small_exists(r, "checkpoints/checkpoint_000001/run.json"));
	small_rename(r, "checkpoints/checkpoint_000001", "alone"); /* copied out of its run, say */
	struct small_path alone = small_path(r, "alone");
	r->opts.root = alone.text;
	FAILS(PAWL_EUSAGE, "expected the folder of a run", pawl_open(&r->opts, &r->run, err));
	/* a manifest.json of another program is not ours */
	small_mkdir(r, "other");
	small_write(r, "other/manifest.json", "{\"name\":1}", 10);
	struct small_path other = small_path(r, "other");
	r->opts.root = other.text;
	small_open(r);
}

static void
test_a_root_that_is_a_file_is_told_from_a_folder(void **state)
{
	struct small_run *r = *state;
	struct small_path file = small_path(r, "file"), below = small_path(r, "file/run");
	char expected[1100];

	small_write(r, "file", "x", 1);
	r->opts.root = file.text;
	FAILS(PAWL_EEXISTS, "is a file, expected a folder", pawl_open(&r->opts, &r->run, err));
	r->opts.root = below.text;
	snprintf(expected, sizeof(expected), "%s is a file, expected a folder", file.text);
	FAILS(PAWL_EEXISTS, expected, pawl_open(&r->opts, &r->run, err));
}

static void
test_who_writes_a_run_is_told_with_its_folder(void **state)
{
	struct small_run *r = *state;
	struct pawl *other = NULL;

	small_open(r);
	FAILS(PAWL_EBUSY, pawl_root(r->run), pawl_open(&r->opts, &other, err));
}

static void
test_a_mean_time_between_failures_is_no_negative_number(void **state)
{
	static const double bad[] = {-1, -INFINITY, NAN};
	struct small_run *r = *state;

	for (size_t i = 0; i < COUNT(bad); i++) {
		r->opts.timeouts.mtbf_seconds = bad[i];
		FAILS(PAWL_EUSAGE, "mtbf_seconds", pawl_open(&r->opts, &r->run, err));
	}
}

/* Times are added to clocks in milliseconds and nanoseconds. A time that would not fit is refused
 * at once, and the error names it. */
static void
test_P16_a_timeout_that_no_clock_can_hold_is_refused(void **state)
{
	struct small_run *r = *state;
	const struct {
		const char *name;
		int64_t *value;
		int64_t low_ms;
	} times[] = {{"timeouts.commit_ms", &r->opts.timeouts.commit_ms, 100},
	             {"timeouts.lease_ms", &r->opts.timeouts.lease_ms, 1000},
	             {"timeouts.upload_ms", &r->opts.timeouts.upload_ms, 1}};
	const int64_t longest_ms = 1000000000000;

	for (size_t i = 0; i < COUNT(times); i++) {
		const int64_t bad[] = {times[i].low_ms - 1, -1, INT64_MIN, longest_ms + 1, INT64_MAX};

		for (size_t k = 0; k < COUNT(bad); k++) {
			if (bad[k] == 0)
				continue;
			*times[i].value = bad[k];
			FAILS(PAWL_EUSAGE, times[i].name, pawl_open(&r->opts, &r->run, err));
		}
		*times[i].value = longest_ms;
	}
	OK(pawl_open(&r->opts, &r->run, err)); /* the control */
}

/* ---- the caller's error */

static void
save_quietly(struct pawl *run, int64_t step, double loss)
{
	struct pawl_metric metric = {.name = "loss", .value = loss};
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	struct pawl_tensor tensor = PAWL_TENSOR_INIT;
	struct pawl_scalar key = {.type = PAWL_STR, .ptr = "k", .len = 1}, value = {.type = PAWL_FLOAT, .f = 0.5};
	struct pawl_state *tree, *metadata;
	struct pawl_ticket *ticket;
	uint64_t shape[] = {4};
	float data[4] = {1, 2, 3, 4};
	int64_t number;
	double real;
	const char *text;

	tensor.dtype = PAWL_F32;
	tensor.ndim = 1;
	tensor.shape = shape;
	tensor.data = data;
	QUIET(pawl_state_new(&tree, err));
	QUIET(pawl_state_set_tensor(tree, "model/w", &tensor, err));
	QUIET(pawl_state_set_none(tree, "none", err));
	QUIET(pawl_state_set_bool(tree, "bool", 1, err));
	QUIET(pawl_state_set_int(tree, "int", step, err));
	QUIET(pawl_state_set_float(tree, "float", 0.5, err));
	QUIET(pawl_state_set_str(tree, "str", "x", err));
	QUIET(pawl_state_set_bytes(tree, "bytes", "x", 1, err));
	QUIET(pawl_state_get_int(tree, "int", &number, err));
	QUIET(pawl_state_get_float(tree, "float", &real, err));
	QUIET(pawl_state_get_str(tree, "str", &text, err));
	QUIET(pawl_state_new(&metadata, err));
	QUIET(pawl_state_begin(metadata, PAWL_DICT, err));
	QUIET(pawl_state_key(metadata, &key, err));
	QUIET(pawl_state_add(metadata, &value, err));
	QUIET(pawl_state_end(metadata, err));
	save.step = step;
	save.metrics = &metric;
	save.n_metrics = 1;
	save.metadata = metadata;
	QUIET(pawl_should_save(run, step, NULL, err));
	QUIET(pawl_save(run, &save, tree, &ticket, err));
	QUIET(pawl_fence(run, -1, err));
	QUIET(pawl_ticket_wait_for(ticket, PAWL_STAGE_COMMITTED, -1, err));
	QUIET(pawl_ticket_wait(ticket, -1, err));
	QUIET(pawl_wait(run, -1, err));
	QUIET(pawl_check(run, err));
	pawl_ticket_free(ticket);
	pawl_state_free(metadata);
	pawl_state_free(tree);
}

static void
restore_quietly(struct pawl *run)
{
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	struct pawl_restore *restore;
	struct pawl_state *live;
	struct pawl_tensor tensor = PAWL_TENSOR_INIT;
	uint64_t shape[] = {4};
	float data[4];

	tensor.dtype = PAWL_F32;
	tensor.ndim = 1;
	tensor.shape = shape;
	tensor.data = data;
	opts.non_strict = 1;
	QUIET(pawl_restore_open(run, &opts, &restore, err));
	QUIET(pawl_restore_bind(restore, 0, &tensor, err));
	QUIET(pawl_state_new(&live, err));
	QUIET(pawl_state_set_tensor(live, "model/w", &tensor, err));
	QUIET(pawl_restore_match(restore, live, err));
	QUIET(pawl_restore_fallback(restore, NULL, err));
	QUIET(pawl_restore_bind(restore, 0, &tensor, err));
	QUIET(pawl_restore_read(restore, err));
	pawl_restore_close(restore);
	QUIET(pawl_restore(run, &opts, live, NULL, err));
	pawl_state_free(live);
}

static void
look_quietly(struct small_run *r)
{
	struct pawl_findings *findings;
	struct pawl_state *metadata;
	struct pawl_list *list;
	struct pawl_hold *hold;
	struct pawl_rows *rows;
	uint64_t id, bytes;

	QUIET(pawl_find(r->run, "latest", &id, err));
	QUIET(pawl_reload(r->run, err));
	QUIET(pawl_list_open(r->run, 1, &list, err));
	QUIET(pawl_metadata(r->run, id, &metadata, err));
	QUIET(pawl_wait_for_new(r->run, 0, 0, &id, err));
	QUIET(pawl_hold_open(r->run, id, &hold, err));
	QUIET(pawl_verify(r->run, 0, NULL, &findings, err));
	QUIET(pawl_gc(r->run, 1, NULL, &id, &bytes, err));
	QUIET(pawl_doctor(r->root, &rows, err));
	pawl_rows_free(rows);
	pawl_findings_free(findings);
	pawl_hold_close(hold);
	pawl_state_free(metadata);
	pawl_list_free(list);
}

static void
test_a_call_that_succeeds_leaves_the_error_alone(void **state)
{
	struct small_run *r = *state;
	struct pawl_metric late = {.name = "late", .value = 1};
	struct pawl_retention policy = PAWL_RETENTION_INIT;
	struct pawl_decisions *decisions;
	struct pawl_arena *arena;
	struct pawl_rank rank = PAWL_RANK_INIT;
	uint64_t n, bytes;

	QUIET(pawl_arena_new(0, &arena, err));
	QUIET(pawl_arena_reserve(arena, 1, err));
	QUIET(pawl_rank_identify(&rank, err));
	r->opts.staging.arena = arena;
	QUIET(pawl_open(&r->opts, &r->run, err)); /* a new run: nothing is there */
	for (int i = 1; i <= 3; i++)
		save_quietly(r->run, i, i);
	restore_quietly(r->run);
	look_quietly(r);
	QUIET(pawl_pin(r->run, 1, err));
	QUIET(pawl_unpin(r->run, 1, err));
	QUIET(pawl_score(r->run, 1, &late, 1, err));
	policy.keep_last = 2;
	QUIET(pawl_prune(r->run, &policy, 1, &decisions, err));
	pawl_decisions_free(decisions);
	QUIET(pawl_prune(r->run, &policy, 0, NULL, err));
	QUIET(pawl_remove(r->run, 2, 1, err));
	QUIET(pawl_gc(r->run, 0, NULL, &n, &bytes, err));
	small_rename(r, "checkpoints/checkpoint_000003/manifest.json", "manifest.json");
	QUIET(pawl_repair(r->run, "checkpoint_000003", 0, NULL, err));
	QUIET(pawl_close(r->run, err));
	small_remove(r, "manifest.json");
	small_remove(r, "run.json"); /* lost */
	QUIET(pawl_open(&r->opts, &r->run, err));
	QUIET(pawl_close(r->run, err));
	r->opts.read_only = 1;
	QUIET(pawl_open(&r->opts, &r->run, err));
	QUIET(pawl_close(r->run, err));
	r->run = NULL;
	struct small_path one = small_path(r, "one");
	struct pawl_open_opts single = PAWL_OPEN_OPTS_INIT;
	struct pawl *run;
	single.root = one.text;
	single.single = 1;
	QUIET(pawl_open(&single, &run, err));
	save_quietly(run, 1, 1);
	QUIET(pawl_close(run, err));
	single.read_only = 1;
	QUIET(pawl_open(&single, &run, err));
	QUIET(pawl_verify(run, 0, NULL, NULL, err));
	QUIET(pawl_close(run, err));
	pawl_arena_free(arena);
}

int
main(void)
{
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, small_setup, small_teardown)
	const struct CMUnitTest tests[] = {
		CASE(test_R137_intervals_count_from_the_checkpoint_that_was_restored),
		CASE(test_R137_intervals_count_from_the_older_one_that_a_fallback_took),
		CASE(test_R137_the_clock_goes_on_from_the_checkpoint_that_was_restored),
		CASE(test_after_a_failed_save_the_next_point_is_due),
		CASE(test_E7_P6_a_plain_opening_knows_the_best_and_spares_it),
		CASE(test_P6_a_rule_on_request_spares_the_best_of_the_training),
		CASE(test_P13_a_rule_by_a_metric_that_no_checkpoint_has_is_an_error),
		CASE(test_E7_a_damaged_run_file_counts_as_lost),
		CASE(test_a_damaged_run_file_of_an_empty_run_is_begun_anew),
		CASE(test_a_run_file_of_a_newer_version_or_another_program_is_left_alone),
		CASE(test_a_run_is_not_begun_inside_of_another),
		CASE(test_a_root_that_is_a_file_is_told_from_a_folder),
		CASE(test_who_writes_a_run_is_told_with_its_folder),
		CASE(test_a_mean_time_between_failures_is_no_negative_number),
		CASE(test_P16_a_timeout_that_no_clock_can_hold_is_refused),
		CASE(test_a_call_that_succeeds_leaves_the_error_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
