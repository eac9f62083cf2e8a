/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many ranks when something is wrong: real processes that disagree, fail, die, hang, connect twice
 * or never. P9 to P11, P16. What must hold every time: all ranks end a step alike and in time, the
 * error names ranks and tensors, what existed before still exists and is complete, and nothing else
 * is listed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>

#include "helpers/ranks_board.h"
#include "ranks/gather.h"

/* ---- ranks that disagree */

static const struct disagreement {
	const char *what;
	enum twist twist;
	int code;
	const char *text, *text2;
} disagreements[] = {
	{"step", OTHER_STEP, PAWL_EMISMATCH, "rank 2 saves step 102, rank 0 step 2", "same steps in the same order"},
	{"dtype", OTHER_DTYPE, PAWL_EMISMATCH, "tensor 'w' is ", "on rank 2"},
	{"shape", OTHER_SHAPE, PAWL_EMISMATCH, "tensor 'w' is ", "[8, 8]"},
	{"kind", OTHER_KIND, PAWL_EMISMATCH, "list: rank 0 has a list, rank 2 a dict", ""},
	{"length of a list", SHORTER_LIST, PAWL_EMISMATCH, "list: rank 0 has 3 elements", "rank 2 2"},
	{"same piece", SAME_PIECE, PAWL_EMISMATCH, "'rows': ranks 1 and 2 both give [4:8, 0:8] (",
         "held by ranks 0 to 2"},
	{"wrong piece", WRONG_PIECE, PAWL_EMISMATCH,
         "'rows': ranks 1 and 2 both give [4:8, 0:8]; no rank gives [8:12, 0:8] (", "held by ranks 0 to 2"},
	{"hole", HOLE, PAWL_EMISMATCH, "'rows': no rank gives [11:12, 0:8] (", "held by ranks 0 to 2"},
	{"state of another rank", OTHER_RANK, PAWL_EUSAGE, "built for rank 0 of 3", "rank 2: "},
	{"no state", STOPS_OUT, PAWL_EUNSUPPORTED, "holds a thing that cannot be held", "rank 2: "},
};

static void
test_P11_ranks_that_disagree_all_fail_and_go_on(void **state)
{
	for (size_t i = 0; i < sizeof(disagreements) / sizeof(*disagreements); i++) {
		const struct disagreement *d = &disagreements[i];
		struct act act = {.bad_rank = 2, .twist = d->twist};
		char root[300];

		snprintf(root, sizeof(root), "%s/%zu", (char *)*state, i);
		clear_board();
		expect_failed_middle(root, &act, d->code, d->text, d->text2);
	}
}

/* Rank 0 is the one that is different: the same errors, from the other side. */
static void
test_P11_rank_0_that_has_no_state_tells_the_others(void **state)
{
	struct act act = {.bad_rank = 0, .twist = STOPS_OUT};

	expect_failed_middle(*state, &act, PAWL_EUNSUPPORTED, "holds a thing that cannot be held", "");
}

/* ---- a tensor that not all ranks have */

enum held { NOT, WHOLE, SHARD, WRITER, NUMBER, ARRAY };

struct partly {
	struct act act; /* first: open_run looks at it */
	enum held held[WORLD];
	uint64_t n;
};

/* {"a": full on all, so that the shares of 'b' fall differently, "b": as held} */
static int
partly_state(const struct rank_job *job, enum held held, uint64_t n, double *values, struct pawl_state **ret)
{
	const struct pawl_scalar a = {.type = PAWL_STR, .ptr = "a", .len = 1},
				 b = {.type = PAWL_STR, .ptr = "b", .len = 1};
	const struct pawl_scalar number = {.type = PAWL_INT, .i = 7};
	uint64_t common[1] = {500}, shape[1] = {held == ARRAY ? 3 : n}, zero[1] = {0};
	struct pawl_tensor t = {.size = sizeof(t), .dtype = PAWL_F64, .ndim = 1, .shape = common, .data = values};
	struct pawl_error err = {0};
	struct pawl_state *st = NULL;

	RANK_TRY(pawl_state_new(&st, &err));
	RANK_TRY(pawl_state_set_rank(st, (uint32_t)job->rank, (uint32_t)job->world, &err));
	RANK_TRY(pawl_state_begin(st, PAWL_DICT, &err));
	RANK_TRY(pawl_state_key(st, &a, &err));
	RANK_TRY(pawl_state_add_tensor(st, &t, &err));
	if (held != NOT)
		RANK_TRY(pawl_state_key(st, &b, &err));
	t.shape = shape;
	t.data = values + 500;
	if (held == SHARD) {
		t.global_shape = shape;
		t.offsets = zero;
		t.writer = PAWL_WRITER_HERE; /* a box that is all of it is a complete tensor else */
	} else if (held == WRITER) {
		t.writer = PAWL_WRITER_HERE;
	}
	if (held == NUMBER)
		RANK_TRY(pawl_state_add(st, &number, &err));
	else if (held != NOT)
		RANK_TRY(pawl_state_add_tensor(st, &t, &err));
	RANK_TRY(pawl_state_end(st, &err));
	*ret = st;
	return 0;
}

/* Step 1: as held; step 2: full on all. */
static int
save_partly(const struct rank_job *job)
{
	const struct partly *p = job->arg;
	struct pawl_error err = {0};
	struct pawl *run = NULL;
	double *values = calloc(p->n + 500, sizeof(*values));

	if (!values || open_run(job, NULL, &run) < 0)
		return 1;
	for (int step = 1; step <= 2; step++) {
		struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;
		struct pawl_ticket *ticket = NULL;
		struct pawl_state *state = NULL;

		RANK_TRY(partly_state(job, step == 1 ? p->held[job->rank] : WHOLE, p->n, values, &state));
		opts.step = step;
		int rc = pawl_save(run, &opts, state, &ticket, &err);

		if (rc == 0)
			rc = pawl_ticket_wait(ticket, -1, &err);
		pawl_ticket_free(ticket);
		pawl_state_free(state);
		note(&board->saved[job->rank][step], rc, &err);
	}
	pawl_close(run, NULL);
	free(values);
	return 0;
}

