/* SPDX-License-Identifier: Apache-2.0 */
/*
 * relayout_file: see relayout_file.h. Called by relayout.c; calls the store, the sums and the codecs. Promise P1: the
 * sums of compressed bytes are taken before they leave our memory.
 */
#include "jobs/convert/relayout_file.h"

#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/sum.h"
#include "save/press.h"

struct relayout_file {
	const struct relayout_file_opts *opts;
	struct bump *memory;
	const char *name; /* of the file */
	struct store_file *file;
	uint64_t nbytes, done; /* of what is put: all, so far */
	struct sum128 *sums;
	size_t n_blocks;

	/* compressed */
	struct codec_writer *writer;
	uint64_t packed_bytes;
	char *block; /* what there is of the last one */
	struct buf packed_sums;
};

static int
no_memory(struct pawl_error *err)
{
	return err_set(err, PAWL_ENOMEM, "reshard: out of memory");
}

static void
add_sum(struct relayout_file *f, size_t n)
{
	const struct sum128 sum = sum_bytes(f->block, n);

	buf_put(&f->packed_sums, &sum, sizeof(sum));
}

static int
put_packed(void *arg, const void *ptr, size_t nbytes, struct pawl_error *err)
{
	struct relayout_file *f = arg;
	const size_t block = (size_t)f->opts->block_bytes;

	TRY(store_write(f->opts->store, f->file, f->packed_bytes, ptr, nbytes, err));
	for (size_t at = 0; at < nbytes;) {
		const size_t used = (size_t)(f->packed_bytes % block), room = block - used;
		const size_t n = nbytes - at < room ? nbytes - at : room;

		memcpy(f->block + used, (const char *)ptr + at, n);
		at += n;
		f->packed_bytes += n;
		if (n == room)
			add_sum(f, block);
	}
	return 0;
}

void
relayout_file_free(struct relayout_file *f)
{
	if (!f)
		return;
	codec_writer_free(f->writer);
	if (f->file)
		store_abort(f->opts->store, f->file);
	buf_clear(&f->packed_sums);
	mem_free(f->block);
	mem_free(f);
}

static void
clean_file(struct relayout_file **f)
{
	relayout_file_free(*f);
}

int
relayout_file_new(const struct relayout_file_opts *opts, const char *name, uint64_t nbytes, struct bump *memory,
                  struct relayout_file **ret, struct pawl_error *err)
{
	PAWL_CLEAN(clean_file) struct relayout_file *f = mem_zalloc(1, sizeof(*f));
	PAWL_CLEAN(buf_clear) struct buf key = {0};
	const struct codec *codec = opts->codec;
	const struct store_create create = {.nbytes = codec ? press_most_bytes(nbytes) : nbytes, .buffered = true};

	if (!f)
		return no_memory(err);
	f->opts = opts;
	f->memory = memory;
	f->nbytes = nbytes;
	f->n_blocks = (size_t)(nbytes / opts->block_bytes + (nbytes % opts->block_bytes != 0));
	f->sums = bump_array(memory, (uint64_t)f->n_blocks + 1, sizeof(*f->sums));
	f->name = bump_printf(memory, "%s%s%s", name, codec ? "." : "", codec ? codec_name(codec) : "");
	f->block = codec ? mem_alloc((size_t)opts->block_bytes) : NULL;
	if (!f->sums || !f->name || (codec && !f->block))
		return no_memory(err);
	buf_printf(&key, "%s/%s", opts->folder, f->name);
	TRY(buf_check(&key, "reshard", err));
	TRY(store_create(opts->store, buf_str(&key), &create, &f->file, err));
	if (codec)
		TRY(codec_writer_new(codec, opts->level, opts->threads, put_packed, f, &f->writer, err));
	*ret = steal(&f);
	return 0;
}

int
relayout_file_put(struct relayout_file *f, const void *ptr, size_t n, struct pawl_error *err)
{
	const uint64_t block = f->opts->block_bytes;

	for (size_t at = 0; at < n; at += (size_t)block) {
		const size_t now = n - at < block ? n - at : (size_t)block;

		f->sums[(f->done + at) / block] = sum_bytes((const char *)ptr + at, now);
	}
	TRY(f->writer ? codec_writer_put(f->writer, ptr, n, err)
	              : store_write(f->opts->store, f->file, f->done, ptr, n, err));
	f->done += n;
	return 0;
}

static int
finish_packed(struct relayout_file *f, struct manifest_file *row, struct pawl_error *err)
{
	struct sum128 *sums;

	TRY(codec_writer_finish(f->writer, NULL, NULL, err));
	if (f->packed_bytes % f->opts->block_bytes != 0)
		add_sum(f, (size_t)(f->packed_bytes % f->opts->block_bytes));
	TRY(buf_check(&f->packed_sums, f->name, err));
	sums = bump_alloc(f->memory, f->packed_sums.len + sizeof(*sums));
	if (!sums)
		return no_memory(err);
	memcpy(sums, f->packed_sums.ptr, f->packed_sums.len);
	*row = (struct manifest_file){.name = f->name,
	                              .nbytes = f->packed_bytes,
	                              .block_bytes = f->opts->block_bytes,
	                              .n_blocks = f->packed_sums.len / sizeof(*sums),
	                              .sums = sums,
	                              .codec = codec_name(f->opts->codec),
	                              .plain_bytes = f->nbytes,
	                              .n_plain_blocks = f->n_blocks,
	                              .plain_sums = f->sums};
	return store_cut(f->file, f->packed_bytes, err);
}

int
relayout_file_finish(struct relayout_file *f, struct manifest_file *ret, struct pawl_error *err)
{
	struct manifest_file row = {.name = f->name,
	                            .nbytes = f->nbytes,
	                            .block_bytes = f->opts->block_bytes,
	                            .n_blocks = f->n_blocks,
	                            .sums = f->sums};

	if (f->writer)
		TRY(finish_packed(f, &row, err));
	TRY(store_finish(f->opts->store, steal(&f->file), err));
	*ret = row;
	return 0;
}
