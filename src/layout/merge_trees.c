/* SPDX-License-Identifier: Apache-2.0 */
/*
 * merge_trees: see merge_trees.h.
 *
 * All trees are walked in parallel. A frame holds the node at the same path for each different
 * tree, or NULL where that rank has none. Depth is bounded by the builder.
 */
#include "layout/merge_trees.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "layout/merge_pieces.h"
#include "state/state_build.h"

struct merger {
	struct pawl_state **trees; /* the different ones; tree 0 is rank 0's */
	uint32_t *first_rank;      /* of each tree */
	size_t n_trees;
	size_t *tree_of; /* per rank */
	uint32_t world;
	struct pawl_state *out;
	struct pawl_error *err;
};

typedef const struct pawl_node *const nodes; /* n_trees of them */

static int merge_nodes(struct merger *g, nodes *at);

static size_t
find_first(const struct merger *g, nodes *at)
{
	size_t i = 0;

	while (i < g->n_trees && !at[i])
		i++;
	return i;
}

/* An error at the path of the child that is added next. */
static int
report_difference(struct merger *g, size_t a, size_t b, const char *was, const char *is)
{
	err_set(g->err, PAWL_EMISMATCH, "rank %u has %s, rank %u %s", g->first_rank[a], was, g->first_rank[b], is);
	return state_at_path(g->out, PAWL_EMISMATCH, g->err);
}

/* "an int", "a tensor F32 [3]", "a long str", "a list of kind 'deque:8'" */
static void
put_node(const struct pawl_state *s, const struct pawl_node *node, struct buf *out)
{
	const char *type = state_type_name(node->type);

	if (node->type < PAWL_TENSOR && node->tensor != SIZE_MAX)
		buf_printf(out, "a long %s", type);
	else if (node->type == PAWL_NONE)
		buf_puts(out, type);
	else
		buf_printf(out, "%s%s", state_article(node->type), type);
	if (node->type == PAWL_TENSOR && node->tensor != SIZE_MAX) {
		const struct pawl_tensor_info *info = &s->tensors[node->tensor].info;

		if (!info->dtype) /* a tree alone (merge_texts) knows only the name */
			return;
		buf_putc(out, ' ');
		merge_put_shape(out, info->dtype, info->ndim, info->shape);
	} else if (*node->kind) {
		buf_printf(out, " of kind '%s'", node->kind);
	}
}

static int
differ_in_kind(struct merger *g, nodes *at, size_t a, size_t b)
{
	PAWL_CLEAN(buf_clear) struct buf was = {0}, is = {0};

	put_node(g->trees[a], at[a], &was);
	put_node(g->trees[b], at[b], &is);
	TRY(buf_check(&was, "save", g->err));
	TRY(buf_check(&is, "save", g->err));
	return report_difference(g, a, b, buf_str(&was), buf_str(&is));
}

/* ---- leaves */

static bool
same_scalar(const struct pawl_scalar *a, const struct pawl_scalar *b)
{
	return a->type == b->type && a->i == b->i && memcmp(&a->f, &b->f, sizeof(a->f)) == 0 && a->len == b->len &&
	       (!a->len || (a->ptr && b->ptr && memcmp(a->ptr, b->ptr, a->len) == 0));
}

static const char *
name_at(const struct pawl_state *s, const struct pawl_node *node)
{
	return node->tensor != SIZE_MAX ? s->tensors[node->tensor].info.name : NULL;
}

static int
add_leaf(struct merger *g, size_t tree, const struct pawl_node *node)
{
	const char *name = name_at(g->trees[tree], node);

	if (name)
		return state_add_named(g->out, node->type, name, node->kind, g->err);
	TRY(pawl_state_kind(g->out, node->kind, g->err));
	return pawl_state_add(g->out, &node->scalar, g->err);
}

/* Tensors, and long texts: they must have the same name, which is that of their first leaf. */
static int
merge_named(struct merger *g, nodes *at, size_t first)
{
	const char *name = name_at(g->trees[first], at[first]);

	for (size_t i = first + 1; i < g->n_trees; i++) {
		if (at[i] && strcmp(name_at(g->trees[i], at[i]), name) != 0)
			return report_difference(g, first, i, "a tensor",
			                         "the same memory as another tensor of its own");
	}
	return add_leaf(g, first, at[first]);
}

