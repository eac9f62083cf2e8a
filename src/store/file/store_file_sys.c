/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_file_sys: the system calls of the POSIX engine that are not POSIX, one complete set per
 * system. What a kernel, C library or filesystem lacks is reported or left out, never emulated
 * slowly. Callers fall back.
 */
#include "store/file/store_file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/os.h"

#ifdef __linux__

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>

#define TMPFS_TYPE 0x01021994
#define RAMFS_TYPE 0x858458f6

/* Used where the kernel reports no alignment (before 6.1, and on some filesystems). Right for
 * nearly all disks; a refused write falls back. */
#define USUAL_OFFSET_ALIGN 4096u
#define USUAL_MEMORY_ALIGN 512u
/* Smaller direct writes than a filesystem block are slow, and would share a page with buffered
 * writes. */
#define MIN_OFFSET_ALIGN 4096u
#define MAX_OFFSET_ALIGN (1u << 20)

/* struct statx as the kernel defines it, up to the fields of STATX_DIOALIGN, which older headers
 * lack. */
#define SYS_STATX_DIOALIGN 0x2000u
struct sys_statx {
	uint32_t mask;
	uint32_t others[37];
	uint32_t dio_mem_align, dio_offset_align;
	uint64_t spare[12];
};
_Static_assert(sizeof(struct sys_statx) == 256, "size of the kernel's struct statx");
_Static_assert(offsetof(struct sys_statx, dio_mem_align) == 0x98, "place in the kernel's struct statx");

static bool
is_power_of_two(uint32_t n)
{
	return n > 0 && (n & (n - 1)) == 0;
}

bool
file_sys_align(int fd, struct file_align *ret)
{
	struct statfs fs;
	if (fstatfs(fd, &fs) < 0 || fs.f_type == TMPFS_TYPE || fs.f_type == (__typeof__(fs.f_type))RAMFS_TYPE)
		return false;

	struct file_align align = {USUAL_OFFSET_ALIGN, USUAL_MEMORY_ALIGN};
	struct sys_statx st = {0};
	if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, SYS_STATX_DIOALIGN, &st) == 0 && (st.mask & SYS_STATX_DIOALIGN))
		align = (struct file_align){st.dio_offset_align, st.dio_mem_align};
	if (!is_power_of_two(align.offset) || !is_power_of_two(align.memory) || align.offset > MAX_OFFSET_ALIGN)
		return false;
	if (align.offset < MIN_OFFSET_ALIGN)
		align.offset = MIN_OFFSET_ALIGN;
	*ret = align;
	return true;
}

