/* SPDX-License-Identifier: Apache-2.0 */
/*
 * npy: the header of an array as numpy.save writes it <-> dtype and shape. It sees bytes only and
 * runs nothing: a parser for exactly this form reads the header's Python literal.
 *
 *   "\x93NUMPY" | version 1.0, 2.0 or 3.0 | length
 *           | {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } | data
 *
 * Refused by name: arrays of objects (pickles), structured arrays, texts, dates, big-endian arrays,
 * and dtypes that pawl does not have. Limits: header 64 KiB, PAWL_MAX_DIMS dimensions.
 */
#ifndef PAWL_FORMAT_NPY_H
#define PAWL_FORMAT_NPY_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/bump.h"
#include "base/mem.h"
#include "format/source.h"

#define NPY_MAX_HEADER 65536u
#define NPY_SNIFF_BYTES 6u

struct npy {
	int dtype; /* enum pawl_dtype */
	uint32_t ndim;
	const uint64_t *shape;
	const uint64_t *strides; /* in elements; NULL = C order */
	uint64_t begin, nbytes;  /* of its contents, in the source */
};

/* Do these first bytes look like such a file? */
bool npy_looks(const unsigned char *first, size_t n);
/* Reads the header of the array that fills bytes [begin, begin + nbytes) of a source exactly.
 * `what` names it in errors. Memory is the bump's. PAWL_ECORRUPT, PAWL_ELIMIT,
 * PAWL_EUNSUPPORTED. */
int npy_open(const struct source *source, const char *what, uint64_t begin, uint64_t nbytes, struct bump *memory,
             struct npy *ret, struct pawl_error *err);
/* Appends the header of an array in C order, padded to a multiple of 64 bytes. PAWL_EUNSUPPORTED
 * where numpy has no such dtype. */
int npy_encode_header(int dtype, uint32_t ndim, const uint64_t *shape, struct buf *out, struct pawl_error *err);
/* numpy's name for it, such as "<f4"; NULL = it has none. */
const char *npy_descr(int dtype);

#endif
