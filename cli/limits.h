/* SPDX-License-Identifier: Apache-2.0 */
/* limits: measures the limits of the machine without pawl: the bounds that a save is compared
 * with. */
#ifndef PAWL_CLI_LIMITS_H
#define PAWL_CLI_LIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pawl.h"

struct limits {
	size_t nbytes; /* of every measurement */
	unsigned io_threads;
	const char *path; /* a file to create; it is removed again */
	char *from, *to;  /* touched memory, aligned for direct I/O */
	bool direct;      /* O_DIRECT works there; otherwise the page cache is used, and fsync is included */
};

/* Allocates and touches the memory. */
int limits_open(struct limits *l, const char *path, size_t nbytes, struct pawl_error *err);
void limits_close(struct limits *l);
/* Seconds to copy nbytes between touched buffers with two threads. */
double limits_copy(struct limits *l);
/* Seconds to write nbytes to a new file (preallocated, blocks of 8 MiB, four threads, fsync at the
 * end), and to read it back. The file exists until limits_close. */
int limits_write(struct limits *l, double *ret_seconds, struct pawl_error *err);
int limits_read(struct limits *l, double *ret_seconds, struct pawl_error *err);

#endif
