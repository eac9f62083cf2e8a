/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conversion_pt: see conversion.h. Called by conversion_plan.c; calls file_pt.c, which lays out files of torch.save.
 * What is written is one flat dict from names to tensors, as a module's state_dict is; tied tensors share their
 * storage. Pure.
 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "jobs/convert/conversion.h"
#include "layout/file_plan.h"
#include "state/state.h"

static void
clean_state(struct pawl_state **state)
{
	pawl_state_free(*state);
}

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
make_state(const struct conversion *c, const struct conversion_file *f, struct pawl_state *state,
           struct pawl_error *err)
{
	TRY(pawl_state_begin(state, PAWL_DICT, err));
	for (size_t i = 0; i < f->n; i++) {
		const struct conversion_item *item = &c->items[f->first + i];
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
add_pieces(const struct conversion_file *f, const struct file_plan *file, struct conversion_plan *plan)
{
	for (size_t i = 0; i < file->n; i++) {
		const struct file_piece *from = &file->pieces[i];
		struct conversion_piece piece = {.kind = CONVERSION_BYTES, .nbytes = from->nbytes};

		if (from->kind == FILE_BYTES)
			piece.ptr = plan->bytes.ptr + from->bytes_at;
		else
			piece.item = f->first + from->tensor;
		if (from->kind == FILE_CRC)
			piece.kind = CONVERSION_CRC;
		if (from->kind != FILE_TENSOR) {
			TRY(conversion_plan_add(plan, piece));
			continue;
		}
		piece.kind = CONVERSION_TENSOR;
		const struct conversion_piece begin = {.kind = CONVERSION_BEGIN, .item = piece.item},
					      end = {.kind = CONVERSION_END, .item = piece.item};
		TRY(conversion_plan_add(plan, begin));
		TRY(conversion_plan_add(plan, piece));
		TRY(conversion_plan_add(plan, end));
	}
	return 0;
}

int
conversion_plan_pt(struct conversion *c, const struct conversion_file *f, struct conversion_plan *plan,
                   struct pawl_error *err)
{
	PAWL_CLEAN(clean_state) struct pawl_state *state = NULL;
	PAWL_CLEAN(file_plan_clear) struct file_plan file = {0};
	const char *dot = strrchr(f->name, '.');
	const size_t len = dot && dot > f->name ? (size_t)(dot - f->name) : strlen(f->name);
	const struct file_plan_opts opts = {.stem = bump_strndup(&plan->memory, f->name, len)};

	if (!opts.stem)
		return conversion_no_memory(c, err);
	TRY(pawl_state_new(&state, err));
	TRY(make_state(c, f, state, err));
	TRY(file_plan_pt(state, &opts, &file, err));
	plan->bytes = file.bytes;
	file.bytes = (struct buf){0};
	return add_pieces(f, &file, plan) < 0 ? conversion_no_memory(c, err) : 0;
}
