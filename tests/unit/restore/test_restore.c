/* SPDX-License-Identifier: Apache-2.0 */
/* restore: complete, partial, resharded, strided; matching; damage, falling back; memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "helpers/make_checkpoint.h"
#include "restore/restore.h"

#define ROWS 60
#define COLUMNS 70
#define LONG_BYTES 9000

/* The tensors of a training run, and a state over them. */
struct model {
	float weight[ROWS][COLUMNS];
	uint16_t half[33];
	double pairs[5][4][2]; /* complex128 */
	unsigned char mask[2][3][4][5];
	int64_t step;
	float tied[6];
	struct pawl_state *state;
};

static void
fill(struct model *m, unsigned seed)
{
	unsigned char *bytes = (unsigned char *)m;
	for (size_t i = 0; i < offsetof(struct model, state); i++)
		bytes[i] = (unsigned char)((i * 2654435761u + seed * 97u) >> 7);
}

static void
set(struct model *m, const char *path, int dtype, uint32_t ndim, const uint64_t *shape, void *data)
{
	struct pawl_error err = {0};
	struct pawl_tensor t = PAWL_TENSOR_INIT;
	t.dtype = dtype;
	t.ndim = ndim;
	t.shape = shape;
	t.data = data;
	made_check(pawl_state_set_tensor(m->state, path, &t, &err), &err);
}

static void
build(struct model *m)
{
	struct pawl_error err = {0};
	char text[LONG_BYTES + 1];
	memset(text, 'x', LONG_BYTES);
	memcpy(text, "caf\xc3\xa9", 5);
	text[LONG_BYTES] = '\0';
	made_check(pawl_state_new(&m->state, &err), &err);
	set(m, "model/weight", PAWL_F32, 2, (uint64_t[]){ROWS, COLUMNS}, m->weight);
	set(m, "model/half", PAWL_F16, 1, (uint64_t[]){33}, m->half);
	set(m, "model/embed", PAWL_F32, 1, (uint64_t[]){6}, m->tied);
	set(m, "model/head", PAWL_F32, 1, (uint64_t[]){6}, m->tied);
	set(m, "optimizer/pairs", PAWL_C128, 2, (uint64_t[]){5, 4}, m->pairs);
	set(m, "optimizer/mask", PAWL_BOOL, 4, (uint64_t[]){2, 3, 4, 5}, m->mask);
	set(m, "optimizer/step", PAWL_I64, 0, NULL, &m->step);
	set(m, "optimizer/empty", PAWL_F32, 2, (uint64_t[]){0, 3}, NULL);
	made_check(pawl_state_set_int(m->state, "epoch", 3, &err), &err);
	made_check(pawl_state_set_str(m->state, "notes", text, &err), &err);
	made_check(pawl_state_set_bytes(m->state, "random", text, LONG_BYTES, &err), &err);
}

static void
model_new(struct model *m, unsigned seed)
{
	fill(m, seed);
	build(m);
}

static void
check_model(const struct model *m, unsigned seed)
{
	static struct model want;
	fill(&want, seed);
	assert_memory_equal(m->weight, want.weight, sizeof m->weight);
	assert_memory_equal(m->half, want.half, sizeof m->half);
	assert_memory_equal(m->tied, want.tied, sizeof m->tied);
	assert_memory_equal(m->pairs, want.pairs, sizeof m->pairs);
	assert_memory_equal(m->mask, want.mask, sizeof m->mask);
	assert_memory_equal(&m->step, &want.step, sizeof m->step);
}

struct fixture {
	struct made_run made;
	struct model saved, live;
};

static int
setup(void **state)
{
	struct fixture *f = calloc(1, sizeof *f);
	model_new(&f->saved, 1);
	model_new(&f->live, 9);
	made_open(&f->made, NULL);
	*state = f;
	return 0;
}

static int
teardown(void **state)
{
	struct fixture *f = *state;
	pawl_state_free(f->saved.state);
	pawl_state_free(f->live.state);
	made_close(&f->made);
	free(f);
	return 0;
}

/* Checkpoint `id` with the contents of `seed`. */
static void
save(struct fixture *f, uint64_t id, unsigned seed, const struct made_opts *given)
{
	struct made_opts o = given ? *given : (struct made_opts){0};
	o.id = id;
	o.step = (int64_t)id * 100;
	fill(&f->saved, seed);
	make_checkpoint(f->made.run, &o, f->saved.state);
}

static struct pawl_restore *
restore(struct fixture *f, const struct pawl_restore_opts *opts)
{
	struct pawl_restore *r = NULL;
	struct pawl_error err = {0};
	made_check(pawl_restore(f->made.run, opts, f->live.state, &r, &err), &err);
	return r;
}

static int
restore_code(struct fixture *f, const struct pawl_restore_opts *opts, struct pawl_error *err)
{
	struct pawl_restore *r = NULL;
	int rc = pawl_restore(f->made.run, opts, f->live.state, &r, err);
	if (rc == 0)
		pawl_restore_close(r);
	else
		assert_null(r);
	return rc;
}

