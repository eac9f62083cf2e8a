/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state_rename: moves leaves of a decoded state to other paths. Its nodes and its tensors' indices
 * stay. The leaves to move are taken out first, so that two may change places. Then each is put at
 * its new path, below dicts that are made as needed.
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
}

/* ---- taking out */

static bool
is_leaf(const struct pawl_node *node)
{
	const struct pawl_node *own = state_is_transparent(node) ? node->first : node;

	return own && !own->first && !state_is_ranks(own->type);
}

/* 1 = the leaf at r->path was put on the list, 0 = it stays. */
static int
take_leaf(struct renamer *r, const struct pawl_node *parent, struct pawl_node *node)
{
	TRY(buf_check(&r->path, "path", r->err));
	r->to.len = 0;
	r->fn(r->arg, buf_str(&r->path), &r->to);
	TRY(buf_check(&r->to, "path", r->err));
	if (strcmp(buf_str(&r->to), buf_str(&r->path)) == 0)
		return 0;
	if (!state_is_dict(parent->type))
		return err_set(r->err, PAWL_EUSAGE, "rename: '%.200s': an element of a list or tuple keeps its place",
		               buf_str(&r->path));
	if (!array_reserve(r->moved, r->cap, r->n + 1))
		return err_nomem(r->err, "rename");
	r->moved[r->n++] = (struct moved){node, mem_strdup(buf_str(&r->path)), mem_strdup(buf_str(&r->to))};
	return r->moved[r->n - 1].from && r->moved[r->n - 1].to ? 1 : err_nomem(r->err, "rename");
}

static void
unlink_child(struct pawl_node *parent, struct pawl_node *before, struct pawl_node *child)
{
	if (before)
		before->next = child->next;
	else
		parent->first = child->next;
	if (parent->last == child)
		parent->last = before;
	parent->count--;
}

/* Depth is limited by the decoder of states. A dict of which nothing is left goes, too. */
static int
take_below(struct renamer *r, struct pawl_node *parent)
{
	struct pawl_node *before = NULL, *next;
	const size_t len = r->path.len;
	size_t index = 0;

	for (struct pawl_node *child = parent->first; child; child = next) {
		int rc = 0;

		next = child->next;
		buf_puts(&r->path, len > 0 ? "/" : "");
		state_put_component(&r->path, parent, child, index++);
		if (is_leaf(child)) {
			rc = take_leaf(r, parent, child);
		} else if (!state_is_ranks(child->type)) {
			TRY(take_below(r, child));
			rc = !child->first && state_is_dict(parent->type);
		}
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

static int
append(struct renamer *r, struct pawl_node *parent, struct pawl_node *node, const char *component, size_t len)
{
	struct state_child *child = (struct state_child *)node; /* it is in a dict */
	char *text = bump_alloc(&r->state->memory, len + 1);
	size_t n = 0;

	if (!text || table_reserve(&r->state->builder->children, STATE_SMALL_DICT + 1) < 0)
		return err_nomem(r->err, "rename");
	if (!state_unescape(component, len, text, &n))
		return err_set(r->err, PAWL_EUSAGE, "rename: '%.*s' cannot be a key", (int)(len < 200 ? len : 200),
		               component);
	text[n] = '\0';
	child->parent = parent;
	child->key = (struct pawl_scalar){.type = PAWL_STR, .ptr = text, .len = n};
	node->key = &child->key;
	node->next = NULL;
	state_append_child(parent, node);
	builder_index_child(r->state->builder, parent);
	return 0;
}

static int
make_dict(struct renamer *r, struct pawl_node *parent, const char *component, size_t len, struct pawl_node **ret)
{
	struct state_child *child = bump_alloc(&r->state->memory, sizeof(*child));

	if (!child)
		return err_nomem(r->err, "rename");
	*child = (struct state_child){.node = {.type = PAWL_DICT, .tensor = SIZE_MAX, .kind = ""}};
	*ret = &child->node;
	return append(r, parent, *ret, component, len);
}

static int
put_leaf(struct renamer *r, const struct moved *m)
{
	struct pawl_node *at = r->state->root, *child;

	for (const char *p = m->to;; p++) {
		size_t len = strcspn(p, "/");

		if (!state_is_dict(at->type))
			return err_set(r->err, PAWL_EUSAGE,
			               "rename: '%.200s' to '%.200s': a list, a tuple or a value is in "
			               "the way",
			               m->from, m->to);
		child = (struct pawl_node *)state_child_at(r->state, at, p, len); /* the state is ours */
		if (p[len] == '\0' && child)
			return err_set(r->err, PAWL_EEXISTS, "rename: '%.200s' to '%.200s': that path exists", m->from,
			               m->to);
		if (p[len] == '\0')
			return append(r, at, m->node, p, len);
		if (!child)
			TRY(make_dict(r, at, p, len, &child));
		at = child;
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
	for (size_t i = 0; i < r.n; i++)
		TRY(put_leaf(&r, &r.moved[i]));
	return 0;
}
