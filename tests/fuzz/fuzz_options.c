/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any lines as the arguments of a command that has every kind of option. They are refused with a
 * message, or give values within what the kinds allow, and every operand is one of the arguments.
 * What is printed of hostile text is clean. The first byte chooses where the common options end.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "options.h"
#include "term.h"
#include "fuzz.h"

#define MAX_ARGS 64

struct args {
	bool flag;
	const char *text, *choice;
	struct texts texts;
	uint64_t count, bytes;
	double seconds;
};

static const struct option options[] = {
	{"flag", 'f', OPT_FLAG, offsetof(struct args, flag), NULL, "a flag"},
	{"text", 't', OPT_TEXT, offsetof(struct args, text), "TEXT", "a text"},
	{"order", 'o', OPT_TEXT, offsetof(struct args, choice), "max|min|maximum", "a choice"},
	{"include", 0, OPT_TEXTS, offsetof(struct args, texts), "GLOB", "several"},
	{"count", 'n', OPT_COUNT, offsetof(struct args, count), "N", "a number"},
	{"bytes", 'b', OPT_BYTES, offsetof(struct args, bytes), "SIZE", "a size"},
	{"older", 0, OPT_SECONDS, offsetof(struct args, seconds), "TIME", "a time"},
	OPTION_END,
};
static const struct operand operands[] = {
	{"TARGET", OPERAND_TARGET, 1, 1}, {"PATH", OPERAND_PATH, 0, 2}, OPERAND_LIST_END};
static const struct command command = {
	.name = "try", .operands = operands, .options = options, .args_size = sizeof(struct args)};

static bool
is_argument(const char *text, int argc, char **argv)
{
	for (int i = 0; i < argc; i++) {
		if (text >= argv[i] && text <= argv[i] + strlen(argv[i]))
			return true;
	}
	return false;
}

static void
check_values(const struct args *args, int argc, char **argv)
{
	check(!args->text || is_argument(args->text, argc, argv));
	check(!args->choice || strcmp(args->choice, "max") == 0 || strcmp(args->choice, "min") == 0 ||
	      strcmp(args->choice, "maximum") == 0);
	check(args->texts.n <= (size_t)argc);
	for (size_t i = 0; i < args->texts.n; i++)
		check(is_argument(args->texts.items[i], argc, argv));
	check(args->count <= INT64_MAX && args->bytes <= INT64_MAX);
	check(args->seconds == 0 || (args->seconds > 0 && isfinite(args->seconds)));
}

/* Nothing that steers a terminal is left, and what was clean stays as it was. */
static void
check_clean(struct keep *keep, const char *text)
{
	const char *clean = term_clean(keep, text);

	check(text_is_utf8(clean, strlen(clean)) && strcmp(term_clean(keep, clean), clean) == 0);
	for (const char *c = clean; *c; c++)
		check((unsigned char)*c >= ' ' && *c != 0x7f);
	for (size_t width = 1; width < 40; width += 13) {
		check(term_width(term_cut(keep, clean, width, true)) <= width);
		check(term_width(term_cut_start(keep, clean, width, true)) <= width);
	}
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct keep keep = {0};
	struct common common = {0};
	struct args args = {0};
	char *argv[MAX_ARGS + 1] = {0}, **list = NULL, *save = NULL;
	const char *message = NULL;
	size_t n = 0;
	int argc = 0, at = 0;

	if (size == 0)
		return 0;
	static bool located;
	if (!located)
		located = term_locale() || true;
	char *text = strndup((const char *)data + 1, size - 1);
	check(text != NULL);
	for (char *arg = strtok_r(text, "\n", &save); arg && argc < MAX_ARGS; arg = strtok_r(NULL, "\n", &save))
		argv[argc++] = arg;
	if (data[0] & 1) {
		int rc = options_parse_common(&keep, argc, argv, &at, &common, &message);
		check((rc == 0 && at <= argc) || (rc == -1 && message && *message));
	}
	message = NULL;
	int rc = options_parse(&keep, &command, argc, argv, &common, &args, &list, &n, &message);
	if (rc == 0) {
		check(common.help || common.version || (n >= 1 && n <= 3));
		for (size_t i = 0; i < n; i++)
			check(is_argument(list[i], argc, argv));
		check_values(&args, argc, argv);
	} else {
		check(rc == -1 && message && *message);
		check_clean(&keep, message);
	}
	for (int i = 0; i < argc && i < 4; i++)
		check_clean(&keep, argv[i]);
	keep_clear(&keep);
	free(text);
	return 0;
}
