/* SPDX-License-Identifier: Apache-2.0 */
/*
 * outfile: see outfile.h. Promises P1, P2, P5.
 *
 *   put ─> plain slab ─> codec ─┐
 *   put ────────────────────────┴─> slab ─> full: the thread writes it      two slabs take turns
 *                                    └────> bytes after the last aligned one begin the other slab
 */
#include "store/outfile.h"

#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/pool.h"

#define ALIGN_BYTES ((uint64_t)65536) /* of slabs, and of all writes but the last: a multiple of all engines' */

/* The checksums of blocks, computed while the bytes are added. */
struct summing {
	uint64_t block_bytes; /* 0 = none */
	uint64_t nbytes;
	struct sum_stream *stream; /* of the block that is not complete */
	struct buf sums;
};

struct slab {
	struct outfile *file;
	char *ptr;              /* aligned */
	uint64_t at;            /* in the file */
	size_t nbytes;          /* number of bytes to write */
	struct pool_group busy; /* until they are written; afterwards the thread has set: */
	int rc;
	struct pawl_error error;
};

struct outfile {
	struct store *store;
	char *name; /* as given, or the key */
	bool has_name;
	struct store_file *file; /* NULL = finished, or not yet created */
	struct pool *pool;       /* one thread */
	char *memory;
	uint64_t slab_bytes;
	struct slab slabs[2];
	unsigned now;    /* the slab that is being filled */
	uint64_t nbytes; /* that will be put */
	uint64_t at;     /* where in the file the slab begins */
	uint64_t held;   /* bytes in the slab */
	struct codec_writer *writer;
	char *plain; /* with a codec: a slab of the bytes that are put */
	struct summing file_sums, plain_sums;
};

/* ---------------------------------------------------------------- checksums */

static void
add_to_sums(struct summing *s, const char *ptr, uint64_t n)
{
	while (s->block_bytes > 0 && n > 0) {
		const uint64_t used = s->nbytes % s->block_bytes, left = s->block_bytes - used;
		const uint64_t now = n < left ? n : left;

		if (used == 0 && now == s->block_bytes) {
			const struct sum128 sum = sum_bytes(ptr, (size_t)now);
			buf_put(&s->sums, &sum, sizeof sum);
		} else {
			if (used == 0)
				sum_init(s->stream);
			sum_update(s->stream, ptr, (size_t)now);
			if (now == left) {
				const struct sum128 sum = sum_final(s->stream);
				buf_put(&s->sums, &sum, sizeof sum);
			}
		}
		s->nbytes += now;
		ptr += now;
		n -= now;
	}
	s->nbytes += n;
}

static int
finish_sums(struct summing *s, const char *name, struct outfile_blocks *ret, struct pawl_error *err)
{
	if (s->block_bytes > 0 && s->nbytes % s->block_bytes != 0) {
		const struct sum128 sum = sum_final(s->stream);
		buf_put(&s->sums, &sum, sizeof sum);
	}
	TRY(buf_check(&s->sums, name, err));
	*ret = (struct outfile_blocks){.nbytes = s->nbytes, .n = s->sums.len / sizeof(struct sum128)};
	ret->sums = mem_alloc(s->sums.len);
	if (!ret->sums)
		return err_nomem(err, name);
	if (ret->n > 0)
		memcpy(ret->sums, s->sums.ptr, s->sums.len);
	return 0;
}

void
outfile_sums_clear(struct outfile_sums *sums)
{
	mem_free(sums->file.sums);
	mem_free(sums->plain.sums);
	*sums = (struct outfile_sums){0};
}

/* -------------------------------------------------------------------- slabs */

/* Puts the name of the file at the start of the message. */
static int
name_file(const struct outfile *o, int rc, struct pawl_error *err)
{
	return rc < 0 && o->has_name ? err_prefix(err, rc, "%s", o->name) : rc;
}

static void
write_slab(void *arg)
{
	struct slab *slab = arg;

	slab->rc = store_write(slab->file->store, slab->file->file, slab->at, slab->ptr, slab->nbytes, &slab->error);
}

