/* SPDX-License-Identifier: Apache-2.0 */
/*
 * toml_value: keys and values of TOML: strings of four kinds, numbers, booleans, arrays, inline tables. Called by
 * toml.c, which it calls for the pairs of an inline table.
 */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jsonx.h"
#include "toml_inner.h"
#include "tune_err.h"

struct text {
	char *ptr;
	size_t len, cap;
};

int
toml_fail(struct toml *t, const char *format, ...)
{
	char what[512];
	va_list list;

	va_start(list, format);
	(void)vsnprintf(what, sizeof(what), format, list);
	va_end(list);
	return tune_fail(t->err, PAWL_EUSAGE, "%s:%u: %s", t->name, t->line, what);
}

int
toml_expected(struct toml *t, const char *what)
{
	size_t n = 0;

	while (n < 24 && t->at + n < t->end && (unsigned char)t->at[n] > ' ' && t->at[n] != 0x7f)
		n++;
	if (t->at == t->end)
		return toml_fail(t, "expected %s, found the end of the file", what);
	if (n == 0)
		return toml_fail(t, "expected %s, found %s", what,
		                 *t->at == '\n' || *t->at == '\r' ? "the end of the line"
		                 : *t->at == ' '                  ? "a blank"
		                                                  : "a control character");
	return toml_fail(t, "expected %s, found '%.*s'", what, (int)n, t->at);
}

static int
put(struct toml *t, struct text *s, const char *ptr, size_t len)
{
	if (s->len + len + 1 > s->cap) {
		size_t cap = (s->len + len + 1) * 2;
		char *more = realloc(s->ptr, cap);

		if (more == NULL)
			return tune_no_memory(t->err);
		s->ptr = more;
		s->cap = cap;
	}
	memcpy(s->ptr + s->len, ptr, len);
	s->len += len;
	s->ptr[s->len] = '\0';
	return 0;
}

static int
put_char(struct toml *t, struct text *s, uint32_t c)
{
	char b[4];
	size_t n = 0;

	if (c < 0x80) {
		b[n++] = (char)c;
	} else if (c < 0x800) {
		b[n++] = (char)(0xc0 | c >> 6);
		b[n++] = (char)(0x80 | (c & 0x3f));
	} else if (c < 0x10000) {
		b[n++] = (char)(0xe0 | c >> 12);
		b[n++] = (char)(0x80 | (c >> 6 & 0x3f));
		b[n++] = (char)(0x80 | (c & 0x3f));
	} else {
		b[n++] = (char)(0xf0 | c >> 18);
		b[n++] = (char)(0x80 | (c >> 12 & 0x3f));
		b[n++] = (char)(0x80 | (c >> 6 & 0x3f));
		b[n++] = (char)(0x80 | (c & 0x3f));
	}
	return put(t, s, b, n);
}

