/* SPDX-License-Identifier: Apache-2.0 */
/* digest: SHA-256, MD5 and HMAC by libcrypto. PAWL_EINTERNAL if it fails. */
#ifndef PAWL_STORE_DIGEST_H
#define PAWL_STORE_DIGEST_H

#include <stddef.h>

#include "pawl.h"

enum { DIGEST_MD5_BYTES = 16, DIGEST_SHA256_BYTES = 32 };

/* Over the concatenation of all slices. */
int digest_sha256(const struct pawl_slice *parts, size_t n, unsigned char out[DIGEST_SHA256_BYTES],
                  struct pawl_error *err);
int digest_sha256_hex(const struct pawl_slice *parts, size_t n, char out[65], struct pawl_error *err);
int digest_md5(const struct pawl_slice *parts, size_t n, unsigned char out[DIGEST_MD5_BYTES], struct pawl_error *err);
/* HMAC-SHA256. */
int digest_hmac(const void *key, size_t key_len, const char *text, size_t len, unsigned char out[DIGEST_SHA256_BYTES],
                struct pawl_error *err);
/* Writes 2 * n digits in lower case and a NUL. */
void digest_hex(const unsigned char *bytes, size_t n, char *out);

#endif
