/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Azure Blob storage without a server: where URLs and the environment lead. Also SharedKey
 * signatures, against values computed by a separate program in another language. A real server
 * checks them in tests/py/test_azure.py.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/err.h"
#include "store/object/azure/store_azure.h"

#define KEY "MDEyMzQ1Njc4OWFiY2RlZg=="
#define CONNECTION "AZURE_STORAGE_CONNECTION_STRING"

static int
setup(void **state)
{
	static const char *const names[] = {CONNECTION,
	                                    "AZURE_STORAGE_ACCOUNT",
	                                    "AZURE_STORAGE_ACCOUNT_NAME",
	                                    "AZURE_STORAGE_KEY",
	                                    "AZURE_STORAGE_ACCOUNT_KEY",
	                                    "AZURE_STORAGE_SAS_TOKEN",
	                                    "AZURE_STORAGE_SERVICE_ENDPOINT",
	                                    "AZURE_STORAGE_ENDPOINT"};
	(void)state;
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
		unsetenv(names[i]);
	return 0;
}

static void
assert_leads(const char *url, const char *host, const char *path, const char *bucket, const char *account)
{
	struct object_config c;
	struct pawl_error err = {0};
	if (azure_config_read(url, &c, &err) < 0)
		fail_msg("%s: %s", url, err.message);
	assert_string_equal(c.host, host);
	assert_string_equal(c.base_path, path);
	assert_string_equal(c.bucket, bucket);
	assert_string_equal(c.account, account);
	assert_string_equal(c.root, url);
	assert_true(c.path_style);
	bump_clear(&c.memory);
}

static void
assert_refused(const char *url, const char *part)
{
	struct object_config c;
	struct pawl_error err = {0};
	int rc = azure_config_read(url, &c, &err);
	if (rc != PAWL_EUSAGE || strstr(err.message, part) == NULL)
		fail_msg("%s: %d (%s)", url, rc, err.message);
}

static void
test_urls_and_accounts(void **state)
{
	(void)state;
	assert_leads("az://acct.blob.core.windows.net/box/a", "acct.blob.core.windows.net", "", "box", "acct");
	assert_refused("az://box/a", "no storage account");
	setenv("AZURE_STORAGE_ACCOUNT_NAME", "second", 1);
	assert_leads("az://box/a", "second.blob.core.windows.net", "", "box", "second");
	setenv("AZURE_STORAGE_ACCOUNT", "acct", 1);
	assert_leads("az://box", "acct.blob.core.windows.net", "", "box", "acct");
	assert_refused("az://other.blob.core.windows.net/box", "are for account \"acct\"");
	setenv("AZURE_STORAGE_SERVICE_ENDPOINT", "http://127.0.0.1:10000/acct", 1);
	assert_leads("az://box", "127.0.0.1:10000", "/acct", "box", "acct");
	setenv("AZURE_STORAGE_ACCOUNT", "Not An Account", 1);
	assert_refused("az://box", "is not a name of a storage account");
	assert_refused("az://", "has no container, expected az://container/prefix");
	assert_refused("az://acct.blob.core.windows.net", "has no container");
	assert_refused("az://box/a/../b", "not a path of plain names");
}

static void
test_connection_strings(void **state)
{
	(void)state;
	setenv("AZURE_STORAGE_ACCOUNT", "ignored", 1);
	setenv(CONNECTION,
	       "DefaultEndpointsProtocol=http;AccountName=acct;AccountKey=" KEY ";EndpointSuffix=example.org", 1);
	assert_leads("az://box", "acct.blob.example.org", "", "box", "acct");
	struct cred_keys keys;
	assert_int_equal(azure_cred_find(&(struct cred_where){0}, &keys, NULL), 0);
	assert_string_equal(keys.secret_key, KEY);
	assert_string_equal(keys.access_key, "acct");
	setenv(CONNECTION, "blobendpoint=https://h:8443/p/;QueueEndpoint=x;SharedAccessSignature=sv=1&sig=a%3D", 1);
	assert_leads("az://box", "h:8443", "/p", "box", "");
	assert_int_equal(azure_cred_find(&(struct cred_where){0}, &keys, NULL), 0);
	assert_string_equal(keys.session_token, "sv=1&sig=a%3D");
	assert_string_equal(keys.secret_key, "");
	setenv(CONNECTION, "AccountName", 1);
	assert_refused("az://box", "expected parts of the form Name=value");
	setenv(CONNECTION, "AccountKey=" KEY, 1);
	assert_refused("az://box", "no storage account");
	setenv(CONNECTION, "BlobEndpoint=https://user:CANARY@h", 1);
	assert_refused("az://box", "names a user");
}

