/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_select: see convert.h. Pure but for memory.
 *
 * A tensor's name is its path with unescaped keys, without a prefix, changed by the rules of
 * renaming, and with dots for '/' if requested. Tied tensors are written once, under their first
 * name, if the format can record the other name.
 */
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/text.h"
#include "layout/cast.h"
#include "jobs/convert/convert.h"
#include "layout/rename.h"
#include "pawl_jobs.h"
#include "state/walk.h"

/* The path of a leaf with its original keys. */
static void
plain_path(const char *path, struct buf *out)
{
	for (const char *from = path; *from; from++) {
		int high = *from == '%' ? text_hex_digit(from[1]) : -1, low = high >= 0 ? text_hex_digit(from[2]) : -1;

		if (low >= 0 && high * 16 + low != 0) {
			buf_putc(out, (char)(high * 16 + low));
			from += 2;
		} else {
			buf_putc(out, *from);
		}
	}
}

int
convert_make_name(struct convert_job *c, const char *plain, const char **ret, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf renamed = {0};
	const char *prefix = c->opts.strip_prefix ? c->opts.strip_prefix : "", *from = plain;

	from += c->model_prefix ? strlen(c->model_prefix) : 0;
	if (strncmp(from, prefix, strlen(prefix)) == 0)
		from += strlen(prefix);
	rename_apply(c->opts.rename, c->opts.n_rename, from, &renamed);
	char *name = renamed.failed ? NULL : bump_strndup(&c->memory, buf_str(&renamed), renamed.len);
	if (!name)
		return err_nomem(err, "convert");
	if (!name[0])
		return err_set(err, PAWL_EUSAGE, "nothing is left of the name of %s", plain);
	for (char *p = name; *p && c->opts.dots; p++)
		*p = *p == '/' ? '.' : *p;
	*ret = name;
	return 0;
}

int
convert_child_path(const char *prefix, const struct pawl_node *parent, const struct pawl_node *child, struct buf *path,
                   struct buf *plain, struct pawl_error *err)
{
	buf_puts(path, prefix);
	state_put_component(path, parent, child, 0);
	TRY(buf_check(path, "convert", err));
	plain_path(buf_str(path), plain);
	return buf_check(plain, "convert", err);
}

/* Reserves a name in the output; no two are the same. */
int
convert_take_name(struct convert_job *c, const char *name, const char *plain, struct pawl_error *err)
{
	const uint64_t hash = table_hash((uint64_t)(uintptr_t)c, name, strlen(name));
	uintptr_t value;

	for (size_t cursor = 0; table_next(&c->by_name, hash, &cursor, &value);) {
		if (strcmp((const char *)value, name) == 0)
			return err_set(err, PAWL_EEXISTS, "two tensors would get the name %s (the second is %s)", name,
			               plain);
	}
	if (table_reserve(&c->by_name, 1) < 0)
		return err_nomem(err, "convert");
	table_add(&c->by_name, hash, (uintptr_t)name);
	return 0;
}

static int
add_note(struct convert_job *c, const char *key, const char *value, struct pawl_error *err)
{
	struct st_pair *more = mem_resize(c->notes, c->n_notes + 1, sizeof *more);

	if (!more)
		return err_nomem(err, "convert");
	c->notes = more;
	c->notes[c->n_notes++] = (struct st_pair){.key = key, .value = value, .value_len = strlen(value)};
	return 0;
}

/* "pawl.tensors", as in packs: describes complex128, which is written as pairs of F64. */
static int
note_complex(struct convert_job *c, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};

	for (size_t i = 0; i < c->n_items; i++) {
		const struct manifest_tensor *t = &c->r->manifest->tensors[c->items[i].tensor];
		if (t->dtype != PAWL_C128)
			continue;
		if (!text.len)
			buf_putc(&text, '{');
		json_add_key(&text, c->items[i].name);
		buf_puts(&text, "{\"dtype\":\"C128\"");
		json_add_u64s(&text, "shape", t->shape, t->ndim);
		buf_putc(&text, '}');
	}
	if (!text.len)
		return 0;
	buf_putc(&text, '}');
	TRY(buf_check(&text, "convert", err));
	const char *kept = bump_strndup(&c->memory, text.ptr, text.len);
	return kept ? add_note(c, "pawl.tensors", kept, err) : err_nomem(err, "convert");
}

bool
convert_wants(const struct convert_job *c, const char *path, const char *plain)
{
	const struct pawl_convert_opts *o = &c->opts;

	if (c->model_prefix && strncmp(path, c->model_prefix, strlen(c->model_prefix)) != 0)
		return false;
	if (o->n_exclude &&
	    (walk_included(o->exclude, o->n_exclude, path) || walk_included(o->exclude, o->n_exclude, plain)))
		return false;
	return walk_included(o->include, o->n_include, path) || walk_included(o->include, o->n_include, plain);
}

