/* SPDX-License-Identifier: Apache-2.0 */
/* members: see members.h. Promise P17. */
#include "state/members.h"

#include <string.h>

#include "base/err.h"

static const char *
type_name(enum json_type type)
{
	static const char *const names[] = {
		[JSON_NULL] = "null",       [JSON_BOOL] = "a bool",      [JSON_INT] = "an integer",
		[JSON_UINT] = "an integer", [JSON_REAL] = "a float",     [JSON_STRING] = "a string",
		[JSON_ARRAY] = "an array",  [JSON_OBJECT] = "an object",
	};

	return names[type];
}

int
members_take(struct members *r, const char *key, const struct json **ret)
{
	const struct json *member = r->next;

	if (!member || strcmp(member->key, key) != 0) {
		err_set(r->err, PAWL_ECORRUPT, "expected member '%s', found %s%.60s", key,
		        member ? "member " : "the end", member ? member->key : "");
		return PAWL_ECORRUPT;
	}
	r->next = member->next;
	*ret = member;
	return 0;
}

int
members_type(struct members *r, const char *key, enum json_type type, const struct json **ret)
{
	TRY(members_take(r, key, ret));
	if ((*ret)->type != type)
		return err_set(r->err, PAWL_ECORRUPT, "%s: expected %s, found %s", key, type_name(type),
		               type_name((*ret)->type));
	return 0;
}

int
members_u64(struct members *r, const char *key, uint64_t *ret)
{
	const struct json *value = NULL;

	TRY(members_take(r, key, &value));
	if (value->type != JSON_UINT && (value->type != JSON_INT || value->i < 0))
		return err_set(r->err, PAWL_ECORRUPT, "%s: expected an integer, at least 0", key);
	*ret = value->u;
	return 0;
}

int
members_i64(struct members *r, const char *key, int64_t *ret)
{
	const struct json *value = NULL;

	TRY(members_type(r, key, JSON_INT, &value));
	*ret = value->i;
	return 0;
}

int
members_bool(struct members *r, const char *key, bool *ret)
{
	const struct json *value = NULL;

	TRY(members_type(r, key, JSON_BOOL, &value));
	*ret = value->boolean;
	return 0;
}

int
members_hex32(struct members *r, const char *key, char ret[33])
{
	const struct json *value = NULL;

	TRY(members_type(r, key, JSON_STRING, &value));
	if (value->len > 32)
		return err_set(r->err, PAWL_ECORRUPT, "%s: expected 32 hex digits, found %zu characters", key,
		               value->len);
	memcpy(ret, value->str, value->len + 1);
	return 0;
}

int
members_name(struct members *r, const char *key, size_t max_bytes, const char **ret)
{
	const struct json *value = NULL;

	TRY(members_type(r, key, JSON_STRING, &value));
	if (value->len > max_bytes)
		return err_set(r->err, PAWL_ELIMIT, "%s: %zu bytes, at most %zu are possible", key, value->len,
		               max_bytes);
	*ret = bump_strndup(&r->m->memory, value->str, value->len);
	return *ret ? 0 : err_nomem(r->err, NULL);
}

int
members_extents(struct members *r, const char *key, uint32_t *ret_ndim, const uint64_t **ret)
{
	const struct json *array = NULL;

	TRY(members_type(r, key, JSON_ARRAY, &array));
	if (array->len > PAWL_MAX_DIMS)
		return err_set(r->err, PAWL_ELIMIT, "%s: %zu dimensions, at most %d are possible", key, array->len,
		               PAWL_MAX_DIMS);
	uint64_t *extents = bump_array(&r->m->memory, array->len, sizeof(*extents));
	if (!extents)
		return err_nomem(r->err, NULL);
	*ret_ndim = 0;
	for (const struct json *extent = array->first; extent; extent = extent->next) {
		if (extent->type != JSON_UINT && (extent->type != JSON_INT || extent->i < 0))
			return err_set(r->err, PAWL_ECORRUPT, "%s: expected integers, at least 0", key);
		extents[(*ret_ndim)++] = extent->u;
	}
	*ret = extents;
	return 0;
}

int
members_open_row(struct members *r, const struct json *row)
{
	if (row->type != JSON_OBJECT)
		return err_set(r->err, PAWL_ECORRUPT, "expected an object per row, found %s", type_name(row->type));
	r->next = row->first;
	return 0;
}

int
members_close(struct members *r)
{
	if (r->next)
		return err_set(r->err, PAWL_ECORRUPT, "unexpected member '%.60s'", r->next->key);
	return 0;
}
