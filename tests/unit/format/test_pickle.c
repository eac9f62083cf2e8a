/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the pickle reader: every operation that is accepted and every one that is refused,
 * limits, ends, flips. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "format/torch/pickle.h"

enum { TAG_MAKE = 1, TAG_ODICT, TAG_VALUE, TAG_OBJECT };

static const struct pickle_global globals[] = {
	{"a", "make", TAG_MAKE, PICKLE_CALLED},
	{"a", "value", TAG_VALUE, 0},
	{"collections", "OrderedDict", TAG_ODICT, PICKLE_CALLED | PICKLE_ORDERED},
	{"m.n", "Object", TAG_OBJECT, PICKLE_NEW | PICKLE_STATE},
};

static int
decode(const void *bytes, size_t len, struct bump *memory, struct pickle_node **ret, struct pawl_error *err)
{
	/* its own block, so that the sanitizer sees a byte too many */
	PAWL_FREE char *copy = mem_alloc(len);
	int rc;

	assert_non_null(copy);
	memcpy(copy, bytes, len);
	rc = pickle_decode("stream", copy, len, globals, sizeof(globals) / sizeof(globals[0]), memory, ret, err);
	if (rc < 0) {
		assert_int_equal(err->code, rc);
		assert_true(strncmp(err->message, "stream: ", 8) == 0);
	}
	return rc;
}

/* Text of a tree: [1,2] (1,) {k:v} o{} "text" b"bytes" 1.5 name() name(..)+state P(..) */
static void
describe(const struct pickle_node *n, struct buf *out)
{
	static const char open[] = "[({o", close[] = "])}}";

	switch (n->type) {
	case PICKLE_NONE:
		buf_puts(out, "None");
		break;
	case PICKLE_BOOL:
		buf_puts(out, n->i ? "True" : "False");
		break;
	case PICKLE_INT:
		if (n->text)
			buf_put(out, n->text, n->len);
		else
			buf_printf(out, "%lld", (long long)n->i);
		break;
	case PICKLE_FLOAT:
		buf_printf(out, "%g", n->f);
		break;
	case PICKLE_STR:
	case PICKLE_BYTES:
		buf_puts(out, n->type == PICKLE_STR ? "'" : "b'");
		buf_put(out, n->text, n->len);
		buf_putc(out, '\'');
		break;
	case PICKLE_GLOBAL:
		buf_printf(out, "%s", n->global->name);
		break;
	case PICKLE_CALL:
		buf_printf(out, "%s", n->global->name);
		describe(n->args, out);
		if (n->call_state) {
			buf_putc(out, '+');
			describe(n->call_state, out);
		}
		break;
	case PICKLE_PERSID:
		buf_putc(out, 'P');
		describe(n->args, out);
		break;
	default:
		buf_putc(out, open[n->type - PICKLE_LIST]);
		for (size_t i = 0; i < n->len; i++) {
			if (i > 0)
				buf_putc(out, n->type >= PICKLE_DICT && i % 2 ? ':' : ',');
			describe(n->items[i], out);
		}
		buf_putc(out, close[n->type - PICKLE_LIST]);
	}
}

struct sample {
	const char *name, *bytes;
	size_t len;
	const char *tree; /* NULL = refused */
	int code;         /* of a refusal */
};
#define GOOD(name, bytes, tree) {name, bytes, sizeof(bytes) - 1, tree, 0}
#define BAD(name, bytes) {name, bytes, sizeof(bytes) - 1, NULL, PAWL_ECORRUPT}
#define NOT_READ(name, bytes) {name, bytes, sizeof(bytes) - 1, NULL, PAWL_EUNSUPPORTED}

