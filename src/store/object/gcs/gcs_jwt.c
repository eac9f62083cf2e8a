/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gcs_jwt: the statement by which a service account requests a token. See gcs_cred.h. P18:
 * libcrypto wipes the key, and the caller wipes the statement.
 */
#include "store/object/gcs/gcs_cred.h"

#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/text.h"
#include "store/object/libs.h"

#define SCOPE "https://www.googleapis.com/auth/devstorage.read_write"
#define LIFE_SECONDS 3600
#define MAX_SIGNATURE_BYTES 1024 /* of a key of 8,192 bits */

/* Appends base64 for URLs, without padding. */
static void
put_base64url(struct buf *out, const void *ptr, size_t len)
{
	PAWL_CLEAN(cred_wipe_buf) struct buf text = {0};
	text_put_base64(&text, ptr, len);
	for (size_t i = 0; i < text.len && text.ptr[i] != '='; i++)
		buf_putc(out, text.ptr[i] == '+' ? '-' : text.ptr[i] == '/' ? '_' : text.ptr[i]);
}

static void
put_header(struct buf *out, const char *key_id)
{
	PAWL_CLEAN(buf_clear) struct buf json = {0};
	buf_putc(&json, '{');
	json_add_text(&json, "alg", "RS256");
	json_add_text(&json, "typ", "JWT");
	if (key_id != NULL)
		json_add_text(&json, "kid", key_id);
	buf_putc(&json, '}');
	put_base64url(out, json.ptr, json.len);
}

static void
put_claims(struct buf *out, const char *email, const char *audience, int64_t now_s)
{
	PAWL_CLEAN(buf_clear) struct buf json = {0};
	buf_putc(&json, '{');
	json_add_text(&json, "iss", email);
	json_add_text(&json, "scope", SCOPE);
	json_add_text(&json, "aud", audience);
	json_add_i64(&json, "iat", now_s);
	json_add_i64(&json, "exp", now_s + LIFE_SECONDS);
	buf_putc(&json, '}');
	put_base64url(out, json.ptr, json.len);
}

/* Our keys are not encrypted. Without this function libcrypto would ask for a password on the
 * terminal. */
static int
no_password(char *buf, int size, int rwflag, void *arg)
{
	(void)buf, (void)size, (void)rwflag, (void)arg;
	return 0;
}

static struct evp_pkey_st *
read_key(const char *pem)
{
	struct bio_st *bio = libs()->BIO_new_mem_buf(pem, (int)strlen(pem));
	struct evp_pkey_st *key = bio != NULL ? libs()->PEM_read_bio_PrivateKey(bio, NULL, no_password, NULL) : NULL;
	libs()->BIO_free(bio);
	return key;
}

static int
sign_text(struct evp_pkey_st *key, const struct buf *text, unsigned char *out, size_t *ret_len, struct pawl_error *err)
{
	struct evp_md_ctx_st *context = libs()->EVP_MD_CTX_new();
	int ok = context != NULL && libs()->EVP_DigestSignInit(context, NULL, libs()->EVP_sha256(), NULL, key) == 1;
	*ret_len = MAX_SIGNATURE_BYTES;
	ok = ok && libs()->EVP_DigestSign(context, out, ret_len, (const unsigned char *)text->ptr, text->len) == 1;
	libs()->EVP_MD_CTX_free(context);
	return ok ? 0 : err_set(err, PAWL_EAUTH, "the private key of the service account cannot sign");
}

int
gcs_jwt(const char *email, const char *key_id, const char *key_pem, const char *audience, int64_t now_s,
        struct buf *out, struct pawl_error *err)
{
	unsigned char signature[MAX_SIGNATURE_BYTES];
	size_t len = 0;
	TRY(libs_load(err));
	struct evp_pkey_st *key = read_key(key_pem);
	if (key == NULL || libs()->EVP_PKEY_get_base_id(key) != LIBS_RSA ||
	    libs()->EVP_PKEY_get_size(key) > MAX_SIGNATURE_BYTES) {
		libs()->EVP_PKEY_free(key);
		return err_set(err, PAWL_EAUTH, "the private key of the service account is malformed");
	}
	put_header(out, key_id);
	buf_putc(out, '.');
	put_claims(out, email, audience, now_s);
	int rc = buf_check(out, "service account", err);
	if (rc == 0)
		rc = sign_text(key, out, signature, &len, err);
	libs()->EVP_PKEY_free(key);
	TRY(rc);
	buf_putc(out, '.');
	put_base64url(out, signature, len);
	return buf_check(out, "service account", err);
}
