/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is faulted in before the first save needs it (R145): the arena's steps, and saves
 * that take it over. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "helpers/small_run.h"
#include "save/arena.h"

#define MIB ((size_t)1 << 20)
#define BIG_BYTES (80 * MIB) /* a first save of so much passes through the warm part of its memory */

/* ------------------------------------------------------------------- the arena */

static bool
all_present(const void *ptr, size_t nbytes)
{
	const size_t pages = nbytes / 4096;
	unsigned char *present = malloc(pages);
	bool all = true;

	assert_non_null(present);
	assert_int_equal(mincore((void *)(uintptr_t)ptr, nbytes, present), 0);
	for (size_t i = 0; i < pages; i++)
		all = all && (present[i] & 1);
	free(present);
	return all;
}

/* Taken after each number of steps: what is warm stays warm, and nothing more is mapped. */
static void
test_R145_a_region_is_taken_over_after_any_step(void **state)
{
	const size_t n_steps = 5;

	(void)state;
	for (size_t done = 0; done <= n_steps; done++) {
		struct pawl_arena *arena;
		struct arena_region region;

		OK(pawl_arena_new(0, &arena, err));
		OK(arena_prepare(arena, n_steps * ARENA_STEP_BYTES - 100, (n_steps + 1) * ARENA_STEP_BYTES, err));
		const size_t mapped = pawl_arena_bytes(arena);

		for (size_t i = 0; i < done; i++)
			assert_true(arena_warm_step(arena));
		OK(arena_take_cold(arena, n_steps * ARENA_STEP_BYTES, &region, err));
		assert_int_equal(region.warm_bytes, done * ARENA_STEP_BYTES);
		assert_int_equal(region.nbytes, n_steps * ARENA_STEP_BYTES);
		assert_true(all_present(region.ptr, region.warm_bytes));
		assert_false(arena_warm_step(arena)); /* it is the save's now */
		assert_int_equal(pawl_arena_bytes(arena), mapped);
		arena_give(arena, &region);
		for (size_t i = done; i < n_steps; i++)
			assert_true(arena_warm_step(arena));
		assert_false(arena_warm_step(arena)); /* the room behind it stays cold */
		OK(arena_take(arena, n_steps * ARENA_STEP_BYTES, &region, err));
		assert_true(all_present(region.ptr, region.nbytes));
		arena_give(arena, &region);
		pawl_arena_free(arena);
	}
}

static void
test_R145_what_is_larger_than_prepared_replaces_it(void **state)
{
	struct pawl_arena *arena;
	struct arena_region region;

	(void)state;
	OK(pawl_arena_new(8 * ARENA_STEP_BYTES, &arena, err));
	OK(arena_prepare(arena, 4 * ARENA_STEP_BYTES, 100 * ARENA_STEP_BYTES, err)); /* the room is above the limit */
	assert_int_equal(pawl_arena_bytes(arena), 4 * ARENA_STEP_BYTES);
	while (arena_warm_step(arena))
		;
	OK(arena_take_cold(arena, ARENA_STEP_BYTES, &region, err)); /* smaller: the same memory, no more of it */
	assert_int_equal(region.warm_bytes, ARENA_STEP_BYTES);
	assert_int_equal(region.nbytes, ARENA_STEP_BYTES);
	arena_give(arena, &region);
	OK(arena_take_cold(arena, 6 * ARENA_STEP_BYTES, &region, err));
	assert_int_equal(region.warm_bytes, 0);
	assert_int_equal(pawl_arena_bytes(arena), 6 * ARENA_STEP_BYTES);
	FAILS(PAWL_ELIMIT, "wanted", arena_prepare(arena, 4 * ARENA_STEP_BYTES, 4 * ARENA_STEP_BYTES, err));
	assert_int_equal(pawl_arena_bytes(arena), 6 * ARENA_STEP_BYTES);
	arena_give(arena, &region);
	pawl_arena_free(arena);
}

struct stepping {
	struct pawl_arena *arena;
	atomic_bool stop;
};

static void *
step_until_stopped(void *arg)
{
	struct stepping *s = arg;

	while (!atomic_load(&s->stop))
		if (!arena_warm_step(s->arena))
			sched_yield();
	return NULL;
}

/* Two threads fault regions in while they are taken, filled, given back and replaced. */
static void
test_R145_steps_and_takers_do_not_disturb_each_other(void **state)
{
	struct stepping s = {0};
	pthread_t threads[2];

	(void)state;
	OK(pawl_arena_new(0, &s.arena, err));
	for (size_t i = 0; i < COUNT(threads); i++)
		assert_int_equal(pthread_create(&threads[i], NULL, step_until_stopped, &s), 0);
	for (size_t i = 1; i <= 30; i++) {
		struct arena_region region;
		const size_t n = i % 10 * ARENA_STEP_BYTES + i;

		OK(arena_prepare(s.arena, n, n, err));
		OK(arena_take_cold(s.arena, n, &region, err));
		memset(region.ptr, (int)i, n);
		assert_int_equal(((unsigned char *)region.ptr)[n - 1], i);
		arena_note_warm(s.arena, &region, n);
		arena_give(s.arena, &region);
	}
	atomic_store(&s.stop, true);
	for (size_t i = 0; i < COUNT(threads); i++)
		pthread_join(threads[i], NULL);
	pawl_arena_free(s.arena);
}

