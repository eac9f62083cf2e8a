/* SPDX-License-Identifier: Apache-2.0 */
/* crc32c: the checksum that object stores check for us (RFC 3720, Castagnoli polynomial). Pure. */
#ifndef PAWL_BASE_CRC32C_H
#define PAWL_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Of what `before` is the sum of (0 at the beginning), followed by these bytes. */
uint32_t crc32c(uint32_t before, const void *ptr, size_t len);
/* The same without the processor's instruction, to compare with. */
uint32_t crc32c_generic(uint32_t before, const void *ptr, size_t len);

#endif
