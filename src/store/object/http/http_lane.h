/* SPDX-License-Identifier: Apache-2.0 */
/* http_lane: one multi handle of libcurl with its own connections, and as many easy handles as one
 * http_run may need. Used by one thread at a time. */
#ifndef PAWL_HTTP_LANE_H
#define PAWL_HTTP_LANE_H

#include <curl/curl.h>
#include <stdbool.h>

#include "store/object/http/http.h"

#define HTTP_LANE_SOCKETS (2 * (size_t)HTTP_MAX_PARALLEL) /* kept ones, and as many that were just opened */

struct http_lane {
	struct http_lane *next;
	CURLM *multi;
	CURL *easy[HTTP_MAX_PARALLEL];            /* made when first needed */
	curl_socket_t sockets[HTTP_LANE_SOCKETS]; /* of its connections; those above the limit are left alone */
	size_t n_sockets;
	bool has_answers; /* an answer has begun since they were last acknowledged */
};

struct http_lane *http_lane_new(void);       /* NULL: out of memory */
void http_lane_free(struct http_lane *lane); /* NULL is fine */
curl_socket_t http_lane_open_socket(struct http_lane *lane, const struct curl_sockaddr *address);
/* A curl_closesocket_callback. Connections outlive the transfer that opened them, so its argument
 * is the lane. */
int http_lane_close_socket(void *lane, curl_socket_t fd);
/* Some servers write header and body one after the other with Nagle's algorithm on, for example
 * Ceph's gateway. They send the body when the header is acknowledged. On a used connection the
 * kernel delays that by 40 ms. This function sends the delayed acknowledgement. The mode does not
 * last, so each answer requests it again. */
void http_lane_acknowledge(struct http_lane *lane);

#endif
