/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_extra: see convert.h. What get_extra_state() of a module returned. load_state_dict takes
 * it back as it was, so it is written as one value, with the tensors in it, which are not cast.
 * Only formats with a tree can hold one that is not a tensor.
 */
#include <string.h>

#include "base/err.h"
#include "jobs/convert/convert.h"
#include "state/state.h"
#include "state/state_build.h"
#include "state/walk.h"

/* "_extra_state", "layer1._extra_state" */
static bool
is_extra_name(const char *name, size_t len)
{
	static const char end[] = "_extra_state";
	const size_t n = sizeof end - 1;

	return len >= n && memcmp(name + len - n, end, n) == 0 && (len == n || name[len - n - 1] == '.');
}

bool
convert_is_extra(const struct pawl_node *child)
{
	return child->key->type == PAWL_STR && is_extra_name(child->key->ptr, child->key->len);
}

bool
convert_is_extra_path(const char *plain)
{
	const char *slash = strrchr(plain, '/'), *name = slash ? slash + 1 : plain;

	return is_extra_name(name, strlen(name));
}

bool
convert_in_extra(const struct convert_job *c, const struct walk_leaf *leaf)
{
	if (!c->model || strncmp(leaf->path, c->model_prefix, strlen(c->model_prefix)) != 0)
		return false;
	const char *key = leaf->path + strlen(c->model_prefix);

	return is_extra_name(key, strcspn(key, "/"));
}

struct looking {
	struct convert_job *c;
	const char *name; /* of the extra state */
	bool has_texts;
};

static int
refuse_value(const struct looking *l, const char *what, const char *kind, struct pawl_error *err)
{
	return err_set(err, PAWL_EUNSUPPORTED,
	               "%s: the model's '%.200s' has %s%s, which a .pt file cannot hold; --exclude '*_extra_state*' "
	               "leaves it out",
	               l->c->r->info.name, l->name, what, kind);
}

static int
visit_node(void *arg, const struct walk_leaf *at, struct pawl_error *err)
{
	struct looking *l = arg;
	struct convert_job *c = l->c;
	const struct pawl_node *node = at->node;

	if (state_is_ranks(node->type))
		return refuse_value(l, "values of several ranks", "", err);
	if (node->type != PAWL_TENSOR && node->kind[0])
		return refuse_value(l, "a value of the kind ", node->kind, err);
	if (node->tensor == SIZE_MAX || (node->type == PAWL_TENSOR && c->kept[node->tensor]))
		return 0;
	const size_t taken = c->taken[node->tensor];
	const struct manifest_tensor *t = &c->r->manifest->tensors[node->tensor];

	if (node->type != PAWL_TENSOR) {
		l->has_texts = true;
		if (t->nbytes <= STATE_LONG_BYTES) /* it has no row in the file's state */
			return 0;
	}
	if (taken && c->items[taken - 1].dtype == t->dtype) { /* tied to one of the model's own */
		c->kept[node->tensor] = taken;
		return 0;
	}
	c->items[c->n_items++] =
		(struct convert_item){.tensor = node->tensor, .name = l->name, .dtype = t->dtype, .nbytes = t->nbytes};
	c->kept[node->tensor] = c->n_items;
	return 0;
}

int
convert_add_extras(struct convert_job *c, struct pawl_error *err)
{
	struct looking l = {.c = c};

	for (const struct pawl_node *child = c->model->first; child; child = child->next) {
		PAWL_CLEAN(buf_clear) struct buf path = {0}, plain = {0};

		if (!convert_is_extra(child))
			continue;
		TRY(convert_child_path(c->model_prefix, c->model, child, &path, &plain, err));
		if (!convert_wants(c, buf_str(&path), buf_str(&plain)))
			continue;
		TRY(convert_make_name(c, buf_str(&plain), &l.name, err));
		TRY(convert_take_name(c, l.name, buf_str(&plain), err));
		TRY(walk_nodes(child, visit_node, &l, err));
		c->extras[c->n_extras++] = (struct convert_extra){l.name, child};
	}
	return l.has_texts ? restore_read_own(c->r, err) : 0;
}
