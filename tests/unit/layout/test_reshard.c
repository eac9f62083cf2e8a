/* SPDX-License-Identifier: Apache-2.0 */
/* reshard: plans by tables, and random shapes, shardings, boxes and strides against a naive copy of
 * every element. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/mem.h"
#include "layout/reshard.h"

#define N_FILES 3
#define FILE_BYTES 65536
#define MAX_PIECES 64

/* A manifest with one tensor or more and the bytes of its files. */
struct world {
	struct manifest m;
	struct manifest_tensor tensors[4];
	struct manifest_piece pieces[4][MAX_PIECES];
	uint64_t offsets[4][MAX_PIECES][4], lengths[4][MAX_PIECES][4], shapes[4][4];
	struct manifest_file files[N_FILES];
	unsigned char bytes[N_FILES][FILE_BYTES];
	uint64_t seed;
};

static uint64_t
next_random(struct world *w)
{
	w->seed ^= w->seed << 13;
	w->seed ^= w->seed >> 7;
	w->seed ^= w->seed << 17;
	return w->seed;
}

static uint64_t
below(struct world *w, uint64_t n)
{
	return n ? (next_random(w) >> 11) % n : 0;
}

/* Byte k of element e of tensor t. */
static unsigned char
value(size_t t, uint64_t e, unsigned k)
{
	uint64_t x = (e + 1) * 0x9e3779b97f4a7c15u + t * 77 + k * 0x100000001b3u;
	return (unsigned char)(x ^ (x >> 29) ^ (x >> 47));
}

/* Index of an element given by coordinates in a box that starts at `from`. */
static uint64_t
flat(uint32_t ndim, const uint64_t *shape, const uint64_t *from, const uint64_t *at)
{
	uint64_t e = 0;
	for (uint32_t d = 0; d < ndim; d++)
		e = e * shape[d] + (from ? from[d] : 0) + at[d];
	return e;
}

/* Next coordinates in C order; 0 at the end. */
static int
step(uint32_t ndim, const uint64_t *shape, uint64_t *at)
{
	for (uint32_t d = ndim; d-- > 0;) {
		if (++at[d] < shape[d])
			return 1;
		at[d] = 0;
	}
	return 0;
}

static uint64_t
count(uint32_t ndim, const uint64_t *shape)
{
	uint64_t n = 1;
	for (uint32_t d = 0; d < ndim; d++)
		n *= shape[d];
	return n;
}

static void
world_init(struct world *w, uint64_t seed, uint64_t block)
{
	memset(w, 0, sizeof *w);
	w->seed = seed * 0x9e3779b97f4a7c15u + 1;
	w->m.tensors = w->tensors;
	w->m.files = w->files;
	w->m.n_files = N_FILES;
	for (int f = 0; f < N_FILES; f++) {
		w->files[f].name = "file";
		w->files[f].block_bytes = block;
		w->files[f].nbytes = 40; /* a header */
	}
}

/* Appends a piece of tensor t to a file, with the bytes it has there. */
static void
add_piece(struct world *w, size_t t, uint32_t file, const uint64_t *offsets, const uint64_t *lengths)
{
	struct manifest_tensor *tensor = &w->tensors[t];
	size_t k = tensor->n_pieces++;
	struct manifest_piece *p = &w->pieces[t][k];
	unsigned item = pawl_dtype_bits(tensor->dtype) / 8;
	uint64_t n = count(tensor->ndim, lengths), at[4] = {0};
	memcpy(w->offsets[t][k], offsets, sizeof w->offsets[t][k]);
	memcpy(w->lengths[t][k], lengths, sizeof w->lengths[t][k]);
	p->file = file;
	p->begin = w->files[file].nbytes;
	p->nbytes = n * item;
	p->offsets = w->offsets[t][k];
	p->lengths = w->lengths[t][k];
	assert_true(p->begin + p->nbytes <= FILE_BYTES);
	unsigned char *to = w->bytes[file] + p->begin;
	for (uint64_t i = 0; i < n; i++, step(tensor->ndim, lengths, at)) {
		uint64_t e = flat(tensor->ndim, tensor->shape, offsets, at);
		for (unsigned b = 0; b < item; b++)
			*to++ = value(t, e, b);
	}
	w->files[file].nbytes += p->nbytes + below(w, 3) * below(w, 90);
}

