/* SPDX-License-Identifier: Apache-2.0 */
/* os: one complete set of functions per system. */
#include "base/os.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/err.h"

#ifdef __linux__

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

int
os_needs_linux(const char *what, struct pawl_error *err)
{
	(void)what, (void)err;
	return 0;
}

int
os_sync(int fd)
{
	return fsync(fd);
}

int
os_sync_data(int fd)
{
	return fdatasync(fd);
}

void
os_reserve(int fd, uint64_t nbytes)
{
	(void)posix_fallocate(fd, 0, (off_t)nbytes);
}

void
os_drop_cache(int fd)
{
	(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
}

void
os_times(const struct stat *st, struct timespec ret[2])
{
	ret[0] = st->st_atim;
	ret[1] = st->st_mtim;
}

int
os_pipe(int ret[2])
{
	return pipe2(ret, O_CLOEXEC);
}

int
os_socketpair(int type, int ret[2])
{
	return socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ret);
}

int
os_socket(int family, int type, int protocol)
{
	return socket(family, type | SOCK_CLOEXEC, protocol);
}

void
os_acknowledge(int socket)
{
	const int on = 1;

	(void)setsockopt(socket, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof on);
}

void
os_huge_pages(void *ptr, size_t nbytes)
{
	(void)madvise(ptr, nbytes, MADV_HUGEPAGE);
}

bool
os_fault_in(void *ptr, size_t nbytes)
{
	return madvise(ptr, nbytes, MADV_POPULATE_WRITE) == 0;
}

uint64_t
os_thread_faults(void)
{
	struct rusage usage = {0};

	(void)getrusage(RUSAGE_THREAD, &usage);
	return (uint64_t)usage.ru_minflt;
}

void
os_wipe(void *ptr, size_t nbytes)
{
	explicit_bzero(ptr, nbytes);
}

char **
os_environ(void)
{
	return environ;
}

#else /* macOS */

#include <crt_externs.h>

int
os_needs_linux(const char *what, struct pawl_error *err)
{
	return err_set(err, PAWL_EUNSUPPORTED, "%s needs Linux", what);
}

int
os_sync(int fd)
{
	return fcntl(fd, F_FULLFSYNC) < 0 ? -1 : 0;
}

int
os_sync_data(int fd)
{
	return os_sync(fd);
}

void
os_reserve(int fd, uint64_t nbytes)
{
	(void)fd, (void)nbytes;
}

void
os_drop_cache(int fd)
{
	(void)fcntl(fd, F_NOCACHE, 1); /* the nearest that exists: reads through fd leave nothing there */
}

void
os_times(const struct stat *st, struct timespec ret[2])
{
	ret[0] = st->st_atimespec;
	ret[1] = st->st_mtimespec;
}

/* Two descriptors, or one twice. A program that another thread starts meanwhile may still get them:
 * the system has no call that does both at once. */
static int
close_on_exec(int a, int b)
{
	if (fcntl(a, F_SETFD, FD_CLOEXEC) == 0 && fcntl(b, F_SETFD, FD_CLOEXEC) == 0)
		return 0;
	const int sys = errno;
	(void)close(a);
	if (b != a)
		(void)close(b);
	errno = sys;
	return -1;
}

static void
raise_no_signal(int socket)
{
	const int on = 1;

	(void)setsockopt(socket, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
}

int
os_pipe(int ret[2])
{
	return pipe(ret) < 0 ? -1 : close_on_exec(ret[0], ret[1]);
}

int
os_socketpair(int type, int ret[2])
{
	if (socketpair(AF_UNIX, type, 0, ret) < 0)
		return -1;
	raise_no_signal(ret[0]);
	raise_no_signal(ret[1]);
	return close_on_exec(ret[0], ret[1]);
}

int
os_socket(int family, int type, int protocol)
{
	const int fd = socket(family, type, protocol);

	if (fd < 0)
		return -1;
	raise_no_signal(fd);
	return close_on_exec(fd, fd) < 0 ? -1 : fd;
}

void
os_acknowledge(int socket)
{
	(void)socket;
}

void
os_huge_pages(void *ptr, size_t nbytes)
{
	(void)ptr, (void)nbytes;
}

bool
os_fault_in(void *ptr, size_t nbytes)
{
	(void)ptr, (void)nbytes;
	return false;
}

uint64_t
os_thread_faults(void)
{
	return 0;
}

void
os_wipe(void *ptr, size_t nbytes)
{
	(void)memset_s(ptr, nbytes, 0, nbytes);
}

char **
os_environ(void)
{
	return *_NSGetEnviron();
}

#endif