/* Whatever its size, and so in whichever rank's share. */
static void
test_P11_a_whole_tensor_that_some_ranks_lack_is_refused_at_any_size(void **state)
{
	static const struct {
		enum held held[WORLD];
		const char *text; /* NULL = it is well */
	} cases[] = {
		{{WHOLE, NOT, NOT},
	         "tensor 'b' is held completely by rank 0, but not by ranks 1, 2; give it as a Shard, or with "
	         "a writer"},
		{{NOT, WHOLE, NOT},
	         "tensor 'b' is held completely by rank 1, but not by ranks 0, 2; give it as a Shard"},
		{{WHOLE, WHOLE, NOT},
	         "tensor 'b' is held completely by ranks 0, 1, but not by rank 2; give it as a Shard"},
		{{NOT, WHOLE, WHOLE},
	         "tensor 'b' is held completely by ranks 1, 2, but not by rank 0; give it as a Shard"},
		{{WHOLE, SHARD, WHOLE},
	         "tensor 'b' is held completely by ranks 0, 2, but as a Shard or with a writer by rank 1;"},
		{{WHOLE, WRITER, NOT},
	         "held completely by rank 0, but as a Shard or with a writer by rank 1, and not at all by "
	         "rank 2;"},
		{{NUMBER, ARRAY, NUMBER}, "b: rank 0 has an int, rank 1 a tensor F64 [3]"},
		{{SHARD, SHARD, NOT}, "tensor 'b': ranks 0 and 1 both give all of it (it is held by ranks 0, 1;"},
		{{WHOLE, WHOLE, WHOLE}, NULL},
		{{NOT, SHARD, NOT}, NULL},
		{{NOT, NOT, WRITER}, NULL},
	};
	static const uint64_t sizes[] = {3, 900, 10000, 400000};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		for (size_t k = 0; k < sizeof(sizes) / sizeof(*sizes); k++) {
			struct partly p = {.act = {.bad_rank = -1}, .n = sizes[k]};
			char root[300];

			memcpy(p.held, cases[i].held, sizeof(p.held));
			snprintf(root, sizeof(root), "%s/%zu-%zu", (char *)*state, i, k);
			clear_board();
			assert_int_equal(ranks_run(root, WORLD, LONG_MS, save_partly, &p), 0);
			expect_saved(ALL, 1, cases[i].text ? PAWL_EMISMATCH : 0);
			if (cases[i].text)
				expect_saved_text(ALL, 1, cases[i].text);
			expect_saved(ALL, 2, 0);
			expect_listed(root, 1u << 2 | (cases[i].text ? 0 : 1u << 1));
		}
}

static int
open_only(const struct rank_job *job)
{
	struct pawl *run = NULL;
	int rc = open_run(job, NULL, &run);

	atomic_store(&board->here[job->rank], 1);
	if (rc == 0)
		wait_until(&board->go, 1);
	pawl_close(run, NULL);
	return rc < 0;
}

/* Both below and beyond the number that rank 0 knows of. */
static void
test_P11_ranks_that_disagree_on_the_number_of_ranks_are_told(void **state)
{
	pid_t pids[4];

	for (int r = 0; r < 4; r++) {
		struct rank_job job = {.root = *state,
		                       .rank = r == 3 ? 5 : r,
		                       .world = r == 0   ? 3
		                                : r == 1 ? 4
		                                : r == 2 ? 3
		                                         : 6,
		                       .commit_timeout_ms = LONG_MS};

		pids[r] = rank_start(&job, open_only);
	}
	assert_int_equal(rank_join(pids[1]), 1);
	assert_int_equal(rank_join(pids[3]), 1);
	atomic_store(&board->go, 1);
	assert_int_equal(rank_join(pids[0]), 0);
	assert_int_equal(rank_join(pids[2]), 0);
	assert_int_equal(board->opened[1].code, PAWL_EMISMATCH);
	assert_int_equal(board->opened[5].code, PAWL_EMISMATCH);
	expect_text(&board->opened[1], 1, "rank 1 has a world size of 4, rank 0 one of 3");
	expect_text(&board->opened[5], 5, "rank 5 has a world size of 6, rank 0 one of 3");
}

/* A closing rank 0 gives ranks that have not joined a limited time. It gives the refused one
 * none. */
int __real_pool_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline_ms);
int __wrap_pool_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline_ms);

int
__wrap_pool_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline_ms)
{
	if (board && deadline_ms >= 0 && gettid() == getpid())
		atomic_fetch_add(&board->waits, 1);
	return __real_pool_cond_wait_until(cond, lock, deadline_ms);
}

