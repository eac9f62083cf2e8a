/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_bed: a training run whose tensors are on a device of the fake driver. A step writes every
 * tensor by work on the caller's stream, so a copy that is not ordered against it is torn. Include
 * after cmocka.h.
 */
#ifndef PAWL_TESTS_DEVICE_BED_H
#define PAWL_TESTS_DEVICE_BED_H

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/err.h"
#include "device/device_pin.h"
#include "device/device_queue.h"
#include "fake_cuda/fake_cuda.h"

#ifndef DEVICE_KIND
#define DEVICE_KIND DRIVER_CUDA
#endif

#define OK(call)                                                                                                \
	do {                                                                                                    \
		struct pawl_error err_ = {0}, *err = &err_;                                                     \
		if ((call) < 0)                                                                                 \
			fail_msg("%s:%d: %s: %s", __FILE__, __LINE__, pawl_code_name(err->code), err->message); \
	} while (0)

#define FAILS(code_, text_, call)                                                                    \
	do {                                                                                         \
		struct pawl_error err_ = {0}, *err = &err_;                                          \
		int rc_ = (call);                                                                    \
		if (rc_ != (code_) || !strstr(err->message, (text_)))                                \
			fail_msg("%s:%d: expected %s \"%s\", got %s \"%s\"", __FILE__, __LINE__,     \
			         pawl_code_name(code_), (text_), pawl_code_name(rc_), err->message); \
	} while (0)

#define N_TENSORS 5
#define PAGE 4096u
static const size_t bed_sizes[N_TENSORS] = {3 * PAGE + 17, 40, 33 * PAGE, 2, 2 * PAGE};

struct bed_step {
	struct bed *bed;
	int number;
};

struct bed {
	struct device *d;
	int ordinal;
	uint64_t stream;
	uint64_t tensors[N_TENSORS];
	char *shadow[N_TENSORS];
	char *host; /* all tensors, one behind the other */
	size_t nbytes;
	struct bed_step steps[4];
	int seen; /* by a launched bed_look: the number of the step that all bytes are of, or -1 */
	uint64_t random;
};

static inline uint64_t
bed_draw(struct bed *b, uint64_t below)
{
	b->random = b->random * 6364136223846793005u + 1442695040888963407u;
	return (b->random >> 33) % below;
}

static inline char
bed_value(int step, int tensor, size_t at)
{
	return (char)(step * 37 + tensor * 11 + (int)(at % 101));
}

/* As work of the caller's stream. */
static inline void
bed_train(void *arg)
{
	const struct bed_step *s = arg;

	for (int t = 0; t < N_TENSORS; t++)
		for (size_t i = 0; i < bed_sizes[t]; i++)
			s->bed->shadow[t][i] = bed_value(s->number, t, i);
}

static inline void
bed_look(void *arg)
{
	const struct bed_step *s = arg;

	s->bed->seen = s->number;
	for (int t = 0; t < N_TENSORS; t++)
		for (size_t i = 0; i < bed_sizes[t]; i++)
			if (s->bed->shadow[t][i] != bed_value(s->number, t, i))
				s->bed->seen = -1;
}

static inline void
bed_launch(struct bed *b, int step, void (*fn)(void *))
{
	b->steps[step] = (struct bed_step){b, step};
	fake_launch(b->ordinal, b->stream, fn, &b->steps[step]);
}

static inline void
bed_make(struct bed *b, uint64_t seed, int ordinal, uint64_t stream)
{
	*b = (struct bed){.ordinal = ordinal, .random = seed, .stream = stream};
	fake_reset(seed, true);
	if (stream == UINT64_MAX)
		b->stream = fake_stream(ordinal);
	for (int t = 0; t < N_TENSORS; t++) {
		b->tensors[t] = fake_alloc(ordinal, bed_sizes[t]);
		b->shadow[t] = fake_shadow(b->tensors[t]);
		b->nbytes += bed_sizes[t];
	}
	b->host = mmap(NULL, b->nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(b->host, MAP_FAILED);
}

/* Nothing is left over, and the driver was used as it must be. */
static inline void
bed_check(struct bed *b)
{
	fake_run();
	if (fake_misuse())
		fail_msg("%s", fake_misuse());
	assert_int_equal(fake_context_depth(), 0);
	assert_int_equal(fake_capture_mode(), 0);
	munmap(b->host, b->nbytes);
}

/* Copies of all tensors to or from host memory. */
static inline void
bed_copies(struct bed *b, enum device_direction direction, struct device_copy copies[N_TENSORS])
{
	uint64_t host = (uint64_t)(uintptr_t)b->host;

	for (int t = 0; t < N_TENSORS; t++) {
		copies[t] = (struct device_copy){.to = host, .from = b->tensors[t], .nbytes = bed_sizes[t], .rows = 1};
		if (direction == DEVICE_FROM_HOST)
			copies[t] = (struct device_copy){
				.to = b->tensors[t], .from = host, .nbytes = bed_sizes[t], .rows = 1};
		host += bed_sizes[t];
	}
}

static inline bool
bed_host_is(const struct bed *b, int step, int first, int end)
{
	const char *at = b->host;

	for (int t = 0; t < end; at += bed_sizes[t++])
		for (size_t i = 0; t >= first && i < bed_sizes[t]; i++)
			if (at[i] != bed_value(step, t, i))
				return false;
	return true;
}

static inline void
bed_fill_host(struct bed *b, int step)
{
	char *at = b->host;

	for (int t = 0; t < N_TENSORS; at += bed_sizes[t++])
		for (size_t i = 0; i < bed_sizes[t]; i++)
			at[i] = bed_value(step, t, i);
}

static inline void
bed_advance(struct bed *b)
{
	for (uint64_t n = bed_draw(b, 12); n > 0; n--)
		fake_step();
}

#endif
