/* SPDX-License-Identifier: Apache-2.0 */
/* value: making, reading and changing values; value_text.c reads and prints them. */
#include "base/value.h"

#include <math.h>
#include <string.h>

#include "base/text.h"
#include "base/value_own.h"

struct value *
value_ref(const struct value *v)
{
	struct value *counted = (struct value *)(uintptr_t)v;

	if (counted)
		counted->n_refs++;
	return counted;
}

void
value_free(struct value *v)
{
	if (!v || --v->n_refs > 0)
		return;
	for (size_t i = 0; i < v->parts.n; i++) {
		mem_free(v->parts.items[i].key);
		value_free(v->parts.items[i].value);
	}
	vec_free(&v->parts);
	mem_free(v);
}

/* ---- making ---- */

static struct value *
new_value(enum json_type type, size_t text_bytes)
{
	struct value *v = mem_zalloc(1, sizeof(*v) + text_bytes);

	if (!v)
		return NULL;
	v->type = type;
	v->n_refs = 1;
	return v;
}

static struct value *
new_integer(enum json_type type, int64_t number)
{
	struct value *v = new_value(type, 0);

	if (v)
		v->integer = number;
	return v;
}

struct value *
value_new_null(void)
{
	return new_value(JSON_NULL, 0);
}

struct value *
value_new_bool(bool boolean)
{
	return new_integer(JSON_BOOL, boolean);
}

struct value *
value_new_int(int64_t number)
{
	return new_integer(JSON_INT, number);
}

struct value *
value_new_real(double number)
{
	struct value *v;

	if (!isfinite(number))
		return value_new_text(isnan(number) ? "NaN" : number > 0 ? "Infinity" : "-Infinity");
	v = new_value(JSON_REAL, 0);
	if (v)
		v->real = number;
	return v;
}

struct value *
value_new_text_n(const char *text, size_t len)
{
	struct value *v = new_value(JSON_STRING, len + 1);
	size_t n;

	if (!v)
		return NULL;
	v->text_bytes = len;
	for (size_t at = 0; at < len; at += n) {
		n = text[at] != '\0' ? text_utf8_char(text + at, len - at) : 0;
		if (n > 0)
			memcpy(v->text + at, text + at, n);
		else
			v->text[at] = '?';
		n += n == 0;
	}
	return v;
}

struct value *
value_new_text(const char *text)
{
	return text ? value_new_text_n(text, strlen(text)) : NULL;
}

struct value *
value_new_array(void)
{
	return new_value(JSON_ARRAY, 0);
}

struct value *
value_new_object(void)
{
	return new_value(JSON_OBJECT, 0);
}

struct value *
value_new_members(const struct value_member *members, size_t n)
{
	struct value *v = value_new_object();
	bool ok = v;

	for (size_t i = 0; i < n; i++)
		ok &= value_set(v, members[i].key, members[i].value);
	if (ok)
		return v;
	value_free(v);
	return NULL;
}

struct value *
value_new_items(struct value *const *items, size_t n)
{
	struct value *v = value_new_array();
	bool ok = v;

	for (size_t i = 0; i < n; i++)
		ok &= value_append(v, items[i]);
	if (ok)
		return v;
	value_free(v);
	return NULL;
}

/* Takes both references. key: NULL in an array. */
bool
value_add_part(struct value *v, char *key, size_t key_len, struct value *part)
{
	struct value_part *added = NULL;

	if (part)
		added = vec_add(&v->parts);
	if (!added) {
		mem_free(key);
		value_free(part);
		return false;
	}
	*added = (struct value_part){.key = key, .key_len = key_len, .value = part};
	return true;
}

static struct value *
copy_value(const struct value *v, bool deep)
{
	PAWL_CLEAN(value_free_clean) struct value *copy = v ? new_value(v->type, v->text_bytes + 1) : NULL;

	if (!copy)
		return NULL;
	copy->integer = v->integer;
	copy->real = v->real;
	copy->text_bytes = v->text_bytes;
	if (v->type == JSON_STRING)
		memcpy(copy->text, v->text, v->text_bytes);
	for (size_t i = 0; i < v->parts.n; i++) {
		const struct value_part *part = &v->parts.items[i];
		char *key = part->key ? mem_strndup(part->key, part->key_len) : NULL;
		if (part->key && !key)
			return NULL;
		if (!value_add_part(copy, key, part->key_len,
		                    deep ? copy_value(part->value, true) : value_ref(part->value)))
			return NULL;
	}
	return steal(&copy);
}

struct value *
value_copy(const struct value *v)
{
	return copy_value(v, false);
}

struct value *
value_copy_deep(const struct value *v)
{
	return copy_value(v, true);
}

/* ---- reading ---- */

bool
value_is(const struct value *v, enum json_type type)
{
	return v && v->type == type;
}

bool
value_is_number(const struct value *v)
{
	return value_is(v, JSON_INT) || value_is(v, JSON_REAL);
}

bool
value_is_true(const struct value *v)
{
	return value_is(v, JSON_BOOL) && v->integer;
}

int64_t
value_int(const struct value *v)
{
	return value_is(v, JSON_INT) ? v->integer : 0;
}

double
value_number(const struct value *v)
{
	return value_is(v, JSON_REAL) ? v->real : (double)value_int(v);
}

const char *
value_text(const struct value *v)
{
	return value_is(v, JSON_STRING) ? v->text : NULL;
}

