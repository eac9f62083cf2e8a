/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec: compressed files: gz bz2 lz4 lzma xz zst by their libraries, lzo by the program lzop, and planes, our own. But
 * for that one, what is written here the standard tools read, and what they write is read here.
 *
 *   writer: bytes -> independent frames (gzip members, bzip2 streams, lz4, planes and zstd frames, xz blocks), compressed by
 *           several threads -> sink, in order. lzma and lzo have no frames: one thread does all.
 *   frames: the same, but by the caller's own threads and memory.
 *   reader: packed source -> plain bytes, forwards.
 *   source: packed source -> plain bytes at any offset: only the frames that are asked for are unpacked, where the file
 *           says where they lie (what the writer wrote, but not of bz2, lzma, lzo; xz of several blocks; zstd with a
 *           table of frames); any other file is unpacked once into a spool, or, without one, again and again.
 *
 * Memory: of the writer 2 * (threads + 2) frames and what the coder needs; of the reader a window; of a source
 * CODEC_CACHE_FRAMES frames. docs/compression.md says how frames are found. Limits: T7 (codec_limits). A damaged file is
 * PAWL_ECORRUPT, one beyond a limit PAWL_ELIMIT, one in a form that is not read PAWL_EUNSUPPORTED; the message names the
 * file, where in it, and what was expected.
 */
#ifndef PAWL_FORMAT_CODEC_H
#define PAWL_FORMAT_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "format/source.h"

struct codec; /* a row of the table */
/* By the suffix of a name (.gz .bz2 .lz4 .lzma .lzo .planes .xz .zst); NULL = none. */
const struct codec *codec_of_name(const char *file_name);
/* The length of a name of that codec without its suffix: "a.pt.gz" -> 4. */
size_t codec_stem_len(const struct codec *codec, const char *file_name);
/* By the first bytes of a file: NULL = none. lzma has no mark and is never found. */
const struct codec *codec_of_bytes(const void *ptr, size_t n);
/* What compressed members of zip archives are: streams to be read with codec_reader, and no files. */
const struct codec *codec_of_zip(void);
const char *codec_name(const struct codec *codec); /* "gz" */
/* Does nothing, or PAWL_EUSAGE naming the levels there are (0 = the default: gz 6, bz2 9, lz4 1, lzma and xz 6, lzo 3, planes 1, zst 3). */
int codec_check_level(const struct codec *codec, int level, struct pawl_error *err);

/* ------------------------------------------------------------------ writing */

/* Called on the thread that calls put or finish, in order. */
typedef int codec_sink_fn(void *arg, const void *ptr, size_t nbytes, struct pawl_error *err);
struct codec_writer;
/* threads: 0 = as many as there are cores. The sink's arg must stay until free. */
int codec_writer_new(const struct codec *codec, int level, unsigned threads, codec_sink_fn *sink, void *arg,
                     struct codec_writer **ret, struct pawl_error *err);
/* Takes the bytes (they are copied); waits while all frames are in work. After a failure only free is left. */
int codec_writer_put(struct codec_writer *w, const void *ptr, size_t nbytes, struct pawl_error *err);
/* Everything to the sink, and the end. Both may be NULL: plain bytes taken, packed bytes given. */
int codec_writer_finish(struct codec_writer *w, uint64_t *ret_in, uint64_t *ret_out, struct pawl_error *err);
void codec_writer_free(struct codec_writer *w); /* NULL is fine; without finish, what was written is no file */

/* The same by the caller's own threads, frame by frame, for who has pieces in any order and memory of its own. */
struct codec_frames;
struct codec_piece {
	struct buf packed;
	void *frames; /* the codec's own */
	size_t n_frames;
};
int codec_frames_new(const struct codec *codec, int level, struct codec_frames **ret, struct pawl_error *err);
/* false (lzma, lzo): a file is one stream, so that encode is to be called in order and by one thread at a time. */
bool codec_frames_any_order(const struct codec_frames *f);
/* Bytes -> whole frames, appended to the piece. Any threads. */
int codec_frames_encode(struct codec_frames *f, const void *ptr, size_t n, struct codec_piece *piece,
                        struct pawl_error *err);
/* What the file begins with; what has been put behind it, in order; and with what it ends. By one thread at a time. */
int codec_frames_head(struct codec_frames *f, struct buf *out, struct pawl_error *err);
int codec_frames_note(struct codec_frames *f, const struct codec_piece *piece, struct pawl_error *err);
int codec_frames_tail(struct codec_frames *f, struct buf *out, struct pawl_error *err);
void codec_piece_clear(struct codec_piece *piece);
void codec_frames_free(struct codec_frames *f); /* NULL is fine */

/* ------------------------------------------------------------------ reading */

/* Where the plain bytes of a file are put that can only be unpacked from its beginning to its end, to be read at any
 * offset. put appends; read is called by several threads. */
struct codec_spool {
	int (*put)(void *arg, const void *ptr, size_t nbytes, struct pawl_error *err);
	int (*read)(void *arg, uint64_t offset, void *dst, size_t n, struct pawl_error *err);
	void *arg;
};

/* Zero = the default. NULL stands for all defaults. */
struct codec_limits {
	uint64_t max_bytes; /* plain; 1 TiB */
	uint32_t max_ratio; /* plain : packed after the first 64 MiB, of files that do not say where their frames lie; 200 */
	const struct codec_spool *spool; /* for source */
	uint64_t max_spooled_bytes;      /* what may be put there; no other limit */
};

struct codec_reader;
/* packed must stay. One thread at a time. */
int codec_reader_new(const struct codec *codec, const struct source *packed, const struct codec_limits *limits,
                     struct codec_reader **ret, struct pawl_error *err);
/* Up to n plain bytes, the next ones; *ret_n is less than n only at the end, where all has been checked. */
int codec_reader_get(struct codec_reader *r, void *dst, size_t n, size_t *ret_n, struct pawl_error *err);
void codec_reader_free(struct codec_reader *r);

#define CODEC_CACHE_FRAMES 8u
struct codec_source;
/* packed must stay, and be read by several threads at once if the source is. A file that does not say where its frames lie
 * is unpacked here, once. */
int codec_source_open(const struct codec *codec, const struct source *packed, const struct codec_limits *limits,
                      struct codec_source **ret, struct pawl_error *err);
/* The plain bytes; any threads. */
const struct source *codec_source_plain(const struct codec_source *s);
/* Can ranges be read without unpacking what is before them? */
bool codec_source_has_frames(const struct codec_source *s);
void codec_source_close(struct codec_source *s); /* NULL is fine */

#endif
