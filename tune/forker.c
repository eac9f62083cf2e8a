/* SPDX-License-Identifier: Apache-2.0 */
/* forker: see forker.h. Uses packets instead of a stream, so that descriptors belong to their
 * request. */
#include "forker.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/os.h"
#include "base/text.h"
#include "base/value.h"
#include "base/spawn.h"

#define FORKER_FD 3
#define FORKER_LOAD_MS 120000 /* the program may load much on a busy machine */
#define FORKER_PACKET 512

/* ---- its process ---- */

/* 0 or an errno value. */
static int
launch_program(struct forker *f, char *const argv[], char *const env[], int theirs)
{
	const struct spawn_file files[] = {
		{.fd = 0, .path = "/dev/null", .flags = O_RDONLY},
		{.fd = 1, .path = "/dev/null", .flags = O_WRONLY},
		{.fd = 2, .from = 1},
		{.fd = FORKER_FD, .from = theirs},
	};

	return spawn_program(&f->pid, argv, env, files, 4, SPAWN_SESSION);
}

int
forker_open(struct forker *ret, char *const argv[], char *const env[], struct pawl_error *err)
{
	struct forker f = FORKER_INIT;
	int ends[2], rc;

	if (os_socketpair(SOCK_SEQPACKET, ends) != 0)
		return err_set(err, PAWL_EIO, "the process that forks trials: %s", strerror(errno));
	rc = launch_program(&f, argv, env, ends[1]);
	(void)close(ends[1]);
	if (rc != 0) {
		(void)close(ends[0]);
		return err_sys(err, rc, "%s", argv[0]);
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
		(void)kill(f->pid, SIGKILL); /* it has nothing to lose; its forked processes are in other groups */
	while (f->pid > 0 && waitpid(f->pid, NULL, 0) < 0 && errno == EINTR)
		continue;
	vec_free(&f->ends);
	*f = (struct forker)FORKER_INIT;
}

/* ---- packets ---- */

static bool
keep_end(struct forker *f, pid_t pid, int status)
{
	struct forker_end *added = vec_add(&f->ends);

	if (added != NULL)
		*added = (struct forker_end){.pid = pid, .status = status};
	return added != NULL;
}

/* Receives a packet and the descriptor that came with it, or -1. Returns as recv. */
static ssize_t
receive_message(int fd, char *text, size_t nbytes, int *ret_fd)
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec data = {.iov_base = text, .iov_len = nbytes};
	struct msghdr message = {.msg_iov = &data,
	                         .msg_iovlen = 1,
	                         .msg_control = control.bytes,
	                         .msg_controllen = sizeof(control.bytes)};
	const ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	const struct cmsghdr *head = n > 0 ? CMSG_FIRSTHDR(&message) : NULL;

	*ret_fd = -1;
	if (head != NULL && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS &&
	    head->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(ret_fd, CMSG_DATA(head), sizeof(int));
	return n;
}

/* Receives one packet into text, within the time; ends of processes are stored. False: no packet
 * came, or it was an end. ret_fd: a descriptor that came with the packet, owned by the caller; NULL
 * = not wanted. */
static bool
receive_packet(struct forker *f, int timeout_ms, char *text, size_t nbytes, int *ret_fd)
{
	struct pollfd one = {.fd = f->fd, .events = POLLIN};
	int pid, status, fd;
	bool is_answer;
	ssize_t n;

	text[0] = '\0';
	if (ret_fd != NULL)
		*ret_fd = -1;
	if (f->fd < 0 || poll(&one, 1, timeout_ms) <= 0)
		return false;
	n = receive_message(f->fd, text, nbytes - 1, &fd);
	text[n > 0 ? n : 0] = '\0';
	is_answer = n > 0 && sscanf(text, "over %d %d", &pid, &status) != 2;
	if (is_answer && ret_fd != NULL)
		*ret_fd = fd;
	else if (fd >= 0)
		(void)close(fd);
	if (n <= 0) {
		if (n == 0 || (errno != EINTR && errno != EAGAIN))
			give_up(f);
		return false;
	}
	if (is_answer)
		return true;
	if (!keep_end(f, (pid_t)pid, status))
		give_up(f);
	return false;
}

/* Reads the packets that have arrived. */
static void
forker_hear(struct forker *f)
{
	char text[FORKER_PACKET];

	do
		(void)receive_packet(f, 0, text, sizeof(text), NULL);
	while (f->fd >= 0 && text[0] != '\0');
}

static bool
send_start(struct forker *f, char *const env[], const int fds[3])
{
	PAWL_CLEAN(value_free_clean) struct value *list = value_new_array(), *request = NULL;
	PAWL_FREE char *text = NULL, *whole = NULL;
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(3 * sizeof(int))];
	} control = {0};
	struct iovec data;
	struct msghdr message = {.msg_iov = &data,
	                         .msg_iovlen = 1,
	                         .msg_control = control.bytes,
	                         .msg_controllen = sizeof(control.bytes)};

	for (size_t i = 0; env[i] != NULL; i++) {
		if (!text_is_utf8(env[i], strlen(env[i])))
			return false; /* JSON cannot hold this variable */
		if (list == NULL || !value_append(list, value_new_text(env[i])))
			return false;
	}
	request = VALUE_OBJECT({"env", value_ref(list)});
	text = request != NULL ? value_print(request) : NULL;
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
forker_start(struct forker *f, char *const env[], const int fds[3], pid_t *ret, int *ret_pidfd)
{
	const int64_t until = clock_mono_ms() + FORKER_LOAD_MS;
	char text[FORKER_PACKET];
	int pid, fd = -1;

	if (f->fd < 0 || !send_start(f, env, fds))
		return false;
	while (f->fd >= 0) {
		const int64_t left = until - clock_mono_ms();

		if (left <= 0) {
			give_up(f); /* a late answer would be taken for the answer to another request */
			return false;
		}
		if (!receive_packet(f, (int)left, text, sizeof(text), &fd)) {
			if (fd >= 0)
				(void)close(fd);
			continue;
		}
		if (sscanf(text, "pid %d", &pid) == 1) {
			*ret = (pid_t)pid;
			*ret_pidfd = fd;
			return true;
		}
		if (fd >= 0)
			(void)close(fd);
		return false;
	}
	return false;
}

