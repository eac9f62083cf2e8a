/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The SFTP client against a server in this process, which answers correctly, or not: answers that
 * are cut, changed in any byte, of impossible lengths, for other requests (P16, P17). The real
 * server is that of tests/py/test_ssh.py.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "helpers/hang.h"
#include "store/ssh/sftp_wire.h"

#define FILE_BYTES 100000u
#define MAX_ANSWERS 64

/* What to do to one answer. */
enum harm { NO_HARM, CUT, FLIP, WRONG_ID, HUGE_LENGTH, TINY_LENGTH, TWICE, OTHER_KIND, SILENCE };

struct server {
	int fd;
	pthread_t thread;
	enum harm harm;
	unsigned nth;       /* of the answers, from 0 */
	size_t at;          /* byte of CUT and FLIP */
	unsigned char mask; /* of FLIP */
	unsigned answers;
	size_t lengths[MAX_ANSWERS];
	bool short_reads;
	const char *listed; /* a name in the listing */
};

static void
put_u32(struct buf *b, uint32_t value)
{
	unsigned char bytes[4];
	sftp_set_u32(bytes, value);
	buf_put(b, bytes, 4);
}

static void
put_string(struct buf *b, const void *ptr, size_t len)
{
	put_u32(b, (uint32_t)len);
	buf_put(b, ptr, len);
}

static void
put_u64(struct buf *b, uint64_t value)
{
	put_u32(b, (uint32_t)(value >> 32));
	put_u32(b, (uint32_t)value);
}

static void
put_attrs(struct buf *b)
{
	put_u32(b, 1 | 2 | 4 | 8);
	put_u64(b, FILE_BYTES);
	put_u32(b, 0), put_u32(b, 0);
	put_u32(b, 0100644);
	put_u32(b, 1), put_u32(b, 2);
}

static void
begin(struct buf *b, uint8_t type, uint32_t id)
{
	b->len = 0;
	put_u32(b, 0);
	buf_putc(b, (char)type);
	put_u32(b, id);
}

static void
put_status(struct buf *b, uint32_t id, uint32_t status)
{
	begin(b, SSH_FXP_STATUS, id);
	put_u32(b, status);
	put_string(b, "Why\033[2J", 7);
	put_string(b, "", 0);
}

static unsigned char
byte_at(uint64_t i)
{
	return (unsigned char)(i * 7 >> 3);
}

static void
answer_read(struct server *s, struct wire *w, uint32_t id, struct buf *b)
{
	uint32_t len;
	sftp_get_string(w, &len);
	uint64_t offset = sftp_get_u64(w);
	uint32_t n = sftp_get_u32(w);
	if (offset >= FILE_BYTES) {
		put_status(b, id, SSH_FX_EOF);
		return;
	}
	n = FILE_BYTES - offset < n ? (uint32_t)(FILE_BYTES - offset) : n;
	if (s->short_reads && n > 1000)
		n = n / 2;
	begin(b, SSH_FXP_DATA, id);
	put_u32(b, n);
	for (uint32_t i = 0; i < n; i++)
		buf_putc(b, (char)byte_at(offset + i));
}

static void
answer_extended(struct wire *w, uint32_t id, struct buf *b)
{
	uint32_t len;
	const unsigned char *name = sftp_get_string(w, &len);
	if (len < 6 || (memcmp(name, "limits", 6) != 0 && memcmp(name, "statvf", 6) != 0)) {
		put_status(b, id, SSH_FX_OK);
		return;
	}
	begin(b, SSH_FXP_EXTENDED_REPLY, id);
	for (int i = 0; i < 11; i++)
		put_u64(b, 65536);
}

