/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tar: headers of tar archives. It writes ustar, with pax records for names of more than 100 bytes
 * and files of 8 GiB and more. It reads these and the long names and sizes of GNU tar. Only regular
 * files and folders are accepted: links, devices, sparse files, and names that could leave the
 * target folder are refused.
 */
#ifndef PAWL_FORMAT_TAR_H
#define PAWL_FORMAT_TAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "format/codec/codec.h"

#define TAR_BLOCK 512u
#define TAR_MAX_NAME 1024u
#define TAR_MAX_RECORDS ((uint64_t)1 << 20)

struct tar_member {
	char name[TAR_MAX_NAME + 1]; /* "a/b": relative, no "." and ".." in it */
	bool is_folder;
	bool executable;
	uint64_t nbytes; /* that follow the header, padded to full blocks */
	int64_t mtime;   /* seconds */
};

/* Is it the name of an archive (.tar, .tgz, .tar.zst, ...)? *ret: its codec; NULL = it is not
 * compressed. */
bool tar_of_name(const char *name, const struct codec **ret);

/* Gets the next n bytes of the archive. */
typedef int tar_get_fn(void *arg, void *dst, size_t n, struct pawl_error *err);

/* Appends the header (and the records before it). */
int tar_put_header(struct buf *out, const struct tar_member *member, struct pawl_error *err);
void tar_put_end(struct buf *out);
/* 1 = *ret is the next member, 0 = the end. what: the archive's name for errors. */
int tar_next(tar_get_fn *get, void *arg, const char *what, struct tar_member *ret, struct pawl_error *err);

#endif
