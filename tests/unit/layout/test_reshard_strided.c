/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces that are not in C order: random permutations with gaps, random boxes and ranges of bytes.
 * Each is compared with a naive copy of every element. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/mem.h"
#include "layout/reshard.h"
#include "layout/reshard_strided.h"

#define FILE_BYTES 262144
#define BEGIN 64
#define N_CASES 400

struct world {
	struct manifest m;
	struct manifest_tensor tensor;
	struct manifest_piece pieces[2];
	struct manifest_file file;
	uint64_t shape[4], strides[4], offsets[2][4], lengths[2][4];
	unsigned char bytes[FILE_BYTES];
	uint64_t seed;
};

static uint64_t
below(struct world *w, uint64_t n)
{
	w->seed ^= w->seed << 13;
	w->seed ^= w->seed >> 7;
	w->seed ^= w->seed << 17;
	return (w->seed >> 11) % n;
}

/* A tensor in one piece or two, cut in its first dimension; each is a permutation of its
 * dimensions, with gaps. */
static void
make(struct world *w)
{
	static const int dtypes[] = {PAWL_U8, PAWL_I16, PAWL_F32, PAWL_F64, PAWL_C128};
	const int dtype = dtypes[below(w, 5)];
	const uint64_t item = pawl_dtype_bits(dtype) / 8;
	const uint32_t ndim = 1 + (uint32_t)below(w, 4);
	uint32_t order[4] = {0, 1, 2, 3};
	uint64_t reach = 1, nbytes = item;

	for (uint32_t d = 0; d < ndim; d++) {
		w->shape[d] = 1 + below(w, 6);
		nbytes *= w->shape[d];
	}
	for (uint32_t d = ndim; d-- > 1;) {
		uint32_t k = (uint32_t)below(w, d + 1), swap = order[d];
		order[d] = order[k];
		order[k] = swap;
	}
	for (uint32_t i = 0; i < ndim; i++) {
		uint32_t d = order[i];
		w->strides[d] = reach + (below(w, 3) == 0 ? below(w, 4) : 0);
		reach += (w->shape[d] - 1) * w->strides[d];
	}
	const uint64_t cut = below(w, 2) ? below(w, w->shape[0]) : 0;
	const size_t n = cut ? 2 : 1;
	for (size_t i = 0; i < n; i++) {
		memset(w->offsets[i], 0, sizeof(w->offsets[i]));
		memcpy(w->lengths[i], w->shape, sizeof(w->shape));
		w->pieces[i] = (struct manifest_piece){.begin = BEGIN + i * reach * item,
		                                       .nbytes = reach * item,
		                                       .offsets = w->offsets[i],
		                                       .lengths = w->lengths[i],
		                                       .strides = w->strides};
	}
	if (cut) {
		w->lengths[0][0] = cut;
		w->offsets[1][0] = cut;
		w->lengths[1][0] = w->shape[0] - cut;
	}
	w->tensor = (struct manifest_tensor){.name = "t",
	                                     .dtype = dtype,
	                                     .ndim = ndim,
	                                     .shape = w->shape,
	                                     .nbytes = nbytes,
	                                     .n_pieces = n,
	                                     .pieces = w->pieces};
	w->file = (struct manifest_file){
		.name = "f", .nbytes = FILE_BYTES, .block_bytes = 512, .n_blocks = FILE_BYTES / 512};
	w->m = (struct manifest){.n_tensors = 1, .n_files = 1, .tensors = &w->tensor, .files = &w->file};
}

/* Where an element of the tensor is in the file. */
static uint64_t
place_of(const struct world *w, const uint64_t *at)
{
	const struct manifest_piece *p = &w->pieces[w->tensor.n_pieces == 2 && at[0] >= w->offsets[1][0]];
	uint64_t e = 0;

	for (uint32_t d = 0; d < w->tensor.ndim; d++)
		e += (at[d] - p->offsets[d]) * w->strides[d];
	return p->begin + e * (pawl_dtype_bits(w->tensor.dtype) / 8);
}

/* Byte `at` of the contents of a box. */
static unsigned char
expected(const struct world *w, const struct pawl_tensor *box, uint64_t at)
{
	const uint64_t item = pawl_dtype_bits(w->tensor.dtype) / 8;
	uint64_t e = at / item, index[4];

	for (uint32_t d = box->ndim; d-- > 0;) {
		index[d] = box->offsets[d] + e % box->shape[d];
		e /= box->shape[d];
	}
	return w->bytes[place_of(w, index) + at % item];
}

/* Carries a plan out and checks its rules: runs ascend in the file, parts are in their units, no
 * byte is written twice. */