/* The right answer. */
static void
answer(struct server *s, struct wire *w, bool *listed, struct buf *b)
{
	uint32_t id = sftp_get_u32(w);
	switch (w->type) {
	case SSH_FXP_INIT:
		begin(b, SSH_FXP_VERSION, 3);
		put_string(b, "posix-rename@openssh.com", 24), put_string(b, "1", 1);
		put_string(b, "statvfs@openssh.com", 19), put_string(b, "2", 1);
		put_string(b, "limits@openssh.com", 18), put_string(b, "1", 1);
		return;
	case SSH_FXP_LSTAT:
	case SSH_FXP_FSTAT:
	case SSH_FXP_STAT:
		begin(b, SSH_FXP_ATTRS, id);
		put_attrs(b);
		return;
	case SSH_FXP_OPEN:
	case SSH_FXP_OPENDIR:
		begin(b, SSH_FXP_HANDLE, id);
		put_string(b, "h1", 2);
		*listed = false;
		return;
	case SSH_FXP_READ:
		answer_read(s, w, id, b);
		return;
	case SSH_FXP_READDIR:
		if (*listed) {
			put_status(b, id, SSH_FX_EOF);
			return;
		}
		*listed = true;
		begin(b, SSH_FXP_NAME, id);
		put_u32(b, 2);
		put_string(b, ".", 1), put_string(b, "drwx", 4), put_attrs(b);
		put_string(b, s->listed, strlen(s->listed)), put_string(b, "-rw-", 4), put_attrs(b);
		return;
	case SSH_FXP_EXTENDED:
		answer_extended(w, id, b);
		return;
	default:
		put_status(b, id, SSH_FX_OK);
	}
}

/* Sends it, harmed if it is the one. False: that was the end. */
static bool
send_answer(struct server *s, struct buf *b)
{
	size_t n = b->len;
	unsigned nth = s->answers++;
	sftp_set_u32((unsigned char *)b->ptr, (uint32_t)(n - 4));
	if (nth < MAX_ANSWERS)
		s->lengths[nth] = n;
	bool harm = s->harm != NO_HARM && nth == s->nth;
	if (harm && s->harm == CUT)
		n = s->at < n ? s->at : n;
	if (harm && s->harm == FLIP && s->at < n)
		b->ptr[s->at] = (char)(b->ptr[s->at] ^ s->mask);
	if (harm && s->harm == WRONG_ID && n >= 9)
		b->ptr[8] = (char)(b->ptr[8] + 17);
	if (harm && (s->harm == HUGE_LENGTH || s->harm == TINY_LENGTH))
		sftp_set_u32((unsigned char *)b->ptr, s->harm == HUGE_LENGTH ? 0x7fffffff : 2);
	if (harm && s->harm == OTHER_KIND)
		b->ptr[4] = 99;
	for (int times = harm && s->harm == TWICE ? 2 : harm && s->harm == SILENCE ? 0 : 1; times > 0; times--)
		if (send(s->fd, b->ptr, n, MSG_NOSIGNAL) != (ssize_t)n)
			return false;
	return !(harm && s->harm == CUT);
}

static bool
receive(int fd, void *ptr, size_t n)
{
	for (size_t done = 0; done < n;) {
		ssize_t got = recv(fd, (char *)ptr + done, n - done, 0);
		if (got <= 0)
			return false;
		done += (size_t)got;
	}
	return true;
}

static void *
serve(void *arg)
{
	struct server *s = arg;
	PAWL_CLEAN(buf_clear) struct buf reply = {0};
	PAWL_FREE unsigned char *packet = mem_alloc(WIRE_MAX_PACKET);
	unsigned char head[4];
	bool listed = false;
	while (receive(s->fd, head, 4)) {
		uint32_t len = sftp_u32(head);
		if (len < 5 || len > WIRE_MAX_PACKET || !receive(s->fd, packet, len))
			break;
		struct wire w = {.type = packet[0], .at = packet + 1, .end = packet + len};
		answer(s, &w, &listed, &reply);
		if (!send_answer(s, &reply))
			break;
	}
	shutdown(s->fd, SHUT_RDWR);
	return NULL;
}

struct client {
	struct sftp *sftp;
	int fd;
	struct server server;
	struct pawl_error err;
};

static int
start(struct client *c, int64_t timeout_ms)
{
	int ends[2];
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	c->fd = ends[0];
	c->server.fd = ends[1];
	if (c->server.listed == NULL)
		c->server.listed = "name";
	assert_int_equal(fcntl(c->fd, F_SETFL, O_NONBLOCK), 0);
	assert_int_equal(pthread_create(&c->server.thread, NULL, serve, &c->server), 0);
	return sftp_new(c->fd, -1, timeout_ms, &c->sftp, &c->err);
}

static void
stop(struct client *c)
{
	sftp_free(c->sftp);
	shutdown(c->fd, SHUT_RDWR);
	pthread_join(c->server.thread, NULL);
	close(c->fd);
	close(c->server.fd);
}

