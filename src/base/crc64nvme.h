/* SPDX-License-Identifier: Apache-2.0 */
/* crc64nvme: the checksum by which S3 knows whole objects, also those of many parts (NVM Express command set, 64b CRC). Pure. */
#ifndef PAWL_BASE_CRC64NVME_H
#define PAWL_BASE_CRC64NVME_H

#include <stddef.h>
#include <stdint.h>

/* Of what `before` is the sum of (0 at the beginning), followed by these bytes. */
uint64_t crc64nvme(uint64_t before, const void *ptr, size_t len);
/* The same without the processor's multiplication, to compare with. */
uint64_t crc64nvme_generic(uint64_t before, const void *ptr, size_t len);
/* Of two stretches, one behind the other, by their sums; the second has n_second bytes. */
uint64_t crc64nvme_join(uint64_t first, uint64_t second, uint64_t n_second);

#endif
