/* SPDX-License-Identifier: Apache-2.0 */
/*
 * make_run: makes the runs that the tests of the command read, with only pawl.h:
 *
 *   make_run run ROOT N      N checkpoints of a small state with one value of each type;
 *                            metrics accuracy, loss
 *   make_run scored ROOT N   the same, by a training run that orders its checkpoints by accuracy
 *   make_run many ROOT N     N checkpoints of a tiny state, as fast as possible
 *   make_run hostile ROOT    names, metrics and texts full of control bytes
 *   make_run large ROOT N    N checkpoints of the same 64 MiB, which are on the disk once
 *   make_run parts ROOT N    N checkpoints of 10 MiB that differ: more than one part of an upload
 *   make_run single FOLDER   a checkpoint that belongs to no run
 *   make_run busy ROOT       opens the run for writing, prints "ready", waits for the end of stdin
 *   make_run hold ROOT SEL   holds a checkpoint, prints "ready", waits for the end of stdin
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pawl.h"

#define ROWS 64
#define COLUMNS 32

static void
check(int rc, const struct pawl_error *err)
{
	if (rc >= 0)
		return;
	(void)fprintf(stderr, "make_run: %s: %s\n", pawl_code_name(rc), err->message);
	exit(1);
}

static struct pawl *
open_run(const char *root, const char *what)
{
	static const char *const scores[] = {"accuracy"};
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	struct pawl_error err = {0};
	struct pawl *run = NULL;

	opts.root = root;
	opts.single = strcmp(what, "single") == 0;
	opts.read_only = strcmp(what, "hold") == 0;
	if (strcmp(what, "scored") == 0) {
		opts.retention.score_attributes = scores;
		opts.retention.n_scores = 1;
	}
	check(pawl_open(&opts, &run, &err), &err);
	return run;
}

static void
key(struct pawl_state *state, const char *text)
{
	struct pawl_scalar scalar = {.type = PAWL_STR, .ptr = text, .len = strlen(text)};
	struct pawl_error err = {0};

	check(pawl_state_key(state, &scalar, &err), &err);
}

static void
int_key(struct pawl_state *state, int64_t value)
{
	struct pawl_scalar scalar = {.type = PAWL_INT, .i = value};
	struct pawl_error err = {0};

	check(pawl_state_key(state, &scalar, &err), &err);
}

static void
add(struct pawl_state *state, struct pawl_scalar scalar)
{
	struct pawl_error err = {0};

	check(pawl_state_add(state, &scalar, &err), &err);
}

static void
begin(struct pawl_state *state, int type)
{
	struct pawl_error err = {0};

	check(pawl_state_begin(state, type, &err), &err);
}

static void
end(struct pawl_state *state)
{
	struct pawl_error err = {0};

	check(pawl_state_end(state, &err), &err);
}

static void
matrix(struct pawl_state *state, float *data)
{
	static const uint64_t shape[] = {ROWS, COLUMNS};
	struct pawl_tensor tensor = PAWL_TENSOR_INIT;
	struct pawl_error err = {0};

	tensor.dtype = PAWL_F32;
	tensor.ndim = 2;
	tensor.shape = shape;
	tensor.data = data;
	tensor.kind = "torch";
	check(pawl_state_add_tensor(state, &tensor, &err), &err);
}

struct data {
	float embed[ROWS * COLUMNS], weight[ROWS * COLUMNS], moment[ROWS * COLUMNS], extra[ROWS * COLUMNS];
};

static struct pawl_state *
small_state(struct data *data, int step)
{
	struct pawl_state *state = NULL;
	struct pawl_error err = {0};

	check(pawl_state_new(&state, &err), &err);
	begin(state, PAWL_DICT);
	key(state, "model");
	begin(state, PAWL_ODICT);
	key(state, "embed.weight");
	matrix(state, data->embed);
	key(state, "layer.weight");
	matrix(state, data->weight);
	key(state, "head.weight");
	matrix(state, data->embed); /* tied */
	end(state);
	key(state, "optimizer");
	begin(state, PAWL_DICT);
	key(state, "state");
	begin(state, PAWL_DICT);
	int_key(state, 0);
	begin(state, PAWL_DICT);
	key(state, "exp_avg");
	matrix(state, data->moment);
	key(state, "step");
	add(state, (struct pawl_scalar){.type = PAWL_FLOAT, .f = step});
	end(state);
	end(state);
	key(state, "betas");
	begin(state, PAWL_TUPLE);
	add(state, (struct pawl_scalar){.type = PAWL_FLOAT, .f = 0.9});
	add(state, (struct pawl_scalar){.type = PAWL_FLOAT, .f = 0.999});
	end(state);
	end(state);
	if (step >= 3) {
		key(state, "late");
		matrix(state, data->extra);
	}
	key(state, "epoch");
	add(state, (struct pawl_scalar){.type = PAWL_INT, .i = step});
	key(state, "name");
	add(state, (struct pawl_scalar){.type = PAWL_STR, .ptr = "a \"small\" run", .len = 13});
	key(state, "rng");
	add(state, (struct pawl_scalar){.type = PAWL_BYTES, .ptr = "\0\1\2\3", .len = 4});
	key(state, "nothing");
	add(state, (struct pawl_scalar){.type = PAWL_NONE});
	key(state, "worst");
	add(state, (struct pawl_scalar){.type = PAWL_FLOAT, .f = (double)NAN});
	key(state, "large");
	add(state, (struct pawl_scalar){.type = PAWL_INT, .i = INT64_MAX});
	end(state);
	return state;
}

static void
save(struct pawl *run, const struct pawl_save_opts *opts, struct pawl_state *state)
{
	struct pawl_error err = {0};

	check(pawl_save(run, opts, state, NULL, &err), &err);
	check(pawl_wait(run, -1, &err), &err);
	pawl_state_free(state);
}

