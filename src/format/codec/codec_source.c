/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_source: see codec.h: the plain bytes of a compressed file at any offset.
 *
 * With a table of frames, a read takes each frame from the cache or decompresses it on its own
 * thread. A frame that is wanted completely is decompressed straight into the destination. It must
 * give exactly the bytes that the table records, from exactly its own.
 *
 * Without a table, the file is decompressed once, at opening, into a temporary file. Without one
 * it is decompressed from the start again for every read that is before the last one.
 *
 * Promises P1, P16, P17.
 */
#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "base/err.h"
#include "format/codec/codec_own.h"

#define PIECE_BYTES ((size_t)1 << 20)

enum { EMPTY, LOADING, READY };

/* A frame in the cache. All but the bytes is guarded by the source's lock. */
struct cached {
	int state;
	size_t frame;
	unsigned users;
	uint64_t tick; /* of the last use */
	unsigned char *ptr;
	size_t cap;
};

struct codec_source {
	const struct codec *codec;
	const struct source *compressed;
	struct codec_limits limits;
	struct source plain;
	/* with frames */
	struct codec_table table;
	uint64_t *plain_at, *compressed_at; /* of each frame; n + 1 */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint64_t tick;
	struct cached cache[CODEC_CACHE_FRAMES];
	/* without frames and temporary file; guarded by lock */
	struct codec_reader *reader;
	uint64_t reader_at;
};

/* ------------------------------------------------------------ a single frame */

/* For codec_source.c: one frame, alone. */
static int
codec_frame_decode(const struct codec *codec, const struct codec_table *t, const unsigned char *in, size_t n_in,
                   unsigned char *out, size_t n_out, const char **why)
{
	struct codec_step s = {.in = in, .n_in = n_in, .out = out, .n_out = n_out, .last = true};
	void *decoder;
	int rc = CODEC_GO;

	if (codec->decode_frame)
		return codec->decode_frame(t, in, n_in, out, n_out, why);
	TRY(codec->decoder_new(&decoder, why));
	while (rc == CODEC_GO) {
		const size_t before_in = s.n_in, before_out = s.n_out;
		rc = codec->decode(decoder, &s, why);
		if (rc == CODEC_GO && s.n_in == before_in && s.n_out == before_out)
			break;
	}
	codec->decoder_free(decoder);
	if (rc < 0)
		return rc;
	*why = "a frame is not of the size that the table says";
	return rc == CODEC_END && s.n_in == 0 && s.n_out == 0 ? CODEC_END : PAWL_ECORRUPT;
}

/* Decompresses a frame to dst, which has room for it. */
static int
decompress_frame(const struct codec_source *s, size_t frame, unsigned char *dst, struct pawl_error *err)
{
	const struct codec_frame *f = &s->table.frames[frame];
	PAWL_FREE unsigned char *in = mem_alloc((size_t)f->compressed);
	const char *why = "";

	if (!in)
		return err_nomem(err, s->compressed->what);
	TRY(source_read(s->compressed, s->compressed_at[frame], in, (size_t)f->compressed, err));
	const int rc = codec_frame_decode(s->codec, &s->table, in, (size_t)f->compressed, dst, (size_t)f->plain, &why);
	if (rc >= 0)
		return 0;
	return err_set(err, rc, "%s: frame %zu of %zu, at byte %" PRIu64 " of %" PRIu64 ": %s", s->compressed->what,
	               frame, s->table.n, s->compressed_at[frame], s->compressed->nbytes, why);
}

/* ----------------------------------------------------------------- the cache */

/* The least recently used of the frames that no thread uses; NULL = none. Called with the lock. */
static struct cached *
find_free(struct codec_source *s)
{
	struct cached *best = NULL;

	for (size_t i = 0; i < CODEC_CACHE_FRAMES; i++) {
		struct cached *c = &s->cache[i];
		if (c->users == 0 && c->state != LOADING && (!best || c->tick < best->tick))
			best = c;
	}
	return best;
}

/* The frame, in use by the caller; `ours`: the caller must load it. */
static struct cached *
claim_frame(struct codec_source *s, size_t frame, bool *ours)
{
	struct cached *c = NULL;

	pthread_mutex_lock(&s->lock);
	for (;;) {
		bool loading = false;

		for (size_t i = 0; i < CODEC_CACHE_FRAMES && !c; i++) {
			if (s->cache[i].state == EMPTY || s->cache[i].frame != frame)
				continue;
			loading = s->cache[i].state == LOADING;
			c = loading ? NULL : &s->cache[i];
			break;
		}
		*ours = false;
		if (c)
			break;
		c = loading ? NULL : find_free(s);
		if (c) {
			c->state = LOADING;
			c->frame = frame;
			*ours = true;
			break;
		}
		pthread_cond_wait(&s->changed, &s->lock);
	}
	c->users++;
	c->tick = ++s->tick;
	pthread_mutex_unlock(&s->lock);
	return c;
}

