/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP calls against a server on the loopback: what is sent, where answers go, and which of them
 * are refused. */
#include "helpers/http_bed.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "store/object/http/http.h"

#define ANSWER(status, headers, body) "HTTP/1.1 " status "\r\nConnection: close\r\n" headers "\r\n" body

static struct http *
client(unsigned low_speed_seconds, unsigned total_seconds)
{
	struct http *h = NULL;
	struct http_opts opts = {.low_speed_seconds = low_speed_seconds, .total_seconds = total_seconds};
	assert_int_equal(http_new(&opts, &h, NULL), 0);
	return h;
}

static int
run(struct http_bed *bed, struct http *h, const char *path, struct http_call *call, struct pawl_error *err)
{
	char url[256];
	snprintf(url, sizeof url, "%s%s", bed->url, path);
	call->url = url;
	if (call->method == NULL)
		call->method = "GET";
	int rc = http_run(h, call, 1, err);
	call->url = NULL;
	return rc;
}

static void
test_requests_are_sent_as_given(void **state)
{
	(void)state;
	struct http_bed bed = {
		.rules = {{"PUT /a/../b%2F?x=1",
	                   ANSWER("200 OK", "ETag: \"e\"\r\nX-Two:  a b \r\nContent-Length: 3\r\n", "yes"), 0}}};
	http_bed_open(&bed);
	struct http *h = client(0, 0);
	struct pawl_slice body[] = {{"ab", 2}, {NULL, 0}, {"cdef", 4}};
	PAWL_CLEAN(http_call_clear) struct http_call call = {.method = "PUT", .body = body, .n_body = 3};
	call.headers[call.n_headers++] = (struct http_header){"x-amz-test", "one two"};
	assert_int_equal(run(&bed, h, "/a/../b%2F?x=1", &call, NULL), 0);
	assert_int_equal(call.status, 200);
	assert_string_equal(buf_str(&call.text), "yes");
	assert_string_equal(http_header_of(&call, "etag"), "\"e\"");
	assert_null(http_header_of(&call, "x"));
	assert_non_null(strstr(bed.last, "\r\nx-amz-test: one two\r\n"));
	assert_non_null(strstr(bed.last, "\r\nContent-Length: 6\r\n"));
	assert_non_null(strstr(bed.last, "\r\n\r\nabcdef"));
	assert_null(strstr(bed.last, "Expect:"));
	assert_null(strstr(bed.last, "Cookie"));
	http_free(h);
	http_bed_close(&bed);
}

static void
test_bodies_go_to_their_place_or_nowhere(void **state)
{
	(void)state;
	struct http_bed bed = {.rules = {{"GET /exact", ANSWER("206 Partial", "Content-Length: 5\r\n", "12345"), 0},
	                                 {"GET /short", ANSWER("206 Partial", "Content-Length: 4\r\n", "1234"), 0},
	                                 {"GET /long", ANSWER("206 Partial", "Content-Length: 6\r\n", "123456"), 0},
	                                 {"GET /cut", ANSWER("206 Partial", "Content-Length: 5\r\n", "123"), 0},
	                                 {"GET /whole", ANSWER("200 OK", "Content-Length: 5\r\n", "abcde"), 0},
	                                 {"GET /error", ANSWER("500 Bad", "Content-Length: 5\r\n", "sorry"), 0},
	                                 {"GET /empty", "", 0}}};
	http_bed_open(&bed);
	struct http *h = client(0, 0);
	static const struct {
		const char *path;
		int rc, status;
		const char *dst;
	} cases[] = {{"/exact", 0, 206, "12345"},
	             {"/short", PAWL_ETRANSIENT, 206, NULL},
	             {"/long", PAWL_ETRANSIENT, 206, NULL},
	             {"/cut", PAWL_ETRANSIENT, 206, NULL},
	             {"/whole", 0, 200, "....."},
	             {"/error", 0, 500, "....."},
	             {"/empty", PAWL_ETRANSIENT, 0, "....."}};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		char dst[8] = ".......";
		struct pawl_error err = {0};
		PAWL_CLEAN(http_call_clear) struct http_call call = {.dst = dst, .dst_bytes = 5, .dst_status = 206};
		int rc = run(&bed, h, cases[i].path, &call, &err);
		if (rc != cases[i].rc)
			fail_msg("%s: %d (%s)", cases[i].path, rc, err.message);
		if (rc < 0)
			assert_non_null(strstr(err.message, "127.0.0.1:"));
		if (rc == 0)
			assert_int_equal(call.status, cases[i].status);
		if (cases[i].dst != NULL)
			assert_int_equal(memcmp(dst, cases[i].dst, 5), 0);
		assert_string_equal(dst + 5, "..");
	}
	http_free(h);
	http_bed_close(&bed);
}

