/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state_json: a state <-> its JSON form (state.h lists the forms). Both directions walk with a
 * stack of STATE_MAX_DEPTH frames, never by recursion. Promises P1 (every value is restored bit for
 * bit), P17 (a hostile tree is refused).
 */
#include <string.h>

#include "base/err.h"
#include "base/text.h"
#include "state/state_build.h"

#define EXACT_INT ((int64_t)1 << 53) /* every JSON reader keeps it exactly */

/* --------------------------------------------------------------- encoding */

static void
put_base64(struct buf *out, const char *type, const struct pawl_scalar *s)
{
	buf_printf(out, "{\"%s\":\"", type);
	text_put_base64(out, s->ptr, s->len);
	buf_puts(out, "\"}");
}

void
state_put_float(struct buf *out, double value)
{
	uint64_t bits;

	memcpy(&bits, &value, sizeof(bits));
	if (__builtin_isfinite(value))
		json_put_double(out, value);
	else
		buf_printf(out, "{\"$float\":\"%016llx\"}", (unsigned long long)bits);
}

static void
put_scalar(struct buf *out, const struct pawl_scalar *s)
{
	switch (s->type) {
	case PAWL_NONE:
		buf_puts(out, "null");
		break;
	case PAWL_BOOLEAN:
		buf_puts(out, s->i ? "true" : "false");
		break;
	case PAWL_INT:
		if (s->ptr)
			buf_printf(out, "{\"$int\":\"%s\"}", s->ptr);
		else if (s->i > EXACT_INT || s->i < -EXACT_INT)
			buf_printf(out, "{\"$int\":\"%lld\"}", (long long)s->i);
		else
			json_put_i64(out, s->i);
		break;
	case PAWL_FLOAT:
		state_put_float(out, s->f);
		break;
	case PAWL_STR:
		if (memchr(s->ptr, '\0', s->len))
			put_base64(out, "$str", s);
		else
			json_put_string(out, s->ptr, s->len);
		break;
	default:
		put_base64(out, "$bytes", s);
	}
}

static void
put_named(struct buf *out, const char *opening, const char *name, const char *kind)
{
	buf_puts(out, opening);
	json_put_string(out, name, strlen(name));
	if (*kind)
		json_add_text(out, "as", kind);
	buf_putc(out, '}');
}

/* A tensor has its kind in its own form. */
static bool
has_value_form(const struct pawl_node *node)
{
	return node->type != PAWL_TENSOR && *node->kind;
}

static void
put_kind_opening(struct buf *out, const struct pawl_node *node)
{
	if (has_value_form(node))
		buf_puts(out, "{\"$value\":");
}

static void
put_kind_closing(struct buf *out, const struct pawl_node *node)
{
	if (!has_value_form(node))
		return;
	json_add_text(out, "as", node->kind);
	buf_putc(out, '}');
}

static void
put_leaf(const struct pawl_state *s, const struct pawl_node *node, struct buf *out)
{
	const char *name = node->tensor != SIZE_MAX ? s->tensors[node->tensor].info.name : "";

	put_kind_opening(out, node);
	if (node->type == PAWL_TENSOR)
		put_named(out, "{\"$tensor\":", name, node->kind);
	else if (node->tensor != SIZE_MAX)
		put_named(out, node->type == PAWL_STR ? "{\"$str_in\":" : "{\"$bytes_in\":", name, "");
	else
		put_scalar(out, &node->scalar);
	put_kind_closing(out, node);
}

/* How the children of a container are written. */
enum form { FORM_ARRAY, FORM_OBJECT, FORM_PAIRS };

static bool
is_plain_key(const struct pawl_scalar *key)
{
	return key->type == PAWL_STR && (key->len == 0 || key->ptr[0] != '$') && !memchr(key->ptr, '\0', key->len);
}

static enum form
form_of(const struct pawl_node *node)
{
	if (node->type == PAWL_LIST || node->type == PAWL_TUPLE || state_is_ranks(node->type))
		return FORM_ARRAY;
	if (node->type == PAWL_ODICT)
		return FORM_PAIRS;
	for (const struct pawl_node *child = node->first; child; child = child->next) {
		if (!is_plain_key(child->key))
			return FORM_PAIRS;
	}
	return FORM_OBJECT;
}

