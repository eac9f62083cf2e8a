/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text: globs, safe names, UTF-8, base64 and figures for people. Pure functions of their arguments,
 * safe on hostile text (P17). Nothing here depends on the locale.
 */
#include "base/text.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

static const char *
next_char(const char *text)
{
	do
		text++;
	while (((unsigned char)*text & 0xc0) == 0x80);
	return text;
}

/* The classic two-pointer match. After a mismatch only the last '*' needs to give way by one more
 * character: an earlier one can do nothing that the last one cannot. */
bool
text_glob(const char *pattern, const char *text)
{
	const char *star = NULL, *star_text = NULL;
	const char *p = pattern, *t = text;

	for (;;) {
		if (*p == '*') {
			star = ++p;
			star_text = t;
			continue;
		}
		if (*p == '\0' && (*t == '\0' || *t == '/' || (p > pattern && p[-1] == '/')))
			return true;
		if (*t != '\0' && *p == '?') {
			p++;
			t = next_char(t);
			continue;
		}
		if (*t != '\0' && *p == *t) {
			p++;
			t++;
			continue;
		}
		if (!star || *star_text == '\0')
			return false;
		p = star;
		t = ++star_text;
	}
}

static bool
is_name_char(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '.' || c == '_' ||
	       c == '=' || c == '-';
}

bool
text_is_component(const char *name)
{
	size_t len = 0;

	if (name[0] == '-' || name[0] == '.')
		return false;
	while (is_name_char(name[len]) && len < 128)
		len++;
	return len > 0 && name[len] == '\0';
}

/* Length of the part of a key at name, which ends at '/' or NUL; 0 if it is not acceptable. Users
 * name the folder of a single checkpoint as they like. */
static size_t
part_len(const char *name)
{
	size_t len = 0;

	while (name[len] != '\0' && name[len] != '/') {
		if ((unsigned char)name[len] < ' ' || name[len] == 0x7f || len == 255)
			return 0;
		len++;
	}
	return name[0] == '.' && (len == 1 || (len == 2 && name[1] == '.')) ? 0 : len;
}

bool
text_is_key(const char *key)
{
	const char *at = key;

	for (;;) {
		size_t len = part_len(at);
		if (len == 0)
			return false;
		at += len;
		if ((size_t)(at - key) > 1024)
			return false;
		if (*at == '\0')
			return true;
		at++;
	}
}

/* Ranges from Unicode's table of well-formed byte sequences: no overlong forms, no surrogates,
 * nothing above U+10FFFF. */
size_t
text_utf8_char(const void *ptr, size_t len)
{
	const unsigned char *p = ptr;

	if (len == 0)
		return 0;
	if (p[0] < 0x80)
		return 1;

	size_t need;
	unsigned char low = 0x80, high = 0xbf;
	if (p[0] >= 0xc2 && p[0] <= 0xdf) {
		need = 2;
	} else if (p[0] >= 0xe0 && p[0] <= 0xef) {
		need = 3;
		if (p[0] == 0xe0)
			low = 0xa0;
		else if (p[0] == 0xed)
			high = 0x9f;
	} else if (p[0] >= 0xf0 && p[0] <= 0xf4) {
		need = 4;
		if (p[0] == 0xf0)
			low = 0x90;
		else if (p[0] == 0xf4)
			high = 0x8f;
	} else {
		return 0;
	}
	if (len < need || p[1] < low || p[1] > high)
		return 0;
	for (size_t i = 2; i < need; i++)
		if ((p[i] & 0xc0) != 0x80)
			return 0;
	return need;
}

int
text_hex_digit(char c)
{
	return c >= '0' && c <= '9'   ? c - '0'
	       : c >= 'a' && c <= 'f' ? c - 'a' + 10
	       : c >= 'A' && c <= 'F' ? c - 'A' + 10
	                              : -1;
}

