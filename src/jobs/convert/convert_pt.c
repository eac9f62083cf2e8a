/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_pt: see convert.h. Writes one flat dict from names to tensors, like a module's
 * state_dict. Tied tensors share their storage. Pure.
 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "jobs/convert/convert.h"
#include "layout/file_plan.h"
#include "state/state.h"

/* A leaf of the dict. Tensors of the state are numbered as the items of the file. */
static int
add_leaf(struct pawl_state *state, const char *name, size_t number, struct pawl_error *err)
{
	const struct pawl_scalar key = {.type = PAWL_STR, .ptr = name, .len = strlen(name)};
	char text[24];

	snprintf(text, sizeof text, "%zu", number);
	TRY(pawl_state_key(state, &key, err));
	return state_add_named(state, PAWL_TENSOR, text, "torch", err);
}

static int
make_state(const struct convert_job *c, const struct convert_file *f, struct pawl_state *state, struct pawl_error *err)
{
	TRY(pawl_state_begin(state, PAWL_DICT, err));
	for (size_t i = 0; i < f->n; i++) {
		const struct convert_item *item = &c->items[f->first + i];
		const struct manifest_tensor *t = &c->r->manifest->tensors[item->tensor];

		TRY(add_leaf(state, item->name, i, err));
		TRY(state_describe_tensor(state, &state->tensors[i], item->dtype, t->ndim, t->shape, err));
		state->tensors[i].local_nbytes = item->nbytes;
	}
	for (size_t i = 0; i < c->n_ties; i++)
		TRY(add_leaf(state, c->ties[i].name, c->ties[i].item - f->first, err));
	return pawl_state_end(state, err);
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
	TRY(make_state(c, f, state, err));
	return file_plan_pt(state, &(struct file_plan_opts){.stem = stem, .first_tensor = f->first}, plan, err);
}
