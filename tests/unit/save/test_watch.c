/* SPDX-License-Identifier: Apache-2.0 */
/* watch: the flag is up when the signal has been delivered, earlier handlers still run, everything
 * is put back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pawl.h"

static volatile sig_atomic_t earlier_calls, earlier_number, info_pid;

static void
earlier_handler(int number)
{
	earlier_calls++;
	earlier_number = number;
	errno = EDOM;
}

static void
earlier_info_handler(int number, siginfo_t *info, void *context)
{
	(void)context;
	earlier_calls++;
	earlier_number = number;
	info_pid = info->si_pid == getpid();
}

static void
set_handler(int number, void (*handler)(int))
{
	struct sigaction action = {.sa_handler = handler};
	assert_int_equal(sigaction(number, &action, NULL), 0);
}

static struct sigaction
get_handler(int number)
{
	struct sigaction action;
	assert_int_equal(sigaction(number, NULL, &action), 0);
	return action;
}

static int
setup(void **state)
{
	(void)state;
	earlier_calls = earlier_number = info_pid = 0;
	set_handler(SIGTERM, SIG_DFL);
	set_handler(SIGUSR1, SIG_DFL);
	return 0;
}

static struct pawl_watch *
open_watch(double grace_seconds)
{
	struct pawl_watch *watch = NULL;
	struct pawl_error err = {0};
	if (pawl_watch_open(grace_seconds, &watch, &err) < 0)
		fail_msg("%s", err.message);
	return watch;
}

static void
test_R153_the_flag_is_up_when_raise_returns(void **state)
{
	(void)state;
	const int numbers[] = {SIGTERM, SIGUSR1};
	for (size_t i = 0; i < 2; i++) {
		struct pawl_watch *watch = open_watch(0);
		assert_int_equal(pawl_watch_signal(watch), 0);
		raise(numbers[i]);
		assert_int_equal(pawl_watch_signal(watch), numbers[i]);
		assert_int_equal(pawl_watch_signal(watch), numbers[i]);
		pawl_watch_close(watch);
	}
}

static void
test_R153_the_first_signal_counts(void **state)
{
	(void)state;
	struct pawl_watch *watch = open_watch(1000);
	raise(SIGUSR1);
	double left = pawl_watch_seconds_left(watch);
	raise(SIGTERM);
	assert_int_equal(pawl_watch_signal(watch), SIGUSR1);
	assert_true(pawl_watch_seconds_left(watch) <= left);
	pawl_watch_close(watch);
}

static void
test_R153_time_left_is_known_when_the_grace_time_is(void **state)
{
	(void)state;
	struct pawl_watch *watch = open_watch(1000);
	assert_true(pawl_watch_seconds_left(watch) < 0);
	raise(SIGTERM);
	double left = pawl_watch_seconds_left(watch);
	assert_true(left > 900 && left <= 1000);
	pawl_watch_close(watch);

	watch = open_watch(1e-9);
	raise(SIGTERM);
	assert_true(pawl_watch_seconds_left(watch) == 0);
	pawl_watch_close(watch);

	watch = open_watch(0);
	raise(SIGTERM);
	assert_true(pawl_watch_seconds_left(watch) < 0);
	pawl_watch_close(watch);
}

static void
test_R153_an_earlier_handler_is_called_too_and_put_back(void **state)
{
	(void)state;
	set_handler(SIGTERM, earlier_handler);
	struct pawl_watch *watch = open_watch(0);
	errno = 0;
	raise(SIGTERM);
	assert_int_equal(errno, 0);
	assert_int_equal(earlier_calls, 1);
	assert_int_equal(earlier_number, SIGTERM);
	assert_int_equal(pawl_watch_signal(watch), SIGTERM);
	raise(SIGUSR1);
	assert_int_equal(earlier_calls, 1);
	pawl_watch_close(watch);
	assert_ptr_equal(get_handler(SIGTERM).sa_handler, earlier_handler);
	assert_ptr_equal(get_handler(SIGUSR1).sa_handler, SIG_DFL);
	raise(SIGTERM);
	assert_int_equal(earlier_calls, 2);
}

static void
test_R153_who_sent_the_signal_is_told(void **state)
{
	(void)state;
	struct pawl_watch *watch = open_watch(0);
	assert_int_equal(pawl_watch_sender(watch), 0);
	kill(getpid(), SIGTERM);
	assert_int_equal(pawl_watch_signal(watch), SIGTERM);
	assert_int_equal(pawl_watch_sender(watch), getpid());
	assert_int_equal(pawl_watch_sender(NULL), 0);
	pawl_watch_close(watch);
}

static void
test_an_earlier_handler_gets_its_siginfo(void **state)
{
	(void)state;
	struct sigaction action = {.sa_sigaction = earlier_info_handler, .sa_flags = SA_SIGINFO};
	sigaction(SIGUSR1, &action, NULL);
	struct pawl_watch *watch = open_watch(0);
	raise(SIGUSR1);
	assert_int_equal(earlier_calls, 1);
	assert_int_equal(info_pid, 1);
	pawl_watch_close(watch);
	assert_true(get_handler(SIGUSR1).sa_flags & SA_SIGINFO);
}

static void
test_ignored_signals_are_watched_and_ignored_again(void **state)
{
	(void)state;
	set_handler(SIGTERM, SIG_IGN);
	struct pawl_watch *watch = open_watch(0);
	raise(SIGTERM);
	assert_int_equal(pawl_watch_signal(watch), SIGTERM);
	pawl_watch_close(watch);
	assert_ptr_equal(get_handler(SIGTERM).sa_handler, SIG_IGN);
	raise(SIGTERM);
}

static void
test_a_handler_set_later_is_not_removed(void **state)
{
	(void)state;
	struct pawl_watch *watch = open_watch(0);
	set_handler(SIGTERM, earlier_handler);
	pawl_watch_close(watch);
	assert_ptr_equal(get_handler(SIGTERM).sa_handler, earlier_handler);
	assert_ptr_equal(get_handler(SIGUSR1).sa_handler, SIG_DFL);
}

static struct sigaction below;

static void
chaining_handler(int number)
{
	earlier_calls++;
	if (earlier_calls < 100 && (below.sa_flags & SA_SIGINFO))
		below.sa_sigaction(number, NULL, NULL);
}

static void
test_a_handler_that_calls_an_earlier_watch_is_called_once(void **state)
{
	(void)state;
	struct pawl_watch *watch = open_watch(0);
	below = get_handler(SIGUSR1);
	set_handler(SIGUSR1, chaining_handler);
	pawl_watch_close(watch);
	watch = open_watch(0);
	for (int i = 1; i <= 2; i++) {
		raise(SIGUSR1);
		assert_int_equal(earlier_calls, i);
	}
	assert_int_equal(pawl_watch_signal(watch), SIGUSR1);
	pawl_watch_close(watch);
}

static void
test_interrupting_system_calls_stays_the_programs_choice(void **state)
{
	(void)state;
	set_handler(SIGTERM, earlier_handler);
	struct pawl_watch *watch = open_watch(0);
	assert_false(get_handler(SIGTERM).sa_flags & SA_RESTART);
	assert_true(get_handler(SIGUSR1).sa_flags & SA_RESTART);
	pawl_watch_close(watch);
}

static void
test_a_second_watcher_is_refused_until_the_first_is_closed(void **state)
{
	(void)state;
	struct pawl_watch *watch = open_watch(0), *second = NULL;
	struct pawl_error err;
	assert_int_equal(pawl_watch_open(0, &second, &err), PAWL_EBUSY);
	assert_null(second);
	raise(SIGTERM);
	assert_int_equal(pawl_watch_signal(watch), SIGTERM);
	pawl_watch_close(watch);
	second = open_watch(0);
	assert_int_equal(pawl_watch_signal(second), 0);
	pawl_watch_close(second);
	assert_ptr_equal(get_handler(SIGTERM).sa_handler, SIG_DFL);
}

static void
test_bad_arguments(void **state)
{
	(void)state;
	struct pawl_watch *watch = NULL;
	assert_int_equal(pawl_watch_open(-1, &watch, NULL), PAWL_EUSAGE);
	assert_int_equal(pawl_watch_open(NAN, &watch, NULL), PAWL_EUSAGE);
	assert_null(watch);
	assert_int_equal(pawl_watch_signal(NULL), 0);
	assert_true(pawl_watch_seconds_left(NULL) < 0);
	pawl_watch_close(NULL);
}

/* After closing, SIGTERM ends the process again. */
static void
test_the_default_action_comes_back(void **state)
{
	(void)state;
	int status;
	pid_t pid = fork();
	if (pid == 0) {
		struct pawl_watch *watch;
		if (pawl_watch_open(0, &watch, NULL) < 0)
			_exit(1);
		raise(SIGTERM);
		if (pawl_watch_signal(watch) != SIGTERM)
			_exit(2);
		pawl_watch_close(watch);
		raise(SIGTERM);
		_exit(3);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}

static void *
send_signals(void *arg)
{
	(void)arg;
	for (int i = 0; i < 2000; i++)
		raise(SIGUSR1);
	return NULL;
}

/* Signals handled on another thread while watchers come and go must never see a freed one. */
static void
test_closing_while_signals_arrive_is_safe(void **state)
{
	(void)state;
	set_handler(SIGUSR1, earlier_handler);
	pthread_t thread;
	assert_int_equal(pthread_create(&thread, NULL, send_signals, NULL), 0);
	for (int i = 0; i < 500; i++) {
		struct pawl_watch *watch = open_watch(0);
		pawl_watch_signal(watch);
		pawl_watch_close(watch);
	}
	pthread_join(thread, NULL);
	assert_true(earlier_calls > 0);
	assert_ptr_equal(get_handler(SIGUSR1).sa_handler, earlier_handler);
}

/* How a child of a watching process ends that gets a signal; it exits with 7 if it lives on. */
static int
end_of_child(int number, int open_own)
{
	struct pawl_watch *watch = open_watch(0);
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		struct pawl_watch *own = NULL;
		if (open_own && pawl_watch_open(0, &own, NULL) < 0)
			_exit(1);
		raise(number);
		if (open_own && pawl_watch_signal(own) != number)
			_exit(2);
		pawl_watch_close(own);
		_exit(pawl_watch_signal(watch) == 0 ? 7 : 3);
	}
	int status = 0;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(pawl_watch_signal(watch), 0);
	pawl_watch_close(watch);
	return status;
}

