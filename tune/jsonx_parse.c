/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jsonx_parse: RFC 8259 into values of jansson. Own code, because jansson's reader does not survive a lack of memory:
 * it goes on with a token that lacks bytes. Here each allocation that fails is PAWL_ENOMEM, so that a line of a journal
 * is never taken for a damaged one. Strict: one document, no duplicate keys, valid UTF-8 without NUL, integers of 64
 * bits.
 */
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jsonx.h"
#include "tune_err.h"

#define MAX_NUMBER 400 /* characters */

struct parser {
	const char *begin, *at, *end;
	const char *why; /* what is wrong at `at`; NULL = nothing */
	bool no_memory, too_deep;
};

static bool
complain(struct parser *p, const char *why)
{
	if (!p->why)
		p->why = why;
	return false;
}

static json_t *
wrong(struct parser *p, const char *why)
{
	complain(p, why);
	return NULL;
}

static json_t *
made(struct parser *p, json_t *value)
{
	p->no_memory |= !value;
	return value;
}

static void
skip_blanks(struct parser *p)
{
	while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r'))
		p->at++;
}

static bool
take(struct parser *p, char c)
{
	skip_blanks(p);
	if (p->at == p->end || *p->at != c)
		return false;
	p->at++;
	return true;
}

/* ---- strings ---- */

size_t
jsonx_utf8_bytes(const char *at, const char *end)
{
	const unsigned char *c = (const unsigned char *)at;
	const size_t n = c[0] < 0x80 ? 1 : c[0] < 0xc2 ? 0 : c[0] < 0xe0 ? 2 : c[0] < 0xf0 ? 3 : c[0] < 0xf5 ? 4 : 0;

	if (n == 0 || (size_t)(end - at) < n)
		return 0;
	for (size_t i = 1; i < n; i++)
		if ((c[i] & 0xc0) != 0x80)
			return 0;
	if ((c[0] == 0xe0 && c[1] < 0xa0) || (c[0] == 0xed && c[1] > 0x9f) || (c[0] == 0xf0 && c[1] < 0x90) ||
	    (c[0] == 0xf4 && c[1] > 0x8f))
		return 0;
	return n;
}

/* The four digits there; < 0 = they are none. */
static long
hex4(const char *at, const char *end)
{
	long value = 0;

	if (end - at < 4)
		return -1;
	for (int i = 0; i < 4; i++) {
		const char c = at[i];
		const int digit = c >= '0' && c <= '9'   ? c - '0'
		                  : c >= 'a' && c <= 'f' ? c - 'a' + 10
		                  : c >= 'A' && c <= 'F' ? c - 'A' + 10
		                                         : -1;
		if (digit < 0)
			return -1;
		value = value * 16 + digit;
	}
	return value;
}

static size_t
put_utf8(char *to, long code)
{
	const size_t n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;

	for (size_t i = n; i-- > 1; code >>= 6)
		to[i] = (char)(0x80 | (code & 0x3f));
	to[0] = (char)(n == 1 ? code : (0xf00 >> n & 0xff) | code);
	return n;
}

/* An escape, after its backslash; p->at is behind it. Bytes written, 0 = it is none. */
static size_t
unescape(struct parser *p, char *to)
{
	static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
	const char *found = p->at < p->end && *p->at ? strchr(from, *p->at) : NULL;
	long code, low;

	if (found) {
		p->at++;
		*to = into[found - from];
		return 1;
	}
	if (p->at == p->end || *p->at != 'u' || (code = hex4(p->at + 1, p->end)) <= 0 ||
	    (code >= 0xdc00 && code <= 0xdfff))
		return 0;
	p->at += 5;
	if (code >= 0xd800 && code <= 0xdbff) {
		if (p->end - p->at < 6 || p->at[0] != '\\' || p->at[1] != 'u')
			return 0;
		low = hex4(p->at + 2, p->end);
		if (low < 0xdc00 || low > 0xdfff)
			return 0;
		p->at += 6;
		code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
	}
	return put_utf8(to, code);
}

/* Of the string that begins there, to its quotation mark or the end of the text. */
static size_t
raw_bytes(const struct parser *p, const char *from)
{
	const char *at = from;

	while (at < p->end && *at != '"')
		at += *at == '\\' && p->end - at > 1 ? 2 : 1;
	return (size_t)(at - from);
}