struct encode_frame {
	const struct pawl_node *node, *child; /* child: the next one to write */
	enum form form;
};

/* The name of an array that is not a list. */
static const char *
typed_array(int type)
{
	return type == PAWL_TUPLE      ? "$tuple"
	       : type == PAWL_PER_RANK ? "$rank"
	       : type == PAWL_DIFFERS  ? "$differs"
	                               : NULL;
}

static void
put_opening(struct buf *out, const struct encode_frame *f)
{
	put_kind_opening(out, f->node);
	if (typed_array(f->node->type))
		buf_printf(out, "{\"%s\":[", typed_array(f->node->type));
	else if (f->form == FORM_PAIRS)
		buf_puts(out, f->node->type == PAWL_ODICT ? "{\"$odict\":[" : "{\"$dict\":[");
	else
		buf_putc(out, f->form == FORM_ARRAY ? '[' : '{');
}

static void
put_closing(struct buf *out, const struct encode_frame *f)
{
	if (f->form != FORM_OBJECT)
		buf_putc(out, ']');
	if (f->form != FORM_ARRAY || typed_array(f->node->type))
		buf_putc(out, '}');
	put_kind_closing(out, f->node);
}

static void
put_key(struct buf *out, const struct encode_frame *f)
{
	if (f->child != f->node->first)
		buf_putc(out, ',');
	if (f->form == FORM_ARRAY)
		return;
	if (f->form == FORM_PAIRS)
		buf_putc(out, '[');
	put_scalar(out, f->child->key);
	buf_putc(out, f->form == FORM_PAIRS ? ',' : ':');
}

int
state_encode(const struct pawl_state *s, struct buf *out, struct pawl_error *err)
{
	struct encode_frame stack[STATE_MAX_DEPTH];
	unsigned depth = 0;

	TRY(state_check_complete(s, err));
	for (const struct pawl_node *node = s->root; node;) {
		if (node->type >= PAWL_DICT) {
			stack[depth] = (struct encode_frame){node, node->first, form_of(node)};
			put_opening(out, &stack[depth++]);
		} else {
			put_leaf(s, node, out);
			if (depth > 0 && stack[depth - 1].form == FORM_PAIRS)
				buf_putc(out, ']');
		}
		while (depth > 0 && !stack[depth - 1].child) {
			put_closing(out, &stack[--depth]);
			if (depth > 0 && stack[depth - 1].form == FORM_PAIRS)
				buf_putc(out, ']');
		}
		node = depth > 0 ? stack[depth - 1].child : NULL;
		if (node) {
			put_key(out, &stack[depth - 1]);
			stack[depth - 1].child = node->next;
		}
	}
	return buf_check(out, "state", err);
}

/* --------------------------------------------------------------- decoding */

struct decode_frame {
	const struct json *next; /* child to place */
	enum form form;
};

struct decoder {
	struct pawl_state *state;
	struct decode_frame stack[STATE_MAX_DEPTH];
	unsigned depth;
	struct buf bytes; /* decoded from base64 */
	char digits[24];  /* an unsigned int beyond INT64_MAX */
	struct pawl_error *err;
};

static void
clean_decoder(struct decoder *d)
{
	buf_clear(&d->bytes);
	pawl_state_free(d->state);
}

/* The typed form of an object ("$tuple", ...), or NULL for plain values. */
static const char *
typed_form(const struct json *value)
{
	return value->type == JSON_OBJECT && value->first && value->first->key[0] == '$' ? value->first->key : NULL;
}

static int
refuse_form(struct decoder *d, const char *form, const char *expected)
{
	return err_set(d->err, PAWL_ECORRUPT, "state: %.64s: expected %s", form, expected);
}

/* 16 lower-case hex digits: the bits of a float. */
static bool
get_float_bits(const struct json *text, double *ret)
{
	uint64_t bits = 0;

	for (size_t i = 0; i < 16; i++) {
		char c = text->len == 16 ? text->str[i] : '?';
		int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
		if (digit < 0)
			return false;
		bits = bits << 4 | (unsigned)digit;
	}
	memcpy(ret, &bits, sizeof(bits));
	return true;
}

