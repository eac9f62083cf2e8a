/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conversion_place: see conversion.h. Called by conversion.c; calls base/fileio, the store of the folder. Files are
 * written under hidden names beside their places. Without `overwrite` nothing is replaced, not even what came there
 * meanwhile. Promises P2, P4.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fileio.h"
#include "jobs/convert/conversion.h"

int
conversion_place_open(struct conversion *c, const char *dst, struct pawl_error *err)
{
	struct stat st;
	const char *slash = strrchr(dst, '/');
	const bool is_folder = c->target->is_folder;

	if (!is_folder && ((stat(dst, &st) == 0 && S_ISDIR(st.st_mode)) || (slash && !slash[1])))
		return err_set(err, PAWL_EUSAGE, "%s: %s is a folder; expected the name of a file", c->what, dst);
	if (is_folder)
		c->folder = bump_strndup(&c->memory, dst, strlen(dst));
	else if (slash)
		c->folder = bump_strndup(&c->memory, dst, slash == dst ? 1 : (size_t)(slash - dst));
	else
		c->folder = bump_strndup(&c->memory, ".", 1);
	if (!is_folder)
		c->file = bump_printf(&c->memory, "%s", slash ? slash + 1 : dst);
	if (!c->folder || (!is_folder && !c->file))
		return conversion_no_memory(c, err);
	if (is_folder) {
		c->made_folder = stat(dst, &st) < 0;
		TRY(fd_mkdirs(AT_FDCWD, c->folder, err));
	}
	c->dir_fd = open(c->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (c->dir_fd < 0)
		return err_sys(err, errno, "%s: %s", c->what, c->folder);
	return store_file_open(c->folder, false, c->r->run->opts.no_direct_io, &c->store, err);
}

static int
check_free(const struct conversion *c, const char *name, struct pawl_error *err)
{
	struct stat st;

	if (c->opts.overwrite || fstatat(c->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return 0;
	return err_set(err, PAWL_EEXISTS, "%s: %s/%s exists already", c->what, c->folder, name);
}

int
conversion_place_check(const struct conversion *c, struct pawl_error *err)
{
	for (size_t i = 0; i < c->n_files; i++)
		TRY(check_free(c, c->files[i].name, err));
	return conversion_index_name(c) ? check_free(c, conversion_index_name(c), err) : 0;
}

int
conversion_place_name(char temp[CONVERSION_TEMP_LEN], struct pawl_error *err)
{
	char token[33];

	TRY(clock_token(token, err));
	snprintf(temp, CONVERSION_TEMP_LEN, ".%s.partial", token);
	return 0;
}

int
conversion_place_create(const struct conversion *c, char temp[CONVERSION_TEMP_LEN], struct pawl_error *err)
{
	char name[CONVERSION_TEMP_LEN];

	TRY(conversion_place_name(name, err));
	int fd = openat(c->dir_fd, name, O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0666);
	if (fd < 0)
		return err_sys(err, errno, "%s: %s/%s", c->what, c->folder, name);
	memcpy(temp, name, sizeof name);
	return fd;
}

/* Gives a finished file its name. Without overwrite a link, which never replaces; where links do not work, a rename. */
static int
reveal(const struct conversion *c, char temp[CONVERSION_TEMP_LEN], const char *name, struct pawl_error *err)
{
	if (!c->opts.overwrite) {
		if (linkat(c->dir_fd, temp, c->dir_fd, name, 0) == 0) {
			unlinkat(c->dir_fd, temp, 0);
			temp[0] = '\0';
			return 0;
		}
		TRY(check_free(c, name, err));
	}
	if (renameat(c->dir_fd, temp, c->dir_fd, name) < 0)
		return err_sys(err, errno, "%s: %s/%s", c->what, c->folder, name);
	temp[0] = '\0';
	return 0;
}

/* An old index goes first and the new one comes last, so that a set is never seen half replaced. */
int
conversion_place_reveal(struct conversion *c, struct pawl_error *err)
{
	const char *index = c->target->index_name;

	if (index && c->opts.overwrite && unlinkat(c->dir_fd, index, 0) < 0 && errno != ENOENT)
		return err_sys(err, errno, "%s: %s/%s", c->what, c->folder, index);
	for (size_t i = 0; i < c->n_files; i++)
		TRY(reveal(c, c->files[i].temp, c->files[i].name, err));
	if (c->index_temp[0]) {
		TRY(fd_sync(c->dir_fd, c->folder, err));
		TRY(reveal(c, c->index_temp, index, err));
	}
	return fd_sync(c->dir_fd, c->folder, err);
}

void
conversion_place_clear(struct conversion *c)
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
