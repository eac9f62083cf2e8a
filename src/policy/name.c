/* SPDX-License-Identifier: Apache-2.0 */
/*
 * name: fills in name templates. Pure. The result may become a path, so it is checked after filling
 * in: a run's name is the user's text and may hold anything (P17).
 */
#include "policy/name.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"

enum kind {
	TEXT,    /* const char *; NULL = unknown */
	PLACE,   /* int64_t; < 0 = unknown */
	ID,      /* uint64_t; 0 = unknown */
	STEP,    /* int64_t; always known */
	COUNTER, /* int64_t; < 0 = unknown, and then 0 unless it can be filled in later */
	SECONDS  /* double; the same */
};

struct variable {
	const char *name;
	enum kind kind;
	size_t offset; /* in struct name_values */
};

#define PROGRESS(field) offsetof(struct name_values, progress.field)

static const struct variable variables[] = {
	{"run_name", TEXT, offsetof(struct name_values, run_name)},
	{"rank", PLACE, offsetof(struct name_values, rank)},
	{"local_rank", PLACE, offsetof(struct name_values, local_rank)},
	{"world_size", PLACE, offsetof(struct name_values, world_size)},
	{"local_world_size", PLACE, offsetof(struct name_values, local_world_size)},
	{"node_rank", PLACE, offsetof(struct name_values, node_rank)},
	{"epoch", COUNTER, PROGRESS(epoch)},
	{"batch", COUNTER, PROGRESS(batch)},
	{"batch_in_epoch", COUNTER, PROGRESS(batch_in_epoch)},
	{"sample", COUNTER, PROGRESS(sample)},
	{"sample_in_epoch", COUNTER, PROGRESS(sample_in_epoch)},
	{"token", COUNTER, PROGRESS(token)},
	{"token_in_epoch", COUNTER, PROGRESS(token_in_epoch)},
	{"total_wct", SECONDS, PROGRESS(total_wct)},
	{"epoch_wct", SECONDS, PROGRESS(epoch_wct)},
	{"batch_wct", SECONDS, PROGRESS(batch_wct)},
	{"id", ID, offsetof(struct name_values, id)},
	{"step", STEP, offsetof(struct name_values, step)},
};
#define N_VARIABLES (sizeof(variables) / sizeof(variables[0]))

/* A "{variable:spec}" in a template. */
struct field {
	const char *open, *end; /* from the opening brace to after the closing one */
	size_t name_len;
	bool has_spec, zeros;
	int width;
};

/* ---------------------------------------------------------------- parsing */

/* at: the opening brace. False: it is not a field. */
static bool
field_parse(const char *at, struct field *ret)
{
	struct field f = {.open = at++};

	f.name_len = strspn(at, "abcdefghijklmnopqrstuvwxyz_");
	at += f.name_len;
	if (*at == ':') {
		f.has_spec = true;
		at++;
		f.zeros = *at == '0';
		while (*at >= '0' && *at <= '9') {
			f.width = f.width * 10 + (*at++ - '0');
			if (f.width > 32)
				return false;
		}
		if (*at++ != 'd')
			return false;
	}
	if (f.name_len == 0 || *at != '}')
		return false;
	f.end = at + 1;
	*ret = f;
	return true;
}

static const struct variable *
field_variable(const struct field *f)
{
	for (size_t i = 0; i < N_VARIABLES; i++)
		if (strlen(variables[i].name) == f->name_len &&
		    memcmp(variables[i].name, f->open + 1, f->name_len) == 0)
			return &variables[i];
	return NULL;
}

static bool
is_known(const struct variable *v, enum name_of of)
{
	if (v->kind == ID || v->kind == STEP)
		return of == NAME_OF_CHECKPOINT;
	return of != NAME_OF_FOLDER || v->kind == TEXT || v->kind == PLACE;
}

