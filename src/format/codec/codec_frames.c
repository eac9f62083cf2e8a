/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_frames: see codec.h: compression on the caller's own threads, and on those of codec_writer.
 * A thread takes an idle encoder or makes one. Errors do not name the file; the caller adds it.
 */
#include <pthread.h>
#include <string.h>

#include "base/err.h"
#include "format/codec/codec_own.h"

struct codec_frames {
	const struct codec *codec;
	int level;
	struct codec_table table; /* used by one thread at a time */
	pthread_mutex_t lock;     /* guards below */
	void **idle;
	size_t n_idle, n_encoders;
};

static int
refuse_frame(const struct codec_frames *f, int code, const char *why, struct pawl_error *err)
{
	return err_set(err, code, "cannot be compressed as %s: %s", f->codec->name, why);
}

static int
take_encoder(struct codec_frames *f, void **ret, const char **why)
{
	int rc = 0;

	*ret = NULL;
	pthread_mutex_lock(&f->lock);
	if (f->n_idle > 0) {
		*ret = f->idle[--f->n_idle];
	} else { /* room to store it later, so that giving it back cannot fail */
		void **grown = mem_resize(f->idle, f->n_encoders + 1, sizeof(*grown));

		rc = grown ? 0 : PAWL_ENOMEM;
		f->idle = grown ? grown : f->idle;
		f->n_encoders += grown ? 1 : 0;
	}
	pthread_mutex_unlock(&f->lock);
	*why = "out of memory";
	if (rc == 0 && !*ret)
		rc = f->codec->encoder_new(f->level, ret, why);
	return rc;
}

static void
give_encoder(struct codec_frames *f, void *encoder)
{
	pthread_mutex_lock(&f->lock);
	f->idle[f->n_idle++] = encoder;
	pthread_mutex_unlock(&f->lock);
}

static int
encode_frame(struct codec_frames *f, const char *ptr, size_t n, bool last, struct buf *out, struct codec_frame *frame,
             struct pawl_error *err)
{
	const char *why = "";
	void *encoder;
	int rc = take_encoder(f, &encoder, &why);

	if (rc < 0)
		return refuse_frame(f, rc, why, err);
	*frame = (struct codec_frame){.plain = n};
	rc = f->codec->encode(encoder, ptr, n, last, out, frame, &why);
	give_encoder(f, encoder);
	return rc < 0 ? refuse_frame(f, rc, why, err) : 0;
}

int
codec_frames_encode(struct codec_frames *f, const void *ptr, size_t n, bool last, struct codec_piece *piece,
                    struct pawl_error *err)
{
	const size_t step = f->codec->frame_bytes;
	const size_t n_frames = n > 0 ? (n - 1) / step + 1 : 1;
	struct codec_frame *frames = mem_resize(piece->frames, piece->n_frames + n_frames, sizeof(*frames));

	if (!frames)
		return refuse_frame(f, PAWL_ENOMEM, "out of memory", err);
	piece->frames = frames;
	for (size_t i = 0, at = 0; i < n_frames; i++, at += step, piece->n_frames++)
		TRY(encode_frame(f, (const char *)ptr + at, n - at < step ? n - at : step, last && i + 1 == n_frames,
		                 &piece->compressed, &frames[piece->n_frames], err));
	return 0;
}

int
codec_frames_head(struct codec_frames *f, struct buf *out, struct pawl_error *err)
{
	const char *why = "";
	const int rc = f->codec->head ? f->codec->head(out, &why) : 0;

	return rc < 0 ? refuse_frame(f, rc, why, err) : 0;
}

int
codec_frames_note(struct codec_frames *f, const struct codec_piece *piece, struct pawl_error *err)
{
	const struct codec_frame *frames = piece->frames;

	for (size_t i = 0; i < piece->n_frames && !f->codec->one_stream; i++)
		TRY(codec_table_add(&f->table, &frames[i], err));
	return 0;
}

int
codec_frames_tail(struct codec_frames *f, struct buf *out, struct pawl_error *err)
{
	const char *why = "";
	const int rc = f->codec->tail ? f->codec->tail(&f->table, out, &why) : 0;

	return rc < 0 ? refuse_frame(f, rc, why, err) : 0;
}

void
codec_piece_clear(struct codec_piece *piece)
{
	buf_clear(&piece->compressed);
	mem_free(piece->frames);
	*piece = (struct codec_piece){0};
}

void
codec_frames_free(struct codec_frames *f)
{
	if (!f)
		return;
	for (size_t i = 0; i < f->n_idle; i++)
		f->codec->encoder_free(f->idle[i]);
	mem_free(f->idle);
	codec_table_clear(&f->table);
	pthread_mutex_destroy(&f->lock);
	mem_free(f);
}

int
codec_frames_new(const struct codec *codec, int level, struct codec_frames **ret, struct pawl_error *err)
{
	TRY(codec_check_level(codec, level, err));
	struct codec_frames *f = mem_zalloc(1, sizeof(*f));

	if (!f)
		return err_nomem(err, codec->name);
	pthread_mutex_init(&f->lock, NULL);
	f->codec = codec;
	f->level = level > 0 ? level : codec->default_level;
	*ret = f;
	return 0;
}
