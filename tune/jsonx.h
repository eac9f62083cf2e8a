/* SPDX-License-Identifier: Apache-2.0 */
/* jsonx: what the search needs of JSON beside jansson: errors that name the text, paths, numbers that are not finite, and
 * reals in their shortest form. Leaf of tune. */
#ifndef PAWL_TUNE_JSONX_H
#define PAWL_TUNE_JSONX_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

#include "pawl.h"

#define JSONX_MAX_BYTES ((size_t)64 << 20)
#define JSONX_MAX_DEPTH 64

/* JSONX_CLEAN json_t *x = NULL;  is released at the end of the scope. */
void jsonx_release(json_t **value);
void jsonx_free(char **text);
#define JSONX_CLEAN __attribute__((cleanup(jsonx_release)))
#define JSONX_TEXT __attribute__((cleanup(jsonx_free)))

/* PAWL_EUSAGE names `what`, the line and what was expected. A new reference. len: or SIZE_MAX for a string. */
int jsonx_parse(const char *text, size_t len, const char *what, json_t **ret, struct pawl_error *err);
/* One line, keys in their order, reals in the shortest form that reads back the same; NULL when out of memory. To free(). */
char *jsonx_dump(const json_t *value);
/* A number, or one of the strings "NaN", "Infinity", "-Infinity". Booleans are no numbers. */
bool jsonx_number(const json_t *value, double *ret);
/* A real, or one of these strings: json_real refuses what is not finite. A new reference. */
json_t *jsonx_real(double value);
/* The value at "a/b/c" (a key that contains the slash itself comes first); borrowed, NULL if there is none. */
json_t *jsonx_at(const json_t *object, const char *path);
/* Sets it (takes the reference), making objects on the way; false when out of memory or when a value is in the way. */
bool jsonx_put(json_t *object, const char *path, json_t *value);
/* A string member, or NULL. */
const char *jsonx_text(const json_t *object, const char *key);
/* The object with a further string member, unless text is NULL; takes the reference. NULL when out of memory, or when
 * there is no object. Bytes that are no UTF-8 become question marks. */
json_t *jsonx_with(json_t *object, const char *key, const char *text);
/* Copies: of the value itself, and of all that is in it. New references, NULL when out of memory (jansson's lack members
 * then). */
json_t *jsonx_copy(const json_t *value);
json_t *jsonx_deep_copy(const json_t *value);
/* Bytes of the UTF-8 character there, before `end`; 0 = there is none. */
size_t jsonx_utf8_bytes(const char *at, const char *end);

#endif
