/* SPDX-License-Identifier: Apache-2.0 */
/* names: lists in errors are cut with a count; a misspelt name finds the one that was meant. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/mem.h"
#include "base/names.h"

static const char *const LETTERS[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"};

static void
test_a_list_is_cut_after_ten_names_with_a_count(void **state)
{
	(void)state;
	const struct {
		size_t n;
		const char *text;
	} rows[] = {
		{0, ""},
		{1, "a"},
		{3, "a, b, c"},
		{10, "a, b, c, d, e, f, g, h, i, j"},
		{11, "a, b, c, d, e, f, g, h, i, j, ... and 1 more"},
		{12, "a, b, c, d, e, f, g, h, i, j, ... and 2 more"},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		PAWL_CLEAN(buf_clear) struct buf text = {0};

		names_put(&text, LETTERS, rows[i].n);
		assert_string_equal(buf_str(&text), rows[i].text);
	}
}

static void
test_the_nearest_name_differs_by_two_changes_at_most(void **state)
{
	(void)state;
	static const char *const names[] = {"momentum", "lr", "decay"};
	static const char *const no_names[] = {""}, *const words[] = {"one", "help"};

	assert_string_equal(names_nearest("momentun", names, 3), "momentum");
	assert_string_equal(names_nearest("mometum", names, 3), "momentum");
	assert_string_equal(names_nearest("dcayy", names, 3), "decay");
	assert_null(names_nearest("moment", names + 1, 2));
	assert_null(names_nearest("x", names, 3));
	assert_null(names_nearest("nope", words, 2));
	assert_string_equal(names_nearest("hlep", words, 2), "help");
	assert_string_equal(names_nearest("elp", words, 2), "help");
	assert_null(names_nearest("lr", no_names, 0));
	assert_null(
		names_nearest("a name that is longer than any other, and too long to compare it with one", names, 3));
}

static void
test_an_unknown_name_is_answered_with_the_known_ones(void **state)
{
	(void)state;
	static const char *const names[] = {"momentum", "lr"};
	PAWL_CLEAN(buf_clear) struct buf near = {0}, far = {0};

	names_put_known(&near, "momentun", names, 2);
	assert_string_equal(buf_str(&near), "; did you mean 'momentum'? (known: momentum, lr)");
	names_put_known(&far, "batch", names, 2);
	assert_string_equal(buf_str(&far), " (known: momentum, lr)");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_list_is_cut_after_ten_names_with_a_count),
		cmocka_unit_test(test_the_nearest_name_differs_by_two_changes_at_most),
		cmocka_unit_test(test_an_unknown_name_is_answered_with_the_known_ones),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
