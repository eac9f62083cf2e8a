/* SPDX-License-Identifier: Apache-2.0 */
/* limits: see limits.h. */
#include "limits.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/os.h"
#include "cli.h"

#define LIMITS_BLOCK_BYTES ((size_t)8 << 20)
#define LIMITS_COPY_THREADS 2
#define LIMITS_MAX_THREADS 16

struct share {
	struct limits *limits;
	unsigned index, n;
	int fd; /* for I/O only */
	bool write;
	int sys; /* first errno */
};

static double
seconds_since(int64_t then_ns)
{
	return (double)(clock_mono_ns() - then_ns) * 1e-9;
}

static int
fail_call(struct pawl_error *err, const char *what, const char *path, int sys)
{
	int code = sys == ENOSPC || sys == EDQUOT ? PAWL_ENOSPACE : sys == EACCES ? PAWL_EAUTH : PAWL_EIO;

	return err_set(err, code, "%s: cannot %s: %s", path, what, strerror(sys));
}

static void *
map_bytes(size_t nbytes)
{
	void *ptr = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (ptr == MAP_FAILED)
		return NULL;
	os_huge_pages(ptr, nbytes);
	return ptr;
}

int
limits_open(struct limits *l, const char *path, size_t nbytes, struct pawl_error *err)
{
	nbytes = (nbytes + LIMITS_BLOCK_BYTES - 1) / LIMITS_BLOCK_BYTES * LIMITS_BLOCK_BYTES;
	*l = (struct limits){.nbytes = nbytes, .io_threads = 4, .path = path, .direct = true};
	l->from = map_bytes(nbytes);
	l->to = map_bytes(nbytes);
	if (l->from == NULL || l->to == NULL) {
		limits_close(l);
		return err_nomem(err, NULL);
	}
	memset(l->from, 0x5a, nbytes);
	memset(l->to, 0, nbytes);
	return 0;
}

void
limits_close(struct limits *l)
{
	if (l->from != NULL)
		(void)munmap(l->from, l->nbytes);
	if (l->to != NULL)
		(void)munmap(l->to, l->nbytes);
	if (l->path != NULL)
		(void)unlink(l->path);
	*l = (struct limits){0};
}

static void
run_threads(struct share *shares, unsigned n, void *(*fn)(void *))
{
	pthread_t threads[LIMITS_MAX_THREADS];
	bool made[LIMITS_MAX_THREADS];

	for (unsigned i = 0; i < n; i++)
		made[i] = pthread_create(&threads[i], NULL, fn, &shares[i]) == 0;
	for (unsigned i = 0; i < n; i++) {
		if (made[i])
			(void)pthread_join(threads[i], NULL);
		else
			(void)fn(&shares[i]);
	}
}

static void *
copy_share(void *arg)
{
	const struct share *s = arg;
	size_t part = s->limits->nbytes / s->n;

	memcpy(s->limits->to + part * s->index, s->limits->from + part * s->index, part);
	return NULL;
}

double
limits_copy(struct limits *l)
{
	struct share shares[LIMITS_COPY_THREADS];
	const int64_t began = clock_mono_ns();

	for (unsigned i = 0; i < LIMITS_COPY_THREADS; i++)
		shares[i] = (struct share){.limits = l, .index = i, .n = LIMITS_COPY_THREADS};
	run_threads(shares, LIMITS_COPY_THREADS, copy_share);
	return seconds_since(began);
}

static int
one_block(const struct share *s, size_t offset)
{
	char *ptr = (s->write ? s->limits->from : s->limits->to) + offset;
	size_t done = 0;

	while (done < LIMITS_BLOCK_BYTES) {
		off_t at = (off_t)(offset + done);
		ssize_t n = s->write ? pwrite(s->fd, ptr + done, LIMITS_BLOCK_BYTES - done, at)
		                     : pread(s->fd, ptr + done, LIMITS_BLOCK_BYTES - done, at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? errno : EIO;
		done += (size_t)n;
	}
	return 0;
}

static void *
io_share(void *arg)
{
	struct share *s = arg;

	for (size_t at = s->index * LIMITS_BLOCK_BYTES; at < s->limits->nbytes && s->sys == 0;
	     at += s->n * LIMITS_BLOCK_BYTES)
		s->sys = one_block(s, at);
	return NULL;
}

static int
all_blocks(struct limits *l, int fd, bool write)
{
	struct share shares[LIMITS_MAX_THREADS];

	for (unsigned i = 0; i < l->io_threads; i++)
		shares[i] = (struct share){.limits = l, .index = i, .n = l->io_threads, .fd = fd, .write = write};
	run_threads(shares, l->io_threads, io_share);
	for (unsigned i = 0; i < l->io_threads; i++)
		if (shares[i].sys != 0)
			return shares[i].sys;
	return 0;
}

/* Opens for direct I/O; if that fails, turns direct I/O off and opens normally. */
static int
open_file(struct limits *l, int flags)
{
	int fd = -1;

#ifdef O_DIRECT
	if (l->direct)
		fd = open(l->path, flags | O_DIRECT | O_CLOEXEC, 0666);
#endif
	if (fd < 0) {
		l->direct = false;
		fd = open(l->path, flags | O_CLOEXEC, 0666);
	}
	return fd;
}

int
limits_write(struct limits *l, double *ret_seconds, struct pawl_error *err)
{
	int64_t began;
	int fd, sys;

	(void)unlink(l->path);
	fd = open_file(l, O_WRONLY | O_CREAT | O_TRUNC);
	if (fd < 0)
		return fail_call(err, "create", l->path, errno);
	began = clock_mono_ns();
	os_reserve(fd, l->nbytes);
	sys = all_blocks(l, fd, true);
	if (sys == 0 && os_sync(fd) != 0)
		sys = errno;
	*ret_seconds = seconds_since(began);
	(void)close(fd);
	return sys == 0 ? 0 : fail_call(err, "write", l->path, sys);
}

int
limits_read(struct limits *l, double *ret_seconds, struct pawl_error *err)
{
	int64_t began;
	int fd, sys;

	fd = open_file(l, O_RDONLY);
	if (fd < 0)
		return fail_call(err, "open", l->path, errno);
	if (!l->direct)
		os_drop_cache(fd);
	began = clock_mono_ns();
	sys = all_blocks(l, fd, false);
	*ret_seconds = seconds_since(began);
	(void)close(fd);
	return sys == 0 ? 0 : fail_call(err, "read", l->path, sys);
}
