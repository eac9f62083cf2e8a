/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tree: see tree.h. Walks states through the reading functions of pawl.h. The library limits their
 * depth to 256, which bounds the recursion. Names and texts come from files: all are cleaned before
 * they are printed.
 */
#include "tree.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/text.h"
#include "grid.h"
#include "human.h"
#include "order.h"

#define TREE_TEXT_MAX 60  /* columns of a text value */
#define TREE_INLINE_MAX 8 /* values of a list shown on one line */
#define JSON_EXACT_INT ((int64_t)1 << 53)

struct sums {
	uint64_t tensors, values, nbytes;
};

struct tree {
	struct cli *cli;
	const struct pawl_state *state;
	const struct tree_opts *opts;
	struct grid *grid;
	const struct pawl_node **owners; /* per tensor: the first leaf that refers to it; the others are tied to it */
	size_t n_tensors;
};

/* "[768, 50257]", "[]" */
static const char *
tree_shape(struct keep *keep, const struct pawl_tensor_info *info)
{
	const char *ret = "[";

	for (uint32_t i = 0; i < info->ndim; i++)
		ret = keep_printf(keep, "%s%s%" PRIu64, ret, i > 0 ? ", " : "", info->shape[i]);
	return keep_printf(keep, "%s]", ret);
}

static const char *
dtype_name(int dtype)
{
	const char *name = pawl_dtype_name(dtype);

	return name != NULL ? name : "?";
}

static bool
is_container(const struct pawl_node *node)
{
	return pawl_node_type(node) >= PAWL_DICT;
}

static void
find_owners(struct tree *tree, const struct pawl_node *node)
{
	size_t index = pawl_node_tensor(node);

	if (index < tree->n_tensors && tree->owners[index] == NULL)
		tree->owners[index] = node;
	for (node = pawl_node_first(node); node != NULL; node = pawl_node_next(node))
		find_owners(tree, node);
}

static void
add_up(const struct tree *tree, const struct pawl_node *node, struct sums *sums)
{
	size_t index = pawl_node_tensor(node);

	if (index < tree->n_tensors) {
		if (tree->owners[index] == node) {
			sums->tensors += pawl_node_type(node) == PAWL_TENSOR;
			sums->nbytes += pawl_state_tensor(tree->state, index)->nbytes;
		}
	}
	if (pawl_node_type(node) != PAWL_TENSOR && !is_container(node))
		sums->values++;
	for (node = pawl_node_first(node); node != NULL; node = pawl_node_next(node))
		add_up(tree, node, sums);
}

static const char *
float_text(struct keep *keep, double value)
{
	char out[40];

	if (!isfinite(value))
		return human_number(keep, value, 9);
	for (int digits = 6; digits <= 17; digits++) {
		(void)snprintf(out, sizeof(out), "%.*g", digits, value);
		if (strtod(out, NULL) == value)
			break;
	}
	return keep_printf(keep, "%s%s", out, strpbrk(out, ".e") == NULL ? ".0" : "");
}

static const char *
scalar_text(const struct tree *tree, const struct pawl_scalar *s, bool quoted)
{
	struct keep *keep = &tree->cli->keep;
	const char *text;
	size_t len;

	switch (s->type) {
	case PAWL_NONE:
		return "none";
	case PAWL_BOOLEAN:
		return s->i != 0 ? "true" : "false";
	case PAWL_INT:
		return s->ptr != NULL ? term_clean_n(keep, s->ptr, s->len) : keep_printf(keep, "%" PRId64, s->i);
	case PAWL_FLOAT:
		return float_text(keep, s->f);
	case PAWL_STR:
		if (s->ptr == NULL)
			return "text";
		len = s->len < 4 * TREE_TEXT_MAX ? s->len : 4 * TREE_TEXT_MAX;
		while (len < s->len && len > 0 && ((unsigned char)s->ptr[len] & 0xc0) == 0x80)
			len--;
		text = term_clean_n(keep, s->ptr, len);
		if (len < s->len)
			text = keep_printf(keep, "%s...", text);
		return keep_printf(keep, quoted ? "\"%s\"" : "%s",
		                   term_cut(keep, text, TREE_TEXT_MAX, tree->cli->out.utf8));
	case PAWL_BYTES:
		return s->ptr == NULL && s->len == 0 ? "bytes" : human_count(keep, s->len, "byte", "bytes");
	default:
		return "?";
	}
}

