/* SPDX-License-Identifier: Apache-2.0 */
/* fetch_crc: checks ranges of foreign files that have a CRC-32, while several threads read them in
 * parts. */
#ifndef PAWL_FETCH_CRC_H
#define PAWL_FETCH_CRC_H

#include "state/manifest.h"

struct fetch_crc;

/* *ret NULL: nothing to check. */
int fetch_crc_new(const struct manifest *m, struct fetch_crc **ret, struct pawl_error *err);
void fetch_crc_free(struct fetch_crc *c); /* NULL is fine */
/* Adds bytes [begin, end) of a file that were read. Any thread; no byte twice. */
void fetch_crc_add(struct fetch_crc *c, uint32_t file, uint64_t begin, uint64_t end, const char *bytes);
/* The next range, from *at on, that was read completely and differs from what was written; NULL =
 * none left. */
const struct manifest_member *fetch_crc_next_bad(const struct fetch_crc *c, size_t *at, uint32_t *ret_found);

#endif