static const struct sample samples[] = {
	/* scalars */
	GOOD("NONE", "N.", "None"),
	GOOD("NEWTRUE", "\x80\2\x88.", "True"),
	GOOD("NEWFALSE", "\x89.", "False"),
	GOOD("BININT", "J\xff\xff\xff\xff.", "-1"),
	GOOD("BININT1", "K\xff.", "255"),
	GOOD("BININT2", "M\x01\x80.", "32769"),
	GOOD("LONG1 of no bytes", "\x8a\0.", "0"),
	GOOD("LONG1", "\x8a\1\xfe.", "-2"),
	GOOD("LONG1 of 64 bits", "\x8a\x8\xff\xff\xff\xff\xff\xff\xff\x7f.", "9223372036854775807"),
	GOOD("LONG1, the least of 64 bits", "\x8a\x8\0\0\0\0\0\0\0\x80.", "-9223372036854775808"),
	GOOD("LONG1 beyond", "\x8a\x9\0\0\0\0\0\0\0\x80\0.", "9223372036854775808"),
	GOOD("LONG1 longer than it must be", "\x8a\xa\1\0\0\0\0\0\0\0\0\0.", "1"),
	GOOD("LONG1 beyond, negative", "\x8a\x9\0\0\0\0\0\0\0\0\xff.", "-18446744073709551616"),
	GOOD("LONG4", "\x8b\x9\0\0\0\0\0\0\0\0\0\0\0\1.", "18446744073709551616"),
	GOOD("BINFLOAT", "G?\xf8\0\0\0\0\0\0.", "1.5"),
	GOOD("INT", "I-12\n.", "-12"),
	GOOD("INT as bool", "(I00\nI01\nl.", "[False,True]"),
	GOOD("LONG", "L12L\n.", "12"),
	GOOD("LONG beyond", "L-99999999999999999999L\n.", "-99999999999999999999"),
	GOOD("FLOAT", "F-2.5\n.", "-2.5"),
	GOOD("FLOAT inf", "F-inf\n.", "-inf"),
	/* texts */
	GOOD("SHORT_BINUNICODE", "\x8c\2hi.", "'hi'"),
	GOOD("BINUNICODE", "X\2\0\0\0\xc3\xa9.", "'\xc3\xa9'"),
	GOOD("BINUNICODE8", "\x8d\1\0\0\0\0\0\0\0a.", "'a'"),
	GOOD("SHORT_BINSTRING", "U\1a.", "'a'"),
	GOOD("BINSTRING", "T\1\0\0\0a.", "'a'"),
	GOOD("SHORT_BINBYTES", "C\2\xff\1.", "b'\xff\1'"),
	GOOD("BINBYTES", "B\1\0\0\0a.", "b'a'"),
	GOOD("BINBYTES8", "\x8e\1\0\0\0\0\0\0\0a.", "b'a'"),
	GOOD("STRING", "S'it'\n.", "'it'"),
	GOOD("UNICODE", "Va\\u00e9\xe9\\U0001F600\n.", "'a\xc3\xa9\xc3\xa9\xf0\x9f\x98\x80'"),
	/* containers */
	GOOD("EMPTY_LIST, APPEND", "]K\1a.", "[1]"),
	GOOD("APPENDS", "](K\1K\2e.", "[1,2]"),
	GOOD("LIST", "(K\1K\2l.", "[1,2]"),
	GOOD("EMPTY_DICT, SETITEM", "}K\1K\2s.", "{1:2}"),
	GOOD("SETITEMS", "}(K\1K\2K\3K\4u.", "{1:2,3:4}"),
	GOOD("DICT", "(K\1K\2d.", "{1:2}"),
	GOOD("EMPTY_TUPLE", ").", "()"),
	GOOD("TUPLE", "(K\1K\2t.", "(1,2)"),
	GOOD("TUPLE1", "K\1\x85.", "(1)"),
	GOOD("TUPLE2", "K\1K\2\x86.", "(1,2)"),
	GOOD("TUPLE3", "K\1K\2K\3\x87.", "(1,2,3)"),
	GOOD("POP, DUP, POP_MARK",
             "(K\7K\0001K\1K\0020"
             "2\x86.",
             "(1,1)"),
	/* memo */
	GOOD("BINPUT, BINGET", "K\7q\0h\0\x86.", "(7,7)"),
	GOOD("LONG_BINPUT far off, LONG_BINGET", "K\7r\xff\xff\xff\xffj\xff\xff\xff\xff\x86.", "(7,7)"),
	GOOD("MEMOIZE", "K\7\x94K\x8\x94h\1\x87.", "(7,8,8)"),
	GOOD("PUT, GET", "K\7p12\ng12\n\x86.", "(7,7)"),
	GOOD("put again", "K\7q\0K\x8q\0h\0\x87.", "(7,8,8)"),
	/* objects */
	GOOD("GLOBAL", "ca\nvalue\n.", "value"),
	GOOD("STACK_GLOBAL", "\x8c\1a\x8c\5value\x93.", "value"),
	GOOD("REDUCE", "ca\nmake\nK\1\x85R.", "make(1)"),
	GOOD("NEWOBJ, BUILD", "cm.n\nObject\n)\x81}\x8c\1kK\1sb.", "Object()+{'k':1}"),
	GOOD("OrderedDict", "ccollections\nOrderedDict\n)R(K\1K\2u}b.", "o1:2}"),
	GOOD("OrderedDict of pairs", "ccollections\nOrderedDict\n]\x85R.", "OrderedDict([])"),
	GOOD("BINPERSID", "K\1\x85Q.", "P(1)"),
	GOOD("FRAME", "\x80\4\x95\2\0\0\0\0\0\0\0N.", "None"),
	GOOD("PROTO 5 and two frames", "\x80\5\x95\1\0\0\0\0\0\0\0N\x95\1\0\0\0\0\0\0\0.", "None"),
	/* what cannot be plain data */
	NOT_READ("INST", "(ia\nmake\n."),
	NOT_READ("OBJ", "(ca\nmake\no."),
	NOT_READ("EXT1", "\x82\1."),
	NOT_READ("EXT2", "\x83\1\0."),
	NOT_READ("EXT4", "\x84\1\0\0\0."),
	NOT_READ("NEWOBJ_EX", "ca\nmake\n)}\x92."),
	NOT_READ("PERSID", "Pabc\n."),
	NOT_READ("EMPTY_SET", "\x8f."),
	NOT_READ("ADDITEMS", "]q\0(\x90."),
	NOT_READ("FROZENSET", "(\x91."),
	NOT_READ("BYTEARRAY8", "\x96\0\0\0\0\0\0\0\0."),
	NOT_READ("NEXT_BUFFER", "\x97."),
	NOT_READ("READONLY_BUFFER", "\x98."),
	NOT_READ("PROTO 6", "\x80\6N."),
	NOT_READ("an unknown operation", "\xff."),
	NOT_READ("a name that is not known", "cos\nsystem\n."),
	NOT_READ("a name that begins like a known one", "ca\nvalues\n."),
	NOT_READ("a name that a known one begins with", "ca\nvalu\n."),
	NOT_READ("a name with a NUL", "\x8c\1a\x8c\6value\0\x93."),
	NOT_READ("a hidden call of the system", "cposix\nsystem\n\x8c\4echo\x85R0N."),
	NOT_READ("REDUCE of a value", "ca\nvalue\n)R."),
	NOT_READ("REDUCE of a class that is only made", "cm.n\nObject\n)R."),
	NOT_READ("NEWOBJ of a function", "ca\nmake\n)\x81."),
	NOT_READ("BUILD on a call that takes no state", "ca\nmake\n)R}b."),
	NOT_READ("BUILD on a dict", "}}b."),
	NOT_READ("SETITEM on a list", "]K\1K\2s."),
	NOT_READ("SETITEMS on an object", "cm.n\nObject\n)\x81(K\1K\2u."),
	NOT_READ("APPEND on a dict", "}K\1a."),
	NOT_READ("APPENDS on a tuple", ")(K\1e."),
	/* what is not such a stream */
	BAD("nothing", ""),
	BAD("nothing but an end", "."),
	BAD("two values", "NN."),
	BAD("a mark at the end", "(N."),
	BAD("no end", "N"),
	BAD("bytes after the end", "N.N"),
	BAD("PROTO in the middle", "N\x80\2."),
	BAD("REDUCE with a list", "ca\nmake\n]R."),
	BAD("REDUCE of no name", "N)R."),
	BAD("STACK_GLOBAL of numbers", "K\1K\2\x93."),
	BAD("a second state", "cm.n\nObject\n)\x81}b}b."),
	BAD("a state without an object", "}b."),
	BAD("APPEND alone", "K\1a."),
	BAD("APPEND across a mark", "](a."),
	BAD("TUPLE2 across a mark", "K\1(K\2\x86t."),
	BAD("TUPLE without a mark", "K\1t."),
	BAD("POP of nothing", "0N."),
	BAD("DUP of nothing", "2."),
	BAD("POP_MARK without a mark", "N1."),
	BAD("SETITEM with one value", "}K\1s."),
	BAD("SETITEMS of three", "}(K\1K\2K\3u."),
	BAD("DICT of one", "(K\1d."),
	BAD("BINGET of nothing", "h\0."),
	BAD("BINPUT of nothing", "q\0N."),
	BAD("MEMOIZE of nothing", "\x94."),
	BAD("LONG_BINGET elsewhere", "K\1q\0j\1\1\0\0\x86."),
	BAD("BINPERSID of nothing", "Q."),
	BAD("a text beyond the end", "X\xff\xff\xff\x7fhi."),
	BAD("a text of 2^64 - 1 bytes", "\x8d\xff\xff\xff\xff\xff\xff\xff\xffhi."),
	BAD("a text that is not UTF-8", "X\1\0\0\0\xff."),
	BAD("half a surrogate", "X\3\0\0\0\xed\xa0\x80."),
	BAD("LONG4 of a negative length", "\x8b\xff\xff\xff\xff."),
	BAD("GLOBAL without its second line", "ca\nvalue"),
	BAD("INT that is none", "I1x\n."),
	BAD("INT of nothing", "I\n."),
	BAD("LONG of a sign", "L-L\n."),
	BAD("FLOAT that is none", "F1.5x\n."),
	BAD("STRING without quotes", "Sit\n."),
	BAD("STRING with an escape", "S'a\\n'\n."),
	BAD("STRING that ends twice", "S'a'b'\n."),
	BAD("UNICODE cut", "V\\u00e\n."),
	BAD("UNICODE beyond", "V\\U00110000\n."),
	BAD("UNICODE with half a surrogate", "V\\ud800\n."),
	BAD("PUT that is no number", "Npx\n."),
	BAD("FRAME beyond the end", "\x95\xff\0\0\0\0\0\0\0N."),
	BAD("FRAME of nothing", "\x95\0\0\0\0\0\0\0\0N."),
	BAD("FRAME inside another", "\x95\x0b\0\0\0\0\0\0\0\x95\1\0\0\0\0\0\0\0N."),
	BAD("FRAME that cuts an argument", "\x95\2\0\0\0\0\0\0\0J\1\0\0\0."),
	BAD("FRAME that cuts a line", "\x95\2\0\0\0\0\0\0\0ca\nvalue\n."),
	BAD("an end inside a frame", "\x95\4\0\0\0\0\0\0\0N.N."),
};

