/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sftp_wire: packets of a connection: fields, sending, receiving. See sftp_wire.h.
 *
 *   packet: u32 length | u8 type | u32 id | fields
 *   string: u32 length | bytes
 *   all big-endian
 *
 * While a request is sent, answers are received. Otherwise two sides that both only send would wait
 * for each other.
 */
#include "store/ssh/sftp_wire.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "base/child.h"
#include "base/clock.h"
#include "base/err.h"

#define MAX_TAIL ((size_t)4096)

/* ------------------------------------------------------------------- fields */

uint32_t
sftp_u32(const unsigned char *p)
{
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

void
sftp_set_u32(unsigned char *p, uint32_t value)
{
	p[0] = (unsigned char)(value >> 24);
	p[1] = (unsigned char)(value >> 16);
	p[2] = (unsigned char)(value >> 8);
	p[3] = (unsigned char)value;
}

void
sftp_set_u64(unsigned char *p, uint64_t value)
{
	sftp_set_u32(p, (uint32_t)(value >> 32));
	sftp_set_u32(p + 4, (uint32_t)value);
}

uint32_t
sftp_get_u32(struct wire *w)
{
	if (w->failed || w->end - w->at < 4) {
		w->failed = true;
		return 0;
	}
	w->at += 4;
	return sftp_u32(w->at - 4);
}

uint64_t
sftp_get_u64(struct wire *w)
{
	uint64_t high = sftp_get_u32(w);
	return high << 32 | sftp_get_u32(w);
}

const unsigned char *
sftp_get_string(struct wire *w, uint32_t *ret_len)
{
	uint32_t len = sftp_get_u32(w);
	*ret_len = 0;
	if (w->failed || (size_t)(w->end - w->at) < len) {
		w->failed = true;
		return (const unsigned char *)"";
	}
	*ret_len = len;
	w->at += len;
	return w->at - len;
}

/* --------------------------------------------------------------- connection */

/* The last line that the program printed, safe to show; "" if none. */
static void
sftp_last_words(struct sftp *s, char *ret, size_t cap)
{
	if (s->said >= 0)
		child_listen(s->said, &s->tail, MAX_TAIL);
	size_t end = s->tail.len, n = 0;
	while (end > 0 && (unsigned char)s->tail.ptr[end - 1] <= ' ')
		end--;
	size_t begin = end;
	while (begin > 0 && s->tail.ptr[begin - 1] != '\n')
		begin--;
	for (; begin < end && n + 1 < cap; begin++) {
		unsigned char c = (unsigned char)s->tail.ptr[begin];
		if (c != '\r')
			ret[n++] = c < ' ' || c > '~' ? '?' : (char)c;
	}
	ret[n] = '\0';
}

static int
sftp_lose(struct sftp *s, int code, const char *why, struct pawl_error *err)
{
	char words[200];
	s->lost = true;
	sftp_last_words(s, words, sizeof words);
	return err_set(err, code, "the connection is lost: %s%s%s", why, words[0] ? ": " : "", words);
}

int
sftp_mistrust(struct sftp *s, const char *what, struct pawl_error *err)
{
	s->lost = true;
	return err_set(err, PAWL_ETRANSIENT, "the connection was closed: the server's answer %s", what);
}

/* Waits until data can be sent or received. PAWL_ETIMEOUT if nothing happens for timeout_ms. */
static int
wait_for(struct sftp *s, short events, struct pawl_error *err)
{
	int64_t end = clock_mono_ms() + s->timeout_ms;
	for (;;) {
		struct pollfd fds[2] = {{.fd = s->fd, .events = events}, {.fd = s->said, .events = POLLIN}};
		int64_t left = end - clock_mono_ms();
		if (left <= 0)
			return sftp_lose(s, PAWL_ETIMEOUT, "the server says nothing", err);
		int n = poll(fds, 2, (int)(left < 1000 ? left : 1000));
		if (n < 0 && errno != EINTR)
			return sftp_lose(s, PAWL_ETRANSIENT, "poll has failed", err);
		if (n > 0 && fds[1].revents != 0 && !child_listen(s->said, &s->tail, MAX_TAIL))
			s->said = -1;
		if (n > 0 && fds[0].revents != 0)
			return 0;
	}
}

/* Receives the available bytes into the buffer. */
static int
receive_bytes(struct sftp *s, struct pawl_error *err)
{
	if (s->in_begin > 0 && s->in_end == WIRE_BUFFER_BYTES) {
		memmove(s->in, s->in + s->in_begin, s->in_end - s->in_begin);
		s->in_end -= s->in_begin;
		s->in_begin = 0;
	}
	size_t room = WIRE_BUFFER_BYTES - s->in_end;
	if (room == 0)
		return 0;
	ssize_t got = recv(s->fd, s->in + s->in_end, room, MSG_DONTWAIT);
	if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
		return 0;
	if (got <= 0)
		return sftp_lose(s, PAWL_ETRANSIENT, "the server closed the connection", err);
	s->in_end += (size_t)got;
	return 0;
}

int
sftp_send(struct sftp *s, const void *ptr, size_t len, struct pawl_error *err)
{
	const char *from = ptr;
	for (size_t done = 0; done < len;) {
		ssize_t n = child_send(s->fd, from + done, len - done);
		if (n < 0)
			return sftp_lose(s, PAWL_ETRANSIENT, "the server closed the connection", err);
		done += (size_t)n;
		if (n > 0)
			continue;
		bool room = s->in_end - s->in_begin < WIRE_BUFFER_BYTES;
		TRY(wait_for(s, room ? POLLOUT | POLLIN : POLLOUT, err));
		TRY(receive_bytes(s, err));
	}
	return 0;
}

int
sftp_receive(struct sftp *s, struct wire *ret, struct pawl_error *err)
{
	for (;;) {
		size_t have = s->in_end - s->in_begin;
		uint32_t len = have >= 4 ? sftp_u32(s->in + s->in_begin) : 0;
		if (have >= 4 && (len < 5 || len > WIRE_MAX_PACKET))
			return sftp_mistrust(s,
			                     s->greeted ? "has an impossible length"
			                                : "does not follow the protocol (does its shell print "
			                                  "something?)",
			                     err);
		if (have >= 4 && have - 4 >= len) {
			const unsigned char *p = s->in + s->in_begin + 4;
			*ret = (struct wire){.type = p[0], .at = p + 1, .end = p + len};
			s->in_begin += 4 + (size_t)len;
			return 0;
		}
		if (s->in_begin == s->in_end)
			s->in_begin = s->in_end = 0;
		else if (s->in_begin > 0 && WIRE_BUFFER_BYTES - s->in_begin < 4 + (size_t)WIRE_MAX_PACKET) {
			memmove(s->in, s->in + s->in_begin, have);
			s->in_begin = 0;
			s->in_end = have;
		}
		TRY(wait_for(s, POLLIN, err));
		TRY(receive_bytes(s, err));
	}
}
