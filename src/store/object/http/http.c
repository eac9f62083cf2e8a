/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http: see http.h.
 *
 * A call takes a free lane (http_lane.h) or makes one, so threads never wait for each other. It
 * returns the lane with its connections open.
 *
 * P16: connecting, stalling and the complete call have limits, and so have header and body. P18:
 * error texts of libcurl name hosts only, and header lines are wiped before they are freed. An
 * address is checked when it is connected to, after all names are resolved.
 */
#include "store/object/http/http.h"

#include <ctype.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/os.h"
#include "store/object/http/http_lane.h"
#include "store/object/libs.h"

#define MAX_HEAD_BYTES (64u << 10)
#define MAX_TEXT_BYTES (64u << 10)
#define POLL_MS 100 /* the longest delay before a cancellation is noticed */
#define TRANSFER_BYTES (512L << 10)
/* CURLOPT_PROTOCOLS_STR, which headers before 7.85 lack, and CURLOPT_PROTOCOLS, which later ones
 * call deprecated. */
#define PROTOCOLS_STR 10318
#define PROTOCOLS 181

struct http {
	struct http_opts opts;
	char *ca_bundle;
	pthread_mutex_t lock;
	struct http_lane *free; /* guarded by lock */
};

/* A call in progress. */
struct transfer {
	struct http *http;
	struct http_lane *lane;
	struct http_call *call;
	CURL *easy; /* NULL: not added */
	struct curl_slist *lines;
	size_t slice, at; /* of the body: what is sent next */
	uint64_t received;
	bool done, refused_address;
	int rc; /* error that a callback found, or 0 */
	CURLcode code;
	struct pawl_error err;
	char message[CURL_ERROR_SIZE];
};

/* ------------------------------------------------------------------ lanes */

static struct http_lane *
lane_take(struct http *h)
{
	pthread_mutex_lock(&h->lock);
	struct http_lane *lane = h->free;
	if (lane != NULL)
		h->free = lane->next;
	pthread_mutex_unlock(&h->lock);
	return lane != NULL ? lane : http_lane_new();
}

static void
lane_give_back(struct http *h, struct http_lane *lane)
{
	pthread_mutex_lock(&h->lock);
	lane->next = h->free;
	h->free = lane;
	pthread_mutex_unlock(&h->lock);
}

int
http_new(const struct http_opts *opts, struct http **ret, struct pawl_error *err)
{
	TRY(libs_load(err));
	PAWL_FREE struct http *h = mem_zalloc(1, sizeof *h);
	if (h == NULL)
		return err_nomem(err, "http");
	h->opts = *opts;
	h->opts.ca_bundle = NULL;
	h->opts.connect_ms = opts->connect_ms ? opts->connect_ms : 10000;
	h->opts.low_speed_bytes = opts->low_speed_bytes ? opts->low_speed_bytes : 1024;
	h->opts.low_speed_seconds = opts->low_speed_seconds ? opts->low_speed_seconds : 60;
	h->opts.total_seconds = opts->total_seconds ? opts->total_seconds : 3600;
	const char *bundle = opts->ca_bundle != NULL ? opts->ca_bundle : getenv("SSL_CERT_FILE");
	if (bundle != NULL && bundle[0] != '\0') {
		h->ca_bundle = mem_strdup(bundle);
		if (h->ca_bundle == NULL)
			return err_nomem(err, "http");
	}
	pthread_mutex_init(&h->lock, NULL);
	*ret = h;
	h = NULL;
	return 0;
}

void
http_free(struct http *h)
{
	if (h == NULL)
		return;
	while (h->free != NULL) {
		struct http_lane *lane = h->free;
		h->free = lane->next;
		http_lane_free(lane);
	}
	pthread_mutex_destroy(&h->lock);
	mem_free(h->ca_bundle);
	mem_free(h);
}

/* -------------------------------------------------------------- callbacks */

static curl_socket_t
open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *address)
{
	struct transfer *t = arg;
	(void)purpose;
	if (!t->http->opts.link_local && http_is_link_local(&address->addr)) {
		t->refused_address = true;
		return CURL_SOCKET_BAD;
	}
	return http_lane_open_socket(t->lane, address);
}

