/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_xz: xz and the older lzma, by liblzma. Each frame of xz is a block of one stream; the index
 * at its end records where the blocks are. The check is CRC64, xz's default. lzma has neither
 * frames nor a check: one stream, written by one thread. A decoder uses at most 256 MiB of memory
 *.
 */
#include <lzma.h>

#include <string.h>

#include "base/err.h"
#include "format/codec/codec_own.h"

#define FRAME_BYTES (16u << 20) /* twice the window of level 6 */
#define STREAM_BYTES (1u << 20)
#define MAX_INDEX ((uint64_t)64 << 20)

static void *
allocate_memory(void *arg, size_t n, size_t size)
{
	uint64_t nbytes;

	(void)arg;
	return mem_mul_ok(n, size, &nbytes) ? mem_alloc((size_t)nbytes) : NULL;
}

static void
release_memory(void *arg, void *ptr)
{
	(void)arg;
	mem_free(ptr);
}

static const lzma_allocator heap = {.alloc = allocate_memory, .free = release_memory};

static int
code_of(lzma_ret rc, const char **why)
{
	switch (rc) {
	case LZMA_MEM_ERROR:
		*why = "out of memory";
		return PAWL_ENOMEM;
	case LZMA_MEMLIMIT_ERROR:
		*why = "needs more than 256 MiB to be decompressed";
		return PAWL_ELIMIT;
	case LZMA_FORMAT_ERROR:
		*why = "nothing of this format begins here";
		return PAWL_ECORRUPT;
	case LZMA_OPTIONS_ERROR:
		*why = "uses what liblzma does not know";
		return PAWL_EUNSUPPORTED;
	case LZMA_UNSUPPORTED_CHECK:
		*why = "has a check that liblzma does not know";
		return PAWL_EUNSUPPORTED;
	default:
		*why = "damaged data";
		return PAWL_ECORRUPT;
	}
}

/* -------------------------------------------------------------- xz, writing */

struct encoder {
	lzma_options_lzma options;
	lzma_stream stream; /* of lzma */
};

static int
encoder_new(int level, void **ret, const char **why)
{
	TRY(codec_zalloc(sizeof(struct encoder), ret, why));
	lzma_lzma_preset(&((struct encoder *)*ret)->options, (uint32_t)level);
	return 0;
}

static int
xz_encode(void *encoder, const void *ptr, size_t n, bool last, struct buf *out, struct codec_frame *frame,
          const char **why)
{
	struct encoder *e = encoder;
	lzma_filter filters[] = {{LZMA_FILTER_LZMA2, &e->options}, {LZMA_VLI_UNKNOWN, NULL}};
	lzma_block block = {.version = 1, .check = LZMA_CHECK_CRC64, .filters = filters};
	const size_t bound = lzma_block_buffer_bound(n);
	unsigned char *p = (unsigned char *)buf_grow(out, bound);
	size_t compressed = 0;

	(void)last;
	*why = "out of memory";
	if (!p)
		return PAWL_ENOMEM;
	const lzma_ret rc = lzma_block_buffer_encode(&block, &heap, ptr, n, p, &compressed, bound);
	if (rc != LZMA_OK)
		return code_of(rc, why);
	out->len -= bound - compressed;
	frame->compressed = compressed;
	frame->note = lzma_block_unpadded_size(&block);
	return 0;
}

static const lzma_stream_flags plain_flags = {.version = 0, .check = LZMA_CHECK_CRC64};

static int
xz_head(struct buf *out, const char **why)
{
	unsigned char *p = (unsigned char *)buf_grow(out, LZMA_STREAM_HEADER_SIZE);

	*why = "out of memory";
	return p && lzma_stream_header_encode(&plain_flags, p) == LZMA_OK ? 0 : PAWL_ENOMEM;
}

static int
put_index(lzma_index *index, const struct codec_table *t, struct buf *out, const char **why)
{
	lzma_stream_flags flags = plain_flags;
	size_t used = 0;

	for (size_t i = 0; i < t->n; i++) {
		const lzma_ret rc = lzma_index_append(index, &heap, t->frames[i].note, t->frames[i].plain);
		if (rc != LZMA_OK)
			return code_of(rc, why);
	}
	flags.backward_size = lzma_index_size(index);
	const size_t n = (size_t)flags.backward_size;
	unsigned char *p = (unsigned char *)buf_grow(out, n + LZMA_STREAM_HEADER_SIZE);
	*why = "out of memory";
	if (!p)
		return PAWL_ENOMEM;
	*why = "liblzma did not make an index";
	return lzma_index_buffer_encode(index, p, &used, n) == LZMA_OK &&
	                       lzma_stream_footer_encode(&flags, p + n) == LZMA_OK
	               ? 0
	               : PAWL_EIO;
}

