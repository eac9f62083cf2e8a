/* SPDX-License-Identifier: Apache-2.0 */
/*
 * channel: see channel.h. A socket instead of a pipe: writing to a dead reader raises no signal,
 * and one descriptor serves both directions.
 */
#include "channel.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/vec.h"

int
channel_open(struct channel *ret, int *ret_theirs, struct pawl_error *err)
{
	int ends[2];

	if (os_socketpair(SOCK_STREAM, ends) != 0)
		return err_sys(err, errno, "the channel of a trial");
	if (fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) {
		const int sys = errno;

		(void)close(ends[0]);
		(void)close(ends[1]);
		return err_sys(err, sys, "the channel of a trial");
	}
	*ret = (struct channel)CHANNEL_INIT;
	ret->fd = ends[0];
	*ret_theirs = ends[1];
	return 0;
}

void
channel_clear(struct channel *c)
{
	if (c->fd >= 0)
		(void)close(c->fd);
	mem_free(c->ptr);
	*c = (struct channel)CHANNEL_INIT;
}

/* Drops the lines that were returned, so that the rest begins at the front. */
static void
drop_taken(struct channel *c)
{
	if (c->taken > 0)
		memmove(c->ptr, c->ptr + c->taken, c->len - c->taken);
	c->len -= c->taken;
	c->taken = 0;
}

int
channel_fill(struct channel *c, struct pawl_error *err)
{
	while (!c->ended && c->fd >= 0) {
		ssize_t n;

		drop_taken(c);
		if (c->len > CHANNEL_MAX_LINE)
			return 0; /* the caller takes lines first */
		if (!array_reserve(c->ptr, c->cap, c->len + 4096))
			return err_nomem(err, NULL);
		n = recv(c->fd, c->ptr + c->len, c->cap - c->len, 0);
		if (n > 0)
			c->len += (size_t)n;
		else if (n == 0 || (errno != EINTR && errno != EAGAIN))
			c->ended = true;
		else if (errno == EAGAIN)
			return 0;
	}
	return 0;
}

char *
channel_line(struct channel *c, size_t *ret_len, bool *ret_bad)
{
	char *end, *line;

	*ret_bad = false;
	drop_taken(c);
	end = c->len > 0 ? memchr(c->ptr, '\n', c->len) : NULL;
	if (end == NULL) {
		if (c->len > CHANNEL_MAX_LINE) {
			c->too_long = true;
			c->len = 0;
		}
		return NULL;
	}
	line = c->ptr;
	c->taken = (size_t)(end - line) + 1;
	*ret_len = c->taken - 1;
	if (c->too_long || *ret_len > CHANNEL_MAX_LINE) {
		c->too_long = false;
		*ret_bad = true;
		return NULL;
	}
	*end = '\0';
	return line;
}

void
channel_send(struct channel *c, const char *text)
{
	ssize_t n;

	if (c->fd < 0)
		return;
	do
		n = send(c->fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
}
