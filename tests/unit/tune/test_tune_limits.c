/* SPDX-License-Identifier: Apache-2.0 */
/* The runner where the system refuses further files or processes: trials wait, and none is lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>
#include <cmocka.h>

#include <spawn.h>
#include <sys/resource.h>

#include "helpers/hang.h"
#include "helpers/tune_bed.h"

#define TRIALS 30

static struct tune_runner *runner;
static uint32_t most_processes = UINT32_MAX; /* trials at a time; the system refuses more */
static size_t n_refused;

int __real_posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
                        const posix_spawnattr_t *attr, char *const argv[], char *const env[]);
int __wrap_posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
                        const posix_spawnattr_t *attr, char *const argv[], char *const env[]);
int
__wrap_posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
                    const posix_spawnattr_t *attr, char *const argv[], char *const env[])
{
	/* The trial that is being started is counted. */
	if (runner && tune_runner_count(runner) > most_processes) {
		n_refused++;
		return EAGAIN;
	}
	return __real_posix_spawnp(pid, file, actions, attr, argv, env);
}

static struct tune_experiment *
open_search(struct tune_bed *bed)
{
	const struct tune_runner_opts opts = {.cpus = TRIALS, .gpus = -1};
	struct pawl_error err = {0};
	struct tune_experiment *e;
	char spec[300];

	snprintf(spec, sizeof(spec),
	         "{\"name\": \"x\", \"metric\": \"loss\", \"num_samples\": %d, \"space\": {\"lr\": 1}, "
	         "\"grace_s\": 600, \"run\": [\"sh\", \"-c\", "
	         "\"echo '{{\\\"report\\\": {{\\\"loss\\\": 1}}}}' >&3; read -r answer <&3\"]}",
	         TRIALS);
	e = bed_open(bed, spec, "x", TUNE_NEW);
	assert_int_equal(tune_runner_new(e, &opts, &runner, &err), 0);
	return e;
}

/* Runs the search to its end. Each trial finishes; lost: the starts that the system refused. */
static void
finish_search(struct tune_experiment *e, size_t lost)
{
	struct tune_event event = {.kind = TUNE_EVENT_NONE};
	struct pawl_error err = {0};
	struct tune_counts counts;
	size_t n_lost = 0;

	while (event.kind != TUNE_EVENT_DONE) {
		if (tune_runner_poll(runner, HANG_MS, &event, &err) < 0)
			fail_msg("%s", err.message);
		assert_int_not_equal(event.kind, TUNE_EVENT_NONE);
		if (event.kind != TUNE_EVENT_ENDED)
			continue;
		assert_int_not_equal(event.how, TUNE_FAILED);
		assert_int_equal(event.again, event.how == TUNE_LOST);
		n_lost += event.how == TUNE_LOST;
	}
	assert_int_equal(n_lost, lost);
	tune_experiment_counts(e, &counts);
	assert_int_equal(counts.state[TUNE_TERMINATED], TRIALS);
	assert_int_equal(counts.reports, TRIALS);
	tune_runner_free(runner);
	runner = NULL;
	tune_experiment_close(e);
}

static void
test_R105_trials_wait_where_the_runner_could_open_no_further_file(void **state)
{
	struct tune_experiment *e = open_search(*state);
	struct tune_event event = {.kind = TUNE_EVENT_NONE};
	const int lowest = dup(0);
	struct rlimit before, limit;
	struct pawl_error err = {0};

	assert_true(lowest >= 0);
	close(lowest);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	limit = (struct rlimit){.rlim_cur = (rlim_t)lowest + 44, .rlim_max = before.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_int_equal(tune_runner_poll(runner, HANG_MS, &event, &err), 0); /* starts as many as it can */
	assert_int_equal(event.kind, TUNE_EVENT_STARTED);
	assert_in_range(tune_runner_count(runner), 2, TRIALS - 1);
	finish_search(e, 0);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

static void
test_R105_trials_wait_where_the_system_refuses_another_process(void **state)
{
	struct tune_experiment *e = open_search(*state);
	struct tune_event event = {.kind = TUNE_EVENT_NONE};
	struct pawl_error err = {0};

	n_refused = 0;
	most_processes = 3;
	assert_int_equal(tune_runner_poll(runner, HANG_MS, &event, &err), 0);
	assert_int_equal(tune_runner_count(runner), 3);
	assert_int_equal(n_refused, 1); /* it tries again when a trial has ended, not before */
	most_processes = UINT32_MAX;
	finish_search(e, 1);
}

static void
test_R105_a_trial_whose_process_is_refused_while_none_runs_has_not_failed(void **state)
{
	struct tune_experiment *e = open_search(*state);
	struct tune_event event = {.kind = TUNE_EVENT_NONE};
	struct pawl_error err = {0};
	struct tune_trial t;

	most_processes = 0;
	assert_int_equal(tune_runner_poll(runner, HANG_MS, &event, &err), PAWL_ETRANSIENT);
	assert_non_null(strstr(err.message, "run: sh: "));
	assert_int_equal(tune_trial_info(e, 0, &t, &err), 0);
	assert_int_equal(t.state, TUNE_PENDING);
	assert_int_equal(t.failures, 0);
	most_processes = UINT32_MAX;
	finish_search(e, 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_R105_trials_wait_where_the_runner_could_open_no_further_file,
	                                        bed_setup, bed_teardown),
		cmocka_unit_test_setup_teardown(test_R105_trials_wait_where_the_system_refuses_another_process,
	                                        bed_setup, bed_teardown),
		cmocka_unit_test_setup_teardown(
			test_R105_a_trial_whose_process_is_refused_while_none_runs_has_not_failed, bed_setup,
			bed_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