static int
see(void *arg, const char *name, const struct sftp_attrs *attrs)
{
	struct buf *names = arg;
	buf_puts(names, name);
	return attrs->mode == 0100644 ? 0 : PAWL_EIO;
}

/* A bit of everything. The first failure. */
static int
session(struct client *c, int64_t timeout_ms, char *data)
{
	struct sftp_attrs attrs;
	struct sftp_handle h;
	uint64_t left;
	PAWL_CLEAN(buf_clear) struct buf names = {0};
	TRY(start(c, timeout_ms));
	TRY(sftp_lstat(c->sftp, "/x", &attrs, &c->err));
	TRY(sftp_open(c->sftp, "/x", SFTP_READ, &h, &c->err));
	TRY(sftp_read(c->sftp, &h, 0, data, FILE_BYTES, &c->err));
	TRY(sftp_write(c->sftp, &h, 0, data, FILE_BYTES, &c->err));
	TRY(sftp_close(c->sftp, &h, &c->err));
	TRY(sftp_list(c->sftp, "/", see, &names, &c->err));
	TRY(sftp_free_bytes(c->sftp, "/", &left, &c->err));
	return sftp_rename(c->sftp, "/x", "/y", true, &c->err);
}

static void
assert_data(const char *data)
{
	for (size_t i = 0; i < FILE_BYTES; i++)
		assert_int_equal((unsigned char)data[i], byte_at(i));
}

static void
test_an_honest_server_is_understood(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		struct client c = {.server.short_reads = i == 1};
		char *data = calloc(1, FILE_BYTES);
		assert_int_equal(session(&c, HANG_MS, data), 0);
		assert_int_equal(sftp_features(c.sftp), SFTP_POSIX_RENAME | SFTP_STATVFS | SFTP_LIMITS | SFTP_OPENSSH);
		assert_data(data);
		assert_false(sftp_is_lost(c.sftp));
		stop(&c);
		free(data);
	}
}

static void
test_statuses_are_errors_and_their_texts_are_cleaned(void **state)
{
	(void)state;
	struct client c = {0};
	struct sftp_handle h = {.len = 2, .bytes = "h1"};
	char byte;
	assert_int_equal(start(&c, HANG_MS), 0);
	assert_int_equal(sftp_read(c.sftp, &h, FILE_BYTES, &byte, 1, &c.err), PAWL_ECORRUPT);
	assert_non_null(strstr(c.err.message, "ends early"));
	assert_false(sftp_is_lost(c.sftp)); /* and the connection is good */
	assert_int_equal(sftp_rename(c.sftp, "/x", "/y", true, &c.err), 0);
	stop(&c);

	unsigned char text[] = {0, 0, 0, 4, 0, 0, 0, 7, 'W', 'h', 'y', 033, '[', '2', 'J'};
	struct sftp s = {.fd = -1, .said = -1};
	struct wire w = {.at = text, .end = text + sizeof text};
	assert_int_equal(sftp_status(&s, &w, "do", &c.err), PAWL_EIO);
	assert_string_equal(c.err.message, "cannot do: status 4 (Why?[2J)");
}

/* Answers of one session, whose lengths are known after an honest one. */
static void
test_P17_answers_that_are_cut_anywhere_end_the_session(void **state)
{
	(void)state;
	struct client honest = {0};
	char *data = calloc(1, FILE_BYTES);
	assert_int_equal(session(&honest, HANG_MS, data), 0);
	stop(&honest);
	assert_true(honest.server.answers > 10 && honest.server.answers < MAX_ANSWERS);
	for (unsigned nth = 0; nth < honest.server.answers; nth++)
		for (size_t at = 0; at < honest.server.lengths[nth] && at < 48; at++) {
			struct client c = {.server = {.harm = CUT, .nth = nth, .at = at}};
			int rc = session(&c, HANG_MS, data);
			assert_int_equal(rc, PAWL_ETRANSIENT);
			assert_true(c.sftp == NULL || sftp_is_lost(c.sftp));
			stop(&c);
		}
	free(data);
}

