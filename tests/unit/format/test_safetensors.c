/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of safetensors headers: what is written, what is read, and everything that is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/safetensors/safetensors.h"
#include "helpers/trees.h"

/* Decodes a header of json_len bytes in front of data_len bytes of data. */
static int
decode(const char *json, size_t json_len, uint64_t data_len, struct bump *memory, struct st_table *ret,
       struct pawl_error *err)
{
	return safetensors_decode("file", json, json_len, 8 + (uint64_t)json_len + data_len, memory, ret, err);
}

/* ------------------------------------------------------------ what is refused */

struct hostile {
	const char *header;
	uint64_t data_len;
	int code; /* 0 = PAWL_ECORRUPT */
};

/* Each is refused; nearly all are good but for one thing. */
static const struct hostile hostile[] = {
	/* ranges */
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[8,12]}}",
         12, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}", 8, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[4,12]}}",
         12, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}",
         8, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}",
         8, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 8, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}", 4, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,0]}}", 4, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[4,0]}}", 4, 0},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, 0},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, 0},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,0]}}", 0, 0},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,4]}}", 4, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"z\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[2,2]}}",
         4, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"z\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[5,5]}}",
         4, 0},
	{"{\"z\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[1,1]}}", 0, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[18446744073709551615],\"data_offsets\":[0,18446744073709551615]}}", 8, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[18446744073709551615,0]}}", 8, 0},
	{"{}", 1, 0},
	{"{\"__metadata__\":{\"a\":\"b\"}}", 4, 0},
	/* shapes */
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967297],\"data_offsets\":[0,4294967296]}}", 4294967296u,
         0},
	{"{\"a\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,0]}}", 0, 0},
	{"{\"a\":{\"dtype\":\"F64\",\"shape\":[2305843009213693953],\"data_offsets\":[0,8]}}", 8, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296,0],\"data_offsets\":[0,0]}}", 0, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[0,4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[-4],\"data_offsets\":[0,4]}}", 4, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[-1,-4],\"data_offsets\":[0,4]}}", 4, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[-0],\"data_offsets\":[0,0]}}", 0, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[4.0],\"data_offsets\":[0,4]}}", 4, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[4e0],\"data_offsets\":[0,4]}}", 4, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[\"4\"],\"data_offsets\":[0,4]}}", 4, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[null],\"data_offsets\":[0,4]}}", 4, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[true],\"data_offsets\":[0,1]}}", 1, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[[4]],\"data_offsets\":[0,4]}}", 4, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":4,\"data_offsets\":[0,4]}}", 4, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":{\"0\":4},\"data_offsets\":[0,4]}}", 4, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":null,\"data_offsets\":[0,1]}}", 1, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[99999999999999999999],\"data_offsets\":[0,1]}}", 1, PAWL_ELIMIT},
	{"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2, 0},
	{"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1, 0},
	{"{\"a\":{\"dtype\":\"F6_E2M3\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, 0},
	{"{\"a\":{\"dtype\":\"F6_E3M2\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, 0},
	/* dtypes */
	{"{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, 0},
	{"{\"a\":{\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, 0},
	{"{\"a\":{\"dtype\":\"F32 \",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, 0},
	{"{\"a\":{\"dtype\":\"\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, 0},
	{"{\"a\":{\"dtype\":\"C128\",\"shape\":[1],\"data_offsets\":[0,16]}}", 16, 0},
	{"{\"a\":{\"dtype\":18,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, 0},
	{"{\"a\":{\"dtype\":null,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, 0},
	{"{\"a\":{\"dtype\":[\"F32\"],\"shape\":[1],\"data_offsets\":[0,4]}}", 4, 0},
	{"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, 0},
	/* offsets */
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[4]}}", 4, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4]}}", 4, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[]}}", 4, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4,4]}}", 4, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0.0,4.0]}}", 4, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4e0]}}", 4, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[-4,0]}}", 4, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[-0,4]}}", 4, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[\"0\",\"4\"]}}", 4, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":{\"0\":0,\"1\":4}}}", 4, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":\"0,4\"}}", 4, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[00,4]}}", 4, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[+0,4]}}", 4, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0x0,4]}}", 4, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,18446744073709551616]}}", 4, PAWL_ELIMIT},
	/* entries and names */
	{"{\"a\":1}", 0, 0},
	{"{\"a\":null}", 0, 0},
	{"{\"a\":\"U8\"}", 0, 0},
	{"{\"a\":[\"U8\",[0],[0,0]]}", 0, 0},
	{"{\"a\":{}}", 0, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
         4, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"\\u0061\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
         4, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2],\"shape\":[2]}}", 2, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2],\"x\":1,\"x\":2}}", 2, 0},
	{"{\"\xff\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, 0},
	{"{\"\xc0\xaf\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, 0},
	{"{\"\xed\xa0\x80\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, 0},
	{"{\"\\ud800\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, 0},
	{"{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, 0},
	{"{\"a\nb\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, 0},
	{"{\"a\\x\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, 0},
	/* metadata */
	{"{\"__metadata__\":\"text\"}", 0, 0},
	{"{\"__metadata__\":[]}", 0, 0},
	{"{\"__metadata__\":null}", 0, 0},
	{"{\"__metadata__\":{\"a\":1}}", 0, 0},
	{"{\"__metadata__\":{\"a\":null}}", 0, 0},
	{"{\"__metadata__\":{\"a\":true}}", 0, 0},
	{"{\"__metadata__\":{\"a\":{\"b\":\"c\"}}}", 0, 0},
	{"{\"__metadata__\":{\"a\":[\"b\"]}}", 0, 0},
	{"{\"__metadata__\":{\"a\":\"b\",\"a\":\"c\"}}", 0, 0},
	{"{\"__metadata__\":{},\"__metadata__\":{}}", 0, 0},
	{"{\"__metadata__\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, 0},
	/* JSON */
	{"", 0, 0},
	{"   ", 0, 0},
	{"[]", 0, 0},
	{"null", 0, 0},
	{"\"{}\"", 0, 0},
	{"5", 0, 0},
	{"{}x", 0, 0},
	{"{}{}", 0, 0},
	{"\xef\xbb\xbf{}", 0, 0},
	{"{", 0, 0},
	{"{\"a\"}", 0, 0},
	{"{\"a\":}", 0, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},}", 2, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[2,],\"data_offsets\":[0,2]}}", 2, 0},
	{"{'a':{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, 0},
	{"{/**/\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2],\"x\":NaN}}", 2, 0},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2],\"x\":[[[1]]]}}", 2, PAWL_ELIMIT},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2],\"x\":[[[[[[[[[[1]]]]]]]]]]}}", 2, PAWL_ELIMIT},
};

static void
test_P17_hostile_headers_are_refused(void **unused)
{
	(void)unused;
	for (size_t i = 0; i < sizeof(hostile) / sizeof(hostile[0]); i++) {
		const struct hostile *h = &hostile[i];
		PAWL_CLEAN(bump_clear) struct bump memory = {0};
		struct st_table table = {.n_tensors = 77};
		struct pawl_error err = {0};
		int expected = h->code ? h->code : PAWL_ECORRUPT;
		int rc = decode(h->header, strlen(h->header), h->data_len, &memory, &table, &err);
		if (rc != expected || err.code != rc || !strstr(err.message, "file") || table.n_tensors != 77)
			fail_msg("%s: %d (%s)", h->header, rc, err.message);
	}
	assert_in_range(sizeof(hostile) / sizeof(hostile[0]), 60, 1000);
}

static void
test_P17_a_header_with_a_NUL_behind_it_is_refused(void **unused)
{
	(void)unused;
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct st_table table;

	assert_int_equal(decode("{}\0", 3, 0, &memory, &table, NULL), PAWL_ECORRUPT);
	assert_int_equal(decode("\0{}", 3, 0, &memory, &table, NULL), PAWL_ECORRUPT);
	assert_int_equal(decode("{}\0", 2, 0, &memory, &table, NULL), 0);
}

static void
test_P17_header_lengths_that_lie_are_refused(void **unused)
{
	(void)unused;
	static const struct {
		uint64_t json_len, file_nbytes;
		int rc;
	} cases[] = {
		{2, 10, 0},
		{2, 11, 0},
		{100000000, 100000008, 0},
		{100000001, 1000000000, PAWL_ELIMIT},
		{UINT64_MAX, 100, PAWL_ELIMIT},
		{UINT64_MAX - 7, 100, PAWL_ELIMIT},
		{1ull << 63, UINT64_MAX, PAWL_ELIMIT},
		{3, 10, PAWL_ECORRUPT},
		{100, 107, PAWL_ECORRUPT},
		{0, 8, PAWL_ECORRUPT},
		{0, 100, PAWL_ECORRUPT},
		{1, 100, PAWL_ECORRUPT},
		{2, 0, PAWL_ECORRUPT},
		{2, 7, PAWL_ECORRUPT},
		{2, 9, PAWL_ECORRUPT},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		unsigned char first8[8];
		uint64_t json_len = 77;
		struct pawl_error err = {0};
		for (int k = 0; k < 8; k++)
			first8[k] = (unsigned char)(cases[i].json_len >> (8 * k));
		int rc = safetensors_header_len("file", first8, cases[i].file_nbytes, &json_len, &err);
		if (rc != cases[i].rc || err.code != rc || json_len != (rc ? 77 : cases[i].json_len))
			fail_msg("%llu in %llu: %d", (unsigned long long)cases[i].json_len,
			         (unsigned long long)cases[i].file_nbytes, rc);
	}
	/* and the same numbers given to the decoder itself */
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct st_table table;
	assert_int_equal(safetensors_decode("file", "{}", 2, 9, &memory, &table, NULL), PAWL_ECORRUPT);
	assert_int_equal(safetensors_decode("file", "{}", 2, 0, &memory, &table, NULL), PAWL_ECORRUPT);
	assert_int_equal(safetensors_decode("file", "{}", 100000001, 200000000, &memory, &table, NULL), PAWL_ELIMIT);
}

static void
test_P16_names_and_dimensions_have_a_limit(void **unused)
{
	(void)unused;
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct st_table table;

	for (int more = 0; more < 2; more++) {
		text.len = 0;
		buf_puts(&text, "{\"");
		for (int i = 0; i < 4096 + more; i++)
			buf_putc(&text, 'n');
		buf_puts(&text, "\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}");
		assert_int_equal(decode(text.ptr, text.len, 1, &memory, &table, NULL), more ? PAWL_ELIMIT : 0);
		text.len = 0;
		buf_puts(&text, "{\"a\":{\"dtype\":\"U8\",\"shape\":[1");
		for (int i = 1; i < 64 + more; i++)
			buf_puts(&text, ",1");
		buf_puts(&text, "],\"data_offsets\":[0,1]}}");
		assert_int_equal(decode(text.ptr, text.len, 1, &memory, &table, NULL), more ? PAWL_ELIMIT : 0);
	}
}

static void
test_P16_a_million_tensors_are_the_limit(void **unused)
{
	(void)unused;
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct st_table table;

	buf_putc(&text, '{');
	for (int i = 0; i < 1000002; i++)
		buf_printf(&text, "%s\"%x\":0", i ? "," : "", (unsigned)i);
	buf_putc(&text, '}');
	assert_int_equal(decode(text.ptr, text.len, 0, &memory, &table, NULL), PAWL_ELIMIT);
}

/* ----------------------------------------------------------- what is accepted */

static void
test_what_the_reference_accepts_is_accepted(void **unused)
{
	(void)unused;
	static const struct {
		const char *header;
		uint64_t data_len;
		size_t n_tensors;
	} cases[] = {
		{"{}", 0, 0},
		{"{\"__metadata__\":{}}", 0, 0},
		{"{\"__metadata__\":{\"format\":\"pt\"}}     ", 0, 0},
		{"{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}", 3, 1}, /* unpadded */
		{"   {\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}", 3, 1},
		{"{ \"a\" :\n{\"dtype\":\t\"U8\", \"shape\":[ 3 ],\r\"data_offsets\":[0, 3]} }", 3, 1},
		{"{\"a\":{\"data_offsets\":[0,3],\"shape\":[3],\"dtype\":\"U8\"}}", 3, 1},
		{"{\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[2,5]},\"a\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,2]}}",
	         5, 2},
		{"{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3],\"extra\":[{}],\"more\":null}}", 3, 1},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, 1},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, 1},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[3,0,7],\"data_offsets\":[0,0]},"
	         "\"b\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}",
	         0, 2},
		{"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"m\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[2,2]},"
	         "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]},\"z\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[4,4]}}",
	         4, 4},
		{"{\"a\":{\"dtype\":\"F4\",\"shape\":[2,3],\"data_offsets\":[0,3]}}", 3, 1},
		{"{\"a\":{\"dtype\":\"F6_E3M2\",\"shape\":[4],\"data_offsets\":[0,3]}}", 3, 1},
		{"{\"../../etc/passwd\":{\"dtype\":\"BOOL\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
	         1}, /* a name, not a path */
		{"{\"\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, 1},
		{"{\"\\ud83d\\udc0e\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, 1},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		PAWL_CLEAN(bump_clear) struct bump memory = {0};
		struct st_table table;
		struct pawl_error err = {0};
		size_t len = strlen(cases[i].header);
		if (decode(cases[i].header, len, cases[i].data_len, &memory, &table, &err) < 0)
			fail_msg("%s: %s", cases[i].header, err.message);
		assert_int_equal(table.n_tensors, cases[i].n_tensors);
		assert_int_equal(table.data_begin, 8 + len);
		assert_int_equal(table.data_len, cases[i].data_len);
		for (size_t k = 1; k < table.n_tensors; k++)
			assert_true(table.tensors[k].begin == table.tensors[k - 1].end);
	}
}

