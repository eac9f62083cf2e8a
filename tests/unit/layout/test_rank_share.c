/* SPDX-License-Identifier: Apache-2.0 */
/* What each rank writes: together everything, nothing twice, in equal parts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "layout/rank_share.h"

#define MAX_TENSORS 40
#define MAX_WORLD 70u

static uint64_t
random_below(uint64_t *seed, uint64_t n)
{
	*seed = *seed * 6364136223846793005u + 1442695040888963407u;
	return (*seed >> 33) % n;
}

struct piece {
	uint64_t from, to;
};

/* What one rank has of a complete tensor, in rows; a scalar is one row. */
static struct piece
piece_of(const struct state_tensor *t)
{
	if (t->elsewhere)
		return (struct piece){0, 0};
	if (!t->src.offsets)
		return (struct piece){0, t->info.ndim ? t->info.shape[0] : 1};
	return (struct piece){t->src.offsets[0], t->src.offsets[0] + t->src.shape[0]};
}

/* One random state, given to every rank of every world. */
static void
check_state(uint64_t seed)
{
	struct state_tensor rows[MAX_TENSORS] = {0};
	uint64_t shapes[MAX_TENSORS][2], total = 0, largest_row = RANK_SHARE_CUT_BYTES;
	size_t n = 1 + random_below(&seed, MAX_TENSORS);

	for (size_t i = 0; i < n; i++) {
		struct state_tensor *t = &rows[i];
		uint64_t row_elements = 1 + random_below(&seed, 1u << random_below(&seed, 18));

		shapes[i][0] = random_below(&seed, 4) == 0 ? random_below(&seed, 3) : 1 + random_below(&seed, 3000);
		shapes[i][1] = row_elements;
		t->info.dtype = t->src.dtype = PAWL_F32;
		t->info.ndim = t->src.ndim = random_below(&seed, 9) == 0 ? 0 : 2;
		t->info.shape = t->src.shape = shapes[i];
		t->contiguous = true;
		t->src.data = (char *)(uintptr_t)(1u << 20);
		t->local_nbytes = t->info.nbytes = t->info.ndim ? 4 * shapes[i][0] * shapes[i][1] : 4;
		total += t->info.nbytes;
	}
	struct pawl_state state = {.tensors = rows, .n_tensors = n};
	uint32_t world = 1 + (uint32_t)random_below(&seed, MAX_WORLD);
	uint64_t next[MAX_TENSORS] = {0};

	for (uint32_t rank = 0; rank < world; rank++) {
		struct bump memory = {0};
		struct pawl_state share = {0};
		uint64_t mine = 0;

		assert_int_equal(rank_share_of(&state, rank, world, &memory, &share, NULL), 0);
		for (size_t i = 0; i < n; i++) {
			const struct state_tensor *t = &share.tensors[i];
			struct piece p = piece_of(t);
			uint64_t row_bytes = t->info.ndim ? 4 * shapes[i][1] : 4;

			assert_true(t->common); /* whichever rank writes it */
			if (t->elsewhere)
				continue;
			assert_int_equal(p.from, next[i]); /* in the order of the ranks, without holes, nothing twice */
			next[i] = p.to;
			assert_int_equal(t->local_nbytes, (p.to - p.from) * row_bytes);
			assert_ptr_equal(t->src.data, (char *)(uintptr_t)(1u << 20) + p.from * row_bytes);
			mine += t->local_nbytes;
			if (row_bytes > largest_row)
				largest_row = row_bytes;
		}
		/* An equal part, but for what cannot be cut. */
		assert_true(mine <= total / world + 2 * largest_row);
		bump_clear(&memory);
	}
	for (size_t i = 0; i < n; i++)
		assert_int_equal(next[i], rows[i].info.ndim ? shapes[i][0] : 1);
}

static void
test_the_ranks_share_whole_tensors_evenly_and_completely(void **unused)
{
	(void)unused;
	for (uint64_t seed = 1; seed <= 2000; seed++)
		check_state(seed * 977);
}

static void
test_shards_and_writers_are_taken_as_the_caller_says(void **unused)
{
	static const struct {
		int writer;
		bool is_shard, is_empty;
		bool elsewhere[3]; /* for each of three ranks */
	} cases[] = {
		{PAWL_WRITER_AUTO, true, false, {false, false, false}},
		{PAWL_WRITER_AUTO, true, true, {true, true, true}},
		{PAWL_WRITER_HERE, false, false, {false, false, false}},
		{PAWL_WRITER_ELSEWHERE, false, false, {true, true, true}},
		{PAWL_WRITER_ELSEWHERE, true, false, {true, true, true}},
	};

	(void)unused;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint64_t global[1] = {1 << 20}, offsets[1] = {5}, shape[1] = {cases[i].is_empty ? 0 : 7};
		struct state_tensor row = {.info = {.dtype = PAWL_F32, .ndim = 1, .shape = global, .nbytes = 4 << 20},
		                           .contiguous = true};
		struct pawl_state state = {.tensors = &row, .n_tensors = 1};

		row.src.dtype = PAWL_F32;
		row.src.ndim = 1;
		row.src.shape = cases[i].is_shard ? shape : global;
		row.src.offsets = cases[i].is_shard ? offsets : NULL;
		row.src.writer = cases[i].writer;
		row.local_nbytes = cases[i].is_shard ? 4 * shape[0] : row.info.nbytes;
		for (uint32_t rank = 0; rank < 3; rank++) {
			struct bump memory = {0};
			struct pawl_state share = {0};

			assert_int_equal(rank_share_of(&state, rank, 3, &memory, &share, NULL), 0);
			assert_int_equal(share.tensors[0].elsewhere, cases[i].elsewhere[rank]);
			assert_false(share.tensors[0].common);
			if (!cases[i].elsewhere[rank])
				assert_int_equal(share.tensors[0].local_nbytes, row.local_nbytes);
			bump_clear(&memory);
		}
	}
}

static void
test_elements_smaller_than_a_byte_and_memory_of_devices_are_not_cut(void **unused)
{
	uint64_t shape[2] = {4096, 2048};

	(void)unused;
	for (int is_fill = 0; is_fill < 2; is_fill++) {
		struct state_tensor row = {.contiguous = true};
		struct pawl_state state = {.tensors = &row, .n_tensors = 1};
		unsigned writers = 0;

		row.info = (struct pawl_tensor_info){.dtype = is_fill ? PAWL_F32 : PAWL_F4, .ndim = 2, .shape = shape};
		row.info.nbytes = row.local_nbytes = is_fill ? 4096 * 2048 * 4 : 4096 * 2048 / 2;
		row.src.dtype = row.info.dtype;
		row.src.ndim = 2;
		row.src.shape = shape;
		row.src.fill = is_fill ? (pawl_fill_fn *)(uintptr_t)1 : NULL;
		for (uint32_t rank = 0; rank < 4; rank++) {
			struct bump memory = {0};
			struct pawl_state share = {0};

			assert_int_equal(rank_share_of(&state, rank, 4, &memory, &share, NULL), 0);
			writers += !share.tensors[0].elsewhere;
			assert_null(share.tensors[0].src.offsets);
			bump_clear(&memory);
		}
		assert_int_equal(writers, 1);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_ranks_share_whole_tensors_evenly_and_completely),
		cmocka_unit_test(test_shards_and_writers_are_taken_as_the_caller_says),
		cmocka_unit_test(test_elements_smaller_than_a_byte_and_memory_of_devices_are_not_cut),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