/* ---------------------------------------------------------------------- saves */

static unsigned char *
make_data(size_t nbytes)
{
	unsigned char *data = malloc(nbytes);
	uint64_t random = 88172645463325252u;

	assert_non_null(data);
	for (size_t i = 0; i + 8 <= nbytes; i += 8) {
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		memcpy(data + i, &random, 8);
	}
	return data;
}

static struct pawl_state *
describe(unsigned char *data, size_t nbytes)
{
	struct pawl_state *s = NULL;

	OK(pawl_state_new(&s, err));
	small_add(s, "large", PAWL_U8, nbytes - 1000, data);
	small_add(s, "small", PAWL_U8, 1000, data + nbytes - 1000);
	return s;
}

static struct pawl_save_stats
save(struct small_run *r, int64_t step, unsigned char *data, size_t nbytes)
{
	struct pawl_save_stats stats = PAWL_SAVE_STATS_INIT;
	struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;
	struct pawl_state *s = describe(data, nbytes);
	struct pawl_ticket *ticket;

	opts.step = step;
	OK(pawl_save(r->run, &opts, s, &ticket, err));
	pawl_state_free(s);
	OK(pawl_ticket_wait(ticket, -1, err));
	pawl_ticket_stats(ticket, &stats);
	pawl_ticket_free(ticket);
	return stats;
}

static void
check_latest(struct small_run *r, const unsigned char *data, size_t nbytes)
{
	unsigned char *found = calloc(1, nbytes);
	struct pawl_state *s = describe(found, nbytes);

	OK(pawl_restore(r->run, NULL, s, NULL, err));
	assert_memory_equal(found, data, nbytes);
	pawl_state_free(s);
	free(found);
}

static void
prepare(struct small_run *r, unsigned char *data, size_t nbytes)
{
	struct pawl_state *s = describe(data, nbytes);

	OK(pawl_prepare(r->run, s, err));
	pawl_state_free(s);
}

/* The first save comes after any number of steps, also while the job is running. Its bytes are
 * right, and it leaves no more memory than a later save needs. */
static void
test_R145_a_first_save_takes_over_what_is_ready(void **state)
{
	static const int steps[] = {0, 1, 3, 4, 5, 16, 32, 39, 40, -1};
	struct small_run *r = *state;
	unsigned char *data = make_data(BIG_BYTES);

	r->opts.retention.num_to_keep = 1;
	for (size_t i = 0; i < COUNT(steps); i++) {
		OK(pawl_arena_new(0, &r->opts.staging.arena, err));
		small_open(r);
		if (steps[i] < 0)
			prepare(r, data, BIG_BYTES);
		else
			OK(arena_prepare(r->opts.staging.arena, BIG_BYTES, BIG_BYTES + 4 * MIB, err));
		for (int k = 0; k < steps[i]; k++)
			arena_warm_step(r->opts.staging.arena);
		for (int k = 1; k <= 2; k++) {
			data[0]++;
			save(r, (int64_t)i * 2 + k, data, BIG_BYTES);
			check_latest(r, data, BIG_BYTES);
			assert_true(pawl_arena_bytes(r->opts.staging.arena) <= BIG_BYTES + BIG_BYTES / 64 + 6 * MIB);
		}
		pawl_close(r->run, NULL);
		r->run = NULL;
		pawl_arena_free(r->opts.staging.arena);
	}
	r->opts.staging.arena = NULL;
	free(data);
}

static void
wait_until_warm(struct pawl_arena *arena)
{
	while (arena_is_cold(arena))
		sched_yield();
}

/* In small pages, so that every fault counts. The best of three, since a context switch may charge
 * a stray one. */
