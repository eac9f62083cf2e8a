/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signatures, against the four examples that Amazon publishes in the S3 API reference,
 * "Authenticating Requests: Using the Authorization Header (AWS Signature Version 4)". Real servers
 * check them in tests/py/test_s3.py.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/text.h"
#include "store/object/digest.h"
#include "store/object/http/http.h"
#include "store/object/sigv4.h"

#define ACCESS "AKIAIOSFODNN7EXAMPLE"
#define SECRET "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
#define HOST {"Host", "examplebucket.s3.amazonaws.com"}
#define DATE "20130524T000000Z"

static struct sigv4_request
example(const char *method, const char *path, const char *query, const struct http_header *headers, size_t n)
{
	return (struct sigv4_request){.method = method,
	                              .path = path,
	                              .query = query,
	                              .headers = headers,
	                              .n_headers = n,
	                              .payload = SIGV4_EMPTY,
	                              .region = "us-east-1",
	                              .service = "s3",
	                              .date = DATE};
}

static void
assert_signature(const struct sigv4_request *rq, const char *names, const char *signature)
{
	PAWL_CLEAN(buf_clear) struct buf out = {0};
	PAWL_FREE char *expected = mem_printf("AWS4-HMAC-SHA256 Credential=" ACCESS
	                                      "/20130524/us-east-1/s3/aws4_request,SignedHeaders=%s,Signature=%s",
	                                      names, signature);
	assert_int_equal(sigv4_sign(rq, ACCESS, SECRET, &out, NULL), 0);
	assert_string_equal(buf_str(&out), expected);
}