static void
test_P1_whole_state_comes_back_exactly_from_cache_and_from_disk(void **state)
{
	struct fixture *f = *state;
	for (int evict = 0; evict < 2; evict++) {
		save(f, (uint64_t)evict + 1, 5 + (unsigned)evict, NULL);
		if (evict)
			made_evict(&f->made, 2, "rank00000-00000.safetensors");
		struct pawl_restore *r = restore(f, NULL);
		check_model(&f->live, 5 + (unsigned)evict);
		assert_int_equal(pawl_restore_info(r)->id, evict + 1);
		assert_int_equal(pawl_restore_info(r)->step, 100 * (evict + 1));
		assert_int_equal(pawl_restore_fallback_count(r), 0);
		int64_t epoch = 0;
		assert_int_equal(pawl_state_get_int(pawl_restore_state(r), "epoch", &epoch, NULL), 0);
		assert_int_equal(epoch, 3);
		pawl_restore_close(r);
	}
}

static void
test_long_texts_are_read_with_the_state(void **state)
{
	struct fixture *f = *state;
	const char *globs[] = {"random"}, *text = NULL;
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	save(f, 1, 5, NULL);
	struct pawl_restore *r = restore(f, NULL);
	const struct pawl_scalar *bytes = pawl_node_scalar(pawl_state_at(pawl_restore_state(r), "random"));
	assert_int_equal(pawl_state_get_str(pawl_restore_state(r), "notes", &text, NULL), 0);
	assert_int_equal(strlen(text), LONG_BYTES);
	assert_memory_equal(text, "caf\xc3\xa9xxx", 8);
	assert_int_equal(bytes->len, LONG_BYTES);
	assert_memory_equal(bytes->ptr, text, LONG_BYTES);
	pawl_restore_close(r);
	/* Only what is included. */
	opts.include = globs;
	opts.n_include = 1;
	r = restore(f, &opts);
	assert_non_null(pawl_node_scalar(pawl_state_at(pawl_restore_state(r), "random"))->ptr);
	assert_null(pawl_node_scalar(pawl_state_at(pawl_restore_state(r), "notes"))->ptr);
	pawl_restore_close(r);
}

static void
test_R160_shards_of_several_ranks_are_put_together(void **state)
{
	struct fixture *f = *state;
	static const struct made_opts layouts[] = {
		{.ranks = 3, .packs = 2, .grid = {4}},
		{.ranks = 2, .packs = 1, .grid = {1, 4, 2}, .block_bytes = 512},
		{.ranks = 4, .packs = 2, .grid = {3, 3}, .block_bytes = 65536},
		{.ranks = 5, .packs = 1, .grid = {2, 3, 2, 5}, .block_bytes = 1024},
	};
	for (unsigned i = 0; i < sizeof layouts / sizeof *layouts; i++) {
		save(f, i + 1, 20 + i, &layouts[i]);
		pawl_restore_close(restore(f, NULL));
		check_model(&f->live, 20 + i);
	}
}

/* Another number of ranks, another way of cutting, memory with strides. */
static void
test_R160_every_rank_of_a_new_size_gets_its_box(void **state)
{
	struct fixture *f = *state;
	static float parts[7][COLUMNS][ROWS]; /* transposed, each as large as the complete one */
	struct pawl_error err = {0};
	struct pawl_restore *r = NULL;
	save(f, 1, 30, &(struct made_opts){.ranks = 3, .packs = 1, .grid = {2, 3}, .block_bytes = 512});
	for (uint64_t world = 1; world <= 7; world += 2) {
		memset(parts, 0, sizeof parts);
		made_check(pawl_restore_open(f->made.run, NULL, &r, &err), &err);
		const struct pawl_state *saved = pawl_restore_state(r);
		size_t index = pawl_node_tensor(pawl_state_at(saved, "model/weight"));
		for (uint64_t rank = 0; rank < world; rank++) {
			uint64_t from = COLUMNS * rank / world, to = COLUMNS * (rank + 1) / world;
			struct pawl_tensor t = PAWL_TENSOR_INIT;
			t.dtype = PAWL_F32;
			t.ndim = 2;
			t.shape = (uint64_t[]){ROWS, to - from};
			t.global_shape = (uint64_t[]){ROWS, COLUMNS};
			t.offsets = (uint64_t[]){0, from};
			t.strides = (int64_t[]){1, ROWS};
			t.data = parts[rank];
			made_check(pawl_restore_bind(r, index, &t, &err), &err);
		}
		made_check(pawl_restore_read(r, &err), &err);
		pawl_restore_close(r);
		for (uint64_t rank = 0; rank < world; rank++) {
			uint64_t from = COLUMNS * rank / world, to = COLUMNS * (rank + 1) / world;
			for (uint64_t c = from; c < to; c++) {
				for (uint64_t row = 0; row < ROWS; row++)
					assert_memory_equal(&parts[rank][c - from][row], &f->saved.weight[row][c],
					                    sizeof(float));
			}
		}
	}
}

