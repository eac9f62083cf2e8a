/* SPDX-License-Identifier: Apache-2.0 */
/*
 * train_digits: trains a small network on handwritten digits in plain C, and saves what it has
 * learnt with pawl.
 *
 *     train_digits [--epochs N] [--die-in-save EPOCH] DATA.csv RUN_FOLDER
 *
 * Run it, kill it, run it again: it resumes after the last checkpoint. It ends with the very same
 * weights as a run that was never disturbed. For that, everything that the training depends on is
 * in the state: weights, both moments of Adam, the random generator, the order of the images, the
 * epoch. --die-in-save kills the process (SIGKILL) right after the save of an epoch was started, so
 * that its files are half written.
 *
 * The parts that show pawl: state_of (what is saved), load (restoring in place), and the loop in
 * main.
 */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pawl.h>

enum { PIXELS = 64, HIDDEN = 128, CLASSES = 10, IMAGES = 1797, TRAINED = 1500, BATCH = 32 };
enum { W1 = PIXELS * HIDDEN, W2 = HIDDEN * CLASSES, WEIGHTS = W1 + HIDDEN + W2 + CLASSES };

struct weights {
	float w1[PIXELS][HIDDEN], b1[HIDDEN];
	float w2[HIDDEN][CLASSES], b2[CLASSES];
};

struct training {
	struct weights model, first, second; /* first, second: moments of Adam */
	int64_t epoch, steps;                /* finished ones */
	uint64_t random;                     /* state of the generator */
	int32_t order[TRAINED];              /* in which the images are shown */
	double loss, accuracy;               /* of the last epoch */
};

struct data {
	float pixel[IMAGES][PIXELS];
	int label[IMAGES];
};

/* ------------------------------------------------------------------ what is saved */

static int
add_tensor(struct pawl_state *state, const char *path, int dtype, void *data, uint32_t ndim, const uint64_t *shape,
           struct pawl_error *err)
{
	struct pawl_tensor tensor = PAWL_TENSOR_INIT;

	tensor.dtype = dtype;
	tensor.ndim = ndim;
	tensor.shape = shape;
	tensor.data = data;
	return pawl_state_set_tensor(state, path, &tensor, err);
}

static int
add_weights(struct pawl_state *state, const char *name, struct weights *w, struct pawl_error *err)
{
	static const uint64_t w1[] = {PIXELS, HIDDEN}, b1[] = {HIDDEN}, w2[] = {HIDDEN, CLASSES}, b2[] = {CLASSES};
	const struct {
		const char *leaf;
		void *data;
		uint32_t ndim;
		const uint64_t *shape;
	} rows[] = {{"w1", w->w1, 2, w1}, {"b1", w->b1, 1, b1}, {"w2", w->w2, 2, w2}, {"b2", w->b2, 1, b2}};
	char path[64];

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		snprintf(path, sizeof(path), "%s/%s", name, rows[i].leaf);
		int code = add_tensor(state, path, PAWL_F32, rows[i].data, rows[i].ndim, rows[i].shape, err);
		if (code < 0)
			return code;
	}
	return 0;
}

/* Describes the training as a state. Tensors are borrowed: saving reads them, restoring writes into
 * them. */
static int
state_of(struct training *t, struct pawl_state **ret, struct pawl_error *err)
{
	static const uint64_t order[] = {TRAINED};
	struct pawl_state *state = NULL;
	int code = pawl_state_new(&state, err);

	if (code == 0)
		code = add_weights(state, "model", &t->model, err);
	if (code == 0)
		code = add_weights(state, "adam/first", &t->first, err);
	if (code == 0)
		code = add_weights(state, "adam/second", &t->second, err);
	if (code == 0)
		code = add_tensor(state, "order", PAWL_I32, t->order, 1, order, err);
	if (code == 0)
		code = pawl_state_set_int(state, "epoch", t->epoch, err);
	if (code == 0)
		code = pawl_state_set_int(state, "steps", t->steps, err);
	if (code == 0)
		code = pawl_state_set_int(state, "random", (int64_t)t->random, err);
	if (code == 0)
		code = pawl_state_set_float(state, "loss", t->loss, err);
	if (code < 0) {
		pawl_state_free(state);
		return code;
	}
	*ret = state;
	return 0;
}

static int
save(struct pawl *run, struct training *t, struct pawl_error *err)
{
	struct pawl_metric metrics[] = {{.name = "accuracy", .value = t->accuracy}, {.name = "loss", .value = t->loss}};
	struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;
	struct pawl_state *state = NULL;
	int code = state_of(t, &state, err);

	if (code < 0)
		return code;
	opts.step = t->epoch;
	opts.progress.epoch = t->epoch;
	opts.metrics = metrics;
	opts.n_metrics = 2;
	code = pawl_save(run, &opts, state, NULL, err); /* returns as soon as the tensors have been copied */
	pawl_state_free(state);
	return code;
}