static void
assert_unfit(const char *variable, const char *value, const char *part)
{
	struct cred_keys keys;
	struct pawl_error err = {0};
	setenv(variable, value, 1);
	assert_int_equal(azure_cred_find(&(struct cred_where){0}, &keys, &err), PAWL_EAUTH);
	if (strstr(err.message, part) == NULL || strstr(err.message, "CANARY") != NULL)
		fail_msg("%s: %s", value, err.message);
	unsetenv(variable);
}

static void
test_P18_credentials_that_cannot_be(void **state)
{
	(void)state;
	assert_unfit("AZURE_STORAGE_ACCOUNT", "acct", "no credentials for Azure Blob storage");
	assert_unfit("AZURE_STORAGE_KEY", "CANARY!", "expected base64");
	assert_unfit("AZURE_STORAGE_SAS_TOKEN", "CANARY", "is malformed");
	assert_unfit("AZURE_STORAGE_SAS_TOKEN", "sig=CANARY#x", "is malformed");
	assert_unfit("AZURE_STORAGE_SAS_TOKEN", "se=CANARY&sig=x", "time of expiry");
	assert_unfit("AZURE_STORAGE_SAS_TOKEN", "sig=CANARY&se=2020-01-01T00%3A00%3A00Z", "expired");
	assert_unfit("AZURE_STORAGE_SAS_TOKEN", "sig=CANARY&se=2020-01-01", "expired");
	assert_unfit("AZURE_STORAGE_SAS_TOKEN", "sig=CANARY&se=2020-01-01T00:00Z", "expired");
}

static void
test_a_tokens_expiry_is_read(void **state)
{
	(void)state;
	struct cred_keys keys;
	setenv("AZURE_STORAGE_SAS_TOKEN", "?sv=1&se=2099-05-24T00%3A00%3A00Z&sig=x", 1);
	assert_int_equal(azure_cred_find(&(struct cred_where){0}, &keys, NULL), 0);
	assert_true(keys.expires_s > (int64_t)time(NULL));
	assert_string_equal(keys.session_token, "sv=1&se=2099-05-24T00%3A00%3A00Z&sig=x");
}

static void
test_signatures(void **state)
{
	(void)state;
	PAWL_CLEAN(buf_clear) struct buf out = {0};
	const struct http_header put[] = {{"Content-MD5", "sum=="},
	                                  {"x-ms-version", "2021-12-02"},
	                                  {"x-ms-date", "Fri, 24 May 2013 00:00:00 GMT"},
	                                  {"x-ms-blob-type", "BlockBlob"},
	                                  {"If-None-Match", "*"}};
	assert_int_equal(azure_sign("acct", KEY, "PUT", put, 5, 11, "/base/box/a%20b", "blockid=a%2Fb%3D&comp=block",
	                            &out, NULL),
	                 0);
	assert_string_equal(buf_str(&out), "SharedKey acct:MIK96SCChmbhz2Ex3CeoAPWrQ8hGQ7OlsjAJnF3WS5Y=");
	const struct http_header get[] = {{"x-ms-date", "d"}, {"If-Match", "\"e\""}, {"Range", "bytes=0-9"}};
	out.len = 0;
	assert_int_equal(azure_sign("acct", KEY, "GET", get, 3, 0, "/box/k", "", &out, NULL), 0);
	assert_string_equal(buf_str(&out), "SharedKey acct:knzPztGPO7d4VjvauoZ3zVIZZeTV7urg2eM9wjC+A2U=");
	assert_int_equal(azure_sign("acct", "!", "GET", get, 3, 0, "/", "", &out, NULL), PAWL_EAUTH);
}

static void
test_dates(void **state)
{
	(void)state;
	char date[32];
	http_put_date(1369353600, date);
	assert_string_equal(date, "Fri, 24 May 2013 00:00:00 GMT");
	assert_int_equal(http_date_time(date), 1369353600);
	http_put_date(0, date);
	assert_string_equal(date, "Thu, 01 Jan 1970 00:00:00 GMT");
	http_put_date(INT64_MAX, date);
	assert_string_equal(date, "Thu, 01 Jan 1970 00:00:00 GMT");
}

int
main(void)
{
#define CASE(name) cmocka_unit_test_setup(name, setup)
	const struct CMUnitTest tests[] = {
		CASE(test_urls_and_accounts),
		CASE(test_connection_strings),
		CASE(test_P18_credentials_that_cannot_be),
		CASE(test_a_tokens_expiry_is_read),
		CASE(test_signatures),
		CASE(test_dates),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
