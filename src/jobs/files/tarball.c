/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tarball: packs folders into archives and unpacks them again (R79-R81).
 *
 *   pack:   folder, in the order of names -> headers and bytes -> (codec)
 *           -> hidden file next to the archive -> fsync, name
 *   unpack: archive -> (codec) -> members -> files in a hidden folder next to the target
 *           -> fsync, name
 *
 * Promises P2 (all or nothing under its name), P16, P17.
 */
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
#include "format/archive/tar.h"
#include "format/codec/codec.h"
#include "pawl_jobs.h"

#define PIECE_BYTES ((size_t)1 << 20)
#define MAX_DEPTH 64
#define MAX_MEMBERS 1000000u

/* *ret: NULL = a plain archive. */
static int
codec_of_archive(const char *path, const struct codec **ret, struct pawl_error *err)
{
	if (tar_of_name(path, ret))
		return 0;
	return err_set(
		err, PAWL_EUSAGE,
		"%s: expected a name that ends with .tar, .tgz, or .tar and .gz, .bz2, .lz4, .lzma, .lzo, .planes, .xz or .zst",
		path);
}

/* The hidden name next to a path. */
static int
hide_next_to(const char *path, char **ret, struct pawl_error *err)
{
	const char *slash = strrchr(path, '/');
	const char *name = slash ? slash + 1 : path;
	char hidden[HIDDEN_NAME_BYTES];

	if (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
		return err_set(err, PAWL_EUSAGE, "%s: expected a path that ends in a name", path);
	TRY(hidden_name(name, HIDDEN_PARTIAL, hidden, err));
	*ret = mem_printf("%.*s%s", (int)(name - path), path, hidden);
	return *ret ? 0 : err_nomem(err, path);
}

/* ------------------------------------------------------------------ packing */

struct packing {
	const char *what; /* the archive */
	char *hidden;     /* exists until it is renamed */
	int fd;
	uint64_t at;
	struct codec_writer *writer; /* NULL = plain */
	char *piece;
	size_t n_members;
};

static void
clean_packing(struct packing *p)
{
	codec_writer_free(p->writer);
	if (p->fd >= 0 && p->hidden)
		unlink(p->hidden);
	fd_clean_close(&p->fd);
	mem_free(p->hidden);
	mem_free(p->piece);
}

static int
write_out(void *arg, const void *ptr, size_t n, struct pawl_error *err)
{
	struct packing *p = arg;

	TRY(fd_pwrite_all(p->fd, ptr, n, p->at, p->what, err));
	p->at += n;
	return 0;
}

static int
put_bytes(struct packing *p, const void *ptr, size_t n, struct pawl_error *err)
{
	if (!p->writer)
		return write_out(p, ptr, n, err);
	const int rc = codec_writer_put(p->writer, ptr, n, err);
	return rc < 0 ? err_prefix(err, rc, "%s", p->what) : 0;
}

static int
put_header(struct packing *p, const char *name, const struct stat *st, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf header = {0};
	struct tar_member m = {.is_folder = S_ISDIR(st->st_mode),
	                       .executable = (st->st_mode & 0100) != 0,
	                       .nbytes = S_ISDIR(st->st_mode) ? 0 : (uint64_t)st->st_size,
	                       .mtime = st->st_mtime};

	if (strlen(name) > TAR_MAX_NAME)
		return err_set(err, PAWL_ELIMIT, "%s: a name of more than %u bytes", name, TAR_MAX_NAME);
	if (++p->n_members > MAX_MEMBERS)
		return err_set(err, PAWL_ELIMIT, "%s: more than %u files and folders", p->what, MAX_MEMBERS);
	memcpy(m.name, name, strlen(name) + 1);
	TRY(tar_put_header(&header, &m, err));
	return put_bytes(p, header.ptr, header.len, err);
}

static int
put_file(struct packing *p, int fd, const char *name, uint64_t nbytes, struct pawl_error *err)
{
	static const char zeros[TAR_BLOCK];
	struct stat after;

	for (uint64_t at = 0; at < nbytes;) {
		const size_t n = nbytes - at < PIECE_BYTES ? (size_t)(nbytes - at) : PIECE_BYTES;

		TRY(fd_pread_all(fd, p->piece, n, at, name, err));
		TRY(put_bytes(p, p->piece, n, err));
		at += n;
	}
	if (fstat(fd, &after) == 0 && (uint64_t)after.st_size != nbytes)
		return err_set(err, PAWL_ECONFLICT, "%s has changed while it was packed", name);
	return put_bytes(p, zeros, (size_t)(mem_round_up(nbytes, TAR_BLOCK) - nbytes), err);
}

static int put_folder(struct packing *p, int fd, const char *name, int depth, struct pawl_error *err);

/* Adds one entry of a folder, by its type. path: relative to the packed folder. */
static int
put_entry(struct packing *p, int folder, const char *name, const char *path, int depth, struct pawl_error *err)
{
	struct stat st;
	PAWL_FD int fd = -1;

	if (fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return err_sys(err, errno, "%s", path);
	if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode))
		return err_set(err, PAWL_EUNSUPPORTED, "%s is neither a file nor a folder, and links are not packed",
		               path);
	fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | (S_ISDIR(st.st_mode) ? O_DIRECTORY : 0));
	if (fd < 0 || fstat(fd, &st) < 0)
		return err_sys(err, errno, "%s", path);
	TRY(put_header(p, path, &st, err));
	return S_ISDIR(st.st_mode) ? put_folder(p, fd, path, depth + 1, err)
	                           : put_file(p, fd, path, (uint64_t)st.st_size, err);
}

