/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state: builds the tree.
 *
 * The builder is a stack of open containers with the path of the innermost one. So names and
 * messages need no walk from the root. Three hash tables answer in constant time: does this key
 * exist, does this name exist, does the table of tensors already have this memory. Everything is
 * allocated in the state's bump; nothing is ever removed. A call that fails leaves the state as it
 * was, except that a call by path without memory may leave an empty dict.
 */
#include "state/state.h"

#include <string.h>

#include "base/err.h"
#include "base/text.h"
#include "state/state_build.h"

int
state_no_memory(struct pawl_error *err)
{
	return err_nomem(err, "state");
}

int
pawl_state_new(struct pawl_state **ret, struct pawl_error *err)
{
	if (!ret)
		return err_set(err, PAWL_EUSAGE, "state: expected a pointer that receives the handle, found NULL");
	PAWL_CLEAN(pawl_state_free_clean) struct pawl_state *s = mem_zalloc(1, sizeof(*s));

	if (!s)
		return state_no_memory(err);
	s->builder = mem_zalloc(1, sizeof(*s->builder));
	if (!s->builder)
		return state_no_memory(err);
	*ret = steal(&s);
	return 0;
}

void
pawl_state_free(struct pawl_state *s)
{
	if (!s)
		return;
	if (s->builder) {
		buf_clear(&s->builder->path);
		table_clear(&s->builder->children);
		table_clear(&s->builder->names);
		table_clear(&s->builder->ties);
		mem_free(s->builder->n_suffixes);
		mem_free(s->builder);
	}
	mem_free(s->tensors);
	bump_clear(&s->memory);
	mem_free(s);
}

/* ------------------------------------------------------------------ paths */

void
state_path_forth(struct state_builder *b)
{
	if (b->depth == 0)
		return;
	const struct pawl_node *parent = b->stack[b->depth - 1].node;
	if (parent->type == PAWL_PER_RANK && b->world <= 1)
		return; /* alone, it is as if it were not there */
	if (b->path.len > 0 || b->depth > 1)
		buf_putc(&b->path, '/');
	if (state_is_ranks(parent->type))
		buf_printf(&b->path, "@%zu", b->rank + parent->count);
	else if (b->has_key)
		state_put_key(&b->path, &b->key);
	else
		buf_printf(&b->path, "%zu", b->stack[b->depth - 1].node->count);
}

void
state_path_back(struct state_builder *b)
{
	b->path.len = b->depth > 0 ? b->stack[b->depth - 1].path_len : 0;
}

int
state_at_path(struct pawl_state *s, int code, struct pawl_error *err)
{
	struct state_builder *b = s->builder;

	if (!err || code == PAWL_ENOMEM)
		return code;
	state_path_forth(b);
	const char *path = b->path.len > 0 ? buf_str(&b->path) : "the root";
	if (b->path.len <= 400)
		code = err_prefix(err, code, "state: %s", path);
	else
		code = err_prefix(err, code, "state: %.200s...%s", path, path + b->path.len - 180);
	state_path_back(b);
	return code;
}

/* ------------------------------------------------------------------- keys */

static uint64_t
bits_of(double f)
{
	uint64_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return bits;
}

static uint64_t
key_hash(const struct pawl_node *parent, const struct pawl_scalar *key)
{
	uint64_t hash = table_mix((uintptr_t)parent, (uint64_t)key->type);

	hash = table_mix(hash, (uint64_t)key->i ^ bits_of(key->f)); /* one of the two is 0 */
	return key->ptr ? table_hash(hash, key->ptr, key->len) : hash;
}

static bool
keys_equal(const struct pawl_scalar *a, const struct pawl_scalar *b)
{
	return a->type == b->type && a->i == b->i && bits_of(a->f) == bits_of(b->f) && a->len == b->len &&
	       (a->len == 0 || memcmp(a->ptr, b->ptr, a->len) == 0);
}

struct pawl_node *
state_child(const struct pawl_state *s, const struct pawl_node *parent, const struct pawl_scalar *key)
{
	uintptr_t value;

	if (parent->count <= STATE_SMALL_DICT) {
		struct pawl_node *node = parent->first;
		while (node && !keys_equal(node->key, key))
			node = node->next;
		return node;
	}
	uint64_t hash = key_hash(parent, key);
	for (size_t cursor = 0; table_next(&s->builder->children, hash, &cursor, &value);) {
		struct state_child *child = (struct state_child *)value;
		if (child->parent == parent && keys_equal(&child->key, key))
			return &child->node;
	}
	return NULL;
}

