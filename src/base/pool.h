/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool: threads that run jobs from a queue, and groups to wait for. The only place where threads
 * are made. Threads block all signals. A job belongs to the pool once it was added.
 */
#ifndef PAWL_BASE_POOL_H
#define PAWL_BASE_POOL_H

#include <pthread.h>
#include <stdint.h>

#include "pawl.h"

struct pool;
typedef void pool_fn(void *arg);

/* name: <= 15 bytes, shown by top -H. */
int pool_new(const char *name, unsigned threads, struct pool **ret, struct pawl_error *err);
/* The same with threads of lower priority (nice 5, on Linux): for long work that no caller waits
 * for. */
int pool_new_calm(const char *name, unsigned threads, struct pool **ret, struct pawl_error *err);
void pool_free(struct pool *pool); /* runs what is queued, then joins; NULL is fine */
unsigned pool_threads(const struct pool *pool);

/* Jobs added to a group are waited for together. Zero-initialise by pool_group_init. */
struct pool_group {
	pthread_mutex_t lock;
	pthread_cond_t idle;
	unsigned running; /* guarded by lock */
};
void pool_group_init(struct pool_group *g);
void pool_group_clear(struct pool_group *g);
void pool_group_wait(struct pool_group *g);

/* Queues fn(arg) (unbounded queue, one allocation); g may be NULL. PAWL_ENOMEM. */
int pool_add(struct pool *pool, struct pool_group *g, pool_fn *fn, void *arg, struct pawl_error *err);

/* Condition waits against CLOCK_MONOTONIC. pool_cond_init sets the clock; the wait returns 0, or
 * ETIMEDOUT after deadline_ms (of clock_mono_ms; < 0 = never). */
int pool_cond_init(pthread_cond_t *cond);
int pool_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline_ms);

#endif
