/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool: a fixed number of threads and one first-in first-out queue. Jobs must not wait for other
 * jobs of the same pool.
 */
#include "base/pool.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/text.h"

#define CALM_NICE 5

struct job {
	struct job *next;
	pool_fn *fn;
	void *arg;
	struct pool_group *group; /* or NULL */
};

struct pool {
	char name[16];
	bool is_calm;
	unsigned n_threads; /* started ones; fixed after pool_new */
	pthread_mutex_t lock;
	pthread_cond_t more;
	struct job *first, *last; /* guarded by lock, as is */
	bool stop;
	pthread_t threads[];
};

static void
group_done(struct pool_group *g)
{
	pthread_mutex_lock(&g->lock);
	if (--g->running == 0)
		pthread_cond_broadcast(&g->idle);
	pthread_mutex_unlock(&g->lock);
}

static void
name_this_thread(const char *name)
{
#if defined(__APPLE__)
	pthread_setname_np(name);
#elif defined(__linux__)
	pthread_setname_np(pthread_self(), name);
#else
	(void)name;
#endif
}

static struct job *
pool_next(struct pool *pool)
{
	pthread_mutex_lock(&pool->lock);
	while (!pool->first && !pool->stop)
		pthread_cond_wait(&pool->more, &pool->lock);
	struct job *job = pool->first;
	if (job) {
		pool->first = job->next;
		if (!pool->first)
			pool->last = NULL;
	}
	pthread_mutex_unlock(&pool->lock);
	return job;
}

/* Linux keeps the nice value for each thread, other systems for the process. */
static void
calm_this_thread(void)
{
#if defined(__linux__)
	setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + CALM_NICE);
#endif
}

static void *
pool_thread(void *arg)
{
	struct pool *pool = arg;
	struct job *job;

	name_this_thread(pool->name);
	if (pool->is_calm)
		calm_this_thread();
	while ((job = pool_next(pool)) != NULL) {
		struct pool_group *group = job->group;
		job->fn(job->arg);
		mem_free(job);
		if (group)
			group_done(group);
	}
	return NULL;
}

static int
pool_start(struct pool *pool, unsigned threads)
{
	sigset_t all, before;
	int rc = 0;

	/* Signals belong to the program's own threads; a new thread inherits the mask. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	for (unsigned i = 0; i < threads && rc == 0; i++) {
		rc = pthread_create(&pool->threads[i], NULL, pool_thread, pool);
		if (rc == 0)
			pool->n_threads++;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return rc;
}

static int
new_pool(const char *name, unsigned threads, bool is_calm, struct pool **ret, struct pawl_error *err)
{
	if (threads == 0 || threads > 1024)
		return err_set(err, PAWL_EUSAGE, "pool %s: expected 1 to 1024 threads, found %u", name, threads);
	struct pool *pool = mem_zalloc(1, sizeof(*pool) + threads * sizeof(pool->threads[0]));
	if (!pool)
		return err_nomem(err, name);
	pool->is_calm = is_calm;
	text_copy(pool->name, sizeof(pool->name), name);
	pthread_mutex_init(&pool->lock, NULL);
	pthread_cond_init(&pool->more, NULL);

	int rc = pool_start(pool, threads);
	if (rc != 0) {
		pool_free(pool);
		return err_sys(err, rc, "pool %s: cannot start a thread", name);
	}
	*ret = pool;
	return 0;
}

int
pool_new(const char *name, unsigned threads, struct pool **ret, struct pawl_error *err)
{
	return new_pool(name, threads, false, ret, err);
}

int
pool_new_calm(const char *name, unsigned threads, struct pool **ret, struct pawl_error *err)
{
	return new_pool(name, threads, true, ret, err);
}

void
pool_free(struct pool *pool)
{
	if (!pool)
		return;
	pthread_mutex_lock(&pool->lock);
	pool->stop = true;
	pthread_cond_broadcast(&pool->more);
	pthread_mutex_unlock(&pool->lock);
	for (unsigned i = 0; i < pool->n_threads; i++)
		pthread_join(pool->threads[i], NULL);
	pthread_cond_destroy(&pool->more);
	pthread_mutex_destroy(&pool->lock);
	mem_free(pool);
}

unsigned
pool_threads(const struct pool *pool)
{
	return pool->n_threads;
}

int
pool_add(struct pool *pool, struct pool_group *g, pool_fn *fn, void *arg, struct pawl_error *err)
{
	struct job *job = mem_alloc(sizeof(*job));

	if (!job)
		return err_nomem(err, pool->name);
	*job = (struct job){.fn = fn, .arg = arg, .group = g};
	/* Counted before it can run, so that a wait that follows cannot miss it. */
	if (g) {
		pthread_mutex_lock(&g->lock);
		g->running++;
		pthread_mutex_unlock(&g->lock);
	}
	pthread_mutex_lock(&pool->lock);
	if (pool->last)
		pool->last->next = job;
	else
		pool->first = job;
	pool->last = job;
	pthread_cond_signal(&pool->more);
	pthread_mutex_unlock(&pool->lock);
	return 0;
}

/* ----------------------------------------------------------------- groups */

void
pool_group_init(struct pool_group *g)
{
	pthread_mutex_init(&g->lock, NULL);
	pthread_cond_init(&g->idle, NULL);
	g->running = 0;
}

void
pool_group_clear(struct pool_group *g)
{
	pthread_cond_destroy(&g->idle);
	pthread_mutex_destroy(&g->lock);
}

void
pool_group_wait(struct pool_group *g)
{
	pthread_mutex_lock(&g->lock);
	while (g->running > 0)
		pthread_cond_wait(&g->idle, &g->lock);
	pthread_mutex_unlock(&g->lock);
}

/* ------------------------------------------------------------- conditions */

int
pool_cond_init(pthread_cond_t *cond)
{
#ifdef __APPLE__
	return pthread_cond_init(cond, NULL); /* waits below are relative there */
#else
	pthread_condattr_t attr;
	int rc = pthread_condattr_init(&attr);

	if (rc != 0)
		return rc;
	rc = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	if (rc == 0)
		rc = pthread_cond_init(cond, &attr);
	pthread_condattr_destroy(&attr);
	return rc;
#endif
}

int
pool_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline_ms)
{
	if (deadline_ms < 0)
		return pthread_cond_wait(cond, lock);
#ifdef __APPLE__
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	int64_t left_ms = deadline_ms - ((int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000);
	if (left_ms <= 0)
		return ETIMEDOUT;
	struct timespec left = {.tv_sec = (time_t)(left_ms / 1000), .tv_nsec = (long)(left_ms % 1000) * 1000000};
	return pthread_cond_timedwait_relative_np(cond, lock, &left);
#else
	struct timespec until = {.tv_sec = (time_t)(deadline_ms / 1000),
	                         .tv_nsec = (long)(deadline_ms % 1000) * 1000000};
	return pthread_cond_timedwait(cond, lock, &until);
#endif
}