static void
test_R150_only_what_is_included_is_read_and_written(void **state)
{
	struct fixture *f = *state;
	const char *globs[] = {"model/ha*", "optimizer"};
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	static struct model before;
	opts.include = globs;
	opts.n_include = 2;
	save(f, 1, 5, NULL);
	memcpy(&before, &f->live, offsetof(struct model, state));
	pawl_restore_close(restore(f, &opts));
	assert_memory_equal(f->live.weight, before.weight, sizeof before.weight);
	assert_memory_equal(f->live.tied, before.tied, sizeof before.tied);
	assert_memory_equal(f->live.half, f->saved.half, sizeof f->live.half);
	assert_memory_equal(f->live.mask, f->saved.mask, sizeof f->live.mask);
	/* A pattern that nothing matches is a mistake. */
	struct pawl_error err = {0};
	globs[1] = "optimiser/*";
	assert_int_equal(restore_code(f, &opts, &err), PAWL_EMISMATCH);
	assert_non_null(strstr(err.message, "optimiser/*"));
}

/* ---- matching ---- */

static void
test_all_differences_are_named_in_one_error_and_nothing_is_read(void **state)
{
	struct fixture *f = *state;
	struct pawl_error err = {0};
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	static struct model before;
	save(f, 1, 5, NULL);
	pawl_state_free(f->live.state);
	f->live.state = NULL;
	assert_int_equal(pawl_state_new(&f->live.state, NULL), 0);
	set(&f->live, "model/weight", PAWL_F32, 2, (uint64_t[]){COLUMNS, ROWS}, f->live.weight);
	set(&f->live, "model/half", PAWL_BF16, 1, (uint64_t[]){33}, f->live.half);
	set(&f->live, "model/new", PAWL_F32, 1, (uint64_t[]){6}, f->live.tied);
	set(&f->live, "epoch", PAWL_I64, 0, NULL, &f->live.step);
	set(&f->live, "optimizer/mask", PAWL_BOOL, 4, (uint64_t[]){2, 3, 4, 5}, f->live.mask);
	assert_int_equal(pawl_state_set_int(f->live.state, "optimizer/step", 1, NULL), 0);
	memcpy(&before, &f->live, offsetof(struct model, state));
	assert_int_equal(restore_code(f, NULL, &err), PAWL_EMISMATCH);
	assert_non_null(strstr(err.message, "checkpoint_000001"));
	assert_non_null(strstr(err.message, "shape: model/weight: saved [60, 70], live [70, 60]"));
	assert_non_null(strstr(err.message, "dtype: model/half: saved F16, live BF16"));
	assert_non_null(strstr(err.message, "missing: model/new"));
	assert_non_null(strstr(err.message, "type: epoch: saved a value, live a tensor"));
	assert_non_null(strstr(err.message, "type: optimizer/step: saved a tensor, live a value"));
	assert_non_null(strstr(err.message, "unexpected: model/embed"));
	assert_non_null(strstr(err.message, "unexpected: notes"));
	assert_memory_equal(&before, &f->live, offsetof(struct model, state));
	/* Not strict: the same list as a report, and what fits is read. */
	opts.non_strict = 1;
	struct pawl_restore *r = restore(f, &opts);
	assert_int_equal(pawl_restore_report_count(r), 11);
	assert_string_equal(pawl_restore_report_get(r, 0), "shape: model/weight: saved [60, 70], live [70, 60]");
	assert_null(pawl_restore_report_get(r, 11));
	assert_memory_equal(f->live.mask, f->saved.mask, sizeof f->live.mask);
	assert_memory_equal(f->live.weight, before.weight, sizeof before.weight);
	pawl_restore_close(r);
}

static void
test_a_long_list_of_differences_is_cut_with_a_count(void **state)
{
	struct fixture *f = *state;
	struct pawl_error err = {0};
	char path[64];
	save(f, 1, 5, NULL);
	for (int i = 0; i < 200; i++) {
		snprintf(path, sizeof path, i < 10 ? "w/%d" : "a_rather_long_name_of_a_layer/weight_%d", i);
		assert_int_equal(pawl_state_set_int(f->live.state, path, i, NULL), 0);
	}
	assert_int_equal(restore_code(f, NULL, &err), PAWL_EMISMATCH);
	assert_non_null(strstr(err.message, "200 differences: missing: w/0; "));
	assert_non_null(strstr(err.message, "missing: w/9; ... and 190 more"));
	assert_true(strlen(err.message) < sizeof err.message - 1);
}

