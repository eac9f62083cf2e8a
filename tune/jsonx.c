/* SPDX-License-Identifier: Apache-2.0 */
/* jsonx: JSON as the search uses it. Called by all of tune but the schedulers; calls jansson; jsonx_parse.c reads. */
#include "jsonx.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void
jsonx_release(json_t **value)
{
	json_decref(*value);
	*value = NULL;
}

void
jsonx_free(char **text)
{
	free(*text);
	*text = NULL;
}

/* ---- text ---- */

struct text {
	char *ptr;
	size_t len, cap;
	bool failed;
};

static void
put(struct text *t, const char *bytes, size_t len)
{
	if (t->len + len + 1 > t->cap) {
		size_t cap = t->cap ? t->cap : 128;
		char *more;
		while (cap < t->len + len + 1)
			cap *= 2;
		more = t->failed ? NULL : realloc(t->ptr, cap);
		t->failed = !more;
		if (!more)
			return;
		t->ptr = more;
		t->cap = cap;
	}
	memcpy(t->ptr + t->len, bytes, len);
	t->len += len;
	t->ptr[t->len] = '\0';
}

static void
puts_to(struct text *t, const char *bytes)
{
	put(t, bytes, strlen(bytes));
}

static void
put_string(struct text *t, const char *bytes, size_t len)
{
	char escaped[8];

	put(t, "\"", 1);
	for (size_t i = 0, from = 0; i <= len; i++) {
		const unsigned char c = i < len ? (unsigned char)bytes[i] : '"';
		if (c >= 0x20 && c != '"' && c != '\\')
			continue;
		put(t, bytes + from, i - from);
		from = i + 1;
		if (i == len)
			break;
		if (c == '"' || c == '\\')
			snprintf(escaped, sizeof(escaped), "\\%c", c);
		else if (c == '\n')
			snprintf(escaped, sizeof(escaped), "\\n");
		else if (c == '\t')
			snprintf(escaped, sizeof(escaped), "\\t");
		else
			snprintf(escaped, sizeof(escaped), "\\u%04x", c);
		puts_to(t, escaped);
	}
	put(t, "\"", 1);
}

/* A point and no comma, whatever the locale; and a mark that it is no integer. */
static void
put_real(struct text *t, double value)
{
	char digits[40];
	char *comma;

	for (int n = 15; n <= 17; n++) {
		snprintf(digits, sizeof(digits), "%.*g", n, value);
		if (strtod(digits, NULL) == value)
			break;
	}
	comma = strchr(digits, ',');
	if (comma)
		*comma = '.';
	puts_to(t, digits);
	if (!strpbrk(digits, ".e"))
		puts_to(t, ".0");
}

static void
dump(struct text *t, const json_t *value)
{
	const char *key;
	char digits[32];
	json_t *item;
	size_t i;
	bool first = true;

	switch (json_typeof(value)) {
	case JSON_OBJECT:
		put(t, "{", 1);
		json_object_foreach((json_t *)value, key, item)
		{
			puts_to(t, first ? "" : ", ");
			put_string(t, key, strlen(key));
			puts_to(t, ": ");
			dump(t, item);
			first = false;
		}
		put(t, "}", 1);
		break;
	case JSON_ARRAY:
		put(t, "[", 1);
		json_array_foreach(value, i, item)
		{
			puts_to(t, i ? ", " : "");
			dump(t, item);
		}
		put(t, "]", 1);
		break;
	case JSON_STRING:
		put_string(t, json_string_value(value), json_string_length(value));
		break;
	case JSON_INTEGER:
		snprintf(digits, sizeof(digits), "%" JSON_INTEGER_FORMAT, json_integer_value(value));
		puts_to(t, digits);
		break;
	case JSON_REAL:
		put_real(t, json_real_value(value));
		break;
	case JSON_TRUE:
		puts_to(t, "true");
		break;
	case JSON_FALSE:
		puts_to(t, "false");
		break;
	case JSON_NULL:
		puts_to(t, "null");
		break;
	}
}

char *
jsonx_dump(const json_t *value)
{
	struct text t = {0};

	dump(&t, value);
	if (t.failed) {
		free(t.ptr);
		return NULL;
	}
	return t.ptr;
}

/* ---- numbers and paths ---- */

bool
jsonx_number(const json_t *value, double *ret)
{
	const char *text = json_string_value(value);

	if (json_is_number(value))
		*ret = json_number_value(value);
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

json_t *
jsonx_real(double value)
{
	if (isfinite(value))
		return json_real(value);
	return json_string(isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity");
}

json_t *
jsonx_at(const json_t *object, const char *path)
{
	json_t *found = json_object_get(object, path);
	const char *slash = strchr(path, '/');

	if (found || !slash)
		return found;
	found = json_object_getn(object, path, (size_t)(slash - path));
	return json_is_object(found) ? jsonx_at(found, slash + 1) : NULL;
}

bool
jsonx_put(json_t *object, const char *path, json_t *value)
{
	const char *slash = strchr(path, '/');
	json_t *inner;

	if (!value)
		return false;
	if (!slash || json_object_get(object, path))
		return json_object_set_new(object, path, value) == 0;
	inner = json_object_getn(object, path, (size_t)(slash - path));
	if (!inner) {
		inner = json_object();
		if (json_object_setn_new(object, path, (size_t)(slash - path), inner) < 0)
			inner = NULL;
	}
	if (json_is_object(inner))
		return jsonx_put(inner, slash + 1, value);
	json_decref(value);
	return false;
}

const char *
jsonx_text(const json_t *object, const char *key)
{
	return json_string_value(json_object_get(object, key));
}

json_t *
jsonx_with(json_t *object, const char *key, const char *text)
{
	JSONX_CLEAN json_t *owned = object;
	JSONX_TEXT char *clean = text ? strdup(text) : NULL;
	const char *end;
	size_t n;

	if (!owned || (text && !clean))
		return NULL;
	end = clean ? clean + strlen(clean) : NULL;
	for (char *c = clean; c < end; c += n ? n : 1) {
		n = jsonx_utf8_bytes(c, end);
		if (n == 0)
			*c = '?';
	}
	if (clean && json_object_set_new(owned, key, json_string(clean)) < 0)
		return NULL;
	return json_incref(owned);
}

/* ---- copies ---- */

json_t *
jsonx_copy(const json_t *value)
{
	JSONX_CLEAN json_t *copy = json_copy((json_t *)value);

	if (copy &&
	    (json_object_size(copy) != json_object_size(value) || json_array_size(copy) != json_array_size(value)))
		return NULL;
	return json_incref(copy);
}

json_t *
jsonx_deep_copy(const json_t *value)
{
	JSONX_CLEAN json_t *copy = jsonx_copy(value);
	const char *key;
	json_t *item;
	size_t i;

	json_object_foreach((json_t *)value, key, item)
	{
		if (copy && json_object_set_new(copy, key, jsonx_deep_copy(item)) < 0)
			return NULL;
	}
	json_array_foreach(value, i, item)
	{
		if (copy && json_array_set_new(copy, i, jsonx_deep_copy(item)) < 0)
			return NULL;
	}
	return json_incref(copy);
}
