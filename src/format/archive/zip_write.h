/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zip_write: what of a zip archive is not the members' contents, laid out as torch.save lays its archives out: members
 * are stored, sums and sizes follow them in a descriptor, contents begin at multiples of 64 bytes (extra field "FB"), zip64
 * where sizes or places need it, an end record of 64 bits always. Pure. For file_pt.c, conversion_npz.c
 * and unpacked_npz.c.
 *
 *   zip_begin_member -> (the contents) -> zip_end_member, for each one -> zip_put_directory
 *
 * A sum that is not known yet stands as zeros: the caller is told where.
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
	uint32_t crc; /* 0 where it is not known yet */
};

/* Appends the header of a member that begins at `at` of the file; all but crc of the entry is set. */
void zip_begin_member(struct zip_entry *entry, uint64_t at, struct buf *out);
/* Appends what follows its contents. Returns where in `out` the sum stands; SIZE_MAX for an empty member, which has none. */
size_t zip_end_member(const struct zip_entry *entry, struct buf *out);
/* Appends the directory, which begins at `at` of the file. sums[i]: where in `out` the sum of entry i stands. */
void zip_put_directory(const struct zip_entry *entries, size_t n, uint64_t at, struct buf *out, size_t *sums);

#endif