static void
test_keys_of_other_types_but_equal_text_are_told_apart(void **state)
{
	struct fixture *f = *state;
	float a[2] = {1, 2}, b[2] = {3, 4}, x[2] = {0}, y[2] = {0};
	const struct pawl_scalar number = {.type = PAWL_INT, .i = 0}, text = {.type = PAWL_STR, .ptr = "0", .len = 1};
	struct pawl_tensor t = PAWL_TENSOR_INIT;
	struct pawl_state *saved = NULL, *live = NULL;
	struct pawl_error err = {0};
	t.dtype = PAWL_F32;
	t.ndim = 1;
	t.shape = (uint64_t[]){2};
	for (int i = 0; i < 2; i++) {
		struct pawl_state **s = i ? &live : &saved;
		made_check(pawl_state_new(s, &err), &err);
		made_check(pawl_state_begin(*s, PAWL_DICT, &err), &err);
		for (int k = 0; k < 2; k++) { /* in the other order */
			bool is_number = k == i;
			made_check(pawl_state_key(*s, is_number ? &number : &text, &err), &err);
			t.data = i ? (is_number ? x : y) : (is_number ? a : b);
			made_check(pawl_state_add_tensor(*s, &t, &err), &err);
		}
		made_check(pawl_state_end(*s, &err), &err);
	}
	make_checkpoint(f->made.run, &(struct made_opts){.id = 1}, saved);
	made_check(pawl_restore(f->made.run, NULL, live, NULL, &err), &err);
	assert_memory_equal(x, a, sizeof a);
	assert_memory_equal(y, b, sizeof b);
	pawl_state_free(saved);
	pawl_state_free(live);
}

static void
test_tensors_tied_only_in_the_live_state_are_a_difference(void **state)
{
	struct fixture *f = *state;
	struct pawl_error err = {0};
	struct model apart = {0};
	float other[6] = {0};
	assert_int_equal(pawl_state_new(&apart.state, NULL), 0);
	set(&apart, "model/embed", PAWL_F32, 1, (uint64_t[]){6}, apart.tied);
	set(&apart, "model/head", PAWL_F32, 1, (uint64_t[]){6}, other);
	make_checkpoint(f->made.run, &(struct made_opts){.id = 1}, apart.state);
	pawl_state_free(f->live.state);
	f->live.state = NULL;
	assert_int_equal(pawl_state_new(&f->live.state, NULL), 0);
	set(&f->live, "model/embed", PAWL_F32, 1, (uint64_t[]){6}, f->live.tied);
	set(&f->live, "model/head", PAWL_F32, 1, (uint64_t[]){6}, f->live.tied);
	assert_int_equal(restore_code(f, NULL, &err), PAWL_EMISMATCH);
	assert_non_null(strstr(err.message, "tied: model/head"));
	pawl_state_free(apart.state);
}

static void
test_wrong_destinations_are_refused(void **state)
{
	struct fixture *f = *state;
	struct pawl_error err = {0};
	struct pawl_restore *r = NULL;
	struct pawl_tensor t = PAWL_TENSOR_INIT;
	uint64_t shape[2] = {ROWS, COLUMNS}, offsets[2] = {0, 1};
	save(f, 1, 5, NULL);
	made_check(pawl_restore_open(f->made.run, NULL, &r, &err), &err);
	size_t index = pawl_node_tensor(pawl_state_at(pawl_restore_state(r), "model/weight"));
	t.dtype = PAWL_F32;
	t.ndim = 2;
	t.shape = shape;
	t.data = f->live.weight;
	assert_int_equal(pawl_restore_bind(r, 1000, &t, &err), PAWL_EUSAGE);
	t.dtype = PAWL_I32;
	assert_int_equal(pawl_restore_bind(r, index, &t, &err), PAWL_EMISMATCH);
	t.dtype = PAWL_F32;
	shape[0]--;
	assert_int_equal(pawl_restore_bind(r, index, &t, &err), PAWL_EMISMATCH);
	shape[0]++;
	t.offsets = offsets;
	t.global_shape = shape;
	assert_int_equal(pawl_restore_bind(r, index, &t, &err), PAWL_EMISMATCH);
	t.offsets = t.global_shape = NULL;
	t.strides = (int64_t[]){0, 1};
	assert_int_equal(pawl_restore_bind(r, index, &t, &err), PAWL_EUSAGE);
	t.strides = (int64_t[]){1, 1}; /* neighbours share their memory, though no stride is 0 */
	assert_int_equal(pawl_restore_bind(r, index, &t, &err), PAWL_EUSAGE);
	t.strides = (int64_t[]){-(COLUMNS - 1), 1};
	assert_int_equal(pawl_restore_bind(r, index, &t, &err), PAWL_EUSAGE);
	t.strides = (int64_t[]){1, -(ROWS - 1)};
	assert_int_equal(pawl_restore_bind(r, index, &t, &err), PAWL_EUSAGE);
	t.strides = (int64_t[]){INT64_MAX, INT64_MIN};
	assert_int_equal(pawl_restore_bind(r, index, &t, &err), PAWL_EUSAGE);
	t.strides = (int64_t[]){1, ROWS};
	assert_int_equal(pawl_restore_bind(r, index, &t, &err), 0);
	t.strides = (int64_t[]){-COLUMNS, 1};
	assert_int_equal(pawl_restore_bind(r, index, &t, &err), 0);
	t.strides = NULL;
	t.data = NULL;
	assert_int_equal(pawl_restore_bind(r, index, &t, &err), PAWL_EUSAGE);
	t.data = f->live.weight;
	t.size = 0;
	assert_int_equal(pawl_restore_bind(r, index, &t, &err), PAWL_EUSAGE);
	pawl_restore_close(r);
	pawl_restore_close(NULL);
}