static void
test_metadata_is_found_by_key(void **unused)
{
	(void)unused;
	static const char header[] = "{\"__metadata__\":{\"format\":\"pt\",\"note\":\"a \\\"b\\\"\",\"\":\"\"}}";
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct st_table table;

	assert_int_equal(decode(header, sizeof(header) - 1, 0, &memory, &table, NULL), 0);
	assert_int_equal(table.n_metadata, 3);
	assert_string_equal(safetensors_metadata(&table, "format")->value, "pt");
	assert_string_equal(safetensors_metadata(&table, "note")->value, "a \"b\"");
	assert_int_equal(safetensors_metadata(&table, "note")->value_len, 5);
	assert_string_equal(safetensors_metadata(&table, "")->value, "");
	assert_null(safetensors_metadata(&table, "Format"));
}

/* -------------------------------------------------------------------- writing */

static void
test_layout_is_that_of_the_reference_writer(void **unused)
{
	(void)unused;
	static const uint64_t shape[2] = {2, 2};
	struct st_tensor t[] = {
		{.name = "a", .dtype = PAWL_U8, .ndim = 2, .shape = shape, .tag = 1},
		{.name = "b", .dtype = PAWL_F32, .ndim = 2, .shape = shape, .tag = 2},
		{.name = "B", .dtype = PAWL_F32, .ndim = 2, .shape = shape, .tag = 3},
		{.name = "\xc3\xa9", .dtype = PAWL_F32, .ndim = 2, .shape = shape, .tag = 4},
		{.name = "z", .dtype = PAWL_U64, .ndim = 2, .shape = shape, .tag = 5},
		{.name = "x", .dtype = PAWL_F4, .ndim = 2, .shape = shape, .tag = 6},
		{.name = "y", .dtype = PAWL_BOOL, .ndim = 0, .shape = NULL, .tag = 7},
	};
	static const size_t order[] = {5, 3, 2, 4, 1, 6, 7};
	static const uint64_t ends[] = {32, 48, 64, 80, 84, 86, 87};
	uint64_t data_len = 0, at = 0;

	assert_int_equal(safetensors_layout(t, 7, &data_len, NULL), 0);
	assert_int_equal(data_len, 87);
	for (size_t i = 0; i < 7; i++) {
		assert_int_equal(t[i].tag, order[i]);
		assert_int_equal(t[i].begin, at);
		assert_int_equal(t[i].end, ends[i]);
		at = t[i].end;
	}
	assert_int_equal(safetensors_layout(NULL, 0, &data_len, NULL), 0);
	assert_int_equal(data_len, 0);
}

