/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json: a strict, bounded reader and a small writer for RFC 8259.
 *
 * Own code, because the files it reads may be hostile, and packaged parsers do not give all that
 * they need. Integers are exact to 64 bits. Duplicate keys are refused. Depth, size, string length
 * and number of values have limits. It can stop early at a top-level key, and one allocation region
 * serves a header of 100 MB. Limits: docs/reference/format.md.
 */
#ifndef PAWL_BASE_JSON_H
#define PAWL_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/bump.h"
#include "base/mem.h"

enum json_type {
	JSON_NULL,
	JSON_BOOL,
	JSON_INT,  /* i64 */
	JSON_UINT, /* > INT64_MAX */
	JSON_REAL,
	JSON_STRING,
	JSON_ARRAY,
	JSON_OBJECT
};

/* A value; children of arrays and objects are linked in document order. All memory is the bump's;
 * strings are NUL-terminated, unescaped, valid UTF-8 without NUL characters inside. */
struct json {
	enum json_type type;
	bool boolean;
	int64_t i;
	uint64_t u;  /* also set for non-negative JSON_INT */
	double real; /* also set for ints */
	const char *str;
	size_t len;      /* of str; of containers: number of children */
	const char *key; /* inside objects */
	size_t key_len;
	struct json *first, *next;
};

struct json_limits {
	size_t max_bytes;     /* 0 = 64 MiB */
	unsigned max_depth;   /* 0 = 32 */
	size_t max_string;    /* 0 = 64 KiB */
	size_t max_values;    /* 0 = 10,000,000 */
	const char *stop_key; /* NULL, or a key of the top-level object at which reading stops as if the
	                         object ended there (nothing after it is even looked at) */
};

/* Parses exactly one document (surrounding white space allowed, trailing bytes refused). *ret lives
 * in `memory`. Errors are PAWL_ECORRUPT or PAWL_ELIMIT and name `what` and the byte offset. Refuses
 * NaN literals, duplicate keys, leading zeros, lone surrogates, bad UTF-8, \u0000, control
 * characters. */
int json_parse(const char *what, const void *ptr, size_t len, const struct json_limits *limits, struct bump *memory,
               struct json **ret, struct pawl_error *err);

/* Member of an object, or NULL (also if value is not an object). Linear. */
const struct json *json_get(const struct json *object, const char *key);
/* Typed members: PAWL_ECORRUPT naming what, key, the type expected and found. Missing = the same
 * error. */
int json_get_u64(const char *what, const struct json *object, const char *key, uint64_t *ret, struct pawl_error *err);
int json_get_i64(const char *what, const struct json *object, const char *key, int64_t *ret, struct pawl_error *err);
int json_get_str(const char *what, const struct json *object, const char *key, const char **ret,
                 struct pawl_error *err);
/* JSON_REAL accepts integers too. */
int json_get_type(const char *what, const struct json *object, const char *key, enum json_type type,
                  const struct json **ret, struct pawl_error *err);

/* Writing one token: the caller places commas and braces. */
/* Quoted and escaped; bytes other than UTF-8 become U+FFFD, a NUL fails the buffer (the reader
 * refuses it). */
void json_put_string(struct buf *out, const char *text, size_t len);
/* The same for people: every control character is escaped, so that a terminal interprets none. */
void json_put_printable(struct buf *out, const char *text, size_t len);
void json_put_i64(struct buf *out, int64_t value);
void json_put_u64(struct buf *out, uint64_t value);
/* Finite, else the buffer fails. Shortest form of 15 to 17 digits that reads back equal, always
 * with '.' or 'e'. */
void json_put_double(struct buf *out, double value);

/* Members of an object: the key and the value. The caller places the braces. A comma comes first,
 * unless the text is empty or ends with '{', a comma, a newline or a NUL. */
void json_add_key(struct buf *out, const char *key); /* the value is still to be written */
void json_add_text(struct buf *out, const char *key, const char *text);
void json_add_i64(struct buf *out, const char *key, int64_t value);
void json_add_u64(struct buf *out, const char *key, uint64_t value);
void json_add_u64s(struct buf *out, const char *key, const uint64_t *values, size_t n); /* an array */
void json_add_bool(struct buf *out, const char *key, bool value);

#endif
