/* SPDX-License-Identifier: Apache-2.0 */
/* The engine end to end through pawl.h: save, modes, admission, reuse, recycling, lease, retention,
 * memory-only, failures. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "helpers/hang.h"
#include "helpers/scratch.h"
#include "pawl.h"
#include "store/store.h"

int __real_store_write(struct store *s, struct store_file *f, uint64_t offset, const void *ptr, size_t len,
                       struct pawl_error *err);
int __wrap_store_write(struct store *s, struct store_file *f, uint64_t offset, const void *ptr, size_t len,
                       struct pawl_error *err);

static atomic_bool is_held; /* saves are under way until it is false */

int
__wrap_store_write(struct store *s, struct store_file *f, uint64_t offset, const void *ptr, size_t len,
                   struct pawl_error *err)
{
	while (atomic_load(&is_held))
		usleep(1000);
	return __real_store_write(s, f, offset, ptr, len, err);
}

#define N_SMALL 8
#define N_BIG ((size_t)3 << 20) /* elements of a F32 tensor: 12 MiB */

struct fixture {
	char root[256];
	float *big;
	float small[N_SMALL];
};

static int
setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	atomic_store(&is_held, false);
	if (scratch_make(f->root, sizeof(f->root), "save") < 0)
		return -1;
	f->big = malloc(N_BIG * sizeof(float));
	for (size_t i = 0; i < N_BIG; i++)
		f->big[i] = (float)i * 0.5f;
	for (int i = 0; i < N_SMALL; i++)
		f->small[i] = (float)i;
	*state = f;
	return 0;
}

static int
teardown(void **state)
{
	struct fixture *f = *state;

	scratch_remove(f->root);
	free(f->big);
	free(f);
	return 0;
}

static struct pawl *
open_with(const struct pawl_open_opts *opts)
{
	struct pawl_error err = {0};
	struct pawl *run = NULL;

	if (pawl_open(opts, &run, &err) < 0)
		fail_msg("open: %s", err.message);
	return run;
}

static struct pawl_open_opts
options(struct fixture *f)
{
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;

	opts.root = f->root;
	return opts;
}

static void
close_run(struct pawl *run)
{
	struct pawl_error err = {0};

	if (pawl_close(run, &err) < 0)
		fail_msg("close: %s", err.message);
}

/* model/big, model/small, epoch */
static struct pawl_state *
make_state(struct fixture *f, int64_t epoch)
{
	static const uint64_t big_shape[] = {N_BIG}, small_shape[] = {N_SMALL};
	struct pawl_tensor big = PAWL_TENSOR_INIT, small = PAWL_TENSOR_INIT;
	struct pawl_state *s = NULL;

	assert_int_equal(pawl_state_new(&s, NULL), 0);
	big.dtype = small.dtype = PAWL_F32;
	big.ndim = small.ndim = 1;
	big.shape = big_shape;
	small.shape = small_shape;
	big.data = f->big;
	small.data = f->small;
	assert_int_equal(pawl_state_set_tensor(s, "model/big", &big, NULL), 0);
	assert_int_equal(pawl_state_set_tensor(s, "model/small", &small, NULL), 0);
	assert_int_equal(pawl_state_set_int(s, "epoch", epoch, NULL), 0);
	return s;
}

static int
try_save(struct pawl *run, struct fixture *f, int64_t step, struct pawl_ticket **ticket, struct pawl_error *err)
{
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	struct pawl_state *s = make_state(f, step);

	save.step = step;
	int rc = pawl_save(run, &save, s, ticket, err);

	pawl_state_free(s);
	return rc;
}

static void
save_and_wait(struct pawl *run, struct fixture *f, int64_t step)
{
	struct pawl_error err = {0};

	if (try_save(run, f, step, NULL, &err) < 0 || pawl_wait(run, HANG_MS, &err) < 0)
		fail_msg("save %lld: %s", (long long)step, err.message);
}

/* Restores into fresh memory and compares with the fixture; returns the epoch. */
static int64_t
check_restore(struct pawl *run, struct fixture *f, const char *selector)
{
	struct fixture back = {.big = calloc(N_BIG, sizeof(float))};
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	struct pawl_state *live = make_state(&back, 0);
	struct pawl_restore *r = NULL;
	struct pawl_error err = {0};
	int64_t epoch = -1;

	opts.selector = selector;
	if (pawl_restore(run, &opts, live, &r, &err) < 0)
		fail_msg("restore: %s", err.message);
	assert_memory_equal(back.big, f->big, N_BIG * sizeof(float));
	assert_memory_equal(back.small, f->small, sizeof(back.small));
	assert_int_equal(pawl_state_get_int(pawl_restore_state(r), "epoch", &epoch, NULL), 0);
	pawl_restore_close(r);
	pawl_state_free(live);
	free(back.big);
	return epoch;
}

static void
verify_all(struct pawl *run)
{
	struct pawl_findings *findings = NULL;
	struct pawl_error err = {0};

	if (pawl_verify(run, 0, NULL, &findings, &err) < 0)
		fail_msg("verify: %s", err.message);
	pawl_findings_free(findings);
}

static size_t
count_checkpoints(struct pawl *run)
{
	struct pawl_list *list = NULL;
	size_t n;

	assert_int_equal(pawl_list_open(run, 0, &list, NULL), 0);
	n = pawl_list_count(list);
	pawl_list_free(list);
	return n;
}

