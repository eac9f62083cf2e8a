/* SPDX-License-Identifier: Apache-2.0 */
/* device_queue: copies are never torn, whatever order the device chooses. Failures end clean and
 * are named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/device_own.h"
#include "helpers/device_bed.h"

#define SEEDS 100u
#define NEW_STREAM UINT64_MAX

/* ---------------------------------------------------------- save and restore */

/* A save between steps 1 and 2 of a training run, then a restore of step 3. Returns 0, or the error
 * of the first call that failed. *ret_torn: a copy or a tensor is not of the step that it should be
 * of. */
static int
save(struct bed *b, struct device_queue *q, bool *ret_torn, struct pawl_error *err)
{
	struct device_copy copies[N_TENSORS];
	uint64_t units[N_TENSORS];

	bed_copies(b, DEVICE_TO_HOST, copies);
	bed_launch(b, 1, bed_train);
	if (bed_draw(b, 4) == 0)
		bed_advance(b);
	TRY(device_queue_after(q, b->stream, err));
	for (int t = 0; t < N_TENSORS; t++) {
		bed_advance(b);
		TRY(device_queue_copy(q, DEVICE_TO_HOST, &copies[t], 1, &units[t], err));
	}
	TRY(device_queue_fence(q, b->stream, err));
	bed_launch(b, 2, bed_train);
	for (int t = 0; t < N_TENSORS; t++) {
		if (bed_draw(b, 2))
			TRY(device_queue_wait(q, units[t], err));
		for (int rc = 0; rc != 1;) {
			rc = device_queue_poll(q, units[t], err);
			TRY(rc);
		}
		if (!bed_host_is(b, 1, t, t + 1))
			*ret_torn = true;
	}
	return 0;
}

static int
restore(struct bed *b, struct device_queue *q, bool *ret_torn, struct pawl_error *err)
{
	struct device_copy copies[N_TENSORS];
	uint64_t unit;

	bed_copies(b, DEVICE_FROM_HOST, copies);
	bed_launch(b, 2, bed_train);
	bed_fill_host(b, 3);
	TRY(device_queue_after(q, b->stream, err));
	for (int t = N_TENSORS; t-- > 0;) {
		TRY(device_queue_copy(q, DEVICE_FROM_HOST, &copies[t], 1, &unit, err));
		bed_advance(b);
	}
	TRY(device_queue_fence(q, b->stream, err));
	bed_launch(b, 3, bed_look);
	TRY(device_queue_wait(q, unit, err));
	memset(b->host, 0, b->nbytes);
	fake_run();
	if (b->seen == -1)
		*ret_torn = true;
	return 0;
}

static int
save_and_restore(struct bed *b, bool is_pinned, bool *ret_torn, struct pawl_error *err)
{
	struct device_queue *q = NULL;
	struct device_pin *pin = NULL;
	int rc = device_open(DEVICE_KIND, true, &b->d, err);

	if (rc < 0)
		return rc;
	b->d->piece_bytes = 8 * PAGE;
	if (is_pinned)
		rc = device_pin_new(b->d, b->ordinal, NULL, b->host, b->nbytes, &pin, err);
	if (rc == 0 && is_pinned)
		(void)device_pin_wait(pin, NULL); /* memory that is not registered works, too */
	if (rc == 0)
		rc = device_queue_new(b->d, b->ordinal, &q, err);
	if (rc == 0)
		rc = save(b, q, ret_torn, err);
	if (rc == 0)
		rc = restore(b, q, ret_torn, err);
	device_queue_free(q);
	device_pin_free(pin);
	device_close(b->d);
	return rc;
}

static bool
is_torn(uint64_t seed, bool is_pinned, uint64_t stream, long ignored)
{
	struct bed b;
	bool torn = false;

	bed_make(&b, seed, (int)(seed % FAKE_DEVICES), stream);
	fake_ignore_wait(ignored);
	OK(save_and_restore(&b, is_pinned, &torn, err));
	assert_int_not_equal(b.seen, 0); /* it did look */
	assert_int_equal(fake_live(), 0);
	bed_check(&b);
	return torn;
}

