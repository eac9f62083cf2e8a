/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arena: see arena.h. A fresh page costs several times the copy itself. So regions are huge-page
 * mappings that are faulted in once. A save takes one region and returns it when its bytes are on
 * disk. Promise P16: the limit holds.
 */
#include "save/arena.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/pool.h"
#include "device/device_pin.h"

#define PAGE_BYTES ((size_t)4096)

struct arena_node {
	struct arena_region region;
	size_t wanted_bytes; /* to be faulted in ahead of the next use */
	bool used;
	struct device_pin *pin; /* NULL = not registered with a driver */
	struct arena_node *next;
};

struct pawl_arena {
	size_t limit_bytes;   /* set once */
	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t changed;
	struct arena_node *nodes;
	size_t total_bytes;
	unsigned n_stepping; /* threads that fault in a part of a free region */
	unsigned n_waiting;  /* threads that wait for them; no step begins meanwhile */
};

int
pawl_arena_new(size_t limit_bytes, struct pawl_arena **ret, struct pawl_error *err)
{
	if (!ret)
		return err_set(err, PAWL_EUSAGE, "arena: expected a pointer that receives the handle, found NULL");
	struct pawl_arena *a = mem_zalloc(1, sizeof(*a));
	if (!a)
		return err_nomem(err, "arena");
	a->limit_bytes = limit_bytes;
	pthread_mutex_init(&a->lock, NULL);
	pool_cond_init(&a->changed);
	*ret = a;
	return 0;
}

static void
drop_node(struct pawl_arena *a, struct arena_node *node)
{
	device_pin_free(node->pin);
	munmap(node->region.ptr, node->region.nbytes);
	a->total_bytes -= node->region.nbytes;
	mem_free(node);
}

/* Unmaps free regions; the lock is held. */
static void
drop_unused(struct pawl_arena *a)
{
	struct arena_node **link = &a->nodes;

	while (*link) {
		struct arena_node *node = *link;

		if (node->used) {
			link = &node->next;
			continue;
		}
		*link = node->next;
		drop_node(a, node);
	}
}

void
pawl_arena_free(struct pawl_arena *a)
{
	if (!a)
		return;
	while (a->nodes) {
		struct arena_node *node = a->nodes;

		a->nodes = node->next;
		drop_node(a, node);
	}
	pthread_cond_destroy(&a->changed);
	pthread_mutex_destroy(&a->lock);
	mem_free(a);
}

/* Older kernels: touches every page. No other thread writes there yet. */
static void
touch_pages(char *begin, size_t nbytes)
{
	for (size_t i = 0; i < nbytes; i += PAGE_BYTES) {
		volatile char *page = (volatile char *)begin + i;
		char value = *page;

		*page = value;
	}
}

void
arena_fault_in(void *at, size_t nbytes)
{
	char *begin = (char *)((uintptr_t)at / PAGE_BYTES * PAGE_BYTES);
	size_t whole = (size_t)mem_round_up((uint64_t)((char *)at + nbytes - begin), PAGE_BYTES);

	if (whole && !os_fault_in(begin, whole))
		touch_pages(begin, whole);
}

/* A 2 MiB aligned anonymous mapping, not faulted in: maps one huge page more and cuts both ends. */
static void *
map_aligned(size_t nbytes)
{
	size_t whole = nbytes + ARENA_STEP_BYTES;
	char *raw = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (raw == MAP_FAILED)
		return NULL;
	char *ptr = (char *)mem_round_up((uint64_t)(uintptr_t)raw, ARENA_STEP_BYTES);
	size_t before = (size_t)(ptr - raw);

	if (before)
		munmap(raw, before);
	if (whole - before > nbytes)
		munmap(ptr + nbytes, whole - before - nbytes);
	os_huge_pages(ptr, nbytes);
	return ptr;
}

static struct arena_node *
best_fit(struct pawl_arena *a, size_t nbytes)
{
	struct arena_node *best = NULL;

	for (struct arena_node *n = a->nodes; n; n = n->next)
		if (!n->used && n->region.nbytes >= nbytes && (!best || n->region.nbytes < best->region.nbytes))
			best = n;
	return best;
}