/* Names under checkpoints/ that start with '.': what must never stay. */
static size_t
count_partials(struct fixture *f)
{
	char path[300];
	size_t n = 0;

	snprintf(path, sizeof(path), "%s/checkpoints", f->root);
	DIR *d = opendir(path);

	if (!d)
		return 0;
	for (struct dirent *e; (e = readdir(d));)
		n += e->d_name[0] == '.' && strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
	closedir(d);
	return n;
}

static void
test_R12_save_and_restore_round_trip(void **state)
{
	struct fixture *f = *state;
	struct pawl_open_opts opts = options(f);
	struct pawl *run = open_with(&opts);
	char path[400];
	struct stat st;

	save_and_wait(run, f, 3);
	assert_int_equal(check_restore(run, f, NULL), 3);
	snprintf(path, sizeof(path), "%s/checkpoints/checkpoint_000001/manifest.json", f->root);
	assert_int_equal(stat(path, &st), 0);
	snprintf(path, sizeof(path), "%s/latest/manifest.json", f->root); /* the pointer leads to it */
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(count_partials(f), 0);
	close_run(run);
}

static void
each_mode(struct fixture *f, int mode)
{
	struct pawl_open_opts opts = options(f);

	opts.staging.mode = mode;
	opts.staging.ring_bytes = 16 << 20;
	opts.packs.pack_bytes = 4 << 20;
	struct pawl *run = open_with(&opts);

	for (int i = 1; i <= 3; i++) {
		f->big[7] = (float)i;
		save_and_wait(run, f, i);
		assert_int_equal(check_restore(run, f, NULL), i);
	}
	close_run(run);
}

static void
test_snapshot_mode(void **state)
{
	each_mode(*state, PAWL_MODE_SNAPSHOT);
}

static void
test_ring_mode(void **state)
{
	each_mode(*state, PAWL_MODE_RING);
}

static void
test_direct_mode(void **state)
{
	each_mode(*state, PAWL_MODE_DIRECT);
}

static void
test_a_state_above_arena_bytes_passes_through_a_ring(void **state)
{
	struct fixture *f = *state;
	struct pawl_open_opts opts = options(f);
	struct pawl_arena *arena = NULL;

	assert_int_equal(pawl_arena_new(0, &arena, NULL), 0);
	opts.staging.arena = arena;
	opts.staging.arena_bytes = 8 << 20;
	struct pawl *run = open_with(&opts);

	save_and_wait(run, f, 1);
	assert_int_equal(check_restore(run, f, NULL), 1);
	assert_true(pawl_arena_bytes(arena) <= (8 << 20));
	close_run(run);
	pawl_arena_free(arena);
}

/* In small pages, so that every fault counts. The memory is not made ready while the caller of a
 * lazy save waits, and is ready for the next one. */