static int
fail_unknown(const struct field *f, enum name_of of, struct pawl_error *err)
{
	char known[400];
	size_t len = 0;

	for (size_t i = 0; i < N_VARIABLES; i++) {
		size_t n = strlen(variables[i].name);
		if (!is_known(&variables[i], of))
			continue;
		if (len + n + 3 > sizeof(known))
			break;
		memcpy(known + len, ", ", 2);
		memcpy(known + len + 2, variables[i].name, n);
		len += n + 2;
	}
	known[len] = '\0';
	return err_set(err, PAWL_EUSAGE, "name template: unknown variable {%.*s}, known are%s",
	               (int)(f->name_len < 64 ? f->name_len : 64), f->open + 1, known + 1);
}

/* ---------------------------------------------------------------- filling */

static void
put_text(const char *text, bool partial, struct buf *out)
{
	/* A later pass reads the braces again. */
	for (; *text != '\0'; text++) {
		if (partial && (*text == '{' || *text == '}'))
			buf_putc(out, *text);
		buf_putc(out, *text);
	}
}

static void
put_int(const struct field *f, int64_t value, struct buf *out)
{
	buf_printf(out, f->zeros ? "%0*lld" : "%*lld", f->width, (long long)value);
}

static void
put_seconds(const struct field *f, double seconds, struct buf *out)
{
	if (!(seconds >= 0))
		seconds = 0;
	if (seconds > 1e15)
		seconds = 1e15;
	if (f->has_spec)
		put_int(f, (int64_t)seconds, out);
	else
		json_put_double(out, seconds);
}

/* 1 if filled in, 0 if the value is unknown. */
static int
put_value(const struct variable *v, const struct field *f, const struct name_values *values, bool partial,
          struct buf *out)
{
	const char *place = (const char *)values + v->offset;
	const char *text = NULL;
	int64_t value = 0;
	uint64_t id = 0;
	double seconds = 0;

	switch (v->kind) {
	case TEXT:
		memcpy(&text, place, sizeof(text));
		if (!text)
			return 0;
		put_text(text, partial, out);
		return 1;
	case ID:
		memcpy(&id, place, sizeof(id));
		if (id == 0 || id > INT64_MAX)
			return 0;
		put_int(f, (int64_t)id, out);
		return 1;
	case SECONDS:
		memcpy(&seconds, place, sizeof(seconds));
		if (!(seconds >= 0) && partial)
			return 0;
		put_seconds(f, seconds, out);
		return 1;
	default:
		memcpy(&value, place, sizeof(value));
		if (value < 0 && (v->kind == PLACE || (v->kind == COUNTER && partial)))
			return 0;
		put_int(f, value < 0 && v->kind == COUNTER ? 0 : value, out);
		return 1;
	}
}

static int
put_field(const struct field *f, const struct name_values *values, bool partial, struct buf *out,
          struct pawl_error *err)
{
	const struct variable *v = field_variable(f);

	if (!v)
		return fail_unknown(f, values->of, err);
	if (v->kind == TEXT && f->has_spec)
		return err_set(err, PAWL_EUSAGE, "name template: {%s} is text and takes no number format", v->name);
	if (put_value(v, f, values, partial, out))
		return 0;
	if (!partial)
		return err_set(err, PAWL_EUSAGE, "name template: {%s} has no value here", v->name);
	buf_put(out, f->open, (size_t)(f->end - f->open));
	return 0;
}

static int
fill_template(const char *template_text, const struct name_values *values, bool partial, struct buf *out,
              struct pawl_error *err)
{
	for (const char *at = template_text; *at != '\0';) {
		struct field f;
		if (*at != '{' && *at != '}') {
			buf_putc(out, *at++);
			continue;
		}
		if (at[1] == at[0]) {
			buf_put(out, at, partial ? 2 : 1);
			at += 2;
			continue;
		}
		if (*at == '}' || !field_parse(at, &f))
			return err_set(
				err, PAWL_EUSAGE,
				"name template: expected {variable}, {variable:d} or {variable:06d} at \"%.32s\"", at);
		TRY(put_field(&f, values, partial, out, err));
		at = f.end;
	}
	return 0;
}

/* --------------------------------------------------------------- checking */

