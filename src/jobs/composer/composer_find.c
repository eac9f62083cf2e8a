/* SPDX-License-Identifier: Apache-2.0 */
/*
 * composer_find: finds the checkpoint that a run continues from, and a local file of it. R76, R81,
 * R88, R89; P12 (a link is a hint: the caller that opens its target checks it).
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/text.h"
#include "jobs/composer/composer.h"
#include "pawl_jobs.h"

int
composer_give_text(const char *text, char *ret, size_t cap, struct pawl_error *err)
{
	if (!ret)
		return err_set(err, PAWL_EUSAGE,
		               "checkpoint saver: expected a pointer that receives the path, found NULL");
	if (strlen(text) >= cap)
		return err_set(err, PAWL_ELIMIT, "%.200s: the path is too long", text);
	memcpy(ret, text, strlen(text) + 1);
	return 0;
}

/* The values for names before anything is known of the training. */
static int
get_values(const struct pawl_saver_opts *opts, struct name_values *ret, struct pawl_error *err)
{
	static const struct pawl_progress unknown = PAWL_PROGRESS_INIT;
	struct pawl_rank rank;
	TRY(composer_take_rank(opts->rank, &rank, err));
	*ret = (struct name_values){.of = NAME_OF_FOLDER, /* the counters have no value before a checkpoint is loaded */
	                            .run_name = opts->run_name,
	                            .rank = rank.rank > 0 ? rank.rank : 0,
	                            .local_rank = rank.local_rank > 0 ? rank.local_rank : 0,
	                            .world_size = rank.world_size > 0 ? rank.world_size : 1,
	                            .local_world_size = rank.local_world_size > 0 ? rank.local_world_size : 1,
	                            .node_rank = rank.node_rank > 0 ? rank.node_rank : 0,
	                            .progress = unknown};
	return 0;
}

static int
check_counters(const char *text, struct pawl_error *err)
{
	const char *counter = name_excess(text, NAME_OF_FOLDER);
	return counter ? err_set(err, PAWL_EUSAGE,
	                         "\"%.200s\": {%s} has no value for loading, known are run_name, rank, local_rank, "
	                         "world_size, local_world_size, node_rank",
	                         text, counter)
	               : 0;
}

/* Rank 0 writes for all ranks, unless each writes its own. */
static bool
is_of_rank_0(struct name_values *v)
{
	if (v->rank == 0)
		return true;
	v->rank = v->local_rank = v->node_rank = 0;
	return false;
}

/* --------------------------------------------------------------------- here */

/* 1 and the file that the link leads to, or 0. */
static int
try_link(const char *folder, const char *name, char **ret, struct pawl_error *err)
{
	struct stat st;
	struct pawl_error why = {0};
	PAWL_FREE char *real = NULL;
	PAWL_FREE char *path = mem_printf("%s/%s", folder, name);
	if (!path)
		return err_nomem(err, "checkpoint saver");
	int rc = fd_follow(path, &real, &st, &why);
	if (rc == PAWL_ENOTFOUND || (rc == 0 && !S_ISREG(st.st_mode)))
		return 0;
	if (rc < 0)
		return err_give(err, rc, &why);
	*ret = steal(&real);
	return 1;
}

static int
find_here(const struct pawl_saver_opts *opts, struct name_values v, char **ret, struct pawl_error *err)
{
	for (;;) {
		PAWL_FREE char *folder = NULL;
		TRY(composer_fill_folder(opts->folder, &v, &folder, err));
		for (int as_tar = 0; as_tar < 2; as_tar++) {
			PAWL_FREE char *name = NULL;
			TRY(composer_fill(opts->latest_filename, &v, as_tar, &name, err));
			int rc = try_link(folder, name, ret, err);
			if (rc != 0)
				return rc;
		}
		if (is_of_rank_0(&v))
			return 0;
	}
}

/* ------------------------------------------------------------------- remote */

/* "s3://bucket?region=eu" and "a/b" as one URL; NULL: out of memory. */
static char *
join_url(const char *root, const char *key)
{
	size_t len = strcspn(root, "?");
	return mem_printf("%.*s/%s%s", (int)len, root, key, root + len);
}

/* The store of the pointers and their name in it; *root NULL: none. */
static int
get_remote(const struct pawl_saver_opts *opts, char **root, char **name, struct pawl_error *err)
{
	PAWL_FREE char *other = NULL;
	if (!opts->latest_remote_file_name)
		return 0;
	TRY(composer_split_url(opts->latest_remote_file_name, root, name, err));
	if (!*root && opts->remote_file_name)
		TRY(composer_split_url(opts->remote_file_name, root, &other, err));
	if (!*root && opts->remote) {
		*root = mem_strdup(opts->remote);
		return *root ? 0 : err_nomem(err, "checkpoint saver");
	}
	return 0;
}