static void
test_R145_the_first_lazy_save_does_not_fault_memory_in_on_the_callers_thread(void **state)
{
	struct fixture *f = *state;
	struct pawl_open_opts opts = options(f);
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	struct pawl_save_stats stats = PAWL_SAVE_STATS_INIT;
	struct pawl_state *s = make_state(f, 1);
	const long pages = (long)(N_BIG * sizeof(float) / 4096);
	uint64_t faults = 1;

	assert_int_equal(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
	opts.staging.copy_threads = 3;
	struct pawl *run = open_with(&opts);

	save.lazy = 1;
	for (int i = 1; i <= 4; i++) {
		struct pawl_ticket *ticket = NULL;
		struct rusage before, after;

		getrusage(RUSAGE_THREAD, &before);
		assert_int_equal(pawl_save(run, &save, s, &ticket, NULL), 0);
		getrusage(RUSAGE_THREAD, &after);
		if (after.ru_minflt - before.ru_minflt > pages / 4)
			fail_msg("save %d: %ld faults of the caller, the tensor has %ld pages", i,
			         after.ru_minflt - before.ru_minflt, pages);
		assert_int_equal(pawl_ticket_wait(ticket, HANG_MS, NULL), 0);
		pawl_ticket_stats(ticket, &stats);
		if (i >= 2)
			faults = stats.minor_faults < faults ? stats.minor_faults : faults;
		pawl_ticket_free(ticket);
	}
	prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
	assert_int_equal(faults, 0); /* of the best of three, as below */
	pawl_state_free(s);
	close_run(run);
}

static void
test_R145_second_save_takes_no_minor_fault(void **state)
{
	struct fixture *f = *state;
	struct pawl_open_opts opts = options(f);
	struct pawl *run = open_with(&opts);
	struct pawl_save_stats stats = PAWL_SAVE_STATS_INIT;
	uint64_t faults = 1;
	size_t arena_bytes = 0;
	struct pawl_arena *arena = NULL;

	close_run(run);
	assert_int_equal(pawl_arena_new(0, &arena, NULL), 0);
	opts.staging.arena = arena;
	run = open_with(&opts);
	for (int i = 1; i <= 4; i++) {
		struct pawl_ticket *ticket = NULL;

		assert_int_equal(try_save(run, f, i, &ticket, NULL), 0);
		assert_int_equal(pawl_ticket_wait(ticket, HANG_MS, NULL), 0);
		pawl_ticket_stats(ticket, &stats);
		if (i >= 2) {
			faults = stats.minor_faults < faults ? stats.minor_faults : faults;
			assert_true(pawl_arena_bytes(arena) == arena_bytes);
		}
		arena_bytes = pawl_arena_bytes(arena);
		pawl_ticket_free(ticket);
	}
	assert_int_equal(faults, 0); /* of the best of three: a context switch may charge a stray one */
	close_run(run);
	pawl_arena_free(arena);
}

static void
test_lazy_save_copies_before_the_fence_returns(void **state)
{
	struct fixture *f = *state;
	struct pawl_open_opts opts = options(f);
	struct pawl *run = open_with(&opts);

	for (int i = 1; i <= 3; i++) {
		struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
		struct pawl_state *s = make_state(f, i);

		f->big[N_BIG - 1] = (float)i;
		save.step = i;
		save.lazy = 1;
		assert_int_equal(pawl_save(run, &save, s, NULL, NULL), 0);
		pawl_state_free(s); /* the state may go at once, the tensors may not */
		assert_int_equal(pawl_fence(run, HANG_MS, NULL), 0);
		f->big[N_BIG - 1] = -1;
		assert_int_equal(pawl_wait(run, HANG_MS, NULL), 0);
		f->big[N_BIG - 1] = (float)i;
		assert_int_equal(check_restore(run, f, NULL), i);
	}
	close_run(run);
}

/* A caller that writes to its tensors when it is asked whether they have changed. That is at the
 * end of the call, when only what is copied at once has been copied, or when all has been
 * copied. */
struct writer {
	struct fixture *f;
	int when;        /* the question that is answered by writing; -1 = none */
	size_t first, n; /* elements of big */
	size_t answer[2];
	int asked[2];
};

static size_t
write_then_answer(void *arg, int later)
{
	struct writer *w = arg;

	w->asked[later]++;
	for (size_t i = w->first; later == w->when && i < w->first + w->n; i++)
		w->f->big[i] += 1;
	if (later == 0 && w->when == 0)
		w->f->small[0] += 1;
	return w->answer[later];
}

static void
save_lazily(struct fixture *f, int mode, struct writer *w, const unsigned char *at_once, struct pawl_error *err)
{
	struct pawl_open_opts opts = options(f);
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	struct pawl_state *s = make_state(f, 1);
	struct pawl_ticket *ticket = NULL;
	struct pawl *run = open_with(&opts);

	w->f = f;
	save.step = 1;
	save.lazy = 1;
	save.mode = mode + 1;
	save.at_once = at_once;
	save.changed = write_then_answer;
	save.changed_arg = w;
	*err = (struct pawl_error){0};
	int rc = pawl_save(run, &save, s, &ticket, err);

	if (rc == 0)
		rc = pawl_ticket_wait(ticket, -1, err);
	assert_int_equal(rc, err->code);
	pawl_ticket_free(ticket);
	pawl_state_free(s);
	pawl_close(run, NULL);
}

static void
assert_nothing_saved(struct fixture *f)
{
	struct pawl_open_opts opts = options(f);
	struct pawl_list *list = NULL;
	struct pawl *run = open_with(&opts);

	assert_int_equal(pawl_list_open(run, 1, &list, NULL), 0);
	assert_int_equal(pawl_list_count(list), 0);
	pawl_list_free(list);
	close_run(run);
}

static void
check_lazy_change(struct fixture *f, const struct writer *how, const char *name)
{
	const int modes[] = {PAWL_MODE_SNAPSHOT, PAWL_MODE_RING};
	struct pawl_error err;

	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		struct writer w = *how;

		save_lazily(f, modes[i], &w, NULL, &err);
		assert_int_equal(err.code, PAWL_EUSAGE);
		assert_non_null(strstr(err.message, name));
		assert_non_null(strstr(err.message, "nothing was saved"));
		assert_nothing_saved(f);
	}
}

#define NO_ANSWER {SIZE_MAX, SIZE_MAX}

static void
test_a_lazy_save_fails_when_a_tensor_has_changed_before_it_was_copied(void **state)
{
	/* model/small changes, too; either may be named */
	check_lazy_change(*state, &(struct writer){.when = 0, .first = 5000, .n = 4096, .answer = NO_ANSWER},
	                  "' changed before the lazy save");
}

static void
test_a_lazy_save_fails_when_one_element_has_changed_after_it_was_copied(void **state)
{
	check_lazy_change(*state, &(struct writer){.when = 1, .first = N_BIG / 2 + 3, .n = 1, .answer = NO_ANSWER},
	                  "'model/big' changed");
}

static void
test_a_lazy_save_fails_when_its_caller_knows_of_a_change(void **state)
{
	check_lazy_change(*state, &(struct writer){.when = -1, .answer = {SIZE_MAX, 0}}, "'model/big' changed");
	check_lazy_change(*state, &(struct writer){.when = -1, .answer = {1, SIZE_MAX}}, "'model/small' was changed");
}

/* After the call only model/small changes, which was to be copied at once. */
static void
test_a_lazy_save_holds_what_is_copied_at_once_as_it_was_at_the_call(void **state)
{
	static const unsigned char at_once[] = {0, 1};
	const int modes[] = {PAWL_MODE_SNAPSHOT, PAWL_MODE_RING, PAWL_MODE_DIRECT};
	struct fixture *f = *state;

	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		struct writer w = {.when = i < 2 ? 0 : -1, .answer = NO_ANSWER};
		struct fixture was = *f;
		struct pawl_open_opts opts = options(f);
		struct pawl_error err;

		save_lazily(f, modes[i], &w, at_once, &err);
		assert_int_equal(err.code, 0);
		assert_int_equal(w.asked[0], 1);
		assert_int_equal(w.asked[1], 2);
		struct pawl *run = open_with(&opts);

		assert_int_equal(check_restore(run, &was, NULL), 1);
		close_run(run);
	}
}