static void
test_P17_every_operation_is_taken_or_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(samples) / sizeof(samples[0]); i++) {
		const struct sample *s = &samples[i];
		PAWL_CLEAN(bump_clear) struct bump memory = {0};
		PAWL_CLEAN(buf_clear) struct buf text = {0};
		PAWL_FREE char *copy = mem_alloc(s->len);
		struct pickle_node *root = NULL;
		struct pawl_error err = {0};

		memcpy(copy, s->bytes, s->len);
		int rc = pickle_decode("stream", copy, s->len, globals, sizeof(globals) / sizeof(globals[0]), &memory,
		                       &root, &err);
		if (rc != s->code)
			fail_msg("%s: expected %d, found %d: %s", s->name, s->code, rc, err.message);
		if (s->tree) {
			describe(root, &text);
			if (strcmp(buf_str(&text), s->tree) != 0)
				fail_msg("%s: expected %s, found %s", s->name, s->tree, buf_str(&text));
		} else if (strncmp(err.message, "stream: ", 8) != 0 || err.code != rc) {
			fail_msg("%s: %s", s->name, err.message);
		}
	}
}

static void
test_a_name_that_is_refused_is_named_with_what_stands_before_it(void **state)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	static const char bytes[] = "}\x8c\4seedcos\nsystem\n\x8c\4echo\x85Rs.";
	struct pickle_node *root;
	struct pawl_error err;

	(void)state;
	assert_int_equal(decode(bytes, sizeof(bytes) - 1, &memory, &root, &err), PAWL_EUNSUPPORTED);
	assert_non_null(strstr(err.message, "os.system"));
	assert_non_null(strstr(err.message, "after 'seed'"));
	assert_non_null(strstr(err.message, "nothing was run"));
}

