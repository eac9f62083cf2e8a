/* SPDX-License-Identifier: Apache-2.0 */
/* device_turns: each thread begins with one group, and each item is taken once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>

#include "device/device_turns.h"

static void
expect(struct device_turns *t, size_t *group, size_t n, const size_t *items)
{
	size_t found;

	for (size_t i = 0; i < n; i++) {
		assert_true(device_turns_take(t, group, &found));
		assert_int_equal(found, items[i]);
	}
}

static void
test_a_thread_takes_its_group_and_then_joins_the_others(void **state)
{
	static const size_t group_of[] = {0, 2, 0, 0, 2, 0, 2, 2, 0}; /* group 1 is empty */
	static const size_t of_0[] = {0, 2, 3, 5, 8}, of_2[] = {1, 4, 6, 7};
	struct device_turns t;
	size_t groups[4], unused;

	(void)state;
	assert_int_equal(device_turns_init(&t, 9, 3, group_of, NULL), 0);
	for (size_t i = 0; i < 4; i++) {
		groups[i] = device_turns_join(&t);
		assert_int_equal(groups[i], i % 3);
	}
	expect(&t, &groups[2], 1, of_2);
	expect(&t, &groups[3], 2, of_0);
	expect(&t, &groups[1], 3, of_2 + 1); /* group 0 has two threads, group 2 has one */
	expect(&t, &groups[2], 3, of_0 + 2);
	for (size_t i = 0; i < 4; i++)
		assert_false(device_turns_take(&t, &groups[i], &unused));
	device_turns_clear(&t);
	device_turns_clear(&t);
}

/* Three threads and eight groups of two items. One group is slow: who takes of it never returns. */
static void
test_one_slow_group_stops_one_thread_only(void **state)
{
	enum { GROUPS = 8, THREADS = 3 };
	size_t group_of[2 * GROUPS];

	(void)state;
	for (size_t i = 0; i < 2 * GROUPS; i++)
		group_of[i] = i / 2;
	for (size_t slow = 0; slow < GROUPS; slow++) {
		struct device_turns t;
		size_t groups[THREADS], n_taken = 0, item;
		bool is_stopped[THREADS] = {0};

		assert_int_equal(device_turns_init(&t, 2 * GROUPS, GROUPS, group_of, NULL), 0);
		for (size_t i = 0; i < THREADS; i++)
			groups[i] = device_turns_join(&t);
		for (size_t round = 0; round < 2 * GROUPS; round++)
			for (size_t i = 0; i < THREADS; i++) {
				if (is_stopped[i] || n_taken == 2 * GROUPS - 2)
					continue;
				assert_true(device_turns_take(&t, &groups[i], &item));
				is_stopped[i] = group_of[item] == slow;
				n_taken += !is_stopped[i];
			}
		assert_int_equal(n_taken, 2 * GROUPS - 2); /* all of the other groups */
		device_turns_clear(&t);
	}
}

static void
test_without_groups_items_keep_their_order(void **state)
{
	static const size_t all[] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
	struct device_turns t;
	size_t group, other, unused;

	(void)state;
	assert_int_equal(device_turns_init(&t, 9, 1, NULL, NULL), 0);
	group = device_turns_join(&t);
	other = device_turns_join(&t);
	expect(&t, &group, 4, all);
	expect(&t, &other, 5, all + 4);
	assert_false(device_turns_take(&t, &group, &unused));
	device_turns_clear(&t);
	assert_int_equal(device_turns_init(&t, 0, 1, NULL, NULL), 0);
	group = device_turns_join(&t);
	assert_false(device_turns_take(&t, &group, &unused));
	device_turns_clear(&t);
}

struct taker {
	pthread_t thread;
	struct device_turns *turns;
	atomic_uint *taken; /* per item */
};

static void *
take_all(void *arg)
{
	const struct taker *one = arg;
	size_t group = device_turns_join(one->turns);

	for (size_t i; device_turns_take(one->turns, &group, &i);)
		atomic_fetch_add(&one->taken[i], 1);
	return NULL;
}

static void
test_many_threads_take_each_item_once(void **state)
{
	enum { ITEMS = 5000, THREADS = 6, GROUPS = 4 };
	static atomic_uint taken[ITEMS];
	static size_t groups[ITEMS];
	struct taker takers[THREADS];
	struct device_turns t;

	(void)state;
	for (size_t i = 0; i < ITEMS; i++)
		groups[i] = i * i % GROUPS;
	assert_int_equal(device_turns_init(&t, ITEMS, GROUPS, groups, NULL), 0);
	for (size_t i = 0; i < THREADS; i++) {
		takers[i] = (struct taker){.turns = &t, .taken = taken};
		assert_int_equal(pthread_create(&takers[i].thread, NULL, take_all, &takers[i]), 0);
	}
	for (size_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_join(takers[i].thread, NULL), 0);
	for (size_t i = 0; i < ITEMS; i++)
		assert_int_equal(atomic_load(&taken[i]), 1);
	device_turns_clear(&t);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_thread_takes_its_group_and_then_joins_the_others),
		cmocka_unit_test(test_one_slow_group_stops_one_thread_only),
		cmocka_unit_test(test_without_groups_items_keep_their_order),
		cmocka_unit_test(test_many_threads_take_each_item_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