static int
merge_scalars(struct merger *g, nodes *at, size_t first)
{
	const struct pawl_scalar none = {.type = PAWL_NONE};
	bool is_same = true;

	for (size_t i = first + 1; i < g->n_trees; i++)
		is_same = is_same && (!at[i] || (same_scalar(&at[i]->scalar, &at[first]->scalar) &&
		                                 strcmp(at[i]->kind, at[first]->kind) == 0));
	if (is_same)
		return add_leaf(g, first, at[first]);
	TRY(pawl_state_begin(g->out, PAWL_DIFFERS, g->err));
	for (uint32_t r = 0; r < g->world; r++) {
		const struct pawl_node *node = at[g->tree_of[r]];

		TRY(pawl_state_kind(g->out, node ? node->kind : "", g->err));
		TRY(pawl_state_add(g->out, node ? &node->scalar : &none, g->err));
	}
	return pawl_state_end(g->out, g->err);
}

/* ---- values per rank: each belongs to one tree */

static int
copy_node(struct merger *g, size_t tree, const struct pawl_node *node)
{
	if (node->type < PAWL_DICT)
		return add_leaf(g, tree, node);
	TRY(pawl_state_kind(g->out, node->kind, g->err));
	TRY(pawl_state_begin(g->out, node->type, g->err));
	for (const struct pawl_node *child = node->first; child; child = child->next) {
		if (child->key)
			TRY(pawl_state_key(g->out, child->key, g->err));
		TRY(copy_node(g, tree, child));
	}
	return pawl_state_end(g->out, g->err);
}

static int
merge_per_rank(struct merger *g, nodes *at)
{
	const struct pawl_scalar none = {.type = PAWL_NONE};

	TRY(pawl_state_kind(g->out, at[find_first(g, at)]->kind, g->err));
	TRY(pawl_state_begin(g->out, PAWL_PER_RANK, g->err));
	for (uint32_t r = 0; r < g->world; r++) {
		const struct pawl_node *node = at[g->tree_of[r]];

		TRY(node && node->first ? copy_node(g, g->tree_of[r], node->first)
		                        : pawl_state_add(g->out, &none, g->err));
	}
	return pawl_state_end(g->out, g->err);
}

/* ---- containers */

static int
merge_list(struct merger *g, nodes *at, size_t first)
{
	PAWL_FREE const struct pawl_node **children = mem_zalloc(g->n_trees, sizeof(struct pawl_node *));

	if (!children)
		return err_nomem(g->err, "save");
	for (size_t i = 0; i < g->n_trees; i++) {
		if (at[i] && at[i]->count != at[first]->count) {
			char was[40], is[40];

			snprintf(was, sizeof(was), "%zu elements", at[first]->count);
			snprintf(is, sizeof(is), "%zu", at[i]->count);
			return report_difference(g, first, i, was, is);
		}
		children[i] = at[i] ? at[i]->first : NULL;
	}
	TRY(pawl_state_kind(g->out, at[first]->kind, g->err));
	TRY(pawl_state_begin(g->out, at[first]->type, g->err));
	for (size_t n = at[first]->count; n > 0; n--) {
		TRY(merge_nodes(g, children));
		for (size_t i = 0; i < g->n_trees; i++)
			children[i] = children[i] ? children[i]->next : NULL;
	}
	return pawl_state_end(g->out, g->err);
}

/* One key of a dict, from the first tree that has it. */
static int
merge_key(struct merger *g, nodes *at, size_t owner, const struct pawl_node *child, const struct pawl_node **children)
{
	for (size_t i = 0; i < g->n_trees; i++) {
		children[i] = i == owner ? child : at[i] ? state_child(g->trees[i], at[i], child->key) : NULL;
		if (i < owner && children[i])
			return 0; /* done with an earlier tree that has it */
	}
	TRY(pawl_state_key(g->out, child->key, g->err));
	return merge_nodes(g, children);
}

static int
merge_dict(struct merger *g, nodes *at, size_t first)
{
	PAWL_FREE const struct pawl_node **children = mem_zalloc(g->n_trees, sizeof(struct pawl_node *));
	const struct pawl_node *made;

	if (!children)
		return err_nomem(g->err, "save");
	TRY(pawl_state_kind(g->out, at[first]->kind, g->err));
	TRY(pawl_state_begin(g->out, at[first]->type, g->err));
	made = g->out->builder->stack[g->out->builder->depth - 1].node;
	for (size_t i = first; i < g->n_trees; i++) {
		/* Skip a tree whose keys were all merged already. */
		if (i > first && at[i] && at[i]->count == at[first]->count && made->count == at[first]->count) {
			const struct pawl_node *child = at[i]->first;

			while (child && state_child(g->out, made, child->key))
				child = child->next;
			if (!child)
				continue;
		}
		for (const struct pawl_node *child = at[i] ? at[i]->first : NULL; child; child = child->next)
			TRY(merge_key(g, at, i, child, children));
	}
	return pawl_state_end(g->out, g->err);
}