static void
test_R140_unchanged_packs_are_linked(void **state)
{
	struct fixture *f = *state;
	struct pawl_open_opts opts = options(f);
	struct pawl_ticket *ticket = NULL;
	struct pawl_save_stats stats = PAWL_SAVE_STATS_INIT;

	opts.packs.pack_bytes = 1 << 20;
	struct pawl *run = open_with(&opts);

	save_and_wait(run, f, 1);
	f->small[0] = 42; /* in pack 0; model/big is frozen */
	assert_int_equal(try_save(run, f, 2, &ticket, NULL), 0);
	assert_int_equal(pawl_ticket_wait(ticket, HANG_MS, NULL), 0);
	pawl_ticket_stats(ticket, &stats);
	pawl_ticket_free(ticket);
	assert_true(stats.reused_bytes >= N_BIG * sizeof(float));
	assert_true(stats.written_bytes < 1 << 20);
	assert_int_equal(check_restore(run, f, NULL), 2);
	close_run(run);

	run = open_with(&opts); /* also after a restart */
	assert_int_equal(try_save(run, f, 3, &ticket, NULL), 0);
	assert_int_equal(pawl_ticket_wait(ticket, HANG_MS, NULL), 0);
	pawl_ticket_stats(ticket, &stats);
	pawl_ticket_free(ticket);
	assert_true(stats.reused_bytes >= N_BIG * sizeof(float));
	f->big[N_BIG / 2] += 1; /* and not when it has changed in the middle */
	assert_int_equal(try_save(run, f, 4, &ticket, NULL), 0);
	assert_int_equal(pawl_ticket_wait(ticket, HANG_MS, NULL), 0);
	pawl_ticket_stats(ticket, &stats);
	pawl_ticket_free(ticket);
	assert_int_equal(stats.reused_bytes, 0);
	assert_int_equal(check_restore(run, f, NULL), 4);
	close_run(run);
	opts.packs.no_reuse = 1;
	run = open_with(&opts);
	for (int i = 5; i <= 6; i++) {
		assert_int_equal(try_save(run, f, i, &ticket, NULL), 0);
		assert_int_equal(pawl_ticket_wait(ticket, HANG_MS, NULL), 0);
		pawl_ticket_stats(ticket, &stats);
		pawl_ticket_free(ticket);
		assert_int_equal(stats.reused_bytes, 0);
	}
	assert_int_equal(pawl_remove(run, 1, 0, NULL), 0); /* every checkpoint is complete in itself */
	assert_int_equal(pawl_remove(run, 2, 0, NULL), 0);
	verify_all(run);
	close_run(run);
}

static void
test_recycled_files_are_overwritten_not_created(void **state)
{
	struct fixture *f = *state;
	struct pawl_open_opts opts = options(f);
	char path[400];
	struct stat first, now;
	int same = 0;

	opts.packs.recycle = 1;
	opts.packs.no_reuse = 1;
	opts.retention.num_to_keep = 1;
	struct pawl *run = open_with(&opts);

	save_and_wait(run, f, 1);
	snprintf(path, sizeof(path), "%s/checkpoints/checkpoint_000001/rank00000-00000.safetensors", f->root);
	assert_int_equal(stat(path, &first), 0);
	for (int i = 2; i <= 4; i++) {
		f->big[0] = (float)i;
		save_and_wait(run, f, i);
		assert_int_equal(check_restore(run, f, NULL), i);
		snprintf(path, sizeof(path), "%s/checkpoints/checkpoint_%06d/rank00000-00000.safetensors", f->root, i);
		assert_int_equal(stat(path, &now), 0);
		same += now.st_ino == first.st_ino;
	}
	assert_true(same >= 1);
	close_run(run);
}

static void
test_a_call_for_a_checkpoint_waits_for_the_save_of_this_process(void **state)
{
	struct fixture *f = *state;
	struct pawl_open_opts opts = options(f);
	struct pawl_error err = {0};
	uint64_t id = 0;

	opts.io.write_bytes_per_second = 24 << 20; /* so that the calls below have to wait for a save */
	struct pawl *run = open_with(&opts);

	assert_int_equal(pawl_wait_committed(run, 0, &err), 0);
	atomic_store(&is_held, true);
	assert_int_equal(try_save(run, f, 1, NULL, &err), 0);
	assert_int_equal(pawl_wait_committed(run, 1, &err), PAWL_ETIMEOUT);
	atomic_store(&is_held, false);
	assert_int_equal(pawl_find(run, "step:1", &id, &err), 0);
	assert_int_equal(try_save(run, f, 2, NULL, &err), 0);
	assert_int_equal(pawl_pin(run, id + 1, &err), 0);
	assert_int_equal(try_save(run, f, 3, NULL, &err), 0);
	assert_int_equal(check_restore(run, f, NULL), 3);
	close_run(run);
}

static void
test_a_save_may_wait_for_its_turn_where_the_run_skips(void **state)
{
	struct fixture *f = *state;
	struct pawl_open_opts opts = options(f);
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	struct pawl_state *tree;
	struct pawl_error err = {0};

	opts.on_busy = PAWL_BUSY_SKIP;
	struct pawl *run = open_with(&opts);

	assert_int_equal(pawl_wait_turn(run, 0, &err), 0);
	atomic_store(&is_held, true);
	assert_int_equal(try_save(run, f, 1, NULL, &err), 0);
	assert_int_equal(try_save(run, f, 2, NULL, &err), PAWL_EBUSY);
	assert_int_equal(pawl_wait_turn(run, 1, &err), PAWL_ETIMEOUT);
	atomic_store(&is_held, false);
	tree = make_state(f, 3);
	save.step = 3;
	save.on_busy = PAWL_BUSY_WAIT + 1;
	assert_int_equal(pawl_save(run, &save, tree, NULL, &err), 0);
	assert_int_equal(pawl_wait_turn(run, -1, &err), 0);
	save.on_busy = PAWL_BUSY_REPLACE + 2;
	assert_int_equal(pawl_save(run, &save, tree, NULL, &err), PAWL_EUSAGE);
	assert_non_null(strstr(err.message, "on_busy"));
	pawl_state_free(tree);
	assert_int_equal(pawl_wait(run, -1, &err), 0);
	assert_int_equal(check_restore(run, f, NULL), 3);
	close_run(run);
}

