/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_file: file names in the POSIX engine: small objects, publishing, links, lists, removal.
 *
 * Every call first opens the folder of the key. It walks component by component from the root's
 * descriptor and follows no symbolic link. Then it works on the last name in that folder (P17).
 * Nothing depends on the working directory. Promises:
 *
 *   P2   Objects and folders appear complete, by rename or link.
 *   P3   Contents and names are synced by fsync.
 *   P10  put and publish are exclusive.
 *   P15  A failed rename or link is judged by its result: over a network it may have worked.
 */
#include "store/file/store_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/hidden.h"
#include "base/os.h"

/* ------------------------------------------------------------------ places */

int
file_error(struct pawl_error *err, int sys, const char *key, const char *verb)
{
	switch (sys) {
	case ELOOP:
		return err_set(err, PAWL_EUNSUPPORTED, "%s: is a symbolic link, which is not followed", key);
	case EISDIR:
		return err_set(err, PAWL_EEXISTS, "%s: is a folder, expected a file or nothing", key);
	case ENXIO: /* a socket */
		return err_set(err, PAWL_EUNSUPPORTED, "%s: is not a regular file", key);
	default:
		return err_sys(err, sys, "%s: cannot %s", key, verb);
	}
}

/* True if name in dir_fd is the same file that st describes. */
static bool
file_is_same(int dir_fd, const char *name, const struct stat *st)
{
	struct stat now;
	return fstatat(dir_fd, name, &now, AT_SYMLINK_NOFOLLOW) == 0 && now.st_dev == st->st_dev &&
	       now.st_ino == st->st_ino;
}

void
file_place_clear(struct file_place *place)
{
	fd_clean_close(&place->owned_fd);
	place->dir_fd = -1;
}

