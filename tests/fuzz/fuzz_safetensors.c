/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a safetensors file: the first two say how long the data is, the rest is the header.
 * Then all of it is also taken as a file with its own length field. It is refused, or gives a table
 * whose ranges tile the data and that comes back the same when it is written anew. Promises P1,
 * P17.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "format/safetensors/safetensors.h"
#include "fuzz.h"

static void
check_table(const struct st_table *table)
{
	uint64_t at = 0, nbytes;

	for (size_t i = 0; i < table->n_tensors; i++) {
		const struct st_tensor *t = &table->tensors[i];
		if (t->begin != at || t->end < t->begin || !pawl_dtype_name(t->dtype) || t->ndim > PAWL_MAX_DIMS ||
		    safetensors_nbytes(t->dtype, t->ndim, t->shape, &nbytes, NULL) < 0 || nbytes != t->end - t->begin)
			abort();
		at = t->end;
	}
	if (at != table->data_len)
		abort();
}

static void
write_anew(struct st_table *table, struct bump *memory)
{
	struct buf out = {0};
	struct st_table again;
	uint64_t data_len, json_len;

	if (safetensors_layout(table->tensors, table->n_tensors, &data_len, NULL) < 0 || data_len != table->data_len)
		abort();
	if (safetensors_encode_header(table->tensors, table->n_tensors, table->metadata, table->n_metadata, &out,
	                              NULL) < 0)
		abort();
	if (out.len % SAFETENSORS_DATA_ALIGN != 0 ||
	    safetensors_header_len("fuzz", (const unsigned char *)out.ptr, out.len + data_len, &json_len, NULL) < 0 ||
	    safetensors_decode("fuzz", out.ptr + 8, (size_t)json_len, out.len + data_len, memory, &again, NULL) < 0)
		abort();
	check_table(&again);
	if (again.n_tensors != table->n_tensors || again.n_metadata != table->n_metadata)
		abort();
	buf_clear(&out);
}

static void
decode(const uint8_t *json, size_t json_len, uint64_t file_nbytes)
{
	struct bump memory = {0};
	struct st_table table;
	struct pawl_error err = {0};
	int rc = safetensors_decode("fuzz", json, json_len, file_nbytes, &memory, &table, &err);

	if (rc < 0 && (err.code != rc || err.message[0] == '\0'))
		abort();
	if (rc == 0) {
		check_table(&table);
		write_anew(&table, &memory);
	}
	bump_clear(&memory);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint64_t json_len;

	if (size < 8)
		return 0;
	if (safetensors_header_len("fuzz", data, size, &json_len, NULL) == 0)
		decode(data + 8, (size_t)json_len, size);
	decode(data + 2, size - 2, 8 + (uint64_t)(size - 2) + data[0] + 256u * data[1]);
	return 0;
}
