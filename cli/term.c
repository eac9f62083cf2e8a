/* SPDX-License-Identifier: Apache-2.0 */
/* term: the capabilities of a stream, and text that is safe to print on it; see term.h. */
#include "term.h"

#include <langinfo.h>
#include <locale.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#define TERM_DEFAULT_WIDTH 80

bool
term_locale(void)
{
	bool utf8;

	utf8 = setlocale(LC_CTYPE, "") != NULL && strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
	/* wcwidth needs a UTF-8 locale, whatever the terminal can display. */
	if (!utf8)
		(void)setlocale(LC_CTYPE, "C.UTF-8");
	return utf8;
}

static bool
env_is_set(const char *name)
{
	const char *value = getenv(name);

	return value != NULL && *value != '\0';
}

static bool
wants_colour(const struct term *term, const char *when)
{
	const char *value;

	if (when != NULL && strcmp(when, "always") == 0)
		return true;
	if ((when != NULL && strcmp(when, "never") == 0) || env_is_set("NO_COLOR"))
		return false;
	value = getenv("CLICOLOR_FORCE");
	if (value != NULL && *value != '\0' && strcmp(value, "0") != 0)
		return true;
	value = getenv("CLICOLOR");
	return term->tty && !(value != NULL && strcmp(value, "0") == 0);
}

static int
window_width(FILE *file)
{
	struct winsize size;
	const char *value;
	char *end;
	long width;

	value = getenv("COLUMNS");
	if (value != NULL && *value != '\0') {
		width = strtol(value, &end, 10);
		if (*end == '\0' && width >= 20 && width <= 10000)
			return (int)width;
	}
	if (ioctl(fileno(file), TIOCGWINSZ, &size) == 0 && size.ws_col >= 20)
		return size.ws_col;
	return TERM_DEFAULT_WIDTH;
}

void
term_open(struct term *term, FILE *file, bool utf8, const char *when)
{
	const char *name = getenv("TERM");
	bool terminal = isatty(fileno(file)) == 1;

	term->file = file;
	term->tty = terminal && name != NULL && *name != '\0' && strcmp(name, "dumb") != 0;
	term->colour = wants_colour(term, when);
	term->utf8 = utf8;
	term->width = terminal ? window_width(file) : 0;
}

static const char *
style_code(enum style style)
{
	switch (style) {
	case STYLE_PLAIN:
		break;
	case STYLE_BOLD:
		return "\033[1m";
	case STYLE_DIM:
		return "\033[2m";
	case STYLE_GOOD:
		return "\033[32m";
	case STYLE_WARN:
		return "\033[33m";
	case STYLE_BAD:
		return "\033[31m";
	case STYLE_ACCENT:
		return "\033[36m";
	}
	return "";
}

void
term_put(const struct term *term, enum style style, const char *text)
{
	if (!term->colour || style == STYLE_PLAIN || *text == '\0')
		(void)fputs(text, term->file);
	else
		(void)fprintf(term->file, "%s%s\033[0m", style_code(style), text);
}

void
term_repeat(const struct term *term, enum style style, const char *glyph, size_t n)
{
	bool coloured = term->colour && style != STYLE_PLAIN && n > 0;

	if (coloured)
		(void)fputs(style_code(style), term->file);
	for (size_t i = 0; i < n; i++)
		(void)fputs(glyph, term->file);
	if (coloured)
		(void)fputs("\033[0m", term->file);
}

/* Decodes one character of UTF-8. Refuses overlong forms, surrogates and values above the Unicode
 * range. Returns its length, or 0. */
static size_t
decode_utf8(const unsigned char *at, size_t len, uint32_t *ret)
{
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	size_t n = at[0] < 0x80 ? 1 : at[0] < 0xc0 ? 0 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : at[0] < 0xf8 ? 4 : 0;
	uint32_t c;

	if (n == 0 || n > len)
		return 0;
	c = n == 1 ? at[0] : at[0] & (0x7fu >> n);
	for (size_t i = 1; i < n; i++) {
		if ((at[i] & 0xc0) != 0x80)
			return 0;
		c = c << 6 | (at[i] & 0x3fu);
	}
	if (c < least[n] || (c >= 0xd800 && c < 0xe000) || c > 0x10ffff)
		return 0;
	*ret = c;
	return n;
}

/* Is it a character that moves the cursor, starts a sequence or reorders text? */
static bool
is_unsafe(uint32_t c)
{
	return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x200e || c == 0x200f || c == 0x061c ||
	       (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069) || c == 0xfeff ||
	       (c >= 0xe0000 && c <= 0xe007f);
}

const char *
term_clean_n(struct keep *keep, const char *text, size_t len)
{
	const unsigned char *from = (const unsigned char *)text;
	char *ret = keep_alloc(keep, len + 1, 1);
	size_t out = 0;

	for (size_t at = 0; at < len;) {
		uint32_t c = 0;
		size_t n = decode_utf8(from + at, len - at, &c);

		if (n == 0 || is_unsafe(c)) {
			ret[out++] = '?';
			at += n > 0 ? n : 1;
			continue;
		}
		memcpy(ret + out, text + at, n);
		out += n;
		at += n;
	}
	return ret;
}

const char *
term_clean(struct keep *keep, const char *text)
{
	const char *at = text;

	while (*at >= ' ' && *at < 0x7f)
		at++;
	return *at == '\0' ? text : term_clean_n(keep, text, strlen(text));
}

static size_t
char_width(uint32_t c)
{
	int width = wcwidth((wchar_t)c);

	return width < 0 ? 1 : (size_t)width;
}

/* Bytes and columns of the character at the start of clean text. */
static size_t
step_character(const char *text, size_t len, size_t *ret_width)
{
	uint32_t c = 0;
	size_t n = decode_utf8((const unsigned char *)text, len, &c);

	*ret_width = n > 1 ? char_width(c) : 1;
	return n > 0 ? n : 1;
}

size_t
term_width(const char *text)
{
	size_t len = strlen(text), width = 0;

	for (size_t at = 0; at < len;) {
		size_t w;

		at += step_character(text + at, len - at, &w);
		width += w;
	}
	return width;
}

const char *
term_cut(struct keep *keep, const char *text, size_t width, bool utf8)
{
	size_t len = strlen(text), mark = utf8 ? 1 : 3, room = width > mark ? width - mark : 0, used = 0, at = 0;

	if (term_width(text) <= width)
		return text;
	while (at < len) {
		size_t w, n = step_character(text + at, len - at, &w);

		if (used + w > room)
			break;
		used += w;
		at += n;
	}
	return keep_printf(keep, "%.*s%s", (int)at, text, width < mark ? "" : utf8 ? "\u2026" : "...");
}

const char *
term_cut_start(struct keep *keep, const char *text, size_t width, bool utf8)
{
	size_t len = strlen(text), mark = utf8 ? 1 : 3, room = width > mark ? width - mark : 0, left = term_width(text),
	       at = 0;

	if (left <= width)
		return text;
	while (at < len && left > room) {
		size_t w, n = step_character(text + at, len - at, &w);

		left -= w < left ? w : left;
		at += n;
	}
	return keep_printf(keep, "%s%s", width < mark ? "" : utf8 ? "\u2026" : "...", text + at);
}