static void
finish_load(struct codec_source *s, struct cached *c, bool good)
{
	pthread_mutex_lock(&s->lock);
	c->state = good ? READY : EMPTY;
	c->users -= good ? 0 : 1;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
}

static void
release_block(struct codec_source *s, struct cached *c)
{
	pthread_mutex_lock(&s->lock);
	if (--c->users == 0)
		pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
}

static int
load_frame(struct codec_source *s, struct cached *c, size_t frame, struct pawl_error *err)
{
	const size_t n = (size_t)s->table.frames[frame].plain;

	if (c->cap < n) {
		mem_free(c->ptr);
		c->ptr = mem_alloc(n);
		c->cap = c->ptr ? n : 0;
	}
	if (!c->ptr)
		return err_nomem(err, s->compressed->what);
	return decompress_frame(s, frame, c->ptr, err);
}

static int
copy_part(struct codec_source *s, size_t frame, size_t from, unsigned char *dst, size_t n, struct pawl_error *err)
{
	bool ours;
	struct cached *c = claim_frame(s, frame, &ours);

	if (ours) {
		const int rc = load_frame(s, c, frame, err);
		finish_load(s, c, rc == 0);
		TRY(rc);
	}
	memcpy(dst, c->ptr + from, n);
	release_block(s, c);
	return 0;
}

/* The frame that a byte is in: the last one that begins at or before it. */
static size_t
find_frame(const struct codec_source *s, uint64_t offset)
{
	size_t low = 0, high = s->table.n;

	while (high - low > 1) {
		const size_t middle = low + (high - low) / 2;
		if (s->plain_at[middle] <= offset)
			low = middle;
		else
			high = middle;
	}
	return low;
}

static int
read_frames(void *arg, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	struct codec_source *s = arg;
	unsigned char *to = dst;

	for (size_t frame = find_frame(s, offset); n > 0; frame++) {
		const uint64_t begin = s->plain_at[frame], end = s->plain_at[frame + 1];
		const uint64_t left = end - offset;
		const size_t now = left < n ? (size_t)left : n;

		if (offset == begin && now == end - begin)
			TRY(decompress_frame(s, frame, to, err));
		else
			TRY(copy_part(s, frame, (size_t)(offset - begin), to, now, err));
		to += now;
		offset += now;
		n -= now;
	}
	return 0;
}

/* --------------------------------------------------- without a table of frames */

/* Writes everything to the temporary file; without one only counts it. */
static int
decompress_all(struct codec_source *s, struct pawl_error *err)
{
	PAWL_FREE unsigned char *piece = mem_alloc(PIECE_BYTES);
	size_t n = PIECE_BYTES;

	if (!piece)
		return err_nomem(err, s->compressed->what);
	struct codec_limits limits = s->limits;
	if (limits.temp && limits.max_temp_bytes && (limits.max_bytes == 0 || limits.max_temp_bytes < limits.max_bytes))
		limits.max_bytes = limits.max_temp_bytes;
	TRY(codec_reader_new(s->codec, s->compressed, &limits, &s->reader, err));
	while (n == PIECE_BYTES) {
		TRY(codec_reader_get(s->reader, piece, PIECE_BYTES, &n, err));
		if (s->limits.temp && n > 0)
			TRY(s->limits.temp->put(s->limits.temp->arg, piece, n, err));
		s->plain.nbytes += n;
	}
	s->reader_at = s->plain.nbytes;
	return 0;
}

static int
skip_to(struct codec_source *s, uint64_t offset, struct pawl_error *err)
{
	PAWL_FREE unsigned char *piece = mem_alloc(PIECE_BYTES);

	if (!piece)
		return err_nomem(err, s->compressed->what);
	if (!s->reader || offset < s->reader_at) {
		codec_reader_free(s->reader);
		s->reader = NULL;
		s->reader_at = 0;
		TRY(codec_reader_new(s->codec, s->compressed, &s->limits, &s->reader, err));
	}
	while (s->reader_at < offset) {
		const uint64_t left = offset - s->reader_at;
		size_t n;

		TRY(codec_reader_get(s->reader, piece, left < PIECE_BYTES ? (size_t)left : PIECE_BYTES, &n, err));
		s->reader_at += n;
		if (n == 0)
			return err_set(err, PAWL_ECORRUPT, "%s: has become shorter", s->compressed->what);
	}
	return 0;
}

