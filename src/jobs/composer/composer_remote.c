/* SPDX-License-Identifier: Apache-2.0 */
/*
 * composer_remote: copies one file to a store and back, and handles the text objects that represent
 * links there. R85, R89; P2, P14, P15.
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "copy/copy_object.h"
#include "jobs/composer/composer.h"
#include "pawl_jobs.h"

#define POINTER_MAX_BYTES 4096u
#define POINTER_MAX_STEPS 8u
#define SUFFIX ".symlink"

/* When an upload ends early. */
struct upload_limit {
	const char *key, *root;
	int64_t deadline_ms;
	const atomic_bool *stop;
};

static int
check_limit(void *arg, uint64_t nbytes, struct pawl_error *err)
{
	const struct upload_limit *l = arg;
	(void)nbytes;
	if (l->stop && atomic_load(l->stop))
		return err_set(err, PAWL_ECANCELLED, "%s: the upload was stopped", l->key);
	if (l->deadline_ms > 0 && clock_mono_ms() > l->deadline_ms)
		return err_set(err, PAWL_ETIMEOUT, "%s: not uploaded to %s in time", l->key, l->root);
	return 0;
}

int
composer_put_file(const char *path, struct store *to, const char *key, bool overwrite, int64_t deadline_ms,
                  const atomic_bool *stop, struct pawl_error *err)
{
	PAWL_CLEAN(store_close_clean) struct store *from = NULL;
	struct upload_limit limit = {key, to->root, deadline_ms, stop};
	struct copy_object job = {.to = to,
	                          .to_key = key,
	                          .existing = overwrite ? COPY_UPDATE : COPY_KEEP,
	                          .read_back = true,
	                          .step = check_limit,
	                          .arg = &limit};
	TRY(copy_open_path(path, &from, &job.from_key, err));
	job.from = from;
	return copy_object(&job, err);
}

int
composer_put_pointer(struct store *to, const char *key, const char *target, struct pawl_error *err)
{
	return store_put_bytes(to, key, target, strlen(target), STORE_DURABLE, err);
}

/* ----------------------------------------------------------------- fetching */

/* Follows text objects that represent links; *key becomes the key of a file. */
static int
follow_links(struct store *from, char **key, struct pawl_error *err)
{
	for (unsigned step = 0; step < POINTER_MAX_STEPS; step++) {
		PAWL_CLEAN(buf_clear) struct buf target = {0};
		size_t len = strlen(*key);
		PAWL_FREE char *link = mem_printf("%s" SUFFIX, *key);
		struct store_entry entry;
		struct pawl_error why = {0};
		if (!link)
			return err_nomem(err, *key);
		bool is_link = len > sizeof SUFFIX && strcmp(*key + len - (sizeof SUFFIX - 1), SUFFIX) == 0;
		int rc = is_link ? 0 : store_stat(from, *key, &entry, &why);
		if (!is_link && rc != PAWL_ENOTFOUND)
			return err_give(err, rc, &why);
		rc = store_get(from, is_link ? *key : link, POINTER_MAX_BYTES, &target, &why);
		if (rc == PAWL_ENOTFOUND)
			return err_set(err, rc, "%s: there is no %s, and no " SUFFIX " for it", from->root, *key);
		if (rc < 0)
			return err_give(err, rc, &why);
		while (target.len > 0 && strchr("\r\n \t/", target.ptr[target.len - 1]))
			target.len--;
		char *next = mem_strdup(buf_str(&target));
		if (!next)
			return err_nomem(err, *key);
		mem_free(*key);
		*key = next;
	}
	return err_set(err, PAWL_ELIMIT, "%s: more than %u links to follow", *key, POINTER_MAX_STEPS);
}

int
composer_follow(const char *root, char **key, struct pawl_error *err)
{
	struct store *from;
	if (!root)
		return err_set(err, PAWL_EUSAGE, "\"%.200s\": expected a URL", *key);
	TRY(store_open(root, false, false, &from, err));
	int rc = follow_links(from, key, err);
	store_close(from);
	return rc;
}

static int
fetch_to(const char *url, const char *path, struct pawl_error *err)
{
	PAWL_FREE char *root = NULL;
	PAWL_FREE char *key = NULL;
	PAWL_CLEAN(store_close_clean) struct store *from = NULL, *to = NULL;
	struct copy_object job = {.existing = COPY_REPLACE};
	if (!url || !path)
		return err_set(err, PAWL_EUSAGE, "fetching: expected a URL and a path, found none");
	TRY(composer_split_url(url, &root, &key, err));
	if (!root)
		return err_set(err, PAWL_EUSAGE, "\"%.200s\": expected a URL", url);
	TRY(store_open(root, false, false, &from, err));
	TRY(follow_links(from, &key, err));
	TRY(copy_open_path(path, &to, &job.to_key, err));
	job.from = from;
	job.from_key = key;
	job.to = to;
	return copy_object(&job, err);
}

int
pawl_saver_fetch(const char *url, const char *path, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, fetch_to(url, path, &own), &own);
}
