/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xml: see xml.h. expat parses. This file builds the paths. It refuses what a server never needs to
 * send (DTDs, CDATA, instructions) and what is too deep or too long. Promises P16, P17.
 */
#include "store/object/xml.h"

#include <expat.h>
#include <stdbool.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

#define MAX_NAME_BYTES 128

struct reader {
	const char *what;
	XML_Parser parser;
	struct buf path, text;
	size_t ends[XML_MAX_DEPTH]; /* length of the path before each open element */
	size_t depth;
	xml_fn *fn;
	void *arg;
	struct pawl_error *err;
	int rc;
};

static void *
resize_memory(void *ptr, size_t nbytes)
{
	return mem_resize(ptr, nbytes, 1);
}

static int
refuse_text(const struct reader *r, const char *why)
{
	return err_set(r->err, PAWL_ECORRUPT, "%s: bad XML at byte %lld: %s", r->what,
	               (long long)XML_GetCurrentByteIndex(r->parser), why);
}

/* The first failure ends the parsing. */
static void
stop_with(struct reader *r, int rc)
{
	if (rc < 0 && r->rc == 0) {
		r->rc = rc;
		XML_StopParser(r->parser, XML_FALSE);
	}
}

static int
push_element(struct reader *r, const char *name)
{
	const char *colon = strrchr(name, ':');
	const char *plain = colon != NULL ? colon + 1 : name;

	if (r->depth == XML_MAX_DEPTH)
		return err_set(r->err, PAWL_ELIMIT, "%s: the XML is nested deeper than %d", r->what, XML_MAX_DEPTH);
	if (*plain == '\0' || strlen(name) > MAX_NAME_BYTES)
		return refuse_text(r, "expected a name");
	r->ends[r->depth++] = r->path.len;
	if (r->path.len > 0)
		buf_putc(&r->path, '/');
	buf_puts(&r->path, plain);
	r->text.len = 0;
	return buf_check(&r->path, r->what, r->err);
}

static int
pop_element(struct reader *r)
{
	const char *path = buf_str(&r->path), *text = buf_str(&r->text);

	TRY(buf_check(&r->path, r->what, r->err));
	TRY(buf_check(&r->text, r->what, r->err));
	TRY(r->fn(r->arg, path, text, r->text.len));
	r->path.len = r->ends[--r->depth];
	r->text.len = 0;
	return 0;
}

static void XMLCALL
on_open(void *arg, const XML_Char *name, const XML_Char **attributes)
{
	struct reader *r = arg;

	(void)attributes;
	if (r->rc == 0)
		stop_with(r, push_element(r, name));
}

static void XMLCALL
on_close(void *arg, const XML_Char *name)
{
	struct reader *r = arg;

	(void)name;
	if (r->rc == 0)
		stop_with(r, pop_element(r));
}

static void XMLCALL
on_text(void *arg, const XML_Char *text, int len)
{
	struct reader *r = arg;

	buf_put(&r->text, text, (size_t)len);
}

static void XMLCALL
on_doctype(void *arg, const XML_Char *name, const XML_Char *system, const XML_Char *public, int has_internal)
{
	(void)name, (void)system, (void)public, (void)has_internal;
	stop_with(arg, refuse_text(arg, "a DTD is refused"));
}

static void XMLCALL
on_instruction(void *arg, const XML_Char *target, const XML_Char *data)
{
	(void)target, (void)data;
	stop_with(arg, refuse_text(arg, "instructions are refused"));
}

static void XMLCALL
on_cdata(void *arg)
{
	stop_with(arg, refuse_text(arg, "CDATA is refused"));
}

static int
parse_text(struct reader *r, const void *ptr, size_t len)
{
	XML_SetUserData(r->parser, r);
	XML_SetElementHandler(r->parser, on_open, on_close);
	XML_SetCharacterDataHandler(r->parser, on_text);
	XML_SetStartDoctypeDeclHandler(r->parser, on_doctype);
	XML_SetProcessingInstructionHandler(r->parser, on_instruction);
	XML_SetStartCdataSectionHandler(r->parser, on_cdata);
	if (XML_Parse(r->parser, ptr, (int)len, XML_TRUE) == XML_STATUS_OK)
		return 0;
	if (r->rc < 0)
		return r->rc;
	enum XML_Error code = XML_GetErrorCode(r->parser);

	return code == XML_ERROR_NO_MEMORY ? err_nomem(r->err, r->what) : refuse_text(r, XML_ErrorString(code));
}

int
xml_read(const char *what, const void *ptr, size_t len, xml_fn *fn, void *arg, struct pawl_error *err)
{
	static const XML_Memory_Handling_Suite memory = {mem_alloc, resize_memory, mem_free};

	if (len > XML_MAX_BYTES)
		return err_set(err, PAWL_ELIMIT, "%s: expected at most %d bytes of XML, found %zu", what, XML_MAX_BYTES,
		               len);
	struct reader r = {.what = what, .fn = fn, .arg = arg, .err = err};

	r.parser = XML_ParserCreate_MM("UTF-8", &memory, NULL);
	if (r.parser == NULL)
		return err_nomem(err, what);
	int rc = parse_text(&r, len > 0 ? ptr : "", len);

	XML_ParserFree(r.parser);
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
visit_wanted(void *arg, const char *path, const char *text, size_t len)
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
	TRY(xml_read(what, ptr, len, visit_wanted, &w, err));
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