static void
add_tensor(struct world *w, int dtype, uint32_t ndim, const uint64_t *shape)
{
	size_t t = w->m.n_tensors++;
	memcpy(w->shapes[t], shape, ndim * sizeof *shape);
	w->tensors[t] = (struct manifest_tensor){
		.name = "t", .dtype = dtype, .ndim = ndim, .shape = w->shapes[t], .pieces = w->pieces[t]};
	w->tensors[t].nbytes = count(ndim, shape) * pawl_dtype_bits(dtype) / 8;
}

/* Splits a tensor at random places of every dimension. */
static void
shard(struct world *w, size_t t)
{
	struct manifest_tensor *tensor = &w->tensors[t];
	uint64_t cuts[4][4] = {{0}}, grid[4] = {1, 1, 1, 1}, at[4] = {0};
	for (uint32_t d = 0; d < tensor->ndim; d++) {
		grid[d] = 1 + below(w, 3);
		for (uint64_t i = 1; i < grid[d]; i++)
			cuts[d][i] = below(w, tensor->shape[d] + 1);
		if (grid[d] == 3 && cuts[d][1] > cuts[d][2]) {
			uint64_t swap = cuts[d][1];
			cuts[d][1] = cuts[d][2];
			cuts[d][2] = swap;
		}
		cuts[d][grid[d]] = tensor->shape[d];
	}
	do {
		uint64_t from[4] = {0}, n[4] = {0};
		for (uint32_t d = 0; d < tensor->ndim; d++) {
			from[d] = cuts[d][at[d]];
			n[d] = cuts[d][at[d] + 1] - from[d];
		}
		if (count(tensor->ndim, n) > 0)
			add_piece(w, t, (uint32_t)below(w, N_FILES), from, n);
	} while (step(tensor->ndim, grid, at));
}

/* What a caller asks for, its memory, and the memory as it should be. */
struct wish {
	struct reshard_binding b;
	uint64_t offsets[4], shape[4];
	int64_t strides[4];
	unsigned char got[40960], want[40960];
};

static void
make_wish(struct world *w, size_t t, struct wish *wish)
{
	const struct manifest_tensor *tensor = &w->tensors[t];
	unsigned item = pawl_dtype_bits(tensor->dtype) / 8;
	uint64_t at[4] = {0};
	int64_t step_of = 1, lowest = 0;
	memset(wish, 0, sizeof *wish);
	wish->b.tensor = t;
	wish->b.dst = (struct pawl_tensor){.size = sizeof wish->b.dst,
	                                   .dtype = tensor->dtype,
	                                   .ndim = tensor->ndim,
	                                   .shape = wish->shape,
	                                   .offsets = wish->offsets,
	                                   .global_shape = tensor->shape};
	int whole = below(w, 3) == 0, strided = below(w, 2) == 0;
	for (uint32_t d = tensor->ndim; d-- > 0;) {
		uint64_t n = tensor->shape[d];
		wish->offsets[d] = whole ? 0 : below(w, n);
		wish->shape[d] = whole ? n : below(w, n - wish->offsets[d] + 1);
		int64_t gap = strided ? (int64_t)below(w, 2) : 0;
		wish->strides[d] = step_of + gap * 2;
		step_of = wish->strides[d] * (int64_t)(wish->shape[d] ? wish->shape[d] : 1);
		if (strided && below(w, 4) == 0) {
			if (wish->shape[d])
				lowest += wish->strides[d] * (int64_t)(wish->shape[d] - 1);
			wish->strides[d] = -wish->strides[d];
		}
	}
	assert_true((uint64_t)step_of * item <= sizeof wish->got);
	uint64_t n = count(tensor->ndim, wish->shape), nbytes = n * item;
	wish->b.dst.strides = strided ? wish->strides : NULL;
	wish->b.contiguous = tensor_is_contiguous(&wish->b.dst);
	unsigned char *base = wish->want + lowest * (int64_t)item;
	wish->b.dst.data = wish->got + lowest * (int64_t)item;
	if (!strided && nbytes > 0 && below(w, 2)) {
		wish->b.begin = below(w, nbytes);
		wish->b.end = wish->b.begin + 1 + below(w, nbytes - wish->b.begin);
	}
	for (uint64_t i = 0; i < n; i++, step(tensor->ndim, wish->shape, at)) {
		uint64_t e = flat(tensor->ndim, tensor->shape, wish->offsets, at);
		int64_t place = strided ? 0 : (int64_t)i;
		for (uint32_t d = 0; strided && d < tensor->ndim; d++)
			place += (int64_t)at[d] * wish->strides[d];
		for (unsigned b = 0; b < item; b++) {
			uint64_t k = i * item + b;
			if (wish->b.end == 0)
				base[place * item + b] = value(t, e, b);
			else if (k >= wish->b.begin && k < wish->b.end)
				base[k - wish->b.begin] = value(t, e, b);
		}
	}
}

