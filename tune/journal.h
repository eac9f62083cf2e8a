/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal: what has happened, one line per entry: eight hex digits (CRC-32 of the rest), a blank,
 * one JSON object. Only appended to. Opening the journal cuts off a line that a crash tore. Reading
 * ends at a damaged line that good lines follow, and reports it.
 */
#ifndef PAWL_TUNE_JOURNAL_H
#define PAWL_TUNE_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/value.h"
#include "pawl.h"

struct journal {
	int fd;
	uint64_t nbytes;
	bool broken; /* a write failed and could not be undone */
};

struct journal_found {
	bool exists;
	uint64_t n_lines, torn_bytes; /* torn: bytes of an incomplete last line */
	bool damaged;                 /* good lines follow a bad one */
	uint64_t good_bytes;          /* bytes before the first line that is not good */
};

/* Reads all lines up to the first one that is not good. Calls `each` for each of them; if it fails,
 * reading ends. */
int journal_read(int dirfd, const char *name, int (*each)(void *arg, const struct value *entry, struct pawl_error *err),
                 void *arg, struct journal_found *ret, struct pawl_error *err);
/* Opens the journal for appending after `nbytes`; the bytes after that are cut off. */
int journal_open(int dirfd, const char *name, uint64_t nbytes, struct journal *ret, struct pawl_error *err);
void journal_close(struct journal *j);
/* Appends one line. durable: it is on the disk when the call returns; otherwise it survives the end
 * of the process, but not a crash of the machine. After a failure nothing was appended. */
int journal_put(struct journal *j, const struct value *entry, bool durable, struct pawl_error *err);

#endif