static void
test_busy_skip_and_replace(void **state)
{
	struct fixture *f = *state;
	struct pawl_open_opts opts = options(f);
	struct pawl_ticket *first = NULL, *second = NULL, *third = NULL;
	struct pawl_error err = {0};

	opts.on_busy = PAWL_BUSY_SKIP;
	opts.packs.no_reuse = 1; /* all bytes are written each time */
	struct pawl *run = open_with(&opts);

	atomic_store(&is_held, true);
	assert_int_equal(try_save(run, f, 1, &first, &err), 0);
	assert_int_equal(pawl_ticket_wait_for(first, PAWL_STAGE_STAGED, 0, NULL), 0);
	assert_int_equal(pawl_ticket_wait_for(first, PAWL_STAGE_COMMITTED, 0, &err), PAWL_ETIMEOUT);
	assert_int_equal(pawl_ticket_wait_for(first, 99, 0, &err), PAWL_EUSAGE);
	assert_int_equal(try_save(run, f, 2, &second, &err), PAWL_EBUSY);
	assert_null(second);
	atomic_store(&is_held, false);
	assert_int_equal(pawl_ticket_wait(first, HANG_MS, NULL), 0);
	pawl_ticket_free(first);
	close_run(run);

	opts.on_busy = PAWL_BUSY_REPLACE;
	run = open_with(&opts);
	atomic_store(&is_held, true);
	assert_int_equal(try_save(run, f, 3, &first, &err), 0);
	assert_int_equal(try_save(run, f, 4, &second, &err), 0);
	assert_int_equal(try_save(run, f, 5, &third, &err), 0);
	atomic_store(&is_held, false);
	assert_int_equal(pawl_ticket_wait(first, HANG_MS, NULL), 0);
	assert_int_equal(pawl_ticket_wait(second, HANG_MS, &err), PAWL_ECANCELLED);
	assert_int_equal(pawl_ticket_wait(third, HANG_MS, NULL), 0);
	pawl_ticket_free(first);
	pawl_ticket_free(second);
	pawl_ticket_free(third);
	assert_int_equal(check_restore(run, f, NULL), 5);
	assert_int_equal(count_checkpoints(run), 3);
	close_run(run);
}

static void
test_R4_num_to_keep_and_ids_that_never_repeat(void **state)
{
	struct fixture *f = *state;
	struct pawl_open_opts opts = options(f);
	uint64_t id = 0;

	opts.retention.num_to_keep = 2;
	struct pawl *run = open_with(&opts);

	for (int i = 1; i <= 4; i++)
		save_and_wait(run, f, i);
	assert_int_equal(count_checkpoints(run), 2);
	close_run(run);
	run = open_with(&opts); /* R139, E7: nothing is forgotten */
	assert_int_equal(pawl_find(run, "latest", &id, NULL), 0);
	assert_int_equal(id, 4);
	save_and_wait(run, f, 5);
	assert_int_equal(pawl_find(run, "latest", &id, NULL), 0);
	assert_int_equal(id, 5);
	assert_int_equal(count_checkpoints(run), 2);
	close_run(run);
}

static void
test_E1_the_id_of_a_removed_newest_checkpoint_is_not_given_out_again(void **state)
{
	struct fixture *f = *state;
	struct pawl_open_opts opts = options(f);
	struct pawl *run = open_with(&opts);
	uint64_t id = 0;

	save_and_wait(run, f, 1);
	save_and_wait(run, f, 2);
	assert_int_equal(pawl_remove(run, 2, 0, NULL), PAWL_EBUSY); /* the latest needs force */
	assert_int_equal(pawl_remove(run, 2, 1, NULL), 0);
	close_run(run);
	run = open_with(&opts);
	save_and_wait(run, f, 3);
	assert_int_equal(pawl_find(run, "latest", &id, NULL), 0);
	assert_int_equal(id, 3);
	close_run(run);
}

static void
test_R3_memory_only_writes_nothing(void **state)
{
	struct fixture *f = *state;
	struct pawl_open_opts opts = options(f);

	opts.retention.num_to_keep = PAWL_KEEP_MEMORY;
	struct pawl *run = open_with(&opts);

	save_and_wait(run, f, 1);
	save_and_wait(run, f, 2);
	assert_int_equal(count_checkpoints(run), 1);
	assert_int_equal(check_restore(run, f, NULL), 2);
	close_run(run);
	DIR *d = opendir(f->root);
	int n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	assert_int_equal(n, 2); /* "." and ".." */
}

