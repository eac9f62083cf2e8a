/* SPDX-License-Identifier: Apache-2.0 */
/* json_get: typed look-ups in what json.c has read. */
#include <string.h>

#include "base/err.h"
#include "base/json.h"

static const char *
type_name(enum json_type type)
{
	switch (type) {
	case JSON_NULL:
		return "null";
	case JSON_BOOL:
		return "a boolean";
	case JSON_INT:
	case JSON_UINT:
		return "an integer";
	case JSON_REAL:
		return "a number";
	case JSON_STRING:
		return "a string";
	case JSON_ARRAY:
		return "an array";
	case JSON_OBJECT:
		return "an object";
	}
	return "something else";
}

const struct json *
json_get(const struct json *object, const char *key)
{
	if (!object || object->type != JSON_OBJECT)
		return NULL;
	size_t len = strlen(key);
	for (const struct json *member = object->first; member; member = member->next)
		if (member->key_len == len && memcmp(member->key, key, len) == 0)
			return member;
	return NULL;
}

static int
fail_member(const char *what, const char *key, const char *expected, const struct json *found, struct pawl_error *err)
{
	return err_set(err, PAWL_ECORRUPT, "%s: \"%s\": expected %s, found %s", what, key, expected,
	               found ? type_name(found->type) : "nothing");
}

int
json_get_u64(const char *what, const struct json *object, const char *key, uint64_t *ret, struct pawl_error *err)
{
	const struct json *member = json_get(object, key);

	if (member && member->type == JSON_INT && member->i < 0)
		return err_set(err, PAWL_ECORRUPT, "%s: \"%s\": expected a non-negative integer, found %lld", what, key,
		               (long long)member->i);
	if (!member || (member->type != JSON_INT && member->type != JSON_UINT))
		return fail_member(what, key, "a non-negative integer", member, err);
	*ret = member->u;
	return 0;
}

int
json_get_i64(const char *what, const struct json *object, const char *key, int64_t *ret, struct pawl_error *err)
{
	const struct json *member = json_get(object, key);

	if (member && member->type == JSON_UINT)
		return err_set(err, PAWL_ECORRUPT, "%s: \"%s\": expected an integer below 2^63, found %llu", what, key,
		               (unsigned long long)member->u);
	if (!member || member->type != JSON_INT)
		return fail_member(what, key, "an integer", member, err);
	*ret = member->i;
	return 0;
}

int
json_get_str(const char *what, const struct json *object, const char *key, const char **ret, struct pawl_error *err)
{
	const struct json *member = json_get(object, key);

	if (!member || member->type != JSON_STRING)
		return fail_member(what, key, type_name(JSON_STRING), member, err);
	*ret = member->str;
	return 0;
}

int
json_get_type(const char *what, const struct json *object, const char *key, enum json_type type,
              const struct json **ret, struct pawl_error *err)
{
	const struct json *member = json_get(object, key);

	bool integer = member && (member->type == JSON_INT || member->type == JSON_UINT);
	if (!member || (member->type != type && !(type == JSON_REAL && integer)))
		return fail_member(what, key, type_name(type), member, err);
	*ret = member;
	return 0;
}
