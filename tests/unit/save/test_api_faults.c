/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every call of pawl.h with every allocation of it failing, one at a time and from one on. The call
 * returns PAWL_ENOMEM or succeeds, leaves its out-parameters alone when it fails, leaks nothing,
 * and leaves the run as it was (P4).
 *
 * The allocations are intercepted in this program: failing_malloc.h.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <sys/wait.h>

#include "helpers/faults_bed.h"

/* ------------------------------------------------------------------ states */

static int
build_state(struct bed *b, struct pawl_error *err)
{
	const struct pawl_scalar key = {.type = PAWL_INT, .i = 5}, text = {.type = PAWL_STR, .ptr = "key", .len = 3};
	const struct pawl_scalar value = {.type = PAWL_FLOAT, .f = 1.5},
				 bytes = {.type = PAWL_BYTES, .ptr = "\0\1", .len = 2};
	struct pawl_tensor t = PAWL_TENSOR_INIT;
	struct pawl_state *s = UNTOUCHED;
	uint64_t shape[] = {N_BIAS};
	int rc = pawl_state_new(&s, err);

	if (rc < 0) {
		assert_ptr_equal(s, UNTOUCHED);
		return rc;
	}
	t.dtype = PAWL_F32;
	t.ndim = 1;
	t.shape = shape;
	t.data = b->bias;
	rc = pawl_state_begin(s, PAWL_DICT, err);
	for (int i = 0; rc == 0 && i < 20; i++) {
		struct pawl_scalar k = {.type = PAWL_INT, .i = 100 + i};

		rc = pawl_state_key(s, &k, err);
		rc = rc < 0 ? rc : pawl_state_add_tensor(s, &t, err);
	}
	rc = rc < 0 ? rc : pawl_state_key(s, &key, err);
	rc = rc < 0 ? rc : pawl_state_begin(s, PAWL_TUPLE, err);
	rc = rc < 0 ? rc : pawl_state_add(s, &value, err);
	rc = rc < 0 ? rc : pawl_state_add(s, &bytes, err);
	rc = rc < 0 ? rc : pawl_state_end(s, err);
	rc = rc < 0 ? rc : pawl_state_key(s, &text, err);
	rc = rc < 0 ? rc : pawl_state_add(s, &text, err);
	rc = rc < 0 ? rc : pawl_state_end(s, err);
	pawl_state_free(s);
	return rc;
}

static int
set_paths(struct bed *b, struct pawl_error *err)
{
	char *longer = calloc(1, 6000);
	struct pawl_state *s = NULL;
	int rc = longer ? pawl_state_new(&s, err) : PAWL_ENOMEM;

	if (!longer)
		*err = (struct pawl_error){.code = PAWL_ENOMEM, .message = "the test's own"};
	else
		memset(longer, 'x', 5999);
	rc = rc < 0 ? rc : pawl_state_set_none(s, "a/none", err);
	rc = rc < 0 ? rc : pawl_state_set_bool(s, "a/bool", 1, err);
	rc = rc < 0 ? rc : pawl_state_set_int(s, "a/b/int", 1, err);
	rc = rc < 0 ? rc : pawl_state_set_float(s, "a/b/float", 1, err);
	rc = rc < 0 ? rc : pawl_state_set_str(s, "a/b/c/text", longer, err);
	rc = rc < 0 ? rc : pawl_state_set_bytes(s, "a/b/c/bytes", b->bias, sizeof(b->bias), err);
	pawl_state_free(s);
	free(longer);
	return rc;
}

static void
test_states(void **state)
{
	SWEEP(*state, "state, full building", NULL, build_state, 0);
	SWEEP(*state, "state, by paths", NULL, set_paths, 0);
}

/* ---------------------------------------------------------- opening, closing */

static void
close_first(struct bed *b)
{
	pawl_close(b->run, NULL);
	b->run = NULL;
}

