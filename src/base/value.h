/* SPDX-License-Identifier: Apache-2.0 */
/*
 * value: JSON values that are built and changed. json.h reads hostile documents fast and exactly;
 * this is for documents that a program edits: the configuration of a trial, a line of a journal.
 * Objects keep the order of their members.
 *
 * A value counts its references, so that it may be a member of several objects; free every
 * reference. Functions that make a value return a new reference, or NULL without memory. Those that
 * store a value take the reference, also when they fail, and fail when the value is NULL. So calls
 * nest, and one check at the end is enough. All accept NULL for a value that does not exist. Not
 * thread-safe.
 */
#ifndef PAWL_BASE_VALUE_H
#define PAWL_BASE_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "base/mem.h"

#define VALUE_MAX_BYTES ((size_t)64 << 20)
#define VALUE_MAX_DEPTH 64

struct value;
struct value_member {
	const char *key;
	struct value *value;
};

/* Reads one document. PAWL_EUSAGE names `what`, the byte and what was expected; PAWL_ELIMIT.
 * Integers have 64 bits and a sign. len: SIZE_MAX for a string. */
int value_parse(const char *text, size_t len, const char *what, struct value **ret, struct pawl_error *err);
/* For texts that the program wrote itself: NULL if the text is not JSON. */
struct value *value_from_text(const char *text);
/* One line, members in their order, reals in the shortest form that reads back the same; to
 * mem_free or free. NULL without memory. */
char *value_print(const struct value *v);
enum value_style {
	VALUE_LINE,    /* {"a": 1, "b": 2} */
	VALUE_COMPACT, /* {"a":1,"b":2} */
	VALUE_INDENTED /* a line for each member, two blanks per level */
};
char *value_print_as(const struct value *v, enum value_style style);

struct value *value_ref(const struct value *v);
void value_free(struct value *v);
PAWL_DEFINE_CLEAN(struct value, value_free);

struct value *value_new_null(void);
struct value *value_new_bool(bool boolean);
struct value *value_new_int(int64_t number);
/* Numbers that JSON does not have become the strings "NaN", "Infinity" and "-Infinity". */
struct value *value_new_real(double number);
/* Bytes that are not UTF-8 become question marks. */
struct value *value_new_text(const char *text);
struct value *value_new_text_n(const char *text, size_t len);
struct value *value_new_array(void);
struct value *value_new_object(void);
/* An object of these members; takes the references. VALUE_OBJECT({"e", value_new_text("start")},
 * {"t", ...}) */
struct value *value_new_members(const struct value_member *members, size_t n);
#define VALUE_OBJECT(...)                                             \
	value_new_members((const struct value_member[]){__VA_ARGS__}, \
	                  sizeof((const struct value_member[]){__VA_ARGS__}) / sizeof(struct value_member))
/* An array of these items; takes the references. */
struct value *value_new_items(struct value *const *items, size_t n);
#define VALUE_ARRAY(...)                                      \
	value_new_items((struct value *const[]){__VA_ARGS__}, \
	                sizeof((struct value *const[]){__VA_ARGS__}) / sizeof(struct value *))
/* Copies of the value itself, and of all that it contains. */
struct value *value_copy(const struct value *v);
struct value *value_copy_deep(const struct value *v);

bool value_is(const struct value *v, enum json_type type);
bool value_is_number(const struct value *v); /* an integer or a real */
bool value_is_true(const struct value *v);
/* 0 if the value is another. A real is cut to an integer only by value_number. */
int64_t value_int(const struct value *v);
double value_number(const struct value *v);
/* NULL if the value is not a string. */
const char *value_text(const struct value *v);
size_t value_text_bytes(const struct value *v);
/* A number, or one of the strings of value_new_real. */
bool value_get_number(const struct value *v, double *ret);
/* The same type and content, members in any order. An integer does not equal a real. */
bool value_equal(const struct value *a, const struct value *b);

/* Arrays. A borrowed item; NULL beyond the last and if v is not an array. */
size_t value_n_items(const struct value *v);
struct value *value_item(const struct value *v, size_t i);
bool value_append(struct value *array, struct value *item);
bool value_set_item(struct value *array, size_t i, struct value *item);

/* Objects. A borrowed member; NULL if there is none and if v is not an object. */
size_t value_n_members(const struct value *v);
struct value *value_get(const struct value *v, const char *key);
struct value *value_get_n(const struct value *v, const char *key, size_t key_len);
/* The text of a string member, or NULL. */
const char *value_get_text(const struct value *v, const char *key);
/* The value at "a/b/c"; a key that contains the slash itself comes first. */
struct value *value_at(const struct value *v, const char *path);
/* The key of the first member, or NULL. */
const char *value_first_key(const struct value *v);
/* The i-th member: false beyond the last. */
bool value_member(const struct value *v, size_t i, const char **ret_key, struct value **ret_value);
/* VALUE_MEMBERS (object, key, member) { }  key and member are variables of the caller. Do not
 * remove members meanwhile. */
#define VALUE_MEMBERS(object, key, member) \
	for (size_t key##_at = 0; value_member((object), key##_at, &(key), &(member)); key##_at++)
bool value_set(struct value *object, const char *key, struct value *member);
bool value_set_n(struct value *object, const char *key, size_t key_len, struct value *member);
/* Sets the value at "a/b/c" and makes objects on the way; fails if another value is in the way. */
bool value_set_at(struct value *object, const char *path, struct value *member);
void value_remove(struct value *object, const char *key);
/* The object with a further string member, unless text is NULL. */
struct value *value_with_text(struct value *object, const char *key, const char *text);

#endif
