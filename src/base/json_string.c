/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json_string: escapes and UTF-8 of JSON strings, and the writing of single tokens. Written values
 * read back equal in every locale (P17).
 */
#include "base/json_string.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/err.h"
#include "base/json.h"
#include "base/text.h"

/* ---------------------------------------------------------------- reading */

/* Four hex digits at *at, or -1. */
static int
read_hex4(const char **at, const char *end)
{
	int value = 0;

	if (end - *at < 4)
		return -1;
	for (int i = 0; i < 4; i++) {
		char c = (*at)[i];
		int digit = -1;
		if (c >= '0' && c <= '9')
			digit = c - '0';
		else if (c >= 'a' && c <= 'f')
			digit = c - 'a' + 10;
		else if (c >= 'A' && c <= 'F')
			digit = c - 'A' + 10;
		if (digit < 0)
			return -1;
		value = value << 4 | digit;
	}
	*at += 4;
	return value;
}

static char *
put_utf8(char *to, unsigned c)
{
	if (c < 0x80) {
		*to++ = (char)c;
	} else if (c < 0x800) {
		*to++ = (char)(0xc0 | c >> 6);
		*to++ = (char)(0x80 | (c & 63));
	} else if (c < 0x10000) {
		*to++ = (char)(0xe0 | c >> 12);
		*to++ = (char)(0x80 | (c >> 6 & 63));
		*to++ = (char)(0x80 | (c & 63));
	} else {
		*to++ = (char)(0xf0 | c >> 18);
		*to++ = (char)(0x80 | (c >> 12 & 63));
		*to++ = (char)(0x80 | (c >> 6 & 63));
		*to++ = (char)(0x80 | (c & 63));
	}
	return to;
}

/* *at is behind "\u". */
static const char *
read_unicode_escape(const char **at, const char *end, char **to)
{
	int unit = read_hex4(at, end);

	if (unit < 0)
		return "expected four hex digits after \\u";
	if (unit == 0)
		return "a string holds \\u0000";
	unsigned c = (unsigned)unit;
	if (unit >= 0xd800 && unit <= 0xdfff) {
		int low = -1;
		if (unit < 0xdc00 && end - *at >= 2 && (*at)[0] == '\\' && (*at)[1] == 'u') {
			*at += 2;
			low = read_hex4(at, end);
		}
		if (low < 0xdc00 || low > 0xdfff)
			return "lone surrogate in a string";
		c = 0x10000 + ((c & 0x3ff) << 10 | ((unsigned)low & 0x3ff));
	}
	*to = put_utf8(*to, c);
	return NULL;
}

/* *at is behind the backslash. */
static const char *
read_escape(const char **at, const char *end, char **to)
{
	static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";

	if (*at == end)
		return "a string ends in an escape";
	if (**at == 'u') {
		(*at)++;
		return read_unicode_escape(at, end, to);
	}
	const char *found = **at != '\0' ? strchr(from, **at) : NULL;
	if (!found)
		return "unknown escape in a string";
	(*at)++;
	*(*to)++ = into[found - from];
	return NULL;
}

const char *
json_decode_string(const char **at, const char *end, char *to, size_t *ret_len)
{
	char *start = to;

	while (*at < end) {
		const char *plain = json_skip_plain(*at, end), *problem;
		memcpy(to, *at, (size_t)(plain - *at));
		to += plain - *at;
		*at = plain;
		if (plain == end)
			break;
		if (*plain == '\\') {
			(*at)++;
			problem = read_escape(at, end, &to);
			if (problem)
				return problem;
			continue;
		}
		if ((unsigned char)*plain < 0x20)
			return "control character in a string";
		size_t n = text_utf8_char(plain, (size_t)(end - plain));
		if (n == 0)
			return "a string is not valid UTF-8";
		memcpy(to, plain, n);
		to += n;
		*at += n;
	}
	*ret_len = (size_t)(to - start);
	return NULL;
}

/* ---------------------------------------------------------------- writing */

static void
put_escaped(struct buf *out, char c)
{
	switch (c) {
	case '"':
		buf_puts(out, "\\\"");
		return;
	case '\\':
		buf_puts(out, "\\\\");
		return;
	case '\n':
		buf_puts(out, "\\n");
		return;
	case '\r':
		buf_puts(out, "\\r");
		return;
	case '\t':
		buf_puts(out, "\\t");
		return;
	case '\0':
		/* Our reader refuses it, so that C strings are safe: better no file than an
		 * unreadable one. */
		if (!out->failed)
			out->failed = PAWL_EINTERNAL;
		return;
	default:
		buf_printf(out, "\\u%04x", (unsigned)(unsigned char)c);
	}
}

