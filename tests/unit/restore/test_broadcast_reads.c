/* SPDX-License-Identifier: Apache-2.0 */
/*
 * broadcast_reads: real processes restore together over a broadcast of their own, in memory that
 * they share. All see the same calls, and each byte is read by one. A function that fails or gives
 * false bytes is not believed. P1, P11, P16; R160.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <time.h>

#include "helpers/hang.h"
#include "helpers/ranks.h"
#include "helpers/scratch.h"

#define TIMEOUT_MS HANG_MS
#define CALL_MS 1000 /* how long a call of the broadcast waits for the others once one of them has lied */
#define ROWS 1100u   /* of 1,024 floats: cut between the ranks, and more than one message */
#define COLS 1024u

/* ---- a broadcast */

enum lie { TRUTH, FAILS, OTHER_BYTES, SKIPS };

struct line {
	atomic_int begun, ended; /* processes that have reached a call and left it, in all */
	atomic_int calls[RANKS_MAX];
	atomic_bool is_broken; /* after the first false answer, no rank may answer those that wait */
	uint32_t root;
	size_t nbytes;
	char bytes[16 << 20];
	int liar, lie, lie_call; /* of which rank, in its how many-th call */
	uint64_t read_bytes[RANKS_MAX];
	int code[RANKS_MAX];
	char text[RANKS_MAX][1016];
};

static struct line *line;

struct caller {
	int rank, world, n;
};

static bool
wait_for(atomic_int *what, int at_least)
{
	for (int i = 0; i < CALL_MS && atomic_load(what) < at_least;) {
		usleep(1000);
		i += atomic_load(&line->is_broken);
	}
	return atomic_load(what) >= at_least;
}

static int
pass_on(void *arg, uint32_t root, void *bytes, size_t nbytes, struct pawl_error *err)
{
	struct caller *c = arg;
	bool lies = line->liar == c->rank && line->lie_call == c->n + 1;

	if (lies)
		atomic_store(&line->is_broken, true);
	if (lies && line->lie == FAILS) {
		snprintf(err->message, sizeof(err->message), "the line is cut");
		err->code = PAWL_EIO;
		return PAWL_EIO;
	}
	if (lies && line->lie == SKIPS) { /* what came with the call before is taken for this one's */
		line->lie_call++;
		memcpy(bytes, line->bytes, nbytes);
		return 0;
	}
	int call = c->n++;

	atomic_fetch_add(&line->calls[c->rank], 1);
	if (!wait_for(&line->ended, call * c->world))
		return PAWL_ETIMEOUT;
	if ((uint32_t)c->rank == root) {
		memcpy(line->bytes, bytes, nbytes);
		line->root = root;
		line->nbytes = nbytes;
	}
	atomic_fetch_add(&line->begun, 1);
	if (!wait_for(&line->begun, (call + 1) * c->world))
		return PAWL_ETIMEOUT;
	bool same = line->root == root && line->nbytes == nbytes;

	memcpy(bytes, line->bytes, nbytes);
	atomic_fetch_add(&line->ended, 1);
	if (lies && line->lie == OTHER_BYTES)
		((char *)bytes)[nbytes - 1] ^= 1;
	return same ? 0 : PAWL_EINTERNAL;
}

/* ---- what is saved and restored */

static float
value_at(uint64_t row, uint64_t col)
{
	return (float)row + (float)col / 2048;
}

struct arrays {
	float *big;        /* in columns, when it is restored */
	int32_t small[12]; /* every other one, when it is restored */
	double own[4];     /* of each rank */
	int64_t step;
};

static void
fill(struct arrays *a, int rank, bool empty)
{
	for (uint64_t i = 0; i < ROWS; i++)
		for (uint64_t k = 0; k < COLS; k++)
			a->big[empty ? k * ROWS + i : i * COLS + k] = empty ? -1 : value_at(i, k);
	for (int i = 0; i < 12; i++)
		a->small[i] = empty ? -1 : i;
	for (int i = 0; i < 4; i++)
		a->own[i] = empty ? -1 : rank * 10 + i;
	a->step = empty ? -1 : 7;
}

