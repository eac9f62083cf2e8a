/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_cred: the places where credentials of S3 are looked up, and their order. See s3_cred.h.
 */
#include "store/object/s3/s3_cred.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/os.h"
#include "base/proc.h"

#define PROCESS_MS 60000
#define MAX_PROCESS_BYTES (64u << 10)

int
s3_keys_from_json(struct cred_keys *ret, const char *source, const char *token_name, struct buf *text,
                  struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct json *doc = NULL;
	int rc = json_parse(source, text->ptr, text->len, NULL, &memory, &doc, err);
	if (rc == 0) {
		const char *access_key = cred_member(doc, "AccessKeyId"),
			   *secret_key = cred_member(doc, "SecretAccessKey");
		if (access_key == NULL || secret_key == NULL)
			rc = err_set(err, PAWL_EAUTH, "%s: the answer has no AccessKeyId or no SecretAccessKey",
			             source);
		else
			rc = cred_keys_set(ret, source, access_key, secret_key, cred_member(doc, token_name),
			                   cred_member(doc, "Expiration"), err);
		cred_wipe_member(doc, "SecretAccessKey");
		cred_wipe_member(doc, token_name);
	}
	cred_wipe_buf(text);
	return rc < 0 ? rc : 1;
}

/* ----------------------------------------------------------- the providers */

static int
from_environment(struct cred_keys *ret, struct pawl_error *err)
{
	const char *access_key = cred_env("AWS_ACCESS_KEY_ID"), *secret_key = cred_env("AWS_SECRET_ACCESS_KEY");
	if (access_key == NULL && secret_key == NULL)
		return 0;
	if (access_key == NULL || secret_key == NULL)
		return err_set(err, PAWL_EAUTH, "the environment has %s, but no %s",
		               access_key != NULL ? "AWS_ACCESS_KEY_ID" : "AWS_SECRET_ACCESS_KEY",
		               access_key != NULL ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID");
	const char *token = cred_env("AWS_SESSION_TOKEN");
	TRY(cred_keys_set(ret, "the environment", access_key, secret_key, token, NULL, err));
	return 1;
}

static int
from_process(const char *source, const char *line, struct cred_keys *ret, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	char **argv;
	int rc = proc_split(line, &memory, &argv, err);
	if (rc == 0 && buf_grow(&text, MAX_PROCESS_BYTES + 1) == NULL)
		rc = err_nomem(err, NULL);
	text.len = 0;
	if (rc == 0)
		rc = proc_capture(argv, PROCESS_MS, MAX_PROCESS_BYTES, &text, err);
	if (rc < 0) {
		if (text.ptr != NULL)
			os_wipe(text.ptr, text.cap);
		int code = rc == PAWL_ENOMEM ? PAWL_ENOMEM : PAWL_EAUTH;
		if (err != NULL)
			err->code = code;
		return err_prefix(err, code, "%s: credential_process", source);
	}
	return s3_keys_from_json(ret, source, "SessionToken", &text, err);
}

static int
from_profile(const struct s3_profile *p, const struct cred_where *c, struct cred_keys *ret, struct pawl_error *err)
{
	char source[192];
	snprintf(source, sizeof source, "profile \"%s\"", p->name);
	const char *access_key = s3_profile_get(p, "aws_access_key_id");
	const char *secret_key = s3_profile_get(p, "aws_secret_access_key");
	const char *role = s3_profile_get(p, "role_arn"), *process = s3_profile_get(p, "credential_process");
	const char *token_file = s3_profile_get(p, "web_identity_token_file");
	if (role != NULL && token_file != NULL)
		return s3_cred_web_identity(token_file, role, s3_profile_get(p, "role_session_name"), c->region,
		                            c->ca_bundle, ret, err);
	if (access_key != NULL && secret_key != NULL && role == NULL) {
		TRY(cred_keys_set(ret, source, access_key, secret_key, s3_profile_get(p, "aws_session_token"), NULL,
		                  err));
		return 1;
	}
	if (process != NULL)
		return from_process(source, process, ret, err);
	if (role != NULL || s3_profile_get(p, "sso_start_url") != NULL || s3_profile_get(p, "sso_session") != NULL)
		return err_set(err, PAWL_EAUTH,
		               "%s: roles and single sign-on are not followed here; let credential_process do it, for "
		               "instance \"aws configure export-credentials\"",
		               source);
	if (access_key != NULL || secret_key != NULL)
		return err_set(err, PAWL_EAUTH, "%s: has no %s", source,
		               access_key != NULL ? "aws_secret_access_key" : "aws_access_key_id");
	return 0;
}

static int
from_web_environment(const struct cred_where *c, struct cred_keys *ret, struct pawl_error *err)
{
	const char *file = cred_env("AWS_WEB_IDENTITY_TOKEN_FILE"), *role = cred_env("AWS_ROLE_ARN");
	if (file == NULL || role == NULL)
		return 0;
	return s3_cred_web_identity(file, role, cred_env("AWS_ROLE_SESSION_NAME"), c->region, c->ca_bundle, ret, err);
}

int
s3_cred_find(const struct cred_where *c, struct cred_keys *ret, struct pawl_error *err)
{
	PAWL_CLEAN(s3_profile_clear) struct s3_profile profile = {0};
	int rc = 0;
	/* As with other tools, a profile that is requested by name takes precedence over the
	 * environment. */
	if (cred_env("AWS_PROFILE") == NULL)
		rc = from_environment(ret, err);
	if (rc == 0)
		rc = from_web_environment(c, ret, err);
	if (rc != 0)
		return rc < 0 ? rc : 0;
	TRY(s3_profile_read(&profile, err));
	rc = from_profile(&profile, c, ret, err);
	if (rc == 0)
		rc = s3_cred_container(ret, c->ca_bundle, err);
	if (rc == 0)
		rc = s3_cred_instance(ret, err);
	if (rc == 0)
		rc = err_set(
			err, PAWL_EAUTH,
			"no credentials for S3: not in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), not "
			"in profile \"%s\", no web identity, no container, no instance role",
			profile.name);
	return rc < 0 ? rc : 0;
}
