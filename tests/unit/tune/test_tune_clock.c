/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The runner's times with a clock that is put forward here, by far more than a slow machine could
 * take. Trials that report nothing and trials that report that they live; trials that do not end on
 * request; those of a runner that was killed. A trial is a shell script that receives orders
 * through one pipe and confirms them through another one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>
#include <cmocka.h>

#include <poll.h>
#include <sys/wait.h>
#include <time.h>

#include "forker.h"
#include "helpers/tune_bed.h"

#define WORDS "800000" /* of heartbeat_s and grace_s */
#define LONG_S 700000  /* less than that, and more than half of it */
#define POLL_MS 50

static long ahead_s, forker_takes_s, judge_takes_s;

int __real_clock_gettime(clockid_t id, struct timespec *ret);
int __wrap_clock_gettime(clockid_t id, struct timespec *ret);
int
__wrap_clock_gettime(clockid_t id, struct timespec *ret)
{
	const int rc = __real_clock_gettime(id, ret);

	if (id == CLOCK_MONOTONIC)
		ret->tv_sec += ahead_s;
	return rc;
}

/* There is none; it takes its time to say so. */
bool __wrap_forker_start(struct forker *f, char *const env[], const int fds[3], pid_t *ret, int *ret_pidfd);
bool
__wrap_forker_start(struct forker *f, char *const env[], const int fds[3], pid_t *ret, int *ret_pidfd)
{
	(void)f, (void)env, (void)fds, (void)ret, (void)ret_pidfd;
	ahead_s += forker_takes_s;
	return false;
}

static enum tune_wish
judge(void *arg, uint32_t trial, const char *result)
{
	(void)arg, (void)trial, (void)result;
	ahead_s += judge_takes_s;
	return TUNE_GO_ON;
}

/* What happens instead of a wait for a lock; NULL = it waits. */
static void (*at_sleep)(void);
static long n_sleeps;

int __real_nanosleep(const struct timespec *t, struct timespec *rest);
int __wrap_nanosleep(const struct timespec *t, struct timespec *rest);
int
__wrap_nanosleep(const struct timespec *t, struct timespec *rest)
{
	n_sleeps++;
	if (at_sleep == NULL)
		return __real_nanosleep(t, rest);
	at_sleep();
	return 0;
}

static const char script[] = "exec 4<\"$1/orders\" 5>\"$1/answers\"\n"
			     "trap 'echo term >&5' TERM\n"
			     "while :; do\n"
			     "	read -r order <&4 || continue\n" /* a signal may end it */
			     "	case $order in\n"
			     "	beat) echo '{\"heartbeat\": 1}' >&3 ;;\n"
			     "	speak) echo '{\"heartbeat\": 1}' >&3; echo spoken >&5 ;;\n"
			     "	report) echo '{\"report\": {\"loss\": 1}}' >&3; read -r answer <&3\n"
			     "		echo reported >&5; read -r go <&4 ;;\n"
			     "	obey) trap - TERM ;;\n"
			     "	esac\n"
			     "	echo '{\"ask\": \"iteration\"}' >&3\n"
			     "	read -r answer <&3\n"
			     "	echo \"$order\" >&5\n"
			     "done\n";

struct play {
	struct tune_bed *bed;
	struct tune_experiment *e;
	struct tune_runner *runner;
	int orders, answers;
	bool ended;
	enum tune_end how;
	char why[200];
};

static int
make_pipe(const struct tune_bed *bed, const char *name)
{
	char path[128];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", bed->root, name);
	assert_int_equal(mkfifo(path, 0600), 0);
	fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
	assert_true(fd >= 0);
	return fd;
}

/* What happens next, or nothing of it. */
static void
look(struct play *p)
{
	struct pawl_error err = {0};
	struct tune_event event;

	if (tune_runner_poll(p->runner, POLL_MS, &event, &err) < 0)
		fail_msg("poll: %s", err.message);
	if (event.kind != TUNE_EVENT_ENDED)
		return;
	p->ended = true;
	p->how = event.how;
	snprintf(p->why, sizeof(p->why), "%s", event.text != NULL ? event.text : "");
}

static void
wait_for(struct play *p, const char *word)
{
	char text[64] = "";
	size_t len = 0;

	while (strchr(text, '\n') == NULL) {
		look(p);
		if (p->ended)
			fail_msg("it has ended before it said '%s': %s", word, p->why);
		if (read(p->answers, text + len, 1) == 1)
			len++;
		assert_true(len < sizeof(text) - 1);
	}
	text[len - 1] = '\0';
	assert_string_equal(text, word);
}

