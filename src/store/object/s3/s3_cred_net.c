/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_cred_net: credentials from another machine: a container's agent, the token service for a web
 * identity, the instance's metadata (version 2 only). See s3_cred.h.
 *
 * Only these may use link-local addresses. A container's address over http must be a loopback
 * address or one of the two that AWS uses. Only the token service is reached through a proxy.
 */
#include "store/object/s3/s3_cred.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/text.h"
#include "store/object/http/http.h"
#include "store/object/xml.h"

#define METADATA "the instance metadata"

/* Cuts a file or text after its first line, without the line end. */
static void
cut_line(struct buf *text)
{
	text->len = text->len > 0 ? strcspn(buf_str(text), "\r\n") : 0;
}

static int
read_token(const char *path, struct buf *out, struct pawl_error *err)
{
	TRY(cred_read_file(path, out, err));
	cut_line(out);
	if (out->len == 0)
		return err_set(err, PAWL_EAUTH, "%.300s: does not exist, or is empty; expected a token", path);
	buf_str(out);
	return buf_check(out, path, err);
}

/* The code of an answer that is not a success. */
static int
code_of_answer(int status, const char *word)
{
	bool is_busy =
		cred_is_busy(status) || strcmp(word, "Throttling") == 0 || strcmp(word, "IDPCommunicationError") == 0;
	return is_busy ? PAWL_ETRANSIENT : PAWL_EAUTH;
}

/* --------------------------------------------------------------- container */

/* http to any other address would send the authorization to an unknown machine. */
static bool
is_trusted(const char *url)
{
	if (strncmp(url, "https://", 8) == 0)
		return true;
	if (strncmp(url, "http://", 7) != 0)
		return false;
	const char *host = url + 7;
	size_t len = host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":/?#");
	if (http_is_loopback(host, len))
		return true;
	static const char *const known[] = {"169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"};
	for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
		if (strlen(known[i]) == len && memcmp(host, known[i], len) == 0)
			return true;
	return false;
}

static int
container_url(char url[1024], struct pawl_error *err)
{
	const char *relative = cred_env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
	const char *full = cred_env("AWS_CONTAINER_CREDENTIALS_FULL_URI");
	if (relative == NULL && full == NULL)
		return 0;
	int n = relative != NULL ? snprintf(url, 1024, "http://169.254.170.2%s", relative)
	                         : snprintf(url, 1024, "%s", full);
	if (n >= 1024 || (relative != NULL && relative[0] != '/'))
		return err_set(err, PAWL_EAUTH, "the address of the container's credentials is malformed");
	if (!is_trusted(url))
		return err_set(
			err, PAWL_EAUTH,
			"AWS_CONTAINER_CREDENTIALS_FULL_URI: expected https, or http to this machine, found another "
			"address");
	return 1;
}

int
s3_cred_container(struct cred_keys *ret, const char *ca_bundle, struct pawl_error *err)
{
	static const char source[] = "the container's credentials";
	char url[1024];
	int rc = container_url(url, err);
	if (rc <= 0)
		return rc;
	PAWL_CLEAN(cred_wipe_buf) struct buf token = {0};
	const char *file = cred_env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
	const char *value = cred_env("AWS_CONTAINER_AUTHORIZATION_TOKEN");
	if (file != NULL)
		TRY(read_token(file, &token, err));

	PAWL_CLEAN(cred_close_http) struct http *h = NULL;
	struct http_opts opts = {
		.connect_ms = 5000, .total_seconds = 10, .ca_bundle = ca_bundle, .no_proxy = true, .link_local = true};
	TRY(http_new(&opts, &h, err));
	PAWL_CLEAN(cred_wipe_call) struct http_call call = {.method = "GET", .url = url};
	call.headers[call.n_headers++] = (struct http_header){"Accept", "application/json"};
	if (file != NULL || value != NULL)
		call.headers[call.n_headers++] =
			(struct http_header){"Authorization", file != NULL ? buf_str(&token) : value};
	rc = http_run(h, &call, 1, err);
	if (rc < 0)
		return err_prefix(err, rc, "%s", source);
	if (call.status != 200)
		return err_set(err, code_of_answer(call.status, ""), "%s: the agent answered with status %d", source,
		               call.status);
	return s3_keys_from_json(ret, source, "Token", &call.text, err);
}