/* "(0.9, 0.999)" for a short list of values, else NULL. */
static const char *
inline_list(const struct tree *tree, const struct pawl_node *node)
{
	struct keep *keep = &tree->cli->keep;
	int type = pawl_node_type(node);
	const char *ret = type == PAWL_TUPLE ? "(" : "[", *comma = "";

	if ((type != PAWL_LIST && type != PAWL_TUPLE) || pawl_node_count(node) > TREE_INLINE_MAX)
		return NULL;
	for (node = pawl_node_first(node); node != NULL; node = pawl_node_next(node)) {
		const struct pawl_scalar *s = pawl_node_scalar(node);

		if (s == NULL || pawl_node_tensor(node) != SIZE_MAX || s->type == PAWL_BYTES)
			return NULL;
		ret = keep_printf(keep, "%s%s%s", ret, comma, scalar_text(tree, s, true));
		comma = ", ";
	}
	ret = keep_printf(keep, "%s%s", ret, type == PAWL_TUPLE ? ")" : "]");
	return term_width(ret) <= TREE_TEXT_MAX ? ret : NULL;
}

static const char *
branch_text(const struct tree *tree, const struct pawl_node *node, const struct sums *sums)
{
	struct keep *keep = &tree->cli->keep;
	int type = pawl_node_type(node);

	if (pawl_node_count(node) == 0)
		return type == PAWL_LIST ? "[]" : type == PAWL_TUPLE ? "()" : "{}";
	if (sums->tensors == 0)
		return human_count(keep, sums->values, "value", "values");
	if (sums->values == 0)
		return human_count(keep, sums->tensors, "tensor", "tensors");
	return keep_printf(keep, "%s, %s", human_count(keep, sums->tensors, "tensor", "tensors"),
	                   human_count(keep, sums->values, "value", "values"));
}

/* Fills the cells to the right of the name. Returns true if the children should follow. */
static bool
describe_node(const struct tree *tree, const struct pawl_node *node, struct cell *cells)
{
	struct keep *keep = &tree->cli->keep;
	size_t index = pawl_node_tensor(node);
	const struct pawl_tensor_info *info = index < tree->n_tensors ? pawl_state_tensor(tree->state, index) : NULL;
	const struct pawl_scalar *s = pawl_node_scalar(node);
	struct sums sums = {0};
	const char *text;

	if (is_container(node)) {
		text = inline_list(tree, node);
		if (text != NULL) {
			cells[1].text = text;
			return false;
		}
		add_up(tree, node, &sums);
		cells[1] = (struct cell){branch_text(tree, node, &sums), STYLE_DIM, NULL};
		if (sums.nbytes > 0)
			cells[2].text = human_bytes(keep, (double)sums.nbytes);
		return true;
	}
	if (info != NULL && tree->owners[index] != node) {
		cells[1] =
			(struct cell){keep_printf(keep, "tied to %s", term_clean(keep, info->name)), STYLE_DIM, NULL};
		return false;
	}
	if (info != NULL)
		cells[2].text = human_bytes(keep, (double)info->nbytes);
	if (s != NULL)
		cells[1].text = scalar_text(tree, s, true);
	else if (info != NULL)
		cells[1].text = keep_printf(keep, "%s %s", dtype_name(info->dtype), tree_shape(keep, info));
	return false;
}

static const char *
child_name(const struct tree *tree, const struct pawl_node *node, size_t index)
{
	const struct pawl_scalar *key = pawl_node_key(node);

	return key != NULL ? scalar_text(tree, key, false) : keep_printf(&tree->cli->keep, "%zu", index);
}

