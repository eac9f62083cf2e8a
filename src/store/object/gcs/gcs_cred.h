/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gcs_cred: credentials for Google Cloud Storage. It finds them where Google's own tools look, in
 * their order; cred.c renews them. A key pair for signing is in access_key and secret_key. A bearer
 * token is in session_token, with access_key "".
 */
#ifndef PAWL_STORE_GCS_CRED_H
#define PAWL_STORE_GCS_CRED_H

#include "store/object/cred.h"

/* A cred_find_fn. If STORAGE_EMULATOR_HOST is set, no credentials are needed: then both are "". */
int gcs_cred_find(const struct cred_where *where, struct cred_keys *ret, struct pawl_error *err);

/* Makes a signed statement (JSON Web Token, RS256) by which a service account requests a token for
 * `audience`. It is valid for an hour from now_s on; key_pem is the private key. PAWL_EAUTH: the
 * key is malformed. */
int gcs_jwt(const char *email, const char *key_id, const char *key_pem, const char *audience, int64_t now_s,
            struct buf *out, struct pawl_error *err);

#endif
