/* SPDX-License-Identifier: Apache-2.0 */
/*
 * press: see press.h. Called by write.c; calls the codecs and the store. Promise P1: the sums of the compressed bytes
 * are taken before they leave our memory; P5: after an error the pack is given up by its save.
 */
#include "save/press.h"

#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"

#define CHUNK_BYTES ((size_t)SAVE_UNIT_BYTES) /* of one write; whole blocks of any size */
#define CHUNK_ALIGN ((size_t)4096)

struct slot {
	struct codec_piece piece;
	char *plain; /* of what has one stream: a copy, where the unit's own memory goes away */
	const char *ptr;
	size_t n;
	bool ready;
};

struct chunk {
	char *memory; /* as allocated */
	char *ptr;
	size_t used;
};

struct press {
	struct save_pack *pack;
	struct codec_frames *frames;
	uint64_t block_bytes;

	pthread_mutex_t lock; /* guards below */
	struct slot *slots;   /* one per unit */
	size_t n, next;       /* next: whose turn it is */
	bool busy;            /* somebody puts, and has all below */

	struct chunk *chunks; /* one, or all of them where the size must be known beforehand */
	size_t n_chunks;
	uint64_t at;     /* where the last chunk begins in the file */
	uint64_t nbytes; /* so far */
	struct buf sums; /* of the blocks of chunks that are full */
};

static int
no_memory(const struct press *p, struct pawl_error *err)
{
	return err_set(err, PAWL_ENOMEM, "%s: out of memory for compressing it", p->pack->name);
}

static bool
streams(const struct press *p)
{
	return p->pack->save->run->caps.can_cut;
}

/* ---------------------------------------------------------------- the chunks */

static int
add_chunk(struct press *p, struct pawl_error *err)
{
	struct chunk *grown = mem_resize(p->chunks, p->n_chunks + 1, sizeof(*grown));

	if (!grown)
		return no_memory(p, err);
	p->chunks = grown;
	struct chunk *c = &grown[p->n_chunks];
	*c = (struct chunk){.memory = mem_alloc(CHUNK_BYTES + CHUNK_ALIGN)};
	if (!c->memory)
		return no_memory(p, err);
	c->ptr = c->memory + (CHUNK_ALIGN - (uintptr_t)c->memory % CHUNK_ALIGN);
	p->n_chunks++;
	return 0;
}

/* n: with the padding of the last one. */
static int
write_chunk(struct press *p, const struct chunk *c, uint64_t at, size_t n, struct pawl_error *err)
{
	struct save *s = p->pack->save;
	struct store_file *file;

	pthread_mutex_lock(&p->pack->lock);
	file = p->pack->file;
	pthread_mutex_unlock(&p->pack->lock);
	TRY(write_bytes(s, file, at, c->ptr, n, err));
	atomic_fetch_add(&s->written_bytes, c->used);
	save_note_progress(s, 0);
	return 0;
}

/* A chunk is full, or the last one. */
static void
add_sums(struct press *p, const struct chunk *c)
{
	for (size_t at = 0; at < c->used; at += (size_t)p->block_bytes) {
		const size_t left = c->used - at;
		const struct sum128 sum = sum_bytes(c->ptr + at, left < p->block_bytes ? left : (size_t)p->block_bytes);

		buf_put(&p->sums, &sum, sizeof(sum));
	}
}

/* The chunk with room in it. */
static int
open_chunk(struct press *p, struct chunk **ret, struct pawl_error *err)
{
	struct chunk *last = p->n_chunks ? &p->chunks[p->n_chunks - 1] : NULL;

	if (last && last->used == CHUNK_BYTES) {
		add_sums(p, last);
		if (streams(p)) {
			TRY(write_chunk(p, last, p->at, last->used, err));
			last->used = 0;
		} else {
			TRY(add_chunk(p, err));
		}
		p->at += CHUNK_BYTES;
	} else if (!last) {
		TRY(add_chunk(p, err));
	}
	*ret = &p->chunks[p->n_chunks - 1];
	return 0;
}

static int
put(struct press *p, const char *ptr, size_t n, struct pawl_error *err)
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
put_slot(struct press *p, struct slot *slot, struct pawl_error *err)
{
	int rc = 0;

	if (slot->ptr)
		rc = codec_frames_encode(p->frames, slot->ptr, slot->n, &slot->piece, err);
	if (rc == 0)
		rc = codec_frames_note(p->frames, &slot->piece, err);
	if (rc == 0)
		rc = put(p, slot->piece.packed.ptr, slot->piece.packed.len, err);
	codec_piece_clear(&slot->piece);
	mem_free(steal(&slot->plain));
	return rc < 0 ? err_prefix(err, rc, "%s", p->pack->name) : 0;
}

/* What has one stream: the bytes have to wait for their turn as they are. */
static int
keep_plain(struct press *p, struct slot *slot, const struct save_unit *u, struct pawl_error *err)
{
	slot->n = u->nbytes;
	slot->ptr = u->mem;
	if (p->pack->image)
		return 0;
	slot->plain = mem_alloc(u->nbytes);
	if (!slot->plain)
		return no_memory(p, err);
	memcpy(slot->plain, u->mem, u->nbytes);
	slot->ptr = slot->plain;
	return 0;
}