size_t
value_text_bytes(const struct value *v)
{
	return value_is(v, JSON_STRING) ? v->text_bytes : 0;
}

bool
value_get_number(const struct value *v, double *ret)
{
	const char *text = value_text(v);

	if (value_is_number(v))
		*ret = value_number(v);
	else if (text && strcmp(text, "NaN") == 0)
		*ret = NAN;
	else if (text && strcmp(text, "Infinity") == 0)
		*ret = HUGE_VAL;
	else if (text && strcmp(text, "-Infinity") == 0)
		*ret = -HUGE_VAL;
	else
		return false;
	return true;
}

bool
value_equal(const struct value *a, const struct value *b)
{
	if (a == b)
		return true;
	if (!a || !b || a->type != b->type || a->integer != b->integer || a->parts.n != b->parts.n ||
	    a->text_bytes != b->text_bytes)
		return false;
	if (a->type == JSON_REAL)
		return a->real == b->real;
	if (a->type == JSON_STRING)
		return memcmp(a->text, b->text, a->text_bytes) == 0;
	for (size_t i = 0; i < a->parts.n; i++) {
		const struct value_part *part = &a->parts.items[i];
		const struct value *other =
			part->key ? value_get_n(b, part->key, part->key_len) : b->parts.items[i].value;
		if (!other || !value_equal(part->value, other))
			return false;
	}
	return true;
}

/* ---- arrays ---- */

size_t
value_n_items(const struct value *v)
{
	return value_is(v, JSON_ARRAY) ? v->parts.n : 0;
}

struct value *
value_item(const struct value *v, size_t i)
{
	return i < value_n_items(v) ? v->parts.items[i].value : NULL;
}

bool
value_append(struct value *array, struct value *item)
{
	if (value_is(array, JSON_ARRAY))
		return value_add_part(array, NULL, 0, item);
	value_free(item);
	return false;
}

static bool
replace_part(struct value_part *part, struct value *by)
{
	if (!by)
		return false;
	value_free(part->value);
	part->value = by;
	return true;
}

bool
value_set_item(struct value *array, size_t i, struct value *item)
{
	if (i < value_n_items(array))
		return replace_part(&array->parts.items[i], item);
	value_free(item);
	return false;
}

/* ---- objects ---- */

size_t
value_n_members(const struct value *v)
{
	return value_is(v, JSON_OBJECT) ? v->parts.n : 0;
}

static struct value_part *
find_member(const struct value *v, const char *key, size_t key_len)
{
	for (size_t i = 0; i < value_n_members(v); i++) {
		struct value_part *part = &v->parts.items[i];
		if (part->key_len == key_len && memcmp(part->key, key, key_len) == 0)
			return part;
	}
	return NULL;
}

struct value *
value_get_n(const struct value *v, const char *key, size_t key_len)
{
	struct value_part *part = find_member(v, key, key_len);

	return part ? part->value : NULL;
}

struct value *
value_get(const struct value *v, const char *key)
{
	return value_get_n(v, key, strlen(key));
}

const char *
value_get_text(const struct value *v, const char *key)
{
	return value_text(value_get(v, key));
}

struct value *
value_at(const struct value *v, const char *path)
{
	struct value *found = value_get(v, path);
	const char *slash = strchr(path, '/');

	if (found || !slash)
		return found;
	return value_at(value_get_n(v, path, (size_t)(slash - path)), slash + 1);
}

const char *
value_first_key(const struct value *v)
{
	return value_n_members(v) > 0 ? v->parts.items[0].key : NULL;
}

bool
value_member(const struct value *v, size_t i, const char **ret_key, struct value **ret_value)
{
	if (i >= value_n_members(v))
		return false;
	*ret_key = v->parts.items[i].key;
	*ret_value = v->parts.items[i].value;
	return true;
}

bool
value_set_n(struct value *object, const char *key, size_t key_len, struct value *member)
{
	struct value_part *part = find_member(object, key, key_len);
	char *name;

	if (part)
		return replace_part(part, member);
	name = value_is(object, JSON_OBJECT) && member ? mem_strndup(key, key_len) : NULL;
	if (name)
		return value_add_part(object, name, key_len, member);
	value_free(member);
	return false;
}

bool
value_set(struct value *object, const char *key, struct value *member)
{
	return value_set_n(object, key, strlen(key), member);
}

bool
value_set_at(struct value *object, const char *path, struct value *member)
{
	const char *slash = strchr(path, '/');
	struct value *inner;
	size_t key_len;

	if (!slash || value_get(object, path))
		return value_set(object, path, member);
	key_len = (size_t)(slash - path);
	if (!value_get_n(object, path, key_len) && !value_set_n(object, path, key_len, value_new_object())) {
		value_free(member);
		return false;
	}
	inner = value_get_n(object, path, key_len);
	return value_set_at(inner, slash + 1, member);
}

void
value_remove(struct value *object, const char *key)
{
	struct value_part *part = find_member(object, key, strlen(key));

	if (!part)
		return;
	mem_free(part->key);
	value_free(part->value);
	object->parts.n--;
	memmove(part, part + 1, (size_t)(object->parts.items + object->parts.n - part) * sizeof(*part));
}

struct value *
value_with_text(struct value *object, const char *key, const char *text)
{
	if (!text || value_set(object, key, value_new_text(text)))
		return object;
	value_free(object);
	return NULL;
}
