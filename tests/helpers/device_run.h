/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_run: a run whose tensors are on devices of the fake driver. A step of the training writes
 * all of them by work on the caller's stream. A save that is not ordered against it therefore holds
 * bytes of another step. Include after cmocka.h.
 */
#ifndef PAWL_TESTS_DEVICE_RUN_H
#define PAWL_TESTS_DEVICE_RUN_H

#include "fake_cuda/fake_cuda.h"
#include "helpers/small_run.h"
#include "run/run.h"

enum { D_WEIGHT, D_STRIDED, D_SMALL, D_OTHER, D_BUFFER, D_HOST, D_TENSORS };

struct device_tensor {
	const char *name;
	int ordinal; /* -1 = host memory */
	uint64_t shape[2];
	int64_t strides[2]; /* in elements of two bytes; 0 = C order */
	uint64_t data;
	uint16_t *shadow;
	size_t n; /* elements of the memory */
};

struct device_run {
	struct small_run *r;
	struct device_tensor tensors[D_TENSORS];
	uint64_t streams[FAKE_DEVICES];
	bool has_no_streams, host_is_named; /* the tensors do not name streams; that in host memory names a driver */
	struct device_work *works;          /* all that was launched */
};

struct device_work {
	struct device_work *next;
	struct device_run *d;
	int step, ordinal;
	bool buffers_only;
};

static inline uint16_t
device_value(int step, int tensor, size_t at)
{
	return (uint16_t)(step * 4099 + tensor * 257 + (int)(at % 4093));
}

static inline void
device_write(struct device_run *d, int tensor, int step)
{
	for (size_t i = 0; i < d->tensors[tensor].n; i++)
		d->tensors[tensor].shadow[i] = device_value(step, tensor, i);
}

static inline void
device_train(void *arg)
{
	struct device_work *w = arg;

	for (int t = 0; t < D_TENSORS; t++)
		if (w->d->tensors[t].ordinal == w->ordinal && (!w->buffers_only || t == D_BUFFER))
			device_write(w->d, t, w->step);
}

/* Work of a step on one device. */
static inline void
device_launch_on(struct device_run *d, int ordinal, int step, bool buffers_only)
{
	struct device_work *w = malloc(sizeof(*w));

	assert_non_null(w);
	*w = (struct device_work){d->works, d, step, ordinal, buffers_only};
	d->works = w;
	fake_launch(ordinal, d->streams[ordinal], device_train, w);
}

/* Work of a step, on all streams. */
static inline void
device_launch(struct device_run *d, int step, bool buffers_only)
{
	for (int o = 0; o < FAKE_DEVICES; o++)
		device_launch_on(d, o, step, buffers_only);
	if (!buffers_only)
		device_write(d, D_HOST, step);
}

static inline void
device_make(struct device_run *d, struct small_run *r, uint64_t seed, uint64_t weight_rows)
{
	const struct device_tensor tensors[D_TENSORS] = {
		[D_WEIGHT] = {"model/weight", 1, {weight_rows, 512}, {0, 0}, 0, NULL, weight_rows * 512},
		[D_STRIDED] = {"model/view", 1, {70, 30}, {1, 70}, 0, NULL, 70 * 30},
		[D_SMALL] = {"model/bias", 1, {1, 7}, {0, 0}, 0, NULL, 7},
		[D_OTHER] = {"model/other", 2, {33, 1000}, {0, 0}, 0, NULL, 33000},
		[D_BUFFER] = {"model/running_mean", 1, {1, 90}, {0, 0}, 0, NULL, 90},
		[D_HOST] = {"optimizer/step", -1, {1, 50}, {0, 0}, 0, NULL, 50},
	};

	fake_reset(seed, true);
	*d = (struct device_run){.r = r};
	memcpy(d->tensors, tensors, sizeof(tensors));
	for (int o = 0; o < FAKE_DEVICES; o++)
		d->streams[o] = fake_stream(o);
	for (int t = 0; t < D_TENSORS; t++) {
		struct device_tensor *x = &d->tensors[t];

		x->data = x->ordinal < 0 ? (uint64_t)(uintptr_t)calloc(x->n, 2) : fake_alloc(x->ordinal, 2 * x->n);
		x->shadow = x->ordinal < 0 ? (uint16_t *)(uintptr_t)x->data : fake_shadow(x->data);
	}
}

/* Gives a tensor of a device another number of rows. */
static inline void
device_resize(struct device_run *d, int tensor, uint64_t rows)
{
	struct device_tensor *x = &d->tensors[tensor];

	fake_free(x->data);
	x->shape[0] = rows;
	x->n = (size_t)(rows * x->shape[1]);
	x->data = fake_alloc(x->ordinal, 2 * x->n);
	x->shadow = fake_shadow(x->data);
}

