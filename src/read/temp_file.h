/* SPDX-License-Identifier: Apache-2.0 */
/* temp_file: a file without a name in $TMPDIR (default /var/tmp). It holds data that must be
 * decompressed before it can be read at any offset. */
#ifndef PAWL_TEMP_FILE_H
#define PAWL_TEMP_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "pawl.h"

struct temp_file {
	const char *what; /* what is decompressed, for errors; borrowed */
	const char *folder;
	int fd; /* -1 = not needed so far */
	uint64_t nbytes;
};

void temp_file_init(struct temp_file *s, const char *what);
/* How many bytes may be written: nine tenths of the free space; 0 = unknown. */
uint64_t temp_file_room(const struct temp_file *s);
/* Appends. arg here and below: the struct temp_file (codec_temp). */
int temp_file_put(void *arg, const void *ptr, size_t nbytes, struct pawl_error *err);
/* Any thread, after the last put. */
int temp_file_read(void *arg, uint64_t offset, void *dst, size_t n, struct pawl_error *err);
/* Idempotent. */
void temp_file_clear(struct temp_file *s);

#endif
