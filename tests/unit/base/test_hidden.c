/* SPDX-License-Identifier: Apache-2.0 */
/* hidden: names of what is not complete are made, and recognised, in one way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/hidden.h"
#include "base/mem.h"

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

static void
write_name(int dir_fd, const char *name, const char *text)
{
	PAWL_FD int fd = openat(dir_fd, name, O_CREAT | O_WRONLY | O_TRUNC, 0600);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
}

static void
assert_text(int dir_fd, const char *name, const char *text)
{
	PAWL_CLEAN(buf_clear) struct buf found = {0};
	assert_int_equal(fd_read_file(dir_fd, name, 100, &found, NULL), 0);
	assert_string_equal(buf_str(&found), text);
}

/* Runs `check` in a new folder. */
static void
in_folder(void (*check)(int dir_fd))
{
	char path[] = "/tmp/test_hidden_XXXXXX";
	assert_non_null(mkdtemp(path));
	PAWL_FD int dir_fd = open(path, O_RDONLY | O_DIRECTORY);
	check(dir_fd);
	assert_int_equal(fd_remove_tree(AT_FDCWD, path, NULL), 0);
}

static void
check_files(int dir_fd)
{
	write_name(dir_fd, ".a", "1");
	assert_int_equal(hidden_file_appear(dir_fd, ".a", dir_fd, "a", false), 0);
	assert_text(dir_fd, "a", "1");
	assert_int_equal(faccessat(dir_fd, ".a", F_OK, 0), -1);
	write_name(dir_fd, ".a", "2");
	assert_int_equal(hidden_file_appear(dir_fd, ".a", dir_fd, "a", false), EEXIST);
	assert_text(dir_fd, "a", "1");
	assert_text(dir_fd, ".a", "2");
	assert_int_equal(hidden_file_appear(dir_fd, ".a", dir_fd, "a", true), 0);
	assert_text(dir_fd, "a", "2");
	assert_int_equal(hidden_file_appear(dir_fd, ".a", dir_fd, "a", true), ENOENT);
	assert_int_equal(linkat(dir_fd, "a", dir_fd, ".a", 0), 0); /* rename does nothing between two links */
	assert_int_equal(hidden_file_appear(dir_fd, ".a", dir_fd, "a", true), 0);
	assert_int_equal(faccessat(dir_fd, ".a", F_OK, 0), -1);
}

static void
test_a_file_appears_and_replaces_only_if_it_may(void **state)
{
	(void)state;
	in_folder(check_files);
}

static void
make_full(int dir_fd, const char *name, const char *text)
{
	assert_int_equal(mkdirat(dir_fd, name, 0700), 0);
	PAWL_FD int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY);
	write_name(fd, "x", text);
}

static void
check_folders(int dir_fd)
{
	make_full(dir_fd, ".f", "1");
	assert_int_equal(mkdirat(dir_fd, "f", 0700), 0);
	assert_int_equal(hidden_folder_appear(dir_fd, ".f", dir_fd, "f", false), EEXIST);
	assert_int_equal(hidden_folder_appear(dir_fd, ".f", dir_fd, "f", true), 0); /* it was empty */
	make_full(dir_fd, ".f", "2");
	assert_int_equal(hidden_folder_appear(dir_fd, ".f", dir_fd, "f", false), EEXIST);
	assert_int_equal(hidden_folder_appear(dir_fd, ".f", dir_fd, "f", true), EEXIST);
	assert_text(dir_fd, "f/x", "1");
	write_name(dir_fd, "file", "");
	assert_int_equal(hidden_folder_appear(dir_fd, ".f", dir_fd, "file", true), EEXIST);
	assert_int_equal(hidden_folder_appear(dir_fd, ".f", dir_fd, "g", false), 0);
	assert_text(dir_fd, "g/x", "2");
}

static void
test_a_folder_appears_and_replaces_nothing_but_an_empty_one(void **state)
{
	(void)state;
	in_folder(check_folders);
}

static void
test_a_fixed_name_is_the_same_again(void **state)
{
	char a[HIDDEN_NAME_BYTES], b[HIDDEN_NAME_BYTES], other[HIDDEN_NAME_BYTES];

	(void)state;
	hidden_name_fixed("latest", HIDDEN_TMP, a);
	hidden_name_fixed("latest", HIDDEN_TMP, b);
	hidden_name_fixed("best", HIDDEN_TMP, other);
	assert_string_equal(a, b);
	assert_string_not_equal(a, other);
	assert_non_null(hidden_token(a, HIDDEN_TMP));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_hidden_name_is_recognised),
		cmocka_unit_test(test_a_long_name_is_cut_and_keeps_its_token),
		cmocka_unit_test(test_other_names_are_not_hidden),
		cmocka_unit_test(test_a_file_appears_and_replaces_only_if_it_may),
		cmocka_unit_test(test_a_folder_appears_and_replaces_nothing_but_an_empty_one),
		cmocka_unit_test(test_a_fixed_name_is_the_same_again),
	};
	return cmocka_run_group_tests_name("hidden", tests, NULL, NULL);
}
