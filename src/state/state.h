/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state: the tree of values being saved, its builder, its reader, and its JSON form
 * (docs/reference/format.md):
 *
 *   null true false 12 1.5 "text"     themselves; floats always have '.' or 'e', ints never
 *   [..]                              list
 *   {"key": ..}                       dict with string keys, none starting with '$'
 *   {"$dict":[[key,value],..]}        any other dict
 *   {"$odict":[[key,value],..]}       ordered dict
 *   {"$tuple":[..]}                   tuple
 *   {"$int":"123..."}                 beyond +-2^53
 *   {"$float":"7ff8000000000000"}     non-finite, IEEE bits in hex
 *   {"$bytes":"base64"}               bytes
 *   {"$tensor":"name","as":"torch"}   tensor (as: kind, optional)
 *   {"$value":..,"as":"set"}          any other value that has a kind
 *   {"$rank":[..]}                    per rank
 *   {"$differs":[..]}                 a plain value that was not the same on all ranks
 *   {"$str":"base64"}                 str with NUL characters, which pawl's JSON never holds
 *   {"$str_in":"name"} {"$bytes_in":"name"}
 *                                     long str / bytes (> 4,096 bytes), kept as a U8 tensor
 *
 * A tensor is named after the path of the first leaf that holds it. A suffix "~2", "~3" makes the
 * name unique.
 */
#ifndef PAWL_STATE_H
#define PAWL_STATE_H

#include "base/buf.h"
#include "base/bump.h"
#include "base/json.h"
#include "base/mem.h"
#include "pawl.h"

#define STATE_LONG_BYTES 4096

struct pawl_node {
	int type; /* enum pawl_type */
	const struct pawl_scalar *key;
	struct pawl_scalar scalar; /* leaves but tensors */
	struct pawl_node *first, *last, *next;
	size_t count;
	size_t tensor;    /* index, SIZE_MAX if none; set also for long str/bytes. Their type
	                     stays STR/BYTES. scalar.ptr and len are set in built states; in
	                     decoded ones ptr is NULL until the bytes were read */
	const char *kind; /* "" if none */
};

struct state_tensor {
	struct pawl_tensor_info info; /* global shape; nbytes of the complete tensor */
	struct pawl_tensor src;       /* local piece: arrays copied into the state's memory; data borrowed. shape =
	                                 local shape, offsets/global_shape = NULL when complete */
	uint64_t local_nbytes;
	bool contiguous; /* local piece is C order */
	bool elsewhere;  /* another rank writes it (rank_share.h) */
	bool common;     /* complete on all ranks, which share the writing (rank_share.h) */
	bool is_blob;    /* holds a long str or bytes; data is in the state's memory */
};

struct pawl_state {
	struct bump memory;
	struct pawl_node *root;
	struct state_tensor *tensors;
	size_t n_tensors, cap_tensors;
	size_t last_tensor;            /* 1 + the one that was added last; 0 = none */
	uint32_t rank, world;          /* of the builder; world 0 = 1. Names below PAWL_PER_RANK contain the rank */
	bool has_ranks;                /* it holds PAWL_PER_RANK or PAWL_DIFFERS */
	bool is_of_all;                /* a checkpoint's: PAWL_PER_RANK may hold many values, PAWL_DIFFERS may occur */
	struct state_builder *builder; /* stack, pending key, tables of keys, names and tied memory; never NULL */
};

/* Appends the JSON form. The state must be complete (all containers ended), else PAWL_EUSAGE. */
int state_encode(const struct pawl_state *state, struct buf *out, struct pawl_error *err);
/* Builds a state from a parsed value. Its tensor table holds the names in order of first
 * appearance. The caller fills in dtype, ndim, shape and nbytes (state_describe_tensor).
 * `what` names the source in errors. */
int state_decode(const char *what, const struct json *value, struct pawl_state **ret, struct pawl_error *err);
/* Finds a tensor by name; NULL if there is none. Takes constant time, since a state can have 20,000
 * tensors. */
struct state_tensor *state_find_tensor(struct pawl_state *state, const char *name);
/* Sets dtype and global shape of a decoded tensor; the arrays are copied. PAWL_ECORRUPT if no
 * tensor can have them. */
int state_describe_tensor(struct pawl_state *state, struct state_tensor *t, int dtype, uint32_t ndim,
                          const uint64_t *shape, struct pawl_error *err);
/* Adds a leaf for the tensor of that name, still to be described. Its type is TENSOR, or STR/BYTES
 * for a long one. kind NULL: as pawl_state_kind has set it. */
int state_add_named(struct pawl_state *state, int type, const char *name, const char *kind, struct pawl_error *err);
/* The child of values per rank that is this rank's own. It replaces the node, and paths do not show
 * it. */
#define STATE_UNCLAIMED (-1) /* scalar.i of values per rank that have none for this rank */
static inline bool
state_is_transparent(const struct pawl_node *node)
{
	return (node->type == PAWL_PER_RANK || node->type == PAWL_DIFFERS) && node->count == 1;
}
/* Reduces a decoded state to the view of one rank. Of values per rank, and of those that differ,
 * only that of saved rank `source` remains. source SIZE_MAX: the world's size has changed. Then
 * values per rank stay as they are, and of those that differ rank 0's remains. */
void state_resolve_ranks(struct pawl_state *state, size_t source);
/* A state is complete when every container has ended and there is a root. */
int state_check_complete(const struct pawl_state *state, struct pawl_error *err);
/* Appends the escaped text of a key. */
void state_put_key(struct buf *out, const struct pawl_scalar *key);
/* Appends the path component of a child: escaped key text, or index. */
void state_put_component(struct buf *out, const struct pawl_node *parent, const struct pawl_node *child, size_t index);

/* A float as the state's JSON form writes it, for numbers outside a state: 1.5,
 * {"$float":"7ff8000000000000"}. */
void state_put_float(struct buf *out, double value);
bool state_get_float(const struct json *value, double *ret); /* false if it is not a number */

/* Calls the fill function of a tensor. */
int tensor_fill(const struct state_tensor *t, void *dst, size_t nbytes, struct pawl_error *err);
/* Copies bytes [offset, offset + n) of a tensor's logical contents (C order) to dst. Any
 * strides. */
void tensor_gather(const struct pawl_tensor *t, uint64_t offset, size_t n, void *dst);
/* The reverse: writes n bytes of logical contents at offset into the tensor. */
void tensor_scatter(const struct pawl_tensor *t, uint64_t offset, size_t n, const void *src);
bool tensor_is_contiguous(const struct pawl_tensor *t);
/* Are these shapes, offsets or strides of ndim dimensions equal? NULL equals only NULL,
 * unless ndim is 0. */
bool tensor_same_extents(const void *a, const void *b, uint32_t ndim);
/* Bytes of the local piece. PAWL_EUSAGE for overflow, ndim over the limit, unknown dtype, or bits
 * that do not fill bytes. PAWL_EUNSUPPORTED for strides of elements smaller than a byte. */
int tensor_nbytes(const struct pawl_tensor *t, uint64_t *ret, struct pawl_error *err);

PAWL_DEFINE_CLEAN(struct pawl_state, pawl_state_free);

#endif
