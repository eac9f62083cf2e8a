/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of doctor.c: it answers by trying, leaves nothing behind, and copes with places where it
 * cannot try. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <sys/wait.h>

#include "helpers/small_run.h"

static const char *
value_of(const struct pawl_rows *rows, const char *key)
{
	for (size_t i = 0; i < pawl_rows_count(rows); i++) {
		if (strcmp(pawl_rows_key(rows, i), key) == 0)
			return pawl_rows_value(rows, i);
	}
	fail_msg("there is no row '%s'", key);
	return "";
}

static void
test_doctor_answers_every_question_and_leaves_nothing(void **state)
{
	struct small_run *r = *state;
	static const char *const yes[] = {"writable",       "fsync of files",   "fsync of folders", "hard links",
	                                  "symbolic links", "exclusive create", "rename of folders"};
	static const char *const others[] = {"file system",
	                                     "free space",
	                                     "longest file name",
	                                     "direct I/O",
	                                     "fallocate",
	                                     "reads without waiting",
	                                     "exclusive rename of folders",
	                                     "clock skew",
	                                     "sums"};
	struct pawl_rows *rows;

	OK(pawl_doctor(r->root, &rows, err));
	assert_string_equal(value_of(rows, "root"), r->root);
	assert_string_equal(value_of(rows, "store"), "file");
	assert_string_equal(value_of(rows, "lease"), "free");
	for (size_t i = 0; i < COUNT(yes); i++)
		assert_string_equal(value_of(rows, yes[i]), "yes");
	for (size_t i = 0; i < COUNT(others); i++)
		assert_true(value_of(rows, others[i])[0] != '\0');
	assert_null(pawl_rows_key(rows, pawl_rows_count(rows)));
	assert_null(pawl_rows_value(rows, SIZE_MAX));
	pawl_rows_free(rows);
	assert_int_equal(small_count(r, ""), 0);
}

static void
test_doctor_names_the_holder_of_the_lease(void **state)
{
	struct small_run *r = *state;
	struct pawl_rows *rows;
	char process[64];

	small_open(r);
	OK(pawl_doctor(r->root, &rows, err));
	snprintf(process, sizeof(process), "held by process %ld on host", (long)getpid());
	assert_non_null(strstr(value_of(rows, "lease"), process));
	assert_non_null(strstr(value_of(rows, "lease"), "alive"));
	pawl_rows_free(rows);
	small_write(r, ".lease", "{", 1);
	OK(pawl_doctor(r->root, &rows, err));
	assert_string_equal(value_of(rows, "lease"), "unreadable (corrupt)");
	pawl_rows_free(rows);
}

/* As a user without rights, in a child: this process may be root, which has all rights. */
static void
test_doctor_of_a_place_that_cannot_be_written_to(void **state)
{
	struct small_run *r = *state;
	int status;

	assert_int_equal(chmod(r->root, 0555), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		struct pawl_rows *rows = NULL;

		if (getuid() == 0 && setuid(65534) < 0)
			_exit(2);
		if (pawl_doctor(r->root, &rows, NULL) < 0)
			_exit(3);
		_exit(strncmp(value_of(rows, "writable"), "no: ", 4) != 0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(chmod(r->root, 0755), 0);
	assert_int_equal(small_count(r, ""), 0);
}

static void
test_doctor_of_places_that_are_none(void **state)
{
	struct small_run *r = *state;
	struct pawl_rows *rows = NULL;

	small_write(r, "file", "x", 1);
	FAILS(PAWL_ENOTFOUND, "missing", pawl_doctor(small_path(r, "missing").text, &rows, err));
	assert_false(small_exists(r, "missing"));
	FAILS(PAWL_EUSAGE, "folder", pawl_doctor(small_path(r, "file").text, &rows, err));
	FAILS(PAWL_EUSAGE, "", pawl_doctor("gs3://bucket/run", &rows, err));
	FAILS(PAWL_EUSAGE, "NULL", pawl_doctor(NULL, &rows, err));
	FAILS(PAWL_EUSAGE, "NULL", pawl_doctor(r->root, NULL, err));
	assert_null(rows);
	OK(pawl_doctor("mem:", &rows, err));
	assert_string_equal(value_of(rows, "store"), "mem");
	pawl_rows_free(rows);
	pawl_rows_free(NULL);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, small_setup, small_teardown)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		IN_FOLDER(test_doctor_answers_every_question_and_leaves_nothing),
		IN_FOLDER(test_doctor_names_the_holder_of_the_lease),
		IN_FOLDER(test_doctor_of_a_place_that_cannot_be_written_to),
		IN_FOLDER(test_doctor_of_places_that_are_none),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