/* Notes the first error; the callback that calls this then ends the transfer. */
static void
spoil_transfer(struct transfer *t, int code, const char *what)
{
	size_t len;
	const char *host = http_host_of(t->call->url, &len);
	if (t->rc == 0)
		t->rc = err_set(&t->err, code, "%.*s: %s", (int)len, host, what);
}

static size_t
take_head(char *ptr, size_t size, size_t n, void *arg)
{
	struct transfer *t = arg;
	struct buf *head = &t->call->head;
	size_t len = size * n;
	/* An interim answer (100 Continue) precedes the real one. Only the lines of the real one
	 * count. */
	if (len > 5 && memcmp(ptr, "HTTP/", 5) == 0) {
		head->len = 0;
		t->lane->has_answers = true;
	}
	if (head->len + len + 1 > MAX_HEAD_BYTES) {
		spoil_transfer(t, PAWL_ELIMIT, "the header of the answer is longer than 64 KiB");
		return 0;
	}
	while (len > 0 && (ptr[len - 1] == '\n' || ptr[len - 1] == '\r'))
		len--;
	buf_put(head, ptr, len);
	buf_putc(head, '\0');
	if (head->failed)
		spoil_transfer(t, PAWL_ENOMEM, "out of memory");
	return head->failed ? 0 : size * n;
}

static size_t
take_body(char *ptr, size_t size, size_t n, void *arg)
{
	struct transfer *t = arg;
	struct http_call *call = t->call;
	size_t len = size * n;
	long status = 0;
	libs()->easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
	if (call->dst != NULL && status == call->dst_status) {
		if (len > call->dst_bytes - t->received) {
			spoil_transfer(t, PAWL_ETRANSIENT, "the answer is longer than what was asked for");
			return 0;
		}
		memcpy((char *)call->dst + t->received, ptr, len);
		t->received += len;
		return len;
	}
	size_t max = call->text_max > 0 ? call->text_max : MAX_TEXT_BYTES;
	if (len > max - call->text.len) {
		spoil_transfer(t, PAWL_ELIMIT, "the answer is longer than expected");
		return 0;
	}
	buf_put(&call->text, ptr, len);
	if (call->text.failed)
		spoil_transfer(t, PAWL_ENOMEM, "out of memory");
	t->received += len;
	return call->text.failed ? 0 : len;
}

static size_t
give_body(char *ptr, size_t size, size_t n, void *arg)
{
	struct transfer *t = arg;
	size_t room = size * n, given = 0;
	while (given < room && t->slice < t->call->n_body) {
		const struct pawl_slice *s = &t->call->body[t->slice];
		size_t len = s->len - t->at < room - given ? s->len - t->at : room - given;
		if (len > 0)
			memcpy(ptr + given, (const char *)s->ptr + t->at, len);
		given += len;
		t->at += len;
		if (t->at == s->len) {
			t->slice++;
			t->at = 0;
		}
	}
	return given;
}

/* libcurl resends a request on its own when a kept connection ends before an answer. The server may
 * have carried out the first one, and the caller would take the second answer for the first. So a
 * body may be resent only if no byte of it was sent. */
static int
rewind_body(void *arg, curl_off_t offset, int origin)
{
	struct transfer *t = arg;
	bool untouched = t->slice == 0 && t->at == 0;
	return origin == SEEK_SET && offset == 0 && untouched ? CURL_SEEKFUNC_OK : CURL_SEEKFUNC_FAIL;
}

/* ------------------------------------------------------------------ set-up */

static uint64_t
body_bytes(const struct http_call *call)
{
	uint64_t total = 0;
	for (size_t i = 0; i < call->n_body; i++)
		total += call->body[i].len;
	return total;
}

static int
set_lines(struct transfer *t, struct pawl_error *err)
{
	const struct http_call *call = t->call;
	/* Without this, libcurl waits a second for servers that do not support "100 Continue". */
	struct curl_slist *lines = libs()->slist_append(NULL, "Expect:");
	for (size_t i = 0; lines != NULL && i < call->n_headers; i++) {
		const struct http_header *header = &call->headers[i];
		PAWL_FREE char *line =
			mem_printf("%s%s%s", header->name, header->value[0] != '\0' ? ": " : ";", header->value);
		struct curl_slist *longer = line != NULL ? libs()->slist_append(lines, line) : NULL;
		if (line != NULL)
			os_wipe(line, strlen(line));
		if (longer == NULL)
			libs()->slist_free_all(lines);
		lines = longer;
	}
	if (lines == NULL)
		return err_nomem(err, "http");
	t->lines = lines;
	libs()->easy_setopt(t->easy, CURLOPT_HTTPHEADER, lines);
	return 0;
}