/* The others learn of it from their running save. No rank waits for the refused one at the end. */
static void
test_P11_a_rank_that_was_refused_fails_the_running_save_with_the_reason(void **state)
{
	struct act act = {.bad_rank = -1, .steps = 1};
	pid_t pids[WORLD];

	for (int r = 0; r < WORLD; r++) {
		struct rank_job job = {
			.root = *state, .rank = r, .world = r == 2 ? 4 : 3, .commit_timeout_ms = LONG_MS, .arg = &act};

		if (r == 2) {
			wait_until(&board->here[0], 1);
			wait_until(&board->here[1], 1);
		}
		pids[r] = rank_start(&job, r == 2 ? open_only : train);
	}
	assert_int_equal(rank_join(pids[2]), 1);
	assert_int_equal(rank_join(pids[0]), 0);
	assert_int_equal(rank_join(pids[1]), 0);
	expect_saved(BUT(2), 1, PAWL_EMISMATCH);
	expect_saved_text(BUT(2), 1, "rank 2 has a world size of 4, rank 0 one of 3");
	assert_int_equal(board->waits, 0);
	clear_board();
	assert_int_equal(ranks_run(*state, WORLD, LONG_MS, train, &act), 0); /* as it should be */
	expect_saved(ALL, 1, 0);
}

/* ---- a rank whose disk fails */

static void
test_P11_a_rank_that_cannot_write_fails_the_save_on_all(void **state)
{
	static const struct {
		int rank;
		const char *operation;
		uint64_t nth;
	} faults[] = {{2, "create", 2}, {2, "write", 2}, {2, "finish", 2}, {0, "create", 3}, {0, "write", 3}};

	for (size_t i = 0; i < sizeof(faults) / sizeof(*faults); i++) {
		struct act act = {.bad_rank = faults[i].rank, .operation = faults[i].operation, .nth = faults[i].nth};
		char root[300];

		snprintf(root, sizeof(root), "%s/%zu", (char *)*state, i);
		clear_board();
		expect_failed_middle(root, &act, PAWL_EIO, "injected fault", "");
		if (faults[i].rank)
			expect_saved_text(BUT(2), 2, "rank 2: ");
	}
}

/* Rank 0 fails and removes the folder while rank 1 still writes into it: rank 1 reports rank 0's
 * reason. */
static void
test_P11_a_rank_whose_folder_has_vanished_reports_the_reason_of_rank_0(void **state)
{
	struct act act = {.bad_rank = 0, .operation = "create", .nth = 3, .gone_rank = 1};

	expect_failed_middle(*state, &act, PAWL_EIO, "injected fault", "");
}

/* One failing call on a rank of two: how many of two saves came to nothing, on both. */
static int
fail_one_call(const char *root, int rank, const char *operation, uint64_t nth)
{
	struct act act = {.bad_rank = rank, .operation = operation, .nth = nth, .steps = 2};
	unsigned steps = 0;
	int failed = 0;

	clear_board();
	ranks_run(root, 2, SHORT_MS, train, &act);
	for (int r = 0; r < 2; r++)
		if (board->opened[r].code < 0)
			fail_msg("call %d of %s on rank %d: %s", (int)nth, operation, rank, board->opened[r].text);
	for (int step = 1; step <= 2; step++) {
		const struct told *told = &board->saved[0][step], *other = &board->saved[1][step];

		if ((told->code == 0) != (other->code == 0))
			fail_msg("call %d of %s on rank %d: step %d ended with %d (%s) and %d (%s)", (int)nth,
			         operation, rank, step, told->code, told->text, other->code, other->text);
		failed += told->code < 0;
		steps |= told->code == 0 ? 1u << step : 0;
	}
	expect_listed(root, steps);
	return failed;
}

/* Whatever call it is that fails, all ranks end each save in the same way and in time. */
static void
test_P11_whatever_fails_on_a_rank_all_agree(void **state)
{
	static const struct {
		const char *operation;
		uint64_t first[2]; /* per rank: the calls before it belong to opening, which fails */
	} operations[] = {{"put", {4, 3}}, {"publish", {1, 1}}, {"list", {7, 4}}, {"stat", {4, 4}}, {"remove", {4, 1}}};
	int n = 0, failed = 0;

	for (int rank = 0; rank < 2; rank++)
		for (size_t i = 0; i < sizeof(operations) / sizeof(*operations); i++)
			for (uint64_t k = 0; k < 5; k++) {
				char root[300];

				snprintf(root, sizeof(root), "%s/%d", (char *)*state, n++);
				failed += fail_one_call(root, rank, operations[i].operation,
				                        operations[i].first[rank] + k);
			}
	assert_true(failed > 0);
}

/* ---- ranks that never come, come twice, die, stop */

static void
start_job(const char *root, int world, int64_t timeout_ms, rank_fn *fn, struct act *act, pid_t *pids)
{
	for (int r = 0; r < world; r++) {
		struct rank_job job = {
			.root = root, .rank = r, .world = world, .commit_timeout_ms = timeout_ms, .arg = act};

		pids[r] = rank_start(&job, fn);
	}
}

/* Step 1, as all tests below begin with. */
static void
save_first(const char *root)
{
	struct act act = {.bad_rank = -1, .steps = 1};

	assert_int_equal(ranks_run(root, WORLD, LONG_MS, train, &act), 0);
	expect_saved(ALL, 1, 0);
	expect_listed(root, 1u << 1);
}

static void
test_P16_a_rank_that_never_opens_is_named(void **state)
{
	struct act act = {.bad_rank = -1, .first_step = 2, .steps = 1};
	pid_t pids[2];

	save_first(*state);
	clear_board();
	board->opened[2].code = 0; /* the others do not wait for it when they have opened the run */
	for (int r = 0; r < 2; r++) {
		struct rank_job job = {
			.root = *state, .rank = r, .world = WORLD, .commit_timeout_ms = SHORT_MS, .arg = &act};

		pids[r] = rank_start(&job, train);
	}
	assert_int_equal(rank_join(pids[0]), 0);
	assert_int_equal(rank_join(pids[1]), 0);
	expect_saved(BUT(2), 2, PAWL_ETIMEOUT);
	expect_saved_text(BUT(2), 2, "rank 2 of 3 has not opened this run within ");
	assert_true(board->waits > 0); /* rank 0, which closes, for rank 2 */
	expect_saved_text(BUT(2), 2, "If only this process saves, it must be opened with a world size of 1");
	expect_listed(*state, 1u << 1);
	expect_restored(*state, WORLD, 1);
}

