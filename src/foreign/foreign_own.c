/* SPDX-License-Identifier: Apache-2.0 */
/*
 * foreign_own: one .safetensors file that pawl wrote, as the tree that was saved. Its header has
 * the state in "pawl.state" and belongs to no checkpoint.
 *
 * A program that writes other tensors into such a file may copy the metadata. If the two do not
 * match, the file is read as a flat dict, like any other. Promises P1 (a damaged state is refused),
 * P17.
 */
#include <string.h>

#include "base/err.h"
#include "foreign/foreign_formats.h"
#include "layout/pack_header.h"
#include "state/state.h"

#define MAX_JSON_DEPTH (4 * 256 + 8) /* as of a manifest */
#define MAX_MEMORY ((size_t)1 << 30)

/* A pack names its checkpoint. Opened by itself, it is a flat dict. */
static bool
is_own(const struct st_table *table)
{
	const struct st_pair *packs = safetensors_metadata(table, "pawl.packs"),
			     *of = safetensors_metadata(table, "pawl.checkpoint");

	return packs && strcmp(packs->value, "1") == 0 && of && strcmp(of->value, "{}") == 0 &&
	       safetensors_metadata(table, "pawl.state");
}

static int
parse_text(const char *what, const struct st_pair *text, struct bump *memory, struct json **ret, struct pawl_error *err)
{
	const struct json_limits limits = {
		.max_bytes = text->value_len, .max_depth = MAX_JSON_DEPTH, .max_string = text->value_len};

	return json_parse(what, text->value, text->value_len, &limits, memory, ret, err);
}

/* Reads "pawl.tensors" by rows of the state. 0 = it describes other tensors. */
static int
find_special(struct pawl_state *state, const struct json *root, const struct json **ret)
{
	for (const struct json *one = root && root->type == JSON_OBJECT ? root->first : NULL; one; one = one->next) {
		const struct state_tensor *t = state_find_tensor(state, one->key);

		if (!t || one->type != JSON_OBJECT)
			return 0;
		ret[t - state->tensors] = one;
	}
	return 1;
}

/* The dtype and shape of a tensor of the header. 0 = it is a part of one, or described wrongly. */
static int
read_box(const struct st_tensor *st, const struct json *special, struct bump *memory, struct pack_header_box *ret,
         struct pawl_error *err)
{
	struct pawl_error why = {0};
	const int rc = pack_header_read_box(st, special, memory, ret, &why);

	if (rc == PAWL_ENOMEM)
		return err_nomem(err, NULL);
	return rc == 0 && tensor_same_extents(ret->lengths, ret->shape, ret->ndim);
}

/* Makes a row for each tensor of the state from the header. 0 = the header has other tensors. */
static int
add_rows(struct manifest *m, struct pawl_state *state, const struct st_table *table, const struct json **special,
         struct pawl_error *err)
{
	struct manifest_piece *pieces = bump_array(&m->memory, table->n_tensors, sizeof(*pieces));
	struct manifest_tensor *rows = bump_array(&m->memory, table->n_tensors, sizeof(*rows));

	if (!pieces || !rows)
		return err_nomem(err, NULL);
	for (size_t i = 0; i < table->n_tensors; i++) {
		const struct st_tensor *st = &table->tensors[i];
		struct state_tensor *t = state_find_tensor(state, st->name);
		struct pack_header_box box;

		if (!t || rows[t - state->tensors].n_pieces > 0)
			return 0;
		const size_t row = (size_t)(t - state->tensors);
		int rc = read_box(st, special[row], &m->memory, &box, err);
		if (rc <= 0)
			return rc;
		rc = state_describe_tensor(state, t, box.dtype, box.ndim, box.shape, NULL);
		if (rc < 0)
			return rc == PAWL_ENOMEM ? err_nomem(err, NULL) : 0;
		pieces[row] = (struct manifest_piece){.begin = table->data_begin + st->begin,
		                                      .nbytes = t->info.nbytes,
		                                      .offsets = box.offsets,
		                                      .lengths = t->info.shape};
		rows[row] = (struct manifest_tensor){.name = t->info.name,
		                                     .dtype = t->info.dtype,
		                                     .ndim = t->info.ndim,
		                                     .shape = t->info.shape,
		                                     .nbytes = t->info.nbytes,
		                                     .n_pieces = 1,
		                                     .pieces = &pieces[row]};
	}
	m->tensors = rows;
	m->n_tensors = table->n_tensors;
	return 1;
}

/* True if the values are those of one rank. */
static bool
is_of_one_rank(const struct pawl_node *node)
{
	if ((node->type == PAWL_PER_RANK || node->type == PAWL_DIFFERS) && node->count != 1)
		return false;
	for (const struct pawl_node *child = node->first; child; child = child->next)
		if (!is_of_one_rank(child))
			return false;
	return true;
}

int
foreign_own_read(const struct st_table *table, struct manifest *m, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump scratch = {.limit_bytes = MAX_MEMORY};
	PAWL_CLEAN(pawl_state_free_clean) struct pawl_state *state = NULL;
	const struct st_pair *tensors = safetensors_metadata(table, "pawl.tensors");
	PAWL_FREE const struct json **special = mem_zalloc(table->n_tensors + 1, sizeof(*special));
	struct json *root, *described = NULL;

	if (!is_own(table))
		return 0;
	if (!special)
		return err_nomem(err, NULL);
	TRY(parse_text("pawl.state", safetensors_metadata(table, "pawl.state"), &scratch, &root, err));
	TRY(state_decode("pawl.state", root, &state, err));
	if (tensors)
		TRY(parse_text("pawl.tensors", tensors, &scratch, &described, err));
	if (state->n_tensors != table->n_tensors || (state->has_ranks && !is_of_one_rank(state->root)) ||
	    !find_special(state, described, special))
		return 0;
	state->has_ranks = false; /* whichever rank reads it */
	const int rc = add_rows(m, state, table, special, err);
	if (rc == 1)
		m->state = steal(&state);
	return rc;
}