static void
fill(float *data, float value)
{
	for (size_t i = 0; i < (size_t)ROWS * COLUMNS; i++)
		data[i] = value + (float)i;
}

static void
save_small(struct pawl *run, int n)
{
	static const double accuracies[] = {0.5, 0.75, 0.7, (double)NAN, 0.6};
	struct data *data = calloc(1, sizeof(*data));

	if (data == NULL)
		exit(1);
	fill(data->embed, 1);
	fill(data->moment, 0);
	fill(data->extra, 7);
	for (int i = 1; i <= n; i++) {
		struct pawl_metric metrics[] = {{"accuracy", accuracies[(i - 1) % 5], 0}, {"loss", 1.0 / i, 0}};
		struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;

		fill(data->weight, (float)i);
		opts.step = i * 100;
		opts.progress.epoch = i;
		opts.metrics = metrics;
		opts.n_metrics = 2;
		save(run, &opts, small_state(data, i));
	}
	free(data);
}

static struct pawl_state *
tiny_state(int value)
{
	struct pawl_state *state = NULL;
	struct pawl_error err = {0};

	check(pawl_state_new(&state, &err), &err);
	check(pawl_state_set_int(state, "value", value, &err), &err);
	return state;
}

static void
save_many(struct pawl *run, int n)
{
	for (int i = 1; i <= n; i++) {
		struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;

		opts.step = i;
		save(run, &opts, tiny_state(i));
	}
}

static void
save_hostile(struct pawl *run)
{
	struct pawl_metric metric = {"acc\033[31m\r\n", 1.5, 0};
	struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;
	struct pawl_state *state = NULL, *metadata = NULL;
	struct pawl_error err = {0};

	check(pawl_state_new(&state, &err), &err);
	check(pawl_state_new(&metadata, &err), &err);
	check(pawl_state_set_str(state, "a\033]0;owned\007key",
	                         "value\033[2J\x7f\xc2\x9b"
	                         "1m",
	                         &err),
	      &err);
	check(pawl_state_set_str(state, "right\xe2\x80\xaeleft", "plain", &err), &err);
	check(pawl_state_set_str(metadata, "note\r\033[1A", "\b\b\b", &err), &err);
	opts.metrics = &metric;
	opts.n_metrics = 1;
	opts.metadata = metadata;
	save(run, &opts, state);
	pawl_state_free(metadata);
}

static void
save_large(struct pawl *run, int n)
{
	struct pawl_tensor tensor = PAWL_TENSOR_INIT;
	struct pawl_error err = {0};
	uint64_t shape[] = {(uint64_t)64 << 20};

	tensor.dtype = PAWL_U8;
	tensor.ndim = 1;
	tensor.shape = shape;
	tensor.data = calloc(1, shape[0]);
	if (tensor.data == NULL)
		exit(1);
	for (int i = 1; i <= n; i++) {
		struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;
		struct pawl_state *state = NULL;

		opts.step = i;
		check(pawl_state_new(&state, &err), &err);
		check(pawl_state_set_tensor(state, "model/big", &tensor, &err), &err);
		save(run, &opts, state);
	}
	free(tensor.data);
}

static void
save_parts(struct pawl *run, int n)
{
	struct pawl_tensor tensor = PAWL_TENSOR_INIT;
	uint64_t shape[] = {(uint64_t)10 << 20};
	struct pawl_error err = {0};
	unsigned char *bytes = malloc(shape[0]);

	if (bytes == NULL)
		exit(1);
	tensor.dtype = PAWL_U8;
	tensor.ndim = 1;
	tensor.shape = shape;
	tensor.data = bytes;
	for (int i = 1; i <= n; i++) {
		struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;
		struct pawl_state *state = NULL;

		for (size_t at = 0; at < shape[0]; at++)
			bytes[at] = (unsigned char)((at * 2654435761u) >> 13 ^ (size_t)i);
		opts.step = i;
		check(pawl_state_new(&state, &err), &err);
		check(pawl_state_set_tensor(state, "model/big", &tensor, &err), &err);
		save(run, &opts, state);
	}
	free(bytes);
}

static void
wait_for_end(void)
{
	(void)puts("ready");
	(void)fflush(stdout);
	while (getchar() != EOF)
		;
}

static void
hold(struct pawl *run, const char *selector)
{
	struct pawl_error err = {0};
	struct pawl_hold *held = NULL;
	uint64_t id;

	check(pawl_find(run, selector, &id, &err), &err);
	check(pawl_hold_open(run, id, &held, &err), &err);
	wait_for_end();
	pawl_hold_close(held);
}

int
main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "";
	int n = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 1;
	struct pawl_error err = {0};
	struct pawl *run;

	if (argc < 3) {
		(void)fputs("usage: make_run run|scored|many|hostile|large|parts|single|busy|hold ROOT [N]\n", stderr);
		return 2;
	}
	run = open_run(argv[2], what);
	if (strcmp(what, "run") == 0 || strcmp(what, "scored") == 0 || strcmp(what, "single") == 0)
		save_small(run, n);
	else if (strcmp(what, "many") == 0)
		save_many(run, n);
	else if (strcmp(what, "hostile") == 0)
		save_hostile(run);
	else if (strcmp(what, "large") == 0)
		save_large(run, n);
	else if (strcmp(what, "parts") == 0)
		save_parts(run, n);
	else if (strcmp(what, "busy") == 0)
		wait_for_end();
	else if (strcmp(what, "hold") == 0 && argc > 3)
		hold(run, argv[3]);
	else
		return 2;
	check(pawl_close(run, &err), &err);
	return 0;
}
