/* SPDX-License-Identifier: Apache-2.0 */
/* fake_own: what the two halves of the fake driver share. fake.lock guards everything. */
#ifndef PAWL_TESTS_FAKE_OWN_H
#define PAWL_TESTS_FAKE_OWN_H

#include <pthread.h>

#include "fake_cuda/fake_cuda.h"

enum {
	OK = 0,
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	NOT_INITIALIZED = 3,
	DEINITIALIZED = 4,
	INVALID_DEVICE = 101,
	INVALID_CONTEXT = 201,
	INVALID_HANDLE = 400,
	NOT_READY = 600,
	ILLEGAL_ADDRESS = 700,
	ALREADY_REGISTERED = 712,
	NOT_REGISTERED = 713,
	NOT_PERMITTED = 800,
	CAPTURE_UNSUPPORTED = 900,
	CAPTURE_IMPLICIT = 906
};

enum { GLOBAL, THREAD_LOCAL, RELAXED };

struct context {
	int ordinal;
	long retained;
};

/* Objects are kept after their end until fake_reset, to recognise their use. */
struct stream {
	struct stream *next;
	struct context *ctx;
	bool is_alive, is_blocking, is_legacy, is_callers, is_held;
	pthread_t thread; /* of a per-thread default stream */
	bool is_per_thread;
	struct op *first, *last;
	size_t n_ops;
};

struct event {
	struct event *next;
	struct context *ctx;
	bool is_alive;
	uint64_t recorded, done;
};

struct memory {
	struct memory *next;
	int ordinal;
	bool is_alive, is_managed, is_callers;
	char *address, *shadow;
	size_t n;
};

struct registration {
	struct registration *next;
	bool is_alive;
	char *ptr;
	size_t n;
	long in_flight;
};

struct side {
	uint64_t at;
	size_t pitch;
};

struct op {
	struct op *next;
	enum { OP_COPY, OP_LAUNCH, OP_RECORD, OP_WAIT } kind;
	uint64_t number;
	struct side to, from;
	size_t width, rows, done; /* bytes */
	struct registration *host;
	void (*fn)(void *arg);
	void *arg;
	struct event *event;
	uint64_t version;
	bool *ret_done;
};

struct fake {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint64_t random, next_number;
	pid_t pid; /* that initialised the driver; its children cannot use it */
	bool is_initialised, hide_addresses, hide_first;
	int sticky;
	long calls, fail_nth, waits, ignore_nth, batches, copies_2d;
	int fail_result, batch_result;
	size_t n_free, registrable, queue, longest;
	size_t copied[FAKE_DEVICES]; /* by streams of the library */
	size_t most_copied;
	bool was_full, ends_early;
	struct context contexts[FAKE_DEVICES];
	struct stream *streams;
	struct event *events;
	struct memory *memory;
	struct registration *registrations;
	struct stream *captured;
	pthread_t capturer;
	bool capture_is_broken;
	char misuse[256];
};
extern struct fake fake;

struct fake_thread {
	struct context *stack[16];
	int depth, device, mode;
};
extern _Thread_local struct fake_thread fake_thread;

void fake_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
struct context *fake_current(void);
struct stream *fake_new_stream(struct context *ctx);
/* The stream of a handle, or NULL and a note. */
struct stream *fake_find_stream(void *handle, const char *call);
struct event *fake_find_event(void *handle, const char *call);
struct memory *fake_find_memory(uint64_t address);
/* The registration that holds all of [ptr, ptr + n). false: it crosses the border of one. */
bool fake_find_registration(uint64_t ptr, size_t n, struct registration **ret);
struct op *fake_add(struct stream *s, struct op op);
bool fake_step_locked(void);
/* Advances, or waits for other threads, until *done. */
void fake_wait_locked(const bool *done);
bool fake_is_used(const char *begin, size_t n); /* by work that is not done */
void fake_drop_work(void);
void *fake_zalloc(size_t n);

#endif
