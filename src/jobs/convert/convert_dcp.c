/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_dcp: see convert.h. A folder of torch.distributed.checkpoint as one rank writes it:
 *
 *   __0_0.distcp, __0_1.distcp, ..   items one after the other, each an archive of torch.save
 *   .metadata                        a pickle of the places of all items; required, written last
 *
 * Items are those that torch's planner makes of a state. Dicts are taken apart, and lists that
 * contain tensors or dicts; every other value is an item of its own. Names are the keys joined by
 * '.'. The path to each is recorded, so that the nested state can be rebuilt; under new names it is
 * flat. Pure but for memory.
 */
#include <inttypes.h>
#include <string.h>

#include "base/err.h"
#include "format/torch/pickle_write.h"
#include "jobs/convert/convert.h"
#include "layout/file_plan.h"
#include "state/state.h"
#include "state/state_build.h"

#define STEM "archive"
#define METADATA "torch.distributed.checkpoint.metadata"

/* ---- which items there are ---- */

struct picker {
	struct convert_job *c;
	struct buf path, plain, name; /* as in walk.h; with the original keys; joined by '.' */
	struct convert_key *keys;
	size_t n_keys;
	bool counting;
	size_t n; /* counted */
};

static void
clean_picker(struct picker *p)
{
	buf_clear(&p->path);
	buf_clear(&p->plain);
	buf_clear(&p->name);
}

/* True if it contains anything that is not written with the value: tensors, long texts, values of
 * several ranks. */
static bool
holds_more(const struct pawl_node *node)
{
	if (node->tensor != SIZE_MAX || node->type == PAWL_PER_RANK || node->type == PAWL_DIFFERS)
		return true;
	for (const struct pawl_node *child = node->first; child; child = child->next)
		if (holds_more(child))
			return true;
	return false;
}

static bool
is_dict(const struct pawl_node *node)
{
	return node->type == PAWL_DICT || node->type == PAWL_ODICT;
}

static bool
has_dict(const struct pawl_node *node)
{
	for (const struct pawl_node *child = node->first; child; child = child->next)
		if (is_dict(child) || (child->type == PAWL_LIST && has_dict(child)))
			return true;
	return false;
}

static bool
is_taken_apart(const struct pawl_node *node)
{
	if (is_dict(node) || (node->type == PAWL_LIST && has_dict(node)))
		return true;
	return (node->type == PAWL_LIST || node->type == PAWL_TUPLE) && holds_more(node);
}

static int
copy_keys(struct picker *p, struct convert_key **ret, struct pawl_error *err)
{
	*ret = bump_copy(&p->c->memory, p->keys, p->n_keys, sizeof **ret);
	return *ret ? 0 : err_nomem(err, "convert");
}

static int
pick_leaf(struct picker *p, const struct pawl_node *node, struct pawl_error *err)
{
	struct convert_job *c = p->c;
	struct convert_value value = {.node = node, .n_keys = p->n_keys};

	if (p->counting) {
		p->n++;
		return 0;
	}
	TRY(buf_check(&p->path, "convert", err));
	TRY(buf_check(&p->plain, "convert", err));
	TRY(buf_check(&p->name, "convert", err));
	if (!convert_wants(c, buf_str(&p->path), buf_str(&p->plain)))
		return 0;
	if (node->type != PAWL_TENSOR && (c->new_names || holds_more(node))) {
		c->n_left++;
		return 0;
	}
	if (node->type == PAWL_TENSOR) {
		TRY(convert_add_item(c, node->tensor, c->new_names ? buf_str(&p->plain) : buf_str(&p->name), err));
		struct convert_item *item = &c->items[c->n_items - 1];
		item->n_keys = c->new_names ? 0 : p->n_keys;
		return copy_keys(p, &item->keys, err);
	}
	value.name = bump_strndup(&c->memory, buf_str(&p->name), p->name.len);
	if (!value.name)
		return err_nomem(err, "convert");
	TRY(convert_take_name(c, value.name, value.name, err));
	TRY(copy_keys(p, &value.keys, err));
	c->values[c->n_values++] = value;
	return 0;
}