/* All operations that the samples use in one stream, cut and flipped everywhere. */
static void
test_P17_cut_or_flipped_anywhere_it_is_refused_or_another_tree(void **state)
{
	static const char bytes[] =
		"\x80\2}q\0(\x8c\1aca\nmake\n(K\1M\2\2J\3\0\0\0tRq\1X\1\0\0\0b(K\1\x85Qh\1N\x88\x89lU\1cccollections"
		"\nOrderedDict\n)R(K\1\x8a\x9\0\0\0\0\0\0\0\0\1u}b\x8c\1dcm.n\nObject\n)\x81}bG?\xf8\0\0\0\0\0\0]u.";
	const size_t len = sizeof(bytes) - 1;
	struct pickle_node *root;
	struct pawl_error err;

	(void)state;
	for (size_t n = 0; n < len; n++) {
		PAWL_CLEAN(bump_clear) struct bump memory = {0};
		assert_true(decode(bytes, n, &memory, &root, &err) < 0);
	}
	unsigned taken = 0;
	for (size_t at = 0; at < len; at++) {
		for (unsigned value = 0; value < 256; value++) {
			PAWL_CLEAN(bump_clear) struct bump memory = {0};
			char copy[sizeof(bytes)];
			memcpy(copy, bytes, len);
			copy[at] = (char)value;
			taken += decode(copy, len, &memory, &root, &err) == 0;
		}
	}
	assert_true(taken >= len && taken < len * 256); /* those that are as before are good */
}

