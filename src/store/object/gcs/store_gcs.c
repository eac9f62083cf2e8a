/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_gcs: the engine for Google Cloud Storage by its XML interface: gs://bucket/prefix. See
 * docs/how-to/stores/gcs.md, and object.h for the table that this file fills in.
 *
 * The interface is that of S3 with other names. Two differences matter: an exclusive put expects
 * generation 0, and the completion of an upload takes no conditions.
 */
#include "store/object/object.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/text.h"
#include "store/object/gcs/gcs_cred.h"
#include "store/object/sigv4.h"

#define ENDPOINT "https://storage.googleapis.com"

/* ----------------------------------------------------------------- signing */

static int
sign_request(struct object_request *rq, const struct cred_keys *keys, struct object_envelope *e, struct pawl_error *err)
{
	struct http_call *call = &rq->call;
	struct sigv4_request sign = {.method = rq->method,
	                             .path = buf_str(&e->path),
	                             .query = rq->query != NULL ? rq->query : "",
	                             .headers = call->headers,
	                             .n_headers = call->n_headers,
	                             .payload = e->payload,
	                             .region = "auto",
	                             .service = "storage",
	                             .date = e->date,
	                             .is_google = true};
	return sigv4_sign(&sign, keys->access_key, keys->secret_key, &e->authorization, err);
}

static int
prepare_request(struct object_store *s, struct object_request *rq, const struct cred_keys *keys,
                struct object_envelope *e, struct pawl_error *err)
{
	struct http_call *call = &rq->call;
	bool has_keys = keys->access_key[0] != '\0';
	object_call_add(call, "Host", buf_str(&e->host));
	if (has_keys) {
		TRY(sigv4_payload(rq->body, rq->n_body, !s->config.https, e->payload, err));
		sigv4_date(e->now_s, e->date);
		object_call_add(call, "x-goog-date", e->date);
		object_call_add(call, "x-goog-content-sha256", e->payload);
	}
	if (rq->sum_body) {
		TRY(object_sum_body(OBJECT_SUM_CRC32C, rq, err));
		snprintf(e->more, sizeof e->more, "crc32c=%s", rq->sum);
		object_call_add(call, s->protocol->sum, e->more);
	}
	for (size_t i = 0; i < rq->n_headers; i++)
		object_call_add(call, rq->headers[i].name, rq->headers[i].value);
	if (strcmp(rq->method, "POST") == 0)
		object_call_add(call, "Content-Type", "application/xml");
	if (has_keys)
		TRY(sign_request(rq, keys, e, err));
	else if (keys->session_token[0] != '\0')
		buf_printf(&e->authorization, "Bearer %s", keys->session_token);
	else
		return 0;
	TRY(buf_check(&e->authorization, rq->what, err));
	object_call_add(call, "Authorization", buf_str(&e->authorization));
	return 0;
}

static int
copy_object(struct object_store *s, const char *from, const char *to, const struct object_head *head,
            struct pawl_error *err)
{
	return s3_copy_whole(s, from, to, head, "x-goog-copy-source", "x-goog-copy-source-if-match", err);
}

/* ---------------------------------------------------------------- the store */

static const struct object_protocol gcs_protocol = {
	.name = "gcs",
	.kind = "bucket",
	.token = "x-goog-meta-pawl-token",
	.sum = "x-goog-hash",
	.exclusive = {"x-goog-if-generation-match", "0"},
	.match = "x-goog-if-generation-match",
	.tag = "x-goog-generation",
	.wrong_tag = "1",
	.skew_code = "RequestTimeTooSkewed",
	.max_object_bytes = S3_MAX_OBJECT_BYTES,
	.max_parts = S3_MAX_PARTS,
	.meanings = s3_meanings,
	.prepare = prepare_request,
	.list_query = s3_list_query,
	.take_element = s3_take_element,
	.upload_begin = s3_upload_begin,
	.upload_part = s3_upload_part,
	.upload_end = s3_upload_end,
	.upload_drop = s3_upload_drop,
	.copy = copy_object,
	.sweep = s3_sweep,
};

static int
read_all(struct object_config *c, const char *url, struct pawl_error *err)
{
	const char *emulator = cred_env("STORAGE_EMULATOR_HOST");
	const char *endpoint = emulator != NULL ? emulator : ENDPOINT;
	TRY(object_read_url(c, url, url + strlen("gs://"), "bucket", err));
	c->path_style = true;
	c->sum = OBJECT_SUM_CRC32C;
	if (strstr(endpoint, "://") == NULL) { /* "localhost:9023", a form that other tools accept */
		endpoint = bump_printf(&c->memory, "http://%s", endpoint);
		if (endpoint == NULL)
			return err_nomem(err, "gcs");
	}
	return object_read_endpoint(c, "Google Cloud Storage", endpoint, err);
}

int
store_gcs_open(const char *url, bool create, struct store **ret, struct pawl_error *err)
{
	struct object_config config = {0};
	int rc = read_all(&config, url, err);
	if (rc < 0) {
		bump_clear(&config.memory);
		return rc;
	}
	return object_open_store(&gcs_protocol, &config, gcs_cred_find, create, ret, err);
}
