/* SPDX-License-Identifier: Apache-2.0 */
/* tree: see tree.h. P2: a name appears only when its content is complete and durable. P17: links
 * are never followed. */
#include "tree.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/folder.h"
#include "base/hidden.h"
#include "base/mem.h"
#include "base/os.h"

#define FOLDER (O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)

typedef int entry_fn(int dirfd, const char *name, unsigned depth, void *arg, struct pawl_error *err);

/* Calls fn for each entry of an open folder, until one fails. */
static int
visit_entries(int folder_fd, const char *name, unsigned depth, entry_fn *fn, void *arg, struct pawl_error *err)
{
	PAWL_CLEAN(folder_names_clear) struct folder_names names = {0};

	if (depth == TREE_MAX_DEPTH)
		return err_set(err, PAWL_ELIMIT, "%.300s: deeper than %d folders", name, TREE_MAX_DEPTH);
	TRY(folder_list(folder_fd, ".", name, &names, err));
	for (size_t i = 0; i < names.n; i++)
		TRY(fn(folder_fd, names.items[i], depth + 1, arg, err));
	return 0;
}

/* ---- syncing ---- */

static int
sync_entry(int dirfd, const char *name, unsigned depth, void *arg, struct pawl_error *err)
{
	struct stat st;

	if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return err_sys(err, errno, "%s: look", name);
	if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode))
		return 0;
	PAWL_FD int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return err_sys(err, errno, "%s: open", name);
	if (S_ISDIR(st.st_mode))
		TRY(visit_entries(fd, name, depth, sync_entry, arg, err));
	return os_sync(fd) == 0 ? 0 : err_sys(err, errno, "%s: sync", name);
}

int
tree_sync(const char *path, struct pawl_error *err)
{
	return sync_entry(AT_FDCWD, path, 0, NULL, err);
}

/* ---- copying ---- */

