/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jsonout: writes one JSON document. Every value takes a key (inside an object) or NULL (inside an
 * array, or for the document itself). Strings of any bytes become valid JSON; broken UTF-8 becomes
 * U+FFFD. Numbers that JSON cannot represent become the strings "NaN", "Infinity" and "-Infinity".
 */
#ifndef PAWL_CLI_JSONOUT_H
#define PAWL_CLI_JSONOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define JSONOUT_MAX_DEPTH 2048

struct jsonout {
	FILE *file;
	size_t depth;
	bool wrote[JSONOUT_MAX_DEPTH]; /* this level has a value already */
	bool array[JSONOUT_MAX_DEPTH];
	bool flat; /* inside a jsonout_begin_flat_array: all on one line */
	size_t flat_depth;
};

void jsonout_init(struct jsonout *j, FILE *file);
void jsonout_begin_object(struct jsonout *j, const char *key);
void jsonout_begin_array(struct jsonout *j, const char *key);
/* An array written on one line, such as a shape. */
void jsonout_begin_flat_array(struct jsonout *j, const char *key);
void jsonout_end(struct jsonout *j); /* ends the innermost object or array; the outermost with a line feed */
void jsonout_text(struct jsonout *j, const char *key, const char *value); /* NULL value: null */
void jsonout_text_n(struct jsonout *j, const char *key, const char *value, size_t len);
void jsonout_uint(struct jsonout *j, const char *key, uint64_t value);
void jsonout_int(struct jsonout *j, const char *key, int64_t value);
void jsonout_real(struct jsonout *j, const char *key, double value);
void jsonout_bool(struct jsonout *j, const char *key, bool value);
void jsonout_null(struct jsonout *j, const char *key);
void jsonout_literal(struct jsonout *j, const char *key, const char *digits); /* a number that is already formatted */

#endif