static int
open_and_close(struct bed *b, struct pawl_error *err)
{
	struct pawl *run = UNTOUCHED;
	int rc = pawl_open(&b->opts, &run, err);

	if (rc < 0) {
		assert_ptr_equal(run, UNTOUCHED);
		return rc;
	}
	return pawl_close(run, err);
}

static int
open_read_only(struct bed *b, struct pawl_error *err)
{
	struct pawl_open_opts opts = b->opts;
	struct pawl *run = UNTOUCHED;

	opts.read_only = 1;
	int rc = pawl_open(&opts, &run, err);
	assert_true(rc == 0 || run == UNTOUCHED);
	return rc < 0 ? rc : pawl_close(run, err);
}

static int
open_in_memory(struct bed *b, struct pawl_error *err)
{
	struct pawl_open_opts opts = b->opts;
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	struct pawl *run = NULL;

	opts.root = "mem:";
	int rc = pawl_open(&opts, &run, err);
	rc = rc < 0 ? rc : pawl_save(run, &save, b->state, NULL, err);
	rc = rc < 0 ? rc : pawl_wait(run, -1, err);
	int closed = pawl_close(run, rc < 0 ? NULL : err);
	return rc < 0 ? rc : closed;
}

static void
remove_new(struct bed *b)
{
	close_first(b);
	small_remove(&b->files, "new");
}

static int
open_new(struct bed *b, struct pawl_error *err)
{
	struct pawl_open_opts opts = b->opts;
	struct pawl *run = NULL;
	struct small_path root = small_path(&b->files, "new/folder");

	opts.root = root.text;
	opts.naming.name_template = "ep{epoch}-ba{batch}-{id}";
	opts.save_interval = "1ep";
	opts.retention.score_attributes = small_scores;
	opts.retention.n_scores = 1;
	int rc = pawl_open(&opts, &run, err);
	return rc < 0 ? rc : pawl_close(run, err);
}

static int
single_checkpoint(struct bed *b, struct pawl_error *err)
{
	struct pawl_open_opts opts = b->opts;
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	struct small_path root = small_path(&b->files, "alone");
	struct pawl *run = NULL;

	opts.root = root.text;
	opts.single = 1;
	opts.overwrite = 1;
	int rc = pawl_open(&opts, &run, err);
	rc = rc < 0 ? rc : pawl_save(run, &save, b->state, NULL, err);
	rc = rc < 0 ? rc : pawl_wait(run, -1, err);
	int closed = pawl_close(run, rc < 0 ? NULL : err);
	rc = rc < 0 ? rc : closed;
	opts.read_only = 1;
	rc = rc < 0 ? rc : pawl_open(&opts, &run, err);
	return rc < 0 ? rc : pawl_close(run, err);
}

static void
leave_rubbish(struct bed *b)
{
	static const char *const holds = ".pawl/holds";
	char name[256];

	if (!b->run)
		reopen(b);
	if (!small_exists(&b->files, ".pawl"))
		small_mkdir(&b->files, ".pawl");
	if (!small_exists(&b->files, holds))
		small_mkdir(&b->files, holds);
	snprintf(name, sizeof(name), "%s/%032d.json", holds, 7);
	small_write(&b->files, name, "{", 1);
	const char *partial = "checkpoints/.checkpoint_000009.0123456789abcdef0123456789abcdef.partial";
	if (!small_exists(&b->files, partial))
		small_mkdir(&b->files, partial);
}

static void
leave_rubbish_and_close(struct bed *b)
{
	leave_rubbish(b);
	close_first(b);
}

static void
test_opening(void **state)
{
	SWEEP(*state, "open", close_first, open_and_close, 0);
	SWEEP(*state, "open what a crash left", leave_rubbish_and_close, open_and_close, 0);
	SWEEP(*state, "open a new folder", remove_new, open_new, 0);
	SWEEP(*state, "open to read", close_first, open_read_only, 0);
	SWEEP(*state, "open and save in memory", close_first, open_in_memory, 0);
	SWEEP(*state, "a single checkpoint", close_first, single_checkpoint, 0);
}

