/* SPDX-License-Identifier: Apache-2.0 */
/*
 * saver_remote: one file to a store and back, and the text objects that stand
 * for links there. Called by saver_work.c on threads for uploads, and by
 * programs that load (pawl_saver_fetch). R85, R89; P2, P14, P15.
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
#include "base/sum.h"
#include "jobs/composer/saver.h"

#define PIECE_BYTES ((size_t)8 << 20)
#define POINTER_MAX_BYTES 4096u
#define POINTER_MAX_STEPS 8u
#define SUFFIX ".symlink"

/* One file on its way. */
struct way {
	const char *path; /* here */
	int fd;
	uint64_t nbytes;
	struct store *store;
	const char *key;
	char *piece;
	int64_t deadline_ms;
	const atomic_bool *stop;
};

static void
way_clear(struct way *w)
{
	fd_clean_close(&w->fd);
	mem_free(w->piece);
}

static int
may_go_on(const struct way *w, struct pawl_error *err)
{
	if (w->stop && atomic_load(w->stop))
		return err_set(err, PAWL_ECANCELLED, "%s: the upload was stopped", w->key);
	if (w->deadline_ms > 0 && clock_mono_ms() > w->deadline_ms)
		return err_set(err, PAWL_ETIMEOUT, "%s: not uploaded to %s in time", w->key, w->store->root);
	return 0;
}

static int
way_open(struct way *w, struct pawl_error *err)
{
	struct stat st;
	w->fd = fd_openat(AT_FDCWD, w->path, O_RDONLY, 0, err);
	if (w->fd < 0)
		return w->fd;
	if (fstat(w->fd, &st) < 0)
		return err_sys(err, errno, "%s: stat", w->path);
	w->nbytes = (uint64_t)st.st_size;
	w->piece = mem_alloc(PIECE_BYTES);
	return w->piece ? 0 : err_set(err, PAWL_ENOMEM, "%s: out of memory for uploading", w->path);
}

static int
send_pieces(const struct way *w, struct store_file *f, struct sum_stream *sum, struct pawl_error *err)
{
	for (uint64_t at = 0; at < w->nbytes; at += PIECE_BYTES) {
		size_t n = w->nbytes - at < PIECE_BYTES ? (size_t)(w->nbytes - at) : PIECE_BYTES;
		TRY(may_go_on(w, err));
		TRY(fd_pread_all(w->fd, w->piece, n, at, w->path, err));
		sum_update(sum, w->piece, n);
		TRY(store_write(w->store, f, at, w->piece, n, err));
	}
	return 0;
}

/* Whole at `key` or not at all. */
static int
send(const struct way *w, const char *key, struct sum_stream *sum, struct pawl_error *err)
{
	struct store_create opts = {.nbytes = w->nbytes};
	struct store_file *f;
	TRY(store_remove(w->store, key, err));
	TRY(store_create(w->store, key, &opts, &f, err));
	int rc = send_pieces(w, f, sum, err);
	if (rc < 0) {
		store_abort(w->store, f);
		return rc;
	}
	return store_finish(w->store, f, err);
}

/* The sum of what lies there, which must be so long. */
static int
sum_there(const struct way *w, const char *key, struct sum128 *ret, struct pawl_error *err)
{
	struct store_reader *r;
	struct sum_stream sum;
	uint64_t nbytes;
	int rc = 0;
	TRY(store_open_reader(w->store, key, &r, &nbytes, err));
	sum_init(&sum);
	if (nbytes != w->nbytes)
		rc = err_set(err, PAWL_ECORRUPT, "%s at %s: expected %llu bytes, found %llu", key, w->store->root,
		             (unsigned long long)w->nbytes, (unsigned long long)nbytes);
	for (uint64_t at = 0; rc == 0 && at < nbytes; at += PIECE_BYTES) {
		size_t n = nbytes - at < PIECE_BYTES ? (size_t)(nbytes - at) : PIECE_BYTES;
		rc = may_go_on(w, err);
		if (rc == 0)
			rc = store_read(w->store, r, at, w->piece, n, err);
		if (rc == 0)
			sum_update(&sum, w->piece, n);
	}
	store_close_reader(w->store, r);
	*ret = sum_final(&sum);
	return rc;
}

static int
sum_here(const struct way *w, struct sum128 *ret, struct pawl_error *err)
{
	struct sum_stream sum;
	sum_init(&sum);
	for (uint64_t at = 0; at < w->nbytes; at += PIECE_BYTES) {
		size_t n = w->nbytes - at < PIECE_BYTES ? (size_t)(w->nbytes - at) : PIECE_BYTES;
		TRY(fd_pread_all(w->fd, w->piece, n, at, w->path, err));
		sum_update(&sum, w->piece, n);
	}
	*ret = sum_final(&sum);
	return 0;
}

/* 1 = the very same bytes are there; 0 = nothing, or something else that may be
 * replaced. */
static int
look_there(const struct way *w, bool overwrite, struct pawl_error *err)
{
	struct store_entry entry;
	struct pawl_error why = {0};
	struct sum128 here, there;
	int rc = store_stat(w->store, w->key, &entry, &why);
	if (rc == PAWL_ENOTFOUND)
		return 0;
	if (rc < 0)
		return err_give(err, rc, &why);
	if (entry.nbytes == w->nbytes) {
		TRY(sum_here(w, &here, err));
		TRY(sum_there(w, w->key, &there, err));
		if (sum_equal(here, there))
			return 1;
	}
	if (!overwrite)
		return err_set(err, PAWL_EEXISTS,
		               "%s is at %s already, and another one; expected a free "
		               "name, or overwrite",
		               w->key, w->store->root);
	return 0;
}

