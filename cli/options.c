/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options: the parser of the command line; see options.h. Every message names the option as typed,
 * and what was expected.
 */
#include "options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/names.h"
#include "base/text.h"
#include "pawl.h"

struct parser {
	struct keep *keep;
	const struct option *own; /* the command's options; NULL before the command is known */
	struct common *common;
	void *args;
	int argc;
	char **argv;
	int at;
	const char **message;
};

static const struct option common_options[] = {
	{"json", 0, OPT_FLAG, offsetof(struct common, json), NULL, "print one JSON document on standard output"},
	{"quiet", 'q', OPT_FLAG, offsetof(struct common, quiet), NULL, "print only data and errors"},
	{"verbose", 'v', OPT_FLAG, offsetof(struct common, verbose), NULL, "print more"},
	{"no-progress", 0, OPT_FLAG, offsetof(struct common, no_progress), NULL, "draw no progress line"},
	{"no-pager", 0, OPT_FLAG, offsetof(struct common, no_pager), NULL, "print long output without a pager"},
	{"color", 0, OPT_TEXT, offsetof(struct common, color), "auto|always|never",
         "when to use colour (default: auto)"},
	{"chdir", 'C', OPT_TEXT, offsetof(struct common, chdir), "FOLDER", "work as if started in FOLDER"},
	{"node-folder", 0, OPT_TEXT, offsetof(struct common, node_folder), "PATH",
         "folder of each node's packs, with {node_rank}"},
	{"help", 'h', OPT_FLAG, offsetof(struct common, help), NULL, "print help"},
	{"version", 0, OPT_FLAG, offsetof(struct common, version), NULL, "print the version"},
	OPTION_END,
};

const struct option *
options_common(void)
{
	return common_options;
}

static size_t
count_options(const struct option *table)
{
	size_t n = 0;

	while (table != NULL && table[n].kind != OPT_END)
		n++;
	return n;
}

static int
fail_parse(struct parser *p, const char *message)
{
	*p->message = message;
	return -1;
}

/* Names of the options of the Python package and of other libraries -> ours. */
static const char *
name_here(const char *name)
{
	static const char *const pairs[][2] = {
		{"num-to-keep", "keep-last"},      {"max-to-keep", "keep-last"},
		{"save-total-limit", "keep-last"}, {"save-top-k", "keep-best"},
		{"score-attribute", "by"},         {"metric", "by"},
		{"score-order", "order"},          {"mode", "order"},
		{"keep-seconds", "younger-than"},
	};

	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
		if (strcmp(pairs[i][0], name) == 0)
			return pairs[i][1];
	return NULL;
}

static int
fail_unknown(struct parser *p, const char *typed, const char *name)
{
	size_t n_own = count_options(p->own), n_common = count_options(common_options);
	const char **names = keep_alloc(p->keep, n_own + n_common, sizeof(*names));
	const char *near;
	PAWL_CLEAN(buf_clear) struct buf known = {0};

	for (size_t i = 0; i < n_own + n_common; i++)
		names[i] = i < n_own ? p->own[i].name : common_options[i - n_own].name;
	for (size_t i = 0; i < n_own && name_here(name) != NULL; i++)
		if (strcmp(names[i], name_here(name)) == 0)
			return fail_parse(p, keep_printf(p->keep, "unknown option %s; use --%s", typed, names[i]));
	near = names_nearest(name, names, n_own + n_common);
	for (size_t i = 0; i < n_own + n_common; i++)
		names[i] = keep_printf(p->keep, "--%s", names[i]);
	names_put(&known, names, n_own + n_common);
	if (near != NULL)
		return fail_parse(p, keep_printf(p->keep, "unknown option %s; did you mean --%s? (known: %s)", typed,
		                                 near, buf_str(&known)));
	return fail_parse(p, keep_printf(p->keep, "unknown option %s (known: %s)", typed, buf_str(&known)));
}

/* Is value one of "a|b|c"? */
static bool
is_choice(const char *choices, const char *value)
{
	size_t len = value ? strlen(value) : 0;

	for (const char *at = choices; at != NULL; at = strchr(at, '|')) {
		at += *at == '|';
		if (len > 0 && strncmp(at, value, len) == 0 && (at[len] == '|' || at[len] == '\0'))
			return true;
	}
	return false;
}

static int
parse_count(const char *text, uint64_t *ret)
{
	unsigned long long value;
	char *end;

	if (*text < '0' || *text > '9')
		return -1;
	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno != 0 || *end != '\0' || value == 0 || value > INT64_MAX)
		return -1;
	*ret = value;
	return 0;
}

