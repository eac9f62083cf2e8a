/* SPDX-License-Identifier: Apache-2.0 */
/* copy: see copy.h. Called by cmd_restore.c, cmd_export.c and cmd_bench.c. */
#include "copy.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define COPY_UNIT_BYTES (4u << 20)

static int
fail(struct pawl_error *err, const char *what, const char *path)
{
	int sys = errno, code = PAWL_EIO;

	if (sys == ENOENT)
		code = PAWL_ENOTFOUND;
	else if (sys == EEXIST || sys == ENOTEMPTY)
		code = PAWL_EEXISTS;
	else if (sys == ENOSPC || sys == EDQUOT)
		code = PAWL_ENOSPACE;
	else if (sys == EACCES || sys == EPERM)
		code = PAWL_EAUTH;
	else if (sys == EROFS)
		code = PAWL_EREADONLY;
	(void)cli_error(err, code, "%s: cannot %s: %s", path, what, strerror(sys));
	if (err != NULL)
		err->sys = sys;
	return code;
}

static void
close_fd(int *fd)
{
	if (*fd >= 0)
		(void)close(*fd);
}

static void
close_dir(DIR **dir)
{
	if (*dir != NULL)
		(void)closedir(*dir);
}

const char *
copy_parent(struct keep *keep, const char *path)
{
	size_t len = strlen(path);

	while (len > 1 && path[len - 1] == '/')
		len--;
	while (len > 0 && path[len - 1] != '/')
		len--;
	while (len > 1 && path[len - 1] == '/')
		len--;
	return len == 0 ? "." : keep_strndup(keep, path, len);
}

static bool
has_file(struct keep *keep, const char *folder, const char *name)
{
	struct stat st;

	return stat(keep_printf(keep, "%s/%s", folder, name), &st) == 0;
}

/* Other programs have a manifest.json too. */
static bool
is_checkpoint(struct keep *keep, const char *folder)
{
	static const char begin[] = "{\"pawl_manifest\"";
	char found[sizeof(begin)] = "";
	FILE *file = fopen(keep_printf(keep, "%s/manifest.json", folder), "rb");

	if (file == NULL)
		return false;
	size_t n = fread(found, 1, sizeof(begin) - 1, file);
	(void)fclose(file);
	return n == sizeof(begin) - 1 && strcmp(found, begin) == 0;
}

int
copy_check_place(struct cli *cli, const char *path, struct pawl_error *err)
{
	char *real = realpath(copy_parent(&cli->keep, path), NULL);
	const char *at = real != NULL ? keep_printf(&cli->keep, "%s", real) : "";

	free(real);
	for (; strlen(at) > 1; at = copy_parent(&cli->keep, at)) {
		const char *above = copy_parent(&cli->keep, at), *name = strrchr(at, '/') + 1;
		bool is_run = (strcmp(name, "checkpoints") == 0 || strcmp(name, ".pawl") == 0) &&
		              has_file(&cli->keep, above, "run.json");

		if (is_run || is_checkpoint(&cli->keep, at))
			return cli_error(err, PAWL_EUSAGE, "%s is inside the %s %s, which only saves write to", path,
			                 is_run ? "run" : "checkpoint", is_run ? above : at);
	}
	return 0;
}

static int
sync_folder(const char *path, struct pawl_error *err)
{
	CLEANUP(close_fd) int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0 || fsync(fd) != 0)
		return fail(err, "make durable", path);
	return 0;
}

static int
write_all(int fd, const char *ptr, size_t len)
{
	while (len > 0) {
		ssize_t n = write(fd, ptr, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -1;
		ptr += n;
		len -= (size_t)n;
	}
	return 0;
}

static int
copy_file(const char *from, const char *to, char *buffer, struct pawl_meter *meter, struct pawl_error *err)
{
	CLEANUP(close_fd) int in = open(from, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	CLEANUP(close_fd) int out = -1;
	int fd;

	if (in < 0)
		return fail(err, "open", from);
	out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (out < 0)
		return fail(err, "create", to);
	for (;;) {
		ssize_t n = read(in, buffer, COPY_UNIT_BYTES);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return fail(err, "read", from);
		if (n == 0)
			break;
		if (write_all(out, buffer, (size_t)n) < 0)
			return fail(err, "write", to);
		(void)__atomic_add_fetch(&meter->done_bytes, (uint64_t)n, __ATOMIC_RELAXED);
		if (__atomic_load_n(&meter->cancel, __ATOMIC_RELAXED))
			return cli_error(err, PAWL_ECANCELLED, "cancelled");
	}
	if (fsync(out) != 0)
		return fail(err, "write", to);
	/* so that a later check reads the disk, not the memory it came from */
	(void)posix_fadvise(out, 0, 0, POSIX_FADV_DONTNEED);
	fd = out;
	out = -1;
	return close(fd) == 0 ? 0 : fail(err, "write", to);
}

static bool
is_pack(const char *name)
{
	static const char suffix[] = ".safetensors";
	const char *found = strstr(name, suffix); /* of a compressed one more follows */

	return found != NULL && found != name;
}

int
copy_folder(struct cli *cli, const char *from, const char *to, uint64_t most_bytes, struct pawl_meter *meter,
            struct pawl_error *err)
{
	CLEANUP(close_dir) DIR *dir = opendir(from);
	char *buffer = keep_alloc(&cli->keep, COPY_UNIT_BYTES, 1);
	struct dirent *entry;
	int rc;

	if (dir == NULL)
		return fail(err, "open", from);
	if (mkdir(to, 0777) != 0)
		return fail(err, "create", to);
	while ((errno = 0, entry = readdir(dir)) != NULL) {
		struct stat st;

		if (entry->d_name[0] == '.')
			continue;
		if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
			return fail(err, "read", keep_printf(&cli->keep, "%s/%s", from, entry->d_name));
		if (!S_ISREG(st.st_mode))
			continue;
		/* one with a hole of a tebibyte would be copied for hours before it is found to be no pack */
		if (is_pack(entry->d_name) && (uint64_t)st.st_size > most_bytes)
			return cli_error(err, PAWL_ECORRUPT, "%s/%s: %lld bytes, but the checkpoint has %llu", from,
			                 entry->d_name, (long long)st.st_size, (unsigned long long)most_bytes);
		rc = copy_file(keep_printf(&cli->keep, "%s/%s", from, entry->d_name),
		               keep_printf(&cli->keep, "%s/%s", to, entry->d_name), buffer, meter, err);
		if (rc < 0)
			return rc;
	}
	if (errno != 0)
		return fail(err, "list", from);
	return sync_folder(to, err);
}

int
copy_publish(struct cli *cli, const char *from, const char *to, struct pawl_error *err)
{
	struct stat st;

	/* rename replaces an empty folder, which nobody misses, and refuses any other */
	if (lstat(to, &st) == 0 && !S_ISDIR(st.st_mode)) {
		errno = EEXIST;
		return fail(err, "create", to);
	}
	if (rename(from, to) != 0)
		return fail(err, "create", to);
	return sync_folder(copy_parent(&cli->keep, to), err);
}

static int
remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	(void)remove(path);
	return 0;
}

void
copy_remove(const char *path)
{
	(void)nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}