bool
text_is_utf8(const char *text, size_t len)
{
	size_t at = 0;

	while (at < len) {
		uint64_t word;
		if (len - at >= sizeof(word)) {
			memcpy(&word, text + at, sizeof(word));
			if ((word & 0x8080808080808080u) == 0) {
				at += sizeof(word);
				continue;
			}
		}
		size_t step = text_utf8_char(text + at, len - at);
		if (step == 0)
			return false;
		at += step;
	}
	return true;
}

/* ----------------------------------------------------------------- base64 */

void
text_put_base64(struct buf *out, const void *ptr, size_t len)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	const unsigned char *in = ptr;

	if (len > SIZE_MAX / 4 * 3 - 3) {
		out->failed = out->failed ? out->failed : PAWL_ELIMIT;
		return;
	}
	char *to = buf_grow(out, (len + 2) / 3 * 4);
	if (!to)
		return;
	for (; len >= 3; len -= 3, in += 3, to += 4) {
		unsigned bits = (unsigned)in[0] << 16 | (unsigned)in[1] << 8 | in[2];
		to[0] = digits[bits >> 18];
		to[1] = digits[bits >> 12 & 63];
		to[2] = digits[bits >> 6 & 63];
		to[3] = digits[bits & 63];
	}
	if (len > 0) {
		unsigned bits = (unsigned)in[0] << 16 | (len == 2 ? (unsigned)in[1] << 8 : 0);
		to[0] = digits[bits >> 18];
		to[1] = digits[bits >> 12 & 63];
		to[2] = len == 2 ? digits[bits >> 6 & 63] : '=';
		to[3] = '=';
	}
}

/* Value of a base64 digit, or 64. */
static unsigned
base64_value(char c)
{
	if (c >= 'A' && c <= 'Z')
		return (unsigned)(c - 'A');
	if (c >= 'a' && c <= 'z')
		return (unsigned)(c - 'a') + 26;
	if (c >= '0' && c <= '9')
		return (unsigned)(c - '0') + 52;
	return c == '+' ? 62 : c == '/' ? 63 : 64;
}

int
text_get_base64(const char *text, size_t len, struct buf *out, struct pawl_error *err)
{
	if (len % 4 != 0)
		return err_set(err, PAWL_ECORRUPT, "base64: expected a multiple of 4 characters, found %zu", len);
	if (len == 0)
		return 0;

	size_t padding = text[len - 1] != '=' ? 0 : text[len - 2] != '=' ? 1 : 2;
	size_t before = out->len;
	char *to = buf_grow(out, len / 4 * 3 - padding);
	if (!to)
		return buf_check(out, "base64", err);

	for (size_t at = 0; at < len; at += 4) {
		size_t pads = at + 4 == len ? padding : 0;
		unsigned bits = 0;
		for (size_t i = 0; i < 4; i++) {
			unsigned value = i >= 4 - pads ? 0 : base64_value(text[at + i]);
			if (value == 64) {
				out->len = before;
				return err_set(err, PAWL_ECORRUPT, "base64: bad character at offset %zu", at + i);
			}
			bits = bits << 6 | value;
		}
		/* Bits beyond the last byte must be zero, so that every value has one spelling
		 * only. */
		if ((pads == 1 && (bits & 0xff) != 0) || (pads == 2 && (bits & 0xffff) != 0)) {
			out->len = before;
			return err_set(err, PAWL_ECORRUPT, "base64: stray bits at the end, offset %zu", at);
		}
		*to++ = (char)(bits >> 16);
		if (pads < 2)
			*to++ = (char)(bits >> 8 & 0xff);
		if (pads < 1)
			*to++ = (char)(bits & 0xff);
	}
	return 0;
}

/* ---------------------------------------------------------------- figures */