static inline struct pawl_tensor
device_tensor(const struct device_run *d, int t)
{
	const struct device_tensor *x = &d->tensors[t];
	struct pawl_tensor tensor = PAWL_TENSOR_INIT;

	tensor.dtype = PAWL_BF16;
	tensor.ndim = 2;
	tensor.shape = x->shape;
	tensor.strides = x->strides[0] ? x->strides : NULL;
	tensor.data = (void *)(uintptr_t)x->data;
	if (x->ordinal >= 0 || d->host_is_named)
		tensor.device = PAWL_DEVICE_CUDA;
	if (x->ordinal >= 0 && !d->has_no_streams)
		tensor.stream = d->streams[x->ordinal];
	return tensor;
}

static inline struct pawl_state *
device_state(const struct device_run *d)
{
	struct pawl_state *state;

	OK(pawl_state_new(&state, err));
	for (int t = 0; t < D_TENSORS; t++) {
		const struct pawl_tensor tensor = device_tensor(d, t);

		OK(pawl_state_set_tensor(state, d->tensors[t].name, &tensor, err));
	}
	return state;
}

static inline int
device_save(struct device_run *d, bool lazy, int mode, struct pawl_error *err)
{
	static const unsigned char at_once[D_TENSORS] = {[D_BUFFER] = 1};
	struct pawl_state *state = device_state(d);
	struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;

	opts.lazy = lazy;
	opts.at_once = lazy ? at_once : NULL;
	opts.mode = mode + 1;
	const int rc = pawl_save(d->r->run, &opts, state, NULL, err);

	pawl_state_free(state);
	return rc;
}

/* The latest checkpoint, in host memory: are all tensors those of the step? */
static inline bool
device_saved_is(struct device_run *d, int step)
{
	struct pawl_restore *restore;
	struct pawl_state *state;
	uint16_t *host[D_TENSORS];
	bool is = true;

	OK(pawl_state_new(&state, err));
	for (int t = 0; t < D_TENSORS; t++) {
		struct pawl_tensor tensor = device_tensor(d, t);

		host[t] = calloc(d->tensors[t].n, 2);
		tensor.data = host[t];
		tensor.device = PAWL_DEVICE_HOST;
		OK(pawl_state_set_tensor(state, d->tensors[t].name, &tensor, err));
	}
	OK(pawl_restore(d->r->run, NULL, state, &restore, err));
	for (int t = 0; t < D_TENSORS; t++) {
		for (size_t i = 0; i < d->tensors[t].n; i++)
			is = is && host[t][i] == device_value(step, t, i);
		free(host[t]);
	}
	pawl_restore_close(restore);
	pawl_state_free(state);
	return is;
}

/* Frees what the run has. All that was launched is done, or dropped by fake_reset. */
static inline void
device_end(struct device_run *d)
{
	while (d->works) {
		struct device_work *w = d->works;

		d->works = w->next;
		free(w);
	}
	free(d->tensors[D_HOST].shadow);
}

/* The run is closed: nothing is left over, and the driver was used as it must be. */
static inline void
device_check(struct device_run *d)
{
	OK(pawl_close(d->r->run, err));
	d->r->run = NULL;
	fake_run();
	if (fake_misuse())
		fail_msg("%s", fake_misuse());
	assert_int_equal(fake_live(), 0);
	assert_int_equal(fake_context_depth(), 0);
	device_end(d);
}

/* After work whose nth call of the driver failed: an error names that. Was the call reached? */
static inline bool
device_end_failing(long nth, int rc, const struct pawl_error *why)
{
	const bool was_reached = fake_calls() >= nth;

	if (rc < 0 && !strstr(why->message, "CUDA_ERROR") && !strstr(why->message, "unknown error (") &&
	    !strstr(why->message, "lost"))
		fail_msg("call %ld: %s", nth, why->message);
	fake_fail(0, 0);
	return was_reached;
}

/* Closes the run after a failure of the driver, which was used as it must be. Not all that was
 * launched is done. */
static inline void
device_drop(struct device_run *d, long nth)
{
	(void)pawl_close(d->r->run, NULL);
	d->r->run = NULL;
	if (fake_misuse())
		fail_msg("call %ld: %s", nth, fake_misuse());
	fake_reset(0, true);
	device_end(d);
}

/* Until all staging memory is known to the driver: a copy to other memory waits on the host. */
static inline void
device_wait_registered(const struct device_run *d)
{
	fake_wait_registered(pawl_arena_bytes(d->r->run->saves.arena));
}

#endif
