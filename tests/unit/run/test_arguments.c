/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments that are odd: names that are missing or given twice, lists that are NULL, a caller who
 * wants no error. They are refused in words, and nothing has changed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "helpers/hang.h"
#include "helpers/small_run.h"

/* ---- names and lists of names */

static size_t
count_metrics(struct small_run *r)
{
	struct pawl_list *list;

	OK(pawl_list_open(r->run, 0, &list, err));
	size_t n = pawl_list_get(list, 0)->n_metrics;

	pawl_list_free(list);
	return n;
}

static void
test_metrics_without_a_name_or_given_twice_are_refused(void **state)
{
	struct small_run *r = *state;
	const struct pawl_metric none[] = {{.name = "loss"}, {.name = NULL}};
	const struct pawl_metric empty = {.name = ""};
	const struct pawl_metric text = {.name = NULL, .not_a_number = 1};
	const struct pawl_metric twice[] = {{.name = "loss", .value = 1}, {.name = "f1"}, {.name = "loss", .value = 2}};
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	struct pawl_state *tree;

	small_open(r);
	small_save(r, 1, 0.5);
	FAILS(PAWL_EUSAGE, "score: metric 2 of 2 has no name", pawl_score(r->run, 1, none, 2, err));
	FAILS(PAWL_EUSAGE, "score: metric 1 of 1 has no name", pawl_score(r->run, 1, &empty, 1, err));
	FAILS(PAWL_EUSAGE, "score: metric 1 of 1 has no name", pawl_score(r->run, 1, &text, 1, err));
	FAILS(PAWL_EUSAGE, "score: metric 'loss' is given twice", pawl_score(r->run, 1, twice, 3, err));
	assert_int_equal(pawl_score(r->run, 1, none, 2, NULL), PAWL_EUSAGE);
	assert_int_equal(count_metrics(r), 1);
	OK(pawl_state_new(&tree, err));
	OK(pawl_state_set_int(tree, "x", 1, err));
	save.metrics = none;
	save.n_metrics = 2;
	FAILS(PAWL_EUSAGE, "save: metric 2 of 2 has no name", pawl_save(r->run, &save, tree, NULL, err));
	save.metrics = twice;
	save.n_metrics = 3;
	FAILS(PAWL_EUSAGE, "save: metric 'loss' is given twice", pawl_save(r->run, &save, tree, NULL, err));
	pawl_state_free(tree);
	OK(pawl_score(r->run, 1, twice, 2, err)); /* the control */
	assert_int_equal(count_metrics(r), 3);
}

static void
test_lists_of_names_that_are_NULL_are_refused(void **state)
{
	struct small_run *r = *state;
	const char *const hole[] = {"model/*", NULL};
	struct pawl_restore_opts opts;

	small_open(r);
	small_save(r, 1, NAN);
	for (int i = 0; i < 2; i++) {
		const char *const *list = i ? hole : NULL;
		const char *what = i ? "number 2 of 2 is NULL" : "expected 2 texts, found NULL";

		opts = (struct pawl_restore_opts)PAWL_RESTORE_OPTS_INIT;
		opts.include = list;
		opts.n_include = 2;
		FAILS(PAWL_EUSAGE, what, pawl_restore(r->run, &opts, NULL, NULL, err));
		opts = (struct pawl_restore_opts)PAWL_RESTORE_OPTS_INIT;
		opts.rename = list;
		opts.n_rename = 2;
		FAILS(PAWL_EUSAGE, what, pawl_restore(r->run, &opts, NULL, NULL, err));
		opts = (struct pawl_restore_opts)PAWL_RESTORE_OPTS_INIT;
		opts.cast = list;
		opts.n_cast = 2;
		FAILS(PAWL_EUSAGE, what, pawl_restore(r->run, &opts, NULL, NULL, err));
	}
}

/* ---- functions of the caller that fail and give no reason */

static int
fill_nothing(void *arg, void *dst, size_t nbytes, struct pawl_error *err)
{
	(void)arg, (void)dst, (void)nbytes, (void)err;
	return PAWL_EDEVICE;
}

static int
keep_nothing(void *arg, const struct pawl_candidate *candidates, size_t n, unsigned char *keep, struct pawl_error *err)
{
	(void)arg, (void)candidates, (void)n, (void)keep, (void)err;
	return PAWL_EUNSUPPORTED;
}

static int
end_the_wait(void *arg, int64_t waited_ms, const char *why, struct pawl_error *err)
{
	(void)arg, (void)waited_ms, (void)why, (void)err;
	return PAWL_ECANCELLED;
}

