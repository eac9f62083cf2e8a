/* SPDX-License-Identifier: Apache-2.0 */
/* temp_file: see temp_file.h. The file has no name, so that nothing of it is left behind. */
#include "read/temp_file.h"

#include <sys/statvfs.h>

#include "base/err.h"
#include "base/fd.h"

void
temp_file_init(struct temp_file *s, const char *what)
{
	*s = (struct temp_file){.what = what, .folder = fd_temp_folder(), .fd = -1};
}

uint64_t
temp_file_room(const struct temp_file *s)
{
	struct statvfs fs;

	return statvfs(s->folder, &fs) == 0 ? (uint64_t)fs.f_bavail * fs.f_frsize / 10 * 9 + 1 : 0;
}

int
temp_file_put(void *arg, const void *ptr, size_t nbytes, struct pawl_error *err)
{
	struct temp_file *s = arg;

	if (s->fd < 0)
		TRY(fd_temp_file(&s->fd, s->what, err));
	const int rc = fd_pwrite_all(s->fd, ptr, nbytes, s->nbytes, s->folder, err);
	if (rc < 0)
		return err_prefix(err, rc, "%s: decompressing", s->what);
	s->nbytes += nbytes;
	return 0;
}

int
temp_file_read(void *arg, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	const struct temp_file *s = arg;

	return fd_pread_all(s->fd, dst, n, offset, s->what, err);
}

void
temp_file_clear(struct temp_file *s)
{
	fd_clean_close(&s->fd);
	s->fd = -1;
}