static void
put_chars(struct buf *out, const char *at, const char *end)
{
	while (at < end) {
		const char *run = at;
		while (at < end && (unsigned char)*at >= 0x20 && (unsigned char)*at < 0x80 && *at != '"' && *at != '\\')
			at++;
		buf_put(out, run, (size_t)(at - run));
		if (at == end)
			break;
		if ((unsigned char)*at < 0x80) {
			put_escaped(out, *at++);
			continue;
		}
		size_t n = text_utf8_char(at, (size_t)(end - at));
		if (n > 0)
			buf_put(out, at, n);
		else
			buf_puts(out, "\xef\xbf\xbd");
		at += n > 0 ? n : 1;
	}
}

void
json_put_string(struct buf *out, const char *text, size_t len)
{
	buf_putc(out, '"');
	put_chars(out, text, len > 0 ? text + len : text);
	buf_putc(out, '"');
}

void
json_put_printable(struct buf *out, const char *text, size_t len)
{
	const char *from = text, *at = text, *end = len > 0 ? text + len : text;

	buf_putc(out, '"');
	for (; at < end; at++) {
		const bool is_c1 = end - at > 1 && at[0] == '\xc2' && ((unsigned char)at[1] & 0xe0) == 0x80;
		if (*at != '\0' && *at != '\x7f' && !is_c1)
			continue;
		put_chars(out, from, at);
		at += is_c1;
		buf_printf(out, "\\u%04x", (unsigned)(unsigned char)*at);
		from = at + 1;
	}
	put_chars(out, from, end);
	buf_putc(out, '"');
}

void
json_put_i64(struct buf *out, int64_t value)
{
	if (value < 0)
		buf_putc(out, '-');
	json_put_u64(out, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}

/* By hand: manifests and headers are made of numbers, and printf would be a fifth of the time to
 * write them. */
void
json_put_u64(struct buf *out, uint64_t value)
{
	char digits[20];
	size_t n = sizeof(digits);

	do {
		digits[--n] = (char)('0' + value % 10);
		value /= 10;
	} while (value > 0);
	buf_put(out, digits + n, sizeof(digits) - n);
}

void
json_put_double(struct buf *out, double value)
{
	char text[40];
	size_t len = 0;

	if (!isfinite(value)) {
		if (!out->failed)
			out->failed = PAWL_EINTERNAL;
		return;
	}
	for (int precision = 15; precision <= 17; precision++) {
		double back;
		char digits[40];
		snprintf(digits, sizeof(digits), "%.*g", precision, value);
		/* The locale may have put one or more bytes of its own for the decimal point. */
		len = 0;
		bool point = false;
		for (const char *at = digits; *at != '\0'; at++) {
			bool foreign = strchr("0123456789e+-", *at) == NULL;
			if (!foreign || !point)
				text[len++] = foreign ? '.' : *at;
			point |= foreign;
		}
		if (precision == 17 ||
		    (text_get_number(text, len, &back) == len && memcmp(&back, &value, sizeof(back)) == 0))
			break;
	}
	buf_put(out, text, len);
	if (!memchr(text, '.', len) && !memchr(text, 'e', len))
		buf_puts(out, ".0");
}

void
json_add_key(struct buf *out, const char *key)
{
	if (out->len && !strchr("{,\n", out->ptr[out->len - 1])) /* which also finds a NUL */
		buf_putc(out, ',');
	json_put_string(out, key, strlen(key));
	buf_putc(out, ':');
}

void
json_add_text(struct buf *out, const char *key, const char *text)
{
	json_add_key(out, key);
	json_put_string(out, text, strlen(text));
}

void
json_add_i64(struct buf *out, const char *key, int64_t value)
{
	json_add_key(out, key);
	json_put_i64(out, value);
}

void
json_add_u64(struct buf *out, const char *key, uint64_t value)
{
	json_add_key(out, key);
	json_put_u64(out, value);
}

void
json_add_u64s(struct buf *out, const char *key, const uint64_t *values, size_t n)
{
	json_add_key(out, key);
	buf_putc(out, '[');
	for (size_t i = 0; i < n; i++) {
		if (i > 0)
			buf_putc(out, ',');
		json_put_u64(out, values[i]);
	}
	buf_putc(out, ']');
}

void
json_add_bool(struct buf *out, const char *key, bool value)
{
	json_add_key(out, key);
	buf_puts(out, value ? "true" : "false");
}