/* Fills t from the newest valid checkpoint: tensors in place, the rest from the saved tree. Leaves
 * a fresh t unchanged. */
static int
load(struct pawl *run, struct training *t, struct pawl_error *err)
{
	struct pawl_restore *restore = NULL;
	struct pawl_state *live = NULL;
	int64_t random = 0;
	int code = state_of(t, &live, err);

	if (code < 0)
		return code;
	code = pawl_restore(run, NULL, live, &restore, err);
	pawl_state_free(live);
	if (code == PAWL_ENOTFOUND)
		return 0; /* a fresh run */
	if (code < 0)
		return code;

	const struct pawl_state *saved = pawl_restore_state(restore);
	for (size_t i = 0; i < pawl_restore_fallback_count(restore); i++)
		printf("passed over %s\n", pawl_restore_fallback_get(restore, i));
	code = pawl_state_get_int(saved, "epoch", &t->epoch, err);
	if (code == 0)
		code = pawl_state_get_int(saved, "steps", &t->steps, err);
	if (code == 0)
		code = pawl_state_get_int(saved, "random", &random, err);
	if (code == 0)
		code = pawl_state_get_float(saved, "loss", &t->loss, err);
	t->random = (uint64_t)random;
	if (code == 0)
		printf("resumed after epoch %" PRId64 " from %s\n", t->epoch, pawl_restore_info(restore)->path);
	pawl_restore_close(restore);
	return code;
}

/* ------------------------------------------------------------------ the training */

/* A 64-bit linear congruential generator; the upper half is good enough for shuffling. */
static uint32_t
next_random(struct training *t)
{
	t->random = t->random * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(t->random >> 32);
}

static void
start(struct training *t)
{
	memset(t, 0, sizeof(*t));
	t->random = 20240229;
	for (int i = 0; i < PIXELS; i++)
		for (int j = 0; j < HIDDEN; j++)
			t->model.w1[i][j] = ((float)next_random(t) / 4294967296.0f - 0.5f) * 0.35f;
	for (int i = 0; i < HIDDEN; i++)
		for (int j = 0; j < CLASSES; j++)
			t->model.w2[i][j] = ((float)next_random(t) / 4294967296.0f - 0.5f) * 0.25f;
	for (int i = 0; i < TRAINED; i++)
		t->order[i] = i;
}

static void
forward(const struct weights *w, const float *pixel, float *hidden, float *probability)
{
	float top = -INFINITY, sum = 0;

	for (int j = 0; j < HIDDEN; j++)
		hidden[j] = w->b1[j];
	for (int i = 0; i < PIXELS; i++)
		for (int j = 0; j < HIDDEN; j++)
			hidden[j] += pixel[i] * w->w1[i][j];
	for (int j = 0; j < HIDDEN; j++)
		hidden[j] = hidden[j] > 0 ? hidden[j] : 0;
	for (int k = 0; k < CLASSES; k++) {
		probability[k] = w->b2[k];
		for (int j = 0; j < HIDDEN; j++)
			probability[k] += hidden[j] * w->w2[j][k];
		top = probability[k] > top ? probability[k] : top;
	}
	for (int k = 0; k < CLASSES; k++)
		sum += probability[k] = expf(probability[k] - top);
	for (int k = 0; k < CLASSES; k++)
		probability[k] /= sum;
}

/* Adds the gradient of one image to g; returns its loss. */
static double
backward(const struct weights *w, const float *pixel, int label, struct weights *g)
{
	float hidden[HIDDEN], probability[CLASSES], delta[HIDDEN] = {0};

	forward(w, pixel, hidden, probability);
	double loss = -log((double)probability[label] + 1e-12);
	probability[label] -= 1;
	for (int k = 0; k < CLASSES; k++) {
		g->b2[k] += probability[k];
		for (int j = 0; j < HIDDEN; j++) {
			g->w2[j][k] += hidden[j] * probability[k];
			delta[j] += w->w2[j][k] * probability[k];
		}
	}
	for (int j = 0; j < HIDDEN; j++) {
		delta[j] = hidden[j] > 0 ? delta[j] : 0;
		g->b1[j] += delta[j];
	}
	for (int i = 0; i < PIXELS; i++)
		for (int j = 0; j < HIDDEN; j++)
			g->w1[i][j] += pixel[i] * delta[j];
	return loss;
}

static void
adam(struct training *t, const struct weights *gradient)
{
	float *w = (float *)&t->model, *m = (float *)&t->first, *v = (float *)&t->second;
	const float *g = (const float *)gradient;

	_Static_assert(sizeof(struct weights) == WEIGHTS * sizeof(float), "the weights are one array");
	t->steps++;
	float c1 = 1 - powf(0.9f, (float)t->steps), c2 = 1 - powf(0.999f, (float)t->steps);
	for (int i = 0; i < WEIGHTS; i++) {
		m[i] = 0.9f * m[i] + 0.1f * g[i] / BATCH;
		v[i] = 0.999f * v[i] + 0.001f * (g[i] / BATCH) * (g[i] / BATCH);
		w[i] -= 0.001f * (m[i] / c1) / (sqrtf(v[i] / c2) + 1e-8f);
	}
}

