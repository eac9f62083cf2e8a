/* SPDX-License-Identifier: Apache-2.0 */
/* state_build: the inside of a state, for code that builds one or takes it apart. */
#ifndef PAWL_STATE_BUILD_H
#define PAWL_STATE_BUILD_H

#include "base/buf.h"
#include "base/table.h"
#include "pawl.h"
#include "state/state.h"

#define STATE_MAX_DEPTH 256 /* containers inside each other */
#define STATE_MAX_NODES 10000000u
#define STATE_MAX_KEY_BYTES 4096   /* text of a dict key */
#define STATE_MAX_NAME_BYTES 4096  /* of a tensor; the limit of safetensors headers */
#define STATE_MAX_INT_DIGITS 60000 /* of an int beyond 64 bits; with its quotes below 64 KiB */
#define STATE_MAX_KIND_BYTES 32
#define STATE_SMALL_DICT 8 /* a dict of up to this many children is searched faster without a hash */

struct state_frame {
	struct pawl_node *node;
	size_t path_len; /* of builder.path, for this container */
};

struct state_builder {
	struct state_frame stack[STATE_MAX_DEPTH]; /* open containers, outermost first */
	unsigned depth;
	bool has_key;
	struct pawl_scalar key; /* of the next child of the innermost dict, text already copied */
	const char *kind;       /* of the next child; NULL = none */
	struct buf path;        /* of the innermost open container */
	struct table children;  /* (dict, key) -> struct state_child, where a dict has more than STATE_SMALL_DICT */
	struct table names;     /* tensor name -> index */
	struct table ties;      /* memory of a tensor -> index */
	unsigned *n_suffixes;   /* per tensor: how many suffixes "~k" of its name have been tried */
	size_t n_nodes;
	uint32_t rank, world; /* as the state's */
};

/* A node inside a dict. */
struct state_child {
	struct pawl_node node;
	const struct pawl_node *parent;
	struct pawl_scalar key;
};

static inline void
state_append_child(struct pawl_node *parent, struct pawl_node *node)
{
	if (parent->last)
		parent->last->next = node;
	else
		parent->first = node;
	parent->last = node;
	parent->count++;
}
const char *state_type_name(int type);
/* "a " or "an ", to be put before the name. */
const char *state_article(int type);
/* One child per rank? */
static inline bool
state_is_ranks(int type)
{
	return type == PAWL_PER_RANK || type == PAWL_DIFFERS;
}
static inline bool
state_is_dict(int type)
{
	return type == PAWL_DICT || type == PAWL_ODICT;
}

/* The child of a dict with this (normalised) key, or NULL. */
struct pawl_node *state_child(const struct pawl_state *s, const struct pawl_node *parent,
                              const struct pawl_scalar *key);
/* The child that a component of a path names, or NULL. */
const struct pawl_node *state_child_at(const struct pawl_state *s, const struct pawl_node *parent,
                                       const char *component, size_t len);
/* Checks a scalar and gives equal values one form. ptr and len are set only where the type uses
 * them, and ints that fit 64 bits are in i. Text stays borrowed. */
int state_normalise(const struct pawl_scalar *in, struct pawl_scalar *ret, struct pawl_error *err);
/* Decodes one component of a path into key (at most STATE_MAX_KEY_BYTES); false if it is malformed
 * or too long. */
bool state_unescape(const char *component, size_t len, char *key, size_t *ret_len);

/* state.c. "The next child" is the value added next: below the pending key, at the next index, or
 * the root. */
int state_no_memory(struct pawl_error *err);
/* May a value of this type come next? */
int state_check_place(struct pawl_state *s, int type, struct pawl_error *err);
/* A node for the next child, not yet part of the tree; NULL without memory. With it
 * state_link_node cannot fail. */
struct pawl_node *state_new_node(struct pawl_state *s, int type);
/* Call it when a child was appended to a dict. The table has room for STATE_SMALL_DICT + 1 more. */
void state_index_child(struct state_builder *b, const struct pawl_node *parent);
void state_link_node(struct pawl_state *s, struct pawl_node *node);
/* Extends builder.path by the component of the next child; state_path_back removes it. */
void state_path_forth(struct state_builder *b);
void state_path_back(struct state_builder *b);
/* Puts the path of the next child before a message; returns code. */
int state_at_path(struct pawl_state *s, int code, struct pawl_error *err);

/* state_tensors.c. Adds a checked row named after the next child; copies its arrays. */
int state_add_row(struct pawl_state *s, struct state_tensor *row, size_t *ret, struct pawl_error *err);
/* The checks of pawl_state_add_tensor that need only the tensor. *ret: the row, its arrays still
 * borrowed. */
int state_check_tensor(const struct pawl_tensor *t, struct state_tensor *ret, struct pawl_error *err);

#endif
