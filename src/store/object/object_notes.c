/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object_notes: facts about an object store, for people. They are asked now: where it is, which
 * credentials sign, how far away it is, and the skew of its clock. P18: of the credentials only
 * their source and their time are named.
 */
#include "store/object/object.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/err.h"

#define ROUNDS 3

static int
note_credentials(struct object_store *s, store_note_fn *fn, void *arg, struct pawl_error *err)
{
	PAWL_CLEAN(cred_keys_wipe) struct cred_keys keys = {0};
	char text[256];
	TRY(cred_get(s->cred, false, &keys, err));
	int64_t left = keys.expires_s - clock_unix_ns() / 1000000000;
	if (keys.expires_s == 0)
		snprintf(text, sizeof text, "from %s%s", keys.source,
		         keys.access_key[0] != '\0' && keys.session_token[0] != '\0' ? ", with a session token" : "");
	else
		snprintf(text, sizeof text, "from %s, for another %" PRId64 " min", keys.source, left / 60);
	return fn(arg, "credentials", text);
}

/* Measures the quickest of a few small requests. The Date of its answer is compared with our clock
 * in the middle of it. */
static int
note_distance(struct object_store *s, store_note_fn *fn, void *arg, struct pawl_error *err)
{
	int64_t best_ns = INT64_MAX, theirs = -1, ours_ns = 0;
	char text[128];
	PAWL_CLEAN(buf_clear) struct buf query = {0};
	s->protocol->list_query(&query, s->config.prefix, false, 1, NULL);
	TRY(buf_check(&query, s->base.root, err));
	for (int i = 0; i < ROUNDS; i++) {
		PAWL_CLEAN(object_request_clear)
		struct object_request rq = {
			.what = s->base.root, .verb = "measure", .method = "GET", .query = buf_str(&query)};
		int64_t begin_ns = clock_mono_ns(), unix_ns = clock_unix_ns();
		TRY(object_send(s, &rq, 1, err));
		int64_t took_ns = clock_mono_ns() - begin_ns;
		if (took_ns >= best_ns)
			continue;
		best_ns = took_ns;
		theirs = http_date_time(http_header_of(&rq.call, "date"));
		ours_ns = unix_ns + took_ns / 2;
	}
	snprintf(text, sizeof text, "%.1f ms", (double)best_ns / 1e6);
	TRY(fn(arg, "round trip", text));
	if (theirs < 0)
		return fn(arg, "clock skew", "unknown: the server tells no Date");
	/* A Date has no fractions: it is up to a second late. */
	double skew = (double)theirs + 0.5 - (double)ours_ns / 1e9;
	if (skew > -1.5 && skew < 1.5)
		snprintf(text, sizeof text, "none (the server's Date against this host, to the second)");
	else
		snprintf(text, sizeof text, "%+.0f s (the server's Date against this host)", skew);
	return fn(arg, "clock skew", text);
}

/* Without TLS, the signature covers a checksum. */
static int
note_sums(struct object_store *s, store_note_fn *fn, void *arg, struct pawl_error *err)
{
	const struct object_config *c = &s->config;
	const enum object_sum sum = (enum object_sum)atomic_load(&s->sum);
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	if (c->sign_bodies)
		buf_printf(&text, "SHA-256%s", sum != OBJECT_SUM_NONE ? " and " : "");
	if (sum != OBJECT_SUM_NONE || !c->sign_bodies)
		buf_puts(&text, object_sum_name(sum));
	if (sum != c->sum)
		buf_printf(&text, " (the server refuses %s)", object_sum_name(c->sum));
	TRY(buf_check(&text, "sums", err));
	return fn(arg, "sums sent with bodies", buf_str(&text));
}

int
object_notes(struct store *base, store_note_fn *fn, void *arg, struct pawl_error *err)
{
	struct object_store *s = (struct object_store *)base;
	const struct object_config *c = &s->config;
	char text[512];
	snprintf(text, sizeof text, "%s://%s%s", c->https ? "https" : "http", c->host, c->base_path);
	TRY(fn(arg, "endpoint", text));
	if (c->region != NULL)
		TRY(fn(arg, "region", c->region));
	if (c->account != NULL)
		TRY(fn(arg, "account", c->account));
	TRY(fn(arg, "addressing", c->path_style ? "the bucket in the path" : "the bucket in the host name"));
	TRY(fn(arg, "encryption on the way", c->https ? "yes" : "no: http"));
	TRY(note_sums(s, fn, arg, err));
	TRY(note_credentials(s, fn, arg, err));
	return note_distance(s, fn, arg, err);
}
