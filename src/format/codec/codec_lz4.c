/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_lz4: lz4 frames, by its library. They are independent blocks of 4 MiB, each with size and
 * checksum of its content. A table of frames is at the end (codec_seek.c).
 */
#include <lz4frame.h>
#include <string.h>

#include "base/err.h"
#include "format/codec/codec_own.h"

#define FRAME_BYTES (4u << 20)

struct encoder {
	int level;
};

static int
encoder_new(int level, void **ret, const char **why)
{
	TRY(codec_zalloc(sizeof(struct encoder), ret, why));
	((struct encoder *)*ret)->level = level;
	return 0;
}

static int
lz4_encode(void *encoder, const void *ptr, size_t n, bool last, struct buf *out, struct codec_frame *frame,
           const char **why)
{
	const struct encoder *e = encoder;
	const LZ4F_preferences_t how = {.frameInfo = {.blockSizeID = LZ4F_max4MB,
	                                              .blockMode = LZ4F_blockIndependent,
	                                              .contentChecksumFlag = LZ4F_contentChecksumEnabled,
	                                              .contentSize = n},
	                                .compressionLevel = e->level};
	const size_t bound = LZ4F_compressFrameBound(n, &how);
	char *p = buf_grow(out, bound);

	(void)last;
	*why = "out of memory";
	if (!p)
		return PAWL_ENOMEM;
	const size_t compressed = LZ4F_compressFrame(p, bound, ptr, n, &how);
	if (LZ4F_isError(compressed)) /* it has room and valid options, so only memory can be missing */
		return PAWL_ENOMEM;
	out->len -= bound - compressed;
	frame->compressed = compressed;
	return 0;
}

static int
decoder_new(void **ret, const char **why)
{
	LZ4F_dctx *d;

	if (LZ4F_isError(LZ4F_createDecompressionContext(&d, LZ4F_VERSION))) {
		*why = "out of memory";
		return PAWL_ENOMEM;
	}
	*ret = d;
	return 0;
}

static void
decoder_free(void *decoder)
{
	LZ4F_freeDecompressionContext(decoder);
}

static int
lz4_decode(void *decoder, struct codec_step *s, const char **why)
{
	size_t n_in = s->n_in, n_out = s->n_out;
	const size_t rc = LZ4F_decompress(decoder, s->out, &n_out, s->in, &n_in, NULL);

	if (LZ4F_isError(rc)) {
		*why = LZ4F_getErrorName(rc);
		LZ4F_resetDecompressionContext(decoder);
		return strcmp(*why, "ERROR_allocation_failed") == 0 ? PAWL_ENOMEM : PAWL_ECORRUPT;
	}
	s->in += n_in;
	s->n_in -= n_in;
	s->out += n_out;
	s->n_out -= n_out;
	return rc == 0 ? CODEC_END : CODEC_GO;
}

const struct codec codec_lz4 = {
	.name = "lz4",
	.suffix = ".lz4",
	.unit = "lz4 frame",
	.magic = {0x04, 0x22, 0x4d, 0x18},
	.n_magic = 4,
	.max_level = 12,
	.default_level = 1,
	.has_skippable = true,
	.frame_bytes = FRAME_BYTES,
	.encoder_new = encoder_new,
	.encode = lz4_encode,
	.encoder_free = mem_free,
	.tail = codec_seek_tail,
	.decoder_new = decoder_new,
	.decode = lz4_decode,
	.decoder_free = decoder_free,
	.table = codec_seek_table,
};
