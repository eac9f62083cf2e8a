/* SPDX-License-Identifier: Apache-2.0 */
/* composer_filter: removes branches from a state. Pure. R97-R100. */
#include <string.h>

#include "base/err.h"
#include "base/text.h"
#include "jobs/composer/composer.h"
#include "state/state.h"

struct filter {
	const struct pawl_state *from;
	struct pawl_state *to;
	const char *const *ignore;
	size_t n;
	const char *const *only; /* NULL = everything */
	size_t n_only;
	struct buf path;
};

/* True if one path is an ancestor of the other, or they are the same. */
static bool
is_on_the_way(const char *kept, const char *path)
{
	size_t k = strlen(kept), n = strlen(path), least = k < n ? k : n;
	if (strncmp(kept, path, least) != 0)
		return false;
	return k == n || (k < n ? path[k] : kept[n]) == '/';
}

static bool
is_left_out(const struct filter *f, const char *path)
{
	bool wanted = !f->only;
	for (size_t i = 0; i < f->n_only; i++)
		wanted |= is_on_the_way(f->only[i], path);
	for (size_t i = 0; i < f->n; i++)
		if (text_glob(f->ignore[i], path))
			return true;
	return !wanted;
}

static int add_node(struct filter *f, const struct pawl_node *node, struct pawl_error *err);

static int
add_children(struct filter *f, const struct pawl_node *node, struct pawl_error *err)
{
	size_t len = f->path.len, index = 0;
	for (const struct pawl_node *child = node->first; child; child = child->next, index++) {
		if (!state_is_transparent(node)) {
			if (len > 0)
				buf_putc(&f->path, '/');
			state_put_component(&f->path, node, child, index);
		}
		TRY(buf_check(&f->path, "path", err));
		if (!is_left_out(f, buf_str(&f->path))) {
			if (child->key)
				TRY(pawl_state_key(f->to, child->key, err));
			TRY(add_node(f, child, err));
		}
		f->path.len = len;
	}
	return 0;
}

static int
add_tensor(struct filter *f, const struct pawl_node *node, struct pawl_error *err)
{
	const struct state_tensor *row = &f->from->tensors[node->tensor];
	struct pawl_tensor t = row->src;
	t.kind = node->kind;
	return pawl_state_add_tensor(f->to, &t, err);
}

/* Depth is limited by the builder of states. */
static int
add_node(struct filter *f, const struct pawl_node *node, struct pawl_error *err)
{
	switch (node->type) {
	case PAWL_DICT:
	case PAWL_ODICT:
	case PAWL_LIST:
	case PAWL_TUPLE:
	case PAWL_PER_RANK:
		TRY(pawl_state_kind(f->to, node->kind, err));
		TRY(pawl_state_begin(f->to, node->type, err));
		TRY(add_children(f, node, err));
		return pawl_state_end(f->to, err);
	case PAWL_TENSOR:
		return add_tensor(f, node, err);
	default:
		TRY(pawl_state_kind(f->to, node->kind, err));
		return pawl_state_add(f->to, &node->scalar, err);
	}
}

int
composer_filter(const struct pawl_state *state, const char *const *ignore, size_t n, bool weights_only,
                struct pawl_state **ret, struct pawl_error *err)
{
	static const char *const composer[] = {"state/model", "state/integrations", "state/metadata"};
	static const char *const plain[] = {"model"};
	struct filter f = {.from = state, .ignore = ignore, .n = n};
	TRY(state_check_complete(state, err));
	if (weights_only && pawl_state_at(state, "state/model")) {
		f.only = composer;
		f.n_only = 3;
	} else if (weights_only && pawl_state_at(state, "model")) {
		f.only = plain;
		f.n_only = 1;
	} else if (weights_only) {
		return err_set(err, PAWL_EUSAGE,
		               "weights_only: expected the weights at \"model\" or "
		               "\"state/model\", found neither");
	}
	TRY(pawl_state_new(&f.to, err));
	int rc = pawl_state_set_rank(f.to, state->rank, state->world ? state->world : 1, err);
	if (rc == 0)
		rc = add_node(&f, state->root, err);
	buf_clear(&f.path);
	if (rc < 0) {
		pawl_state_free(f.to);
		return rc;
	}
	*ret = f.to;
	return 0;
}