/* Enters the newest child of a dict into the table, or all children when the dict has just
 * stopped being small. A node is the first member of its struct state_child, so both have the
 * same address. */
void
state_index_child(struct state_builder *b, const struct pawl_node *parent)
{
	const struct pawl_node *node = parent->count == STATE_SMALL_DICT + 1 ? parent->first : parent->last;

	for (; parent->count > STATE_SMALL_DICT && node; node = node->next)
		table_add(&b->children, key_hash(parent, node->key), (uintptr_t)node);
}

/* ------------------------------------------------------------------ nodes */

int
state_check_place(struct pawl_state *s, int type, struct pawl_error *err)
{
	struct state_builder *b = s->builder;

	if (b->depth == 0 && s->root)
		return err_set(err, PAWL_EUSAGE, "state: cannot add %s%s: the root has ended", state_article(type),
		               state_type_name(type));
	if (b->depth > 0 && state_is_dict(b->stack[b->depth - 1].node->type) && !b->has_key) {
		return err_set(err, PAWL_EUSAGE, "state: cannot add %s%s to the dict at '%s': it needs a key first",
		               state_article(type), state_type_name(type), buf_str(&b->path));
	}
	if (b->depth > 0 && !s->is_of_all && b->stack[b->depth - 1].node->type == PAWL_PER_RANK &&
	    b->stack[b->depth - 1].node->count == 1) {
		err_set(err, PAWL_EUSAGE, "a value per rank has one child, the value of this rank; found another one");
		return state_at_path(s, PAWL_EUSAGE, err);
	}
	if (b->n_nodes >= STATE_MAX_NODES) {
		err_set(err, PAWL_ELIMIT, "more than %u values in one state", STATE_MAX_NODES);
		return state_at_path(s, PAWL_ELIMIT, err);
	}
	return 0;
}

struct pawl_node *
state_new_node(struct pawl_state *s, int type)
{
	struct state_builder *b = s->builder;
	struct pawl_node *node;

	if (b->has_key) {
		if (table_reserve(&b->children, STATE_SMALL_DICT + 1) < 0)
			return NULL;
		struct state_child *child = bump_alloc(&s->memory, sizeof(*child));
		if (!child)
			return NULL;
		child->parent = b->stack[b->depth - 1].node;
		child->key = b->key;
		child->node.key = &child->key;
		node = &child->node;
	} else {
		node = bump_alloc(&s->memory, sizeof(*node));
		if (!node)
			return NULL;
	}
	node->type = type;
	node->tensor = SIZE_MAX;
	node->kind = b->kind ? b->kind : "";
	b->kind = NULL;
	return node;
}

void
state_link_node(struct pawl_state *s, struct pawl_node *node)
{
	struct state_builder *b = s->builder;

	b->n_nodes++;
	if (b->depth == 0) {
		s->root = node;
		return;
	}
	struct pawl_node *parent = b->stack[b->depth - 1].node;
	state_append_child(parent, node);
	if (b->has_key)
		state_index_child(b, parent);
	b->has_key = false;
}

static void
push_node(struct pawl_state *s, struct pawl_node *node)
{
	struct state_builder *b = s->builder;

	b->stack[b->depth].node = node;
	b->stack[b->depth].path_len = b->path.len;
	b->depth++;
}

/* Values per rank cannot be nested, since the inner one would have no rank. */
static int
check_ranks(struct pawl_state *s, int type, struct pawl_error *err)
{
	const struct state_builder *b = s->builder;

	for (unsigned i = 0; i < b->depth; i++) {
		if (!state_is_ranks(b->stack[i].node->type))
			continue;
		err_set(err, PAWL_EUSAGE, "%s%s inside another one", state_article(type), state_type_name(type));
		return state_at_path(s, PAWL_EUSAGE, err);
	}
	return 0;
}

int
pawl_state_set_rank(struct pawl_state *s, uint32_t rank, uint32_t world_size, struct pawl_error *err)
{
	if (!s || s->root)
		return err_set(err, PAWL_EUSAGE, "state: the rank is set before anything is added");
	if (rank >= world_size)
		return err_set(err, PAWL_EUSAGE, "state: expected a rank below the world's size of %u, found %u",
		               world_size, rank);
	s->rank = s->builder->rank = rank;
	s->world = s->builder->world = world_size;
	return 0;
}