static void
test_R145_a_prepared_first_save_takes_no_minor_fault(void **state)
{
	struct small_run *r = *state;
	unsigned char *data = make_data(16 * MIB);
	uint64_t cold = UINT64_MAX, warm = UINT64_MAX, restored = UINT64_MAX;

	assert_int_equal(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
	r->opts.retention.num_to_keep = 1;
	for (int i = 0; i < 9; i++) {
		OK(pawl_arena_new(0, &r->opts.staging.arena, err));
		small_open(r);
		if (i % 3 == 1)
			prepare(r, data, 16 * MIB);
		else if (i % 3 == 2)
			check_latest(r, data, 16 * MIB);
		wait_until_warm(r->opts.staging.arena);
		data[0]++;
		const uint64_t faults = save(r, i, data, 16 * MIB).minor_faults;
		uint64_t *best = i % 3 == 0 ? &cold : i % 3 == 1 ? &warm : &restored;

		*best = faults < *best ? faults : *best;
		pawl_close(r->run, NULL);
		r->run = NULL;
		pawl_arena_free(r->opts.staging.arena);
	}
	prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
	r->opts.staging.arena = NULL;
	assert_true(cold > 16 * MIB / 4096 / 2); /* the control: without any preparation pages are faulted in */
	if (warm > 16 * MIB / 4096 / 8 || restored > 16 * MIB / 4096 / 8) /* headers; of a sanitizer its own pages */
		fail_msg("%llu faults after pawl_prepare, %llu after a restore", (unsigned long long)warm,
		         (unsigned long long)restored);
	free(data);
}

static void
test_R145_other_sizes_than_prepared(void **state)
{
	static const size_t sizes[] = {MIB, 100 * MIB, 20 * MIB, 70 * MIB};
	struct small_run *r = *state;
	unsigned char *data = make_data(100 * MIB);

	small_open(r);
	for (size_t i = 0; i < COUNT(sizes); i++) {
		prepare(r, data, 40 * MIB);
		data[i]++;
		save(r, (int64_t)i, data, sizes[i]);
		check_latest(r, data, sizes[i]);
	}
	free(data);
}

/* A run that is closed while its job runs, or before it has begun. The arena outlives it, and the
 * next run takes it. */
static void
test_R145_a_run_is_closed_while_memory_is_faulted_in(void **state)
{
	struct small_run *r = *state;
	unsigned char *data = make_data(BIG_BYTES);
	struct pawl_arena *arena;

	OK(pawl_arena_new(0, &arena, err));
	r->opts.staging.arena = arena;
	for (int i = 0; i < 20; i++) {
		small_open(r);
		prepare(r, data, BIG_BYTES);
		if (i % 4 == 1)
			sched_yield();
		OK(pawl_close(r->run, err));
		r->run = NULL;
		if (i % 4 < 3)
			continue;
		pawl_arena_free(arena); /* no thread is at work any more */
		OK(pawl_arena_new(0, &arena, err));
		r->opts.staging.arena = arena;
	}
	small_open(r);
	save(r, 1, data, BIG_BYTES);
	check_latest(r, data, BIG_BYTES);
	OK(pawl_close(r->run, err));
	r->run = NULL;
	pawl_arena_free(arena);
	free(data);
}

/* With a ring there is only the ring to prepare; a limit of memory holds. */
static void
test_R145_only_what_a_save_may_take_is_prepared(void **state)
{
	struct small_run *r = *state;
	unsigned char *data = make_data(40 * MIB);

	for (int i = 0; i < 3; i++) {
		OK(pawl_arena_new(0, &r->opts.staging.arena, err));
		r->opts.staging.mode = i == 0 ? PAWL_MODE_RING : i == 1 ? PAWL_MODE_DIRECT : PAWL_MODE_SNAPSHOT;
		r->opts.staging.ring_bytes = i < 2 ? 16 * MIB : 0;
		r->opts.staging.arena_bytes = i < 2 ? 0 : 16 * MIB;
		small_open(r);
		prepare(r, data, 40 * MIB);
		assert_int_equal(pawl_arena_bytes(r->opts.staging.arena), 16 * MIB);
		data[i]++;
		save(r, i, data, 40 * MIB);
		check_latest(r, data, 40 * MIB);
		assert_int_equal(pawl_arena_bytes(r->opts.staging.arena), 16 * MIB);
		pawl_close(r->run, NULL);
		r->run = NULL;
		pawl_arena_free(r->opts.staging.arena);
	}
	r->opts.staging.arena = NULL;
	free(data);
}

/* Where memory cannot be mapped nothing is prepared, and the call says nothing. */
static void
test_R145_without_memory_nothing_is_prepared(void **state)
{
	struct small_run *r = *state;
	unsigned char *data = make_data(16 * MIB);

	OK(pawl_arena_new(MIB, &r->opts.staging.arena, err));
	small_open(r);
	prepare(r, data, 16 * MIB);
	assert_int_equal(pawl_arena_bytes(r->opts.staging.arena), 0);
	FAILS(PAWL_EUSAGE, "found NULL", pawl_prepare(r->run, NULL, err));
	FAILS(PAWL_EUSAGE, "found NULL", pawl_prepare(NULL, NULL, err));
	pawl_close(r->run, NULL);
	r->opts.read_only = 1;
	r->run = NULL;
	small_open(r);
	struct pawl_state *s = describe(data, 16 * MIB);

	FAILS(PAWL_EREADONLY, "", pawl_prepare(r->run, s, err));
	pawl_state_free(s);
	pawl_close(r->run, NULL);
	r->run = NULL;
	pawl_arena_free(r->opts.staging.arena);
	free(data);
}

#define CASE(fn) cmocka_unit_test_setup_teardown(fn, small_setup, small_teardown)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_R145_a_region_is_taken_over_after_any_step),
		cmocka_unit_test(test_R145_what_is_larger_than_prepared_replaces_it),
		cmocka_unit_test(test_R145_steps_and_takers_do_not_disturb_each_other),
		CASE(test_R145_a_first_save_takes_over_what_is_ready),
		CASE(test_R145_a_prepared_first_save_takes_no_minor_fault),
		CASE(test_R145_other_sizes_than_prepared),
		CASE(test_R145_a_run_is_closed_while_memory_is_faulted_in),
		CASE(test_R145_only_what_a_save_may_take_is_prepared),
		CASE(test_R145_without_memory_nothing_is_prepared),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
