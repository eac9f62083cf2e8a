/* SPDX-License-Identifier: Apache-2.0 */
/* tree: see tree.h. P2: a name appears only when its content is complete and durable. P17: links
 * are never followed. */
#include "tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/hidden.h"
#include "base/mem.h"
#include "base/os.h"

#define TREE_COPY_BYTES (1 << 18)

static int
fail(struct pawl_error *err, const char *what, const char *path)
{
	int sys = errno, code = sys == ENOSPC || sys == EDQUOT ? PAWL_ENOSPACE
	                        : sys == ENOENT                ? PAWL_ENOTFOUND
	                                                       : PAWL_EIO;

	return err_set(err, code, "%.300s: cannot %s: %s", path, what, strerror(sys));
}

static int
sync_one(const char *path, struct pawl_error *err)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW), rc;

	if (fd < 0)
		return fail(err, "open", path);
	rc = os_sync(fd) == 0 ? 0 : fail(err, "sync", path);
	(void)close(fd);
	return rc;
}

/* Calls fn for the path of each entry of a folder, until one fails. */
static int
visit_entries(const char *path, unsigned depth,
              int (*fn)(const char *path, const char *name, unsigned depth, void *arg, struct pawl_error *err),
              void *arg, struct pawl_error *err)
{
	DIR *dir = opendir(path);
	struct dirent *entry;
	int rc = 0;

	if (dir == NULL)
		return fail(err, "open", path);
	if (depth == TREE_MAX_DEPTH)
		rc = err_set(err, PAWL_ELIMIT, "%.300s: deeper than %d folders", path, TREE_MAX_DEPTH);
	while (rc == 0 && (entry = readdir(dir)) != NULL) {
		char *child = NULL;

		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
			continue;
		if (asprintf(&child, "%s/%s", path, entry->d_name) < 0)
			rc = err_nomem(err, NULL);
		else
			rc = fn(child, entry->d_name, depth + 1, arg, err);
		mem_free(child);
	}
	(void)closedir(dir);
	return rc;
}

static int
sync_entry(const char *path, const char *name, unsigned depth, void *arg, struct pawl_error *err)
{
	struct stat st;
	int rc = 0;

	(void)name;
	if (lstat(path, &st) != 0)
		return fail(err, "look at", path);
	if (S_ISDIR(st.st_mode))
		rc = visit_entries(path, depth, sync_entry, arg, err);
	if (rc == 0 && (S_ISDIR(st.st_mode) || S_ISREG(st.st_mode)))
		rc = sync_one(path, err);
	return rc;
}

int
tree_sync(const char *path, struct pawl_error *err)
{
	return sync_entry(path, path, 0, NULL, err);
}

static int
copy_bytes(int from, int to, const char *path, struct pawl_error *err)
{
	char *block = mem_alloc(TREE_COPY_BYTES);
	ssize_t n = 0;

	if (block == NULL)
		return err_nomem(err, NULL);
	for (;;) {
		n = read(from, block, TREE_COPY_BYTES);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		for (ssize_t at = 0; at < n;) {
			ssize_t wrote = write(to, block + at, (size_t)(n - at));

			if (wrote < 0 && errno != EINTR) {
				mem_free(block);
				return fail(err, "write", path);
			}
			at += wrote > 0 ? wrote : 0;
		}
	}
	mem_free(block);
	return n < 0 ? fail(err, "read", path) : 0;
}

static int
copy_file(const char *path, const char *to, mode_t mode, struct pawl_error *err)
{
	int in = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW), out, rc;

	if (in < 0)
		return fail(err, "open", path);
	out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode & 0777);
	rc = out >= 0 ? copy_bytes(in, out, to, err) : fail(err, "make", to);
	if (out >= 0 && close(out) != 0 && rc == 0)
		rc = fail(err, "write", to);
	(void)close(in);
	return rc;
}

static int
copy_link(const char *path, const char *to, struct pawl_error *err)
{
	char text[4096];
	ssize_t n = readlink(path, text, sizeof(text) - 1);

	if (n < 0)
		return fail(err, "read", path);
	text[n] = '\0';
	return symlink(text, to) == 0 ? 0 : fail(err, "make", to);
}

static int copy_entry(const char *path, const char *name, unsigned depth, void *arg, struct pawl_error *err);

