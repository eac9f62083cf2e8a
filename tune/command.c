/* SPDX-License-Identifier: Apache-2.0 */
/* command: see command.h. No shell is used: the text of a value stays one argument. */
#include "command.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/names.h"
#include "base/value.h"
#include "base/vec.h"

extern char **environ;

struct out {
	char *ptr;
	size_t len, cap;
};

static bool
append_text(struct out *o, const char *text, size_t len)
{
	if (o->len + len + 1 > o->cap) {
		size_t cap = (o->len + len + 1) * 2;
		char *more = realloc(o->ptr, cap);

		if (more == NULL)
			return false;
		o->ptr = more;
		o->cap = cap;
	}
	memcpy(o->ptr + o->len, text, len);
	o->len += len;
	o->ptr[o->len] = '\0';
	return true;
}

void
strings_clear(struct strings *s)
{
	for (size_t i = 0; i < s->n; i++)
		mem_free(s->items[i]);
	mem_free(s->items);
	*s = (struct strings){0};
}

/* Takes ownership of the text. */
static bool
add_owned(struct strings *s, char *text)
{
	if (text == NULL || !array_reserve(s->items, s->cap, s->n + 2)) {
		mem_free(text);
		return false;
	}
	s->items[s->n++] = text;
	s->items[s->n] = NULL;
	return true;
}

bool
strings_add(struct strings *s, const char *text)
{
	return add_owned(s, mem_strdup(text));
}

static bool
put_value(struct out *o, const struct value *value)
{
	char *text;
	bool ok;

	if (value_is(value, JSON_STRING))
		return append_text(o, value_text(value), value_text_bytes(value));
	text = value_print(value);
	ok = text != NULL && append_text(o, text, strlen(text));
	mem_free(text);
	return ok;
}

/* The names in a configuration, for an error message. */
static void
put_names(struct buf *out, const struct value *config)
{
	VEC(const char *) names = {0};
	const char *key;
	struct value *value;

	VALUE_MEMBERS(config, key, value) {
		const char **name = vec_add(&names);

		if (name != NULL)
			*name = key;
	}
	names_put(out, names.items, names.n);
	vec_free(&names);
}

static int
placeholder(const char *name, size_t len, const char *whole, const struct value *config, struct out *o,
            struct pawl_error *err)
{
	char key[256];
	const struct value *value = NULL;

	if (len > 0 && len < sizeof(key)) {
		memcpy(key, name, len);
		key[len] = '\0';
		value = value_at(config, key);
	}
	if (value == NULL) {
		PAWL_CLEAN(buf_clear) struct buf known = {0};

		put_names(&known, config);
		return err_set(err, PAWL_EUSAGE,
		               "run: '%.80s': the space has no '%.*s' (known: %s; {{ stands for a brace)", whole,
		               (int)(len < 80 ? len : 80), name, buf_str(&known));
	}
	return put_value(o, value) ? 0 : err_nomem(err, NULL);
}

static int
fill_one(const char *text, const struct value *config, struct out *o, struct pawl_error *err)
{
	const char *end;
	int rc = append_text(o, "", 0) ? 0 : err_nomem(err, NULL);

	for (const char *at = text; rc == 0 && *at != '\0';) {
		size_t len = strcspn(at, "{}");

		if (len > 0 || at[0] == at[1] || *at == '}') {
			rc = append_text(o, at, len > 0 ? len : 1) ? 0 : err_nomem(err, NULL);
			at += len > 0 ? len : at[0] == at[1] ? 2 : 1;
			continue;
		}
		end = strchr(at, '}');
		if (end == NULL)
			return err_set(err, PAWL_EUSAGE,
			               "run: '%.80s': a placeholder has no end ({{ stands for a brace)", text);
		rc = placeholder(at + 1, (size_t)(end - at - 1), text, config, o, err);
		at = end + 1;
	}
	return rc;
}

int
command_fill(const struct value *template, const struct value *config, struct strings *ret, struct pawl_error *err)
{
	struct strings argv = {0};
	int rc = 0;

	if (value_n_items(template) == 0)
		return err_set(err, PAWL_EUSAGE, "run: expected the program of a trial and its arguments, found none");
	for (size_t i = 0; rc == 0 && i < value_n_items(template); i++) {
		const char *text = value_text(value_item(template, i));
		struct out o = {0};

		rc = text != NULL ? fill_one(text, config, &o, err)
		                  : err_set(err, PAWL_EUSAGE, "run: argument %zu: expected a text", i);
		if (rc < 0)
			mem_free(o.ptr);
		else if (!add_owned(&argv, o.ptr))
			rc = err_nomem(err, NULL);
	}
	if (rc == 0 && argv.items[0][0] == '\0')
		rc = err_set(err, PAWL_EUSAGE, "run: expected a program, found an empty text");
	if (rc < 0)
		strings_clear(&argv);
	else
		*ret = argv;
	return rc;
}

static size_t
find(const struct strings *env, const char *name)
{
	size_t len = strlen(name), i = 0;

	while (i < env->n && !(strncmp(env->items[i], name, len) == 0 && env->items[i][len] == '='))
		i++;
	return i;
}

void
environment_unset(struct strings *env, const char *name)
{
	size_t i = find(env, name);

	if (i == env->n)
		return;
	mem_free(env->items[i]);
	memmove(&env->items[i], &env->items[i + 1], (env->n - i) * sizeof(env->items[0]));
	env->n--;
}

bool
environment_set(struct strings *env, const char *name, const char *value)
{
	struct out o = {0};

	environment_unset(env, name);
	if (!append_text(&o, name, strlen(name)) || !append_text(&o, "=", 1) ||
	    !append_text(&o, value, strlen(value))) {
		mem_free(o.ptr);
		return false;
	}
	return add_owned(env, o.ptr);
}

int
environment_make(const struct value *changes, struct strings *ret, struct pawl_error *err)
{
	struct strings env = {0};
	const char *key;
	struct value *value;
	bool ok = true;

	for (char **e = environ; ok && e != NULL && *e != NULL; e++)
		ok = strings_add(&env, *e);
	VALUE_MEMBERS(changes, key, value) {
		struct out o = {0};

		ok = ok && put_value(&o, value) && environment_set(&env, key, o.ptr);
		mem_free(o.ptr);
	}
	if (!ok) {
		strings_clear(&env);
		return err_nomem(err, NULL);
	}
	*ret = env;
	return 0;
}