/* After the quotation mark. The bytes are the text's own, or those of *made when there are escapes. */
static bool
parse_string(struct parser *p, char **made_text, const char **ret, size_t *ret_len)
{
	const char *from = p->at;
	size_t len = 0, n;

	while (p->at < p->end && *p->at != '"') {
		if ((unsigned char)*p->at < 0x20)
			return complain(p, "a control character in a string");
		if (*p->at == '\\' && !*made_text) {
			*made_text = malloc(raw_bytes(p, from));
			if (!*made_text) {
				p->no_memory = true;
				return false;
			}
			memcpy(*made_text, from, len);
		}
		if (*p->at == '\\') {
			p->at++;
			n = unescape(p, *made_text + len);
			if (n == 0)
				return complain(p, "expected an escape in a string");
		} else {
			n = jsonx_utf8_bytes(p->at, p->end);
			if (n == 0)
				return complain(p, "a string is no UTF-8");
			if (*made_text)
				memcpy(*made_text + len, p->at, n);
			p->at += n;
		}
		len += n;
	}
	if (p->at == p->end)
		return complain(p, "a string without an end");
	p->at++;
	*ret = *made_text ? *made_text : from;
	*ret_len = len;
	return true;
}

static json_t *
parse_text(struct parser *p)
{
	JSONX_TEXT char *own = NULL;
	const char *text;
	size_t len;

	return parse_string(p, &own, &text, &len) ? made(p, json_stringn_nocheck(text, len)) : NULL;
}

/* ---- numbers ---- */

static size_t
digits(struct parser *p)
{
	const char *from = p->at;

	while (p->at < p->end && *p->at >= '0' && *p->at <= '9')
		p->at++;
	return (size_t)(p->at - from);
}

static json_t *
make_integer(struct parser *p, const char *text)
{
	long long value;

	errno = 0;
	value = strtoll(text, NULL, 10);
	return errno == ERANGE ? wrong(p, "an integer of more than 64 bits") : made(p, json_integer(value));
}

/* Digits and an exponent, no point: strtod reads that alike in every locale. */
static json_t *
make_real(struct parser *p, char *text, size_t n_before, size_t n_after, long exponent)
{
	char scientific[MAX_NUMBER + 30];
	double value;

	memmove(text + n_before, text + n_before + (n_after > 0), n_after);
	snprintf(scientific, sizeof(scientific), "%.*se%ld", (int)(n_before + n_after), text, exponent - (long)n_after);
	value = strtod(scientific, NULL);
	return isfinite(value) ? made(p, json_real(value)) : wrong(p, "a real number that is too large");
}

static json_t *
parse_number(struct parser *p)
{
	const char *from = p->at;
	char text[MAX_NUMBER + 1];
	size_t n_before, n_after = 0, n;
	long exponent = 0;
	bool is_real = false, is_negative;

	p->at += *p->at == '-';
	n = digits(p);
	n_before = (size_t)(p->at - from);
	if (n == 0 || (n > 1 && p->at[-(ptrdiff_t)n] == '0'))
		return wrong(p, "expected a value");
	if (p->at < p->end && *p->at == '.') {
		is_real = true;
		p->at++;
		n_after = digits(p);
		if (n_after == 0)
			return wrong(p, "expected digits after the point");
	}
	n = (size_t)(p->at - from);
	if (n > MAX_NUMBER)
		return wrong(p, "a number of too many digits");
	memcpy(text, from, n);
	text[n] = '\0';
	if (p->at < p->end && (*p->at == 'e' || *p->at == 'E')) {
		is_real = true;
		p->at++;
		is_negative = p->at < p->end && *p->at == '-';
		p->at += p->at < p->end && (*p->at == '-' || *p->at == '+');
		from = p->at;
		if (digits(p) == 0)
			return wrong(p, "expected an exponent");
		for (; from < p->at; from++)
			exponent = exponent < 100000 ? exponent * 10 + (*from - '0') : exponent;
		exponent = is_negative ? -exponent : exponent;
	}
	return is_real ? make_real(p, text, n_before, n_after, exponent) : make_integer(p, text);
}

