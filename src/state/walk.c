/* SPDX-License-Identifier: Apache-2.0 */
/* walk: see walk.h. */
#include "state/walk.h"

#include "base/err.h"
#include "base/text.h"

struct walker {
	walk_fn *fn;
	void *arg;
	struct buf path, exact;
	bool with_containers;
	bool in_ranks;
	size_t ranks_len, ranks_exact_len;
};

static void
walker_clear(struct walker *w)
{
	buf_clear(&w->path);
	buf_clear(&w->exact);
}

static void
put_child(struct walker *w, const struct pawl_node *parent, const struct pawl_node *child, size_t index)
{
	if (state_is_transparent(parent))
		return;
	if (w->exact.len > 0) /* the parent is not the root */
		buf_putc(&w->path, '/');
	buf_putc(&w->exact, '/');
	state_put_component(&w->path, parent, child, index);
	state_put_component(&w->exact, parent, child, index);
	/* '%' inside a key is escaped, followed by two hex digits, so this cannot be part of
	 * one. */
	if (child->key && child->key->type != PAWL_STR)
		buf_printf(&w->exact, "%%t%d", child->key->type);
}

static int
visit_node(struct walker *w, const struct pawl_node *node, struct pawl_error *err)
{
	struct walk_leaf leaf = {.path = buf_str(&w->path),
	                         .exact = buf_str(&w->exact),
	                         .node = node,
	                         .in_ranks = w->in_ranks,
	                         .ranks_len = w->ranks_len,
	                         .ranks_exact_len = w->ranks_exact_len};

	TRY(buf_check(&w->path, "path", err));
	TRY(buf_check(&w->exact, "path", err));
	return w->fn(w->arg, &leaf, err);
}

/* Depth is limited by the builder and the decoder of states. */
static int
walk_node(struct walker *w, const struct pawl_node *node, struct pawl_error *err)
{
	if (!node->first)
		return visit_node(w, node, err);
	if (w->with_containers && !state_is_transparent(node))
		TRY(visit_node(w, node, err));
	size_t index = 0, path_len = w->path.len, exact_len = w->exact.len;
	bool is_ranks = node->type == PAWL_PER_RANK && !pawl_node_own(node);
	if (is_ranks) {
		w->in_ranks = true;
		w->ranks_len = path_len;
		w->ranks_exact_len = exact_len;
	}
	for (const struct pawl_node *child = node->first; child; child = child->next) {
		put_child(w, node, child, index++);
		TRY(walk_node(w, child, err));
		w->path.len = path_len;
		w->exact.len = exact_len;
	}
	if (is_ranks) /* they are not nested */
		w->in_ranks = false;
	return 0;
}

int
walk_leaves(const struct pawl_node *root, walk_fn *fn, void *arg, struct pawl_error *err)
{
	PAWL_CLEAN(walker_clear) struct walker w = {.fn = fn, .arg = arg};
	return root ? walk_node(&w, root, err) : 0;
}

int
walk_nodes(const struct pawl_node *root, walk_fn *fn, void *arg, struct pawl_error *err)
{
	PAWL_CLEAN(walker_clear) struct walker w = {.fn = fn, .arg = arg, .with_containers = true};
	return root ? walk_node(&w, root, err) : 0;
}

bool
walk_included(const char *const *globs, size_t n_globs, const char *path)
{
	for (size_t i = 0; i < n_globs; i++) {
		if (text_glob(globs[i], path))
			return true;
	}
	return n_globs == 0;
}

int
pawl_path_matches(const char *glob, const char *path)
{
	return glob && path && text_glob(glob, path);
}