static void
test_P16_without_rank_0_the_others_do_not_open(void **state)
{
	struct rank_job job = {.root = *state, .rank = 1, .world = 2, .commit_timeout_ms = 500};

	assert_int_equal(rank_join(rank_start(&job, open_only)), 1);
	assert_int_equal(board->opened[1].code, PAWL_ETIMEOUT);
	expect_text(&board->opened[1], 1, "rank 1 of 2 waited");
	expect_text(&board->opened[1], 1, "for rank 0 to open the run");
}

static void
test_P10_a_second_process_of_a_rank_is_refused(void **state)
{
	struct act act = {.bad_rank = -1, .steps = 2, .hold_rank = 0, .hold_step = 2};
	pid_t pids[WORLD];

	start_job(*state, WORLD, LONG_MS, train, &act, pids);
	wait_until(&board->done[1], 1);
	for (int r = 0; r < 2; r++) {
		struct rank_job job = {.root = *state, .rank = r, .world = WORLD, .commit_timeout_ms = LONG_MS};
		char who[80];

		assert_int_equal(rank_join(rank_start(&job, open_only)), 1);
		assert_int_equal(board->opened[r].code, PAWL_EBUSY);
		snprintf(who, sizeof(who),
		         r ? "rank 1 of this run is already process %d on host" : "by process %d on host",
		         (int)pids[r]);
		expect_text(&board->opened[r], r, who);
	}
	atomic_store(&board->go, 2);
	for (int r = 0; r < WORLD; r++)
		assert_int_equal(rank_join(pids[r]), 0);
	expect_saved(ALL, 2, 0);
	expect_listed(*state, 1u << 1 | 1u << 2);
}

/* The first digits of the running attempt's token, with which the names of its folders begin. */
static void
read_attempt(const char *root, char ret[9])
{
	char path[400], text[200] = "";

	snprintf(path, sizeof(path), "%s/.pawl/meet/attempt.json", root);
	FILE *file = fopen(path, "r");

	if (file) {
		text[fread(text, 1, sizeof(text) - 1, file)] = 0;
		fclose(file);
	}
	const char *token = strstr(text, "\"token\":\"");

	snprintf(ret, 9, "%s", token ? token + strlen("\"token\":\"") : "?");
}

/* A part of a rank is there (its packs are written). */
static bool
has_part(const char *root, int rank)
{
	char path[400], wanted[32], attempt[9];
	bool found = false;

	read_attempt(root, attempt);

	snprintf(path, sizeof(path), "%s/.pawl/meet", root);
	snprintf(wanted, sizeof(wanted), "part-%05d-", rank);
	DIR *meet = opendir(path);

	for (struct dirent *e; meet && (e = readdir(meet));) {
		char inner[700];

		if (strlen(e->d_name) != 32 || strncmp(e->d_name, attempt, 8) != 0)
			continue;
		snprintf(inner, sizeof(inner), "%s/%s", path, e->d_name);
		DIR *save = opendir(inner);

		for (struct dirent *f; save && (f = readdir(save));)
			found = found || strncmp(f->d_name, wanted, strlen(wanted)) == 0;
		if (save)
			closedir(save);
	}
	if (meet)
		closedir(meet);
	return found;
}

enum moment { BEFORE_SAVE, WHILE_WRITING, AFTER_PART };

static void
kill_rank(const char *root, int rank, enum moment moment)
{
	struct act act = {.bad_rank = rank, .first_step = 2, .steps = 2};
	pid_t pids[WORLD];

	/* At first one is held that the others must not see: the one to be killed, or rank 0. */
	act.hold_rank = moment == AFTER_PART ? 0 : rank;
	act.hold_step = moment == WHILE_WRITING ? 0 : 2;
	act.twist = moment == WHILE_WRITING ? MANY_PACKS : STRAIGHT;
	save_first(root);
	clear_board();
	start_job(root, WORLD, LONG_MS, train, &act, pids);
	if (moment == AFTER_PART) {
		wait_until(&board->here[rank], 2); /* the parts of earlier starts are cleared away by now */
		while (!has_part(root, rank))
			usleep(2000);
	} else {
		for (int r = 0; r < WORLD; r++)
			if (r != rank || moment == WHILE_WRITING)
				wait_until(&board->here[r], 2);
		if (moment == BEFORE_SAVE) /* no rank waits for one that was never there */
			wait_until(&board->held[rank], 2);
	}
	kill(pids[rank], SIGKILL);
	assert_int_equal(rank_join(pids[rank]), 1000 + SIGKILL);
	atomic_store(&board->go, 9);
	for (int r = 0; r < WORLD; r++)
		if (r != rank)
			assert_int_equal(rank_join(pids[r]), 0);
}

/* No rank waits for a dead one (on one host), each save names it, and a new start of the job
 * resumes. */
static void
expect_after_kill(const char *root, int rank, bool first_is_there)
{
	struct act act = {.bad_rank = -1, .first_step = 4, .steps = 1};
	int code = rank == 0 ? PAWL_ECONFLICT : PAWL_ECANCELLED;
	unsigned others = BUT(rank);

	expect_saved(others, 2, first_is_there ? 0 : code);
	expect_saved(others, 3, code);
	expect_saved_text(others, 3, rank == 0 ? "rank 0 is gone: process" : "has died (process");
	if (!first_is_there && rank)
		expect_saved_text(others, 2, rank == 1 ? "rank 1 has died" : "rank 2 has died");
	expect_listed(root, 1u << 1 | (first_is_there ? 1u << 2 : 0));
	expect_restored(root, WORLD, first_is_there ? 2 : 1);
	assert_int_equal(ranks_run(root, WORLD, LONG_MS, train, &act), 0);
	expect_saved(ALL, 4, 0);
	expect_restored(root, 2, 4);
}

