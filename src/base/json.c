/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json: the reader. It walks the text once, links values as it goes, and keeps its own stack of
 * open containers (no recursion). Strings are json_string.c, look-ups json_get.c. Promise P17: any
 * bytes end in a tree or in an error.
 */
#include "base/json.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/json_string.h"
#include "base/mix.h"
#include "base/text.h"

#define MAX_DEPTH 1040
#define NODES_PER_BLOCK 64
#define TEXT_BLOCK_BYTES ((size_t)4096)

struct frame {
	struct json *container, *last; /* last: its newest child */
};

/* A set of keys, open addressing. */
struct slot {
	uint64_t hash;
	const struct json *member;
};

struct reader {
	const char *what;
	const char *begin, *at, *end;
	struct json_limits limits;
	size_t stop_key_len;
	struct bump *memory;
	struct pawl_error *err;
	struct json *nodes; /* zeroed nodes not used yet */
	size_t n_nodes;
	char *text; /* room for strings not used yet */
	size_t n_text;
	size_t n_values;
	int failed;
	const char *key; /* of the next value */
	size_t key_len;
	struct slot *slots; /* scratch of the duplicate check */
	size_t n_slots;
	unsigned depth;
	struct frame stack[MAX_DEPTH];
};

/* ----------------------------------------------------------------- errors */

static int
fail_at(struct reader *r, int code, const char *problem)
{
	return err_set(r->err, code, "%s: byte %zu: %s", r->what, (size_t)(r->at - r->begin), problem);
}

static int
fail_expected(struct reader *r, const char *expected)
{
	char found[32] = "the end of the text";

	if (r->at < r->end) {
		unsigned char c = (unsigned char)*r->at;
		if (c > 0x20 && c < 0x7f)
			snprintf(found, sizeof(found), "'%c'", c);
		else
			snprintf(found, sizeof(found), "byte 0x%02x", c);
	}
	return err_set(r->err, PAWL_ECORRUPT, "%s: byte %zu: expected %s, found %s", r->what,
	               (size_t)(r->at - r->begin), expected, found);
}

static int
fail_memory(struct reader *r, size_t nbytes)
{
	if (!bump_has_room(r->memory, nbytes))
		return fail_at(r, PAWL_ELIMIT, "needs more memory than the limit allows");
	return fail_at(r, PAWL_ENOMEM, "out of memory");
}

/* A key for a message: short, and nothing a terminal would act on. */
static void
printable_key(const char *key, size_t len, char out[72])
{
	size_t n = 0;

	for (size_t at = 0; at < len && n < 60; at++)
		out[n++] = key[at] >= 0x20 && key[at] < 0x7f ? key[at] : '?';
	memcpy(out + n, "...", 4);
	if (n == len)
		out[n] = '\0';
}

/* ------------------------------------------------------------------ nodes */

/* NULL on failure, with the code in r->failed. */
static struct json *
new_node(struct reader *r, enum json_type type)
{
	if (r->n_values == r->limits.max_values) {
		r->failed = fail_at(r, PAWL_ELIMIT, "more values than the limit allows");
		return NULL;
	}
	if (r->n_nodes == 0) {
		/* Few for a small document, full blocks for a large one. */
		size_t n = r->n_values < NODES_PER_BLOCK ? 8 : NODES_PER_BLOCK;
		r->nodes = bump_array(r->memory, n, sizeof(*r->nodes));
		if (!r->nodes) {
			r->failed = fail_memory(r, n * sizeof(*r->nodes));
			return NULL;
		}
		r->n_nodes = n;
	}
	struct json *node = r->nodes++;
	r->n_nodes--;
	r->n_values++;
	node->type = type;
	if (r->depth > 0) {
		struct frame *top = &r->stack[r->depth - 1];
		if (top->last)
			top->last->next = node;
		else
			top->container->first = node;
		top->last = node;
		top->container->len++;
		if (top->container->type == JSON_OBJECT) {
			node->key = r->key;
			node->key_len = r->key_len;
		}
	}
	return node;
}

