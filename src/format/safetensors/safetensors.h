/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors: header bytes <-> tensor table. Sees bytes only, never files.
 *
 *   u64 little-endian N | N bytes of JSON | data
 *
 * Reader: strict (duplicate names refused, ranges must tile the data exactly; limits: header <=
 * 100,000,000 bytes, tensors <= 1,000,000, names <= 4,096 bytes, ndim <= 64). Writer: order of the
 * reference writer (dtype descending, then name ascending), header padded with spaces so that the
 * data starts at a multiple of 4,096.
 */
#ifndef PAWL_FORMAT_SAFETENSORS_H
#define PAWL_FORMAT_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/bump.h"
#include "base/mem.h"

#define SAFETENSORS_DATA_ALIGN 4096
#define SAFETENSORS_MAX_HEADER 100000000u

struct st_tensor {
	const char *name;
	int dtype; /* never PAWL_C128: such a tensor is F64 with a last dimension of 2 */
	uint32_t ndim;
	const uint64_t *shape;
	uint64_t begin, end; /* relative to the data */
	size_t tag;          /* the caller's own; safetensors_layout keeps it with the tensor */
};

struct st_pair { /* one entry of __metadata__ */
	const char *key, *value;
	size_t value_len;
};

/* What a file holds. Memory is the bump's. Tensors are in order of begin. */
struct st_table {
	struct st_tensor *tensors;
	size_t n_tensors;
	struct st_pair *metadata;
	size_t n_metadata;
	uint64_t data_begin; /* 8 + N */
	uint64_t data_len;
};

/* Sorts tensors in place into the reference order and assigns begin/end. PAWL_ELIMIT on overflow,
 * PAWL_EUSAGE on a dtype/shape that does not fill bytes. */
int safetensors_layout(struct st_tensor *tensors, size_t n, uint64_t *ret_data_len, struct pawl_error *err);
/* Appends the 8-byte length and the padded header for tensors already laid out; out->len grows to a
 * multiple of 4,096 (when out was empty). */
int safetensors_encode_header(const struct st_tensor *tensors, size_t n, const struct st_pair *metadata,
                              size_t n_metadata, struct buf *out, struct pawl_error *err);
/* The same in two steps, for a table of tensors that is used several times: the text of its
 * entries, and the header around it. */
int safetensors_encode_entries(const struct st_tensor *tensors, size_t n, struct buf *out, struct pawl_error *err);
int safetensors_wrap_entries(struct pawl_slice entries, const struct st_pair *metadata, size_t n_metadata,
                             struct buf *out, struct pawl_error *err);
/* Length of the JSON from the first 8 bytes, checked against the limit and the file size. */
int safetensors_header_len(const char *what, const unsigned char first8[8], uint64_t file_nbytes,
                           uint64_t *ret_json_len, struct pawl_error *err);
/* Decodes the JSON part (json_len bytes at json). file_nbytes: size of the complete file. */
int safetensors_decode(const char *what, const void *json, size_t json_len, uint64_t file_nbytes, struct bump *memory,
                       struct st_table *ret, struct pawl_error *err);
/* Value of a metadata key, or NULL. */
const struct st_pair *safetensors_metadata(const struct st_table *t, const char *key);
/* Bytes of a tensor; PAWL_ECORRUPT on overflow or when the bits do not fill bytes. */
int safetensors_nbytes(int dtype, uint32_t ndim, const uint64_t *shape, uint64_t *ret, struct pawl_error *err);

#endif