static void
add_text(struct keep *keep, struct texts *texts, const char *text)
{
	const char **items = keep_alloc(keep, texts->n + 1, sizeof(*items));

	if (texts->n > 0)
		memcpy(items, texts->items, texts->n * sizeof(*items));
	items[texts->n++] = text;
	texts->items = items;
}

static int
store_value(struct parser *p, const struct option *option, void *into, const char *typed, const char *value)
{
	void *at = (char *)into + option->at;
	const char *expected = "";

	switch (option->kind) {
	case OPT_FLAG:
		*(bool *)at = true;
		return 0;
	case OPT_TEXT:
	case OPT_TEXTS:
		if (strchr(option->value, '|') != NULL && !is_choice(option->value, value)) {
			expected = option->value;
			break;
		}
		if (option->kind == OPT_TEXT)
			*(const char **)at = value;
		else
			add_text(p->keep, at, value);
		return 0;
	case OPT_COUNT:
		expected = "a whole number from 1";
		if (parse_count(value, at) < 0)
			break;
		return 0;
	case OPT_BYTES:
		expected = "a size such as 500MB, 2GiB or 2G";
		if (pawl_parse_bytes(value, at, NULL) < 0 || *(uint64_t *)at == 0)
			break;
		return 0;
	case OPT_RATE:
		expected = "bytes a second such as 500kB/s, 20MB/s or 2GiB/s";
		if (pawl_parse_bytes(value, at, NULL) < 0 || *(uint64_t *)at == 0)
			break;
		return 0;
	case OPT_SECONDS:
		expected = "a time such as 90s, 30min, 12h or 7d";
		if (pawl_parse_seconds(value, at, NULL) < 0 || !(*(double *)at > 0))
			break;
		return 0;
	case OPT_END:
		break;
	}
	return fail_parse(p, keep_printf(p->keep, "option %s: expected %s, found '%s'", typed, expected, value));
}

/* Finds an option by long name (of len bytes) or letter, in the command's table first. *into: the
 * struct it fills. */
static const struct option *
find_option(struct parser *p, const char *name, size_t len, char letter, void **into)
{
	const struct option *tables[2] = {p->own, common_options};
	void *structs[2] = {p->args, p->common};

	for (size_t t = 0; t < 2; t++) {
		for (size_t i = 0; i < count_options(tables[t]); i++) {
			const struct option *o = &tables[t][i];

			if (name == NULL ? o->letter == letter
			                 : strlen(o->name) == len && memcmp(o->name, name, len) == 0) {
				*into = structs[t];
				return o;
			}
		}
	}
	return NULL;
}

static int
parse_long(struct parser *p, const char *arg)
{
	const char *name = arg + 2, *equals = strchr(name, '='), *value = NULL, *typed;
	size_t len = equals != NULL ? (size_t)(equals - name) : strlen(name);
	const struct option *option;
	void *into;

	typed = keep_strndup(p->keep, arg, len + 2);
	option = find_option(p, name, len, 0, &into);
	if (option == NULL)
		return fail_unknown(p, typed, typed + 2);
	if (option->kind == OPT_FLAG) {
		if (equals != NULL)
			return fail_parse(
				p, keep_printf(p->keep, "option %s takes no value, found '%s'", typed, equals + 1));
	} else if (equals != NULL) {
		value = equals + 1;
	} else {
		if (p->at >= p->argc)
			return fail_parse(p, keep_printf(p->keep, "option %s needs a value: %s", typed, option->value));
		value = p->argv[p->at++];
	}
	return store_value(p, option, into, typed, value);
}

static int
parse_letters(struct parser *p, const char *arg)
{
	for (const char *at = arg + 1; *at != '\0'; at++) {
		const char *typed = keep_printf(p->keep, "-%c", *at), *value = NULL;
		const struct option *option;
		void *into;

		option = find_option(p, NULL, 0, *at, &into);
		if (option == NULL)
			return fail_unknown(p, *at > ' ' && *at < 0x7f ? typed : arg, typed + 1);
		if (option->kind != OPT_FLAG) {
			if (at[1] != '\0')
				value = at + 1;
			else if (p->at < p->argc)
				value = p->argv[p->at++];
			else
				return fail_parse(
					p, keep_printf(p->keep, "option %s needs a value: %s", typed, option->value));
		}
		if (store_value(p, option, into, typed, value) < 0)
			return -1;
		if (value != NULL)
			break;
	}
	return 0;
}

