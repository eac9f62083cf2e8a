/* SPDX-License-Identifier: Apache-2.0 */
/* shim: see shim.h. File system calls are forwarded by raw system calls, allocations by libc's own
 * names. */
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

static atomic_int mode;
static atomic_long nth, n_calls, n_allocs, n_syncs;
static atomic_int error_number;
static atomic_bool repeat;

void
shim_arm(enum shim_mode m, long n, int error, bool forever)
{
	atomic_store(&n_calls, 0);
	atomic_store(&n_allocs, 0);
	atomic_store(&n_syncs, 0);
	atomic_store(&nth, n);
	atomic_store(&error_number, error);
	atomic_store(&repeat, forever);
	atomic_store(&mode, (int)m);
}

void
shim_disarm(void)
{
	atomic_store(&mode, SHIM_COUNT);
}

long
shim_calls(void)
{
	return atomic_load(&n_calls);
}

long
shim_syncs(void)
{
	return atomic_load(&n_syncs);
}

long
shim_allocs(void)
{
	return atomic_load(&n_allocs);
}

static void
die(void)
{
	syscall(SYS_kill, (int)syscall(SYS_getpid), SIGKILL);
	for (;;)
		pause();
}

static bool
is_turn(long count)
{
	long n = atomic_load(&nth);

	return count == n || (atomic_load(&repeat) && count > n);
}

/* true if this call is to fail; does not return if it is to die. *torn: let it half happen, then
 * die. */
static bool
meet(bool changes, bool *torn)
{
	int m = atomic_load(&mode);

	*torn = false;
	if (!changes && m != SHIM_FAIL_IO)
		return false;
	long count = atomic_fetch_add(&n_calls, 1) + 1;

	if (!is_turn(count))
		return false;
	if (m == SHIM_KILL)
		die();
	if (m == SHIM_STOP)
		syscall(SYS_kill, (int)syscall(SYS_getpid), SIGSTOP);
	*torn = m == SHIM_KILL_TORN;
	if (m == SHIM_FAIL_IO) {
		errno = atomic_load(&error_number);
		return true;
	}
	return false;
}

#define PLAIN(changes, ...)             \
	bool torn;                      \
	if (meet(changes, &torn))       \
		return -1;              \
	long rc = syscall(__VA_ARGS__); \
	if (torn)                       \
		die();                  \
	return (int)rc

int
openat(int dir, const char *path, int flags, ...)
{
	va_list ap;
	mode_t mode_bits = 0;

	va_start(ap, flags);
	if (flags & (O_CREAT | __O_TMPFILE))
		mode_bits = va_arg(ap, mode_t);
	va_end(ap);
	PLAIN((flags & O_CREAT) != 0, SYS_openat, dir, path, flags, mode_bits);
}

int
openat64(int dir, const char *path, int flags, ...)
{
	va_list ap;
	mode_t mode_bits = 0;

	va_start(ap, flags);
	if (flags & (O_CREAT | __O_TMPFILE))
		mode_bits = va_arg(ap, mode_t);
	va_end(ap);
	PLAIN((flags & O_CREAT) != 0, SYS_openat, dir, path, flags, mode_bits);
}

int
open(const char *path, int flags, ...)
{
	va_list ap;
	mode_t mode_bits = 0;

	va_start(ap, flags);
	if (flags & (O_CREAT | __O_TMPFILE))
		mode_bits = va_arg(ap, mode_t);
	va_end(ap);
	PLAIN((flags & O_CREAT) != 0, SYS_openat, AT_FDCWD, path, flags, mode_bits);
}

/* How many bytes a write is to claim in any case, 0 = what it did; *n becomes what it really
 * moves. */
static size_t
lie(size_t *n)
{
	const int m = atomic_load(&mode);
	const size_t all = *n;

	if (m == SHIM_LIE_FULL)
		return all;
	if ((m != SHIM_LIE && m != SHIM_LIE_SHORT) || !is_turn(atomic_load(&n_calls)))
		return 0;
	*n = m == SHIM_LIE ? 0 : 1;
	return all;
}

/* The size is noticed by itself; here it is right, and only the bytes are missing. */
static void
stretch(int fd, off_t end)
{
	struct stat st;

	if (fstat(fd, &st) == 0 && st.st_size < end)
		syscall(SYS_ftruncate, fd, end);
}

static ssize_t
transfer(bool changes, long number, int fd, uintptr_t ptr, size_t n, off_t offset, bool positioned)
{
	bool torn, turn_short = atomic_load(&mode) == SHIM_SHORT_IO;

	if (meet(changes, &torn))
		return -1;
	if (changes && turn_short && is_turn(atomic_load(&n_calls)) && n > 1)
		n = 1;
	if (torn)
		n /= 2;
	size_t claimed = changes ? lie(&n) : 0;
	ssize_t rc = positioned ? syscall(number, fd, ptr, n, offset) : syscall(number, fd, ptr, n);

	if (torn)
		die();
	if (claimed && positioned && rc < (ssize_t)claimed && atomic_load(&mode) == SHIM_LIE_FULL)
		stretch(fd, offset + (off_t)claimed);
	return claimed ? (ssize_t)claimed : rc;
}

