/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_gz: gzip, by zlib. Each frame is a member of its own (RFC 1952). An extra field in its
 * header has its length, so that the next member can be found without decompressing:
 *
 *   1f 8b 08 04, u32 0, 0, 255, u16 12: 'P' 'w', u16 8, u32 bytes of the member, u32 plain bytes
 *
 * It also reads bare deflate streams (RFC 1951), the members of zip archives, from start to end.
 */
#include <zlib.h>

#include <string.h>

#include "base/err.h"
#include "format/codec/codec_own.h"

#define HEADER_BYTES 24u
#define TRAILER_BYTES 8u
#define FRAME_BYTES (4u << 20)

static const unsigned char header[HEADER_BYTES] = {0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 255, 12, 0, 'P', 'w', 8, 0};

static void *
allocate_memory(void *arg, unsigned n, unsigned size)
{
	(void)arg;
	uint64_t nbytes = (uint64_t)n * size;
	return nbytes <= SIZE_MAX ? mem_alloc((size_t)nbytes) : NULL;
}

static void
release_memory(void *arg, void *ptr)
{
	(void)arg;
	mem_free(ptr);
}

static z_stream *
stream_new(void)
{
	z_stream *z = mem_zalloc(1, sizeof(*z));

	if (z) {
		z->zalloc = allocate_memory;
		z->zfree = release_memory;
	}
	return z;
}

static int
encoder_new(int level, void **ret, const char **why)
{
	z_stream *z = stream_new();

	if (!z || deflateInit2(z, level, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
		mem_free(z);
		*why = "out of memory";
		return PAWL_ENOMEM;
	}
	*ret = z;
	return 0;
}

static void
encoder_free(void *encoder)
{
	deflateEnd(encoder);
	mem_free(encoder);
}

static int
gz_encode(void *encoder, const void *ptr, size_t n, bool last, struct buf *out, struct codec_frame *frame,
          const char **why)
{
	z_stream *z = encoder;
	const size_t bound = deflateBound(z, n);
	unsigned char *p = (unsigned char *)buf_grow(out, HEADER_BYTES + bound + TRAILER_BYTES);

	(void)last;
	if (!p) {
		*why = "out of memory";
		return PAWL_ENOMEM;
	}
	deflateReset(z);
	z->next_in = (Bytef *)(uintptr_t)ptr; /* read only, but declared without const */
	z->avail_in = (uInt)n;
	z->next_out = p + HEADER_BYTES;
	z->avail_out = (uInt)bound;
	if (deflate(z, Z_FINISH) != Z_STREAM_END) {
		*why = "zlib did not finish a member";
		return PAWL_EIO;
	}
	frame->compressed = HEADER_BYTES + (bound - z->avail_out) + TRAILER_BYTES;
	memcpy(p, header, HEADER_BYTES);
	codec_put_u32(p + 16, (uint32_t)frame->compressed);
	codec_put_u32(p + 20, (uint32_t)n);
	codec_put_u32(z->next_out, (uint32_t)crc32(0, ptr, (uInt)n));
	codec_put_u32(z->next_out + 4, (uint32_t)n);
	out->len -= z->avail_out;
	return 0;
}

static int
inflater_new(int window_bits, void **ret, const char **why)
{
	z_stream *z = stream_new();

	if (!z || inflateInit2(z, window_bits) != Z_OK) {
		mem_free(z);
		*why = "out of memory";
		return PAWL_ENOMEM;
	}
	*ret = z;
	return 0;
}

static int
decoder_new(void **ret, const char **why)
{
	return inflater_new(MAX_WBITS + 16, ret, why);
}

static int
bare_decoder_new(void **ret, const char **why)
{
	return inflater_new(-MAX_WBITS, ret, why);
}

static void
decoder_free(void *decoder)
{
	inflateEnd(decoder);
	mem_free(decoder);
}

static int
gz_decode(void *decoder, struct codec_step *s, const char **why)
{
	z_stream *z = decoder;

	z->next_in = (Bytef *)(uintptr_t)s->in;
	z->avail_in = s->n_in > UINT32_MAX ? UINT32_MAX : (uInt)s->n_in;
	z->next_out = s->out;
	z->avail_out = s->n_out > UINT32_MAX ? UINT32_MAX : (uInt)s->n_out;
	const int rc = inflate(z, Z_NO_FLUSH);
	s->n_in -= (size_t)(z->next_in - s->in);
	s->in = z->next_in;
	s->n_out -= (size_t)(z->next_out - s->out);
	s->out = z->next_out;
	switch (rc) {
	case Z_STREAM_END:
		inflateReset(z);
		return CODEC_END;
	case Z_OK:
	case Z_BUF_ERROR:
		return CODEC_GO;
	case Z_MEM_ERROR:
		*why = "out of memory";
		return PAWL_ENOMEM;
	default:
		*why = z->msg ? z->msg : "damaged data";
		return PAWL_ECORRUPT;
	}
}

/* From header to header. */
static int
gz_table(const struct source *compressed, struct codec_table *ret, struct pawl_error *err)
{
	unsigned char h[HEADER_BYTES];

	for (uint64_t at = 0; at < compressed->nbytes;) {
		if (compressed->nbytes - at < HEADER_BYTES + TRAILER_BYTES)
			return 0;
		TRY(source_read(compressed, at, h, HEADER_BYTES, err));
		const struct codec_frame frame = {.compressed = codec_u32(h + 16), .plain = codec_u32(h + 20)};
		if (memcmp(h, header, 4) != 0 || memcmp(h + 10, header + 10, 6) != 0 ||
		    frame.compressed > compressed->nbytes - at || frame.compressed < HEADER_BYTES + TRAILER_BYTES)
			return 0;
		TRY(codec_table_add(ret, &frame, err));
		at += frame.compressed;
	}
	return ret->n > 0;
}

const struct codec codec_gz = {
	.name = "gz",
	.suffix = ".gz",
	.unit = "gzip member",
	.magic = {0x1f, 0x8b},
	.n_magic = 2,
	.max_level = 9,
	.default_level = 6,
	.zeros_may_follow = true,
	.frame_bytes = FRAME_BYTES,
	.encoder_new = encoder_new,
	.encode = gz_encode,
	.encoder_free = encoder_free,
	.decoder_new = decoder_new,
	.decode = gz_decode,
	.decoder_free = decoder_free,
	.table = gz_table,
};

static const struct codec codec_deflate = {
	.name = "deflate",
	.unit = "deflate stream",
	.one_stream = true,
	.decoder_new = bare_decoder_new,
	.decode = gz_decode,
	.decoder_free = decoder_free,
};

const struct codec *
codec_of_zip(void)
{
	return &codec_deflate;
}
