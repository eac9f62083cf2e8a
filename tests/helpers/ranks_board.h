/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks_board: jobs of processes that note on a board, in memory shared with the test, how each of
 * their steps ended. Also what must hold of such notes. For tests that use cmocka.
 */
#ifndef PAWL_TESTS_RANKS_BOARD_H
#define PAWL_TESTS_RANKS_BOARD_H

#include <dirent.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include "hang.h"
#include "ranks.h"
#include "run/run.h"
#include "scratch.h"

#define WORLD 3
/* No rank is late. The test ends before it: what waits so long, although it need not, hangs. */
#define LONG_MS (10 * 24 * 3600 * INT64_C(1000))
#define SHORT_MS 8000 /* a rank is late, or one waits in vain */
#define STEPS 32
#define ROWS (12u / (unsigned)job->world) /* of each rank, 8 floats each; in all 12, for any number of ranks */

/* ---- the board */

struct told {
	int code; /* 1 = nothing yet */
	char text[1020];
};

struct board {
	struct told opened[RANKS_MAX], restored[RANKS_MAX], saved[RANKS_MAX][STEPS];
	int64_t restored_step[RANKS_MAX];
	char fallback[RANKS_MAX][1020];
	atomic_int go; /* how far the processes may go */
	atomic_int here[RANKS_MAX];
	atomic_int held[RANKS_MAX]; /* the step before which a rank that has opened the run is held */
	atomic_int done[RANKS_MAX]; /* steps that have ended */
	atomic_int waits;           /* for a limited time, by the programs of the ranks themselves */
};

static struct board *board;

static inline int64_t
now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static inline void
note(struct told *told, int code, const struct pawl_error *err)
{
	snprintf(told->text, sizeof(told->text), "%s", err->message);
	__atomic_store_n(&told->code, code, __ATOMIC_RELEASE);
}

/* A process that is never told to continue gives up, rather than to stay behind. */
static inline void
wait_until(const atomic_int *what, int at_least)
{
	int64_t until = now_ms() + HANG_MS;

	while (atomic_load(what) < at_least) {
		if (now_ms() > until)
			_exit(88);
		usleep(2000);
	}
}

static inline void
wait_until_told(const struct told *told)
{
	int64_t until = now_ms() + HANG_MS;

	while (__atomic_load_n(&told->code, __ATOMIC_ACQUIRE) == 1) {
		if (now_ms() > until)
			_exit(88);
		usleep(2000);
	}
}

/* ---- what the processes save */

enum twist {
	STRAIGHT,
	OTHER_STEP,
	OTHER_DTYPE,
	OTHER_SHAPE,
	OTHER_KIND, /* a dict instead of a list */
	SHORTER_LIST,
	SAME_PIECE,  /* that of the rank before it next to its own */
	WRONG_PIECE, /* that of the rank before it instead of its own */
	HOLE,        /* a row less */
	OTHER_RANK,  /* a state that was built for another rank */
	STOPS_OUT,   /* tells the others that it has no state */
	MANY_PACKS   /* so that a slow disk is one */
};

struct state {
	float w[64], rows[2 * 12 * 8];
	int64_t place;
};

static inline float
row_value(uint64_t row, uint64_t col, int64_t step)
{
	return (float)(row * 100 + col) + (float)step / 8;
}

static inline int
make_state(const struct rank_job *job, struct state *s, enum twist twist, struct pawl_state **ret,
           struct pawl_error *err)
{
	uint64_t rank = (uint64_t)job->rank, world = (uint64_t)job->world;
	uint64_t w_shape[2] = {64, 1}, square[2] = {8, 8}, all[2] = {world * ROWS, 8};
	uint64_t n[2] = {twist == HOLE ? ROWS - 1 : twist == SAME_PIECE ? 2 * ROWS : ROWS, 8};
	uint64_t at[2] = {twist == SAME_PIECE || twist == WRONG_PIECE ? (rank - 1) * ROWS : rank * ROWS, 0};
	struct pawl_tensor w = {.size = sizeof(w),
	                        .dtype = twist == OTHER_DTYPE ? PAWL_I32 : PAWL_F32,
	                        .ndim = twist == OTHER_SHAPE ? 2 : 1,
	                        .shape = twist == OTHER_SHAPE ? square : w_shape,
	                        .data = s->w};
	struct pawl_tensor rows = {.size = sizeof(rows),
	                           .dtype = PAWL_F32,
	                           .ndim = 2,
	                           .shape = n,
	                           .global_shape = all,
	                           .offsets = at,
	                           .data = s->rows};
	static char bytes[4][1 << 18];
	uint64_t large_n[1] = {sizeof(bytes[0])};
	struct pawl_tensor large[4];
	struct pawl_state *st = NULL;
	int rc = pawl_state_new(&st, err);

