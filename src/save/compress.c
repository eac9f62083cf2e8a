/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compress: see compress.h. Promises P1: compressed bytes are checksummed before they leave the
 * process's memory; P5: after an error the save abandons the pack.
 */
#include "save/compress.h"

#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/vec.h"

#define CHUNK_BYTES ((size_t)SAVE_UNIT_BYTES) /* of one write; a multiple of every block size */
#define CHUNK_ALIGN ((size_t)4096)

struct slot {
	struct codec_piece piece;
	bool ready;
};

struct chunk {
	char *memory; /* as allocated */
	char *ptr;
	size_t used;
};

struct compress {
	struct save_pack *pack;
	struct codec_frames *frames;
	uint64_t block_bytes;

	pthread_mutex_t lock; /* guards below */
	struct slot *slots;   /* one per unit */
	size_t n, next;       /* next: the unit that the file needs next */
	bool busy;            /* a thread appends, and owns all below */

	VEC(struct chunk) chunks; /* one; or all of them where the store must know the size in advance */
	uint64_t at;              /* where the last chunk begins in the file */
	uint64_t nbytes;          /* so far */
	struct buf sums;          /* of the blocks of chunks that are full */
};

static bool
can_stream(const struct compress *p)
{
	return p->pack->image->env->caps->can_cut;
}

/* ---------------------------------------------------------------- the chunks */

static int
add_chunk(struct compress *p, struct pawl_error *err)
{
	struct chunk *c = vec_add(&p->chunks);

	if (!c)
		return err_nomem(err, p->pack->name);
	c->memory = mem_alloc(CHUNK_BYTES + CHUNK_ALIGN);
	if (!c->memory) {
		p->chunks.n--;
		return err_nomem(err, p->pack->name);
	}
	c->ptr = c->memory + (CHUNK_ALIGN - (uintptr_t)c->memory % CHUNK_ALIGN);
	return 0;
}

/* n includes the padding of the last chunk. */
static int
write_chunk(struct compress *p, const struct chunk *c, uint64_t at, size_t n, struct pawl_error *err)
{
	struct save_image *m = p->pack->image;
	struct store_file *file;

	pthread_mutex_lock(&p->pack->lock);
	file = p->pack->file;
	pthread_mutex_unlock(&p->pack->lock);
	TRY(write_bytes(m, file, at, c->ptr, n, err));
	atomic_fetch_add(&m->progress->written_bytes, c->used);
	m->note_progress(m->note_arg, 0);
	return 0;
}

/* For a full chunk, or the last one. */
static void
add_checksums(struct compress *p, const struct chunk *c)
{
	for (size_t at = 0; at < c->used; at += (size_t)p->block_bytes) {
		const size_t left = c->used - at;
		const struct sum128 sum = sum_bytes(c->ptr + at, left < p->block_bytes ? left : (size_t)p->block_bytes);

		buf_put(&p->sums, &sum, sizeof(sum));
	}
}

/* The chunk that still has room. */
static int
open_chunk(struct compress *p, struct chunk **ret, struct pawl_error *err)
{
	struct chunk *last = p->chunks.n ? &p->chunks.items[p->chunks.n - 1] : NULL;

	if (last && last->used == CHUNK_BYTES) {
		add_checksums(p, last);
		if (can_stream(p)) {
			TRY(write_chunk(p, last, p->at, last->used, err));
			last->used = 0;
		} else {
			TRY(add_chunk(p, err));
		}
		p->at += CHUNK_BYTES;
	} else if (!last) {
		TRY(add_chunk(p, err));
	}
	*ret = &p->chunks.items[p->chunks.n - 1];
	return 0;
}

static int
append_bytes(struct compress *p, const char *ptr, size_t n, struct pawl_error *err)
{
	p->nbytes += n;
	while (n > 0) {
		struct chunk *c;

		TRY(open_chunk(p, &c, err));
		const size_t room = CHUNK_BYTES - c->used, now = room < n ? room : n;
		memcpy(c->ptr + c->used, ptr, now);
		c->used += now;
		ptr += now;
		n -= now;
	}
	return 0;
}

/* ------------------------------------------------------------------ the turns */

static int
append_unit(struct compress *p, struct slot *slot, struct pawl_error *err)
{
	int rc = codec_frames_note(p->frames, &slot->piece, err);

	if (rc == 0)
		rc = append_bytes(p, slot->piece.compressed.ptr, slot->piece.compressed.len, err);
	codec_piece_clear(&slot->piece);
	return rc < 0 ? err_prefix(err, rc, "%s", p->pack->name) : 0;
}

