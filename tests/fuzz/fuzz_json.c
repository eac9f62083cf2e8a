/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_json: any bytes end in a tree that is well-formed or in an error that is filled in. What was
 * accepted is the same tree after writing and reading it again. The first byte chooses limits and
 * the stop key.
 */
#include <stdlib.h>
#include <string.h>

#include "base/bump.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "fuzz.h"

static void
put(struct buf *out, const struct json *v)
{
	bool first = true;

	if (v->key) {
		json_put_string(out, v->key, v->key_len);
		buf_putc(out, ':');
	}
	switch (v->type) {
	case JSON_NULL:
		buf_puts(out, "null");
		break;
	case JSON_BOOL:
		buf_puts(out, v->boolean ? "true" : "false");
		break;
	case JSON_INT:
		json_put_i64(out, v->i);
		break;
	case JSON_UINT:
		json_put_u64(out, v->u);
		break;
	case JSON_REAL:
		json_put_double(out, v->real);
		break;
	case JSON_STRING:
		json_put_string(out, v->str, v->len);
		break;
	case JSON_ARRAY:
	case JSON_OBJECT:
		buf_putc(out, v->type == JSON_ARRAY ? '[' : '{');
		for (const struct json *child = v->first; child; child = child->next, first = false) {
			if (!first)
				buf_putc(out, ',');
			put(out, child);
		}
		buf_putc(out, v->type == JSON_ARRAY ? ']' : '}');
		break;
	}
}

/* Returns the number of values. */
static size_t
check_tree(const struct json *v, const struct json *parent, unsigned depth)
{
	size_t values = 1, children = 0;

	check(depth <= 1024);
	check((v->key != NULL) == (parent != NULL && parent->type == JSON_OBJECT));
	if (v->key)
		check(strlen(v->key) == v->key_len && text_is_utf8(v->key, v->key_len));
	if (v->type == JSON_STRING)
		check(strlen(v->str) == v->len && text_is_utf8(v->str, v->len));
	for (const struct json *child = v->first; child; child = child->next, children++) {
		values += check_tree(child, v, depth + 1);
		if (v->type == JSON_OBJECT && children < 100)
			check(json_get(v, child->key) == child);
	}
	if (v->type == JSON_ARRAY || v->type == JSON_OBJECT)
		check(children == v->len);
	else
		check(children == 0);
	return values;
}

static void
check_round_trip(const struct json *root)
{
	struct json_limits limits = {.max_depth = 1024, .max_string = SIZE_MAX};
	struct buf once = {0}, twice = {0};
	struct bump memory = {0};
	struct json *again = NULL;

	put(&once, root);
	check(buf_check(&once, "fuzz", NULL) == 0);
	check(json_parse("fuzz", once.ptr, once.len, &limits, &memory, &again, NULL) == 0);
	put(&twice, again);
	check(once.len == twice.len && memcmp(once.ptr, twice.ptr, once.len) == 0);
	bump_clear(&memory);
	buf_clear(&once);
	buf_clear(&twice);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct json_limits limits = {0};
	struct bump memory = {.limit_bytes = (size_t)64 << 20};
	struct pawl_error err = {0};
	struct json *root = NULL;

	if (size == 0)
		return 0;
	if (data[0] & 1)
		limits.stop_key = "s";
	if (data[0] & 2)
		limits = (struct json_limits){
			.max_depth = 3, .max_values = 20, .max_string = 8, .stop_key = limits.stop_key};
	if (data[0] & 4)
		memory.limit_bytes = 3000;
	if (data[0] & 8)
		limits.max_depth = 1024;

	/* A copy of its own, so that a read beyond the end is seen. */
	size_t len = size - 1;
	char *text = mem_alloc(len);
	memcpy(text, data + 1, len);
	int rc = json_parse("fuzz", text, len, &limits, &memory, &root, &err);
	mem_free(text);
	if (rc < 0) {
		check(root == NULL && err.code == rc && text_is_utf8(err.message, strlen(err.message)));
		check(rc == PAWL_ECORRUPT || rc == PAWL_ELIMIT);
	} else {
		check(rc == 0 && check_tree(root, NULL, 0) <= (data[0] & 2 ? 20 : 10000000));
		check_round_trip(root);
	}
	bump_clear(&memory);
	return 0;
}