static void
test_R27_R28_R29_bad_scores_are_refused_before_writing(void **state)
{
	struct fixture *f = *state;
	struct pawl_open_opts opts = options(f);
	const char *names[] = {"accuracy"};
	struct pawl_metric metric = {.name = "loss", .value = 1};
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	struct pawl_error err = {0};

	opts.retention.score_attributes = names;
	opts.retention.n_scores = 1;
	struct pawl *run = open_with(&opts);
	struct pawl_state *s = make_state(f, 1);

	save.metrics = &metric;
	save.n_metrics = 1;
	assert_int_equal(pawl_save(run, &save, s, NULL, &err), PAWL_EUSAGE);
	assert_non_null(strstr(err.message, "accuracy"));
	metric.name = "accuracy";
	metric.not_a_number = 1;
	assert_int_equal(pawl_save(run, &save, s, NULL, &err), PAWL_EUSAGE);
	pawl_state_free(s);
	assert_int_equal(count_checkpoints(run), 0);
	assert_int_equal(count_partials(f), 0);
	close_run(run);
}

static void
test_P10_second_writer_is_refused(void **state)
{
	struct fixture *f = *state;
	struct pawl_open_opts opts = options(f);
	struct pawl *run = open_with(&opts), *other = NULL;
	struct pawl_error err = {0};

	assert_int_equal(pawl_open(&opts, &other, &err), PAWL_EBUSY);
	assert_non_null(strstr(err.message, "process"));
	opts.read_only = 1;
	other = open_with(&opts);
	close_run(other);
	close_run(run);
	opts.read_only = 0;
	run = open_with(&opts); /* free again */
	close_run(run);
}

static void
test_lease_of_a_killed_writer_is_taken_over(void **state)
{
	struct fixture *f = *state;
	struct pawl_open_opts opts = options(f);
	pid_t pid = fork();

	if (pid == 0) {
		struct pawl *run = NULL;

		_exit(pawl_open(&opts, &run, NULL) == 0 ? 0 : 1); /* no close: as if killed */
	}
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	struct pawl *run = open_with(&opts);

	save_and_wait(run, f, 1);
	close_run(run);
}

/* What pawl has not written cannot keep a run from being written: not JSON, beyond its limits, a
 * time before all. */
static void
test_P17_a_lease_that_is_none_is_taken_over(void **state)
{
	static const char *const texts[] = {
		"", "[", "[18446744073709551616]", "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
		"{\"host\":\"\",\"boot\":\"\",\"token\":\"\",\"pid\":1,\"start\":1,\"renewed_unix_ns\":-9223372036854775808}"};
	struct fixture *f = *state;
	struct pawl_open_opts opts = options(f);
	char path[PATH_MAX];

	close_run(open_with(&opts));
	for (size_t i = 0; i <= sizeof(texts) / sizeof(texts[0]); i++) {
		snprintf(path, sizeof(path), "%s/.lease", opts.root);
		FILE *file = fopen(path, "w");

		assert_non_null(file);
		for (size_t k = 0; i == sizeof(texts) / sizeof(texts[0]) && k < 5000; k++)
			fputc(' ', file);
		fputs(texts[i % (sizeof(texts) / sizeof(texts[0]))], file);
		assert_int_equal(fclose(file), 0);
		close_run(open_with(&opts));
	}
}

/* Each operation fails once, at its first, second, ... call. The save fails completely and the next
 * one works (P4, P5, P15). */
static void
fail_operation(struct fixture *f, const char *operation)
{
	for (uint64_t nth = 1; nth <= 40; nth++) {
		struct pawl_open_opts opts = options(f);
		struct pawl_fault *fault = NULL;
		struct pawl_error err = {0};
		struct pawl *run = NULL;
		size_t before;

		opts.read_only = 1;
		run = open_with(&opts);
		before = count_checkpoints(run);
		close_run(run);
		opts.read_only = 0;
		opts.packs.pack_bytes = 4 << 20;
		assert_int_equal(pawl_fault_new(operation, nth, PAWL_EIO, 0, &fault, NULL), 0);
		opts.io.fault = fault;
		int rc = pawl_open(&opts, &run, &err);

		if (rc == 0) {
			f->big[1] += 1;
			rc = try_save(run, f, (int64_t)nth, NULL, &err);
			if (rc == 0)
				rc = pawl_wait(run, HANG_MS, &err);
			pawl_close(run, NULL);
		}
		uint64_t calls = pawl_fault_calls(fault);

		opts.io.fault = NULL;
		run = open_with(&opts);
		size_t after = count_checkpoints(run);

		assert_true(after == before || after == before + 1);
		if (rc == 0)
			assert_int_equal(after, before + 1);
		verify_all(run);
		assert_int_equal(count_partials(f), 0);
		close_run(run);
		pawl_fault_free(fault);
		if (calls < nth)
			return; /* the fault was never reached: every call has been failed once */
	}
}

static void
test_P4_failed_operations_change_nothing(void **state)
{
	const char *operations[] = {"create", "write", "finish", "publish", "put", "link"};

	for (size_t i = 0; i < sizeof(operations) / sizeof(*operations); i++)
		fail_operation(*state, operations[i]);
}

static void
test_background_error_is_told_once_by_the_next_call(void **state)
{
	struct fixture *f = *state;
	struct pawl_open_opts opts = options(f);
	struct pawl_fault *fault = NULL;
	struct pawl_error err = {0};

	assert_int_equal(pawl_fault_new("publish", 1, PAWL_EIO, 0, &fault, NULL), 0);
	opts.io.fault = fault;
	struct pawl *run = open_with(&opts);
	struct pawl_ticket *ticket = NULL;

	assert_int_equal(try_save(run, f, 1, &ticket, &err), 0);
	while (pawl_ticket_stage(ticket) < PAWL_STAGE_SETTLED)
		usleep(1000);
	assert_int_equal(pawl_ticket_stage(ticket), PAWL_STAGE_FAILED);
	pawl_ticket_free(ticket);
	assert_int_equal(try_save(run, f, 2, NULL, &err), PAWL_EIO);
	assert_int_equal(try_save(run, f, 2, NULL, &err), 0);
	assert_int_equal(pawl_wait(run, HANG_MS, &err), 0);
	assert_int_equal(count_checkpoints(run), 1);
	close_run(run);
	pawl_fault_free(fault);
}

