/* SPDX-License-Identifier: Apache-2.0 */
/* fd: complete system calls: loops over short counts and EINTR, errors named. Leaf module. */
#ifndef PAWL_BASE_FD_H
#define PAWL_BASE_FD_H

#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/mem.h"

void fd_clean_close(int *fd); /* for PAWL_CLEAN: closes when >= 0, ignores errors (read side only) */
#define PAWL_FD PAWL_CLEAN(fd_clean_close)
/* PAWL_CLEAN(closedir_clean) DIR *dir = ...; */
PAWL_DEFINE_CLEAN(DIR, closedir);
/* Reports the error of close (P5); sets *fd to -1 in any case. */
int fd_close(int *fd, const char *what, struct pawl_error *err);

/* Between begin and end a write beyond the file size limit (RLIMIT_FSIZE) fails with EFBIG instead
 * of ending the process by SIGXFSZ. Keeps errno. */
struct fd_limit {
	sigset_t before;
	bool was_blocked;
};
void fd_limit_begin(struct fd_limit *l);
void fd_limit_end(struct fd_limit *l); /* usable as PAWL_CLEAN(fd_limit_end) */

/* pwrite, pread and send. Where a device is forwarded to another machine, the kernel may not use
 * memory that is registered with its driver (EFAULT), while the processor can. Then the bytes go
 * through other memory, at most FD_AROUND_BYTES of them. */
#define FD_AROUND_BYTES ((size_t)1 << 20)
ssize_t fd_pwrite(int fd, const void *ptr, size_t n, uint64_t offset);
ssize_t fd_pread(int fd, void *ptr, size_t n, uint64_t offset);
ssize_t fd_send(int fd, const void *ptr, size_t n, int flags);

/* All bytes or an error naming `what` and the offset. read: a short file is PAWL_ECORRUPT. */
int fd_pwrite_all(int fd, const void *ptr, size_t len, uint64_t offset, const char *what, struct pawl_error *err);
int fd_pread_all(int fd, void *ptr, size_t len, uint64_t offset, const char *what, struct pawl_error *err);
/* Copies the first bytes of a file: nbytes, or as many as it has. check: is called before each MiB,
 * and ends the copy with its error; may be NULL. */
typedef int fd_check_fn(void *arg, const char *what, struct pawl_error *err);
int fd_copy(int from, int to, uint64_t nbytes, const char *what, fd_check_fn *check, void *arg, struct pawl_error *err);
int fd_sync(int fd, const char *what, struct pawl_error *err); /* fsync (F_FULLFSYNC on macOS); never retried */
/* Opens a path below dirfd without following a symlink in the last component (O_CLOEXEC,
 * O_NOFOLLOW). */
int fd_openat(int dirfd, const char *path, int flags, mode_t mode, struct pawl_error *err); /* fd >= 0, or code */
int fd_sync_dirat(int dirfd, const char *path, struct pawl_error *err); /* opens the folder, fsyncs it */
/* Fsyncs the folder that holds `path`. Folders of the path may be symbolic links. */
int fd_sync_parent(int dirfd, const char *path, struct pawl_error *err);
/* mkdir -p below dirfd; each new folder's parent is fsynced. Existing ones are fine. */
int fd_mkdirs(int dirfd, const char *path, struct pawl_error *err);
/* Reads a file below dirfd into *out; PAWL_ELIMIT above max. */
int fd_read_file(int dirfd, const char *path, size_t max, struct buf *out, struct pawl_error *err);
/* The same for a file that was just opened; `path` is for messages. */
int fd_read_opened(int fd, const char *path, size_t max, struct buf *out, struct pawl_error *err);
/* A new file without a name in $TMPDIR, else /var/tmp; it is deleted when the descriptor is
 * closed. */
int fd_temp_file(int *ret, const char *what, struct pawl_error *err);
const char *fd_temp_folder(void);
/* Resolves all links of a path: *ret (owned, mem_free) is where it leads, *ret_st its state.
 * Another process may replace a link and remove what it led to; then the path is resolved again.
 * PAWL_ENOTFOUND if it leads nowhere. */
int fd_follow(const char *path, char **ret, struct stat *ret_st, struct pawl_error *err);
/* Can a file be copied where linking it failed with this errno? Yes for another device, a file of
 * another user, a file system without links, and too many links. */
bool fd_can_copy_instead(int sys);
/* Removes a folder and all in it, not following symlinks; missing is success. */
int fd_remove_tree(int dirfd, const char *path, struct pawl_error *err);

#endif