int
pawl_state_begin(struct pawl_state *s, int type, struct pawl_error *err)
{
	if (!s)
		return err_set(err, PAWL_EUSAGE, "state: expected a state, found NULL");
	struct state_builder *b = s->builder;

	if (type < PAWL_DICT || type > PAWL_DIFFERS || (type == PAWL_DIFFERS && !s->is_of_all))
		return err_set(err, PAWL_EUSAGE, "state: type %d (%s) is not a container", type, state_type_name(type));
	TRY(state_check_place(s, type, err));
	if (state_is_ranks(type))
		TRY(check_ranks(s, type, err));
	if (b->depth == STATE_MAX_DEPTH) {
		err_set(err, PAWL_ELIMIT, "%s%s nested deeper than %d containers", state_article(type),
		        state_type_name(type), STATE_MAX_DEPTH);
		return state_at_path(s, PAWL_ELIMIT, err);
	}
	struct pawl_node *node = state_new_node(s, type);
	if (!node)
		return state_no_memory(err);
	state_path_forth(b);
	TRY(buf_check(&b->path, "state", err));
	state_link_node(s, node);
	push_node(s, node);
	s->has_ranks = s->has_ranks || state_is_ranks(type);
	return 0;
}

int
pawl_state_end(struct pawl_state *s, struct pawl_error *err)
{
	if (!s)
		return err_set(err, PAWL_EUSAGE, "state: expected a state, found NULL");
	struct state_builder *b = s->builder;

	if (b->depth == 0)
		return err_set(err, PAWL_EUSAGE, "state: end without a container");
	if (b->has_key) {
		err_set(err, PAWL_EUSAGE, "the dict ends after a key without a value");
		return state_at_path(s, PAWL_EUSAGE, err);
	}
	const struct pawl_node *node = b->stack[b->depth - 1].node;
	if (state_is_ranks(node->type) && node->count == 0) {
		err_set(err, PAWL_EUSAGE, "%s%s without a value", state_article(node->type),
		        state_type_name(node->type));
		return state_at_path(s, PAWL_EUSAGE, err);
	}
	b->depth--;
	state_path_back(b);
	return 0;
}

int
pawl_state_key(struct pawl_state *s, const struct pawl_scalar *key, struct pawl_error *err)
{
	if (!s || !key)
		return err_set(err, PAWL_EUSAGE, "state: expected a state and a key, found NULL");
	struct state_builder *b = s->builder;
	struct pawl_scalar k;

	if (b->depth == 0 || !state_is_dict(b->stack[b->depth - 1].node->type))
		return err_set(err, PAWL_EUSAGE, "state: a key outside a dict");
	if (b->has_key) {
		err_set(err, PAWL_EUSAGE, "this key has no value, and another key follows");
		return state_at_path(s, PAWL_EUSAGE, err);
	}
	struct pawl_node *parent = b->stack[b->depth - 1].node;
	int rc = state_normalise(key, &k, err);
	if (rc == 0 && k.len > STATE_MAX_KEY_BYTES)
		rc = err_set(err, PAWL_ELIMIT, "%zu bytes, at most %d are possible", k.len, STATE_MAX_KEY_BYTES);
	if (rc < 0)
		return err_prefix(err, rc, "state: key of type %s in the dict at '%s'", state_type_name(key->type),
		                  buf_str(&b->path));
	struct pawl_node *taken = state_child(s, parent, &k);
	if (!taken && k.ptr) {
		k.ptr = bump_strndup(&s->memory, k.ptr, k.len);
		if (!k.ptr)
			return state_no_memory(err);
	}
	b->key = k;
	b->has_key = true;
	if (!taken)
		return 0;
	err_set(err, PAWL_EEXISTS, "this %s key already exists and holds %s%s", state_type_name(k.type),
	        state_article(taken->type), state_type_name(taken->type));
	rc = state_at_path(s, PAWL_EEXISTS, err);
	b->has_key = false;
	return rc;
}

/* ---------------------------------------------------------------- scalars */

