/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_bz2: bzip2, by its library. Each frame is a stream of its own. The format cannot record
 * where they are, so such files are read from the start.
 */
#include <bzlib.h>

#include "base/err.h"
#include "format/codec/codec_own.h"

#define FRAME_BYTES 4500000u /* five blocks of level 9 */

struct encoder {
	int level;
};

struct decoder {
	bz_stream bz;
	bool open;
};

static void *
allocate_memory(void *arg, int n, int size)
{
	(void)arg;
	return n < 0 || size < 0 ? NULL : mem_alloc((size_t)n * (size_t)size);
}

static void
release_memory(void *arg, void *ptr)
{
	(void)arg;
	mem_free(ptr);
}

static int
encoder_new(int level, void **ret, const char **why)
{
	TRY(codec_zalloc(sizeof(struct encoder), ret, why));
	((struct encoder *)*ret)->level = level;
	return 0;
}

static int
bz2_encode(void *encoder, const void *ptr, size_t n, bool last, struct buf *out, struct codec_frame *frame,
           const char **why)
{
	const struct encoder *e = encoder;
	const size_t bound = n + n / 100 + 600; /* the size that the library requires */
	bz_stream bz = {.bzalloc = allocate_memory, .bzfree = release_memory};
	char *p = buf_grow(out, bound);

	(void)last;
	*why = "out of memory";
	if (!p || BZ2_bzCompressInit(&bz, e->level, 0, 0) != BZ_OK)
		return PAWL_ENOMEM;
	bz.next_in = (char *)(uintptr_t)ptr; /* read only, but declared without const */
	bz.avail_in = (unsigned)n;
	bz.next_out = p;
	bz.avail_out = (unsigned)bound;
	const int rc = BZ2_bzCompress(&bz, BZ_FINISH);
	const size_t left = bz.avail_out;
	BZ2_bzCompressEnd(&bz);
	if (rc != BZ_STREAM_END) {
		*why = "bzip2 did not finish a stream";
		return PAWL_EIO;
	}
	out->len -= left;
	frame->compressed = bound - left;
	return 0;
}

static int
decoder_new(void **ret, const char **why)
{
	return codec_zalloc(sizeof(struct decoder), ret, why);
}

static void
close_stream(struct decoder *d)
{
	if (d->open)
		BZ2_bzDecompressEnd(&d->bz);
	d->open = false;
}

static void
decoder_free(void *decoder)
{
	close_stream(decoder);
	mem_free(decoder);
}

static int
bz2_decode(void *decoder, struct codec_step *s, const char **why)
{
	struct decoder *d = decoder;
	bz_stream *bz = &d->bz;

	*why = "out of memory";
	if (!d->open) {
		*bz = (bz_stream){.bzalloc = allocate_memory, .bzfree = release_memory};
		if (BZ2_bzDecompressInit(bz, 0, 0) != BZ_OK)
			return PAWL_ENOMEM;
		d->open = true;
	}
	bz->next_in = (char *)(uintptr_t)s->in;
	bz->avail_in = s->n_in > INT32_MAX ? INT32_MAX : (unsigned)s->n_in;
	bz->next_out = (char *)s->out;
	bz->avail_out = s->n_out > INT32_MAX ? INT32_MAX : (unsigned)s->n_out;
	const int rc = BZ2_bzDecompress(bz);
	s->n_in -= (size_t)((const unsigned char *)bz->next_in - s->in);
	s->in = (const unsigned char *)bz->next_in;
	s->n_out -= (size_t)((unsigned char *)bz->next_out - s->out);
	s->out = (unsigned char *)bz->next_out;
	if (rc == BZ_OK)
		return CODEC_GO;
	close_stream(d);
	if (rc == BZ_STREAM_END)
		return CODEC_END;
	if (rc == BZ_MEM_ERROR)
		return PAWL_ENOMEM;
	*why = rc == BZ_DATA_ERROR_MAGIC ? "no bzip2 stream begins here" : "damaged data";
	return PAWL_ECORRUPT;
}

const struct codec codec_bz2 = {
	.name = "bz2",
	.suffix = ".bz2",
	.unit = "bzip2 stream",
	.magic = {'B', 'Z', 'h'},
	.n_magic = 3,
	.max_level = 9,
	.default_level = 9,
	.frame_bytes = FRAME_BYTES,
	.encoder_new = encoder_new,
	.encode = bz2_encode,
	.encoder_free = mem_free,
	.decoder_new = decoder_new,
	.decode = bz2_decode,
	.decoder_free = decoder_free,
};
