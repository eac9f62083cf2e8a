/* SPDX-License-Identifier: Apache-2.0 */
/* reshard_tree: see reshard_tree.h. */
#include "jobs/convert/reshard_tree.h"

#include "base/err.h"
#include "base/mem.h"
#include "state/state_build.h"

#define NAMED_VALUES 4

static const struct pawl_node *
nth_child(const struct pawl_node *node, size_t n)
{
	const struct pawl_node *child = node->first;

	for (; n > 0 && child->next; n--)
		child = child->next;
	return child;
}

struct view {
	const struct pawl_state *from;
	struct pawl_state *out;
	size_t rank;
	struct pawl_error *err;
};

static int copy_node(const struct view *v, const struct pawl_node *node);

static int
copy_children(const struct view *v, const struct pawl_node *node)
{
	TRY(pawl_state_kind(v->out, node->kind, v->err));
	TRY(pawl_state_begin(v->out, node->type, v->err));
	for (const struct pawl_node *child = node->first; child; child = child->next) {
		if (child->key && child->type == PAWL_PER_RANK && v->rank == SIZE_MAX)
			continue;
		if (child->key)
			TRY(pawl_state_key(v->out, child->key, v->err));
		TRY(copy_node(v, child));
	}
	return pawl_state_end(v->out, v->err);
}

static int
copy_own(const struct view *v, const struct pawl_node *node)
{
	const struct pawl_scalar none = {.type = PAWL_NONE};

	if (v->rank == SIZE_MAX)
		return pawl_state_add(v->out, &none, v->err);
	TRY(pawl_state_begin(v->out, PAWL_PER_RANK, v->err));
	TRY(copy_node(v, nth_child(node, v->rank)));
	return pawl_state_end(v->out, v->err);
}

static int
copy_node(const struct view *v, const struct pawl_node *node)
{
	if (node->type == PAWL_DIFFERS)
		return copy_node(v, nth_child(node, v->rank == SIZE_MAX ? 0 : v->rank));
	if (node->type == PAWL_PER_RANK)
		return copy_own(v, node);
	if (node->tensor != SIZE_MAX)
		return state_add_named(v->out, node->type, v->from->tensors[node->tensor].info.name, node->kind,
		                       v->err);
	if (node->type < PAWL_TENSOR) {
		TRY(pawl_state_kind(v->out, node->kind, v->err));
		return pawl_state_add(v->out, &node->scalar, v->err);
	}
	return copy_children(v, node);
}

int
reshard_tree_view(const struct pawl_state *from, size_t rank, uint32_t world, struct buf *out, struct pawl_error *err)
{
	PAWL_CLEAN(pawl_state_free_clean) struct pawl_state *state = NULL;

	if (!from->has_ranks || !from->root)
		return state_encode(from, out, err);
	TRY(pawl_state_new(&state, err));
	state->is_of_all = true;
	if (rank != SIZE_MAX)
		TRY(pawl_state_set_rank(state, (uint32_t)rank, world, err));
	TRY(copy_node(&(struct view){from, state, rank, err}, from->root));
	return state_encode(state, out, err);
}

struct owners {
	bool same_world;
	uint32_t *owner;
	struct buf path, *lost;
	size_t n_lost;
};

static void
name_lost(struct owners *o)
{
	o->n_lost++;
	if (o->n_lost <= NAMED_VALUES) {
		buf_puts(o->lost, o->n_lost > 1 ? ", " : "");
		buf_put(o->lost, o->path.ptr, o->path.len < 200 ? o->path.len : 200);
		buf_puts(o->lost, o->path.len ? "" : "the complete state");
	} else if (o->n_lost == NAMED_VALUES + 1) {
		buf_puts(o->lost, ", ...");
	}
}

static void
find_owners(struct owners *o, const struct pawl_node *node, uint32_t owner)
{
	size_t i = 0, len = o->path.len;

	if (node->tensor != SIZE_MAX && o->owner[node->tensor] != RESHARD_TREE_OF_ALL)
		o->owner[node->tensor] = owner;
	if (node->type == PAWL_PER_RANK && !o->same_world) {
		name_lost(o);
		owner = RESHARD_TREE_OF_NOBODY;
	}
	for (const struct pawl_node *child = node->first; child; child = child->next, i++) {
		if (!state_is_ranks(node->type)) {
			if (len)
				buf_putc(&o->path, '/');
			state_put_component(&o->path, node, child, i);
		}
		find_owners(o, child, node->type == PAWL_PER_RANK && o->same_world ? (uint32_t)i : owner);
		if (o->path.len > len)
			o->path.len = len;
	}
}

int
reshard_tree_owners(const struct pawl_state *from, bool same_world, uint32_t *owner, struct buf *lost,
                    struct pawl_error *err)
{
	struct owners o = {.same_world = same_world, .owner = owner, .lost = lost};

	for (size_t i = 0; i < from->n_tensors; i++)
		owner[i] = RESHARD_TREE_OF_NOBODY;
	if (from->root)
		find_owners(&o, from->root, RESHARD_TREE_OF_ALL);
	bool lacking = o.path.failed || lost->failed;

	buf_clear(&o.path);
	return lacking ? err_nomem(err, "reshard") : 0;
}

/* Cut between characters, to the longest parts that a manifest holds. */
static int
add_parts(struct pawl_state *out, const struct pawl_scalar *text, struct pawl_error *err)
{
	size_t at = 0;

	TRY(pawl_state_begin(out, PAWL_LIST, err));
	while (at < text->len) {
		size_t n = text->len - at < STATE_LONG_BYTES ? text->len - at : STATE_LONG_BYTES;

		while (at + n < text->len && ((unsigned char)text->ptr[at + n] & 0xc0) == 0x80)
			n--;
		TRY(pawl_state_add(out, &(struct pawl_scalar){.type = PAWL_STR, .ptr = text->ptr + at, .len = n}, err));
		at += n;
	}
	return pawl_state_end(out, err);
}

int
reshard_tree_metadata(const struct pawl_state *from, struct pawl_state **ret, struct pawl_error *err)
{
	PAWL_CLEAN(pawl_state_free_clean) struct pawl_state *out = NULL;

	TRY(pawl_state_new(&out, err));
	TRY(pawl_state_begin(out, PAWL_DICT, err));
	for (const struct pawl_node *child = from->root->first; child; child = child->next) {
		TRY(pawl_state_key(out, child->key, err));
		TRY(child->tensor != SIZE_MAX ? add_parts(out, &child->scalar, err)
		                              : pawl_state_add(out, &child->scalar, err));
	}
	TRY(pawl_state_end(out, err));
	*ret = steal(&out);
	return 0;
}
