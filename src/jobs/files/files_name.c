/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files_name: a path -> folder, name, format and compression; hidden names of files being written.
 * Writes nothing, and only removes files of dead processes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/hidden.h"
#include "base/mem.h"
#include "base/sum.h"
#include "base/text.h"
#include "jobs/files/files.h"

#define TEMP_PREFIX ".pawl-"
#define TEMP_SUFFIX HIDDEN_PARTIAL
#define MAX_SWEPT 64 /* names at a time */

static const struct {
	const char *suffix;
	file_plan_fn *plan;
} formats[] = {
	{".pt", file_plan_pt},
	{".pth", file_plan_pt},
	{".safetensors", file_plan_safetensors},
};

/* Finds format and codec by the end of text. *ret_len: length of the text before it. */
static int
pick_format(const char *text, struct files_target *t, size_t *ret_len, struct pawl_error *err)
{
	const struct codec *codec = codec_of_name(text);
	const size_t len = codec ? codec_stem_len(codec, text) : strlen(text);

	for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
		const size_t n = strlen(formats[i].suffix);

		if (len < n || memcmp(text + len - n, formats[i].suffix, n) != 0)
			continue;
		t->plan = formats[i].plan;
		t->codec = codec;
		*ret_len = len - n;
		return 0;
	}
	return err_set(err, PAWL_EUSAGE,
	               "%s: expected a name that ends in .pt, .pth or .safetensors, or in one of these and a "
	               "compression (.zst, .gz, ...), found '%s'",
	               t->path, text);
}

/* Sets the format by name. The stem is then the text before the last dot. */
static int
set_format(const char *format, struct files_target *t, struct pawl_error *err)
{
	size_t len = 0;

	if (format) {
		PAWL_FREE char *text = mem_printf("%s%s", format[0] == '.' ? "" : ".", format);
		const char *dot = strrchr(t->name, '.');

		if (!text)
			return err_nomem(err, t->path);
		TRY(pick_format(text, t, &len, err));
		len = dot ? (size_t)(dot - t->name) : strlen(t->name);
	} else {
		TRY(pick_format(t->name, t, &len, err));
	}
	t->stem = len ? mem_strndup(t->name, len) : mem_strdup("archive");
	return t->stem ? 0 : err_nomem(err, t->path);
}

int
files_target_set(const char *path, const char *format, struct files_target *ret, struct pawl_error *err)
{
	if (!path || !path[0])
		return err_set(err, PAWL_EUSAGE, "save: expected the path of a file, found %s",
		               path ? "an empty text" : "NULL");
	ret->path = mem_strdup(path);
	if (!ret->path)
		return err_nomem(err, path);
	if (text_is_url(path))
		return err_set(err, PAWL_EUNSUPPORTED, "%s: single files are written to paths, not to other stores",
		               path);

	path = text_skip_file(path);
	const char *slash = strrchr(path, '/');

	ret->folder = !slash ? mem_strdup(".") : mem_strndup(path, slash == path ? 1 : (size_t)(slash - path));
	ret->name = mem_strdup(slash ? slash + 1 : path);
	if (!ret->folder || !ret->name)
		return err_nomem(err, path);
	if (!text_is_key(ret->name) || strchr(ret->name, '/'))
		return err_set(err, PAWL_EUSAGE, "%s: expected the path of a file, found '%s' as its name", path,
		               ret->name);
	return set_format(format, ret, err);
}

void
files_target_clear(struct files_target *t)
{
	mem_free(t->path);
	mem_free(t->folder);
	mem_free(t->name);
	mem_free(t->stem);
	*t = (struct files_target){0};
}

/* ------------------------------------------------------------- hidden names */

/* .pawl-<host>-<boot>-<pid namespace>-<pid>-<its start>-<random>.partial. host (its name and
 * machine id) and boot are checksums, so the name stays short and reveals neither. */
struct parts {
	char host[17], boot[17], space[24];
};