static int
xz_tail(const struct codec_table *t, struct buf *out, const char **why)
{
	lzma_index *index = lzma_index_init(&heap);

	*why = "out of memory";
	if (!index)
		return PAWL_ENOMEM;
	const int rc = put_index(index, t, out, why);
	lzma_index_end(index, &heap);
	return rc;
}

/* ------------------------------------------------------------ lzma, writing */

static int
lzma_encoder_new(int level, void **ret, const char **why)
{
	void *encoder;

	TRY(encoder_new(level, &encoder, why));
	struct encoder *e = encoder;
	e->stream.allocator = &heap;
	const lzma_ret rc = lzma_alone_encoder(&e->stream, &e->options);
	if (rc != LZMA_OK) {
		mem_free(e);
		return code_of(rc, why);
	}
	*ret = e;
	return 0;
}

static void
lzma_encoder_free(void *encoder)
{
	struct encoder *e = encoder;

	lzma_end(&e->stream);
	mem_free(e);
}

static int
lzma_encode(void *encoder, const void *ptr, size_t n, bool last, struct buf *out, struct codec_frame *frame,
            const char **why)
{
	enum { ROOM = 64 << 10 };
	lzma_stream *z = &((struct encoder *)encoder)->stream;
	lzma_ret rc = LZMA_OK;

	z->next_in = ptr;
	z->avail_in = n;
	while (rc == LZMA_OK && (last || z->avail_in > 0)) {
		char *p = buf_grow(out, ROOM);
		*why = "out of memory";
		if (!p)
			return PAWL_ENOMEM;
		z->next_out = (uint8_t *)p;
		z->avail_out = ROOM;
		rc = lzma_code(z, last ? LZMA_FINISH : LZMA_RUN);
		out->len -= z->avail_out;
	}
	if (rc != LZMA_OK && rc != LZMA_STREAM_END)
		return code_of(rc, why);
	frame->compressed = out->len;
	return 0;
}

/* ------------------------------------------------------------------ reading */

struct decoder {
	lzma_stream stream;
	bool open;
	bool alone; /* lzma */
};

static int
decoder_new(bool alone, void **ret, const char **why)
{
	TRY(codec_zalloc(sizeof(struct decoder), ret, why));
	struct decoder *d = *ret;
	d->alone = alone;
	d->stream.allocator = &heap;
	return 0;
}

static int
xz_decoder_new(void **ret, const char **why)
{
	return decoder_new(false, ret, why);
}

static int
lzma_decoder_new(void **ret, const char **why)
{
	return decoder_new(true, ret, why);
}

static void
decoder_free(void *decoder)
{
	struct decoder *d = decoder;

	lzma_end(&d->stream);
	mem_free(d);
}

static int
xz_decode(void *decoder, struct codec_step *s, const char **why)
{
	struct decoder *d = decoder;
	lzma_stream *z = &d->stream;
	lzma_ret rc = LZMA_OK;

	if (!d->open) {
		rc = d->alone ? lzma_alone_decoder(z, CODEC_MAX_MEMORY)
		              : lzma_stream_decoder(z, CODEC_MAX_MEMORY, LZMA_TELL_UNSUPPORTED_CHECK);
		if (rc != LZMA_OK)
			return code_of(rc, why);
		d->open = true;
	}
	z->next_in = s->in;
	z->avail_in = s->n_in;
	z->next_out = s->out;
	z->avail_out = s->n_out;
	rc = lzma_code(z, LZMA_RUN);
	s->in = z->next_in;
	s->n_in = z->avail_in;
	s->out = z->next_out;
	s->n_out = z->avail_out;
	if (rc == LZMA_OK || rc == LZMA_BUF_ERROR)
		return CODEC_GO;
	d->open = false;
	return rc == LZMA_STREAM_END ? CODEC_END : code_of(rc, why);
}

static int
add_blocks(lzma_index *index, struct codec_table *t, struct pawl_error *err)
{
	lzma_index_iter iter;

	lzma_index_iter_init(&iter, index);
	while (!lzma_index_iter_next(&iter, LZMA_INDEX_ITER_BLOCK)) {
		const struct codec_frame frame = {.compressed = iter.block.total_size,
		                                  .plain = iter.block.uncompressed_size,
		                                  .note = iter.block.unpadded_size};
		TRY(codec_table_add(t, &frame, err));
	}
	return 0;
}

