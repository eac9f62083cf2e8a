/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state_rename: moves parts of a decoded state to other paths. Its nodes and its tensors' indices
 * stay. A container whose leaves all go to one other place, with the same paths below it, moves as
 * it is: with keys, types and kinds. Other leaves move alone. The parts to move are taken out
 * first, so that two may change places. Then each is put at its new path, below dicts that are made
 * as needed.
 */
#include "state/state_rename.h"

#include <string.h>

#include "base/err.h"
#include "base/vec.h"
#include "state/state_build.h"

struct moved {
	struct pawl_node *node;
	char *from, *to;
};

struct renamer {
	struct pawl_state *state;
	state_rename_fn *fn;
	void *arg;
	struct buf path, to;
	struct buf target; /* of find_target */
	struct moved *moved;
	size_t n, cap;
	struct pawl_error *err;
};

static void
clean_renamer(struct renamer *r)
{
	for (size_t i = 0; i < r->n; i++) {
		mem_free(r->moved[i].from);
		mem_free(r->moved[i].to);
	}
	mem_free(r->moved);
	buf_clear(&r->path);
	buf_clear(&r->to);
	buf_clear(&r->target);
}

/* Paths do not show the values per rank of which this rank's own is left. */
static struct pawl_node *
own_node(struct pawl_node *node)
{
	return state_is_transparent(node) ? node->first : node;
}

static void
put_component(struct renamer *r, const struct pawl_node *parent, const struct pawl_node *child, size_t index)
{
	buf_puts(&r->path, r->path.len > 0 ? "/" : "");
	state_put_component(&r->path, parent, child, index);
}

/* ---- taking out */

/* Asks for the new path of the leaf at r->path. 1 = it is r->target and what the path has after its
 * first `len` bytes; the first leaf decides about r->target. */
static int
ask_leaf(struct renamer *r, size_t len)
{
	TRY(buf_check(&r->path, "path", r->err));
	r->to.len = 0;
	r->fn(r->arg, buf_str(&r->path), &r->to);
	TRY(buf_check(&r->to, "path", r->err));
	if (r->to.len == 0 && r->path.len == 0) /* the empty key stays */
		return 1;
	if (r->to.len == 0)
		return err_set(r->err, PAWL_EUSAGE, "rename: '%.200s': its new path is empty", buf_str(&r->path));

	const char *tail = buf_str(&r->path) + len, *to = buf_str(&r->to);
	const size_t n_tail = r->path.len - len;

	if (r->to.len <= n_tail || strcmp(to + r->to.len - n_tail, tail) != 0)
		return 0;
	if (r->target.len == 0)
		buf_put(&r->target, to, r->to.len - n_tail);
	TRY(buf_check(&r->target, "path", r->err));
	return r->target.len == r->to.len - n_tail && memcmp(buf_str(&r->target), to, r->target.len) == 0;
}

/* 1 = all leaves of the node go to one place, r->target, which may be where it is. `len`: of the
 * node's own path. */
static int
find_target(struct renamer *r, struct pawl_node *node, size_t len)
{
	const struct pawl_node *own = own_node(node);
	const size_t here = r->path.len;
	size_t index = 0;

	if (!own->first)
		return ask_leaf(r, len);
	for (struct pawl_node *child = own->first; child; child = child->next) {
		put_component(r, own, child, index++);

		const int rc = find_target(r, child, len);

		r->path.len = here;
		if (rc <= 0)
			return rc;
	}
	return 1;
}

static int
add_moved(struct renamer *r, struct pawl_node *node)
{
	if (!array_reserve(r->moved, r->cap, r->n + 1))
		return err_nomem(r->err, "rename");
	r->moved[r->n++] = (struct moved){node, mem_strdup(buf_str(&r->path)), mem_strdup(buf_str(&r->target))};
	return r->moved[r->n - 1].from && r->moved[r->n - 1].to ? 1 : err_nomem(r->err, "rename");
}

/* The parent is a dict. Without a parent of its own the child is no longer found by its key. */
static void
unlink_child(struct pawl_node *parent, struct pawl_node *before, struct pawl_node *child)
{
	((struct state_child *)child)->parent = NULL;
	if (before)
		before->next = child->next;
	else
		parent->first = child->next;
	if (parent->last == child)
		parent->last = before;
	parent->count--;
}

static int take_below(struct renamer *r, struct pawl_node *parent);

/* Takes what moves of the child at r->path. 1 = nothing of it is left: unlink it. Its depth is
 * limited by the decoder of states. */
