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

#define TARGET_LOOKS 100u /* attempts, if the checkpoints of the run are deleted each time */

static bool
is_folder(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool
is_link(const char *path)
{
	struct stat st;

	return lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
}

/* Why a path cannot be examined. A missing permission is not reported as a missing path. */
static int
path_error(struct pawl_error *err, const char *path, const char *otherwise)
{
	const int sys = errno;

	if (pawl_code_from_errno(sys) == PAWL_EAUTH)
		return err_set(err, PAWL_EAUTH, "%s: cannot be accessed: %s", path, strerror(sys));
	return err_set(err, PAWL_ENOTFOUND, "%s: %s", path, otherwise);
}

/* The path that a link leads to, in memory of the invocation. RUN/latest may change to another
 * checkpoint at any time, and the older one may then be deleted. NULL: it leads nowhere. */
static const char *
follow(struct cli *cli, const char *path)
{
	char *real = NULL;
	const char *ret;

	for (unsigned looks = 0; looks < TARGET_LOOKS && real == NULL; looks++) {
		real = realpath(path, NULL);
		if (real == NULL && errno != ENOENT)
			break;
	}
	ret = real != NULL ? keep_printf(&cli->keep, "%s", real) : NULL;
	free(real);
	return ret;
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

/* " (runs below it: a, b, ...)", or "". */
static const char *
runs_below(struct cli *cli, const char *path)
{
	const char *list = "";
	struct dirent *entry;
	size_t n = 0;
	DIR *dir;

	dir = opendir(path);
	if (dir == NULL)
		return "";
	while (n < 4 && (entry = readdir(dir)) != NULL) {
		if (entry->d_name[0] == '.' ||
		    !exists_in(cli, keep_printf(&cli->keep, "%s/%s", path, entry->d_name), "run.json"))
			continue;
		list = n == 3 ? keep_printf(&cli->keep, "%s, ...", list)
		              : keep_printf(&cli->keep, "%s%s%s", list, n > 0 ? ", " : "", entry->d_name);
		n++;
	}
	(void)closedir(dir);
	return n > 0 ? keep_printf(&cli->keep, "; runs below it: %s", list) : "";
}

static bool
ends_with(const char *text, const char *suffix)
{
	size_t len = strlen(text), n = strlen(suffix);

	return len > n && strcmp(text + len - n, suffix) == 0;
}

bool
target_is_foreign(struct cli *cli, const char *path, bool is_folder)
{
	const char *name;
	int is_mark;

	for (size_t i = 0; (name = pawl_foreign_name(i, &is_mark)) != NULL; i++)
		if ((is_mark != 0) == is_folder && (is_folder ? exists_in(cli, path, name) : ends_with(path, name)))
			return true;
	return false;
}

/* Finds out what the existing folder `path` is. */
static int
parse_folder(struct cli *cli, const char *path, struct target *t, struct pawl_error *err)
{
	const char *real, *folder, *run;
	struct stat st;

	/* A run.json next to a manifest, but without checkpoints, was put there by mistake. */
	if (exists_in(cli, path, "run.json") &&
	    (exists_in(cli, path, "checkpoints") || !exists_in(cli, path, "manifest.json"))) {
		t->root = path;
		return 0;
	}
	real = follow(cli, path);
	if (real == NULL)
		return path_error(err, path, strerror(errno));
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
	if (exists_in(cli, path, "checkpoints")) {
		t->root = path; /* run.json is lost; the library reports what can be done */
		return 0;
	}
	if (stat(keep_printf(&cli->keep, "%s/run.json", path), &st) < 0 && errno != ENOENT)
		return path_error(err, path, strerror(errno));
	return err_set(err, PAWL_ENOTFOUND,
	               "%s: no run and no checkpoint here (expected run.json, manifest.json or .metadata)%s", path,
	               runs_below(cli, path));
}

/* A link to a checkpoint of a run; the checkpoint need not exist any more. */
static bool
parse_link(struct cli *cli, const char *path, struct target *t)
{
	const char *real = follow(cli, path), *folder = real != NULL ? parent_of(cli, real) : "";
	const char *run = parent_of(cli, folder);

	if (strcmp(name_of(folder), "checkpoints") != 0 || !exists_in(cli, run, "run.json"))
		return false;
	t->root = run;
	t->selector = name_of(real);
	t->link = true;
	return true;
}

bool
target_is_url(const char *text)
{
	const char *mark = strstr(text, "://");

	return mark != NULL && mark > text && strncmp(text, "file://", 7) != 0 &&
	       strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789+.-") == (size_t)(mark - text);
}

/* Recognises "s3:/bucket/run", which pathlib.Path makes of a URL. Returns its scheme, or NULL. */
static const char *
scheme_without_slash(const char *text)
{
	const char *scheme;

	for (size_t i = 0; (scheme = pawl_url_scheme(i)) != NULL; i++) {
		size_t n = strlen(scheme);

		if (strncmp(text, scheme, n) == 0 && strncmp(text + n, ":/", 2) == 0 && text[n + 2] != '/')
			return scheme;
	}
	return NULL;
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

/* URL, URL@SELECTOR, URL/checkpoints/NAME, or a foreign file, recognised by its suffix. The store
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
	if (strcmp(name_of(folder), "checkpoints") == 0) {
		t->root = parent_of(cli, folder);
		t->selector = last;
		return 0;
	}
	if (target_is_foreign(cli, url, false)) {
		t->single = t->file = true;
		return 0;
	}
	kind = pawl_kind_of(url, err);
	if (kind < 0)
		return kind;
	t->single = kind == PAWL_KIND_CHECKPOINT;
	if (kind == PAWL_KIND_NOTHING || kind == PAWL_KIND_OTHER)
		return err_set(err, PAWL_ENOTFOUND,
		               "%s: no run and no checkpoint here (expected run.json or manifest.json)", url);
	return 0;
}

int
target_parse(struct cli *cli, const char *text, struct target *ret, struct pawl_error *err)
{
	struct target t = {.text = text};
	const char *path = strncmp(text, "file://", 7) == 0 ? text + 7 : text, *folder, *selector;
	struct stat st;
	int rc;

	if (text[0] == '@' && stat(text, &st) != 0) { /* of the default run */
		const char *run = getenv("PAWL_RUN");

		run = run != NULL && *run != '\0' ? run : ".";
		return target_parse(cli, keep_printf(&cli->keep, "%s%s", run, text), ret, err);
	}
	if (target_is_url(text)) {
		rc = parse_url(cli, text, &t, err);
		if (rc == 0)
			*ret = t;
		return rc;
	}
	if (is_link(path) && parse_link(cli, path, &t)) {
		*ret = t;
		return 0;
	}
	if (is_folder(path)) {
		rc = parse_folder(cli, path, &t, err);
		if (rc == 0)
			*ret = t;
		return rc;
	}
	if (stat(path, &st) == 0) {
		if (strcmp(name_of(path), "manifest.json") != 0) {
			t.root = path; /* the library determines whether it is a checkpoint */
			t.single = t.file = true;
			*ret = t;
			return 0;
		}
		folder = name_of(path) == path ? "." : keep_strndup(&cli->keep, path, (size_t)(name_of(path) - path));
		return target_parse(cli, folder, ret, err);
	}
	if (pawl_code_from_errno(errno) == PAWL_EAUTH)
		return path_error(err, path, "");
	const char *scheme = scheme_without_slash(text);
	if (scheme != NULL)
		return err_set(err, PAWL_EUSAGE, "%s: a URL has two slashes: %s:%s%s", text, scheme,
		               strcmp(scheme, "file") == 0 ? "//" : "/", strchr(text, '/'));
	if (!split_address(cli, path, &t))
		return err_set(err, PAWL_ENOTFOUND, "%s: no such file or folder", path);
	folder = t.root;
	selector = t.selector;
	if (*selector == '\0')
		return err_set(
			err, PAWL_EUSAGE,
			"%s: nothing after '@' (expected latest, best, good, a step, id:N or a checkpoint's name)",
			path);
	if (stat(folder, &st) < 0)
		return path_error(err, folder, "no such folder");
	if (!S_ISDIR(st.st_mode))
		return err_set(err, PAWL_EUSAGE, "%s is a file, so '@%s' selects nothing in it", folder, selector);
	t.selector = NULL;
	TRY(parse_folder(cli, folder, &t, err));
	if (t.single || t.selector != NULL)
		return err_set(err, PAWL_EUSAGE, "%s: %s is one checkpoint, so '@%s' selects nothing in it", path,
		               folder, selector);
	t.selector = selector;
	*ret = t;
	return 0;
}

int
target_parse_run(struct cli *cli, const char *text, struct target *ret, struct pawl_error *err)
{
	struct target t;

	TRY(target_parse(cli, text, &t, err));
	if (t.single || t.selector != NULL)
		return err_set(err, PAWL_EUSAGE, "%s names one checkpoint; '%s' works on a run", text,
		               cli->command->name);
	*ret = t;
	return 0;
}

int
target_note_wait(void *arg, int64_t waited_ms, const char *why, struct pawl_error *err)
{
	(void)err;
	if (waited_ms == 0)
		cli_warn(arg, "waiting for the lease: %s", why);
	return 0;
}

int
target_open(struct cli *cli, const struct target *target, bool writable, const struct score *score, struct pawl **ret,
            struct pawl_error *err)
{
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	int rc;

	if (target->file && writable)
		return err_set(err, PAWL_EUSAGE,
		               "%s was written by another program; '%s' changes only runs and "
		               "checkpoints of pawl",
		               target->root, cli->command->name);
	opts.root = target->root;
	opts.read_only = !writable;
	opts.single = target->single;
	opts.maintenance = 1;
	opts.ranks.node_folder = target->single ? NULL : cli->common.node_folder;
	opts.io.write_bytes_per_second = opts.io.read_bytes_per_second = target->bandwidth;
	opts.lease.on_wait = target_note_wait;
	opts.lease.on_wait_arg = cli;
	if (score != NULL) {
		TRY(target_score(cli, score, &opts.retention, err));
	}
	rc = pawl_open(&opts, ret, err);
	if (rc == PAWL_ENOTFOUND && target->file)
		return err_set(
			err, PAWL_EUSAGE,
			"%s is a file; expected a run, a checkpoint's folder, RUN@SELECTOR, or a file of safetensors, "
			"torch.save or numpy",
			target->root);
	if (rc == 0 && score != NULL && score->by.n > 0)
		rc = target_check_metrics(cli, *ret, score, err);
	return rc;
}

/* The damaged checkpoint that a selector names, copied; false if there is none. */
static bool
find_bad(struct cli *cli, struct pawl *run, const struct target *target, const char **ret_name, const char **ret_why)
{
	PAWL_CLEAN(pawl_list_free_clean) struct pawl_list *list = NULL;
	const char *selector = target->selector != NULL ? target->selector : "";
	uint64_t id = 0;
	char *end;

	if (pawl_list_open(run, 1, &list, NULL) < 0)
		return false;
	if (strncmp(selector, "id:", 3) == 0) {
		id = strtoull(selector + 3, &end, 10);
		id = *end == '\0' ? id : 0;
	}
	for (size_t i = 0; i < pawl_list_count(list); i++) {
		const struct pawl_info *info = pawl_list_get(list, i);

		if ((info->marks & PAWL_MARK_BAD) == 0 ||
		    !(target->single || strcmp(info->name, selector) == 0 || (id > 0 && info->id == id)))
			continue;
		*ret_name = keep_printf(&cli->keep, "%s", info->name);
		*ret_why = keep_printf(&cli->keep, "%s", info->problem);
		return true;
	}
	return false;
}

const char *
target_bad_name(struct cli *cli, struct pawl *run, const struct target *target)
{
	const char *name = NULL, *why;

	return find_bad(cli, run, target, &name, &why) ? name : NULL;
}

int
target_find(struct cli *cli, struct pawl *run, const struct target *target, uint64_t *ret_id, struct pawl_error *err)
{
	const char *name, *why;
	int rc;

	rc = pawl_find(run, target->selector != NULL ? target->selector : "latest", ret_id, err);
	if (rc == PAWL_ENOTFOUND && find_bad(cli, run, target, &name, &why))
		return err_set(err, PAWL_ECORRUPT, "%s: %s", name, why);
	return rc;
}

const struct pawl_info *
target_copy_info(struct cli *cli, const struct pawl_info *from)
{
	struct pawl_metric *metrics = keep_alloc(&cli->keep, from->n_metrics + 1, sizeof(*metrics));
	struct pawl_info *info = keep_alloc(&cli->keep, 1, sizeof(*info));

	*info = *from;
	info->name = keep_printf(&cli->keep, "%s", from->name);
	info->path = keep_printf(&cli->keep, "%s", from->path);
	info->run_id = keep_printf(&cli->keep, "%s", from->run_id);
	info->problem = keep_printf(&cli->keep, "%s", from->problem);
	for (size_t m = 0; m < from->n_metrics; m++) {
		metrics[m] = from->metrics[m];
		metrics[m].name = keep_printf(&cli->keep, "%s", from->metrics[m].name);
	}
	info->metrics = metrics;
	return info;
}

int
target_info(struct cli *cli, struct pawl *run, uint64_t id, const struct pawl_info **ret, struct pawl_error *err)
{
	PAWL_CLEAN(pawl_list_free_clean) struct pawl_list *list = NULL;

	TRY(pawl_list_open(run, 0, &list, err));
	for (size_t i = pawl_list_count(list); i-- > 0;) {
		const struct pawl_info *info = pawl_list_get(list, i);

		if (info->id != id || (info->marks & PAWL_MARK_BAD) != 0)
			continue;
		*ret = target_copy_info(cli, info);
		return 0;
	}
	return err_set(err, PAWL_ENOTFOUND, "%s: checkpoint %llu was deleted in the meantime", pawl_root(run),
	               (unsigned long long)id);
}

/* Finds the checkpoint by its selector and holds it. *ret_seen: it was found, so that
 * PAWL_ENOTFOUND means that it was deleted since. */
static int
hold_once(struct cli *cli, struct pawl *run, const struct target *target, const struct pawl_info **ret,
          struct pawl_hold **ret_hold, bool *ret_seen, struct pawl_error *err)
{
	uint64_t id;
	int rc = target_find(cli, run, target, &id, err);

	*ret_hold = NULL;
	*ret_seen = rc == 0;
	if (rc == 0)
		rc = target_info(cli, run, id, ret, err);
	if (rc == 0 && (*ret)->here)
		rc = pawl_hold_open(run, id, ret_hold, err);
	return rc == PAWL_ENOTFOUND || !*ret_seen ? rc : 0; /* a run that cannot be written to is read without a hold */
}

int
target_hold(struct cli *cli, struct pawl *run, const struct target *target, const struct pawl_info **ret,
            struct pawl_hold **ret_hold, struct pawl_error *err)
{
	struct target now = *target, before;
	bool seen;

	for (unsigned looks = 1;; looks++) {
		int rc = hold_once(cli, run, &now, ret, ret_hold, &seen, err);

		if (rc != PAWL_ENOTFOUND || looks == TARGET_LOOKS)
			return rc;
		before = now;
		if (now.link && target_parse(cli, now.text, &now, NULL) == 0)
			seen = seen || strcmp(now.selector, before.selector) != 0;
		if (!seen)
			return rc;
		TRY(pawl_reload(run, err));
	}
}

void
target_close_hold(struct pawl_hold **hold)
{
	pawl_hold_close(*hold);
	*hold = NULL;
}

void
target_release(struct taken *taken)
{
	target_close_hold(&taken->hold);
	cli_close(&taken->run);
}

int
target_take(struct cli *cli, const char *text, const struct score *score, struct taken *ret, struct pawl_error *err)
{
	int rc = target_parse(cli, text, &ret->target, err);

	if (rc == 0)
		rc = target_open(cli, &ret->target, false, score, &ret->run, err);
	return rc == 0 ? target_hold(cli, ret->run, &ret->target, &ret->info, &ret->hold, err) : rc;
}