/* ---- values ---- */

static json_t *parse_value(struct parser *p, unsigned left);

static json_t *
parse_array(struct parser *p, unsigned left)
{
	JSONX_CLEAN json_t *array = made(p, json_array());

	if (!array || take(p, ']'))
		return json_incref(array);
	do {
		json_t *item = parse_value(p, left);
		if (!item)
			return NULL;
		if (json_array_append_new(array, item) < 0)
			return made(p, NULL);
	} while (take(p, ','));
	return take(p, ']') ? json_incref(array) : wrong(p, "expected ',' or ']'");
}

static bool
parse_member(struct parser *p, json_t *object, unsigned left)
{
	JSONX_TEXT char *own = NULL;
	const char *key;
	json_t *value;
	size_t len;

	if (!take(p, '"'))
		return complain(p, "expected a key in quotation marks");
	if (!parse_string(p, &own, &key, &len))
		return false;
	if (json_object_getn(object, key, len))
		return complain(p, "a key that the object has already");
	if (!take(p, ':'))
		return complain(p, "expected ':'");
	value = parse_value(p, left);
	if (value && json_object_setn_new_nocheck(object, key, len, value) < 0)
		value = made(p, NULL);
	return value != NULL;
}

static json_t *
parse_object(struct parser *p, unsigned left)
{
	JSONX_CLEAN json_t *object = made(p, json_object());

	if (!object || take(p, '}'))
		return json_incref(object);
	do
		if (!parse_member(p, object, left))
			return NULL;
	while (take(p, ','));
	return take(p, '}') ? json_incref(object) : wrong(p, "expected ',' or '}'");
}

static bool
take_word(struct parser *p, const char *word)
{
	const size_t n = strlen(word);

	if ((size_t)(p->end - p->at) < n || memcmp(p->at, word, n) != 0)
		return false;
	p->at += n;
	return true;
}

static json_t *
parse_value(struct parser *p, unsigned left)
{
	skip_blanks(p);
	if (p->at == p->end)
		return wrong(p, "expected a value, found the end");
	if (*p->at == '{' || *p->at == '[') {
		p->too_deep |= left == 0;
		if (left == 0)
			return NULL;
		return *p->at++ == '{' ? parse_object(p, left - 1) : parse_array(p, left - 1);
	}
	if (take(p, '"'))
		return parse_text(p);
	if (*p->at == '-' || (*p->at >= '0' && *p->at <= '9'))
		return parse_number(p);
	if (take_word(p, "true"))
		return json_true();
	if (take_word(p, "false"))
		return json_false();
	return take_word(p, "null") ? json_null() : wrong(p, "expected a value");
}

int
jsonx_parse(const char *text, size_t len, const char *what, json_t **ret, struct pawl_error *err)
{
	JSONX_CLEAN json_t *value = NULL;
	struct parser p;
	unsigned line = 1, column = 1;

	if (!text)
		return tune_fail(err, PAWL_EUSAGE, "%s: expected a JSON object, found nothing", what);
	if (len == SIZE_MAX)
		len = strlen(text);
	if (len > JSONX_MAX_BYTES)
		return tune_fail(err, PAWL_ELIMIT, "%s: expected at most %zu bytes of JSON, found %zu", what,
		                 JSONX_MAX_BYTES, len);
	p = (struct parser){.begin = text, .at = text, .end = text + len};
	value = parse_value(&p, JSONX_MAX_DEPTH);
	skip_blanks(&p);
	if (value && p.at < p.end)
		complain(&p, "expected the end");
	if (p.no_memory)
		return tune_no_memory(err);
	if (p.too_deep)
		return tune_fail(err, PAWL_ELIMIT, "%s: expected JSON nested at most %d deep", what, JSONX_MAX_DEPTH);
	for (const char *c = text; p.why && c < p.at; c++) {
		column = *c == '\n' ? 1 : column + 1;
		line += *c == '\n';
	}
	if (p.why)
		return tune_fail(err, PAWL_EUSAGE, "%s: line %u, column %u: %s", what, line, column, p.why);
	*ret = value;
	value = NULL;
	return 0;
}
