/* SPDX-License-Identifier: Apache-2.0 */
/* forker: see forker.h. Called by runner.c and runner_trial.c. Packets and not a stream, so that descriptors belong to
 * their request. */
#include "forker.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "jsonx.h"
#include "tune_err.h"

#define FORKER_FD 3
#define FORKER_LOAD_MS 120000 /* what it loads may be large, and the machine busy */
#define FORKER_PACKET 512

/* ---- its process ---- */

/* 0 or an errno value. In a session of its own, so that Ctrl+C does not reach it. */
static int
launch(struct forker *f, char *const argv[], char *const env[], int theirs)
{
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attr;
	sigset_t none, usual;
	int rc = posix_spawn_file_actions_init(&files);

	if (rc != 0)
		return rc;
	(void)sigemptyset(&none);
	(void)sigemptyset(&usual);
	(void)sigaddset(&usual, SIGPIPE);
	(void)sigaddset(&usual, SIGINT);
	(void)sigaddset(&usual, SIGCHLD);
	rc = posix_spawnattr_init(&attr);
	if (rc == 0) {
		rc = posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
		if (rc == 0)
			rc = posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
		if (rc == 0)
			rc = posix_spawn_file_actions_adddup2(&files, 1, 2);
		if (rc == 0)
			rc = posix_spawn_file_actions_adddup2(&files, theirs, FORKER_FD);
		if (rc == 0)
			rc = posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK |
			                                             POSIX_SPAWN_SETSIGDEF);
		if (rc == 0)
			rc = posix_spawnattr_setsigmask(&attr, &none);
		if (rc == 0)
			rc = posix_spawnattr_setsigdefault(&attr, &usual);
		if (rc == 0)
			rc = posix_spawnp(&f->pid, argv[0], &files, &attr, argv, env);
		(void)posix_spawnattr_destroy(&attr);
	}
	(void)posix_spawn_file_actions_destroy(&files);
	return rc;
}

int
forker_open(struct forker *ret, char *const argv[], char *const env[], struct pawl_error *err)
{
	struct forker f = FORKER_INIT;
	int ends[2], rc;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
		return tune_fail(err, PAWL_EIO, "the process that forks trials: %s", strerror(errno));
	rc = launch(&f, argv, env, ends[1]);
	(void)close(ends[1]);
	if (rc != 0) {
		(void)close(ends[0]);
		return tune_fail_sys(err, rc, "%s", argv[0]);
	}
	f.fd = ends[0];
	*ret = f;
	return 0;
}

static void
give_up(struct forker *f)
{
	if (f->fd >= 0)
		(void)close(f->fd);
	f->fd = -1;
}

void
forker_close(struct forker *f)
{
	give_up(f);
	if (f->pid > 0)
		(void)kill(f->pid, SIGKILL); /* it has nothing to lose; what it forked is in other groups */
	while (f->pid > 0 && waitpid(f->pid, NULL, 0) < 0 && errno == EINTR)
		continue;
	free(f->ends);
	*f = (struct forker)FORKER_INIT;
}

/* ---- packets ---- */

static bool
keep_end(struct forker *f, pid_t pid, int status)
{
	if (f->n_ends == f->cap_ends) {
		size_t cap = f->cap_ends * 2 + 16;
		struct forker_end *more = realloc(f->ends, cap * sizeof(*more));

		if (more == NULL)
			return false;
		f->ends = more;
		f->cap_ends = cap;
	}
	f->ends[f->n_ends++] = (struct forker_end){.pid = pid, .status = status};
	return true;
}

/* One packet into text, within the time; ends are kept. False: there was none, or it was an end. */
static bool
take(struct forker *f, int timeout_ms, char *text, size_t nbytes)
{
	struct pollfd one = {.fd = f->fd, .events = POLLIN};
	int pid, status;
	ssize_t n;

	text[0] = '\0';
	if (f->fd < 0 || poll(&one, 1, timeout_ms) <= 0)
		return false;
	n = recv(f->fd, text, nbytes - 1, MSG_DONTWAIT);
	if (n <= 0) {
		if (n == 0 || (errno != EINTR && errno != EAGAIN))
			give_up(f);
		text[0] = '\0';
		return false;
	}
	text[n] = '\0';
	if (sscanf(text, "over %d %d", &pid, &status) != 2)
		return true;
	if (!keep_end(f, (pid_t)pid, status))
		give_up(f);
	return false;
}