static int
use_arena(struct bed *b, struct pawl_error *err)
{
	struct pawl_arena *arena = UNTOUCHED;
	int rc = pawl_arena_new(0, &arena, err);

	(void)b;
	if (rc < 0) {
		assert_ptr_equal(arena, UNTOUCHED);
		return rc;
	}
	rc = pawl_arena_reserve(arena, 1 << 20, err);
	pawl_arena_free(arena);
	return rc;
}

static int
use_small_things(struct bed *b, struct pawl_error *err)
{
	struct pawl_fault *f = UNTOUCHED;
	struct pawl_watch *w = UNTOUCHED;
	int rc = pawl_fault_new("put", 1, PAWL_EIO, 0, &f, err);

	(void)b;
	if (rc < 0) {
		assert_ptr_equal(f, UNTOUCHED);
		return rc;
	}
	pawl_fault_free(f);
	rc = pawl_watch_open(0, &w, err);
	if (rc < 0)
		assert_ptr_equal(w, UNTOUCHED);
	else
		pawl_watch_close(w);
	return rc;
}

static int
prepare_memory(struct bed *b, struct pawl_error *err)
{
	return pawl_prepare(b->run, b->state, err);
}

static void
test_arenas_faults_watches(void **state)
{
	SWEEP(*state, "prepare", reopen, prepare_memory, 0);
	SWEEP(*state, "arena", NULL, use_arena, 0);
	SWEEP(*state, "fault and watch", NULL, use_small_things, 0);
}

/* ------------------------------------------------------------------ saving */

static void
test_saving(void **state)
{
	struct bed *b = *state;

	b->opts.retention.num_to_keep = 3;
	SWEEP(b, "save", clear_and_change, save_now, 3);
	b->save.lazy = 1;
	SWEEP(b, "save, lazy", clear_and_change, save_now, 3);
	b->save.lazy = 0;
	b->save.mode = PAWL_MODE_DIRECT + 1;
	SWEEP(b, "save, direct", clear_and_change, save_now, 3);
	b->save.mode = PAWL_MODE_RING + 1;
	SWEEP(b, "save, ring", clear_and_change, save_now, 3);
}

static void
test_saving_with_scores_and_recycling(void **state)
{
	struct bed *b = *state;

	b->opts.retention.num_to_keep = 2;
	b->opts.retention.score_attributes = small_scores;
	b->opts.retention.n_scores = 1;
	b->opts.packs.recycle = 2;
	SWEEP(b, "save, recycling", clear_and_change, save_now, 2);
	b->opts.retention.strict_score = 1;
	b->opts.nonfinite = 1;
	SWEEP(b, "save, strict score", clear_and_change, save_now, 2);
}

static int
save_two(struct bed *b, struct pawl_error *err)
{
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	struct pawl_ticket *tickets[3] = {NULL, NULL, NULL};
	int rc = 0;

	for (int i = 0; rc == 0 && i < 3; i++)
		rc = pawl_save(b->run, &save, b->state, &tickets[i], err);
	for (int i = 0; i < 3; i++) {
		if (!tickets[i])
			continue;
		struct pawl_error own = {0};
		int done = pawl_ticket_wait(tickets[i], -1, &own);

		if (rc == 0 && done < 0 && done != PAWL_ECANCELLED) { /* replaced by a newer one */
			rc = done;
			*err = own;
		}
		pawl_ticket_free(tickets[i]);
	}
	int other = pawl_wait(b->run, -1, rc < 0 ? NULL : err);
	return rc < 0 ? rc : other;
}

static void
test_saving_that_overlaps(void **state)
{
	struct bed *b = *state;

	b->opts.retention.num_to_keep = 3;
	b->opts.on_busy = PAWL_BUSY_REPLACE;
	SWEEP(b, "save, replace", clear_and_change, save_two, 3);
}

/* ----------------------------------------------------------------- looking */

