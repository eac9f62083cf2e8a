/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trial_checkpoints: folders of files, linked, renamed, removed. Promises P2 (a name shows complete
 * folders only) and P3 (durable before the name). P17: no symbolic link is followed, and nothing
 * outside of the folder is touched.
 */
#include "trial_checkpoints.h"

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
#include "tree.h"

bool
trial_checkpoint_is_name(const char *name)
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
	return openat(dirfd, trial, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
}

int
trial_checkpoint_find(int dirfd, const char *trial, const char *name, struct pawl_error *err)
{
	struct stat st;
	PAWL_FD int fd = open_folder(dirfd, trial);

	const int sys = fd < 0 || fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ? errno
	                : S_ISDIR(st.st_mode)                                     ? 0
	                                                                          : ENOTDIR;

	if (sys == ENOENT || sys == ENOTDIR || sys == ELOOP)
		return err_set(err, PAWL_ENOTFOUND, "%s/%s: there is no such checkpoint", trial, name);
	return sys == 0 ? 0 : err_sys(err, sys, "%s/%s: find", trial, name);
}

/* ---- removing ---- */

int
trial_checkpoint_remove(int dirfd, const char *trial, const char *name, struct pawl_error *err)
{
	char hidden[HIDDEN_NAME_BYTES];
	PAWL_FD int fd = open_folder(dirfd, trial);

	if (fd < 0)
		return errno == ENOENT ? 0 : err_sys(err, errno, "%s: open", trial);
	hidden_name_fixed(name, ".removed" HIDDEN_PARTIAL, hidden);
	int sys = renameat(fd, name, fd, hidden) == 0 ? 0 : errno;
	if (sys == ENOTEMPTY || sys == EEXIST) { /* a crash left part of an older one of this name */
		TRY(fd_remove_tree(fd, hidden, err));
		sys = renameat(fd, name, fd, hidden) == 0 ? 0 : errno;
	}
	if (sys != 0 && sys != ENOENT)
		return err_sys(err, sys, "%s/%s: remove", trial, name);
	return fd_remove_tree(fd, hidden, err);
}

void
trial_checkpoint_list(int dirfd, const char *trial, struct strings *ret)
{
	PAWL_CLEAN(folder_names_clear) struct folder_names names = {0};
	PAWL_FD int fd = open_folder(dirfd, trial);

	if (fd < 0 || folder_list(fd, ".", trial, &names, NULL) < 0)
		return;
	for (size_t i = 0; i < names.n; i++)
		if (names.items[i][0] != '.')
			(void)strings_add(ret, names.items[i]);
}

void
trial_checkpoint_sweep(int dir_fd, const char *trial)
{
	PAWL_CLEAN(folder_names_clear) struct folder_names names = {0};
	PAWL_FD int fd = open_folder(dir_fd, trial);

	if (fd < 0 || folder_list(fd, ".", trial, &names, NULL) < 0)
		return;
	for (size_t i = 0; i < names.n; i++)
		if (strncmp(names.items[i], ".checkpoint", 11) == 0)
			fd_remove_tree(fd, names.items[i], NULL);
}

/* ---- cloning ---- */

int
trial_checkpoint_copy_file(int from_fd, int to_fd, const char *name, struct pawl_error *err)
{
	char hidden[HIDDEN_NAME_BYTES];

	hidden_name_fixed(name, HIDDEN_TMP, hidden);
	if (unlinkat(to_fd, hidden, 0) < 0 && errno != ENOENT)
		return err_sys(err, errno, "%s: copy", name);
	int r = tree_copy_file(from_fd, name, to_fd, hidden, 0666, err);
	const int sys = r < 0 ? 0 : hidden_file_appear(to_fd, hidden, to_fd, name, true);
	if (sys != 0)
		r = err_sys(err, sys, "%s: copy", name);
	if (r < 0)
		(void)unlinkat(to_fd, hidden, 0);
	return r;
}

static int
clone_into(int from_fd, const char *name, int to_fd, const char *hidden, const char *as, struct pawl_error *err)
{
	TRY(fd_remove_tree(to_fd, hidden, err));
	TRY(tree_copy(from_fd, name, to_fd, hidden, true, err));
	const int sys = hidden_folder_appear(to_fd, hidden, to_fd, as, true);
	if (sys != 0)
		return err_sys(err, sys, "%s: make", as);
	return os_sync(to_fd) == 0 ? 0 : err_sys(err, errno, "%s: sync", as);
}

int
trial_checkpoint_clone(int from_dirfd, const char *donor, const char *name, int dirfd, const char *trial,
                       const char *as, struct pawl_error *err)
{
	char hidden[HIDDEN_NAME_BYTES];
	PAWL_FD int from_fd = open_folder(from_dirfd, donor);

	if (from_fd < 0)
		return err_sys(err, errno, "%s: open", donor);
	PAWL_FD int to_fd = open_folder(dirfd, trial);
	if (to_fd < 0)
		return err_sys(err, errno, "%s: open", trial);
	hidden_name_fixed(as, HIDDEN_PARTIAL, hidden);
	const int rc = clone_into(from_fd, name, to_fd, hidden, as, err);
	if (rc < 0) {
		fd_remove_tree(to_fd, hidden, NULL);
		return err_prefix(err, rc, "%s/%s: clone to %s/%s", donor, name, trial, as);
	}
	return 0;
}
