/* SPDX-License-Identifier: Apache-2.0 */
/* Running another program: what it prints, how it ends, how long it may take. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "helpers/hang.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/proc.h"

static int
run(const char *line, int64_t timeout_ms, size_t max, struct buf *out, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	char **argv;
	TRY(proc_split(line, &memory, &argv, err));
	return proc_capture(argv, timeout_ms, max, out, err);
}

static void
test_what_it_prints_is_taken(void **state)
{
	(void)state;
	PAWL_CLEAN(buf_clear) struct buf out = {0};
	struct pawl_error err = {0};
	assert_int_equal(run("sh -c 'echo \"a  b\"; echo gone >&2; cat'", HANG_MS, 1000, &out, &err), 0);
	assert_string_equal(buf_str(&out), "a  b\n");
}

static void
test_its_failures_are_told_without_its_output(void **state)
{
	(void)state;
	PAWL_CLEAN(buf_clear) struct buf out = {0};
	struct pawl_error err = {0};
	assert_int_equal(run("sh -c 'echo secret; echo secret >&2; exit 3'", HANG_MS, 1000, &out, &err), PAWL_EIO);
	assert_string_equal(err.message, "sh: ended with status 3");
	assert_int_equal(run("sh -c 'kill -9 $$'", HANG_MS, 1000, &out, &err), PAWL_EIO);
	assert_string_equal(err.message, "sh: was ended by signal 9");
	assert_int_equal(run("no-such-program-anywhere x", HANG_MS, 1000, &out, &err), PAWL_ENOTFOUND);
	assert_int_equal(run("sh -c 'while :; do echo secret; done'", HANG_MS, 1000, &out, &err), PAWL_ELIMIT);
	assert_null(strstr(err.message, "secret"));
}

static void
test_P16_it_ends_at_its_deadline_with_its_children(void **state)
{
	(void)state;
	PAWL_CLEAN(buf_clear) struct buf out = {0};
	struct pawl_error err = {0};
	int64_t begin = clock_mono_ms();
	assert_int_equal(run("sh -c 'sleep 600 & sleep 600'", 200, 1000, &out, &err), PAWL_ETIMEOUT);
	assert_int_equal(run("sh -c 'exec >&-; sleep 600'", 200, 1000, &out, &err), PAWL_ETIMEOUT);
	assert_true(clock_mono_ms() - begin < HANG_MS);
}

static void
test_a_line_is_split_like_a_shell_does_without_one(void **state)
{
	(void)state;
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	char **argv = NULL;
	assert_int_equal(proc_split(" a 'b c'\"d e\"\\ f  $x;`y` '' ", &memory, &argv, NULL), 0);
	static const char *const expected[] = {"a", "b cd e f", "$x;`y`", ""};
	for (size_t i = 0; i < 4; i++)
		assert_string_equal(argv[i], expected[i]);
	assert_null(argv[4]);
	struct pawl_error err = {0};
	assert_int_equal(proc_split("a 'b", &memory, &argv, &err), PAWL_EUSAGE);
	assert_int_equal(proc_split("  ", &memory, &argv, &err), PAWL_EUSAGE);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_it_prints_is_taken),
		cmocka_unit_test(test_its_failures_are_told_without_its_output),
		cmocka_unit_test(test_P16_it_ends_at_its_deadline_with_its_children),
		cmocka_unit_test(test_a_line_is_split_like_a_shell_does_without_one),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