static void
test_no_order_of_the_device_tears_a_copy(void **state)
{
	(void)state;
	static const uint64_t streams[] = {NEW_STREAM, 0, 2};

	for (uint64_t seed = 1; seed <= SEEDS; seed++)
		for (size_t i = 0; i < sizeof(streams) / sizeof(streams[0]); i++)
			assert_false(is_torn(seed, seed % 4 != 0, streams[i], 0));
}

/* The controls: each wait for an event is needed. */
static void
test_each_missing_wait_is_found(void **state)
{
	(void)state;
	assert_false(is_torn(1, true, NEW_STREAM, 0));
	const long n = fake_waits();

	assert_int_equal(n, 4); /* save and restore: after the caller's work, before its next */
	for (long ignored = 1; ignored <= n; ignored++) {
		uint64_t seed = 1;

		while (seed <= SEEDS && !is_torn(seed, true, NEW_STREAM, ignored))
			seed++;
		if (seed > SEEDS)
			fail_msg("without wait %ld nothing was torn", ignored);
	}
}

static void
test_no_host_thread_waits_for_ordered_copies(void **state)
{
	(void)state;
	struct bed b;
	struct device_queue *q;
	struct device_pin *pin;
	struct device_copy copies[N_TENSORS];
	uint64_t unit;

	bed_make(&b, 5, 1, NEW_STREAM);
	OK(device_open(DEVICE_KIND, false, &b.d, err));
	OK(device_pin_new(b.d, 1, NULL, b.host, b.nbytes, &pin, err));
	OK(device_pin_wait(pin, err));
	OK(device_queue_new(b.d, 1, &q, err));
	bed_copies(&b, DEVICE_TO_HOST, copies);
	bed_launch(&b, 1, bed_train);
	OK(device_queue_after(q, b.stream, err));
	OK(device_queue_copy(q, DEVICE_TO_HOST, copies, N_TENSORS, &unit, err));
	OK(device_queue_fence(q, b.stream, err));
	assert_int_equal(b.shadow[0][0], 0); /* nothing has run yet */
	assert_false(fake_is_idle(b.stream));
	OK(device_queue_wait(q, unit, err));
	assert_true(bed_host_is(&b, 1, 0, N_TENSORS));
	device_queue_free(q);
	device_pin_free(pin);
	device_close(b.d);
	assert_int_equal(fake_live(), 0);
	bed_check(&b);
}

/* ------------------------------------------------------------------ failures */

/* Fails the nth call of a save and a restore. False: there are not so many calls. */
static bool
fail_nth(long nth, int result, const char *name)
{
	struct bed b;
	struct pawl_error err = {0};
	bool torn = false;

	bed_make(&b, 7, 2, NEW_STREAM);
	fake_fail(nth, result);
	int rc = save_and_restore(&b, true, &torn, &err);
	const bool was_reached = fake_calls() >= nth;

	if (rc < 0 && (!strstr(err.message, ": ") || (!strstr(err.message, name) && !strstr(err.message, "lost"))))
		fail_msg("call %ld: %s", nth, err.message);
	if (rc == 0 && torn)
		fail_msg("call %ld: torn without an error", nth);
	assert_int_equal(fake_live(), 0);
	bed_check(&b);
	return was_reached;
}

