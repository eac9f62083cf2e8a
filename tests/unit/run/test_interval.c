/* SPDX-License-Identifier: Apache-2.0 */
/* interval: from which progress save intervals are counted, and the training seconds since then. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "run/interval.h"

static struct interval *
begin(struct interval *i)
{
	*i = (struct interval){0};
	pthread_mutex_init(&i->lock, NULL);
	return i;
}

static void
test_a_training_that_begins_has_saved_nothing(void **state)
{
	struct pawl_progress last;
	struct interval i;
	double cost;

	(void)state;
	interval_restart(begin(&i), NULL);
	assert_false(interval_read(&i, &last, &cost));
	assert_true(cost == 0);
	pthread_mutex_destroy(&i.lock);
}

static void
test_a_restored_training_counts_from_what_was_restored(void **state)
{
	struct pawl_progress saved = PAWL_PROGRESS_INIT, last, now = PAWL_PROGRESS_INIT;
	struct interval i;
	double cost;

	(void)state;
	saved.batch = 70;
	saved.total_wct = 1000;
	interval_restart(begin(&i), &saved);
	i.marking_id = 9; /* of a save before the restore: its failure must not move the mark back */
	interval_note_cost(&i, 2.5);
	assert_true(interval_read(&i, &last, &cost));
	assert_int_equal(last.batch, 70);
	assert_true(cost == 2.5);
	interval_add_wct(&i, &now);
	assert_true(now.total_wct >= 1000);
	interval_restart(&i, &saved);
	assert_int_equal(i.marking_id, 0);
	pthread_mutex_destroy(&i.lock);
}

static void
test_seconds_that_the_caller_gives_stay(void **state)
{
	struct pawl_progress now = PAWL_PROGRESS_INIT;
	struct interval i;

	(void)state;
	now.total_wct = 3;
	interval_restart(begin(&i), NULL);
	interval_add_wct(&i, &now);
	assert_true(now.total_wct == 3);
	pthread_mutex_destroy(&i.lock);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_training_that_begins_has_saved_nothing),
		cmocka_unit_test(test_a_restored_training_counts_from_what_was_restored),
		cmocka_unit_test(test_seconds_that_the_caller_gives_stay),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