static void
tell(struct play *p, const char *word)
{
	assert_int_equal(dprintf(p->orders, "%s\n", word), (int)strlen(word) + 1);
}

/* Tells the trial to do something, and waits until it has. */
static void
order(struct play *p, const char *word)
{
	tell(p, word);
	wait_for(p, word);
}

static void
wait_for_end(struct play *p)
{
	while (!p->ended)
		look(p);
}

static void
begin(struct play *p, struct tune_bed *bed, const char *limit)
{
	const struct tune_runner_opts opts = {.cpus = 1, .gpus = -1};
	char path[128], spec[400], folder[128];
	const struct tune_open_opts how = {.folder = folder, .judge = judge};
	struct pawl_error err = {0};
	FILE *file;

	*p = (struct play){.bed = bed, .orders = make_pipe(bed, "orders"), .answers = make_pipe(bed, "answers")};
	snprintf(path, sizeof(path), "%s/trial.sh", bed->root);
	file = fopen(path, "w");
	assert_non_null(file);
	fputs(script, file);
	assert_int_equal(fclose(file), 0);
	snprintf(spec, sizeof(spec), "{\"name\": \"x\", \"space\": {}, %s, \"run\": [\"sh\", \"%s/trial.sh\", \"%s\"]}",
	         limit, bed->root, bed->root);
	snprintf(folder, sizeof(folder), "%s/x", bed->root);
	if (tune_experiment_open(spec, &how, &p->e, &err) < 0)
		fail_msg("open: %s", err.message);
	if (tune_runner_new(p->e, &opts, &p->runner, &err) < 0)
		fail_msg("runner: %s", err.message);
}

static void
end(struct play *p)
{
	tune_runner_free(p->runner);
	tune_experiment_close(p->e);
	close(p->orders);
	close(p->answers);
	ahead_s = forker_takes_s = judge_takes_s = 0;
}

static void
test_P16_a_trial_has_failed_when_it_has_said_nothing_for_so_long(void **state)
{
	struct play p;

	begin(&p, *state, "\"heartbeat_s\": " WORDS);
	order(&p, "obey");
	for (int i = 0; i < 4; i++) { /* 3.5 times as long as it may be silent */
		ahead_s += LONG_S;
		order(&p, "beat");
	}
	for (int i = 0; i < 2; i++) {
		assert_false(p.ended);
		ahead_s += LONG_S;
		look(&p);
	}
	wait_for_end(&p);
	assert_int_equal(p.how, TUNE_FAILED);
	assert_string_equal(p.why, "no sign of life for " WORDS " s");
	end(&p);
}

/* What is loaded before trials are forked may take longer than a trial may be silent. */
static void
test_the_time_until_a_trial_is_there_is_no_silence_of_it(void **state)
{
	struct play p;

	forker_takes_s = 2 * LONG_S;
	begin(&p, *state, "\"heartbeat_s\": " WORDS);
	order(&p, "beat");
	end(&p);
}

/* The program that searches may be busy for longer than a trial may be silent. */
static void
test_P16_a_trial_that_nobody_has_listened_to_was_not_silent(void **state)
{
	struct play p;
	char text[8] = "";

	begin(&p, *state, "\"heartbeat_s\": " WORDS);
	order(&p, "work");
	tell(&p, "speak");
	for (size_t n = 0; n < strlen("spoken\n");) {
		struct pollfd one = {.fd = p.answers, .events = POLLIN};
		assert_int_equal(poll(&one, 1, -1), 1);
		assert_int_equal(read(p.answers, text + n++, 1), 1);
	}
	assert_string_equal(text, "spoken\n");
	ahead_s += 2 * LONG_S;
	wait_for(&p, "speak");
	order(&p, "work");
	end(&p);
}

/* So may it be when it looks at a report, for which the trial waits. */
static void
test_P16_a_trial_that_waits_for_its_answer_is_not_silent(void **state)
{
	struct play p;

	judge_takes_s = 2 * LONG_S;
	begin(&p, *state, "\"heartbeat_s\": " WORDS);
	tell(&p, "report");
	wait_for(&p, "reported");
	look(&p);
	tell(&p, "go");
	wait_for(&p, "report");
	order(&p, "work");
	end(&p);
}

/* Asked to end, it reports nothing. It gets SIGTERM when its grace is over, and SIGKILL after as
 * long again. */
