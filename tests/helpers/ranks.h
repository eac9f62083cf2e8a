/* SPDX-License-Identifier: Apache-2.0 */
/* ranks: a job of several processes on one machine, made by fork, and the state that each of them
 * gives. For tests. */
#ifndef PAWL_TESTS_RANKS_H
#define PAWL_TESTS_RANKS_H

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pawl.h"

#define RANKS_MAX 16

/* A process's part in the job: returns 0, or anything else for a failure, which it has printed. */
struct rank_job;
typedef int rank_fn(const struct rank_job *job);
struct rank_job {
	const char *root;
	int rank, world;
	int64_t commit_timeout_ms;
	void *arg;
	const char *attempt; /* what the launcher says of this start; NULL = nothing */
};

#define RANK_TRY(expr)                                                                               \
	do {                                                                                         \
		int rank_rc_ = (expr);                                                               \
		if (rank_rc_ < 0) {                                                                  \
			fprintf(stderr, "rank %d, line %d: %s\n", job->rank, __LINE__, err.message); \
			return 100 - rank_rc_;                                                       \
		}                                                                                    \
	} while (0)
#define RANK_CHECK(what)                                                                                   \
	do {                                                                                               \
		if (!(what)) {                                                                             \
			fprintf(stderr, "rank %d, line %d: not so: %s (%s)\n", job->rank, __LINE__, #what, \
			        err.message);                                                              \
			return 99;                                                                         \
		}                                                                                          \
	} while (0)

static inline pid_t
rank_start(const struct rank_job *job, rank_fn *fn)
{
	fflush(NULL);
	pid_t pid = fork();

	if (pid == 0)
		_exit(fn(job));
	return pid;
}