static void
describe_process(const struct clock_process *p, struct parts *ret)
{
	const size_t n = strcspn(p->boot, "/");
	const char *space = p->boot[n] == '/' ? p->boot + n + 1 : "";
	char host[sizeof p->host + sizeof p->machine];

	snprintf(host, sizeof host, "%s%s", p->host, p->machine);
	snprintf(ret->host, sizeof ret->host, "%016llx", (unsigned long long)sum_bytes(host, strlen(host)).lo);
	snprintf(ret->boot, sizeof ret->boot, "%016llx", (unsigned long long)sum_bytes(p->boot, n).lo);
	snprintf(ret->space, sizeof ret->space, "%.20s", space);
	/* a dash would end the part */
	for (char *at = ret->space; *at; at++) {
		if (*at == '-')
			*at = '_';
	}
}

int
files_temp_name(char ret[FILES_TEMP_BYTES], struct pawl_error *err)
{
	struct clock_process self;
	struct parts parts;
	char token[33];

	TRY(clock_this_process(&self, err));
	TRY(clock_token(token, err));
	describe_process(&self, &parts);
	snprintf(ret, FILES_TEMP_BYTES, TEMP_PREFIX "%s-%s-%s-%lld-%llu-%.16s" TEMP_SUFFIX, parts.host, parts.boot,
	         parts.space, (long long)self.pid, (unsigned long long)self.start_ticks, token);
	return 0;
}

/* The text after word and a dash; NULL if it does not begin so. */
static const char *
after_word(const char *text, const char *word)
{
	const size_t n = strlen(word);

	return strncmp(text, word, n) == 0 && text[n] == '-' ? text + n + 1 : NULL;
}

/* True if the name was made by a process that is certainly dead. */
static bool
is_left_over(const char *name, const struct clock_process *self)
{
	const size_t len = strlen(name), n_prefix = strlen(TEMP_PREFIX), n_suffix = strlen(TEMP_SUFFIX);
	struct clock_process other = *self;
	struct parts parts = {0};
	char *end;

	if (len >= FILES_TEMP_BYTES || len < n_prefix + n_suffix || strncmp(name, TEMP_PREFIX, n_prefix) != 0 ||
	    strcmp(name + len - n_suffix, TEMP_SUFFIX) != 0)
		return false;
	describe_process(self, &parts);
	name = after_word(name + n_prefix, parts.host);
	if (!name)
		return false;

	const char *rest = after_word(name, parts.boot);

	if (!rest) { /* of another boot: which process it was does not matter */
		const char *space = strchr(name, '-');

		snprintf(other.boot, sizeof other.boot, "another/%.*s", space ? (int)strcspn(space + 1, "-") : 0,
		         space ? space + 1 : "");
		return clock_process_alive(&other) == 0;
	}
	rest = after_word(rest, parts.space);
	if (!rest)
		return false;
	other.pid = (int64_t)strtoll(rest, &end, 10);
	if (end == rest || *end != '-')
		return false;
	rest = end + 1;
	other.start_ticks = strtoull(rest, &end, 10);
	return end > rest && *end == '-' && clock_process_alive(&other) == 0;
}

struct sweep {
	struct clock_process self;
	char *names[MAX_SWEPT];
	size_t n;
};

static int
sweep_entry(void *arg, const struct store_entry *entry)
{
	struct sweep *s = arg;

	if (s->n < MAX_SWEPT && !entry->is_folder && !entry->is_link && is_left_over(entry->name, &s->self)) {
		s->names[s->n] = mem_strdup(entry->name);
		if (s->names[s->n])
			s->n++;
	}
	return 0;
}

void
files_sweep(struct store *folder)
{
	struct sweep s = {.n = 0};

	if (clock_this_process(&s.self, NULL) < 0)
		return;
	store_list(folder, "", sweep_entry, &s, NULL);
	for (size_t i = 0; i < s.n; i++) {
		store_remove(folder, s.names[i], NULL);
		mem_free(s.names[i]);
	}
}