static void
carry_out(const struct world *w, const struct reshard_plan *plan, unsigned char *out, unsigned char *seen)
{
	for (size_t u = 0; u < plan->n_units; u++) {
		const struct reshard_unit *unit = &plan->units[u];
		for (size_t i = 0; i < unit->n_parts; i++) {
			const struct reshard_part *part = &plan->parts[unit->first_part + i];
			struct reshard_cursor c;
			struct reshard_run run;
			uint64_t last = 0;
			assert_true(part->begin >= unit->begin && part->end <= unit->end);
			reshard_seek(&c, &plan->moves[part->move], part->begin, part->end);
			while (reshard_next(&c, &run)) {
				assert_true(run.src >= last && run.src + run.nbytes <= part->end);
				last = run.src + run.nbytes;
				memcpy(out + run.dst, w->bytes + run.src, run.nbytes);
				for (uint64_t k = 0; k < run.nbytes; k++)
					assert_int_equal(seen[run.dst + k]++, 0);
			}
		}
	}
}

static void
check_box(struct world *w)
{
	static unsigned char out[65536], seen[65536];
	uint64_t offsets[4], shape[4], nbytes = pawl_dtype_bits(w->tensor.dtype) / 8;
	struct reshard_plan *plan;
	struct pawl_error err;

	for (uint32_t d = 0; d < w->tensor.ndim; d++) {
		offsets[d] = below(w, w->shape[d]);
		shape[d] = 1 + below(w, w->shape[d] - offsets[d]);
		nbytes *= shape[d];
	}
	struct pawl_tensor box = {.size = sizeof(box),
	                          .dtype = w->tensor.dtype,
	                          .ndim = w->tensor.ndim,
	                          .shape = shape,
	                          .global_shape = w->shape,
	                          .offsets = offsets,
	                          .data = out};
	struct reshard_binding b = {.tensor = 0, .dst = box, .contiguous = true};
	if (below(w, 2)) { /* any bytes of it, also parts of elements */
		b.begin = below(w, nbytes);
		b.end = b.begin + 1 + below(w, nbytes - b.begin);
	}
	const uint64_t begin = b.begin, end = b.end ? b.end : nbytes;
	memset(seen, 0, sizeof(seen));
	assert_int_equal(reshard_plan(&w->m, &b, 1, (uint64_t)512 << below(w, 4), &plan, &err), 0);
	carry_out(w, plan, out, seen);
	for (uint64_t at = begin; at < end; at++) {
		assert_int_equal(seen[at - begin], 1);
		assert_int_equal(out[at - begin], expected(w, &box, at));
	}
	reshard_free(plan);
}

static void
test_random_strides_and_boxes_equal_a_naive_copy(void **state)
{
	static struct world w = {.seed = 88172645463325252u};

	(void)state;
	for (size_t i = 0; i < sizeof(w.bytes); i++)
		w.bytes[i] = (unsigned char)below(&w, 256);
	for (unsigned i = 0; i < N_CASES; i++) {
		make(&w);
		for (unsigned k = 0; k < 5; k++)
			check_box(&w);
	}
}

static void
test_a_piece_that_reaches_beyond_its_file_is_refused(void **state)
{
	static struct world w = {.seed = 7};
	struct reshard_plan *plan = NULL;
	struct pawl_error err;

	(void)state;
	make(&w);
	struct reshard_binding b = {.contiguous = true,
	                            .dst = {.dtype = w.tensor.dtype, .ndim = w.tensor.ndim, .shape = w.shape}};
	w.pieces[0].begin = FILE_BYTES - w.pieces[0].nbytes + 1;
	assert_int_equal(reshard_plan(&w.m, &b, 1, 512, &plan, &err), PAWL_ECORRUPT);
}

/* Elements [1, 23) of 2 x 3 x 4: the end of a row, of a plane, a plane but one row, and the
 * rest. */
static void
test_a_range_of_elements_is_a_row_of_boxes(void **state)
{
	static const uint64_t shape[] = {2, 3, 4};
	static const uint64_t ends[] = {4, 12, 20, 23};
	uint64_t at[3], n[3], begin = 1;

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		uint64_t first = begin;
		reshard_next_box(3, shape, &begin, 23, at, n);
		assert_int_equal(begin, ends[i]);
		assert_int_equal((at[0] * 3 + at[1]) * 4 + at[2], first);
		assert_int_equal(n[0] * n[1] * n[2], begin - first);
	}
	begin = 0;
	reshard_next_box(3, shape, &begin, 24, at, n);
	assert_true(begin == 24 && n[0] == 2 && n[1] == 3 && n[2] == 4);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random_strides_and_boxes_equal_a_naive_copy),
		cmocka_unit_test(test_a_piece_that_reaches_beyond_its_file_is_refused),
		cmocka_unit_test(test_a_range_of_elements_is_a_row_of_boxes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
