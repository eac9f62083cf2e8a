/* SPDX-License-Identifier: Apache-2.0 */
/*
 * proc: see proc.h. Called by store/s3_cred.c; calls buf, clock, err. posix_spawn, because the program that uses pawl
 * has threads. P16: time and output are bounded. P18: nothing of the output gets into a message.
 */
#include "base/proc.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fileio.h"

extern char **environ;

static int
set_up(posix_spawn_file_actions_t *actions, posix_spawnattr_t *attr, int out_fd)
{
	sigset_t none, ours;
	sigemptyset(&none);
	sigemptyset(&ours);
	sigaddset(&ours, SIGPIPE);
	int rc = posix_spawn_file_actions_addopen(actions, 0, "/dev/null", O_RDONLY, 0);
	if (rc == 0)
		rc = posix_spawn_file_actions_adddup2(actions, out_fd, 1);
	if (rc == 0)
		rc = posix_spawn_file_actions_addopen(actions, 2, "/dev/null", O_WRONLY, 0);
	/* A thread of the library blocks all signals; a program must not start like that. */
	if (rc == 0)
		rc = posix_spawnattr_setflags(attr,
		                              POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	if (rc == 0)
		rc = posix_spawnattr_setsigmask(attr, &none);
	if (rc == 0)
		rc = posix_spawnattr_setsigdefault(attr, &ours);
	return rc;
}

/* 0 or an errno value. */
static int
spawn(char *const argv[], int out_fd, pid_t *ret)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	int rc = posix_spawn_file_actions_init(&actions);
	if (rc != 0)
		return rc;
	rc = posix_spawnattr_init(&attr);
	if (rc == 0) {
		rc = set_up(&actions, &attr, out_fd);
		if (rc == 0)
			rc = posix_spawnp(ret, argv[0], &actions, &attr, argv, environ);
		posix_spawnattr_destroy(&attr);
	}
	posix_spawn_file_actions_destroy(&actions);
	return rc;
}

static int
read_all(int fd, const char *name, int64_t deadline_ms, size_t max, struct buf *out, struct pawl_error *err)
{
	size_t before = out->len;
	for (;;) {
		int64_t left = deadline_ms - clock_mono_ms();
		struct pollfd waiting = {.fd = fd, .events = POLLIN};
		int ready = left > 0 ? poll(&waiting, 1, (int)(left < 1000 ? left : 1000)) : 0;
		if (left <= 0)
			return err_set(err, PAWL_ETIMEOUT, "%.200s: has not ended in time", name);
		if (ready <= 0)
			continue;
		char piece[4096];
		ssize_t got = read(fd, piece, sizeof piece);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return err_sys(err, errno, "%.200s: cannot read what it prints", name);
		if (got == 0)
			return 0;
		if ((size_t)got > max - (out->len - before))
			return err_set(err, PAWL_ELIMIT, "%.200s: prints more than %zu bytes", name, max);
		buf_put(out, piece, (size_t)got);
		explicit_bzero(piece, (size_t)got);
		TRY(buf_check(out, name, err));
	}
}

/* Until it has ended; it is killed at the deadline. */
static int
wait_for(pid_t pid, const char *name, int64_t deadline_ms, bool kill_now, struct pawl_error *err)
{
	int status = 0;
	bool killed = kill_now;
	if (kill_now)
		kill(-pid, SIGKILL);
	for (;;) {
		pid_t got = waitpid(pid, &status, killed ? 0 : WNOHANG);
		if (got == pid)
			break;
		if (got < 0 && errno != EINTR)
			return err_sys(err, errno, "%.200s: cannot wait for it", name);
		if (got == 0 && clock_mono_ms() >= deadline_ms) {
			kill(-pid, SIGKILL);
			killed = true;
		} else if (got == 0) {
			clock_sleep_ms(2);
		}
	}
	if (killed)
		return err_set(err, PAWL_ETIMEOUT, "%.200s: has not ended in time", name);
	if (WIFSIGNALED(status))
		return err_set(err, PAWL_EIO, "%.200s: was ended by signal %d", name, WTERMSIG(status));
	if (WEXITSTATUS(status) == 127)
		return err_set(err, PAWL_ENOTFOUND, "%.200s: there is no such program", name);
	if (WEXITSTATUS(status) != 0)
		return err_set(err, PAWL_EIO, "%.200s: ended with status %d", name, WEXITSTATUS(status));
	return 0;
}

int
proc_capture(char *const argv[], int64_t timeout_ms, size_t max, struct buf *out, struct pawl_error *err)
{
	int ends[2];
	int64_t deadline_ms = clock_mono_ms() + timeout_ms;
	if (pipe2(ends, O_CLOEXEC) < 0)
		return err_sys(err, errno, "%.200s: cannot make a pipe", argv[0]);
	PAWL_FD int in = ends[0];
	PAWL_FD int child_end = ends[1];
	pid_t pid;
	int sys = spawn(argv, child_end, &pid);
	if (sys != 0)
		return err_sys(err, sys, "%.200s: cannot be run", argv[0]);
	fd_clean_close(&child_end);
	child_end = -1;
	int rc = read_all(in, argv[0], deadline_ms, max, out, err);
	int ended = wait_for(pid, argv[0], deadline_ms, rc < 0, rc < 0 ? NULL : err);
	return rc < 0 ? rc : ended;
}

int
proc_split(const char *line, struct bump *memory, char ***ret, struct pawl_error *err)
{
	size_t len = strlen(line), n = 0;
	char **argv = bump_array(memory, len / 2 + 2, sizeof *argv);
	char *to = bump_alloc(memory, len + 1);
	if (argv == NULL || to == NULL)
		return err_set(err, PAWL_ENOMEM, "command line: out of memory");
	for (const char *c = line; *c != '\0';) {
		if (*c == ' ' || *c == '\t') {
			c++;
			continue;
		}
		argv[n++] = to;
		char quote = '\0';
		for (; *c != '\0' && (quote != '\0' || (*c != ' ' && *c != '\t')); c++) {
			if (quote == '\0' && (*c == '\'' || *c == '"'))
				quote = *c;
			else if (quote != '\0' && *c == quote)
				quote = '\0';
			else if (*c == '\\' && quote != '\'' && c[1] != '\0')
				*to++ = *++c;
			else
				*to++ = *c;
		}
		if (quote != '\0')
			return err_set(err, PAWL_EUSAGE, "command line: a quote is not closed");
		*to++ = '\0';
	}
	if (n == 0)
		return err_set(err, PAWL_EUSAGE, "command line: is empty");
	argv[n] = NULL;
	*ret = argv;
	return 0;
}
