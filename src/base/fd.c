/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fd: complete system calls. They loop over short counts and EINTR, and never retry a failed fsync
 * or close (P5). Only fd_follow follows a link in the last component (P17).
 */
#include "base/fd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/err_path.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/text.h"

/* Linux moves at most 0x7ffff000 bytes per call; a multiple of every block size suits direct
 * I/O. */
#define MAX_IO_BYTES ((size_t)1 << 30)
#define MAX_TREE_DEPTH 64
#define MAX_TREE_PASSES 16

void
fd_clean_close(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

int
fd_close(int *fd, const char *what, struct pawl_error *err)
{
	int rc = close(*fd);

	/* The descriptor is gone even when close fails; closing again could close another thread's
	 * file. */
	*fd = -1;
	return rc < 0 ? err_sys(err, errno, "%s: close", what) : 0;
}

void
fd_limit_begin(struct fd_limit *l)
{
	sigset_t own;

	sigemptyset(&own);
	sigaddset(&own, SIGXFSZ);
	pthread_sigmask(SIG_BLOCK, &own, &l->before);
	l->was_blocked = sigismember(&l->before, SIGXFSZ) == 1;
}

void
fd_limit_end(struct fd_limit *l)
{
	const int saved = errno;
	sigset_t own, pending;
	int number;

	if (l->was_blocked)
		return;
	sigemptyset(&own);
	sigaddset(&own, SIGXFSZ);
	if (sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1)
		sigwait(&own, &number);
	pthread_sigmask(SIG_SETMASK, &l->before, NULL);
	errno = saved;
}

/* ---- memory that the kernel cannot use ---- */

#define AROUND_ALIGN ((uintptr_t)4096) /* for direct I/O */

static void
around_free(char **memory)
{
	const int saved = errno;

	mem_free(*memory);
	errno = saved;
}

/* Memory in the place of the caller's; NULL: errno is ENOMEM. */
static char *
around_new(char **memory, size_t *n)
{
	if (*n > FD_AROUND_BYTES)
		*n = FD_AROUND_BYTES;
	*memory = mem_alloc(*n + AROUND_ALIGN);
	if (!*memory) {
		errno = ENOMEM;
		return NULL;
	}
	return *memory + (AROUND_ALIGN - (uintptr_t)*memory % AROUND_ALIGN) % AROUND_ALIGN;
}

ssize_t
fd_pwrite(int fd, const void *ptr, size_t n, uint64_t offset)
{
	PAWL_CLEAN(around_free) char *memory = NULL;
	const ssize_t done = pwrite(fd, ptr, n, (off_t)offset);

	if (done >= 0 || errno != EFAULT)
		return done;
	char *around = around_new(&memory, &n);

	return around ? pwrite(fd, memcpy(around, ptr, n), n, (off_t)offset) : -1;
}

ssize_t
fd_pread(int fd, void *ptr, size_t n, uint64_t offset)
{
	PAWL_CLEAN(around_free) char *memory = NULL;
	ssize_t done = pread(fd, ptr, n, (off_t)offset);

	if (done >= 0 || errno != EFAULT)
		return done;
	char *around = around_new(&memory, &n);

	done = around ? pread(fd, around, n, (off_t)offset) : -1;
	if (done > 0)
		memcpy(ptr, around, (size_t)done);
	return done;
}

ssize_t
fd_send(int fd, const void *ptr, size_t n, int flags)
{
	PAWL_CLEAN(around_free) char *memory = NULL;
	const ssize_t done = send(fd, ptr, n, flags);

	if (done >= 0 || errno != EFAULT)
		return done;
	char *around = around_new(&memory, &n);

	return around ? send(fd, memcpy(around, ptr, n), n, flags) : -1;
}

/* ---- all bytes ---- */

int
fd_pwrite_all(int fd, const void *ptr, size_t len, uint64_t offset, const char *what, struct pawl_error *err)
{
	PAWL_CLEAN(fd_limit_end) struct fd_limit limit;
	const char *from = ptr;

	fd_limit_begin(&limit);
	if (offset > INT64_MAX || len > INT64_MAX - offset)
		return err_set(err, PAWL_ELIMIT, "%s: write of %zu bytes at offset %llu is out of range", what, len,
		               (unsigned long long)offset);
	while (len > 0) {
		ssize_t n = fd_pwrite(fd, from, len < MAX_IO_BYTES ? len : MAX_IO_BYTES, offset);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return err_sys(err, n < 0 ? errno : EIO, "%s: write of %zu bytes at offset %llu", what, len,
			               (unsigned long long)offset);
		from += n;
		len -= (size_t)n;
		offset += (uint64_t)n;
	}
	return 0;
}

int
fd_pread_all(int fd, void *ptr, size_t len, uint64_t offset, const char *what, struct pawl_error *err)
{
	char *to = ptr;

	if (offset > INT64_MAX || len > INT64_MAX - offset)
		return err_set(err, PAWL_ELIMIT, "%s: read of %zu bytes at offset %llu is out of range", what, len,
		               (unsigned long long)offset);
	while (len > 0) {
		ssize_t n = fd_pread(fd, to, len < MAX_IO_BYTES ? len : MAX_IO_BYTES, offset);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_sys(err, errno, "%s: read of %zu bytes at offset %llu", what, len,
			               (unsigned long long)offset);
		if (n == 0)
			return err_set(err, PAWL_ECORRUPT, "%s: ends at offset %llu, expected %zu bytes more", what,
			               (unsigned long long)offset, len);
		to += n;
		len -= (size_t)n;
		offset += (uint64_t)n;
	}
	return 0;
}

int
fd_copy(int from, int to, uint64_t nbytes, const char *what, fd_check_fn *check, void *arg, struct pawl_error *err)
{
	PAWL_FREE char *piece = mem_alloc(nbytes < FD_AROUND_BYTES ? (size_t)nbytes + 1 : FD_AROUND_BYTES);

	if (!piece)
		return err_nomem(err, what);
	for (uint64_t at = 0; at < nbytes;) {
		const size_t want = nbytes - at < FD_AROUND_BYTES ? (size_t)(nbytes - at) : FD_AROUND_BYTES;

		if (check)
			TRY(check(arg, what, err));
		const ssize_t n = fd_pread(from, piece, want, at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_sys(err, errno, "%s: read", what);
		if (n == 0)
			break;
		TRY(fd_pwrite_all(to, piece, (size_t)n, at, what, err));
		at += (uint64_t)n;
	}
	return 0;
}

int
fd_sync(int fd, const char *what, struct pawl_error *err)
{
	return os_sync(fd) < 0 ? err_sys(err, errno, "%s: fsync", what) : 0;
}

int
fd_openat(int dirfd, const char *path, int flags, mode_t mode, struct pawl_error *err)
{
	int fd;

	do
		fd = openat(dirfd, path, flags | O_CLOEXEC | O_NOFOLLOW, mode);
	while (fd < 0 && errno == EINTR);
	if (fd >= 0)
		return fd;
	if (errno == ELOOP)
		return err_sys(err, errno, "%s: a symbolic link is not followed here", path);
	return err_sys(err, errno, "%s: open", path);
}

int
fd_sync_dirat(int dirfd, const char *path, struct pawl_error *err)
{
	PAWL_FD int fd = fd_openat(dirfd, path, O_RDONLY | O_DIRECTORY, 0, err);

	return fd < 0 ? fd : fd_sync(fd, path, err);
}

int
fd_sync_parent(int dirfd, const char *path, struct pawl_error *err)
{
	const size_t len = text_parent_len(path);
	PAWL_FREE char *parent = len > 0 ? mem_strndup(path, len) : mem_strdup(".");
	if (!parent)
		return err_nomem(err, path);
	PAWL_FD int fd = openat(dirfd, parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? err_sys(err, errno, "%s: open", parent) : fd_sync(fd, parent, err);
}

static bool
is_folder(int dirfd, const char *path)
{
	struct stat st;

	return fstatat(dirfd, path, &st, 0) == 0 && S_ISDIR(st.st_mode);
}

/* Makes one folder and syncs its parent. */
static int
make_folder(int dirfd, const char *path, struct pawl_error *err)
{
	if (is_folder(dirfd, path))
		return 0;
	if (mkdirat(dirfd, path, 0777) < 0) {
		int sys = errno;
		/* Another process may have made it in between. */
		if (is_folder(dirfd, path))
			return 0;
		if (sys == EEXIST || sys == ENOTDIR) /* it, or a parent, which is then checked first */
			return err_set(err, PAWL_EEXISTS, "%s is a file, expected a folder", path);
		return dirfd == AT_FDCWD ? err_path_new(err, sys, path, "make folder")
		                         : err_path(err, sys, path, true, "make folder");
	}
	return fd_sync_parent(dirfd, path, err);
}

int
fd_mkdirs(int dirfd, const char *path, struct pawl_error *err)
{
	PAWL_FREE char *scratch = mem_strdup(path);

	if (!scratch)
		return err_nomem(err, path);
	if (path[0] == '\0')
		return err_set(err, PAWL_EUSAGE, "the name of a folder is empty");
	if (is_folder(dirfd, scratch))
		return 0;
	for (char *end = scratch; *end != '\0';) {
		end += strspn(end, "/");
		end += strcspn(end, "/");
		char kept = *end;
		*end = '\0';
		TRY(make_folder(dirfd, scratch, err));
		*end = kept;
		if (end[strspn(end, "/")] == '\0')
			break;
	}
	return 0;
}

int
fd_read_file(int dirfd, const char *path, size_t max, struct buf *out, struct pawl_error *err)
{
	/* O_NONBLOCK: opening a pipe must not wait for a writer. */
	PAWL_FD int fd = fd_openat(dirfd, path, O_RDONLY | O_NONBLOCK, 0, err);
	return fd < 0 ? fd : fd_read_opened(fd, path, max, out, err);
}

int
fd_read_opened(int fd, const char *path, size_t max, struct buf *out, struct pawl_error *err)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return err_sys(err, errno, "%s: stat", path);
	if (!S_ISREG(st.st_mode))
		return err_set(err, PAWL_ECORRUPT, "%s: expected a regular file, found something else", path);
	if (st.st_size > 0 && (uint64_t)st.st_size > max)
		return err_set(err, PAWL_ELIMIT, "%s: expected at most %zu bytes, found %lld", path, max,
		               (long long)st.st_size);

	/* One byte more than the size, so that the second read usually sees the end. The file may
	 * also grow, or (in /proc) have no size. */
	size_t before = out->len, total = 0, step = (size_t)st.st_size + 1;
	for (;;) {
		if (step > max - total)
			step = max - total < SIZE_MAX ? max - total + 1 : max - total;
		char *to = buf_grow(out, step);
		if (!to) {
			out->len = before;
			return buf_check(out, path, err);
		}
		ssize_t n;
		do
			n = read(fd, to, step);
		while (n < 0 && errno == EINTR);
		out->len -= step - (size_t)(n > 0 ? n : 0);
		if (n < 0) {
			int sys = errno;
			out->len = before;
			return err_sys(err, sys, "%s: read", path);
		}
		if (n == 0)
			return 0;
		total += (size_t)n;
		if (total > max) {
			out->len = before;
			return err_set(err, PAWL_ELIMIT, "%s: expected at most %zu bytes, found more", path, max);
		}
		step = 4096;
	}
}

/* ------------------------------------------------------------ removing trees */

static int remove_entry(int dirfd, const char *name, bool maybe_folder, unsigned depth, struct pawl_error *err);

/* Removes the entries that one reading of the folder shows; *ret_seen: their number. */
static int
empty_folder_once(DIR *dir, const char *name, unsigned depth, size_t *ret_seen, struct pawl_error *err)
{
	*ret_seen = 0;
	rewinddir(dir);
	for (;;) {
		errno = 0;
		const struct dirent *entry = readdir(dir); /* NOLINT(concurrency-mt-unsafe): no other thread has dir */
		if (!entry)
			return errno != 0 ? err_sys(err, errno, "%s: read folder", name) : 0;
		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
			continue;
		(*ret_seen)++;
		TRY(remove_entry(dirfd(dir), entry->d_name, entry->d_type == DT_DIR, depth + 1, err));
	}
}

static int
empty_folder(int parent, const char *name, unsigned depth, struct pawl_error *err)
{
	if (depth > MAX_TREE_DEPTH)
		return err_set(err, PAWL_ELIMIT, "%s: folders nest deeper than %d", name, MAX_TREE_DEPTH);
	int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return errno == ENOENT ? 0 : err_sys(err, errno, "%s: open folder", name);
	PAWL_CLEAN(closedir_clean) DIR *dir = fdopendir(fd); /* takes fd */
	if (!dir) {
		int sys = errno;
		close(fd);
		return err_sys(err, sys, "%s: open folder", name);
	}

	/* Some filesystems skip entries when others are removed while reading: read until it is
	 * empty. */
	size_t seen = 1;
	for (unsigned pass = 0; seen > 0 && pass < MAX_TREE_PASSES; pass++)
		TRY(empty_folder_once(dir, name, depth, &seen, err));
	return 0;
}

static int
remove_entry(int dirfd, const char *name, bool maybe_folder, unsigned depth, struct pawl_error *err)
{
	if (!maybe_folder) {
		if (unlinkat(dirfd, name, 0) == 0 || errno == ENOENT)
			return 0;
		/* A folder is EISDIR on Linux and EPERM by POSIX. */
		struct stat st;
		int sys = errno;
		if ((sys != EISDIR && sys != EPERM) || fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
		    !S_ISDIR(st.st_mode))
			return err_sys(err, sys, "%s: remove", name);
	}
	TRY(empty_folder(dirfd, name, depth, err));
	if (unlinkat(dirfd, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
		return err_sys(err, errno, "%s: remove folder", name);
	return 0;
}

static bool
is_missing(int sys)
{
	return sys == ENOENT || sys == ENOTDIR;
}

int
fd_follow(const char *path, char **ret, struct stat *ret_st, struct pawl_error *err)
{
	/* After a failure realpath leaves the path that is missing. */
	char real[PATH_MAX] = "", before[PATH_MAX];
	bool is_found;

	*ret = NULL;
	do {
		memcpy(before, real, sizeof(before));
		is_found = realpath(path, real) != NULL && stat(real, ret_st) == 0;
	} while (!is_found && is_missing(errno) && strcmp(before, real) != 0);
	if (!is_found && is_missing(errno))
		return err_set(err, PAWL_ENOTFOUND, "%s: no such file or folder", path);
	if (!is_found)
		return err_path(err, errno, path, false, "cannot read");
	*ret = mem_strdup(real);
	return *ret ? 0 : err_nomem(err, path);
}

bool
fd_can_copy_instead(int sys)
{
	return sys == EXDEV || sys == EPERM || sys == EMLINK || sys == EOPNOTSUPP || sys == EACCES;
}

int
fd_remove_tree(int dirfd, const char *path, struct pawl_error *err)
{
	return remove_entry(dirfd, path, false, 0, err);
}

/* ------------------------------------------------------------ files without names */

const char *
fd_temp_folder(void)
{
	const char *folder = getenv("TMPDIR");
	return folder && *folder ? folder : "/var/tmp";
}

/* Without support for unnamed files: one whose name is removed at once. */
static int
open_named(const char *folder)
{
	PAWL_FREE char *path = mem_printf("%s/pawl-XXXXXX", folder);

	if (!path) {
		errno = ENOMEM;
		return -1;
	}
	const int fd = mkostemp(path, O_CLOEXEC);
	if (fd >= 0)
		unlink(path);
	return fd;
}

int
fd_temp_file(int *ret, const char *what, struct pawl_error *err)
{
	const char *folder = fd_temp_folder();
	int fd = -1;

#ifdef O_TMPFILE
	fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
#endif
	if (fd < 0)
		fd = open_named(folder);
	*ret = fd;
	if (fd >= 0)
		return 0;
	const int sys = errno;
	return err_set(err, sys == ENOSPC || sys == EDQUOT ? PAWL_ENOSPACE : PAWL_EIO,
	               "%s: cannot make a temporary file in %s (TMPDIR sets the folder): errno %d", what, folder, sys);
}