static void
train_epoch(struct training *t, const struct data *data)
{
	static struct weights gradient;
	double loss = 0;
	int right = 0;

	for (int i = TRAINED - 1; i > 0; i--) {
		int j = (int)(next_random(t) % (uint32_t)(i + 1));
		int32_t swapped = t->order[i];
		t->order[i] = t->order[j];
		t->order[j] = swapped;
	}
	for (int begin = 0; begin + BATCH <= TRAINED; begin += BATCH) {
		memset(&gradient, 0, sizeof(gradient));
		for (int i = begin; i < begin + BATCH; i++)
			loss += backward(&t->model, data->pixel[t->order[i]], data->label[t->order[i]], &gradient);
		adam(t, &gradient);
	}
	for (int i = TRAINED; i < IMAGES; i++) {
		float hidden[HIDDEN], probability[CLASSES];
		int best = 0;
		forward(&t->model, data->pixel[i], hidden, probability);
		for (int k = 1; k < CLASSES; k++)
			best = probability[k] > probability[best] ? k : best;
		right += best == data->label[i];
	}
	t->epoch++;
	t->loss = loss / (TRAINED / BATCH * BATCH);
	t->accuracy = (double)right / (IMAGES - TRAINED);
}

static bool
read_data(const char *path, struct data *data)
{
	FILE *file = fopen(path, "r");
	char line[1024];
	int n = 0;

	if (file == NULL)
		return false;
	while (n < IMAGES && fgets(line, sizeof(line), file) != NULL) {
		char *at = line;
		if (line[0] == '#')
			continue;
		for (int i = 0; i < PIXELS; i++) {
			data->pixel[n][i] = (float)strtol(at, &at, 10) / 16.0f;
			at += *at == ',';
		}
		data->label[n] = (int)strtol(at, &at, 10);
		if (data->label[n] < 0 || data->label[n] >= CLASSES)
			break;
		n++;
	}
	fclose(file);
	return n == IMAGES;
}

/* FNV-1a of the weights' bytes: two runs with the same digest have the same weights, bit for
 * bit. */
static uint64_t
digest(const struct weights *w)
{
	const unsigned char *byte = (const unsigned char *)w;
	uint64_t sum = 14695981039346656037u;

	for (size_t i = 0; i < sizeof(*w); i++)
		sum = (sum ^ byte[i]) * 1099511628211u;
	return sum;
}

static int
train(const struct data *data, const char *folder, int64_t epochs, int64_t die_in_save, struct pawl_error *err)
{
	static const char *const score[] = {"accuracy"};
	static struct training t;
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	struct pawl *run = NULL;

	opts.root = folder;
	opts.retention.num_to_keep = 3; /* the best three, and the latest as well */
	opts.retention.score_attributes = score;
	opts.retention.n_scores = 1;
	int code = pawl_open(&opts, &run, err);
	if (code < 0)
		return code;

	start(&t);
	code = load(run, &t, err);
	while (code == 0 && t.epoch < epochs) {
		train_epoch(&t, data);
		code = save(run, &t, err);
		if (code == 0 && t.epoch == die_in_save)
			raise(SIGKILL);
		printf("epoch %2" PRId64 "  loss %.4f  accuracy %.3f\n", t.epoch, t.loss, t.accuracy);
	}
	if (code < 0) {
		pawl_close(run, NULL);
		return code;
	}
	code = pawl_close(run, err); /* waits until everything is durable */
	if (code == 0)
		printf("weights %016" PRIx64 " after %" PRId64 " epochs\n", digest(&t.model), t.epoch);
	return code;
}

int
main(int argc, char **argv)
{
	static struct data data;
	struct pawl_error err = {0};
	int64_t epochs = 20, die_in_save = -1;
	int at = 1;

	for (; at + 1 < argc && strncmp(argv[at], "--", 2) == 0; at += 2) {
		if (strcmp(argv[at], "--epochs") == 0)
			epochs = strtoll(argv[at + 1], NULL, 10);
		else if (strcmp(argv[at], "--die-in-save") == 0)
			die_in_save = strtoll(argv[at + 1], NULL, 10);
		else
			break;
	}
	if (argc - at != 2) {
		fprintf(stderr, "usage: %s [--epochs N] [--die-in-save EPOCH] DATA.csv RUN_FOLDER\n", argv[0]);
		return 2;
	}
	if (!read_data(argv[at], &data)) {
		fprintf(stderr, "%s: cannot be read, or does not hold %d images\n", argv[at], IMAGES);
		return 1;
	}
	int code = train(&data, argv[at + 1], epochs, die_in_save, &err);
	if (code < 0)
		fprintf(stderr, "%s: %s\n", argv[0], err.message);
	return pawl_code_exit_status(code);
}