int
tree_copy_file(int from_dirfd, const char *name, int to_dirfd, const char *as, mode_t mode, struct pawl_error *err)
{
	PAWL_FD int from = openat(from_dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (from < 0)
		return err_sys(err, errno, "%s: open", name);
	PAWL_FD int to = openat(to_dirfd, as, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode & 0777);
	if (to < 0)
		return err_sys(err, errno, "%s: make", as);
	TRY(fd_copy(from, to, UINT64_MAX, as, NULL, NULL, err));
	if (os_sync(to) < 0)
		return err_sys(err, errno, "%s: sync", as);
	return fd_close(&to, as, err);
}

static int
copy_link(int from_dirfd, const char *name, int to_dirfd, const char *as, struct pawl_error *err)
{
	char target[4096];
	const ssize_t n = readlinkat(from_dirfd, name, target, sizeof(target) - 1);

	if (n < 0)
		return err_sys(err, errno, "%s: read", name);
	target[n] = '\0';
	return symlinkat(target, to_dirfd, as) == 0 ? 0 : err_sys(err, errno, "%s: make", as);
}

/* Where the entries of one folder are copied to. */
struct copy {
	int to_fd;
	bool link;
};

static int copy_any(int from_dirfd, const char *name, const struct copy *to, const char *as, unsigned depth,
                    struct pawl_error *err);

static int
copy_entry(int dirfd, const char *name, unsigned depth, void *arg, struct pawl_error *err)
{
	return copy_any(dirfd, name, arg, name, depth, err);
}

static int
copy_folder(int from_dirfd, const char *name, const struct copy *to, const char *as, unsigned depth,
            struct pawl_error *err)
{
	PAWL_FD int from = openat(from_dirfd, name, FOLDER);
	if (from < 0)
		return err_sys(err, errno, "%s: open", name);
	if (mkdirat(to->to_fd, as, 0777) < 0)
		return err_sys(err, errno, "%s: make folder", as);
	PAWL_FD int made = openat(to->to_fd, as, FOLDER);
	if (made < 0)
		return err_sys(err, errno, "%s: open", as);
	struct copy inner = {.to_fd = made, .link = to->link};
	TRY(visit_entries(from, name, depth, copy_entry, &inner, err));
	return os_sync(made) == 0 ? 0 : err_sys(err, errno, "%s: sync", as);
}

/* Sockets and pipes belong to no state. They are passed over. */
static int
copy_any(int from_dirfd, const char *name, const struct copy *to, const char *as, unsigned depth,
         struct pawl_error *err)
{
	struct stat st;

	if (fstatat(from_dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return err_sys(err, errno, "%s: look", name);
	if (S_ISDIR(st.st_mode))
		return copy_folder(from_dirfd, name, to, as, depth, err);
	if (S_ISLNK(st.st_mode))
		return copy_link(from_dirfd, name, to->to_fd, as, err);
	if (!S_ISREG(st.st_mode))
		return 0;
	if (to->link) {
		if (linkat(from_dirfd, name, to->to_fd, as, 0) == 0)
			return 0;
		if (!fd_can_copy_instead(errno))
			return err_sys(err, errno, "%s: link", name);
	}
	return tree_copy_file(from_dirfd, name, to->to_fd, as, st.st_mode, err);
}

int
tree_copy(int from_dirfd, const char *from, int to_dirfd, const char *to, bool link, struct pawl_error *err)
{
	return copy_any(from_dirfd, from, &(struct copy){.to_fd = to_dirfd, .link = link}, to, 0, err);
}

/* ---- moving ---- */

/* Renames the folder `hidden` to `to`. An older `to` is removed. */
static int
put_in_place(const char *hidden, const char *to, struct pawl_error *err)
{
	int sys = hidden_folder_appear(AT_FDCWD, hidden, AT_FDCWD, to, true);

	if (sys == EEXIST && hidden_folder_exchange(AT_FDCWD, hidden, AT_FDCWD, to) == 0) {
		fd_remove_tree(AT_FDCWD, hidden, NULL);
		return 0;
	}
	if (sys == EEXIST) { /* without an exchange, neither exists for a moment */
		fd_remove_tree(AT_FDCWD, to, NULL);
		sys = hidden_folder_appear(AT_FDCWD, hidden, AT_FDCWD, to, true);
	}
	return sys == 0 ? 0 : err_sys(err, sys, "%s: make", to);
}

/* Moves or copies `from` to the hidden name, durably. *ret_copied: the original still exists. */
static int
copy_or_move(const char *from, const char *hidden, bool *ret_copied, struct pawl_error *err)
{
	if (rename(from, hidden) == 0)
		return tree_sync(hidden, err);
	if (errno != EXDEV)
		return err_sys(err, errno, "%s: move", from);
	*ret_copied = true;
	return tree_copy(AT_FDCWD, from, AT_FDCWD, hidden, false, err);
}

/* The same for a file, which becomes a folder that contains it. */
static int
bring_in_file(const char *from, const char *hidden, bool *ret_copied, struct pawl_error *err)
{
	const char *slash = strrchr(from, '/');
	PAWL_FREE char *inner = mem_printf("%s/%s", hidden, slash != NULL ? slash + 1 : from);

	if (inner == NULL)
		return err_nomem(err, from);
	if (mkdir(hidden, 0777) < 0)
		return err_sys(err, errno, "%s: make folder", hidden);
	TRY(copy_or_move(from, inner, ret_copied, err));
	return fd_sync_dirat(AT_FDCWD, hidden, err);
}

static int
move_in(const char *from, const char *hidden, const char *to, bool *ret_copied, struct pawl_error *err)
{
	struct stat st;

	if (lstat(from, &st) < 0)
		return err_sys(err, errno, "%s: look", from);
	if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
		return err_set(err, PAWL_EUSAGE, "%.300s: expected a folder or a file", from);
	TRY(S_ISREG(st.st_mode) ? bring_in_file(from, hidden, ret_copied, err)
	                        : copy_or_move(from, hidden, ret_copied, err));
	return put_in_place(hidden, to, err);
}

int
tree_move_in(const char *from, const char *in, const char *to, struct pawl_error *err)
{
	char name[HIDDEN_NAME_BYTES];
	bool copied = false;

	TRY(hidden_name(to, HIDDEN_PARTIAL, name, err));
	PAWL_FREE char *hidden = mem_printf("%s/%s", in, name), *target = mem_printf("%s/%s", in, to);
	if (hidden == NULL || target == NULL)
		return err_nomem(err, from);
	int rc = move_in(from, hidden, target, &copied, err);
	if (rc == 0)
		rc = fd_sync_dirat(AT_FDCWD, in, err);
	if (copied)
		fd_remove_tree(AT_FDCWD, rc == 0 ? from : hidden, NULL);
	return rc;
}
