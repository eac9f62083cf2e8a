/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unpacked: see unpacked.h. Called by run.c and foreign.c; calls the codecs and the store. T7: what is unpacked into
 * the spool is at most nine tenths of what is free there; the file has no name, so that nothing of it is left behind.
 */
#include "unpacked.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fileio.h"
#include "base/mem.h"
#include "format/codec.h"
#include "store/plain.h"

struct opened {
	struct store *store;
	struct store_reader *reader;
	char *name;
	struct source packed;
	struct codec_source *source;
	/* the spool; -1 = not needed so far */
	int fd;
	uint64_t nbytes;
	const char *folder;
	struct codec_spool spool;
};

/* ---------------------------------------------------------------- the spool */

/* Where the file system has no files without names, one whose name is taken away at once. */
static int
open_named(const char *folder)
{
	PAWL_FREE char *path = mem_printf("%s/pawl-XXXXXX", folder);

	if (!path) {
		errno = ENOMEM;
		return -1;
	}
	const int fd = mkostemp(path, O_CLOEXEC);
	if (fd >= 0)
		unlink(path);
	return fd;
}

static int
open_spool(struct opened *o, struct pawl_error *err)
{
	o->fd = -1;
#ifdef O_TMPFILE
	o->fd = open(o->folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
#endif
	if (o->fd < 0)
		o->fd = open_named(o->folder);
	if (o->fd >= 0)
		return 0;
	const int sys = errno;
	return err_set(err, sys == ENOSPC || sys == EDQUOT ? PAWL_ENOSPACE : PAWL_EIO,
	               "%s: no file to unpack it into can be made in %s (TMPDIR says where): errno %d", o->name,
	               o->folder, sys);
}

static int
spool_put(void *arg, const void *ptr, size_t nbytes, struct pawl_error *err)
{
	struct opened *o = arg;

	if (o->fd < 0)
		TRY(open_spool(o, err));
	const int rc = fd_pwrite_all(o->fd, ptr, nbytes, o->nbytes, o->folder, err);
	if (rc < 0)
		return err_prefix(err, rc, "%s: unpacking", o->name);
	o->nbytes += nbytes;
	return 0;
}

static int
spool_read(void *arg, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	struct opened *o = arg;

	return fd_pread_all(o->fd, dst, n, offset, o->name, err);
}

/* ------------------------------------------------------------------ the view */

static int
read_packed(void *arg, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	struct opened *o = arg;

	return store_read(o->store, o->reader, offset, dst, n, err);
}

static void
close_opened(void *ptr)
{
	struct opened *o = ptr;

	if (!o)
		return;
	codec_source_close(o->source);
	if (o->reader)
		store_close_reader(o->store, o->reader);
	fd_clean_close(&o->fd);
	mem_free(o->name);
	mem_free(o);
}

static void
clean_opened(struct opened **o)
{
	close_opened(*o);
}

static int
open_unpacked(struct store *inner, const char *key, void **ret, uint64_t *ret_nbytes, struct pawl_error *err)
{
	PAWL_CLEAN(clean_opened) struct opened *o = mem_zalloc(1, sizeof(*o));
	const char *folder = getenv("TMPDIR");
	struct codec_limits limits = {0};
	struct statvfs fs;

	if (!o)
		return err_set(err, PAWL_ENOMEM, "%s: out of memory", key);
	o->fd = -1;
	o->store = inner;
	o->folder = folder && *folder ? folder : "/var/tmp";
	o->name = mem_strdup(key);
	if (!o->name)
		return err_set(err, PAWL_ENOMEM, "%s: out of memory", key);
	o->packed = (struct source){.what = o->name, .read = read_packed, .arg = o};
	TRY(store_open_reader(inner, key, &o->reader, &o->packed.nbytes, err));
	o->spool = (struct codec_spool){.put = spool_put, .read = spool_read, .arg = o};
	limits.spool = &o->spool;
	if (statvfs(o->folder, &fs) == 0)
		limits.max_spooled_bytes = (uint64_t)fs.f_bavail * fs.f_frsize / 10 * 9 + 1;
	TRY(codec_source_open(codec_of_name(key), &o->packed, &limits, &o->source, err));
	*ret_nbytes = codec_source_plain(o->source)->nbytes;
	*ret = steal(&o);
	return 0;
}

static int
read_unpacked(void *ptr, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	const struct opened *o = ptr;

	return source_read(codec_source_plain(o->source), offset, dst, n, err);
}

int
unpacked_wrap(struct store **store, const char *key, struct pawl_error *err)
{
	static const struct store_plain_view view = {open_unpacked, read_unpacked, close_opened};
	struct store_entry entry;
	struct store *wrapped;

	if (!codec_of_name(key) || store_stat(*store, key, &entry, NULL) < 0 || entry.is_folder || entry.is_link)
		return 0;
	TRY(store_plain_wrap(*store, key, &view, &wrapped, err));
	*store = wrapped;
	return 0;
}

size_t
unpacked_name_len(const char *name)
{
	const struct codec *codec = codec_of_name(name);

	return codec ? codec_stem_len(codec, name) : strlen(name);
}
