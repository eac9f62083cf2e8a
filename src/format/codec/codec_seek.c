/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_seek: the table of frames at the end of a file, in a frame that decoders skip. The layout
 * is that of zstd's seekable format. lz4 and planes use it too, since their skippable frames are
 * the same.
 *
 *   0x184d2a5e, u32 bytes that follow, for each frame u32 compressed and u32 plain bytes,
 *   u32 frames, 0, 0x8f92eab1
 *
 * A table is used only if its frames cover the file exactly.
 */
#include "format/codec/codec_own.h"

#include "base/err.h"

#define HEAD 8u
#define FOOT 9u
#define FOOT_MAGIC 0x8f92eab1u
#define HEAD_MAGIC 0x184d2a5eu
#define HAS_SUMS 0x80u
#define RESERVED 0x7cu
#define PIECE 4096u /* entries read at once */

int
codec_seek_tail(const struct codec_table *t, struct buf *out, const char **why)
{
	const size_t nbytes = 8 * t->n + FOOT;
	unsigned char *p = (unsigned char *)buf_grow(out, HEAD + nbytes);

	if (!p) {
		*why = "out of memory";
		return PAWL_ENOMEM;
	}
	codec_put_u32(p, HEAD_MAGIC);
	codec_put_u32(p + 4, (uint32_t)nbytes);
	p += HEAD;
	for (size_t i = 0; i < t->n; i++, p += 8) {
		codec_put_u32(p, (uint32_t)t->frames[i].compressed);
		codec_put_u32(p + 4, (uint32_t)t->frames[i].plain);
	}
	codec_put_u32(p, (uint32_t)t->n);
	p[4] = 0;
	codec_put_u32(p + 5, FOOT_MAGIC);
	return 0;
}

static int
read_entries(const struct source *compressed, uint64_t at, uint64_t n, unsigned size, struct codec_table *t,
             uint64_t *ret_sum, struct pawl_error *err)
{
	unsigned char piece[PIECE];
	const uint64_t fit = PIECE / size;

	*ret_sum = 0;
	for (uint64_t i = 0; i < n; i += fit) {
		const size_t now = (size_t)(n - i < fit ? n - i : fit);
		TRY(source_read(compressed, at + i * size, piece, now * size, err));
		for (size_t k = 0; k < now; k++) {
			const struct codec_frame frame = {.compressed = codec_u32(piece + k * size),
			                                  .plain = codec_u32(piece + k * size + 4)};
			*ret_sum += frame.compressed;
			TRY(codec_table_add(t, &frame, err));
		}
	}
	return 0;
}

int
codec_seek_table(const struct source *compressed, struct codec_table *ret, struct pawl_error *err)
{
	unsigned char foot[FOOT], head[HEAD];
	uint64_t sum;

	if (compressed->nbytes < HEAD + FOOT)
		return 0;
	TRY(source_read(compressed, compressed->nbytes - FOOT, foot, FOOT, err));
	const uint64_t n = codec_u32(foot);
	const unsigned size = foot[4] & HAS_SUMS ? 12 : 8;
	const uint64_t all = HEAD + n * size + FOOT;
	if (codec_u32(foot + 5) != FOOT_MAGIC || (foot[4] & RESERVED) || n > CODEC_MAX_FRAMES ||
	    all > compressed->nbytes)
		return 0;
	TRY(source_read(compressed, compressed->nbytes - all, head, HEAD, err));
	if (codec_u32(head) != HEAD_MAGIC || codec_u32(head + 4) != all - HEAD)
		return 0;
	TRY(read_entries(compressed, compressed->nbytes - all + HEAD, n, size, ret, &sum, err));
	return sum == compressed->nbytes - all;
}