/* The connector from a branch to its children: drawn with lines if the locale has them. */
static const char *
joint_of(const struct tree *tree, bool last)
{
	if (tree->cli->out.utf8)
		return last ? "\u2514\u2500" : "\u251c\u2500";
	return last ? "`-" : "|-";
}

static const char *
indent_below(const struct tree *tree, const char *indent, bool last)
{
	const char *bar = tree->cli->out.utf8 ? "\u2502" : "|";

	return keep_printf(&tree->cli->keep, "%s%s  ", indent, last ? " " : bar);
}

struct child {
	const struct pawl_node *node;
	const char *name;
};

/* The children in the order in which they are printed: those of a list by position. */
static const struct child *
children_of(struct tree *tree, const struct pawl_node *parent)
{
	struct keep *keep = &tree->cli->keep;
	const size_t n = pawl_node_count(parent);
	struct child *saved = keep_alloc(keep, n + 1, sizeof(*saved)), *ret = keep_alloc(keep, n + 1, sizeof(*ret));
	struct order_item *items = keep_alloc(keep, n + 1, sizeof(*items));
	size_t i = 0;

	for (const struct pawl_node *node = pawl_node_first(parent); node != NULL; node = pawl_node_next(node), i++) {
		saved[i] = (struct child){node, child_name(tree, node, i)};
		items[i].name = saved[i].name;
	}
	order_numbers(items, n);
	for (i = 0; i < n; i++)
		ret[i] = saved[items[i].index];
	return ret;
}

/* One row for the children that are not shown. */
static void
print_rest(struct tree *tree, const struct child *rest, const char *indent, size_t count)
{
	struct keep *keep = &tree->cli->keep;
	struct cell *cells = grid_row(tree->grid);
	const char *n = human_count(keep, count, "", "");
	struct sums sums = {0};

	for (size_t i = 0; i < count; i++)
		add_up(tree, rest[i].node, &sums);
	cells[0] = (struct cell){keep_printf(keep, "%s%s %s more", indent, joint_of(tree, true), n), STYLE_DIM, NULL};
	if (sums.nbytes > 0)
		cells[2] = (struct cell){human_bytes(keep, (double)sums.nbytes), STYLE_DIM, NULL};
}

static void
print_children(struct tree *tree, const struct pawl_node *parent, const char *indent, uint64_t level)
{
	const struct tree_opts *opts = tree->opts;
	struct keep *keep = &tree->cli->keep;
	size_t count = pawl_node_count(parent), shown = count;
	const struct child *children = children_of(tree, parent);

	if (!opts->all && count > TREE_CHILDREN)
		shown = TREE_CHILDREN - 4;
	for (size_t i = 0; i < shown; i++) {
		const struct pawl_node *node = children[i].node;
		struct cell *cells = grid_row(tree->grid), *name = keep_alloc(keep, 1, sizeof(*name));
		bool last = i + 1 == count;

		cells[0].text = keep_printf(keep, "%s%s", indent, joint_of(tree, last));
		cells[0].style = STYLE_DIM;
		cells[0].more = name;
		name->text = children[i].name;
		name->style = is_container(node) ? STYLE_BOLD : STYLE_PLAIN;
		if (describe_node(tree, node, cells) && (opts->depth == 0 || level < opts->depth))
			print_children(tree, node, indent_below(tree, indent, last), level + 1);
	}
	if (shown < count)
		print_rest(tree, children + shown, indent, count - shown);
}

void
tree_print(struct cli *cli, const struct pawl_state *state, const struct tree_opts *opts)
{
	const struct column columns[] = {
		{opts->title, false, CUT_END, 0}, {"", false, CUT_END, 0}, {"size", true, RIGID, 0}};
	const struct pawl_node *root = pawl_state_root(state);
	struct tree tree = {cli, state, opts, NULL, NULL, pawl_state_tensor_count(state)};
	struct cell *cells;

	tree.owners = keep_alloc(&cli->keep, tree.n_tensors + 1, sizeof(struct pawl_node *));
	tree.grid = grid_new(&cli->keep, columns, 3);
	if (root != NULL) {
		find_owners(&tree, root);
		cells = grid_row(tree.grid);
		cells[0] = (struct cell){".", STYLE_DIM, NULL};
		if (describe_node(&tree, root, cells))
			print_children(&tree, root, "", 1);
	}
	grid_print(tree.grid, &cli->out);
}

