/* SPDX-License-Identifier: Apache-2.0 */
/* trees: random states, and equality of states down to the last bit. For tests; include after
 * cmocka.h. */
#ifndef PAWL_TESTS_TREES_H
#define PAWL_TESTS_TREES_H

#include <stdio.h>
#include <string.h>

#include "state/state.h"

#define TREE_MAX_TENSORS 64

/* xorshift64*: the same numbers on every machine. */
struct tree_random {
	uint64_t x; /* never 0 */
};

static inline uint64_t
tree_next(struct tree_random *r)
{
	r->x ^= r->x >> 12;
	r->x ^= r->x << 25;
	r->x ^= r->x >> 27;
	return r->x * 0x2545f4914f6cdd1du;
}

static inline unsigned
tree_below(struct tree_random *r, unsigned n)
{
	return (unsigned)(tree_next(r) >> 33) % n;
}

/* Text of up to 12 characters, out of those that are easily mishandled. Bytes also hold NUL and
 * 0xff. */
static inline size_t
tree_text(struct tree_random *r, bool is_bytes, char text[64])
{
	static const char *const pieces[] = {"a",
	                                     "Z",
	                                     "/",
	                                     "%",
	                                     "$",
	                                     "~",
	                                     "\"",
	                                     "\\",
	                                     " ",
	                                     "\n",
	                                     "\x7f",
	                                     "\xc3\xa9",
	                                     "0",
	                                     "\xf0\x9f\x90\x8e",
	                                     ".",
	                                     "2F",
	                                     "\xe2\x82\xac",
	                                     "\t"};
	size_t len = 0;

	for (unsigned n = tree_below(r, 9); n > 0; n--) {
		const char *piece = pieces[tree_below(r, sizeof(pieces) / sizeof(pieces[0]))];
		if (tree_below(r, 12) == 0) {
			text[len++] = is_bytes ? (char)tree_below(r, 256) : '\0';
			continue;
		}
		memcpy(text + len, piece, strlen(piece));
		len += strlen(piece);
	}
	return len;
}

static inline void
tree_scalar(struct tree_random *r, struct pawl_scalar *ret, char text[64])
{
	static const double floats[] = {0.0, -0.0, 1.5, -1e300, 5e-324, 0.1, 1e22, 123456789.125};
	uint64_t bits;

	*ret = (struct pawl_scalar){.type = (int)tree_below(r, 6)};
	switch (ret->type) {
	case PAWL_BOOLEAN:
		ret->i = tree_below(r, 2);
		break;
	case PAWL_INT:
		ret->i = (int64_t)(tree_next(r) >> tree_below(r, 64)) * (tree_below(r, 2) ? 1 : -1);
		if (tree_below(r, 8) == 0) {
			ret->ptr = text;
			ret->len =
				(size_t)snprintf(text, 64, "%s%u0000000000000000000000%u", tree_below(r, 2) ? "-" : "",
			                         1 + tree_below(r, 99), tree_below(r, 99));
		}
		break;
	case PAWL_FLOAT:
		bits = tree_next(r); /* any bits: also NaN with a payload */
		if (tree_below(r, 3) == 0)
			bits |= 0x7ff0000000000000u;
		memcpy(&ret->f, &bits, sizeof(bits));
		if (tree_below(r, 2))
			ret->f = floats[tree_below(r, 8)];
		break;
	case PAWL_STR:
	case PAWL_BYTES:
		ret->ptr = text;
		ret->len = tree_text(r, ret->type == PAWL_BYTES, text);
		break;
	default:
		break;
	}
}

static inline void
tree_add_tensor(struct tree_random *r, struct pawl_state *s)
{
	static char memory[TREE_MAX_TENSORS * 256]; /* its bytes do not matter, its addresses do: equal ones are tied */
	uint64_t shape[4];
	struct pawl_tensor t = PAWL_TENSOR_INIT;
	struct pawl_error err;

	t.dtype = PAWL_U8 + (int)tree_below(r, PAWL_C128 - PAWL_U8 + 1);
	t.ndim = tree_below(r, 4);
	for (uint32_t d = 0; d < t.ndim; d++)
		shape[d] = tree_below(r, 3);
	t.shape = shape;
	t.kind = tree_below(r, 2) ? "torch" : NULL;
	t.data = memory + 256 * (size_t)tree_below(r, TREE_MAX_TENSORS);
	assert_int_equal(pawl_state_add_tensor(s, &t, &err), 0);
}