static void
set_method(CURL *easy, const struct http_call *call)
{
	if (strcmp(call->method, "HEAD") == 0) {
		libs()->easy_setopt(easy, CURLOPT_NOBODY, 1L);
	} else if (strcmp(call->method, "PUT") == 0) {
		libs()->easy_setopt(easy, CURLOPT_UPLOAD, 1L);
		libs()->easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, (curl_off_t)body_bytes(call));
	} else if (strcmp(call->method, "POST") == 0) {
		libs()->easy_setopt(easy, CURLOPT_POST, 1L);
		libs()->easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body_bytes(call));
	} else {
		libs()->easy_setopt(easy, CURLOPT_HTTPGET, 1L);
		libs()->easy_setopt(easy, CURLOPT_CUSTOMREQUEST, call->method);
	}
}

static void
set_protocol(CURL *easy, bool https)
{
	/* Before 7.85 it has only the older option. */
	if (libs()->easy_setopt(easy, (CURLoption)PROTOCOLS_STR, https ? "https" : "http") != CURLE_OK)
		libs()->easy_setopt(easy, (CURLoption)PROTOCOLS, https ? (long)CURLPROTO_HTTPS : (long)CURLPROTO_HTTP);
	libs()->easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
	libs()->easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 1L);
	libs()->easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 2L);
	libs()->easy_setopt(easy, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
	libs()->easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	/* Send exactly the path that was signed: libcurl must not remove "." or "..". */
	libs()->easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
}

static void
set_limits(const struct http *h, CURL *easy, const struct http_call *call)
{
	int64_t total_ms = (int64_t)h->opts.total_seconds * 1000;
	if (call->deadline_ms > 0) {
		int64_t left = call->deadline_ms - clock_mono_ms();
		total_ms = left < 1 ? 1 : left < total_ms ? left : total_ms;
	}
	libs()->easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)total_ms);
	libs()->easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)h->opts.connect_ms);
	if (!call->slow_answer) {
		libs()->easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, (long)h->opts.low_speed_bytes);
		libs()->easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, (long)h->opts.low_speed_seconds);
	}
}

static void
set_callbacks(struct transfer *t)
{
	CURL *easy = t->easy;
	libs()->easy_setopt(easy, CURLOPT_HEADERFUNCTION, take_head);
	libs()->easy_setopt(easy, CURLOPT_HEADERDATA, t);
	libs()->easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_body);
	libs()->easy_setopt(easy, CURLOPT_WRITEDATA, t);
	libs()->easy_setopt(easy, CURLOPT_READFUNCTION, give_body);
	libs()->easy_setopt(easy, CURLOPT_READDATA, t);
	libs()->easy_setopt(easy, CURLOPT_SEEKFUNCTION, rewind_body);
	libs()->easy_setopt(easy, CURLOPT_SEEKDATA, t);
	libs()->easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, open_socket);
	libs()->easy_setopt(easy, CURLOPT_OPENSOCKETDATA, t);
	libs()->easy_setopt(easy, CURLOPT_CLOSESOCKETFUNCTION, http_lane_close_socket);
	libs()->easy_setopt(easy, CURLOPT_CLOSESOCKETDATA, t->lane);
}