static bool
is_right(const struct arrays *a, int rank)
{
	for (uint64_t i = 0; i < ROWS; i++)
		for (uint64_t k = 0; k < COLS; k++)
			if (a->big[k * ROWS + i] != value_at(i, k))
				return false;
	for (int i = 0; i < 6; i++)
		if (a->small[2 * i] != i || a->small[2 * i + 1] != -1)
			return false;
	for (int i = 0; i < 4; i++)
		if (a->own[i] != rank * 10 + i)
			return false;
	return a->step == 7;
}

static int
build(const struct rank_job *job, struct arrays *a, bool live, struct pawl_state **ret, struct pawl_error *err)
{
	uint64_t big_shape[2] = {ROWS, COLS}, small_shape[1] = {6}, own_shape[1] = {4}, nothing[1] = {0};
	uint64_t all[1] = {4 * (uint64_t)job->world}, at[1] = {4 * (uint64_t)job->rank};
	int64_t big_strides[2] = {1, ROWS}, small_strides[1] = {2};
	struct pawl_tensor t[] = {
		{.dtype = PAWL_F32,
	         .ndim = 2,
	         .shape = big_shape,
	         .strides = live ? big_strides : NULL,
	         .data = a->big},
		{.dtype = PAWL_I32,
	         .ndim = 1,
	         .shape = small_shape,
	         .strides = live ? small_strides : NULL,
	         .data = a->small},
		{.dtype = PAWL_F64, .ndim = 1, .shape = own_shape, .global_shape = all, .offsets = at, .data = a->own},
		{.dtype = PAWL_I64, .ndim = 0, .data = &a->step},
		{.dtype = PAWL_F32, .ndim = 1, .shape = nothing},
	};
	static const char *const names[] = {"big", "small", "own", "step", "nothing"};
	struct pawl_state *s = NULL;
	int rc = pawl_state_new(&s, err);

	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		t[i].size = sizeof(t[i]);
		rc = rc < 0 ? rc : pawl_state_set_tensor(s, names[i], &t[i], err);
	}
	*ret = s;
	return rc;
}

static int
save_once(const struct rank_job *job)
{
	struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;
	struct arrays a = {.big = malloc(ROWS * COLS * sizeof(float))};
	struct pawl_state *state = NULL;
	struct pawl_error err = {0};
	struct pawl *run = NULL;

	fill(&a, job->rank, false);
	RANK_TRY(rank_open(job, &run, &err));
	RANK_TRY(build(job, &a, false, &state, &err));
	RANK_TRY(pawl_save(run, &opts, state, NULL, &err));
	pawl_state_free(state);
	RANK_TRY(pawl_close(run, &err));
	free(a.big);
	return 0;
}

/* Notes how it ended; the test looks at the notes. */
static int
restore_together(const struct rank_job *job)
{
	struct caller caller = {.rank = job->rank, .world = job->world};
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	struct arrays a = {.big = malloc(ROWS * COLS * sizeof(float))};
	struct pawl_restore *restored = NULL;
	struct pawl_state *live = NULL;
	struct pawl_error err = {0};
	struct pawl *run = NULL;

	fill(&a, job->rank, true);
	RANK_TRY(rank_open(job, &run, &err));
	RANK_TRY(build(job, &a, true, &live, &err));
	opts.ring_bytes = 4 << 20; /* messages of 1 MiB */
	opts.share_reads = pass_on;
	opts.share_arg = &caller;
	int rc = pawl_restore(run, &opts, live, &restored, &err);

	line->code[job->rank] = rc;
	snprintf(line->text[job->rank], sizeof(line->text[0]), "%s", err.message);
	RANK_CHECK(rc < 0 || is_right(&a, job->rank));
	pawl_restore_close(restored);
	pawl_state_free(live);
	pawl_close(run, NULL);
	free(a.big);
	return 0;
}

/* ---- tests */