/* The lock is held. */
static int
map_node(struct pawl_arena *a, size_t nbytes, struct arena_node **ret, struct pawl_error *err)
{
	if (a->limit_bytes && a->total_bytes + nbytes > a->limit_bytes)
		drop_unused(a);
	if (a->limit_bytes && a->total_bytes + nbytes > a->limit_bytes)
		return err_set(err, PAWL_ELIMIT, "arena: %zu bytes wanted, %zu of %zu in use", nbytes, a->total_bytes,
		               a->limit_bytes);

	PAWL_FREE struct arena_node *node = mem_zalloc(1, sizeof(*node));

	if (!node)
		return err_nomem(err, "arena");
	node->region.ptr = map_aligned(nbytes);
	if (!node->region.ptr && a->total_bytes) {
		drop_unused(a);
		node->region.ptr = map_aligned(nbytes);
	}
	if (!node->region.ptr)
		return err_set(err, PAWL_ENOMEM, "arena: cannot map %zu bytes of staging memory", nbytes);
	node->region.nbytes = nbytes;
	node->next = a->nodes;
	a->nodes = node;
	a->total_bytes += nbytes;
	*ret = steal(&node);
	return 0;
}

/* A free region of at least nbytes. The lock is held; no step is running afterwards. */
static int
find_or_map(struct pawl_arena *a, size_t nbytes, size_t room_bytes, struct arena_node **ret, struct pawl_error *err)
{
	a->n_waiting++;
	while (a->n_stepping > 0)
		pool_cond_wait_until(&a->changed, &a->lock, -1);
	if (--a->n_waiting == 0)
		pthread_cond_broadcast(&a->changed);
	*ret = best_fit(a, nbytes);
	if (*ret)
		return 0;
	drop_unused(a); /* all of them are too small: the structure has grown */
	return map_node(a, room_bytes, ret, err);
}

static int
round_size(size_t *nbytes, struct pawl_error *err)
{
	if (*nbytes > SIZE_MAX / 4)
		return err_set(err, PAWL_ELIMIT, "arena: %zu bytes cannot be mapped", *nbytes);
	*nbytes = (size_t)mem_round_up(*nbytes ? *nbytes : 1, ARENA_STEP_BYTES);
	return 0;
}

int
arena_take_cold(struct pawl_arena *a, size_t nbytes, struct arena_region *ret, struct pawl_error *err)
{
	struct arena_node *node;

	TRY(round_size(&nbytes, err));
	pthread_mutex_lock(&a->lock);
	int rc = find_or_map(a, nbytes, nbytes, &node, err);

	if (rc == 0) {
		node->used = true;
		if (node->wanted_bytes < nbytes)
			node->wanted_bytes = nbytes;
		*ret = node->region;
		ret->nbytes = nbytes;
		if (ret->warm_bytes > nbytes)
			ret->warm_bytes = nbytes;
	}
	pthread_mutex_unlock(&a->lock);
	return rc;
}

static struct arena_node *
find_node(struct pawl_arena *a, const void *ptr)
{
	struct arena_node *n = a->nodes;

	while (n && n->region.ptr != ptr)
		n = n->next;
	return n;
}

void
arena_note_warm(struct pawl_arena *a, struct arena_region *r, size_t warm_bytes)
{
	warm_bytes = warm_bytes / PAGE_BYTES * PAGE_BYTES;
	if (warm_bytes <= r->warm_bytes)
		return;
	pthread_mutex_lock(&a->lock);
	struct arena_node *node = find_node(a, r->ptr);

	r->warm_bytes = warm_bytes;
	if (node && node->region.warm_bytes < warm_bytes)
		node->region.warm_bytes = warm_bytes;
	pthread_mutex_unlock(&a->lock);
}

int
arena_take(struct pawl_arena *a, size_t nbytes, struct arena_region *ret, struct pawl_error *err)
{
	TRY(arena_take_cold(a, nbytes, ret, err));
	arena_fault_in((char *)ret->ptr + ret->warm_bytes, ret->nbytes - ret->warm_bytes);
	arena_note_warm(a, ret, ret->nbytes);
	return 0;
}

