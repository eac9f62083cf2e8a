/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_file_open: opens the POSIX engine and finds out what the filesystem can do.
 *
 * Abilities are tried where possible, not derived from the filesystem's name. A folder that
 * may be written to gets a temporary probe folder, in which links, renames and direct I/O are
 * tried. A folder that is only read is left alone: each file is examined when it is opened.
 */
#include "store/file/store_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/err.h"
#include "base/err_path.h"
#include "base/fd.h"
#include "base/hidden.h"

static void
set_align(struct store_caps *caps, bool direct_io, struct file_align align)
{
	caps->direct_io = direct_io;
	caps->offset_align = direct_io ? align.offset : 1;
}

/* Tries everything inside the folder `name` in root_fd. */
static void
try_inside(int root_fd, const char *name, struct store_caps *caps)
{
	PAWL_FD int dir_fd = openat(root_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	PAWL_FD int fd = openat(dir_fd, "file", O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return;
	struct file_align align = {1, 1};
	set_align(caps, caps->direct_io && file_sys_align(fd, &align) && file_sys_set_direct(fd), align);
	caps->link = linkat(dir_fd, "file", dir_fd, "link", 0) == 0;
	caps->symlink = symlinkat("file", dir_fd, "symlink") == 0;
	caps->exclusive_put = hidden_file_appear(dir_fd, "file", dir_fd, "renamed", false) == 0;
}

static void
probe_caps(int root_fd, struct store_caps *caps)
{
	char name[HIDDEN_NAME_BYTES], renamed[HIDDEN_NAME_BYTES];
	if (hidden_name("probe", HIDDEN_TMP, name, NULL) < 0 || hidden_name("probe", HIDDEN_TMP, renamed, NULL) < 0 ||
	    mkdirat(root_fd, name, 0700) < 0)
		return;
	try_inside(root_fd, name, caps);
	caps->rename_folder = renameat(root_fd, name, root_fd, renamed) == 0;
	fd_remove_tree(root_fd, caps->rename_folder ? renamed : name, NULL);
}

int
store_file_open(const char *path, bool create, bool no_direct_io, struct store **ret, struct pawl_error *err)
{
	if (create)
		TRY(fd_mkdirs(AT_FDCWD, path, err));
	PAWL_FD int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT    ? err_set(err, PAWL_ENOTFOUND, "%s: there is no such folder", path)
		       : errno == ENOTDIR ? err_set(err, PAWL_EUSAGE, "%s: is not a folder", path)
		                          : err_path(err, errno, path, false, "cannot open");
	char resolved[PATH_MAX];
	if (realpath(path, resolved) == NULL)
		return file_error(err, errno, path, "resolve");

	PAWL_FREE struct file_store *s = mem_zalloc(1, sizeof *s);
	if (s == NULL)
		return err_nomem(err, path);
	TRY(store_init(&s->base, &file_store_ops, "file", resolved, err));
	s->root_fd = fd;
	s->caps = (struct store_caps){.rename_folder = true,
	                              .exclusive_put = true,
	                              .link = true,
	                              .symlink = true,
	                              .local = true,
	                              .can_cut = true};
	struct file_align align = {1, 1};
	set_align(&s->caps, !no_direct_io && file_sys_align(fd, &align), align);
	if (create)
		probe_caps(fd, &s->caps);
	fd = -1;
	*ret = &steal(&s)->base;
	return 0;
}
