/* SPDX-License-Identifier: Apache-2.0 */
/* toml_inner: what toml.c (lines, tables) and toml_value.c (keys, values) share. */
#ifndef PAWL_TUNE_TOML_INNER_H
#define PAWL_TUNE_TOML_INNER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "toml.h"

#define TOML_MAX_TABLES 4096

/* How a table came to be: by a deeper header, by its own (arrays of tables too), by a dotted key, as a value. */
enum toml_made { TOML_IMPLIED, TOML_HEADER, TOML_DOTTED, TOML_INLINE };

struct toml_mark {
	const json_t *table;
	enum toml_made made;
};

struct toml {
	const char *at, *end, *name;
	unsigned line, depth;
	json_t *root, *table; /* table: that of the pairs of this line; of root */
	struct toml_mark *marks;
	size_t n_marks;
	struct pawl_error *err;
};

struct toml_key {
	char *parts[TOML_MAX_DEPTH];
	size_t n;
};

/* PAWL_EUSAGE with file and line in front. */
int toml_fail(struct toml *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* "expected WHAT, found" and what stands there. */
int toml_expected(struct toml *t, const char *what);

void toml_blanks(struct toml *t);
/* Past one line feed, if one stands there. */
bool toml_newline(struct toml *t);
/* Past blanks, comments and line feeds. */
int toml_lines(struct toml *t);
int toml_mark(struct toml *t, const json_t *table, enum toml_made made);
/* key = value, into table. */
int toml_pair(struct toml *t, json_t *table);

/* A key with its dots; at least one part. To be cleared in any case. */
int toml_key(struct toml *t, struct toml_key *ret);
void toml_key_clear(struct toml_key *key);
int toml_value(struct toml *t, json_t **ret);

#endif
