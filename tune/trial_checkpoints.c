/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trial_checkpoints: folders of files, linked, renamed, removed. Promises P2 (a name shows complete
 * folders only), P3 (durable before the name), P17 (no symbolic link is followed, nothing outside
 * of the folder is touched).
 */
#include "trial_checkpoints.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/hidden.h"
#include "base/mem.h"
#include "base/os.h"

#define MAX_DEPTH 32
#define COPY_BYTES ((size_t)1 << 20)
#define FOLDER (O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)

bool
checkpoint_is_name(const char *name)
{
	const size_t len = strlen(name);

	if (len == 0 || len > 200 || name[0] == '.')
		return false;
	for (const char *c = name; *c; c++)
		if (*c == '/' || (unsigned char)*c < 0x20 || *c == 0x7f)
			return false;
	return true;
}

static int
open_folder(int dirfd, const char *trial)
{
	return openat(dirfd, trial, FOLDER);
}

bool
checkpoint_is_there(int dirfd, const char *trial, const char *name)
{
	const int fd = open_folder(dirfd, trial);
	struct stat st;
	bool there;

	if (fd < 0)
		return false;
	there = fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
	close(fd);
	return there;
}

/* ---- removing ---- */

static int remove_tree(int dirfd, const char *name, unsigned depth);

static int
empty_folder(int fd, unsigned depth)
{
	DIR *dir = fdopendir(fd);
	struct dirent *entry;
	int r = 0;

	if (!dir) {
		r = -errno;
		close(fd);
		return r;
	}
	while (r == 0 && (entry = readdir(dir)))
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			r = remove_tree(fd, entry->d_name, depth);
	closedir(dir);
	return r;
}