static int
unicode(struct toml *t, struct text *s, size_t digits)
{
	uint32_t c = 0;

	for (size_t i = 0; i < digits; i++, t->at++) {
		const char *hex = "0123456789abcdef0123456789ABCDEF", *found;

		found = t->at < t->end && *t->at != '\0' ? strchr(hex, *t->at) : NULL;
		if (found == NULL)
			return toml_expected(t, digits == 4 ? "four hexadecimal digits after \\u"
			                                    : "eight hexadecimal digits after \\U");
		c = c << 4 | (uint32_t)((found - hex) & 15);
	}
	if (c == 0 || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
		return toml_fail(t, "U+%04X is no character that can be held", (unsigned)c);
	return put_char(t, s, c);
}

/* After a backslash. */
static int
escape(struct toml *t, struct text *s, bool many)
{
	static const char from[] = "btnfr\"\\", to[] = "\b\t\n\f\r\"\\";
	const char *found;

	if (many) {
		const char *at = t->at;

		while (at < t->end && (*at == ' ' || *at == '\t' || *at == '\r'))
			at++;
		if (at < t->end && *at == '\n') { /* joins lines */
			for (t->at = at; t->at < t->end && strchr(" \t\r\n", *t->at) != NULL && *t->at != '\0'; t->at++)
				t->line += *t->at == '\n';
			return 0;
		}
	}
	found = t->at < t->end && *t->at != '\0' ? strchr(from, *t->at) : NULL;
	if (found != NULL) {
		t->at++;
		return put(t, s, &to[found - from], 1);
	}
	if (t->at < t->end && (*t->at == 'u' || *t->at == 'U'))
		return unicode(t, s, *t->at++ == 'u' ? 4 : 8);
	return toml_expected(t, "one of b t n f r \" \\ u U after a backslash");
}

/* Quotes at t->at, at most 5. */
static size_t
count_quotes(const struct toml *t, char quote)
{
	size_t n = 0;

	while (n < 5 && t->at + n < t->end && t->at[n] == quote)
		n++;
	return n;
}

static int
string_body(struct toml *t, struct text *s, char quote, bool many)
{
	int rc = put(t, s, "", 0);

	while (rc == 0) {
		size_t n = count_quotes(t, quote);

		if (many ? n >= 3 : n >= 1) {
			t->at += many ? n : 1;
			return many && n > 3 ? put(t, s, quote == '"' ? "\"\"" : "''", n - 3) : 0;
		}
		if (t->at == t->end || (*t->at == '\n' && !many))
			return toml_fail(t, "the text has no end: expected %s%c%s", many ? "three " : "", quote,
			                 many ? "s" : "");
		if (*t->at == '\\' && quote == '"') {
			t->at++;
			rc = escape(t, s, many);
			continue;
		}
		if ((unsigned char)*t->at < 0x20 && *t->at != '\t' &&
		    !(many && strchr("\r\n", *t->at) != NULL && *t->at != '\0'))
			return toml_expected(t, "a text without control characters");
		t->line += *t->at == '\n';
		rc = put(t, s, t->at++, 1);
	}
	return rc;
}

/* A string with its quotes; one_line: of a key. */
static int
string(struct toml *t, struct text *ret, bool one_line)
{
	char quote = *t->at;
	bool many = !one_line && count_quotes(t, quote) >= 3;

	t->at += many ? 3 : 1;
	if (many)
		(void)toml_newline(t);
	return string_body(t, ret, quote, many);
}

static bool
is_bare(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

static int
key_part(struct toml *t, struct text *s)
{
	const char *from = t->at;

	if (t->at < t->end && (*t->at == '"' || *t->at == '\''))
		return string(t, s, true);
	while (t->at < t->end && is_bare(*t->at))
		t->at++;
	if (t->at == from)
		return toml_expected(t, "a key (letters, digits, _ and -; others in quotes)");
	return put(t, s, from, (size_t)(t->at - from));
}

int
toml_key(struct toml *t, struct toml_key *ret)
{
	for (;;) {
		struct text s = {0};
		int rc;

		if (ret->n == TOML_MAX_DEPTH)
			return tune_fail(t->err, PAWL_ELIMIT, "%s:%u: a key of more than %d parts", t->name, t->line,
			                 TOML_MAX_DEPTH);
		toml_blanks(t);
		rc = key_part(t, &s);
		if (rc < 0) {
			free(s.ptr);
			return rc;
		}
		ret->parts[ret->n++] = s.ptr;
		toml_blanks(t);
		if (t->at == t->end || *t->at != '.')
			return 0;
		t->at++;
	}
}

void
toml_key_clear(struct toml_key *key)
{
	while (key->n > 0)
		free(key->parts[--key->n]);
}

/* The digits of a number, without underscores; what is wrong with them, or NULL. */
static const char *
digits(const char *from, size_t len, char *to, size_t cap)
{
	size_t n = 0;

	if (len >= cap)
		return "a number of that many digits is not held";
	for (size_t i = 0; i < len; i++) {
		bool inside =
			i > 0 && i + 1 < len && is_bare(from[i - 1]) && from[i - 1] != '_' && is_bare(from[i + 1]);

		if (from[i] != '_')
			to[n++] = from[i];
		else if (!inside || from[i - 1] == '-')
			return "an underscore stands between two digits";
	}
	to[n] = '\0';
	return NULL;
}

static json_t *
integer(const char *text, bool *ret_range)
{
	const char *body = *text == '-' || *text == '+' ? text + 1 : text;
	int base = *body != '0' ? 10 : body[1] == 'x' ? 16 : body[1] == 'o' ? 8 : body[1] == 'b' ? 2 : 10;
	char *end;
	long long value;

	if (base == 10 ? (*body == '0' && body[1] != '\0') : body != text)
		return NULL;
	if (base != 10)
		body += 2;
	if (strspn(body, base == 16 ? "0123456789abcdefABCDEF" : "0123456789") != strlen(body) || *body == '\0')
		return NULL;
	errno = 0;
	value = strtoll(base == 10 && *text == '-' ? text : body, &end, base);
	*ret_range = errno == ERANGE;
	return *end == '\0' && !*ret_range ? json_integer(value) : NULL;
}

/* Digits, then a point with digits or an exponent or both. */
static bool
is_real(const char *s)
{
	size_t n;

	s += *s == '-' || *s == '+';
	n = strspn(s, "0123456789");
	if (n == 0 || (n > 1 && *s == '0'))
		return false;
	s += n;
	if (*s == '.') {
		n = strspn(++s, "0123456789");
		if (n == 0)
			return false;
		s += n;
	}
	if (*s == 'e' || *s == 'E') {
		s++;
		s += *s == '-' || *s == '+';
		n = strspn(s, "0123456789");
		return n > 0 && s[n] == '\0';
	}
	return *s == '\0';
}

/* Digits with one point are C's own in the "C" locale only, so it is read as JSON. */
static json_t *
real(const char *s)
{
	json_t *value = NULL;
	char text[160];

	(void)snprintf(text, sizeof(text), "%s", *s == '+' ? s + 1 : s);
	(void)jsonx_parse(text, SIZE_MAX, "number", &value, NULL);
	return value;
}

static const struct {
	const char *text, *value;
} words[] = {
	{"inf", "Infinity"}, {"+inf", "Infinity"}, {"-inf", "-Infinity"},
	{"nan", "NaN"},      {"+nan", "NaN"},      {"-nan", "NaN"},
};

static int
scalar(struct toml *t, json_t **ret)
{
	const char *from = t->at, *why;
	char text[128];
	bool range = false;
	size_t len;

	while (t->at < t->end && (is_bare(*t->at) || *t->at == '+' || *t->at == '.' || *t->at == ':'))
		t->at++;
	len = (size_t)(t->at - from);
	if (len == 0)
		return toml_expected(t, "a value");
	if (len == 4 && memcmp(from, "true", 4) == 0)
		*ret = json_true();
	else if (len == 5 && memcmp(from, "false", 5) == 0)
		*ret = json_false();
	if (*ret != NULL)
		return 0;
	why = digits(from, len, text, sizeof(text));
	if (why != NULL)
		return toml_fail(t, "'%.*s': %s", (int)(len < 40 ? len : 40), from, why);
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (strcmp(text, words[i].text) == 0)
			*ret = json_string(words[i].value);
	if (*ret == NULL)
		*ret = integer(text, &range);
	if (*ret == NULL && !range && is_real(text))
		*ret = real(text);
	if (*ret != NULL)
		return 0;
	t->at = from;
	if (range)
		return toml_fail(t, "'%s' does not fit into 64 bits", text);
	if (strspn(text, "0123456789") >= 2 && (strchr(text, ':') != NULL || strchr(text, '-') == text + 4))
		return toml_fail(t, "'%s': dates and times are not read; write it as a text in quotes", text);
	return toml_expected(t, "a value (a text stands in quotes)");
}

static int
array(struct toml *t, json_t *list)
{
	int rc;

	for (t->at++;;) {
		json_t *item = NULL;

		rc = toml_lines(t);
		if (rc < 0)
			return rc;
		if (t->at < t->end && *t->at == ']')
			break;
		rc = toml_value(t, &item);
		if (rc < 0)
			return rc;
		if (json_array_append_new(list, item) != 0)
			return tune_no_memory(t->err);
		rc = toml_lines(t);
		if (rc < 0)
			return rc;
		if (t->at < t->end && *t->at == ',')
			t->at++;
		else if (t->at == t->end || *t->at != ']')
			return toml_expected(t, "',' or ']' in an array");
	}
	t->at++;
	return 0;
}

static int
inline_table(struct toml *t, json_t *table)
{
	t->at++;
	toml_blanks(t);
	if (t->at < t->end && *t->at == '}') {
		t->at++;
		return 0;
	}
	for (;;) {
		int rc = toml_pair(t, table);

		if (rc < 0)
			return rc;
		toml_blanks(t);
		if (t->at < t->end && *t->at == '}')
			break;
		if (t->at == t->end || *t->at != ',')
			return toml_expected(t, "',' or '}' in an inline table, on one line");
		t->at++;
	}
	t->at++;
	return 0;
}

/* An array or an inline table. */
static int
container(struct toml *t, json_t **ret)
{
	bool is_array = *t->at == '[';
	json_t *made = is_array ? json_array() : json_object();
	int rc;

	if (made == NULL)
		return tune_no_memory(t->err);
	if (++t->depth > TOML_MAX_DEPTH)
		rc = tune_fail(t->err, PAWL_ELIMIT, "%s:%u: deeper than %d", t->name, t->line, TOML_MAX_DEPTH);
	else
		rc = is_array ? array(t, made) : inline_table(t, made);
	t->depth--;
	if (rc == 0)
		rc = toml_mark(t, made, TOML_INLINE);
	if (rc < 0) {
		json_decref(made);
		return rc;
	}
	*ret = made;
	return 0;
}

int
toml_value(struct toml *t, json_t **ret)
{
	struct text s = {0};
	int rc;

	*ret = NULL;
	if (t->at < t->end && (*t->at == '[' || *t->at == '{'))
		return container(t, ret);
	if (t->at == t->end || (*t->at != '"' && *t->at != '\''))
		return scalar(t, ret);
	rc = string(t, &s, false);
	if (rc == 0) {
		*ret = json_stringn(s.ptr, s.len);
		if (*ret == NULL)
			rc = toml_fail(t, "a text that is not UTF-8");
	}
	free(s.ptr);
	return rc;
}
