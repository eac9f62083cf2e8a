/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_lzo: lzo by the program lzop, since the licence of its library excludes some users of pawl.
 * One socket carries the bytes in both directions. P16: a program that neither reads nor writes for
 * a minute is killed.
 */
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child.h"
#include "base/err.h"
#include "format/codec/codec_own.h"

#define STREAM_BYTES (1u << 20)
#define STALL_MS 60000
#define GRACE_MS 5000
#define MISSING "needs the program lzop, which is not installed"

struct lzop {
	struct child child;
	bool all_sent;
};

static int
start_program(struct lzop *p, char *option, const char **why)
{
	char *const argv[] = {(char *)"lzop", (char *)"-q", (char *)"-c", option, NULL};
	const int rc = child_start(argv, CHILD_TALK, &p->child, NULL);

	*why = rc == PAWL_ENOTFOUND ? MISSING : "lzop cannot be started";
	return rc == PAWL_ENOTFOUND ? PAWL_EUNSUPPORTED : rc;
}

static int
lzop_new(char *option, void **ret, const char **why)
{
	struct lzop *p = mem_zalloc(1, sizeof(*p));

	if (!p) {
		*why = "out of memory";
		return PAWL_ENOMEM;
	}
	p->child = (struct child)CHILD_INIT;
	const int rc = start_program(p, option, why);
	if (rc < 0)
		mem_free(p);
	else
		*ret = p;
	return rc;
}

static void
lzop_free(void *ptr)
{
	struct lzop *p = ptr;

	child_end(&p->child, 0);
	mem_free(p);
}

static int
explain_failure(const char *what, const char **why)
{
	*why = what;
	return PAWL_EIO;
}

/* The end of the program: was it successful? */
static int
finish_program(struct lzop *p, const char **why)
{
	const int status = child_end(&p->child, GRACE_MS);

	*why = "lzop did not accept it";
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? CODEC_END : PAWL_ECORRUPT;
}

/* Sends what the program takes and receives what it gives; waits until it does either. */
static int
exchange_bytes(struct lzop *p, struct codec_step *s, const char **why)
{
	for (;;) {
		const ssize_t sent = s->n_in > 0 ? child_send(p->child.talk, s->in, s->n_in) : 0;
		if (sent < 0 && errno != EPIPE && errno != ECONNRESET)
			return explain_failure("lzop cannot be written to", why);
		if (sent > 0) {
			s->in += sent;
			s->n_in -= (size_t)sent;
		}
		if (sent < 0) /* it has gone: its exit status explains why */
			s->n_in = 0;
		if (s->last && s->n_in == 0 && !p->all_sent) {
			shutdown(p->child.talk, SHUT_WR);
			p->all_sent = true;
		}
		const ssize_t got = s->n_out > 0 ? recv(p->child.talk, s->out, s->n_out, 0) : 0;
		if (got == 0 && s->n_out > 0)
			return finish_program(p, why);
		if (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
			return finish_program(p, why);
		if (got > 0) {
			s->out += got;
			s->n_out -= (size_t)got;
		}
		if (got > 0 || sent > 0 || s->n_out == 0 || (s->n_in == 0 && !s->last))
			return CODEC_GO;
		struct pollfd ready = {.fd = p->child.talk, .events = (short)(POLLIN | (s->n_in > 0 ? POLLOUT : 0))};
		const int n = poll(&ready, 1, STALL_MS);
		if (n == 0)
			return explain_failure("lzop has stalled", why);
		if (n < 0 && errno != EINTR)
			return explain_failure("lzop cannot be waited for", why);
	}
}

/* ------------------------------------------------------------------ the row */

static int
encoder_new(int level, void **ret, const char **why)
{
	char option[] = {'-', (char)('0' + level), 0};

	return lzop_new(option, ret, why);
}

static int
lzo_encode(void *encoder, const void *ptr, size_t n, bool last, struct buf *out, struct codec_frame *frame,
           const char **why)
{
	enum { ROOM = 256 << 10 };
	struct codec_step s = {.in = ptr, .n_in = n, .last = last};
	int rc = CODEC_GO;

	while (rc == CODEC_GO && (s.n_in > 0 || last)) {
		unsigned char *p = (unsigned char *)buf_grow(out, ROOM);
		*why = "out of memory";
		if (!p)
			return PAWL_ENOMEM;
		s.out = p;
		s.n_out = ROOM;
		rc = exchange_bytes(encoder, &s, why);
		out->len -= s.n_out;
	}
	frame->compressed = out->len;
	if (rc == CODEC_END && !last)
		return explain_failure("lzop has ended too early", why);
	return rc == PAWL_ECORRUPT ? PAWL_EIO : rc < 0 ? rc : 0;
}

static int
decoder_new(void **ret, const char **why)
{
	char option[] = "-d";

	return lzop_new(option, ret, why);
}

static int
lzo_decode(void *decoder, struct codec_step *s, const char **why)
{
	return exchange_bytes(decoder, s, why);
}

const struct codec codec_lzo = {
	.name = "lzo",
	.suffix = ".lzo",
	.unit = "lzop file",
	.magic = {0x89, 'L', 'Z', 'O', 0, 0x0d, 0x0a, 0x1a, 0x0a},
	.n_magic = 9,
	.max_level = 9,
	.default_level = 3,
	.one_stream = true,
	.frame_bytes = STREAM_BYTES,
	.encoder_new = encoder_new,
	.encode = lzo_encode,
	.encoder_free = lzop_free,
	.decoder_new = decoder_new,
	.decode = lzo_decode,
	.decoder_free = lzop_free,
};