static bool
is_safetensors(const struct convert_target *target)
{
	return target->has_ties && target->plan != convert_pt_plan;
}

/* A key of a safetensors file's metadata with a meaning of its own, so no name of a tied tensor. */
static bool
is_reserved(const struct convert_job *c, const char *name)
{
	return is_safetensors(c->target) && (strcmp(name, "format") == 0 || strncmp(name, "pawl.", 5) == 0);
}

int
convert_add_item(struct convert_job *c, size_t tensor, const char *plain, struct pawl_error *err)
{
	const struct manifest_tensor *t = &c->r->manifest->tensors[tensor];
	struct convert_item item = {.tensor = tensor, .dtype = t->dtype, .nbytes = t->nbytes};

	/* A tensor that is the complete state has no path. */
	TRY(convert_make_name(c, plain[0] ? plain : "tensor", &item.name, err));
	if (c->dtype && cast_is_float(t->dtype) && !(c->opts.model && convert_is_extra_path(plain))) {
		item.dtype = c->dtype;
		item.nbytes = t->nbytes / (pawl_dtype_bits(t->dtype) / 8) * (pawl_dtype_bits(c->dtype) / 8);
	}
	if (c->taken[tensor] && c->items[c->taken[tensor] - 1].dtype == item.dtype && c->target->has_ties &&
	    !is_reserved(c, item.name)) {
		const char *first = c->items[c->taken[tensor] - 1].name;
		if (strcmp(item.name, first) == 0)
			return 0;
		TRY(convert_take_name(c, item.name, plain, err));
		c->ties[c->n_ties++] = (struct convert_tie){item.name, c->taken[tensor] - 1};
		return add_note(c, item.name, first, err);
	}
	if (is_safetensors(c->target) && strcmp(item.name, "__metadata__") == 0)
		return err_set(err, PAWL_EUSAGE,
		               "%s: a tensor of a safetensors file cannot have the name __metadata__, which is the "
		               "key of the file's metadata; rename it, such as with __metadata__=metadata",
		               plain[0] ? plain : "tensor");
	TRY(convert_take_name(c, item.name, plain, err));
	c->items[c->n_items++] = item;
	c->taken[tensor] = c->taken[tensor] ? c->taken[tensor] : c->n_items;
	return 0;
}

struct selecting {
	struct convert_job *c;
	size_t n_leaves; /* while items is NULL, leaves are only counted */
};

static int
visit_leaf(void *arg, const struct walk_leaf *leaf, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf plain = {0};
	struct selecting *s = arg;

	if (!s->c->items) {
		s->n_leaves++;
		return 0;
	}
	if (convert_in_extra(s->c, leaf))
		return 0;
	plain_path(leaf->path, &plain);
	const char *text = buf_str(&plain);
	TRY(buf_check(&plain, leaf->path, err));
	if (!convert_wants(s->c, leaf->path, text))
		return 0;
	if (leaf->node->type != PAWL_TENSOR) {
		s->c->n_left++;
		return 0;
	}
	return convert_add_item(s->c, leaf->node->tensor, text, err);
}

static const struct pawl_node *
first_of_dict(const struct pawl_node *node)
{
	return node->type == PAWL_DICT || node->type == PAWL_ODICT ? node->first : NULL;
}

static const struct pawl_node *
child_of(const struct pawl_node *node, const char *key, size_t len)
{
	const struct pawl_node *child = first_of_dict(node);

	while (child &&
	       (child->key->type != PAWL_STR || child->key->len != len || memcmp(child->key->ptr, key, len) != 0))
		child = child->next;
	return child;
}

/* Is a dict taken whose tensors are its direct children, as from state_dict()? *ret_extra: the key
 * of an extra state with children, if only such states are in the way; else unchanged. */
static int
is_state_dict(const struct convert_job *c, const char *prefix, const struct pawl_node *node,
              const struct pawl_scalar **ret_extra, struct pawl_error *err)
{
	size_t n_tensors = 0, n_branches = 0;
	const struct pawl_scalar *extra = NULL;

	for (const struct pawl_node *child = first_of_dict(node); child; child = child->next) {
		PAWL_CLEAN(buf_clear) struct buf path = {0}, plain = {0};

		n_tensors += child->type == PAWL_TENSOR;
		if (!child->first)
			continue;
		if (!convert_is_extra(child)) {
			n_branches++;
			continue;
		}
		TRY(convert_child_path(prefix, node, child, &path, &plain, err));
		if (!c->target->has_extras && convert_wants(c, buf_str(&path), buf_str(&plain)))
			extra = child->key;
	}
	if (n_tensors > 0 && extra && n_branches == 0 && !*ret_extra)
		*ret_extra = extra;
	return n_tensors > 0 && n_branches == 0 && !extra;
}