static void
test_R157_nonfinite_states_are_flagged_or_refused(void **state)
{
	struct fixture *f = *state;
	struct pawl_open_opts opts = options(f);
	struct pawl_error err = {0};
	struct pawl_list *list = NULL;

	opts.nonfinite = 1;
	struct pawl *run = open_with(&opts);

	save_and_wait(run, f, 1);
	f->big[N_BIG - 5] = NAN;
	save_and_wait(run, f, 2);
	assert_int_equal(pawl_list_open(run, 0, &list, NULL), 0);
	assert_false(pawl_list_get(list, 0)->marks & PAWL_MARK_NONFINITE);
	assert_true(pawl_list_get(list, 1)->marks & PAWL_MARK_NONFINITE);
	pawl_list_free(list);
	close_run(run);
	opts.nonfinite = 2;
	run = open_with(&opts);
	assert_int_equal(try_save(run, f, 3, NULL, &err), PAWL_EUSAGE);
	assert_non_null(strstr(err.message, "model/big"));
	assert_int_equal(count_checkpoints(run), 2);
	close_run(run);
}

/* One tensor of four bytes and one float. */
static int
save_values(struct pawl *run, int dtype, const char *bytes, double value, struct pawl_error *err)
{
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	struct pawl_tensor tensor = PAWL_TENSOR_INIT;
	struct pawl_state *s = NULL;
	uint64_t shape[] = {4};
	char data[4];

	memcpy(data, bytes, sizeof(data));
	tensor.dtype = dtype;
	tensor.ndim = 1;
	tensor.shape = shape;
	tensor.data = data;
	assert_int_equal(pawl_state_new(&s, NULL), 0);
	assert_int_equal(pawl_state_set_tensor(s, "w", &tensor, NULL), 0);
	assert_int_equal(pawl_state_set_float(s, "loss/scale", value, NULL), 0);
	int rc = pawl_save(run, &save, s, NULL, err);

	if (rc == 0)
		rc = pawl_wait(run, HANG_MS, err);
	pawl_state_free(s);
	return rc;
}

static void
test_R157_floats_of_the_tree_and_numbers_of_8_bits_count(void **state)
{
	static const struct {
		int dtype;
		const char *bytes;
		bool bad;
	} rows[] = {
		{PAWL_F8_E5M2, "\x7b\xfb\x80\x00", false},
		{PAWL_F8_E5M2, "\0\x7c\0\0", true},
		{PAWL_F8_E5M2, "\0\0\0\xff", true},
		{PAWL_F8_E4M3, "\x7e\xfe\x80\x78", false},
		{PAWL_F8_E4M3, "\0\0\x7f\0", true},
		{PAWL_F8_E4M3, "\0\0\xff\0", true},
		{PAWL_F8_E4M3FNUZ, "\x7f\xff\x00\x7c", false},
		{PAWL_F8_E4M3FNUZ, "\x80\0\0\0", true},
		{PAWL_F8_E5M2FNUZ, "\x7f\xff\x00\x7c", false},
		{PAWL_F8_E5M2FNUZ, "\0\x80\0\0", true},
		{PAWL_F8_E8M0, "\xfe\x7f\x80\x00", false},
		{PAWL_F8_E8M0, "\xff\0\0\0", true},
		{PAWL_U8, "\xff\x7f\x80\x7c", false},
	};
	struct fixture *f = *state;
	struct pawl_open_opts opts = options(f);
	struct pawl_error err = {0};
	struct pawl_list *list = NULL;

	opts.nonfinite = 2;
	struct pawl *run = open_with(&opts);

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (save_values(run, rows[i].dtype, rows[i].bytes, 1, &err) != (rows[i].bad ? PAWL_EUSAGE : 0))
			fail_msg("row %zu: %s", i, err.message);
	assert_int_equal(save_values(run, PAWL_U8, "abcd", NAN, &err), PAWL_EUSAGE);
	assert_non_null(strstr(err.message, "loss/scale"));
	assert_int_equal(save_values(run, PAWL_U8, "abcd", -INFINITY, &err), PAWL_EUSAGE);
	close_run(run);
	opts.nonfinite = 1;
	run = open_with(&opts);
	assert_int_equal(save_values(run, PAWL_U8, "abcd", INFINITY, &err), 0);
	assert_int_equal(pawl_list_open(run, 0, &list, NULL), 0);
	assert_true(pawl_list_get(list, pawl_list_count(list) - 1)->marks & PAWL_MARK_NONFINITE);
	assert_false(pawl_list_get(list, 0)->marks & PAWL_MARK_NONFINITE);
	pawl_list_free(list);
	close_run(run);
}

