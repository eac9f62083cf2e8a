/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor: copies between a tensor with any strides and its logical contents in C order (P1). Pure
 * but for the memory it is given.
 *
 * A copy first folds the dimensions. Those of extent 1 vanish, neighbours that are adjacent in
 * memory become one, and the innermost stretch of adjacent bytes becomes a "run". The rest is a
 * short nest of loops around memcpy of one run.
 */
#include "state/state.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "format/safetensors/safetensors.h"

bool
tensor_same_extents(const void *a, const void *b, uint32_t ndim)
{
	return ndim == 0 || a == b || (a && b && memcmp(a, b, ndim * sizeof(uint64_t)) == 0);
}

bool
tensor_is_contiguous(const struct pawl_tensor *t)
{
	if (!t->strides)
		return true;
	for (uint32_t d = 0; d < t->ndim; d++) {
		if (t->shape[d] == 0)
			return true;
	}
	uint64_t expected = 1;
	for (uint32_t d = t->ndim; d-- > 0;) {
		if (t->shape[d] == 1)
			continue;
		if (t->strides[d] < 0 || (uint64_t)t->strides[d] != expected)
			return false;
		expected *= t->shape[d];
	}
	return true;
}

/* Every address that the strides can reach must be representable: |sum of (extent - 1) * stride| in
 * bytes fits. */
static bool
strides_fit(const struct pawl_tensor *t, uint64_t item_bytes)
{
	uint64_t reach = 0;

	for (uint32_t d = 0; d < t->ndim; d++) {
		uint64_t size = t->strides[d] < 0 ? 0 - (uint64_t)t->strides[d] : (uint64_t)t->strides[d];
		if (t->shape[d] == 0)
			return true;
		if (!mem_mul_ok(size, item_bytes, &size) || !mem_mul_ok(size, t->shape[d] - 1, &size) ||
		    !mem_add_ok(reach, size, &reach) || reach > INT64_MAX / 2)
			return false;
	}
	return true;
}

int
tensor_nbytes(const struct pawl_tensor *t, uint64_t *ret, struct pawl_error *err)
{
	unsigned bits = pawl_dtype_bits(t->dtype);
	uint64_t nbytes;

	if (bits == 0)
		return err_set(err, PAWL_EUSAGE, "unknown dtype number %d", t->dtype);
	if (t->ndim > PAWL_MAX_DIMS)
		return err_set(err, PAWL_EUSAGE, "%u dimensions, at most %d are possible", t->ndim, PAWL_MAX_DIMS);
	if (t->ndim > 0 && !t->shape)
		return err_set(err, PAWL_EUSAGE, "%u dimensions, but no shape", t->ndim);
	if (safetensors_nbytes(t->dtype, t->ndim, t->shape, &nbytes, err) < 0) {
		if (err)
			err->code = PAWL_EUSAGE; /* the caller's mistake here, not a damaged file */
		return PAWL_EUSAGE;
	}
	if (t->strides && !tensor_is_contiguous(t)) {
		if (bits % 8 != 0)
			return err_set(err, PAWL_EUNSUPPORTED,
			               "strides of a %s tensor: elements of %u bits have no address of their own",
			               pawl_dtype_name(t->dtype), bits);
		if (!strides_fit(t, bits / 8))
			return err_set(err, PAWL_EUSAGE, "strides reach beyond the address space");
	}
	*ret = nbytes;
	return 0;
}

/* ------------------------------------------------------------------- copy */

/* A tensor folded to loops around runs of adjacent bytes. Outermost first; strides in bytes. */
struct fold {
	uint32_t n;
	uint64_t extent[PAWL_MAX_DIMS], index[PAWL_MAX_DIMS];
	int64_t stride[PAWL_MAX_DIMS];
	uint64_t run_bytes;
	char *base;
	int64_t at; /* of the current run, relative to base */
};

static void
fold_dims(struct fold *f, const struct pawl_tensor *t, uint64_t item_bytes)
{
	f->n = 0;
	f->base = t->data;
	f->run_bytes = item_bytes;
	for (uint32_t d = 0; d < t->ndim; d++) {
		if (t->shape[d] == 1) /* its stride may be anything */
			continue;
		int64_t stride = t->strides[d] * (int64_t)item_bytes;

		if (f->n > 0 && f->stride[f->n - 1] == stride * (int64_t)t->shape[d]) {
			f->extent[f->n - 1] *= t->shape[d];
			f->stride[f->n - 1] = stride;
			continue;
		}
		f->extent[f->n] = t->shape[d];
		f->stride[f->n] = stride;
		f->n++;
	}
	if (f->n > 0 && f->stride[f->n - 1] == (int64_t)item_bytes)
		f->run_bytes *= f->extent[--f->n];
}

