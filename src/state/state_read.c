/* SPDX-License-Identifier: Apache-2.0 */
/* state_read: reads a state: nodes, look-up by path, typed getters, the text of keys and paths. */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/text.h"
#include "state/state_build.h"

const char *
state_type_name(int type)
{
	static const char *const names[] = {
		[PAWL_NONE] = "none",
		[PAWL_BOOLEAN] = "bool",
		[PAWL_INT] = "int",
		[PAWL_FLOAT] = "float",
		[PAWL_STR] = "str",
		[PAWL_BYTES] = "bytes",
		[PAWL_TENSOR] = "tensor",
		[PAWL_DICT] = "dict",
		[PAWL_ODICT] = "odict",
		[PAWL_LIST] = "list",
		[PAWL_TUPLE] = "tuple",
		[PAWL_PER_RANK] = "value per rank",
		[PAWL_DIFFERS] = "value that differs between ranks",
	};

	return type >= 0 && type <= PAWL_DIFFERS ? names[type] : "unknown type";
}

const char *
state_article(int type)
{
	return strchr("aeiou", state_type_name(type)[0]) ? "an " : "a ";
}

/* ------------------------------------------------------------------ nodes */

const struct pawl_node *
pawl_state_root(const struct pawl_state *s)
{
	return s->root;
}

int
pawl_node_type(const struct pawl_node *node)
{
	return node->type;
}

size_t
pawl_node_count(const struct pawl_node *node)
{
	return node->count;
}

const struct pawl_node *
pawl_node_first(const struct pawl_node *node)
{
	return node->first;
}

const struct pawl_node *
pawl_node_next(const struct pawl_node *node)
{
	return node->next;
}

const struct pawl_scalar *
pawl_node_key(const struct pawl_node *node)
{
	return node->key;
}

const struct pawl_scalar *
pawl_node_scalar(const struct pawl_node *node)
{
	return node->type < PAWL_TENSOR ? &node->scalar : NULL;
}

const struct pawl_node *
pawl_node_own(const struct pawl_node *node)
{
	if (!state_is_ranks(node->type))
		return node;
	return state_is_transparent(node) && node->scalar.i != STATE_UNCLAIMED ? node->first : NULL;
}

size_t
pawl_node_tensor(const struct pawl_node *node)
{
	return node->type == PAWL_TENSOR ? node->tensor : SIZE_MAX;
}

const char *
pawl_node_kind(const struct pawl_node *node)
{
	return node->kind;
}

size_t
pawl_state_tensor_count(const struct pawl_state *s)
{
	return s->n_tensors;
}

const struct pawl_tensor_info *
pawl_state_tensor(const struct pawl_state *s, size_t index)
{
	return index < s->n_tensors ? &s->tensors[index].info : NULL;
}

size_t
pawl_state_last_tensor(const struct pawl_state *s)
{
	return s->last_tensor - 1;
}

int
state_check_complete(const struct pawl_state *s, struct pawl_error *err)
{
	if (!s->root)
		return err_set(err, PAWL_EUSAGE, "state: empty, expected a value or a container");
	if (s->builder->depth > 0)
		return err_set(err, PAWL_EUSAGE, "state: %u containers have not ended", s->builder->depth);
	return 0;
}

/* ---------------------------------------------------------------- scalars */

/* Decimal text as a host language prints an int: no plus, no leading zeros. Small ones go to i. */
static int
normalise_int(struct pawl_scalar *s, struct pawl_error *err)
{
	if (!s->ptr) {
		s->len = 0;
		return 0;
	}
	bool negative = s->len > 0 && s->ptr[0] == '-';
	size_t first = negative ? 1 : 0;
	bool is_decimal = s->len > first && (s->ptr[first] != '0' || (s->len == 1 && !negative));
	for (size_t i = first; is_decimal && i < s->len; i++)
		is_decimal = s->ptr[i] >= '0' && s->ptr[i] <= '9';
	if (!is_decimal)
		return err_set(err, PAWL_EUSAGE, "text of an int must be decimal digits");
	if (s->len > STATE_MAX_INT_DIGITS)
		return err_set(err, PAWL_ELIMIT, "int of %zu digits, at most %d are possible", s->len,
		               STATE_MAX_INT_DIGITS);
	int64_t value = 0;
	for (size_t i = first; i < s->len; i++) {
		int digit = s->ptr[i] - '0';
		if (__builtin_mul_overflow(value, 10, &value) ||
		    __builtin_add_overflow(value, negative ? -digit : digit, &value)) {
			s->i = 0;
			return 0; /* beyond 64 bits: stays text */
		}
	}
	*s = (struct pawl_scalar){.type = PAWL_INT, .i = value};
	return 0;
}