void
tree_print_tensors(struct cli *cli, const struct pawl_state *state)
{
	static const struct column columns[] = {
		{"tensor", false, CUT_START, 0},
		{"dtype", false, RIGID, 0},
		{"shape", false, RIGID, 0},
		{"size", true, RIGID, 0},
	};
	struct grid *grid = grid_new(&cli->keep, columns, 4);
	const size_t n = pawl_state_tensor_count(state);
	struct order_item *items = keep_alloc(&cli->keep, n + 1, sizeof(*items));

	for (size_t i = 0; i < n; i++)
		items[i].name = pawl_state_tensor(state, i)->name;
	order_numbers(items, n);
	for (size_t i = 0; i < n; i++) {
		const struct pawl_tensor_info *info = pawl_state_tensor(state, items[i].index);
		struct cell *cells = grid_row(grid);

		cells[0].text = term_clean(&cli->keep, info->name);
		cells[1].text = dtype_name(info->dtype);
		cells[2].text = tree_shape(&cli->keep, info);
		cells[3].text = human_bytes(&cli->keep, (double)info->nbytes);
	}
	grid_print(grid, &cli->out);
}

/* ---- JSON */

static const char *
encode_base64(struct keep *keep, const char *ptr, size_t len)
{
	PAWL_CLEAN(buf_clear) struct buf out = {0};

	text_put_base64(&out, ptr, len);
	if (out.failed)
		keep_die();
	return keep_strndup(keep, buf_str(&out), out.len);
}

static void
one_member(struct jsonout *j, const char *key, const char *member, const char *value)
{
	jsonout_begin_object(j, key);
	jsonout_text(j, member, value);
	jsonout_end(j);
}

static void
scalar_json(struct jsonout *j, const char *key, const struct pawl_scalar *s, const char *tensor)
{
	struct keep keep = {0};
	uint64_t bits;

	switch (s->type) {
	case PAWL_BOOLEAN:
		jsonout_bool(j, key, s->i != 0);
		break;
	case PAWL_INT:
		if (s->ptr != NULL)
			one_member(j, key, "$int", term_clean_n(&keep, s->ptr, s->len));
		else if (s->i > JSON_EXACT_INT || s->i < -JSON_EXACT_INT)
			one_member(j, key, "$int", keep_printf(&keep, "%" PRId64, s->i));
		else
			jsonout_int(j, key, s->i);
		break;
	case PAWL_FLOAT:
		memcpy(&bits, &s->f, sizeof(bits));
		if (isfinite(s->f))
			jsonout_real(j, key, s->f);
		else
			one_member(j, key, "$float", keep_printf(&keep, "%016" PRIx64, bits));
		break;
	case PAWL_STR:
		if (s->ptr == NULL && tensor != NULL)
			one_member(j, key, "$str_in", tensor);
		else
			jsonout_text_n(j, key, s->ptr != NULL ? s->ptr : "", s->len);
		break;
	case PAWL_BYTES:
		if (s->ptr == NULL && tensor != NULL)
			one_member(j, key, "$bytes_in", tensor);
		else
			one_member(j, key, "$bytes",
			           encode_base64(&keep, s->ptr != NULL ? s->ptr : "", s->ptr != NULL ? s->len : 0));
		break;
	default:
		jsonout_null(j, key);
		break;
	}
	keep_clear(&keep);
}

/* Are all keys texts that a plain JSON object can have? */
static bool
has_plain_keys(const struct pawl_node *node)
{
	for (node = pawl_node_first(node); node != NULL; node = pawl_node_next(node)) {
		const struct pawl_scalar *key = pawl_node_key(node);

		if (key == NULL || key->type != PAWL_STR || key->ptr == NULL || (key->len > 0 && key->ptr[0] == '$') ||
		    memchr(key->ptr, 0, key->len) != NULL)
			return false;
	}
	return true;
}

