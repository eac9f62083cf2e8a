/* SPDX-License-Identifier: Apache-2.0 */
/*
 * target: see target.h. A run is known by its run.json, a checkpoint by its manifest.json; a folder that has neither
 * is refused here, because opening it for writing would make it a run. What another program wrote, a file or a folder
 * with .metadata, is only ever read; what it is, the library says.
 */
#include "target.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool
is_folder(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
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

/* What the existing folder `path` is. */
static int
parse_folder(struct cli *cli, const char *path, struct target *t, struct pawl_error *err)
{
	const char *real, *folder, *run;
	char *resolved;

	/* A run.json beside a manifest and without checkpoints has got there by mistake. */
	if (exists_in(cli, path, "run.json") &&
	    (exists_in(cli, path, "checkpoints") || !exists_in(cli, path, "manifest.json"))) {
		t->root = path;
		return 0;
	}
	resolved = realpath(path, NULL);
	if (resolved == NULL)
		return cli_error(err, PAWL_ENOTFOUND, "%s: %s", path, strerror(errno));
	real = keep_printf(&cli->keep, "%s", resolved);
	free(resolved);
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
	if (exists_in(cli, path, ".metadata") || exists_in(cli, path, "model.safetensors.index.json") ||
	    exists_in(cli, path, "model.safetensors")) {
		t->root = path; /* of torch.distributed.checkpoint, or a model as the Hugging Face libraries keep it */
		t->single = t->file = true;
		return 0;
	}
	if (exists_in(cli, path, "checkpoints")) {
		t->root = path; /* run.json is lost; the library says what can be done */
		return 0;
	}
	return cli_error(err, PAWL_ENOTFOUND,
	                 "%s: no run and no checkpoint here (expected run.json, manifest.json or .metadata)%s", path,
	                 runs_below(cli, path));
}

bool
target_is_url(const char *text)
{
	const char *mark = strstr(text, "://");

	return mark != NULL && mark > text && strncmp(text, "file://", 7) != 0 &&
	       strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789+.-") == (size_t)(mark - text);
}

/* "s3:/bucket/run", as pathlib.Path makes of a URL. */
static bool
lacks_slash(const char *text)
{
	static const char *const schemes[] = {"s3:/", "gs:/", "az:/", "ssh:/"};

	for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
		size_t n = strlen(schemes[i]);

		if (strncmp(text, schemes[i], n) == 0 && text[n] != '/')
			return true;
	}
	return false;
}

static bool
ends_with(const char *text, const char *suffix)
{
	size_t len = strlen(text), n = strlen(suffix);

	return len > n && strcmp(text + len - n, suffix) == 0;
}

/* URL, URL@SELECTOR, URL/checkpoints/NAME, or a file of another program by its suffix. Only where none is selected is
 * it looked up what lies there. */
static int
parse_url(struct cli *cli, const char *url, struct target *t, struct pawl_error *err)
{
	static const char *const suffixes[] = {".safetensors", ".safetensors.index.json", ".pt", ".pth", ".npz",
	                                       ".npy"};
	const char *last, *at, *folder;
	const char *sign = strstr(url, "://");
	const size_t least = sign != NULL ? (size_t)(sign - url) + 3 : 0;
	size_t len = strlen(url);
	int kind;

	while (len > least && url[len - 1] == '/')
		len--;
	url = keep_strndup(&cli->keep, url, len);
	last = name_of(url);
	at = strrchr(last, '@');
	folder = parent_of(cli, url);
	t->root = url;
	if (at != NULL && at[1] != '\0') {
		t->root = keep_strndup(&cli->keep, url, (size_t)(at - url));
		t->selector = at + 1;
		return 0;
	}
	if (strcmp(name_of(folder), "checkpoints") == 0) {
		t->root = parent_of(cli, folder);
		t->selector = last;
		return 0;
	}
	for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
		if (ends_with(url, suffixes[i])) {
			t->single = t->file = true;
			return 0;
		}
	}
	kind = pawl_kind_of(url, err);
	if (kind < 0)
		return kind;
	t->single = kind == PAWL_KIND_CHECKPOINT;
	if (kind == PAWL_KIND_NOTHING || kind == PAWL_KIND_OTHER)
		return cli_error(err, PAWL_ENOTFOUND,
		                 "%s: no run and no checkpoint here (expected run.json or manifest.json)", url);
	return 0;
}

