/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_planes: compresses weights. Numbers are split into planes: all their first bytes, all their
 * second bytes, and so on. Only the exponents of 16 and 32 bit weights compress well. So each plane
 * is compressed by zstd or stored as it is, whichever is shorter. The idea is that of ZipNN
 * (Hershcovitch and others, 2024). docs/reference/format.md describes the format.
 *
 * Numbers of more than one byte are first rotated left by one bit, which moves the sign to the end.
 * The exponents of bf16 and fp32 then fill the highest byte. The width of the numbers is chosen per
 * segment from a sample, so a file of several dtypes needs no description. Segments are counted
 * from the start of a frame, and numbers are expected at multiples of their width, as in
 * safetensors files. The file ends with a table of frames (codec_seek.c).
 */
#include <string.h>

#include "base/err.h"
#include "base/sum.h"
#include "format/codec/codec_own.h"
#include "format/codec/planes.h"

#define FRAME_BYTES (4u << 20)
#define SEGMENT_BYTES PLANES_SEGMENT_BYTES
#define HEAD_BYTES 32u
#define SKIP_HEAD_BYTES 8u
#define MAGIC 0x6c507750u

/* ------------------------------------------------------------------ writing */

static int
no_memory(const char **why)
{
	*why = "out of memory";
	return PAWL_ENOMEM;
}

static int
encoder_new(int level, void **ret, const char **why)
{
	(void)level;
	*ret = planes_encoder_new();
	return *ret ? 0 : no_memory(why);
}

static void
encoder_free(void *encoder)
{
	planes_encoder_free(encoder);
}

static size_t
frame_room(size_t n)
{
	const size_t n_segments = n / SEGMENT_BYTES + 1;

	return HEAD_BYTES + n + n_segments * PLANES_HEAD_BYTES;
}

/* The checksum of the bytes after the head. Some bits of a zstd frame do not affect what it decodes
 * to; this finds damage there, too. */
static uint32_t
compressed_sum(const unsigned char *frame, size_t n)
{
	return (uint32_t)sum_bytes(frame + HEAD_BYTES, n - HEAD_BYTES).lo;
}

static int
encode_planes(void *encoder, const void *ptr, size_t n, bool last, struct buf *out, struct codec_frame *frame,
              const char **why)
{
	const struct sum128 sum = sum_bytes(ptr, n);
	const unsigned char *src = ptr;
	unsigned char *begin = (unsigned char *)buf_grow(out, frame_room(n)), *to = begin;

	(void)last;
	if (!begin)
		return no_memory(why);
	to += HEAD_BYTES;
	for (size_t at = 0; at < n; at += SEGMENT_BYTES)
		to = planes_encode(encoder, src + at, n - at < SEGMENT_BYTES ? n - at : SEGMENT_BYTES, to);
	frame->compressed = (uint64_t)(to - begin);
	codec_put_u32(begin, MAGIC);
	codec_put_u32(begin + 4, (uint32_t)frame->compressed);
	codec_put_u32(begin + 8, (uint32_t)n);
	codec_put_u32(begin + 12, compressed_sum(begin, (size_t)frame->compressed));
	memcpy(begin + 16, &sum, sizeof(sum));
	out->len -= frame_room(n) - (size_t)frame->compressed;
	return 0;
}

/* ------------------------------------------------------------------ reading */

/* The sizes in the head of a frame. On false, *why is set. */
static bool
read_head(const unsigned char head[HEAD_BYTES], size_t *ret_compressed, size_t *ret_plain, const char **why)
{
	*ret_compressed = codec_u32(head + 4);
	*ret_plain = codec_u32(head + 8);
	*why = "a planes frame has an impossible size";
	return codec_u32(head) == MAGIC && *ret_plain <= FRAME_BYTES && *ret_compressed >= HEAD_BYTES &&
	       *ret_compressed <= frame_room(FRAME_BYTES);
}

static bool
decompress_frame(struct planes_decoder *d, const unsigned char *in, size_t n_in, unsigned char *out, size_t n_out,
                 const char **why)
{
	struct planes_input rest = {.ptr = in + HEAD_BYTES, .n = n_in - HEAD_BYTES};
	struct sum128 expected;

	*why = "the compressed bytes of a frame have another checksum";
	if (codec_u32(in + 12) != compressed_sum(in, n_in))
		return false;
	for (size_t at = 0; at < n_out; at += SEGMENT_BYTES)
		if (!planes_decode(d, &rest, out + at, n_out - at < SEGMENT_BYTES ? n_out - at : SEGMENT_BYTES, why))
			return false;
	memcpy(&expected, in + 16, sizeof(expected));
	*why = "bytes follow the segments of a frame";
	if (rest.n > 0)
		return false;
	*why = "the checksum of a frame is wrong";
	return sum_equal(sum_bytes(out, n_out), expected);
}