static int
new_text(struct reader *r, size_t len, char **ret)
{
	size_t need = len + 1;

	if (need > r->n_text && need > TEXT_BLOCK_BYTES / 4) {
		*ret = bump_alloc(r->memory, need);
		return *ret ? 0 : fail_memory(r, need);
	}
	if (need > r->n_text) {
		size_t block = r->n_values < NODES_PER_BLOCK ? TEXT_BLOCK_BYTES / 4 : TEXT_BLOCK_BYTES;
		r->text = bump_alloc(r->memory, block);
		r->n_text = r->text ? block : 0;
		if (!r->text)
			return fail_memory(r, block);
	}
	*ret = r->text;
	r->text += need;
	r->n_text -= need;
	return 0;
}

/* ---------------------------------------------------------------- strings */

/* r->at is at the opening quote. */
static int
read_string(struct reader *r, const char **ret, size_t *ret_len)
{
	const char *open = ++r->at;
	const char *close = json_skip_plain(open, r->end);
	bool plain = close < r->end && *close == '"';

	while (close < r->end && *close != '"') {
		ptrdiff_t step_over = *close == '\\' ? 2 : 1;
		close = r->end - close > step_over ? json_skip_plain(close + step_over, r->end) : r->end;
	}
	if (close == r->end) {
		r->at = r->end;
		return fail_at(r, PAWL_ECORRUPT, "a string does not end");
	}
	size_t len = (size_t)(close - open);
	/* An escape is at most six times as long as what it stands for. */
	if (len > r->limits.max_string && (plain || len / 6 > r->limits.max_string))
		return fail_at(r, PAWL_ELIMIT, "a string is longer than the limit");
	char *text;
	TRY(new_text(r, len, &text));
	if (plain) {
		memcpy(text, open, len);
	} else {
		const char *problem = json_decode_string(&r->at, close, text, &len);
		if (problem)
			return fail_at(r, PAWL_ECORRUPT, problem);
	}
	if (len > r->limits.max_string)
		return fail_at(r, PAWL_ELIMIT, "a string is longer than the limit");
	text[len] = '\0';
	r->at = close + 1;
	*ret = text;
	*ret_len = len;
	return 0;
}

/* ---------------------------------------------------------------- numbers */

static bool
at_digit(const struct reader *r)
{
	return r->at < r->end && *r->at >= '0' && *r->at <= '9';
}

/* The fraction and exponent, of which at least one is there; start: where the number begins. */
static int
read_real(struct reader *r, const char *start)
{
	double value;

	if (*r->at == '.') {
		r->at++;
		if (!at_digit(r))
			return fail_expected(r, "a digit after the decimal point");
		while (at_digit(r))
			r->at++;
	}
	if (r->at < r->end && (*r->at == 'e' || *r->at == 'E')) {
		r->at++;
		if (r->at < r->end && (*r->at == '+' || *r->at == '-'))
			r->at++;
		if (!at_digit(r))
			return fail_expected(r, "a digit in the exponent");
		while (at_digit(r))
			r->at++;
	}
	size_t len = (size_t)(r->at - start);
	if (text_get_number(start, len, &value) != len)
		return fail_at(r, PAWL_ELIMIT, "a number is too long or too large");
	struct json *node = new_node(r, JSON_REAL);
	if (!node)
		return r->failed;
	node->real = value;
	return 0;
}

static int
read_number(struct reader *r)
{
	const char *start = r->at;
	bool negative = *r->at == '-', overflow = false;
	uint64_t value = 0;

	r->at += negative;
	if (!at_digit(r))
		return fail_expected(r, "a digit");
	const char *digits = r->at;
	for (; at_digit(r); r->at++) {
		unsigned digit = (unsigned)(*r->at - '0');
		if (r->at - digits < 19)
			value = value * 10 + digit;
		else
			overflow = overflow || __builtin_mul_overflow(value, (uint64_t)10, &value) ||
			           __builtin_add_overflow(value, (uint64_t)digit, &value);
	}
	if (*digits == '0' && r->at - digits > 1) {
		r->at = digits;
		return fail_at(r, PAWL_ECORRUPT, "a number has a leading zero");
	}
	if (r->at < r->end && (*r->at == '.' || *r->at == 'e' || *r->at == 'E'))
		return read_real(r, start);
	if (overflow || (negative && value > (uint64_t)INT64_MAX + 1))
		return fail_at(r, PAWL_ELIMIT, "an integer does not fit 64 bits");

	struct json *node = new_node(r, negative || value <= INT64_MAX ? JSON_INT : JSON_UINT);
	if (!node)
		return r->failed;
	if (negative) {
		node->i = (int64_t)(0 - value);
		node->real = -(double)value;
	} else {
		node->i = value <= INT64_MAX ? (int64_t)value : 0;
		node->u = value;
		node->real = (double)value;
	}
	return 0;
}

