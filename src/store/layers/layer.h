/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer: a store that wraps another one. It fills in only the operations that it changes; the
 * border passes all others to the inner store.
 *
 * A layer with one of these operations must also cover the related ones. It implements them, or
 * leaves them to the border's default:
 *
 *   its own read      get, read_copy, pass_over, is_cached and stat_reader. A layer has its own
 *                     read if it changes the bytes or has its own readers.
 *   its own create    seal
 *   its own put       append and put_if
 *   its own list      list_all
 *
 * A layer calls its inner store by store_*(). For an open file of the inner store it calls
 * layer_*(). With enter and leave, a layer can also watch all calls that it does not implement
 * itself. Private to src/store.
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

/*
 * One call on its way to the inner store. enter runs before a call that can fail. Its error stops
 * the call; a finish then aborts. leave runs after the call, with its result. true = make the call
 * again, which is ignored for a finish.
 */
struct layer_call {
	enum layer_op op;
	const char *verb; /* "put", for people */
	const char *what; /* key, or root */
	uint64_t nbytes;  /* of contents in or out; 0 where there are none */
	int64_t begin_ns; /* monotonic; 0 without leave */
	unsigned n_tries; /* for the layer; begins at 0 */
};

/* Initialises a layer that mem_zalloc made. On success it owns `inner`: store_close(s) calls
 * ops->close, frees the layer and then closes the inner store. On failure the caller still owns
 * both. */
int layer_init(struct store *s, const struct store_ops *ops, struct store *inner, struct pawl_error *err);

/* write, seal and finish of the inner store. They skip the border's checks, which were made
 * already. */
int layer_write(struct store *inner, struct store_file *f, uint64_t offset, const void *ptr, size_t len,
                struct pawl_error *err);
int layer_seal(struct store *inner, struct store_file *f, struct pawl_error *err);
int layer_finish(struct store *inner, struct store_file *f, struct pawl_error *err);

/*
 * For the border. Walks from s to the store that answers an operation. That is the outermost store
 * that has it, or the last one before a layer with its own `limit`; there the border's default is
 * used. If a layer on the way watches, the macro calls `next` between its enter and leave, and
 * returns the result. `next` is the same call of s->inner; it may use layer_call_.
 */
#define LAYER_HAND_DOWN(s, op, limit, kind, verb, what, nbytes, err, next)                             \
	for (; __builtin_expect(!(s)->ops->op, 0) && !(s)->ops->limit && (s)->inner; (s) = (s)->inner) \
		if ((s)->ops->enter || (s)->ops->leave) {                                              \
			struct layer_call layer_call_ = layer_call_of(s, kind, verb, what, nbytes);    \
			int layer_rc_;                                                                 \
			TRY(layer_enter(s, &layer_call_, err));                                        \
			do                                                                             \
				layer_rc_ = (next);                                                    \
			while (layer_leave(s, &layer_call_, layer_rc_, err));                          \
			return layer_rc_;                                                              \
		}
struct layer_call layer_call_of(const struct store *s, enum layer_op op, const char *verb, const char *what,
                                uint64_t nbytes);
int layer_enter(struct store *s, const struct layer_call *call, struct pawl_error *err);
bool layer_leave(struct store *s, struct layer_call *call, int rc, struct pawl_error *err);

#endif