static int
list_all(struct bed *b, struct pawl_error *err)
{
	struct pawl_list *list = UNTOUCHED;
	int rc = pawl_list_open(b->run, 1, &list, err);

	assert_true(rc == 0 || list == UNTOUCHED);
	if (rc == 0)
		pawl_list_free(list);
	return rc;
}

static int
find_all(struct bed *b, struct pawl_error *err)
{
	static const char *const selectors[] = {"latest", "good", "step:2", "id:1", "2", "checkpoint_000003"};
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < COUNT(selectors); i++) {
		uint64_t id = 77;

		rc = pawl_find(b->run, selectors[i], &id, err);
		assert_true(rc == 0 ? id != 77 : id == 77);
	}
	return rc;
}

static int
read_metadata(struct bed *b, struct pawl_error *err)
{
	struct pawl_state *found = UNTOUCHED;
	int rc = pawl_metadata(b->run, 1, &found, err);

	assert_true(rc == 0 || found == UNTOUCHED);
	if (rc == 0)
		pawl_state_free(found);
	return rc;
}

static int
reload(struct bed *b, struct pawl_error *err)
{
	return pawl_reload(b->run, err);
}

static int
wait_for_new(struct bed *b, struct pawl_error *err)
{
	uint64_t id = 77;
	int rc = pawl_wait_for_new(b->run, 1, 0, &id, err);

	assert_true(rc == 0 ? id == 3 : id == 77);
	return rc;
}

static int
hold_one(struct bed *b, struct pawl_error *err)
{
	struct pawl_hold *hold = UNTOUCHED;
	int rc = pawl_hold_open(b->run, 2, &hold, err);

	if (rc < 0)
		assert_ptr_equal(hold, UNTOUCHED);
	else
		pawl_hold_close(hold);
	return rc;
}

static int
ask_doctor(struct bed *b, struct pawl_error *err)
{
	struct pawl_rows *rows = UNTOUCHED;
	int rc = pawl_doctor(b->files.root, &rows, err);

	assert_true(rc == 0 || rows == UNTOUCHED);
	if (rc == 0)
		pawl_rows_free(rows);
	return rc;
}

static void
test_looking(void **state)
{
	SWEEP(*state, "list", NULL, list_all, 0);
	SWEEP(*state, "find", NULL, find_all, 0);
	SWEEP(*state, "metadata", NULL, read_metadata, 0);
	SWEEP(*state, "reload", NULL, reload, 0);
	SWEEP(*state, "wait for new", NULL, wait_for_new, 0);
	SWEEP(*state, "hold", NULL, hold_one, 0);
	SWEEP(*state, "doctor", NULL, ask_doctor, 0);
}

static int
verify_all(struct bed *b, struct pawl_error *err)
{
	struct pawl_findings *findings = UNTOUCHED;
	int rc = pawl_verify(b->run, 0, NULL, &findings, err);

	assert_true(rc == 0 || findings == UNTOUCHED);
	if (rc == 0)
		pawl_findings_free(findings);
	return rc;
}

static void
test_reading_whole_checkpoints(void **state)
{
	SWEEP(*state, "verify", NULL, verify_all, 0);
}

/* --------------------------------------------------------------- restoring */

static void
spoil(struct bed *b)
{
	memset(b->weight, 0xff, sizeof(b->weight));
	memset(b->bias, 0xff, sizeof(b->bias));
}

static int
restore_live(struct bed *b, struct pawl_error *err)
{
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	struct pawl_restore *r = UNTOUCHED;

	opts.selector = b->selector;
	int rc = pawl_restore(b->run, &opts, b->state, &r, err);
	if (rc < 0) {
		assert_ptr_equal(r, UNTOUCHED);
		return rc;
	}
	const int64_t step = pawl_restore_info(r)->step;
	assert_true(b->weight[7] == (float)(step * 3 + 7) && b->bias[N_BIAS - 1] == (float)step);
	assert_int_equal(step, b->flag);
	pawl_restore_close(r);
	return 0;
}