/* ------------------------------------------------------------ web identity */

static int
read_web_keys(struct http_call *call, struct cred_keys *ret, struct pawl_error *err)
{
	static const char source[] = "the web identity";
	static const char *const paths[] = {
		"AssumeRoleWithWebIdentityResponse/AssumeRoleWithWebIdentityResult/Credentials/AccessKeyId",
		"AssumeRoleWithWebIdentityResponse/AssumeRoleWithWebIdentityResult/Credentials/SecretAccessKey",
		"AssumeRoleWithWebIdentityResponse/AssumeRoleWithWebIdentityResult/Credentials/SessionToken",
		"AssumeRoleWithWebIdentityResponse/AssumeRoleWithWebIdentityResult/Credentials/Expiration"};
	struct buf values[4] = {{0}, {0}, {0}, {0}};
	int rc = 0;
	for (size_t i = 0; rc == 0 && i < 4; i++)
		rc = xml_get(source, call->text.ptr, call->text.len, paths[i], &values[i], err);
	/* It must not read as a missing run (P8). */
	if (rc == PAWL_ENOTFOUND)
		rc = err_set(err, PAWL_EAUTH, "%s: the answer has no credentials", source);
	if (rc == 0)
		rc = cred_keys_set(ret, source, buf_str(&values[0]), buf_str(&values[1]), buf_str(&values[2]),
		                   buf_str(&values[3]), err);
	for (size_t i = 0; i < 4; i++)
		cred_wipe_buf(&values[i]);
	return rc < 0 ? rc : 1;
}

static void
put_parameter(struct buf *out, const char *name, const char *value)
{
	buf_printf(out, "&%s=", name);
	http_encode(out, value, false);
}

int
s3_cred_web_identity(const char *token_file, const char *role, const char *session, const char *region,
                     const char *ca_bundle, struct cred_keys *ret, struct pawl_error *err)
{
	PAWL_CLEAN(cred_wipe_buf) struct buf token = {0};
	PAWL_CLEAN(cred_wipe_buf) struct buf body = {0};
	TRY(read_token(token_file, &token, err));
	buf_puts(&body, "Action=AssumeRoleWithWebIdentity&Version=2011-06-15");
	put_parameter(&body, "RoleArn", role);
	put_parameter(&body, "RoleSessionName", session != NULL ? session : "pawl");
	put_parameter(&body, "WebIdentityToken", buf_str(&token));
	TRY(buf_check(&body, "web identity", err));

	char url[512];
	const char *endpoint = cred_env("AWS_ENDPOINT_URL_STS");
	int n = endpoint != NULL ? snprintf(url, sizeof url, "%s/", endpoint)
	                         : snprintf(url, sizeof url, "https://sts.%s.amazonaws.com%s/", region,
	                                    strncmp(region, "cn-", 3) == 0 ? ".cn" : "");
	if (n >= (int)sizeof url)
		return err_set(err, PAWL_EUSAGE, "AWS_ENDPOINT_URL_STS: is too long");
	PAWL_CLEAN(cred_close_http) struct http *h = NULL;
	struct http_opts opts = {.connect_ms = 5000, .total_seconds = 30, .ca_bundle = ca_bundle};
	TRY(http_new(&opts, &h, err));
	struct pawl_slice whole = {body.ptr, body.len};
	PAWL_CLEAN(cred_wipe_call) struct http_call call = {.method = "POST", .url = url, .body = &whole, .n_body = 1};
	call.headers[call.n_headers++] = (struct http_header){"Content-Type", "application/x-www-form-urlencoded"};
	int rc = http_run(h, &call, 1, err);
	if (rc < 0)
		return err_prefix(err, rc, "the web identity");
	if (call.status == 200)
		return read_web_keys(&call, ret, err);
	PAWL_CLEAN(buf_clear) struct buf code = {0};
	if (xml_get("", call.text.ptr, call.text.len, "ErrorResponse/Error/Code", &code, NULL) < 0)
		code.len = 0;
	return err_set(err, code_of_answer(call.status, buf_str(&code)),
	               "the web identity: the token service answered with status %d %.100s", call.status,
	               buf_str(&code));
}

