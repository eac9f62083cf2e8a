/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_file_io: contents of files in the POSIX engine: streamed writing and reading.
 *
 * A file is opened twice, once for direct I/O and once buffered. Complete blocks use direct I/O,
 * through a small copy if the memory is not aligned. The end of the file is written buffered, and
 * so is everything where direct I/O is refused. The two ways meet only at block borders, so they
 * never share a page.
 *
 * Blocks are reserved first, and the size is then right from the start. So no write extends the
 * file, and writes of several threads do not wait for each other. Reading is direct where offset
 * and memory are aligned alike and the bytes are not in the page cache.
 *
 * P3 (finish = on the disk), P5 (any error of write, fsync or close is final: the file is removed).
 *
 *   create ──> open ── write* ──> open ── finish ──> durable file
 *                └──── abort, or an error in finish ──> nothing
 */
#include "store/file/store_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/hidden.h"

/* Smaller reads are headers and manifests, which other processes read too. The cache serves them
 * better. */
#define MIN_DIRECT_READ_BYTES (64u << 10)
/* Memory for each write in progress from unaligned memory; a multiple of every alignment. */
#define BOUNCE_BYTES ((size_t)1 << 20)

struct file_file {
	struct store_file base;
	struct file_place place; /* points into base.key */
	int fd;                  /* buffered */
	int direct_fd;           /* or -1 */
	struct file_align align; /* of direct_fd */
	bool named;              /* the file exists and is ours: remove it unless finished */
};

struct file_reader {
	struct store_reader base;
	int fd;
	int direct_fd; /* or -1 */
	bool is_local;
	struct file_align align;
};

static bool
is_aligned(const void *ptr, uint32_t align)
{
	return ((uintptr_t)ptr & (align - 1)) == 0;
}

/* ----------------------------------------------------------------- writing */

/* Frees f. Removes its file if that is not finished. */
static void
drop_file(struct file_file **pf)
{
	struct file_file *f = *pf;
	if (f == NULL)
		return;
	fd_clean_close(&f->direct_fd);
	fd_clean_close(&f->fd);
	if (f->named)
		unlinkat(f->place.dir_fd, f->place.name, 0);
	file_place_clear(&f->place);
	mem_free(f->base.key);
	mem_free(f);
	*pf = NULL;
}

/* True if the file open as fd may be overwritten: it has the right size and no other name, and no
 * process can read it. */
static bool
is_ours_alone(int fd, uint64_t nbytes)
{
	struct stat st;
	return fstat(fd, &st) == 0 && (uint64_t)st.st_size == nbytes && st.st_nlink == 1 && file_sys_is_local(fd) &&
	       file_sys_is_unshared(fd);
}

/* Takes over an old file as f's own and keeps its blocks. Removes it if it cannot be overwritten. A
 * file with other names stays. Returns false if f needs a new file. */
static bool
reuse_file(const struct file_store *s, struct file_file *f, const char *old_key)
{
	PAWL_CLEAN(file_place_clear) struct file_place old = FILE_PLACE_INIT;
	struct stat st;
	if (file_place_open(s, old_key, FILE_FIND, &old, NULL) < 0)
		return false;
	PAWL_FD int fd = openat(old.dir_fd, old.name, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_nlink != 1)
		return false;
	/* Rename first. No reader looks into the new folder, so no process can open the file after
	 * the check. */
	if (hidden_rename_new(old.dir_fd, old.name, f->place.dir_fd, f->place.name) != 0)
		return false;
	if (!is_ours_alone(fd, f->base.nbytes)) {
		unlinkat(f->place.dir_fd, f->place.name, 0);
		return false;
	}
	f->named = true;
	f->fd = fd;
	fd = -1;
	/* Drop old pages: they must not meet direct writes in the cache. */
	file_sys_drop_cache(f->fd);
	return true;
}

static int
make_file(const struct file_store *s, struct file_file *f, const char *recycle_key, struct pawl_error *err)
{
	if (recycle_key != NULL && reuse_file(s, f, recycle_key))
		return 0;
	f->fd = openat(f->place.dir_fd, f->place.name, O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0666);
	if (f->fd < 0)
		return file_error(err, errno, f->base.key, "create");
	f->named = true;
	return 0;
}

int
file_create(struct store *base, const char *key, const struct store_create *opts, struct store_file **ret,
            struct pawl_error *err)
{
	struct file_store *s = (struct file_store *)base;
	PAWL_CLEAN(drop_file) struct file_file *f = mem_zalloc(1, sizeof *f);
	if (f == NULL)
		return err_nomem(err, key);
	*f = (struct file_file){.place = FILE_PLACE_INIT, .fd = -1, .direct_fd = -1};
	f->base.nbytes = opts->nbytes;
	f->base.offset_align = 1;
	f->base.key = mem_strdup(key);
	if (f->base.key == NULL)
		return err_nomem(err, key);
	TRY(file_place_open(s, f->base.key, FILE_MAKE_NEAR, &f->place, err));
	TRY(make_file(s, f, opts->recycle_key, err));