static int
restore_part(struct bed *b, struct pawl_error *err)
{
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	const char *include[] = {"model/b*"};
	struct pawl_restore *r = UNTOUCHED;

	opts.include = include;
	opts.n_include = 1;
	opts.non_strict = 1;
	int rc = pawl_restore_open(b->run, &opts, &r, err);
	if (rc < 0) {
		assert_ptr_equal(r, UNTOUCHED);
		return rc;
	}
	rc = pawl_restore_match(r, b->state, err);
	rc = rc < 0 ? rc : pawl_restore_read(r, err);
	assert_true(rc < 0 || b->bias[0] == 3);
	pawl_restore_close(r);
	return rc;
}

static int
restore_new(struct bed *b, struct pawl_error *err)
{
	struct pawl_restore *r = NULL;
	int rc = pawl_restore_open(b->run, NULL, &r, err);

	for (size_t i = 0; rc == 0 && i < pawl_state_tensor_count(pawl_restore_state(r)); i++) {
		const struct pawl_tensor_info *info = pawl_state_tensor(pawl_restore_state(r), i);
		struct pawl_tensor t = PAWL_TENSOR_INIT;

		t.dtype = info->dtype;
		t.ndim = info->ndim;
		t.shape = info->shape;
		t.data = strcmp(info->name, "model/weight") == 0 ? b->weight
		         : strcmp(info->name, "model/bias") == 0 ? b->bias
		                                                 : b->frozen;
		rc = pawl_restore_bind(r, i, &t, err);
	}
	rc = rc < 0 ? rc : pawl_restore_read(r, err);
	pawl_restore_close(r);
	return rc;
}

static void
test_restoring(void **state)
{
	struct bed *b = *state;

	b->flag = 3;
	SWEEP(b, "restore", spoil, restore_live, 0);
	b->selector = "step:2";
	b->flag = 2;
	SWEEP(b, "restore a step", spoil, restore_live, 0);
	SWEEP(b, "restore a part", spoil, restore_part, 0);
	SWEEP(b, "restore into new memory", spoil, restore_new, 0);
}

/* The newest one is damaged and repaired around each attempt. */
static int
restore_damaged(struct bed *b, struct pawl_error *err)
{
	const char *file = "checkpoints/checkpoint_000003/rank00000-00000.safetensors";
	long nth = atomic_load(&fault.nth);
	bool forever = atomic_load(&fault.forever);

	disarm();
	small_damage(&b->files, file, -3);
	arm(nth, forever);
	int rc = restore_live(b, err);
	long seen = atomic_load(&fault.seen);
	disarm();
	small_damage(&b->files, file, -3);
	arm(nth, forever);
	atomic_store(&fault.seen, seen);
	return rc;
}

static void
test_falling_back(void **state)
{
	struct bed *b = *state;

	b->flag = 2;
	SWEEP(b, "restore, falling back", spoil, restore_damaged, 0);
}

/* ------------------------------------------------------------------ maintenance */

static void
make_four(struct bed *b)
{
	OK(pawl_gc(b->run, 0, NULL, NULL, NULL, err));
	for (size_t n = count_checkpoints(b); n < 4; n++)
		save_one(b);
}

static int
prune(struct bed *b, struct pawl_error *err)
{
	struct pawl_retention keep = PAWL_RETENTION_INIT;
	struct pawl_decisions *d = UNTOUCHED;

	keep.keep_last = 2;
	int rc = pawl_prune(b->run, &keep, b->flag, &d, err);
	if (d != UNTOUCHED)
		pawl_decisions_free(d);
	return rc;
}

static int
mark(struct bed *b, struct pawl_error *err)
{
	struct pawl_metric metric = {.name = "late", .value = 0.5};
	uint64_t id;
	int rc = pawl_find(b->run, "latest", &id, err);

	rc = rc < 0 ? rc : pawl_pin(b->run, id, err);
	rc = rc < 0 ? rc : pawl_score(b->run, id, &metric, 1, err);
	return rc < 0 ? rc : pawl_unpin(b->run, id, err);
}