/* ------------------------------------------------------------- containers */

static bool
same_key(const struct json *a, const struct json *b)
{
	return a->key_len == b->key_len && memcmp(a->key, b->key, a->key_len) == 0;
}

static int
fail_duplicate(struct reader *r, const struct json *member)
{
	char key[72];

	printable_key(member->key, member->key_len, key);
	return err_set(r->err, PAWL_ECORRUPT, "%s: byte %zu: the object that ends here has the key \"%s\" twice",
	               r->what, (size_t)(r->at - r->begin), key);
}

static uint64_t
hash_key(const char *key, size_t len)
{
	uint64_t hash = len * MIX_STEP, word;

	for (; len >= sizeof(word); key += sizeof(word), len -= sizeof(word)) {
		memcpy(&word, key, sizeof(word));
		hash = (hash ^ word) * 0xff51afd7ed558ccdu;
		hash ^= hash >> 32;
	}
	word = 0;
	memcpy(&word, key, len);
	hash = (hash ^ word) * 0xc4ceb9fe1a85ec53u;
	return hash ^ hash >> 29;
}

/* Linear time for every input: a document whose keys are chosen to collide is refused. This happens
 * to no other: the longest run among a million keys is below 100. */
#define MAX_PROBES 512

static int
check_keys_by_hash(struct reader *r, const struct json *object)
{
	size_t need = 64;

	while (need < object->len * 2)
		need *= 2;
	if (need > r->n_slots) {
		mem_free(r->slots);
		r->n_slots = 0;
		r->slots = mem_alloc(need * sizeof(*r->slots));
		if (!r->slots)
			return fail_at(r, PAWL_ENOMEM, "out of memory");
		r->n_slots = need;
	}
	memset(r->slots, 0, need * sizeof(*r->slots));
	for (const struct json *member = object->first; member; member = member->next) {
		uint64_t hash = hash_key(member->key, member->key_len);
		size_t at = hash & (need - 1), probes = 0;
		for (; r->slots[at].member; at = (at + 1) & (need - 1)) {
			if (r->slots[at].hash == hash && same_key(r->slots[at].member, member))
				return fail_duplicate(r, member);
			if (++probes == MAX_PROBES)
				return fail_at(r, PAWL_ELIMIT, "the keys of an object collide too often");
		}
		r->slots[at] = (struct slot){.hash = hash, .member = member};
	}
	return 0;
}

static int
check_keys(struct reader *r, const struct json *object)
{
	if (object->len > 8)
		return check_keys_by_hash(r, object);
	for (const struct json *a = object->first; a; a = a->next)
		for (const struct json *b = a->next; b; b = b->next)
			if (same_key(a, b))
				return fail_duplicate(r, b);
	return 0;
}

static void
skip_space(struct reader *r)
{
	while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\r' || *r->at == '\t'))
		r->at++;
}

static bool
skip_char(struct reader *r, char c)
{
	skip_space(r);
	if (r->at == r->end || *r->at != c)
		return false;
	r->at++;
	return true;
}

static bool
in_object(const struct reader *r)
{
	return r->depth > 0 && r->stack[r->depth - 1].container->type == JSON_OBJECT;
}

/* Reads the key of the next member. 1: it is the stop key. */
static int
read_key(struct reader *r)
{
	skip_space(r);
	if (r->at == r->end || *r->at != '"')
		return fail_expected(r, "a key");
	TRY(read_string(r, &r->key, &r->key_len));
	if (r->depth == 1 && r->limits.stop_key && r->key_len == r->stop_key_len &&
	    memcmp(r->key, r->limits.stop_key, r->key_len) == 0)
		return 1;
	if (!skip_char(r, ':'))
		return fail_expected(r, "':' after a key");
	return 0;
}

static int
open_container(struct reader *r, enum json_type type)
{
	if (r->depth == r->limits.max_depth)
		return fail_at(r, PAWL_ELIMIT, "nested deeper than the limit");
	r->at++;
	struct json *node = new_node(r, type);
	if (!node)
		return r->failed;
	r->stack[r->depth++] = (struct frame){.container = node};
	return 0;
}