static void
execute(const struct world *w, const struct reshard_plan *plan, const struct reshard_binding *bindings)
{
	for (size_t u = 0; u < plan->n_units; u++) {
		const struct reshard_unit *unit = &plan->units[u];
		for (size_t p = 0; p < unit->n_parts; p++) {
			const struct reshard_part *part = &plan->parts[unit->first_part + p];
			const struct reshard_move *move = &plan->moves[part->move];
			const struct reshard_binding *b = &bindings[move->binding];
			struct reshard_cursor c;
			struct reshard_run run;
			assert_int_equal(move->file, unit->file);
			assert_true(part->begin >= unit->begin && part->end <= unit->end && part->begin < part->end);
			assert_true(p == 0 || part[-1].begin <= part->begin);
			reshard_seek(&c, move, part->begin, part->end);
			while (reshard_next(&c, &run)) {
				assert_true(run.src >= unit->begin && run.src + run.nbytes <= unit->end);
				const unsigned char *from = w->bytes[unit->file] + run.src;
				if (b->contiguous)
					memcpy((char *)b->dst.data + run.dst, from, run.nbytes);
				else
					tensor_scatter(&b->dst, run.dst, run.nbytes, from);
			}
		}
	}
}

/* Units are aligned, ascending, disjoint, not too large, and hold exactly the blocks that are
 * needed. */
static void
check_units(const struct world *w, const struct reshard_plan *plan, uint64_t unit_bytes)
{
	uint64_t total = 0;
	for (size_t u = 0; u < plan->n_units; u++) {
		const struct reshard_unit *unit = &plan->units[u], *before = unit - 1;
		const struct manifest_file *f = &w->files[unit->file];
		assert_true(unit->begin % f->block_bytes == 0 && unit->begin < unit->end);
		assert_true(unit->end % f->block_bytes == 0 || unit->end == f->nbytes);
		assert_true(unit->end <= f->nbytes);
		assert_true(unit->end - unit->begin <= unit_bytes || unit->end - unit->begin <= f->block_bytes);
		assert_true(u == 0 || before->file < unit->file ||
		            (before->file == unit->file && before->end <= unit->begin));
		total += unit->end - unit->begin;
		for (uint64_t block = unit->begin; block < unit->end; block += f->block_bytes) {
			uint64_t end = block + f->block_bytes < unit->end ? block + f->block_bytes : unit->end;
			int used = 0;
			for (size_t p = 0; p < unit->n_parts && !used; p++) {
				struct reshard_cursor c;
				struct reshard_run run;
				reshard_seek(&c, &plan->moves[plan->parts[unit->first_part + p].move], block, end);
				used = reshard_next(&c, &run);
			}
			assert_true(used);
		}
	}
	assert_int_equal(total, plan->nbytes);
}

static void
run_case(uint64_t seed)
{
	static const int dtypes[] = {PAWL_U8, PAWL_F16, PAWL_F32, PAWL_C128};
	static struct world w;
	static struct wish wishes[6];
	struct reshard_binding bindings[6];
	struct reshard_plan *plan = NULL;
	struct pawl_error err = {0};
	world_init(&w, seed, 16u << (seed % 4));
	size_t n_tensors = 1 + below(&w, 3), n = 1 + below(&w, 6);
	uint64_t unit_bytes = 16 + below(&w, 400);
	for (size_t t = 0; t < n_tensors; t++) {
		uint64_t shape[4];
		uint32_t ndim = (uint32_t)below(&w, 5);
		for (uint32_t d = 0; d < ndim; d++)
			shape[d] = below(&w, 20) == 0 ? 0 : 1 + below(&w, 5);
		add_tensor(&w, dtypes[below(&w, 4)], ndim, shape);
		shard(&w, t);
	}
	for (size_t i = 0; i < n; i++) {
		make_wish(&w, below(&w, n_tensors), &wishes[i]);
		bindings[i] = wishes[i].b;
	}
	assert_int_equal(reshard_plan(&w.m, bindings, n, unit_bytes, &plan, &err), 0);
	check_units(&w, plan, unit_bytes);
	execute(&w, plan, bindings);
	for (size_t i = 0; i < n; i++) {
		if (memcmp(wishes[i].got, wishes[i].want, sizeof wishes[i].got) != 0)
			fail_msg("seed %llu: destination %zu differs", (unsigned long long)seed, i);
	}
	reshard_free(plan);
}

