/* SPDX-License-Identifier: Apache-2.0 */
/* clock: processes are found alive, dead or unknown; unknown whenever there is doubt. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"

static void
test_time_goes_forward(void **state)
{
	(void)state;
	int64_t ns = clock_mono_ns(), ms = clock_mono_ms();
	clock_sleep_ms(3);
	assert_true(clock_mono_ns() - ns >= 3000000);
	assert_true(clock_mono_ms() - ms >= 2);
	clock_sleep_ms(0);
	clock_sleep_ms(-5);
	/* After 2024: nanoseconds, not another unit. */
	assert_true(clock_unix_ns() > INT64_C(1704067200000000000));
}

static void
test_a_deadline_may_be_as_far_away_as_can_be_said(void **state)
{
	(void)state;
	int64_t before_ms = clock_mono_ms(), deadline_ms = clock_deadline_ms(5);

	assert_true(deadline_ms >= before_ms + 5 && deadline_ms <= clock_mono_ms() + 5);
	assert_true(clock_deadline_ms(0) >= before_ms);
	assert_int_equal(clock_deadline_ms(INT64_MAX), INT64_MAX);
	assert_int_equal(clock_deadline_ms(-1), -1);
	assert_int_equal(clock_deadline_ms(INT64_MIN), -1);
}

static void
test_tokens_are_hex_and_differ(void **state)
{
	(void)state;
	char tokens[20][33];
	for (size_t i = 0; i < 20; i++) {
		assert_int_equal(clock_token(tokens[i], NULL), 0);
		assert_int_equal(strlen(tokens[i]), 32);
		assert_int_equal(strspn(tokens[i], "0123456789abcdef"), 32);
		for (size_t k = 0; k < i; k++)
			assert_string_not_equal(tokens[i], tokens[k]);
	}
}

static void
test_this_process_is_alive(void **state)
{
	(void)state;
	struct clock_process self;
	assert_int_equal(clock_this_process(&self, NULL), 0);
	assert_int_equal(self.pid, getpid());
	assert_true(text_is_utf8(self.host, strlen(self.host)));
	assert_int_equal(clock_process_alive(&self), 1);
}

/* A child that has written what it knows about itself and waits to be killed. */
static pid_t
start_child(struct clock_process *ret)
{
	int fds[2];
	assert_int_equal(pipe(fds), 0);
	pid_t pid = fork();
	if (pid == 0) {
		struct clock_process self;
		if (clock_this_process(&self, NULL) < 0 || write(fds[1], &self, sizeof(self)) != sizeof(self))
			_exit(1);
		for (;;)
			pause();
	}
	assert_true(pid > 0);
	assert_int_equal(read(fds[0], ret, sizeof(*ret)), sizeof(*ret));
	close(fds[0]);
	close(fds[1]);
	assert_int_equal(ret->pid, pid);
	return pid;
}

static void
test_P10_a_killed_process_is_dead_even_before_it_is_reaped(void **state)
{
	(void)state;
	struct clock_process child;
	pid_t pid = start_child(&child);
	siginfo_t info;
	assert_int_equal(clock_process_alive(&child), 1);
	kill(pid, SIGKILL);
	assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
#ifdef __linux__
	assert_int_equal(clock_process_alive(&child), 0);
#endif
	waitpid(pid, NULL, 0);
	assert_int_equal(clock_process_alive(&child), 0);
}

static void
test_P10_another_process_with_the_same_pid_is_told_apart(void **state)
{
	(void)state;
	struct clock_process self;
	clock_this_process(&self, NULL);
	self.start_ticks++;
#ifdef __linux__
	assert_int_equal(clock_process_alive(&self), 0);
#endif
	self.start_ticks = 0;
	assert_int_equal(clock_process_alive(&self), -1);
}

static void
test_P10_doubt_is_not_death(void **state)
{
	(void)state;
	struct clock_process self, other;
	clock_this_process(&self, NULL);

	other = self;
	snprintf(other.host, sizeof(other.host), "another-host");
	assert_int_equal(clock_process_alive(&other), -1);

	other = self;
	other.boot[0] = '\0';
	assert_int_equal(clock_process_alive(&other), -1);

	/* Same kernel, another pid namespace: a container. */
	other = self;
	char *slash = strchr(other.boot, '/');
	if (slash) {
		slash[1] = slash[1] == '1' ? '2' : '1';
		assert_int_equal(clock_process_alive(&other), -1);
	}

	other = self;
	other.pid = 0;
	assert_int_equal(clock_process_alive(&other), 0);
	other.pid = -1;
	assert_int_equal(clock_process_alive(&other), 0);
}

