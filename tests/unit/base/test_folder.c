/* SPDX-License-Identifier: Apache-2.0 */
/* folder: names are listed in order. Needs a writable /tmp. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/folder.h"

static void
test_names_come_in_order_without_the_dots(void **state)
{
	(void)state;
	static const char *const expected[] = {"..data", ".hidden", "B", "a", "b"};
	PAWL_CLEAN(folder_names_clear) struct folder_names names = {0};
	char path[] = "/tmp/pawl-folder-XXXXXX";

	assert_non_null(mkdtemp(path));
	PAWL_FD int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_int_equal(folder_list(fd, ".", "x", &names, NULL), 0);
	assert_int_equal(names.n, 0);
	for (size_t i = 0; i < 5; i++)
		assert_int_equal(mkdirat(fd, expected[(i * 3) % 5], 0700), 0);
	for (int pass = 0; pass < 2; pass++) { /* no listing moves the position of fd */
		folder_names_clear(&names);
		assert_int_equal(folder_list(fd, ".", "x", &names, NULL), 0);
		assert_int_equal(names.n, 5);
		for (size_t i = 0; i < 5; i++)
			assert_string_equal(names.items[i], expected[i]);
	}
	fd_remove_tree(AT_FDCWD, path, NULL);
}

static void
test_a_missing_folder_and_a_file_are_errors(void **state)
{
	(void)state;
	PAWL_CLEAN(folder_names_clear) struct folder_names names = {0};
	struct pawl_error err = {0};

	assert_int_equal(folder_list(AT_FDCWD, "/proc/none", "x", &names, &err), PAWL_ENOTFOUND);
	assert_non_null(strstr(err.message, "x: list"));
	assert_true(folder_list(AT_FDCWD, "/dev/null", "x", &names, &err) < 0);
	assert_int_equal(names.n, 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names_come_in_order_without_the_dots),
		cmocka_unit_test(test_a_missing_folder_and_a_file_are_errors),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
