/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libs: libcurl and libcrypto, loaded when the first bucket is opened. So pawl installs and runs
 * where they are missing, and uses the versions and certificates of the system.
 *
 * Thread-safe.
 */
#ifndef PAWL_OBJECT_LIBS_H
#define PAWL_OBJECT_LIBS_H

#include <curl/curl.h>
#include <stddef.h>

#include "pawl.h"

struct bio_st;
struct evp_md_ctx_st;
struct evp_md_st;
struct evp_pkey_st;
typedef int libs_password_fn(char *buf, int size, int rwflag, void *arg);

/* clang-format off */
/* X(name) for each function of libcurl, without its prefix. */
#define LIBS_CURL(X) \
	X(easy_cleanup) X(easy_getinfo) X(easy_init) X(easy_reset) X(easy_setopt) X(easy_strerror) \
	X(global_init) X(version_info) X(slist_append) X(slist_free_all) \
	X(multi_add_handle) X(multi_cleanup) X(multi_info_read) X(multi_init) X(multi_perform) \
	X(multi_poll) X(multi_remove_handle) X(multi_setopt)
/* clang-format on */

/* X(type, name, older name, arguments) for each function of libcrypto. Their types are the same in
 * versions 1.1 and 3, so its headers are not needed. */
#define LIBS_CRYPTO(X)                                                                                      \
	X(struct bio_st *, BIO_new_mem_buf, NULL, (const void *ptr, int len))                               \
	X(int, BIO_free, NULL, (struct bio_st *))                                                           \
	X(struct evp_pkey_st *, PEM_read_bio_PrivateKey, NULL,                                              \
	  (struct bio_st *, struct evp_pkey_st **, libs_password_fn *, void *arg))                          \
	X(int, EVP_PKEY_get_base_id, "EVP_PKEY_base_id", (const struct evp_pkey_st *))                      \
	X(int, EVP_PKEY_get_size, "EVP_PKEY_size", (const struct evp_pkey_st *))                            \
	X(void, EVP_PKEY_free, NULL, (struct evp_pkey_st *))                                                \
	X(struct evp_md_ctx_st *, EVP_MD_CTX_new, NULL, (void))                                             \
	X(void, EVP_MD_CTX_free, NULL, (struct evp_md_ctx_st *))                                            \
	X(const struct evp_md_st *, EVP_sha256, NULL, (void))                                               \
	X(const struct evp_md_st *, EVP_md5, NULL, (void))                                                  \
	X(int, EVP_DigestInit_ex, NULL, (struct evp_md_ctx_st *, const struct evp_md_st *, void *engine))   \
	X(int, EVP_DigestUpdate, NULL, (struct evp_md_ctx_st *, const void *ptr, size_t len))               \
	X(int, EVP_DigestFinal_ex, NULL, (struct evp_md_ctx_st *, unsigned char *out, unsigned *ret_len))   \
	X(int, EVP_DigestSignInit, NULL,                                                                    \
	  (struct evp_md_ctx_st *, void **, const struct evp_md_st *, void *engine, struct evp_pkey_st *))  \
	X(int, EVP_DigestSign, NULL,                                                                        \
	  (struct evp_md_ctx_st *, unsigned char *out, size_t *ret_len, const unsigned char *, size_t len)) \
	X(unsigned char *, HMAC, NULL,                                                                      \
	  (const struct evp_md_st *, const void *key, int key_len, const unsigned char *, size_t len,       \
	   unsigned char *out, unsigned *ret_len))

enum { LIBS_RSA = 6 /* EVP_PKEY_RSA */, LIBS_MAX_DIGEST = 64 /* EVP_MAX_MD_SIZE */ };

struct libs {
#define MEMBER(name) __typeof__(curl_##name) *name;
	LIBS_CURL(MEMBER)
#undef MEMBER
#define MEMBER(type, name, older, arguments) type(*name) arguments;
	LIBS_CRYPTO(MEMBER)
#undef MEMBER
	const char *ca_file; /* certificates of the system, where libcurl's own default does not exist; or NULL */
};

/* Loads both libraries once. PAWL_EUNSUPPORTED: one is missing or too old; the message names the
 * package. */
int libs_load(struct pawl_error *err);
/* Call this only after libs_load returned 0. */
const struct libs *libs(void);

#endif