static void
test_P16_head_and_text_have_limits(void **state)
{
	(void)state;
	PAWL_CLEAN(buf_clear) struct buf head = {0};
	buf_puts(&head, "HTTP/1.1 200 OK\r\n");
	for (int i = 0; i < 200; i++)
		buf_printf(&head, "X-%d: %0500d\r\n", i, i);
	buf_puts(&head, "Content-Length: 0\r\n\r\n");
	struct http_bed bed = {.rules = {{"GET /head", buf_str(&head), 0},
	                                 {"GET /text", ANSWER("200 OK", "Content-Length: 11\r\n", "12345678901"), 0}}};
	http_bed_open(&bed);
	struct http *h = client(0, 0);
	struct pawl_error err = {0};
	PAWL_CLEAN(http_call_clear) struct http_call call = {.text_max = 10};
	assert_int_equal(run(&bed, h, "/head", &call, &err), PAWL_ELIMIT);
	assert_int_equal(run(&bed, h, "/text", &call, &err), PAWL_ELIMIT);
	call.text_max = 11;
	assert_int_equal(run(&bed, h, "/text", &call, &err), 0);
	http_free(h);
	http_bed_close(&bed);
}

static void
test_P16_a_server_that_says_nothing_is_given_up(void **state)
{
	(void)state;
	struct http_bed bed = {.rules = {{"GET /stall", NULL, 0}}};
	http_bed_open(&bed);
	struct http *h = client(1, 0);
	struct pawl_error err = {0};
	PAWL_CLEAN(http_call_clear) struct http_call call = {0};
	assert_int_equal(run(&bed, h, "/stall", &call, &err), PAWL_ETIMEOUT);
	http_free(h);
	h = client(600, 0);
	call.deadline_ms = clock_mono_ms() + 100;
	atomic_store(&bed.stop, true); /* ends the first; the next connection is not even taken */
	assert_int_equal(run(&bed, h, "/stall", &call, &err), PAWL_ETIMEOUT);
	http_free(h);
	http_bed_close(&bed);
}

static void *
cancel_later(void *arg)
{
	usleep(100000);
	atomic_store((atomic_bool *)arg, true);
	return NULL;
}

static void
test_a_call_can_be_cancelled(void **state)
{
	(void)state;
	struct http_bed bed = {.rules = {{"GET /stall", NULL, 0}}};
	http_bed_open(&bed);
	struct http *h = client(0, 0);
	atomic_bool cancel = false;
	struct pawl_error err = {0};
	PAWL_CLEAN(http_call_clear) struct http_call call = {.cancel = &cancel};
	pthread_t thread;
	assert_int_equal(pthread_create(&thread, NULL, cancel_later, &cancel), 0);
	assert_int_equal(run(&bed, h, "/stall", &call, &err), PAWL_ECANCELLED);
	pthread_join(thread, NULL);
	http_free(h);
	http_bed_close(&bed);
}

static void
test_redirects_and_other_protocols_are_not_followed(void **state)
{
	(void)state;
	struct http_bed bed = {
		.rules = {{"GET /old", ANSWER("302 Found", "Location: /new\r\nContent-Length: 0\r\n", ""), 0},
	                  {"GET /new", ANSWER("200 OK", "Content-Length: 0\r\n", ""), 0}}};
	http_bed_open(&bed);
	struct http *h = client(0, 0);
	struct pawl_error err = {0};
	PAWL_CLEAN(http_call_clear) struct http_call call = {0};
	assert_int_equal(run(&bed, h, "/old", &call, &err), 0);
	assert_int_equal(call.status, 302);
	assert_int_equal(atomic_load(&bed.rules[1].seen), 0);
	static const char *const others[] = {"file:///etc/passwd", "ftp://127.0.0.1/", "gopher://127.0.0.1/"};
	for (size_t i = 0; i < 3; i++) {
		call.url = others[i];
		assert_int_equal(http_run(h, &call, 1, &err), PAWL_EUSAGE);
	}
	http_free(h);
	http_bed_close(&bed);
}

