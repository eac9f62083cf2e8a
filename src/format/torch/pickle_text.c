/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle_text: the pickle operations whose argument is a line of text: GLOBAL, which torch.save
 * still writes, and those of protocol 0. Promises P16, P17.
 */
#include <string.h>

#include "base/err.h"
#include "base/text.h"
#include "format/torch/pickle_machine.h"

#define MAX_NAME_BYTES 256u

/* The line that begins here, without its end. */
static int
take_line(struct pickle_machine *m, const char **ret, size_t *ret_len)
{
	size_t end = m->frame_end ? m->frame_end : m->len;
	const unsigned char *at = m->bytes + m->at;
	const unsigned char *feed = end > m->at ? memchr(at, '\n', end - m->at) : NULL;
	const unsigned char *unused;

	if (!feed)
		return pickle_wrong(m, "a line without an end");
	*ret = (const char *)at;
	*ret_len = (size_t)(feed - at);
	return pickle_take(m, *ret_len + 1, &unused);
}

static int
push_named(struct pickle_machine *m)
{
	const char *module = NULL, *name = NULL;
	size_t module_len = 0, name_len = 0;

	TRY(take_line(m, &module, &module_len));
	TRY(take_line(m, &name, &name_len));
	if (module_len > MAX_NAME_BYTES || name_len > MAX_NAME_BYTES)
		return pickle_wrong(m, "a name of more than 256 bytes");
	return pickle_push_global(m, module, module_len, name, name_len);
}

/* A decimal number without sign; false if it is not one. *ret is UINT64_MAX if it is too large. */
static bool
get_digits(const char *text, size_t len, uint64_t *ret)
{
	*ret = 0;
	for (size_t i = 0; i < len; i++) {
		if (text[i] < '0' || text[i] > '9')
			return false;
		if (!mem_mul_ok(*ret, 10, ret) || !mem_add_ok(*ret, (uint64_t)(text[i] - '0'), ret))
			*ret = UINT64_MAX / 10 + 1; /* stays too large */
	}
	return len > 0;
}

/* INT and LONG. */
static int
push_whole(struct pickle_machine *m, bool is_long)
{
	struct pickle_node *node;
	const char *text = NULL;
	uint64_t value = 0;
	size_t len = 0;

	TRY(take_line(m, &text, &len));
	if (is_long && len > 0 && text[len - 1] == 'L')
		len--;
	if (!is_long && len == 2 && text[0] == '0' && (text[1] == '0' || text[1] == '1'))
		return pickle_push_bool(m, text[1] == '1');
	size_t sign = len > 0 && text[0] == '-';
	if (!get_digits(text + sign, len - sign, &value))
		return pickle_wrong(m, "expected a whole number");
	if (value <= INT64_MAX && len - sign <= 19)
		return pickle_push_int(m, sign ? -(int64_t)value : (int64_t)value);
	TRY(pickle_spend_long(m, len));
	TRY(pickle_new(m, PICKLE_INT, &node));
	node->text = text;
	node->len = len;
	return pickle_push(m, node);
}

static int
push_real(struct pickle_machine *m)
{
	const char *text = NULL;
	double value = 0;
	size_t len = 0;

	TRY(take_line(m, &text, &len));
	if (len == 3 && memcmp(text, "nan", 3) == 0)
		return pickle_push_float(m, __builtin_nan(""));
	if ((len == 3 && memcmp(text, "inf", 3) == 0) || (len == 4 && memcmp(text, "-inf", 4) == 0))
		return pickle_push_float(m, len == 3 ? __builtin_inf() : -__builtin_inf());
	if (len == 0 || text_get_number(text, len, &value) != len)
		return pickle_wrong(m, "expected a number");
	return pickle_push_float(m, value);
}

static size_t
put_utf8(char *out, uint32_t c)
{
	if (c < 0x80) {
		out[0] = (char)c;
		return 1;
	}
	if (c < 0x800) {
		out[0] = (char)(0xc0 | c >> 6);
		out[1] = (char)(0x80 | (c & 0x3f));
		return 2;
	}
	size_t n = c < 0x10000 ? 3 : 4;
	out[0] = (char)(n == 3 ? 0xe0 | c >> 12 : 0xf0 | c >> 18);
	for (size_t i = 1; i < n; i++)
		out[i] = (char)(0x80 | (c >> (6 * (n - 1 - i)) & 0x3f));
	return n;
}

/* UNICODE: each byte a character of Latin-1, but \uXXXX and \UXXXXXXXX. */
static int
push_escaped(struct pickle_machine *m)
{
	const char *text = NULL;
	size_t len = 0, n = 0;
	void *memory;

	TRY(take_line(m, &text, &len));
	TRY(pickle_take_memory(m, 2 * len + 1, &memory)); /* an escape is longer than its character */
	char *out = memory;
	for (size_t i = 0; i < len;) {
		size_t digits = text[i] != '\\' || i + 1 == len ? 0
		                : text[i + 1] == 'u'            ? 4
		                : text[i + 1] == 'U'            ? 8
		                                                : 0;
		uint32_t c = (unsigned char)text[i];
		if (digits > len - i - (digits ? 2 : 0))
			return pickle_wrong(m, "an escape that is cut off");
		for (size_t k = 0; k < digits; k++) {
			int digit = text_hex_digit(text[i + 2 + k]);
			if (digit < 0)
				return pickle_wrong(m, "an escape that is not a number");
			c = (k ? c << 4 : 0) | (uint32_t)digit;
		}
		if (c > 0x10ffff)
			return pickle_wrong(m, "an escape beyond the last character");
		n += put_utf8(out + n, c);
		i += digits ? digits + 2 : 1;
	}
	return pickle_push_text(m, PICKLE_STR, out, n);
}

/* STRING: a str of Python 2, in quotes. One with escapes is refused, since readers disagree on its
 * meaning. */
static int
push_quoted(struct pickle_machine *m)
{
	const char *text = NULL;
	size_t len = 0;

	TRY(take_line(m, &text, &len));
	if (len < 2 || (text[0] != '\'' && text[0] != '"') || text[len - 1] != text[0] || memchr(text, '\\', len) ||
	    memchr(text + 1, text[0], len - 2))
		return pickle_wrong(m, "expected a text in quotes, without escapes");
	return pickle_push_text(m, PICKLE_STR, text + 1, len - 2);
}

static int
memo_line(struct pickle_machine *m, bool put)
{
	const char *text = NULL;
	uint64_t index = 0;
	size_t len = 0;

	TRY(take_line(m, &text, &len));
	if (len > 18 || !get_digits(text, len, &index))
		return pickle_wrong(m, "expected a number of the memo");
	return put ? pickle_put(m, index) : pickle_get_memo(m, index);
}

int
pickle_line_op(struct pickle_machine *m, unsigned char op)
{
	int rc;

	switch (op) {
	case 'c': /* GLOBAL */
		rc = push_named(m);
		break;
	case 'I': /* INT */
	case 'L': /* LONG */
		rc = push_whole(m, op == 'L');
		break;
	case 'F': /* FLOAT */
		rc = push_real(m);
		break;
	case 'S': /* STRING */
		rc = push_quoted(m);
		break;
	case 'V': /* UNICODE */
		rc = push_escaped(m);
		break;
	case 'p': /* PUT */
	case 'g': /* GET */
		rc = memo_line(m, op == 'p');
		break;
	default:
		return 0;
	}
	return rc < 0 ? rc : 1;
}