static int
wait_for_slab(struct slab *slab, struct pawl_error *err)
{
	pool_group_wait(&slab->busy);
	if (slab->rc < 0 && err)
		*err = slab->error;
	return name_file(slab->file, slab->rc, err);
}

/* Hands the bytes in the slab to the thread: an aligned number of them, unless they are the last
 * ones. */
static int
send_slab(struct outfile *o, bool last, struct pawl_error *err)
{
	struct slab *slab = &o->slabs[o->now], *other = &o->slabs[!o->now];

	slab->at = o->at;
	slab->nbytes = (size_t)(last ? o->held : o->held - o->held % ALIGN_BYTES);
	o->held -= slab->nbytes;
	o->at += slab->nbytes;
	TRY(wait_for_slab(other, err));
	memcpy(other->ptr, slab->ptr + slab->nbytes, (size_t)o->held);
	o->now = !o->now;
	return slab->nbytes ? pool_add(o->pool, &slab->busy, write_slab, slab, err) : 0;
}

/* Adds n bytes to the slab, which is handed over when it holds `enough`. */
static int
take_bytes(struct outfile *o, uint64_t n, uint64_t enough, bool last, struct pawl_error *err)
{
	add_to_sums(&o->file_sums, o->slabs[o->now].ptr + o->held, n);
	o->held += n;
	return last || o->held >= enough ? send_slab(o, last, err) : 0;
}

static int
copy_bytes(struct outfile *o, const char *ptr, uint64_t n, bool plain, struct pawl_error *err)
{
	while (n > 0) {
		const uint64_t room = o->slab_bytes - o->held, now = n < room ? n : room;

		memcpy(o->slabs[o->now].ptr + o->held, ptr, (size_t)now);
		TRY(take_bytes(o, now, o->slab_bytes, plain && o->at + o->held + now == o->nbytes, err));
		ptr += now;
		n -= now;
	}
	return 0;
}

static int
put_compressed(void *arg, const void *ptr, size_t n, struct pawl_error *err)
{
	return copy_bytes(arg, ptr, n, false, err);
}

/* ------------------------------------------------------------------ opening */

static int
make_slabs(struct outfile *o, const struct outfile_opts *opts, struct pawl_error *err)
{
	const uint64_t most = opts->slab_bytes ? opts->slab_bytes : OUTFILE_SLAB_BYTES;
	const uint64_t least = mem_round_up(opts->nbytes ? opts->nbytes : 1, ALIGN_BYTES);
	struct sum_stream *streams; /* aligned as the slabs are */

	o->slab_bytes = !opts->codec && least < most ? least : most;
	o->memory = mem_alloc((size_t)(2 * o->slab_bytes + ALIGN_BYTES + 2 * sizeof *streams));
	o->plain = opts->codec ? mem_alloc((size_t)o->slab_bytes) : NULL;
	if (!o->memory || (opts->codec && !o->plain))
		return err_nomem(err, o->name);
	char *begin = o->memory + (ALIGN_BYTES - (uintptr_t)o->memory % ALIGN_BYTES);
	for (unsigned i = 0; i < 2; i++) {
		o->slabs[i].file = o;
		o->slabs[i].ptr = begin + i * o->slab_bytes;
	}
	streams = (struct sum_stream *)(void *)(begin + 2 * o->slab_bytes);
	o->file_sums.stream = &streams[0];
	o->plain_sums.stream = &streams[1];
	return pool_new("pawl-outfile", 1, &o->pool, err);
}

static int
open_file(struct outfile *o, const struct outfile_opts *opts, struct pawl_error *err)
{
	const struct store_create create = {.nbytes = opts->codec ? codec_most_bytes(opts->nbytes) : opts->nbytes,
	                                    .buffered = opts->buffered,
	                                    .at_most = opts->codec != NULL};

	o->store = opts->store;
	o->nbytes = opts->nbytes;
	o->has_name = opts->name != NULL;
	o->file_sums.block_bytes = opts->block_bytes;
	o->plain_sums.block_bytes = opts->codec ? opts->block_bytes : 0;
	o->name = mem_strdup(opts->name ? opts->name : opts->key);
	if (!o->name)
		return err_nomem(err, opts->key);
	TRY(make_slabs(o, opts, err));
	int rc = store_create(o->store, opts->key, &create, &o->file, err);
	if (rc == 0 && opts->codec)
		rc = codec_writer_new(opts->codec, opts->level, opts->threads, put_compressed, o, &o->writer, err);
	return name_file(o, rc, err);
}