static double
now_ms(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

void
forker_hear(struct forker *f)
{
	char text[FORKER_PACKET];

	do
		(void)take(f, 0, text, sizeof(text));
	while (f->fd >= 0 && text[0] != '\0');
}

static bool
ask(struct forker *f, char *const env[], const int fds[3])
{
	JSONX_CLEAN json_t *list = json_array(), *request = NULL;
	JSONX_TEXT char *text = NULL, *whole = NULL;
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(3 * sizeof(int))];
	} control = {0};
	struct iovec data;
	struct msghdr message = {.msg_iov = &data,
	                         .msg_iovlen = 1,
	                         .msg_control = control.bytes,
	                         .msg_controllen = sizeof(control.bytes)};

	/* A variable that is no UTF-8 cannot be sent. */
	for (size_t i = 0; env[i] != NULL; i++)
		if (list == NULL || json_array_append_new(list, json_string(env[i])) != 0)
			return false;
	request = json_pack("{s:O}", "env", list);
	text = request != NULL ? jsonx_dump(request) : NULL;
	if (text == NULL || asprintf(&whole, "fork %s", text) < 0) {
		whole = NULL;
		return false;
	}
	data = (struct iovec){.iov_base = whole, .iov_len = strlen(whole)};
	control.head.cmsg_level = SOL_SOCKET;
	control.head.cmsg_type = SCM_RIGHTS;
	control.head.cmsg_len = CMSG_LEN(3 * sizeof(int));
	memcpy(CMSG_DATA(&control.head), fds, 3 * sizeof(int));
	return sendmsg(f->fd, &message, MSG_NOSIGNAL) >= 0;
}

bool
forker_start(struct forker *f, char *const env[], const int fds[3], pid_t *ret)
{
	const double until = now_ms() + FORKER_LOAD_MS;
	char text[FORKER_PACKET];
	int pid;

	if (f->fd < 0 || !ask(f, env, fds))
		return false;
	while (f->fd >= 0) {
		const double left = until - now_ms();

		if (left <= 0) {
			give_up(f); /* a late answer would be taken for that of another request */
			return false;
		}
		if (!take(f, (int)left + 1, text, sizeof(text)))
			continue;
		if (sscanf(text, "pid %d", &pid) != 1)
			return false;
		*ret = (pid_t)pid;
		return true;
	}
	return false;
}

/* Gone, or a process that nobody waits for: whoever has inherited it may never do that. */
static bool
is_gone(pid_t pid)
{
	char path[40], text[512], *after;
	ssize_t n;
	int fd;

	(void)snprintf(path, sizeof(path), "/proc/%ld/stat", (long)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return kill(pid, 0) != 0 && errno == ESRCH;
	n = read(fd, text, sizeof(text) - 1);
	(void)close(fd);
	text[n > 0 ? n : 0] = '\0';
	after = strrchr(text, ')'); /* of its name, which may hold anything */
	return after != NULL && (strncmp(after, ") Z", 3) == 0 || strncmp(after, ") X", 3) == 0);
}

bool
forker_has_ended(struct forker *f, pid_t pid, int *ret_status)
{
	forker_hear(f);
	for (size_t i = 0; i < f->n_ends; i++)
		if (f->ends[i].pid == pid) {
			*ret_status = f->ends[i].status;
			return true;
		}
	*ret_status = -1;
	return f->fd < 0 && is_gone(pid);
}

void
forker_wait(struct forker *f, pid_t pid, int timeout_ms)
{
	const double until = now_ms() + timeout_ms;
	const struct timespec slice = {.tv_nsec = 2000000};
	int status;

	while (!forker_has_ended(f, pid, &status) && now_ms() < until)
		(void)nanosleep(&slice, NULL);
}

void
forker_reap(struct forker *f, pid_t pid)
{
	char text[32];
	size_t kept = 0;
	const int len = snprintf(text, sizeof(text), "reap %ld", (long)pid);

	for (size_t i = 0; i < f->n_ends; i++)
		if (f->ends[i].pid != pid)
			f->ends[kept++] = f->ends[i];
	f->n_ends = kept;
	if (f->fd >= 0)
		(void)send(f->fd, text, (size_t)len, MSG_NOSIGNAL);
}
