/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_zst: zstd, by its library: frames with the size and a checksum of their content, and a
 * table of frames at the end (codec_seek.c). Windows of more than 128 MiB are refused (the
 * library's own limit).
 */
#include <zstd.h>
#include <zstd_errors.h>

#include "base/err.h"
#include "format/codec/codec_own.h"

#define FRAME_BYTES (4u << 20)

static int
encoder_new(int level, void **ret, const char **why)
{
	ZSTD_CCtx *c = ZSTD_createCCtx();

	if (!c || ZSTD_isError(ZSTD_CCtx_setParameter(c, ZSTD_c_compressionLevel, level)) ||
	    ZSTD_isError(ZSTD_CCtx_setParameter(c, ZSTD_c_checksumFlag, 1))) {
		ZSTD_freeCCtx(c);
		*why = "out of memory";
		return PAWL_ENOMEM;
	}
	*ret = c;
	return 0;
}

static void
encoder_free(void *encoder)
{
	ZSTD_freeCCtx(encoder);
}

static int
zst_encode(void *encoder, const void *ptr, size_t n, bool last, struct buf *out, struct codec_frame *frame,
           const char **why)
{
	const size_t bound = ZSTD_compressBound(n);
	char *p = buf_grow(out, bound);

	(void)last;
	*why = "out of memory";
	if (!p)
		return PAWL_ENOMEM;
	const size_t compressed = ZSTD_compress2(encoder, p, bound, ptr, n);
	if (ZSTD_isError(compressed)) {
		*why = ZSTD_getErrorName(compressed);
		return ZSTD_getErrorCode(compressed) == ZSTD_error_memory_allocation ? PAWL_ENOMEM : PAWL_EIO;
	}
	out->len -= bound - compressed;
	frame->compressed = compressed;
	return 0;
}

static int
decoder_new(void **ret, const char **why)
{
	ZSTD_DCtx *d = ZSTD_createDCtx();

	if (!d) {
		*why = "out of memory";
		return PAWL_ENOMEM;
	}
	*ret = d;
	return 0;
}

static void
decoder_free(void *decoder)
{
	ZSTD_freeDCtx(decoder);
}

static int
zst_decode(void *decoder, struct codec_step *s, const char **why)
{
	ZSTD_inBuffer in = {s->in, s->n_in, 0};
	ZSTD_outBuffer out = {s->out, s->n_out, 0};
	const size_t rc = ZSTD_decompressStream(decoder, &out, &in);

	s->in += in.pos;
	s->n_in -= in.pos;
	s->out += out.pos;
	s->n_out -= out.pos;
	if (!ZSTD_isError(rc))
		return rc == 0 ? CODEC_END : CODEC_GO;
	ZSTD_DCtx_reset(decoder, ZSTD_reset_session_only);
	*why = ZSTD_getErrorName(rc);
	switch (ZSTD_getErrorCode(rc)) {
	case ZSTD_error_memory_allocation:
		return PAWL_ENOMEM;
	case ZSTD_error_frameParameter_windowTooLarge:
		*why = "needs a window of more than 128 MiB";
		return PAWL_ELIMIT;
	case ZSTD_error_dictionary_wrong:
		*why = "needs a dictionary";
		return PAWL_EUNSUPPORTED;
	default:
		return PAWL_ECORRUPT;
	}
}

const struct codec codec_zst = {
	.name = "zst",
	.suffix = ".zst",
	.unit = "zstd frame",
	.magic = {0x28, 0xb5, 0x2f, 0xfd},
	.n_magic = 4,
	.max_level = 22,
	.default_level = 3,
	.has_skippable = true,
	.frame_bytes = FRAME_BYTES,
	.encoder_new = encoder_new,
	.encode = zst_encode,
	.encoder_free = encoder_free,
	.tail = codec_seek_tail,
	.decoder_new = decoder_new,
	.decode = zst_decode,
	.decoder_free = decoder_free,
	.table = codec_seek_table,
};