static int
decode_frame(const struct codec_table *t, const unsigned char *in, size_t n_in, unsigned char *out, size_t n_out,
             const char **why)
{
	size_t compressed, plain;

	(void)t;
	*why = "a frame differs in size from the table of frames";
	if (n_in < HEAD_BYTES)
		return PAWL_ECORRUPT;
	if (!read_head(in, &compressed, &plain, why))
		return PAWL_ECORRUPT;
	*why = "a frame differs in size from the table of frames";
	if (compressed != n_in || plain != n_out)
		return PAWL_ECORRUPT;
	PAWL_CLEAN(planes_decoder_free_clean) struct planes_decoder *d = planes_decoder_new();
	if (!d)
		return no_memory(why);
	return decompress_frame(d, in, n_in, out, n_out, why) ? CODEC_END : PAWL_ECORRUPT;
}

/* Decodes a stream frame by frame: a frame is collected, decompressed and then delivered. */
struct decoder {
	struct planes_decoder *planes;
	unsigned char head[HEAD_BYTES];
	unsigned char *compressed, *plain;
	size_t n, n_compressed; /* bytes collected or skipped, of how many */
	size_t given, n_plain;  /* bytes delivered, of how many */
	bool is_known, is_skipped, is_decompressed;
};

static int
decoder_new(void **ret, const char **why)
{
	struct decoder *d = mem_zalloc(1, sizeof(*d));

	if (!d)
		return no_memory(why);
	d->planes = planes_decoder_new();
	if (!d->planes) {
		mem_free(d);
		return no_memory(why);
	}
	*ret = d;
	return 0;
}

static void
decoder_free(void *decoder)
{
	struct decoder *d = decoder;

	planes_decoder_free(d->planes);
	mem_free(d->compressed);
	mem_free(d->plain);
	mem_free(d);
}

/* Collects up to `want` bytes of the frame at `to`, or skips them if it is NULL. Returns whether
 * all are there. */
static bool
collect_frame(struct decoder *d, struct codec_step *s, unsigned char *to, size_t want)
{
	const size_t left = want - d->n, now = left < s->n_in ? left : s->n_in;

	if (to && now > 0)
		memcpy(to + d->n, s->in, now);
	s->in += now;
	s->n_in -= now;
	d->n += now;
	return d->n == want;
}

/* Reads the sizes and allocates memory for them. */
static int
begin_frame(struct decoder *d, const char **why)
{
	size_t compressed, plain;

	if (!read_head(d->head, &compressed, &plain, why))
		return PAWL_ECORRUPT;
	if (!d->compressed)
		d->compressed = mem_alloc(frame_room(FRAME_BYTES));
	if (!d->plain)
		d->plain = mem_alloc(FRAME_BYTES);
	if (!d->compressed || !d->plain)
		return no_memory(why);
	memcpy(d->compressed, d->head, HEAD_BYTES);
	d->n_compressed = compressed;
	d->n_plain = plain;
	d->is_known = true;
	return 0;
}

static int
end_frame(struct decoder *d)
{
	d->is_known = d->is_skipped = d->is_decompressed = false;
	d->n = d->given = 0;
	return CODEC_END;
}

/* Reads enough of the head to know what follows it. */
static int
read_frame_head(struct decoder *d, struct codec_step *s, const char **why)
{
	if (!collect_frame(d, s, d->head, d->n < SKIP_HEAD_BYTES ? SKIP_HEAD_BYTES : HEAD_BYTES))
		return CODEC_GO;
	if (d->n == HEAD_BYTES)
		return begin_frame(d, why);
	if ((codec_u32(d->head) & ~0xfu) != CODEC_SKIPPABLE)
		return CODEC_GO;
	d->n_compressed = SKIP_HEAD_BYTES + (size_t)codec_u32(d->head + 4);
	d->is_known = d->is_skipped = true;
	return CODEC_GO;
}

static int
decode_planes(void *decoder, struct codec_step *s, const char **why)
{
	struct decoder *d = decoder;

	if (!d->is_known) {
		const size_t n = d->n;
		const int rc = read_frame_head(d, s, why);
		if (rc < 0 || (!d->is_known && d->n == n))
			return rc;
	}
	if (!d->is_known)
		return CODEC_GO;
	if (!d->is_decompressed && !collect_frame(d, s, d->is_skipped ? NULL : d->compressed, d->n_compressed))
		return CODEC_GO;
	if (d->is_skipped)
		return end_frame(d);
	if (!d->is_decompressed &&
	    !decompress_frame(d->planes, d->compressed, d->n_compressed, d->plain, d->n_plain, why))
		return PAWL_ECORRUPT;
	d->is_decompressed = true;
	const size_t left = d->n_plain - d->given, now = left < s->n_out ? left : s->n_out;
	if (now > 0)
		memcpy(s->out, d->plain + d->given, now);
	s->out += now;
	s->n_out -= now;
	d->given += now;
	return d->given == d->n_plain ? end_frame(d) : CODEC_GO;
}

const struct codec codec_planes = {
	.name = "planes",
	.suffix = ".planes",
	.unit = "planes frame",
	.magic = {'P', 'w', 'P', 'l'},
	.n_magic = 4,
	.max_level = 1,
	.default_level = 1,
	.has_skippable = true,
	.frame_bytes = FRAME_BYTES,
	.encoder_new = encoder_new,
	.encode = encode_planes,
	.encoder_free = encoder_free,
	.tail = codec_seek_tail,
	.decoder_new = decoder_new,
	.decode = decode_planes,
	.decoder_free = decoder_free,
	.table = codec_seek_table,
	.decode_frame = decode_frame,
};