static int
decode_buf(struct buf *b, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct pickle_node *root;

	assert_false(b->failed);
	return pickle_decode("stream", b->ptr, b->len, globals, sizeof(globals) / sizeof(globals[0]), &memory, &root,
	                     err);
}

static void
fill(struct buf *b, char c, size_t n)
{
	memset(buf_grow(b, n), c, n);
}

/* Each bomb stops at its limit, and one step before it is good. */
static void
test_P16_limits(void **state)
{
	PAWL_CLEAN(buf_clear) struct buf b = {0};
	struct pawl_error err;

	(void)state;
	for (unsigned more = 0; more < 2; more++) { /* stack: the mark takes none of it */
		b.len = 0;
		buf_putc(&b, '(');
		fill(&b, 'N', PICKLE_MAX_STACK + more);
		buf_puts(&b, "t.");
		assert_int_equal(decode_buf(&b, &err), more ? PAWL_ELIMIT : 0);
	}
	b.len = 0; /* marks */
	fill(&b, '(', PICKLE_MAX_STACK + 1);
	buf_putc(&b, '.');
	assert_int_equal(decode_buf(&b, &err), PAWL_ELIMIT);
	for (unsigned more = 0; more < 2; more++) { /* one long number */
		b.len = 0;
		buf_put(&b, more ? "\x8b\1\x10\0\0" : "\x8b\0\x10\0\0", 5);
		fill(&b, '\x11', PICKLE_MAX_LONG_BYTES + more);
		buf_putc(&b, '.');
		assert_int_equal(decode_buf(&b, &err), more ? PAWL_ELIMIT : 0);
	}
	b.len = 0; /* long numbers together */
	for (unsigned i = 0; i < 257; i++) {
		buf_put(&b, "\x8b\0\x10\0\0", 5);
		fill(&b, '\x11', PICKLE_MAX_LONG_BYTES);
		buf_putc(&b, i < 256 ? '0' : '.');
	}
	assert_int_equal(decode_buf(&b, &err), PAWL_ELIMIT);
	assert_non_null(strstr(err.message, "1 MiB"));
	b.len = 0; /* nodes: lists that are not kept */
	for (unsigned i = 0; i < 10000000; i++)
		buf_put(&b, "]0", 2);
	buf_puts(&b, "N.");
	assert_int_equal(decode_buf(&b, &err), PAWL_ELIMIT);
	assert_non_null(strstr(err.message, "512 MiB"));
}