	struct stat st;
	if (fstat(f->fd, &st) < 0)
		return file_error(err, errno, key, "stat");
	int sys = opts->at_most ? 0 : file_sys_reserve(f->fd, opts->nbytes);
	if (sys != 0)
		return err_sys(err, sys, "%s: cannot reserve %" PRIu64 " bytes", key, opts->nbytes);

	if (s->caps.direct_io && !opts->buffered && file_sys_align(f->fd, &f->align) &&
	    f->align.offset <= s->caps.offset_align)
		f->direct_fd = file_sys_open_direct(f->place.dir_fd, f->place.name, O_WRONLY, &st);
	if (f->direct_fd >= 0)
		f->base.offset_align = f->align.offset;
	*ret = &f->base;
	f = NULL;
	return 0;
}

/* Writes complete blocks from aligned memory. */
static int
write_blocks(struct file_file *f, uint64_t offset, const void *ptr, size_t len, struct pawl_error *err)
{
	struct pawl_error direct_err = {0};
	int rc = fd_pwrite_all(f->direct_fd, ptr, len, offset, f->base.key, &direct_err);
	/* The filesystem refused this alignment after all. */
	if (rc < 0 && direct_err.sys == EINVAL)
		return fd_pwrite_all(f->fd, ptr, len, offset, f->base.key, err);
	if (rc < 0 && err != NULL)
		*err = direct_err;
	return rc;
}

/* Writes complete blocks from unaligned memory. A copy costs less processor time than the cache
 * does. */
static int
write_bounced(struct file_file *f, uint64_t offset, const void *ptr, size_t len, struct pawl_error *err)
{
	size_t step = len < BOUNCE_BYTES ? len : BOUNCE_BYTES;
	PAWL_FREE char *memory = mem_alloc(step + f->align.memory);
	if (memory == NULL)
		return err_nomem(err, f->base.key);
	char *aligned = memory + (mem_round_up((uintptr_t)memory, f->align.memory) - (uintptr_t)memory);
	for (size_t done = 0; done < len; done += step) {
		if (step > len - done)
			step = len - done;
		memcpy(aligned, (const char *)ptr + done, step);
		TRY(write_blocks(f, offset + done, aligned, step, err));
	}
	return 0;
}

int
file_write(struct store *base, struct store_file *bf, uint64_t offset, const void *ptr, size_t len,
           struct pawl_error *err)
{
	(void)base;
	struct file_file *f = (struct file_file *)bf;
	uint64_t left = bf->nbytes - offset;
	if (len > left)
		len = (size_t)left; /* padding */

	size_t direct = f->direct_fd >= 0 ? len & ~((size_t)f->align.offset - 1) : 0;
	if (direct > 0 && is_aligned(ptr, f->align.memory))
		TRY(write_blocks(f, offset, ptr, direct, err));
	else if (direct > 0)
		TRY(write_bounced(f, offset, ptr, direct, err));
	return fd_pwrite_all(f->fd, (const char *)ptr + direct, len - direct, offset + direct, bf->key, err);
}

/* Makes the contents durable and closes the file. */
static int
sync_contents(struct file_file *f, struct pawl_error *err)
{
	struct stat st;
	if (fstat(f->fd, &st) < 0)
		return file_error(err, errno, f->base.key, "stat");
	if (f->base.is_cut && (uint64_t)st.st_size > f->base.nbytes) {
		if (ftruncate(f->fd, (off_t)f->base.nbytes) < 0)
			return file_error(err, errno, f->base.key, "cut");
		st.st_size = (off_t)f->base.nbytes;
	}
	if ((uint64_t)st.st_size != f->base.nbytes)
		return err_set(err, PAWL_EIO, "%s: expected a size of %" PRIu64 ", found %" PRIu64, f->base.key,
		               f->base.nbytes, (uint64_t)st.st_size);
	TRY(fd_sync(f->fd, f->base.key, err));
	if (f->direct_fd >= 0)
		TRY(fd_close(&f->direct_fd, f->base.key, err));
	return fd_close(&f->fd, f->base.key, err);
}

int
file_finish(struct store *base, struct store_file *bf, struct pawl_error *err)
{
	(void)base;
	PAWL_CLEAN(drop_file) struct file_file *f = (struct file_file *)bf;
	TRY(sync_contents(f, err));
	f->named = false;
	return 0;
}

void
file_abort(struct store *base, struct store_file *bf)
{
	(void)base;
	struct file_file *f = (struct file_file *)bf;
	drop_file(&f);
}

/* ----------------------------------------------------------------- reading */

