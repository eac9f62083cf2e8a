/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of compressed files (R82): every format, every size around a frame, one thread and
 * several; ranges. The tools of the system read what is written and write what is read. Files are
 * cut at every byte, flipped, followed by other bytes; also bombs, and every allocation failing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/proc.h"
#include "format/codec/codec_own.h"
#include "helpers/codecs.h"
#include "helpers/failing_malloc.h"
#include "helpers/scratch.h"

/* The libraries of some formats allocate by themselves; the program is another process. */
static const char *const names[] = {"x.gz", "x.bz2", "x.lz4", "x.zst", "x.planes", "x.xz", "x.lzma", "x.lzo"};
#define N_NAMES (sizeof(names) / sizeof(names[0]))
static const struct {
	const char *name;
	int fast; /* level */
	const char *pack, *unpack;
} tools[] = {
	{"x.gz", 1, "gzip -c", "gzip -dc"},  {"x.bz2", 1, "bzip2 -c", "bzip2 -dc"},
	{"x.lz4", 1, "lz4 -qc", "lz4 -dqc"}, {"x.zst", 1, "zstd -qc", "zstd -dqc"},
	{"x.xz", 0, "xz -0c", "xz -dc"},     {"x.lzma", 0, "lzma -0c", "lzma -dc"},
	{"x.lzo", 1, "lzop -c", "lzop -dc"},
};

static char *
make_bytes(size_t n, bool dull)
{
	char *p = malloc(n + 1);
	uint64_t x = 88172645463325252u;

	assert_non_null(p);
	for (size_t i = 0; i < n; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		p[i] = (char)(dull ? "weights "[i % 8] + (i % 4096 == 0 ? (int)(x & 63) : 0) : (int)(x & 15));
	}
	return p;
}

static int
put_sink(void *arg, const void *ptr, size_t n, struct pawl_error *err)
{
	struct buf *b = arg;

	buf_put(b, ptr, n);
	return buf_check(b, "sink", err);
}

static int
read_bytes(void *arg, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	const struct buf *b = arg;

	(void)err;
	assert_true(offset <= b->len && n <= b->len - offset);
	memcpy(dst, b->ptr + offset, n);
	return 0;
}

static struct source
source_of(struct buf *b)
{
	return (struct source){.what = "file", .nbytes = b->len, .read = read_bytes, .arg = b};
}

/* piece: how much is put at once. */
static int
pack(const struct codec *codec, int level, unsigned threads, const char *ptr, size_t n, size_t piece, struct buf *out,
     struct pawl_error *err)
{
	struct codec_writer *w = NULL;
	uint64_t in = 0, compressed = 0;
	int rc = codec_writer_new(codec, level, threads, put_sink, out, &w, err);

	for (size_t at = 0; rc == 0 && at < n; at += piece)
		rc = codec_writer_put(w, ptr + at, n - at < piece ? n - at : piece, err);
	if (rc == 0)
		rc = codec_writer_finish(w, &in, &compressed, err);
	codec_writer_free(w);
	if (rc == 0) {
		assert_int_equal(in, n);
		assert_int_equal(compressed, out->len);
	}
	return rc;
}

static void
pack_well(const char *name, const char *ptr, size_t n, struct buf *out)
{
	struct pawl_error err = {0};

	if (pack(codec_of_name(name), 1, 2, ptr, n, 100000, out, &err) < 0)
		fail_msg("%s: %s", name, err.message);
}

/* Everything through a reader, in pieces. The caller frees *ret. */
static int
unpack(const struct codec *codec, struct buf *compressed, size_t piece, const struct codec_limits *limits,
       struct buf *ret, struct pawl_error *err)
{
	const struct source source = source_of(compressed);
	struct codec_reader *r = NULL;
	size_t n = piece;
	int rc = codec_reader_new(codec, &source, limits, &r, err);