ssize_t
pwrite(int fd, const void *ptr, size_t n, off_t offset)
{
	return transfer(true, SYS_pwrite64, fd, (uintptr_t)ptr, n, offset, true);
}

ssize_t
pwrite64(int fd, const void *ptr, size_t n, off_t offset)
{
	return transfer(true, SYS_pwrite64, fd, (uintptr_t)ptr, n, offset, true);
}

ssize_t
write(int fd, const void *ptr, size_t n)
{
	if (fd <= 2)
		return syscall(SYS_write, fd, ptr, n);
	return transfer(true, SYS_write, fd, (uintptr_t)ptr, n, 0, false);
}

ssize_t
pread(int fd, void *ptr, size_t n, off_t offset)
{
	return transfer(false, SYS_pread64, fd, (uintptr_t)ptr, n, offset, true);
}

ssize_t
pread64(int fd, void *ptr, size_t n, off_t offset)
{
	return transfer(false, SYS_pread64, fd, (uintptr_t)ptr, n, offset, true);
}

/* ---- an fsync that fails: the kernel drops the dirty pages and reports it once; the next one
 * succeeds */

/* The name that this thread's last rename made, if it did not exist before: the folder's fsync
 * makes it durable. */
static _Thread_local struct {
	char from[600], to[600];
	dev_t dev;
	ino_t ino; /* of the folder of `to`; 0 = none */
} last_rename;

static bool
path_of(int dir, const char *name, char *ret, size_t len)
{
	char link[40], folder[400] = ".";
	long n;

	if (dir != AT_FDCWD && *name != '/') {
		snprintf(link, sizeof(link), "/proc/self/fd/%d", dir);
		n = syscall(SYS_readlinkat, AT_FDCWD, link, folder, sizeof(folder) - 1);
		if (n < 0)
			return false;
		folder[n] = '\0';
	}
	return *name == '/' ? snprintf(ret, len, "%s", name) < (int)len
	                    : snprintf(ret, len, "%s/%s", folder, name) < (int)len;
}

static bool
forgets_renames(void)
{
	const int m = atomic_load(&mode);

	return m == SHIM_FAIL_SYNC || m == SHIM_LOSE_SYNC;
}

static void
note_rename(int from_dir, const char *from, int to_dir, const char *to)
{
	struct stat st;

	last_rename.ino = 0;
	if (to_dir != AT_FDCWD && path_of(from_dir, from, last_rename.from, sizeof(last_rename.from)) &&
	    path_of(to_dir, to, last_rename.to, sizeof(last_rename.to)) && fstat(to_dir, &st) == 0) {
		last_rename.dev = st.st_dev;
		last_rename.ino = st.st_ino;
	}
}

static void
zero_file(int fd, off_t size)
{
	static const char zeros[1 << 16];
	char link[40];

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd); /* opened anew: this one may be write-only or direct */
	int again = (int)syscall(SYS_openat, AT_FDCWD, link, O_RDWR | O_CLOEXEC, 0);

	for (off_t at = 0; again >= 0 && at < size; at += (off_t)sizeof(zeros)) {
		off_t n = size - at < (off_t)sizeof(zeros) ? size - at : (off_t)sizeof(zeros);

		syscall(SYS_pwrite64, again, zeros, (size_t)n, at);
	}
	if (again >= 0)
		syscall(SYS_close, again);
}

/* True if it is this fsync's turn to lose what it was to keep: a file is zeros afterwards, a folder
 * lacks the new name that this thread gave. */
static bool
loses(int fd)
{
	const long count = atomic_fetch_add(&n_syncs, 1) + 1;
	struct stat st;

	if (!forgets_renames() || !is_turn(count) || fstat(fd, &st) < 0)
		return false;
	if (S_ISREG(st.st_mode))
		zero_file(fd, st.st_size);
	else if (last_rename.ino == st.st_ino && last_rename.dev == st.st_dev)
		syscall(SYS_renameat2, AT_FDCWD, last_rename.to, AT_FDCWD, last_rename.from, 1u /* RENAME_NOREPLACE */);
	return true;
}

static int
sync_file(int fd, long number)
{
	if (atomic_load(&mode) == SHIM_NO_SYNC)
		return 0;
	if (loses(fd)) {
		errno = EIO;
		return atomic_load(&mode) == SHIM_FAIL_SYNC ? -1 : 0;
	}
	PLAIN(true, number, fd);
}