/* Long text is not stored in the manifest: it becomes a tensor of bytes. */
static int
add_blob_row(struct pawl_state *s, struct pawl_node *node, struct pawl_error *err)
{
	uint64_t shape[1] = {node->scalar.len};
	char *data = bump_strndup(&s->memory, node->scalar.ptr, node->scalar.len);
	struct state_tensor row = {.contiguous = true, .is_blob = true, .local_nbytes = node->scalar.len};

	if (!data)
		return state_no_memory(err);
	row.info = (struct pawl_tensor_info){.dtype = PAWL_U8, .ndim = 1, .nbytes = node->scalar.len};
	row.src = (struct pawl_tensor){
		.size = sizeof(row.src), .dtype = PAWL_U8, .ndim = 1, .shape = shape, .data = data};
	node->scalar.ptr = data;
	return state_add_row(s, &row, &node->tensor, err);
}

static int
add_scalar(struct pawl_state *s, const struct pawl_scalar *value, struct pawl_error *err)
{
	struct pawl_scalar scalar;

	TRY(state_normalise(value, &scalar, err));
	struct pawl_node *node = state_new_node(s, scalar.type);
	if (!node)
		return state_no_memory(err);
	node->scalar = scalar;
	if (scalar.len > STATE_LONG_BYTES && scalar.type != PAWL_INT) {
		TRY(add_blob_row(s, node, err));
	} else if (scalar.ptr) {
		node->scalar.ptr = bump_strndup(&s->memory, scalar.ptr, scalar.len);
		if (!node->scalar.ptr)
			return state_no_memory(err);
	}
	state_link_node(s, node);
	return 0;
}

int
pawl_state_kind(struct pawl_state *s, const char *kind, struct pawl_error *err)
{
	if (!s || !kind)
		return err_set(err, PAWL_EUSAGE, "state: expected a state and a kind, found NULL");
	if (strlen(kind) > STATE_MAX_KIND_BYTES || !text_is_utf8(kind, strlen(kind)))
		return err_set(err, PAWL_EUSAGE, "state: a kind must be UTF-8 of at most %d bytes",
		               STATE_MAX_KIND_BYTES);
	s->builder->kind = *kind ? bump_strndup(&s->memory, kind, strlen(kind)) : NULL;
	return *kind && !s->builder->kind ? state_no_memory(err) : 0;
}

int
pawl_state_add(struct pawl_state *s, const struct pawl_scalar *value, struct pawl_error *err)
{
	if (!s || !value)
		return err_set(err, PAWL_EUSAGE, "state: expected a state and a value, found NULL");
	TRY(state_check_place(s, value->type, err));
	int rc = add_scalar(s, value, err);
	if (rc < 0 && rc != PAWL_ENOMEM)
		err_prefix(err, rc, "%s", state_type_name(value->type));
	return rc < 0 ? state_at_path(s, rc, err) : 0;
}

/* ---------------------------------------------------------------- by path */

/* Opens the child of the innermost dict at `key`. A missing child becomes a dict. */
static int
enter_key(struct pawl_state *s, const struct pawl_scalar *key, struct pawl_error *err)
{
	struct state_builder *b = s->builder;
	struct pawl_node *node = state_child(s, b->stack[b->depth - 1].node, key);

	if (!node) {
		TRY(pawl_state_key(s, key, err));
		return pawl_state_begin(s, PAWL_DICT, err);
	}
	b->key = *node->key;
	b->has_key = true;
	int rc = 0;
	if (!state_is_dict(node->type)) {
		err_set(err, PAWL_EEXISTS, "has type %s, expected dict", state_type_name(node->type));
		rc = state_at_path(s, PAWL_EEXISTS, err);
	} else {
		state_path_forth(b);
		push_node(s, node);
	}
	b->has_key = false;
	return rc;
}

/* Decodes the component that *at points to into key and moves *at to its end: '/' or NUL. */
static bool
next_component(const char **at, char text[STATE_MAX_KEY_BYTES], struct pawl_scalar *key)
{
	size_t len = strcspn(*at, "/");
	bool is_good = len > 0 && state_unescape(*at, len, text, &key->len) && text_is_utf8(text, key->len);

	*key = (struct pawl_scalar){.type = PAWL_STR, .ptr = text, .len = key->len};
	*at += len;
	return is_good;
}

static int
check_path(const char *path, struct pawl_error *err)
{
	char text[STATE_MAX_KEY_BYTES];
	struct pawl_scalar key = {0};

	for (const char *at = path;; at++) {
		if (!next_component(&at, text, &key))
			return err_set(err, PAWL_EUSAGE,
			               "state: path '%.400s' has an empty, too long or wrongly escaped component",
			               path);
		if (!*at)
			return 0;
	}
}