void
arena_give(struct pawl_arena *a, struct arena_region *r)
{
	if (!r->ptr)
		return;
	pthread_mutex_lock(&a->lock);
	struct arena_node *node = find_node(a, r->ptr);

	if (node)
		node->used = false;
	pthread_mutex_unlock(&a->lock);
	*r = (struct arena_region){0};
}

void
arena_pin(struct pawl_arena *a, const struct arena_region *r, struct device *d, int ordinal,
          const struct device_spans *spans)
{
	pthread_mutex_lock(&a->lock);
	for (struct arena_node *n = a->nodes; n; n = n->next)
		if (!n->pin && (!r || n->region.ptr == r->ptr))
			(void)device_pin_new(d, ordinal, spans, n->region.ptr, n->region.nbytes, &n->pin, NULL);
	pthread_mutex_unlock(&a->lock);
}

size_t
arena_registered(struct pawl_arena *a, const struct arena_region *r)
{
	pthread_mutex_lock(&a->lock);
	const struct arena_node *node = r->ptr ? find_node(a, r->ptr) : NULL;
	const size_t ready = node && node->pin ? device_pin_ready(node->pin) : 0;

	pthread_mutex_unlock(&a->lock);
	return ready < r->nbytes ? ready : r->nbytes;
}

int
arena_prepare(struct pawl_arena *a, size_t nbytes, size_t room_bytes, struct pawl_error *err)
{
	struct arena_node *node;

	TRY(round_size(&nbytes, err));
	TRY(round_size(&room_bytes, err));
	if (a->limit_bytes && room_bytes > a->limit_bytes)
		room_bytes = nbytes;
	pthread_mutex_lock(&a->lock);
	int rc = find_or_map(a, nbytes, room_bytes, &node, err);

	if (rc == 0 && node->wanted_bytes < nbytes)
		node->wanted_bytes = nbytes;
	pthread_mutex_unlock(&a->lock);
	return rc;
}

static struct arena_node *
find_cold(struct pawl_arena *a)
{
	struct arena_node *n = a->nodes;

	while (n && (n->used || n->region.warm_bytes >= n->wanted_bytes))
		n = n->next;
	return n;
}

bool
arena_is_cold(struct pawl_arena *a)
{
	pthread_mutex_lock(&a->lock);
	const bool is_cold = find_cold(a) != NULL;

	pthread_mutex_unlock(&a->lock);
	return is_cold;
}

bool
arena_warm_step(struct pawl_arena *a)
{
	pthread_mutex_lock(&a->lock);
	while (a->n_waiting > 0)
		pool_cond_wait_until(&a->changed, &a->lock, -1);
	struct arena_node *node = find_cold(a);

	if (node) {
		char *at = (char *)node->region.ptr + node->region.warm_bytes;
		const size_t left = node->wanted_bytes - node->region.warm_bytes,
			     n = left < ARENA_STEP_BYTES ? left : ARENA_STEP_BYTES;

		node->region.warm_bytes += n;
		a->n_stepping++;
		pthread_mutex_unlock(&a->lock);
		arena_fault_in(at, n);
		pthread_mutex_lock(&a->lock);
		a->n_stepping--;
		pthread_cond_broadcast(&a->changed);
	}
	pthread_mutex_unlock(&a->lock);
	return node != NULL;
}

int
pawl_arena_reserve(struct pawl_arena *a, size_t nbytes, struct pawl_error *err)
{
	struct arena_region r = {0};

	if (!a)
		return err_set(err, PAWL_EUSAGE, "arena: expected an arena, found NULL");
	TRY(arena_take(a, nbytes, &r, err));
	arena_give(a, &r);
	return 0;
}

size_t
pawl_arena_bytes(const struct pawl_arena *a)
{
	struct pawl_arena *m = (struct pawl_arena *)(uintptr_t)a; /* the lock does not belong to the value */
	size_t total;

	if (!a)
		return 0;
	pthread_mutex_lock(&m->lock);
	total = a->total_bytes;
	pthread_mutex_unlock(&m->lock);
	return total;
}
