/* SPDX-License-Identifier: Apache-2.0 */
/*
 * golden: the contents of the checkpoints in tests/golden, as a function of name and step, and how
 * they are written. The files of a released format are never rewritten: a later format gets a
 * folder of its own. Include after cmocka.h.
 */
#ifndef PAWL_TESTS_GOLDEN_H
#define PAWL_TESTS_GOLDEN_H

#include "small_run.h"

#include "make_checkpoint.h"

#define GOLDEN_RUN_ID "00112233445566778899aabbccddeeff"
#define GOLDEN_MAX_TENSORS 40
#define GOLDEN_LONG 5000 /* bytes of a text that is kept as a tensor */

/* A state, and the memory of its tensors: a live one is filled with what step's checkpoint holds,
 * an empty one with 0xee. */
struct golden {
	struct pawl_state *state;
	char *data[GOLDEN_MAX_TENSORS];
	size_t nbytes[GOLDEN_MAX_TENSORS];
	size_t n;
	int64_t step; /* < 0 = empty */
};

static inline void
golden_clear(struct golden *g)
{
	for (size_t i = 0; i < g->n; i++)
		free(g->data[i]);
	pawl_state_free(g->state);
	*g = (struct golden){0};
}

/* The n bytes that a tensor or long text of that name holds at that step. */
static inline void
golden_fill(char *out, size_t n, const char *name, int64_t step)
{
	uint64_t x = 0x9e3779b97f4a7c15u + (uint64_t)step * 0xbf58476d1ce4e5b9u;

	for (const char *c = name; *c; c++)
		x = (x ^ (unsigned char)*c) * 0x100000001b3u;
	for (size_t i = 0; i < n; i++) {
		x ^= x >> 12;
		x ^= x << 25;
		x ^= x >> 27;
		out[i] = (char)((x * 0x2545f4914f6cdd1du) >> 56);
	}
}

static inline void
golden_key(struct golden *g, const char *text)
{
	struct pawl_scalar key = {.type = PAWL_STR, .ptr = text, .len = strlen(text)};

	OK(pawl_state_key(g->state, &key, err));
}

static inline void
golden_add(struct golden *g, const char *key, struct pawl_scalar value)
{
	golden_key(g, key);
	OK(pawl_state_add(g->state, &value, err));
}

static inline void
golden_begin(struct golden *g, const char *key, int type)
{
	golden_key(g, key);
	OK(pawl_state_begin(g->state, type, err));
}

static inline void
golden_end(struct golden *g)
{
	OK(pawl_state_end(g->state, err));
}

/* Adds a tensor; fixed: its contents are those of step 0 whatever the step. strides NULL = C
 * order. */
static inline void
golden_tensor(struct golden *g, const char *key, int dtype, uint32_t ndim, const uint64_t *shape,
              const int64_t *strides, const char *kind, bool fixed)
{
	struct pawl_tensor t = PAWL_TENSOR_INIT;
	uint64_t nbits = pawl_dtype_bits(dtype);

	for (uint32_t d = 0; d < ndim; d++)
		nbits *= shape[d];
	assert_true(g->n < GOLDEN_MAX_TENSORS);
	char *data = calloc(1, (size_t)(nbits / 8) + 1);
	assert_non_null(data);
	golden_fill(data, (size_t)(nbits / 8), key, fixed ? 0 : g->step);
	if (dtype == PAWL_BOOL)
		for (uint64_t i = 0; i < nbits / 8; i++)
			data[i] &= 1;
	if (g->step < 0)
		memset(data, 0xee, (size_t)(nbits / 8));
	g->nbytes[g->n] = (size_t)(nbits / 8);
	g->data[g->n++] = data;
	t.dtype = dtype;
	t.ndim = ndim;
	t.shape = shape;
	t.strides = strides;
	t.data = data;
	t.kind = kind;
	golden_key(g, key);
	OK(pawl_state_add_tensor(g->state, &t, err));
}

/* The tensor added last, once more: tied. */
static inline void
golden_tie(struct golden *g, const char *key, int dtype, uint32_t ndim, const uint64_t *shape, const char *kind)
{
	struct pawl_tensor t = PAWL_TENSOR_INIT;

	t.dtype = dtype;
	t.ndim = ndim;
	t.shape = shape;
	t.data = g->data[g->n - 1];
	t.kind = kind;
	golden_key(g, key);
	OK(pawl_state_add_tensor(g->state, &t, err));
}