static void
test_R157_retention_spares_the_last_good_one(void **state)
{
	struct fixture *f = *state;
	struct pawl_open_opts opts = options(f);
	struct pawl_error err = {0};
	struct pawl_list *list = NULL;
	uint64_t id = 0;

	opts.nonfinite = 1;
	opts.retention.num_to_keep = 1;
	struct pawl *run = open_with(&opts);

	for (int i = 0; i < 5; i++)
		assert_int_equal(save_values(run, PAWL_U8, "abcd", i < 2 ? 1 : NAN, &err), 0);
	assert_int_equal(pawl_find(run, "good", &id, NULL), 0);
	assert_int_equal(id, 2);
	assert_int_equal(pawl_list_open(run, 0, &list, NULL), 0);
	assert_int_equal(pawl_list_count(list), 2); /* and the latest */
	pawl_list_free(list);
	assert_int_equal(save_values(run, PAWL_U8, "abcd", 1, &err), 0);
	assert_int_equal(count_checkpoints(run), 1);
	close_run(run);
}

static void
test_single_checkpoint_and_overwrite(void **state)
{
	struct fixture *f = *state;
	struct pawl_open_opts opts = options(f);
	struct pawl_error err = {0};
	char path[300];

	snprintf(path, sizeof(path), "%s/final", f->root);
	opts.root = path;
	opts.single = 1;
	struct pawl *run = open_with(&opts);

	save_and_wait(run, f, 9);
	assert_int_equal(check_restore(run, f, NULL), 9);
	close_run(run);
	assert_int_equal(pawl_open(&opts, &run, &err), PAWL_EEXISTS);
	opts.overwrite = 1;
	run = open_with(&opts);
	save_and_wait(run, f, 10);
	close_run(run);
	opts.overwrite = 0;
	opts.read_only = 1;
	run = open_with(&opts);
	assert_int_equal(check_restore(run, f, NULL), 10);
	close_run(run);
}

static void
test_R90_later_checkpoints_of_another_run_are_refused(void **state)
{
	struct fixture *f = *state;
	struct pawl_open_opts opts = options(f);
	struct pawl_error err = {0};
	struct pawl *run = open_with(&opts);

	save_and_wait(run, f, 1);
	close_run(run);
	opts.naming.run_id = "00112233445566778899aabbccddeeff";
	assert_int_equal(pawl_open(&opts, &run, &err), PAWL_EEXISTS);
	assert_non_null(strstr(err.message, "00112233445566778899aabbccddeeff"));
	opts.overwrite = 1;
	run = open_with(&opts);
	save_and_wait(run, f, 2);
	assert_int_equal(count_checkpoints(run), 2); /* overwriting adopts the folder, it deletes nothing of others */
	close_run(run);
}

static void
test_wrong_options_are_named(void **state)
{
	struct fixture *f = *state;
	struct pawl_open_opts opts = options(f);
	struct pawl_error err = {0};
	struct pawl *run = NULL;

	opts.packs.block_bytes = 100000;
	assert_int_equal(pawl_open(&opts, &run, &err), PAWL_EUSAGE);
	assert_non_null(strstr(err.message, "block_bytes"));
	opts = options(f);
	opts.retention.num_to_keep = -7; /* R5 */
	assert_int_equal(pawl_open(&opts, &run, &err), PAWL_EUSAGE);
	assert_non_null(strstr(err.message, "-7"));
	opts = options(f);
	opts.save_interval = "3parsecs";
	assert_int_equal(pawl_open(&opts, &run, &err), PAWL_EUSAGE);
	assert_non_null(strstr(err.message, "3parsecs"));
	assert_null(run);
}

#define CASE(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_R12_save_and_restore_round_trip),
		CASE(test_snapshot_mode),
		CASE(test_ring_mode),
		CASE(test_direct_mode),
		CASE(test_a_state_above_arena_bytes_passes_through_a_ring),
		CASE(test_R145_the_first_lazy_save_does_not_fault_memory_in_on_the_callers_thread),
		CASE(test_R145_second_save_takes_no_minor_fault),
		CASE(test_lazy_save_copies_before_the_fence_returns),
		CASE(test_a_lazy_save_fails_when_a_tensor_has_changed_before_it_was_copied),
		CASE(test_a_lazy_save_fails_when_one_element_has_changed_after_it_was_copied),
		CASE(test_a_lazy_save_fails_when_its_caller_knows_of_a_change),
		CASE(test_a_lazy_save_holds_what_is_copied_at_once_as_it_was_at_the_call),
		CASE(test_R140_unchanged_packs_are_linked),
		CASE(test_recycled_files_are_overwritten_not_created),
		CASE(test_busy_skip_and_replace),
		CASE(test_a_call_for_a_checkpoint_waits_for_the_save_of_this_process),
		CASE(test_a_save_may_wait_for_its_turn_where_the_run_skips),
		CASE(test_R4_num_to_keep_and_ids_that_never_repeat),
		CASE(test_E1_the_id_of_a_removed_newest_checkpoint_is_not_given_out_again),
		CASE(test_R3_memory_only_writes_nothing),
		CASE(test_R27_R28_R29_bad_scores_are_refused_before_writing),
		CASE(test_P10_second_writer_is_refused),
		CASE(test_lease_of_a_killed_writer_is_taken_over),
		CASE(test_P17_a_lease_that_is_none_is_taken_over),
		CASE(test_P4_failed_operations_change_nothing),
		CASE(test_background_error_is_told_once_by_the_next_call),
		CASE(test_R157_nonfinite_states_are_flagged_or_refused),
		CASE(test_R157_floats_of_the_tree_and_numbers_of_8_bits_count),
		CASE(test_R157_retention_spares_the_last_good_one),
		CASE(test_single_checkpoint_and_overwrite),
		CASE(test_R90_later_checkpoints_of_another_run_are_refused),
		CASE(test_wrong_options_are_named),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
