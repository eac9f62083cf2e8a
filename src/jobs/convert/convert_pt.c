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

PAWL_DEFINE_CLEAN(struct pawl_state, pawl_state_free);

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

static int
add_pieces(const struct convert_file *f, const struct file_plan *file, struct convert_plan *plan)
{
	for (size_t i = 0; i < file->n; i++) {
		const struct file_piece *from = &file->pieces[i];
		struct convert_piece piece = {.kind = CONVERT_BYTES, .nbytes = from->nbytes};

		if (from->kind == FILE_BYTES)
			piece.ptr = plan->bytes.ptr + from->bytes_at;
		else
			piece.item = f->first + from->tensor;
		if (from->kind == FILE_CRC)
			piece.kind = CONVERT_CRC;
		if (from->kind != FILE_TENSOR) {
			TRY(convert_plan_add(plan, piece));
			continue;
		}
		piece.kind = CONVERT_TENSOR;
		const struct convert_piece begin = {.kind = CONVERT_BEGIN, .item = piece.item},
					   end = {.kind = CONVERT_END, .item = piece.item};
		TRY(convert_plan_add(plan, begin));
		TRY(convert_plan_add(plan, piece));
		TRY(convert_plan_add(plan, end));
	}
	return 0;
}

int
convert_pt_plan(struct convert_job *c, const struct convert_file *f, struct convert_plan *plan, struct pawl_error *err)
{
	PAWL_CLEAN(pawl_state_free_clean) struct pawl_state *state = NULL;
	PAWL_CLEAN(file_plan_clear) struct file_plan file = {0};
	const char *dot = strrchr(f->name, '.');
	const size_t len = dot && dot > f->name ? (size_t)(dot - f->name) : strlen(f->name);
	const struct file_plan_opts opts = {.stem = bump_strndup(&plan->memory, f->name, len)};

	if (!opts.stem)
		return err_nomem(err, c->what);
	TRY(pawl_state_new(&state, err));
	TRY(make_state(c, f, state, err));
	TRY(file_plan_pt(state, &opts, &file, err));
	plan->bytes = file.bytes;
	file.bytes = (struct buf){0};
	return add_pieces(f, &file, plan) < 0 ? err_nomem(err, c->what) : 0;
}
