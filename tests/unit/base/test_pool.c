/* SPDX-License-Identifier: Apache-2.0 */
/* pool: every job runs once, groups wait for their own jobs, threads leave signals to the
 * program. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/pool.h"

#define JOBS 2000

static void
count_up(void *arg)
{
	atomic_fetch_add((atomic_int *)arg, 1);
}

static void
test_every_job_runs_once(void **state)
{
	(void)state;
	static atomic_int counts[JOBS];
	for (unsigned threads = 1; threads <= 3; threads++) {
		struct pool *pool;
		struct pool_group group;
		assert_int_equal(pool_new("test", threads, &pool, NULL), 0);
		assert_int_equal(pool_threads(pool), threads);
		pool_group_init(&group);
		for (size_t i = 0; i < JOBS; i++) {
			atomic_store(&counts[i], 0);
			assert_int_equal(pool_add(pool, &group, count_up, &counts[i], NULL), 0);
		}
		pool_group_wait(&group);
		for (size_t i = 0; i < JOBS; i++)
			assert_int_equal(atomic_load(&counts[i]), 1);
		pool_group_clear(&group);
		pool_free(pool);
	}
}

static void
test_freeing_runs_what_is_queued(void **state)
{
	(void)state;
	atomic_int count = 0;
	struct pool *pool;
	assert_int_equal(pool_new("test", 1, &pool, NULL), 0);
	for (size_t i = 0; i < 100; i++)
		assert_int_equal(pool_add(pool, NULL, count_up, &count, NULL), 0);
	pool_free(pool);
	assert_int_equal(atomic_load(&count), 100);
	pool_free(NULL);
}

struct order {
	atomic_int next;
	int seen[50];
};
struct turn {
	struct order *order;
	int number;
};

static void
note_turn(void *arg)
{
	struct turn *turn = arg;
	turn->order->seen[atomic_fetch_add(&turn->order->next, 1)] = turn->number;
}

static void
test_one_thread_keeps_the_order(void **state)
{
	(void)state;
	struct order order = {0};
	struct turn turns[50];
	struct pool *pool;
	assert_int_equal(pool_new("test", 1, &pool, NULL), 0);
	for (int i = 0; i < 50; i++) {
		turns[i] = (struct turn){&order, i};
		assert_int_equal(pool_add(pool, NULL, note_turn, &turns[i], NULL), 0);
	}
	pool_free(pool);
	for (int i = 0; i < 50; i++)
		assert_int_equal(order.seen[i], i);
}

struct gate {
	atomic_int open;
	atomic_int entered;
};

static void
wait_at_gate(void *arg)
{
	struct gate *gate = arg;
	atomic_store(&gate->entered, 1);
	while (!atomic_load(&gate->open))
		sched_yield();
}

static void
test_a_group_does_not_wait_for_others(void **state)
{
	(void)state;
	struct gate gate = {0};
	atomic_int count = 0;
	struct pool *pool;
	struct pool_group mine, blocked;
	assert_int_equal(pool_new("test", 2, &pool, NULL), 0);
	pool_group_init(&mine);
	pool_group_init(&blocked);
	assert_int_equal(pool_add(pool, &blocked, wait_at_gate, &gate, NULL), 0);
	assert_int_equal(pool_add(pool, &mine, count_up, &count, NULL), 0);
	pool_group_wait(&mine); /* would never return if it waited for the gate */
	assert_int_equal(atomic_load(&count), 1);
	atomic_store(&gate.open, 1);
	pool_group_wait(&blocked);
	pool_group_wait(&blocked);
	pool_group_clear(&mine);
	pool_group_clear(&blocked);
	pool_free(pool);
}

struct seen {
	sigset_t mask;
	char name[16];
};

static void
look_around(void *arg)
{
	struct seen *seen = arg;
	pthread_sigmask(SIG_SETMASK, NULL, &seen->mask);
	pthread_getname_np(pthread_self(), seen->name, sizeof(seen->name));
}

