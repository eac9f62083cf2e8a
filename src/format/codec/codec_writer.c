/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_writer: see codec.h.
 *
 * A ring of slots. The caller fills a slot, and a thread compresses it by codec_frames. The caller
 * passes it to the sink in order and fills it again. A codec without frames has one thread, so that
 * its pieces stay in order.
 */
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/pool.h"
#include "format/codec/codec_own.h"

#define MAX_THREADS 64u

struct slot {
	struct codec_writer *writer;
	char *plain;
	size_t n;
	bool last;
	/* the thread's, while busy; then the caller's */
	struct codec_piece piece;
	int rc;
	struct pawl_error err;
	bool busy; /* guarded by the writer's lock */
};

struct codec_writer {
	const struct codec *codec;
	struct codec_frames *frames;
	codec_sink_fn *sink;
	void *arg;
	struct pool *pool;
	struct slot *slots;
	size_t n_slots, first, n_used; /* first: the oldest one in use; the one after the used ones is being filled */
	uint64_t in, out;
	bool begun, failed;
	pthread_mutex_t lock;
	pthread_cond_t done;
};

/* ------------------------------------------------------------- the threads */

static void
compress_slot(void *arg)
{
	struct slot *slot = arg;
	struct codec_writer *w = slot->writer;

	slot->piece.compressed.len = slot->piece.n_frames = 0;
	slot->rc = codec_frames_encode(w->frames, slot->n > 0 ? slot->plain : "", slot->n, slot->last, &slot->piece,
	                               &slot->err);
	pthread_mutex_lock(&w->lock);
	slot->busy = false;
	pthread_cond_signal(&w->done);
	pthread_mutex_unlock(&w->lock);
}

/* --------------------------------------------------------------- the caller */

static int
sink_bytes(struct codec_writer *w, const void *ptr, size_t n, struct pawl_error *err)
{
	w->out += n;
	return n > 0 ? w->sink(w->arg, ptr, n, err) : 0;
}

/* The oldest slot to the sink. */
static int
drain_one(struct codec_writer *w, struct pawl_error *err)
{
	struct slot *slot = &w->slots[w->first];

	pthread_mutex_lock(&w->lock);
	while (slot->busy)
		pthread_cond_wait(&w->done, &w->lock);
	pthread_mutex_unlock(&w->lock);
	w->first = (w->first + 1) % w->n_slots;
	w->n_used--;
	if (slot->rc < 0)
		return err_give(err, slot->rc, &slot->err);
	TRY(codec_frames_note(w->frames, &slot->piece, err));
	return sink_bytes(w, slot->piece.compressed.ptr, slot->piece.compressed.len, err);
}

static struct slot *
filling_slot(struct codec_writer *w)
{
	return &w->slots[(w->first + w->n_used) % w->n_slots];
}

/* Hands the slot that is being filled to the threads; the next one is free then. */
static int
hand_over(struct codec_writer *w, bool last, struct pawl_error *err)
{
	struct slot *slot = filling_slot(w);

	slot->last = last;
	slot->busy = true;
	const int rc = pool_add(w->pool, NULL, compress_slot, slot, err);
	if (rc < 0) {
		slot->busy = false;
		return rc;
	}
	w->n_used++;
	if (w->n_used == w->n_slots)
		TRY(drain_one(w, err));
	filling_slot(w)->n = 0;
	return 0;
}

static int
begin_file(struct codec_writer *w, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf head = {0};

	if (w->begun)
		return 0;
	w->begun = true;
	TRY(codec_frames_head(w->frames, &head, err));
	return sink_bytes(w, head.ptr, head.len, err);
}

static int
write_bytes(struct codec_writer *w, const char *ptr, size_t nbytes, struct pawl_error *err)
{
	TRY(begin_file(w, err));
	w->in += nbytes;
	while (nbytes > 0) {
		struct slot *slot = filling_slot(w);
		size_t n = w->codec->frame_bytes - slot->n;

		n = n < nbytes ? n : nbytes;
		if (!slot->plain)
			slot->plain = mem_alloc(w->codec->frame_bytes);
		if (!slot->plain)
			return err_set(err, PAWL_ENOMEM, "cannot be compressed as %s: out of memory", w->codec->name);
		memcpy(slot->plain + slot->n, ptr, n);
		slot->n += n;
		ptr += n;
		nbytes -= n;
		if (slot->n == w->codec->frame_bytes)
			TRY(hand_over(w, false, err));
	}
	return 0;
}

static int
finish_file(struct codec_writer *w, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf tail = {0};

	TRY(begin_file(w, err));
	/* Empty input makes one empty frame; a stream needs an explicit end. */
	if (filling_slot(w)->n > 0 || w->in == 0 || w->codec->one_stream)
		TRY(hand_over(w, true, err));
	while (w->n_used > 0)
		TRY(drain_one(w, err));
	TRY(codec_frames_tail(w->frames, &tail, err));
	return sink_bytes(w, tail.ptr, tail.len, err);
}

static int
used_up(const struct codec_writer *w, struct pawl_error *err)
{
	return err_set(err, PAWL_EUSAGE, "%s: nothing more can be written after a failure or the end", w->codec->name);
}

int
codec_writer_put(struct codec_writer *w, const void *ptr, size_t nbytes, struct pawl_error *err)
{
	if (w->failed)
		return used_up(w, err);
	const int rc = write_bytes(w, ptr, nbytes, err);
	w->failed = rc < 0;
	return rc;
}

int
codec_writer_finish(struct codec_writer *w, uint64_t *ret_in, uint64_t *ret_out, struct pawl_error *err)
{
	if (w->failed)
		return used_up(w, err);
	const int rc = finish_file(w, err);
	w->failed = true;
	if (rc == 0 && ret_in)
		*ret_in = w->in;
	if (rc == 0 && ret_out)
		*ret_out = w->out;
	return rc;
}

/* ------------------------------------------------------------ made and freed */

void
codec_writer_free(struct codec_writer *w)
{
	if (!w)
		return;
	pool_free(w->pool); /* first: its threads use all below */
	codec_frames_free(w->frames);
	for (size_t i = 0; w->slots && i < w->n_slots; i++) {
		mem_free(w->slots[i].plain);
		codec_piece_clear(&w->slots[i].piece);
	}
	mem_free(w->slots);
	pthread_cond_destroy(&w->done);
	pthread_mutex_destroy(&w->lock);
	mem_free(w);
}

PAWL_DEFINE_CLEAN(struct codec_writer, codec_writer_free);

int
codec_writer_new(const struct codec *codec, int level, unsigned threads, codec_sink_fn *sink, void *arg,
                 struct codec_writer **ret, struct pawl_error *err)
{
	PAWL_CLEAN(codec_writer_free_clean) struct codec_writer *w = mem_zalloc(1, sizeof(*w));

	if (!w)
		return err_nomem(err, codec->name);
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->done, NULL);
	const long cores = sysconf(_SC_NPROCESSORS_ONLN);
	if (threads == 0)
		threads = cores > 0 ? (unsigned)cores : 1;
	threads = codec->one_stream ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads;
	w->codec = codec;
	w->sink = sink;
	w->arg = arg;
	w->n_slots = threads + 2;
	w->slots = mem_zalloc(w->n_slots, sizeof(*w->slots));
	if (!w->slots)
		return err_nomem(err, codec->name);
	for (size_t i = 0; i < w->n_slots; i++)
		w->slots[i].writer = w;
	TRY(codec_frames_new(codec, level, &w->frames, err));
	TRY(pool_new("pawl-codec", threads, &w->pool, err));
	*ret = steal(&w);
	return 0;
}
