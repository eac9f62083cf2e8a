/* SPDX-License-Identifier: Apache-2.0 */
/*
 * planes: one segment of a planes frame, packed and unpacked (codec_planes.c, which calls this and says what a segment is);
 * pure. There is one variant for each kind of processor.
 */
#ifndef PAWL_FORMAT_PLANES_H
#define PAWL_FORMAT_PLANES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/codec/huffman.h"

#define PLANES_SEGMENT_BYTES ((size_t)256 << 10)
#define PLANES_MAX_WIDTH 8u
/* The most that a segment takes beyond its plain bytes; and what must be writable behind it while it is being made. */
#define PLANES_HEAD_BYTES (1u + PLANES_MAX_WIDTH)
#define PLANES_ROOM_BYTES (PLANES_SEGMENT_BYTES / 2 + 1024)

/* One thread at a time; nothing needs to be set. */
struct planes_packer {
	struct huffman_encoder huffman;
	unsigned char planes[PLANES_SEGMENT_BYTES];
};
struct planes_unpacker {
	struct huffman_decoder huffman;
	unsigned char planes[PLANES_SEGMENT_BYTES];
};
/* What is left of the bytes that are read. */
struct planes_rest {
	const unsigned char *ptr;
	size_t n;
};

struct planes_ops {
	/* n bytes of a segment; returns the end of what was written. */
	unsigned char *(*put)(struct planes_packer *p, const unsigned char *src, size_t n, unsigned char *to);
	/* A segment of exactly n bytes out of the next ones of rest, whatever these are; false: *why. */
	bool (*take)(struct planes_unpacker *u, struct planes_rest *rest, unsigned char *out, size_t n, const char **why);
};
extern const struct planes_ops planes_generic, planes_avx2, planes_avx512; /* the latter two of x86-64 alone */

#endif