int
file_sys_open_direct(int dir_fd, const char *name, int flags, const struct stat *st)
{
	PAWL_FD int fd = openat(dir_fd, name, flags | O_DIRECT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	struct stat again;
	if (fd < 0 || fstat(fd, &again) < 0 || again.st_dev != st->st_dev || again.st_ino != st->st_ino)
		return -1;
	int opened = fd;
	fd = -1;
	return opened;
}

int
file_sys_reserve(int fd, uint64_t nbytes)
{
	if (nbytes == 0)
		return 0;
	PAWL_CLEAN(fd_limit_end) struct fd_limit limit;
	fd_limit_begin(&limit);
	int rc;
	do
		rc = fallocate(fd, 0, 0, (off_t)nbytes);
	while (rc < 0 && errno == EINTR);
	return rc == 0 || errno == EOPNOTSUPP || errno == ENOSYS ? 0 : errno;
}

bool
file_sys_is_local(int fd)
{
	/* ext, XFS, Btrfs, F2FS, tmpfs, overlay, ZFS, bcachefs: numbers of linux/magic.h and of the
	 * filesystems */
	static const uint32_t local[] = {0xef53,     0x58465342, 0x9123683e, 0xf2f52010,
	                                 0x01021994, 0x794c7630, 0x2fc12fc1, 0xca451a4e};
	struct statfs fs;
	if (fstatfs(fd, &fs) < 0)
		return false;
	for (size_t i = 0; i < sizeof local / sizeof local[0]; i++) {
		if ((uint32_t)fs.f_type == local[i])
			return true;
	}
	return false;
}

bool
file_sys_is_unshared(int fd)
{
	/* A write lease is granted only while no other descriptor and no map of the file exists, in
	 * any process. If a process opens the file meanwhile, the kernel signals the holder. SIGURG
	 * ends no process. */
	if (fcntl(fd, F_SETSIG, SIGURG) < 0 || fcntl(fd, F_SETLEASE, F_WRLCK) < 0)
		return false;
	bool kept = fcntl(fd, F_GETLEASE) == F_WRLCK;
	return fcntl(fd, F_SETLEASE, F_UNLCK) == 0 && kept;
}

/* Returns how many bytes of complete pages are in memory, by cachestat(2) of Linux 6.5; -1 if that
 * is missing or forbidden. */
static int64_t
cached_bytes(int fd, uint64_t begin, uint64_t len, size_t page)
{
	const long number = 451; /* the same on every architecture; C libraries do not name it yet */
	struct {
		uint64_t begin, len;
	} range = {begin, len};
	struct {
		uint64_t cached, dirty, writeback, evicted, recently_evicted;
	} found;

	return syscall(number, fd, &range, &found, 0) == 0 ? (int64_t)(found.cached * page) : -1;
}

/* For older kernels: mincore(2), which reports the truth only to the owner of the file. */
static bool
is_resident(int fd, uint64_t begin, size_t len, size_t page)
{
	unsigned char pages[256];
	struct stat st;

	if (fstat(fd, &st) < 0 || (st.st_uid != geteuid() && geteuid() != 0))
		return false;
	char *map = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, (off_t)begin);
	bool all = map != MAP_FAILED;
	for (size_t done = 0; all && done < len; done += sizeof pages * page) {
		size_t step = len - done < sizeof pages * page ? len - done : sizeof pages * page;
		all = mincore(map + done, step, pages) == 0;
		for (size_t i = 0; all && i < step / page; i++)
			all = pages[i] & 1;
	}
	if (map != MAP_FAILED)
		munmap(map, len);
	return all;
}

bool
file_sys_is_cached(int fd, uint64_t offset, size_t n)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE), head = (size_t)(offset & (page - 1));
	const size_t len = (head + n + page - 1) & ~(page - 1);
	const int64_t cached = cached_bytes(fd, offset - head, len, page);
	return cached >= 0 ? (size_t)cached >= len : is_resident(fd, offset - head, len, page);
}

void
file_sys_drop_cache(int fd)
{
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
}

void
file_sys_no_readahead(int fd)
{
	posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
}

bool
file_sys_set_direct(int fd)
{
	return fcntl(fd, F_SETFL, O_DIRECT) == 0;
}

#else /* other systems: everything buffered */

bool
file_sys_align(int fd, struct file_align *ret)
{
	(void)fd, (void)ret;
	return false;
}

int
file_sys_open_direct(int dir_fd, const char *name, int flags, const struct stat *st)
{
	(void)dir_fd, (void)name, (void)flags, (void)st;
	return -1;
}

int
file_sys_reserve(int fd, uint64_t nbytes)
{
	(void)fd, (void)nbytes;
	return 0;
}

bool
file_sys_is_local(int fd)
{
	(void)fd;
	return false;
}

bool
file_sys_is_unshared(int fd)
{
	(void)fd;
	return false;
}

bool
file_sys_is_cached(int fd, uint64_t offset, size_t n)
{
	(void)fd, (void)offset, (void)n;
	return false;
}

void
file_sys_drop_cache(int fd)
{
	(void)fd;
}

void
file_sys_no_readahead(int fd)
{
	(void)fd;
}

bool
file_sys_set_direct(int fd)
{
	(void)fd;
	return false;
}

#endif

/* ------------------------------------------------------------ everywhere */

int64_t
file_sys_mtime_ns(const struct stat *st)
{
	struct timespec times[2];

	os_times(st, times);
	if (times[1].tv_sec < 0)
		return 0;
	if (times[1].tv_sec >= INT64_MAX / 1000000000)
		return INT64_MAX;
	return (int64_t)times[1].tv_sec * 1000000000 + times[1].tv_nsec;
}
