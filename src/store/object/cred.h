/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cred: credentials of object stores. They are checked, held, and renewed before they expire. A
 * cred_find_fn finds them (s3_cred.h, gcs_cred.h, azure_config.c). P18: secrets are stored in
 * struct cred_keys and wiped; no message holds a value.
 */
#ifndef PAWL_STORE_CRED_H
#define PAWL_STORE_CRED_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/mem.h"

struct cred_keys {
	char access_key[256]; /* "" if there is only a token */
	char secret_key[256];
	char session_token[8192]; /* or bearer token, or shared access signature; "" = none */
	int64_t expires_s;        /* unix time; 0 = never */
	char source[160];         /* for people: "the environment", "profile \"x\"", .. */
};
void cred_keys_wipe(struct cred_keys *keys); /* usable as PAWL_CLEAN(cred_keys_wipe) */
/* Checks and copies the values. expiration: "" or NULL, or "2026-11-21T22:00:00Z". */
int cred_keys_set(struct cred_keys *ret, const char *source, const char *access_key, const char *secret_key,
                  const char *session_token, const char *expiration, struct pawl_error *err);
/* Sets only a token; expires_s 0 = never. */
int cred_keys_set_token(struct cred_keys *ret, const char *source, const char *token, int64_t expires_s,
                        struct pawl_error *err);

/* The input of a cred_find_fn. */
struct cred_where {
	const char *region;    /* of S3's token service; else NULL */
	const char *ca_bundle; /* of S3's settings; else NULL */
};
/* Returns 0 or an error; PAWL_EAUTH: none were found. */
typedef int cred_find_fn(const struct cred_where *where, struct cred_keys *ret, struct pawl_error *err);

struct cred;
/* Copies `where`. Looks nothing up yet. */
int cred_new(cred_find_fn *find, const struct cred_where *where, struct cred **ret, struct pawl_error *err);
void cred_free(struct cred *c); /* NULL is fine */
/* Thread-safe. renew: the server refused the last keys, so look again. PAWL_EAUTH: there are none,
 * or a configured source fails. */
int cred_get(struct cred *c, bool renew, struct cred_keys *ret, struct pawl_error *err);

const char *cred_env(const char *name); /* NULL also when empty */
void cred_wipe_buf(struct buf *b);      /* wipes and clears; usable as PAWL_CLEAN(cred_wipe_buf) */
struct http_call;
void cred_wipe_call(struct http_call *call); /* wipes the answer; usable as PAWL_CLEAN(cred_wipe_call) */
struct http;
void cred_close_http(struct http **h); /* usable as PAWL_CLEAN(cred_close_http) */
/* Follows links. *out stays empty if the file does not exist. PAWL_EAUTH: all users may write to
 * it. */
int cred_read_file(const char *path, struct buf *out, struct pawl_error *err);
/* By the status of its answer: a busy service may give the credentials later. */
bool cred_is_busy(int status);
struct json;
const char *cred_member(const struct json *object, const char *name); /* a string, or NULL */
void cred_wipe_member(const struct json *object, const char *name);

#endif
