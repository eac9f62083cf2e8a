/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_azure: shared by the parts of the engine for Azure Blob storage.
 *
 *   azure_config.c    account, endpoint and credentials, from URL and environment
 *   azure_sign.c      SharedKey
 *   store_azure.c     the requests
 */
#ifndef PAWL_STORE_STORE_AZURE_H
#define PAWL_STORE_STORE_AZURE_H

#include "store/object/object.h"

int azure_config_read(const char *url, struct object_config *ret, struct pawl_error *err);
/* A cred_find_fn: account and key, or a shared access signature as session_token. */
int azure_cred_find(const struct cred_where *where, struct cred_keys *ret, struct pawl_error *err);

/* Value of the Authorization header: SharedKey over method, headers, path and query as they are
 * sent. content_length 0 = no body. */
int azure_sign(const char *account, const char *key, const char *method, const struct http_header *headers,
               size_t n_headers, uint64_t content_length, const char *path, const char *query, struct buf *out,
               struct pawl_error *err);

#endif