/* Appends the key as torch has it: str(key), or the index in a list. */
static int
put_key(struct picker *p, const struct pawl_node *parent, const struct pawl_node *child, size_t index,
        struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	const struct pawl_scalar *key = is_dict(parent) ? child->key : NULL;
	struct convert_key *ret = &p->keys[p->n_keys++];

	if (!key)
		buf_printf(&text, "%zu", index);
	else if (key->type == PAWL_STR || key->type == PAWL_BYTES)
		buf_put(&text, key->ptr, key->len);
	else if (key->type == PAWL_INT && !key->ptr)
		buf_printf(&text, "%" PRId64, key->i);
	else
		state_put_component(&text, parent, child, index);
	*ret = (struct convert_key){.index = index, .len = text.len, .is_index = !key};
	ret->text = bump_strndup(&p->c->memory, buf_str(&text), text.len);
	if (text.failed || !ret->text)
		return err_nomem(err, "convert");
	if (p->n_keys > 1) {
		buf_putc(&p->path, '/');
		buf_putc(&p->plain, '/');
		buf_putc(&p->name, '.');
	}
	state_put_component(&p->path, parent, child, index);
	buf_put(&p->plain, ret->text, ret->len);
	buf_put(&p->name, ret->text, ret->len);
	return 0;
}

/* Depth is limited by the builder and the decoder of states. */
static int
pick_tensors(struct picker *p, const struct pawl_node *node, struct pawl_error *err)
{
	const size_t path = p->path.len, plain = p->plain.len, name = p->name.len, n_keys = p->n_keys;
	size_t index = 0;

	if (state_is_transparent(node))
		return pick_tensors(p, node->first, err);
	if (!is_taken_apart(node))
		return pick_leaf(p, node, err);
	for (const struct pawl_node *child = node->first; child; child = child->next) {
		TRY(put_key(p, node, child, index++, err));
		TRY(pick_tensors(p, child, err));
		p->path.len = path;
		p->plain.len = plain;
		p->name.len = name;
		p->n_keys = n_keys;
	}
	return 0;
}

int
convert_dcp_select(struct convert_job *c, struct pawl_error *err)
{
	const struct pawl_node *root = c->r->manifest->state->root;
	PAWL_CLEAN(clean_picker) struct picker p = {.c = c, .counting = true};

	p.keys = bump_array(&c->memory, STATE_MAX_DEPTH + 2, sizeof *p.keys);
	c->taken = mem_zalloc((size_t)c->r->manifest->n_tensors + 1, sizeof *c->taken);
	if (!p.keys || !c->taken)
		return err_nomem(err, "convert");
	if (!root)
		return 0;
	c->new_names = c->opts.n_rename > 0 || c->opts.strip_prefix || !is_taken_apart(root);
	TRY(pick_tensors(&p, root, err));
	c->items = mem_zalloc(p.n + 1, sizeof *c->items);
	c->values = bump_array(&c->memory, p.n + 1, sizeof *c->values);
	if (!c->items || !c->values)
		return err_nomem(err, "convert");
	p.counting = false;
	return pick_tensors(&p, root, err);
}

/* ---- the files ---- */

/* Appends the archive of one item to the plan. *ret_begin, *ret_nbytes: its place in the file. */
static int
add_archive(const struct pawl_state *state, size_t item, struct piece_plan *plan, uint64_t *ret_begin,
            uint64_t *ret_nbytes, struct pawl_error *err)
{
	*ret_begin = plan->nbytes;
	TRY(file_plan_pt(state, &(struct file_plan_opts){.stem = STEM, .first_tensor = item}, plan, err));
	*ret_nbytes = plan->nbytes - *ret_begin;
	return 0;
}

static int
add_item(struct convert_job *c, size_t number, struct piece_plan *plan, struct pawl_error *err)
{
	PAWL_CLEAN(pawl_state_free_clean) struct pawl_state *state = NULL;
	struct convert_item *item = &c->items[number];
	const struct manifest_tensor *t = &c->r->manifest->tensors[item->tensor];

	TRY(pawl_state_new(&state, err));
	TRY(state_add_named(state, PAWL_TENSOR, "0", "torch", err));
	TRY(state_describe_tensor(state, &state->tensors[0], item->dtype, t->ndim, t->shape, err));
	state->tensors[0].local_nbytes = item->nbytes;
	return add_archive(state, number, plan, &item->begin, &item->length, err);
}