/* ---- damage ---- */

static int
is_named(const struct pawl_error *err, uint64_t id, const char *file)
{
	char name[64];
	snprintf(name, sizeof name, "checkpoint_%06llu", (unsigned long long)id);
	return strstr(err->message, name) && strstr(err->message, file) && strstr(err->message, "bytes ");
}

static void
test_R136_single_changed_bytes_are_found_and_named(void **state)
{
	struct fixture *f = *state;
	static const char *const files[] = {"rank00000-00000.safetensors", "rank00001-00000.safetensors"};
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	opts.no_fallback = 1;
	/* One block over all, so that the header counts too. */
	save(f, 1, 5, &(struct made_opts){.ranks = 2, .grid = {2}, .block_bytes = 65536});
	for (int i = 0; i < 2; i++) {
		uint64_t size = made_size(&f->made, 1, files[i]);
		for (uint64_t at = 0; at < size; at = at < size - 1 && at + 211 >= size ? size - 1 : at + 211) {
			struct pawl_error err = {0};
			made_flip(&f->made, 1, files[i], at, (unsigned char)(1u << (at % 8)));
			assert_int_equal(restore_code(f, &opts, &err), PAWL_ECORRUPT);
			assert_true(is_named(&err, 1, files[i]));
			assert_non_null(strstr(err.message, "(tensor "));
			made_flip(&f->made, 1, files[i], at, (unsigned char)(1u << (at % 8)));
		}
	}
	pawl_restore_close(restore(f, &opts));
	check_model(&f->live, 5);
}

static void
test_R136_small_blocks_name_the_range_and_the_tensor(void **state)
{
	struct fixture *f = *state;
	struct pawl_error err = {0};
	struct pawl_restore *r = NULL;
	save(f, 1, 5, &(struct made_opts){.block_bytes = 512});
	made_check(pawl_restore_open(f->made.run, NULL, &r, &err), &err);
	size_t index = pawl_node_tensor(pawl_state_at(pawl_restore_state(r), "model/weight"));
	const struct manifest_piece *piece = &r->manifest->tensors[index].pieces[0];
	uint64_t at = piece->begin + 2000, block = at / 512 * 512;
	char range[64];
	snprintf(range, sizeof range, "bytes %llu to %llu (tensor model/weight)", (unsigned long long)block,
	         (unsigned long long)block + 512);
	pawl_restore_close(r);
	made_flip(&f->made, 1, "rank00000-00000.safetensors", at, 0x10);
	assert_int_equal(restore_code(f, NULL, &err), PAWL_ECORRUPT);
	assert_non_null(strstr(err.message, range));
	/* A touched block counts completely, also where the change is next to the wanted bytes.
	 * Others do not count. */
	const char *globs[] = {"optimizer/pairs"};
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	opts.include = globs;
	opts.n_include = 1;
	pawl_restore_close(restore(f, &opts));
	assert_memory_equal(f->live.pairs, f->saved.pairs, sizeof f->live.pairs);
}

static void
test_the_pieces_of_a_tensor_fill_it(void **state)
{
	struct fixture *f = *state;
	const uint64_t *offsets, *lengths;
	struct pawl_error err = {0};
	struct pawl_restore *r = NULL;
	save(f, 1, 5, &(struct made_opts){.ranks = 2, .grid = {2}});
	made_check(pawl_restore_open(f->made.run, NULL, &r, &err), &err);
	size_t index = pawl_node_tensor(pawl_state_at(pawl_restore_state(r), "model/weight"));
	size_t n = pawl_restore_piece_count(r, index);
	uint64_t elements = 0;
	assert_true(n >= 2);
	for (size_t i = 0; i < n; i++) {
		made_check(pawl_restore_piece(r, index, i, &offsets, &lengths, &err), &err);
		assert_true(offsets[0] + lengths[0] <= ROWS && offsets[1] + lengths[1] <= COLUMNS);
		elements += lengths[0] * lengths[1];
	}
	assert_int_equal(elements, ROWS * COLUMNS);
	made_check(pawl_restore_piece(r, index, 0, NULL, NULL, &err), &err);
	assert_int_equal(pawl_restore_piece(r, index, n, &offsets, &lengths, &err), PAWL_ENOTFOUND);
	assert_int_equal(pawl_restore_piece_count(r, SIZE_MAX), 0);
	pawl_restore_close(r);
}