	while (rc == 0 && n == piece) {
		char *p = buf_grow(ret, piece);
		assert_non_null(p);
		rc = codec_reader_get(r, p, piece, &n, err);
		ret->len -= rc == 0 ? piece - n : piece;
	}
	codec_reader_free(r);
	return rc;
}

static void
check_same(const char *name, const char *ptr, size_t n, const struct buf *b)
{
	if (b->len != n || (n > 0 && memcmp(ptr, b->ptr, n) != 0))
		fail_msg("%s: expected %zu bytes, found %zu or others", name, n, b->len);
}

/* Ranges of a source, in no order. */
static void
check_ranges(const char *name, const struct codec_source *s, const char *ptr, size_t n)
{
	const struct source *plain = codec_source_plain(s);
	struct pawl_error err = {0};

	assert_int_equal(plain->nbytes, n);
	for (unsigned i = 0; i < 12 && n > 0; i++) {
		const size_t at = (size_t)(i * 2654435761u) % n, most = i % 3 ? 5000 : n;
		const size_t len = n - at < most ? n - at : most;
		char *p = malloc(len);

		if (source_read(plain, at, p, len, &err) < 0 || memcmp(p, ptr + at, len) != 0)
			fail_msg("%s: %zu bytes at %zu of %zu: %s", name, len, at, n, err.message);
		free(p);
	}
	assert_int_equal(source_read(plain, n, (char[1]){0}, 1, &err), PAWL_ECORRUPT);
}

static int
temp_read(void *arg, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	return read_bytes(arg, offset, dst, n, err);
}

/* ---------------------------------------------------------------- round trips */

static void
round_trip(const char *name, const char *ptr, size_t n, unsigned threads)
{
	const struct codec *codec = codec_of_name(name);
	struct buf compressed = {0}, back = {0}, kept = {0};
	const struct codec_temp temp = {put_sink, temp_read, &kept};
	const struct codec_limits limits = {.temp = &temp};
	struct pawl_error err = {0};
	struct codec_source *s;

	if (pack(codec, 1, threads, ptr, n, 777777, &compressed, &err) < 0 ||
	    unpack(codec, &compressed, 100003, NULL, &back, &err) < 0)
		fail_msg("%s: %s", name, err.message);
	check_same(name, ptr, n, &back);
	if (codec->n_magic > 0)
		assert_ptr_equal(codec_of_bytes(compressed.ptr, compressed.len), codec);
	const struct source source = source_of(&compressed);
	assert_int_equal(codec_source_open(codec, &source, &limits, &s, &err), 0);
	check_ranges(name, s, ptr, n);
	/* What is said in the header of codec.h about who needs no temporary file. */
	const bool framed = codec->table != NULL && n > 0;
	assert_int_equal(codec_source_has_frames(s), framed);
	assert_int_equal(kept.len, framed ? 0 : n);
	codec_source_close(s);
	buf_clear(&compressed);
	buf_clear(&back);
	buf_clear(&kept);
}

static void
test_every_size_comes_back(void **state)
{
	(void)state;
	for (size_t i = 0; i < N_NAMES; i++) {
		if (!codec_is_built(names[i]))
			continue;
		const size_t frame = codec_of_name(names[i])->frame_bytes;
		const size_t sizes[] = {0, 1, 100, frame - 1, frame, frame + 1, 2 * frame, 2 * frame + frame / 3};
		const bool slow = strcmp(names[i], "x.bz2") == 0 || strcmp(names[i], "x.xz") == 0;
		const size_t n_sizes = slow ? 6 : 8;
		char *ptr = make_bytes(3 * frame, strcmp(names[i], "x.bz2") != 0); /* which hates repetitions */

		for (size_t k = 0; k < n_sizes; k++)
			round_trip(names[i], ptr, sizes[k], k % 2 ? 1 : 3);
		free(ptr);
	}
}