int
press_unit(struct press *p, const struct save_unit *u, struct pawl_error *err)
{
	struct slot *slot = &p->slots[u->offset / p->pack->save->unit_bytes];
	int rc;

	if (codec_frames_any_order(p->frames)) {
		const int64_t begin_ns = clock_thread_ns();

		rc = codec_frames_encode(p->frames, u->mem, u->nbytes, &slot->piece, err);
		atomic_fetch_add(&p->pack->save->coded_bytes, u->nbytes);
		atomic_fetch_add(&p->pack->save->coded_ns, (uint64_t)(clock_thread_ns() - begin_ns));
		if (rc < 0)
			return err_prefix(err, rc, "%s", p->pack->name);
	} else {
		TRY(keep_plain(p, slot, u, err));
	}
	rc = 0;
	pthread_mutex_lock(&p->lock);
	slot->ready = true;
	while (rc == 0 && !p->busy && p->next < p->n && p->slots[p->next].ready) {
		struct slot *now = &p->slots[p->next];

		p->busy = true;
		pthread_mutex_unlock(&p->lock);
		rc = put_slot(p, now, err);
		pthread_mutex_lock(&p->lock);
		p->busy = rc < 0; /* after a failure nobody puts any more */
		p->next++;
	}
	pthread_mutex_unlock(&p->lock);
	if (rc == 0)
		save_note_progress(p->pack->save, u->nbytes);
	return rc;
}

/* -------------------------------------------------------------------- the end */

static int
open_now(struct press *p, struct pawl_error *err)
{
	struct save_pack *pack = p->pack;
	PAWL_CLEAN(buf_clear) struct buf key = {0};
	const struct pawl *run = pack->save->run;
	const struct store_create opts = {
		.nbytes = p->nbytes, .buffered = run->opts.no_direct_io, .own_name = !run->caps.rename_folder};

	buf_printf(&key, "%s/%s", pack->save->partial, pack->name);
	TRY(buf_check(&key, "save", err));
	return store_create(run->store, buf_str(&key), &opts, &pack->file, err);
}

int
press_finish(struct press *p, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf tail = {0};

	TRY(codec_frames_tail(p->frames, &tail, err));
	TRY(put(p, tail.ptr, tail.len, err));
	if (p->n_chunks)
		add_sums(p, &p->chunks[p->n_chunks - 1]);
	TRY(buf_check(&p->sums, p->pack->name, err));
	if (!streams(p))
		TRY(open_now(p, err));
	const uint64_t begin = p->n_chunks ? p->at - (p->n_chunks - 1) * CHUNK_BYTES : 0;
	for (size_t i = 0; i < p->n_chunks; i++) {
		const struct chunk *c = &p->chunks[i];
		const size_t n = (size_t)round_up(c->used, CHUNK_ALIGN);

		memset(c->ptr + c->used, 0, n - c->used);
		TRY(write_chunk(p, c, begin + i * CHUNK_BYTES, n, err));
	}
	return streams(p) ? store_cut(p->pack->file, p->nbytes, err) : 0;
}

uint64_t
press_bytes(const struct press *p)
{
	return p->nbytes;
}

const struct sum128 *
press_sums(const struct press *p, size_t *ret_n)
{
	*ret_n = p->sums.len / sizeof(struct sum128);
	return (const struct sum128 *)(const void *)p->sums.ptr;
}

void
press_free(struct press *p)
{
	if (!p)
		return;
	for (size_t i = 0; p->slots && i < p->n; i++) {
		codec_piece_clear(&p->slots[i].piece);
		mem_free(p->slots[i].plain);
	}
	for (size_t i = 0; i < p->n_chunks; i++)
		mem_free(p->chunks[i].memory);
	mem_free(p->chunks);
	mem_free(p->slots);
	buf_clear(&p->sums);
	codec_frames_free(p->frames);
	pthread_mutex_destroy(&p->lock);
	mem_free(p);
}

static void
clean_press(struct press **p)
{
	press_free(*p);
}

int
press_new(struct save_pack *pack, const struct codec *codec, size_t n_units, struct press **ret, struct pawl_error *err)
{
	PAWL_CLEAN(clean_press) struct press *p = mem_zalloc(1, sizeof(*p));
	PAWL_CLEAN(buf_clear) struct buf head = {0};

	if (!p)
		return err_set(err, PAWL_ENOMEM, "save: out of memory");
	pthread_mutex_init(&p->lock, NULL);
	p->pack = pack;
	p->block_bytes = pack->save->plan->block_bytes;
	p->slots = mem_zalloc(n_units, sizeof(*p->slots));
	if (!p->slots)
		return no_memory(p, err);
	p->n = n_units;
	TRY(codec_frames_new(codec, pack->save->run->opts.compression_level, &p->frames, err));
	TRY(codec_frames_head(p->frames, &head, err));
	TRY(put(p, head.ptr, head.len, err));
	*ret = steal(&p);
	return 0;
}
