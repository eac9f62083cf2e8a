/* SPDX-License-Identifier: Apache-2.0 */
/*
 * target: see target.h. A run is recognised by its run.json, a checkpoint by its manifest.json. A
 * folder with neither is refused here, because opening it for writing would make it a run. Files
 * and folders of other programs, such as a folder with .metadata, are only read; the library
 * determines their format.
 */
#include "target.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/err_path.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/text.h"
#include "folder.h"

static bool
is_link(const char *path)
{
	struct stat st;

	return lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
}

/* True if the path exists. *ret_real: where it leads, in memory of the invocation. */
static bool
find_path(struct cli *cli, const char *path, const char **ret_real, struct stat *ret_st)
{
	PAWL_FREE char *real = NULL;
	const int rc = fd_follow(path, &real, ret_st, NULL);

	*ret_real = rc == 0 ? keep_printf(&cli->keep, "%s", real) : path;
	/* This user may reach the path, but not look into a folder above. */
	return rc == 0 || (rc != PAWL_ENOTFOUND && stat(path, ret_st) == 0);
}

static bool
exists_in(struct cli *cli, const char *folder, const char *name)
{
	struct stat st;

	return stat(keep_printf(&cli->keep, "%s/%s", folder, name), &st) == 0;
}

/* Splits off the last component of an absolute path. */
static const char *
parent_of(struct cli *cli, const char *path)
{
	const char *slash = strrchr(path, '/');

	if (slash == NULL || slash == path)
		return "/";
	return keep_strndup(&cli->keep, path, (size_t)(slash - path));
}

static const char *
name_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash != NULL ? slash + 1 : path;
}

bool
target_is_foreign(struct cli *cli, const char *path, bool is_folder)
{
	const char *name;
	int is_mark;

	for (size_t i = 0; (name = pawl_foreign_name(i, &is_mark)) != NULL; i++)
		if ((is_mark != 0) == is_folder &&
		    (is_folder ? exists_in(cli, path, name) : text_ends_with(path, name)))
			return true;
	return false;
}

/* A folder of checkpoint files, such as Composer's, is not a run. 0: it is not one. */
static int
refuse_files(struct cli *cli, const char *path, struct pawl_error *err)
{
	const char *file = folder_newest_file(cli, path);

	if (file == NULL)
		return 0;
	if (cli->command->operands[0].kind == OPERAND_RUN)
		return err_set(err, PAWL_ENOTFOUND,
		               "%s holds checkpoint files of another program, such as %s; '%s' works on a run", path,
		               file, cli->command->name);
	return err_set(err, PAWL_ENOTFOUND,
	               "%s holds checkpoint files of another program; name one of its files, such as %s", path, file);
}

/* Finds out what the existing folder `path` is, which leads to `real`. */
static int
parse_folder(struct cli *cli, const char *path, const char *real, struct target *t, struct pawl_error *err)
{
	const char *folder, *run;
	struct stat st;

	/* A run.json next to a manifest, but without checkpoints, was put there by mistake. */
	if (exists_in(cli, path, "run.json") &&
	    (exists_in(cli, path, "checkpoints") || !exists_in(cli, path, "manifest.json"))) {
		t->root = path;
		return 0;
	}
	folder = parent_of(cli, real);
	run = parent_of(cli, folder);
	if (strcmp(name_of(folder), "checkpoints") == 0 && exists_in(cli, run, "run.json")) {
		t->root = run;
		t->selector = name_of(real);
		return 0;
	}
	if (exists_in(cli, path, "manifest.json")) {
		t->root = path;
		t->single = true;
		return 0;
	}
	if (target_is_foreign(cli, path, true)) {
		t->root = path;
		t->single = t->file = true;
		return 0;
	}
	TRY(refuse_files(cli, path, err));
	if (exists_in(cli, path, "checkpoints")) {
		t->root = path; /* run.json is lost; the library reports what can be done */
		return 0;
	}
	if (stat(keep_printf(&cli->keep, "%s/run.json", path), &st) < 0 && errno != ENOENT)
		return err_path(err, errno, path, false, "cannot be accessed");
	return pawl_explain_address(path, err);
}