static void
test_threads_block_signals_and_carry_the_name(void **state)
{
	(void)state;
	struct seen seen;
	struct pool *pool;
	sigset_t before, after;
	pthread_sigmask(SIG_SETMASK, NULL, &before);
	assert_int_equal(pool_new("a-long-name-that-is-cut", 1, &pool, NULL), 0);
	pthread_sigmask(SIG_SETMASK, NULL, &after);
	assert_int_equal(pool_add(pool, NULL, look_around, &seen, NULL), 0);
	pool_free(pool);
	assert_true(sigismember(&seen.mask, SIGTERM));
	assert_true(sigismember(&seen.mask, SIGINT));
	assert_string_equal(seen.name, "a-long-name-tha");
	assert_int_equal(sigismember(&before, SIGTERM), sigismember(&after, SIGTERM));
	assert_false(sigismember(&after, SIGTERM));
}

static void
see_nice(void *arg)
{
	*(int *)arg = getpriority(PRIO_PROCESS, 0);
}

static void
test_calm_threads_leave_the_processors_to_others(void **state)
{
	const int own = getpriority(PRIO_PROCESS, 0);
	int seen[2] = {-100, -100};

	(void)state;
	for (int calm = 0; calm < 2; calm++) {
		struct pool *pool;
		assert_int_equal((calm ? pool_new_calm : pool_new)("test", 1, &pool, NULL), 0);
		assert_int_equal(pool_add(pool, NULL, see_nice, &seen[calm], NULL), 0);
		pool_free(pool);
	}
	assert_int_equal(seen[0], own);
#if defined(__linux__)
	assert_int_equal(seen[1], own + 5 < 19 ? own + 5 : 19);
#endif
	assert_int_equal(getpriority(PRIO_PROCESS, 0), own);
}

static void
test_absurd_thread_counts_are_refused(void **state)
{
	(void)state;
	struct pool *pool = NULL;
	struct pawl_error err;
	assert_int_equal(pool_new("test", 0, &pool, &err), PAWL_EUSAGE);
	assert_int_equal(pool_new("test", 1000000, &pool, &err), PAWL_EUSAGE);
	assert_null(pool);
}

static void
test_P16_a_wait_ends_at_its_deadline(void **state)
{
	(void)state;
	pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	pthread_cond_t cond;
	assert_int_equal(pool_cond_init(&cond), 0);
	pthread_mutex_lock(&lock);
	int64_t deadline = clock_mono_ms() + 20;
	int rc;
	do
		rc = pool_cond_wait_until(&cond, &lock, deadline);
	while (rc == 0);
	assert_int_equal(rc, ETIMEDOUT);
	assert_true(clock_mono_ms() >= deadline);
	assert_int_equal(pool_cond_wait_until(&cond, &lock, 0), ETIMEDOUT);
	pthread_mutex_unlock(&lock);
	pthread_cond_destroy(&cond);
}

struct bell {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	int rung;
};

static void
ring(void *arg)
{
	struct bell *bell = arg;
	pthread_mutex_lock(&bell->lock);
	bell->rung = 1;
	pthread_cond_signal(&bell->cond);
	pthread_mutex_unlock(&bell->lock);
}

static void
test_a_wait_without_deadline_is_woken(void **state)
{
	(void)state;
	struct bell bell = {.lock = PTHREAD_MUTEX_INITIALIZER};
	struct pool *pool;
	pool_cond_init(&bell.cond);
	assert_int_equal(pool_new("test", 1, &pool, NULL), 0);
	pthread_mutex_lock(&bell.lock);
	assert_int_equal(pool_add(pool, NULL, ring, &bell, NULL), 0);
	while (!bell.rung)
		assert_int_equal(pool_cond_wait_until(&bell.cond, &bell.lock, -1), 0);
	pthread_mutex_unlock(&bell.lock);
	pool_free(pool);
	pthread_cond_destroy(&bell.cond);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_job_runs_once),
		cmocka_unit_test(test_freeing_runs_what_is_queued),
		cmocka_unit_test(test_one_thread_keeps_the_order),
		cmocka_unit_test(test_a_group_does_not_wait_for_others),
		cmocka_unit_test(test_threads_block_signals_and_carry_the_name),
		cmocka_unit_test(test_calm_threads_leave_the_processors_to_others),
		cmocka_unit_test(test_absurd_thread_counts_are_refused),
		cmocka_unit_test(test_P16_a_wait_ends_at_its_deadline),
		cmocka_unit_test(test_a_wait_without_deadline_is_woken),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