static void
test_R153_a_forked_child_does_what_it_did_before(void **state)
{
	(void)state;
	int status = end_of_child(SIGTERM, 0);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
	status = end_of_child(SIGUSR1, 0);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGUSR1);
	set_handler(SIGTERM, SIG_IGN);
	status = end_of_child(SIGTERM, 0);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
	set_handler(SIGTERM, earlier_handler);
	status = end_of_child(SIGTERM, 0);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
	set_handler(SIGTERM, SIG_DFL);
	status = end_of_child(SIGTERM, 1); /* a child may watch for itself */
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_R153_the_flag_is_up_when_raise_returns, setup),
		cmocka_unit_test_setup(test_R153_the_first_signal_counts, setup),
		cmocka_unit_test_setup(test_R153_time_left_is_known_when_the_grace_time_is, setup),
		cmocka_unit_test_setup(test_R153_an_earlier_handler_is_called_too_and_put_back, setup),
		cmocka_unit_test_setup(test_R153_who_sent_the_signal_is_told, setup),
		cmocka_unit_test_setup(test_an_earlier_handler_gets_its_siginfo, setup),
		cmocka_unit_test_setup(test_ignored_signals_are_watched_and_ignored_again, setup),
		cmocka_unit_test_setup(test_a_handler_set_later_is_not_removed, setup),
		cmocka_unit_test_setup(test_a_handler_that_calls_an_earlier_watch_is_called_once, setup),
		cmocka_unit_test_setup(test_interrupting_system_calls_stays_the_programs_choice, setup),
		cmocka_unit_test_setup(test_a_second_watcher_is_refused_until_the_first_is_closed, setup),
		cmocka_unit_test_setup(test_bad_arguments, setup),
		cmocka_unit_test_setup(test_the_default_action_comes_back, setup),
		cmocka_unit_test_setup(test_closing_while_signals_arrive_is_safe, setup),
		cmocka_unit_test_setup(test_R153_a_forked_child_does_what_it_did_before, setup),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
