/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_file: shared by the parts of the POSIX engine. Private to store_file*.c:
 *
 *   store_file.c       names: put, publish, link, list, remove
 *   store_file_io.c    contents: streamed writing and reading
 *   store_file_open.c  opens the root and finds out what the filesystem can do
 *   store_file_sys.c   the differences between systems
 */
#ifndef PAWL_STORE_STORE_FILE_H
#define PAWL_STORE_STORE_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "store/engine.h"

/* Alignment that direct I/O requires; powers of two. */
struct file_align {
	uint32_t offset, memory;
};

struct file_store {
	struct store base;
	int root_fd;
	struct store_caps caps;
};

extern const struct store_ops file_store_ops;

/* Where a key is stored: the folder that holds its last component. No symbolic link is followed on
 * the way (P17), so nothing outside the root can be reached. */
struct file_place {
	int dir_fd;       /* the folder; only for *at() calls */
	int owned_fd;     /* dir_fd if it must be closed; -1 if it is the root's */
	const char *name; /* points into the key */
};
#define FILE_PLACE_INIT {.dir_fd = -1, .owned_fd = -1}

enum file_make {
	FILE_FIND,
	FILE_MAKE,     /* missing folders are made, durably */
	FILE_MAKE_NEAR /* the same, but the nearest one becomes durable only when it is published or synced */
};

/* PAWL_ENOTFOUND if a folder is missing. PAWL_EEXISTS (make) or PAWL_ENOTFOUND if a component is a
 * file. PAWL_EUNSUPPORTED if a component is a symbolic link. *ret borrows `key`. */
int file_place_open(const struct file_store *s, const char *key, enum file_make make, struct file_place *ret,
                    struct pawl_error *err);
void file_place_clear(struct file_place *place);
/* Reports a failed call on the last component of key. If an object of another kind is stored there
 * and is the reason, the message names it. */
int file_error(struct pawl_error *err, int sys, const char *key, const char *verb);

struct stat;
void file_fill_entry(struct store_entry *entry, const char *name, const struct stat *st);

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
int file_stat_reader(struct store *base, struct store_reader *r, struct store_entry *ret, struct pawl_error *err);
bool file_is_cached(struct store *base, struct store_reader *r, uint64_t offset, size_t n);
void file_close_reader(struct store *base, struct store_reader *r);

/* store_file_sys.c: each returns 0 or an errno value, unless its comment says otherwise. */

/* The alignment that direct I/O on this open file needs. False if the filesystem has no useful
 * direct I/O. */
bool file_sys_align(int fd, struct file_align *ret);
/* Opens the file of fd again (O_RDONLY or O_WRONLY) for direct I/O; -1 if that is refused. */
int file_sys_open_direct(int dir_fd, const char *name, int flags, const struct stat *st);
/* Reserves blocks for nbytes and extends the file to at least that size. Returns 0 if the
 * filesystem cannot reserve. */
int file_sys_reserve(int fd, uint64_t nbytes);
/* True if the pages of the file belong to this machine alone: no other one changes the file. */
bool file_sys_is_local(int fd);
/* True if fd is the only descriptor of its file on this machine and no process has the file mapped.
 * False if the system or the filesystem does not report that. */
bool file_sys_is_unshared(int fd);
/* True if all n bytes (at least one) are in memory, so that a buffered read starts no input. */
bool file_sys_is_cached(int fd, uint64_t offset, size_t n);
/* Drops the cached pages of the file, which are no longer needed. */
void file_sys_drop_cache(int fd);
/* Turns readahead off: reads fetch only the bytes that they ask for. */
void file_sys_no_readahead(int fd);
/* Switches this open file to direct I/O. False if the filesystem refuses. */
bool file_sys_set_direct(int fd);
/* Modification time. Any program may have set it: a time before 1970 gives 0, one beyond the range
 * of nanoseconds gives INT64_MAX. */
int64_t file_sys_mtime_ns(const struct stat *st);

#endif