static int
copy_any(const char *path, const char *to, unsigned depth, struct pawl_error *err)
{
	struct stat st;

	if (lstat(path, &st) != 0)
		return fail(err, "look at", path);
	if (S_ISREG(st.st_mode))
		return copy_file(path, to, st.st_mode, err);
	if (S_ISLNK(st.st_mode))
		return copy_link(path, to, err);
	if (!S_ISDIR(st.st_mode))
		return err_set(err, PAWL_EUNSUPPORTED, "%.300s: neither a file nor a folder", path);
	if (mkdir(to, 0777) != 0)
		return fail(err, "make", to);
	return visit_entries(path, depth, copy_entry, (char *)(uintptr_t)to, err);
}

static int
copy_entry(const char *path, const char *name, unsigned depth, void *arg, struct pawl_error *err)
{
	char *to = NULL;
	int rc;

	if (asprintf(&to, "%s/%s", (const char *)arg, name) < 0)
		return err_nomem(err, NULL);
	rc = copy_any(path, to, depth, err);
	mem_free(to);
	return rc;
}

/* Copies to `to`, which must not exist; does not sync. Links stay links. Anything but files,
 * folders and links is refused. */
static int
tree_copy(const char *from, const char *to, struct pawl_error *err)
{
	return copy_any(from, to, 0, err);
}

static int
remove_entry(const char *path, const char *name, unsigned depth, void *arg, struct pawl_error *err)
{
	struct stat st;

	(void)name;
	if (lstat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
		(void)visit_entries(path, depth, remove_entry, arg, err);
		(void)rmdir(path);
	} else {
		(void)unlink(path);
	}
	return 0;
}

/* Removes as much as possible; a missing path is not an error. */
static void
tree_remove(const char *path)
{
	(void)remove_entry(path, path, 0, NULL, NULL);
}

/* Moves `hidden` to its final name, replacing and removing what had that name. */
static int
put_in_place(const char *hidden, const char *to, struct pawl_error *err)
{
	int sys = folder_appear(AT_FDCWD, hidden, AT_FDCWD, to, true);

	if (sys == EEXIST && folder_exchange(AT_FDCWD, hidden, AT_FDCWD, to) == 0) {
		tree_remove(hidden);
		return 0;
	}
	if (sys == EEXIST) { /* without an exchange, neither exists for a moment */
		tree_remove(to);
		sys = folder_appear(AT_FDCWD, hidden, AT_FDCWD, to, true);
	}
	errno = sys;
	return sys == 0 ? 0 : fail(err, "make", to);
}

/* Moves or copies `from` to the hidden name. *ret_copied: the original still exists. */
static int
take_over(const char *from, const char *hidden, bool *ret_copied, struct pawl_error *err)
{
	*ret_copied = false;
	if (rename(from, hidden) == 0)
		return 0;
	if (errno != EXDEV)
		return fail(err, "move", from);
	*ret_copied = true;
	return tree_copy(from, hidden, err);
}

int
tree_move_in(const char *from, const char *in, const char *to, struct pawl_error *err)
{
	char *hidden = NULL, *inner = NULL, *whole = NULL, name[HIDDEN_NAME_BYTES];
	const char *base = strrchr(from, '/');
	struct stat st;
	bool copied = false;
	int rc = 0;

	base = base != NULL ? base + 1 : from;
	if (lstat(from, &st) != 0)
		return fail(err, "look at", from);
	TRY(hidden_name(to, HIDDEN_PARTIAL, name, err));
	if (asprintf(&hidden, "%s/%s", in, name) < 0)
		hidden = NULL;
	if (hidden == NULL || asprintf(&inner, "%s/%s", hidden, base) < 0)
		inner = NULL;
	if (inner == NULL || asprintf(&whole, "%s/%s", in, to) < 0)
		whole = NULL;
	if (whole == NULL)
		rc = err_nomem(err, NULL);
	if (rc == 0) {
		if (S_ISREG(st.st_mode))
			rc = mkdir(hidden, 0777) == 0 ? take_over(from, inner, &copied, err)
			                              : fail(err, "make", hidden);
		else if (S_ISDIR(st.st_mode))
			rc = take_over(from, hidden, &copied, err);
		else
			rc = err_set(err, PAWL_EUSAGE, "%.300s: expected a folder or a file", from);
	}
	if (rc == 0)
		rc = tree_sync(hidden, err);
	if (rc == 0)
		rc = put_in_place(hidden, whole, err);
	if (rc == 0)
		rc = sync_one(in, err);
	if (rc == 0 && copied)
		tree_remove(from);
	if (rc < 0 && copied)
		tree_remove(hidden);
	mem_free(whole);
	mem_free(inner);
	mem_free(hidden);
	return rc;
}