void
text_bytes(double nbytes, char out[32])
{
	static const char units[][4] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	size_t unit = 0;

	if (!(nbytes > 0))
		nbytes = 0;
	if (nbytes < 1023.5) {
		snprintf(out, 32, "%u B", (unsigned)(nbytes + 0.5));
		return;
	}
	while (nbytes >= 1023.5 && unit + 1 < sizeof(units) / sizeof(units[0])) {
		nbytes /= 1024;
		unit++;
	}
	if (nbytes > 999999)
		nbytes = 999999;
	/* Integers, because the locale decides the decimal point of %f. */
	const unsigned decimals = nbytes < 9.995 ? 2 : nbytes < 99.95;
	const unsigned scale = decimals == 2 ? 100 : decimals ? 10 : 1;
	const unsigned n = (unsigned)(nbytes * scale + 0.5);
	if (decimals)
		snprintf(out, 32, "%u.%0*u %.3s", n / scale, (int)decimals, n % scale, units[unit]);
	else
		snprintf(out, 32, "%u %.3s", n, units[unit]);
}

int
text_check_list(const char *what, const char *const *texts, size_t n, struct pawl_error *err)
{
	if (n && !texts)
		return err_set(err, PAWL_EUSAGE, "%s: expected %zu texts, found NULL", what, n);
	for (size_t i = 0; i < n; i++)
		if (!texts[i])
			return err_set(err, PAWL_EUSAGE, "%s: number %zu of %zu is NULL", what, i + 1, n);
	return 0;
}

bool
text_is_hex32(const char *text)
{
	return strlen(text) == 32 && strspn(text, "0123456789abcdef") == 32;
}

bool
text_ends_with(const char *text, const char *suffix)
{
	const size_t len = strlen(text), n = strlen(suffix);

	return len > n && memcmp(text + len - n, suffix, n) == 0;
}

bool
text_copy(char *dst, size_t cap, const char *src)
{
	size_t len = strlen(src);

	if (cap == 0)
		return false;
	bool fits = len < cap;
	if (!fits)
		len = cap - 1;
	memcpy(dst, src, len);
	dst[len] = '\0';
	return fits;
}

/* ---------------------------------------------------------------- numbers */

#define MAX_NUMBER_CHARS 1024

/* Significant digits without leading zeros, and their factor. */
struct decimal {
	char digits[MAX_NUMBER_CHARS];
	size_t n_digits;
	uint64_t value; /* of the digits, while n_digits <= 19 */
	int exponent;
};

static void
decimal_add(struct decimal *d, char c)
{
	if (d->n_digits == 0 && c == '0')
		return;
	d->digits[d->n_digits++] = c;
	if (d->n_digits <= 19)
		d->value = d->value * 10 + (unsigned)(c - '0');
}

static bool
decimal_to_double(const struct decimal *d, double *ret)
{
	/* Exact in double arithmetic: a factor below 2^53 and a power of ten up to 10^22. */
	static const double powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
	                                1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
	if (d->n_digits == 0) {
		*ret = 0;
		return true;
	}
	if (FLT_EVAL_METHOD == 0 && d->n_digits <= 19 && d->value < (uint64_t)1 << 53 && d->exponent >= -22 &&
	    d->exponent <= 22) {
		*ret = d->exponent < 0 ? (double)d->value / powers[-d->exponent]
		                       : (double)d->value * powers[d->exponent];
		return true;
	}
	/* Digits and an exponent, no decimal point: read alike by strtod in every locale. */
	char text[MAX_NUMBER_CHARS + 16];
	memcpy(text, d->digits, d->n_digits);
	snprintf(text + d->n_digits, sizeof(text) - d->n_digits, "e%d", d->exponent);
	double value = strtod(text, NULL);
	if (value > DBL_MAX)
		return false;
	*ret = value;
	return true;
}

static bool
is_digit(char c)
{
	return c >= '0' && c <= '9';
}