static void
test_R160_random_shards_and_boxes_equal_a_naive_copy(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 4000; seed++)
		run_case(seed);
}

static void
test_whole_tensor_to_contiguous_memory_is_one_part_per_unit(void **state)
{
	(void)state;
	static struct world w;
	struct reshard_plan *plan = NULL;
	static char memory[4000];
	world_init(&w, 5, 256);
	add_tensor(&w, PAWL_F32, 2, (uint64_t[]){50, 20});
	add_piece(&w, 0, 1, (uint64_t[4]){0}, (uint64_t[4]){50, 20});
	struct reshard_binding b = {.tensor = 0, .contiguous = true};
	b.dst = (struct pawl_tensor){.dtype = PAWL_F32, .ndim = 2, .shape = w.shapes[0], .data = memory};
	assert_int_equal(reshard_plan(&w.m, &b, 1, 1024, &plan, NULL), 0);
	assert_int_equal(plan->n_moves, 1);
	assert_int_equal(plan->moves[0].n_outer, 0);
	assert_int_equal(plan->moves[0].run_bytes, 4000);
	assert_int_equal(plan->n_units, 4); /* 40..4040 in blocks of 256, up to 4 per unit */
	assert_int_equal(plan->n_parts, 4);
	assert_int_equal(plan->units[0].begin, 0);
	assert_int_equal(plan->parts[0].begin, 40);
	reshard_free(plan);
}

static void
test_far_apart_columns_do_not_read_the_blocks_between(void **state)
{
	(void)state;
	static struct world w;
	struct reshard_plan *plan = NULL;
	static char memory[16];
	world_init(&w, 5, 64);
	add_tensor(&w, PAWL_U8, 2, (uint64_t[]){16, 1024});
	add_piece(&w, 0, 0, (uint64_t[4]){0}, (uint64_t[4]){16, 1024});
	struct reshard_binding b = {.tensor = 0, .contiguous = true};
	b.dst = (struct pawl_tensor){.dtype = PAWL_U8,
	                             .ndim = 2,
	                             .shape = (uint64_t[]){16, 1},
	                             .offsets = (uint64_t[]){0, 500},
	                             .data = memory};
	assert_int_equal(reshard_plan(&w.m, &b, 1, 1 << 20, &plan, NULL), 0);
	assert_int_equal(plan->n_units, 16);
	assert_int_equal(plan->nbytes, 16 * 64);
	execute(&w, plan, &b);
	for (unsigned i = 0; i < 16; i++)
		assert_int_equal((unsigned char)memory[i], value(0, i * 1024 + 500, 0));
	reshard_free(plan);
}

static void
test_every_byte_of_every_file_is_planned_for_verification(void **state)
{
	(void)state;
	static struct world w;
	struct reshard_plan *plan = NULL;
	world_init(&w, 9, 64);
	w.files[0].nbytes = 1000;
	w.files[1].nbytes = 0;
	w.files[2].nbytes = 64;
	assert_int_equal(reshard_plan_all(&w.m, 256, &plan, NULL), 0);
	assert_int_equal(plan->n_units, 5);
	assert_int_equal(plan->nbytes, 1064);
	assert_int_equal(plan->units[3].end, 1000);
	assert_int_equal(plan->n_parts, 0);
	reshard_free(plan);
}

static void
test_nothing_wanted_is_an_empty_plan(void **state)
{
	(void)state;
	static struct world w;
	struct reshard_plan *plan = NULL;
	struct manifest none = {0};
	world_init(&w, 9, 64);
	add_tensor(&w, PAWL_F32, 2, (uint64_t[]){0, 7});
	struct reshard_binding b = {.tensor = 0, .contiguous = true};
	b.dst = (struct pawl_tensor){.dtype = PAWL_F32, .ndim = 2, .shape = w.shapes[0]};
	assert_int_equal(reshard_plan(&w.m, &b, 1, 1024, &plan, NULL), 0);
	assert_int_equal(plan->n_units, 0);
	reshard_free(plan);
	assert_int_equal(reshard_plan(&none, NULL, 0, 1024, &plan, NULL), 0);
	reshard_free(plan);
	reshard_free(NULL);
}