static void
test_any_call_may_fail(void **state)
{
	(void)state;
	static const struct {
		int result;
		const char *name;
	} failures[] = {{2, "CUDA_ERROR_OUT_OF_MEMORY"},
	                {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
	                {801, "CUDA_ERROR_NOT_SUPPORTED"}};

	for (size_t i = 0; i < sizeof(failures) / sizeof(failures[0]); i++) {
		long nth = 1;

		while (fail_nth(nth, failures[i].result, failures[i].name))
			nth++;
		assert_true(nth > 100);
	}
}

static void
test_a_sticky_error_is_recognised(void **state)
{
	(void)state;
	struct bed b;
	struct device_queue *q;
	struct device_copy copies[N_TENSORS];
	uint64_t unit;

	bed_make(&b, 8, 0, NEW_STREAM);
	OK(device_open(DEVICE_KIND, false, &b.d, err));
	OK(device_queue_new(b.d, 0, &q, err));
	bed_copies(&b, DEVICE_TO_HOST, copies);
	assert_false(device_is_lost(b.d));
	fake_fail(3, 700); /* the first call after the context and the mode */
	FAILS(PAWL_EDEVICE, "ILLEGAL_ADDRESS (700): an earlier operation of this process has failed",
	      device_queue_copy(q, DEVICE_TO_HOST, copies, 1, &unit, err));
	assert_true(device_is_lost(b.d));
	FAILS(PAWL_EDEVICE, "lost by an earlier error", device_queue_drain(q, err));
	device_queue_free(q);
	device_close(b.d);
	bed_check(&b);
}

/* The memory may be used again after it. */
static void
test_a_drain_that_fails_waits_all_the_same(void **state)
{
	(void)state;
	struct bed b;
	struct device_pin *pin;
	struct device_queue *q;
	struct device_copy copies[N_TENSORS];
	uint64_t unit;

	bed_make(&b, 9, 0, NEW_STREAM);
	OK(device_open(DEVICE_KIND, false, &b.d, err));
	OK(device_pin_new(b.d, 0, NULL, b.host, b.nbytes, &pin, err));
	OK(device_pin_wait(pin, err));
	OK(device_queue_new(b.d, 0, &q, err));
	bed_copies(&b, DEVICE_TO_HOST, copies);
	bed_train(&(struct bed_step){&b, 1});
	OK(device_queue_copy(q, DEVICE_TO_HOST, copies, N_TENSORS, &unit, err));
	fake_fail(1, 2);
	FAILS(PAWL_ENOMEM, "CUDA_ERROR_OUT_OF_MEMORY", device_queue_drain(q, err));
	assert_true(bed_host_is(&b, 1, 0, N_TENSORS));
	device_queue_free(q);
	device_pin_free(pin);
	device_close(b.d);
	bed_check(&b);
}

/* -------------------------------------------------------------------- copies */

static void
with_queue(uint64_t seed, int ordinal, void (*fn)(struct bed *b, struct device_queue *q))
{
	struct bed b;
	struct device_queue *q;

	bed_make(&b, seed, ordinal, NEW_STREAM);
	OK(device_open(DEVICE_KIND, false, &b.d, err));
	OK(device_queue_new(b.d, ordinal, &q, err));
	fn(&b, q);
	device_queue_free(q);
	device_close(b.d);
	assert_int_equal(fake_live(), 0);
	bed_check(&b);
}

static void
copy_many_small_ones(struct bed *b, struct device_queue *q)
{
	enum { N = 700, SMALL = 128 };
	struct device_copy copies[N];
	uint64_t unit;

	bed_train(&(struct bed_step){b, 1});
	for (size_t i = 0; i < N; i++)
		copies[i] = (struct device_copy){.to = (uint64_t)(uintptr_t)b->host + i * SMALL,
		                                 .from = b->tensors[2] + i * SMALL,
		                                 .nbytes = SMALL,
		                                 .rows = 1};
	OK(device_queue_copy(q, DEVICE_TO_HOST, copies, N, &unit, err));
	OK(device_queue_wait(q, unit, err));
	assert_memory_equal(b->host, b->shadow[2], N * SMALL);
	memset(b->shadow[2], 0, N * SMALL);
	for (size_t i = 0; i < N; i++) {
		copies[i].from = copies[i].to;
		copies[i].to = b->tensors[2] + i * SMALL;
	}
	OK(device_queue_copy(q, DEVICE_FROM_HOST, copies, N, &unit, err));
	OK(device_queue_wait(q, unit, err));
	assert_memory_equal(b->host, b->shadow[2], N * SMALL);
}

#ifndef FAKE_HIP
static void
copy_in_batches(struct bed *b, struct device_queue *q)
{
	copy_many_small_ones(b, q);
	assert_int_equal(fake_batches(), 6); /* of at most 256 copies */
}

static void
copy_where_batches_are_refused(struct bed *b, struct device_queue *q)
{
	fake_set_batch(801);
	copy_many_small_ones(b, q);
	assert_int_equal(fake_batches(), 1);
}
#endif

static void
test_small_copies_go_in_batches(void **state)
{
	(void)state;
#ifdef FAKE_HIP
	with_queue(3, 0, copy_many_small_ones);
#else
	with_queue(3, 0, copy_in_batches);
	with_queue(3, 0, copy_where_batches_are_refused);
#endif
}

/* A tensor of columns, whose host side crosses many borders of registered memory. */
static void
copy_columns(struct bed *b, struct device_queue *q)
{
	enum { ROWS = 900, WIDTH = 24, PITCH = 140 };
	const struct device_copy copy = {.to = (uint64_t)(uintptr_t)b->host + 40,
	                                 .from = b->tensors[2] + 8,
	                                 .nbytes = WIDTH,
	                                 .rows = ROWS,
	                                 .to_pitch = WIDTH,
	                                 .from_pitch = PITCH};
	struct device_pin *pin;
	uint64_t unit;

	b->d->piece_bytes = PAGE;
	OK(device_pin_new(b->d, 0, NULL, b->host, b->nbytes, &pin, err));
	OK(device_pin_wait(pin, err));
	bed_train(&(struct bed_step){b, 1});
	OK(device_queue_copy(q, DEVICE_TO_HOST, &copy, 1, &unit, err));
	OK(device_queue_wait(q, unit, err));
	for (size_t row = 0; row < ROWS; row++)
		assert_memory_equal(b->host + 40 + row * WIDTH, b->shadow[2] + 8 + row * PITCH, WIDTH);
	assert_true(fake_copies_2d() >= ROWS * WIDTH / (int)PAGE);
	assert_true(fake_copies_2d() < ROWS / 10);
	device_pin_free(pin);
}

static void
test_strided_copies_stay_within_registered_pieces(void **state)
{
	(void)state;
	with_queue(4, 0, copy_columns);
}

static void
copy_long(struct bed *b, struct device_queue *q)
{
	const size_t n = DEVICE_COPY_BYTES + 100;
	const uint64_t tensor = fake_alloc(b->ordinal, n);
	char *shadow = fake_shadow(tensor), *host = malloc(n);
	uint64_t unit;

	assert_non_null(host);
	memset(shadow, 7, n);
	OK(device_queue_copy(q, DEVICE_TO_HOST, &(struct device_copy){(uint64_t)(uintptr_t)host, tensor, n, 1, 0, 0}, 1,
	                     &unit, err));
	OK(device_queue_wait(q, unit, err));
	assert_memory_equal(host, shadow, n);
	free(host);
}

static void
test_long_copies_are_cut(void **state)
{
	(void)state;
	with_queue(6, 1, copy_long);
}

static void
copy_many_units(struct bed *b, struct device_queue *q)
{
	enum { N = 1000 };
	struct device_pin *pin;
	uint64_t unit, last = 0;

	OK(device_pin_new(b->d, b->ordinal, NULL, b->host, b->nbytes, &pin, err));
	OK(device_pin_wait(pin, err));
	bed_train(&(struct bed_step){b, 1});
	for (uint64_t i = 0; i < N; i++) {
		const struct device_copy copy = {(uint64_t)(uintptr_t)b->host + i, b->tensors[2] + i, 1, 1, 0, 0};

		OK(device_queue_copy(q, DEVICE_TO_HOST, &copy, 1, &unit, err));
		assert_int_equal(unit, i + 1);
		if (bed_draw(b, 8) == 0) {
			last += 1 + bed_draw(b, unit - last ? unit - last : 1);
			last = last > unit ? unit : last;
			OK(device_queue_wait(q, last, err));
			assert_memory_equal(b->host, b->shadow[2], last);
		}
	}
	OK(device_queue_drain(q, err));
	for (uint64_t i = 1; i <= N; i++)
		assert_int_equal(device_queue_poll(q, i, NULL), 1);
	assert_memory_equal(b->host, b->shadow[2], N);
	device_pin_free(pin);
}

static void
test_units_are_numbered_and_end_in_order(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 20; seed++)
		with_queue(seed, 0, copy_many_units);
}

