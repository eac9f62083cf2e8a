/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream_copy: copies memory and checksums the copy in one pass over the source.
 *
 * Each byte of src is read once. The checksum is taken from a local copy of that read. So it is the
 * checksum of the bytes written to dst, even if another thread changes src meanwhile. Copies of 4
 * KiB and more bypass the cache.
 */
#ifndef PAWL_BASE_STREAM_COPY_H
#define PAWL_BASE_STREAM_COPY_H

#include <stddef.h>

/* Adds len bytes, at least one, to a checksum. */
typedef void stream_copy_add(void *checksum, const void *ptr, size_t len);

/* A NULL add copies only. dst and src must not overlap. Ends with a store fence. */
void stream_copy(void *dst, const void *src, size_t len, stream_copy_add *add, void *checksum);

#endif