/* A short plain value, of which every rank's is kept. */
static bool
is_kept(const struct pawl_node *node)
{
	return node->type < PAWL_TENSOR && node->tensor == SIZE_MAX;
}

/* Of a container or a long value only one kind is kept. The kind of a tensor is that of its first
 * leaf: it only says which program held it. */
static bool
is_alike(const struct pawl_node *a, const struct pawl_node *b)
{
	if (is_kept(a) || is_kept(b))
		return is_kept(a) == is_kept(b);
	return a->type == b->type && (a->type == PAWL_TENSOR || strcmp(a->kind, b->kind) == 0);
}

static int
merge_nodes(struct merger *g, nodes *at)
{
	size_t first = find_first(g, at);
	const struct pawl_node *node = at[first];

	for (size_t i = first + 1; i < g->n_trees; i++)
		if (at[i] && !is_alike(node, at[i]))
			return differ_in_kind(g, at, first, i);
	if (is_kept(node))
		return merge_scalars(g, at, first);
	if (node->tensor != SIZE_MAX)
		return merge_named(g, at, first);
	if (node->type == PAWL_PER_RANK)
		return merge_per_rank(g, at);
	return state_is_dict(node->type) ? merge_dict(g, at, first) : merge_list(g, at, first);
}

/* ---- all */

int
merge_trees(struct manifest *const *parts, uint32_t world, struct pawl_state **ret, struct pawl_error *err)
{
	PAWL_CLEAN(pawl_state_free_clean) struct pawl_state *out = NULL;
	PAWL_FREE struct pawl_state **trees = mem_zalloc(world, sizeof(struct pawl_state *));
	PAWL_FREE uint32_t *first_rank = mem_zalloc(world, sizeof(*first_rank));
	PAWL_FREE size_t *tree_of = mem_zalloc(world, sizeof(*tree_of));
	PAWL_FREE const struct pawl_node **roots = mem_zalloc(world, sizeof(struct pawl_node *));
	struct merger g = {.trees = trees, .first_rank = first_rank, .tree_of = tree_of, .world = world, .err = err};

	if (!trees || !first_rank || !tree_of || !roots)
		return err_nomem(err, "save");
	for (uint32_t r = 0; r < world; r++) {
		if (r > 0 && !parts[r])
			continue; /* tree 0, as zeroed */
		trees[g.n_trees] = parts[r]->state;
		roots[g.n_trees] = parts[r]->state->root;
		first_rank[g.n_trees] = r;
		tree_of[r] = g.n_trees++;
	}
	TRY(pawl_state_new(&out, err));
	out->is_of_all = true;
	g.out = out;
	TRY(merge_nodes(&g, roots));
	*ret = steal(&out);
	return 0;
}

#define MAX_JSON_DEPTH (4 * 256 + 8) /* the greatest depth of a manifest's state */

static int
decode_text(const struct merge_text *text, struct manifest *ret, struct pawl_error *err)
{
	const struct json_limits limits = {
		.max_bytes = MANIFEST_MAX_BYTES, .max_depth = MAX_JSON_DEPTH, .max_string = MANIFEST_MAX_BYTES};
	PAWL_CLEAN(bump_clear) struct bump scratch = {0};
	struct json *root;

	TRY(json_parse(text->what, text->json.ptr, text->json.len, &limits, &scratch, &root, err));
	return state_decode(text->what, root, &ret->state, err);
}

int
merge_texts(const struct merge_text *texts, uint32_t world, struct pawl_state **ret, struct pawl_error *err)
{
	PAWL_FREE struct manifest *all = mem_zalloc(world, sizeof(*all));
	PAWL_FREE struct manifest **parts = mem_zalloc(world, sizeof(struct manifest *));
	int rc = 0;

	if (!all || !parts)
		return err_nomem(err, "save");
	for (uint32_t r = 0; r < world && rc == 0; r++) {
		bool is_first = r > 0 && texts[r].json.len == texts[0].json.len &&
		                memcmp(texts[r].json.ptr, texts[0].json.ptr, texts[0].json.len) == 0;

		if (is_first)
			continue; /* the same tree as rank 0's */
		parts[r] = &all[r];
		rc = decode_text(&texts[r], &all[r], err);
	}
	if (rc == 0)
		rc = merge_trees(parts, world, ret, err);
	for (uint32_t r = 0; r < world; r++)
		pawl_state_free(all[r].state);
	return rc;
}