static void
test_P11_a_rank_killed_before_its_save(void **state)
{
	kill_rank(*state, 2, BEFORE_SAVE);
	expect_after_kill(*state, 2, false);
}

static void
test_P11_a_rank_killed_while_it_writes(void **state)
{
	kill_rank(*state, 1, WHILE_WRITING);
	expect_after_kill(*state, 1, false);
}

/* What it has written is complete, so the save is. */
static void
test_P11_a_rank_killed_after_its_part(void **state)
{
	kill_rank(*state, 2, AFTER_PART);
	expect_after_kill(*state, 2, true);
}

static void
test_P11_rank_0_killed_before_its_save(void **state)
{
	kill_rank(*state, 0, BEFORE_SAVE);
	expect_after_kill(*state, 0, false);
}

static void
test_P11_rank_0_killed_while_it_writes(void **state)
{
	kill_rank(*state, 0, WHILE_WRITING);
	expect_after_kill(*state, 0, false);
}

/* The others continue. The stopped rank gets the same result when it is continued, and the next
 * save is one of all ranks again. */
static void
stop_rank(const char *root, int rank)
{
	struct act act = {.bad_rank = -1, .first_step = 2, .steps = 1, .hold_rank = rank, .hold_step = 2};
	pid_t pids[WORLD];

	save_first(root);
	clear_board();
	act.steps = STEPS - 3; /* a save after it may still meet a rank that was late, on a slow machine several */
	act.until_saved = true;
	start_job(root, WORLD, SHORT_MS, train, &act, pids);
	for (int r = 0; r < WORLD; r++)
		if (r != rank)
			wait_until(&board->here[r], 2);
	wait_until(&board->held[rank], 2);
	atomic_store(&board->go, 2); /* it may begin, but it is stopped somewhere on its way */
	usleep(1000);
	kill(pids[rank], SIGSTOP);
	for (int r = 0; r < WORLD; r++)
		if (r != rank)
			wait_until(&board->done[r], 2);
	kill(pids[rank], SIGCONT);
	atomic_store(&board->go, 9);
	for (int r = 0; r < WORLD; r++)
		assert_int_equal(rank_join(pids[r]), 0);
}

/* Which steps were saved, as bits; *last: the one with which all ended. */
static unsigned
steps_saved(int *last)
{
	unsigned steps = 1u << 1;

	*last = atomic_load(&board->done[0]);
	for (int step = 2; step <= *last; step++) {
		/* Rank 0 may find its folder gone, where the others report the deadline. */
		for (int r = 1; r < WORLD; r++)
			assert_int_equal(board->saved[r][step].code == 0, board->saved[0][step].code == 0);
		steps |= board->saved[0][step].code == 0 ? 1u << step : 0;
	}
	assert_true((steps & 1u << *last) != 0);
	return steps;
}

static void
test_P11_a_rank_stopped_beyond_the_deadline(void **state)
{
	int last;

	stop_rank(*state, 2);
	unsigned steps = steps_saved(&last);

	if (!(steps & 1u << 2)) { /* else it was quicker than the signal */
		expect_saved(ALL, 2, PAWL_ETIMEOUT);
		expect_saved_text(ALL, 2, " 2 of 3 gave no part within"); /* and rank 1, if it is late, too */
	}
	expect_listed(*state, steps);
	expect_restored(*state, WORLD, last);
}

static void
test_P11_rank_0_stopped_beyond_the_deadline(void **state)
{
	int last;

	stop_rank(*state, 0);
	unsigned steps = steps_saved(&last);

	if (!(steps & 1u << 2))
		expect_saved_text(BUT(0), 2, "rank 0 gave no verdict");
	expect_listed(*state, steps);
	expect_restored(*state, WORLD, last);
}

/* The new process of the dead rank continues with the others, from their next save on. */
static void
test_P11_a_rank_that_is_started_again_takes_part(void **state)
{
	struct act act = {.bad_rank = -1, .steps = 4, .hold_rank = 0, .hold_step = 3};
	struct act dies = {.bad_rank = -1, .steps = 2, .hold_rank = 1, .hold_step = 2};
	struct act again = {.bad_rank = -1, .first_step = 3, .steps = 2};
	struct rank_job jobs[3];
	pid_t pids[3];

	for (int i = 0; i < 3; i++)
		jobs[i] = (struct rank_job){.root = *state,
		                            .rank = i > 0,
		                            .world = 2,
		                            .commit_timeout_ms = LONG_MS,
		                            .arg = i == 0   ? &act
		                                   : i == 1 ? &dies
		                                            : &again};
	pids[0] = rank_start(&jobs[0], train);
	pids[1] = rank_start(&jobs[1], train);
	wait_until(&board->here[0], 2);
	wait_until(&board->done[1], 1);
	kill(pids[1], SIGKILL);
	assert_int_equal(rank_join(pids[1]), 1000 + SIGKILL);
	wait_until(&board->done[0], 2);
	expect_saved(1, 2, PAWL_ECANCELLED);
	expect_saved_text(1, 2, "rank 1 has died (process");
	pids[2] = rank_start(&jobs[2], train);
	wait_until(&board->here[1], 3);
	atomic_store(&board->go, 4);
	assert_int_equal(rank_join(pids[0]), 0);
	assert_int_equal(rank_join(pids[2]), 0);
	expect_saved(3, 3, 0);
	expect_saved(3, 4, 0);
	expect_listed(*state, 1u << 1 | 1u << 3 | 1u << 4);
	expect_restored(*state, 2, 4);
}

