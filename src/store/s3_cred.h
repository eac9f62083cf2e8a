/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_cred: who signs. Finds credentials where AWS tools look for them, in their order, and renews them before they expire.
 *   s3_cred.c          the order, the environment, renewal
 *   s3_cred_profile.c  the files ~/.aws/credentials and ~/.aws/config
 *   s3_cred_net.c      container, web identity, instance metadata
 * P18: what is secret lies in struct s3_keys and is wiped; no message holds a value.
 */
#ifndef PAWL_STORE_S3_CRED_H
#define PAWL_STORE_S3_CRED_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/mem.h"

struct s3_keys {
	char access_key[256];
	char secret_key[256];
	char session_token[8192]; /* "" = none */
	int64_t expires_s;        /* unix time; 0 = never */
	char source[160];         /* for people: "the environment", "profile \"x\"", .. */
};
void s3_keys_wipe(struct s3_keys *keys); /* usable as PAWL_CLEAN(s3_keys_wipe) */

/* One profile's settings from both files; nested ones are named "s3.addressing_style", those of its services section
 * "services.s3.endpoint_url". */
struct s3_setting {
	const char *key;
	char *value;
	struct s3_setting *next;
};
struct s3_profile {
	struct bump memory;
	struct s3_setting *first;
	char name[160];
	bool named; /* by AWS_PROFILE: it must be there */
	bool found;
};
/* Reads the profile of AWS_PROFILE or "default". Missing files are fine. PAWL_EUSAGE: a named profile is in neither
 * file; PAWL_EAUTH: others may write to a file. */
int s3_profile_read(struct s3_profile *ret, struct pawl_error *err);
const char *s3_profile_get(const struct s3_profile *p, const char *key); /* or NULL; never "" */
void s3_profile_clear(struct s3_profile *p);                             /* wipes */

struct s3_cred;
/* region: of the token service; ca_bundle may be NULL. Looks nothing up yet. */
int s3_cred_new(const char *region, const char *ca_bundle, struct s3_cred **ret, struct pawl_error *err);
void s3_cred_free(struct s3_cred *c);
/* Thread-safe. renew: the ones that were given last are refused, look again. PAWL_EAUTH: there are none, or a source that
 * is configured fails. */
int s3_cred_get(struct s3_cred *c, bool renew, struct s3_keys *ret, struct pawl_error *err);

/* For the parts of s3_cred. */

const char *s3_env(const char *name); /* NULL also when empty */
/* Checks and copies; expiration "" or NULL, or "2026-11-21T22:00:00Z". */
int s3_keys_set(struct s3_keys *ret, const char *source, const char *access_key, const char *secret_key,
                const char *session_token, const char *expiration, struct pawl_error *err);
/* From a JSON object with AccessKeyId, SecretAccessKey, token_name and Expiration. Wipes the text. */
int s3_keys_from_json(struct s3_keys *ret, const char *source, const char *token_name, struct buf *text,
                      struct pawl_error *err);
int64_t s3_parse_time(const char *text); /* unix seconds; -1 if it is no such time */

/* Each: 1 and *ret, 0 if it is not configured or not there, or an error. */
int s3_cred_container(struct s3_keys *ret, const char *ca_bundle, struct pawl_error *err);
int s3_cred_web_identity(const char *token_file, const char *role, const char *session, const char *region,
                         const char *ca_bundle, struct s3_keys *ret, struct pawl_error *err);
int s3_cred_instance(struct s3_keys *ret, struct pawl_error *err);

#endif