/* 0 or a negative errno. */
static int
remove_tree(int dirfd, const char *name, unsigned depth)
{
	int fd, r;

	if (unlinkat(dirfd, name, 0) == 0 || errno == ENOENT)
		return 0;
	if (errno != EISDIR && errno != EPERM)
		return -errno;
	if (depth == 0)
		return -ELOOP;
	fd = openat(dirfd, name, FOLDER);
	if (fd < 0)
		return -errno;
	r = empty_folder(fd, depth - 1);
	if (r == 0 && unlinkat(dirfd, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
		r = -errno;
	return r;
}

int
checkpoint_remove(int dirfd, const char *trial, const char *name, struct pawl_error *err)
{
	const int fd = open_folder(dirfd, trial);
	char hidden[HIDDEN_NAME_BYTES];
	int r = 0;

	if (fd < 0)
		return errno == ENOENT ? 0 : err_sys(err, errno, "%s: open", trial);
	hidden_name_fixed(name, ".removed" HIDDEN_PARTIAL, hidden);
	if (renameat(fd, name, fd, hidden) < 0) {
		const int sys = errno;
		if (sys == ENOTEMPTY || sys == EEXIST) { /* a crash left part of an older one of this name */
			r = remove_tree(fd, hidden, MAX_DEPTH);
			if (r == 0 && renameat(fd, name, fd, hidden) < 0)
				r = -errno;
		} else if (sys != ENOENT) {
			r = -sys;
		}
	}
	if (r == 0)
		r = remove_tree(fd, hidden, MAX_DEPTH);
	close(fd);
	return r < 0 ? err_sys(err, -r, "%s/%s: remove", trial, name) : 0;
}

void
checkpoint_sweep(int dirfd, const char *trial)
{
	const int fd = open_folder(dirfd, trial);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *entry;

	if (!dir) {
		if (fd >= 0)
			close(fd);
		return;
	}
	while ((entry = readdir(dir)))
		if (strncmp(entry->d_name, ".checkpoint", 11) == 0)
			remove_tree(fd, entry->d_name, MAX_DEPTH);
	closedir(dir);
}

/* ---- cloning ---- */

static int
copy_bytes(int from, int to)
{
	char *block = mem_alloc(COPY_BYTES);
	ssize_t n = 0;
	int r = block ? 0 : -ENOMEM;

	while (r == 0 && (n = read(from, block, COPY_BYTES)) != 0) {
		if (n < 0 && errno == EINTR)
			continue;
		for (ssize_t done = 0, m; r == 0 && done < n; done += m) {
			m = write(to, block + done, (size_t)(n - done));
			if (m < 0 && errno == EINTR)
				m = 0;
			else if (m <= 0)
				r = m < 0 ? -errno : -EIO;
		}
		if (n < 0)
			r = -errno;
	}
	mem_free(block);
	if (r == 0 && os_sync(to) < 0)
		r = -errno;
	return r;
}

static int
copy_file(int from_fd, const char *name, int to_fd, const char *as, mode_t mode)
{
	const int from = openat(from_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	int to, r;

	if (from < 0)
		return -errno;
	to = openat(to_fd, as, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode & 0777);
	r = to < 0 ? -errno : copy_bytes(from, to);
	if (to >= 0 && close(to) < 0 && r == 0)
		r = -errno;
	close(from);
	return r;
}

int
checkpoint_copy_file(int from_fd, int to_fd, const char *name, struct pawl_error *err)
{
	char hidden[HIDDEN_NAME_BYTES];
	int r;

	hidden_name_fixed(name, HIDDEN_TMP, hidden);
	r = unlinkat(to_fd, hidden, 0) < 0 && errno != ENOENT ? -errno : copy_file(from_fd, name, to_fd, hidden, 0666);
	if (r == 0)
		r = -file_appear(to_fd, hidden, to_fd, name, true);
	if (r < 0)
		(void)unlinkat(to_fd, hidden, 0);
	return r < 0 ? err_sys(err, -r, "%s: copy", name) : 0;
}

static int
copy_link(int from_fd, int to_fd, const char *name)
{
	char target[4096];
	const ssize_t n = readlinkat(from_fd, name, target, sizeof(target) - 1);

	if (n < 0)
		return -errno;
	target[n] = '\0';
	return symlinkat(target, to_fd, name) < 0 ? -errno : 0;
}

static int clone_folder(int from_dirfd, const char *from, int to_dirfd, const char *to, unsigned depth);

static int
clone_entry(int from_fd, int to_fd, const char *name, unsigned depth)
{
	struct stat st;

	if (fstatat(from_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	if (S_ISDIR(st.st_mode))
		return depth ? clone_folder(from_fd, name, to_fd, name, depth - 1) : -ELOOP;
	if (S_ISLNK(st.st_mode))
		return copy_link(from_fd, to_fd, name);
	if (!S_ISREG(st.st_mode))
		return 0; /* sockets and pipes do not belong to the state */
	if (linkat(from_fd, name, to_fd, name, 0) == 0)
		return 0;
	/* Another device, a file system without links, too many links, or a file of another
	 * user. */
	if (errno == EXDEV || errno == EPERM || errno == EMLINK || errno == EOPNOTSUPP || errno == EACCES)
		return copy_file(from_fd, name, to_fd, name, st.st_mode);
	return -errno;
}

static int
clone_entries(int from_fd, int to_fd, unsigned depth)
{
	const int listed = dup(from_fd);
	DIR *dir = listed < 0 ? NULL : fdopendir(listed);
	struct dirent *entry;
	int r = 0;

	if (!dir) {
		r = -errno;
		if (listed >= 0)
			close(listed);
		return r;
	}
	while (r == 0 && (entry = readdir(dir)))
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			r = clone_entry(from_fd, to_fd, entry->d_name, depth);
	closedir(dir);
	if (r == 0 && os_sync(to_fd) < 0)
		r = -errno;
	return r;
}

static int
clone_folder(int from_dirfd, const char *from, int to_dirfd, const char *to, unsigned depth)
{
	const int from_fd = openat(from_dirfd, from, FOLDER);
	int to_fd = -1, r = 0;

	if (from_fd < 0)
		return -errno;
	if (mkdirat(to_dirfd, to, 0777) < 0)
		r = -errno;
	if (r == 0 && (to_fd = openat(to_dirfd, to, FOLDER)) < 0)
		r = -errno;
	if (r == 0)
		r = clone_entries(from_fd, to_fd, depth);
	if (to_fd >= 0)
		close(to_fd);
	close(from_fd);
	return r;
}

int
checkpoint_clone(int from_dirfd, const char *donor, const char *name, int dirfd, const char *trial, const char *as,
                 struct pawl_error *err)
{
	const int from_fd = open_folder(from_dirfd, donor), to_fd = from_fd < 0 ? -1 : open_folder(dirfd, trial);
	char hidden[HIDDEN_NAME_BYTES];
	int r = to_fd < 0 ? -errno : 0;

	hidden_name_fixed(as, HIDDEN_PARTIAL, hidden);
	if (r == 0)
		r = remove_tree(to_fd, hidden, MAX_DEPTH);
	if (r == 0)
		r = clone_folder(from_fd, name, to_fd, hidden, MAX_DEPTH);
	if (r == 0)
		r = -folder_appear(to_fd, hidden, to_fd, as, true);
	if (r == 0 && os_sync(to_fd) < 0)
		r = -errno;
	if (r < 0 && to_fd >= 0)
		remove_tree(to_fd, hidden, MAX_DEPTH);
	if (to_fd >= 0)
		close(to_fd);
	if (from_fd >= 0)
		close(from_fd);
	return r < 0 ? err_sys(err, -r, "%s/%s: clone to %s/%s", donor, name, trial, as) : 0;
}