static int
start_transfer(struct http *h, struct http_lane *lane, size_t i, struct transfer *t, struct pawl_error *err)
{
	struct http_call *call = t->call;
	if (strncmp(call->url, "http://", 7) != 0 && strncmp(call->url, "https://", 8) != 0)
		return err_set(err, PAWL_EUSAGE, "%.200s: expected http:// or https://", call->url);
	if (lane->easy[i] == NULL)
		lane->easy[i] = libs()->easy_init();
	if (lane->easy[i] == NULL)
		return err_nomem(err, "http");
	CURL *easy = t->easy = lane->easy[i];
	libs()->easy_reset(easy);
	libs()->easy_setopt(easy, CURLOPT_URL, call->url);
	libs()->easy_setopt(easy, CURLOPT_PRIVATE, t);
	libs()->easy_setopt(easy, CURLOPT_ERRORBUFFER, t->message);
	libs()->easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
	libs()->easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
	libs()->easy_setopt(easy, CURLOPT_USERAGENT, "pawl/" PAWL_VERSION);
	libs()->easy_setopt(easy, CURLOPT_BUFFERSIZE, TRANSFER_BYTES);
	libs()->easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, TRANSFER_BYTES);
	set_protocol(easy, strncmp(call->url, "https:", 6) == 0);
	if (h->opts.no_proxy || http_is_loopback_url(call->url))
		libs()->easy_setopt(easy, CURLOPT_PROXY, "");
	if (call->fresh)
		libs()->easy_setopt(easy, CURLOPT_FRESH_CONNECT, 1L);
	const char *ca_file = h->ca_bundle != NULL ? h->ca_bundle : libs()->ca_file;
	if (ca_file != NULL)
		libs()->easy_setopt(easy, CURLOPT_CAINFO, ca_file);
	set_limits(h, easy, call);
	set_method(easy, call);
	set_callbacks(t);
	TRY(set_lines(t, err));
	if (libs()->multi_add_handle(lane->multi, easy) != CURLM_OK)
		return err_nomem(err, "http");
	return 0;
}

/* --------------------------------------------------------------- the call */

static int
code_of(CURLcode code)
{
	switch (code) {
	case CURLE_OPERATION_TIMEDOUT:
		return PAWL_ETIMEOUT;
	case CURLE_PEER_FAILED_VERIFICATION:
	case CURLE_SSL_CACERT_BADFILE:
	case CURLE_SSL_ISSUER_ERROR:
		return PAWL_EAUTH;
	case CURLE_URL_MALFORMAT:
	case CURLE_COULDNT_RESOLVE_PROXY:
		return PAWL_EUSAGE;
	case CURLE_OUT_OF_MEMORY:
		return PAWL_ENOMEM;
	default:
		return PAWL_ETRANSIENT;
	}
}

/* What to do if the authority of a server is not trusted; else "". */
static const char *
trust_advice(const struct transfer *t)
{
	long found = 0; /* 1: the certificate is of another host */
	if (t->code == CURLE_PEER_FAILED_VERIFICATION)
		libs()->easy_getinfo(t->easy, CURLINFO_SSL_VERIFYRESULT, &found);
	if (found <= 1 && t->code != CURLE_SSL_CACERT_BADFILE)
		return "";
	return "; install ca-certificates, or set SSL_CERT_FILE to a file with the certificate of its authority";
}

/* Returns the result of a transfer that has ended. */
static int
judge_transfer(struct transfer *t, struct pawl_error *err)
{
	size_t len;
	const struct http_call *call = t->call;
	const char *host = http_host_of(call->url, &len);
	if (t->rc < 0) {
		if (err != NULL)
			*err = t->err;
		return t->rc;
	}
	if (t->refused_address && t->code != CURLE_OK)
		return err_set(err, PAWL_EUSAGE, "%.*s: is a link-local address, which is not allowed", (int)len, host);
	if (t->code != CURLE_OK)
		return err_set(err, code_of(t->code), "%.*s: %s%s", (int)len, host,
		               t->message[0] != '\0' ? t->message : libs()->easy_strerror(t->code), trust_advice(t));
	if (call->dst != NULL && call->status == call->dst_status && t->received != call->dst_bytes)
		return err_set(err, PAWL_ETRANSIENT, "%.*s: the answer has %" PRIu64 " bytes, expected %zu", (int)len,
		               host, t->received, call->dst_bytes);
	return 0;
}

/* Records which transfers have ended; true when one has failed. */
static bool
collect_ended(struct http_lane *lane)
{
	int left;
	bool failed = false;
	for (CURLMsg *msg; (msg = libs()->multi_info_read(lane->multi, &left)) != NULL;) {
		struct transfer *t = NULL;
		long status = 0;
		if (msg->msg != CURLMSG_DONE)
			continue;
		libs()->easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &t);
		libs()->easy_getinfo(msg->easy_handle, CURLINFO_RESPONSE_CODE, &status);
		t->done = true;
		t->code = msg->data.result;
		t->call->status = (int)status;
		failed = failed || judge_transfer(t, NULL) < 0;
	}
	return failed;
}

