/* SPDX-License-Identifier: Apache-2.0 */
/*
 * packed: a compressed pack that is being read: its plain bytes at any offset, any threads. What cannot be unpacked from
 * one copy is taken from another, as far as there is one.
 */
#ifndef PAWL_PACKED_H
#define PAWL_PACKED_H

#include "state/manifest.h"
#include "store/store.h"

struct packed;
/* nbytes: of the file as it is there. Store, reader and name stay the caller's. only_copy: as in struct fetch_job. plain_bytes:
 * what must come out, exactly; UINT64_MAX = not known. */
int packed_open(struct store *store, struct store_reader *reader, const char *name, uint64_t nbytes,
                uint64_t plain_bytes, unsigned only_copy, struct packed **ret, struct pawl_error *err);
/* PAWL_ENOTFOUND: there is no such copy (only_copy). */
int packed_read(struct packed *p, uint64_t offset, void *dst, size_t n, struct pawl_error *err);
/* From one certain copy, 0 .. ; PAWL_ENOTFOUND beyond the last one. Slow: for what has been found damaged. */
int packed_read_copy(struct packed *p, unsigned copy, uint64_t offset, void *dst, size_t n, struct pawl_error *err);
/* How many plain bytes there are. */
int packed_size(struct packed *p, uint64_t *ret, struct pawl_error *err);
void packed_close(struct packed *p); /* NULL is fine */

#endif
