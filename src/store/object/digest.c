/* SPDX-License-Identifier: Apache-2.0 */
/* digest: see digest.h. P18: no part of a key stays in memory. */
#include "store/object/digest.h"

#include <string.h>

#include "base/err.h"
#include "base/os.h"
#include "store/object/libs.h"

static int
crypto_failed(struct pawl_error *err)
{
	return err_set(err, PAWL_EINTERNAL, "libcrypto cannot make a digest");
}

void
digest_hex(const unsigned char *bytes, size_t n, char *out)
{
	static const char digits[] = "0123456789abcdef";
	for (size_t i = 0; i < n; i++) {
		out[2 * i] = digits[bytes[i] >> 4];
		out[2 * i + 1] = digits[bytes[i] & 15];
	}
	out[2 * n] = '\0';
}

static int
digest_parts(bool md5, const struct pawl_slice *parts, size_t n, unsigned char *out, unsigned *ret_len,
             struct pawl_error *err)
{
	TRY(libs_load(err));
	const struct evp_md_st *kind = md5 ? libs()->EVP_md5() : libs()->EVP_sha256();
	struct evp_md_ctx_st *context = libs()->EVP_MD_CTX_new();
	int ok = context != NULL && libs()->EVP_DigestInit_ex(context, kind, NULL);
	for (size_t i = 0; ok && i < n; i++)
		ok = libs()->EVP_DigestUpdate(context, parts[i].ptr, parts[i].len);
	ok = ok && libs()->EVP_DigestFinal_ex(context, out, ret_len);
	libs()->EVP_MD_CTX_free(context);
	return ok ? 0 : crypto_failed(err);
}

int
digest_sha256(const struct pawl_slice *parts, size_t n, unsigned char out[DIGEST_SHA256_BYTES], struct pawl_error *err)
{
	unsigned char hash[LIBS_MAX_DIGEST];
	unsigned len;
	TRY(digest_parts(false, parts, n, hash, &len, err));
	memcpy(out, hash, DIGEST_SHA256_BYTES);
	return 0;
}

int
digest_sha256_hex(const struct pawl_slice *parts, size_t n, char out[65], struct pawl_error *err)
{
	unsigned char hash[DIGEST_SHA256_BYTES];
	TRY(digest_sha256(parts, n, hash, err));
	digest_hex(hash, DIGEST_SHA256_BYTES, out);
	return 0;
}

int
digest_md5(const struct pawl_slice *parts, size_t n, unsigned char out[DIGEST_MD5_BYTES], struct pawl_error *err)
{
	unsigned char hash[LIBS_MAX_DIGEST];
	unsigned len;
	TRY(digest_parts(true, parts, n, hash, &len, err));
	memcpy(out, hash, DIGEST_MD5_BYTES);
	return 0;
}

int
digest_hmac(const void *key, size_t key_len, const char *text, size_t len, unsigned char out[DIGEST_SHA256_BYTES],
            struct pawl_error *err)
{
	unsigned char hash[LIBS_MAX_DIGEST];
	unsigned n = 0;
	TRY(libs_load(err));
	if (libs()->HMAC(libs()->EVP_sha256(), key, (int)key_len, (const unsigned char *)text, len, hash, &n) == NULL ||
	    n != DIGEST_SHA256_BYTES)
		return crypto_failed(err);
	memcpy(out, hash, DIGEST_SHA256_BYTES);
	os_wipe(hash, sizeof hash);
	return 0;
}
