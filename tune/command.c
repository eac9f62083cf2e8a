/* SPDX-License-Identifier: Apache-2.0 */
/* command: see command.h. Called by runner.c, runner_trial.c and document.c; calls jsonx. There is no shell anywhere:
 * what a value holds stays one argument. */
#include "command.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "jsonx.h"
#include "tune_err.h"

extern char **environ;

struct out {
	char *ptr;
	size_t len, cap;
};

static bool
put(struct out *o, const char *text, size_t len)
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
		free(s->items[i]);
	free(s->items);
	*s = (struct strings){0};
}

/* Takes the text. */
static bool
take(struct strings *s, char *text)
{
	char **more = text != NULL ? realloc(s->items, (s->n + 2) * sizeof(*more)) : NULL;

	if (more == NULL) {
		free(text);
		return false;
	}
	s->items = more;
	s->items[s->n++] = text;
	s->items[s->n] = NULL;
	return true;
}

bool
strings_add(struct strings *s, const char *text)
{
	return take(s, strdup(text));
}

static bool
put_value(struct out *o, const json_t *value)
{
	char *text;
	bool ok;

	if (json_is_string(value))
		return put(o, json_string_value(value), json_string_length(value));
	text = jsonx_dump(value);
	ok = text != NULL && put(o, text, strlen(text));
	free(text);
	return ok;
}

/* The names that a configuration has, for an error. */
static void
names_of(const json_t *config, char *text, size_t nbytes)
{
	const char *key;
	json_t *value;
	size_t at = 0;

	text[0] = '\0';
	json_object_foreach((json_t *)(uintptr_t)config, key, value)
	{
		size_t len = strlen(key);

		if (at + len + 3 >= nbytes)
			break;
		memcpy(text + at, at > 0 ? ", " : "", at > 0 ? 2 : 0);
		at += at > 0 ? 2 : 0;
		memcpy(text + at, key, len + 1);
		at += len;
	}
}

static int
placeholder(const char *name, size_t len, const char *whole, const json_t *config, struct out *o,
            struct pawl_error *err)
{
	char key[256], known[512];
	const json_t *value = NULL;

	if (len > 0 && len < sizeof(key)) {
		memcpy(key, name, len);
		key[len] = '\0';
		value = jsonx_at(config, key);
	}
	if (value == NULL) {
		names_of(config, known, sizeof(known));
		return tune_fail(err, PAWL_EUSAGE,
		                 "run: '%.80s': the space has no '%.*s' (known: %s; {{ stands for a brace)", whole,
		                 (int)(len < 80 ? len : 80), name, known);
	}
	return put_value(o, value) ? 0 : tune_no_memory(err);
}

static int
fill_one(const char *text, const json_t *config, struct out *o, struct pawl_error *err)
{
	const char *end;
	int rc = put(o, "", 0) ? 0 : tune_no_memory(err);

	for (const char *at = text; rc == 0 && *at != '\0';) {
		size_t len = strcspn(at, "{}");

		if (len > 0 || at[0] == at[1] || *at == '}') {
			rc = put(o, at, len > 0 ? len : 1) ? 0 : tune_no_memory(err);
			at += len > 0 ? len : at[0] == at[1] ? 2 : 1;
			continue;
		}
		end = strchr(at, '}');
		if (end == NULL)
			return tune_fail(err, PAWL_EUSAGE,
			                 "run: '%.80s': a placeholder has no end ({{ stands for a brace)", text);
		rc = placeholder(at + 1, (size_t)(end - at - 1), text, config, o, err);
		at = end + 1;
	}
	return rc;
}

int
command_fill(const json_t *template, const json_t *config, struct strings *ret, struct pawl_error *err)
{
	struct strings argv = {0};
	int rc = 0;

	if (json_array_size(template) == 0)
		return tune_fail(err, PAWL_EUSAGE,
		                 "run: expected the program of a trial and its arguments, found none");
	for (size_t i = 0; rc == 0 && i < json_array_size(template); i++) {
		const char *text = json_string_value(json_array_get(template, i));
		struct out o = {0};

		rc = text != NULL ? fill_one(text, config, &o, err)
		                  : tune_fail(err, PAWL_EUSAGE, "run: argument %zu: expected a text", i);
		if (rc < 0)
			free(o.ptr);
		else if (!take(&argv, o.ptr))
			rc = tune_no_memory(err);
	}
	if (rc == 0 && argv.items[0][0] == '\0')
		rc = tune_fail(err, PAWL_EUSAGE, "run: expected a program, found an empty text");
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
	free(env->items[i]);
	memmove(&env->items[i], &env->items[i + 1], (env->n - i) * sizeof(env->items[0]));
	env->n--;
}

bool
environment_set(struct strings *env, const char *name, const char *value)
{
	struct out o = {0};

	environment_unset(env, name);
	if (!put(&o, name, strlen(name)) || !put(&o, "=", 1) || !put(&o, value, strlen(value))) {
		free(o.ptr);
		return false;
	}
	return take(env, o.ptr);
}

int
environment_make(const json_t *changes, struct strings *ret, struct pawl_error *err)
{
	struct strings env = {0};
	const char *key;
	json_t *value;
	bool ok = true;

	for (char **e = environ; ok && e != NULL && *e != NULL; e++)
		ok = strings_add(&env, *e);
	json_object_foreach((json_t *)(uintptr_t)changes, key, value)
	{
		struct out o = {0};

		ok = ok && put_value(&o, value) && environment_set(&env, key, o.ptr);
		free(o.ptr);
	}
	if (!ok) {
		strings_clear(&env);
		return tune_no_memory(err);
	}
	*ret = env;
	return 0;
}
