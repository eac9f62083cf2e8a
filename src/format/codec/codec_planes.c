/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_planes: numbers split into planes, one of all their first bytes, one of all their second ones, and so on. Of
 * weights of 16 and 32 bits only the exponents have anything to give; so each plane is written with codes (huffman.c)
 * or as it is, by what is shorter. The idea: ZipNN (Hershcovitch and others, 2024). Called through the table in
 * codec.c.
 *
 *   frame:   "PwPl", u32 bytes of all of it, u32 plain bytes (at most 4 MiB), u32 0, XXH3-128 of the plain bytes;
 * segments segment: of 256 KiB plain bytes, the last one of a frame of what is left: u8 width 1, 2, 4 or 8 of a number;
 * for each plane from the lowest byte to the highest u8 0 and all its bytes; or 1 and the byte that all are; or 2, u32
 * n and n bytes of codes; then what is left of the segment, less than a number, as it is
 *
 * Numbers of more than one byte are first turned left by one bit, which brings the sign to the end, so that the
 * exponents of bf16 and fp32 fill the highest byte. The width is whatever some of a segment's bytes say costs least: a
 * file of several dtypes needs no description. Segments are counted from the beginning of a frame, and numbers are
 * expected at multiples of their width, as in safetensors files. At the file's end a table of frames (codec_seek.c).
 */
#include <string.h>

#include "base/err.h"
#include "base/sum.h"
#include "format/codec/codec_impl.h"
#include "format/codec/planes.h"

#define FRAME_BYTES (4u << 20)
#define SEGMENT_BYTES PLANES_SEGMENT_BYTES
#define HEAD_BYTES 32u
#define SKIP_HEAD_BYTES 8u
#define MAGIC 0x6c507750u

static const struct planes_ops *
ops(void)
{
#if defined(__x86_64__)
	const bool bits = __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");

	if (bits && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	    __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
		return &planes_avx512;
	if (bits && __builtin_cpu_supports("avx2"))
		return &planes_avx2;
#endif
	return &planes_generic;
}

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
	struct planes_packer *e = mem_alloc(sizeof(*e));

	(void)level;
	if (!e)
		return no_memory(why);
	*ret = e;
	return 0;
}

static size_t
frame_room(size_t n)
{
	const size_t n_segments = n / SEGMENT_BYTES + 1;

	return HEAD_BYTES + n + n_segments * PLANES_HEAD_BYTES + PLANES_ROOM_BYTES;
}

static int
encode(void *encoder, const void *ptr, size_t n, bool last, struct buf *out, struct codec_frame *frame,
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
		to = ops()->put(encoder, src + at, n - at < SEGMENT_BYTES ? n - at : SEGMENT_BYTES, to);
	frame->packed = (uint64_t)(to - begin);
	codec_put_u32(begin, MAGIC);
	codec_put_u32(begin + 4, (uint32_t)frame->packed);
	codec_put_u32(begin + 8, (uint32_t)n);
	codec_put_u32(begin + 12, 0);
	memcpy(begin + 16, &sum, sizeof(sum));
	out->len -= frame_room(n) - (size_t)frame->packed;
	return 0;
}

/* ------------------------------------------------------------------ reading */

/* What a frame says of itself; false: *why. */
static bool
read_head(const unsigned char head[HEAD_BYTES], size_t *ret_packed, size_t *ret_plain, const char **why)
{
	*ret_packed = codec_u32(head + 4);
	*ret_plain = codec_u32(head + 8);
	*why = "a planes frame with a size that it cannot have";
	return codec_u32(head) == MAGIC && codec_u32(head + 12) == 0 && *ret_plain <= FRAME_BYTES &&
	       *ret_packed >= HEAD_BYTES && *ret_packed <= frame_room(FRAME_BYTES);
}

static bool
unpack(struct planes_unpacker *u, const unsigned char *in, size_t n_in, unsigned char *out, size_t n_out,
       const char **why)
{
	struct planes_rest r = {.ptr = in + HEAD_BYTES, .n = n_in - HEAD_BYTES};
	struct sum128 expected;

	for (size_t at = 0; at < n_out; at += SEGMENT_BYTES)
		if (!ops()->take(u, &r, out + at, n_out - at < SEGMENT_BYTES ? n_out - at : SEGMENT_BYTES, why))
			return false;
	memcpy(&expected, in + 16, sizeof(expected));
	*why = "something follows the segments of a frame";
	if (r.n > 0)
		return false;
	*why = "the sum of a frame is wrong";
	return sum_equal(sum_bytes(out, n_out), expected);
}

