/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_own: what one format of compressed files provides (a row of the table in codec.c). Only
 * codec*.c include it.
 */
#ifndef PAWL_FORMAT_CODEC_OWN_H
#define PAWL_FORMAT_CODEC_OWN_H

#include "base/buf.h"
#include "base/mem.h"
#include "format/codec/codec.h"

#define CODEC_MAX_FRAME ((uint64_t)64 << 20)   /* plain or compressed; larger ones are read as a stream */
#define CODEC_MAX_FRAMES ((uint64_t)16 << 20)  /* of one file */
#define CODEC_MAX_MEMORY ((uint64_t)256 << 20) /* of one decoder of xz and lzma */

/* A frame, and a note for the file's table. */
struct codec_frame {
	uint64_t compressed, plain; /* bytes */
	uint64_t note;              /* the coder's own: xz: bytes without padding */
};

/* The frames of a file, one after the other from `begin` on. */
struct codec_table {
	struct codec_frame *frames;
	size_t n, cap;
	uint64_t begin;
	uint64_t note; /* xz: the kind of check */
};
/* PAWL_ENOMEM, PAWL_ELIMIT. */
int codec_table_add(struct codec_table *t, const struct codec_frame *frame, struct pawl_error *err);
void codec_table_clear(struct codec_table *t);

/* A piece of decoding; the coder moves all four. */
struct codec_step {
	const unsigned char *in;
	size_t n_in;
	unsigned char *out;
	size_t n_out;
	bool last; /* no input will follow what is in `in` */
};
enum { CODEC_GO, CODEC_END /* of a frame: the rest of the input is not read */ };

/* Below, `why` is the text of an error after the place; the callee fills in nothing else. */
struct codec {
	const char *name, *suffix;
	const char *unit; /* "gzip member" */
	unsigned char magic[9];
	unsigned char n_magic; /* 0 = none */
	unsigned char max_level, default_level;
	bool one_stream;       /* of writing: no frames; of reading: nothing may follow */
	bool zeros_may_follow; /* after the last frame: padding */
	bool has_skippable;    /* frames of anything, as zstd and lz4 have them */
	uint32_t frame_bytes;

	/* Writing. An encoder makes one frame per call, or continues the stream; `last`: its
	 * end. */
	int (*encoder_new)(int level, void **ret, const char **why);
	int (*encode)(void *encoder, const void *ptr, size_t n, bool last, struct buf *out, struct codec_frame *frame,
	              const char **why);
	void (*encoder_free)(void *encoder);
	/* Before the first and after the last frame; NULL = nothing. */
	int (*head)(struct buf *out, const char **why);
	int (*tail)(const struct codec_table *t, struct buf *out, const char **why);

	/* Reading: CODEC_GO, CODEC_END or a code. After CODEC_END the same decoder begins the next
	 * frame. */
	int (*decoder_new)(void **ret, const char **why);
	int (*decode)(void *decoder, struct codec_step *step, const char **why);
	void (*decoder_free)(void *decoder);
	/* 1 = the file records where its frames are, and they cover all of it; 0 = it does not, or
	 * not consistently. */
	int (*table)(const struct source *compressed, struct codec_table *ret, struct pawl_error *err);
	/* One complete frame of the table; NULL = decode does it. */
	int (*decode_frame)(const struct codec_table *t, const unsigned char *in, size_t n_in, unsigned char *out,
	                    size_t n_out, const char **why);
};

/* Rows. */
extern const struct codec codec_bz2, codec_gz, codec_lz4, codec_lzma, codec_lzo, codec_planes, codec_xz, codec_zst;

/* The table at the end of files of zstd, lz4 and planes: a frame that decoders skip. */
int codec_seek_tail(const struct codec_table *t, struct buf *out, const char **why);
int codec_seek_table(const struct source *compressed, struct codec_table *ret, struct pawl_error *err);
#define CODEC_SKIPPABLE 0x184d2a50u /* and the fifteen that follow */

static inline uint32_t
codec_u32(const unsigned char *p)
{
	return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline void
codec_put_u32(unsigned char *p, uint32_t value)
{
	for (int i = 0; i < 4; i++)
		p[i] = (unsigned char)(value >> (8 * i));
}

/* Zeros for an encoder or decoder; PAWL_ENOMEM. */
static inline int
codec_zalloc(size_t nbytes, void **ret, const char **why)
{
	void *zeros = mem_zalloc(1, nbytes);

	if (!zeros) {
		*why = "out of memory";
		return PAWL_ENOMEM;
	}
	*ret = zeros;
	return 0;
}

/* Sets the row of the actual format: files named .lzma may hold xz. */
int codec_really(const struct codec **codec, const struct source *compressed, struct pawl_error *err);

#endif