int
options_parse_common(struct keep *keep, int argc, char **argv, int *at, struct common *common, const char **message)
{
	struct parser p = {keep, NULL, common, NULL, argc, argv, *at, message};

	while (p.at < argc && argv[p.at][0] == '-' && argv[p.at][1] != '\0') {
		const char *arg = argv[p.at++];

		if (arg[1] == '-' ? parse_long(&p, arg) < 0 : parse_letters(&p, arg) < 0)
			return -1;
	}
	*at = p.at;
	return 0;
}

static int
check_operands(struct parser *p, const struct command *command, char **operands, size_t n)
{
	size_t least = 0, most = 0;

	for (const struct operand *o = command->operands; o != NULL && o->kind != OPERAND_END; o++) {
		if (n == least && n > 0 && strchr(o->name, '=') != NULL && strchr(operands[0], '=') != NULL)
			return fail_parse(p, keep_printf(p->keep,
			                                 "%s is missing before %s; name it, such as RUN@400 or @400",
			                                 command->operands->name, operands[0]));
		if (n < least + o->min)
			return fail_parse(p, keep_printf(p->keep, "%s is missing (usage: pawl %s %s)", o->name,
			                                 command->name, options_usage(p->keep, command)));
		least += o->min;
		most = o->max == OPERAND_ANY ? OPERAND_ANY : most + o->max;
	}
	if (n > most)
		return fail_parse(p, keep_printf(p->keep, "unexpected argument '%s' (usage: pawl %s %s)",
		                                 operands[most], command->name, options_usage(p->keep, command)));
	return 0;
}

/* $PAWL_RUN stands for the only operand that a command needs, if that is a run or a checkpoint. */
static size_t
add_default_run(const struct command *command, char **list, size_t n)
{
	const struct operand *o = command->operands;
	char *run = getenv("PAWL_RUN");

	if (n > 0 || o == NULL || (o->kind != OPERAND_RUN && o->kind != OPERAND_TARGET) ||
	    (o[1].kind != OPERAND_END && o[1].min > 0) || run == NULL || *run == '\0')
		return 0;
	list[0] = run;
	return 1;
}

/* Makes each operand "file://PATH" a path, for commands that use the path themselves. */
static void
skip_file_urls(const struct command *command, char **operands, size_t n)
{
	const struct operand *o = command->operands;

	for (size_t i = 0; i < n && o != NULL && o->kind != OPERAND_END; i++) {
		const bool is_place = o->kind == OPERAND_TARGET || o->kind == OPERAND_RUN ||
		                      o->kind == OPERAND_FOLDER || o->kind == OPERAND_PATH;

		if (is_place && strchr(o->name, '=') == NULL)
			operands[i] += text_skip_file(operands[i]) - operands[i];
		if (o[1].kind != OPERAND_END) /* the last one may stand for several */
			o++;
	}
}

int
options_parse(struct keep *keep, const struct command *command, int argc, char **argv, struct common *common,
              void *args, char ***operands, size_t *n_operands, const char **message)
{
	struct parser p = {keep, command->options, common, args, argc, argv, 0, message};
	char **list = keep_alloc(keep, (size_t)argc + 1, sizeof(*list));
	size_t n = 0;

	while (p.at < argc) {
		char *arg = argv[p.at++];

		if (strcmp(arg, "--") == 0) {
			while (p.at < argc)
				list[n++] = argv[p.at++];
		} else if (arg[0] != '-' || arg[1] == '\0') {
			list[n++] = arg;
		} else if (arg[1] == '-' ? parse_long(&p, arg) < 0 : parse_letters(&p, arg) < 0) {
			return -1;
		}
	}
	n += add_default_run(command, list, n);
	if (!common->help && !common->version && check_operands(&p, command, list, n) < 0)
		return -1;
	skip_file_urls(command, list, n);
	*operands = list;
	*n_operands = n;
	return 0;
}

const char *
options_usage(struct keep *keep, const struct command *command)
{
	const char *ret = "[options]";

	for (const struct operand *o = command->operands; o != NULL && o->kind != OPERAND_END; o++) {
		const char *more = o->max > 1 ? "..." : "";

		if (o->min == 0)
			ret = keep_printf(keep, "%s [%s%s]", ret, o->name, more);
		else
			ret = keep_printf(keep, "%s %s%s", ret, o->name, more);
	}
	return ret;
}
