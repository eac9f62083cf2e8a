/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_place: see convert.h. Files are written under hidden names next to their final ones.
 * Without `overwrite` nothing is replaced, not even a file that was created meanwhile. Promises P2,
 * P4.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/err_path.h"
#include "base/fd.h"
#include "jobs/convert/convert.h"

int
convert_place_open(struct convert_job *c, const char *dst, struct pawl_error *err)
{
	struct stat st;
	const char *slash = strrchr(dst, '/');
	const bool is_folder = c->target->is_folder;

	if (!is_folder && ((stat(dst, &st) == 0 && S_ISDIR(st.st_mode)) || (slash && !slash[1])))
		return err_set(err, PAWL_EUSAGE, "%s is a folder; expected the name of a file", dst);
	if (is_folder)
		c->folder = bump_strndup(&c->memory, dst, strlen(dst));
	else if (slash)
		c->folder = bump_strndup(&c->memory, dst, slash == dst ? 1 : (size_t)(slash - dst));
	else
		c->folder = bump_strndup(&c->memory, ".", 1);
	if (!is_folder)
		c->file = bump_printf(&c->memory, "%s", slash ? slash + 1 : dst);
	if (!c->folder || (!is_folder && !c->file))
		return err_nomem(err, "convert");
	c->made_folder = is_folder && stat(dst, &st) < 0;
	TRY(fd_mkdirs(AT_FDCWD, c->folder, err));
	c->dir_fd = open(c->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (c->dir_fd < 0)
		return err_path(err, errno, c->folder, false, "cannot open");
	return store_file_open(c->folder, false, c->r->run->opts.io.no_direct, &c->store, err);
}

static int
check_free(const struct convert_job *c, const char *name, struct pawl_error *err)
{
	struct stat st;

	if (c->opts.overwrite || fstatat(c->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return 0;
	const bool is_here = strcmp(c->folder, ".") == 0;

	return err_set(err, PAWL_EEXISTS, "%s%s%s already exists; the option overwrite replaces it",
	               is_here ? "" : c->folder, is_here ? "" : "/", name);
}

int
convert_place_check(const struct convert_job *c, struct pawl_error *err)
{
	for (size_t i = 0; i < c->n_files; i++)
		TRY(check_free(c, c->files[i].name, err));
	/* A reader finds a model by one of them, so an old one would hide the new files. */
	if (c->target->single_name)
		TRY(check_free(c, c->target->single_name, err));
	return c->target->index_name ? check_free(c, c->target->index_name, err) : 0;
}

int
convert_place_create(const struct convert_job *c, const char *name, char temp[HIDDEN_NAME_BYTES],
                     struct pawl_error *err)
{
	char hidden[HIDDEN_NAME_BYTES];

	TRY(hidden_name(name, HIDDEN_PARTIAL, hidden, err));
	int fd = openat(c->dir_fd, hidden, O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0666);
	if (fd < 0)
		return err_sys(err, errno, "%s/%s", c->folder, name);
	memcpy(temp, hidden, sizeof hidden);
	return fd;
}

/* Gives a finished file its name. */
static int
reveal_file(const struct convert_job *c, char temp[HIDDEN_NAME_BYTES], const char *name, struct pawl_error *err)
{
	int sys = hidden_file_appear(c->dir_fd, temp, c->dir_fd, name, c->opts.overwrite);

	if (sys != 0 && !c->opts.overwrite)
		TRY(check_free(c, name, err));
	if (sys == ENOTSUP)
		sys = hidden_file_appear(c->dir_fd, temp, c->dir_fd, name, true);
	if (sys != 0)
		return err_sys(err, sys, "%s/%s", c->folder, name);
	temp[0] = '\0';
	return 0;
}

static int
remove_old(const struct convert_job *c, const char *name, struct pawl_error *err)
{
	if (name && c->opts.overwrite && unlinkat(c->dir_fd, name, 0) < 0 && errno != ENOENT)
		return err_sys(err, errno, "%s/%s", c->folder, name);
	return 0;
}

/* An old index is removed first and the new one written last, so that no reader sees a set half
 * replaced. */
int
convert_place_reveal(struct convert_job *c, struct pawl_error *err)
{
	const char *index = c->target->index_name;

	TRY(remove_old(c, index, err));
	if (c->n_files > 1)
		TRY(remove_old(c, c->target->single_name, err));
	for (size_t i = 0; i < c->n_files; i++)
		TRY(reveal_file(c, c->files[i].temp, c->files[i].name, err));
	if (index && c->index_temp[0]) {
		TRY(fd_sync(c->dir_fd, c->folder, err));
		TRY(reveal_file(c, c->index_temp, index, err));
	}
	return fd_sync(c->dir_fd, c->folder, err);
}

void
convert_place_clear(struct convert_job *c)
{
	for (size_t i = 0; i < c->n_files; i++) {
		if (c->files[i].temp[0])
			unlinkat(c->dir_fd, c->files[i].temp, 0);
	}
	if (c->index_temp[0])
		unlinkat(c->dir_fd, c->index_temp, 0);
	store_close(c->store);
	fd_clean_close(&c->dir_fd);
	if (c->made_folder)
		rmdir(c->folder); /* only if it is empty */
}