static void
test_P16_a_trial_that_does_not_end_is_terminated_and_then_killed(void **state)
{
	struct play p;

	begin(&p, *state, "\"grace_s\": " WORDS);
	order(&p, "work");
	tune_runner_stop(p.runner, false);
	ahead_s += LONG_S;
	order(&p, "work"); /* it still may */
	ahead_s += LONG_S;
	wait_for(&p, "term");
	ahead_s += LONG_S;
	order(&p, "work");
	ahead_s += LONG_S;
	wait_for_end(&p);
	assert_int_equal(p.how, TUNE_LOST);
	end(&p);
}

/* ---- which process runs an experiment ---- */

static const char plain[] = "{\"name\": \"x\", \"space\": {}}";
static int guard_gate, guard_end; /* closed, its guard ends; closed when it has ended */

static void
be_killed(struct tune_bed *bed, const int gate[2], const int end_of[2])
{
	struct tune_experiment *e = bed_open(bed, plain, "x", TUNE_AUTO);
	char none;

	if (e != NULL && fork() == 0) { /* its guard, which has the lock, too */
		(void)close(gate[1]);
		(void)close(end_of[0]);
		(void)read(gate[0], &none, 1);
		_exit(0);
	}
	_exit(0);
}

/* A runner that has gone, whose guard is there. */
static void
leave_a_guard(struct tune_bed *bed)
{
	int gate[2], end_of[2];
	pid_t pid;

	assert_int_equal(pipe(gate), 0);
	assert_int_equal(pipe(end_of), 0);
	pid = fork();
	if (pid == 0)
		be_killed(bed, gate, end_of);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	(void)close(gate[0]);
	(void)close(end_of[1]);
	guard_gate = gate[1];
	guard_end = end_of[0];
}

static void
let_the_guard_end(void)
{
	char none;

	(void)close(guard_gate);
	assert_int_equal(read(guard_end, &none, 1), 0);
	(void)close(guard_end);
	at_sleep = NULL;
}

static void
do_nothing(void)
{
}

static void
test_R130_going_on_waits_for_the_trials_of_a_runner_that_was_killed(void **state)
{
	struct tune_bed *bed = *state;
	struct tune_experiment *e = NULL;
	struct pawl_error err = {0};

	leave_a_guard(bed);
	at_sleep = do_nothing;
	assert_int_equal(bed_try_open(bed, plain, "x", TUNE_LOCAL, &e, &err), PAWL_EBUSY); /* P16: not forever */
	assert_non_null(strstr(err.message, "trials of a process that has ended still run (process "));
	at_sleep = let_the_guard_end;
	n_sleeps = 0;
	assert_int_equal(bed_try_open(bed, plain, "x", TUNE_LOCAL, &e, &err), 0);
	assert_in_range(n_sleeps, 1, 200);
	tune_experiment_close(e);
}

static void
test_P10_a_runner_that_is_there_is_not_waited_for_so_long(void **state)
{
	struct tune_bed *bed = *state;
	struct tune_experiment *e = bed_open(bed, plain, "x", TUNE_NEW), *other = NULL;
	struct pawl_error err = {0};

	at_sleep = do_nothing;
	n_sleeps = 0;
	assert_int_equal(bed_try_open(bed, plain, "x", TUNE_AUTO, &other, &err), PAWL_EBUSY);
	assert_non_null(strstr(err.message, "another process runs this experiment (process "));
	assert_in_range(n_sleeps, 1, 200);
	at_sleep = NULL;
	tune_experiment_close(e);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_P16_a_trial_has_failed_when_it_has_said_nothing_for_so_long,
	                                        bed_setup, bed_teardown),
		cmocka_unit_test_setup_teardown(test_the_time_until_a_trial_is_there_is_no_silence_of_it, bed_setup,
	                                        bed_teardown),
		cmocka_unit_test_setup_teardown(test_P16_a_trial_that_nobody_has_listened_to_was_not_silent, bed_setup,
	                                        bed_teardown),
		cmocka_unit_test_setup_teardown(test_P16_a_trial_that_waits_for_its_answer_is_not_silent, bed_setup,
	                                        bed_teardown),
		cmocka_unit_test_setup_teardown(test_P16_a_trial_that_does_not_end_is_terminated_and_then_killed,
	                                        bed_setup, bed_teardown),
		cmocka_unit_test_setup_teardown(test_R130_going_on_waits_for_the_trials_of_a_runner_that_was_killed,
	                                        bed_setup, bed_teardown),
		cmocka_unit_test_setup_teardown(test_P10_a_runner_that_is_there_is_not_waited_for_so_long, bed_setup,
	                                        bed_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