static int
find_there(const struct pawl_saver_opts *opts, struct name_values v, char **ret, struct pawl_error *err)
{
	PAWL_FREE char *root = NULL;
	PAWL_FREE char *name = NULL;
	TRY(get_remote(opts, &root, &name, err));
	if (!root)
		return 0;
	for (;;) {
		for (int as_tar = 0; as_tar < 2; as_tar++) {
			PAWL_FREE char *key = NULL;
			struct pawl_error why = {0};
			TRY(composer_fill(name, &v, as_tar, &key, err));
			int rc = composer_follow(root, &key, &why);
			if (rc == 0) {
				*ret = join_url(root, key);
				return *ret ? 1 : err_nomem(err, "checkpoint saver");
			}
			if (rc != PAWL_ENOTFOUND)
				return err_give(err, rc, &why);
		}
		if (is_of_rank_0(&v))
			return 0;
	}
}

static int
find_latest(const struct pawl_saver_opts *opts, char **ret, struct pawl_error *err)
{
	struct name_values v;
	if (!opts || !opts->folder)
		return err_set(err, PAWL_EUSAGE, "checkpoint saver: expected a folder, found none");
	TRY(get_values(opts, &v, err));
	int rc = 0;
	if (opts->latest_filename) {
		TRY(check_counters(opts->latest_filename, err));
		rc = find_here(opts, v, ret, err);
	}
	if (rc == 0 && opts->latest_remote_file_name) {
		TRY(check_counters(opts->latest_remote_file_name, err));
		rc = find_there(opts, v, ret, err);
	}
	TRY(rc);
	return *ret ? 0
	            : err_set(err, PAWL_ENOTFOUND, "%s: there is no latest checkpoint of run \"%s\"", opts->folder,
	                      opts->run_name ? opts->run_name : "");
}

static int
latest_of(const struct pawl_saver_opts *opts, char *ret, size_t cap, struct pawl_error *err)
{
	PAWL_FREE char *found = NULL;
	struct pawl_saver_opts o;
	TRY(composer_take_opts(opts, &o, err));
	TRY(find_latest(&o, &found, err));
	return composer_give_text(found, ret, cap, err);
}

int
pawl_saver_latest(const struct pawl_saver_opts *opts, char *ret, size_t cap, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, latest_of(opts, ret, cap, &own), &own);
}

/* ----------------------------------------------------------------- bringing */

/* Downloads a file into the folder, under its own name, which gives the format. */
static int
fetch_file(const char *url, const struct name_values *v, const char *folder, char **ret, struct pawl_error *err)
{
	PAWL_FREE char *root = NULL;
	PAWL_FREE char *name = NULL;
	PAWL_FREE char *key = NULL;
	TRY(composer_split_url(url, &root, &name, err));
	TRY(composer_fill(name, v, false, &key, err));
	TRY(composer_follow(root, &key, err));
	const char *slash = strrchr(key, '/');
	PAWL_FREE char *full = join_url(root, key);
	*ret = mem_printf("%s/%s", folder, slash ? slash + 1 : key);
	return full && *ret ? pawl_saver_fetch(full, *ret, err) : err_nomem(err, "checkpoint saver");
}

static int
fetch_checkpoint(const struct pawl_saver_opts *opts, const char *place, const char *folder, char **ret,
                 struct pawl_error *err)
{
	struct name_values v;
	PAWL_FREE char *latest = NULL;
	TRY(get_values(opts, &v, err));
	if (strcmp(place, "latest") == 0)
		TRY(find_latest(opts, &latest, err));
	else
		TRY(check_counters(place, err));
	const char *from = latest ? latest : place;
	if (strstr(from, "://")) {
		TRY(fetch_file(from, &v, folder, ret, err));
	} else {
		PAWL_FREE char *path = NULL;
		if (!latest)
			TRY(composer_fill_folder(from, &v, &path, err));
		char real[PATH_MAX];
		const char *found = path ? path : from;
		*ret = mem_strdup(realpath(found, real) ? real : found);
	}
	return *ret ? 0 : err_nomem(err, "checkpoint saver");
}

static int
copy_to_folder(const struct pawl_saver_opts *opts, const char *place, const char *folder, char *ret, size_t cap,
               struct pawl_error *err)
{
	PAWL_FREE char *found = NULL;
	struct pawl_saver_opts o;
	if (!opts || !place || !folder)
		return err_set(err, PAWL_EUSAGE, "checkpoint saver: expected a place and a folder, found none");
	TRY(composer_take_opts(opts, &o, err));
	TRY(fetch_checkpoint(&o, place, folder, &found, err));
	return composer_give_text(found, ret, cap, err);
}

int
pawl_saver_bring(const struct pawl_saver_opts *opts, const char *place, const char *folder, char *ret, size_t cap,
                 struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, copy_to_folder(opts, place, folder, ret, cap, &own), &own);
}
