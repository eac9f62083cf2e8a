/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_copies: dimensions that follow each other without a gap become one. What is left is a run
 * of bytes (the row), a dimension of rows, and the dimensions around it.
 */
#include "device/device_copies.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

#define MAX_PITCH ((uint64_t)1 << 31) /* of one 2-D copy, of every driver */

struct grid {
	uint64_t row_bytes;
	uint32_t ndim; /* without the row */
	uint64_t shape[PAWL_MAX_DIMS];
	int64_t stride[PAWL_MAX_DIMS]; /* in bytes */
};

static struct grid
make_grid(const struct pawl_tensor *t, uint64_t element_bytes)
{
	struct grid g = {.row_bytes = element_bytes};
	int64_t dense = (int64_t)element_bytes;

	/* From the innermost dimension outwards; the order is reversed in g. */
	for (uint32_t i = t->ndim; i-- > 0;) {
		int64_t stride = t->strides ? t->strides[i] * (int64_t)element_bytes : dense;

		dense *= (int64_t)t->shape[i];
		if (t->shape[i] == 1)
			continue;
		if (g.ndim == 0 && stride == (int64_t)g.row_bytes) {
			g.row_bytes *= t->shape[i];
		} else if (g.ndim && stride == g.stride[g.ndim - 1] * (int64_t)g.shape[g.ndim - 1]) {
			g.shape[g.ndim - 1] *= t->shape[i];
		} else {
			g.shape[g.ndim] = t->shape[i];
			g.stride[g.ndim++] = stride;
		}
	}
	return g;
}

/* The distance in bytes of a row from the first element. */
static int64_t
row_begin(const struct grid *g, uint64_t row)
{
	int64_t at = 0;

	for (uint32_t i = 0; i < g->ndim; i++) {
		at += (int64_t)(row % g->shape[i]) * g->stride[i];
		row /= g->shape[i];
	}
	return at;
}

/* How many complete rows one copy can take. */
static uint64_t
rows_at(const struct grid *g, uint64_t row, uint64_t nbytes)
{
	if (!g->ndim || g->stride[0] < (int64_t)g->row_bytes || (uint64_t)g->stride[0] >= MAX_PITCH)
		return 1;
	uint64_t left = g->shape[0] - row % g->shape[0], fit = nbytes / g->row_bytes;

	return left < fit ? left : fit;
}

int
device_copies_add(struct device_copies *out, const struct pawl_tensor *t, uint64_t element_bytes, uint64_t offset,
                  uint64_t nbytes, uint64_t bytes, bool to_tensor, struct pawl_error *err)
{
	const struct grid g = make_grid(t, element_bytes);

	while (nbytes) {
		const uint64_t row = offset / g.row_bytes, column = offset % g.row_bytes, left = g.row_bytes - column;
		const uint64_t there = (uint64_t)(uintptr_t)t->data + (uint64_t)row_begin(&g, row) + column;
		struct device_copy *copy = vec_add(&out->list);

		if (!copy)
			return err_nomem(err, "device");
		copy->nbytes = left < nbytes ? left : nbytes;
		copy->rows = !column && nbytes >= g.row_bytes ? rows_at(&g, row, nbytes) : 1;
		copy->to = to_tensor ? there : bytes;
		copy->from = to_tensor ? bytes : there;
		if (copy->rows > 1) {
			copy->to_pitch = to_tensor ? (uint64_t)g.stride[0] : g.row_bytes;
			copy->from_pitch = to_tensor ? g.row_bytes : (uint64_t)g.stride[0];
		}
		const uint64_t n = copy->nbytes * copy->rows;

		offset += n;
		bytes += n;
		nbytes -= n;
	}
	return 0;
}

static int
compare_copies(const void *a, const void *b)
{
	const struct device_copy *x = a, *y = b;

	if (x->to != y->to)
		return x->to < y->to ? -1 : 1;
	if (x->from != y->from)
		return x->from < y->from ? -1 : 1;
	return memcmp(x, y, sizeof(*x));
}

void
device_copies_drop_twins(struct device_copies *c)
{
	size_t n = 0;

	if (c->list.n < 2)
		return;
	qsort(c->list.items, c->list.n, sizeof(*c->list.items), compare_copies);
	for (size_t i = 0; i < c->list.n; i++)
		if (!n || compare_copies(&c->list.items[n - 1], &c->list.items[i]) != 0)
			c->list.items[n++] = c->list.items[i];
	c->list.n = n;
}

void
device_copies_clear(struct device_copies *c)
{
	vec_free(&c->list);
}
