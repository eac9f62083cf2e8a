/* SPDX-License-Identifier: Apache-2.0 */
/*
 * composer_names: from templates to names and back, and which names of other runs are in the way.
 * Pure. R73-R77, R80, R86, R90.
 */
#include <ctype.h>
#include <string.h>

#include "base/err.h"
#include "base/text.h"
#include "format/codec/codec.h"
#include "jobs/composer/composer.h"
#include "store/registry.h"
#include "store/store.h"

bool
composer_is_tar(const char *name)
{
	static const char *const suffixes[] = {".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.lzma"};
	for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
		if (text_ends_with(name, suffixes[i]))
			return true;
	return false;
}

/* Does the name promise a compressed file or an archive? In capitals, too. */
static bool
is_compressed(const char *name)
{
	static const char *const others[] = {"7z",   "br",  "gzip", "lz",   "rar", "sz",  "tar",
	                                     "tbz2", "tgz", "txz",  "tzst", "z",   "zip", "zstd"};
	const char *dot = strrchr(name, '.');
	char low[16] = "x";
	if (!dot || strlen(dot) >= sizeof low - 1)
		return false;
	for (size_t i = 0; dot[i] != '\0'; i++)
		low[i + 1] = (char)tolower((unsigned char)dot[i]);
	for (size_t i = 0; i < sizeof others / sizeof *others; i++)
		if (strcmp(low + 2, others[i]) == 0)
			return true;
	return codec_of_name(low) != NULL;
}

const char *
composer_format(const char *path)
{
	static const char *const marks[] = {".pt", ".pth", ".safetensors", ".npz", ".npy"};
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
		const char *at = strstr(name, marks[i]);
		char next = at ? at[strlen(marks[i])] : 'x';
		if (next == '\0' || next == '.')
			return NULL;
	}
	return is_compressed(name) ? NULL : "pt";
}

static const char *
without_slashes(const char *text)
{
	return text + strspn(text, "/");
}

/* name.h has more variables than the files of a saver. */
static int
check_file_variables(const char *template_text, struct pawl_error *err)
{
	const char *other = name_excess(template_text, NAME_OF_FILE);
	return other ? err_set(err, PAWL_EUSAGE,
	                       "\"%.200s\": {%s} has no value in names of checkpoint files; expected {batch} "
	                       "or another counter of the training",
	                       template_text, other)
	             : 0;
}

int
composer_fill(const char *template_text, const struct name_values *values, bool as_tar, char **ret,
              struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf name = {0};
	TRY(check_file_variables(template_text, err));
	TRY(name_format(without_slashes(template_text), values, false, &name, err));
	if (as_tar && !composer_is_tar(buf_str(&name)))
		buf_puts(&name, ".tar");
	TRY(buf_check(&name, "checkpoint name", err));
	if (!text_is_key(buf_str(&name)))
		return err_set(err, PAWL_EUSAGE, "\"%.200s\": expected the name of a file in a folder", buf_str(&name));
	*ret = mem_strdup(buf_str(&name));
	return *ret ? 0 : err_nomem(err, "checkpoint saver");
}

/* Where the part with the first variable begins, or the end. */
static size_t
fixed_part(const char *template_text)
{
	size_t at = strcspn(template_text, "{}");
	if (template_text[at] == '\0')
		return at;
	while (at > 0 && template_text[at - 1] != '/')
		at--;
	return at;
}

int
composer_fill_folder(const char *template_text, const struct name_values *values, char **ret, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf name = {0};
	struct name_values known = *values;
	size_t fixed = fixed_part(template_text);
	known.of = NAME_OF_FOLDER;
	if (template_text[0] == '\0')
		return err_set(err, PAWL_EUSAGE, "folder: expected the name of a folder, found none");
	if (text_begins_as_url(template_text))
		return err_set(err, PAWL_EUSAGE,
		               "folder \"%.200s\": expected a folder of this machine; give "
		               "a URL in remote_file_name",
		               template_text);
	const char *counter = name_excess(template_text, known.of);
	if (counter)
		return err_set(
			err, PAWL_EUSAGE,
			"folder \"%.200s\": {%s} changes during the training; expected run_name, rank, local_rank, "
			"world_size, local_world_size or node_rank in a folder; counters belong in filename",
			template_text, counter);
	buf_put(&name, template_text, fixed);
	if (template_text[fixed] != '\0')
		TRY(name_format(template_text + fixed, &known, false, &name, err));
	while (name.len > 1 && name.ptr[name.len - 1] == '/')
		name.len--;
	TRY(buf_check(&name, "folder", err));
	*ret = mem_strdup(buf_str(&name));
	return *ret ? 0 : err_nomem(err, "checkpoint saver");
}

static bool
is_bucket(const char *url)
{
	const struct store_kind *kind = registry_find(url);
	return kind != NULL && kind->is_bucket && strncmp(url + strlen(kind->scheme), "://", 3) == 0;
}

