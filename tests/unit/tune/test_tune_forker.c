/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trials whose forker has ended: numbers of processes that other processes may have by now.
 * Processes like a forker's are made here: a session with a process group in it, whose leader ends
 * when a pipe is closed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/spawn.h"
#include "forker.h"

struct orphan {
	struct forker f; /* which has gone, and has not been waited for */
	pid_t pid;
	int pidfd;
	int gate; /* the trial ends when it is closed */
};

static void
be_forker(int gate, int tell)
{
	char none;
	pid_t trial;

	(void)setsid();
	trial = fork();
	if (trial == 0) {
		(void)setpgid(0, 0);
		(void)close(tell);
		_exit(read(gate, &none, 1) < 0);
	}
	(void)setpgid(trial, trial);
	_exit(write(tell, &trial, sizeof(trial)) != sizeof(trial));
}

static void
make_orphan(struct orphan *o)
{
	int gate[2], tell[2];
	siginfo_t info;

	assert_int_equal(pipe(gate), 0);
	assert_int_equal(pipe(tell), 0);
	*o = (struct orphan){.f = FORKER_INIT, .gate = gate[1]};
	o->f.pid = fork();
	if (o->f.pid == 0) {
		(void)close(gate[1]);
		be_forker(gate[0], tell[1]);
	}
	(void)close(gate[0]);
	assert_int_equal(read(tell[0], &o->pid, sizeof(o->pid)), sizeof(o->pid));
	(void)close(tell[0]);
	(void)close(tell[1]);
	o->pidfd = spawn_watch(o->pid);
	assert_true(o->pidfd >= 0);
	assert_int_equal(waitid(P_PID, (id_t)o->f.pid, &info, WEXITED | WNOWAIT), 0);
}

static void
let_end(struct orphan *o)
{
	struct pollfd one = {.fd = o->pidfd, .events = POLLIN};

	(void)close(o->gate);
	assert_int_equal(poll(&one, 1, -1), 1);
}

static void
clear(struct orphan *o)
{
	(void)close(o->pidfd);
	forker_close(&o->f);
}

static void
test_a_trial_that_lives_on_is_known_by_its_descriptor_and_by_its_session(void **state)
{
	struct orphan o;
	int status;

	(void)state;
	make_orphan(&o);
	assert_false(forker_has_ended(&o.f, o.pid, o.pidfd, &status));
	assert_false(forker_has_ended(&o.f, o.pid, -1, &status));
	assert_true(forker_has_group(&o.f, o.pid));
	let_end(&o);
	assert_true(forker_has_ended(&o.f, o.pid, o.pidfd, &status));
	assert_int_equal(status, -1);
	assert_true(forker_has_ended(&o.f, o.pid, -1, &status));
	clear(&o);
}

static void
test_a_number_that_is_somebody_elses_by_now_is_not_believed(void **state)
{
	const pid_t other = getpid(); /* a process that lives, as one would that has been given the trial's number */
	struct orphan o;
	int status;

	(void)state;
	make_orphan(&o);
	let_end(&o);
	assert_int_equal(kill(other, 0), 0);
	assert_true(forker_has_ended(&o.f, other, o.pidfd, &status));
	assert_true(forker_has_ended(&o.f, other, -1, &status));
	assert_false(forker_has_group(&o.f, getpgrp()));
	clear(&o);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_trial_that_lives_on_is_known_by_its_descriptor_and_by_its_session),
		cmocka_unit_test(test_a_number_that_is_somebody_elses_by_now_is_not_believed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
