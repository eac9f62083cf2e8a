/* SPDX-License-Identifier: Apache-2.0 */
/* mirror: what is uploaded next, and what is known; pure tables. For the actions of mirrors:
 * tests/py/test_mirrors.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "mirror/mirror.h"

#define TOKEN_A "0123456789abcdef0123456789abcdef"
#define TOKEN_B "fedcba9876543210fedcba9876543210"

static void
test_the_newest_that_is_due_is_next(void **state)
{
	(void)state;
	static const struct {
		struct mirror_candidate items[4];
		size_t n, next;
		int64_t until;
	} rows[] = {
		{{{0}}, 0, SIZE_MAX, -1},
		{{{1, false, 0}, {2, false, 0}}, 2, SIZE_MAX, -1},
		{{{1, true, 0}, {2, true, 0}, {3, false, 0}}, 3, 1, -1},
		{{{1, true, 0}, {2, true, 500}, {3, true, 900}}, 3, 0, 500},
		{{{1, true, 700}, {2, true, 500}}, 2, SIZE_MAX, 500},
		{{{1, true, 0}, {2, true, 100}}, 2, 1, -1},
		{{{7, true, 100}, {9, true, 101}}, 2, 0, 101},
	};
	for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
		int64_t until = 0;
		assert_int_equal(mirror_choose(rows[i].items, rows[i].n, 100, &until), rows[i].next);
		assert_int_equal(until, rows[i].until);
	}
}

static void
test_P16_pauses_grow_to_a_limit(void **state)
{
	(void)state;
	assert_int_equal(mirror_pause_ms(1), 5000);
	assert_int_equal(mirror_pause_ms(2), 10000);
	assert_int_equal(mirror_pause_ms(6), 160000);
	assert_int_equal(mirror_pause_ms(7), 300000);
	assert_int_equal(mirror_pause_ms(4000000000u), 300000);
}

static void
test_what_is_done_is_known_by_id_and_token(void **state)
{
	(void)state;
	struct mirror m = {0};
	for (uint64_t id = 200; id > 0; id--)
		assert_int_equal(mirror_note_done(&m, id, TOKEN_A, false, NULL), 0);
	assert_int_equal(mirror_note_done(&m, 7, TOKEN_A, true, NULL), 0);
	assert_int_equal(mirror_note_done(&m, 8, TOKEN_B, false, NULL), 0);
	assert_int_equal(m.n_done, 200);
	assert_true(mirror_has(&m, 1, TOKEN_A) && mirror_has(&m, 200, TOKEN_A));
	assert_false(mirror_has(&m, 1, TOKEN_B));
	assert_false(mirror_has(&m, 201, TOKEN_A));
	assert_false(mirror_has(&m, 7, TOKEN_A));
	assert_true(mirror_had(&m, 7, TOKEN_A));
	assert_true(mirror_has(&m, 8, TOKEN_B) && !mirror_had(&m, 8, TOKEN_A));
	mirror_find_done(&m, 9)->verified = mirror_find_done(&m, 10)->verified = true;
	mirror_forget_done(&m); /* only what was there and was deleted there on purpose is remembered */
	assert_true(mirror_had(&m, 7, TOKEN_A));
	for (uint64_t id = 1; id <= 200; id++)
		assert_true(id == 7 || !mirror_had(&m, id, TOKEN_A));
	mem_free(m.done);
}

static void
test_P14_what_a_listing_shows_is_verified_only_if_it_was_before(void **state)
{
	(void)state;
	struct mirror m = {0};
	for (uint64_t id = 1; id <= 4; id++)
		assert_int_equal(mirror_note_done(&m, id, TOKEN_A, false, NULL), 0);
	for (uint64_t id = 1; id <= 3; id++)
		mirror_find_done(&m, id)->verified = true;
	const uint64_t before = m.n_changes;
	mirror_forget_done(&m);
	assert_int_equal(mirror_note_done(&m, 1, TOKEN_A, false, NULL), 0);
	assert_int_equal(mirror_note_done(&m, 2, TOKEN_B, false, NULL), 0);
	assert_int_equal(mirror_note_done(&m, 4, TOKEN_A, false, NULL), 0);
	assert_true(m.n_changes > before); /* listings that began before are old */
	assert_true(mirror_has_verified(&m, 1, TOKEN_A) && !mirror_lacks(&m, 1, TOKEN_A));
	assert_true(mirror_has(&m, 2, TOKEN_B) && mirror_lacks(&m, 2, TOKEN_B));
	assert_true(!mirror_had(&m, 3, TOKEN_A) && mirror_lacks(&m, 3, TOKEN_A));
	assert_true(mirror_has(&m, 4, TOKEN_A) && !mirror_has_verified(&m, 4, TOKEN_A));
	assert_int_equal(mirror_note_done(&m, 1, TOKEN_A, true, NULL), 0); /* deleted there on purpose */
	assert_false(mirror_lacks(&m, 1, TOKEN_A) || mirror_has(&m, 1, TOKEN_A));
	mirror_forget_done(&m); /* 3 was not in the listing: what comes back there is not what we have seen */
	assert_int_equal(mirror_note_done(&m, 3, TOKEN_A, false, NULL), 0);
	assert_true(mirror_lacks(&m, 3, TOKEN_A));
	mem_free(m.done);
}

