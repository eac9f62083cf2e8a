/* SPDX-License-Identifier: Apache-2.0 */
/*
 * st_tool: safetensors files for tests/py/test_safetensors_peer.py, by our own encoder and decoder.
 *
 * "st_tool write FILE" writes one tensor of every dtype, and a scalar, an empty and a C128 one;
 * element bytes count up.
 *
 * "st_tool read FILE" prints
 * {"metadata":{..},"tensors":[{"name","dtype","shape","data":"<hex>"},..]}, or fails.
 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "format/safetensors/safetensors.h"

#define N_DTYPES 22 /* those of the format; C128 is stored as F64 */
#define MAX_FILE_BYTES (64u << 20)

static const uint64_t square[2] = {4, 4}, pairs[2] = {3, 2}, none[2] = {0, 5};

static int
fail(const struct pawl_error *err)
{
	fprintf(stderr, "st_tool: %s\n", err->message);
	return 1;
}

/* Bytes of the i-th tensor as laid out: BOOL holds 0 and 1, the others count up. */
static void
put_data(FILE *file, const struct st_tensor *t)
{
	for (uint64_t i = t->begin; i < t->end; i++)
		fputc(t->dtype == PAWL_BOOL ? (int)(i & 1) : (int)((i * 37 + t->tag) & 0xff), file);
}

static int
write_file(const char *path)
{
	static const struct st_pair metadata[] = {{"format", "pt", 2}, {"note", "caf\xc3\xa9 \"\n", 8}};
	struct st_tensor t[N_DTYPES + 3];
	char names[N_DTYPES][32];
	PAWL_CLEAN(buf_clear) struct buf header = {0};
	struct pawl_error err = {0};
	uint64_t data_len;
	size_t n = 0;

	for (int dtype = PAWL_BOOL; dtype <= PAWL_U64; dtype++, n++) {
		snprintf(names[n], sizeof(names[n]), "all/%s", pawl_dtype_name(dtype));
		t[n] = (struct st_tensor){.name = names[n], .dtype = dtype, .ndim = 2, .shape = square, .tag = n};
	}
	t[n++] = (struct st_tensor){.name = "scalar", .dtype = PAWL_F32};
	t[n++] = (struct st_tensor){.name = "empty \xe2\x82\xac", .dtype = PAWL_F64, .ndim = 2, .shape = none};
	t[n++] = (struct st_tensor){.name = "complex128", .dtype = PAWL_F64, .ndim = 2, .shape = pairs};
	if (safetensors_layout(t, n, &data_len, &err) < 0 ||
	    safetensors_encode_header(t, n, metadata, 2, &header, &err) < 0)
		return fail(&err);
	FILE *file = fopen(path, "wb");
	if (!file)
		return 1;
	fwrite(header.ptr, 1, header.len, file);
	for (size_t i = 0; i < n; i++)
		put_data(file, &t[i]);
	return fclose(file) == 0 ? 0 : 1;
}

static int
load(const char *path, struct buf *out)
{
	FILE *file = fopen(path, "rb");
	size_t n = 0;

	if (!file)
		return -1;
	do {
		char *chunk = buf_grow(out, 65536);
		n = chunk ? fread(chunk, 1, 65536, file) : 0;
		out->len -= chunk ? 65536 - n : 0;
	} while (n > 0 && out->len < MAX_FILE_BYTES);
	fclose(file);
	return out->failed;
}

static void
put_tensor(struct buf *out, const struct st_tensor *t, const unsigned char *data)
{
	buf_puts(out, "{\"name\":");
	json_put_string(out, t->name, strlen(t->name));
	buf_printf(out, ",\"dtype\":\"%s\",\"shape\":[", pawl_dtype_name(t->dtype));
	for (uint32_t d = 0; d < t->ndim; d++)
		buf_printf(out, "%s%llu", d ? "," : "", (unsigned long long)t->shape[d]);
	buf_puts(out, "],\"data\":\"");
	for (uint64_t i = t->begin; i < t->end; i++)
		buf_printf(out, "%02x", data[i]);
	buf_puts(out, "\"}");
}

static int
read_file(const char *path)
{
	PAWL_CLEAN(buf_clear) struct buf bytes = {0}, out = {0};
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct pawl_error err = {0};
	struct st_table table;
	uint64_t json_len;

	if (load(path, &bytes) < 0 || bytes.len < 8)
		return 1;
	const unsigned char *file = (const unsigned char *)bytes.ptr;
	if (safetensors_header_len(path, file, bytes.len, &json_len, &err) < 0 ||
	    safetensors_decode(path, file + 8, (size_t)json_len, bytes.len, &memory, &table, &err) < 0)
		return fail(&err);
	buf_puts(&out, "{\"metadata\":{");
	for (size_t i = 0; i < table.n_metadata; i++) {
		buf_puts(&out, i ? "," : "");
		json_put_string(&out, table.metadata[i].key, strlen(table.metadata[i].key));
		buf_putc(&out, ':');
		json_put_string(&out, table.metadata[i].value, table.metadata[i].value_len);
	}
	buf_puts(&out, "},\"tensors\":[");
	for (size_t i = 0; i < table.n_tensors; i++) {
		buf_puts(&out, i ? "," : "");
		put_tensor(&out, &table.tensors[i], file + table.data_begin);
	}
	buf_puts(&out, "]}");
	puts(buf_str(&out));
	return 0;
}

int
main(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[1], "write") == 0)
		return write_file(argv[2]);
	if (argc == 3 && strcmp(argv[1], "read") == 0)
		return read_file(argv[2]);
	fprintf(stderr, "usage: st_tool write FILE | read FILE\n");
	return 2;
}
