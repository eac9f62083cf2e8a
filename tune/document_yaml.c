/* SPDX-License-Identifier: Apache-2.0 */
/* document_yaml: libyaml finds the structure; this file decides the types of scalars and the
 * limits. */
#include "document_yaml.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <yaml.h>

#include "base/err.h"
#include "base/text.h"

#define MAX_NUMBER_BYTES 300

struct reader {
	yaml_parser_t parser;
	yaml_event_t event; /* the current one */
	const char *text, *name;
	struct pawl_error *err;
};

/* ---- errors ---- */

static int
fail_at(struct reader *r, size_t line, const char *what)
{
	return err_set(r->err, PAWL_EUSAGE, "%s:%zu: %s", r->name, line + 1, what);
}

/* The line of the current event. */
static int
fail_here(struct reader *r, const char *what)
{
	return fail_at(r, r->event.start_mark.line, what);
}

static size_t
line_of_byte(const struct reader *r, size_t offset)
{
	size_t line = 0;

	for (size_t i = 0; i < offset; i++)
		line += r->text[i] == '\n';
	return line;
}

static int
fail_syntax(struct reader *r)
{
	const yaml_parser_t *p = &r->parser;

	if (p->error == YAML_MEMORY_ERROR)
		return err_nomem(r->err, r->name);
	if (p->error == YAML_READER_ERROR)
		return fail_at(r, line_of_byte(r, p->problem_offset), "expected UTF-8 text without control characters");
	return err_set(r->err, PAWL_EUSAGE, "%s:%zu: %s%s%s", r->name, p->problem_mark.line + 1,
	               p->context ? p->context : "", p->context ? ": " : "", p->problem);
}

/* ---- numbers ---- */

/* Reads 0o17 and 0x1f. Returns 1, or 0 if the text is neither. */
static int
read_prefixed(struct reader *r, const char *text, int64_t *ret)
{
	const bool octal = strncmp(text, "0o", 2) == 0, hex = strncmp(text, "0x", 2) == 0;
	const size_t n = octal ? strspn(text + 2, "01234567") : hex ? strspn(text + 2, "0123456789abcdefABCDEF") : 0;

	if (n == 0 || text[2 + n] != '\0')
		return 0;
	*ret = 0;
	for (const char *c = text + 2; *c != '\0'; c++)
		if (__builtin_mul_overflow(*ret, (int64_t)(octal ? 8 : 16), ret) ||
		    __builtin_add_overflow(*ret, (int64_t)text_hex_digit(*c), ret))
			return fail_here(r, "the integer does not fit into 64 bits");
	return 1;
}

static int
read_integer(struct reader *r, const char *text, int64_t *ret)
{
	const bool negative = *text == '-';
	const char *digits = text + (negative || *text == '+');
	const size_t n = strspn(digits, "0123456789");

	if (n == 0 || digits[n] != '\0')
		return read_prefixed(r, text, ret);
	*ret = 0;
	for (const char *c = digits; *c != '\0'; c++)
		if (__builtin_mul_overflow(*ret, (int64_t)10, ret) ||
		    __builtin_add_overflow(*ret, (int64_t)(negative ? '0' - *c : *c - '0'), ret))
			return fail_here(r, "the integer does not fit into 64 bits");
	return 1;
}

/* [-+]? ( \. [0-9]+ | [0-9]+ ( \. [0-9]* )? ) ( [eE] [-+]? [0-9]+ )? Returns 1, or 0 if the text is
 * not a real number. */
static int
read_real(struct reader *r, const char *text, double *ret)
{
	const char *whole = text + (*text == '-' || *text == '+');
	const size_t n_whole = strspn(whole, "0123456789");
	const char *fraction = whole + n_whole + (whole[n_whole] == '.');
	const size_t n_fraction = fraction > whole + n_whole ? strspn(fraction, "0123456789") : 0;
	const char *exponent = fraction + n_fraction, *digits = exponent;
	char plain[MAX_NUMBER_BYTES + 16];

	if (n_whole + n_fraction == 0)
		return 0;
	if (*exponent == 'e' || *exponent == 'E') {
		digits += 1 + (exponent[1] == '-' || exponent[1] == '+');
		if (strspn(digits, "0123456789") == 0)
			return 0;
		digits += strspn(digits, "0123456789");
	}
	if (*digits != '\0')
		return 0;
	if (strlen(text) > MAX_NUMBER_BYTES)
		return fail_here(r, "the number has too many digits");
	const int n =
		snprintf(plain, sizeof(plain), "%s%.*s%s%.*s%s", *text == '-' ? "-" : "", n_whole ? (int)n_whole : 1,
	                 n_whole ? whole : "0", n_fraction ? "." : "", (int)n_fraction, fraction, exponent);
	if (text_get_number(plain, (size_t)n, ret) != (size_t)n)
		return fail_here(r, "the number is too large");
	return 1;
}