static int
decode_frame(const struct codec_table *t, const unsigned char *in, size_t n_in, unsigned char *out, size_t n_out,
             const char **why)
{
	size_t packed, plain;

	(void)t;
	*why = "a frame is not of the size that the table says";
	if (n_in < HEAD_BYTES)
		return PAWL_ECORRUPT;
	if (!read_head(in, &packed, &plain, why))
		return PAWL_ECORRUPT;
	*why = "a frame is not of the size that the table says";
	if (packed != n_in || plain != n_out)
		return PAWL_ECORRUPT;
	PAWL_FREE struct planes_unpacker *u = mem_alloc(sizeof(*u));
	if (!u)
		return no_memory(why);
	return unpack(u, in, n_in, out, n_out, why) ? CODEC_END : PAWL_ECORRUPT;
}

/* A stream: a frame is collected, unpacked and given away. */
struct decoder {
	struct planes_unpacker unpacker;
	unsigned char head[HEAD_BYTES];
	unsigned char *packed, *plain;
	size_t n, n_packed; /* collected, of how much; a frame that is passed over: passed over */
	size_t given, n_plain;
	bool is_known, is_skipped, is_unpacked;
};

static int
decoder_new(void **ret, const char **why)
{
	struct decoder *d = mem_zalloc(1, sizeof(*d));

	if (!d)
		return no_memory(why);
	*ret = d;
	return 0;
}

static void
decoder_free(void *decoder)
{
	struct decoder *d = decoder;

	mem_free(d->packed);
	mem_free(d->plain);
	mem_free(d);
}

/* Up to `want` collected bytes of the frame, or as many as there are; to: where the first of them goes, or NULL. */
static bool
collect(struct decoder *d, struct codec_step *s, unsigned char *to, size_t want)
{
	const size_t left = want - d->n, now = left < s->n_in ? left : s->n_in;

	if (to && now > 0)
		memcpy(to + d->n, s->in, now);
	s->in += now;
	s->n_in -= now;
	d->n += now;
	return d->n == want;
}

/* The sizes are known; memory for them. */
static int
begin_frame(struct decoder *d, const char **why)
{
	size_t packed, plain;

	if (!read_head(d->head, &packed, &plain, why))
		return PAWL_ECORRUPT;
	if (!d->packed)
		d->packed = mem_alloc(frame_room(FRAME_BYTES));
	if (!d->plain)
		d->plain = mem_alloc(FRAME_BYTES);
	if (!d->packed || !d->plain)
		return no_memory(why);
	memcpy(d->packed, d->head, HEAD_BYTES);
	d->n_packed = packed;
	d->n_plain = plain;
	d->is_known = true;
	return 0;
}

static int
end_frame(struct decoder *d)
{
	d->is_known = d->is_skipped = d->is_unpacked = false;
	d->n = d->given = 0;
	return CODEC_END;
}

/* The head, as far as needed to know what follows it. */
static int
read_on(struct decoder *d, struct codec_step *s, const char **why)
{
	if (!collect(d, s, d->head, d->n < SKIP_HEAD_BYTES ? SKIP_HEAD_BYTES : HEAD_BYTES))
		return CODEC_GO;
	if (d->n == HEAD_BYTES)
		return begin_frame(d, why);
	if ((codec_u32(d->head) & ~0xfu) != CODEC_SKIPPABLE)
		return CODEC_GO;
	d->n_packed = SKIP_HEAD_BYTES + (size_t)codec_u32(d->head + 4);
	d->is_known = d->is_skipped = true;
	return CODEC_GO;
}

static int
decode(void *decoder, struct codec_step *s, const char **why)
{
	struct decoder *d = decoder;

	if (!d->is_known) {
		const size_t n = d->n;
		const int rc = read_on(d, s, why);
		if (rc < 0 || (!d->is_known && d->n == n))
			return rc;
	}
	if (!d->is_known)
		return CODEC_GO;
	if (!d->is_unpacked && !collect(d, s, d->is_skipped ? NULL : d->packed, d->n_packed))
		return CODEC_GO;
	if (d->is_skipped)
		return end_frame(d);
	if (!d->is_unpacked && !unpack(&d->unpacker, d->packed, d->n_packed, d->plain, d->n_plain, why))
		return PAWL_ECORRUPT;
	d->is_unpacked = true;
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
	.encode = encode,
	.encoder_free = mem_free,
	.tail = codec_seek_tail,
	.decoder_new = decoder_new,
	.decode = decode,
	.decoder_free = decoder_free,
	.table = codec_seek_table,
	.decode_frame = decode_frame,
};
