/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sigv4: AWS signature version 4 over request headers, for S3 and compatible services. Pure: no
 * clock, no environment, no network.
 *
 * Written from the published description ("Authenticating Requests: Using the Authorization Header"
 * of the Amazon S3 API reference), with its four examples as tests.
 */
#ifndef PAWL_STORE_SIGV4_H
#define PAWL_STORE_SIGV4_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "store/object/http/http.h"

#define SIGV4_UNSIGNED "UNSIGNED-PAYLOAD"
#define SIGV4_EMPTY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" /* SHA-256 of nothing */

struct sigv4_request {
	const char *method;
	const char *path; /* as sent: encoded by http_encode with slashes kept, "/" at least */
	/* As sent: "name=value", encoded by http_encode, sorted by name, joined by '&'; or "". */
	const char *query;
	/* All that are signed, "host" and "x-amz-date" among them; any order and case. */
	const struct http_header *headers;
	size_t n_headers;
	const char *payload; /* 64 hex digits of the body's SHA-256, or SIGV4_UNSIGNED */
	const char *region, *service;
	const char *date; /* sigv4_date, the same as in x-amz-date */
	bool is_google;   /* GOOG4-HMAC-SHA256, which differs only by its names; then it is x-goog-date */
};

/* Writes the value of the Authorization header to *out. PAWL_ENOMEM, or PAWL_EINTERNAL if libcrypto
 * fails. */
int sigv4_sign(const struct sigv4_request *rq, const char *access_key, const char *secret_key, struct buf *out,
               struct pawl_error *err);
/* The canonical request that is signed, for tests. */
int sigv4_canonical(const struct sigv4_request *rq, struct buf *out, struct pawl_error *err);

void sigv4_date(int64_t unix_seconds, char out[17]); /* "20130524T000000Z" */
/* The value of the payload to sign: SIGV4_EMPTY without a body, its SHA-256 if sign, else
 * SIGV4_UNSIGNED. */
int sigv4_payload(const struct pawl_slice *parts, size_t n, bool sign, char out[65], struct pawl_error *err);

#endif
