/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_codec: any bytes as a compressed file, read as a stream and by ranges. Both give the same,
 * or an error that names the file, and never more than the limit. Also any bytes are compressed,
 * and must come back. The first byte chooses the format and which of the two. lzo is not here: a
 * program unpacks it. Promises P1, P16, P17.
 */
#include <stdlib.h>
#include <string.h>

#include "format/codec/codec.h"
#include "fuzz.h"

#define MAX_PLAIN ((size_t)1 << 20)
#define PIECE 1000u

static const char *const names[] = {"f.gz", "f.bz2", "f.lz4", "f.lzma", "f.xz", "f.zst", "f.planes"};

static int
keep(void *arg, const void *ptr, size_t n, struct pawl_error *err)
{
	struct bytes *b = arg;

	(void)err;
	if (b->n + n > b->cap) {
		b->cap = 2 * (b->n + n);
		b->ptr = realloc(b->ptr, b->cap);
		check(b->ptr != NULL);
	}
	if (n > 0)
		memcpy(b->ptr + b->n, ptr, n);
	b->n += n;
	return 0;
}

static int
judge(int rc, const struct pawl_error *err)
{
	check(rc >= 0 || (err->code == rc && strstr(err->message, "packed") &&
	                  (rc == PAWL_ECORRUPT || rc == PAWL_ELIMIT || rc == PAWL_EUNSUPPORTED)));
	return rc;
}

static int
read_stream(const struct codec *codec, const struct source *compressed, struct bytes *plain)
{
	const struct codec_limits limits = {.max_bytes = MAX_PLAIN};
	struct codec_reader *reader = NULL;
	struct pawl_error err = {0};
	uint8_t piece[PIECE];
	size_t n = PIECE;

	int rc = judge(codec_reader_new(codec, compressed, &limits, &reader, &err), &err);
	while (rc == 0 && n == PIECE) {
		rc = judge(codec_reader_get(reader, piece, PIECE, &n, &err), &err);
		if (rc == 0)
			keep(plain, piece, n, NULL);
	}
	check(plain->n <= MAX_PLAIN);
	codec_reader_free(reader);
	return rc;
}

/* From the last piece to the first. */
static int
read_ranges(const struct codec *codec, const struct source *compressed, struct bytes *plain)
{
	const struct codec_limits limits = {.max_bytes = MAX_PLAIN};
	struct codec_source *source = NULL;
	struct pawl_error err = {0};

	int rc = judge(codec_source_open(codec, compressed, &limits, &source, &err), &err);
	if (rc < 0)
		return rc;
	const struct source *s = codec_source_plain(source);
	check(s->nbytes <= MAX_PLAIN);
	plain->n = (size_t)s->nbytes;
	plain->ptr = malloc(plain->n + 1);
	check(plain->ptr != NULL);
	/* Without frames every step back unpacks all from the beginning. */
	const size_t piece = codec_source_has_frames(source) ? PIECE : plain->n / 2 + 1;
	for (size_t end = plain->n; rc == 0 && end > 0;) {
		const size_t n = end < piece ? end : piece;

		end -= n;
		rc = judge(source_read(s, end, plain->ptr + end, n, &err), &err);
	}
	codec_source_close(source);
	return rc;
}

static void
clear(struct bytes *b)
{
	free(b->ptr);
	*b = (struct bytes){0};
}

/* 0 = both were read, and are the same. */
static int
read_both(const struct codec *codec, struct bytes *b, struct bytes *ret)
{
	const struct source compressed = {.what = "packed", .nbytes = b->n, .read = read_bytes, .arg = b};
	struct bytes ranges = {0};

	const int as_stream = read_stream(codec, &compressed, ret),
		  by_ranges = read_ranges(codec, &compressed, &ranges);
	if (as_stream == 0 && by_ranges == 0)
		check(ret->n == ranges.n && (ret->n == 0 || memcmp(ret->ptr, ranges.ptr, ret->n) == 0));
	clear(&ranges);
	return as_stream == 0 && by_ranges == 0 ? 0 : -1;
}

static void
there_and_back(const struct codec *codec, const uint8_t *data, size_t size)
{
	struct codec_writer *writer = NULL;
	struct bytes compressed = {0}, plain = {0};

	check(codec_writer_new(codec, 1, 1, keep, &compressed, &writer, NULL) == 0);
	check(codec_writer_put(writer, data, size / 2, NULL) == 0);
	check(codec_writer_put(writer, data + size / 2, size - size / 2, NULL) == 0);
	check(codec_writer_finish(writer, NULL, NULL, NULL) == 0);
	codec_writer_free(writer);
	check(read_both(codec, &compressed, &plain) == 0);
	check(plain.n == size && (size == 0 || memcmp(plain.ptr, data, size) == 0));
	clear(&compressed);
	clear(&plain);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct bytes plain = {0};

	if (size == 0)
		return 0;
	const unsigned n = sizeof(names) / sizeof(names[0]);
	const struct codec *codec = codec_of_name(names[data[0] % n]);
	check(codec != NULL);
	if (data[0] >= 246) {
		there_and_back(codec, data + 1, size - 1);
		return 0;
	}
	struct bytes compressed = {.ptr = malloc(size), .n = size - 1};
	check(compressed.ptr != NULL);
	memcpy(compressed.ptr, data + 1, size - 1);
	(void)read_both(codec, &compressed, &plain);
	clear(&compressed);
	clear(&plain);
	return 0;
}