/* Where programs keep the model's state dict, the likeliest place first. */
static int
find_model(struct convert_job *c, struct pawl_error *err)
{
	static const char *const places[] = {"model/", "state/model/", "state_dict/", "model_state_dict/", "module/",
	                                     ""};
	const struct pawl_node *root = c->r->manifest->state->root;
	const struct pawl_scalar *extra = NULL;

	for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
		const struct pawl_node *node = root;

		for (const char *at = places[i]; node && *at; at += strcspn(at, "/") + 1)
			node = child_of(node, at, strcspn(at, "/"));
		const int is_model = node ? is_state_dict(c, places[i], node, &extra, err) : 0;

		TRY(is_model);
		if (!is_model)
			continue;
		c->model_prefix = places[i];
		c->model = c->target->has_extras ? node : NULL;
		return 0;
	}
	if (extra)
		return err_set(err, PAWL_ENOTFOUND,
		               "%s: the model's state dict has '%.*s', which is not a tensor: only a .pt file holds "
		               "it; --exclude '*_extra_state*' leaves it out",
		               c->r->info.name, extra->len > 200 ? 200 : (int)extra->len, extra->ptr);
	return err_set(
		err, PAWL_ENOTFOUND,
		"%s: no state dict of a model found: expected a dict of tensors as 'model', 'state/model', "
		"'state_dict', 'model_state_dict', 'module' or the state itself. include and rename choose other "
		"paths",
		c->r->info.name);
}

static int
check_any(const struct convert_job *c, struct pawl_error *err)
{
	if (c->n_items > 0)
		return 0;
	if (c->opts.n_include || c->opts.n_exclude)
		return err_set(err, PAWL_ENOTFOUND,
		               "%s: include and exclude leave no tensor; 'pawl show --tensors' lists all",
		               c->r->info.name);
	return err_set(err, PAWL_ENOTFOUND, "%s has no tensor to write", c->r->info.name);
}

/* If one rank has several pieces of a tensor, pawl.torch saves them as a dict. It has the pieces
 * under their offsets, and the shape of the tensor under the key None. */
static bool
has_pieces(const struct pawl_node *node)
{
	for (const struct pawl_node *child = first_of_dict(node); child && node->count > 1; child = child->next)
		if (child->key->type == PAWL_NONE)
			return true;
	return false;
}

static int
refuse_pieces(void *arg, const struct walk_leaf *at, struct pawl_error *err)
{
	const struct convert_job *c = arg;
	PAWL_FREE char *prefix = NULL;

	if (!has_pieces(at->node))
		return 0;
	prefix = mem_printf("%s/", at->path);
	if (!prefix)
		return err_nomem(err, "convert");
	for (const struct pawl_node *child = at->node->first; child; child = child->next) {
		PAWL_CLEAN(buf_clear) struct buf path = {0}, plain = {0};

		TRY(convert_child_path(prefix, at->node, child, &path, &plain, err));
		if (child->type == PAWL_TENSOR && convert_wants(c, buf_str(&path), buf_str(&plain)))
			return err_set(
				err, PAWL_EUNSUPPORTED,
				"'%s': torch.distributed.checkpoint saved the tensor in pieces, which are not joined "
				"here; pawl.torch.export_dcp joins them and writes a folder that can be converted",
				at->path);
	}
	return 0;
}

/* Was the checkpoint saved by pawl.torch.StorageWriter? */
static bool
is_through_dcp(const struct manifest *m)
{
	static const char note[] = "torch.distributed.checkpoint";

	return m->metadata && m->metadata->root && child_of(m->metadata->root, note, sizeof note - 1);
}

int
convert_select(struct convert_job *c, struct pawl_error *err)
{
	const struct manifest *m = c->r->manifest;
	struct selecting s = {.c = c};

	int rc = c->opts.model ? find_model(c, err) : 0;

	if (is_through_dcp(m)) /* also if the pieces hide the model */
		TRY(walk_nodes(m->state->root, refuse_pieces, c, err));
	TRY(rc);
	if (c->target->plan == convert_dcp_plan) {
		TRY(convert_dcp_select(c, err));
		return check_any(c, err);
	}
	TRY(walk_leaves(m->state->root, visit_leaf, &s, err));
	c->taken = mem_zalloc((size_t)m->n_tensors, sizeof *c->taken);
	c->kept = mem_zalloc((size_t)m->n_tensors, sizeof *c->kept);
	c->ties = mem_zalloc(s.n_leaves, sizeof *c->ties);
	c->items = mem_zalloc(s.n_leaves, sizeof *c->items);
	c->extras = mem_zalloc(s.n_leaves, sizeof *c->extras);
	if (!c->items || !c->ties || !c->taken || !c->kept || !c->extras)
		return err_nomem(err, "convert");
	TRY(add_note(c, "format", "pt", err));
	TRY(walk_leaves(m->state->root, visit_leaf, &s, err));
	c->n_plain = c->n_items;
	if (c->model)
		TRY(convert_add_extras(c, err));
	TRY(note_complex(c, err));
	return check_any(c, err);
}