/* ---------------------------------------------------------------- instance */

/* Sends one request to the metadata service. 1: answered with 200; 0: no service, or no such
 * data. A service that gave a token exists, so a lost answer is then an error. */
static int
send_request(struct http *h, const char *method, const char *path, const char *token, struct http_call *call,
             struct pawl_error *err)
{
	char url[1024];
	const char *endpoint = cred_env("AWS_EC2_METADATA_SERVICE_ENDPOINT");
	if (endpoint == NULL)
		endpoint = "http://169.254.169.254";
	size_t len = strlen(endpoint);
	while (len > 0 && endpoint[len - 1] == '/')
		len--;
	if (snprintf(url, sizeof url, "%.*s/latest/%s", (int)len, endpoint, path) >= (int)sizeof url)
		return err_set(err, PAWL_EAUTH, METADATA ": the name of the role is too long");
	call->method = method;
	call->url = url;
	call->headers[0] = token != NULL ? (struct http_header){"X-aws-ec2-metadata-token", token}
	                                 : (struct http_header){"X-aws-ec2-metadata-token-ttl-seconds", "21600"};
	call->n_headers = 1;
	int rc = http_run(h, call, 1, err);
	call->url = NULL;
	if (rc < 0)
		return rc == PAWL_ENOMEM || token != NULL ? err_prefix(err, rc, METADATA) : 0;
	if (call->status != 200 && code_of_answer(call->status, "") == PAWL_ETRANSIENT)
		return err_set(err, PAWL_ETRANSIENT, METADATA ": answered with status %d", call->status);
	return call->status == 200;
}

int
s3_cred_instance(struct cred_keys *ret, struct pawl_error *err)
{
	const char *off = cred_env("AWS_EC2_METADATA_DISABLED");
	if (off != NULL && strcmp(off, "true") == 0)
		return 0;
	PAWL_CLEAN(cred_close_http) struct http *h = NULL;
	struct http_opts opts = {.connect_ms = 1000, .total_seconds = 5, .no_proxy = true, .link_local = true};
	TRY(http_new(&opts, &h, err));
	PAWL_CLEAN(cred_wipe_call) struct http_call token = {0}, role = {0}, keys = {0};
	int rc = send_request(h, "PUT", "api/token", NULL, &token, err);
	if (rc <= 0)
		return rc;
	cut_line(&token.text);
	rc = send_request(h, "GET", "meta-data/iam/security-credentials/", buf_str(&token.text), &role, err);
	if (rc <= 0)
		return rc;
	cut_line(&role.text);
	if (role.text.len == 0 || strpbrk(buf_str(&role.text), "/?#% ") != NULL)
		return 0;
	char path[300];
	if (snprintf(path, sizeof path, "meta-data/iam/security-credentials/%s", buf_str(&role.text)) >=
	    (int)sizeof path)
		return err_set(err, PAWL_EAUTH, METADATA ": the name of the role is too long");
	rc = send_request(h, "GET", path, buf_str(&token.text), &keys, err);
	if (rc <= 0)
		return rc < 0 ? rc
		              : err_set(err, PAWL_EAUTH, METADATA ": no credentials for the role of this instance");
	return s3_keys_from_json(ret, "the instance role", "Token", &keys.text, err);
}