static void
test_several_threads_write_the_same_bytes_as_one(void **state)
{
	char *ptr = make_bytes(9u << 20, false);

	(void)state;
	for (size_t i = 2; i < 5; i++) {
		if (!codec_is_built(names[i]))
			continue;
		struct buf one = {0}, many = {0};

		assert_int_equal(pack(codec_of_name(names[i]), 1, 1, ptr, 9u << 20, 1 << 20, &one, NULL), 0);
		assert_int_equal(pack(codec_of_name(names[i]), 1, 4, ptr, 9u << 20, 12345, &many, NULL), 0);
		check_same(names[i], one.ptr, one.len, &many);
		buf_clear(&one);
		buf_clear(&many);
	}
	free(ptr);
}

static void
test_levels_are_checked_and_have_an_effect(void **state)
{
	char *ptr = make_bytes(300000, false);
	struct pawl_error err;

	(void)state;
	for (size_t i = 0; i < N_NAMES; i++) {
		if (!codec_is_built(names[i]))
			continue;
		const struct codec *codec = codec_of_name(names[i]);
		struct codec_writer *w = NULL;

		assert_int_equal(codec_writer_new(codec, 99, 1, put_sink, NULL, &w, &err), PAWL_EUSAGE);
		assert_non_null(strstr(err.message, "expected a level of 1 to"));
		assert_int_equal(codec_writer_new(codec, -1, 1, put_sink, NULL, &w, &err), PAWL_EUSAGE);
		assert_null(w);
		struct buf usual = {0}, default_level = {0}, best = {0};
		assert_int_equal(pack(codec, 0, 1, ptr, 300000, 300000, &usual, &err), 0);
		assert_int_equal(pack(codec, codec->default_level, 1, ptr, 300000, 300000, &default_level, &err), 0);
		assert_int_equal(pack(codec, codec->max_level, 1, ptr, 300000, 300000, &best, &err), 0);
		assert_int_equal(usual.len, default_level.len);
		assert_true(best.len <= usual.len);
		buf_clear(&usual);
		buf_clear(&default_level);
		buf_clear(&best);
	}
	free(ptr);
}

/* A format that the build leaves out is named, for reading and for writing. */
static void
test_an_absent_format_is_named(void **state)
{
	(void)state;
	for (size_t i = 0; i < N_NAMES; i++) {
		if (!codec_is_built(names[i]))
			continue;
		struct buf compressed = {0}, back = {0};
		struct pawl_error err = {0};
		if (codec_is_built(names[i]))
			continue;
		const struct codec *codec = codec_of_name(names[i]);
		buf_puts(&compressed, "something");
		assert_int_equal(pack(codec, 1, 1, "x", 1, 1, &back, &err), PAWL_EUNSUPPORTED);
		assert_non_null(strstr(err.message, "was built without"));
		assert_int_equal(unpack(codec, &compressed, 10, NULL, &back, &err), PAWL_EUNSUPPORTED);
		assert_non_null(strstr(err.message, "was built without"));
		buf_clear(&compressed);
		buf_clear(&back);
	}
}

static void
test_names_say_the_format(void **state)
{
	(void)state;
	assert_string_equal(codec_name(codec_of_name("ep1.pt.zst")), "zst");
	assert_int_equal(codec_stem_len(codec_of_name("ep1.pt.zst"), "ep1.pt.zst"), 6);
	assert_string_equal(codec_name(codec_of_name("a.lzma")), "lzma");
	assert_null(codec_of_name("a.pt"));
	assert_null(codec_of_name(".gz"));
	assert_null(codec_of_name(""));
	assert_null(codec_of_bytes("plain text", 10));
}

/* ------------------------------------------------------------- the real tools */

static void
write_file(const char *path, const char *ptr, size_t n)
{
	FILE *f = fopen(path, "wb");

	assert_non_null(f);
	assert_int_equal(fwrite(ptr, 1, n, f), n);
	assert_int_equal(fclose(f), 0);
}

