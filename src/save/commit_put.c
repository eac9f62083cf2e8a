/* SPDX-License-Identifier: Apache-2.0 */
/* commit_put: the commit where folders cannot be renamed (buckets). The files are in the
 * checkpoint's own folder. Putting the manifest is the commit: it is put last, and only once. A
 * mark under the same key aborts the save (abort_commit.h). */
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "ranks/abort_commit.h"
#include "ranks/agree.h"
#include "run/lease.h"
#include "save/commit.h"
#include "save/save.h"
#include "save/writer.h"

/* For stores that cannot refuse to replace: finds an earlier writer, but not one that puts at the
 * same moment. */
static int
check_free(struct store *store, const char *key, struct pawl_error *err)
{
	struct store_entry there;
	int rc = store_stat(store, key, &there, err);

	if (rc == PAWL_ENOTFOUND)
		return 0;
	return rc < 0 ? rc : PAWL_EEXISTS;
}

/* This put is the commit. */
static int
put_manifest(struct save *s, const struct buf *text, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0};
	bool exclusive = s->run->home.caps.exclusive_put;
	int flags = STORE_DURABLE | (exclusive ? STORE_EXCLUSIVE : 0);
	int rc;

	buf_printf(&key, "%s/" MANIFEST_NAME, s->folder);
	TRY(buf_check(&key, "commit", err));
	rc = exclusive ? 0 : check_free(s->run->store, buf_str(&key), err);
	s->is_publishing = true;
	if (rc == 0)
		rc = store_put_bytes(s->run->store, buf_str(&key), text->ptr, text->len, flags, err);
	return rc == PAWL_EEXISTS
	               ? err_set(err, PAWL_ECONFLICT, "%s was aborted, or committed by another writer", s->name)
	               : rc;
}

/* commit_check_files, while another thread checks the lease. */
struct roll_job {
	struct save *save;
	const struct manifest_file *files;
	size_t n;
	int rc;
	struct pawl_error error;
};

static void
check_files_job(void *arg)
{
	struct roll_job *job = arg;

	job->rc = commit_check_files(job->save, job->files, job->n, &job->error);
}

/* The conditions for putting the manifest: the run is ours, and the files exist. Their order does
 * not matter, so the two requests are made at the same time. If both fail, the error of the lease
 * explains more. */
static int
check_before_put(struct save *s, const struct manifest_file *files, size_t n, struct pawl_error *err)
{
	struct roll_job job = {.save = s, .files = files, .n = n};
	struct pool_group group;

	if (!s->run->self.lease)
		return commit_check_files(s, files, n, err);
	pool_group_init(&group);
	int rc = pool_add(s->writer->writers, &group, check_files_job, &job, err);

	if (rc == 0)
		rc = lease_check(s->run->self.lease, err);
	pool_group_wait(&group);
	pool_group_clear(&group);
	return rc < 0 ? rc : err_give(err, job.rc, &job.error);
}

static int
publish_by_put(struct save *s, const struct buf *text, const struct manifest_file *files, size_t n,
               struct pawl_error *err)
{
	TRY(check_before_put(s, files, n, err));
	return put_manifest(s, text, err);
}

/* Is the run still this job's? If not, another job may have removed the checkpoint. */
static int
check_ours(const struct save *s, struct pawl_error *err)
{
	const struct pawl *run = s->run;

	if (run->self.lease)
		return lease_check(run->self.lease, err);
	if (!run->modes.agree->is_current(run))
		return err_set(err, PAWL_ECONFLICT, "the run no longer belongs to this job");
	return 0;
}

/* 1 = the key holds the manifest of this save, 0 = something else, or nothing. That decides where
 * no save can be aborted, or no other process looks for this one. */
static int
resolve_lone(struct save *s, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0}, text = {0};
	struct manifest *m = NULL;

	buf_printf(&key, "%s/" MANIFEST_NAME, s->folder);
	TRY(buf_check(&key, s->folder, err));
	int rc = store_get(s->run->store, buf_str(&key), MANIFEST_MAX_BYTES, &text, err);

	if (rc == PAWL_ENOTFOUND)
		return 0;
	TRY(rc);
	if (manifest_is_withdrawn(text.ptr, text.len))
		return 0;
	TRY(manifest_decode(s->name, text.ptr, text.len, true, &m, err));
	rc = strcmp(m->token, s->image.token) == 0;
	manifest_free(m);
	return rc;
}

static int
resolve_put(struct save *s, struct pawl_error *err)
{
	bool decided = check_ours(s, NULL) < 0; /* then it is not ours to decide */

	if (!decided) {
		int rc = abort_commit_put(s->run->store, s->folder, s->image.token, err);

		if (rc < 0 && rc != PAWL_EEXISTS)
			return rc;
		decided = rc == PAWL_EEXISTS;
	}
	if (decided) {
		int rc = resolve_lone(s, err);

		if (rc != 0)
			return rc;
	}
	/* A process that took the run over may have removed it and then aborted it. */
	return check_ours(s, err);
}

static int
find_named(struct save *s, char **ret_name, struct pawl_error *err)
{
	int rc = s->run->modes.commit->resolve(s, err);

	if (rc == 1 && !(*ret_name = mem_strdup(s->name)))
		return err_nomem(err, "save");
	return rc;
}

/* No other process can put the manifest of this save. */
static void
withdraw_put(struct save *s)
{
	(void)s;
}

const struct commit_ops commit_by_lone_put = {.publish = publish_by_put,
                                              .resolve = resolve_lone,
                                              .find = find_named,
                                              .withdraw = withdraw_put,
                                              .abort = find_named};

const struct commit_ops commit_by_put = {.publish = publish_by_put,
                                         .resolve = resolve_put,
                                         .find = find_named,
                                         .withdraw = withdraw_put,
                                         .abort = find_named};