static void
test_a_function_that_fails_without_a_reason_is_named(void **state)
{
	struct small_run *r = *state;
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	struct pawl_retention policy = PAWL_RETENTION_INIT;
	struct pawl_tensor tensor = PAWL_TENSOR_INIT;
	struct pawl_open_opts again = PAWL_OPEN_OPTS_INIT;
	struct pawl_error why = {0};
	struct pawl_state *tree;
	struct pawl *second;
	uint64_t n = 4;

	small_open(r);
	small_save(r, 1, NAN);
	tensor.dtype = PAWL_F32;
	tensor.ndim = 1;
	tensor.shape = &n;
	tensor.fill = fill_nothing;
	OK(pawl_state_new(&tree, err));
	OK(pawl_state_set_tensor(tree, "model/w", &tensor, err));
	FAILS(PAWL_EDEVICE, "tensor 'model/w': its fill function failed and gave no reason",
	      pawl_save(r->run, &save, tree, NULL, err));
	pawl_state_free(tree);
	policy.keep = keep_nothing;
	FAILS(PAWL_EUNSUPPORTED, "the rule of the caller failed and gave no reason",
	      pawl_prune(r->run, &policy, 1, NULL, err));
	again.root = r->root;
	again.on_lease_wait = end_the_wait;
	again.timeouts.lease_wait_ms = HANG_MS;
	FAILS(PAWL_ECANCELLED, "the wait for the lease failed and gave no reason", pawl_open(&again, &second, err));
	assert_int_equal(pawl_open(&again, &second, &why), PAWL_ECANCELLED);
	assert_int_equal(why.code, PAWL_ECANCELLED);
}

/* ---- what a failure leaves alone */

static void
test_a_prune_that_fails_at_the_end_gives_no_decisions(void **state)
{
	struct small_run *r = *state;
	struct pawl_decisions *decisions = NULL;
	struct pawl_retention policy = PAWL_RETENTION_INIT;

	small_open(r);
	small_save(r, 1, NAN);
	small_save(r, 2, NAN);
	small_remove(r, "latest");
	small_mkdir(r, "latest"); /* the pointer cannot be written */
	small_mkdir(r, "latest/taken");
	policy.keep_last = 1;
	assert_true(pawl_prune(r->run, &policy, 0, &decisions, NULL) < 0);
	assert_null(decisions);
	small_remove(r, "latest");
	OK(pawl_prune(r->run, &policy, 0, &decisions, err)); /* the control */
	assert_int_equal(pawl_decisions_count(decisions), 1);
	pawl_decisions_free(decisions);
}

static void
test_a_policy_without_a_size_is_refused(void **state)
{
	struct small_run *r = *state;
	struct pawl_retention none = {.keep_last = 1};
	const struct small_path there = small_path(r, "there");
	const struct pawl_mirror mirror = {.url = there.text, .retention = &none};

	small_open(r);
	small_save(r, 1, NAN);
	FAILS(PAWL_EUSAGE, "start from PAWL_RETENTION_INIT", pawl_prune(r->run, &none, 1, NULL, err));
	pawl_close(r->run, NULL);
	r->run = NULL;
	r->opts.mirrors = &mirror;
	r->opts.n_mirrors = 1;
	FAILS(PAWL_EUSAGE, "start from PAWL_RETENTION_INIT", pawl_open(&r->opts, &r->run, err));
}

/* ---- options that cannot work */

static void
test_a_run_in_memory_is_not_opened_to_be_read(void **state)
{
	struct small_run *r = *state;
	int *const flags[] = {&r->opts.read_only, &r->opts.single, &r->opts.maintenance};
	const char *const names[] = {"found read_only", "found single", "found maintenance"};

	r->opts.retention.num_to_keep = PAWL_KEEP_MEMORY;
	for (size_t i = 0; i < COUNT(flags); i++) {
		*flags[i] = 1;
		FAILS(PAWL_EUSAGE, names[i], pawl_open(&r->opts, &r->run, err));
		*flags[i] = 0;
	}
	OK(pawl_open(&r->opts, &r->run, err)); /* the control */
}

static void
test_numbers_that_nothing_can_have_are_refused(void **state)
{
	struct small_run *r = *state;
	struct pawl_fault *fault = NULL;
	struct pawl_arena *arena;

	r->opts.naming.after_id = UINT64_MAX;
	FAILS(PAWL_EUSAGE, "after_id", pawl_open(&r->opts, &r->run, err));
	r->opts.naming.after_id = INT64_MAX;
	FAILS(PAWL_EUSAGE, "after_id", pawl_open(&r->opts, &r->run, err));
	r->opts.naming.after_id = 0;
	r->opts.staging.arena_bytes = 17;
	FAILS(PAWL_EUSAGE, "staging.arena_bytes: expected 8388608 to", pawl_open(&r->opts, &r->run, err));
	r->opts.staging.arena_bytes = 0;
	r->opts.naming.after_id = UINT64_C(1) << 62;
	small_open(r);
	small_save(r, 1, NAN);
	small_open(r);
	small_save(r, 2, NAN);
	ASSERT_IDS("4611686018427387905 4611686018427387906", r->run);
	FAILS(PAWL_EUSAGE, "-21 is not an error code", pawl_fault_new("put", 1, PAWL_EDEVICE - 1, 0, &fault, err));
	OK(pawl_fault_new("put", 1, PAWL_EDEVICE, 0, &fault, err));
	pawl_fault_free(fault);
	OK(pawl_arena_new(0, &arena, err));
	FAILS(PAWL_ELIMIT, "cannot be mapped", pawl_arena_reserve(arena, SIZE_MAX, err));
	pawl_arena_free(arena);
}