int
convert_dcp_plan(struct convert_job *c, const struct convert_file *f, struct piece_plan *plan, struct pawl_error *err)
{
	for (size_t i = 0; i < f->n; i++)
		TRY(add_item(c, f->first + i, plan, err));
	for (size_t i = 0; i < c->n_values && f == &c->files[c->n_files - 1]; i++) {
		struct convert_value *value = &c->values[i];
		struct pawl_state alone = *c->r->manifest->state;

		alone.root = (struct pawl_node *)value->node; /* only read */
		alone.n_tensors = 0;
		TRY(add_archive(&alone, 0, plan, &value->begin, &value->length, err));
	}
	return 0;
}

/* ---- .metadata ---- */

static void
put_text(struct buf *out, const char *text)
{
	pickle_put_str(out, text, strlen(text));
}

/* An object that is made without a call; its state follows, and 'b'. */
static void
put_new(struct buf *out, const char *module, const char *class)
{
	pickle_put_global(out, module, class);
	pickle_put_op(out, PICKLE_OP_EMPTY_TUPLE);
	pickle_put_op(out, PICKLE_OP_NEW);
}

static void
begin_dict(struct buf *out)
{
	pickle_put_op(out, PICKLE_OP_EMPTY_DICT);
	pickle_put_op(out, PICKLE_OP_MARK);
}

static void
end_dict(struct buf *out, bool is_state)
{
	pickle_put_op(out, PICKLE_OP_SETITEMS);
	if (is_state)
		pickle_put_op(out, PICKLE_OP_BUILD);
}

/* torch.Size; shape NULL: of zeros. 4-bit numbers are counted in pairs. */
static void
put_size(struct buf *out, int dtype, uint32_t ndim, const uint64_t *shape)
{
	pickle_put_global(out, "torch", "Size");
	pickle_put_op(out, PICKLE_OP_MARK);
	pickle_put_op(out, PICKLE_OP_MARK);
	for (uint32_t d = 0; d < ndim; d++) {
		const uint64_t halves = dtype == PAWL_F4 && d + 1 == ndim ? 2 : 1;
		pickle_put_int(out, shape ? (int64_t)(shape[d] / halves) : 0);
	}
	pickle_put_op(out, PICKLE_OP_TUPLE);
	pickle_put_op(out, PICKLE_OP_TUPLE);
	pickle_put_op(out, PICKLE_OP_REDUCE);
}

static void
put_properties(struct buf *out, int dtype)
{
	put_new(out, METADATA, "TensorProperties");
	pickle_put_op(out, PICKLE_OP_MARK);
	pickle_put_global(out, "torch", file_plan_torch_dtype(dtype));
	pickle_put_global(out, "torch.serialization", "_get_layout");
	pickle_put_op(out, PICKLE_OP_MARK);
	put_text(out, "torch.strided");
	pickle_put_op(out, PICKLE_OP_TUPLE);
	pickle_put_op(out, PICKLE_OP_REDUCE);
	pickle_put_bool(out, false); /* requires_grad */
	pickle_put_global(out, METADATA, "_MEM_FORMAT_ENCODING");
	pickle_put_op(out, PICKLE_OP_MARK);
	pickle_put_int(out, 0); /* contiguous */
	pickle_put_op(out, PICKLE_OP_TUPLE);
	pickle_put_op(out, PICKLE_OP_REDUCE);
	pickle_put_bool(out, false); /* pin_memory */
	pickle_put_op(out, PICKLE_OP_TUPLE);
	pickle_put_op(out, PICKLE_OP_BUILD);
}