int
composer_split_url(const char *template_text, char **ret_root, char **ret_name, struct pawl_error *err)
{
	const char *scheme = strstr(template_text, "://");
	PAWL_FREE char *root = NULL;
	PAWL_FREE char *name = NULL;
	if (!scheme) {
		TRY(store_check_slashes(template_text, err));
		name = mem_strdup(without_slashes(template_text));
	} else {
		const char *host = scheme + 3;
		const char *end = template_text + fixed_part(template_text);
		/* A URL ends with the options of the store. */
		size_t len = strcspn(host, "?");
		const char *options = host + len;
		if (is_bucket(template_text))
			end = host + strcspn(host, "/?");
		else if (*end == '\0' || end > options)
			for (end = options; end > host && end[-1] != '/';)
				end--;
		if (is_bucket(template_text) && host[strcspn(host, "{/?")] == '{')
			return err_set(err, PAWL_EUSAGE, "\"%.200s\": expected variables only after the bucket",
			               template_text);
		if (end <= host || end >= options)
			return err_set(err, PAWL_EUSAGE, "\"%.200s\": expected the URL of a file in a store",
			               template_text);
		size_t root_len = (size_t)(end - template_text);
		while (root_len > 1 && template_text[root_len - 1] == '/' && template_text[root_len - 2] != '/')
			root_len--;
		root = mem_printf("%.*s%s", (int)root_len, template_text, options);
		const char *begin = without_slashes(end);
		name = mem_strndup(begin, (size_t)(options - begin));
		if (!root)
			return err_nomem(err, "checkpoint saver");
	}
	if (!name)
		return err_nomem(err, "checkpoint saver");
	if (name[0] == '\0')
		return err_set(err, PAWL_EUSAGE, "\"%.200s\": expected the name of a file", template_text);
	*ret_root = steal(&root);
	*ret_name = steal(&name);
	return 0;
}

/* ------------------------------------------------------------------ reading */

struct counter {
	const char *name;
	int64_t *value;
};

/* Matches one "{counter...}" at *at with the digits at *name. */
static bool
take_field(const char **at, const char **name, const struct counter *counters, size_t n)
{
	const char *open = *at + 1;
	size_t len = strspn(open, "abcdefghijklmnopqrstuvwxyz_");
	const char *end = strchr(open, '}');
	const char *digits = *name + strspn(*name, " ");
	size_t n_digits = strspn(digits, "0123456789");
	int64_t value = 0;
	if (!end || n_digits == 0 || n_digits > 18)
		return false;
	for (size_t i = 0; i < n_digits; i++)
		value = value * 10 + (digits[i] - '0');
	*name = digits + n_digits;
	for (size_t i = 0; i < n; i++)
		if (strlen(counters[i].name) == len && memcmp(counters[i].name, open, len) == 0)
			*counters[i].value = value;
	/* Seconds are written with their fraction. */
	if (len > 4 && memcmp(open + len - 4, "_wct", 4) == 0 && **name == '.')
		*name += 1 + strspn(*name + 1, "0123456789");
	*at = end + 1;
	return true;
}

static bool
match_name(const char *at, const char *name, struct pawl_progress *p)
{
	const struct counter counters[] = {
		{"epoch", &p->epoch},
		{"batch", &p->batch},
		{"batch_in_epoch", &p->batch_in_epoch},
		{"sample", &p->sample},
		{"token", &p->token},
		{"sample_in_epoch", &p->sample_in_epoch},
		{"token_in_epoch", &p->token_in_epoch},
	};
	while (*at != '\0') {
		if (*at == '{' && at[1] != '{') {
			if (!take_field(&at, &name, counters, sizeof counters / sizeof *counters))
				return false;
			continue;
		}
		if (*at != *name)
			return false;
		at += (*at == '{' || *at == '}') ? 2 : 1;
		name++;
	}
	return *name == '\0';
}

int
composer_parse(const char *template_text, const struct name_values *values, bool as_tar, const char *name,
               struct pawl_progress *ret, struct pawl_error *err)
{
	static const struct pawl_progress unknown = PAWL_PROGRESS_INIT;
	PAWL_CLEAN(buf_clear) struct buf pattern = {0};
	struct name_values known = *values;
	struct pawl_progress p = unknown;
	known.progress = unknown;
	TRY(name_format(without_slashes(template_text), &known, true, &pattern, err));
	if (as_tar && !composer_is_tar(buf_str(&pattern)))
		buf_puts(&pattern, ".tar");
	TRY(buf_check(&pattern, "checkpoint name", err));
	if (!match_name(buf_str(&pattern), name, &p))
		return 0;
	*ret = p;
	return 1;
}

bool
composer_conflicts(const struct pawl_progress *was, const struct pawl_progress *now)
{
	const int64_t totals[][2] = {{was->epoch, now->epoch},
	                             {was->batch, now->batch},
	                             {was->sample, now->sample},
	                             {was->token, now->token}};
	const int64_t parts[][2] = {{was->batch_in_epoch, now->batch_in_epoch},
	                            {was->sample_in_epoch, now->sample_in_epoch},
	                            {was->token_in_epoch, now->token_in_epoch}};
	bool named = false;
	for (size_t i = 0; i < 4; i++) {
		named |= totals[i][0] >= 0;
		if (totals[i][0] >= 0 && totals[i][0] > (totals[i][1] > 0 ? totals[i][1] : 0))
			return true;
	}
	if (!named)
		return true;
	if (was->epoch < 0 || was->epoch != now->epoch)
		return false;
	for (size_t i = 0; i < 3; i++)
		if (parts[i][0] >= 0 && parts[i][1] >= 0 && parts[i][0] > parts[i][1])
			return true;
	return false;
}

char *
composer_relative(const char *link, const char *target)
{
	PAWL_CLEAN(buf_clear) struct buf out = {0};
	size_t common = 0;
	for (size_t i = 0; link[i] != '\0' && link[i] == target[i]; i++)
		if (link[i] == '/')
			common = i + 1;
	for (const char *at = link + common; *at != '\0'; at++)
		if (*at == '/')
			buf_puts(&out, "../");
	buf_puts(&out, target + common);
	return out.failed ? NULL : mem_strdup(buf_str(&out));
}
