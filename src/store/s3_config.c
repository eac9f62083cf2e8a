/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_config: where an s3:// URL leads: endpoint, region, style of addressing, sums, from the URL, the environment and
 * the profile, in the order and under the names that AWS tools use. Called by store_s3.c once, when a store is opened.
 *
 *   AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, services.s3.endpoint_url, endpoint_url    else
 * https://s3.<region>.amazonaws.com AWS_REGION, AWS_DEFAULT_REGION, region else us-east-1 s3.addressing_style: path or
 * virtual        else virtual for AWS, path elsewhere and for buckets with dots AWS_REQUEST_CHECKSUM_CALCULATION,
 * request_checksum_calculation: when_supported, when_required AWS_CA_BUNDLE, ca_bundle
 */
#include "store/store_s3.h"

#include <string.h>

#include "base/err.h"
#include "base/text.h"

#define DEFAULT_REGION "us-east-1"

static int
no_memory(struct pawl_error *err)
{
	return err_set(err, PAWL_ENOMEM, "s3: out of memory");
}

/* A copy that lives as long as the configuration. */
static int
keep(struct s3_config *c, const char *text, const char **ret, struct pawl_error *err)
{
	*ret = bump_strndup(&c->memory, text, strlen(text));
	return *ret != NULL ? 0 : no_memory(err);
}

/* ----------------------------------------------------------------- the URL */

static bool
is_bucket(const char *name, size_t len)
{
	if (len < 3 || len > 255)
		return false;
	for (size_t i = 0; i < len; i++) {
		char c = name[i];
		bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
		if (!plain && (i == 0 || (c != '-' && c != '_' && c != '.')))
			return false;
	}
	return true;
}

static int
read_url(struct s3_config *c, const char *url, struct pawl_error *err)
{
	const char *bucket = url + strlen("s3://");
	size_t len = strcspn(bucket, "/");
	if (strncmp(url, "s3://", 5) != 0 || len == 0)
		return err_set(err, PAWL_EUSAGE, "%.300s: has no bucket, expected s3://bucket/prefix", url);
	if (!is_bucket(bucket, len))
		return err_set(err, PAWL_EUSAGE, "%.300s: \"%.*s\" is no name of a bucket", url, (int)len, bucket);
	const char *prefix = bucket + len;
	while (*prefix == '/')
		prefix++;
	size_t n = strlen(prefix);
	while (n > 0 && prefix[n - 1] == '/')
		n--;
	c->bucket = bump_strndup(&c->memory, bucket, len);
	char *folder = bump_strndup(&c->memory, prefix, n);
	if (c->bucket == NULL || folder == NULL)
		return no_memory(err);
	if (n > 0 && !text_is_key(folder))
		return err_set(err, PAWL_EUSAGE, "%.300s: the part behind the bucket is no path of plain names", url);
	c->prefix = n > 0 ? bump_printf(&c->memory, "%s/", folder) : "";
	c->root = bump_printf(&c->memory, "s3://%s%s%s", c->bucket, n > 0 ? "/" : "", folder);
	return c->prefix == NULL || c->root == NULL ? no_memory(err) : 0;
}

/* ------------------------------------------------------------ the endpoint */

static int
bad_endpoint(const char *endpoint, const char *why, struct pawl_error *err)
{
	/* What stands before an '@' may be a password. */
	if (strchr(endpoint, '@') != NULL)
		return err_set(err, PAWL_EUSAGE, "the endpoint of S3 names a user, expected http(s)://host:port");
	return err_set(err, PAWL_EUSAGE, "%.200s: %s, expected http(s)://host:port", endpoint, why);
}