/* ---- values ---- */

static bool
is_one_of(const char *text, const char *a, const char *b, const char *c)
{
	return strcmp(text, a) == 0 || strcmp(text, b) == 0 || strcmp(text, c) == 0;
}

/* A plain scalar, typed by the core schema. */
static int
make_plain(struct reader *r, const char *text, struct value **ret)
{
	const char *unsigned_text = text + (*text == '-' || *text == '+');
	int64_t integer;
	double real;
	int found = read_integer(r, text, &integer);

	TRY(found);
	if (found) {
		*ret = value_new_int(integer);
		return 0;
	}
	found = read_real(r, text, &real);
	TRY(found);
	if (found)
		*ret = value_new_real(real);
	else if (*text == '\0' || strcmp(text, "~") == 0 || is_one_of(text, "null", "Null", "NULL"))
		*ret = value_new_null();
	else if (is_one_of(text, "true", "True", "TRUE") || is_one_of(text, "false", "False", "FALSE"))
		*ret = value_new_bool(*text == 't' || *text == 'T');
	else if (is_one_of(unsigned_text, ".inf", ".Inf", ".INF"))
		*ret = value_new_real(*text == '-' ? -HUGE_VAL : HUGE_VAL);
	else if (is_one_of(text, ".nan", ".NaN", ".NAN"))
		*ret = value_new_real(NAN);
	else
		*ret = value_new_text(text);
	return 0;
}

static int
check_properties(struct reader *r, const yaml_char_t *anchor, const yaml_char_t *tag)
{
	if (anchor)
		return fail_here(r, "anchors are not supported; write the value out where it is used");
	if (tag)
		return fail_here(r, "tags are not supported; remove the tag, and quote a value that is a string");
	return 0;
}

static int
check_scalar(struct reader *r)
{
	TRY(check_properties(r, r->event.data.scalar.anchor, r->event.data.scalar.tag));
	if (memchr(r->event.data.scalar.value, '\0', r->event.data.scalar.length))
		return fail_here(r, "a string contains a NUL character");
	return 0;
}

static int
next_event(struct reader *r)
{
	yaml_event_delete(&r->event);
	return yaml_parser_parse(&r->parser, &r->event) ? 0 : fail_syntax(r);
}

static int read_value(struct reader *r, unsigned depth, struct value **ret);

static int
read_sequence(struct reader *r, unsigned depth, struct value *to)
{
	for (;;) {
		struct value *item = NULL;

		TRY(next_event(r));
		if (r->event.type == YAML_SEQUENCE_END_EVENT)
			return 0;
		TRY(read_value(r, depth, &item));
		if (!value_append(to, item))
			return err_nomem(r->err, r->name);
	}
}

/* The key is the current event. */
static int
check_key(struct reader *r, const struct value *mapping)
{
	const char *key = (const char *)r->event.data.scalar.value;

	if (r->event.type == YAML_ALIAS_EVENT)
		return fail_here(r, "aliases are not supported; write the value out");
	if (r->event.type != YAML_SCALAR_EVENT)
		return fail_here(r, "expected a key, found a list or a mapping");
	TRY(check_scalar(r));
	const bool plain = r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
	if (plain && strcmp(key, "<<") == 0)
		return fail_here(r, "merge keys are not supported; write the members out");
	if (plain && *key == '\0')
		return fail_here(r, "expected a key before ':'");
	if (value_get(mapping, key))
		return err_set(r->err, PAWL_EUSAGE, "%s:%zu: the key '%.100s' already exists", r->name,
		               r->event.start_mark.line + 1, key);
	if (value_n_members(mapping) == DOCUMENT_YAML_MAX_KEYS)
		return err_set(r->err, PAWL_ELIMIT, "%s:%zu: expected at most %d keys in a mapping", r->name,
		               r->event.start_mark.line + 1, DOCUMENT_YAML_MAX_KEYS);
	return 0;
}

