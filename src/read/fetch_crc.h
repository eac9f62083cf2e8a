/* SPDX-License-Identifier: Apache-2.0 */
/* fetch_crc: checks the stretches of foreign files that carry a CRC-32, as they are read in parts by several threads.
 * For fetch.c only. */
#ifndef PAWL_FETCH_CRC_H
#define PAWL_FETCH_CRC_H

#include "state/manifest.h"

struct fetch_crc;

/* *ret NULL: there is nothing to check. */
int fetch_crc_new(const struct manifest *m, struct fetch_crc **ret, struct pawl_error *err);
void fetch_crc_free(struct fetch_crc *c); /* NULL is fine */
/* Bytes [begin, end) of a file have been read. Any thread; no byte twice. */
void fetch_crc_add(struct fetch_crc *c, uint32_t file, uint64_t begin, uint64_t end, const char *bytes);
/* The next stretch, from *at on, that was read whole and is not what was written; NULL = no more. */
const struct manifest_member *fetch_crc_next_bad(const struct fetch_crc *c, size_t *at, uint32_t *ret_found);

#endif