static void
test_published_get_of_a_range(void **state)
{
	(void)state;
	const struct http_header headers[] = {
		HOST, {"Range", "bytes=0-9"}, {"x-amz-content-sha256", SIGV4_EMPTY}, {"x-amz-date", DATE}};
	struct sigv4_request rq = example("GET", "/test.txt", "", headers, 4);
	assert_signature(&rq, "host;range;x-amz-content-sha256;x-amz-date",
	                 "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

static void
test_published_put_with_an_odd_key(void **state)
{
	(void)state;
	char payload[65];
	struct pawl_slice body[] = {{"Welcome to ", 11}, {"", 0}, {"Amazon S3.", 10}};
	PAWL_CLEAN(buf_clear) struct buf path = {0};
	assert_int_equal(digest_sha256_hex(body, 3, payload, NULL), 0);
	assert_string_equal(payload, "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072");
	http_encode(&path, "/test$file.text", true);
	/* In an order of our own: signing sorts. */
	const struct http_header headers[] = {{"x-amz-storage-class", "REDUCED_REDUNDANCY"},
	                                      {"X-Amz-Date", DATE},
	                                      {"x-amz-content-sha256", payload},
	                                      HOST,
	                                      {"Date", "Fri, 24 May 2013 00:00:00 GMT"}};
	struct sigv4_request rq = example("PUT", buf_str(&path), "", headers, 5);
	rq.payload = payload;
	assert_signature(&rq, "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
	                 "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
}

static void
test_published_queries(void **state)
{
	(void)state;
	const struct http_header headers[] = {HOST, {"x-amz-content-sha256", SIGV4_EMPTY}, {"x-amz-date", DATE}};
	static const char names[] = "host;x-amz-content-sha256;x-amz-date";
	struct sigv4_request rq = example("GET", "/", "lifecycle=", headers, 3);
	assert_signature(&rq, names, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
	rq = example("GET", "/", "max-keys=2&prefix=J", headers, 3);
	assert_signature(&rq, names, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

static void
test_every_part_of_a_request_changes_the_signature(void **state)
{
	(void)state;
	const struct http_header headers[] = {HOST, {"x-amz-date", DATE}}, other[] = {HOST, {"x-amz-date", DATE "x"}};
	const struct sigv4_request rq = example("GET", "/a", "x=1", headers, 2);
	struct sigv4_request changed[8];
	PAWL_CLEAN(buf_clear) struct buf first = {0};
	for (size_t i = 0; i < 8; i++)
		changed[i] = rq;
	changed[0].method = "PUT";
	changed[1].path = "/b";
	changed[2].query = "x=2";
	changed[3].headers = other;
	changed[4].payload = SIGV4_UNSIGNED;
	changed[5].region = "eu-west-1";
	changed[6].service = "sts";
	changed[7].date = "20130525T000000Z";
	assert_int_equal(sigv4_sign(&rq, ACCESS, SECRET, &first, NULL), 0);
	const char *signature = strstr(buf_str(&first), "Signature=");
	for (size_t i = 0; i < 8; i++) {
		PAWL_CLEAN(buf_clear) struct buf out = {0};
		assert_int_equal(sigv4_sign(&changed[i], ACCESS, SECRET, &out, NULL), 0);
		assert_string_not_equal(strstr(buf_str(&out), "Signature="), signature);
	}
	PAWL_CLEAN(buf_clear) struct buf out = {0};
	assert_int_equal(sigv4_sign(&rq, ACCESS, SECRET "x", &out, NULL), 0);
	assert_string_not_equal(strstr(buf_str(&out), "Signature="), signature);
}

static void
test_headers_are_lower_case_sorted_and_trimmed(void **state)
{
	(void)state;
	const struct http_header headers[] = {
		{"x-amz-meta-test-two", "b"}, {"X-Amz-Meta-Test", "  a \t  c  "}, {"Host", "h:1"}};
	struct sigv4_request rq = example("GET", "/", "", headers, 3);
	PAWL_CLEAN(buf_clear) struct buf out = {0};
	assert_int_equal(sigv4_canonical(&rq, &out, NULL), 0);
	assert_string_equal(buf_str(&out), "GET\n/\n\nhost:h:1\nx-amz-meta-test:a c\nx-amz-meta-test-two:b\n\n"
	                                   "host;x-amz-meta-test;x-amz-meta-test-two\n" SIGV4_EMPTY);
}

/* Computed by a separate program, in another language. The tests of the engine have every request
 * verified so. */
static void
test_googles_names_for_the_same(void **state)
{
	(void)state;
	static const char payload[] = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";
	const struct http_header headers[] = {{"Host", "storage.googleapis.com"},
	                                      {"x-goog-if-generation-match", "0"},
	                                      {"x-goog-date", DATE},
	                                      {"x-goog-content-sha256", payload}};
	struct sigv4_request rq = example("PUT", "/bucket/test%24file.text", "", headers, 4);
	rq.payload = payload;
	rq.region = "auto";
	rq.service = "storage";
	rq.is_google = true;
	PAWL_CLEAN(buf_clear) struct buf out = {0};
	assert_int_equal(sigv4_sign(&rq, ACCESS, SECRET, &out, NULL), 0);
	assert_string_equal(buf_str(&out),
	                    "GOOG4-HMAC-SHA256 Credential=" ACCESS
	                    "/20130524/auto/storage/goog4_request,SignedHeaders=host;x-goog-content-sha256;x-goog-date;"
	                    "x-goog-if-generation-match,Signature="
	                    "82ebe0e220d657ab16ad5bf1609a9d2a20aa7d25cf55e00a9db87b71aba869c3");
}

static void
test_dates_and_digests(void **state)
{
	(void)state;
	char date[17];
	unsigned char hash[16];
	PAWL_CLEAN(buf_clear) struct buf out = {0};
	struct pawl_slice text = {"abc", 3};
	sigv4_date(1369353600, date);
	assert_string_equal(date, DATE);
	sigv4_date(0, date);
	assert_string_equal(date, "19700101T000000Z");
	assert_int_equal(digest_md5(&text, 1, hash, NULL), 0);
	text_put_base64(&out, hash, sizeof hash);
	assert_string_equal(buf_str(&out), "kAFQmDzST7DWlj99KOF/cg==");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_published_get_of_a_range),
		cmocka_unit_test(test_published_put_with_an_odd_key),
		cmocka_unit_test(test_published_queries),
		cmocka_unit_test(test_every_part_of_a_request_changes_the_signature),
		cmocka_unit_test(test_headers_are_lower_case_sorted_and_trimmed),
		cmocka_unit_test(test_googles_names_for_the_same),
		cmocka_unit_test(test_dates_and_digests),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