int
target_parse(struct cli *cli, const char *text, struct target *ret, struct pawl_error *err)
{
	struct target t = {.text = text};
	const char *path = strncmp(text, "file://", 7) == 0 ? text + 7 : text, *at, *folder;
	struct stat st;
	int rc;

	if (target_is_url(text)) {
		rc = parse_url(cli, text, &t, err);
		if (rc == 0)
			*ret = t;
		return rc;
	}
	if (is_folder(path)) {
		rc = parse_folder(cli, path, &t, err);
		if (rc == 0)
			*ret = t;
		return rc;
	}
	if (stat(path, &st) == 0) {
		if (strcmp(name_of(path), "manifest.json") != 0) {
			t.root = path; /* whether it is one, the library says */
			t.single = t.file = true;
			*ret = t;
			return 0;
		}
		folder = name_of(path) == path ? "." : keep_strndup(&cli->keep, path, (size_t)(name_of(path) - path));
		return target_parse(cli, folder, ret, err);
	}
	at = strrchr(path, '@');
	if (lacks_slash(text))
		return cli_error(err, PAWL_EUSAGE, "%s: a URL has two slashes: %.*s/%s", text,
		                 (int)(strchr(text, '/') - text + 1), text, strchr(text, '/') + 1);
	if (at == NULL)
		return cli_error(err, PAWL_ENOTFOUND, "%s: no such folder", path);
	if (at[1] == '\0')
		return cli_error(
			err, PAWL_EUSAGE,
			"%s: nothing after '@' (expected latest, best, good, an id, step:N or a checkpoint's name)",
			path);
	folder = at == path ? "." : keep_strndup(&cli->keep, path, (size_t)(at - path));
	if (!is_folder(folder))
		return cli_error(err, PAWL_ENOTFOUND, "%s: no such folder", folder);
	rc = parse_folder(cli, folder, &t, err);
	if (rc < 0)
		return rc;
	if (t.single || t.selector != NULL)
		return cli_error(err, PAWL_EUSAGE, "%s: %s is one checkpoint, so that '%s' selects nothing in it", path,
		                 folder, at);
	t.selector = at + 1;
	*ret = t;
	return 0;
}

int
target_parse_run(struct cli *cli, const char *text, struct target *ret, struct pawl_error *err)
{
	struct target t;
	int rc;

	rc = target_parse(cli, text, &t, err);
	if (rc < 0)
		return rc;
	if (t.single || t.selector != NULL)
		return cli_error(err, PAWL_EUSAGE, "%s names one checkpoint; '%s' works on a whole run", text,
		                 cli->command->name);
	*ret = t;
	return 0;
}

