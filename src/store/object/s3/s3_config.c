/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_config: reads the endpoint, region, addressing style and checksums of an s3:// URL. They come
 * from the URL, the environment and the profile, in the order and under the names of AWS tools.
 *
 *   endpoint   AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, services.s3.endpoint_url, endpoint_url;
 *              else Amazon's for the region
 *
 *   region     AWS_REGION, AWS_DEFAULT_REGION, region; else us-east-1
 *
 *   addressing s3.addressing_style: path, virtual; else virtual for AWS, and path elsewhere and for
 *              buckets with dots
 *
 *   checksums  s3.payload_signing_enabled;
 *              AWS_REQUEST_CHECKSUM_CALCULATION, request_checksum_calculation;
 *              PAWL_S3_CHECKSUM_ALGORITHM, s3.checksum_algorithm
 *
 *   TLS        AWS_CA_BUNDLE, ca_bundle; else SSL_CERT_FILE (http_new)
 */
#include "store/object/object.h"

#include <string.h>

#include "base/err.h"
#include "store/object/s3/s3_cred.h"

#define DEFAULT_REGION "us-east-1"

/* ------------------------------------------------------------ the endpoint */

int
s3_config_set_region(struct object_config *c, const char *region, struct pawl_error *err)
{
	for (const char *p = region; *p != '\0'; p++)
		if (!((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || *p == '-' ||
		      *p == '_') ||
		    p - region > 64)
			return err_set(err, PAWL_EUSAGE, "\"%.80s\" is not a name of a region", region);
	TRY(object_keep(c, region, &c->region, err));
	if (!c->is_aws)
		return 0;
	c->https = true;
	c->base_path = "";
	c->host = bump_printf(&c->memory, "s3.%s.amazonaws.com%s", region, strncmp(region, "cn-", 3) == 0 ? ".cn" : "");
	return c->host != NULL ? 0 : err_nomem(err, "s3");
}

static const char *
find_endpoint(const struct s3_profile *p)
{
	const char *off = cred_env("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS");
	if (off != NULL && strcmp(off, "true") == 0)
		return NULL;
	const char *found = cred_env("AWS_ENDPOINT_URL_S3");
	if (found == NULL)
		found = cred_env("AWS_ENDPOINT_URL");
	if (found == NULL)
		found = s3_profile_get(p, "services.s3.endpoint_url");
	return found != NULL ? found : s3_profile_get(p, "endpoint_url");
}

/* ----------------------------------------------------------- the other settings */

static int
read_style(struct object_config *c, const struct s3_profile *p, struct pawl_error *err)
{
	const char *style = s3_profile_get(p, "s3.addressing_style");
	if (style == NULL || strcmp(style, "auto") == 0) {
		/* A certificate for *.s3... does not cover a bucket with dots. */
		c->path_style = !c->is_aws || strpbrk(c->bucket, "._") != NULL;
		return 0;
	}
	c->path_style = strcmp(style, "path") == 0;
	if (!c->path_style && strcmp(style, "virtual") != 0)
		return err_set(err, PAWL_EUSAGE, "addressing_style: expected path, virtual or auto, found \"%.40s\"",
		               style);
	return 0;
}

/* Like other tools of AWS: over TLS no third party can change a body, and a SHA-256 costs more than
 * all the rest. */
static int
read_signing(struct object_config *c, const struct s3_profile *p, struct pawl_error *err)
{
	const char *enabled = s3_profile_get(p, "s3.payload_signing_enabled");
	c->sign_bodies = enabled == NULL ? !c->https : strcasecmp(enabled, "true") == 0;
	if (enabled != NULL && !c->sign_bodies && strcasecmp(enabled, "false") != 0)
		return err_set(err, PAWL_EUSAGE, "payload_signing_enabled: expected true or false, found \"%.40s\"",
		               enabled);
	return 0;
}

/* If the signature covers a SHA-256 of the body, every server checks that. */
static int
read_when(struct object_config *c, const struct s3_profile *p, struct pawl_error *err)
{
	const char *when = cred_env("AWS_REQUEST_CHECKSUM_CALCULATION");
	if (when == NULL)
		when = s3_profile_get(p, "request_checksum_calculation");
	const bool sums = when == NULL ? !c->sign_bodies : strcasecmp(when, "when_supported") == 0;
	if (when != NULL && !sums && strcasecmp(when, "when_required") != 0)
		return err_set(
			err, PAWL_EUSAGE,
			"AWS_REQUEST_CHECKSUM_CALCULATION: expected when_supported or when_required, found \"%.40s\"",
			when);
	c->sum = sums ? OBJECT_SUM_CRC32C : OBJECT_SUM_NONE;
	return 0;
}

/* A checksum that is requested by its name is always sent. */
static int
read_sums(struct object_config *c, const struct s3_profile *p, struct pawl_error *err)
{
	const char *name = cred_env("PAWL_S3_CHECKSUM_ALGORITHM");
	TRY(read_when(c, p, err));
	if (name == NULL)
		name = s3_profile_get(p, "s3.checksum_algorithm");
	if (name == NULL)
		return 0;
	const int found = object_sum_find(name);
	if (found < 0)
		return err_set(err, PAWL_EUSAGE,
		               "checksum_algorithm: expected CRC32C, CRC64NVME, MD5 or SHA256, found \"%.40s\"", name);
	c->sum = (enum object_sum)found;
	return 0;
}

static int
read_all(struct object_config *c, const char *url, const struct s3_profile *p, struct pawl_error *err)
{
	TRY(object_read_url(c, url, url + strlen("s3://"), "bucket", err));
	const char *region = cred_env("AWS_REGION"), *endpoint = find_endpoint(p), *bundle = cred_env("AWS_CA_BUNDLE");
	if (region == NULL)
		region = cred_env("AWS_DEFAULT_REGION");
	if (region == NULL)
		region = s3_profile_get(p, "region");
	c->region_given = region != NULL;
	c->is_aws = endpoint == NULL;
	TRY(s3_config_set_region(c, region != NULL ? region : DEFAULT_REGION, err));
	if (endpoint != NULL)
		TRY(object_read_endpoint(c, "S3", endpoint, err));
	if (bundle == NULL)
		bundle = s3_profile_get(p, "ca_bundle");
	if (bundle != NULL)
		TRY(object_keep(c, bundle, &c->ca_bundle, err));
	TRY(read_style(c, p, err));
	TRY(read_signing(c, p, err));
	return read_sums(c, p, err);
}

int
s3_config_read(const char *url, struct object_config *ret, struct pawl_error *err)
{
	PAWL_CLEAN(s3_profile_clear) struct s3_profile profile = {0};
	TRY(s3_profile_read(&profile, err));
	*ret = (struct object_config){0};
	int rc = read_all(ret, url, &profile, err);
	if (rc < 0)
		bump_clear(&ret->memory);
	return rc;
}