static void
put_tensor(struct buf *out, const struct convert_item *item, const struct manifest_tensor *t)
{
	put_new(out, METADATA, "TensorStorageMetadata");
	begin_dict(out);
	put_text(out, "properties");
	put_properties(out, item->dtype);
	put_text(out, "size");
	put_size(out, item->dtype, t->ndim, t->shape);
	put_text(out, "chunks");
	pickle_put_op(out, PICKLE_OP_EMPTY_LIST);
	pickle_put_op(out, PICKLE_OP_MARK);
	put_new(out, METADATA, "ChunkStorageMetadata");
	begin_dict(out);
	put_text(out, "offsets");
	put_size(out, item->dtype, t->ndim, NULL);
	put_text(out, "sizes");
	put_size(out, item->dtype, t->ndim, t->shape);
	end_dict(out, true);
	pickle_put_op(out, PICKLE_OP_APPENDS);
	end_dict(out, true);
}

static void
put_way(struct buf *out, const char *name, const struct convert_key *keys, size_t n)
{
	put_text(out, name);
	pickle_put_op(out, PICKLE_OP_MARK);
	for (size_t i = 0; i < n; i++) {
		if (keys[i].is_index)
			pickle_put_int(out, (int64_t)keys[i].index);
		else
			pickle_put_str(out, keys[i].text, keys[i].len);
	}
	if (n == 0)
		put_text(out, name);
	pickle_put_op(out, PICKLE_OP_TUPLE);
}

/* t NULL: of a value. */
static void
put_index(struct buf *out, const char *name, const struct convert_item *item, const struct manifest_tensor *t)
{
	put_new(out, METADATA, "MetadataIndex");
	begin_dict(out);
	put_text(out, "fqn");
	put_text(out, name);
	put_text(out, "offset");
	if (t)
		put_size(out, item->dtype, t->ndim, NULL);
	else
		pickle_put_op(out, PICKLE_OP_NONE);
	put_text(out, "index");
	pickle_put_op(out, PICKLE_OP_NONE);
	end_dict(out, true);
}

static void
put_storage(struct buf *out, const char *file, uint64_t begin, uint64_t length)
{
	put_new(out, "torch.distributed.checkpoint.filesystem", "_StorageInfo");
	begin_dict(out);
	put_text(out, "relative_path");
	put_text(out, file);
	put_text(out, "offset");
	pickle_put_int(out, (int64_t)begin);
	put_text(out, "length");
	pickle_put_int(out, (int64_t)length);
	end_dict(out, true);
}

int
convert_dcp_metadata(const struct convert_job *c, struct buf *out, struct pawl_error *err)
{
	const struct manifest_tensor *tensors = c->r->manifest->tensors;
	const char *last = c->files[c->n_files - 1].name;

	pickle_put_begin(out);
	put_new(out, METADATA, "Metadata");
	begin_dict(out);
	put_text(out, "state_dict_metadata");
	begin_dict(out);
	for (size_t i = 0; i < c->n_items; i++) {
		put_text(out, c->items[i].name);
		put_tensor(out, &c->items[i], &tensors[c->items[i].tensor]);
	}
	for (size_t i = 0; i < c->n_values; i++) {
		put_text(out, c->values[i].name);
		put_new(out, METADATA, "BytesStorageMetadata");
	}
	end_dict(out, false);
	put_text(out, "planner_data");
	begin_dict(out);
	for (size_t i = 0; i < c->n_items; i++)
		put_way(out, c->items[i].name, c->items[i].keys, c->items[i].n_keys);
	for (size_t i = 0; i < c->n_values; i++)
		put_way(out, c->values[i].name, c->values[i].keys, c->values[i].n_keys);
	end_dict(out, false);
	put_text(out, "storage_data");
	begin_dict(out);
	for (size_t i = 0; i < c->n_items; i++) {
		const struct convert_item *item = &c->items[i];
		put_index(out, item->name, item, &tensors[item->tensor]);
		put_storage(out, c->files[item->file].name, item->begin, item->length);
	}
	for (size_t i = 0; i < c->n_values; i++) {
		put_index(out, c->values[i].name, NULL, NULL);
		put_storage(out, last, c->values[i].begin, c->values[i].length);
	}
	end_dict(out, false);
	put_text(out, "storage_meta");
	pickle_put_op(out, PICKLE_OP_NONE);
	put_text(out, "version");
	put_text(out, "1.0.0");
	end_dict(out, true);
	pickle_put_end(out);
	return buf_check(out, ".metadata", err);
}