static int
put_folder(struct packing *p, int fd, const char *name, int depth, struct pawl_error *err)
{
	PAWL_CLEAN(folder_names_clear) struct folder_names names = {0};

	if (depth > MAX_DEPTH)
		return err_set(err, PAWL_ELIMIT, "%s: folders are nested more than %d deep", name, MAX_DEPTH);
	TRY(folder_list(fd, ".", *name ? name : p->what, &names, err));
	for (size_t i = 0; i < names.n; i++) {
		const char *entry = names.items[i];
		PAWL_FREE char *path = *name ? mem_printf("%s/%s", name, entry) : mem_strdup(entry);
		if (!path)
			return err_nomem(err, p->what);
		TRY(put_entry(p, fd, entry, path, depth, err));
	}
	return 0;
}

/* Makes the archive durable, and then gives it its name. */
static int
give_name(struct packing *p, bool overwrite, struct pawl_error *err)
{
	TRY(fd_sync(p->fd, p->what, err));
	TRY(fd_close(&p->fd, p->what, err));
	const int sys = hidden_file_appear(AT_FDCWD, p->hidden, AT_FDCWD, p->what, overwrite);
	if (sys != 0)
		unlink(p->hidden);
	if (sys == EEXIST)
		return err_set(err, PAWL_EEXISTS, "%s already exists; choose another name, or overwrite", p->what);
	if (sys != 0)
		return err_sys(err, sys, "%s: cannot be given its name", p->what);
	return fd_sync_parent(AT_FDCWD, p->what, err);
}