/* ---- starts of the job that overlap */

static void
test_P10_an_old_rank_that_lives_on_does_no_harm(void **state)
{
	struct act old = {.bad_rank = -1, .steps = 2, .hold_rank = 1, .hold_step = 2};
	struct act new = {.bad_rank = -1, .first_step = 3, .steps = 2, .hold_rank = 0, .hold_step = 4};
	pid_t before[2], after[2];

	start_job(*state, 2, LONG_MS, train, &old, before);
	wait_until(&board->done[0], 1);
	wait_until(&board->done[1], 1);
	kill(before[0], SIGKILL);
	assert_int_equal(rank_join(before[0]), 1000 + SIGKILL);
	start_job(*state, 2, LONG_MS, train, &new, after);
	wait_until(&board->done[0], 3);
	atomic_store(&board->go, 2);
	assert_int_equal(rank_join(before[1]), 0);
	assert_int_equal(board->saved[1][2].code, PAWL_ECONFLICT);
	expect_text(&board->saved[1][2], 1, "was taken over");
	atomic_store(&board->go, 4);
	assert_int_equal(rank_join(after[0]), 0);
	assert_int_equal(rank_join(after[1]), 0);
	expect_saved(3, 3, 0);
	expect_saved(3, 4, 0);
	expect_listed(*state, 1u << 1 | 1u << 3 | 1u << 4);
	expect_restored(*state, WORLD, 4);
}

static int
train_twice(const struct rank_job *job)
{
	struct act act = {.bad_rank = -1, .steps = 1};
	struct rank_job mine = *job;
	struct pawl *run = NULL;

	mine.arg = &act;
	for (int k = 1; k <= 2; k++) {
		atomic_store(&board->held[job->rank], k);
		if (open_run(&mine, NULL, &run) < 0)
			return 1;
		save_step(&mine, run, STRAIGHT, k);
		for (int r = 1; k == 1 && job->rank == 0 && r < WORLD; r++)
			wait_until(&board->held[r], 2); /* at the door that rank 0 is about to close */
		pawl_close(run, NULL);
	}
	return 0;
}

/* Ranks do not close and open at one moment. */
static void
test_P11_a_run_closed_and_opened_again_by_all(void **state)
{
	assert_int_equal(ranks_run(*state, WORLD, LONG_MS, train_twice, NULL), 0);
	expect_saved(ALL, 1, 0);
	expect_saved(ALL, 2, 0);
	expect_listed(*state, 1u << 1 | 1u << 2);
}

/* ---- restoring */

static void
save_two(const char *root, int world)
{
	struct act act = {.bad_rank = -1, .steps = 2};

	assert_int_equal(ranks_run(root, world, LONG_MS, train, &act), 0);
	expect_saved((1u << world) - 1, 2, 0);
	clear_board();
}

static void
test_P11_damage_that_one_rank_meets_makes_all_fall_back(void **state)
{
	struct act act = {.bad_rank = -1};
	char path[400];
	struct stat st;

	save_two(*state, WORLD);
	snprintf(path, sizeof(path), "%s/checkpoints/checkpoint_000002/rank00001-00000.safetensors", (char *)*state);
	if (stat(path, &st) < 0)
		snprintf(path, sizeof(path), "%s/checkpoints/checkpoint_000002/rank00001-00001.safetensors",
		         (char *)*state);
	assert_int_equal(truncate(path, 100), 0);
	assert_int_equal(ranks_run(*state, WORLD, LONG_MS, restore, &act), 0);
	for (int r = 0; r < WORLD; r++) {
		if (board->restored[r].code != 0)
			fail_msg("rank %d: %s", r, board->restored[r].text);
		assert_int_equal(board->restored_step[r], 1);
		if (!strstr(board->fallback[r], "rank 1: ") || !strstr(board->fallback[r], "checkpoint_000002"))
			fail_msg("rank %d fell back for: %s", r, board->fallback[r]);
	}
}

/* Damage, or a disk that fails, anywhere in a restore: all have the same checkpoint afterwards, or
 * none. */
static void
test_P11_whatever_cannot_be_read_on_a_rank_all_restore_the_same(void **state)
{
	int older = 0;

	save_two(*state, 2);
	for (int rank = 0; rank < 2; rank++)
		for (uint64_t nth = rank ? 7 : 9; nth <= 20; nth++) {
			struct act act = {.bad_rank = rank, .operation = "read", .nth = nth};

			clear_board();
			ranks_run(*state, 2, LONG_MS, restore, &act);
			if (board->opened[0].code < 0 || board->opened[1].code < 0)
				continue; /* how often that reads is a matter of time */
			if (board->restored[0].code != board->restored[1].code ||
			    board->restored_step[0] != board->restored_step[1])
				fail_msg("read %d on rank %d: step %d (%d: %s) and step %d (%d: %s)", (int)nth, rank,
				         (int)board->restored_step[0], board->restored[0].code, board->restored[0].text,
				         (int)board->restored_step[1], board->restored[1].code,
				         board->restored[1].text);
			older += board->restored_step[0] == 1;
		}
	assert_true(older > 0);
}

static void
expect_no_restore(int code, const char *text, const char *text2)
{
	for (int r = 0; r < WORLD; r++) {
		const struct told *told = &board->restored[r];

		if (told->code != code)
			fail_msg("rank %d: expected %d, found %d: %s", r, code, told->code, told->text);
		expect_text(told, r, text);
		if (r != 2)
			expect_text(told, r, text2);
	}
}

