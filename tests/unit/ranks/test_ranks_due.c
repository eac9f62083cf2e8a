/* SPDX-License-Identifier: Apache-2.0 */
/* should_save with many ranks and a clock: rank 0 decides for all of them, by the caller's own
 * broadcast. A rank that cannot tell takes part all the same. P11. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "helpers/hang.h"
#include "helpers/rank_answers.h"

#define WORLD 3

static int pipes[WORLD][2];

enum lack { NOTHING, PROGRESS, VOICE, WORDS };
struct act {
	enum lack lack; /* PROGRESS: no fraction, so that it cannot tell; else its broadcast fails, or without words */
	int rank;       /* of this rank */
};

struct caller {
	const struct rank_job *job;
	int n; /* calls so far: the first is that of the opening */
};

static int
through_pipes(void *arg, void *bytes, size_t nbytes, struct pawl_error *err)
{
	struct caller *c = arg;
	const struct rank_job *job = c->job;
	const struct act *act = job->arg;

	for (int r = 1; job->rank == 0 && r < job->world; r++)
		if (write(pipes[r][1], bytes, nbytes) != (ssize_t)nbytes)
			return err->code = PAWL_EIO;
	if (job->rank > 0 && read(pipes[job->rank][0], bytes, nbytes) != (ssize_t)nbytes)
		return err->code = PAWL_EIO;
	if (c->n++ == 0 || act->rank != job->rank || act->lack < VOICE)
		return 0;
	if (act->lack == VOICE) {
		err->code = PAWL_EIO;
		snprintf(err->message, sizeof(err->message), "the line is cut");
	}
	return PAWL_EIO;
}

static int
ask(const struct rank_job *job)
{
	const struct act *act = job->arg;
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	struct pawl_progress now = PAWL_PROGRESS_INIT;
	struct pawl_rank who = PAWL_RANK_INIT;
	struct caller caller = {.job = job};
	struct answer *answer = &answers[job->rank];
	struct pawl_error err = {0};
	struct pawl *run = NULL;

	for (int r = 0; job->rank > 0 && r < WORLD; r++)
		close(pipes[r][1]); /* so that a read ends when rank 0 does */
	who.rank = job->rank;
	who.world_size = job->world;
	opts.root = job->root;
	opts.ranks.self = &who;
	opts.timeouts.commit_ms = job->commit_timeout_ms;
	opts.ranks.broadcast = through_pipes;
	opts.ranks.broadcast_arg = &caller;
	opts.save_interval = "0.25dur";
	RANK_TRY(pawl_open(&opts, &run, &err));
	now.fraction = act->lack == PROGRESS && act->rank == job->rank ? -1 : 0.5;
	memset(&answer->err, 0x5a, sizeof(answer->err));
	answer->code = pawl_should_save(run, 1, &now, &answer->err);
	answer->err.message[sizeof(answer->err.message) - 1] = '\0';
	pawl_close(run, NULL);
	return 0;
}

static void
ask_all(const char *root, enum lack lack, int rank)
{
	struct act act = {.lack = lack, .rank = rank};

	for (int r = 0; r < WORLD; r++)
		assert_int_equal(pipe(pipes[r]), 0);
	assert_int_equal(ranks_run(root, WORLD, HANG_MS, ask, &act), 0);
	for (int r = 0; r < WORLD; r++) {
		close(pipes[r][0]);
		close(pipes[r][1]);
	}
}

static void
expect_due(int rank)
{
	struct pawl_error before;

	memset(&before, 0x5a, sizeof(before));
	before.message[sizeof(before.message) - 1] = '\0';
	assert_int_equal(answers[rank].code, 1);
	assert_memory_equal(&answers[rank].err, &before, sizeof(before));
}

static void
expect_error(int rank, int code, const char *text)
{
	const struct answer *a = &answers[rank];

	assert_int_equal(a->code, code);
	assert_int_equal(a->err.code, code);
	if (!strstr(a->err.message, text))
		fail_msg("rank %d: expected \"%s\", found \"%s\"", rank, text, a->err.message);
}

static void
test_P11_if_rank_0_cannot_tell_no_rank_waits_and_all_get_an_error(void **state)
{
	ask_all(*state, PROGRESS, 0);
	expect_error(0, PAWL_EUSAGE, "the progress given has no fraction");
	for (int r = 1; r < WORLD; r++)
		expect_error(r, PAWL_EUSAGE, "rank 0 could not tell whether a save is due");
}

static void
test_P11_another_rank_that_cannot_tell_hears_rank_0(void **state)
{
	ask_all(*state, PROGRESS, 1);
	for (int r = 0; r < WORLD; r++)
		expect_due(r);
}

static void
test_P11_a_broadcast_that_fails_is_an_error_with_or_without_words(void **state)
{
	ask_all(*state, VOICE, 1);
	expect_error(1, PAWL_EIO, "the broadcast of rank 0's decision to save: the line is cut");
	expect_due(0);
	expect_due(2);
	ask_all(*state, WORDS, 1);
	expect_error(1, PAWL_EIO, "the broadcast of rank 0's decision to save");
}

int
main(void)
{
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, answers_setup, answers_teardown)
	const struct CMUnitTest tests[] = {
		CASE(test_P11_if_rank_0_cannot_tell_no_rank_waits_and_all_get_an_error),
		CASE(test_P11_another_rank_that_cannot_tell_hears_rank_0),
		CASE(test_P11_a_broadcast_that_fails_is_an_error_with_or_without_words),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