int
outfile_open(const struct outfile_opts *opts, struct outfile **ret, struct pawl_error *err)
{
	PAWL_CLEAN(outfile_abort_clean) struct outfile *o = mem_zalloc(1, sizeof *o);

	if (!o)
		return err_nomem(err, opts->key);
	for (unsigned i = 0; i < 2; i++)
		pool_group_init(&o->slabs[i].busy);
	TRY(open_file(o, opts, err));
	*ret = steal(&o);
	return 0;
}

/* ------------------------------------------------------------------ writing */

void
outfile_room(const struct outfile *o, char **ret, uint64_t *ret_nbytes)
{
	*ret = o->plain ? o->plain : o->slabs[o->now].ptr + o->held;
	*ret_nbytes = o->slab_bytes - (o->plain ? 0 : o->held);
}

int
outfile_put(struct outfile *o, uint64_t nbytes, struct pawl_error *err)
{
	if (o->plain)
		return outfile_put_bytes(o, o->plain, nbytes, err);
	return take_bytes(o, nbytes, ALIGN_BYTES, o->at + o->held + nbytes == o->nbytes, err);
}

int
outfile_put_bytes(struct outfile *o, const void *ptr, uint64_t nbytes, struct pawl_error *err)
{
	if (!o->writer)
		return copy_bytes(o, ptr, nbytes, true, err);
	add_to_sums(&o->plain_sums, ptr, nbytes);
	int rc = codec_writer_put(o->writer, ptr, (size_t)nbytes, err);
	return name_file(o, rc, err);
}

/* ------------------------------------------------------------------- ending */

static int
finish_file(struct outfile *o, struct outfile_sums *ret, struct pawl_error *err)
{
	if (o->writer) {
		int rc = codec_writer_finish(o->writer, NULL, NULL, err);
		if (rc < 0)
			return name_file(o, rc, err);
		/* The size is unknown until the file is cut, so this write must be aligned, too. */
		const uint64_t padded = mem_round_up(o->held, ALIGN_BYTES);
		memset(o->slabs[o->now].ptr + o->held, 0, (size_t)(padded - o->held));
		o->held = padded;
		TRY(send_slab(o, true, err));
	}
	for (unsigned i = 0; i < 2; i++)
		TRY(wait_for_slab(&o->slabs[i], err));
	if (o->writer)
		TRY(store_cut(o->file, o->file_sums.nbytes, err));
	TRY(finish_sums(&o->file_sums, o->name, &ret->file, err));
	TRY(finish_sums(&o->plain_sums, o->name, &ret->plain, err));
	int rc = store_finish(o->store, steal(&o->file), err);
	return name_file(o, rc, err);
}

int
outfile_finish(struct outfile **file, struct outfile_sums *ret, struct pawl_error *err)
{
	PAWL_CLEAN(outfile_abort_clean) struct outfile *o = steal(file);
	struct outfile_sums sums = {0};

	int rc = finish_file(o, &sums, err);
	if (rc == 0 && ret)
		*ret = sums;
	else
		outfile_sums_clear(&sums);
	return rc;
}

void
outfile_abort(struct outfile *o)
{
	if (!o)
		return;
	pool_free(o->pool);
	codec_writer_free(o->writer);
	if (o->file)
		store_abort(o->store, o->file);
	for (unsigned i = 0; i < 2; i++)
		pool_group_clear(&o->slabs[i].busy);
	buf_clear(&o->file_sums.sums);
	buf_clear(&o->plain_sums.sums);
	mem_free(o->memory);
	mem_free(o->plain);
	mem_free(o->name);
	mem_free(o);
}
