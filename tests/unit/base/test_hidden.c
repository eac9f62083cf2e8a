/* SPDX-License-Identifier: Apache-2.0 */
/* hidden: names of what is not complete are made, and recognised, in one way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/hidden.h"

#define TOKEN "0123456789abcdef0123456789abcdef"

static void
test_a_hidden_name_is_recognised(void **state)
{
	char name[HIDDEN_NAME_BYTES];

	(void)state;
	hidden_name_of("latest", TOKEN, HIDDEN_TMP, name);
	assert_string_equal(name, ".latest." TOKEN ".tmp");
	assert_true(hidden_is(name));
	assert_ptr_equal(hidden_token(name, HIDDEN_TMP), name + 8);
	assert_null(hidden_token(name, HIDDEN_PARTIAL));
	assert_int_equal(hidden_name("a", HIDDEN_PARTIAL, name, NULL), 0);
	assert_non_null(hidden_token(name, HIDDEN_PARTIAL));
}

static void
test_a_long_name_is_cut_and_keeps_its_token(void **state)
{
	char longest[300], name[HIDDEN_NAME_BYTES];

	(void)state;
	memset(longest, 'n', sizeof longest - 1);
	longest[sizeof longest - 1] = '\0';
	hidden_name_of(longest, TOKEN, HIDDEN_PARTIAL, name);
	assert_non_null(hidden_token(name, HIDDEN_PARTIAL));
}

static void
test_other_names_are_not_hidden(void **state)
{
	static const char *const names[] = {
		"latest",
		".pawl",
		"a." TOKEN ".tmp",
		".a.0123.tmp",
		"." TOKEN ".tmp",
		".a.G" TOKEN ".tmp",
		".a." TOKEN ".tmp2",
		"",
		".tmp",
	};

	(void)state;
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
		assert_null(hidden_token(names[i], HIDDEN_TMP));
	assert_false(hidden_is("latest"));
	assert_false(hidden_is("a.tmp"));
	assert_true(hidden_is(".anything.tmp"));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_hidden_name_is_recognised),
		cmocka_unit_test(test_a_long_name_is_cut_and_keeps_its_token),
		cmocka_unit_test(test_other_names_are_not_hidden),
	};
	return cmocka_run_group_tests_name("hidden", tests, NULL, NULL);
}