static void
free_reader(struct file_reader **pr)
{
	struct file_reader *r = *pr;
	if (r == NULL)
		return;
	fd_clean_close(&r->direct_fd);
	fd_clean_close(&r->fd);
	mem_free(r->base.key);
	mem_free(r);
	*pr = NULL;
}

int
file_open(struct store *base, const char *key, struct store_reader **ret, uint64_t *ret_nbytes, struct pawl_error *err)
{
	struct file_store *s = (struct file_store *)base;
	PAWL_CLEAN(free_reader) struct file_reader *r = mem_zalloc(1, sizeof *r);
	if (r == NULL)
		return err_nomem(err, key);
	*r = (struct file_reader){.fd = -1, .direct_fd = -1};
	r->base.key = mem_strdup(key);
	if (r->base.key == NULL)
		return err_nomem(err, key);

	PAWL_CLEAN(file_place_clear) struct file_place place = FILE_PLACE_INIT;
	TRY(file_place_open(s, key, FILE_FIND, &place, err));
	/* O_NONBLOCK: opening a pipe in the place of a file must not block. */
	r->fd = openat(place.dir_fd, place.name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	struct stat st;
	if (r->fd < 0 || fstat(r->fd, &st) < 0)
		return file_error(err, errno, key, "open");
	if (S_ISDIR(st.st_mode))
		return err_set(err, PAWL_ENOTFOUND, "%s: is a folder, expected a file", key);
	if (!S_ISREG(st.st_mode))
		return err_set(err, PAWL_EUNSUPPORTED, "%s: is not a regular file", key);
	r->base.nbytes = (uint64_t)st.st_size;
	r->is_local = file_sys_is_local(r->fd);

	if (s->caps.direct_io && r->base.nbytes >= MIN_DIRECT_READ_BYTES && file_sys_align(r->fd, &r->align))
		r->direct_fd = file_sys_open_direct(place.dir_fd, place.name, O_RDONLY, &st);
	if (r->direct_fd >= 0)
		file_sys_no_readahead(r->fd);
	*ret_nbytes = r->base.nbytes;
	*ret = &r->base;
	r = NULL;
	return 0;
}

/* Reads complete blocks from the first border on, as many as exist. *ret is 0 if the kernel
 * refuses. */
static int
read_direct(struct file_reader *r, uint64_t offset, void *dst, size_t n, size_t *ret, struct pawl_error *err)
{
	size_t done = 0;
	while (done < n) {
		ssize_t got = fd_pread(r->direct_fd, (char *)dst + done, n - done, offset + done);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && errno != EINVAL)
			return file_error(err, errno, r->base.key, "read");
		if (got <= 0)
			break;
		done += (size_t)got;
	}
	*ret = done;
	return 0;
}

int
file_read(struct store *base, struct store_reader *br, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	(void)base;
	struct file_reader *r = (struct file_reader *)br;
	char *to = dst;
	size_t head = 0, direct = 0;
	if (r->direct_fd >= 0 && n >= MIN_DIRECT_READ_BYTES)
		head = (size_t)(mem_round_up(offset, r->align.offset) - offset);
	if (r->direct_fd >= 0 && n >= MIN_DIRECT_READ_BYTES && head < n)
		direct = (n - head) & ~((size_t)r->align.offset - 1);
	if (direct == 0 || !is_aligned(to + head, r->align.memory) ||
	    (r->is_local && file_sys_is_cached(r->fd, offset, n)))
		return fd_pread_all(r->fd, to, n, offset, br->key, err);

	/* Direct reading may leave bytes out, for example when the file was cut. The buffered read
	 * fetches them or reports the error. */
	TRY(read_direct(r, offset + head, to + head, direct, &direct, err));
	if (head > 0)
		TRY(fd_pread_all(r->fd, to, head, offset, br->key, err));
	size_t done = head + direct;
	return done < n ? fd_pread_all(r->fd, to + done, n - done, offset + done, br->key, err) : 0;
}

int
file_stat_reader(struct store *base, struct store_reader *br, struct store_entry *ret, struct pawl_error *err)
{
	(void)base;
	const struct file_reader *r = (const struct file_reader *)br;
	struct stat st;
	if (fstat(r->fd, &st) < 0)
		return file_error(err, errno, br->key, "stat");
	file_fill_entry(ret, NULL, &st);
	return 0;
}

bool
file_is_cached(struct store *base, struct store_reader *br, uint64_t offset, size_t n)
{
	(void)base;
	const struct file_reader *r = (const struct file_reader *)br;
	return r->is_local && file_sys_is_cached(r->fd, offset, n);
}

void
file_close_reader(struct store *base, struct store_reader *br)
{
	(void)base;
	struct file_reader *r = (struct file_reader *)br;
	free_reader(&r);
}
