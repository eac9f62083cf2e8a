/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crc: the checksums that other programs and servers use, by ISA-L. pawl's own files carry XXH3
 * (sum.h).
 *
 * CRC-32 is the checksum of zip archives. Several threads may checksum the parts of one stretch in
 * any order: the checksum of the stretch is crc32_whole of the XOR of all crc32_part.
 */
#ifndef PAWL_BASE_CRC_H
#define PAWL_BASE_CRC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

uint32_t crc32_bytes(const void *ptr, size_t len);
/* The share of a part that is followed by n_after more bytes. */
uint32_t crc32_part(const void *ptr, size_t len, uint64_t n_after);
/* The same, and copies the part to dst (stream_copy.h). dst and src must not overlap. */
uint32_t crc32_copy_part(void *dst, const void *src, size_t len, uint64_t n_after);
uint32_t crc32_whole(uint32_t parts, uint64_t n_bytes);

/* CRC32C (RFC 3720), which object stores check. `before` is the checksum of the bytes before these,
 * 0 at first. */
uint32_t crc32c(uint32_t before, const void *ptr, size_t len);

/* CRC64NVME (NVM Express command set), by which S3 checks complete objects. ISA-L has it since
 * 2.31; without it, crc64nvme must not be called. */
bool crc64nvme_exists(void);
uint64_t crc64nvme(uint64_t before, const void *ptr, size_t len);
/* The checksum of two adjacent stretches from their checksums. The second has n_second bytes. */
uint64_t crc64nvme_join(uint64_t first, uint64_t second, uint64_t n_second);

#endif