/* ----------------------------------------------------------------- staging */

static void
stage_saves(struct bed *b, struct device_queue *q)
{
	struct device_copy copies[N_TENSORS], back[N_TENSORS];
	struct device_pin *pin;
	uint64_t staging, unit, at = 0;

	OK(device_pin_new(b->d, b->ordinal, NULL, b->host, b->nbytes, &pin, err));
	OK(device_pin_wait(pin, err));
	OK(device_queue_stage(q, b->nbytes, &staging, err));
	bed_copies(b, DEVICE_TO_HOST, back);
	for (int t = 0; t < N_TENSORS; at += bed_sizes[t++]) {
		copies[t] = (struct device_copy){staging + at, b->tensors[t], bed_sizes[t], 1, 0, 0};
		back[t].from = staging + at;
	}
	for (int step = 1; step <= 2; step++) { /* the second uses the memory while the first may still be copied */
		bed_launch(b, step, bed_train);
		OK(device_queue_copy_staged(q, b->stream, copies, N_TENSORS, err));
		bed_launch(b, 3, bed_train); /* waits for nothing but the copy within the device */
		OK(device_queue_copy(q, DEVICE_TO_HOST, back, N_TENSORS, &unit, err));
		bed_advance(b);
		if (step == 2 || bed_draw(b, 2)) {
			OK(device_queue_wait(q, unit, err));
			assert_true(bed_host_is(b, step, 0, N_TENSORS));
		}
	}
	OK(device_queue_stage(q, b->nbytes / 2, &at, err));
	assert_int_equal(at, staging);
	device_queue_unstage(q);
	device_queue_unstage(q);
	device_pin_free(pin);
}

