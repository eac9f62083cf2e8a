/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle: Python's object streams (protocols 0 to 5) -> a tree of plain values. It sees bytes only
 * and runs nothing. A Python name is looked up in the caller's list and becomes a node. A call of
 * it becomes a node with the name and the arguments. A name that is not in the list ends the
 * decoding. The caller gives calls their meaning and checks arguments.
 *
 * Refused: INST, OBJ, EXT*, NEWOBJ_EX, PERSID (as text), sets, bytearrays, buffers outside the
 * stream, protocols above 5. Items go into lists and dicts only, and frames must be kept. Limits:
 * stream 256 MiB, 50,000,000 operations, 1,000,000 values on the stack, 512 MiB of nodes. Integers
 * have at most 4,096 bytes, and those beyond 64 bits 1 MiB together. The size of the memo depends
 * on what is stored, not on the numbers used.
 *
 * One node can be in several places, and a list can contain itself: code that walks the tree must
 * limit depth and steps.
 */
#ifndef PAWL_FORMAT_PICKLE_H
#define PAWL_FORMAT_PICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bump.h"
#include "base/mem.h"

#define PICKLE_MAX_BYTES ((size_t)256 << 20)
#define PICKLE_MAX_MEMORY ((size_t)512 << 20)
#define PICKLE_MAX_OPS 50000000u
#define PICKLE_MAX_STACK 1000000u
#define PICKLE_MAX_LONG_BYTES 4096u
#define PICKLE_MAX_LONGS_BYTES (1u << 20)

enum pickle_type {
	PICKLE_NONE,
	PICKLE_BOOL,   /* i */
	PICKLE_INT,    /* i; beyond 64 bits: text, the decimal digits */
	PICKLE_FLOAT,  /* f */
	PICKLE_STR,    /* text: UTF-8, len bytes, in the stream itself where it is stored unescaped */
	PICKLE_BYTES,  /* text */
	PICKLE_LIST,   /* items */
	PICKLE_TUPLE,  /* items */
	PICKLE_DICT,   /* items: key, value, key, value, .. in order; a key may repeat */
	PICKLE_ODICT,  /* the same: a call, without arguments, of a name that is PICKLE_ORDERED; perhaps with state */
	PICKLE_GLOBAL, /* global */
	PICKLE_CALL,   /* global, called with args (a tuple); perhaps with state, set by BUILD */
	PICKLE_PERSID, /* args: identifies a thing outside the stream (any value) */
};

/* What may be done with a name. */
enum {
	PICKLE_CALLED = 1,  /* REDUCE */
	PICKLE_NEW = 2,     /* NEWOBJ: an object made without a call of its class */
	PICKLE_STATE = 4,   /* its result takes a state by BUILD */
	PICKLE_ORDERED = 8, /* called with () it is a dict */
};

struct pickle_global {
	const char *module, *name;
	int tag;       /* the caller's own */
	unsigned uses; /* 0 = a value by itself */
};

struct pickle_node {
	uint8_t type; /* enum pickle_type */
	bool built;   /* a state has been given */
	bool seen;    /* the caller's own, false at first */
	union {
		int64_t i;
		double f;
		const struct pickle_global *global;
		size_t cap; /* of items */
	};
	union {
		const char *text;
		struct pickle_node **items;
		struct pickle_node *args;
	};
	union {
		size_t len;                     /* bytes of text, or items */
		struct pickle_node *call_state; /* of PICKLE_CALL; NULL = none */
	};
	void *user; /* the caller's own, NULL at first */
};

/* Decodes one stream, which fills all of its bytes and stays as long as the tree is used. globals:
 * sorted by module, then by name. `what` names the stream in errors. These are PAWL_ECORRUPT (not
 * such a stream, or it ends early), PAWL_ELIMIT, and PAWL_EUNSUPPORTED (a name or an operation that
 * is not plain data). Memory is the bump's. */
int pickle_decode(const char *what, const void *ptr, size_t len, const struct pickle_global *globals, size_t n_globals,
                  struct bump *memory, struct pickle_node **ret, struct pawl_error *err);
/* The value of a dict's text key, or NULL; of several the last, as Python has it. */
const struct pickle_node *pickle_get(const struct pickle_node *dict, const char *key);
/* Is it this name? */
static inline bool
pickle_is(const struct pickle_node *node, int tag)
{
	return node->type == PICKLE_GLOBAL && node->global->tag == tag;
}

#endif