/* Exit status, or 1000 + the signal that ended it. */
static inline int
rank_join(pid_t pid)
{
	int status = 0;

	if (waitpid(pid, &status, 0) != pid)
		return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* Runs fn as all ranks of a job; returns how many did not return 0. */
static inline int
ranks_run(const char *root, int world, int64_t commit_timeout_ms, rank_fn *fn, void *arg)
{
	pid_t pids[RANKS_MAX];
	int bad = 0;

	for (int r = world - 1; r >= 0; r--) {
		struct rank_job job = {
			.root = root, .rank = r, .world = world, .commit_timeout_ms = commit_timeout_ms, .arg = arg};

		pids[r] = rank_start(&job, fn);
	}
	for (int r = 0; r < world; r++)
		bad += rank_join(pids[r]) != 0;
	return bad;
}

static inline int
rank_open(const struct rank_job *job, struct pawl **ret, struct pawl_error *err)
{
	struct pawl_rank who = PAWL_RANK_INIT;
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;

	who.rank = job->rank;
	who.world_size = job->world;
	if (job->attempt)
		snprintf(who.attempt, sizeof(who.attempt), "%s", job->attempt);
	opts.root = job->root;
	opts.ranks.self = &who;
	opts.timeouts.commit_ms = job->commit_timeout_ms;
	opts.packs.pack_bytes = 1 << 20;
	return pawl_open(&opts, ret, err);
}

/* ---- the state: every kind of tensor that ranks can hold, with contents that show their place */

#define WHOLE_ROWS 1024u /* of 1,024 floats: 4 MiB, cut between the ranks */
#define SPLIT_ROWS 103u  /* of 8: the ranks have different numbers of them, and of many ranks the last has none */
#define SPLIT_COLS 41u   /* in 16 rows */

struct rank_state {
	float *whole, *rows, *cols;
	int32_t small[5];
	unsigned char seed[16];
	uint64_t rows_at, rows_n, cols_at, cols_n;
	int64_t place;
	double loss;
};

/* Where rank r's share of n begins: the first ranks have more. */
static inline uint64_t
share_begin(uint64_t n, int rank, int world)
{
	uint64_t per = (n + (uint64_t)world - 1) / (uint64_t)world, at = per * (uint64_t)rank;

	return at < n ? at : n;
}

static inline float
value_of(int which, uint64_t row, uint64_t col, int64_t step)
{
	return (float)which * 1e6f + (float)row * 100.0f + (float)col + (float)step * 0.25f;
}

static inline void
rank_state_init(struct rank_state *s, int rank, int world)
{
	memset(s, 0, sizeof(*s));
	s->rows_at = share_begin(SPLIT_ROWS, rank, world);
	s->rows_n = share_begin(SPLIT_ROWS, rank + 1, world) - s->rows_at;
	s->cols_at = share_begin(SPLIT_COLS, rank, world);
	s->cols_n = share_begin(SPLIT_COLS, rank + 1, world) - s->cols_at;
	s->whole = calloc(WHOLE_ROWS * 1024, sizeof(float));
	s->rows = calloc(s->rows_n * 8 + 1, sizeof(float));
	s->cols = calloc(s->cols_n * 16 + 1, sizeof(float));
}

static inline void
rank_state_clear(struct rank_state *s)
{
	free(s->whole);
	free(s->rows);
	free(s->cols);
}

static inline void
rank_state_fill(struct rank_state *s, int rank, int64_t step)
{
	for (uint64_t i = 0; i < WHOLE_ROWS * 1024; i++)
		s->whole[i] = value_of(1, i / 1024, i % 1024, step);
	for (uint64_t i = 0; i < s->rows_n * 8; i++)
		s->rows[i] = value_of(2, s->rows_at + i / 8, i % 8, step);
	for (uint64_t i = 0; i < s->cols_n * 16; i++)
		s->cols[i] = value_of(3, i / s->cols_n, s->cols_at + i % s->cols_n, step);
	for (int i = 0; i < 5; i++)
		s->small[i] = (int32_t)step * 10 + i;
	for (int i = 0; i < 16; i++)
		s->seed[i] = (unsigned char)(rank * 16 + i + step);
	s->place = 1000 * rank + step;
	s->loss = (double)rank + (double)step / 8;
}

static inline int
rank_state_differs(const struct rank_state *s, int rank, int64_t step)
{
	for (uint64_t i = 0; i < WHOLE_ROWS * 1024; i++)
		if (s->whole[i] != value_of(1, i / 1024, i % 1024, step))
			return 1;
	for (uint64_t i = 0; i < s->rows_n * 8; i++)
		if (s->rows[i] != value_of(2, s->rows_at + i / 8, i % 8, step))
			return 2;
	for (uint64_t i = 0; i < s->cols_n * 16; i++)
		if (s->cols[i] != value_of(3, i / s->cols_n, s->cols_at + i % s->cols_n, step))
			return 3;
	for (int i = 0; i < 5; i++)
		if (s->small[i] != (int32_t)step * 10 + i)
			return 4;
	for (int i = 0; rank >= 0 && i < 16; i++)
		if (s->seed[i] != (unsigned char)(rank * 16 + i + step))
			return 5;
	return 0;
}

static inline int
rank_state_build(struct rank_state *s, int rank, int world, struct pawl_state **ret, struct pawl_error *err)
{
	uint64_t whole[2] = {WHOLE_ROWS, 1024}, small[1] = {5}, seed[1] = {16};
	uint64_t rows[2] = {s->rows_n, 8}, rows_all[2] = {SPLIT_ROWS, 8}, rows_at[2] = {s->rows_at, 0};
	uint64_t cols[2] = {16, s->cols_n}, cols_all[2] = {16, SPLIT_COLS}, cols_at[2] = {0, s->cols_at};
	struct pawl_tensor t[] = {
		{.size = sizeof(t[0]), .dtype = PAWL_F32, .ndim = 2, .shape = whole, .data = s->whole},
		{.size = sizeof(t[0]), .dtype = PAWL_I32, .ndim = 1, .shape = small, .data = s->small},
		{.size = sizeof(t[0]),
	         .dtype = PAWL_F32,
	         .ndim = 2,
	         .shape = rows,
	         .global_shape = rows_all,
	         .offsets = rows_at,
	         .data = s->rows},
		{.size = sizeof(t[0]),
	         .dtype = PAWL_F32,
	         .ndim = 2,
	         .shape = cols,
	         .global_shape = cols_all,
	         .offsets = cols_at,
	         .data = s->cols},
		{.size = sizeof(t[0]), .dtype = PAWL_U8, .ndim = 1, .shape = seed, .data = s->seed},
	};
	const char *names[] = {"whole", "small", "rows", "cols"};
	struct pawl_state *st = NULL;
	int rc = pawl_state_new(&st, err);

#define STEP(call) rc = rc < 0 ? rc : (call)
#define KEY(text) \
	STEP(pawl_state_key(st, &(struct pawl_scalar){.type = PAWL_STR, .ptr = text, .len = strlen(text)}, err))
	STEP(pawl_state_set_rank(st, (uint32_t)rank, (uint32_t)world, err));
	STEP(pawl_state_begin(st, PAWL_DICT, err));
	for (int i = 0; i < 4; i++) {
		KEY(names[i]);
		STEP(pawl_state_add_tensor(st, &t[i], err));
	}
	KEY("epoch");
	STEP(pawl_state_add(st, &(struct pawl_scalar){.type = PAWL_INT, .i = 7}, err));
	KEY("loss");
	STEP(pawl_state_add(st, &(struct pawl_scalar){.type = PAWL_FLOAT, .f = s->loss}, err));
	KEY("mine");
	STEP(pawl_state_begin(st, PAWL_PER_RANK, err));
	STEP(pawl_state_begin(st, PAWL_DICT, err));
	KEY("seed");
	STEP(pawl_state_add_tensor(st, &t[4], err));
	KEY("place");
	STEP(pawl_state_add(st, &(struct pawl_scalar){.type = PAWL_INT, .i = s->place}, err));
	STEP(pawl_state_end(st, err));
	STEP(pawl_state_end(st, err));
	STEP(pawl_state_end(st, err));
#undef KEY
#undef STEP
	if (rc < 0) {
		pawl_state_free(st);
		return rc;
	}
	*ret = st;
	return 0;
}

/* Saves the state of a step. */
static inline int
rank_save(struct pawl *run, const struct rank_job *job, struct rank_state *s, int64_t step, struct pawl_ticket **ret,
          struct pawl_error *err)
{
	struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;
	struct pawl_state *state = NULL;

	rank_state_fill(s, job->rank, step);
	int rc = rank_state_build(s, job->rank, job->world, &state, err);

	if (rc < 0)
		return rc;
	opts.step = step;
	rc = pawl_save(run, &opts, state, ret, err);
	pawl_state_free(state);
	return rc;
}

#endif
