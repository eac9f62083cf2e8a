/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sftp: client of version 3 of the SSH file transfer protocol, over a socket. One caller at a time.
 *
 * Paths are the server's. Messages begin with the verb ("cannot open: there is no such file"); the
 * caller puts the object's name in front. Extensions are used if the server's first answer offers
 * them. Everything from the server is treated as hostile: lengths, ids, names and texts are checked
 * (P16, P17).
 *
 * PAWL_ETRANSIENT with sftp_is_lost(): the connection is gone or can no longer be trusted. No
 * further request is possible.
 */
#ifndef PAWL_STORE_SFTP_H
#define PAWL_STORE_SFTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pawl.h"

enum sftp_feature {
	SFTP_POSIX_RENAME = 1, /* rename that replaces */
	SFTP_HARDLINK = 2,
	SFTP_FSYNC = 4,
	SFTP_STATVFS = 8,
	SFTP_LIMITS = 16,
	SFTP_OPENSSH = 32 /* its order of arguments in SYMLINK */
};
enum sftp_open_flags { SFTP_READ = 1, SFTP_WRITE = 2, SFTP_APPEND = 4, SFTP_CREATE = 8, SFTP_EXCLUSIVE = 32 };

struct sftp_attrs {
	uint64_t nbytes;
	uint32_t mode;  /* as st_mode; a regular file if the server does not report it */
	uint32_t mtime; /* unix seconds; 0 = not reported */
};
struct sftp_handle {
	uint32_t len;
	char bytes[256];
};

struct sftp;

/* Greets the server at the other end of fd, a non-blocking socket. said: the stderr of its program,
 * or -1. The caller still owns both. No wait lasts longer than timeout_ms without a byte in either
 * direction. */
int sftp_new(int fd, int said, int64_t timeout_ms, struct sftp **ret, struct pawl_error *err);
/* From now on, reads what the program prints from this descriptor. */
void sftp_listen(struct sftp *s, int said);
void sftp_free(struct sftp *s);
unsigned sftp_features(const struct sftp *s); /* enum sftp_feature */
bool sftp_is_lost(const struct sftp *s);

int sftp_lstat(struct sftp *s, const char *path, struct sftp_attrs *ret, struct pawl_error *err);
int sftp_stat(struct sftp *s, const char *path, struct sftp_attrs *ret, struct pawl_error *err); /* follows links */
int sftp_open(struct sftp *s, const char *path, unsigned flags, struct sftp_handle *ret, struct pawl_error *err);
int sftp_fstat(struct sftp *s, const struct sftp_handle *h, struct sftp_attrs *ret, struct pawl_error *err);
int sftp_close(struct sftp *s, const struct sftp_handle *h, struct pawl_error *err);
/* Reads exactly n bytes, by many requests at a time. PAWL_ECORRUPT: the file ends early. */
int sftp_read(struct sftp *s, const struct sftp_handle *h, uint64_t offset, void *dst, size_t n,
              struct pawl_error *err);
int sftp_write(struct sftp *s, const struct sftp_handle *h, uint64_t offset, const void *ptr, size_t n,
               struct pawl_error *err);
int sftp_fsync(struct sftp *s, const struct sftp_handle *h, struct pawl_error *err);
int sftp_mkdir(struct sftp *s, const char *path, struct pawl_error *err);
int sftp_rmdir(struct sftp *s, const char *path, struct pawl_error *err);
int sftp_remove(struct sftp *s, const char *path, struct pawl_error *err);
/* replace needs SFTP_POSIX_RENAME; without it the call fails if the target exists. */
int sftp_rename(struct sftp *s, const char *from, const char *to, bool replace, struct pawl_error *err);
int sftp_hardlink(struct sftp *s, const char *from, const char *to, struct pawl_error *err);
int sftp_symlink(struct sftp *s, const char *target, const char *path, struct pawl_error *err);
int sftp_free_bytes(struct sftp *s, const char *path, uint64_t *ret, struct pawl_error *err);
/* Lists all entries of a folder except "." and "..". fn returns a negative code to stop. */
typedef int sftp_list_fn(void *arg, const char *name, const struct sftp_attrs *attrs);
int sftp_list(struct sftp *s, const char *path, sftp_list_fn *fn, void *arg, struct pawl_error *err);

#endif