static void
test_link_local_addresses_are_refused(void **state)
{
	(void)state;
	struct http *h = client(0, 0);
	struct pawl_error err = {0};
	static const char *const urls[] = {"http://169.254.169.254/latest", "http://[::ffff:169.254.169.254]/",
	                                   "http://[fe80::1]/"};
	for (size_t i = 0; i < 3; i++) {
		PAWL_CLEAN(http_call_clear) struct http_call call = {.method = "GET", .url = urls[i]};
		assert_int_equal(http_run(h, &call, 1, &err), PAWL_EUSAGE);
		assert_non_null(strstr(err.message, "link-local"));
	}
	http_free(h);
}

static void
test_several_calls_run_at_a_time(void **state)
{
	(void)state;
	struct http_bed bed = {.rules = {{"GET /a", ANSWER("200 OK", "Content-Length: 1\r\n", "a"), 0},
	                                 {"GET /b", ANSWER("200 OK", "Content-Length: 1\r\n", "b"), 0}}};
	http_bed_open(&bed);
	struct http *h = client(0, 0);
	struct http_call calls[4] = {0};
	char urls[4][96], dst[4] = "...";
	for (size_t i = 0; i < 4; i++) {
		snprintf(urls[i], sizeof urls[i], "%s/%c", bed.url, i % 2 ? 'b' : 'a');
		calls[i] = (struct http_call){
			.method = "GET", .url = urls[i], .dst = &dst[i], .dst_bytes = 1, .dst_status = 200};
	}
	for (int round = 0; round < 3; round++) {
		assert_int_equal(http_run(h, calls, 4, NULL), 0);
		assert_int_equal(memcmp(dst, "abab", 4), 0);
	}
	for (size_t i = 0; i < 4; i++)
		http_call_clear(&calls[i]);
	http_free(h);
	http_bed_close(&bed);
}

static void
test_loopback_names(void **state)
{
	(void)state;
	static const char *const inside[] = {"localhost", "127.0.0.1", "127.8.9.1", "[::1]", "::1", "LOCALHOST"};
	static const char *const outside[] = {
		"localhost.example.org", "128.0.0.1", "127.0.0.1.example.org", "[::2]", "", "127.1"};
	for (size_t i = 0; i < 6; i++) {
		assert_true(http_is_loopback(inside[i], strlen(inside[i])));
		assert_false(http_is_loopback(outside[i], strlen(outside[i])));
	}
}

static void
test_encoding_leaves_only_what_is_unreserved(void **state)
{
	(void)state;
	PAWL_CLEAN(buf_clear) struct buf out = {0};
	http_encode(&out, "aZ09-._~/ =:@,+&$;!'()*\xc3\xa9%\x7f", true);
	assert_string_equal(buf_str(&out), "aZ09-._~/%20%3D%3A%40%2C%2B%26%24%3B%21%27%28%29%2A%C3%A9%25%7F");
	out.len = 0;
	http_encode(&out, "a/b", false);
	assert_string_equal(buf_str(&out), "a%2Fb");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_requests_are_sent_as_given),
		cmocka_unit_test(test_bodies_go_to_their_place_or_nowhere),
		cmocka_unit_test(test_P16_head_and_text_have_limits),
		cmocka_unit_test(test_P16_a_server_that_says_nothing_is_given_up),
		cmocka_unit_test(test_a_call_can_be_cancelled),
		cmocka_unit_test(test_redirects_and_other_protocols_are_not_followed),
		cmocka_unit_test(test_link_local_addresses_are_refused),
		cmocka_unit_test(test_several_calls_run_at_a_time),
		cmocka_unit_test(test_loopback_names),
		cmocka_unit_test(test_encoding_leaves_only_what_is_unreserved),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