/* One value below what is open; depth bounds the recursion. */
static inline void
tree_value(struct tree_random *r, struct pawl_state *s, unsigned depth)
{
	char text[64];
	struct pawl_scalar scalar;
	struct pawl_error err;
	unsigned what = tree_below(r, depth > 0 ? 10 : 6);

	if (what == 0) {
		tree_add_tensor(r, s);
		return;
	}
	if (what < 6) {
		static const char filling[5000];
		tree_scalar(r, &scalar, text);
		if ((scalar.type == PAWL_STR || scalar.type == PAWL_BYTES) && tree_below(r, 6) == 0) {
			scalar.ptr = filling;
			scalar.len = 4090 + tree_below(r, 12); /* about the border to a tensor of its own */
		}
		assert_int_equal(pawl_state_add(s, &scalar, &err), 0);
		return;
	}
	int type = PAWL_DICT + (int)tree_below(r, 4);
	assert_int_equal(pawl_state_begin(s, type, &err), 0);
	for (unsigned n = tree_below(r, 6); n > 0; n--) {
		if (type == PAWL_DICT || type == PAWL_ODICT) {
			int rc;
			do {
				tree_scalar(r, &scalar, text);
				rc = pawl_state_key(s, &scalar, &err);
			} while (rc == PAWL_EEXISTS);
			assert_int_equal(rc, 0);
		}
		tree_value(r, s, depth - 1);
	}
	assert_int_equal(pawl_state_end(s, &err), 0);
}

static inline struct pawl_state *
tree_new(uint64_t seed)
{
	struct tree_random r = {seed * 0x9e3779b97f4a7c15u + 1};
	struct pawl_state *s = NULL;

	assert_int_equal(pawl_state_new(&s, NULL), 0);
	tree_value(&r, s, 6);
	return s;
}

static inline bool
tree_scalars_equal(const struct pawl_scalar *a, const struct pawl_scalar *b)
{
	return a->type == b->type && a->i == b->i && memcmp(&a->f, &b->f, sizeof(a->f)) == 0 && a->len == b->len &&
	       !a->ptr == !b->ptr && (a->len == 0 || memcmp(a->ptr, b->ptr, a->len) == 0);
}

/* b was decoded from what a encoded to: long text has not been read, tensors have names only. */
static inline bool
tree_nodes_equal(const struct pawl_state *sa, const struct pawl_node *a, const struct pawl_state *sb,
                 const struct pawl_node *b)
{
	if (a->type != b->type || a->count != b->count || strcmp(a->kind, b->kind) != 0 || !a->key != !b->key)
		return false;
	if (a->key && !tree_scalars_equal(a->key, b->key))
		return false;
	if ((a->tensor == SIZE_MAX) != (b->tensor == SIZE_MAX))
		return false;
	if (a->tensor != SIZE_MAX)
		return strcmp(sa->tensors[a->tensor].info.name, sb->tensors[b->tensor].info.name) == 0 &&
		       sa->tensors[a->tensor].is_blob == sb->tensors[b->tensor].is_blob;
	if (a->type < PAWL_DICT)
		return tree_scalars_equal(&a->scalar, &b->scalar);
	const struct pawl_node *x = a->first, *y = b->first;
	for (; x && y; x = x->next, y = y->next) {
		if (!tree_nodes_equal(sa, x, sb, y))
			return false;
	}
	return !x && !y;
}

static inline bool
tree_equal(const struct pawl_state *a, const struct pawl_state *b)
{
	return a->n_tensors == b->n_tensors && tree_nodes_equal(a, a->root, b, b->root);
}

#endif