static void
test_R136_truncated_longer_and_missing_files_are_found(void **state)
{
	struct fixture *f = *state;
	const char *file = "rank00000-00000.safetensors";
	char path[256];
	struct pawl_error err = {0};
	save(f, 1, 5, NULL);
	const uint64_t size = made_size(&f->made, 1, file);
	for (uint64_t cut = size - 1;; cut = cut > 5000 ? cut - 5000 : 0) {
		made_truncate(&f->made, 1, file, cut);
		assert_int_equal(restore_code(f, NULL, &err), PAWL_ECORRUPT);
		assert_non_null(strstr(err.message, "checkpoint_000001"));
		assert_non_null(strstr(err.message, file));
		if (cut == 0)
			break;
	}
	made_truncate(&f->made, 1, file, size + 1);
	assert_int_equal(restore_code(f, NULL, &err), PAWL_ECORRUPT);
	snprintf(path, sizeof path, "%s/checkpoints/checkpoint_000001/%s", f->made.root, file);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(restore_code(f, NULL, &err), PAWL_ECORRUPT);
	assert_non_null(strstr(err.message, "missing"));
}

static int
event_count(const struct fixture *f, const char *what)
{
	char path[128], line[4096];
	int n = 0;
	snprintf(path, sizeof path, "%s/events.jsonl", f->made.root);
	FILE *file = fopen(path, "r");
	while (file && fgets(line, sizeof line, file))
		n += strstr(line, what) != NULL;
	if (file)
		fclose(file);
	return n;
}

static void
test_R137_damage_falls_back_to_the_next_older_with_the_reasons(void **state)
{
	struct fixture *f = *state;
	struct pawl_error err = {0};
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	for (uint64_t id = 1; id <= 4; id++)
		save(f, id, 10 + (unsigned)id, NULL);
	made_flip(&f->made, 4, "rank00000-00000.safetensors", 20000, 1); /* data */
	made_flip(&f->made, 3, "manifest.json", 30, 1);
	struct pawl_restore *r = restore(f, NULL);
	check_model(&f->live, 12);
	assert_int_equal(pawl_restore_info(r)->id, 2);
	assert_int_equal(pawl_restore_fallback_count(r), 2);
	assert_memory_equal(pawl_restore_fallback_get(r, 0), "checkpoint_000004: ", 19);
	assert_non_null(strstr(pawl_restore_fallback_get(r, 0), "rank00000-00000.safetensors: bytes "));
	assert_memory_equal(pawl_restore_fallback_get(r, 1), "checkpoint_000003: ", 19);
	assert_null(pawl_restore_fallback_get(r, 2));
	assert_int_equal(event_count(f, "\"fallback\""), 1);
	assert_int_equal(event_count(f, "\"restore\""), 1);
	pawl_restore_close(r);
	opts.no_fallback = 1;
	assert_int_equal(restore_code(f, &opts, &err), PAWL_ECORRUPT);
	/* A named checkpoint is restored, or it is an error. */
	opts.no_fallback = 0;
	opts.selector = "id:4";
	assert_int_equal(restore_code(f, &opts, &err), PAWL_ECORRUPT);
	opts.selector = "id:3";
	assert_int_equal(restore_code(f, &opts, &err), PAWL_ECORRUPT);
	opts.selector = "id:1";
	pawl_restore_close(restore(f, &opts));
	check_model(&f->live, 11);
}

static void
test_R137_a_bad_manifest_of_the_newest_is_passed_over_at_open(void **state)
{
	struct fixture *f = *state;
	struct pawl_error err = {0};
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	save(f, 1, 11, NULL);
	save(f, 2, 12, NULL);
	made_flip(&f->made, 2, "manifest.json", 100, 4);
	for (int reopen = 0; reopen < 2; reopen++) {
		struct pawl_restore *r = restore(f, NULL);
		assert_int_equal(pawl_restore_info(r)->id, 1);
		assert_int_equal(pawl_restore_fallback_count(r), 1);
		assert_memory_equal(pawl_restore_fallback_get(r, 0), "checkpoint_000002: ", 19);
		pawl_restore_close(r);
		opts.no_fallback = 1;
		assert_int_equal(restore_code(f, &opts, &err), PAWL_ECORRUPT);
		assert_non_null(strstr(err.message, "checkpoint_000002"));
		pawl_close(f->made.run, NULL); /* then the catalog itself has found it */
		made_open(&f->made, NULL);
	}
}

