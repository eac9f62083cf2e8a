/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_cred: credentials for S3. It finds them where AWS tools look, in their order; cred.c renews
 * them.
 *
 *   s3_cred.c          the order, the environment
 *   s3_cred_profile.c  the files ~/.aws/credentials and ~/.aws/config
 *   s3_cred_net.c      container, web identity, instance metadata
 *
 * P18: secrets are stored in struct cred_keys and wiped; no message holds a value.
 */
#ifndef PAWL_STORE_S3_CRED_H
#define PAWL_STORE_S3_CRED_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/bump.h"
#include "base/mem.h"
#include "store/object/cred.h"

/* Settings of one profile from both files. Nested ones are named "s3.addressing_style", those of
 * its services section "services.s3.endpoint_url". */
struct s3_setting {
	const char *key;
	char *value;
	struct s3_setting *next;
};
struct s3_profile {
	struct bump memory;
	struct s3_setting *first;
	char name[160];
	bool named; /* by AWS_PROFILE: it must exist */
	bool found;
};
/* Reads the profile of AWS_PROFILE or "default". Missing files are allowed. PAWL_EUSAGE: a named
 * profile is in neither file. PAWL_EAUTH: other users may write to a file. */
int s3_profile_read(struct s3_profile *ret, struct pawl_error *err);
const char *s3_profile_get(const struct s3_profile *p, const char *key); /* or NULL; never "" */
void s3_profile_clear(struct s3_profile *p);                             /* wipes */

/* A cred_find_fn: uses the first source that has credentials. */
int s3_cred_find(const struct cred_where *where, struct cred_keys *ret, struct pawl_error *err);

/* For the parts of s3_cred. */

/* Reads a JSON object with AccessKeyId, SecretAccessKey, token_name and Expiration. Wipes the
 * text. */
int s3_keys_from_json(struct cred_keys *ret, const char *source, const char *token_name, struct buf *text,
                      struct pawl_error *err);

/* Each returns 1 and *ret, 0 if it is not configured or does not exist, or an error. */
int s3_cred_container(struct cred_keys *ret, const char *ca_bundle, struct pawl_error *err);
int s3_cred_web_identity(const char *token_file, const char *role, const char *session, const char *region,
                         const char *ca_bundle, struct cred_keys *ret, struct pawl_error *err);
int s3_cred_instance(struct cred_keys *ret, struct pawl_error *err);

#endif