static int
remove_oldest(struct bed *b, struct pawl_error *err)
{
	struct pawl_list *list = NULL;
	int rc = pawl_list_open(b->run, 0, &list, err);

	if (rc < 0)
		return rc;
	rc = pawl_remove(b->run, pawl_list_get(list, 0)->id, 0, err);
	pawl_list_free(list);
	return rc;
}

static int
collect(struct bed *b, struct pawl_error *err)
{
	uint64_t count = 77, bytes = 77;
	int rc = pawl_gc(b->run, b->flag, NULL, &count, &bytes, err);

	assert_true(rc == 0 ? count != 77 : count == 77 && bytes == 77);
	return rc;
}

static void
test_maintenance(void **state)
{
	struct bed *b = *state;

	SWEEP(b, "pin, score, unpin", make_four, mark, 0);
	b->flag = 1;
	SWEEP(b, "prune, dry", make_four, prune, 0);
	SWEEP(b, "gc, dry", leave_rubbish, collect, 0);
	b->flag = 0;
	SWEEP(b, "prune", make_four, prune, 2);
	SWEEP(b, "remove", make_four, remove_oldest, 3);
	SWEEP(b, "gc", leave_rubbish, collect, 0);
}

static void
lose_manifest(struct bed *b)
{
	unlink(small_path(&b->files, "checkpoints/checkpoint_000002/manifest.json").text);
	OK(pawl_reload(b->run, err));
}

static int
repair(struct bed *b, struct pawl_error *err)
{
	return pawl_repair(b->run, "checkpoint_000002", 0, NULL, err);
}

static void
repair_undisturbed(struct bed *b)
{
	lose_manifest(b);
	OK(pawl_repair(b->run, "checkpoint_000002", 0, NULL, err));
}

static void
test_repairing(void **state)
{
	SWEEP(*state, "repair", lose_manifest, repair, 2);
	repair_undisturbed(*state); /* what failed left it repairable */
	assert_int_equal(check_intact(*state, "repair", 0, 0, true), 3);
}

/* A negative control: the sweep notices a call that leaks, and one that loses a checkpoint. */
static int
leak(struct bed *b, struct pawl_error *err)
{
	(void)b, (void)err;
	for (int i = 0; i < 2; i++) {
		void *volatile ptr = malloc(1);
		if (i)
			free(ptr);
	}
	return 0;
}

static int
lose(struct bed *b, struct pawl_error *err)
{
	unlink(small_path(&b->files, "checkpoints/checkpoint_000001/manifest.json").text);
	return reload(b, err);
}

static int
in_child(struct bed *b, call_fn *fn)
{
	close_first(b); /* threads do not come along */
	pid_t pid = fork();

	if (pid == 0) {
		reopen(b);
		is_control = true;
		struct sweep s = {"control", NULL, fn, 0};

		sweep(b, &s);
		_exit(0);
	}
	int status = 0;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	reopen(b);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void
test_negative_control_leaks_and_losses_are_noticed(void **state)
{
	struct bed *b = *state;

	assert_int_equal(in_child(b, leak), 1);
	assert_int_equal(in_child(b, lose), 1);
	assert_int_equal(in_child(b, list_all), 0);
}

int
main(void)
{
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
	const struct CMUnitTest tests[] = {
		CASE(test_states),
		CASE(test_opening),
		CASE(test_arenas_faults_watches),
		CASE(test_saving),
		CASE(test_saving_with_scores_and_recycling),
		CASE(test_saving_that_overlaps),
		CASE(test_looking),
		CASE(test_reading_whole_checkpoints),
		CASE(test_restoring),
		CASE(test_falling_back),
		CASE(test_maintenance),
		CASE(test_repairing),
		CASE(test_negative_control_leaks_and_losses_are_noticed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