static void
run_tool(const char *command, const char *path, struct buf *out)
{
	char line[512];
	struct pawl_error err = {0};
	char *const argv[] = {(char *)"sh", (char *)"-c", line, NULL};

	snprintf(line, sizeof(line), "%s < %s", command, path);
	if (proc_capture(argv, 60000, (size_t)1 << 30, out, &err) < 0)
		fail_msg("%s: %s", line, err.message);
}

static void
test_the_tools_read_ours_and_we_read_theirs(void **state)
{
	const size_t frames = 4500000; /* more than one, where they are small */
	char folder[256], path[300];
	char *ptr = make_bytes(frames, false);

	(void)state;
	assert_int_equal(scratch_make(folder, sizeof(folder), "codec"), 0);
	snprintf(path, sizeof(path), "%s/f", folder);
	for (size_t i = 0; i < sizeof(tools) / sizeof(tools[0]); i++) {
		if (!codec_is_built(tools[i].name))
			continue;
		const bool small = codec_of_name(tools[i].name)->frame_bytes < frames;
		const size_t sizes[] = {0, 10, small ? frames : 300000};

		for (size_t k = 0; k < 3; k++) {
			struct buf ours = {0}, theirs = {0}, by_them = {0}, by_us = {0};
			struct pawl_error err = {0};

			pack_well(tools[i].name, ptr, sizes[k], &ours);
			write_file(path, ours.ptr, ours.len);
			run_tool(tools[i].unpack, path, &by_them);
			check_same(tools[i].unpack, ptr, sizes[k], &by_them);

			write_file(path, ptr, sizes[k]);
			run_tool(tools[i].pack, path, &theirs);
			if (unpack(codec_of_name(tools[i].name), &theirs, 65536, NULL, &by_us, &err) < 0)
				fail_msg("%s: %s", tools[i].pack, err.message);
			check_same(tools[i].pack, ptr, sizes[k], &by_us);
			buf_clear(&ours);
			buf_clear(&theirs);
			buf_clear(&by_them);
			buf_clear(&by_us);
		}
	}
	scratch_remove(folder);
	free(ptr);
}

static void
test_files_of_the_tools_are_read_at_any_offset(void **state)
{
	static const struct {
		const char *name, *command;
		bool frames;
	} cases[] = {
		{"x.gz", "gzip -1c", false},   {"x.xz", "xz -0c --block-size=100000", true},
		{"x.xz", "xz -0c -T1", true},  {"x.zst", "zstd -qc", false},
		{"x.lz4", "lz4 -qc", false},   {"x.lzma", "xz -0c", true},
		{"x.bz2", "bzip2 -1c", false},
	};
	const size_t n = 700000;
	char folder[256], path[300];
	char *ptr = make_bytes(n, false);

	(void)state;
	assert_int_equal(scratch_make(folder, sizeof(folder), "codec"), 0);
	snprintf(path, sizeof(path), "%s/f", folder);
	write_file(path, ptr, n);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (!codec_is_built(cases[i].name))
			continue;
		struct buf compressed = {0};
		struct codec_source *s;
		struct pawl_error err = {0};

		run_tool(cases[i].command, path, &compressed);
		const struct source source = source_of(&compressed);
		if (codec_source_open(codec_of_name(cases[i].name), &source, NULL, &s, &err) < 0)
			fail_msg("%s: %s", cases[i].command, err.message);
		assert_int_equal(codec_source_has_frames(s), cases[i].frames);
		check_ranges(cases[i].command, s, ptr, n);
		codec_source_close(s);
		buf_clear(&compressed);
	}
	scratch_remove(folder);
	free(ptr);
}

