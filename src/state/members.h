/* SPDX-License-Identifier: Apache-2.0 */
/*
 * members: the members of a manifest's objects, in their order. Each must have the expected key
 * and type. Errors name the key and the value found.
 */
#ifndef PAWL_MEMBERS_H
#define PAWL_MEMBERS_H

#include "base/json.h"
#include "state/manifest.h"

struct members {
	struct manifest *m;      /* its memory holds the results */
	const struct json *next; /* member that is read next; NULL = there is none */
	struct pawl_error *err;
	uint64_t version; /* of the manifest */
};

/* The members of one row of an array come next. */
int members_open_row(struct members *r, const struct json *row);
/* Fails if a member is left. */
int members_close(struct members *r);

/* Takes the next member, which must have this key: unconverted, or as a value of a type. */
int members_take(struct members *r, const char *key, const struct json **ret);
int members_type(struct members *r, const char *key, enum json_type type, const struct json **ret);
int members_u64(struct members *r, const char *key, uint64_t *ret);
int members_i64(struct members *r, const char *key, int64_t *ret);
int members_bool(struct members *r, const char *key, bool *ret);
/* At most 32 characters; their values are checked later. */
int members_hex32(struct members *r, const char *key, char ret[33]);
/* A text of at most max_bytes bytes (PAWL_ELIMIT), copied. */
int members_name(struct members *r, const char *key, size_t max_bytes, const char **ret);
/* An array of unsigned integers, at most PAWL_MAX_DIMS (PAWL_ELIMIT). */
int members_extents(struct members *r, const char *key, uint32_t *ret_ndim, const uint64_t **ret);

#endif