static void
test_staging_on_the_device_lets_the_training_go_on(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= SEEDS; seed++)
		with_queue(seed, (int)(seed % FAKE_DEVICES), stage_saves);
}

static void
stage_too_much(struct bed *b, struct device_queue *q)
{
	uint64_t at;

	fake_set_memory(1u << 20);
	FAILS(PAWL_ENOMEM, "1048576 bytes free, 1000000 needed", device_queue_stage(q, 1000000, &at, err));
	OK(device_queue_stage(q, 900000, &at, err));
	FAILS(PAWL_EUSAGE, "needs the caller's stream", device_queue_copy_staged(q, DEVICE_NO_STREAM, NULL, 0, err));
	(void)b;
}

static void
test_staging_leaves_a_tenth_free(void **state)
{
	(void)state;
	with_queue(1, 0, stage_too_much);
}

/* ------------------------------------------------------- the program around it */

static void
copy_without_a_stream(struct bed *b, struct device_queue *q)
{
	struct device_copy copies[N_TENSORS];
	struct device_pin *pin;
	uint64_t unit;

	OK(device_pin_new(b->d, b->ordinal, NULL, b->host, b->nbytes, &pin, err));
	OK(device_pin_wait(pin, err));
	bed_copies(b, DEVICE_TO_HOST, copies);
	OK(device_queue_fence(q, DEVICE_NO_STREAM, err)); /* of nothing */
	bed_launch(b, 1, bed_train);
	OK(device_queue_after(q, DEVICE_NO_STREAM, err));
	assert_true(fake_is_idle(b->stream));
	OK(device_queue_copy(q, DEVICE_TO_HOST, copies, N_TENSORS, &unit, err));
	assert_false(bed_host_is(b, 1, 0, N_TENSORS));
	OK(device_queue_fence(q, DEVICE_NO_STREAM, err));
	assert_true(bed_host_is(b, 1, 0, N_TENSORS));
	device_pin_free(pin);
}

