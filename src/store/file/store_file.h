/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_file: what the parts of the POSIX engine share. Private to store_file*.c:
 *   store_file.c       names: put, publish, link, list, remove
 *   store_file_io.c    contents: streamed writing and reading
 *   store_file_open.c  opening, and finding out what the filesystem can do
 *   store_file_sys.c   what differs between systems
 */
#ifndef PAWL_STORE_STORE_FILE_H
#define PAWL_STORE_STORE_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "store/engine.h"

/* What direct I/O asks for; powers of two. */
struct file_align {
	uint32_t offset, memory;
};

struct file_store {
	struct store base;
	int root_fd;
	struct store_caps caps;
};

extern const struct store_ops file_store_ops;

/* Where a key lies: the folder that holds its last component. No symbolic link is followed on the way
 * (P17), so nothing outside the root can be reached. */
struct file_place {
	int dir_fd;       /* the folder; fit for *at() calls only */
	int owned_fd;     /* dir_fd to be closed, or -1 when that is the root's */
	const char *name; /* points into the key */
};
#define FILE_PLACE_INIT {.dir_fd = -1, .owned_fd = -1}

enum file_make {
	FILE_FIND,
	FILE_MAKE,     /* missing folders are made, durably */
	FILE_MAKE_NEAR /* the same, but the nearest one becomes durable only when it is published or synced */
};

/* PAWL_ENOTFOUND if a folder is missing, PAWL_EEXISTS (make) or PAWL_ENOTFOUND if one is a file, PAWL_EUNSUPPORTED if
 * one is a symbolic link. `key` is borrowed by *ret. */
int file_place_open(const struct file_store *s, const char *key, enum file_make make, struct file_place *ret,
                    struct pawl_error *err);
void file_place_clear(struct file_place *place);
/* An error about a call on the last component of key; names what lies there if that is the reason. */
int file_error(struct pawl_error *err, int sys, const char *key, const char *verb);

/* True if name in dir_fd is the very file that st describes. */
bool file_is_same(int dir_fd, const char *name, const struct stat *st);

/* store_file_io.c */
int file_create(struct store *base, const char *key, const struct store_create *opts, struct store_file **ret,
                struct pawl_error *err);
int file_write(struct store *base, struct store_file *f, uint64_t offset, const void *ptr, size_t len,
               struct pawl_error *err);
int file_finish(struct store *base, struct store_file *f, struct pawl_error *err);
void file_abort(struct store *base, struct store_file *f);
int file_open(struct store *base, const char *key, struct store_reader **ret, uint64_t *ret_nbytes,
              struct pawl_error *err);
int file_read(struct store *base, struct store_reader *r, uint64_t offset, void *dst, size_t n, struct pawl_error *err);
int file_view(struct store *base, struct store_reader *r, uint64_t offset, size_t n, struct store_view *ret);
void file_drop_view(struct store *base, struct store_view *view);
void file_close_reader(struct store *base, struct store_reader *r);

/* store_file_sys.c: 0 or an errno value, unless said otherwise. */

/* What direct I/O on this open file needs; false if the filesystem has none worth using. */
bool file_sys_align(int fd, struct file_align *ret);
/* The file open as fd, opened again (O_RDONLY or O_WRONLY) for direct I/O; -1 if refused. */
int file_sys_open_direct(int dir_fd, const char *name, int flags, const struct stat *st);
/* Gives the file blocks for nbytes and at least that size; success where the filesystem cannot. */
int file_sys_reserve(int fd, uint64_t nbytes);
/* Swaps two names in one step. ENOTSUP where that cannot be done. */
int file_sys_exchange(int a_fd, const char *a, int b_fd, const char *b);
/* Renames unless the target exists (EEXIST). ENOTSUP where that cannot be done atomically. */
int file_sys_rename_new(int from_fd, const char *from, int to_fd, const char *to);
/* A file of a filesystem whose pages are this machine's own, so that they may be mapped. */
bool file_sys_is_local(int fd);
/* True if fd is the only descriptor of its file on this machine and no process has the file mapped. False where the
 * system or the filesystem cannot tell. */
bool file_sys_is_unshared(int fd);
/* True if n bytes are all in memory, so that reading them by the cache takes no input. */
bool file_sys_is_cached(int fd, uint64_t offset, size_t n);
/* Maps n bytes if they all are in memory; false if not. Starts no input. */
bool file_sys_view(int fd, uint64_t offset, size_t n, struct store_view *ret);
void file_sys_drop_view(struct store_view *view);
/* Cached pages of the file are of no use any more. */
void file_sys_drop_cache(int fd);
/* Reads are to fetch what they ask for and nothing ahead. */
void file_sys_no_readahead(int fd);
/* True if the filesystem agrees to switch this open file to direct I/O; it then is. */
bool file_sys_set_direct(int fd);
/* Whoever made a file may have set any time: one before 1970 is 0, one that nanoseconds cannot tell is INT64_MAX. */
int64_t file_sys_mtime_ns(const struct stat *st);

#endif
