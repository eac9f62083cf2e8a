/* SPDX-License-Identifier: Apache-2.0 */
/* limits: what the machine itself can do, measured without pawl: the bounds that a save is compared with. */
#ifndef PAWL_CLI_LIMITS_H
#define PAWL_CLI_LIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pawl.h"

struct limits {
	size_t nbytes; /* of every measurement */
	unsigned io_threads;
	const char *path; /* a file that may be made and is removed again */
	char *from, *to;  /* warm memory, aligned for direct I/O */
	bool direct;      /* O_DIRECT works there; else the page cache is used, and fsync counts */
};

/* Makes the memory warm. */
int limits_open(struct limits *l, const char *path, size_t nbytes, struct pawl_error *err);
void limits_close(struct limits *l);
/* Seconds to copy nbytes between warm memory with two threads. */
double limits_copy(struct limits *l);
/* Seconds to write nbytes to a new file (preallocated, blocks of 8 MiB, four threads, fsync at the end), and to read
 * it back. The file stays until limits_close. */
int limits_write(struct limits *l, double *ret_seconds, struct pawl_error *err);
int limits_read(struct limits *l, double *ret_seconds, struct pawl_error *err);

#endif