static void
test_without_lzop_it_is_named(void **state)
{
	char *path = strdup(getenv("PATH"));
	struct codec_reader *r = NULL;
	struct pawl_error err = {0};
	struct buf out = {0};

	(void)state;
	setenv("PATH", "/nonexistent", 1);
	const int compressed = pack(codec_of_name("x.lzo"), 0, 1, "abc", 3, 3, &out, &err);
	assert_int_equal(compressed, PAWL_EUNSUPPORTED);
	assert_string_equal(err.message, "cannot be compressed as lzo: needs the program lzop, which is not installed");
	const struct source source = source_of(&out);
	assert_int_equal(codec_reader_new(codec_of_name("x.lzo"), &source, NULL, &r, &err), PAWL_EUNSUPPORTED);
	assert_string_equal(err.message, "file: at byte 0 of 0: needs the program lzop, which is not installed");
	setenv("PATH", path, 1);
	free(path);
	buf_clear(&out);
}

/* ----------------------------------------------------------- damaged, hostile */

/* Both ways to read it: the same bytes, or refused. Returns how it went. */
static int
try_both(const char *name, const char *bytes, size_t len, const char *ptr, size_t n)
{
	const struct codec *codec = codec_of_name(name);
	char *copy = malloc(len + 1); /* of its own, so that the sanitizer sees a byte too many */
	struct buf compressed = {.ptr = copy, .len = len}, back = {0};
	const struct source source = source_of(&compressed);
	struct pawl_error err = {0}, other = {0};
	struct codec_source *s = NULL;

	memcpy(copy, bytes, len);
	const int rc = unpack(codec, &compressed, 50000, NULL, &back, &err);
	int at = codec_source_open(codec, &source, NULL, &s, &other);
	if (at == 0) {
		const struct source *plain = codec_source_plain(s);
		char *p = malloc(plain->nbytes + 1);

		at = source_read(plain, 0, p, (size_t)plain->nbytes, &other);
		if (at == 0 && (plain->nbytes != n || (n > 0 && memcmp(p, ptr, n) != 0)))
			fail_msg("%s: a source gave other bytes", name);
		free(p);
	}
	codec_source_close(s);
	if (rc == 0)
		check_same(name, ptr, n, &back);
	else if (rc != err.code || !strstr(err.message, "file: ") ||
	         (rc != PAWL_ECORRUPT && rc != PAWL_ELIMIT && rc != PAWL_EUNSUPPORTED))
		fail_msg("%s: %d: %s", name, rc, err.message);
	if (at < 0 && (at != other.code || !strstr(other.message, "file")))
		fail_msg("%s: source: %d: %s", name, at, other.message);
	buf_clear(&back);
	free(copy);
	return rc;
}

static void
test_cut_anywhere_it_is_refused(void **state)
{
	enum { N = 3000 };
	char *ptr = make_bytes(N, false);

	(void)state;
	for (size_t i = 0; i + 1 < N_NAMES; i++) { /* not lzo: a process each */
		if (!codec_is_built(names[i]))
			continue;
		struct buf compressed = {0};

		pack_well(names[i], ptr, N, &compressed);
		for (size_t len = 0; len < compressed.len; len++) {
			/* Without its table, which is a frame, a file is complete. */
			const bool at_frame = codec_of_name(names[i])->has_skippable && len == compressed.len - 25;
			const int rc = try_both(names[i], compressed.ptr, len, ptr, N);
			if ((rc == 0) != at_frame)
				fail_msg("%s cut to %zu of %zu bytes: %d", names[i], len, compressed.len, rc);
		}
		assert_int_equal(try_both(names[i], compressed.ptr, compressed.len, ptr, N), 0); /* the control */
		buf_clear(&compressed);
	}
	free(ptr);
}

/* Formats with a check of the content never give other bytes; lzma has none. */
static void
test_flipped_anywhere_nothing_wrong_is_given(void **state)
{
	enum { N = 1500 };
	char *ptr = make_bytes(N, false);

	(void)state;
	for (size_t i = 0; i < 6; i++) {
		if (!codec_is_built(names[i]))
			continue;
		struct buf compressed = {0};
		size_t n_refused = 0;

		pack_well(names[i], ptr, N, &compressed);
		for (size_t at = 0; at < compressed.len; at++) {
			compressed.ptr[at] = (char)(compressed.ptr[at] ^ (1 << (at % 8)));
			n_refused += try_both(names[i], compressed.ptr, compressed.len, ptr, N) < 0;
			compressed.ptr[at] = (char)(compressed.ptr[at] ^ (1 << (at % 8)));
		}
		assert_true(n_refused > compressed.len / 2);
		buf_clear(&compressed);
	}
	free(ptr);
}