static void
test_what_cannot_be_written_is_refused(void **unused)
{
	(void)unused;
	static const uint64_t odd[1] = {3}, huge[1] = {1ull << 60}, overflow[2] = {1ull << 40, 1ull << 40};
	static char name[4098];
	struct st_tensor t[8] = {{.name = "c", .dtype = PAWL_C128, .ndim = 1, .shape = odd}};
	PAWL_CLEAN(buf_clear) struct buf out = {0};
	uint64_t data_len;
	struct pawl_error err = {0};

	assert_int_equal(safetensors_layout(t, 1, &data_len, &err), PAWL_EUSAGE);
	t[0].dtype = PAWL_F4;
	assert_int_equal(safetensors_layout(t, 1, &data_len, &err), PAWL_EUSAGE);
	assert_int_equal(err.code, PAWL_EUSAGE);
	assert_non_null(strstr(err.message, "'c'"));
	t[0].dtype = 0;
	assert_int_equal(safetensors_layout(t, 1, &data_len, &err), PAWL_EUSAGE);
	t[0] = (struct st_tensor){.name = "c", .dtype = PAWL_U8, .ndim = 2, .shape = overflow};
	assert_int_equal(safetensors_layout(t, 1, &data_len, &err), PAWL_EUSAGE);
	for (size_t i = 0; i < 8; i++)
		t[i] = (struct st_tensor){.name = (const char *[]){"a", "b", "c", "d", "e", "f", "g", "h"}[i],
		                          .dtype = PAWL_U8,
		                          .ndim = 1,
		                          .shape = huge};
	assert_int_equal(safetensors_layout(t, 7, &data_len, &err), 0);
	assert_int_equal(safetensors_layout(t, 8, &data_len, &err), PAWL_ELIMIT); /* 2^63 bytes */
	memset(name, 'n', 4097);
	t[0] = (struct st_tensor){.name = name, .dtype = PAWL_U8};
	assert_int_equal(safetensors_encode_header(t, 1, NULL, 0, &out, &err), PAWL_ELIMIT);
	out = (struct buf){.ptr = out.ptr, .cap = out.cap};
	name[4096] = '\0';
	assert_int_equal(safetensors_encode_header(t, 1, NULL, 0, &out, &err), 0);
}

