/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xml: see xml.h. Called by the S3 engine and its credentials; calls buf, err, text. One pass, no tree: the path
 * of the open element is a stack of lengths in one buffer. No recursion; every limit is checked before it is reached.
 */
#include "store/object/xml.h"

#include <stdbool.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/text.h"

#define MAX_NAME_BYTES 128

struct reader {
	const char *what;
	const char *begin, *at, *end;
	struct buf path, text;
	size_t ends[XML_MAX_DEPTH]; /* length of the path before each open element */
	size_t depth;
	xml_fn *fn;
	void *arg;
	struct pawl_error *err;
};

static int
broken(const struct reader *r, const char *expected)
{
	return err_set(r->err, PAWL_ECORRUPT, "%s: bad XML at byte %zu, expected %s", r->what,
	               (size_t)(r->at - r->begin), expected);
}

static bool
starts(const struct reader *r, const char *text)
{
	size_t len = strlen(text);
	return (size_t)(r->end - r->at) >= len && memcmp(r->at, text, len) == 0;
}

static bool
is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool
is_name(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
	       c == '.' || c == ':';
}

static void
skip_space(struct reader *r)
{
	while (r->at < r->end && is_space(*r->at))
		r->at++;
}

/* Steps behind the next `mark`. */
static int
skip_past(struct reader *r, const char *mark)
{
	const char *found = memmem(r->at, (size_t)(r->end - r->at), mark, strlen(mark));
	if (found == NULL)
		return broken(r, mark);
	r->at = found + strlen(mark);
	return 0;
}

/* A name without its name space prefix; *ret points into the document. */
static int
read_name(struct reader *r, const char **ret, size_t *ret_len)
{
	const char *begin = r->at;
	while (r->at < r->end && is_name(*r->at))
		r->at++;
	if (r->at == begin || r->at - begin > MAX_NAME_BYTES)
		return broken(r, "a name");
	for (const char *c = begin; c < r->at; c++)
		if (*c == ':')
			begin = c + 1;
	if (begin == r->at)
		return broken(r, "a name");
	*ret = begin;
	*ret_len = (size_t)(r->at - begin);
	return 0;
}

/* ------------------------------------------------------------------- text */

static void
put_character(struct buf *out, unsigned long c)
{
	char b[4];
	size_t n = 0;
	if (c < 0x80) {
		b[n++] = (char)c;
	} else if (c < 0x800) {
		b[n++] = (char)(0xc0 | (c >> 6));
		b[n++] = (char)(0x80 | (c & 63));
	} else if (c < 0x10000) {
		b[n++] = (char)(0xe0 | (c >> 12));
		b[n++] = (char)(0x80 | ((c >> 6) & 63));
		b[n++] = (char)(0x80 | (c & 63));
	} else {
		b[n++] = (char)(0xf0 | (c >> 18));
		b[n++] = (char)(0x80 | ((c >> 12) & 63));
		b[n++] = (char)(0x80 | ((c >> 6) & 63));
		b[n++] = (char)(0x80 | (c & 63));
	}
	buf_put(out, b, n);
}

/* "#65" or "#x41", without '&' and ';'. */
static bool
put_reference(struct buf *out, const char *text, size_t len)
{
	unsigned base = len > 1 && text[1] == 'x' ? 16 : 10;
	size_t i = base == 16 ? 2 : 1;
	unsigned long value = 0;
	if (i >= len)
		return false;
	for (; i < len; i++) {
		char c = text[i];
		unsigned digit = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
		                 : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a') + 10
		                 : c >= 'A' && c <= 'F' ? (unsigned)(c - 'A') + 10
		                                        : 99;
		if (digit >= base)
			return false;
		value = value * base + digit;
		if (value > 0x10ffff)
			return false;
	}
	if (value == 0 || (value >= 0xd800 && value < 0xe000))
		return false;
	put_character(out, value);
	return true;
}