static void
test_what_follows_is_refused(void **state)
{
	char *ptr = make_bytes(3000, false);

	(void)state;
	for (size_t i = 0; i < N_NAMES; i++) {
		if (!codec_is_built(names[i]))
			continue;
		struct buf compressed = {0}, twice = {0}, zeros = {0};

		pack_well(names[i], ptr, 3000, &compressed);
		const size_t len = compressed.len;
		buf_puts(&compressed, "something else");
		assert_true(try_both(names[i], compressed.ptr, compressed.len, ptr, 3000) < 0);
		buf_put(&zeros, compressed.ptr, len);
		buf_put(&zeros, "\0\0\0\0\0\0\0\0", 8);
		const bool padded = codec_of_name(names[i])->zeros_may_follow;
		if (i < 7)
			assert_int_equal(try_both(names[i], zeros.ptr, zeros.len, ptr, 3000) == 0, padded);
		/* One behind the other they are one file, except where there are no frames. */
		char *both = malloc(6000);
		memcpy(both, ptr, 3000);
		memcpy(both + 3000, ptr, 3000);
		buf_put(&twice, compressed.ptr, len);
		buf_put(&twice, compressed.ptr, len);
		if (i < 6)
			assert_int_equal(try_both(names[i], twice.ptr, twice.len, both, 6000), 0);
		else if (i == 6)
			assert_true(try_both(names[i], twice.ptr, twice.len, both, 6000) < 0);
		free(both);
		buf_clear(&compressed);
		buf_clear(&twice);
		buf_clear(&zeros);
	}
	free(ptr);
}

static void
test_errors_say_where_and_what(void **state)
{
	struct buf compressed = {0}, back = {0};
	struct pawl_error err = {0};

	(void)state;
	pack_well("x.gz", "some text", 9, &compressed);
	struct buf cut = {.ptr = compressed.ptr, .len = compressed.len - 3};
	assert_int_equal(unpack(codec_of_name("x.gz"), &cut, 100, NULL, &back, &err), PAWL_ECORRUPT);
	assert_string_equal(err.message, "file: at byte 40 of 40: ends inside of a gzip member");
	struct buf nothing = {.ptr = compressed.ptr, .len = 0};
	assert_int_equal(unpack(codec_of_name("x.gz"), &nothing, 100, NULL, &back, &err), PAWL_ECORRUPT);
	assert_string_equal(err.message, "file: at byte 0 of 0: expected a gzip member, found nothing");
	compressed.ptr[compressed.len - 8] ^= 1;
	assert_int_equal(unpack(codec_of_name("x.gz"), &compressed, 100, NULL, &back, &err), PAWL_ECORRUPT);
	assert_non_null(strstr(err.message, "incorrect data check"));
	struct buf text = {.ptr = (char *)(uintptr_t)"plain text", .len = 10};
	assert_int_equal(unpack(codec_of_name("x.zst"), &text, 100, NULL, &back, &err), PAWL_ECORRUPT);
	assert_string_equal(err.message, "file: at byte 0 of 10: expected a zstd frame, found other bytes");
	buf_clear(&compressed);
	buf_clear(&back);
}