bool
state_get_float(const struct json *value, double *ret)
{
	const char *form = typed_form(value);

	if (form)
		return strcmp(form, "$float") == 0 && value->len == 1 && value->first->type == JSON_STRING &&
		       get_float_bits(value->first, ret);
	if (value->type != JSON_REAL && value->type != JSON_INT && value->type != JSON_UINT)
		return false;
	*ret = value->real;
	return true;
}

/* A typed scalar: 1. Another form: 0. Else an error. */
static int
typed_scalar(struct decoder *d, const char *form, const struct json *value, struct pawl_scalar *ret)
{
	const struct json *text = value->first;
	bool is_str = strcmp(form, "$str") == 0;

	if (!is_str && strcmp(form, "$int") != 0 && strcmp(form, "$float") != 0 && strcmp(form, "$bytes") != 0)
		return 0;
	if (text->type != JSON_STRING || value->len != 1)
		return refuse_form(d, form, "one string");
	if (strcmp(form, "$int") == 0) {
		*ret = (struct pawl_scalar){.type = PAWL_INT, .ptr = text->str, .len = text->len};
		return 1;
	}
	if (strcmp(form, "$float") == 0) {
		ret->type = PAWL_FLOAT;
		return get_float_bits(text, &ret->f) ? 1 : refuse_form(d, form, "16 lower-case hex digits");
	}
	d->bytes.len = 0;
	TRY(text_get_base64(text->str, text->len, &d->bytes, d->err));
	TRY(buf_check(&d->bytes, "state", d->err));
	*ret = (struct pawl_scalar){
		.type = is_str ? PAWL_STR : PAWL_BYTES, .ptr = buf_str(&d->bytes), .len = d->bytes.len};
	return 1;
}

/* A scalar: 1 and *ret. Another value: 0. Else an error. Text is borrowed. */
static int
get_scalar(struct decoder *d, const struct json *value, struct pawl_scalar *ret)
{
	const char *form = typed_form(value);
	int rc = 1;

	*ret = (struct pawl_scalar){0};
	switch (value->type) {
	case JSON_NULL:
		break;
	case JSON_BOOL:
		*ret = (struct pawl_scalar){.type = PAWL_BOOLEAN, .i = value->boolean};
		break;
	case JSON_INT:
		*ret = (struct pawl_scalar){.type = PAWL_INT, .i = value->i};
		break;
	case JSON_UINT: {
		struct buf digits = {.ptr = d->digits, .cap = sizeof(d->digits), .max = sizeof(d->digits) - 1};
		json_put_u64(&digits, value->u);
		*ret = (struct pawl_scalar){.type = PAWL_INT, .ptr = d->digits, .len = digits.len};
		break;
	}
	case JSON_REAL:
		*ret = (struct pawl_scalar){.type = PAWL_FLOAT, .f = value->real};
		break;
	case JSON_STRING:
		*ret = (struct pawl_scalar){.type = PAWL_STR, .ptr = value->str, .len = value->len};
		break;
	default:
		rc = form ? typed_scalar(d, form, value, ret) : 0;
	}
	if (rc == 1 && (ret->type == PAWL_STR || ret->type == PAWL_BYTES) && ret->len > STATE_LONG_BYTES)
		return err_set(d->err, PAWL_ELIMIT, "state: %s of %zu bytes, at most %d are stored in the text",
		               state_type_name(ret->type), ret->len, STATE_LONG_BYTES);
	return rc;
}

static int
open_container(struct decoder *d, int type, const struct json *children, enum form form)
{
	TRY(pawl_state_begin(d->state, type, d->err));
	d->stack[d->depth++] = (struct decode_frame){children->first, form};
	return 0;
}

static int
place_named(struct decoder *d, const char *form, int type, const struct json *value)
{
	const struct json *name = value->first, *kind = name->next;

	if (name->type != JSON_STRING)
		return refuse_form(d, form, "the name of a tensor");
	if (kind && (type != PAWL_TENSOR || kind->next || strcmp(kind->key, "as") != 0 || kind->type != JSON_STRING))
		return refuse_form(d, form, "no further members than \"as\"");
	return state_add_named(d->state, type, name->str, kind ? kind->str : type == PAWL_TENSOR ? "" : NULL, d->err);
}

