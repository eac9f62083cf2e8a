/* SPDX-License-Identifier: Apache-2.0 */
/* repair_files: the rows of files in a rebuilt manifest, from the bytes of the packs; see
 * repair.h. */
#include <string.h>

#include "base/err.h"
#include "base/finite.h"
#include "keep/repair.h"
#include "read/compressed_pack.h"
#include "run/run.h"
#include "state/pack_name.h"

#define DEFAULT_BLOCK_BYTES ((uint64_t)1 << 20)

struct open_pack {
	struct store *store;
	struct store_reader *reader;
	struct compressed_pack *compressed;
};

static void
close_pack(struct open_pack *p)
{
	compressed_pack_close(p->compressed);
	store_close_reader(p->store, p->reader);
}

/* After each block that the tensors are in. */
static int
count_block(struct repair *r, size_t len, struct pawl_error *err)
{
	if (!r->meter)
		return 0;
	__atomic_add_fetch(&r->meter->done_bytes, len, __ATOMIC_RELAXED);
	return __atomic_load_n(&r->meter->cancel, __ATOMIC_RELAXED)
	               ? err_set(err, PAWL_ECANCELLED, "%s: the repair was cancelled", r->name)
	               : 0;
}

/* Looks at the elements that the block holds completely. */
static bool
is_finite(const struct repair_pack *p, uint64_t offset, const unsigned char *block, size_t len)
{
	for (size_t i = 0; i < p->table.n_tensors; i++) {
		const struct st_tensor *t = &p->table.tensors[i];
		const uint64_t bits = pawl_dtype_bits(t->dtype), size = bits < 8 ? 1 : bits / 8;
		const uint64_t begin = p->table.data_begin + t->begin;
		const uint64_t last = p->table.data_begin + t->end, stop = offset + len < last ? offset + len : last;

		if (begin >= stop || last <= offset)
			continue;
		const uint64_t from = offset > begin ? begin + (offset - begin + size - 1) / size * size : begin;
		const uint64_t to = begin + (stop - begin) / size * size;

		if (from < to && !finite_all(t->dtype, block + (from - offset), (size_t)(to - from)))
			return false;
	}
	return true;
}

/* The checksums of all blocks of the file, or of its decompressed contents. The summary was written
 * before NaN and Inf were found in the bytes. */
static int
sum_blocks(struct repair *r, const struct repair_pack *p, const struct open_pack *open, bool plain, uint64_t nbytes,
           struct manifest_file *f, struct pawl_error *err)
{
	const uint64_t block_bytes = f->block_bytes, n = nbytes / block_bytes + (nbytes % block_bytes != 0);
	PAWL_FREE unsigned char *block = mem_alloc((size_t)block_bytes);
	struct sum128 *sums = bump_array(&r->m->memory, n, sizeof(*sums));

	if (!block || !sums)
		return err_nomem(err, r->name);
	for (uint64_t i = 0; r->with_sums && i < n; i++) {
		const uint64_t offset = i * block_bytes;
		const size_t len = (size_t)(nbytes - offset < block_bytes ? nbytes - offset : block_bytes);

		TRY(plain ? compressed_pack_read(open->compressed, offset, block, len, err)
		          : store_read(open->store, open->reader, offset, block, len, err));
		sums[i] = sum_bytes(block, len);
		if (!plain && open->compressed)
			continue;
		r->m->nonfinite = r->m->nonfinite || !is_finite(p, offset, block, len);
		TRY(count_block(r, len, err));
	}
	*(plain ? &f->plain_sums : &f->sums) = sums;
	*(plain ? &f->n_plain_blocks : &f->n_blocks) = (size_t)n;
	*(plain ? &f->plain_bytes : &f->nbytes) = nbytes;
	return 0;
}

static int
describe_file(struct repair *r, const struct repair_pack *p, struct manifest_file *f, struct pawl_error *err)
{
	PAWL_CLEAN(close_pack) struct open_pack open = {.store = r->run->store};
	PAWL_CLEAN(buf_clear) struct buf key = {0};
	const struct codec *codec = pack_codec(p->name);
	uint64_t nbytes, plain;

	TRY(repair_key(r, p->name, &key, err));
	TRY(store_open_reader(open.store, buf_str(&key), &open.reader, &nbytes, err));
	plain = nbytes;
	if (codec) {
		TRY(compressed_pack_open(open.store, open.reader, p->name, nbytes, UINT64_MAX, 0, &open.compressed,
		                         err));
		TRY(compressed_pack_size(open.compressed, &plain, err));
		f->codec = codec_name(codec);
		TRY(sum_blocks(r, p, &open, true, plain, f, err));
	}
	if (plain != p->nbytes)
		return err_set(err, PAWL_ECONFLICT, "%s: its size changed while it was read", buf_str(&key));
	return sum_blocks(r, p, &open, false, nbytes, f, err);
}

int
repair_describe_files(struct repair *r, struct pawl_error *err)
{
	uint64_t block_bytes = r->run->opts.packs.block_bytes ? r->run->opts.packs.block_bytes : DEFAULT_BLOCK_BYTES;
	struct manifest *m = r->m;
	bool is_compressed = false;

	m->bytes = m->plain_bytes = 0;
	m->n_files = r->parts.n;
	m->files = bump_array(&m->memory, r->parts.n, sizeof(*m->files));
	if (!m->files)
		return err_nomem(err, r->name);
	for (size_t i = 0; r->meter && i < r->parts.n; i++)
		__atomic_add_fetch(&r->meter->total_bytes, r->parts.items[i].nbytes, __ATOMIC_RELAXED);
	for (size_t i = 0; i < r->parts.n; i++) {
		struct manifest_file *f = &m->files[i];

		*f = (struct manifest_file){.name = r->parts.items[i].name, .block_bytes = block_bytes};
		TRY(describe_file(r, &r->parts.items[i], f, err));
		m->bytes += f->nbytes;
		m->plain_bytes += manifest_plain_bytes(f);
		is_compressed = is_compressed || f->codec;
	}
	m->plain_bytes = is_compressed ? m->plain_bytes : 0;
	m->new_bytes = m->bytes;
	return 0;
}
