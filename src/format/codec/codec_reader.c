/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_reader: see codec.h: a compressed file from start to end.
 *
 *   between frames: padding, the mark of the next frame, or the end
 *     -> in a frame: decode -> its end -> between frames
 *
 * A file is refused if it ends inside a frame, has anything but frames in it, or decompresses to
 * too much (P1, P17).
 */
#include <inttypes.h>
#include <string.h>

#include "base/err.h"
#include "format/codec/codec_own.h"

#define WINDOW_BYTES ((size_t)256 << 10)
#define DEFAULT_MAX_BYTES ((uint64_t)1 << 40)
#define DEFAULT_MAX_RATIO 200u
#define FREE_BYTES ((uint64_t)64 << 20) /* the ratio is not limited up to here */

struct codec_reader {
	const struct codec *codec;
	const struct source *compressed;
	void *decoder;
	uint64_t max_bytes, max_ratio;
	uint64_t given; /* plain bytes so far */
	uint64_t read;  /* of the compressed file, including the window */
	size_t at, n;   /* in the window */
	bool in_frame, any, ended;
	unsigned char window[WINDOW_BYTES];
};

static int
refuse_file(const struct codec_reader *r, int code, const char *why, struct pawl_error *err)
{
	return err_set(err, code, "%s: at byte %" PRIu64 " of %" PRIu64 ": %s", r->compressed->what,
	               r->read - (r->n - r->at), r->compressed->nbytes, why);
}

static int
refuse_unit(const struct codec_reader *r, const char *before, const char *after, struct pawl_error *err)
{
	return err_set(err, PAWL_ECORRUPT, "%s: at byte %" PRIu64 " of %" PRIu64 ": %s%s%s", r->compressed->what,
	               r->read - (r->n - r->at), r->compressed->nbytes, before, r->codec->unit, after);
}

/* At least `want` bytes in the window, or all that are left. */
static int
fill_window(struct codec_reader *r, size_t want, struct pawl_error *err)
{
	const uint64_t left = r->compressed->nbytes - r->read;

	if (r->n - r->at >= want || left == 0)
		return 0;
	memmove(r->window, r->window + r->at, r->n - r->at);
	r->n -= r->at;
	r->at = 0;
	const size_t room = WINDOW_BYTES - r->n, n = left < room ? (size_t)left : room;
	TRY(source_read(r->compressed, r->read, r->window + r->n, n, err));
	r->read += n;
	r->n += n;
	return 0;
}

static int
skip_zeros(struct codec_reader *r, struct pawl_error *err)
{
	for (;;) {
		TRY(fill_window(r, 1, err));
		while (r->at < r->n && r->window[r->at] == 0)
			r->at++;
		if (r->at < r->n || r->read == r->compressed->nbytes)
			return 0;
	}
}

static bool
begins_frame(const struct codec_reader *r)
{
	const struct codec *c = r->codec;
	const unsigned char *p = r->window + r->at;
	const size_t n = r->n - r->at;

	if (c->has_skippable && n >= 4 && (codec_u32(p) & ~0xfu) == CODEC_SKIPPABLE)
		return true;
	return n >= c->n_magic && memcmp(p, c->magic, c->n_magic) == 0;
}

/* Between frames: into the next one, or to the end. */
static int
begin_frame(struct codec_reader *r, struct pawl_error *err)
{
	if (r->any && r->codec->zeros_may_follow)
		TRY(skip_zeros(r, err));
	TRY(fill_window(r, sizeof(r->codec->magic), err));
	if (r->any && r->at == r->n) {
		r->ended = true;
		return 0;
	}
	if (r->at == r->n)
		return refuse_unit(r, "expected a ", ", found nothing", err);
	if (r->any && r->codec->one_stream)
		return refuse_unit(r, "something follows the ", "", err);
	if (!begins_frame(r))
		return refuse_unit(r, "expected a ", r->any ? " or the end, found other bytes" : ", found other bytes",
		                   err);
	r->any = r->in_frame = true;
	return 0;
}

static int
check_size(const struct codec_reader *r, struct pawl_error *err)
{
	uint64_t most;

	if (r->given > r->max_bytes)
		return err_set(err, PAWL_ELIMIT, "%s: decompresses to more than the %" PRIu64 " bytes that are allowed",
		               r->compressed->what, r->max_bytes);
	if (r->given <= FREE_BYTES || !mem_mul_ok(r->compressed->nbytes, r->max_ratio, &most) || r->given <= most)
		return 0;
	return err_set(err, PAWL_ELIMIT,
	               "%s: decompresses to more than %" PRIu64 " times its %" PRIu64
	               " bytes, like a decompression bomb; if it is not one, decompress it first",
	               r->compressed->what, r->max_ratio, r->compressed->nbytes);
}

/* One call of the decoder. */
static int
step_decoder(struct codec_reader *r, unsigned char **dst, size_t *n, struct pawl_error *err)
{
	const char *why = "";

	TRY(fill_window(r, 1, err));
	struct codec_step s = {.in = r->window + r->at,
	                       .n_in = r->n - r->at,
	                       .out = *dst,
	                       .n_out = *n,
	                       .last = r->read == r->compressed->nbytes};
	const size_t n_in = s.n_in;
	const int rc = r->codec->decode(r->decoder, &s, &why);
	r->at += n_in - s.n_in;
	r->given += *n - s.n_out;
	if (rc < 0)
		return refuse_file(r, rc, why, err);
	if (rc == CODEC_END)
		r->in_frame = false;
	else if (n_in == 0 && s.n_out == *n)
		return refuse_unit(r, "ends inside of a ", "", err);
	*dst = s.out;
	*n = s.n_out;
	return check_size(r, err);
}

int
codec_reader_get(struct codec_reader *r, void *dst, size_t n, size_t *ret_n, struct pawl_error *err)
{
	unsigned char *to = dst;
	size_t left = n;

	while (!r->ended && (left > 0 || !r->in_frame)) {
		if (!r->in_frame) {
			TRY(begin_frame(r, err));
			continue;
		}
		TRY(step_decoder(r, &to, &left, err));
	}
	*ret_n = n - left;
	return 0;
}

void
codec_reader_free(struct codec_reader *r)
{
	if (!r)
		return;
	if (r->decoder)
		r->codec->decoder_free(r->decoder);
	mem_free(r);
}

int
codec_reader_new(const struct codec *codec, const struct source *compressed, const struct codec_limits *limits,
                 struct codec_reader **ret, struct pawl_error *err)
{
	PAWL_CLEAN(codec_reader_free_clean) struct codec_reader *r = mem_zalloc(1, sizeof(*r));
	const char *why = "";

	if (!r)
		return err_nomem(err, compressed->what);
	TRY(codec_really(&codec, compressed, err));
	r->codec = codec;
	r->compressed = compressed;
	r->max_bytes = limits && limits->max_bytes ? limits->max_bytes : DEFAULT_MAX_BYTES;
	r->max_ratio = limits && limits->max_ratio ? limits->max_ratio : DEFAULT_MAX_RATIO;
	const int rc = codec->decoder_new(&r->decoder, &why);
	if (rc < 0)
		return refuse_file(r, rc, why, err);
	*ret = steal(&r);
	return 0;
}