int
target_score(struct cli *cli, const struct score *score, struct pawl_retention *policy, struct pawl_error *err)
{
	int *orders;

	if (score->order.n > score->by.n)
		return cli_error(err, PAWL_EUSAGE, "--order %s has no --by METRIC to go with",
		                 score->order.items[score->by.n]);
	if (score->by.n == 0)
		return 0;
	orders = keep_alloc(&cli->keep, score->by.n, sizeof(*orders));
	for (size_t i = 0; i < score->by.n; i++)
		orders[i] = i < score->order.n && strcmp(score->order.items[i], "min") == 0 ? -1 : 1;
	policy->score_attributes = score->by.items;
	policy->score_orders = orders;
	policy->n_scores = score->by.n;
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

static void
free_list(struct pawl_list **list)
{
	pawl_list_free(*list);
}

/* "accuracy, loss": each metric once. */
static const char *
metrics_of(struct cli *cli, const struct pawl_list *list)
{
	const char *names = "";

	for (size_t i = 0; i < pawl_list_count(list); i++) {
		const struct pawl_info *info = pawl_list_get(list, i);

		for (size_t m = 0; m < info->n_metrics; m++) {
			const char *name = text_clean(&cli->keep, info->metrics[m].name);
			const char *whole = keep_printf(&cli->keep, ", %s,", names);

			if (strstr(whole, keep_printf(&cli->keep, ", %s,", name)) == NULL)
				names = keep_printf(&cli->keep, "%s%s%s", names, *names != '\0' ? ", " : "", name);
		}
	}
	return names;
}

/* A metric that no checkpoint has is a typing error. */
static int
check_metrics(struct cli *cli, struct pawl *run, const struct score *score, struct pawl_error *err)
{
	CLEANUP(free_list) struct pawl_list *list = NULL;
	int rc = pawl_list_open(run, 0, &list, err);

	if (rc < 0 || pawl_list_count(list) == 0)
		return rc;
	for (size_t by = 0; by < score->by.n; by++) {
		bool is_known = false;

		for (size_t i = 0; i < pawl_list_count(list) && !is_known; i++) {
			const struct pawl_info *info = pawl_list_get(list, i);

			for (size_t m = 0; m < info->n_metrics; m++)
				is_known = is_known || strcmp(info->metrics[m].name, score->by.items[by]) == 0;
		}
		if (!is_known) {
			const char *names = metrics_of(cli, list);

			return cli_error(err, PAWL_EUSAGE, "--by %s: no checkpoint of %s has this metric; %s%s",
			                 score->by.items[by], pawl_root(run),
			                 *names != '\0' ? "there are: " : "they have none", names);
		}
	}
	return 0;
}

int
target_open(struct cli *cli, const struct target *target, bool writable, const struct score *score, struct pawl **ret,
            struct pawl_error *err)
{
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	int rc;

	if (target->file && writable)
		return cli_error(err, PAWL_EUSAGE,
		                 "%s is of another program; '%s' changes runs and checkpoints of pawl", target->root,
		                 cli->command->name);
	opts.root = target->root;
	opts.read_only = !writable;
	opts.single = target->single;
	opts.upkeep = 1;
	opts.node_folder = target->single ? NULL : cli->common.node_folder;
	opts.bandwidth_bytes_per_second = opts.read_bandwidth_bytes_per_second = target->bandwidth;
	opts.on_lease_wait = target_note_wait;
	opts.on_lease_wait_arg = cli;
	if (score != NULL) {
		rc = target_score(cli, score, &opts.retention, err);
		if (rc < 0)
			return rc;
	}
	rc = pawl_open(&opts, ret, err);
	if (rc == PAWL_ENOTFOUND && target->file)
		return cli_error(
			err, PAWL_EUSAGE,
			"%s is a file; expected a run, a checkpoint's folder, RUN@SELECTOR, or a file of safetensors, "
			"torch.save or numpy",
			target->root);
	if (rc == 0 && score != NULL && score->by.n > 0)
		rc = check_metrics(cli, *ret, score, err);
	return rc;
}

/* The damaged checkpoint that a selector names, copied; false if there is none. */
static bool
find_bad(struct cli *cli, struct pawl *run, const struct target *target, const char **ret_name, const char **ret_why)
{
	CLEANUP(free_list) struct pawl_list *list = NULL;
	const char *selector = target->selector != NULL ? target->selector : "";
	const char *digits = strncmp(selector, "id:", 3) == 0 ? selector + 3 : selector;
	uint64_t id = 0;
	char *end;

	if (pawl_list_open(run, 1, &list, NULL) < 0)
		return false;
	if (*digits >= '1' && *digits <= '9') {
		id = strtoull(digits, &end, 10);
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
		return cli_error(err, PAWL_ECORRUPT, "%s: %s", name, why);
	return rc;
}

int
target_info(struct cli *cli, struct pawl *run, uint64_t id, const struct pawl_info **ret, struct pawl_error *err)
{
	CLEANUP(free_list) struct pawl_list *list = NULL;
	int rc;

	rc = pawl_list_open(run, 0, &list, err);
	if (rc < 0)
		return rc;
	for (size_t i = pawl_list_count(list); i-- > 0;) {
		const struct pawl_info *from = pawl_list_get(list, i);
		struct pawl_metric *metrics;
		struct pawl_info *info;

		if (from->id != id || (from->marks & PAWL_MARK_BAD) != 0)
			continue;
		info = keep_alloc(&cli->keep, 1, sizeof(*info));
		*info = *from;
		info->name = keep_printf(&cli->keep, "%s", from->name);
		info->path = keep_printf(&cli->keep, "%s", from->path);
		info->run_id = keep_printf(&cli->keep, "%s", from->run_id);
		info->problem = keep_printf(&cli->keep, "%s", from->problem);
		metrics = keep_alloc(&cli->keep, from->n_metrics + 1, sizeof(*metrics));
		for (size_t m = 0; m < from->n_metrics; m++) {
			metrics[m] = from->metrics[m];
			metrics[m].name = keep_printf(&cli->keep, "%s", from->metrics[m].name);
		}
		info->metrics = metrics;
		*ret = info;
		return 0;
	}
	return cli_error(err, PAWL_ENOTFOUND, "%s: checkpoint %llu has been deleted meanwhile", pawl_root(run),
	                 (unsigned long long)id);
}

int
target_take(struct cli *cli, const char *text, const struct score *score, struct pawl **ret,
            const struct pawl_info **ret_info, struct pawl_error *err)
{
	CLEANUP(cli_close) struct pawl *run = NULL;
	struct target target;
	uint64_t id;
	int rc = target_parse(cli, text, &target, err);

	if (rc == 0)
		rc = target_open(cli, &target, false, score, &run, err);
	if (rc == 0)
		rc = target_find(cli, run, &target, &id, err);
	if (rc == 0)
		rc = target_info(cli, run, id, ret_info, err);
	if (rc < 0)
		return rc;
	*ret = run;
	run = NULL;
	return 0;
}
