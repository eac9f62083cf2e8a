/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zip_write: everything of a zip archive but the contents of its members, in the layout of
 * torch.save. Members are stored, and checksums and sizes follow in a descriptor. Contents start at
 * multiples of 64 bytes (extra field "FB"). zip64 is used where sizes or offsets need it; a zip64
 * end record always exists. Pure.
 *
 *   zip_begin_member -> (the contents) -> zip_end_member, for each one -> zip_put_directory
 *
 * A checksum that is not known yet is written as zeros; the caller gets its offset.
 */
#ifndef PAWL_FORMAT_ZIP_WRITE_H
#define PAWL_FORMAT_ZIP_WRITE_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define ZIP_ALIGN 64u

struct zip_entry {
	const char *name; /* in full */
	uint64_t header, nbytes;
	uint32_t crc; /* 0 while it is unknown */
};

/* Appends the header of a member that begins at `at` of the file; all but crc of the entry is
 * set. */
void zip_begin_member(struct zip_entry *entry, uint64_t at, struct buf *out);
/* Appends what follows its contents. Returns the offset of the checksum in `out`; SIZE_MAX for an
 * empty member, which has none. */
size_t zip_end_member(const struct zip_entry *entry, struct buf *out);
/* Appends the directory, which begins at `at` of the file. sums[i]: the offset of entry i's
 * checksum in `out`. */
void zip_put_directory(const struct zip_entry *entries, size_t n, uint64_t at, struct buf *out, size_t *sums);

#endif