static void
test_without_a_stream_the_host_waits(void **state)
{
	(void)state;
	with_queue(1, 2, copy_without_a_stream);
}

static void
copy_during_a_capture(struct bed *b, struct device_queue *q)
{
	const uint64_t other = fake_stream(b->ordinal);
	struct device_copy copies[N_TENSORS];
	struct device_pin *pin;
	uint64_t unit, staging;

	bed_copies(b, DEVICE_TO_HOST, copies);
	bed_launch(b, 1, bed_train);
	fake_capture(b->stream);
	FAILS(PAWL_EBUSY, "graph is being captured", device_queue_after(q, b->stream, err));
	FAILS(PAWL_EBUSY, "graph is being captured", device_queue_after(q, 0, err));
	FAILS(PAWL_EBUSY, "graph is being captured", device_queue_after(q, DEVICE_NO_STREAM, err));
	FAILS(PAWL_EBUSY, "graph is being captured", device_queue_copy_staged(q, b->stream, copies, 0, err));
	fake_capture(other); /* the caller's stream is free */
	OK(device_queue_after(q, b->stream, err));
	OK(device_pin_new(b->d, b->ordinal, NULL, b->host, b->nbytes, &pin, err));
	OK(device_pin_wait(pin, err));
	OK(device_queue_stage(q, 4096, &staging, err));
	OK(device_queue_copy(q, DEVICE_TO_HOST, copies, N_TENSORS, &unit, err));
	fake_capture(b->stream);
	FAILS(PAWL_EBUSY, "graph is being captured", device_queue_fence(q, b->stream, err));
	OK(device_queue_poll(q, unit, err) < 0 ? -1 : 0);
	OK(device_queue_wait(q, unit, err)); /* the way out */
	assert_true(bed_host_is(b, 1, 0, N_TENSORS));
	device_queue_unstage(q);
	device_pin_free(pin);
	assert_false(fake_capture_is_broken());
	fake_capture(0);
}

static void
test_a_capture_of_a_graph_continues(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 20; seed++)
		with_queue(seed, 0, copy_during_a_capture);
}