size_t
text_get_number(const char *text, size_t len, double *ret)
{
	struct decimal d;
	size_t at = 0, int_digits = 0, fraction_digits = 0, exponent_digits = 0;
	int written = 0;
	bool negative = false, exponent_negative = false;

	d.n_digits = 0;
	d.value = 0;
	if (len > MAX_NUMBER_CHARS)
		len = MAX_NUMBER_CHARS;
	if (at < len && text[at] == '-') {
		negative = true;
		at++;
	}
	for (; at < len && is_digit(text[at]); at++, int_digits++)
		decimal_add(&d, text[at]);
	if (int_digits == 0)
		return 0;
	if (at + 1 < len && text[at] == '.' && is_digit(text[at + 1]))
		for (at++; at < len && is_digit(text[at]); at++, fraction_digits++)
			decimal_add(&d, text[at]);

	size_t exponent_at = at;
	if (at < len && (text[at] == 'e' || text[at] == 'E')) {
		at++;
		if (at < len && (text[at] == '+' || text[at] == '-'))
			exponent_negative = text[at++] == '-';
		for (; at < len && is_digit(text[at]); at++, exponent_digits++)
			if (written < 100000)
				written = written * 10 + (text[at] - '0');
		if (exponent_digits == 0)
			at = exponent_at;
	}
	d.exponent = (exponent_negative ? -written : written) - (int)fraction_digits;

	double value;
	if (!decimal_to_double(&d, &value))
		return 0;
	*ret = negative ? -value : value;
	return at;
}

/* Compares the texts up to their ends; numbers by their value. */
static int
compare_part(const char *a, const char *a_end, const char *b, const char *b_end)
{
	static const char digits[] = "0123456789";
	const char *const a_begin = a, *const b_begin = b;

	while (a < a_end && b < b_end) {
		size_t len_a = strspn(a, digits), len_b = strspn(b, digits);

		if (len_a == 0 || len_b == 0) {
			if (*a != *b)
				return (unsigned char)*a < (unsigned char)*b ? -1 : 1;
			a++;
			b++;
			continue;
		}
		for (; len_a > 1 && *a == '0'; len_a--)
			a++;
		for (; len_b > 1 && *b == '0'; len_b--)
			b++;
		const int order = len_a != len_b ? (len_a < len_b ? -1 : 1) : strncmp(a, b, len_a);

		if (order != 0)
			return order;
		a += len_a;
		b += len_b;
	}
	if (a < a_end || b < b_end)
		return a < a_end ? 1 : -1;
	/* Different texts of the same value, such as 1 and 01, need an order, too. */
	const size_t len_a = (size_t)(a_end - a_begin), len_b = (size_t)(b_end - b_begin);

	return len_a != len_b ? (len_a < len_b ? -1 : 1) : strncmp(a_begin, b_begin, len_a);
}

int
text_compare_path(const char *a, const char *b)
{
	for (;;) {
		const char *a_end = a + strcspn(a, "/"), *b_end = b + strcspn(b, "/");
		const int order = compare_part(a, a_end, b, b_end);

		if (order != 0 || *a_end == '\0' || *b_end == '\0')
			return order != 0 ? order : (*a_end != '\0') - (*b_end != '\0');
		a = a_end + 1;
		b = b_end + 1;
	}
}

size_t
text_parent_len(const char *path)
{
	size_t len = strlen(path);

	while (len > 1 && path[len - 1] == '/')
		len--;
	while (len > 0 && path[len - 1] != '/')
		len--;
	while (len > 1 && path[len - 1] == '/')
		len--;
	return len;
}

const char *
text_skip_file(const char *address)
{
	return strncmp(address, "file://", 7) == 0 ? address + 7 : address;
}

bool
text_is_url(const char *address)
{
	return text_skip_file(address) == address && strstr(address, "://") != NULL;
}

const char *
text_url_options(const char *address)
{
	return address + (strstr(address, "://") != NULL ? strcspn(address, "?") : strlen(address));
}

bool
text_begins_as_url(const char *address)
{
	const size_t len = strcspn(address, ":/");

	return len > 1 && strncmp(address + len, ":/", 2) == 0;
}
