/* SPDX-License-Identifier: Apache-2.0 */
/* err: the table of codes is complete and consistent, messages are complete or cleanly cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/err.h"
#include "base/err_path.h"
#include "base/text.h"

static void
test_every_code_has_its_own_name(void **state)
{
	(void)state;
	for (int code = PAWL_EDEVICE; code <= PAWL_OK; code++) {
		assert_string_not_equal(pawl_code_name(code), "unknown");
		for (int other = PAWL_EDEVICE; other < code; other++)
			assert_string_not_equal(pawl_code_name(code), pawl_code_name(other));
	}
	assert_string_equal(pawl_code_name(PAWL_OK), "ok");
	assert_string_equal(pawl_code_name(PAWL_ECORRUPT), "corrupt");
}

static void
test_errno_values_have_codes(void **state)
{
	static const struct {
		int sys, code;
	} rows[] = {
		{ENOSPC, PAWL_ENOSPACE},
		{EDQUOT, PAWL_ENOSPACE},
		{ENOENT, PAWL_ENOTFOUND},
		{EEXIST, PAWL_EEXISTS},
		{ENOTEMPTY, PAWL_EEXISTS},
		{EACCES, PAWL_EAUTH},
		{EPERM, PAWL_EAUTH},
		{EROFS, PAWL_EREADONLY},
		{ENOMEM, PAWL_ENOMEM},
		{EINTR, PAWL_ETRANSIENT},
		{ESTALE, PAWL_ETRANSIENT},
		{EMFILE, PAWL_ETRANSIENT},
		{EIO, PAWL_EIO},
		{0, PAWL_EIO},
		{-1, PAWL_EIO},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		assert_int_equal(pawl_code_from_errno(rows[i].sys), rows[i].code);
}

static void
test_unknown_codes_are_plain_failures(void **state)
{
	(void)state;
	const int codes[] = {1, PAWL_EDEVICE - 1, INT32_MAX, INT32_MIN};
	for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
		assert_string_equal(pawl_code_name(codes[i]), "unknown");
		assert_int_equal(pawl_code_exit_status(codes[i]), 1);
		assert_int_equal(pawl_code_is_transient(codes[i]), 0);
	}
}

static void
test_exit_statuses_are_as_documented(void **state)
{
	(void)state;
	for (int code = PAWL_EDEVICE; code < PAWL_OK; code++)
		assert_true(pawl_code_exit_status(code) > 0);
	assert_int_equal(pawl_code_exit_status(PAWL_OK), 0);
	assert_int_equal(pawl_code_exit_status(PAWL_EIO), 1);
	assert_int_equal(pawl_code_exit_status(PAWL_EUSAGE), 2);
	assert_int_equal(pawl_code_exit_status(PAWL_ENOTFOUND), 3);
	assert_int_equal(pawl_code_exit_status(PAWL_ECORRUPT), 4);
	assert_int_equal(pawl_code_exit_status(PAWL_ETRANSIENT), 5);
	assert_int_equal(pawl_code_exit_status(PAWL_ETIMEOUT), 5);
	assert_int_equal(pawl_code_exit_status(PAWL_EBUSY), 6);
	assert_int_equal(pawl_code_exit_status(PAWL_ECONFLICT), 7);
	assert_int_equal(pawl_code_exit_status(PAWL_EEXISTS), 7);
	assert_int_equal(pawl_code_exit_status(PAWL_ECANCELLED), 130);
}

static void
test_only_failures_that_pass_by_themselves_are_transient(void **state)
{
	(void)state;
	for (int code = PAWL_EDEVICE; code <= PAWL_OK; code++) {
		bool transient = code == PAWL_ETRANSIENT || code == PAWL_ETIMEOUT || code == PAWL_EBUSY;
		assert_int_equal(pawl_code_is_transient(code), transient);
	}
}

static void
test_version_is_that_of_the_header(void **state)
{
	(void)state;
	assert_string_equal(pawl_version(), PAWL_VERSION);
}

static void
test_set_fills_and_returns_the_code(void **state)
{
	(void)state;
	struct pawl_error err = {.sys = 7};
	assert_int_equal(err_set(&err, PAWL_EUSAGE, "expected %d, found %s", 3, "x"), PAWL_EUSAGE);
	assert_int_equal(err.code, PAWL_EUSAGE);
	assert_int_equal(err.sys, 0);
	assert_string_equal(err.message, "expected 3, found x");
	assert_int_equal(err_set(NULL, PAWL_EUSAGE, "%d", 3), PAWL_EUSAGE);
}

static void
test_set_may_quote_the_earlier_message(void **state)
{
	(void)state;
	struct pawl_error err;
	err_set(&err, PAWL_EIO, "inner");
	err_set(&err, PAWL_ECORRUPT, "outer (%s)", err.message);
	assert_string_equal(err.message, "outer (inner)");
}

static void
test_sys_maps_errno(void **state)
{
	(void)state;
	const struct {
		int sys, code;
	} rows[] = {
		{ENOSPC, PAWL_ENOSPACE},      {EDQUOT, PAWL_ENOSPACE},
		{ENOENT, PAWL_ENOTFOUND},     {EEXIST, PAWL_EEXISTS},
		{ENOTEMPTY, PAWL_EEXISTS},    {EACCES, PAWL_EAUTH},
		{EPERM, PAWL_EAUTH},          {EROFS, PAWL_EREADONLY},
		{ENOMEM, PAWL_ENOMEM},        {EAGAIN, PAWL_ETRANSIENT},
		{EINTR, PAWL_ETRANSIENT},     {ESTALE, PAWL_ETRANSIENT},
		{ETIMEDOUT, PAWL_ETRANSIENT}, {EMFILE, PAWL_ETRANSIENT},
		{ENFILE, PAWL_ETRANSIENT},    {EIO, PAWL_EIO},
		{EINVAL, PAWL_EIO},           {0, PAWL_EIO},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct pawl_error err;
		assert_int_equal(err_sys(&err, rows[i].sys, "f"), rows[i].code);
		assert_int_equal(err.code, rows[i].code);
		assert_int_equal(err.sys, rows[i].sys);
		assert_int_equal(err_sys(NULL, rows[i].sys, "f"), rows[i].code);
	}
	struct pawl_error err;
	err_sys(&err, ENOENT, "%s: open", "a/b");
	assert_string_equal(err.message, "a/b: open: No such file or directory");
}

static void
test_long_messages_are_cut_between_characters(void **state)
{
	(void)state;
	struct pawl_error err;
	char text[4000];
	for (size_t shift = 0; shift < 4; shift++) {
		memset(text, 'x', shift);
		for (size_t at = shift; at + 3 < sizeof(text); at += 3)
			memcpy(text + at, "\xe2\x82\xac\0", 4);
		err_set(&err, PAWL_EIO, "%s", text);
		assert_true(text_is_utf8(err.message, strlen(err.message)));
		assert_true(strlen(err.message) > sizeof(err.message) - 5);
		err_sys(&err, ENOSPC, "%s", text);
		assert_true(text_is_utf8(err.message, strlen(err.message)));
		assert_non_null(strstr(err.message, ": No space left on device"));
		err_prefix(&err, PAWL_EIO, "%s", text);
		assert_true(text_is_utf8(err.message, strlen(err.message)));
	}
}

static void
test_P17_names_in_messages_cannot_steer_a_terminal(void **state)
{
	(void)state;
	struct pawl_error err;
	err_set(&err, PAWL_EIO, "%s",
	        "a\x1b[2Jb\tc\nd\x7f"
	        "e\xc2\x9b"
	        "f\xc2\xa0"
	        "g\xff"
	        "h\xc3\xa9");
	assert_string_equal(err.message, "a?[2Jb?c?d?e??f\xc2\xa0g?h\xc3\xa9");
	err_sys(&err, EIO, "%s", "\r");
	assert_int_equal(err.message[0], '?');
	err_prefix(&err, PAWL_EIO, "%s", "\x1b");
	assert_string_equal(err.message, "?: ?: Input/output error");
}

static void
test_prefix_keeps_code_and_errno(void **state)
{
	(void)state;
	struct pawl_error err;
	err_sys(&err, ENOSPC, "write");
	assert_int_equal(err_prefix(&err, PAWL_EIO, "pack %d", 2), PAWL_ENOSPACE);
	assert_int_equal(err.sys, ENOSPC);
	assert_string_equal(err.message, "pack 2: write: No space left on device");
	assert_int_equal(err_prefix(NULL, PAWL_EIO, "x"), PAWL_EIO);
}

static int
fail_with(int code, int *later)
{
	TRY(code);
	*later = 1;
	return 0;
}

static void
test_try_returns_on_failure_only(void **state)
{
	(void)state;
	int later = 0;
	assert_int_equal(fail_with(PAWL_EIO, &later), PAWL_EIO);
	assert_int_equal(later, 0);
	assert_int_equal(fail_with(3, &later), 0);
	assert_int_equal(later, 1);
}

static void
test_a_refused_path_is_named_with_what_to_do(void **state)
{
	struct pawl_error err = {0};

	(void)state;
	assert_int_equal(err_path(&err, EROFS, "runs/demo", true, "cannot create"), PAWL_EREADONLY);
	assert_string_equal(err.message, "runs/demo: the file system is mounted read-only; mount it for writing, or "
	                                 "choose another place");
	assert_int_equal(err.sys, EROFS);
	assert_int_equal(err_path(&err, EACCES, "runs/demo", true, "cannot create"), PAWL_EAUTH);
	assert_non_null(strstr(err.message, "may not write here; ask the owner for permission"));
	assert_int_equal(err_path(&err, EACCES, "runs/demo", false, "cannot open"), PAWL_EAUTH);
	assert_non_null(strstr(err.message, "may not read this"));
	assert_int_equal(err_path(&err, ENOSPC, "runs/demo", true, "cannot create"), PAWL_ENOSPACE);
	assert_string_equal(err.message, "runs/demo: cannot create: No space left on device");
	assert_int_equal(err_path_new(&err, EROFS, "runs/demo/", "cannot create"), PAWL_EREADONLY);
	assert_non_null(strstr(err.message, "runs: the file system is mounted read-only"));
	assert_int_equal(err_path_new(&err, EACCES, "/demo", "cannot create"), PAWL_EAUTH);
	assert_int_equal(strncmp(err.message, "/: user ", 8), 0);
	assert_int_equal(err_path_new(&err, EACCES, "demo", "cannot create"), PAWL_EAUTH);
	assert_int_equal(err.message[0], '/'); /* the current folder */
	assert_int_equal(err_path_new(&err, ENOSPC, "runs/demo", "cannot create"), PAWL_ENOSPACE);
	assert_string_equal(err.message, "runs/demo: cannot create: No space left on device");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_code_has_its_own_name),
		cmocka_unit_test(test_errno_values_have_codes),
		cmocka_unit_test(test_unknown_codes_are_plain_failures),
		cmocka_unit_test(test_exit_statuses_are_as_documented),
		cmocka_unit_test(test_only_failures_that_pass_by_themselves_are_transient),
		cmocka_unit_test(test_version_is_that_of_the_header),
		cmocka_unit_test(test_set_fills_and_returns_the_code),
		cmocka_unit_test(test_set_may_quote_the_earlier_message),
		cmocka_unit_test(test_sys_maps_errno),
		cmocka_unit_test(test_long_messages_are_cut_between_characters),
		cmocka_unit_test(test_P17_names_in_messages_cannot_steer_a_terminal),
		cmocka_unit_test(test_prefix_keeps_code_and_errno),
		cmocka_unit_test(test_try_returns_on_failure_only),
		cmocka_unit_test(test_a_refused_path_is_named_with_what_to_do),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