static int
plan_code(const struct world *w, const struct reshard_binding *b, struct pawl_error *err)
{
	struct reshard_plan *plan = (void *)1;
	int rc = reshard_plan(&w->m, b, 1, 1024, &plan, err);
	assert_true(rc < 0);
	assert_ptr_equal(plan, (void *)1);
	assert_int_equal(err->code, rc);
	return rc;
}

static void
test_wrong_boxes_and_pieces_are_refused(void **state)
{
	(void)state;
	static struct world w;
	struct pawl_error err = {0};
	static char memory[64];
	uint64_t offsets[2] = {0, 0}, shape[2] = {4, 4};
	struct reshard_binding b = {.tensor = 0, .contiguous = true};
	world_init(&w, 5, 64);
	add_tensor(&w, PAWL_U8, 2, (uint64_t[]){4, 4});
	add_piece(&w, 0, 0, (uint64_t[4]){0}, (uint64_t[4]){4, 4});
	b.dst = (struct pawl_tensor){.dtype = PAWL_U8, .ndim = 2, .shape = shape, .offsets = offsets, .data = memory};
	b.tensor = 1;
	assert_int_equal(plan_code(&w, &b, &err), PAWL_EUSAGE);
	b.tensor = 0;
	offsets[1] = 1;
	assert_int_equal(plan_code(&w, &b, &err), PAWL_EUSAGE);
	offsets[1] = UINT64_MAX;
	assert_int_equal(plan_code(&w, &b, &err), PAWL_EUSAGE);
	offsets[1] = 0;
	b.dst.ndim = 1;
	assert_int_equal(plan_code(&w, &b, &err), PAWL_EUSAGE);
	b.dst.ndim = 2;
	b.contiguous = false;
	b.end = 3;
	assert_int_equal(plan_code(&w, &b, &err), PAWL_EUSAGE);
	b.contiguous = true;
	b.end = 0;
	w.pieces[0][0].begin = w.files[0].nbytes - 3;
	assert_int_equal(plan_code(&w, &b, &err), PAWL_ECORRUPT);
	w.pieces[0][0].begin = UINT64_MAX - 3;
	assert_int_equal(plan_code(&w, &b, &err), PAWL_ECORRUPT);
	w.pieces[0][0].begin = 40;
	w.pieces[0][0].file = N_FILES;
	assert_int_equal(plan_code(&w, &b, &err), PAWL_ECORRUPT);
	w.pieces[0][0].file = 0;
	w.files[0].block_bytes = 0;
	assert_int_equal(plan_code(&w, &b, &err), PAWL_ECORRUPT);
}

static void
test_elements_below_a_byte_move_only_in_whole_bytes(void **state)
{
	(void)state;
	static struct world w;
	struct pawl_error err = {0};
	struct reshard_plan *plan = NULL;
	static char memory[64];
	uint64_t offsets[2] = {0, 2}, shape[2] = {4, 2};
	struct reshard_binding b = {.tensor = 0, .contiguous = true};
	world_init(&w, 5, 64);
	add_tensor(&w, PAWL_F4, 2, (uint64_t[]){4, 6});
	w.tensors[0].n_pieces = 1;
	w.pieces[0][0] = (struct manifest_piece){
		.file = 0, .begin = 0, .nbytes = 12, .offsets = w.offsets[0][0], .lengths = w.shapes[0]};
	for (unsigned char i = 0; i < 12; i++)
		w.bytes[0][i] = (unsigned char)(i + 1);
	b.dst = (struct pawl_tensor){.dtype = PAWL_F4, .ndim = 2, .shape = shape, .offsets = offsets, .data = memory};
	assert_int_equal(reshard_plan(&w.m, &b, 1, 1024, &plan, NULL), 0);
	execute(&w, plan, &b);
	assert_memory_equal(memory, "\x02\x05\x08\x0b", 4);
	reshard_free(plan);
	offsets[1] = 1;
	assert_int_equal(plan_code(&w, &b, &err), PAWL_EUNSUPPORTED);
}