static void
test_a_header_is_padded_to_4096_and_begins_with_metadata(void **unused)
{
	(void)unused;
	static const uint64_t shape[1] = {4};
	struct st_tensor t = {.name = "w\"/", .dtype = PAWL_BF16, .ndim = 1, .shape = shape};
	static const struct st_pair metadata[] = {{"format", "pt", 2}, {"long", "\n\xe2\x82\xac", 4}};
	static const char expected[] = "{\"__metadata__\":{\"format\":\"pt\",\"long\":\"\\n\xe2\x82\xac\"},"
				       "\"w\\\"/\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[0,8]}} ";
	PAWL_CLEAN(buf_clear) struct buf out = {0};
	uint64_t data_len, json_len;

	assert_int_equal(safetensors_layout(&t, 1, &data_len, NULL), 0);
	assert_int_equal(safetensors_encode_header(&t, 1, metadata, 2, &out, NULL), 0);
	assert_int_equal(out.len, 4096);
	assert_memory_equal(out.ptr, "\xf8\x0f\0\0\0\0\0\0", 8); /* 4088 */
	assert_memory_equal(out.ptr + 8, expected, sizeof(expected) - 1);
	for (size_t i = 8 + sizeof(expected) - 1; i < out.len; i++)
		assert_int_equal(out.ptr[i], ' ');
	assert_int_equal(
		safetensors_header_len("file", (const unsigned char *)out.ptr, out.len + data_len, &json_len, NULL), 0);
	assert_int_equal(json_len, 4088);
	buf_clear(&out);
	assert_int_equal(safetensors_encode_header(NULL, 0, NULL, 0, &out, NULL), 0);
	assert_memory_equal(out.ptr + 8, "{}  ", 4);
	assert_int_equal(out.len, 4096);
}