/* The index of a file of one stream. */
static int
read_index(const struct source *compressed, const lzma_stream_flags *flags, lzma_index **ret, struct pawl_error *err)
{
	const size_t n = (size_t)flags->backward_size;
	PAWL_FREE unsigned char *bytes = mem_alloc(n);
	uint64_t memory = CODEC_MAX_MEMORY;
	size_t used = 0;

	if (!bytes)
		return err_nomem(err, compressed->what);
	TRY(source_read(compressed, compressed->nbytes - LZMA_STREAM_HEADER_SIZE - n, bytes, n, err));
	const lzma_ret rc = lzma_index_buffer_decode(ret, &memory, &heap, bytes, &used, n);
	if (rc == LZMA_MEM_ERROR)
		return err_nomem(err, compressed->what);
	return rc == LZMA_OK && used == n;
}

static int
xz_table(const struct source *compressed, struct codec_table *ret, struct pawl_error *err)
{
	enum { SIZE = LZMA_STREAM_HEADER_SIZE };
	unsigned char head[SIZE], foot[SIZE];
	lzma_stream_flags at_head, at_foot;
	lzma_index *index = NULL;

	if (compressed->nbytes < 2 * SIZE)
		return 0;
	TRY(source_read(compressed, 0, head, SIZE, err));
	TRY(source_read(compressed, compressed->nbytes - SIZE, foot, SIZE, err));
	if (lzma_stream_header_decode(&at_head, head) != LZMA_OK ||
	    lzma_stream_footer_decode(&at_foot, foot) != LZMA_OK ||
	    lzma_stream_flags_compare(&at_head, &at_foot) != LZMA_OK || at_foot.backward_size > MAX_INDEX ||
	    at_foot.backward_size > compressed->nbytes - 2 * SIZE || !lzma_check_is_supported(at_foot.check))
		return 0;
	int rc = read_index(compressed, &at_foot, &index, err);
	if (rc == 1 && lzma_index_file_size(index) != compressed->nbytes)
		rc = 0;
	if (rc == 1) {
		ret->begin = SIZE;
		ret->note = (uint64_t)at_foot.check;
		const int added = add_blocks(index, ret, err);
		rc = added < 0 ? added : rc;
	}
	lzma_index_end(index, &heap);
	return rc;
}

static int
xz_decode_frame(const struct codec_table *t, const unsigned char *in, size_t n_in, unsigned char *out, size_t n_out,
                const char **why)
{
	lzma_filter filters[LZMA_FILTERS_MAX + 1];
	lzma_block block = {.version = 1, .check = (lzma_check)t->note, .filters = filters};
	size_t read = 0, written = 0;

	*why = "damaged data";
	if (n_in == 0 || in[0] == 0)
		return PAWL_ECORRUPT;
	block.header_size = lzma_block_header_size_decode(in[0]);
	if (block.header_size > n_in)
		return PAWL_ECORRUPT;
	lzma_ret rc = lzma_block_header_decode(&block, &heap, in);
	if (rc != LZMA_OK)
		return code_of(rc, why);
	read = block.header_size;
	rc = lzma_raw_decoder_memusage(filters) > CODEC_MAX_MEMORY
	             ? LZMA_MEMLIMIT_ERROR
	             : lzma_block_buffer_decode(&block, &heap, in, &read, n_in, out, &written, n_out);
	for (size_t i = 0; i < LZMA_FILTERS_MAX && filters[i].id != LZMA_VLI_UNKNOWN; i++)
		mem_free(filters[i].options);
	if (rc != LZMA_OK)
		return code_of(rc, why);
	return read == n_in && written == n_out ? CODEC_END : PAWL_ECORRUPT;
}

const struct codec codec_xz = {
	.name = "xz",
	.suffix = ".xz",
	.unit = "xz stream",
	.magic = {0xfd, '7', 'z', 'X', 'Z', 0},
	.n_magic = 6,
	.max_level = 9,
	.default_level = 6,
	.zeros_may_follow = true,
	.frame_bytes = FRAME_BYTES,
	.encoder_new = encoder_new,
	.encode = xz_encode,
	.encoder_free = mem_free,
	.head = xz_head,
	.tail = xz_tail,
	.decoder_new = xz_decoder_new,
	.decode = xz_decode,
	.decoder_free = decoder_free,
	.table = xz_table,
	.decode_frame = xz_decode_frame,
};

const struct codec codec_lzma = {
	.name = "lzma",
	.suffix = ".lzma",
	.unit = "lzma stream",
	.max_level = 9,
	.default_level = 6,
	.one_stream = true,
	.frame_bytes = STREAM_BYTES,
	.encoder_new = lzma_encoder_new,
	.encode = lzma_encode,
	.encoder_free = lzma_encoder_free,
	.decoder_new = lzma_decoder_new,
	.decode = xz_decode,
	.decoder_free = decoder_free,
};