/* A typed form that is not a scalar. */
static int
place_typed(struct decoder *d, const char *form, const struct json *value)
{
	static const struct {
		const char *name;
		int type;
	} forms[] = {
		{"$tensor", PAWL_TENSOR}, {"$str_in", PAWL_STR},  {"$bytes_in", PAWL_BYTES}, {"$tuple", PAWL_TUPLE},
		{"$dict", PAWL_DICT},     {"$odict", PAWL_ODICT}, {"$rank", PAWL_PER_RANK},  {"$differs", PAWL_DIFFERS},
	};

	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
		int type = forms[i].type;
		if (strcmp(form, forms[i].name) != 0)
			continue;
		if (type < PAWL_DICT)
			return place_named(d, form, type, value);
		if (value->first->type != JSON_ARRAY || value->len != 1)
			return refuse_form(d, form, "one array");
		return open_container(d, type, value->first, typed_array(type) ? FORM_ARRAY : FORM_PAIRS);
	}
	return refuse_form(d, form, "a known form");
}

/* Replaces {"$value":..,"as":".."} by the value, and sets its kind. Other values stay. */
static int
open_value(struct decoder *d, const struct json **value)
{
	const char *form = typed_form(*value);

	if (!form || strcmp(form, "$value") != 0)
		return 0;

	const struct json *plain = (*value)->first, *kind = plain->next;

	if (!kind || kind->next || strcmp(kind->key, "as") != 0 || kind->type != JSON_STRING || kind->len == 0)
		return refuse_form(d, form, "one member \"as\" with a text");
	form = typed_form(plain);
	if (form && (strcmp(form, "$value") == 0 || strcmp(form, "$tensor") == 0))
		return refuse_form(d, "$value", "a value other than a tensor, without a kind");
	*value = plain;
	return pawl_state_kind(d->state, kind->str, d->err);
}

static int
place_value(struct decoder *d, const struct json *value)
{
	struct pawl_scalar scalar;

	TRY(open_value(d, &value));

	const char *form = typed_form(value);
	int rc = get_scalar(d, value, &scalar);

	if (rc < 0)
		return rc;
	if (rc == 1)
		return pawl_state_add(d->state, &scalar, d->err);
	if (value->type == JSON_ARRAY)
		return open_container(d, PAWL_LIST, value, FORM_ARRAY);
	return form ? place_typed(d, form, value) : open_container(d, PAWL_DICT, value, FORM_OBJECT);
}

/* Places the key of a child of a dict; returns the child's value in *ret. */
static int
place_key(struct decoder *d, const struct json *child, enum form form, const struct json **ret)
{
	struct pawl_scalar key = {.type = PAWL_STR, .ptr = child->key, .len = child->key_len};

	*ret = child;
	if (form == FORM_OBJECT && child->key[0] == '$')
		return refuse_form(d, child->key, "no key that starts with '$' here");
	if (form == FORM_PAIRS) {
		if (child->type != JSON_ARRAY || child->len != 2)
			return refuse_form(d, "$dict", "[key, value] pairs");
		int rc = get_scalar(d, child->first, &key);
		if (rc < 0)
			return rc;
		if (rc == 0)
			return refuse_form(d, "$dict", "a scalar as key");
		*ret = child->first->next;
	}
	return pawl_state_key(d->state, &key, d->err);
}

static int
decode_value(struct decoder *d, const struct json *value)
{
	TRY(place_value(d, value));
	while (d->depth > 0) {
		struct decode_frame *f = &d->stack[d->depth - 1];
		const struct json *child = f->next;
		if (!child) {
			TRY(pawl_state_end(d->state, d->err));
			d->depth--;
			continue;
		}
		f->next = child->next;
		if (f->form != FORM_ARRAY)
			TRY(place_key(d, child, f->form, &child));
		TRY(place_value(d, child));
	}
	return 0;
}

int
state_decode(const char *what, const struct json *value, struct pawl_state **ret, struct pawl_error *err)
{
	PAWL_CLEAN(clean_decoder) struct decoder d = {.err = err};

	TRY(pawl_state_new(&d.state, err));
	d.state->is_of_all = true;
	int rc = decode_value(&d, value);
	if (rc < 0) {
		/* a mistake of the caller in building is a damaged file here */
		if (rc != PAWL_ENOMEM && rc != PAWL_ELIMIT)
			rc = PAWL_ECORRUPT;
		if (err)
			err->code = rc;
		return err_prefix(err, rc, "%s", what);
	}
	*ret = steal(&d.state);
	return 0;
}