static int
read_mapping(struct reader *r, unsigned depth, struct value *to)
{
	for (;;) {
		PAWL_FREE char *key = NULL;
		struct value *member = NULL;

		TRY(next_event(r));
		if (r->event.type == YAML_MAPPING_END_EVENT)
			return 0;
		TRY(check_key(r, to));
		key = mem_strdup((const char *)r->event.data.scalar.value);
		if (!key)
			return err_nomem(r->err, r->name);
		TRY(next_event(r));
		TRY(read_value(r, depth, &member));
		if (!value_set(to, key, member))
			return err_nomem(r->err, r->name);
	}
}

static int
read_container(struct reader *r, unsigned depth, struct value **ret)
{
	const bool is_mapping = r->event.type == YAML_MAPPING_START_EVENT;
	PAWL_CLEAN(value_free_clean) struct value *v = is_mapping ? value_new_object() : value_new_array();

	if (!v)
		return err_nomem(r->err, r->name);
	if (depth == DOCUMENT_YAML_MAX_DEPTH)
		return err_set(r->err, PAWL_ELIMIT, "%s:%zu: nested deeper than %d", r->name,
		               r->event.start_mark.line + 1, DOCUMENT_YAML_MAX_DEPTH);
	if (is_mapping) {
		TRY(check_properties(r, r->event.data.mapping_start.anchor, r->event.data.mapping_start.tag));
		TRY(read_mapping(r, depth + 1, v));
	} else {
		TRY(check_properties(r, r->event.data.sequence_start.anchor, r->event.data.sequence_start.tag));
		TRY(read_sequence(r, depth + 1, v));
	}
	*ret = steal(&v);
	return 0;
}

/* Reads the value that begins at the current event. */
static int
read_value(struct reader *r, unsigned depth, struct value **ret)
{
	if (r->event.type == YAML_ALIAS_EVENT)
		return fail_here(r, "aliases are not supported; write the value out");
	if (r->event.type != YAML_SCALAR_EVENT)
		return read_container(r, depth, ret);
	TRY(check_scalar(r));
	const char *text = (const char *)r->event.data.scalar.value;
	if (r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE)
		TRY(make_plain(r, text, ret));
	else
		*ret = value_new_text(text);
	return *ret ? 0 : err_nomem(r->err, r->name);
}

static int
read_stream(struct reader *r, struct value **ret)
{
	TRY(next_event(r)); /* the start of the stream */
	TRY(next_event(r));
	if (r->event.type == YAML_STREAM_END_EVENT) {
		*ret = value_new_object();
		return *ret ? 0 : err_nomem(r->err, r->name);
	}
	TRY(next_event(r));
	if (r->event.type != YAML_MAPPING_START_EVENT && r->event.type != YAML_ALIAS_EVENT)
		return fail_here(r, "expected keys and values at the top, as in 'name: value'");
	TRY(read_value(r, 0, ret));
	TRY(next_event(r)); /* the end of the document */
	TRY(next_event(r));
	return r->event.type == YAML_STREAM_END_EVENT ? 0 : fail_here(r, "expected one document, found another");
}

int
document_yaml_read(const char *text, size_t len, const char *name, struct value **ret, struct pawl_error *err)
{
	struct reader r = {.text = text, .name = name, .err = err};
	PAWL_CLEAN(value_free_clean) struct value *v = NULL;

	if (len > DOCUMENT_YAML_MAX_BYTES)
		return err_set(err, PAWL_ELIMIT, "%s: expected at most %zu bytes, found %zu", name,
		               DOCUMENT_YAML_MAX_BYTES, len);
	if (!yaml_parser_initialize(&r.parser))
		return err_nomem(err, name);
	yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
	yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, len);
	const int rc = read_stream(&r, &v);
	yaml_event_delete(&r.event);
	yaml_parser_delete(&r.parser);
	TRY(rc);
	*ret = steal(&v);
	return 0;
}
