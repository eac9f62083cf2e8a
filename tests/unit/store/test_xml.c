/* SPDX-License-Identifier: Apache-2.0 */
/* The reader of what S3 servers answer: what it understands, what it refuses (P16, P17). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "store/object/xml.h"

static int
note(void *arg, const char *path, const char *text, size_t len)
{
	buf_printf(arg, "%s=%.*s;", path, (int)len, text);
	return 0;
}

static void
assert_read(const char *xml, const char *expected)
{
	PAWL_CLEAN(buf_clear) struct buf out = {0};
	struct pawl_error err = {0};
	if (xml_read("doc", xml, strlen(xml), note, &out, &err) < 0)
		fail_msg("%s: %s", xml, err.message);
	assert_string_equal(buf_str(&out), expected);
}

static void
assert_refused(const char *xml, size_t len, int code)
{
	PAWL_CLEAN(buf_clear) struct buf out = {0};
	struct pawl_error err = {0};
	int rc = xml_read("doc", xml, len, note, &out, &err);
	if (rc != code)
		fail_msg("%.200s: %d (%s)", xml, rc, err.message);
	assert_non_null(strstr(err.message, "doc"));
}

static void
test_elements_come_with_path_and_text(void **state)
{
	(void)state;
	assert_read("<a/>", "a=;");
	assert_read("<a>x</a>", "a=x;");
	assert_read(
		"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!-- <b> --><a x='1>2' y=\"/a>\">\n<b>1</b>\n<c><d/></c >\n</a>\n",
		"a/b=1;a/c/d=;a/c=;a=\n;");
	assert_read("<ns:a xmlns:ns=\"u\"><ns:b>t</ns:b></ns:a>", "a/b=t;a=;");
	assert_read("\xef\xbb\xbf<a>\xc3\xa9</a>", "a=\xc3\xa9;");
	assert_read("<a><!-- x -->y<!-- z --></a>", "a=y;");
}

static void
test_entities_are_the_five_and_character_references(void **state)
{
	(void)state;
	assert_read("<a>&amp;&lt;&gt;&quot;&apos;&#65;&#x42;&#x20AC;&#128512;</a>",
	            "a=&<>\"'AB\xe2\x82\xac\xf0\x9f\x98\x80;");
	static const char *const bad[] = {
		"<a>&nbsp;</a>", "<a>&</a>",    "<a>&#0;</a>",  "<a>&#xD800;</a>", "<a>&#x110000;</a>",
		"<a>&#;</a>",    "<a>&#x;</a>", "<a>&#1a;</a>", "<a>&amp</a>",     "<a>&#99999999999999999999;</a>"};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
		assert_refused(bad[i], strlen(bad[i]), PAWL_ECORRUPT);
}

static void
test_P17_damaged_documents_are_refused(void **state)
{
	(void)state;
	static const char *const bad[] = {"",
	                                  " ",
	                                  "x",
	                                  "<",
	                                  "<a",
	                                  "<a>",
	                                  "<a></b>",
	                                  "</a>",
	                                  "<a/><b/>",
	                                  "<a/>x",
	                                  "x<a/>",
	                                  "<a><b></a></b>",
	                                  "<>",
	                                  "<a><!-- </a>",
	                                  "<!DOCTYPE a [<!ENTITY x \"y\">]><a>&x;</a>",
	                                  "<a><![CDATA[x]]></a>",
	                                  "<a><?php ?></a>",
	                                  "<a b=\"></a>",
	                                  "<a b",
	                                  "<a\xff/>",
	                                  "<a>\xff</a>",
	                                  "<a:/>",
	                                  "<a></a",
	                                  "<a></a x>",
	                                  "<a><b/></a><?xml?>"};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
		assert_refused(bad[i], strlen(bad[i]), PAWL_ECORRUPT);
	assert_refused("<a>\0</a>", 8, PAWL_ECORRUPT);
}

static void
test_P17_every_beginning_of_a_document_is_refused(void **state)
{
	(void)state;
	static const char whole[] = "<?xml version=\"1.0\"?><a x=\"1\"><b>&amp;&#65;</b><!-- c --><d/></a>";
	for (size_t n = 0; n < sizeof whole - 1; n++) {
		/* On the heap, so that a step too far shows. */
		PAWL_FREE char *part = mem_strndup(whole, n);
		PAWL_CLEAN(buf_clear) struct buf out = {0};
		assert_true(xml_read("doc", part, n, note, &out, NULL) < 0);
	}
}

static void
test_P16_depth_and_size_have_limits(void **state)
{
	(void)state;
	PAWL_CLEAN(buf_clear) struct buf deep = {0};
	for (int i = 0; i < XML_MAX_DEPTH; i++)
		buf_puts(&deep, "<a>");
	size_t open = deep.len;
	for (int i = 0; i < XML_MAX_DEPTH; i++)
		buf_puts(&deep, "</a>");
	PAWL_CLEAN(buf_clear) struct buf out = {0};
	assert_int_equal(xml_read("doc", deep.ptr, deep.len, note, &out, NULL), 0);
	deep.len = open;
	buf_puts(&deep, "<a>");
	assert_refused(buf_str(&deep), deep.len, PAWL_ELIMIT);
	assert_refused("<a/>", (size_t)XML_MAX_BYTES + 1, PAWL_ELIMIT);
	PAWL_CLEAN(buf_clear) struct buf name = {0};
	buf_putc(&name, '<');
	for (int i = 0; i < 200; i++)
		buf_putc(&name, 'a');
	buf_puts(&name, "/>");
	assert_refused(buf_str(&name), name.len, PAWL_ECORRUPT);
}

static int
stop(void *arg, const char *path, const char *text, size_t len)
{
	(void)arg, (void)path, (void)text, (void)len;
	return PAWL_ECANCELLED;
}

static void
test_a_value_is_found_by_its_path(void **state)
{
	(void)state;
	static const char xml[] = "<r><a><b>1</b></a><b>2</b><b>3</b></r>";
	PAWL_CLEAN(buf_clear) struct buf out = {0};
	assert_int_equal(xml_get("doc", xml, sizeof xml - 1, "r/b", &out, NULL), 0);
	assert_string_equal(buf_str(&out), "2");
	assert_int_equal(xml_get("doc", xml, sizeof xml - 1, "r/c", &out, NULL), PAWL_ENOTFOUND);
	assert_int_equal(xml_read("doc", xml, sizeof xml - 1, stop, NULL, NULL), PAWL_ECANCELLED);
}

static void
test_what_is_escaped_comes_back(void **state)
{
	(void)state;
	PAWL_CLEAN(buf_clear) struct buf xml = {0}, out = {0};
	buf_puts(&xml, "<k>");
	xml_escape(&xml, "a&b<c>d\"e'f\xc3\xa9");
	buf_puts(&xml, "</k>");
	assert_int_equal(xml_get("doc", xml.ptr, xml.len, "k", &out, NULL), 0);
	assert_string_equal(buf_str(&out), "a&b<c>d\"e'f\xc3\xa9");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_elements_come_with_path_and_text),
		cmocka_unit_test(test_entities_are_the_five_and_character_references),
		cmocka_unit_test(test_P17_damaged_documents_are_refused),
		cmocka_unit_test(test_P17_every_beginning_of_a_document_is_refused),
		cmocka_unit_test(test_P16_depth_and_size_have_limits),
		cmocka_unit_test(test_a_value_is_found_by_its_path),
		cmocka_unit_test(test_what_is_escaped_comes_back),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