static void
fork_and_copy(struct bed *b, struct device_queue *q)
{
	const pid_t child = fork();
	int status;

	assert_true(child >= 0);
	if (child == 0) {
		struct pawl_error err = {0};
		struct device_place place;
		struct device_copy copies[N_TENSORS];
		uint64_t unit;

		bed_copies(b, DEVICE_TO_HOST, copies);
		fake_fail(0, 0);
		bool ok = device_queue_after(q, b->stream, &err) == PAWL_EUNSUPPORTED &&
		          strstr(err.message, "forked child") &&
		          device_queue_copy(q, DEVICE_TO_HOST, copies, 1, &unit, &err) == PAWL_EUNSUPPORTED &&
		          device_find(b->d, b->tensors[0], &place, &err) == PAWL_EUNSUPPORTED;
		device_queue_free(q);
		device_close(b->d);
		_exit(ok && fake_calls() == 0 ? 0 : 1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

static void
test_a_forked_child_calls_nothing(void **state)
{
	(void)state;
	with_queue(1, 0, fork_and_copy);
}

struct waiter {
	struct device_queue *q;
	pthread_mutex_t lock;
	pthread_cond_t more;
	uint64_t added;
	int failures;
};

static void *
wait_for_units(void *arg)
{
	struct waiter *w = arg;

	for (uint64_t unit = 1; unit <= 400; unit++) {
		pthread_mutex_lock(&w->lock);
		while (w->added < unit)
			pthread_cond_wait(&w->more, &w->lock);
		pthread_mutex_unlock(&w->lock);
		const bool ended = device_queue_wait(w->q, unit, NULL) == 0 && device_queue_poll(w->q, unit, NULL) == 1;

		pthread_mutex_lock(&w->lock);
		w->failures += !ended;
		pthread_mutex_unlock(&w->lock);
	}
	return NULL;
}

static void
wait_on_threads(struct bed *b, struct device_queue *q)
{
	struct device_copy copies[N_TENSORS];
	pthread_t threads[3];
	struct waiter w = {.q = q, .lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER};
	struct device_pin *pin;

	bed_copies(b, DEVICE_TO_HOST, copies);
	bed_train(&(struct bed_step){b, 1});
	b->d->piece_bytes = PAGE;
	OK(device_pin_new(b->d, b->ordinal, NULL, b->host, b->nbytes, &pin, err)); /* registers meanwhile */
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, wait_for_units, &w), 0);
	for (uint64_t i = 0, unit; i < 400; i++) {
		OK(device_queue_copy(q, DEVICE_TO_HOST, &copies[i % N_TENSORS], 1, &unit, err));
		pthread_mutex_lock(&w.lock);
		w.added = unit;
		pthread_cond_broadcast(&w.more);
		pthread_mutex_unlock(&w.lock);
	}
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(w.failures, 0);
	assert_true(bed_host_is(b, 1, 0, N_TENSORS));
	OK(device_pin_wait(pin, err));
	device_pin_free(pin);
}

static void
test_any_thread_may_wait(void **state)
{
	(void)state;
	with_queue(11, 0, wait_on_threads);
}

static void
copy_of_several(struct bed *b, struct device_queue *q)
{
	struct device_queue *queues[FAKE_DEVICES] = {NULL};
	uint64_t units[FAKE_DEVICES], tensors[FAKE_DEVICES];

	(void)q;
	for (int i = 0; i < FAKE_DEVICES; i++) {
		struct device_place place;

		tensors[i] = fake_alloc(i, PAGE);
		memset(fake_shadow(tensors[i]), 'a' + i, PAGE);
		OK(device_find(b->d, tensors[i] + 5, &place, err));
		OK(device_queue_new(b->d, place.ordinal, &queues[i], err));
		OK(device_queue_after(queues[i], b->stream, err)); /* a stream of another device */
		OK(device_queue_copy(queues[i], DEVICE_TO_HOST,
		                     &(struct device_copy){(uint64_t)(uintptr_t)b->host + (uint64_t)i * PAGE,
		                                           tensors[i], PAGE, 1, 0, 0},
		                     1, &units[i], err));
		OK(device_queue_fence(queues[i], b->stream, err));
	}
	for (int i = 0; i < FAKE_DEVICES; i++) {
		OK(device_queue_wait(queues[i], units[i], err));
		assert_memory_equal(b->host + (size_t)i * PAGE, fake_shadow(tensors[i]), PAGE);
		device_queue_free(queues[i]);
	}
}

static void
test_each_device_has_its_own_stream(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 20; seed++)
		with_queue(seed, 0, copy_of_several);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_order_of_the_device_tears_a_copy),
		cmocka_unit_test(test_each_missing_wait_is_found),
		cmocka_unit_test(test_no_host_thread_waits_for_ordered_copies),
		cmocka_unit_test(test_any_call_may_fail),
		cmocka_unit_test(test_a_sticky_error_is_recognised),
		cmocka_unit_test(test_a_drain_that_fails_waits_all_the_same),
		cmocka_unit_test(test_small_copies_go_in_batches),
		cmocka_unit_test(test_strided_copies_stay_within_registered_pieces),
		cmocka_unit_test(test_long_copies_are_cut),
		cmocka_unit_test(test_units_are_numbered_and_end_in_order),
		cmocka_unit_test(test_staging_on_the_device_lets_the_training_go_on),
		cmocka_unit_test(test_staging_leaves_a_tenth_free),
		cmocka_unit_test(test_without_a_stream_the_host_waits),
		cmocka_unit_test(test_a_capture_of_a_graph_continues),
		cmocka_unit_test(test_a_forked_child_calls_nothing),
		cmocka_unit_test(test_any_thread_may_wait),
		cmocka_unit_test(test_each_device_has_its_own_stream),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