static void
test_nothing_to_restore_differs_from_nothing_usable(void **state)
{
	struct fixture *f = *state;
	struct pawl_error err = {0};
	assert_int_equal(restore_code(f, NULL, &err), PAWL_ENOTFOUND);
	save(f, 1, 11, NULL);
	save(f, 2, 12, NULL);
	made_flip(&f->made, 1, "rank00000-00000.safetensors", 20000, 1);
	made_flip(&f->made, 2, "rank00000-00000.safetensors", 20000, 1);
	/* A run that has checkpoints must never look like a fresh one. */
	assert_int_equal(restore_code(f, NULL, &err), PAWL_ECORRUPT);
	assert_non_null(strstr(err.message, "no checkpoint can be used; the newest: checkpoint_000002"));
	made_flip(&f->made, 1, "manifest.json", 100, 4);
	made_flip(&f->made, 2, "manifest.json", 100, 4);
	assert_int_equal(restore_code(f, NULL, &err), PAWL_ECORRUPT);
	pawl_close(f->made.run, NULL);
	made_open(&f->made, NULL);
	assert_int_equal(restore_code(f, NULL, &err), PAWL_ECORRUPT);
}

static void
test_fallback_by_hand(void **state)
{
	struct fixture *f = *state;
	struct pawl_error err = {0}, why = {0};
	struct pawl_restore *r = NULL;
	save(f, 1, 11, NULL);
	save(f, 2, 12, NULL);
	made_check(pawl_restore_open(f->made.run, NULL, &r, &err), &err);
	assert_int_equal(pawl_restore_info(r)->id, 2);
	strcpy(why.message, "loss is not finite");
	made_check(pawl_restore_fallback(r, &why, &err), &err);
	assert_int_equal(pawl_restore_info(r)->id, 1);
	assert_string_equal(pawl_restore_fallback_get(r, 0), "checkpoint_000002: loss is not finite");
	assert_int_equal(pawl_restore_fallback(r, &why, &err), PAWL_ENOTFOUND);
	/* What was at hand still is. */
	assert_int_equal(pawl_restore_info(r)->id, 1);
	assert_int_equal(pawl_restore_fallback_count(r), 1);
	made_check(pawl_restore_match(r, f->live.state, &err), &err);
	made_check(pawl_restore_read(r, &err), &err);
	check_model(&f->live, 11);
	pawl_restore_close(r);
}

static void
test_read_errors_of_the_store_are_reported_or_passed_over(void **state)
{
	struct fixture *f = *state;
	static const int codes[] = {PAWL_EIO, PAWL_ETRANSIENT, PAWL_EAUTH};
	for (int i = 0; i < 3; i++) {
		struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
		struct pawl_error err = {0};
		if (i == 0) {
			save(f, 1, 11, NULL);
			save(f, 2, 12, NULL);
		}
		made_evict(&f->made, 2, "rank00000-00000.safetensors");
		pawl_close(f->made.run, NULL);
		made_open(&f->made, NULL);
		pawl_close(f->made.run, NULL);
		/* From the first read of the packs on: those before are the manifests'. */
		for (uint64_t nth = 1; nth < 12; nth++) {
			struct pawl_restore *r = NULL;
			assert_int_equal(pawl_fault_new("read", nth, codes[i], 0, &opts.io.fault, NULL), 0);
			opts.read_only = 1;
			opts.root = f->made.root;
			if (pawl_open(&opts, &f->made.run, &err) == 0) {
				int rc = pawl_restore(f->made.run, NULL, f->live.state, &r, &err);
				if (rc == 0)
					check_model(&f->live, pawl_restore_info(r)->id == 2 ? 12 : 11);
				else
					assert_int_equal(rc, codes[i]);
				pawl_restore_close(r);
				pawl_close(f->made.run, NULL);
			}
			f->made.run = NULL;
			pawl_fault_free(opts.io.fault);
		}
		made_open(&f->made, NULL);
	}
}

/* ---- what is around ---- */

static void
test_P6_a_checkpoint_that_is_open_is_held(void **state)
{
	struct fixture *f = *state;
	struct pawl_error err = {0};
	struct pawl_restore *r = NULL;
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	save(f, 1, 11, NULL);
	save(f, 2, 12, NULL);
	opts.selector = "id:1";
	made_check(pawl_restore_open(f->made.run, &opts, &r, &err), &err);
	assert_int_equal(pawl_remove(f->made.run, 1, 0, &err), PAWL_EBUSY);
	pawl_restore_close(r);
	made_check(pawl_remove(f->made.run, 1, 0, &err), &err);
}

static void
test_a_checkpoint_deleted_by_others_is_not_an_error_for_latest(void **state)
{
	struct fixture *f = *state;
	struct made_run reader = f->made;
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	struct pawl_error err = {0};
	save(f, 1, 11, NULL);
	save(f, 2, 12, NULL);
	opts.read_only = 1;
	made_open(&reader, &opts);
	made_check(pawl_remove(f->made.run, 2, 1, &err), &err);
	struct pawl_restore *r = NULL;
	made_check(pawl_restore(reader.run, NULL, f->live.state, &r, &err), &err);
	assert_int_equal(pawl_restore_info(r)->id, 1);
	assert_int_equal(pawl_restore_fallback_count(r), 0);
	pawl_restore_close(r);
	pawl_close(reader.run, NULL);
}

