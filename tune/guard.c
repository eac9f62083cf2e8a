/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guard: see guard.h. The guard is a small shell program that reads the numbers of process groups
 * from a socket. The end of the socket means that the runner is gone. It is not a fork of this
 * process, which may be a Python with gigabytes. A fork would keep a copy of every page changed
 * later.
 */
#include "guard.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "base/os.h"
#include "base/spawn.h"

static const char program[] = "trap '' HUP INT QUIT TERM PIPE\n"
			      "l=\n"
			      "while read -r op p; do\n"
			      "case $op in\n"
			      "+) l=\"$l $p\" ;;\n"
			      "-) n=; for q in $l; do [ \"$q\" = \"$p\" ] || n=\"$n $q\"; done; l=$n ;;\n"
			      "esac\n"
			      "done\n"
			      "for p in $l; do kill -s KILL -- \"-$p\" 2>/dev/null; done\n";

/* 0 or an errno value. */
static int
start_guard(struct guard *g, int theirs, int lock)
{
	char sh[] = "/bin/sh", c[] = "-c", text[sizeof(program)], name[] = "pawl-guard", path[] = "PATH=/usr/bin:/bin";
	char *argv[] = {sh, c, text, name, NULL}, *env[] = {path, NULL};
	const struct spawn_file files[] = {
		{.fd = 0, .from = theirs},
		{.fd = 1, .path = "/dev/null", .flags = O_WRONLY},
		{.fd = 2, .from = 1},
		{.fd = 3, .from = lock},
	};

	memcpy(text, program, sizeof(program));
	return spawn_program(&g->pid, argv, env, files, lock >= 0 ? 4 : 3, SPAWN_SESSION);
}

int
guard_open(struct guard *ret, int lock, struct pawl_error *err)
{
	struct guard g = GUARD_INIT;
	int ends[2], rc;

	if (os_socketpair(SOCK_STREAM, ends) != 0)
		return err_set(err, PAWL_EIO, "the guard of the trials: %s", strerror(errno));
	rc = start_guard(&g, ends[1], lock);
	(void)close(ends[1]);
	if (rc != 0) {
		(void)close(ends[0]);
		return err_sys(err, rc, "the guard of the trials (/bin/sh)");
	}
	g.fd = ends[0];
	*ret = g;
	return 0;
}

static void
send_order(struct guard *g, char what, pid_t group)
{
	char line[32];
	int len = snprintf(line, sizeof(line), "%c %ld\n", what, (long)group);

	while (g->fd >= 0 && send(g->fd, line, (size_t)len, MSG_NOSIGNAL) < 0 && errno == EINTR)
		continue;
}

void
guard_add(struct guard *g, pid_t group)
{
	send_order(g, '+', group);
}

void
guard_remove(struct guard *g, pid_t group)
{
	send_order(g, '-', group);
}

void
guard_close(struct guard *g)
{
	if (g->fd >= 0)
		(void)close(g->fd);
	while (g->pid > 0 && waitpid(g->pid, NULL, 0) < 0 && errno == EINTR)
		continue;
	*g = (struct guard)GUARD_INIT;
}
