/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compressed_pack: reads plain bytes of a compressed pack, at any offset, from any thread. What one
 * copy cannot give is taken from another, if there is one.
 */
#ifndef PAWL_COMPRESSED_PACK_H
#define PAWL_COMPRESSED_PACK_H

#include "format/safetensors/safetensors.h"
#include "state/manifest.h"
#include "store/store.h"

struct compressed_pack;
/* nbytes: size of the stored file. Store, reader and name stay the caller's. only_copy: as in
 * struct fetch_job. plain_bytes: the exact size of the output; UINT64_MAX = unknown. */
int compressed_pack_open(struct store *store, struct store_reader *reader, const char *name, uint64_t nbytes,
                         uint64_t plain_bytes, unsigned only_copy, struct compressed_pack **ret,
                         struct pawl_error *err);
/* PAWL_ENOTFOUND: that copy does not exist (only_copy). */
int compressed_pack_read(struct compressed_pack *p, uint64_t offset, void *dst, size_t n, struct pawl_error *err);
/* Reads from one given copy, counted from 0. PAWL_ENOTFOUND beyond the last one. Slow: for blocks
 * found damaged. */
int compressed_pack_read_copy(struct compressed_pack *p, unsigned copy, uint64_t offset, void *dst, size_t n,
                              struct pawl_error *err);
/* The number of plain bytes. */
int compressed_pack_size(struct compressed_pack *p, uint64_t *ret, struct pawl_error *err);
void compressed_pack_close(struct compressed_pack *p); /* NULL is fine */

/* Reads and decodes the header of a pack that may be compressed. *ret_nbytes: number of plain
 * bytes. The memory is the bump's. PAWL_ECORRUPT, PAWL_ELIMIT. */
int compressed_pack_read_header(struct store *store, const char *key, struct bump *memory, struct st_table *ret,
                                uint64_t *ret_nbytes, struct pawl_error *err);

#endif
