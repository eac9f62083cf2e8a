/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http: requests over libcurl, for engines that use HTTP. Transport only: no signing, no retry, no
 * redirect, no cookie, no netrc. Bodies come from slices. Answers are written straight to the
 * caller's memory.
 *
 * Thread-safe: any number of threads may run calls on one client. Connections are kept between
 * calls.
 */
#ifndef PAWL_STORE_HTTP_H
#define PAWL_STORE_HTTP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "pawl.h"

enum { HTTP_MAX_PARALLEL = 8 /* calls of one http_run */, HTTP_MAX_HEADERS = 24 /* of one request */ };

struct http; /* a client */

struct http_opts {
	unsigned connect_ms;        /* 0 = 10,000 */
	unsigned low_speed_bytes;   /* per second; a transfer that stays below for low_speed_seconds ends. 0 = 1,024 */
	unsigned low_speed_seconds; /* 0 = 60 */
	unsigned total_seconds;     /* of one call; 0 = 3,600 */
	const char *ca_bundle;      /* certificates to trust; NULL = SSL_CERT_FILE, else the system's. Copied */
	bool no_proxy;   /* also ignores the proxy variables of the environment; so does every loopback URL */
	bool link_local; /* 169.254/16 and fe80::/10 are allowed (metadata services only) */
};

struct http_header {
	const char *name, *value;
};

/* One request and its answer. Zero-initialise; http_call_clear frees what the answer holds. */
struct http_call {
	const char *method; /* GET HEAD PUT POST DELETE */
	const char *url;    /* http or https, everything encoded already */
	struct http_header headers[HTTP_MAX_HEADERS];
	size_t n_headers;
	const struct pawl_slice *body; /* of PUT and POST; borrowed during the call */
	size_t n_body;
	void *dst; /* the body of an answer with status dst_status: exactly dst_bytes, or the call fails */
	size_t dst_bytes;
	int dst_status;
	size_t text_max;           /* of any other body; 0 = 64 KiB */
	int64_t deadline_ms;       /* of clock_mono_ms; 0 = only total_seconds */
	const atomic_bool *cancel; /* NULL, or set by another thread to end the call with PAWL_ECANCELLED */
	bool fresh;                /* on a new connection, so never sent twice; a non-empty body implies it */
	bool slow_answer;          /* the server may take minutes: no low-speed limit */

	int status;      /* of the answer; 0 = no answer */
	struct buf text; /* its body, unless that was written to dst */
	struct buf head; /* its header lines, each ended by a NUL */
};

int http_new(const struct http_opts *opts, struct http **ret, struct pawl_error *err);
void http_free(struct http *h); /* NULL is fine; no call may be running */

/* Runs n <= HTTP_MAX_PARALLEL calls at the same time on the calling thread, and returns when all
 * have ended. 0: each was answered with a complete body, whatever the status. Otherwise returns the
 * first failure, and ends the others: PAWL_ETRANSIENT, PAWL_ETIMEOUT, PAWL_ECANCELLED, PAWL_EAUTH
 * (the certificate is not trusted), PAWL_ELIMIT, PAWL_EUSAGE, PAWL_ENOMEM. The message names the
 * host, never a header. */
int http_run(struct http *h, struct http_call *calls, size_t n, struct pawl_error *err);
/* Value of an answer's header (name in lower case), or NULL. Of several the last one counts. */
const char *http_header_of(const struct http_call *call, const char *name);
void http_call_clear(struct http_call *call);

/* true for a host name or address (without port) of this machine: localhost, 127/8, ::1. */
bool http_is_loopback(const char *host, size_t len);
bool http_is_loopback_url(const char *url);
struct sockaddr;
bool http_is_link_local(const struct sockaddr *address); /* 169.254/16, fe80::/10 */
/* Unix seconds of "Fri, 24 May 2013 00:00:00 GMT" (may be NULL) and of "2013-05-24T00:00:00Z"; -1
 * if the text has another form. */
int64_t http_date_time(const char *text);
int64_t http_iso_time(const char *text);
void http_put_date(int64_t unix_seconds, char out[32]); /* the first of these forms */
/* Percent-encodes everything except letters, digits, "-._~" (and '/' if kept). */
void http_encode(struct buf *out, const char *text, bool keep_slash);
/* The host and port in a URL, as messages show them. */
const char *http_host_of(const char *url, size_t *ret_len);

#endif