static void
test_P11_a_restore_that_does_not_fit_one_rank_fails_on_all(void **state)
{
	struct act act = {.bad_rank = 2, .twist = OTHER_SHAPE};

	save_two(*state, WORLD);
	assert_int_equal(ranks_run(*state, WORLD, LONG_MS, restore, &act), 0);
	expect_no_restore(PAWL_EMISMATCH, "w", "rank 2: ");
}

static void
test_P11_a_restore_that_does_not_fit_rank_0_fails_on_all(void **state)
{
	struct act act = {.bad_rank = 0, .twist = OTHER_SHAPE};

	save_two(*state, WORLD);
	assert_int_equal(ranks_run(*state, WORLD, LONG_MS, restore, &act), 0);
	expect_no_restore(PAWL_EMISMATCH, "w", "");
}

static void
test_R160_values_per_rank_on_another_number_of_ranks_are_an_error_unless_told(void **state)
{
	struct act act = {.bad_rank = -1, .rank_values = PAWL_RANK_VALUES_STRICT};

	save_two(*state, 2);
	assert_int_equal(ranks_run(*state, WORLD, LONG_MS, restore, &act), 0);
	expect_no_restore(PAWL_EMISMATCH, "mine", "");
}

static void
test_P9_an_empty_run_is_told_to_all(void **state)
{
	struct act act = {.bad_rank = -1};

	assert_int_equal(ranks_run(*state, WORLD, LONG_MS, restore, &act), 0);
	expect_no_restore(PAWL_ENOTFOUND, "has no checkpoint", "");
}

/* What the bad rank does, when all have opened the run. */
typedef int bad_fn(const struct act *act, struct pawl *run);

/* The others restore as they should. */
static int
restore_but(const struct rank_job *job, bad_fn *bad)
{
	const struct act *act = job->arg;
	struct pawl *run = NULL;

	if (act->bad_rank != job->rank)
		return restore(job);
	if (open_run(job, NULL, &run) < 0)
		return 1;
	wait_for_all(job);
	return bad(act, run);
}

static int
die(const struct act *act, struct pawl *run)
{
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	struct pawl_restore *r = NULL;

	(void)act;
	if (pawl_restore_open(run, &opts, &r, NULL) == 0)
		raise(SIGKILL);
	return 1;
}

static int
die_in_restore(const struct rank_job *job)
{
	return restore_but(job, die);
}

static void
test_P16_a_rank_that_dies_while_all_restore_is_named(void **state)
{
	save_two(*state, WORLD);
	for (int dead = 0; dead < WORLD; dead += 2) {
		struct act act = {.bad_rank = dead};

		clear_board();
		assert_int_equal(ranks_run(*state, WORLD, LONG_MS, die_in_restore, &act), 1);
		for (int r = 0; r < WORLD; r++) {
			if (r == dead)
				continue;
			assert_int_equal(board->restored[r].code, dead ? PAWL_ECANCELLED : PAWL_ECONFLICT);
			expect_text(&board->restored[r], r, dead ? "rank 2 has died" : "rank 0 is gone");
		}
	}
	expect_restored(*state, WORLD, 2);
}

/* ---- restores that a rank gives up */

static int
give_up(const struct act *act, struct pawl *run)
{
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	struct pawl_restore *r = NULL;

	opts.rank_values = act->nth ? 77 : 0;
	if (pawl_restore_open(run, &opts, &r, NULL) == 0 && act->reason)
		pawl_restore_failed(r, PAWL_EMISMATCH, act->reason);
	pawl_restore_close(r);
	pawl_close(run, NULL);
	return 0;
}

static int
give_up_restore(const struct rank_job *job)
{
	return restore_but(job, give_up);
}

/* The others hear at once, and in its own words, why there is no restore. */
static void
test_P11_the_reason_of_a_rank_that_gives_a_restore_up_is_told(void **state)
{
	static const struct {
		struct act act;
		int code;
		const char *text;
	} cases[] = {
		{{.reason = "it has no room for 'w'"}, PAWL_EMISMATCH, "it has no room for 'w'"},
		{{.reason = NULL}, PAWL_ECANCELLED, "cancelled the restore"},
		{{.nth = 1}, PAWL_EUSAGE, "rank_values: expected 0 to 2, found 77"},
	};

	save_two(*state, WORLD);
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		for (int bad = 0; bad < WORLD; bad += 2) {
			struct act act = cases[i].act;

			act.bad_rank = bad;
			clear_board();
			assert_int_equal(ranks_run(*state, WORLD, LONG_MS, give_up_restore, &act), 0);
			for (int r = 0; r < WORLD; r++) {
				if (r == bad)
					continue;
				assert_int_equal(board->restored[r].code, cases[i].code);
				expect_text(&board->restored[r], r, cases[i].text);
				expect_text(&board->restored[r], r, bad ? "rank 2: " : "");
			}
		}
	expect_restored(*state, WORLD, 2);
}

/* The time to report a verdict and to abort a save is part of the timeout, not added to it. */
static void
test_P16_nobody_waits_longer_than_the_commit_timeout(void **state)
{
	static const int64_t timeouts[] = {100, 400, 2000, 3000, 20000, 60000, 1800000, INT64_C(1) << 40};

	(void)state;
	for (size_t i = 0; i < sizeof(timeouts) / sizeof(*timeouts); i++) {
		int64_t host = gather_patience_ms(0, timeouts[i]), other = gather_patience_ms(1, timeouts[i]);

		assert_int_equal(gather_patience_ms(4095, timeouts[i]), other);
		assert_true(timeouts[i] * 4 / 5 <= host && host < other && other < timeouts[i]);
	}
}

/* ---- broadcast by the caller's own function */