int
fsync(int fd)
{
	return sync_file(fd, SYS_fsync);
}

int
fdatasync(int fd)
{
	return sync_file(fd, SYS_fdatasync);
}

int
ftruncate(int fd, off_t length)
{
	PLAIN(true, SYS_ftruncate, fd, length);
}

int
ftruncate64(int fd, off_t length)
{
	PLAIN(true, SYS_ftruncate, fd, length);
}

int
fallocate(int fd, int flags, off_t offset, off_t length)
{
	if (atomic_load(&mode) == SHIM_LIE_FULL)
		return 0;
	PLAIN(true, SYS_fallocate, fd, flags, offset, length);
}

int
fallocate64(int fd, int flags, off_t offset, off_t length)
{
	if (atomic_load(&mode) == SHIM_LIE_FULL)
		return 0;
	PLAIN(true, SYS_fallocate, fd, flags, offset, length);
}

static int
file_system(int fd, struct statvfs *ret)
{
	const int m = atomic_load(&mode);
	struct statfs fs;

	if (syscall(SYS_fstatfs, fd, &fs) < 0)
		return -1;
	*ret = (struct statvfs){.f_bsize = (unsigned long)fs.f_bsize,
	                        .f_frsize = (unsigned long)(fs.f_frsize ? fs.f_frsize : fs.f_bsize),
	                        .f_blocks = fs.f_blocks,
	                        .f_bfree = fs.f_bfree,
	                        .f_bavail = m == SHIM_BLIND || m == SHIM_LIE_FULL ? 1u << 30 : fs.f_bavail,
	                        .f_files = fs.f_files,
	                        .f_ffree = fs.f_ffree,
	                        .f_favail = fs.f_ffree,
	                        .f_namemax = (unsigned long)fs.f_namelen};
	return 0;
}

int
fstatvfs(int fd, struct statvfs *ret)
{
	return file_system(fd, ret);
}

int
fstatvfs64(int fd, struct statvfs64 *ret)
{
	return file_system(fd, (struct statvfs *)ret);
}

static int
move_name(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
	struct stat st;
	bool torn, is_new = forgets_renames() && syscall(SYS_newfstatat, to_dir, to, &st, AT_SYMLINK_NOFOLLOW) < 0;

	if (meet(true, &torn))
		return -1;
	if (is_new)
		note_rename(from_dir, from, to_dir, to);
	long rc = syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);

	if (torn)
		die();
	if (rc < 0 || !is_new)
		last_rename.ino = 0;
	return (int)rc;
}

int
renameat(int from_dir, const char *from, int to_dir, const char *to)
{
	return move_name(from_dir, from, to_dir, to, 0);
}

int
renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
	return move_name(from_dir, from, to_dir, to, flags);
}

int
linkat(int from_dir, const char *from, int to_dir, const char *to, int flags)
{
	PLAIN(true, SYS_linkat, from_dir, from, to_dir, to, flags);
}

int
symlinkat(const char *target, int dir, const char *path)
{
	PLAIN(true, SYS_symlinkat, target, dir, path);
}

int
unlinkat(int dir, const char *path, int flags)
{
	PLAIN(true, SYS_unlinkat, dir, path, flags);
}

int
mkdirat(int dir, const char *path, mode_t mode_bits)
{
	PLAIN(true, SYS_mkdirat, dir, path, mode_bits);
}

int
close(int fd)
{
	bool torn;

	if (meet(false, &torn)) { /* the descriptor is gone all the same, as on Linux */
		int saved = errno;

		syscall(SYS_close, fd);
		errno = saved;
		return -1;
	}
	return (int)syscall(SYS_close, fd);
}

/* ---- allocations */

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *ptr, size_t n);

/* True if this allocation is to fail; *ret is what it gives then. */
static bool
refuse(void **ret)
{
	const int m = atomic_load(&mode);
	const long count = atomic_fetch_add(&n_allocs, 1) + 1;

	if ((m != SHIM_FAIL_ALLOC && m != SHIM_BAD_ALLOC) || !is_turn(count))
		return false;
	errno = ENOMEM;
	*ret = m == SHIM_BAD_ALLOC ? (void *)(uintptr_t)64 : NULL;
	return true;
}

#ifndef PROOF_NO_MALLOC /* sanitizers bring their own */
void *
malloc(size_t n)
{
	void *ret;

	return refuse(&ret) ? ret : __libc_malloc(n);
}

void *
calloc(size_t n, size_t size)
{
	void *ret;

	return refuse(&ret) ? ret : __libc_calloc(n, size);
}

void *
realloc(void *ptr, size_t n)
{
	void *ret;

	return refuse(&ret) ? ret : __libc_realloc(ptr, n);
}
#endif