/* Reads state, process group and session of a process. False: no process has that number. */
static bool
read_stat(const char *pid, char *ret_state, long *ret_group, long *ret_session)
{
	char path[40], text[512], *after;
	ssize_t n;
	int fd;

	(void)snprintf(path, sizeof(path), "/proc/%.20s/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : 0;
	if (fd >= 0)
		(void)close(fd);
	text[n > 0 ? n : 0] = '\0';
	after = strrchr(text, ')'); /* skip its name, which may contain any character */
	return after != NULL && sscanf(after + 1, " %c %*d %ld %ld", ret_state, ret_group, ret_session) == 3;
}

/* Is the process gone, or a zombie? Its new parent may never wait for it, so a zombie counts as
 * gone. A process of another session counts as gone, too: the number was reused. The session has
 * the forker's own number, which stays reserved until forker_close. */
static bool
is_gone(const struct forker *f, pid_t pid)
{
	char name[24], state;
	long group, session;

	(void)snprintf(name, sizeof(name), "%ld", (long)pid);
	return !read_stat(name, &state, &group, &session) || session != (long)f->pid || state == 'Z' || state == 'X';
}

bool
forker_has_group(struct forker *f, pid_t group)
{
	struct dirent *entry;
	bool found = false;
	DIR *dir;

	forker_hear(f);
	if (f->fd >= 0)
		return true; /* it waits for a process only on request, so the number is not reused */
	dir = opendir("/proc");
	while (!found && dir != NULL && (entry = readdir(dir)) != NULL) {
		long its, session;
		char state;

		found = entry->d_name[0] >= '1' && entry->d_name[0] <= '9' &&
		        read_stat(entry->d_name, &state, &its, &session) && its == (long)group &&
		        session == (long)f->pid;
	}
	if (dir != NULL)
		(void)closedir(dir);
	return found;
}

bool
forker_has_ended(struct forker *f, pid_t pid, int pidfd, int *ret_status)
{
	struct pollfd one = {.fd = pidfd, .events = POLLIN};

	forker_hear(f);
	for (size_t i = 0; i < f->ends.n; i++)
		if (f->ends.items[i].pid == pid) {
			*ret_status = f->ends.items[i].status;
			return true;
		}
	*ret_status = -1;
	return f->fd < 0 && (pidfd >= 0 ? poll(&one, 1, 0) > 0 : is_gone(f, pid));
}

void
forker_wait(struct forker *f, pid_t pid, int pidfd, int timeout_ms)
{
	const int64_t until = clock_mono_ms() + timeout_ms;
	int status;

	while (!forker_has_ended(f, pid, pidfd, &status) && clock_mono_ms() < until)
		clock_sleep_ms(2);
}

void
forker_reap(struct forker *f, pid_t pid)
{
	char text[32];
	size_t kept = 0;
	const int len = snprintf(text, sizeof(text), "reap %ld", (long)pid);

	for (size_t i = 0; i < f->ends.n; i++)
		if (f->ends.items[i].pid != pid)
			f->ends.items[kept++] = f->ends.items[i];
	f->ends.n = kept;
	if (f->fd >= 0)
		(void)send(f->fd, text, (size_t)len, MSG_NOSIGNAL);
}