static int
close_container(struct reader *r)
{
	const struct json *node = r->stack[--r->depth].container;
	return node->type == JSON_OBJECT && node->len > 1 ? check_keys(r, node) : 0;
}

static int
read_word(struct reader *r, const char *word, enum json_type type, bool value)
{
	size_t len = strlen(word);

	if ((size_t)(r->end - r->at) < len || memcmp(r->at, word, len) != 0)
		return fail_expected(r, "a value");
	r->at += len;
	struct json *node = new_node(r, type);
	if (!node)
		return r->failed;
	node->boolean = value;
	return 0;
}

static int
read_text(struct reader *r)
{
	/* The node first: r->key still belongs to it. */
	struct json *node = new_node(r, JSON_STRING);

	if (!node)
		return r->failed;
	return read_string(r, &node->str, &node->len);
}

/* Reads a leaf, or only the bracket that opens a container. */
static int
read_value(struct reader *r)
{
	skip_space(r);
	if (r->at == r->end)
		return fail_expected(r, "a value");
	switch (*r->at) {
	case '{':
		return open_container(r, JSON_OBJECT);
	case '[':
		return open_container(r, JSON_ARRAY);
	case 't':
		return read_word(r, "true", JSON_BOOL, true);
	case 'f':
		return read_word(r, "false", JSON_BOOL, false);
	case 'n':
		return read_word(r, "null", JSON_NULL, false);
	case '"':
		return read_text(r);
	default:
		if (*r->at != '-' && !at_digit(r))
			return fail_expected(r, "a value");
		return read_number(r);
	}
}

/* Steps from a finished value (or an opened container: fresh) to the place of the next one, closing
 * containers on the way. 1: the document is complete; stopped: at the stop key. */
static int
step_forth(struct reader *r, bool fresh, bool *ret_stopped)
{
	while (r->depth > 0) {
		bool object = in_object(r);
		if (skip_char(r, object ? '}' : ']')) {
			TRY(close_container(r));
			fresh = false;
			continue;
		}
		if (!fresh && !skip_char(r, ','))
			return fail_expected(r, object ? "',' or '}'" : "',' or ']'");
		if (!object)
			return 0;
		int rc = read_key(r);
		if (rc <= 0)
			return rc;
		*ret_stopped = true;
		TRY(close_container(r));
	}
	return 1;
}

static int
read_document(struct reader *r)
{
	bool stopped = false;
	int done = 0;

	while (!done) {
		unsigned depth = r->depth;
		TRY(read_value(r));
		done = step_forth(r, r->depth > depth, &stopped);
		if (done < 0)
			return done;
	}
	skip_space(r);
	if (!stopped && r->at < r->end)
		return fail_expected(r, "the end of the text");
	return 0;
}

static void
set_limits(struct reader *r, const struct json_limits *limits)
{
	if (limits)
		r->limits = *limits;
	struct json_limits *l = &r->limits;
	if (l->max_bytes == 0)
		l->max_bytes = (size_t)64 << 20;
	if (l->max_depth == 0)
		l->max_depth = 32;
	if (l->max_depth > MAX_DEPTH)
		l->max_depth = MAX_DEPTH;
	if (l->max_string == 0)
		l->max_string = (size_t)64 << 10;
	if (l->max_values == 0)
		l->max_values = 10000000;
	if (l->stop_key)
		r->stop_key_len = strlen(l->stop_key);
}

int
json_parse(const char *what, const void *ptr, size_t len, const struct json_limits *limits, struct bump *memory,
           struct json **ret, struct pawl_error *err)
{
	struct reader r;

	/* Not the stack, which is large and written before it is read. */
	memset(&r, 0, offsetof(struct reader, stack));
	r.what = what;
	r.begin = r.at = ptr;
	r.end = len > 0 ? r.begin + len : r.begin;
	r.memory = memory;
	r.err = err;
	set_limits(&r, limits);
	if (len > r.limits.max_bytes)
		return err_set(err, PAWL_ELIMIT, "%s: expected at most %zu bytes, found %zu", what, r.limits.max_bytes,
		               len);
	r.nodes = bump_array(memory, 1, sizeof(*r.nodes));
	if (!r.nodes)
		return fail_memory(&r, sizeof(*r.nodes));
	struct json *root = r.nodes;
	r.n_nodes = 1;

	int rc = read_document(&r);
	mem_free(r.slots);
	TRY(rc);
	*ret = root;
	return 0;
}
