/* SPDX-License-Identifier: Apache-2.0 */
/* group: who is gone, who disagrees, who is stuck, whether a group starts again, and files that two workers give. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "pawl.h"

#define COUNT(rows) (sizeof(rows) / sizeof((rows)[0]))

static void
check(const struct pawl_group_worker *workers, size_t n, enum pawl_group_trouble trouble, int32_t rank,
      const char *words)
{
	struct pawl_group_limits limits = PAWL_GROUP_LIMITS_INIT;
	char text[512] = "x";
	int32_t found = 7;

	limits.silent_ms = 4000;
	limits.still_ms = 9000;
	assert_int_equal(pawl_group_look(workers, n, &limits, &found, text, sizeof(text)), trouble);
	assert_string_equal(text, words);
	assert_int_equal(found, rank);
}

static void
test_P11_a_worker_without_a_sign_of_life_is_the_one(void **state)
{
	(void)state;
	struct pawl_group_worker w[] = {{.n_reports = 2}, {.n_reports = 2, .silent_ms = 4000}, {.n_reports = 3}};

	check(w, 3, PAWL_GROUP_WELL, -1, "");
	w[1].silent_ms = 4001;
	check(w, 3, PAWL_GROUP_SILENT, 1, "rank 1 gave no sign of life for 4 s");
	w[1].has_ended = 1; /* then silence is as it should be, but the others wait in vain */
	check(w, 3, PAWL_GROUP_UNEQUAL, -1,
	      "report 3: rank 2 has come to it, but the train function of rank 1 has ended after 2; all workers must report "
	      "equally often");
	check(w, 0, PAWL_GROUP_WELL, -1, "");
}

static void
test_P11_unequal_numbers_of_reports_are_named_once_one_has_ended(void **state)
{
	(void)state;
	struct pawl_group_worker w[] = {{.n_reports = 3}, {.n_reports = 1}, {.n_reports = 3, .has_ended = 1}};

	check(w, 3, PAWL_GROUP_WELL, -1, ""); /* rank 1 may still come to them */
	w[1].has_ended = 1;
	check(w, 3, PAWL_GROUP_UNEQUAL, -1,
	      "report 2: rank 0 has come to it, but the train function of rank 1 has ended after 1; all workers must report "
	      "equally often");
	w[1].n_reports = 3;
	check(w, 3, PAWL_GROUP_WELL, -1, "");
}

static void
test_P16_a_group_is_stuck_when_none_of_it_gets_on(void **state)
{
	(void)state;
	struct pawl_group_worker w[] = {{.n_reports = 2, .still_ms = 9001},
	                                {.n_reports = 2, .still_ms = 9001},
	                                {.n_reports = 2, .still_ms = 9000}};

	check(w, 3, PAWL_GROUP_WELL, -1, ""); /* the third may be what the others wait for */
	w[2].still_ms = 9001;
	check(w, 3, PAWL_GROUP_STUCK, -1,
	      "no worker came to a report for 9 s: rank 0 is at 2; rank 1 is at 2; rank 2 is at 2");
	w[0].has_ended = w[1].has_ended = 1;
	check(w, 3, PAWL_GROUP_STUCK, -1,
	      "no worker came to a report for 9 s: rank 0 has ended after 2; rank 1 has ended after 2; rank 2 is at 2");
	w[2].has_ended = 1;
	check(w, 3, PAWL_GROUP_WELL, -1, "");
	for (size_t i = 0; i < 3; i++)
		w[i] = (struct pawl_group_worker){.silent_ms = 1 << 30, .still_ms = 1 << 30};
	struct pawl_group_limits none = PAWL_GROUP_LIMITS_INIT;
	int32_t rank = 0;
	char text[8];
	assert_int_equal(pawl_group_look(w, 3, &none, &rank, text, sizeof(text)), PAWL_GROUP_WELL);
}

static void
test_P11_those_that_have_not_come_are_named_and_many_are_counted(void **state)
{
	(void)state;
	struct pawl_group_worker w[20] = {
		{.n_reports = 5}, {.n_reports = 4}, {.n_reports = 3, .has_ended = 1}, {.n_reports = 5}};
	char text[256];

	assert_int_equal(pawl_group_late(w, 4, 5, text, sizeof(text)), 2);
	assert_string_equal(text, "rank 1 is at 4; rank 2 has ended after 3");
	assert_int_equal(pawl_group_late(w, 4, 3, text, sizeof(text)), 0);
	assert_string_equal(text, "");
	assert_int_equal(pawl_group_late(w, COUNT(w), 5, text, sizeof(text)), 18);
	assert_non_null(strstr(text, "; rank 9 is at 0; and 10 more"));
	assert_int_equal(pawl_group_late(w, 4, 5, text, 12), 2);
	assert_string_equal(text, "rank 1 is a");
	assert_int_equal(pawl_group_late(w, 4, 5, NULL, 0), 2);
}

static void
test_R55_a_group_starts_again_as_often_as_it_may(void **state)
{
	(void)state;
	const struct {
		enum pawl_group_end end;
		uint64_t n;
		int64_t most;
		int again;
	} rows[] = {
		{PAWL_GROUP_FAILED, 1, 0, 0}, {PAWL_GROUP_FAILED, 1, 1, 1}, {PAWL_GROUP_FAILED, 2, 1, 0},
		{PAWL_GROUP_FAILED, 3, 3, 1}, {PAWL_GROUP_FAILED, 4, 3, 0}, {PAWL_GROUP_FAILED, 1 << 30, -1, 1},
		{PAWL_GROUP_DONE, 0, -1, 0},  {PAWL_GROUP_WRONG, 1, -1, 0}, {PAWL_GROUP_TOLD, 1, 5, 0},
	};
	for (size_t i = 0; i < COUNT(rows); i++)
		assert_int_equal(pawl_group_again(rows[i].end, rows[i].n, rows[i].most), rows[i].again);
}

static void
test_R44_one_name_with_different_contents_is_told(void **state)
{
	(void)state;
	struct pawl_group_file files[] = {
		{"b", 0, 3, 7}, {"same", 0, 5, 9}, {"own", 1, 1, 1}, {"same", 2, 5, 9},
		{"b", 2, 3, 8}, {"b", 1, 3, 7},    {"a", 2, 0, 0},
	};
	char text[128] = "x";

	assert_int_equal(pawl_group_clash(files, COUNT(files), text, sizeof(text), NULL), 1);
	assert_string_equal(text, "ranks 0 and 2 both give the file 'b' with different contents");
	files[4].sum = 7;
	assert_int_equal(pawl_group_clash(files, COUNT(files), text, sizeof(text), NULL), 0);
	assert_string_equal(text, "");
	files[3].nbytes = 6;
	assert_int_equal(pawl_group_clash(files, COUNT(files), text, sizeof(text), NULL), 1);
	assert_string_equal(text, "ranks 0 and 2 both give the file 'same' with different contents");
	assert_int_equal(pawl_group_clash(NULL, 0, text, sizeof(text), NULL), 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_P11_a_worker_without_a_sign_of_life_is_the_one),
		cmocka_unit_test(test_P11_unequal_numbers_of_reports_are_named_once_one_has_ended),
		cmocka_unit_test(test_P16_a_group_is_stuck_when_none_of_it_gets_on),
		cmocka_unit_test(test_P11_those_that_have_not_come_are_named_and_many_are_counted),
		cmocka_unit_test(test_R55_a_group_starts_again_as_often_as_it_may),
		cmocka_unit_test(test_R44_one_name_with_different_contents_is_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