static bool
is_cancelled(const struct transfer *transfers, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (transfers[i].call->cancel != NULL && atomic_load(transfers[i].call->cancel))
			return true;
	return false;
}

static int
drive_lane(struct http_lane *lane, struct transfer *transfers, size_t n, struct pawl_error *err)
{
	int running = 1;
	while (running > 0) {
		if (libs()->multi_perform(lane->multi, &running) != CURLM_OK)
			return err_nomem(err, "http");
		http_lane_acknowledge(lane);
		if (collect_ended(lane))
			break;
		if (is_cancelled(transfers, n))
			return err_set(err, PAWL_ECANCELLED, "the request was cancelled");
		if (running > 0)
			libs()->multi_poll(lane->multi, NULL, 0, POLL_MS, NULL);
	}
	for (size_t i = 0; i < n; i++)
		if (transfers[i].done)
			TRY(judge_transfer(&transfers[i], err));
	return 0;
}

/* Some TLS libraries write to a closed connection in a way that raises SIGPIPE, whose default ends
 * the program. */
struct pipe_guard {
	sigset_t before;
	bool was_pending;
};

static void
pipe_guard_begin(struct pipe_guard *g)
{
	sigset_t pending, one;
	sigemptyset(&one);
	sigaddset(&one, SIGPIPE);
	sigpending(&pending);
	g->was_pending = sigismember(&pending, SIGPIPE) == 1;
	pthread_sigmask(SIG_BLOCK, &one, &g->before);
}

static void
pipe_guard_end(struct pipe_guard *g)
{
	sigset_t pending, one;
	int taken;
	sigemptyset(&one);
	sigaddset(&one, SIGPIPE);
	sigpending(&pending);
	if (!g->was_pending && sigismember(&pending, SIGPIPE) == 1)
		sigwait(&one, &taken);
	pthread_sigmask(SIG_SETMASK, &g->before, NULL);
}

static void
end_transfers(struct http_lane *lane, struct transfer *transfers, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct transfer *t = &transfers[i];
		if (t->easy != NULL)
			libs()->multi_remove_handle(lane->multi, t->easy);
		for (struct curl_slist *line = t->lines; line != NULL; line = line->next)
			os_wipe(line->data, strlen(line->data));
		if (t->easy != NULL)
			libs()->easy_reset(t->easy);
		libs()->slist_free_all(t->lines);
	}
}

int
http_run(struct http *h, struct http_call *calls, size_t n, struct pawl_error *err)
{
	if (n == 0 || n > HTTP_MAX_PARALLEL)
		return err_set(err, PAWL_EINTERNAL, "http: %zu calls at a time", n);
	struct http_lane *lane = lane_take(h);
	PAWL_FREE struct transfer *transfers = mem_zalloc(n, sizeof *transfers);
	int rc = lane == NULL || transfers == NULL ? err_nomem(err, "http") : 0;
	for (size_t i = 0; rc == 0 && i < n; i++) {
		transfers[i].http = h;
		transfers[i].lane = lane;
		transfers[i].call = &calls[i];
		calls[i].status = 0;
		buf_clear(&calls[i].text);
		buf_clear(&calls[i].head);
		rc = start_transfer(h, lane, i, &transfers[i], err);
	}
	struct pipe_guard guard;
	pipe_guard_begin(&guard);
	if (rc == 0)
		rc = drive_lane(lane, transfers, n, err);
	if (lane != NULL && transfers != NULL)
		end_transfers(lane, transfers, n);
	pipe_guard_end(&guard);
	if (lane != NULL)
		lane_give_back(h, lane);
	return rc;
}

const char *
http_header_of(const struct http_call *call, const char *name)
{
	size_t len = strlen(name);
	const char *found = NULL;
	for (size_t at = 0; at < call->head.len; at += strlen(call->head.ptr + at) + 1) {
		const char *line = call->head.ptr + at;
		if (strncasecmp(line, name, len) != 0 || line[len] != ':')
			continue;
		found = line + len + 1;
		while (isspace((unsigned char)*found))
			found++;
	}
	return found;
}

void
http_call_clear(struct http_call *call)
{
	buf_clear(&call->text);
	buf_clear(&call->head);
}
