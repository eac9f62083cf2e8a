/* SPDX-License-Identifier: Apache-2.0 */
/*
 * child: sockets instead of pipes, because writing to a pipe without a reader is a signal. P16: no
 * wait is longer than the caller's limit.
 */
#include "base/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/spawn.h"

#define SOCKET_BYTES (1 << 20)

struct ends {
	int talk, said; /* the child's ends, or -1 */
};

/* 0 or an errno value. */
static int
start_program(char *const argv[], unsigned flags, const struct ends *ends, pid_t *ret)
{
	const bool hears_stdout = flags & (CHILD_FEED | CHILD_MERGED | CHILD_CAPTURE);
	struct spawn_file files[] = {
		{.fd = 0, .path = "/dev/null", .flags = O_RDONLY},
		{.fd = 1, .path = "/dev/null", .flags = O_WRONLY},
		{.fd = 2, .from = ends->said},
	};

	if (ends->talk >= 0)
		files[0] = (struct spawn_file){.fd = 0, .from = ends->talk};
	if (flags & CHILD_TALK)
		files[1] = (struct spawn_file){.fd = 1, .from = ends->talk};
	else if (hears_stdout)
		files[1] = (struct spawn_file){.fd = 1, .from = ends->said};
	if (flags & CHILD_CAPTURE)
		files[2] = (struct spawn_file){.fd = 2, .path = "/dev/null", .flags = O_WRONLY};
	return spawn_program(ret, argv, os_environ(), files, 3, SPAWN_GROUP);
}

static bool
stop_blocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);
	return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

/* Two ends that are closed in every program we start, ours not blocking. */
static int
make_ends(bool two_way, int ret[2])
{
	const int bytes = SOCKET_BYTES;
	if ((two_way ? os_socketpair(SOCK_STREAM, ret) : os_pipe(ret)) < 0)
		return -1;
	for (int i = 0; two_way && i < 2; i++) { /* as much as the system allows */
		setsockopt(ret[i], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
		setsockopt(ret[i], SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
	}
	return stop_blocking(ret[0]) ? 0 : -1;
}

int
child_start(char *const argv[], unsigned flags, struct child *ret, struct pawl_error *err)
{
	int talk[2] = {-1, -1}, said[2] = {-1, -1};
	bool made = (flags & (CHILD_TALK | CHILD_FEED)) == 0 || make_ends(true, talk) == 0;
	made = made && make_ends(false, said) == 0;
	int sys = made ? 0 : errno;
	PAWL_FD int our_talk = talk[0];
	PAWL_FD int our_said = said[0];
	PAWL_FD int its_talk = talk[1];
	PAWL_FD int its_said = said[1];
	struct ends ends = {its_talk, its_said};
	struct child c = CHILD_INIT;
	if (sys == 0)
		sys = start_program(argv, flags, &ends, &c.pid);
	if (sys == ENOENT)
		return err_set(err, PAWL_ENOTFOUND, "%.200s: there is no such program", argv[0]);
	if (sys != 0)
		return err_sys(err, sys, "%.200s: cannot be run", argv[0]);
	c.talk = our_talk;
	c.said = our_said;
	our_talk = our_said = -1;
	*ret = c;
	return 0;
}

bool
child_has_ended(const struct child *c)
{
	siginfo_t info = {0};
	if (c->pid == 0)
		return true;
	return waitid(P_PID, (id_t)c->pid, &info, WEXITED | WNOHANG | WNOWAIT) < 0 ? errno != EINTR : info.si_pid != 0;
}

int
child_end(struct child *c, int64_t grace_ms)
{
	int status = 0;
	if (c->pid == 0)
		return 0;
	fd_clean_close(&c->talk);
	for (int64_t end = clock_mono_ms() + grace_ms; !child_has_ended(c) && clock_mono_ms() < end;)
		clock_sleep_ms(2);
	/* Before it is taken away, so that its pid cannot belong to another process. */
	kill(-c->pid, SIGKILL);
	while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR)
		continue;
	fd_clean_close(&c->said);
	*c = (struct child)CHILD_INIT;
	return status;
}

bool
child_listen(int fd, struct buf *tail, size_t max)
{
	char piece[4096];
	for (int turn = 0; turn < 64; turn++) { /* one that never stops must not keep us here */
		ssize_t got = read(fd, piece, sizeof piece);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got < 0 && errno == EAGAIN;
		buf_put(tail, piece, (size_t)got);
		if (tail->len > max) {
			memmove(tail->ptr, tail->ptr + (tail->len - max), max);
			tail->len = max;
		}
	}
	return true;
}

ssize_t
child_send(int fd, const void *ptr, size_t len)
{
	for (;;) {
		ssize_t n = fd_send(fd, ptr, len, MSG_NOSIGNAL);
		if (n >= 0)
			return n;
		if (errno == EAGAIN || errno == EWOULDBLOCK)
			return 0;
		if (errno != EINTR)
			return -1;
	}
}
