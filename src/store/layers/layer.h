/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer: a store around another one that passes every operation on. A layer embeds it first, and then puts its own
 * operations in the place of those that it changes, or has a look at all of them by enter and leave; what the inner store
 * lacks (a NULL) is lacking here, too, unless the layer fills it in. Private to src/store.
 */
#ifndef PAWL_STORE_LAYER_H
#define PAWL_STORE_LAYER_H

#include "store/engine.h"

enum layer_op {
	LAYER_PUT = 1 << 0,
	LAYER_CREATE = 1 << 1,
	LAYER_WRITE = 1 << 2,
	LAYER_FINISH = 1 << 3,
	LAYER_PUBLISH = 1 << 4,
	LAYER_READ = 1 << 5,
	LAYER_LIST = 1 << 6,
	LAYER_STAT = 1 << 7,
	LAYER_REMOVE = 1 << 8,
	LAYER_LINK = 1 << 9,
	LAYER_OTHER = 1 << 10, /* open, move, pointer, sync, space, append .. */
	LAYER_ANY = (1 << 11) - 1
};

struct layer_call {
	enum layer_op op;
	const char *verb; /* "put", for people */
	const char *what; /* key, or root */
	uint64_t nbytes;  /* of contents that go in or come out; 0 where there are none */
	int64_t begin_ns; /* monotonic; 0 without leave */
};

struct layer {
	struct store base;
	struct store *inner;
	struct store_ops ops; /* under the inner store's name, which is what people want to know */
	/* NULL, or before a call that can fail: an error keeps it from the inner store (a finish then aborts). */
	int (*enter)(struct layer *layer, const struct layer_call *call, struct pawl_error *err);
	/* NULL, or after it. err may be NULL. */
	void (*leave)(struct layer *layer, const struct layer_call *call, int rc, const struct pawl_error *err);
};

/* Everything passed on, nobody looking. On success the layer owns `inner`; base.root is a copy. */
int layer_init(struct layer *layer, struct store *inner, struct pawl_error *err);
struct store *layer_inner(struct store *base);
/* Closes what it wraps and frees the layer, which mem_zalloc has given. */
void layer_close(struct store *base);

#endif