static void
test_R145_reading_buffers_stay_within_their_bound(void **state)
{
	struct fixture *f = *state;
	static const uint64_t rings[] = {1, 100000, 0, (uint64_t)1 << 40};
	const uint64_t n = (uint64_t)40 << 20;
	char *big = malloc(n), *got = malloc(n);
	struct pawl_tensor t = PAWL_TENSOR_INIT;
	for (uint64_t i = 0; i < n; i++)
		big[i] = (char)(i * 2654435761u >> 11);
	t.dtype = PAWL_U8;
	t.ndim = 1;
	t.shape = &n;
	for (int i = 0; i < 4; i++) {
		struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
		struct pawl_state *saved = NULL, *live = NULL;
		struct pawl_restore *r = NULL;
		struct pawl_error err = {0};
		made_check(pawl_state_new(&saved, &err), &err);
		made_check(pawl_state_new(&live, &err), &err);
		t.data = big;
		made_check(pawl_state_set_tensor(saved, "big", &t, &err), &err);
		t.data = got;
		made_check(pawl_state_set_tensor(live, "big", &t, &err), &err);
		if (i == 0)
			make_checkpoint(f->made.run, &(struct made_opts){.id = 1, .block_bytes = 1 << 20}, saved);
		made_evict(&f->made, 1, "rank00000-00000.safetensors");
		memset(got, 0, n);
		opts.ring_bytes = rings[i];
		made_check(pawl_restore(f->made.run, &opts, live, &r, &err), &err);
		assert_memory_equal(got, big, n);
		/* One block is the least that can be read. */
		uint64_t bound = rings[i] ? rings[i] : FETCH_RING;
		bound = bound < (1 << 20) ? 1 << 20 : bound > FETCH_MAX_RING ? FETCH_MAX_RING : bound;
		assert_true(fetch_buffer_bytes(r->fetch) <= bound + (2 << 20));
		assert_true(fetch_buffer_bytes(r->fetch) <= (128u << 20));
		pawl_restore_close(r);
		pawl_state_free(saved);
		pawl_state_free(live);
	}
	free(big);
	free(got);
}

static void
test_wrong_arguments_are_refused(void **state)
{
	struct fixture *f = *state;
	struct pawl_restore_opts opts = {0};
	struct pawl_restore *r = NULL;
	const char *none[] = {NULL};
	struct pawl_error err = {0};
	assert_int_equal(pawl_restore_open(NULL, NULL, &r, &err), PAWL_EUSAGE);
	assert_int_equal(pawl_restore_open(f->made.run, &opts, &r, &err), PAWL_EUSAGE);
	opts.size = sizeof opts;
	opts.include = none;
	opts.n_include = 1;
	assert_int_equal(pawl_restore_open(f->made.run, &opts, &r, &err), PAWL_EUSAGE);
	opts.n_include = 0;
	opts.selector = "step:7";
	assert_int_equal(pawl_restore_open(f->made.run, &opts, &r, &err), PAWL_ENOTFOUND);
	assert_null(r);
	save(f, 1, 5, NULL);
	made_check(pawl_restore_open(f->made.run, NULL, &r, &err), &err);
	assert_int_equal(pawl_restore_match(r, NULL, &err), PAWL_EUSAGE);
	pawl_restore_close(r);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_P1_whole_state_comes_back_exactly_from_cache_and_from_disk),
		T(test_long_texts_are_read_with_the_state),
		T(test_R160_shards_of_several_ranks_are_put_together),
		T(test_R160_every_rank_of_a_new_size_gets_its_box),
		T(test_R150_only_what_is_included_is_read_and_written),
		T(test_all_differences_are_named_in_one_error_and_nothing_is_read),
		T(test_a_long_list_of_differences_is_cut_with_a_count),
		T(test_keys_of_other_types_but_equal_text_are_told_apart),
		T(test_tensors_tied_only_in_the_live_state_are_a_difference),
		T(test_wrong_destinations_are_refused),
		T(test_R136_single_changed_bytes_are_found_and_named),
		T(test_R136_small_blocks_name_the_range_and_the_tensor),
		T(test_the_pieces_of_a_tensor_fill_it),
		T(test_R136_truncated_longer_and_missing_files_are_found),
		T(test_R137_damage_falls_back_to_the_next_older_with_the_reasons),
		T(test_R137_a_bad_manifest_of_the_newest_is_passed_over_at_open),
		T(test_nothing_to_restore_differs_from_nothing_usable),
		T(test_fallback_by_hand),
		T(test_read_errors_of_the_store_are_reported_or_passed_over),
		T(test_P6_a_checkpoint_that_is_open_is_held),
		T(test_a_checkpoint_deleted_by_others_is_not_an_error_for_latest),
		T(test_R145_reading_buffers_stay_within_their_bound),
		T(test_wrong_arguments_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