/* Explains why a component of key could not be opened as a folder. */
static int
step_error(int sys, int dir_fd, const char *part, const char *key, bool make, struct pawl_error *err)
{
	struct stat st;
	if (sys != ENOTDIR || fstatat(dir_fd, part, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return file_error(err, sys, key, "find");
	if (S_ISLNK(st.st_mode))
		return err_set(err, PAWL_EUNSUPPORTED, "%s: %s is a symbolic link, which is not followed", key, part);
	return err_set(err, make ? PAWL_EEXISTS : PAWL_ENOTFOUND, "%s: %s is not a folder", key, part);
}

/* Opens the folder `part` in dir_fd, and makes it if wanted. Returns the descriptor or a negative
 * code. */
static int
step_into(int dir_fd, const char *part, const char *key, bool make, bool durable, struct pawl_error *err)
{
	const int flags = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
	int fd = openat(dir_fd, part, flags);
	if (fd < 0 && errno == ENOENT && make) {
		if (mkdirat(dir_fd, part, 0777) < 0 && errno != EEXIST)
			return file_error(err, errno, key, "make its folder");
		int rc = durable ? fd_sync_dirat(dir_fd, ".", err) : 0;
		if (rc < 0)
			return err_prefix(err, rc, "%s", key);
		fd = openat(dir_fd, part, flags);
	}
	return fd >= 0 ? fd : step_error(errno, dir_fd, part, key, make, err);
}

int
file_place_open(const struct file_store *s, const char *key, enum file_make make, struct file_place *ret,
                struct pawl_error *err)
{
	PAWL_FD int owned = -1;
	const char *name = key;
	for (const char *slash; (slash = strchr(name, '/')) != NULL; name = slash + 1) {
		char part[NAME_MAX + 1];
		snprintf(part, sizeof part, "%.*s", (int)(slash - name), name);
		bool durable = make == FILE_MAKE || strchr(slash + 1, '/') != NULL;
		int fd = step_into(owned >= 0 ? owned : s->root_fd, part, key, make != FILE_FIND, durable, err);
		if (fd < 0)
			return fd;
		fd_clean_close(&owned);
		owned = fd;
	}
	*ret = (struct file_place){.dir_fd = owned >= 0 ? owned : s->root_fd, .owned_fd = owned, .name = name};
	owned = -1;
	return 0;
}

static int
place_stat(const struct file_place *place, const char *key, struct stat *ret, struct pawl_error *err)
{
	if (fstatat(place->dir_fd, place->name, ret, AT_SYMLINK_NOFOLLOW) < 0)
		return file_error(err, errno, key, "stat");
	return 0;
}

static int
sync_place(const struct file_place *place, const char *key, struct pawl_error *err)
{
	int rc = fd_sync_dirat(place->dir_fd, ".", err);
	return rc < 0 ? err_prefix(err, rc, "%s: its folder", key) : 0;
}

/* ----------------------------------------------------------- small objects */

/* A file under a temporary name in the folder of its final one. It is removed at the end of the
 * scope while it has that name. */
struct temp {
	const struct file_place *place;
	char name[HIDDEN_NAME_BYTES]; /* "" = gone */
	int fd;
};
#define TEMP_INIT {.fd = -1}

static void
temp_clear(struct temp *t)
{
	fd_clean_close(&t->fd);
	if (t->name[0] != '\0')
		unlinkat(t->place->dir_fd, t->name, 0);
}

static int
temp_open(struct temp *t, const struct file_place *place, const char *key, struct pawl_error *err)
{
	char name[sizeof t->name];
	TRY(hidden_name(place->name, HIDDEN_TMP, name, err));
	t->fd = openat(place->dir_fd, name, O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0666);
	if (t->fd < 0)
		return file_error(err, errno, key, "create");
	t->place = place;
	memcpy(t->name, name, sizeof name);
	return 0;
}

/* Gives the file its name. */
static int
temp_appear(struct temp *t, bool replace, const char *key, struct pawl_error *err)
{
	const struct file_place *p = t->place;
	const int sys = hidden_file_appear(p->dir_fd, t->name, p->dir_fd, p->name, replace);

	if (sys == 0) {
		t->name[0] = '\0';
		return 0;
	}
	if (!replace && sys == ENOTSUP)
		return err_set(err, PAWL_EUNSUPPORTED, "%s: this filesystem cannot put exclusively", key);
	if (!replace && sys == EEXIST)
		return err_set(err, PAWL_EEXISTS, "%s: already exists", key);
	return file_error(err, sys, key, replace ? "rename" : "link");
}

static int
file_put(struct store *base, const char *key, const struct pawl_slice *parts, size_t n_parts, int flags,
         struct pawl_error *err)
{
	struct file_store *s = (struct file_store *)base;
	PAWL_CLEAN(file_place_clear) struct file_place place = FILE_PLACE_INIT;
	PAWL_CLEAN(temp_clear) struct temp t = TEMP_INIT;
	TRY(file_place_open(s, key, FILE_MAKE, &place, err));
	TRY(temp_open(&t, &place, key, err));

	uint64_t offset = 0;
	for (size_t i = 0; i < n_parts; offset += parts[i++].len)
		TRY(fd_pwrite_all(t.fd, parts[i].ptr, parts[i].len, offset, key, err));
	if (flags & STORE_DURABLE)
		TRY(fd_sync(t.fd, key, err));
	TRY(fd_close(&t.fd, key, err));
	TRY(temp_appear(&t, !(flags & STORE_EXCLUSIVE), key, err));

	int rc = flags & STORE_DURABLE ? sync_place(&place, key, err) : 0;
	if (rc < 0 && (flags & STORE_EXCLUSIVE))
		unlinkat(place.dir_fd, place.name, 0); /* a failed put leaves nothing */
	return rc;
}

static int
file_append(struct store *base, const char *key, const void *ptr, size_t len, struct pawl_error *err)
{
	struct file_store *s = (struct file_store *)base;
	PAWL_CLEAN(file_place_clear) struct file_place place = FILE_PLACE_INIT;
	TRY(file_place_open(s, key, FILE_MAKE, &place, err));
	PAWL_FD int fd = openat(place.dir_fd, place.name,
	                        O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
	struct stat st;
	if (fd < 0 || fstat(fd, &st) < 0)
		return file_error(err, errno, key, "open");
	if (!S_ISREG(st.st_mode))
		return err_set(err, PAWL_EUNSUPPORTED, "%s: is not a regular file", key);

	PAWL_CLEAN(fd_limit_end) struct fd_limit limit;
	fd_limit_begin(&limit);
	ssize_t n;
	do
		n = write(fd, ptr, len);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return file_error(err, errno, key, "append");
	if ((size_t)n != len)
		return err_set(err, PAWL_ENOSPACE, "%s: only %zd of %zu bytes were appended", key, n, len);
	return fd_close(&fd, key, err);
}

static int
file_pointer(struct store *base, const char *key, const char *target, struct pawl_error *err)
{
	struct file_store *s = (struct file_store *)base;
	PAWL_CLEAN(file_place_clear) struct file_place place = FILE_PLACE_INIT;
	PAWL_CLEAN(temp_clear) struct temp t = TEMP_INIT;
	char name[sizeof t.name];
	TRY(file_place_open(s, key, FILE_MAKE, &place, err));
	TRY(hidden_name(place.name, HIDDEN_TMP, name, err));
	if (symlinkat(target, place.dir_fd, name) < 0) {
		if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS)
			return file_error(err, errno, key, "make a symbolic link");
		struct pawl_slice line[] = {{target, strlen(target)}, {"\n", 1}};
		return file_put(base, key, line, 2, 0, err);
	}
	t.place = &place;
	memcpy(t.name, name, sizeof name);
	return temp_appear(&t, true, key, err);
}

/* ------------------------------------------------------- links and renames */

/* Finds both objects of a rename or link; from must be a file or a pointer. */
static int
open_pair(const struct file_store *s, const char *from, const char *to, struct file_place *ret_from,
          struct file_place *ret_to, struct stat *ret_st, struct pawl_error *err)
{
	TRY(file_place_open(s, from, FILE_FIND, ret_from, err));
	TRY(place_stat(ret_from, from, ret_st, err));
	if (S_ISDIR(ret_st->st_mode))
		return err_set(err, PAWL_ENOTFOUND, "%s: is a folder, expected a file", from);
	return file_place_open(s, to, FILE_MAKE, ret_to, err);
}

static int
file_link(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	struct file_store *s = (struct file_store *)base;
	PAWL_CLEAN(file_place_clear) struct file_place a = FILE_PLACE_INIT;
	PAWL_CLEAN(file_place_clear) struct file_place b = FILE_PLACE_INIT;
	struct stat st, before;
	TRY(open_pair(s, from, to, &a, &b, &st, err));
	if (!S_ISREG(st.st_mode))
		return err_set(err, PAWL_EUNSUPPORTED, "%s: is not a regular file", from);
	const bool was_absent = fstatat(b.dir_fd, b.name, &before, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT;
	if (linkat(a.dir_fd, a.name, b.dir_fd, b.name, 0) == 0)
		return 0;
	const int sys = errno;
	if (was_absent && file_is_same(b.dir_fd, b.name, &st)) /* it may have worked all the same (P15) */
		return 0;
	switch (sys) {
	case EPERM:
	case EOPNOTSUPP:
	case ENOSYS:
	case EXDEV:
	case EMLINK:
		return err_set(err, PAWL_EUNSUPPORTED, "%s: cannot be linked to %s: %s", from, to,
		               sys == EMLINK ? "too many links" : "links do not work here");
	default:
		return file_error(err, sys, to, "link");
	}
}

static int
file_move(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	struct file_store *s = (struct file_store *)base;
	PAWL_CLEAN(file_place_clear) struct file_place a = FILE_PLACE_INIT;
	PAWL_CLEAN(file_place_clear) struct file_place b = FILE_PLACE_INIT;
	struct stat st;
	TRY(open_pair(s, from, to, &a, &b, &st, err));
	const int sys = hidden_file_appear(a.dir_fd, a.name, b.dir_fd, b.name, true);
	return sys == 0 ? 0 : file_error(err, sys, to, "rename");
}

static bool
same_folder(const char *a, const struct file_place *in_a, const char *b, const struct file_place *in_b)
{
	size_t len = (size_t)(in_a->name - a);
	return len == (size_t)(in_b->name - b) && memcmp(a, b, len) == 0;
}

static int
file_publish(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	struct file_store *s = (struct file_store *)base;
	PAWL_CLEAN(file_place_clear) struct file_place a = FILE_PLACE_INIT;
	PAWL_CLEAN(file_place_clear) struct file_place b = FILE_PLACE_INIT;
	struct stat st;
	TRY(file_place_open(s, from, FILE_FIND, &a, err));
	TRY(place_stat(&a, from, &st, err));
	if (!S_ISDIR(st.st_mode))
		return err_set(err, PAWL_ENOTFOUND, "%s: is not a folder", from);
	TRY(file_place_open(s, to, FILE_MAKE, &b, err));
	int rc = fd_sync_dirat(a.dir_fd, a.name, err);
	if (rc < 0)
		return err_prefix(err, rc, "%s", from);
	const int sys = hidden_folder_appear(a.dir_fd, a.name, b.dir_fd, b.name, false);
	if (sys != 0)
		return sys == EEXIST ? err_set(err, PAWL_EEXISTS, "%s: already exists", to)
		                     : file_error(err, sys, to, "rename");

	rc = sync_place(&b, to, err);
	if (rc == 0 && !same_folder(from, &a, to, &b))
		rc = sync_place(&a, from, err);
	if (rc < 0)
		hidden_folder_appear(b.dir_fd, b.name, a.dir_fd, a.name,
		                     false); /* a failed publish shows nothing (P4) */
	return rc;
}

static int
file_exchange(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	struct file_store *s = (struct file_store *)base;
	PAWL_CLEAN(file_place_clear) struct file_place a = FILE_PLACE_INIT;
	PAWL_CLEAN(file_place_clear) struct file_place b = FILE_PLACE_INIT;
	TRY(file_place_open(s, from, FILE_FIND, &a, err));
	TRY(file_place_open(s, to, FILE_FIND, &b, err));
	int rc = fd_sync_dirat(a.dir_fd, a.name, err);
	if (rc < 0)
		return err_prefix(err, rc, "%s", from);
	struct stat st;
	TRY(place_stat(&a, from, &st, err));
	int sys = hidden_folder_exchange(a.dir_fd, a.name, b.dir_fd, b.name);
	if (sys == ENOTSUP)
		return err_set(err, PAWL_EUNSUPPORTED, "%s: folders cannot be exchanged here", to);
	if (sys != 0 && !file_is_same(b.dir_fd, b.name, &st)) /* it may have worked all the same (P15) */
		return file_error(err, sys, to, "exchange");
	rc = sync_place(&b, to, err);
	if (rc == 0 && !same_folder(from, &a, to, &b))
		rc = sync_place(&a, from, err);
	if (rc < 0)
		hidden_folder_exchange(a.dir_fd, a.name, b.dir_fd, b.name); /* a failed exchange shows nothing (P4) */
	return rc;
}

/* --------------------------------------------------- looking, and removing */

void
file_fill_entry(struct store_entry *entry, const char *name, const struct stat *st)
{
	*entry = (struct store_entry){
		.name = name,
		.is_folder = S_ISDIR(st->st_mode),
		.is_link = S_ISLNK(st->st_mode),
		.nbytes = S_ISREG(st->st_mode) ? (uint64_t)st->st_size : 0,
		.mtime_ns = file_sys_mtime_ns(st),
		.file_id = (uint64_t)st->st_ino,
		.n_links = (uint64_t)st->st_nlink,
	};
}

static int
file_stat(struct store *base, const char *key, struct store_entry *ret, struct pawl_error *err)
{
	struct file_store *s = (struct file_store *)base;
	PAWL_CLEAN(file_place_clear) struct file_place place = FILE_PLACE_INIT;
	struct stat st;
	TRY(file_place_open(s, key, FILE_FIND, &place, err));
	TRY(place_stat(&place, key, &st, err));
	file_fill_entry(ret, NULL, &st);
	return 0;
}

/* Opens a folder for reading; "" is the root. Returns the descriptor or a negative code. */
static int
open_folder(const struct file_store *s, const char *folder, struct pawl_error *err)
{
	PAWL_CLEAN(file_place_clear) struct file_place place = {.dir_fd = s->root_fd, .owned_fd = -1, .name = "."};
	if (folder[0] != '\0')
		TRY(file_place_open(s, folder, FILE_FIND, &place, err));
	int fd = openat(place.dir_fd, place.name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return fd >= 0 ? fd : step_error(errno, place.dir_fd, place.name, folder, false, err);
}

static int
file_list(struct store *base, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	struct file_store *s = (struct file_store *)base;
	PAWL_FD int fd = open_folder(s, folder, err);
	if (fd < 0)
		return fd;
	PAWL_CLEAN(closedir_clean) DIR *dir = fdopendir(fd);
	if (dir == NULL)
		return file_error(err, errno, folder, "list");
	fd = -1; /* owned by the DIR now */

	for (;;) {
		errno = 0;
		const struct dirent *d = readdir(dir);
		if (d == NULL)
			return errno != 0 ? file_error(err, errno, folder, "list") : 0;
		if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0)
			continue;
		struct stat st;
		struct store_entry entry;
		if (fstatat(dirfd(dir), d->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
			if (errno == ENOENT)
				continue; /* removed meanwhile */
			return file_error(err, errno, d->d_name, "stat");
		}
		file_fill_entry(&entry, d->d_name, &st);
		TRY(fn(arg, &entry));
	}
}

/* Finds the object to remove. Returns 1 if there is none. */
static int
find_doomed(const struct file_store *s, const char *key, struct file_place *ret, struct stat *ret_st,
            struct pawl_error *err)
{
	int rc = file_place_open(s, key, FILE_FIND, ret, err);
	if (rc == 0)
		rc = place_stat(ret, key, ret_st, err);
	return rc == PAWL_ENOTFOUND ? 1 : rc;
}

static int
file_remove(struct store *base, const char *key, struct pawl_error *err)
{
	struct file_store *s = (struct file_store *)base;
	PAWL_CLEAN(file_place_clear) struct file_place place = FILE_PLACE_INIT;
	struct stat st;
	int rc = find_doomed(s, key, &place, &st, err);
	if (rc != 0)
		return rc < 0 ? rc : 0;
	if (S_ISDIR(st.st_mode))
		return err_set(err, PAWL_EUSAGE, "%s: is a folder, expected a file", key);
	if (unlinkat(place.dir_fd, place.name, 0) < 0 && errno != ENOENT)
		return file_error(err, errno, key, "remove");
	return 0;
}

static int
file_remove_folder(struct store *base, const char *folder, struct pawl_error *err)
{
	struct file_store *s = (struct file_store *)base;
	PAWL_CLEAN(file_place_clear) struct file_place place = FILE_PLACE_INIT;
	struct stat st;
	int rc = find_doomed(s, folder, &place, &st, err);
	if (rc != 0)
		return rc < 0 ? rc : 0;
	if (!S_ISDIR(st.st_mode))
		return err_set(err, PAWL_EUSAGE, "%s: is not a folder", folder);
	rc = fd_remove_tree(place.dir_fd, place.name, err);
	return rc < 0 ? err_prefix(err, rc, "%s", folder) : 0;
}

static int
file_sync(struct store *base, const char *folder, struct pawl_error *err)
{
	struct file_store *s = (struct file_store *)base;
	PAWL_FD int fd = open_folder(s, folder, err);
	return fd < 0 ? fd : fd_sync(fd, folder[0] != '\0' ? folder : base->root, err);
}

static int
file_space(struct store *base, uint64_t *ret_free_bytes, struct pawl_error *err)
{
	struct statvfs fs;
	if (fstatvfs(((struct file_store *)base)->root_fd, &fs) < 0)
		return file_error(err, errno, base->root, "measure free space");
	uint64_t nbytes;
	bool known = fs.f_blocks > 0 && mem_mul_ok(fs.f_bavail, fs.f_frsize, &nbytes);
	*ret_free_bytes = known ? nbytes : UINT64_MAX;
	return 0;
}

/* ------------------------------------------------------------ the store itself */

static void
file_close(struct store *base)
{
	struct file_store *s = (struct file_store *)base;
	fd_clean_close(&s->root_fd);
}

static void
file_caps(struct store *base, struct store_caps *ret)
{
	*ret = ((const struct file_store *)base)->caps;
}

const struct store_ops file_store_ops = {
	.put = file_put,
	.create = file_create,
	.write = file_write,
	.finish = file_finish,
	.abort = file_abort,
	.remove = file_remove,
	.remove_folder = file_remove_folder,
	.open = file_open,
	.read = file_read,
	.close_reader = file_close_reader,
	.stat = file_stat,
	.list = file_list,
	.close = file_close,
	.caps = file_caps,
	.space = file_space,
	.append = file_append,
	.pointer = file_pointer,
	.sync = file_sync,
	.link = file_link,
	.move = file_move,
	.publish = file_publish,
	.exchange = file_exchange,
	.is_cached = file_is_cached,
	.stat_reader = file_stat_reader,
};