static void
test_P17_answers_that_are_changed_anywhere_do_no_harm(void **state)
{
	(void)state;
	struct client honest = {0};
	char *data = calloc(1, FILE_BYTES);
	assert_int_equal(session(&honest, HANG_MS, data), 0);
	stop(&honest);
	static const unsigned char masks[] = {0x01, 0xff};
	for (unsigned nth = 0; nth < honest.server.answers; nth++)
		for (size_t at = 0; at < honest.server.lengths[nth] && at < 40; at++)
			for (size_t m = 0; m < sizeof masks; m++) {
				struct client c = {.server = {.harm = FLIP, .nth = nth, .at = at, .mask = masks[m]}};
				session(&c, 20, data); /* it ends, in whatever way */
				stop(&c);
			}
	free(data);
}

static void
test_P17_impossible_answers_are_not_believed(void **state)
{
	(void)state;
	static const enum harm harms[] = {WRONG_ID, HUGE_LENGTH, TINY_LENGTH, OTHER_KIND};
	char *data = calloc(1, FILE_BYTES);
	for (unsigned nth = 1; nth < 12; nth++)
		for (size_t i = 0; i < sizeof harms / sizeof harms[0]; i++) {
			struct client c = {.server = {.harm = harms[i], .nth = nth}};
			int rc = session(&c, HANG_MS, data);
			assert_int_equal(rc, PAWL_ETRANSIENT);
			assert_non_null(strstr(c.err.message, "was closed"));
			stop(&c);
		}
	free(data);
}

static void
test_P17_an_answer_that_comes_twice_is_not_the_next_one(void **state)
{
	(void)state;
	char *data = calloc(1, FILE_BYTES);
	for (unsigned nth = 1; nth < 10; nth++) {
		struct client c = {.server = {.harm = TWICE, .nth = nth}};
		assert_int_equal(session(&c, HANG_MS, data), PAWL_ETRANSIENT);
		stop(&c);
	}
	free(data);
}

static void
test_P17_names_that_lead_elsewhere_are_refused(void **state)
{
	(void)state;
	static const char *const names[] = {"../up", "a/b", "/etc", ""};
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		struct client c = {.server = {.listed = names[i]}};
		PAWL_CLEAN(buf_clear) struct buf seen = {0};
		assert_int_equal(start(&c, HANG_MS), 0);
		assert_int_equal(sftp_list(c.sftp, "/", see, &seen, &c.err), PAWL_ETRANSIENT);
		assert_int_equal(seen.len, 0);
		stop(&c);
	}
	struct client c = {.server = {.listed = ".."}};
	PAWL_CLEAN(buf_clear) struct buf seen = {0};
	assert_int_equal(start(&c, HANG_MS), 0);
	assert_int_equal(sftp_list(c.sftp, "/", see, &seen, &c.err), 0);
	assert_int_equal(seen.len, 0);
	stop(&c);
}

static void
test_P16_a_silent_server_is_left_in_time(void **state)
{
	(void)state;
	char *data = calloc(1, FILE_BYTES);
	for (unsigned nth = 0; nth < 5; nth++) {
		struct client c = {.server = {.harm = SILENCE, .nth = nth}};
		assert_int_equal(session(&c, 50, data), PAWL_ETIMEOUT);
		stop(&c);
	}
	free(data);
}

static void
test_text_before_the_protocol_is_named(void **state)
{
	(void)state;
	int ends[2];
	struct sftp *s;
	struct pawl_error err = {0};
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	assert_int_equal(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
	assert_int_equal(send(ends[1], "Welcome to this host\n", 21, 0), 21);
	assert_int_equal(sftp_new(ends[0], -1, 10000, &s, &err), PAWL_ETRANSIENT);
	assert_non_null(strstr(err.message, "does its shell print something"));
	close(ends[0]);
	close(ends[1]);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_an_honest_server_is_understood),
		cmocka_unit_test(test_statuses_are_errors_and_their_texts_are_cleaned),
		cmocka_unit_test(test_P17_answers_that_are_cut_anywhere_end_the_session),
		cmocka_unit_test(test_P17_answers_that_are_changed_anywhere_do_no_harm),
		cmocka_unit_test(test_P17_impossible_answers_are_not_believed),
		cmocka_unit_test(test_P17_an_answer_that_comes_twice_is_not_the_next_one),
		cmocka_unit_test(test_P17_names_that_lead_elsewhere_are_refused),
		cmocka_unit_test(test_P16_a_silent_server_is_left_in_time),
		cmocka_unit_test(test_text_before_the_protocol_is_named),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
