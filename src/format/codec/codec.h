/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec: compressed files: gz bz2 lz4 lzma xz zst by their libraries, lzo by the program lzop, and
 * planes, pawl's own. Except for planes, the standard tools read what is written here and write
 * what is read here.
 *
 *   writer: bytes -> independent frames (gzip members, bzip2 streams, lz4, planes and zstd frames,
 *           xz blocks), compressed by several threads -> sink, in order. lzma and lzo have no
 *           frames, so one thread does everything.
 *   frames: the same, with the caller's own threads and memory.
 *   reader: compressed source -> plain bytes, forwards.
 *   source: compressed source -> plain bytes at any offset. If the file records where its frames
 *           are, only the requested frames are decompressed. These files do: all that the writer
 *           wrote except bz2, lzma and lzo; xz of several blocks; zstd with a table of frames. Any
 *           other file is decompressed once into a temporary file or, without one, again when a
 *           read goes back.
 *
 * Memory: a writer has 2 * (threads + 2) frames and what the coder needs, a reader one window, a
 * source CODEC_CACHE_FRAMES frames. docs/how-to/compression.md explains how frames are found.
 * Limits: codec_limits. A damaged file is PAWL_ECORRUPT, a file beyond a limit PAWL_ELIMIT, an
 * unsupported form PAWL_EUNSUPPORTED. The message has the file, the offset and what was expected.
 */
#ifndef PAWL_FORMAT_CODEC_H
#define PAWL_FORMAT_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/mem.h"
#include "format/source.h"

struct codec; /* a row of the table */
/* By the suffix of a name (.gz .bz2 .lz4 .lzma .lzo .planes .xz .zst); NULL = none. */
const struct codec *codec_of_name(const char *file_name);
/* The length of a name of that codec without its suffix: "a.pt.gz" -> 4. */
size_t codec_stem_len(const struct codec *codec, const char *file_name);
/* By the first bytes of a file; NULL = none. lzma has no mark and is never found. */
const struct codec *codec_of_bytes(const void *ptr, size_t n);
/* The codec of compressed members of zip archives: streams for codec_reader, not files. */
const struct codec *codec_of_zip(void);
const char *codec_name(const struct codec *codec); /* "gz" */
/* The largest file that so many plain bytes can become: no codec adds more to random data. */
static inline uint64_t
codec_most_bytes(uint64_t nbytes)
{
	return nbytes + nbytes / 16 + ((uint64_t)1 << 20);
}
/* 0, or PAWL_EUSAGE naming the valid levels. Level 0 is the default: gz 6, bz2 9, lz4 1, lzma and
 * xz 6, lzo 3, planes 1, zst 3. */
int codec_check_level(const struct codec *codec, int level, struct pawl_error *err);

/* ------------------------------------------------------------------ writing */

/* Called on the thread that calls put or finish, in order. */
typedef int codec_sink_fn(void *arg, const void *ptr, size_t nbytes, struct pawl_error *err);
struct codec_writer;
/* threads: 0 = one per core. The sink's arg must stay until free. */
int codec_writer_new(const struct codec *codec, int level, unsigned threads, codec_sink_fn *sink, void *arg,
                     struct codec_writer **ret, struct pawl_error *err);
/* Copies the bytes; waits while all frames are in use. After a failure call only free. */
int codec_writer_put(struct codec_writer *w, const void *ptr, size_t nbytes, struct pawl_error *err);
/* Sends the rest and the end to the sink. Both may be NULL: the plain bytes taken, the compressed
 * bytes given. */
int codec_writer_finish(struct codec_writer *w, uint64_t *ret_in, uint64_t *ret_out, struct pawl_error *err);
void codec_writer_free(struct codec_writer *w); /* NULL is fine; without finish the output is not a valid file */

/* The same with the caller's own threads, frame by frame. For a caller that has pieces in any order
 * and memory of its own. */
struct codec_frames;
struct codec_piece {
	struct buf compressed;
	void *frames; /* the codec's own */
	size_t n_frames;
};
int codec_frames_new(const struct codec *codec, int level, struct codec_frames **ret, struct pawl_error *err);
/* Bytes -> complete frames, appended to the piece: one of nothing for 0 bytes. Any threads. A file
 * of lzma or lzo is one stream: its pieces in order, by one thread, and with `last` its end. */
int codec_frames_encode(struct codec_frames *f, const void *ptr, size_t n, bool last, struct codec_piece *piece,
                        struct pawl_error *err);
/* head: the start of the file, of xz alone. note: records a piece that has been written, in order.
 * tail: the end of the file. One thread at a time. */
int codec_frames_head(struct codec_frames *f, struct buf *out, struct pawl_error *err);
int codec_frames_note(struct codec_frames *f, const struct codec_piece *piece, struct pawl_error *err);
int codec_frames_tail(struct codec_frames *f, struct buf *out, struct pawl_error *err);
void codec_piece_clear(struct codec_piece *piece);
void codec_frames_free(struct codec_frames *f); /* NULL is fine */

/* ------------------------------------------------------------------ reading */

/* Holds the plain bytes of a file that can be decompressed only from start to end, to be read at
 * any offset. put appends; several threads call read. */
struct codec_temp {
	int (*put)(void *arg, const void *ptr, size_t nbytes, struct pawl_error *err);
	int (*read)(void *arg, uint64_t offset, void *dst, size_t n, struct pawl_error *err);
	void *arg;
};

/* Zero = the default. NULL stands for all defaults. */
struct codec_limits {
	uint64_t max_bytes; /* plain; 1 TiB */
	uint32_t max_ratio; /* plain : compressed after the first 64 MiB, of files without a table of frames; 200 */
	const struct codec_temp *temp; /* for source */
	uint64_t max_temp_bytes;       /* bytes that may be put there; no other limit */
};

struct codec_reader;
/* The source `compressed` must stay. One thread at a time. */
int codec_reader_new(const struct codec *codec, const struct source *compressed, const struct codec_limits *limits,
                     struct codec_reader **ret, struct pawl_error *err);
/* Gets the next plain bytes, at most n. *ret_n is less than n only at the end, where everything has
 * been checked. */
int codec_reader_get(struct codec_reader *r, void *dst, size_t n, size_t *ret_n, struct pawl_error *err);
void codec_reader_free(struct codec_reader *r);
PAWL_DEFINE_CLEAN(struct codec_reader, codec_reader_free);

#define CODEC_CACHE_FRAMES 8u
struct codec_source;
/* The source `compressed` must stay. Threads that use the new source at once also read `compressed`
 * at once. A file without a table of frames is decompressed here, once. */
int codec_source_open(const struct codec *codec, const struct source *compressed, const struct codec_limits *limits,
                      struct codec_source **ret, struct pawl_error *err);
/* The plain bytes; any threads. */
const struct source *codec_source_plain(const struct codec_source *s);
/* Can ranges be read without decompressing the bytes before them? */
bool codec_source_has_frames(const struct codec_source *s);
void codec_source_close(struct codec_source *s); /* NULL is fine */

#endif