static int
setup(void **state)
{
	char *root = malloc(256);

	*state = root;
	line = mmap(NULL, sizeof(*line), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (line == MAP_FAILED || scratch_make(root, 256, "share") < 0)
		return -1;
	line->liar = -1;
	return ranks_run(root, 2, TIMEOUT_MS, save_once, NULL);
}

static int
teardown(void **state)
{
	munmap((void *)line, sizeof(*line));
	scratch_remove(*state);
	free(*state);
	return 0;
}

/* The last line of events.jsonl that has this member: its value. */
static long long
last_figure(const char *root, const char *member)
{
	char path[300], text[4096];
	long long found = -1;

	snprintf(path, sizeof(path), "%s/events.jsonl", root);
	FILE *file = fopen(path, "r");

	assert_non_null(file);
	while (fgets(text, sizeof(text), file)) {
		const char *at = strstr(text, member);

		if (at)
			found = strtoll(at + strlen(member), NULL, 10);
	}
	fclose(file);
	return found;
}

static void
expect(int world, int code, const char *text)
{
	for (int r = 0; r < world; r++)
		if (line->code[r] != code || !strstr(line->text[r], text))
			fail_msg("rank %d: expected %d '%s', found %d: %s", r, code, text, line->code[r],
			         line->text[r]);
}

static void
test_R160_each_byte_is_read_by_one_rank_and_all_call_equally_often(void **state)
{
	const long long nbytes = ROWS * COLS * 4;

	for (int world = 2; world <= 5; world++) {
		memset((void *)line, 0, offsetof(struct line, bytes));
		line->liar = -1;
		char root[300];

		snprintf(root, sizeof(root), "%s/%d", (char *)*state, world);
		assert_int_equal(ranks_run(root, world, TIMEOUT_MS, save_once, NULL), 0);
		assert_int_equal(ranks_run(root, world, TIMEOUT_MS, restore_together, NULL), 0);
		expect(world, 0, "");
		/* a list, the boxes, and shares of about 1.1 MiB and less in messages of 1 MiB */
		assert_in_range(atomic_load(&line->calls[0]), 2 + 4, 2 + 3 * world);
		for (int r = 1; r < world; r++)
			assert_int_equal(atomic_load(&line->calls[r]), atomic_load(&line->calls[0]));
		long long all = last_figure(root, "\"read_bytes\":"), own = last_figure(root, "\"bytes\":");

		assert_true(all >= nbytes && all < nbytes + world * (1 << 20));
		assert_true(own < nbytes / world + (2 << 20));
	}
}

static void
test_P11_a_function_that_fails_fails_the_restore_everywhere(void **state)
{
	for (int call = 1; call <= 4; call++) {
		memset((void *)line, 0, offsetof(struct line, bytes));
		line->liar = 1;
		line->lie = FAILS;
		line->lie_call = call;
		assert_int_equal(ranks_run(*state, 2, TIMEOUT_MS, restore_together, NULL), 0);
		for (int r = 0; r < 2; r++) {
			assert_true(line->code[r] == PAWL_ETRANSIENT || line->code[r] == PAWL_ETIMEOUT);
			assert_non_null(strstr(line->text[r], "broadcast"));
		}
	}
}

static void
test_P1_what_was_not_sent_is_not_believed(void **state)
{
	for (int lie = OTHER_BYTES; lie <= SKIPS; lie++)
		for (int call = 1; call <= 4; call++) {
			memset((void *)line, 0, offsetof(struct line, bytes));
			line->liar = 1;
			line->lie = lie;
			line->lie_call = call;
			assert_int_equal(ranks_run(*state, 2, TIMEOUT_MS, restore_together, NULL), 0);
			assert_true(line->code[0] < 0 && line->code[1] < 0);
			if (!strstr(line->text[1], "other bytes than rank") && !strstr(line->text[0], "broadcast"))
				fail_msg("lie %d in call %d: %s", lie, call, line->text[1]);
		}
}

int
main(void)
{
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
	const struct CMUnitTest tests[] = {
		CASE(test_R160_each_byte_is_read_by_one_rank_and_all_call_equally_often),
		CASE(test_P11_a_function_that_fails_fails_the_restore_everywhere),
		CASE(test_P1_what_was_not_sent_is_not_believed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