/* A plan stays as small as the blocks that it touches, however many runs there are. */
static void
test_R145_a_billion_runs_are_described_not_listed(void **state)
{
	(void)state;
	struct reshard_plan *plan = NULL;
	const uint64_t rows = 1u << 30, offsets[2] = {0, 0}, shape[2] = {rows, 4}, want[2] = {rows, 1};
	struct manifest_piece piece = {
		.file = 0, .begin = 4096, .nbytes = rows * 4, .offsets = offsets, .lengths = shape};
	struct manifest_tensor t = {.name = "t",
	                            .dtype = PAWL_U8,
	                            .ndim = 2,
	                            .shape = shape,
	                            .nbytes = rows * 4,
	                            .n_pieces = 1,
	                            .pieces = &piece};
	struct manifest_file f = {.name = "f", .nbytes = 4096 + rows * 4, .block_bytes = 1 << 20};
	struct manifest m = {.tensors = &t, .n_tensors = 1, .files = &f, .n_files = 1};
	struct reshard_binding b = {.tensor = 0, .contiguous = true};
	struct reshard_cursor c;
	struct reshard_run run;
	b.dst = (struct pawl_tensor){.dtype = PAWL_U8, .ndim = 2, .shape = want};
	assert_int_equal(reshard_plan(&m, &b, 1, RESHARD_UNIT_BYTES, &plan, NULL), 0);
	assert_int_equal(plan->n_units, 513);
	assert_int_equal(plan->n_parts, 513);
	reshard_seek(&c, &plan->moves[0], 4096 + 4 * (rows - 1), UINT64_MAX);
	assert_true(reshard_next(&c, &run));
	assert_int_equal(run.dst, rows - 1);
	assert_false(reshard_next(&c, &run));
	reshard_free(plan);
}

static void
test_20000_small_tensors_are_planned_in_linear_size(void **state)
{
	(void)state;
	enum { N = 20000, BYTES = 1024 };
	struct manifest_tensor *tensors = mem_zalloc(N, sizeof *tensors);
	struct manifest_piece *pieces = mem_zalloc(N, sizeof *pieces);
	struct reshard_binding *bindings = mem_zalloc(N, sizeof *bindings);
	char *memory = mem_alloc(BYTES);
	const uint64_t shape = BYTES, zero = 0;
	struct manifest_file f = {.name = "f", .nbytes = 4096 + N * BYTES, .block_bytes = 1 << 20};
	struct manifest m = {.tensors = tensors, .n_tensors = N, .files = &f, .n_files = 1};
	struct reshard_plan *plan = NULL;
	for (size_t i = 0; i < N; i++) {
		size_t place = (i * 7919) % N; /* not in file order */
		pieces[i] = (struct manifest_piece){
			.begin = 4096 + place * BYTES, .nbytes = BYTES, .offsets = &zero, .lengths = &shape};
		tensors[i] = (struct manifest_tensor){.name = "t",
		                                      .dtype = PAWL_U8,
		                                      .ndim = 1,
		                                      .shape = &shape,
		                                      .nbytes = BYTES,
		                                      .n_pieces = 1,
		                                      .pieces = &pieces[i]};
		bindings[i].tensor = i;
		bindings[i].contiguous = true;
		bindings[i].dst = (struct pawl_tensor){.dtype = PAWL_U8, .ndim = 1, .shape = &shape, .data = memory};
	}
	assert_int_equal(reshard_plan(&m, bindings, N, RESHARD_UNIT_BYTES, &plan, NULL), 0);
	assert_int_equal(plan->n_units, 3);
	assert_in_range(plan->n_parts, N, N + 2);
	reshard_free(plan);
	mem_free(tensors);
	mem_free(pieces);
	mem_free(bindings);
	mem_free(memory);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_R160_random_shards_and_boxes_equal_a_naive_copy),
		cmocka_unit_test(test_whole_tensor_to_contiguous_memory_is_one_part_per_unit),
		cmocka_unit_test(test_far_apart_columns_do_not_read_the_blocks_between),
		cmocka_unit_test(test_every_byte_of_every_file_is_planned_for_verification),
		cmocka_unit_test(test_nothing_wanted_is_an_empty_plan),
		cmocka_unit_test(test_wrong_boxes_and_pieces_are_refused),
		cmocka_unit_test(test_elements_below_a_byte_move_only_in_whole_bytes),
		cmocka_unit_test(test_R145_a_billion_runs_are_described_not_listed),
		cmocka_unit_test(test_20000_small_tensors_are_planned_in_linear_size),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