static void
test_a_header_that_just_fits_is_not_padded_further(void **unused)
{
	(void)unused;
	static char value[9000];
	const size_t around = 8 + sizeof("{\"__metadata__\":{\"k\":\"\"}}") - 1;
	memset(value, 'v', sizeof(value));

	for (size_t len = 4096 - around - 1; len <= 4096 - around + 1; len++) {
		PAWL_CLEAN(buf_clear) struct buf out = {0};
		struct st_pair pair = {"k", value, len};
		assert_int_equal(safetensors_encode_header(NULL, 0, &pair, 1, &out, NULL), 0);
		assert_int_equal(out.len, around + len <= 4096 ? 4096 : 8192);
	}
}

static void
test_P1_random_tables_come_back_equal(void **unused)
{
	(void)unused;
	struct tree_random r = {99};

	for (int round = 0; round < 500; round++) {
		PAWL_CLEAN(bump_clear) struct bump memory = {0};
		PAWL_CLEAN(buf_clear) struct buf out = {0};
		struct st_tensor t[20];
		struct st_table table;
		uint64_t data_len, shapes[20][4];
		size_t n = tree_below(&r, 20);
		for (size_t i = 0; i < n; i++) {
			uint32_t ndim = tree_below(&r, 4);
			for (uint32_t d = 0; d < ndim; d++)
				shapes[i][d] = tree_below(&r, 5);
			t[i] = (struct st_tensor){
				.name = bump_printf(&memory, "%c/\"\\\xc3\xa9%zu", (char)tree_below(&r, 26) + 'a', i),
				.dtype = PAWL_U8 + (int)tree_below(&r, 18),
				.ndim = ndim,
				.shape = shapes[i]};
		}
		assert_int_equal(safetensors_layout(t, n, &data_len, NULL), 0);
		assert_int_equal(safetensors_encode_header(t, n, NULL, 0, &out, NULL), 0);
		assert_int_equal(
			safetensors_decode("file", out.ptr + 8, out.len - 8, out.len + data_len, &memory, &table, NULL),
			0);
		assert_int_equal(table.n_tensors, n);
		assert_int_equal(table.data_begin, out.len);
		for (size_t i = 0; i < n; i++) { /* zero-size ones may have changed places among themselves */
			size_t k = 0;
			while (k < n && strcmp(table.tensors[k].name, t[i].name) != 0)
				k++;
			assert_true(k < n);
			assert_true(table.tensors[k].begin == t[i].begin && table.tensors[k].end == t[i].end);
			assert_true(table.tensors[k].dtype == t[i].dtype && table.tensors[k].ndim == t[i].ndim);
			for (uint32_t d = 0; d < t[i].ndim; d++)
				assert_true(table.tensors[k].shape[d] == t[i].shape[d]);
		}
	}
}