static void
test_P16_no_more_operations_than_there_may_be(void **state)
{
	PAWL_CLEAN(buf_clear) struct buf b = {0};
	struct pawl_error err;

	(void)state;
	buf_putc(&b, 'N');
	for (unsigned i = 0; i + 1 < PICKLE_MAX_OPS / 2; i++)
		buf_put(&b, "20", 2);
	buf_puts(&b, ".");
	assert_int_equal(decode_buf(&b, &err), 0);
	b.len--;
	buf_puts(&b, "20.");
	assert_int_equal(decode_buf(&b, &err), PAWL_ELIMIT);
	assert_non_null(strstr(err.message, "operations"));
}

/* A list that holds itself, and a reference that appears again and again: both are ordinary nodes
 * here. */
static void
test_circles_and_shared_nodes(void **state)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct pickle_node *root;
	struct pawl_error err;

	(void)state;
	assert_int_equal(decode("]q\0h\0a.", 7, &memory, &root, &err), 0);
	assert_ptr_equal(root->items[0], root);
	assert_int_equal(decode("]q\0h\0\x86q\1h\1h\1\x87.", 14, &memory, &root, &err), 0);
	assert_ptr_equal(root->items[1], root->items[2]);
}

static void
test_keys_and_ends(void **state)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	static const char bytes[] = "}(\x8c\1aK\1\x8c\1bK\2\x8c\1aK\3u.";
	struct pickle_node *root;
	struct pawl_error err;

	(void)state;
	assert_int_equal(pickle_decode("stream", bytes, sizeof(bytes) - 1, globals, 0, &memory, &root, &err), 0);
	assert_int_equal(pickle_get(root, "a")->i, 3);
	assert_int_equal(pickle_get(root, "b")->i, 2);
	assert_null(pickle_get(root, "c"));
	assert_null(pickle_get(root->items[0], "c"));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_P17_every_operation_is_taken_or_refused),
		cmocka_unit_test(test_a_name_that_is_refused_is_named_with_what_stands_before_it),
		cmocka_unit_test(test_P17_cut_or_flipped_anywhere_it_is_refused_or_another_tree),
		cmocka_unit_test(test_P16_limits),
		cmocka_unit_test(test_P16_no_more_operations_than_there_may_be),
		cmocka_unit_test(test_circles_and_shared_nodes),
		cmocka_unit_test(test_keys_and_ends),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
