/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_pt: see convert.h. Writes one flat dict from names to tensors, like a module's
 * state_dict. Tied tensors share their storage. Extra states of the model come last. Pure.
 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "jobs/convert/convert.h"
#include "layout/file_plan.h"
#include "state/state.h"

static int
add_key(struct pawl_state *state, const char *name, struct pawl_error *err)
{
	return pawl_state_key(state, &(struct pawl_scalar){.type = PAWL_STR, .ptr = name, .len = strlen(name)}, err);
}

/* Tensors of the state are numbered as the items of the file. */
static int
add_tensor(struct pawl_state *state, size_t number, struct pawl_error *err)
{
	char text[24];

	snprintf(text, sizeof text, "%zu", number);
	return state_add_named(state, PAWL_TENSOR, text, "torch", err);
}

static int
add_value(const struct convert_job *c, struct pawl_state *state, const struct pawl_node *node, struct pawl_error *err)
{
	if (node->type == PAWL_TENSOR)
		return add_tensor(state, c->kept[node->tensor] - 1, err);
	if (node->type < PAWL_TENSOR)
		return pawl_state_add(state, &node->scalar, err);
	TRY(pawl_state_begin(state, node->type, err));
	for (const struct pawl_node *child = node->first; child; child = child->next) {
		if (child->key)
			TRY(pawl_state_key(state, child->key, err));
		TRY(add_value(c, state, child, err));
	}
	return pawl_state_end(state, err);
}

static int
make_state(const struct convert_job *c, struct pawl_state *state, struct pawl_error *err)
{
	TRY(pawl_state_begin(state, PAWL_DICT, err));
	for (size_t i = 0; i < c->n_plain; i++) {
		TRY(add_key(state, c->items[i].name, err));
		TRY(add_tensor(state, i, err));
	}
	for (size_t i = 0; i < c->n_ties; i++) {
		TRY(add_key(state, c->ties[i].name, err));
		TRY(add_tensor(state, c->ties[i].item, err));
	}
	for (size_t i = 0; i < c->n_extras; i++) {
		TRY(add_key(state, c->extras[i].name, err));
		TRY(add_value(c, state, c->extras[i].node, err));
	}
	return pawl_state_end(state, err);
}

static int
describe_tensors(const struct convert_job *c, struct pawl_state *state, struct pawl_error *err)
{
	for (size_t i = 0; i < state->n_tensors; i++) {
		const struct convert_item *item = &c->items[i];
		const struct manifest_tensor *t = &c->r->manifest->tensors[item->tensor];

		if (state->tensors[i].is_blob)
			continue;
		TRY(state_describe_tensor(state, &state->tensors[i], item->dtype, t->ndim, t->shape, err));
		state->tensors[i].local_nbytes = item->nbytes;
	}
	return 0;
}

int
convert_pt_plan(struct convert_job *c, const struct convert_file *f, struct piece_plan *plan, struct pawl_error *err)
{
	PAWL_CLEAN(pawl_state_free_clean) struct pawl_state *state = NULL;
	const char *dot = strrchr(f->name, '.');
	const size_t len = dot && dot > f->name ? (size_t)(dot - f->name) : strlen(f->name);
	PAWL_FREE char *stem = mem_strndup(f->name, len);

	if (!stem)
		return err_nomem(err, "convert");
	TRY(pawl_state_new(&state, err));
	TRY(make_state(c, state, err));
	TRY(describe_tensors(c, state, err));
	return file_plan_pt(state, &(struct file_plan_opts){.stem = stem}, plan, err);
}
