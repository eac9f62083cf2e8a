/* SPDX-License-Identifier: Apache-2.0 */
/*
 * planes: compresses and decompresses one segment of a planes frame (codec_planes.c describes the
 * format). Every processor writes the same bytes.
 */
#ifndef PAWL_FORMAT_PLANES_H
#define PAWL_FORMAT_PLANES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"

#define PLANES_SEGMENT_BYTES ((size_t)256 << 10)
#define PLANES_MAX_WIDTH 8u
/* A segment takes at most this much more than its plain bytes. */
#define PLANES_HEAD_BYTES (1u + PLANES_MAX_WIDTH)

/* Each is used by one thread at a time. new returns NULL without memory; free accepts NULL. */
struct planes_encoder *planes_encoder_new(void);
void planes_encoder_free(struct planes_encoder *e);
struct planes_decoder *planes_decoder_new(void);
void planes_decoder_free(struct planes_decoder *d);
PAWL_DEFINE_CLEAN(struct planes_decoder, planes_decoder_free);

/* Compresses the n bytes of a segment. `to` has room for n + PLANES_HEAD_BYTES. Returns the end of
 * the output. */
unsigned char *planes_encode(struct planes_encoder *e, const unsigned char *src, size_t n, unsigned char *to);

/* The input that was not decoded yet. */
struct planes_input {
	const unsigned char *ptr;
	size_t n;
};
/* Decodes a segment of exactly n bytes from the start of the input, which may be hostile. On false,
 * *why says what is wrong with it. */
bool planes_decode(struct planes_decoder *d, struct planes_input *in, unsigned char *out, size_t n, const char **why);

#endif