static inline double
golden_float(uint64_t bits)
{
	double value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

static inline struct pawl_scalar
golden_text(int type, const char *ptr, size_t len)
{
	return (struct pawl_scalar){.type = type, .ptr = ptr, .len = len};
}

static inline void
golden_values(struct golden *g)
{
	static const char huge[] = "-123456789012345678901234567890123456789012345678901234567890";
	char text[GOLDEN_LONG];

	golden_begin(g, "values", PAWL_DICT);
	golden_add(g, "none", (struct pawl_scalar){.type = PAWL_NONE});
	golden_add(g, "true", (struct pawl_scalar){.type = PAWL_BOOLEAN, .i = 1});
	golden_add(g, "false", (struct pawl_scalar){.type = PAWL_BOOLEAN});
	golden_add(g, "int", (struct pawl_scalar){.type = PAWL_INT, .i = -42});
	golden_add(g, "beyond 53 bits", (struct pawl_scalar){.type = PAWL_INT, .i = ((int64_t)1 << 53) + 1});
	golden_add(g, "least", (struct pawl_scalar){.type = PAWL_INT, .i = INT64_MIN});
	golden_add(g, "beyond 64 bits", golden_text(PAWL_INT, huge, sizeof(huge) - 1));
	golden_add(g, "float", (struct pawl_scalar){.type = PAWL_FLOAT, .f = 0.1});
	golden_add(g, "whole float", (struct pawl_scalar){.type = PAWL_FLOAT, .f = 3.0});
	golden_add(g, "minus zero", (struct pawl_scalar){.type = PAWL_FLOAT, .f = golden_float(0x8000000000000000u)});
	golden_add(g, "denormal", (struct pawl_scalar){.type = PAWL_FLOAT, .f = golden_float(1)});
	golden_add(g, "infinity", (struct pawl_scalar){.type = PAWL_FLOAT, .f = golden_float(0xfff0000000000000u)});
	golden_add(g, "nan", (struct pawl_scalar){.type = PAWL_FLOAT, .f = golden_float(0x7ff8000000001234u)});
	golden_add(g, "str", golden_text(PAWL_STR, "a \"b\" \\ \n \xc3\xa9 \xf0\x9f\x90\x8e", 17));
	golden_add(g, "empty str", golden_text(PAWL_STR, "", 0));
	golden_add(g, "str with nul", golden_text(PAWL_STR, "a\0b", 3));
	golden_add(g, "bytes", golden_text(PAWL_BYTES, "\0\1\xfe\xff", 4));
	golden_add(g, "empty bytes", golden_text(PAWL_BYTES, "", 0));
	memset(text, 'x', sizeof(text));
	golden_add(g, "long str", golden_text(PAWL_STR, text, sizeof(text)));
	golden_fill(text, sizeof(text), "long bytes", g->step);
	golden_add(g, "long bytes", golden_text(PAWL_BYTES, text, sizeof(text)));
	golden_begin(g, "list", PAWL_LIST);
	OK(pawl_state_add(g->state, &(struct pawl_scalar){.type = PAWL_INT, .i = 1}, err));
	OK(pawl_state_begin(g->state, PAWL_LIST, err));
	golden_end(g);
	OK(pawl_state_begin(g->state, PAWL_TUPLE, err));
	OK(pawl_state_add(g->state, &(struct pawl_scalar){.type = PAWL_NONE}, err));
	golden_end(g);
	golden_end(g);
	golden_begin(g, "empty tuple", PAWL_TUPLE);
	golden_end(g);
	golden_begin(g, "empty dict", PAWL_DICT);
	golden_end(g);
	golden_begin(g, "empty ordered dict", PAWL_ODICT);
	golden_end(g);
	golden_end(g);
}

/* Keys of every type, and those that need escaping. */
static inline void
golden_keys(struct golden *g)
{
	const struct pawl_scalar keys[] = {
		{.type = PAWL_INT, .i = 5},       {.type = PAWL_INT, .i = -7},
		{.type = PAWL_BOOLEAN, .i = 1},   {.type = PAWL_NONE},
		{.type = PAWL_FLOAT, .f = 1.5},   golden_text(PAWL_BYTES, "\xff\0", 2),
		golden_text(PAWL_STR, "$odd", 4), golden_text(PAWL_STR, "a/b%c", 5),
		golden_text(PAWL_STR, "", 0),
	};

	golden_begin(g, "keys", PAWL_DICT);
	for (size_t i = 0; i < COUNT(keys); i++) {
		OK(pawl_state_key(g->state, &keys[i], err));
		OK(pawl_state_add(g->state, &(struct pawl_scalar){.type = PAWL_INT, .i = (int64_t)i}, err));
	}
	golden_end(g);
}

/* The state of the run: every dtype, every kind of value and of key, tied tensors, a tensor with
 * strides, one of 64 KiB that never changes. The last one is therefore a pack of its own, linked
 * from one checkpoint to the next. */
static inline void
golden_state(struct golden *g, int64_t step)
{
	static const uint64_t large[] = {128, 128}, small[] = {2, 4}, none[] = {0, 3}, turned[] = {3, 2};
	static const int64_t turned_strides[] = {1, 3};

	*g = (struct golden){.step = step};
	OK(pawl_state_new(&g->state, err));
	OK(pawl_state_begin(g->state, PAWL_DICT, err));
	golden_begin(g, "model", PAWL_ODICT);
	golden_tensor(g, "bias", PAWL_BF16, 2, small, NULL, "torch", false);
	golden_tensor(g, "embed.weight", PAWL_F32, 2, large, NULL, "torch_parameter", true);
	golden_tie(g, "head.weight", PAWL_F32, 2, large, "torch_parameter");
	golden_end(g);
	golden_begin(g, "dtypes", PAWL_DICT);
	for (int dtype = PAWL_BOOL; dtype <= PAWL_C128; dtype++)
		golden_tensor(g, pawl_dtype_name(dtype), dtype, 2, small, NULL, "numpy", false);
	golden_end(g);
	golden_begin(g, "shapes", PAWL_DICT);
	golden_tensor(g, "scalar", PAWL_F64, 0, NULL, NULL, "numpy_scalar", false);
	golden_tensor(g, "empty", PAWL_F32, 2, none, NULL, NULL, false);
	golden_tensor(g, "turned", PAWL_I32, 2, turned, turned_strides, "jax", false);
	golden_end(g);
	golden_values(g);
	golden_keys(g);
	golden_add(g, "step", (struct pawl_scalar){.type = PAWL_INT, .i = step < 0 ? 0 : step});
	golden_end(g);
}

/* Tensors without texts: what the ranks cut up, and the single checkpoint. */
static inline void
golden_small_state(struct golden *g, int64_t step)
{
	static const uint64_t matrix[] = {6, 5}, vector[] = {7};

	*g = (struct golden){.step = step};
	OK(pawl_state_new(&g->state, err));
	OK(pawl_state_begin(g->state, PAWL_DICT, err));
	golden_tensor(g, "weight", PAWL_F32, 2, matrix, NULL, "torch", false);
	golden_tensor(g, "phase", PAWL_C128, 1, vector, NULL, "numpy", false);
	golden_tensor(g, "count", PAWL_I64, 0, NULL, NULL, NULL, false);
	golden_add(g, "step", (struct pawl_scalar){.type = PAWL_INT, .i = step < 0 ? 0 : step});
	golden_end(g);
}

/* ------------------------------------------------------------------ writing */

static const struct pawl_metric golden_metrics[3][2] = {
	{{"accuracy", 0.5, 0}, {"loss", (double)NAN, 0}},
	{{"accuracy", 0.75, 0}, {"loss", 0.25, 0}},
	{{"accuracy", 0.7, 0}, {"loss", 0.125, 0}},
};

/* codec: NULL, or packs are compressed: version 2. */
static inline void
golden_open(const char *root, const char *codec, struct pawl **ret)
{
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;

	opts.root = root;
	opts.naming.run_id = GOLDEN_RUN_ID;
	opts.packs.pack_bytes = 64 << 10;
	opts.packs.block_bytes = 64 << 10;
	opts.retention.score_attributes = small_scores;
	opts.retention.n_scores = 1;
	opts.retention.keep_last = 10;
	opts.packs.compression = codec;
	OK(pawl_open(&opts, ret, err));
}

static inline void
golden_save(struct pawl *run, int64_t step)
{
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	struct pawl_state *metadata;
	struct golden g;

	golden_state(&g, step);
	OK(pawl_state_new(&metadata, err));
	OK(pawl_state_set_str(metadata, "author", "nobody", err));
	OK(pawl_state_set_int(metadata, "nested/step", step, err));
	save.step = step * 100;
	save.progress.epoch = step;
	save.progress.batch = step * 100;
	save.progress.total_wct = 12.5;
	save.progress.fraction = 0.25;
	save.metrics = golden_metrics[step - 1];
	save.n_metrics = 2;
	save.metadata = metadata;
	OK(pawl_save(run, &save, g.state, NULL, err));
	OK(pawl_wait(run, -1, err));
	pawl_state_free(metadata);
	golden_clear(&g);
}

/* A run of two checkpoints; the first is pinned, the second scored later. */
static inline void
golden_write_run(const char *root, const char *codec)
{
	struct pawl_metric late = {"recall", 0.875, 0};
	struct pawl *run;

	golden_open(root, codec, &run);
	golden_save(run, 1);
	golden_save(run, 2);
	OK(pawl_pin(run, 1, err));
	OK(pawl_score(run, 2, &late, 1, err));
	OK(pawl_close(run, err));
}

/* A checkpoint that two ranks have written, two packs each. */
static inline void
golden_write_ranks(const char *root)
{
	struct pawl *run;
	struct golden g;

	golden_open(root, NULL, &run);
	golden_small_state(&g, 1);
	make_checkpoint(run, &(struct made_opts){.id = 1, .step = 100, .ranks = 2, .packs = 2, .grid = {3, 2}},
	                g.state);
	golden_clear(&g);
	OK(pawl_close(run, err));
}

static inline void
golden_write_single(const char *folder)
{
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	struct pawl *run;
	struct golden g;

	opts.root = folder;
	opts.single = 1;
	OK(pawl_open(&opts, &run, err));
	golden_small_state(&g, 2);
	OK(pawl_save(run, &save, g.state, NULL, err));
	OK(pawl_wait(run, -1, err));
	golden_clear(&g);
	OK(pawl_close(run, err));
}

#endif