/* Opens the dicts that a path leads through and leaves its last component as the pending key. */
static int
open_path(struct pawl_state *s, const char *path, struct pawl_error *err)
{
	char text[STATE_MAX_KEY_BYTES];
	struct pawl_scalar key = {0};

	if (s->root)
		push_node(s, s->root);
	else
		TRY(pawl_state_begin(s, PAWL_DICT, err));
	for (const char *at = path;; at++) {
		next_component(&at, text, &key);
		if (!*at)
			return pawl_state_key(s, &key, err);
		TRY(enter_key(s, &key, err));
	}
}

/* Checked before the tree is changed, so that a refusal leaves no empty dicts behind. */
static int
check_settable(const struct pawl_state *s, const char *path, struct pawl_error *err)
{
	if (!s || !path)
		return err_set(err, PAWL_EUSAGE, "state: expected a state and a path, found NULL");
	if (s->builder->depth > 0)
		return err_set(err, PAWL_EUSAGE, "state: '%.400s' cannot be set while a container is open", path);
	if (s->root && !state_is_dict(s->root->type))
		return err_set(err, PAWL_EUSAGE, "state: '%.400s' cannot be set: the root has type %s, expected dict",
		               path, state_type_name(s->root->type));
	return check_path(path, err);
}

static int
close_path(struct pawl_state *s, int rc)
{
	s->builder->depth = 0;
	s->builder->has_key = false;
	state_path_back(s->builder);
	return rc;
}

static int
set_scalar(struct pawl_state *s, const char *path, const struct pawl_scalar *value, struct pawl_error *err)
{
	struct pawl_scalar unused;

	TRY(check_settable(s, path, err));
	int rc = state_normalise(value, &unused, err);
	if (rc < 0)
		return err_prefix(err, rc, "state: %.400s: %s", path, state_type_name(value->type));
	rc = open_path(s, path, err);
	if (rc == 0)
		rc = pawl_state_add(s, value, err);
	return close_path(s, rc);
}

int
pawl_state_set_tensor(struct pawl_state *s, const char *path, const struct pawl_tensor *tensor, struct pawl_error *err)
{
	struct state_tensor unused;

	TRY(check_settable(s, path, err));
	if (!tensor)
		return err_set(err, PAWL_EUSAGE, "state: %.400s: expected a tensor, found NULL", path);
	int rc = state_check_tensor(tensor, &unused, err);
	if (rc < 0)
		return err_prefix(err, rc, "state: %.400s", path);
	rc = open_path(s, path, err);
	if (rc == 0)
		rc = pawl_state_add_tensor(s, tensor, err);
	return close_path(s, rc);
}

int
pawl_state_set_none(struct pawl_state *s, const char *path, struct pawl_error *err)
{
	return set_scalar(s, path, &(struct pawl_scalar){.type = PAWL_NONE}, err);
}

int
pawl_state_set_bool(struct pawl_state *s, const char *path, int value, struct pawl_error *err)
{
	return set_scalar(s, path, &(struct pawl_scalar){.type = PAWL_BOOLEAN, .i = value}, err);
}

int
pawl_state_set_int(struct pawl_state *s, const char *path, int64_t value, struct pawl_error *err)
{
	return set_scalar(s, path, &(struct pawl_scalar){.type = PAWL_INT, .i = value}, err);
}

int
pawl_state_set_float(struct pawl_state *s, const char *path, double value, struct pawl_error *err)
{
	return set_scalar(s, path, &(struct pawl_scalar){.type = PAWL_FLOAT, .f = value}, err);
}

int
pawl_state_set_str(struct pawl_state *s, const char *path, const char *value, struct pawl_error *err)
{
	if (!value)
		return err_set(err, PAWL_EUSAGE, "state: %.400s: expected a text, found NULL", path ? path : "str");
	return set_scalar(s, path, &(struct pawl_scalar){.type = PAWL_STR, .ptr = value, .len = strlen(value)}, err);
}

int
pawl_state_set_bytes(struct pawl_state *s, const char *path, const void *ptr, size_t len, struct pawl_error *err)
{
	if (!ptr && len)
		return err_set(err, PAWL_EUSAGE, "state: %.400s: expected %zu bytes, found NULL", path ? path : "bytes",
		               len);
	return set_scalar(s, path, &(struct pawl_scalar){.type = PAWL_BYTES, .ptr = ptr, .len = len}, err);
}