static void
test_marks_are_known_until_the_checkpoint_is_deleted_or_replaced(void **state)
{
	(void)state;
	struct mirror m = {0};
	const struct sum128 none = {0, 0}, marks = mirror_marks_sum(true, NULL, 0);
	for (uint64_t id = 1; id <= 3; id++) {
		assert_int_equal(mirror_note_done(&m, id, TOKEN_A, false, NULL), 0);
		mirror_find_done(&m, id)->marks = marks;
		mirror_find_done(&m, id)->verified = true;
	}
	mirror_forget_done(&m);
	assert_int_equal(mirror_note_done(&m, 1, TOKEN_A, false, NULL), 0); /* listed again */
	assert_int_equal(mirror_note_done(&m, 2, TOKEN_B, false, NULL), 0);
	assert_int_equal(mirror_note_done(&m, 3, TOKEN_A, true, NULL), 0);
	assert_true(sum_equal(mirror_find_done(&m, 1)->marks, marks));
	assert_true(sum_equal(mirror_find_done(&m, 2)->marks, none));
	assert_true(sum_equal(mirror_find_done(&m, 3)->marks, none));
	mem_free(m.done);
}

static void
test_P16_a_mirror_may_have_a_pause_as_a_whole(void **state)
{
	(void)state;
	struct mirror m = {.not_before_ms = 500};
	const struct catalog c = {0};
	int64_t until = 0;
	assert_null(mirror_next(&m, &c, 100, &until));
	assert_int_equal(until, 500);
	assert_null(mirror_next(&m, &c, 500, &until));
	assert_int_equal(until, -1);
}

static void
test_failures_are_counted_and_forgotten(void **state)
{
	(void)state;
	struct mirror m = {0};
	struct pawl_error why = {.code = PAWL_ETRANSIENT, .message = "gone"};
	for (uint64_t id = 1; id <= 40; id++)
		mirror_note_failure(&m, id, 1, &why);
	mirror_note_failure(&m, 3, 2, &why);
	assert_int_equal(m.n_failed, 41);
	assert_int_equal(m.n_tries, 40);
	assert_int_equal(m.tries[2].n, 2);
	assert_true(m.tries[2].not_before_ms >= m.tries[1].not_before_ms + 5000);
	assert_int_equal(m.last.code, PAWL_ETRANSIENT);
	assert_string_equal(m.tries[2].why.message, "gone");
	for (uint64_t id = 1; id <= 41; id++)
		mirror_forget_failure(&m, id);
	assert_int_equal(m.n_tries, 0);
	mem_free(m.tries);
}

/* A caller waits for an upload that begins after its call. One that failed, but began just before
 * the call, does not count, even in the same millisecond. */
static void
test_P16_a_try_that_began_before_a_wait_does_not_end_it(void **state)
{
	(void)state;
	const int64_t since_ns = 1000000;
	struct manifest summary = {.id = 1, .token = TOKEN_A};
	struct catalog_entry entry = {.id = 1, .summary = &summary};
	struct catalog catalog = {.entries = &entry, .n = 1};
	struct pawl run = {.catalog = &catalog};
	struct mirrors *ms = calloc(1, sizeof(*ms) + sizeof(struct mirror));
	struct pawl_error why = {.code = PAWL_ETRANSIENT, .message = "gone"};
	struct mirror_try *failed = NULL;

	assert_non_null(ms);
	ms->run = &run;
	ms->n = 1;
	mirror_note_failure(&ms->list[0], 1, since_ns - 1, &why);
	assert_int_equal(mirrors_outstanding(ms, since_ns, &failed), 1);
	assert_null(failed);
	mirror_note_failure(&ms->list[0], 1, since_ns, &why);
	assert_int_equal(mirrors_outstanding(ms, since_ns, &failed), 0);
	assert_ptr_equal(failed, &ms->list[0].tries[0]);
	mem_free(ms->list[0].tries);
	free(ms);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_newest_that_is_due_is_next),
		cmocka_unit_test(test_P16_pauses_grow_to_a_limit),
		cmocka_unit_test(test_what_is_done_is_known_by_id_and_token),
		cmocka_unit_test(test_P14_what_a_listing_shows_is_verified_only_if_it_was_before),
		cmocka_unit_test(test_marks_are_known_until_the_checkpoint_is_deleted_or_replaced),
		cmocka_unit_test(test_P16_a_mirror_may_have_a_pause_as_a_whole),
		cmocka_unit_test(test_failures_are_counted_and_forgotten),
		cmocka_unit_test(test_P16_a_try_that_began_before_a_wait_does_not_end_it),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
