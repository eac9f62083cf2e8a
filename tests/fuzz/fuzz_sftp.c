/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_sftp: any bytes as everything that an SFTP server ever sends. They end in answers within
 * their limits, or in an error that is filled in. After a connection was found untrustworthy,
 * nothing more is sent over it.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "store/ssh/sftp.h"
#include "fuzz.h"

#define READ_BYTES 1000u

static int
see(void *arg, const char *name, const struct sftp_attrs *attrs)
{
	check(name[0] != '\0' && strchr(name, '/') == NULL && strcmp(name, "..") != 0 && strcmp(name, ".") != 0);
	check(attrs->nbytes <= INT64_MAX);
	++*(size_t *)arg;
	return 0;
}

static void
judge(struct sftp *s, int rc, struct pawl_error *err)
{
	check(rc <= 0 && (rc == 0 || (err->code == rc && err->message[0] != '\0')));
	check(rc != PAWL_ETRANSIENT || err->message[0] != '\0');
	(void)s;
}

static void
talk(struct sftp *s, struct pawl_error *err)
{
	struct sftp_attrs attrs;
	struct sftp_handle h = {.len = 1, .bytes = "h"};
	char bytes[READ_BYTES];
	size_t n = 0;
	uint64_t left;
	judge(s, sftp_lstat(s, "/a", &attrs, err), err);
	int rc = sftp_open(s, "/a", SFTP_READ, &h, err);
	judge(s, rc, err);
	check(h.len <= sizeof h.bytes);
	judge(s, sftp_read(s, &h, 0, bytes, sizeof bytes, err), err);
	judge(s, sftp_write(s, &h, 0, bytes, 10, err), err);
	judge(s, sftp_list(s, "/", see, &n, err), err);
	judge(s, sftp_free_bytes(s, "/", &left, err), err);
	bool lost = sftp_is_lost(s);
	rc = sftp_remove(s, "/a", err);
	judge(s, rc, err);
	check(!lost || rc < 0);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct pawl_error err = {0};
	struct sftp *s = NULL;
	int ends[2];
	if (size > 65536 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
		return 0;
	check(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0 && fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
	if (send(ends[1], data, size, MSG_NOSIGNAL) < 0 && size > 0)
		size = 0;
	shutdown(ends[1], SHUT_WR);
	int rc = sftp_new(ends[0], -1, 50, &s, &err);
	check(rc == 0 || err.code == rc);
	if (rc == 0)
		talk(s, &err);
	sftp_free(s);
	close(ends[0]);
	close(ends[1]);
	return 0;
}