int
compress_unit(struct compress *p, const struct save_unit *u, struct pawl_error *err)
{
	struct slot *slot = &p->slots[u->offset / p->pack->image->unit_bytes];
	const int64_t begin_ns = clock_thread_ns();
	int rc = codec_frames_encode(p->frames, u->mem, u->nbytes, false, &slot->piece, err);

	atomic_fetch_add(&p->pack->image->progress->coded_bytes, u->nbytes);
	atomic_fetch_add(&p->pack->image->progress->coded_ns, (uint64_t)(clock_thread_ns() - begin_ns));
	if (rc < 0)
		return err_prefix(err, rc, "%s", p->pack->name);
	pthread_mutex_lock(&p->lock);
	slot->ready = true;
	while (rc == 0 && !p->busy && p->next < p->n && p->slots[p->next].ready) {
		struct slot *now = &p->slots[p->next];

		p->busy = true;
		pthread_mutex_unlock(&p->lock);
		rc = append_unit(p, now, err);
		pthread_mutex_lock(&p->lock);
		p->busy = rc < 0; /* after a failure no thread appends */
		p->next++;
	}
	pthread_mutex_unlock(&p->lock);
	if (rc == 0)
		p->pack->image->note_progress(p->pack->image->note_arg, u->nbytes);
	return rc;
}

/* -------------------------------------------------------------------- the end */

static int
open_now(struct compress *p, struct pawl_error *err)
{
	struct save_pack *pack = p->pack;
	PAWL_CLEAN(buf_clear) struct buf key = {0};
	const struct save_image *m = pack->image;
	const struct store_create opts = {
		.nbytes = p->nbytes, .buffered = m->env->opts->io.no_direct, .own_name = true};

	buf_printf(&key, "%s/%s", m->partial, pack->name);
	TRY(buf_check(&key, "save", err));
	return store_create(m->env->store, buf_str(&key), &opts, &pack->file, err);
}

int
compress_finish(struct compress *p, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf tail = {0};

	TRY(codec_frames_tail(p->frames, &tail, err));
	TRY(append_bytes(p, tail.ptr, tail.len, err));
	if (p->chunks.n)
		add_checksums(p, &p->chunks.items[p->chunks.n - 1]);
	TRY(buf_check(&p->sums, p->pack->name, err));
	if (!can_stream(p))
		TRY(open_now(p, err));
	const uint64_t begin = p->chunks.n ? p->at - (p->chunks.n - 1) * CHUNK_BYTES : 0;
	for (size_t i = 0; i < p->chunks.n; i++) {
		const struct chunk *c = &p->chunks.items[i];
		const size_t n = (size_t)mem_round_up(c->used, CHUNK_ALIGN);

		memset(c->ptr + c->used, 0, n - c->used);
		TRY(write_chunk(p, c, begin + i * CHUNK_BYTES, n, err));
	}
	return can_stream(p) ? store_cut(p->pack->file, p->nbytes, err) : 0;
}

uint64_t
compress_bytes(const struct compress *p)
{
	return p->nbytes;
}

const struct sum128 *
compress_sums(const struct compress *p, size_t *ret_n)
{
	*ret_n = p->sums.len / sizeof(struct sum128);
	return (const struct sum128 *)(const void *)p->sums.ptr;
}

void
compress_free(struct compress *p)
{
	if (!p)
		return;
	for (size_t i = 0; p->slots && i < p->n; i++)
		codec_piece_clear(&p->slots[i].piece);
	for (size_t i = 0; i < p->chunks.n; i++)
		mem_free(p->chunks.items[i].memory);
	vec_free(&p->chunks);
	mem_free(p->slots);
	buf_clear(&p->sums);
	codec_frames_free(p->frames);
	pthread_mutex_destroy(&p->lock);
	mem_free(p);
}

PAWL_DEFINE_CLEAN(struct compress, compress_free);

int
compress_new(struct save_pack *pack, const struct codec *codec, size_t n_units, struct compress **ret,
             struct pawl_error *err)
{
	PAWL_CLEAN(compress_free_clean) struct compress *p = mem_zalloc(1, sizeof(*p));

	if (!p)
		return err_nomem(err, "save");
	pthread_mutex_init(&p->lock, NULL);
	p->pack = pack;
	p->block_bytes = pack->image->plan->block_bytes;
	p->slots = mem_zalloc(n_units, sizeof(*p->slots));
	if (!p->slots)
		return err_nomem(err, p->pack->name);
	p->n = n_units;
	TRY(codec_frames_new(codec, pack->image->env->opts->packs.compression_level, &p->frames, err));
	*ret = steal(&p);
	return 0;
}
