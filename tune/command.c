/* SPDX-License-Identifier: Apache-2.0 */
/* command: see command.h. No shell is used: the text of a value stays one argument. */
#include "command.h"

#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/names.h"
#include "base/value.h"
#include "base/vec.h"

extern char **environ;

/* A text as it is, any other value as JSON. */
static int
put_value(struct buf *out, const struct value *value, struct pawl_error *err)
{
	if (value_is(value, JSON_STRING)) {
		buf_put(out, value_text(value), value_text_bytes(value));
		return 0;
	}
	PAWL_FREE char *text = value_print(value);
	if (text == NULL)
		return err_nomem(err, NULL);
	buf_puts(out, text);
	return 0;
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
fill_placeholder(const char *name, size_t len, const char *text, const struct value *config, struct buf *out,
                 struct pawl_error *err)
{
	char key[256];
	const struct value *value = NULL;

	if (len > 0 && len < sizeof(key)) {
		memcpy(key, name, len);
		key[len] = '\0';
		value = value_at(config, key);
	}
	if (value != NULL)
		return put_value(out, value, err);
	PAWL_CLEAN(buf_clear) struct buf known = {0};

	put_names(&known, config);
	return err_set(err, PAWL_EUSAGE, "run: '%.80s': the space has no '%.*s' (known: %s; {{ stands for a brace)",
	               text, (int)(len < 80 ? len : 80), name, buf_str(&known));
}

static int
fill_argument(const char *text, const struct value *config, struct buf *out, struct pawl_error *err)
{
	for (const char *at = text; *at != '\0';) {
		const size_t len = strcspn(at, "{}");

		if (len > 0 || at[0] == at[1] || *at == '}') {
			buf_put(out, at, len > 0 ? len : 1);
			at += len > 0 ? len : at[0] == at[1] ? 2 : 1;
			continue;
		}
		const char *end = strchr(at, '}');
		if (end == NULL)
			return err_set(err, PAWL_EUSAGE,
			               "run: '%.80s': a placeholder has no end ({{ stands for a brace)", text);
		TRY(fill_placeholder(at + 1, (size_t)(end - at - 1), text, config, out, err));
		at = end + 1;
	}
	return 0;
}

int
command_fill(const struct value *template, const struct value *config, struct strings *ret, struct pawl_error *err)
{
	PAWL_CLEAN(strings_clear) struct strings argv = {0};

	if (value_n_items(template) == 0)
		return err_set(err, PAWL_EUSAGE, "run: expected the program of a trial and its arguments, found none");
	for (size_t i = 0; i < value_n_items(template); i++) {
		PAWL_CLEAN(buf_clear) struct buf out = {0};
		const char *text = value_text(value_item(template, i));

		if (text == NULL)
			return err_set(err, PAWL_EUSAGE, "run: argument %zu: expected a text", i);
		TRY(fill_argument(text, config, &out, err));
		if (out.failed || !strings_add(&argv, buf_str(&out)))
			return err_nomem(err, NULL);
	}
	if (argv.items[0][0] == '\0')
		return err_set(err, PAWL_EUSAGE, "run: expected a program, found an empty text");
	*ret = argv;
	argv = (struct strings){0};
	return 0;
}

static size_t
find_variable(const struct strings *env, const char *name)
{
	size_t len = strlen(name), i = 0;

	while (i < env->n && !(strncmp(env->items[i], name, len) == 0 && env->items[i][len] == '='))
		i++;
	return i;
}

void
command_unset_variable(struct strings *env, const char *name)
{
	size_t i = find_variable(env, name);

	if (i == env->n)
		return;
	mem_free(env->items[i]);
	memmove(&env->items[i], &env->items[i + 1], (env->n - i) * sizeof(env->items[0]));
	env->n--;
}

bool
command_set_variable(struct strings *env, const char *name, const char *value)
{
	command_unset_variable(env, name);
	return strings_add_owned(env, mem_printf("%s=%s", name, value));
}

int
command_environment(const struct value *changes, struct strings *ret, struct pawl_error *err)
{
	PAWL_CLEAN(strings_clear) struct strings env = {0};
	const char *key;
	struct value *value;

	for (char **e = environ; e != NULL && *e != NULL; e++)
		if (!strings_add(&env, *e))
			return err_nomem(err, NULL);
	VALUE_MEMBERS(changes, key, value) {
		PAWL_CLEAN(buf_clear) struct buf out = {0};

		TRY(put_value(&out, value, err));
		if (out.failed || !command_set_variable(&env, key, buf_str(&out)))
			return err_nomem(err, NULL);
	}
	*ret = env;
	env = (struct strings){0};
	return 0;
}
