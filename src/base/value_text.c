/* SPDX-License-Identifier: Apache-2.0 */
/* value_text: values from text and to text. */
#include <string.h>

#include "base/err.h"
#include "base/value_own.h"

/* ---- reading ---- */

static int convert_json(const struct json *from, const char *what, struct value **ret, struct pawl_error *err);

static int
convert_children(const struct json *from, const char *what, struct value *to, struct pawl_error *err)
{
	for (const struct json *child = from->first; child; child = child->next) {
		struct value *part = NULL;
		char *key = NULL;

		TRY(convert_json(child, what, &part, err));
		if (child->key && !(key = mem_strndup(child->key, child->key_len))) {
			value_free(part);
			return err_nomem(err, NULL);
		}
		if (!value_add_part(to, key, child->key_len, part))
			return err_nomem(err, NULL);
	}
	return 0;
}

static struct value *
convert_leaf(const struct json *from)
{
	switch (from->type) {
	case JSON_BOOL:
		return value_new_bool(from->boolean);
	case JSON_INT:
		return value_new_int(from->i);
	case JSON_REAL:
		return value_new_real(from->real);
	case JSON_STRING:
		return value_new_text_n(from->str, from->len);
	case JSON_ARRAY:
		return value_new_array();
	case JSON_OBJECT:
		return value_new_object();
	case JSON_UINT:
	case JSON_NULL:
		break;
	}
	return value_new_null();
}

/* Not deeper than VALUE_MAX_DEPTH. */
static int
convert_json(const struct json *from, const char *what, struct value **ret, struct pawl_error *err)
{
	if (from->type == JSON_UINT)
		return err_set(err, PAWL_EUSAGE, "%s: expected an integer below 2^63, found %llu", what,
		               (unsigned long long)from->u);
	PAWL_CLEAN(value_free_clean) struct value *v = convert_leaf(from);
	if (!v)
		return err_nomem(err, NULL);
	TRY(convert_children(from, what, v, err));
	*ret = steal(&v);
	return 0;
}

int
value_parse(const char *text, size_t len, const char *what, struct value **ret, struct pawl_error *err)
{
	static const struct json_limits limits = {
		.max_bytes = VALUE_MAX_BYTES, .max_depth = VALUE_MAX_DEPTH, .max_string = VALUE_MAX_BYTES};
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct json *root = NULL;

	if (!text)
		return err_set(err, PAWL_EUSAGE, "%s: expected JSON, found nothing", what);
	int rc = json_parse(what, text, len == SIZE_MAX ? strlen(text) : len, &limits, &memory, &root, err);
	if (rc == PAWL_ECORRUPT && err)
		err->code = PAWL_EUSAGE;
	if (rc == 0)
		rc = convert_json(root, what, ret, err);
	return rc == PAWL_ECORRUPT ? PAWL_EUSAGE : rc;
}

struct value *
value_from_text(const char *text)
{
	struct value *v = NULL;

	return value_parse(text, SIZE_MAX, "text", &v, NULL) == 0 ? v : NULL;
}

/* ---- printing ---- */

struct printer {
	struct buf out;
	enum value_style style;
	int depth;
};

static void
print_break(struct printer *p)
{
	if (p->style != VALUE_INDENTED)
		return;
	buf_putc(&p->out, '\n');
	for (int i = 0; i < p->depth; i++)
		buf_puts(&p->out, "  ");
}

static void print_value(struct printer *p, const struct value *v);

static void
print_parts(struct printer *p, const struct value *v)
{
	for (size_t i = 0; i < v->parts.n; i++) {
		const struct value_part *part = &v->parts.items[i];
		if (i > 0)
			buf_puts(&p->out, p->style == VALUE_LINE ? ", " : ",");
		print_break(p);
		if (part->key) {
			json_put_string(&p->out, part->key, part->key_len);
			buf_puts(&p->out, p->style == VALUE_COMPACT ? ":" : ": ");
		}
		print_value(p, part->value);
	}
}

static void
print_value(struct printer *p, const struct value *v)
{
	switch (v->type) {
	case JSON_BOOL:
		buf_puts(&p->out, v->integer ? "true" : "false");
		return;
	case JSON_INT:
		json_put_i64(&p->out, v->integer);
		return;
	case JSON_REAL:
		json_put_double(&p->out, v->real);
		return;
	case JSON_STRING:
		json_put_string(&p->out, v->text, v->text_bytes);
		return;
	case JSON_ARRAY:
	case JSON_OBJECT:
		break;
	case JSON_UINT:
	case JSON_NULL:
		buf_puts(&p->out, "null");
		return;
	}
	buf_putc(&p->out, v->type == JSON_ARRAY ? '[' : '{');
	p->depth++;
	print_parts(p, v);
	p->depth--;
	if (v->parts.n > 0)
		print_break(p);
	buf_putc(&p->out, v->type == JSON_ARRAY ? ']' : '}');
}

char *
value_print_as(const struct value *v, enum value_style style)
{
	struct printer p = {.style = style};

	if (!v)
		return NULL;
	print_value(&p, v);
	buf_putc(&p.out, '\0');
	if (!p.out.failed)
		return p.out.ptr;
	buf_clear(&p.out);
	return NULL;
}

char *
value_print(const struct value *v)
{
	return value_print_as(v, VALUE_LINE);
}