/* A few bytes that unpack to very many. */
static void
test_bombs_are_refused(void **state)
{
	const size_t n = 65u << 20;
	char *zeros = calloc(1, n);

	(void)state;
	for (size_t i = 0; i < 7; i++) {
		if (!codec_is_built(names[i]))
			continue;
		const struct codec *codec = codec_of_name(names[i]);
		const struct codec_limits wide = {.max_ratio = 1000000}, narrow = {.max_bytes = n - 1};
		const struct codec_limits *limits[] = {NULL, &narrow, &wide};
		const int codes[] = {PAWL_ELIMIT, PAWL_ELIMIT, 0};
		struct buf compressed = {0};

		pack_well(names[i], zeros, n, &compressed);
		const struct source source = source_of(&compressed);
		for (size_t k = 0; k < 3; k++) {
			struct codec_reader *r = NULL;
			struct pawl_error err = {0};
			size_t got = 1;
			int rc = codec_reader_new(codec, &source, limits[k], &r, &err);

			while (rc == 0 && got > 0)
				rc = codec_reader_get(r, zeros, 1 << 20, &got, &err);
			codec_reader_free(r);
			if (rc != codes[k])
				fail_msg("%s, limits %zu: %d %s", names[i], k, rc, err.message);
		}
		/* If a file states its frames, it states its size: that may be large, but not
		 * larger than is allowed. */
		struct codec_source *s = NULL;
		struct pawl_error err = {0};
		const int rc = codec_source_open(codec, &source, NULL, &s, &err);
		assert_int_equal(rc, codec->table ? 0 : PAWL_ELIMIT);
		codec_source_close(s);
		s = NULL;
		assert_int_equal(codec_source_open(codec, &source, &narrow, &s, &err), PAWL_ELIMIT);
		assert_null(s);
		buf_clear(&compressed);
	}
	free(zeros);
}

/* A table that says something else than the frames is not believed. */
static void
test_tables_that_lie(void **state)
{
	static const char *const framed[] = {"x.gz", "x.lz4", "x.zst", "x.planes"};
	const size_t n = 3000;
	char *ptr = make_bytes(n, false);

	(void)state;
	for (size_t i = 0; i < sizeof(framed) / sizeof(framed[0]); i++) {
		if (!codec_is_built(framed[i]))
			continue;
		struct buf compressed = {0}, back = {0};
		struct codec_source *s;
		struct pawl_error err = {0};

		pack_well(framed[i], ptr, n, &compressed);
		/* The plain size of the only frame. */
		unsigned char *size = (unsigned char *)compressed.ptr + (i == 0 ? 20 : compressed.len - 13);
		assert_int_equal(codec_u32(size), n);
		for (int k = 0; k < 3; k++) {
			const uint32_t lies[] = {(uint32_t)n - 1, (uint32_t)n + 1, 1u << 25};
			codec_put_u32(size, lies[k]);
			const struct source source = source_of(&compressed);
			assert_int_equal(codec_source_open(codec_of_name(framed[i]), &source, NULL, &s, &err), 0);
			const struct source *plain = codec_source_plain(s);
			char *p = malloc((size_t)plain->nbytes);
			assert_int_equal(source_read(plain, 0, p, (size_t)plain->nbytes, &err), PAWL_ECORRUPT);
			assert_int_equal(source_read(plain, 10, p, 20, &err), PAWL_ECORRUPT);
			if (i > 0) /* lz4 and zstd have their own word first */
				assert_non_null(strstr(err.message, "file: frame 0 of 1, at byte 0"));
			free(p);
			codec_source_close(s);
		}
		/* A frame that is larger than what is unpacked at once, and one that hides its
		 * contents: both are read as a stream, as every other tool reads them. */
		for (uint32_t lie = UINT32_MAX; lie + 1 <= 1; lie++) {
			codec_put_u32(size, lie);
			const struct source source = source_of(&compressed);
			assert_int_equal(codec_source_open(codec_of_name(framed[i]), &source, NULL, &s, &err), 0);
			assert_false(codec_source_has_frames(s));
			check_ranges(framed[i], s, ptr, n);
			codec_source_close(s);
		}
		buf_clear(&compressed);
		buf_clear(&back);
	}
	free(ptr);
}

/* ------------------------------------------------------------------ faults */

