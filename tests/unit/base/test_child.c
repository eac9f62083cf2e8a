/* SPDX-License-Identifier: Apache-2.0 */
/* A program that runs next to us: talking to it, its end, what it leaves behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "helpers/hang.h"
#include "base/child.h"
#include "base/clock.h"
#include "base/mem.h"

static struct child
start(const char *script, unsigned flags)
{
	char *argv[] = {"/bin/sh", "-c", (char *)script, NULL};
	struct child c = CHILD_INIT;
	struct pawl_error err = {0};
	if (child_start(argv, flags, &c, &err) < 0)
		fail_msg("%s", err.message);
	return c;
}

/* What comes until the other end is closed. */
static void
hear(int fd, struct buf *out)
{
	for (int64_t end = clock_mono_ms() + HANG_MS; clock_mono_ms() < end;) {
		struct pollfd waiting = {.fd = fd, .events = POLLIN};
		if (poll(&waiting, 1, 100) > 0 && !child_listen(fd, out, 1000))
			return;
	}
	fail_msg("it never ends");
}

static void
test_it_is_talked_to(void **state)
{
	(void)state;
	struct child c = start("read line; echo \"got $line\"; echo oops >&2; exit 5", CHILD_TALK);
	PAWL_CLEAN(buf_clear) struct buf answer = {0};
	PAWL_CLEAN(buf_clear) struct buf said = {0};
	assert_int_equal(child_send(c.talk, "word\n", 5), 5);
	hear(c.talk, &answer);
	hear(c.said, &said);
	assert_string_equal(buf_str(&answer), "got word\n");
	assert_string_equal(buf_str(&said), "oops\n");
	int status = child_end(&c, HANG_MS);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 5);
	assert_int_equal(c.pid, 0);
	assert_int_equal(child_end(&c, 0), 0);
}

static void
test_a_reader_that_died_is_no_signal(void **state)
{
	(void)state;
	struct child c = start("exit 0", CHILD_TALK);
	for (int64_t end = clock_mono_ms() + HANG_MS; !child_has_ended(&c) && clock_mono_ms() < end;)
		clock_sleep_ms(1);
	assert_int_equal(child_send(c.talk, "x", 1), -1); /* and we live */
	assert_int_equal(errno, EPIPE);
	child_end(&c, 0);
}

static void
test_only_the_last_words_are_kept(void **state)
{
	(void)state;
	struct child c =
		start("i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; echo done", CHILD_MERGED);
	PAWL_CLEAN(buf_clear) struct buf said = {0};
	hear(c.said, &said);
	assert_int_equal(said.len, 1000);
	assert_memory_equal(said.ptr + 995, "done\n", 5);
	assert_int_equal(child_end(&c, HANG_MS), 0);
}

static void
test_P16_the_end_takes_the_whole_group(void **state)
{
	(void)state;
	struct child c = start("trap '' TERM; sleep 100000 & echo $!; wait", CHILD_MERGED);
	PAWL_CLEAN(buf_clear) struct buf said = {0};
	for (int64_t end = clock_mono_ms() + HANG_MS; said.len == 0 && clock_mono_ms() < end;) {
		child_listen(c.said, &said, 100);
		clock_sleep_ms(5);
	}
	pid_t below = (pid_t)strtol(buf_str(&said), NULL, 10);
	assert_true(below > 0 && kill(below, 0) == 0);
	int status = child_end(&c, 50);
	assert_true(WIFSIGNALED(status));
	/* It is another process's child now, and may wait to be taken away: dead it is. */
	char path[64], line[256] = "";
	for (int64_t end = clock_mono_ms() + HANG_MS; kill(below, 0) == 0 && clock_mono_ms() < end; clock_sleep_ms(5)) {
		snprintf(path, sizeof path, "/proc/%ld/stat", (long)below);
		FILE *f = fopen(path, "r");
		if (f == NULL || fgets(line, sizeof line, f) == NULL)
			line[0] = '\0';
		if (f != NULL)
			fclose(f);
		if (strstr(line, ") Z ") != NULL)
			return;
	}
	assert_int_equal(kill(below, 0), -1);
}

static void
test_a_missing_program_is_named(void **state)
{
	(void)state;
	char *argv[] = {"no-such-program-anywhere", NULL};
	struct child c = CHILD_INIT;
	struct pawl_error err = {0};
	assert_int_equal(child_start(argv, CHILD_TALK, &c, &err), PAWL_ENOTFOUND);
	assert_string_equal(err.message, "no-such-program-anywhere: there is no such program");
	assert_int_equal(c.pid, 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_it_is_talked_to),
		cmocka_unit_test(test_a_reader_that_died_is_no_signal),
		cmocka_unit_test(test_only_the_last_words_are_kept),
		cmocka_unit_test(test_P16_the_end_takes_the_whole_group),
		cmocka_unit_test(test_a_missing_program_is_named),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
