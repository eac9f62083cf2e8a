/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal: what has happened, a line each: eight hex digits (CRC-32 of the rest), a blank, one JSON object. Only appended to. A
 * line that a crash tore is cut off when it is opened; a line that is damaged before good ones ends the reading, and says so.
 */
#ifndef PAWL_TUNE_JOURNAL_H
#define PAWL_TUNE_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "pawl.h"

struct journal {
	int fd;
	uint64_t nbytes;
	bool broken; /* a write failed and could not be undone */
};

struct journal_found {
	bool exists;
	uint64_t n_lines, torn_bytes; /* torn: of a last line that is not whole */
	bool damaged;                 /* good lines follow a bad one */
	uint64_t good_bytes;          /* up to the first that is not good */
};

/* Reads all good lines up to the first that is not; each to `each`, whose failure ends it. */
int journal_read(int dirfd, const char *name, int (*each)(void *arg, const json_t *entry, struct pawl_error *err), void *arg,
                 struct journal_found *ret, struct pawl_error *err);
/* Opens it for appending after `nbytes`; what lies behind is cut off. */
int journal_open(int dirfd, const char *name, uint64_t nbytes, struct journal *ret, struct pawl_error *err);
void journal_close(struct journal *j);
/* Appends one line. durable: on the disk when it returns; else it survives the end of the process, not of the machine. After a
 * failure nothing was appended. */
int journal_put(struct journal *j, const json_t *entry, bool durable, struct pawl_error *err);

#endif
