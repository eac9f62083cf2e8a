/* SPDX-License-Identifier: Apache-2.0 */
/*
 * failing_malloc: counts the allocations of a test program, makes them fail one at a time or from
 * one on, and counts those of the library that are alive. malloc and its kin are defined here, so
 * that those of libc count too (opendir, pthread_create). Sanitizers bring their own malloc: with
 * FAULTS_WRAP, the library's allocations are wrapped at link time. Included by one file of a
 * program.
 */
#ifndef PAWL_TESTS_FAILING_MALLOC_H
#define PAWL_TESTS_FAILING_MALLOC_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static struct {
	atomic_bool armed, forever;
	atomic_long nth, seen;
} fault;

static bool
refuse(void)
{
	if (!atomic_load(&fault.armed))
		return false;
	long count = atomic_fetch_add(&fault.seen, 1) + 1, nth = atomic_load(&fault.nth);
	if (count != nth && !(atomic_load(&fault.forever) && count > nth))
		return false;
	errno = ENOMEM;
	return true;
}

static void
arm(long nth, bool forever)
{
	atomic_store(&fault.seen, 0);
	atomic_store(&fault.nth, nth);
	atomic_store(&fault.forever, forever);
	atomic_store(&fault.armed, true);
}

static void
disarm(void)
{
	atomic_store(&fault.armed, false);
}

/* Blocks of the library that are alive: open addressing, 1 marks a place that was given up. */
#define N_PLACES (1u << 18)
static struct {
	pthread_mutex_t lock;
	uintptr_t place[N_PLACES];
	size_t n, n_used;
} live = {.lock = PTHREAD_MUTEX_INITIALIZER};

static size_t
find_place(uintptr_t key)
{
	size_t at = (size_t)((key * 0x9e3779b97f4a7c15u) >> 46) % N_PLACES;

	while (live.place[at] && live.place[at] != key)
		at = (at + 1) % N_PLACES;
	return at;
}

static void
note(void *ptr, bool ours)
{
	if (!ptr || !ours)
		return;
	pthread_mutex_lock(&live.lock);
	if (live.n == 0 && live.n_used > N_PLACES / 4) {
		memset(live.place, 0, sizeof(live.place));
		live.n_used = 0;
	}
	if (live.n_used < N_PLACES / 2) {
		live.place[find_place((uintptr_t)ptr)] = (uintptr_t)ptr;
		live.n_used++;
		live.n++;
	}
	pthread_mutex_unlock(&live.lock);
}

static void
forget(void *ptr)
{
	if (!ptr)
		return;
	pthread_mutex_lock(&live.lock);
	size_t at = find_place((uintptr_t)ptr);
	if (live.place[at]) {
		live.place[at] = 1;
		live.n--;
	}
	pthread_mutex_unlock(&live.lock);
}

static size_t
count_live(void)
{
	pthread_mutex_lock(&live.lock);
	size_t n = live.n;
	pthread_mutex_unlock(&live.lock);
	return n;
}

#ifdef FAULTS_WRAP
#define NAME(fn) __wrap_##fn
#define BENEATH(fn) __real_##fn
#define IS_OURS true
#else
#define NAME(fn) fn
#define BENEATH(fn) __libc_##fn
/* Called by this program, not by libc or cmocka. */
extern const char __executable_start[], etext[];
#define IS_OURS                                                             \
	((const char *)__builtin_return_address(0) >= __executable_start && \
	 (const char *)__builtin_return_address(0) < etext)
#endif

extern void *BENEATH(malloc)(size_t n);
extern void *BENEATH(calloc)(size_t n, size_t size);
extern void *BENEATH(realloc)(void *ptr, size_t n);
extern void BENEATH(free)(void *ptr);
void *NAME(malloc)(size_t n);
void *NAME(calloc)(size_t n, size_t size);
void *NAME(realloc)(void *ptr, size_t n);
void NAME(free)(void *ptr);

void *
NAME(malloc)(size_t n)
{
	void *ptr = refuse() ? NULL : BENEATH(malloc)(n);

	note(ptr, IS_OURS);
	return ptr;
}

void *
NAME(calloc)(size_t n, size_t size)
{
	void *ptr = refuse() ? NULL : BENEATH(calloc)(n, size);

	note(ptr, IS_OURS);
	return ptr;
}

void *
NAME(realloc)(void *old, size_t n)
{
	if (refuse())
		return NULL;
	forget(old); /* first: its address may be given to another thread at once */
	void *ptr = BENEATH(realloc)(old, n);
	note(ptr ? ptr : old, IS_OURS);
	return ptr;
}

void
NAME(free)(void *ptr)
{
	forget(ptr);
	BENEATH(free)(ptr);
}

#endif