	for (int i = 0; i < 4; i++)
		large[i] = (struct pawl_tensor){
			.size = sizeof(w), .dtype = PAWL_U8, .ndim = 1, .shape = large_n, .data = bytes[i]};

#define STEP(call) rc = rc < 0 ? rc : (call)
#define KEY(text) \
	STEP(pawl_state_key(st, &(struct pawl_scalar){.type = PAWL_STR, .ptr = text, .len = strlen(text)}, err))
#define INT(value) STEP(pawl_state_add(st, &(struct pawl_scalar){.type = PAWL_INT, .i = value}, err))
	STEP(pawl_state_set_rank(st, twist == OTHER_RANK ? 0 : (uint32_t)rank, (uint32_t)world, err));
	STEP(pawl_state_begin(st, PAWL_DICT, err));
	KEY("w");
	STEP(pawl_state_add_tensor(st, &w, err));
	KEY("rows");
	STEP(pawl_state_add_tensor(st, &rows, err));
	KEY("list");
	STEP(pawl_state_begin(st, twist == OTHER_KIND ? PAWL_DICT : PAWL_LIST, err));
	for (int i = 0; i < (twist == OTHER_KIND ? 0 : twist == SHORTER_LIST ? 2 : 3); i++)
		INT(i);
	STEP(pawl_state_end(st, err));
	KEY("mine");
	STEP(pawl_state_begin(st, PAWL_PER_RANK, err));
	if (twist == MANY_PACKS) {
		STEP(pawl_state_begin(st, PAWL_LIST, err));
		for (int i = 0; i < 4; i++)
			STEP(pawl_state_add_tensor(st, &large[i], err));
		STEP(pawl_state_end(st, err));
	} else {
		INT(s->place);
	}
	STEP(pawl_state_end(st, err));
	STEP(pawl_state_end(st, err));
#undef STEP
#undef KEY
#undef INT
	if (rc < 0) {
		pawl_state_free(st);
		return rc;
	}
	*ret = st;
	return 0;
}

static inline void
fill(const struct rank_job *job, struct state *s, int64_t step)
{
	for (uint64_t i = 0; i < 64; i++)
		s->w[i] = row_value(1000, i, step);
	for (uint64_t i = 0; i < ROWS * 8; i++)
		s->rows[i] = row_value((uint64_t)job->rank * ROWS + i / 8, i % 8, step);
	s->place = job->rank * 1000 + step;
}

static inline bool
is_filled(const struct rank_job *job, const struct state *s, int64_t step)
{
	struct state want = {0};

	fill(job, &want, step);
	return memcmp(want.w, s->w, sizeof(want.w)) == 0 && memcmp(want.rows, s->rows, sizeof(want.rows)) == 0;
}

/* ---- what the processes do */

struct act {
	int bad_rank; /* whose second step is twisted, or meets the fault */
	enum twist twist;
	const char *operation; /* of the fault layer, in the second step */
	uint64_t nth;
	int gone_rank;         /* meanwhile this rank finds its folder gone, as if rank 0 had removed it; 0 = none */
	const char *reason;    /* that the caller gives for ending what it has begun */
	int steps, first_step; /* first_step: 0 counts as 1 */
	int rank_values;
	pawl_broadcast_fn *broadcast;
	void *broadcast_arg;
	bool until_saved; /* the steps end with the first one after first_step that is saved: ranks that were late are
	                     not */
	int hold_rank, hold_step; /* this rank begins no step from this one on until board->go is set; 0 = none */
};

/* How long the ranks take to open the run does not count. */
static inline void
start_clock(const struct rank_job *job, struct pawl *run)
{
	for (int r = 0; r < job->world; r++)
		wait_until_told(&board->opened[r]);
	run->opts.timeouts.commit_ms = job->commit_timeout_ms;
}

static inline int
open_run(const struct rank_job *job, struct pawl_fault *fault, struct pawl **ret)
{
	const struct act *act = job->arg;
	struct pawl_rank who = PAWL_RANK_INIT;
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	struct pawl_error err = {0};

	who.rank = job->rank;
	who.world_size = job->world;
	opts.root = job->root;
	opts.ranks.self = &who;
	const bool is_short = job->commit_timeout_ms == SHORT_MS;

	opts.timeouts.commit_ms = is_short ? LONG_MS : job->commit_timeout_ms;
	opts.io.fault = fault;
	opts.ranks.broadcast = act ? act->broadcast : NULL;
	opts.ranks.broadcast_arg = act ? act->broadcast_arg : NULL;
	if (act && act->twist == MANY_PACKS && act->bad_rank == job->rank) {
		opts.io.write_bytes_per_second = 200;
		opts.packs.pack_bytes = 1 << 18;
	}
	int rc = pawl_open(&opts, ret, &err);

	note(&board->opened[job->rank], rc, &err);
	if (rc < 0)
		fprintf(stderr, "rank %d cannot open: %s\n", job->rank, err.message);
	else if (is_short)
		start_clock(job, *ret);
	return rc;
}