static int
read_entity(struct reader *r)
{
	static const struct {
		const char *name;
		char character;
	} known[] = {{"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
	size_t left = (size_t)(r->end - r->at), len = 0;
	while (len < left && len < 12 && r->at[len] != ';')
		len++;
	if (len < 2 || len == left || r->at[len] != ';')
		return broken(r, "an entity");
	const char *name = r->at + 1;
	len--;
	bool good = false;
	if (name[0] == '#')
		good = put_reference(&r->text, name, len);
	for (size_t i = 0; !good && i < sizeof known / sizeof known[0]; i++) {
		if (strlen(known[i].name) == len && memcmp(name, known[i].name, len) == 0) {
			buf_putc(&r->text, known[i].character);
			good = true;
		}
	}
	if (!good)
		return broken(r, "one of the five entities");
	r->at += len + 2;
	return 0;
}

static int
read_text(struct reader *r)
{
	while (r->at < r->end && *r->at != '<') {
		if (*r->at == '&') {
			TRY(read_entity(r));
			continue;
		}
		const char *begin = r->at;
		while (r->at < r->end && *r->at != '<' && *r->at != '&') {
			if (*r->at == '\0')
				return broken(r, "text");
			r->at++;
		}
		buf_put(&r->text, begin, (size_t)(r->at - begin));
	}
	return buf_check(&r->text, r->what, r->err);
}

/* --------------------------------------------------------------- elements */

static int
push(struct reader *r, const char *name, size_t len)
{
	if (r->depth == XML_MAX_DEPTH)
		return err_set(r->err, PAWL_ELIMIT, "%s: the XML is nested deeper than %d", r->what, XML_MAX_DEPTH);
	r->ends[r->depth++] = r->path.len;
	if (r->path.len > 0)
		buf_putc(&r->path, '/');
	buf_put(&r->path, name, len);
	r->text.len = 0;
	return buf_check(&r->path, r->what, r->err);
}

static int
pop(struct reader *r)
{
	buf_str(&r->path);
	TRY(buf_check(&r->path, r->what, r->err));
	if (!text_is_utf8(buf_str(&r->text), r->text.len))
		return broken(r, "UTF-8");
	TRY(r->fn(r->arg, buf_str(&r->path), buf_str(&r->text), r->text.len));
	r->path.len = r->ends[--r->depth];
	r->text.len = 0;
	return 0;
}

/* Behind the name of an opening tag: attributes are passed over. */
static int
read_rest_of_tag(struct reader *r, bool *ret_empty)
{
	*ret_empty = false;
	while (r->at < r->end && *r->at != '>') {
		char c = *r->at++;
		if (c == '<')
			return broken(r, "'>'");
		if (c == '/' && r->at < r->end && *r->at == '>')
			*ret_empty = true;
		if (c == '"' || c == '\'')
			TRY(skip_past(r, (char[]){c, '\0'}));
	}
	if (r->at == r->end)
		return broken(r, "'>'");
	r->at++;
	return 0;
}

static int
read_close(struct reader *r)
{
	const char *name;
	size_t len;
	r->at += 2;
	TRY(read_name(r, &name, &len));
	size_t begin = r->depth == 0 ? 0 : r->ends[r->depth - 1] + (r->ends[r->depth - 1] > 0);
	if (r->depth == 0 || r->path.len - begin != len || memcmp(r->path.ptr + begin, name, len) != 0)
		return broken(r, "the end of the open element");
	skip_space(r);
	if (r->at == r->end || *r->at != '>')
		return broken(r, "'>'");
	r->at++;
	return pop(r);
}

static int
read_open(struct reader *r)
{
	const char *name;
	size_t len;
	bool empty;
	r->at++;
	TRY(read_name(r, &name, &len));
	if (r->at == r->end || (!is_space(*r->at) && *r->at != '/' && *r->at != '>'))
		return broken(r, "'>'");
	TRY(push(r, name, len));
	TRY(read_rest_of_tag(r, &empty));
	return empty ? pop(r) : 0;
}

static int
read_document(struct reader *r)
{
	bool begun = false;
	for (;;) {
		if (r->depth > 0)
			TRY(read_text(r));
		else
			skip_space(r);
		if (r->at == r->end)
			return begun && r->depth == 0 ? 0 : broken(r, "an element");
		if (starts(r, "<!--"))
			TRY(skip_past(r, "-->"));
		else if (starts(r, "<?xml") && !begun)
			TRY(skip_past(r, "?>"));
		else if (starts(r, "</"))
			TRY(read_close(r));
		else if (r->depth > 0 || (!begun && *r->at == '<')) {
			begun = true;
			TRY(read_open(r));
		} else
			return broken(r, "the end");
	}
}

int
xml_read(const char *what, const void *ptr, size_t len, xml_fn *fn, void *arg, struct pawl_error *err)
{
	if (len > XML_MAX_BYTES)
		return err_set(err, PAWL_ELIMIT, "%s: expected at most %d bytes of XML, found %zu", what, XML_MAX_BYTES,
		               len);
	struct reader r = {.what = what, .begin = ptr, .at = ptr, .fn = fn, .arg = arg, .err = err};
	r.end = len > 0 ? r.begin + len : r.begin;
	/* Some servers begin with a byte order mark. */
	if (len >= 3 && memcmp(ptr, "\xef\xbb\xbf", 3) == 0)
		r.at += 3;
	int rc = len == 0 ? broken(&r, "an element") : read_document(&r);
	buf_clear(&r.path);
	buf_clear(&r.text);
	return rc;
}

struct wanted {
	const char *path;
	struct buf *out;
	bool found;
};

static int
see_wanted(void *arg, const char *path, const char *text, size_t len)
{
	struct wanted *w = arg;
	if (!w->found && strcmp(path, w->path) == 0) {
		buf_put(w->out, text, len);
		w->found = true;
	}
	return 0;
}

int
xml_get(const char *what, const void *ptr, size_t len, const char *path, struct buf *out, struct pawl_error *err)
{
	struct wanted w = {.path = path, .out = out};
	TRY(xml_read(what, ptr, len, see_wanted, &w, err));
	TRY(buf_check(out, what, err));
	return w.found ? 0 : err_set(err, PAWL_ENOTFOUND, "%s: the answer has no %s", what, path);
}

void
xml_escape(struct buf *out, const char *text)
{
	for (; *text != '\0'; text++) {
		switch (*text) {
		case '&':
			buf_puts(out, "&amp;");
			break;
		case '<':
			buf_puts(out, "&lt;");
			break;
		case '>':
			buf_puts(out, "&gt;");
			break;
		case '"':
			buf_puts(out, "&quot;");
			break;
		case '\'':
			buf_puts(out, "&apos;");
			break;
		default:
			buf_putc(out, *text);
		}
	}
}