/* A link to a checkpoint of a run, which leads to `real`. */
static bool
parse_link(struct cli *cli, const char *real, struct target *t)
{
	const char *folder = parent_of(cli, real), *run = parent_of(cli, folder);

	if (strcmp(name_of(folder), "checkpoints") != 0 || !exists_in(cli, run, "run.json"))
		return false;
	t->root = run;
	t->selector = name_of(real);
	t->link = true;
	return true;
}

/* In capitals, too: then the error lists the kinds that exist. */
bool
target_is_url(const char *text)
{
	const char *mark = strstr(text, "://");

	return text_is_url(text) && mark > text &&
	       strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-") ==
	               (size_t)(mark - text);
}

const char *
target_join(struct cli *cli, const char *root, const char *name)
{
	const size_t whole = strlen(root), len = target_is_url(root) ? strcspn(root, "?") : whole;
	size_t kept = len;

	while (kept > 1 && root[kept - 1] == '/')
		kept--;
	return *name == '\0' ? root : keep_printf(&cli->keep, "%.*s/%s%s", (int)kept, root, name, root + len);
}

/* Splits RUN@SELECTOR; false if the text is no such address. */
static bool
split_address(struct cli *cli, const char *text, struct target *t)
{
	char *root = keep_alloc(&cli->keep, strlen(text) + 2, 1),
	     *selector = keep_alloc(&cli->keep, strlen(text) + 2, 1);

	if (!pawl_split_address(text, root, selector))
		return false;
	t->root = root;
	t->selector = selector;
	return true;
}

/* URL, URL@SELECTOR, a foreign file, recognised by its suffix, or URL/checkpoints/NAME. The store
 * is asked what the URL names only without a selector. */
static int
parse_url(struct cli *cli, const char *url, struct target *t, struct pawl_error *err)
{
	const char *last, *folder;
	const char *sign = strstr(url, "://");
	const size_t least = sign != NULL ? (size_t)(sign - url) + 3 : 0;
	size_t len = strlen(url);
	int kind;

	while (len > least && url[len - 1] == '/')
		len--;
	url = keep_strndup(&cli->keep, url, len);
	last = name_of(url);
	folder = parent_of(cli, url);
	t->root = url;
	if (split_address(cli, url, t) && *t->selector != '\0')
		return 0;
	t->root = url;
	t->selector = NULL;
	if (target_is_foreign(cli, url, false)) {
		t->single = t->file = true;
		return 0;
	}
	if (strcmp(name_of(folder), "checkpoints") == 0) {
		t->root = parent_of(cli, folder);
		t->selector = last;
		return 0;
	}
	kind = pawl_kind_of(url, NULL, err);
	if (kind < 0)
		return kind;
	t->single = kind == PAWL_KIND_CHECKPOINT;
	if (kind != PAWL_KIND_NOTHING && kind != PAWL_KIND_OTHER)
		return 0;
	if (t->may_list)
		return err_set(err, PAWL_ENOTFOUND, "%s: no run and no checkpoint here", url);
	TRY(refuse_files(cli, url, err));
	return pawl_explain_address(url, err);
}

/* RUN@SELECTOR, where RUN is a path. */
static int
parse_address(struct cli *cli, const char *path, struct target *t, struct pawl_error *err)
{
	const char *folder = t->root, *selector = t->selector, *real;
	struct stat st;

	if (*selector == '\0' || !find_path(cli, folder, &real, &st) || !S_ISDIR(st.st_mode))
		return pawl_explain_address(path, err);
	t->selector = NULL;
	TRY(parse_folder(cli, folder, real, t, err));
	if (t->single || t->selector != NULL)
		return pawl_explain_address(path, err);
	t->selector = selector;
	return 0;
}