static int
read_again(struct codec_source *s, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	size_t got = 0;

	int rc = skip_to(s, offset, err);
	if (rc == 0)
		rc = codec_reader_get(s->reader, dst, n, &got, err);
	if (rc == 0 && got != n)
		rc = err_set(err, PAWL_ECORRUPT, "%s: has become shorter", s->compressed->what);
	if (rc < 0) { /* its position is not known any more */
		codec_reader_free(s->reader);
		s->reader = NULL;
		return rc;
	}
	s->reader_at += n;
	return 0;
}

static int
read_stream(void *arg, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	struct codec_source *s = arg;

	pthread_mutex_lock(&s->lock);
	const int rc = read_again(s, offset, dst, n, err);
	pthread_mutex_unlock(&s->lock);
	return rc;
}

static int
read_temp(void *arg, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	const struct codec_temp *temp = ((struct codec_source *)arg)->limits.temp;

	return temp->read(temp->arg, offset, dst, n, err);
}

/* ---------------------------------------------------------------- open, close */

/* Where each frame begins. 0: a frame is too large to be decompressed at once, or the table records
 * it as empty. An empty frame would never be read here, though a reader of the stream may find data
 * in it. */
static int
place_frames(struct codec_source *s, struct pawl_error *err)
{
	const struct codec_table *t = &s->table;

	s->plain_at = mem_zalloc(t->n + 1, sizeof(*s->plain_at));
	s->compressed_at = mem_zalloc(t->n + 1, sizeof(*s->compressed_at));
	if (!s->plain_at || !s->compressed_at)
		return err_nomem(err, s->compressed->what);
	s->compressed_at[0] = t->begin;
	for (size_t i = 0; i < t->n; i++) {
		const struct codec_frame *f = &t->frames[i];

		if (f->plain == 0 || f->plain > CODEC_MAX_FRAME || f->compressed > CODEC_MAX_FRAME)
			return 0;
		s->plain_at[i + 1] = s->plain_at[i] + f->plain;
		s->compressed_at[i + 1] = s->compressed_at[i] + f->compressed;
	}
	return 1;
}

static int
open_frames(struct codec_source *s, struct pawl_error *err)
{
	int rc = s->codec->table ? s->codec->table(s->compressed, &s->table, err) : 0;
	if (rc < 0)
		return err_prefix(err, rc, "%s", s->compressed->what);
	if (rc == 1)
		rc = place_frames(s, err);
	TRY(rc);
	if (rc == 0) {
		codec_table_clear(&s->table);
		return 0;
	}
	s->plain.nbytes = s->plain_at[s->table.n];
	const uint64_t most = s->limits.max_bytes ? s->limits.max_bytes : (uint64_t)1 << 40;
	if (s->plain.nbytes > most)
		return err_set(err, PAWL_ELIMIT, "%s: decompresses to %" PRIu64 " bytes, %" PRIu64 " are allowed",
		               s->compressed->what, s->plain.nbytes, most);
	s->plain.read = read_frames;
	return 1;
}

static int
open_stream(struct codec_source *s, struct pawl_error *err)
{
	TRY(decompress_all(s, err));
	codec_reader_free(s->reader);
	s->reader = NULL;
	s->plain.read = s->limits.temp ? read_temp : read_stream;
	return 0;
}

const struct source *
codec_source_plain(const struct codec_source *s)
{
	return &s->plain;
}

bool
codec_source_has_frames(const struct codec_source *s)
{
	return s->table.n > 0;
}

void
codec_source_close(struct codec_source *s)
{
	if (!s)
		return;
	codec_reader_free(s->reader);
	for (size_t i = 0; i < CODEC_CACHE_FRAMES; i++)
		mem_free(s->cache[i].ptr);
	mem_free(s->plain_at);
	mem_free(s->compressed_at);
	codec_table_clear(&s->table);
	pthread_cond_destroy(&s->changed);
	pthread_mutex_destroy(&s->lock);
	mem_free(s);
}

PAWL_DEFINE_CLEAN(struct codec_source, codec_source_close);

int
codec_source_open(const struct codec *codec, const struct source *compressed, const struct codec_limits *limits,
                  struct codec_source **ret, struct pawl_error *err)
{
	PAWL_CLEAN(codec_source_close_clean) struct codec_source *s = mem_zalloc(1, sizeof(*s));

	if (!s)
		return err_nomem(err, compressed->what);
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->changed, NULL);
	s->compressed = compressed;
	s->codec = codec;
	if (limits)
		s->limits = *limits;
	s->plain = (struct source){.what = compressed->what, .arg = s};
	TRY(codec_really(&s->codec, compressed, err));
	const int rc = open_frames(s, err);
	TRY(rc);
	if (rc == 0)
		TRY(open_stream(s, err));
	*ret = steal(&s);
	return 0;
}