static void node_json(struct jsonout *j, const char *key, const struct pawl_state *state, const struct pawl_node *node);

static void
items_json(struct jsonout *j, const char *key, const struct pawl_state *state, const struct pawl_node *node)
{
	jsonout_begin_array(j, key);
	for (node = pawl_node_first(node); node != NULL; node = pawl_node_next(node)) {
		const struct pawl_scalar *own = pawl_node_key(node);

		if (own == NULL) {
			node_json(j, NULL, state, node);
			continue;
		}
		jsonout_begin_array(j, NULL);
		scalar_json(j, NULL, own, NULL);
		node_json(j, NULL, state, node);
		jsonout_end(j);
	}
	jsonout_end(j);
}

static void
container_json(struct jsonout *j, const char *key, const struct pawl_state *state, const struct pawl_node *node)
{
	int type = pawl_node_type(node);

	if (type == PAWL_LIST) {
		items_json(j, key, state, node);
		return;
	}
	jsonout_begin_object(j, key);
	if (type == PAWL_DICT && has_plain_keys(node)) {
		for (node = pawl_node_first(node); node != NULL; node = pawl_node_next(node)) {
			struct keep keep = {0};
			const struct pawl_scalar *own = pawl_node_key(node);

			node_json(j, keep_strndup(&keep, own->ptr, own->len), state, node);
			keep_clear(&keep);
		}
	} else {
		items_json(j, type == PAWL_TUPLE ? "$tuple" : type == PAWL_ODICT ? "$odict" : "$dict", state, node);
	}
	jsonout_end(j);
}

static void
plain_json(struct jsonout *j, const char *key, const struct pawl_state *state, const struct pawl_node *node)
{
	size_t index = pawl_node_tensor(node);
	const struct pawl_tensor_info *info =
		index < pawl_state_tensor_count(state) ? pawl_state_tensor(state, index) : NULL;
	const struct pawl_scalar *s = pawl_node_scalar(node);

	if (s != NULL) {
		scalar_json(j, key, s, info != NULL ? info->name : NULL);
	} else if (is_container(node)) {
		container_json(j, key, state, node);
	} else {
		jsonout_begin_object(j, key);
		jsonout_text(j, "$tensor", info != NULL ? info->name : NULL);
		if (*pawl_node_kind(node) != '\0')
			jsonout_text(j, "as", pawl_node_kind(node));
		jsonout_end(j);
	}
}

static void
node_json(struct jsonout *j, const char *key, const struct pawl_state *state, const struct pawl_node *node)
{
	if (pawl_node_type(node) == PAWL_TENSOR || *pawl_node_kind(node) == '\0') {
		plain_json(j, key, state, node);
		return;
	}
	jsonout_begin_object(j, key);
	plain_json(j, "$value", state, node);
	jsonout_text(j, "as", pawl_node_kind(node));
	jsonout_end(j);
}

void
tree_json(struct jsonout *j, const char *key, const struct pawl_state *state)
{
	const struct pawl_node *root = state != NULL ? pawl_state_root(state) : NULL;

	if (root == NULL)
		jsonout_null(j, key);
	else
		node_json(j, key, state, root);
}

void
tree_tensors_json(struct jsonout *j, const char *key, const struct pawl_state *state)
{
	jsonout_begin_array(j, key);
	for (size_t i = 0; i < pawl_state_tensor_count(state); i++) {
		const struct pawl_tensor_info *info = pawl_state_tensor(state, i);

		jsonout_begin_object(j, NULL);
		jsonout_text(j, "name", info->name);
		jsonout_text(j, "dtype", dtype_name(info->dtype));
		jsonout_begin_flat_array(j, "shape");
		for (uint32_t d = 0; d < info->ndim; d++)
			jsonout_uint(j, NULL, info->shape[d]);
		jsonout_end(j);
		jsonout_uint(j, "bytes", info->nbytes);
		jsonout_end(j);
	}
	jsonout_end(j);
}