static void
test_P17_every_truncation_of_a_header_is_refused(void **unused)
{
	(void)unused;
	static const uint64_t shape[1] = {4};
	static const struct st_pair pair = {"format", "pt", 2};
	struct st_tensor t[2] = {{.name = "a", .dtype = PAWL_F32, .ndim = 1, .shape = shape},
	                         {.name = "b", .dtype = PAWL_U8, .ndim = 1, .shape = shape}};
	PAWL_CLEAN(buf_clear) struct buf out = {0};
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct st_table table;
	uint64_t data_len;
	size_t text_len;

	assert_int_equal(safetensors_layout(t, 2, &data_len, NULL), 0);
	assert_int_equal(safetensors_encode_header(t, 2, &pair, 1, &out, NULL), 0);
	for (text_len = out.len - 8; out.ptr[8 + text_len - 1] == ' '; text_len--)
		;
	for (size_t len = 0; len < text_len; len++) {
		char *exact = malloc(len + 1); /* one byte, so that a header of 0 has an address */
		memcpy(exact, out.ptr + 8, len);
		if (safetensors_decode("file", exact, len, 8 + len + data_len, &memory, &table, NULL) != PAWL_ECORRUPT)
			fail_msg("%zu bytes", len);
		free(exact);
	}
	/* and every truncation of the file, which both the header's length and the data's end
	 * show */
	for (uint64_t nbytes = 0; nbytes < out.len + data_len; nbytes++) {
		uint64_t json_len = 0;
		int rc = safetensors_header_len("file", (const unsigned char *)out.ptr, nbytes, &json_len, NULL);
		if (rc == 0)
			rc = safetensors_decode("file", out.ptr + 8, (size_t)json_len, nbytes, &memory, &table, NULL);
		assert_int_equal(rc, PAWL_ECORRUPT);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_P17_hostile_headers_are_refused),
		cmocka_unit_test(test_P17_a_header_with_a_NUL_behind_it_is_refused),
		cmocka_unit_test(test_P17_header_lengths_that_lie_are_refused),
		cmocka_unit_test(test_P16_names_and_dimensions_have_a_limit),
		cmocka_unit_test(test_P16_a_million_tensors_are_the_limit),
		cmocka_unit_test(test_what_the_reference_accepts_is_accepted),
		cmocka_unit_test(test_metadata_is_found_by_key),
		cmocka_unit_test(test_layout_is_that_of_the_reference_writer),
		cmocka_unit_test(test_what_cannot_be_written_is_refused),
		cmocka_unit_test(test_a_header_is_padded_to_4096_and_begins_with_metadata),
		cmocka_unit_test(test_a_header_that_just_fits_is_not_padded_further),
		cmocka_unit_test(test_P1_random_tables_come_back_equal),
		cmocka_unit_test(test_P17_every_truncation_of_a_header_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