static int
parse_path(struct cli *cli, const char *path, struct target *t, struct pawl_error *err)
{
	struct stat st;
	const char *real;
	const bool is_found = find_path(cli, path, &real, &st);

	if (is_found && is_link(path) && parse_link(cli, real, t))
		return 0;
	if (is_found && S_ISDIR(st.st_mode))
		return parse_folder(cli, path, real, t, err);
	if (is_found) {
		const char *name = name_of(path);

		if (strcmp(name, "manifest.json") == 0)
			return parse_path(cli,
			                  name == path ? "." : keep_strndup(&cli->keep, path, (size_t)(name - path)), t,
			                  err);
		t->root = path; /* the library determines whether it is a checkpoint */
		t->single = t->file = true;
		return 0;
	}
	if (split_address(cli, path, t))
		return parse_address(cli, path, t, err);
	return pawl_explain_address(path, err);
}

/* "@400": in the default run. */
static int
parse_default(struct cli *cli, const char *text, struct target *t, struct pawl_error *err)
{
	const char *run = getenv("PAWL_RUN");
	struct stat st;
	int rc;

	if (strchr(text, '/') != NULL)
		return err_set(err, PAWL_EUSAGE, "%s: '@' comes after the run: RUN@SELECTOR", text);
	if (run != NULL && *run != '\0') {
		if (stat(run, &st) < 0 && split_address(cli, run, t)) /* it selects a checkpoint itself */
			run = t->root;
		rc = target_parse(cli, keep_printf(&cli->keep, "%s%s", run, text), t, err);
		return rc < 0 ? err_prefix(err, rc, "PAWL_RUN") : 0;
	}
	rc = target_parse(cli, keep_printf(&cli->keep, ".%s", text), t, err);
	if (rc == PAWL_ENOTFOUND)
		return err_set(err, rc, "%s: the current folder is not a run; write RUN%s, or set PAWL_RUN", text,
		               text);
	return rc;
}

/* The user wrote "best" where "@best" was meant: the run is known. */
static bool
lacks_at(struct cli *cli, const char *text)
{
	struct target t;
	const bool selects = strcmp(text, "latest") == 0 || strcmp(text, "best") == 0 || strcmp(text, "good") == 0 ||
	                     strncmp(text, "id:", 3) == 0 || text[strspn(text, "0123456789")] == '\0';

	return selects && *text != '\0' && parse_default(cli, keep_printf(&cli->keep, "@%s", text), &t, NULL) == 0;
}

/* Does the argument come from PAWL_RUN? options_parse gives the text itself as the operand. */
static bool
is_default_run(const char *text)
{
	const char *run = getenv("PAWL_RUN");

	return run != NULL && text == text_skip_file(run);
}

static int
parse_target(struct cli *cli, const char *text, bool may_list, struct target *ret, struct pawl_error *err)
{
	struct target t = {.text = text, .may_list = may_list};
	struct stat st;
	int rc;

	if (text[0] == '@' && stat(text, &st) != 0)
		return parse_default(cli, text, ret, err);
	rc = target_is_url(text) ? parse_url(cli, text, &t, err) : parse_path(cli, text_skip_file(text), &t, err);
	if (rc == PAWL_ENOTFOUND && lacks_at(cli, text))
		return err_set(err, rc, "%s: no such file or folder; did you mean @%s?", text, text);
	if (rc < 0)
		return is_default_run(text) ? err_prefix(err, rc, "PAWL_RUN") : rc;
	*ret = t;
	return 0;
}

int
target_parse(struct cli *cli, const char *text, struct target *ret, struct pawl_error *err)
{
	return parse_target(cli, text, false, ret, err);
}

int
target_parse_or_folder(struct cli *cli, const char *text, struct target *ret, struct pawl_error *err)
{
	return parse_target(cli, text, true, ret, err);
}

int
target_parse_run(struct cli *cli, const char *text, struct target *ret, struct pawl_error *err)
{
	struct target t;

	TRY(target_parse(cli, text, &t, err));
	if (t.file) { /* any file, until it is opened */
		PAWL_CLEAN(cli_close) struct pawl *one = NULL;

		TRY(target_open(cli, &t, false, NULL, &one, err));
	}
	if (t.single || t.selector != NULL)
		return err_set(err, PAWL_EUSAGE, "%s names one checkpoint; '%s' works on a run", text,
		               cli->command->name);
	*ret = t;
	return 0;
}
