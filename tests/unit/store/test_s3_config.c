/* SPDX-License-Identifier: Apache-2.0 */
/* Where an s3:// URL leads: bucket, prefix, endpoint, region, style, from URL, environment and
 * profile. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/crc.h"
#include "base/err.h"
#include "store/object/object.h"

static int
setup(void **state)
{
	static const char *const names[] = {"AWS_REGION",
	                                    "AWS_DEFAULT_REGION",
	                                    "AWS_ENDPOINT_URL",
	                                    "AWS_ENDPOINT_URL_S3",
	                                    "AWS_PROFILE",
	                                    "AWS_CA_BUNDLE",
	                                    "AWS_REQUEST_CHECKSUM_CALCULATION",
	                                    "PAWL_S3_CHECKSUM_ALGORITHM",
	                                    "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"};
	(void)state;
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
		unsetenv(names[i]);
	setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent/c", 1);
	setenv("AWS_CONFIG_FILE", "/nonexistent/f", 1);
	return 0;
}

static void
assert_refused(const char *url, const char *part)
{
	struct object_config c;
	struct pawl_error err = {0};
	int rc = s3_config_read(url, &c, &err);
	if (rc != PAWL_EUSAGE || strstr(err.message, part) == NULL)
		fail_msg("%s: %d (%s)", url, rc, err.message);
}

static void
test_urls(void **state)
{
	(void)state;
	static const struct {
		const char *url, *bucket, *prefix, *root;
	} good[] = {{"s3://my-bucket", "my-bucket", "", "s3://my-bucket"},
	            {"s3://my-bucket/", "my-bucket", "", "s3://my-bucket"},
	            {"s3://my.bucket/a/b//", "my.bucket", "a/b/", "s3://my.bucket/a/b"},
	            {"s3://my-bucket/step=1 x", "my-bucket", "step=1 x/", "s3://my-bucket/step=1 x"}};
	for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
		struct object_config c;
		assert_int_equal(s3_config_read(good[i].url, &c, NULL), 0);
		assert_string_equal(c.bucket, good[i].bucket);
		assert_string_equal(c.prefix, good[i].prefix);
		assert_string_equal(c.root, good[i].root);
		bump_clear(&c.memory);
	}
	assert_refused("s3://", "has no bucket");
	assert_refused("s3:///x", "has no bucket");
	assert_refused("s3://ab/x", "is not a name of a bucket");
	assert_refused("s3://user:pw@host/x", "credentials in a URL are refused");
	assert_refused("s3://-bucket/x", "is not a name of a bucket");
	assert_refused("s3://bucket/a/../b", "not a path of plain names");
	assert_refused("s3://bucket/a//b", "not a path of plain names");
}

static void
test_amazon_is_the_default(void **state)
{
	(void)state;
	struct object_config c;
	assert_int_equal(s3_config_read("s3://bucket/x", &c, NULL), 0);
	assert_true(c.https && c.is_aws && !c.path_style && !c.region_given && c.sum == OBJECT_SUM_CRC32C);
	assert_string_equal(c.host, "s3.us-east-1.amazonaws.com");
	assert_int_equal(s3_config_set_region(&c, "cn-north-1", NULL), 0);
	assert_string_equal(c.host, "s3.cn-north-1.amazonaws.com.cn");
	assert_int_equal(s3_config_set_region(&c, "evil.example.org/", NULL), PAWL_EUSAGE);
	bump_clear(&c.memory);
	setenv("AWS_DEFAULT_REGION", "eu-west-1", 1);
	assert_int_equal(s3_config_read("s3://bucket.dots/x", &c, NULL), 0);
	assert_true(c.region_given && c.path_style);
	assert_string_equal(c.host, "s3.eu-west-1.amazonaws.com");
	bump_clear(&c.memory);
	setenv("AWS_REGION", "eu-west-2", 1);
	assert_int_equal(s3_config_read("s3://bucket/x", &c, NULL), 0);
	assert_string_equal(c.region, "eu-west-2");
	bump_clear(&c.memory);
}

static void
test_endpoints(void **state)
{
	(void)state;
	static const struct {
		const char *endpoint, *host, *base_path;
		bool https;
	} good[] = {{"http://127.0.0.1:9000", "127.0.0.1:9000", "", false},
	            {"https://s3.example.org/", "s3.example.org", "", true},
	            {"https://s3.example.org:443/", "s3.example.org", "", true},
	            {"http://h:80", "h", "", false},
	            {"https://h:80", "h:80", "", true},
	            {"https://h/storage/v1/s3/", "h", "/storage/v1/s3", true},
	            {"http://[::1]:9000", "[::1]:9000", "", false}};
	setenv("AWS_ENDPOINT_URL", "http://other", 1);
	for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
		struct object_config c;
		setenv("AWS_ENDPOINT_URL_S3", good[i].endpoint, 1);
		assert_int_equal(s3_config_read("s3://bucket/x", &c, NULL), 0);
		assert_string_equal(c.host, good[i].host);
		assert_string_equal(c.base_path, good[i].base_path);
		assert_int_equal(c.https, good[i].https);
		assert_int_equal(c.sum == OBJECT_SUM_CRC32C, good[i].https);
		assert_true(c.path_style);
		bump_clear(&c.memory);
	}
	static const char *const bad[] = {"ftp://h", "h:9000", "http://", "https://h?x=1", "http://h#x", "http://a b"};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		setenv("AWS_ENDPOINT_URL_S3", bad[i], 1);
		assert_refused("s3://bucket/x", "expected http(s)://host:port");
	}
}

static void
test_P18_a_password_in_an_endpoint_is_not_shown(void **state)
{
	(void)state;
	struct object_config c;
	struct pawl_error err = {0};
	setenv("AWS_ENDPOINT_URL", "https://user:CANARY@host", 1);
	assert_int_equal(s3_config_read("s3://bucket/x", &c, &err), PAWL_EUSAGE);
	assert_null(strstr(err.message, "CANARY"));
}

static void
test_sums(void **state)
{
	(void)state;
	struct object_config c;
	setenv("AWS_ENDPOINT_URL", "http://h", 1);
	setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "WHEN_SUPPORTED", 1);
	assert_int_equal(s3_config_read("s3://bucket/x", &c, NULL), 0);
	assert_int_equal(c.sum, OBJECT_SUM_CRC32C);
	bump_clear(&c.memory);
	setenv("AWS_ENDPOINT_URL", "https://h", 1);
	setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required", 1);
	assert_int_equal(s3_config_read("s3://bucket/x", &c, NULL), 0);
	assert_int_equal(c.sum, OBJECT_SUM_NONE);
	bump_clear(&c.memory);
	setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "never", 1);
	assert_refused("s3://bucket/x", "expected when_supported or when_required");
}

static void
test_the_algorithm_of_sums(void **state)
{
	(void)state;
	const struct {
		const char *name;
		enum object_sum sum;
	} good[] = {{"CRC32C", OBJECT_SUM_CRC32C},
	            {"crc64nvme", crc64nvme_exists() ? OBJECT_SUM_CRC64NVME : OBJECT_SUM_CRC32C},
	            {"MD5", OBJECT_SUM_MD5},
	            {"Sha256", OBJECT_SUM_SHA256}};
	setenv("AWS_ENDPOINT_URL", "http://h", 1);
	for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
		struct object_config c;
		setenv("PAWL_S3_CHECKSUM_ALGORITHM", good[i].name, 1);
		assert_int_equal(s3_config_read("s3://bucket/x", &c, NULL), 0);
		assert_int_equal(c.sum, good[i].sum);
		bump_clear(&c.memory);
	}
	setenv("PAWL_S3_CHECKSUM_ALGORITHM", "none", 1);
	assert_refused("s3://bucket/x", "expected CRC32C, CRC64NVME, MD5 or SHA256, found \"none\"");
}

static void
write_profile(const char *name, const char *text)
{
	FILE *f = fopen(name, "w");
	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
	setenv("AWS_CONFIG_FILE", name, 1);
}

static void
test_signing_of_bodies(void **state)
{
	(void)state;
	static const struct {
		const char *endpoint, *profile;
		bool sign, sums;
	} good[] = {{"http://h", "", true, false},
	            {"https://h", "", false, true},
	            {"http://h", "s3 =\n  payload_signing_enabled = false\n", false, true},
	            {"https://h", "s3 =\n  payload_signing_enabled = True\n", true, false}};
	char name[] = "/tmp/pawl-s3-config-XXXXXX", text[200];
	int fd = mkstemp(name);
	assert_true(fd >= 0);
	close(fd);
	for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
		struct object_config c;
		snprintf(text, sizeof text, "[default]\n%s", good[i].profile);
		write_profile(name, text);
		setenv("AWS_ENDPOINT_URL", good[i].endpoint, 1);
		assert_int_equal(s3_config_read("s3://bucket/x", &c, NULL), 0);
		assert_int_equal(c.sign_bodies, good[i].sign);
		assert_int_equal(c.sum == OBJECT_SUM_CRC32C, good[i].sums);
		bump_clear(&c.memory);
	}
	write_profile(name, "[default]\ns3 =\n  checksum_algorithm = SHA256\n");
	struct object_config named;
	assert_int_equal(s3_config_read("s3://bucket/x", &named, NULL), 0);
	assert_int_equal(named.sum, OBJECT_SUM_SHA256);
	bump_clear(&named.memory);
	write_profile(name, "[default]\ns3 =\n  payload_signing_enabled = maybe\n");
	assert_refused("s3://bucket/x", "payload_signing_enabled: expected true or false, found \"maybe\"");
	unlink(name);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_urls, setup),
		cmocka_unit_test_setup(test_amazon_is_the_default, setup),
		cmocka_unit_test_setup(test_endpoints, setup),
		cmocka_unit_test_setup(test_P18_a_password_in_an_endpoint_is_not_shown, setup),
		cmocka_unit_test_setup(test_sums, setup),
		cmocka_unit_test_setup(test_the_algorithm_of_sums, setup),
		cmocka_unit_test_setup(test_signing_of_bodies, setup),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