static int
check_path(const char *path, struct pawl_error *err)
{
	if (path[0] == '\0')
		return err_set(err, PAWL_EUSAGE, "name template: the name is empty");
	if (path[0] == '/')
		return err_set(err, PAWL_EUSAGE, "name template: expected a relative name, found \"%.64s\"", path);
	for (const char *at = path; *at != '\0'; at++)
		if ((unsigned char)*at < 0x20 || *at == 0x7f || *at == '\\')
			return err_set(err, PAWL_EUSAGE,
			               "name template: the name holds a backslash or control character (0x%02x)",
			               (unsigned)(unsigned char)*at);
	for (const char *at = path;; at++) {
		size_t len = strcspn(at, "/");
		if (len == 2 && at[0] == '.' && at[1] == '.')
			return err_set(err, PAWL_EUSAGE,
			               "name template: the name \"%.64s\" leads out of its folder by ..", path);
		at += len;
		if (*at == '\0')
			return 0;
	}
}

int
name_format(const char *template_text, const struct name_values *values, bool partial, struct buf *out,
            struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf name = {.max = 64 << 10};

	TRY(fill_template(template_text, values, partial, &name, err));
	TRY(buf_check(&name, "name template", err));
	TRY(check_path(buf_str(&name), err));
	buf_put(out, name.ptr, name.len);
	return buf_check(out, "name template", err);
}

bool
name_uses(const char *template_text, const char *variable)
{
	size_t len = strlen(variable);

	for (const char *at = template_text; *at != '\0'; at++) {
		struct field f;
		if (*at != '{' && *at != '}')
			continue;
		if (at[1] == at[0]) {
			at++;
			continue;
		}
		if (*at == '{' && field_parse(at, &f) && f.name_len == len && memcmp(at + 1, variable, len) == 0)
			return true;
	}
	return false;
}

const char *
name_excess(const char *template_text, enum name_of of)
{
	for (size_t i = 0; i < N_VARIABLES; i++)
		if (!is_known(&variables[i], of) && name_uses(template_text, variables[i].name))
			return variables[i].name;
	return NULL;
}

/* -------------------------------------------------------------- reading back */

/* Any user may have made the folders. A name with too many ways to match counts as no match. */
enum { MATCH_STEPS = 20000 };

struct match {
	uint64_t id;
	int steps;
};

static bool match_rest(struct match *m, const char *at, const char *name);

static bool
read_id(const char *text, size_t len, uint64_t *ret)
{
	uint64_t id = 0;

	for (size_t i = 0; i < len; i++)
		if (!mem_mul_ok(id, 10, &id) || !mem_add_ok(id, (uint64_t)(text[i] - '0'), &id))
			return false;
	*ret = id;
	return len > 0 && id > 0;
}

/* A variable takes the longest text of its kind that lets the rest of the template match. */
static bool
match_field(struct match *m, const struct field *f, const char *name)
{
	const struct variable *v = field_variable(f);
	size_t most = !v                   ? 0
	              : v->kind == TEXT    ? strlen(name)
	              : v->kind == SECONDS ? strspn(name, "0123456789.e+-")
	              : v->kind == ID      ? strspn(name, "0123456789")
	                                   : strspn(name, "0123456789-");

	for (size_t len = most + 1; len-- > 0;) {
		if ((len == 0 && v && v->kind != TEXT) || !match_rest(m, f->end, name + len))
			continue;
		return v && (v->kind != ID || read_id(name, len, &m->id));
	}
	return false;
}

static bool
match_rest(struct match *m, const char *at, const char *name)
{
	for (; *at != '\0'; at++, name++) {
		struct field f;
		if (m->steps-- <= 0)
			return false;
		if (*at == '{' && at[1] != '{')
			return field_parse(at, &f) && match_field(m, &f, name);
		if (*at == '{' || *at == '}')
			at++;
		if (*at != *name)
			return false;
	}
	return *name == '\0';
}

uint64_t
name_id(const char *template_text, const char *name)
{
	struct match m = {.steps = MATCH_STEPS};

	return match_rest(&m, template_text, name) ? m.id : 0;
}
