/* SPDX-License-Identifier: Apache-2.0 */
/* manifest_lines: the rows of a manifest's arrays, one per line, for reading a large manifest
 * without parsing all of it at once. */
#ifndef PAWL_MANIFEST_LINES_H
#define PAWL_MANIFEST_LINES_H

#include <stdbool.h>
#include <stddef.h>

#include "pawl.h"

/* At an array's first row, directly after its bracket: "\n{..},\n{..}\n]". */
struct manifest_lines {
	const char *what, *at, *end;
	size_t n; /* rows of the array; set when they have been counted */
};

/* PAWL_ECORRUPT if the rows do not end with a line that begins with a bracket. No JSON string holds
 * a line feed. */
int manifest_count_lines(struct manifest_lines *l, struct pawl_error *err);
/* The text of row i of n, without its comma. In order, after counting. */
int manifest_next_line(struct manifest_lines *l, size_t i, struct pawl_slice *ret, struct pawl_error *err);
/* Skips this text, which must come next. */
int manifest_skip(struct manifest_lines *l, const char *text, struct pawl_error *err);

#endif