int
saver_put_file(const char *path, struct store *to, const char *key, bool overwrite, int64_t deadline_ms,
               const atomic_bool *stop, struct pawl_error *err)
{
	PAWL_CLEAN(way_clear)
	struct way w = {.path = path, .fd = -1, .store = to, .key = key, .deadline_ms = deadline_ms, .stop = stop};
	struct store_caps caps;
	struct sum_stream sum;
	struct sum128 there;
	const char *slash = strrchr(key, '/'), *name = slash ? slash + 1 : key;
	TRY(way_open(&w, err));
	int rc = look_there(&w, overwrite, err);
	if (rc != 0)
		return rc < 0 ? rc : 0;
	/* An object store shows nothing before it is finished; a folder would show
	 * what a crash has left. */
	store_get_caps(to, &caps);
	PAWL_FREE char *hidden = mem_printf("%.*s.%.200s.upload.tmp", (int)(name - key), key, name);
	if (!hidden)
		return err_set(err, PAWL_ENOMEM, "%s: out of memory for uploading", path);
	const char *at = caps.flat ? key : hidden;
	sum_init(&sum);
	TRY(send(&w, at, &sum, err));
	TRY(sum_there(&w, at, &there, err));
	if (!sum_equal(there, sum_final(&sum)))
		return err_set(err, PAWL_ECORRUPT, "%s at %s: what was read back differs from what was sent", key,
		               to->root);
	if (caps.flat)
		return 0;
	TRY(store_move(to, hidden, key, err));
	PAWL_FREE char *folder = mem_strndup(key, name > key ? (size_t)(name - key) - 1 : 0);
	return folder ? store_sync(to, folder, err) : err_set(err, PAWL_ENOMEM, "%s: out of memory", path);
}

int
saver_put_pointer(struct store *to, const char *key, const char *target, struct pawl_error *err)
{
	return store_put_bytes(to, key, target, strlen(target), STORE_DURABLE, err);
}

/* ----------------------------------------------------------------- fetching */

/* Follows text objects that stand for links: *key becomes that of a file. */
static int
follow(struct store *from, char **key, struct pawl_error *err)
{
	for (unsigned step = 0; step < POINTER_MAX_STEPS; step++) {
		PAWL_CLEAN(buf_clear) struct buf target = {0};
		size_t len = strlen(*key);
		PAWL_FREE char *link = mem_printf("%s" SUFFIX, *key);
		struct store_entry entry;
		struct pawl_error why = {0};
		if (!link)
			return err_set(err, PAWL_ENOMEM, "%s: out of memory", *key);
		bool is_link = len > sizeof SUFFIX && strcmp(*key + len - (sizeof SUFFIX - 1), SUFFIX) == 0;
		int rc = is_link ? 0 : store_stat(from, *key, &entry, &why);
		if (!is_link && rc != PAWL_ENOTFOUND)
			return err_give(err, rc, &why);
		rc = store_get(from, is_link ? *key : link, POINTER_MAX_BYTES, &target, &why);
		if (rc == PAWL_ENOTFOUND)
			return err_set(err, rc, "%s: there is no %s, and no " SUFFIX " for it", from->root, *key);
		if (rc < 0)
			return err_give(err, rc, &why);
		while (target.len > 0 && strchr("\r\n \t/", target.ptr[target.len - 1]))
			target.len--;
		char *next = mem_strdup(buf_str(&target));
		if (!next)
			return err_set(err, PAWL_ENOMEM, "%s: out of memory", *key);
		mem_free(*key);
		*key = next;
	}
	return err_set(err, PAWL_ELIMIT, "%s: more than %u links to follow", *key, POINTER_MAX_STEPS);
}

int
saver_follow(const char *root, char **key, struct pawl_error *err)
{
	struct store *from;
	if (!root)
		return err_set(err, PAWL_EUSAGE, "\"%.200s\": expected a URL", *key);
	TRY(store_open(root, false, false, &from, err));
	int rc = follow(from, key, err);
	store_close(from);
	return rc;
}

static int
fetch_pieces(struct store *from, const char *key, const char *path, struct pawl_error *err)
{
	PAWL_FD int fd = -1;
	PAWL_FREE char *piece = mem_alloc(PIECE_BYTES);
	struct store_reader *r;
	uint64_t nbytes;
	int rc = 0;
	if (!piece)
		return err_set(err, PAWL_ENOMEM, "%s: out of memory", key);
	fd = fd_openat(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, 0666, err);
	if (fd < 0)
		return fd;
	TRY(store_open_reader(from, key, &r, &nbytes, err));
	for (uint64_t at = 0; rc == 0 && at < nbytes; at += PIECE_BYTES) {
		size_t n = nbytes - at < PIECE_BYTES ? (size_t)(nbytes - at) : PIECE_BYTES;
		rc = store_read(from, r, at, piece, n, err);
		if (rc == 0)
			rc = fd_pwrite_all(fd, piece, n, at, path, err);
	}
	store_close_reader(from, r);
	TRY(rc);
	return fd_close(&fd, path, err);
}

int
pawl_saver_fetch(const char *url, const char *path, struct pawl_error *err)
{
	PAWL_FREE char *root = NULL;
	PAWL_FREE char *key = NULL;
	struct store *from;
	if (!url || !path)
		return err_set(err, PAWL_EUSAGE, "fetching: expected a URL and a path, found none");
	TRY(saver_split_url(url, &root, &key, err));
	if (!root)
		return err_set(err, PAWL_EUSAGE, "\"%.200s\": expected a URL", url);
	TRY(store_open(root, false, false, &from, err));
	int rc = follow(from, &key, err);
	if (rc == 0) {
		rc = fetch_pieces(from, key, path, err);
		if (rc < 0)
			unlink(path);
	}
	store_close(from);
	return rc;
}