static inline void
save_step(const struct rank_job *job, struct pawl *run, enum twist twist, int64_t step)
{
	struct told *told = &board->saved[job->rank][step];
	struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;
	struct pawl_ticket *ticket = NULL;
	struct pawl_state *state = NULL;
	struct pawl_error err = {0};
	struct state s = {0};
	int rc;

	fill(job, &s, step);
	opts.step = twist == OTHER_STEP ? step + 100 : step;
	if (twist == STOPS_OUT) {
		rc = pawl_save_failed(run, &opts, PAWL_EUNSUPPORTED, "it holds a thing that cannot be held");
		snprintf(err.message, sizeof(err.message), "it holds a thing that cannot be held");
	} else {
		rc = make_state(job, &s, twist, &state, &err);
		if (rc == 0)
			rc = pawl_save(run, &opts, state, &ticket, &err);
	}
	atomic_store(&board->here[job->rank], (int)step);
	if (rc == 0)
		rc = pawl_ticket_wait(ticket, -1, &err);
	pawl_ticket_free(ticket);
	pawl_state_free(state);
	note(told, rc, &err);
	atomic_store(&board->done[job->rank], (int)step);
}

/* Saves its steps; the second one may be twisted. */
static inline int
train(const struct rank_job *job)
{
	const struct act *act = job->arg;
	struct pawl_fault *fault = NULL;
	struct pawl_error err = {0};
	struct pawl *run = NULL;
	int first = act->first_step ? act->first_step : 1;
	bool is_bad = act->bad_rank == job->rank;

	if (act->operation && is_bad)
		RANK_TRY(pawl_fault_new(act->operation, act->nth, PAWL_EIO, 0, &fault, &err));
	else if (act->gone_rank && act->gone_rank == job->rank)
		RANK_TRY(pawl_fault_new("create", 2, PAWL_ENOTFOUND, 0, &fault, &err));
	if (open_run(job, fault, &run) < 0)
		return 1;
	for (int step = first; step < first + act->steps; step++) {
		if (act->hold_step && act->hold_rank == job->rank && step >= act->hold_step) {
			atomic_store(&board->held[job->rank], step);
			wait_until(&board->go, step);
		}
		save_step(job, run, is_bad && (step == first + 1 || act->twist == MANY_PACKS) ? act->twist : STRAIGHT,
		          step);
		if (act->until_saved && step > first && board->saved[job->rank][step].code == 0)
			break;
	}
	pawl_close(run, NULL);
	pawl_fault_free(fault);
	return 0;
}

/* Rank 0 closes the run when it fails, and admits no more ranks. */
static inline void
wait_for_all(const struct rank_job *job)
{
	for (int r = 0; r < job->world; r++)
		while (*(volatile int *)&board->opened[r].code == 1)
			usleep(1000);
}

static inline int
restore(const struct rank_job *job)
{
	const struct act *act = job->arg;
	struct pawl_fault *fault = NULL;
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	struct pawl_restore *restored = NULL;
	struct pawl_state *live = NULL;
	struct pawl_error err = {0};
	struct pawl *run = NULL;
	struct state s = {0};

	if (act && act->operation && act->bad_rank == job->rank)
		RANK_TRY(pawl_fault_new(act->operation, act->nth, PAWL_EIO, 0, &fault, &err));
	if (open_run(job, fault, &run) < 0)
		return 1;
	wait_for_all(job);
	RANK_TRY(make_state(job, &s, act && act->bad_rank == job->rank ? act->twist : STRAIGHT, &live, &err));
	opts.rank_values = act ? act->rank_values : 0;
	int rc = pawl_restore(run, &opts, live, &restored, &err);

	note(&board->restored[job->rank], rc, &err);
	if (rc == 0) {
		int64_t step = pawl_restore_info(restored)->step;

		board->restored_step[job->rank] = step;
		if (pawl_restore_fallback_count(restored))
			snprintf(board->fallback[job->rank], sizeof(board->fallback[0]), "%s",
			         pawl_restore_fallback_get(restored, 0));
		RANK_CHECK(is_filled(job, &s, step));
	}
	pawl_restore_close(restored);
	pawl_state_free(live);
	pawl_close(run, NULL);
	pawl_fault_free(fault);
	return 0;
}