int
state_normalise(const struct pawl_scalar *in, struct pawl_scalar *ret, struct pawl_error *err)
{
	struct pawl_scalar s = {.type = in->type};

	switch (in->type) {
	case PAWL_NONE:
		break;
	case PAWL_BOOLEAN:
		s.i = in->i != 0;
		break;
	case PAWL_INT:
		s.i = in->i;
		s.ptr = in->ptr;
		s.len = in->len;
		TRY(normalise_int(&s, err));
		break;
	case PAWL_FLOAT:
		s.f = in->f;
		break;
	case PAWL_STR:
	case PAWL_BYTES:
		if (!in->ptr && in->len > 0)
			return err_set(err, PAWL_EUSAGE, "%zu bytes, but ptr is NULL", in->len);
		s.ptr = in->ptr ? in->ptr : "";
		s.len = in->len;
		if (in->type == PAWL_STR && !text_is_utf8(s.ptr, s.len))
			return err_set(err, PAWL_EUSAGE, "text is not valid UTF-8");
		break;
	default:
		if (in->type > 0 && in->type <= PAWL_DIFFERS)
			return err_set(err, PAWL_EUSAGE, "not a scalar");
		return err_set(err, PAWL_EUNSUPPORTED, "a value of type %d cannot be held in a state", in->type);
	}
	*ret = s;
	return 0;
}

/* ------------------------------------------------------------------ paths */

static void
put_escaped(struct buf *out, const char *text, size_t len, bool is_bytes)
{
	size_t done = 0;

	for (size_t i = 0; i < len; i++) {
		unsigned char c = (unsigned char)text[i];
		if (c != '/' && c != '%' && c != '\0' && (!is_bytes || (c >= 0x20 && c <= 0x7e)))
			continue;
		buf_put(out, text + done, i - done);
		buf_printf(out, "%%%02X", c);
		done = i + 1;
	}
	buf_put(out, text + done, len - done);
}

void
state_put_key(struct buf *out, const struct pawl_scalar *key)
{
	switch (key->type) {
	case PAWL_NONE:
		buf_puts(out, "null");
		break;
	case PAWL_BOOLEAN:
		buf_puts(out, key->i ? "true" : "false");
		break;
	case PAWL_INT:
		if (key->ptr)
			buf_put(out, key->ptr, key->len);
		else
			json_put_i64(out, key->i);
		break;
	case PAWL_FLOAT:
		if (__builtin_isfinite(key->f))
			json_put_double(out, key->f);
		else
			buf_puts(out, __builtin_isnan(key->f) ? "nan" : key->f < 0 ? "-inf" : "inf");
		break;
	default:
		put_escaped(out, key->ptr, key->len, key->type == PAWL_BYTES);
	}
}

void
state_put_component(struct buf *out, const struct pawl_node *parent, const struct pawl_node *child, size_t index)
{
	if (state_is_dict(parent->type))
		state_put_key(out, child->key);
	else if (state_is_ranks(parent->type))
		buf_printf(out, "@%zu", index);
	else
		buf_printf(out, "%zu", index);
}

bool
state_unescape(const char *component, size_t len, char *key, size_t *ret_len)
{
	size_t n = 0;

	for (size_t i = 0; i < len; i++) {
		char c = component[i];
		if (n == STATE_MAX_KEY_BYTES)
			return false;
		if (c == '%') {
			int high = len - i > 2 ? text_hex_digit(component[i + 1]) : -1;
			int low = high >= 0 ? text_hex_digit(component[i + 2]) : -1;
			if (low < 0)
				return false;
			c = (char)(high * 16 + low);
			i += 2;
		}
		key[n++] = c;
	}
	*ret_len = n;
	return true;
}

static const struct pawl_node *
child_by_index(const struct pawl_node *parent, const char *component, size_t len)
{
	size_t index = 0;

	if (len == 0 || len > 8 || (component[0] == '0' && len > 1)) /* a state has at most 10^7 nodes */
		return NULL;
	for (size_t i = 0; i < len; i++) {
		if (component[i] < '0' || component[i] > '9')
			return NULL;
		index = index * 10 + (size_t)(component[i] - '0');
	}
	const struct pawl_node *node = parent->first;
	while (node && index-- > 0)
		node = node->next;
	return node;
}