static int pipes[RANKS_MAX][2];
static const struct rank_job *me;

static int
through_pipes(void *arg, void *bytes, size_t nbytes, struct pawl_error *err)
{
	const struct rank_job *job = me;

	(void)arg;
	if (job->rank > 0) {
		if (read(pipes[job->rank][0], bytes, nbytes) == (ssize_t)nbytes)
			return 0;
		snprintf(err->message, sizeof(err->message), "the pipe is closed");
		return err->code = PAWL_EIO;
	}
	for (int r = 1; r < job->world; r++)
		if (write(pipes[r][1], bytes, nbytes) != (ssize_t)nbytes)
			return err->code = PAWL_EIO;
	return 0;
}

static int
train_with_pipes(const struct rank_job *job)
{
	me = job;
	for (int r = 0; r < WORLD; r++)
		if (job->rank > 0)
			close(pipes[r][1]);
	return train(job);
}

static int
restore_with_pipes(const struct rank_job *job)
{
	me = job;
	return restore(job);
}

static void
open_pipes(void)
{
	for (int r = 0; r < WORLD; r++)
		assert_int_equal(pipe(pipes[r]), 0);
}

static void
close_pipes(void)
{
	for (int r = 0; r < WORLD; r++) {
		close(pipes[r][0]);
		close(pipes[r][1]);
	}
}

static void
test_P11_a_broadcast_function_does_instead_of_files(void **state)
{
	struct act act = {.bad_rank = 2, .twist = HOLE, .steps = 3, .broadcast = through_pipes};
	struct act back = {.bad_rank = -1, .broadcast = through_pipes};

	open_pipes();
	assert_int_equal(ranks_run(*state, WORLD, LONG_MS, train_with_pipes, &act), 0);
	expect_saved(ALL, 1, 0);
	expect_saved(ALL, 2, PAWL_EMISMATCH);
	expect_saved_text(ALL, 2, "'rows': no rank gives [11:12, 0:8]");
	expect_saved(ALL, 3, 0);
	expect_listed(*state, 1u << 1 | 1u << 3);
	assert_int_equal(ranks_run(*state, WORLD, LONG_MS, restore_with_pipes, &back), 0);
	close_pipes();
	for (int r = 0; r < WORLD; r++)
		assert_int_equal(board->restored_step[r], 3);
}

static void
test_P11_a_broadcast_that_fails_is_named(void **state)
{
	struct act act = {.bad_rank = -1, .steps = 1, .broadcast = through_pipes};
	struct rank_job job = {.root = *state, .rank = 1, .world = WORLD, .commit_timeout_ms = LONG_MS, .arg = &act};

	open_pipes();
	for (int r = 0; r < WORLD; r++)
		close(pipes[r][1]);
	assert_int_equal(rank_join(rank_start(&job, train_with_pipes)), 1);
	close_pipes();
	assert_int_equal(board->opened[1].code, PAWL_EIO);
	expect_text(&board->opened[1], 1, "broadcast of rank 0's attempt");
	expect_text(&board->opened[1], 1, "the pipe is closed");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int
main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(test_P11_ranks_that_disagree_all_fail_and_go_on),
		TEST(test_P11_a_whole_tensor_that_some_ranks_lack_is_refused_at_any_size),
		TEST(test_P11_a_rank_that_was_refused_fails_the_running_save_with_the_reason),
		TEST(test_P11_rank_0_that_has_no_state_tells_the_others),
		TEST(test_P11_ranks_that_disagree_on_the_number_of_ranks_are_told),
		TEST(test_P11_a_rank_that_cannot_write_fails_the_save_on_all),
		TEST(test_P11_a_rank_whose_folder_has_vanished_reports_the_reason_of_rank_0),
		TEST(test_P11_whatever_fails_on_a_rank_all_agree),
		TEST(test_P16_a_rank_that_never_opens_is_named),
		TEST(test_P16_without_rank_0_the_others_do_not_open),
		TEST(test_P10_a_second_process_of_a_rank_is_refused),
		TEST(test_P11_a_rank_killed_before_its_save),
		TEST(test_P11_a_rank_killed_while_it_writes),
		TEST(test_P11_a_rank_killed_after_its_part),
		TEST(test_P11_rank_0_killed_before_its_save),
		TEST(test_P11_rank_0_killed_while_it_writes),
		TEST(test_P11_a_rank_stopped_beyond_the_deadline),
		TEST(test_P11_rank_0_stopped_beyond_the_deadline),
		TEST(test_P11_a_rank_that_is_started_again_takes_part),
		TEST(test_P10_an_old_rank_that_lives_on_does_no_harm),
		TEST(test_P11_a_run_closed_and_opened_again_by_all),
		TEST(test_P11_damage_that_one_rank_meets_makes_all_fall_back),
		TEST(test_P11_whatever_cannot_be_read_on_a_rank_all_restore_the_same),
		TEST(test_P11_a_restore_that_does_not_fit_one_rank_fails_on_all),
		TEST(test_P11_a_restore_that_does_not_fit_rank_0_fails_on_all),
		TEST(test_R160_values_per_rank_on_another_number_of_ranks_are_an_error_unless_told),
		TEST(test_P9_an_empty_run_is_told_to_all),
		TEST(test_P16_a_rank_that_dies_while_all_restore_is_named),
		TEST(test_P11_the_reason_of_a_rank_that_gives_a_restore_up_is_told),
		TEST(test_P16_nobody_waits_longer_than_the_commit_timeout),
		TEST(test_P11_a_broadcast_function_does_instead_of_files),
		TEST(test_P11_a_broadcast_that_fails_is_named),
	};

	cmocka_set_test_filter(argc > 1 ? argv[1] : NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
