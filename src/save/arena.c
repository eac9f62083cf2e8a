/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arena: kept staging memory. Called by save.c (through arena.h) and by users (pawl_arena_*).
 *
 * Fresh pages cost several times the copy itself, so regions are huge-page mappings that are faulted in once and then
 * only change hands. A save takes one region and gives it back when its bytes are on disk. Promise P16: the limit
 * holds.
 */
#include "save/arena.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>

#include "base/err.h"
#include "base/mem.h"

#define ARENA_ALIGN ((size_t)2 << 20) /* a huge page */
#define PAGE_BYTES ((size_t)4096)

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

struct arena_node {
	struct arena_region region;
	bool used;
	struct arena_node *next;
};

struct pawl_arena {
	size_t limit_bytes;   /* set once */
	pthread_mutex_t lock; /* guards what follows */
	struct arena_node *nodes;
	size_t total_bytes;
};

int
pawl_arena_new(size_t limit_bytes, struct pawl_arena **ret, struct pawl_error *err)
{
	struct pawl_arena *a = mem_zalloc(1, sizeof(*a));

	if (!a)
		return err_set(err, PAWL_ENOMEM, "arena: out of memory");
	a->limit_bytes = limit_bytes;
	pthread_mutex_init(&a->lock, NULL);
	*ret = a;
	return 0;
}

static void
drop_node(struct pawl_arena *a, struct arena_node *node)
{
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
	pthread_mutex_destroy(&a->lock);
	mem_free(a);
}

void
arena_fault_in(void *at, size_t nbytes)
{
	char *begin = (char *)((uintptr_t)at / PAGE_BYTES * PAGE_BYTES);
	size_t whole = (size_t)round_up((uint64_t)((char *)at + nbytes - begin), PAGE_BYTES);

	if (madvise(begin, whole, MADV_POPULATE_WRITE) == 0)
		return;
	/* Older kernels: touch every page. Nobody else writes there yet. */
	for (size_t i = 0; i < whole; i += PAGE_BYTES) {
		volatile char *page = (volatile char *)begin + i;
		char value = *page;

		*page = value;
	}
}

/* A 2 MiB aligned anonymous mapping, not faulted in: maps one huge page more and cuts both ends. */
static void *
map_aligned(size_t nbytes)
{
	size_t whole = nbytes + ARENA_ALIGN;
	char *raw = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (raw == MAP_FAILED)
		return NULL;
	char *ptr = (char *)round_up((uint64_t)(uintptr_t)raw, ARENA_ALIGN);
	size_t before = (size_t)(ptr - raw);

	if (before)
		munmap(raw, before);
	if (whole - before > nbytes)
		munmap(ptr + nbytes, whole - before - nbytes);
#ifdef MADV_HUGEPAGE
	madvise(ptr, nbytes, MADV_HUGEPAGE);
#endif
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
		return err_set(err, PAWL_ENOMEM, "arena: out of memory");
	node->region.ptr = map_aligned(nbytes);
	if (!node->region.ptr && a->total_bytes) {
		drop_unused(a);
		node->region.ptr = map_aligned(nbytes);
	}
	if (!node->region.ptr)
		return err_set(err, PAWL_ENOMEM, "arena: cannot map %zu bytes of staging memory", nbytes);
	node->region.nbytes = nbytes;
	node->region.cold = true;
	node->next = a->nodes;
	a->nodes = node;
	a->total_bytes += nbytes;
	*ret = steal(&node);
	return 0;
}

int
arena_take_cold(struct pawl_arena *a, size_t nbytes, struct arena_region *ret, struct pawl_error *err)
{
	struct arena_node *node;
	int rc = 0;

	if (nbytes > SIZE_MAX / 4)
		return err_set(err, PAWL_ELIMIT, "arena: %zu bytes cannot be mapped", nbytes);
	nbytes = (size_t)round_up(nbytes ? nbytes : 1, ARENA_ALIGN);
	pthread_mutex_lock(&a->lock);
	node = best_fit(a, nbytes);
	if (!node) {
		drop_unused(a); /* all of them are too small: the structure has grown */
		rc = map_node(a, nbytes, &node, err);
	}
	if (rc == 0) {
		node->used = true;
		*ret = node->region;
	}
	pthread_mutex_unlock(&a->lock);
	return rc;
}

void
arena_warm(struct pawl_arena *a, struct arena_region *r)
{
	if (!r->cold)
		return;
	arena_fault_in(r->ptr, r->nbytes);
	r->cold = false;
	pthread_mutex_lock(&a->lock);
	for (struct arena_node *n = a->nodes; n; n = n->next)
		if (n->region.ptr == r->ptr)
			n->region.cold = false;
	pthread_mutex_unlock(&a->lock);
}

int
arena_take(struct pawl_arena *a, size_t nbytes, struct arena_region *ret, struct pawl_error *err)
{
	TRY(arena_take_cold(a, nbytes, ret, err));
	arena_warm(a, ret);
	return 0;
}

void
arena_give(struct pawl_arena *a, struct arena_region *r)
{
	if (!r->ptr)
		return;
	pthread_mutex_lock(&a->lock);
	for (struct arena_node *n = a->nodes; n; n = n->next)
		if (n->region.ptr == r->ptr)
			n->used = false;
	pthread_mutex_unlock(&a->lock);
	r->ptr = NULL;
	r->nbytes = 0;
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
	struct pawl_arena *m = (struct pawl_arena *)(uintptr_t)a; /* the lock is no part of the value */
	size_t total;

	if (!a)
		return 0;
	pthread_mutex_lock(&m->lock);
	total = a->total_bytes;
	pthread_mutex_unlock(&m->lock);
	return total;
}

size_t
arena_limit(const struct pawl_arena *a)
{
	return a->limit_bytes;
}
