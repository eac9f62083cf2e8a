/* SPDX-License-Identifier: Apache-2.0 */
/* model_file: safetensors files of another program in the folder of a small_run, opened as
 * checkpoints. */
#ifndef PAWL_TESTS_MODEL_FILE_H
#define PAWL_TESTS_MODEL_FILE_H

#include "helpers/small_run.h"

#define N 300000 /* more than one block of reading */

/* Writes header and data; padded, so that the data begin where the header says. */
static inline void
write_file(struct small_run *r, const char *name, const char *header, const void *data, size_t n)
{
	char path[256];
	unsigned char len[8] = {0};
	size_t header_len = strlen(header);

	snprintf(path, sizeof(path), "%s/%s", r->root, name);
	for (unsigned i = 0; i < 8; i++)
		len[i] = (unsigned char)((uint64_t)header_len >> (8 * i));
	FILE *f = fopen(path, "wb");
	assert_non_null(f);
	assert_int_equal(fwrite(len, 1, 8, f), 8);
	assert_int_equal(fwrite(header, 1, header_len, f), header_len);
	assert_int_equal(fwrite(data, 1, n, f), n);
	assert_int_equal(fclose(f), 0);
}

static inline int
open_named(struct small_run *r, const char *name, struct pawl **ret, struct pawl_error *err)
{
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", r->root, name);
	opts.root = path;
	opts.single = opts.read_only = 1;
	return pawl_open(&opts, ret, err);
}

static inline void
open_file(struct small_run *r, const char *name)
{
	pawl_close(r->run, NULL);
	r->run = NULL;
	OK(open_named(r, name, &r->run, err));
}

/* "layer/w.0": N floats; "half": 2x2 F16; "none": empty; "one": a scalar. */
static inline float *
write_model(struct small_run *r, const char *name)
{
	static float data[N + 3];

	for (size_t i = 0; i < N + 3; i++)
		data[i] = (float)i / 7;
	write_file(r, name,
	           "{\"__metadata__\":{\"format\":\"pt\",\"who\":\"caf\xc3\xa9\"},"
	           "\"layer/w.0\":{\"dtype\":\"F32\",\"shape\":[100,3000],\"data_offsets\":[0,1200000]},"
	           "\"none\":{\"dtype\":\"I64\",\"shape\":[0,4],\"data_offsets\":[1200000,1200000]},"
	           "\"half\":{\"dtype\":\"F16\",\"shape\":[2,2],\"data_offsets\":[1200000,1200008]},"
	           "\"one\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[1200008,1200012]}}",
	           data, sizeof(data));
	return data;
}

#endif