static int
take_child(struct renamer *r, const struct pawl_node *parent, struct pawl_node *child)
{
	const bool is_leaf = !own_node(child)->first;

	r->target.len = 0;

	const int rc = find_target(r, child, r->path.len);

	TRY(rc);
	if (rc > 0 && strcmp(buf_str(&r->target), buf_str(&r->path)) == 0)
		return 0;
	if (rc > 0 && state_is_dict(parent->type))
		return add_moved(r, child);
	if (is_leaf)
		return err_set(r->err, PAWL_EUSAGE, "rename: '%.200s': an element of a list or tuple keeps its place",
		               buf_str(&r->path));
	if (state_is_ranks(child->type))
		return 0;
	TRY(take_below(r, child));
	return !child->first && state_is_dict(parent->type);
}

static int
take_below(struct renamer *r, struct pawl_node *parent)
{
	struct pawl_node *before = NULL, *next;
	const size_t len = r->path.len;
	size_t index = 0;

	for (struct pawl_node *child = parent->first; child; child = next) {
		next = child->next;
		put_component(r, parent, child, index++);

		const int rc = take_child(r, parent, child);

		TRY(rc);
		if (rc > 0)
			unlink_child(parent, before, child);
		else
			before = child;
		r->path.len = len;
	}
	return 0;
}

/* ---- putting in */

/* The node has been in a dict, and keeps its key. */
static int
append_child(struct renamer *r, struct pawl_node *parent, struct pawl_node *node)
{
	if (table_reserve(&r->state->builder->children, STATE_SMALL_DICT + 1) < 0)
		return err_nomem(r->err, "rename");
	((struct state_child *)node)->parent = parent;
	node->next = NULL;
	state_append_child(parent, node);
	state_index_child(r->state->builder, parent);
	return 0;
}

static int
append_node(struct renamer *r, struct pawl_node *parent, struct pawl_node *node, const char *component, size_t len)
{
	struct state_child *child = (struct state_child *)node; /* it is in a dict */
	char *text = bump_alloc(&r->state->memory, len + 1);
	size_t n = 0;

	if (!text)
		return err_nomem(r->err, "rename");
	if (!state_unescape(component, len, text, &n))
		return err_set(r->err, PAWL_EUSAGE, "rename: '%.*s' cannot be a key", (int)(len < 200 ? len : 200),
		               component);
	text[n] = '\0';
	child->key = (struct pawl_scalar){.type = PAWL_STR, .ptr = text, .len = n};
	node->key = &child->key;
	return append_child(r, parent, node);
}

static int
make_dict(struct renamer *r, struct pawl_node *parent, const char *component, size_t len, struct pawl_node **ret)
{
	struct state_child *child = bump_alloc(&r->state->memory, sizeof(*child));

	if (!child)
		return err_nomem(r->err, "rename");
	*child = (struct state_child){.node = {.type = PAWL_DICT, .tensor = SIZE_MAX, .kind = ""}};
	*ret = &child->node;
	return append_node(r, parent, *ret, component, len);
}

static int
report_taken(const struct renamer *r, const struct moved *m)
{
	return err_set(r->err, PAWL_EEXISTS, "rename: '%.200s' to '%.200s': that path exists", m->from, m->to);
}

/* Moves the children of a dict into another one. */
static int
merge_dicts(struct renamer *r, const struct moved *m, struct pawl_node *into, struct pawl_node *from)
{
	struct pawl_node *next;

	if (!state_is_dict(into->type) || !state_is_dict(from->type))
		return report_taken(r, m);
	for (struct pawl_node *child = from->first; child; child = next) {
		struct pawl_node *found = state_child(r->state, into, child->key);

		next = child->next;
		TRY(found ? merge_dicts(r, m, found, child) : append_child(r, into, child));
	}
	return 0;
}

static int
put_moved(struct renamer *r, const struct moved *m)
{
	struct pawl_node *at = r->state->root, *child;

	for (const char *p = m->to;; p++) {
		size_t len = strcspn(p, "/");

		child = (struct pawl_node *)state_child_at(r->state, at, p, len); /* the state is ours */
		if (p[len] == '\0' && child)
			return merge_dicts(r, m, child, m->node);
		if (!child && !state_is_dict(at->type))
			return err_set(r->err, PAWL_EUSAGE,
			               "rename: '%.200s' to '%.200s': a list, a tuple or a value is in "
			               "the way",
			               m->from, m->to);
		if (p[len] == '\0')
			return append_node(r, at, m->node, p, len);
		if (!child)
			TRY(make_dict(r, at, p, len, &child));
		at = own_node(child);
		p += len;
	}
}

int
state_rename(struct pawl_state *state, state_rename_fn *fn, void *arg, struct pawl_error *err)
{
	PAWL_CLEAN(clean_renamer) struct renamer r = {.state = state, .fn = fn, .arg = arg, .err = err};

	if (!state->root || !state_is_dict(state->root->type))
		return 0;
	TRY(take_below(&r, state->root));
	if (!state->root->first)
		state->root->kind = ""; /* nothing of it is left at its place */
	for (size_t i = 0; i < r.n; i++)
		TRY(put_moved(&r, &r.moved[i]));
	return 0;
}
