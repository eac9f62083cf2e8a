/* SPDX-License-Identifier: Apache-2.0 */
/* text: globs, escapes, safe names, base64. Leaf module. */
#ifndef PAWL_BASE_TEXT_H
#define PAWL_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

/* Compares paths part by part: numbers by value (layer2 < layer10), the rest by bytes. */
int text_compare_path(const char *a, const char *b);
/* '*' matches any run of characters, '/' included; '?' one character. A pattern that names a prefix
 * ending at a '/' border also matches everything below it ("model" matches "model/x"). Linear time
 * in practice (no recursion). */
bool text_glob(const char *pattern, const char *text);
/* true for a name that may be a path component: 1..128 bytes of [A-Za-z0-9._=-], not starting
 * with '.' or '-'. */
bool text_is_component(const char *name);
/* true for a relative key: parts of 1..255 bytes without control characters, never "." or "..",
 * joined by single '/', at most 1,024 bytes. */
bool text_is_key(const char *key);
/* 0..15 for a hexadecimal digit of either case, else -1. */
int text_hex_digit(char c);
bool text_is_utf8(const char *text, size_t len);
/* Length (1..4) of the well-formed UTF-8 character at ptr, or 0. */
size_t text_utf8_char(const void *ptr, size_t len);
/* Reads a decimal number ("-12", "0.25", "1e-3") as the nearest double, whatever the locale is.
 * Returns the characters used (at most 1,024 are looked at), or 0 if there is none or it is too
 * large. */
size_t text_get_number(const char *text, size_t len, double *ret);
void text_put_base64(struct buf *out, const void *ptr, size_t len);
/* Strict (padding required, no white space); PAWL_ECORRUPT. */
int text_get_base64(const char *text, size_t len, struct buf *out, struct pawl_error *err);
/* Three significant digits: "310 MiB", "2.48 GiB", "512 B". The locale does not matter. */
void text_bytes(double nbytes, char out[32]);
/* The path of "file://PATH"; any other address as it is. */
const char *text_skip_file(const char *address);
/* Is it a URL, and not one of a path? */
bool text_is_url(const char *address);
/* The options at the end of a URL ("?region=x"); "" of one without, and of a path. */
const char *text_url_options(const char *address);
/* Does it begin as a URL does, maybe with one slash ("s3:/x", as pathlib.Path leaves it)? A folder
 * of this name is "./s3:/x". */
bool text_begins_as_url(const char *address);
/* PAWL_EUSAGE if the list or one of its n texts is NULL. what: "convert: include", for messages. */
int text_check_list(const char *what, const char *const *texts, size_t n, struct pawl_error *err);
/* Is it 32 hex digits in lower case, as ids and tokens are? */
bool text_is_hex32(const char *text);
/* The length of the path of the folder above: 3 of "a/b/c/"; 0: the path has no such part. */
size_t text_parent_len(const char *path);
/* Does a text that is longer than the suffix end with it? */
bool text_ends_with(const char *text, const char *suffix);
/* Bounded, always terminated copy; false if it was cut. */
bool text_copy(char *dst, size_t cap, const char *src);

#endif