/* Moves to a run by its number in C order. */
static void
fold_seek(struct fold *f, uint64_t run)
{
	f->at = 0;
	for (uint32_t d = f->n; d-- > 0;) {
		f->index[d] = run % f->extent[d];
		run /= f->extent[d];
		f->at += (int64_t)f->index[d] * f->stride[d];
	}
}

/* Moves n runs further; n reaches at most to the end of the innermost loop. */
static void
fold_advance(struct fold *f, uint64_t n)
{
	for (uint32_t d = f->n; d-- > 0; n = 1) {
		f->index[d] += n;
		f->at += (int64_t)n * f->stride[d];
		if (f->index[d] < f->extent[d])
			return;
		f->at -= (int64_t)f->index[d] * f->stride[d];
		f->index[d] = 0;
	}
}

enum direction { GATHER, SCATTER };

static void
copy_one(enum direction way, char *strided, char *packed, size_t n)
{
	if (way == GATHER)
		memcpy(packed, strided, n);
	else
		memcpy(strided, packed, n);
}

/* Copies n runs, `stride` bytes apart. With a constant length the compiler emits one move. */
static void
copy_runs(enum direction way, char *base, int64_t at, int64_t stride, char *packed, size_t run_bytes, uint64_t n)
{
#define COPY_RUNS(bytes)                                                  \
	for (uint64_t i = 0; i < n; i++, at += stride, packed += (bytes)) \
	copy_one(way, base + at, packed, (bytes))
	switch (run_bytes) {
	case 1:
		COPY_RUNS(1);
		break;
	case 2:
		COPY_RUNS(2);
		break;
	case 4:
		COPY_RUNS(4);
		break;
	case 8:
		COPY_RUNS(8);
		break;
	case 16:
		COPY_RUNS(16);
		break;
	default:
		COPY_RUNS(run_bytes);
	}
#undef COPY_RUNS
}

static void
copy_strided(enum direction way, const struct pawl_tensor *t, uint64_t offset, size_t n, char *packed)
{
	struct fold f;

	if (n == 0)
		return;
	if (tensor_is_contiguous(t)) {
		copy_one(way, (char *)t->data + offset, packed, n);
		return;
	}
	unsigned bits = pawl_dtype_bits(t->dtype);
	fold_dims(&f, t, bits >= 8 ? bits / 8 : 1); /* smaller ones are always contiguous and were copied above */
	fold_seek(&f, offset / f.run_bytes);
	for (size_t within = (size_t)(offset % f.run_bytes); n > 0; within = 0) {
		size_t run_bytes = (size_t)f.run_bytes;
		uint64_t runs = 1;

		if (within > 0 || n < run_bytes) { /* a part of a run */
			run_bytes = run_bytes - within < n ? run_bytes - within : n;
			copy_one(way, f.base + f.at + (ptrdiff_t)within, packed, run_bytes);
		} else {
			uint64_t left = f.n > 0 ? f.extent[f.n - 1] - f.index[f.n - 1] : 1;
			int64_t stride = f.n > 0 ? f.stride[f.n - 1] : 0;

			runs = n / run_bytes < left ? n / run_bytes : left;
			copy_runs(way, f.base, f.at, stride, packed, run_bytes, runs);
		}
		packed += run_bytes * runs;
		n -= run_bytes * (size_t)runs;
		fold_advance(&f, runs);
	}
}

void
tensor_gather(const struct pawl_tensor *t, uint64_t offset, size_t n, void *dst)
{
	copy_strided(GATHER, t, offset, n, dst);
}

void
tensor_scatter(const struct pawl_tensor *t, uint64_t offset, size_t n, const void *src)
{
	union { /* SCATTER only reads through it */
		const void *in;
		char *out;
	} packed = {.in = src};

	copy_strided(SCATTER, t, offset, n, packed.out);
}

int
tensor_fill(const struct state_tensor *t, void *dst, size_t nbytes, struct pawl_error *err)
{
	struct pawl_error why = {0};
	char what[160];
	int rc = t->src.fill(t->src.fill_arg, dst, nbytes, &why);

	snprintf(what, sizeof(what), "tensor '%.120s': its fill function", t->info.name);
	return err_of_caller(err, rc, &why, what);
}