static int
pack_folder(const char *folder, const char *path, const struct pawl_tar_opts *o, struct pawl_error *err)
{
	PAWL_CLEAN(clean_packing) struct packing p = {.what = path, .fd = -1};
	PAWL_CLEAN(buf_clear) struct buf end = {0};
	const struct codec *codec;

	PAWL_FD int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return err_sys(err, errno, "%s: expected a folder", folder);
	TRY(codec_of_archive(path, &codec, err));
	TRY(hide_next_to(path, &p.hidden, err));
	p.piece = mem_alloc(PIECE_BYTES);
	if (!p.piece)
		return err_nomem(err, path);
	if (codec)
		TRY(codec_writer_new(codec, o->level, o->threads, write_out, &p, &p.writer, err));
	p.fd = open(p.hidden, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (p.fd < 0)
		return err_sys(err, errno, "%s: cannot be made", path);
	TRY(put_folder(&p, fd, "", 0, err));
	tar_put_end(&end);
	TRY(buf_check(&end, path, err));
	TRY(put_bytes(&p, end.ptr, end.len, err));
	if (p.writer) {
		const int rc = codec_writer_finish(p.writer, NULL, NULL, err);
		if (rc < 0)
			return err_prefix(err, rc, "%s", path);
	}
	return give_name(&p, o->overwrite != 0, err);
}

/* ---------------------------------------------------------------- unpacking */

struct unpacking {
	const char *what; /* the archive */
	struct source source;
	int fd;
	struct codec_reader *reader; /* NULL = plain */
	uint64_t at;                 /* of the plain bytes */
	uint64_t total, max_bytes;
	char *hidden; /* the folder, until it is renamed */
	int folder;
	char *piece;
};

static void
clean_unpacking(struct unpacking *u)
{
	codec_reader_free(u->reader);
	if (u->folder >= 0)
		fd_remove_tree(AT_FDCWD, u->hidden, NULL);
	fd_clean_close(&u->folder);
	fd_clean_close(&u->fd);
	mem_free(u->hidden);
	mem_free(u->piece);
}

static int
read_archive(void *arg, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	struct unpacking *u = arg;

	return fd_pread_all(u->fd, dst, n, offset, u->what, err);
}

static int
read_plain(void *arg, void *dst, size_t n, struct pawl_error *err)
{
	struct unpacking *u = arg;
	size_t got = n;

	if (u->reader) {
		TRY(codec_reader_get(u->reader, dst, n, &got, err));
	} else {
		got = u->source.nbytes - u->at < n ? (size_t)(u->source.nbytes - u->at) : n;
		TRY(source_read(&u->source, u->at, dst, got, err));
	}
	u->at += got;
	return got == n ? 0
	                : err_set(err, PAWL_ECORRUPT, "%s: ends after %llu bytes, before the archive's end", u->what,
	                          (unsigned long long)u->at);
}

static int
get_file(struct unpacking *u, const struct tar_member *m, struct pawl_error *err)
{
	PAWL_FD int fd = openat(u->folder, m->name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
	                        m->executable ? 0755 : 0644);
	if (fd < 0 && errno == EEXIST)
		return err_set(err, PAWL_ECORRUPT, "%s: '%s' appears twice", u->what, m->name);
	if (fd < 0)
		return err_sys(err, errno, "%s: '%s' cannot be made", u->what, m->name);
	for (uint64_t at = 0; at < m->nbytes;) {
		const uint64_t left = m->nbytes - at;
		const size_t n = left < PIECE_BYTES ? (size_t)left : PIECE_BYTES;
		const size_t whole = (size_t)mem_round_up(n, TAR_BLOCK);

		TRY(read_plain(u, u->piece, whole, err));
		TRY(fd_pwrite_all(fd, u->piece, n, at, m->name, err));
		at += n;
	}
	TRY(fd_sync(fd, m->name, err));
	return fd_close(&fd, m->name, err);
}

static int
get_member(struct unpacking *u, const struct tar_member *m, struct pawl_error *err)
{
	const char *slash = strrchr(m->name, '/');
	PAWL_FREE char *parent = slash ? mem_strndup(m->name, (size_t)(slash - m->name)) : NULL;

	if (slash && !parent)
		return err_nomem(err, u->what);
	if (!mem_add_ok(u->total, m->nbytes, &u->total) || u->total > u->max_bytes)
		return err_set(err, PAWL_ELIMIT, "%s: holds more than the %llu bytes that are allowed", u->what,
		               (unsigned long long)u->max_bytes);
	if (m->is_folder)
		return *m->name ? fd_mkdirs(u->folder, m->name, err) : 0;
	if (parent)
		TRY(fd_mkdirs(u->folder, parent, err));
	TRY(get_file(u, m, err));
	return parent ? fd_sync_dirat(u->folder, parent, err) : 0;
}

/* After the end, padding is allowed and not checked. But a codec must have reached its own end. */
static int
read_rest(struct unpacking *u, struct pawl_error *err)
{
	size_t n = PIECE_BYTES;

	while (u->reader && n == PIECE_BYTES)
		TRY(codec_reader_get(u->reader, u->piece, PIECE_BYTES, &n, err));
	return 0;
}

static int
open_archive(struct unpacking *u, const struct pawl_tar_opts *o, struct pawl_error *err)
{
	const struct codec_limits limits = {.max_bytes = o->max_bytes};
	const struct codec *codec;
	struct stat st;

	TRY(codec_of_archive(u->what, &codec, err));
	u->fd = open(u->what, O_RDONLY | O_CLOEXEC);
	if (u->fd < 0 || fstat(u->fd, &st) < 0)
		return err_sys(err, errno, "%s: cannot be opened", u->what);
	if (!S_ISREG(st.st_mode))
		return err_set(err, PAWL_EUSAGE, "%s is not a regular file", u->what);
	u->source = (struct source){.what = u->what, .nbytes = (uint64_t)st.st_size, .read = read_archive, .arg = u};
	u->max_bytes = o->max_bytes ? o->max_bytes : (uint64_t)1 << 40;
	return codec ? codec_reader_new(codec, &u->source, &limits, &u->reader, err) : 0;
}

static int
unpack_folder(const char *path, const char *folder, const struct pawl_tar_opts *o, struct pawl_error *err)
{
	PAWL_CLEAN(clean_unpacking) struct unpacking u = {.what = path, .fd = -1, .folder = -1};
	struct tar_member m;
	size_t n = 0;
	int rc;

	TRY(open_archive(&u, o, err));
	TRY(hide_next_to(folder, &u.hidden, err));
	u.piece = mem_alloc(PIECE_BYTES);
	if (!u.piece)
		return err_nomem(err, path);
	if (mkdir(u.hidden, 0777) < 0 || (u.folder = open(u.hidden, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
		return err_sys(err, errno, "%s: cannot be made", folder);
	while ((rc = tar_next(read_plain, &u, path, &m, err)) == 1) {
		if (++n > MAX_MEMBERS)
			return err_set(err, PAWL_ELIMIT, "%s: more than %u files and folders", path, MAX_MEMBERS);
		TRY(get_member(&u, &m, err));
	}
	TRY(rc);
	TRY(read_rest(&u, err));
	TRY(fd_sync(u.folder, folder, err));
	const int sys = hidden_folder_appear(AT_FDCWD, u.hidden, AT_FDCWD, folder, true);
	if (sys != 0)
		return sys == EEXIST
		               ? err_set(err, PAWL_EEXISTS, "%s already exists and is not an empty folder", folder)
		               : err_sys(err, sys, "%s: cannot be given its name", folder);
	fd_clean_close(&u.folder);
	return fd_sync_parent(AT_FDCWD, folder, err);
}

/* ------------------------------------------------------------------ the face */

static int
take_opts(const struct pawl_tar_opts *opts, struct pawl_tar_opts *ret, struct pawl_error *err)
{
	*ret = (struct pawl_tar_opts)PAWL_TAR_OPTS_INIT;
	if (opts && opts->size == 0)
		return err_set(err, PAWL_EUSAGE, "pawl_tar_opts: expected a size, found 0; use PAWL_TAR_OPTS_INIT");
	if (opts)
		memcpy(ret, opts, opts->size < sizeof(*ret) ? opts->size : sizeof(*ret));
	return 0;
}

int
pawl_tar_pack(const char *folder, const char *path, const struct pawl_tar_opts *opts, struct pawl_error *err)
{
	struct pawl_tar_opts o;
	struct pawl_error own = {0};

	int rc = take_opts(opts, &o, &own);
	if (rc == 0 && (!folder || !path))
		rc = err_set(&own, PAWL_EUSAGE, "pawl_tar_pack: expected a folder and an archive, found NULL");
	if (rc == 0)
		rc = pack_folder(folder, path, &o, &own);
	return err_give(err, rc, &own);
}

int
pawl_tar_unpack(const char *path, const char *folder, const struct pawl_tar_opts *opts, struct pawl_error *err)
{
	struct pawl_tar_opts o;
	struct pawl_error own = {0};

	int rc = take_opts(opts, &o, &own);
	if (rc == 0 && (!folder || !path))
		rc = err_set(&own, PAWL_EUSAGE, "pawl_tar_unpack: expected an archive and a folder, found NULL");
	if (rc == 0)
		rc = unpack_folder(path, folder, &o, &own);
	return err_give(err, rc, &own);
}