static int
read_endpoint(struct s3_config *c, const char *endpoint, struct pawl_error *err)
{
	c->https = strncmp(endpoint, "https://", 8) == 0;
	if (!c->https && strncmp(endpoint, "http://", 7) != 0)
		return bad_endpoint(endpoint, "is no endpoint of S3", err);
	const char *host = endpoint + (c->https ? 8 : 7);
	size_t len = strcspn(host, "/?#");
	if (len == 0 || strpbrk(endpoint, "@?# \t\\") != NULL)
		return bad_endpoint(endpoint, "is no plain endpoint", err);
	size_t n = strlen(host + len);
	while (n > 0 && host[len + n - 1] == '/')
		n--;
	/* Clients leave the usual port out of the Host header, which is signed. */
	const char *usual = c->https ? ":443" : ":80";
	size_t tail = strlen(usual);
	size_t host_len = len > tail && memcmp(host + len - tail, usual, tail) == 0 ? len - tail : len;
	c->host = bump_strndup(&c->memory, host, host_len);
	c->base_path = bump_strndup(&c->memory, host + len, n);
	return c->host == NULL || c->base_path == NULL ? no_memory(err) : 0;
}

int
s3_config_set_region(struct s3_config *c, const char *region, struct pawl_error *err)
{
	for (const char *p = region; *p != '\0'; p++)
		if (!((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || *p == '-' ||
		      *p == '_') ||
		    p - region > 64)
			return err_set(err, PAWL_EUSAGE, "\"%.80s\" is no name of a region", region);
	TRY(keep(c, region, &c->region, err));
	if (!c->is_aws)
		return 0;
	c->https = true;
	c->base_path = "";
	c->host = bump_printf(&c->memory, "s3.%s.amazonaws.com%s", region, strncmp(region, "cn-", 3) == 0 ? ".cn" : "");
	return c->host != NULL ? 0 : no_memory(err);
}

static const char *
find_endpoint(const struct s3_profile *p)
{
	const char *off = s3_env("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS");
	if (off != NULL && strcmp(off, "true") == 0)
		return NULL;
	const char *found = s3_env("AWS_ENDPOINT_URL_S3");
	if (found == NULL)
		found = s3_env("AWS_ENDPOINT_URL");
	if (found == NULL)
		found = s3_profile_get(p, "services.s3.endpoint_url");
	return found != NULL ? found : s3_profile_get(p, "endpoint_url");
}

/* ----------------------------------------------------------- the other settings */

static int
read_style(struct s3_config *c, const struct s3_profile *p, struct pawl_error *err)
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

static int
read_sums(struct s3_config *c, const struct s3_profile *p, struct pawl_error *err)
{
	const char *when = s3_env("AWS_REQUEST_CHECKSUM_CALCULATION");
	if (when == NULL)
		when = s3_profile_get(p, "request_checksum_calculation");
	/* Without TLS the signature covers a SHA-256 of the body, which every server checks. */
	c->sums = when == NULL ? c->https : strcasecmp(when, "when_supported") == 0;
	if (when != NULL && !c->sums && strcasecmp(when, "when_required") != 0)
		return err_set(
			err, PAWL_EUSAGE,
			"AWS_REQUEST_CHECKSUM_CALCULATION: expected when_supported or when_required, found \"%.40s\"",
			when);
	return 0;
}

static int
read_all(struct s3_config *c, const char *url, const struct s3_profile *p, struct pawl_error *err)
{
	TRY(read_url(c, url, err));
	const char *region = s3_env("AWS_REGION"), *endpoint = find_endpoint(p), *bundle = s3_env("AWS_CA_BUNDLE");
	if (region == NULL)
		region = s3_env("AWS_DEFAULT_REGION");
	if (region == NULL)
		region = s3_profile_get(p, "region");
	c->region_given = region != NULL;
	c->is_aws = endpoint == NULL;
	TRY(s3_config_set_region(c, region != NULL ? region : DEFAULT_REGION, err));
	if (endpoint != NULL)
		TRY(read_endpoint(c, endpoint, err));
	if (bundle == NULL)
		bundle = s3_profile_get(p, "ca_bundle");
	if (bundle != NULL)
		TRY(keep(c, bundle, &c->ca_bundle, err));
	TRY(read_style(c, p, err));
	return read_sums(c, p, err);
}

int
s3_config_read(const char *url, struct s3_config *ret, struct pawl_error *err)
{
	PAWL_CLEAN(s3_profile_clear) struct s3_profile profile = {0};
	TRY(s3_profile_read(&profile, err));
	*ret = (struct s3_config){0};
	int rc = read_all(ret, url, &profile, err);
	if (rc < 0)
		bump_clear(&ret->memory);
	return rc;
}