/* Str keys first, then ints, both by hash; the rare other keys are compared one by one. */
const struct pawl_node *
state_child_at(const struct pawl_state *s, const struct pawl_node *parent, const char *component, size_t len)
{
	char text[STATE_MAX_KEY_BYTES];
	struct pawl_scalar str = {.type = PAWL_STR, .ptr = text}, number = {.type = PAWL_INT, .ptr = text};
	PAWL_CLEAN(buf_clear) struct buf other = {0};

	if (state_is_ranks(parent->type))
		return len > 0 && *component == '@' ? child_by_index(parent, component + 1, len - 1) : NULL;
	if (!state_is_dict(parent->type))
		return child_by_index(parent, component, len);
	if (!state_unescape(component, len, text, &str.len))
		return NULL;
	const struct pawl_node *node = state_child(s, parent, &str);
	number.len = str.len;
	if (!node && normalise_int(&number, NULL) == 0)
		node = state_child(s, parent, &number);
	for (const struct pawl_node *child = node ? NULL : parent->first; child && !node; child = child->next) {
		if (child->key->type == PAWL_STR || child->key->type == PAWL_INT)
			continue;
		other.len = 0;
		state_put_key(&other, child->key);
		if (other.len == len && memcmp(buf_str(&other), component, len) == 0)
			node = child;
	}
	return node;
}

static const struct pawl_node *
inner_node(const struct pawl_node *node)
{
	return state_is_transparent(node) ? node->first : node;
}

const struct pawl_node *
pawl_state_at(const struct pawl_state *s, const char *path)
{
	const struct pawl_node *node = s->root;

	for (const char *at = path; node && *path;) {
		size_t len = strcspn(at, "/");
		node = state_child_at(s, inner_node(node), at, len);
		at += len;
		if (!*at)
			break;
		at++;
	}
	return node ? inner_node(node) : NULL;
}

/* ------------------------------------------------------------------ ranks */

static void
resolve_node(struct pawl_node *node, size_t source)
{
	if (node->type == PAWL_DIFFERS || (node->type == PAWL_PER_RANK && source < node->count)) {
		size_t wanted = source < node->count ? source : 0;
		struct pawl_node *child = node->first;

		for (size_t i = 0; i < wanted; i++)
			child = child->next;
		node->first = node->last = child;
		node->count = 1;
		child->next = NULL;
	} else if (node->type == PAWL_PER_RANK) {
		node->scalar.i = STATE_UNCLAIMED;
	}
	for (struct pawl_node *child = node->first; child; child = child->next)
		resolve_node(child, source); /* the builder has bounded the depth */
}

void
state_resolve_ranks(struct pawl_state *state, size_t source)
{
	if (state->root && state->has_ranks)
		resolve_node(state->root, source);
}

/* ---------------------------------------------------------------- getters */

static int
get_at(const struct pawl_state *s, const char *path, int type, const void *place, const struct pawl_scalar **ret,
       struct pawl_error *err)
{
	if (!s || !path || !place)
		return err_set(err, PAWL_EUSAGE,
		               "state: expected a state, a path and a pointer that receives the value, found NULL");
	const struct pawl_node *node = pawl_state_at(s, path);

	if (!node) {
		err_set(err, PAWL_ENOTFOUND, "state: nothing at '%.400s'", path);
		return PAWL_ENOTFOUND;
	}
	if (node->type != type) {
		err_set(err, PAWL_EMISMATCH, "state: %.400s has type %s, expected %s", path,
		        state_type_name(node->type), state_type_name(type));
		return PAWL_EMISMATCH;
	}
	*ret = &node->scalar;
	return 0;
}

int
pawl_state_get_int(const struct pawl_state *s, const char *path, int64_t *ret, struct pawl_error *err)
{
	const struct pawl_scalar *scalar;

	TRY(get_at(s, path, PAWL_INT, ret, &scalar, err));
	if (scalar->ptr)
		return err_set(err, PAWL_ELIMIT, "state: %.400s does not fit 64 bits: %.40s%s", path, scalar->ptr,
		               scalar->len > 40 ? "..." : "");
	*ret = scalar->i;
	return 0;
}

int
pawl_state_get_float(const struct pawl_state *s, const char *path, double *ret, struct pawl_error *err)
{
	const struct pawl_scalar *scalar;

	TRY(get_at(s, path, PAWL_FLOAT, ret, &scalar, err));
	*ret = scalar->f;
	return 0;
}

int
pawl_state_get_str(const struct pawl_state *s, const char *path, const char **ret, struct pawl_error *err)
{
	const struct pawl_scalar *scalar;

	TRY(get_at(s, path, PAWL_STR, ret, &scalar, err));
	if (!scalar->ptr)
		return err_set(err, PAWL_EUSAGE, "state: %.400s is a long str whose bytes have not been read yet",
		               path);
	*ret = scalar->ptr;
	return 0;
}
