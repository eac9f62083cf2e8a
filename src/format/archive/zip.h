/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zip: the table of a zip archive: where each member's bytes are. It reads headers only. Compressed
 * members are listed, but not decompressed. The central directory, the local headers and the data
 * descriptors must agree, and members must not overlap. So no other reader sees other members in
 * the same bytes.
 *
 * Limits: directory 256 MiB, 1,000,000 members, names of 1,024 bytes. A CRC of 0 means none;
 * torch.save can write it so.
 */
#ifndef PAWL_FORMAT_ZIP_H
#define PAWL_FORMAT_ZIP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bump.h"
#include "base/mem.h"
#include "format/source.h"

#define ZIP_MAX_DIRECTORY ((uint64_t)256 << 20)
#define ZIP_MAX_MEMBERS 1000000u
#define ZIP_MAX_NAME_BYTES 1024u

struct zip_member {
	const char *name; /* below the folder, if it is one: "data.pkl", "data/0" */
	uint32_t crc;     /* 0 = none, or the member is compressed and its CRC is of other bytes */
	bool compressed;
	uint64_t begin, nbytes; /* as it is stored */
	uint64_t plain_nbytes;  /* the same, or the size that it claims to decompress to, */
	uint32_t plain_crc;     /* and the checksum of those bytes */
};

struct zip {
	const char *folder;               /* of all members; "" = they may be anywhere */
	const struct zip_member *members; /* ascending by name */
	size_t n;
};

/* All members must be below one folder. Memory is the bump's. PAWL_ECORRUPT, PAWL_ELIMIT,
 * PAWL_EUNSUPPORTED (encrypted, in several volumes). */
int zip_open(const struct source *source, struct bump *memory, struct zip *ret, struct pawl_error *err);
/* The same with members anywhere, with their full names. */
int zip_open_flat(const struct source *source, struct bump *memory, struct zip *ret, struct pawl_error *err);
/* NULL if there is none. */
const struct zip_member *zip_find(const struct zip *z, const char *name, size_t len);
/* PAWL_EUNSUPPORTED if a member is compressed. */
int zip_check_stored(const struct source *source, const struct zip *z, struct pawl_error *err);
/* Reads a complete member, which must not be compressed, and checks its CRC. most: PAWL_ELIMIT for
 * a larger one. */
int zip_read(const struct source *source, const struct zip_member *member, uint64_t most, struct bump *memory,
             struct pawl_slice *ret, struct pawl_error *err);

#endif