/* What is proof of a death, and what is not: hosts with one name are not the same machine. */
static void
test_P10_only_the_same_machine_and_namespace_say_where_a_process_ran(void **state)
{
	(void)state;
	static const char a[] = "0123456789abcdef0123456789abcdef", b[] = "ffffffffffffffffffffffffffffffff";
	static const char now[] = "boot2/4026531836", earlier[] = "boot1/4026531836";
	static const struct {
		const char *host, *machine, *boot, *own_host, *own_machine, *own_boot;
		enum clock_place place;
	} rows[] = {
		{"h", a, now, "h", a, now, CLOCK_HERE},
		{"h", "", now, "h", a, now, CLOCK_HERE}, /* by a version that did not write it */
		{"h", "", now, "h", "", now, CLOCK_HERE},
		{"h", b, now, "h", a, now, CLOCK_ELSEWHERE}, /* a machine that was cloned while it ran */
		{"g", a, now, "h", a, now, CLOCK_ELSEWHERE},
		{"h", a, "boot2/4026532000", "h", a, now, CLOCK_ELSEWHERE}, /* a container */
		{"h", a, now, "h", a, "boot2/4026532000", CLOCK_ELSEWHERE},
		{"h", a, "boot2/4026532000", "h", a, "boot2/4026532000", CLOCK_HERE},
		{"h", a, earlier, "h", a, now, CLOCK_REBOOTED},
		{"h", b, earlier, "h", a, now, CLOCK_ELSEWHERE}, /* another machine with this one's name */
		{"h", "", earlier, "h", a, now, CLOCK_ELSEWHERE},
		{"h", a, earlier, "h", "", now, CLOCK_ELSEWHERE},
		{"h", a, "boot1/4026532000", "h", a, "boot2/4026532000", CLOCK_ELSEWHERE}, /* pods of one image */
		{"h", a, "boot1", "h", a, now, CLOCK_ELSEWHERE},
		{"localhost", a, earlier, "localhost", a, now, CLOCK_ELSEWHERE},
		{"h", a, "", "h", a, now, CLOCK_ELSEWHERE},
		{"h", a, now, "h", a, "", CLOCK_ELSEWHERE},
	};
	for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
		struct clock_process p = {.pid = 1}, self = {.pid = 2};
		snprintf(p.host, sizeof p.host, "%s", rows[i].host);
		snprintf(p.machine, sizeof p.machine, "%s", rows[i].machine);
		snprintf(p.boot, sizeof p.boot, "%s", rows[i].boot);
		snprintf(self.host, sizeof self.host, "%s", rows[i].own_host);
		snprintf(self.machine, sizeof self.machine, "%s", rows[i].own_machine);
		snprintf(self.boot, sizeof self.boot, "%s", rows[i].own_boot);
		if (clock_process_place(&p, &self) != rows[i].place)
			fail_msg("row %zu: expected %d", i, (int)rows[i].place);
	}
}

static void
test_P18_the_machine_id_is_stored_as_a_checksum(void **state)
{
	(void)state;
	struct clock_process self;
	char id[64] = "";
	FILE *file = fopen("/etc/machine-id", "r");
	assert_int_equal(clock_this_process(&self, NULL), 0);
	if (file != NULL) {
		assert_true(fgets(id, sizeof id, file) != NULL || id[0] == '\0');
		assert_int_equal(fclose(file), 0);
	}
	assert_true(strlen(self.machine) == 0 || strlen(self.machine) == 32);
	if (strlen(id) >= 32) {
		assert_int_equal(strlen(self.machine), 32);
		assert_int_not_equal(strncmp(self.machine, id, 32), 0);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_time_goes_forward),
		cmocka_unit_test(test_a_deadline_may_be_as_far_away_as_can_be_said),
		cmocka_unit_test(test_tokens_are_hex_and_differ),
		cmocka_unit_test(test_this_process_is_alive),
		cmocka_unit_test(test_P10_a_killed_process_is_dead_even_before_it_is_reaped),
		cmocka_unit_test(test_P10_another_process_with_the_same_pid_is_told_apart),
		cmocka_unit_test(test_P10_doubt_is_not_death),
		cmocka_unit_test(test_P10_only_the_same_machine_and_namespace_say_where_a_process_ran),
		cmocka_unit_test(test_P18_the_machine_id_is_stored_as_a_checksum),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