static int
fail_sink(void *arg, const void *ptr, size_t n, struct pawl_error *err)
{
	(void)ptr, (void)n;
	*(int *)arg += 1;
	return err_set(err, PAWL_ENOSPACE, "disk full");
}

static void
test_a_sink_that_fails_ends_it(void **state)
{
	char *ptr = make_bytes(20u << 20, true);

	(void)state;
	for (size_t i = 2; i < 5; i++) {
		if (!codec_is_built(names[i]))
			continue;
		struct codec_writer *w;
		struct pawl_error err = {0};
		int calls = 0;

		assert_int_equal(codec_writer_new(codec_of_name(names[i]), 1, 2, fail_sink, &calls, &w, &err), 0);
		int rc = codec_writer_put(w, ptr, 20u << 20, &err);
		if (rc == 0)
			rc = codec_writer_finish(w, NULL, NULL, &err);
		assert_int_equal(rc, PAWL_ENOSPACE);
		assert_int_equal(calls, 1);
		assert_int_equal(codec_writer_finish(w, NULL, NULL, &err), PAWL_EUSAGE);
		codec_writer_free(w);
	}
	free(ptr);
}

static void
test_every_allocation_failing(void **state)
{
	enum { N = 20000 };
	char *ptr = make_bytes(N, false);

	(void)state;
	for (size_t i = 0; i < 7; i++) {
		if (!codec_is_built(names[i]))
			continue;
		const struct codec *codec = codec_of_name(names[i]);
		struct buf good = {0};
		bool through = false;

		pack_well(names[i], ptr, N, &good);
		for (long nth = 1; !through && nth < 400; nth++) {
			struct buf out = {0}, back = {0};
			struct pawl_error err = {0};

			buf_grow(&out, 200000), out.len = 0; /* the sink's own is not what is tried */
			buf_grow(&back, 200000), back.len = 0;
			const size_t before = count_live();
			arm(nth, nth % 2 == 0);
			int rc = pack(codec, 1, 2, ptr, N, 7000, &out, &err);
			if (rc == 0)
				rc = unpack(codec, &good, 5000, NULL, &back, &err);
			struct codec_source *s = NULL;
			const struct source source = source_of(&good);
			if (rc == 0)
				rc = codec_source_open(codec, &source, NULL, &s, &err);
			char some[100];
			if (rc == 0)
				rc = source_read(codec_source_plain(s), 50, some, sizeof(some), &err);
			codec_source_close(s);
			through = atomic_load(&fault.seen) < nth;
			disarm();
			assert_int_equal(count_live(), before);
			if (rc != 0 && rc != PAWL_ENOMEM && rc != PAWL_ETRANSIENT) /* no thread could be started */
				fail_msg("%s, allocation %ld: %d %s", names[i], nth, rc, err.message);
			assert_true(rc == 0 || !through);
			buf_clear(&out);
			buf_clear(&back);
		}
		assert_true(through);
		buf_clear(&good);
	}
	free(ptr);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_size_comes_back),
		cmocka_unit_test(test_several_threads_write_the_same_bytes_as_one),
		cmocka_unit_test(test_levels_are_checked_and_have_an_effect),
		cmocka_unit_test(test_an_absent_format_is_named),
		cmocka_unit_test(test_names_say_the_format),
		cmocka_unit_test(test_the_tools_read_ours_and_we_read_theirs),
		cmocka_unit_test(test_files_of_the_tools_are_read_at_any_offset),
		cmocka_unit_test(test_without_lzop_it_is_named),
		cmocka_unit_test(test_cut_anywhere_it_is_refused),
		cmocka_unit_test(test_flipped_anywhere_nothing_wrong_is_given),
		cmocka_unit_test(test_what_follows_is_refused),
		cmocka_unit_test(test_errors_say_where_and_what),
		cmocka_unit_test(test_bombs_are_refused),
		cmocka_unit_test(test_tables_that_lie),
		cmocka_unit_test(test_a_sink_that_fails_ends_it),
		cmocka_unit_test(test_every_allocation_failing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