static void
test_a_single_checkpoint_is_not_put_into_memory(void **state)
{
	struct small_run *r = *state;
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	struct pawl *run = NULL;

	small_open(r);
	small_save(r, 1, NAN);
	opts.root = "mem:";
	opts.single = 1;
	FAILS(PAWL_EUSAGE, "a single checkpoint needs a path or a URL", pawl_open(&opts, &run, err));
	FAILS(PAWL_EUSAGE, "mem: is lost when it is closed", pawl_copy(r->run, 1, "mem:", NULL, NULL, NULL, err));
	opts.single = 0;
	OK(pawl_open(&opts, &run, err)); /* the control */
	OK(pawl_close(run, err));
}

/* ---- nothing where a handle or a result belongs */

static void
test_a_NULL_is_an_error_of_every_call_that_can_fail(void **state)
{
	const struct pawl_tensor tensor = PAWL_TENSOR_INIT;
	struct pawl_state *tree;

	(void)state;
	OK(pawl_state_new(&tree, err));
	OK(pawl_state_set_int(tree, "int", 1, err));
	OK(pawl_state_set_float(tree, "float", 1, err));
	OK(pawl_state_set_str(tree, "str", "1", err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_state_get_int(tree, "int", NULL, err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_state_get_float(tree, "float", NULL, err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_state_get_str(tree, "str", NULL, err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_parse_bytes("1", NULL, err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_parse_seconds("1", NULL, err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_places_open("/", 0, NULL, err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_arena_new(0, NULL, err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_watch_open(1, NULL, err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_fault_new("put", 1, PAWL_EIO, 0, NULL, err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_restore_match(NULL, tree, err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_restore_bind(NULL, 0, &tensor, err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_restore_piece(NULL, 0, 0, NULL, NULL, err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_restore_read(NULL, err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_restore_fallback(NULL, NULL, err));
	pawl_state_free(tree);
}

/* ---- values per rank */

static void
test_a_value_per_rank_has_one_child(void **state)
{
	const struct pawl_scalar key = {.type = PAWL_STR, .ptr = "seed", .len = 4}, one = {.type = PAWL_INT, .i = 1};
	struct pawl_state *tree;

	(void)state;
	for (uint32_t world = 1; world <= 2; world++) {
		OK(pawl_state_new(&tree, err));
		OK(pawl_state_set_rank(tree, 0, world, err));
		OK(pawl_state_begin(tree, PAWL_DICT, err));
		OK(pawl_state_key(tree, &key, err));
		OK(pawl_state_begin(tree, PAWL_PER_RANK, err));
		OK(pawl_state_add(tree, &one, err));
		FAILS(PAWL_EUSAGE, "one child, the value of this rank", pawl_state_add(tree, &one, err));
		FAILS(PAWL_EUSAGE, "seed", pawl_state_begin(tree, PAWL_LIST, err));
		OK(pawl_state_end(tree, err));
		OK(pawl_state_end(tree, err));
		pawl_state_free(tree);
		OK(pawl_state_new(&tree, err));
		FAILS(PAWL_EUSAGE, "is not a container", pawl_state_begin(tree, PAWL_DIFFERS, err));
		pawl_state_free(tree);
	}
}

int
main(void)
{
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, small_setup, small_teardown)
	const struct CMUnitTest tests[] = {
		CASE(test_metrics_without_a_name_or_given_twice_are_refused),
		CASE(test_lists_of_names_that_are_NULL_are_refused),
		CASE(test_a_function_that_fails_without_a_reason_is_named),
		CASE(test_a_prune_that_fails_at_the_end_gives_no_decisions),
		CASE(test_a_policy_without_a_size_is_refused),
		CASE(test_a_run_in_memory_is_not_opened_to_be_read),
		CASE(test_numbers_that_nothing_can_have_are_refused),
		CASE(test_a_single_checkpoint_is_not_put_into_memory),
		CASE(test_a_NULL_is_an_error_of_every_call_that_can_fail),
		CASE(test_a_value_per_rank_has_one_child),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