/* ---- what must hold */

static inline void
clear_board(void)
{
	memset((void *)board, 0, sizeof(*board));
	for (int r = 0; r < RANKS_MAX; r++) {
		board->opened[r].code = board->restored[r].code = 1;
		for (int k = 0; k < STEPS; k++)
			board->saved[r][k].code = 1;
	}
}

static inline int
setup(void **state)
{
	char *root = malloc(256);

	*state = root;
	board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (board == MAP_FAILED || scratch_make(root, 256, "ranks") < 0)
		return -1;
	clear_board();
	return 0;
}

static inline int
teardown(void **state)
{
	munmap((void *)board, sizeof(*board));
	scratch_remove(*state);
	free(*state);
	return 0;
}

static inline void
expect_text(const struct told *told, int rank, const char *text)
{
	if (*text && !strstr(told->text, text))
		fail_msg("rank %d: expected '%s' in: %s", rank, text, told->text);
}

/* All ranks of a mask (bit r = rank r) have ended a step with this code. */
static inline void
expect_saved(unsigned ranks, int step, int code)
{
	for (int r = 0; r < RANKS_MAX; r++) {
		const struct told *told = &board->saved[r][step];

		if (!(ranks & 1u << r))
			continue;
		if (told->code != code)
			fail_msg("rank %d, step %d: expected %d, found %d: %s", r, step, code, told->code, told->text);
	}
}

static inline void
expect_saved_text(unsigned ranks, int step, const char *text)
{
	for (int r = 0; r < RANKS_MAX; r++)
		if (ranks & 1u << r)
			expect_text(&board->saved[r][step], r, text);
}

/* Exactly these steps are listed (bit n = step n), each is complete, and what is hidden has no
 * owner. */
static inline void
expect_listed(const char *root, unsigned steps)
{
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	struct pawl_findings *findings = NULL;
	struct pawl_error err = {0};
	struct pawl_list *list = NULL;
	struct pawl *run = NULL;
	unsigned found = 0;

	opts.root = root;
	opts.read_only = 1;
	if (pawl_open(&opts, &run, &err) < 0 || pawl_list_open(run, 1, &list, &err) < 0)
		fail_msg("list: %s", err.message);
	for (size_t i = 0; i < pawl_list_count(list); i++)
		found |= 1u << pawl_list_get(list, i)->step;
	assert_int_equal(found, steps);
	pawl_list_free(list);
	if (pawl_verify(run, 0, NULL, &findings, &err) < 0)
		fail_msg("verify: %s", err.message);
	pawl_findings_free(findings);
	pawl_close(run, NULL);
}

/* A new job of `world` ranks restores this step. */
static inline void
expect_restored(const char *root, int world, int step)
{
	struct act act = {.bad_rank = -1, .rank_values = PAWL_RANK_VALUES_DROP};

	for (int r = 0; r < world; r++)
		board->opened[r].code = 1;
	assert_int_equal(ranks_run(root, world, LONG_MS, restore, &act), 0);
	for (int r = 0; r < world; r++) {
		if (board->restored[r].code != 0)
			fail_msg("rank %d cannot restore: %s", r, board->restored[r].text);
		assert_int_equal(board->restored_step[r], step);
	}
}

/* Nothing is left of the saves before the last one that succeeded: only its own files exist. */
static inline void
expect_cleared(const char *root)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/.pawl/meet", root);
	DIR *dir = opendir(path);
	int n = 0;

	assert_non_null(dir);
	for (struct dirent *e; (e = readdir(dir));)
		n += strlen(e->d_name) == 32; /* the token of a save */
	closedir(dir);
	assert_int_equal(n, 1);
}

#define ALL ((1u << WORLD) - 1)
#define BUT(rank) (ALL & ~(1u << (rank)))

/* Three steps of which the second fails on all ranks for a rank's trouble. */
static inline void
expect_failed_middle(const char *root, struct act *act, int code, const char *text, const char *text2)
{
	act->steps = 3;
	assert_int_equal(ranks_run(root, WORLD, LONG_MS, train, act), 0);
	expect_cleared(root);
	expect_saved(ALL, 1, 0);
	expect_saved(ALL, 2, code);
	expect_saved(ALL, 3, 0);
	expect_saved_text(ALL, 2, text);
	expect_saved_text(act->twist == OTHER_RANK || act->twist == STOPS_OUT ? BUT(act->bad_rank) : ALL, 2, text2);
	expect_listed(root, 1u << 1 | 1u << 3);
	expect_restored(root, WORLD, 3);
}

#endif
