/* SPDX-License-Identifier: Apache-2.0 */
/*
 * composer: the functions of pawl_jobs.h, "checkpoint files by name": when a save is due, starting
 * one, waiting. R59-R103.
 */
#include "jobs/composer/composer.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/pool.h"
#include "base/sum.h"
#include "base/text.h"
#include "pawl_jobs.h"
#include "state/state.h"

#define INNER "in" /* folder of the data to pack */

static int
check_handle(const struct pawl_saver *s, const void *other, struct pawl_error *err)
{
	return s && other ? 0
	                  : err_set(err, PAWL_EUSAGE,
	                            "checkpoint saver: expected a handle, the progress and a state, found NULL");
}

/* ------------------------------------------------------------------- saving */

static int
start_at(struct pawl_saver *s, const struct pawl_progress *now, struct pawl_error *err)
{
	TRY(check_handle(s, now, err));
	TRY(composer_start(s, now, s->rank.rank == 0, false, err));
	s->last = *now;
	s->has_last = true;
	return 0;
}

int
pawl_saver_start(struct pawl_saver *s, const struct pawl_progress *now, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, start_at(s, now, &own), &own);
}

/* The first error that was not reported yet; it is reported once. */
static int
take_error(struct pawl_saver *s, bool uploads, struct pawl_error *err)
{
	struct pawl_error own = {0};
	pthread_mutex_lock(&s->lock);
	struct pawl_error *slot = s->save_error.code == 0 && uploads ? &s->upload_error : &s->save_error;
	own = *slot;
	slot->code = 0;
	pthread_mutex_unlock(&s->lock);
	return err_give(err, own.code, &own);
}

static int
is_due(struct pawl_saver *s, const struct pawl_progress *now, struct pawl_error *err)
{
	TRY(check_handle(s, now, err));
	TRY(composer_start(s, now, s->rank.rank == 0, false, err));
	/* The end of a batch may be the end of an epoch, too. */
	if (s->has_last && now->batch >= 0 && now->batch == s->last.batch)
		return 0;
	return s->has_interval ? triggers_due(&s->interval, s->has_last ? &s->last : NULL, now, 0, err) : 1;
}

int
pawl_saver_due(struct pawl_saver *s, const struct pawl_progress *now, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, is_due(s, now, &own), &own);
}

/* Fills in all names of one save. */
static int
name_save(struct pawl_saver *s, const struct pawl_progress *now, bool as_tar, struct composer_job *job,
          struct pawl_error *err)
{
	struct name_values values = composer_values(s, now);
	job->saver = s;
	job->row.progress = *now;
	TRY(composer_fill(s->filename, &values, as_tar, &job->row.name, err));
	if (s->latest_filename && s->keep != 0)
		TRY(composer_fill(s->latest_filename, &values, as_tar, &job->link, err));
	if (job->link && strcmp(job->link, job->row.name) == 0)
		return err_set(err, PAWL_EUSAGE, "latest_filename: \"%s\" is the name of the checkpoint itself",
		               job->link);
	if (!s->remote_root && !s->by_caller)
		return 0;
	TRY(composer_fill(s->remote_name, &values, as_tar, &job->row.remote, err));
	if (s->remote_latest) {
		PAWL_FREE char *name = NULL;
		TRY(composer_fill(s->remote_latest, &values, as_tar, &name, err));
		job->row.pointer = mem_printf("%s.symlink", name);
		if (!job->row.pointer)
			return err_nomem(err, "checkpoint saver");
	}
	return 0;
}

/* The name is free, this saver's own, or may be replaced. The lock is held. */
static int
check_free(const struct pawl_saver *s, const char *name, struct pawl_error *err)
{
	struct store_entry there;
	struct pawl_error why = {0};
	if (s->overwrite || composer_own_row(s, name))
		return 0;
	int rc = store_stat(s->here, name, &there, &why);
	if (rc == PAWL_ENOTFOUND)
		return 0;
	return rc < 0 ? err_give(err, rc, &why)
	              : err_set(err, PAWL_EEXISTS, "%s/%s exists; expected a free name, or overwrite=True", s->folder,
	                        name);
}

/* Makes a folder for the file while it is written. */
static int
make_room(struct pawl_saver *s, struct composer_job *job, struct pawl_error *err)
{
	pthread_mutex_lock(&s->lock);
	job->row.seq = s->next_seq++;
	int rc = check_free(s, job->row.name, err);
	pthread_mutex_unlock(&s->lock);
	TRY(rc);
	const char *slash = strrchr(job->row.name, '/');
	job->room = mem_printf("%s/%s/%llu", s->folder, s->work, (unsigned long long)job->row.seq);
	job->staged = job->room ? mem_printf("%s/%s", job->room, slash ? slash + 1 : job->row.name) : NULL;
	job->inner = job->room && composer_is_tar(job->row.name) ? mem_printf("%s/" INNER, job->room) : NULL;
	if (!job->staged || (composer_is_tar(job->row.name) && !job->inner))
		return err_nomem(err, "checkpoint saver");
	return fd_mkdirs(AT_FDCWD, job->inner ? job->inner : job->room, err);
}

static int
write_state(struct composer_job *job, const struct pawl_state *state, struct pawl_error *err)
{
	struct pawl_saver *s = job->saver;
	struct pawl_files_opts files = PAWL_FILES_OPTS_INIT;
	struct pawl_file_opts file = PAWL_FILE_OPTS_INIT;
	PAWL_FREE char *path = job->inner ? mem_printf("%s/" COMPOSER_INNER_NAME, job->inner) : mem_strdup(job->staged);
	if (!path)
		return err_nomem(err, "checkpoint saver");
	files.arena = s->arena;
	file.overwrite = 1;
	file.raw_pickle = s->raw_pickle;
	file.format = composer_format(path);
	if (!s->files)
		TRY(pawl_files_open(&files, &s->files, err));
	return pawl_files_save(s->files, path, &file, state, &job->ticket, err);
}

/* Passes the job to the finisher. */
static int
hand_over(struct composer_job *job, struct pawl_error *err)
{
	struct pawl_saver *s = job->saver;
	pthread_mutex_lock(&s->lock);
	int rc = pool_add(s->finisher, NULL, composer_finish, job, err);
	if (rc == 0) {
		s->n_busy++;
		s->n_saving++;
	}
	pthread_mutex_unlock(&s->lock);
	return rc;
}

static int
save_state(struct composer_job *job, const struct pawl_progress *now, const struct pawl_state *state,
           struct pawl_error *err)
{
	struct pawl_saver *s = job->saver;
	TRY(name_save(s, now, false, job, err));
	TRY(make_room(s, job, err));
	TRY(write_state(job, state, err));
	return hand_over(job, err);
}

/* One file holds complete tensors. Every rank checks that, not only the one that writes. */
static int
check_whole(const struct pawl_state *state, struct pawl_error *err)
{
	for (size_t i = 0; i < state->n_tensors; i++) {
		const struct state_tensor *t = &state->tensors[i];
		if (t->elsewhere || t->local_nbytes != t->info.nbytes)
			return err_set(
				err, PAWL_EUNSUPPORTED,
				"tensor '%s' is a shard, and a checkpoint file holds full tensors; gather it on rank "
				"0, or save sharded states with CheckpointManager",
				t->info.name);
	}
	return 0;
}

static int
save_on_rank_0(struct pawl_saver *s, const struct pawl_progress *now, const struct pawl_state *state,
               struct pawl_error *err)
{
	struct composer_job *job = mem_zalloc(1, sizeof *job);
	if (!job)
		return err_nomem(err, "checkpoint saver");
	job->saver = s;
	int rc = save_state(job, now, state, err);
	if (rc < 0)
		composer_job_free(job);
	return rc;
}

/* The state of a rank that does not write need not be complete. */
static int
save_filtered(struct pawl_saver *s, const struct pawl_progress *now, const struct pawl_state *state,
              struct pawl_error *err)
{
	const bool writes = s->rank.rank == 0;
	struct pawl_state *less = NULL;
	int rc = 0;
	if (s->n_ignore > 0 || s->weights_only)
		rc = composer_filter(state, (const char *const *)s->ignore, s->n_ignore, s->weights_only, &less,
		                     writes ? err : NULL);
	if (rc < 0)
		return writes ? rc : 0;
	rc = check_whole(less ? less : state, err);
	if (rc == 0 && writes)
		rc = save_on_rank_0(s, now, less ? less : state, err);
	pawl_state_free(less);
	return rc;
}

static int
save_at(struct pawl_saver *s, const struct pawl_progress *now, const struct pawl_state *state, struct pawl_error *err)
{
	TRY(check_handle(s, now, err));
	TRY(check_handle(s, state, err));
	TRY(composer_start(s, now, s->rank.rank == 0, false, err));
	TRY(take_error(s, false, err));
	TRY(save_filtered(s, now, state, err));
	s->last = *now;
	s->has_last = true;
	return s->rank.rank == 0 ? 0 : 1;
}

int
pawl_saver_save(struct pawl_saver *s, const struct pawl_progress *now, const struct pawl_state *state,
                struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, save_at(s, now, state, &own), &own);
}

/* R76, R79, R97. */
static int
check_folders(struct pawl_saver *s, struct pawl_error *err)
{
	const char *names[] = {s->remote_name, s->remote_latest, s->filename, s->latest_filename};
	const size_t n = name_uses(s->folder_template, "rank") ? 2 : 4; /* does each rank have its own folder? */
	if (s->weights_only)
		return err_set(err, PAWL_EUSAGE,
		               "weights_only: a folder of files is saved completely; expected "
		               "weights_only=False");
	for (size_t i = 0; i < n; i++) {
		if (names[i] && s->rank.world_size > 1 && !name_uses(names[i], "rank"))
			return err_set(err, PAWL_EUSAGE,
			               "\"%.200s\": expected {rank} in the name, since each of "
			               "%d ranks writes a file; else "
			               "they would write the same one",
			               names[i], (int)s->rank.world_size);
	}
	return 0;
}

static int
save_folder(struct composer_job *job, const struct pawl_progress *now, const char *folder, struct pawl_error *err)
{
	struct pawl_saver *s = job->saver;
	TRY(name_save(s, now, true, job, err));
	TRY(make_room(s, job, err));
	mem_free(steal(&job->inner)); /* packed now: the caller may write to the folder afterwards */
	TRY(pawl_tar_pack(folder, job->staged, NULL, err));
	return hand_over(job, err);
}

static int
save_folder_at(struct pawl_saver *s, const struct pawl_progress *now, const char *folder, struct pawl_error *err)
{
	TRY(check_handle(s, now, err));
	if (!folder)
		return err_set(err, PAWL_EUSAGE, "checkpoint saver: expected a folder, found none");
	TRY(check_folders(s, err));
	TRY(composer_start(s, now, true, true, err));
	TRY(take_error(s, false, err));
	struct composer_job *job = mem_zalloc(1, sizeof *job);
	if (!job)
		return err_nomem(err, "checkpoint saver");
	job->saver = s;
	s->of_folders = true;
	int rc = save_folder(job, now, folder, err);
	if (rc < 0) {
		composer_job_free(job);
		return rc;
	}
	s->last = *now;
	s->has_last = true;
	return 0;
}

int
pawl_saver_save_folder(struct pawl_saver *s, const struct pawl_progress *now, const char *folder,
                       struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, save_folder_at(s, now, folder, &own), &own);
}

/* ------------------------------------------------------------------ waiting */

int
pawl_saver_check(struct pawl_saver *s, struct pawl_error *err)
{
	TRY(check_handle(s, s, err));
	return take_error(s, true, err);
}

/* Waits until a count that the lock guards is 0. */
static int
wait_for(struct pawl_saver *s, const unsigned *count, int64_t timeout_ms, struct pawl_error *err)
{
	int64_t deadline_ms = clock_deadline_ms(timeout_ms);
	int rc = 0;
	pthread_mutex_lock(&s->lock);
	while (*count > 0 && rc == 0)
		rc = pool_cond_wait_until(&s->changed, &s->lock, deadline_ms);
	bool busy = *count > 0;
	pthread_mutex_unlock(&s->lock);
	return busy ? err_waited(err, "%s: saves or uploads are still running after %lld ms", s->folder,
	                         (long long)timeout_ms)
	            : 0;
}

int
pawl_saver_wait(struct pawl_saver *s, int64_t timeout_ms, struct pawl_error *err)
{
	TRY(check_handle(s, s, err));
	TRY(wait_for(s, &s->n_busy, timeout_ms, err));
	return take_error(s, true, err);
}

int
pawl_saver_wait_saves(struct pawl_saver *s, int64_t timeout_ms, struct pawl_error *err)
{
	TRY(check_handle(s, s, err));
	return wait_for(s, &s->n_saving, timeout_ms, err);
}

static int
end_threads(struct pawl_saver *s, struct pawl_error *err)
{
	int rc = s->begun ? pawl_saver_wait(s, -1, err) : 0;
	if (s->files) {
		int closed = pawl_files_close(s->files, rc < 0 ? NULL : err);
		rc = rc < 0 ? rc : closed;
	}
	pool_free(s->finisher);
	pool_free(s->uploader);
	return rc;
}

int
pawl_saver_close(struct pawl_saver *s, struct pawl_error *err)
{
	if (!s)
		return 0;
	int rc = end_threads(s, err);
	while (s->n_rows > 0)
		composer_drop_row(s, s->n_rows - 1);
	mem_free(s->rows);
	store_close(s->there);
	store_close(s->here);
	composer_unlock(s);
	for (size_t i = 0; i < s->n_ignore; i++)
		mem_free(s->ignore[i]);
	mem_free(s->ignore);
	char *texts[] = {s->run_name,    s->folder,        s->folder_template, s->filename, s->latest_filename,
	                 s->remote_name, s->remote_latest, s->remote_root,     s->work,     s->journal};
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		mem_free(texts[i]);
	pthread_cond_destroy(&s->changed);
	pthread_mutex_destroy(&s->lock);
	mem_free(s);
	return rc;
}

/* ------------------------------------------------------------------ listing */

const char *
pawl_saver_folder(const struct pawl_saver *s)
{
	return s->folder;
}

int
pawl_saver_uploads(const struct pawl_saver *s)
{
	return s->remote_root != NULL;
}

/* R102: shows at most as many as are kept. */
static size_t
first_shown(const struct pawl_saver *s)
{
	return s->keep >= 0 && (uint64_t)s->keep < s->n_rows ? s->n_rows - (size_t)s->keep : 0;
}

static int
show_row(const struct pawl_saver *s, const struct composer_row *row, struct pawl_saved *ret, struct pawl_error *err)
{
	struct pawl_saved r = {
		.size = ret->size, .seq = row->seq, .progress = row->progress, .uploaded = row->uploaded};
	int n = snprintf(r.path, sizeof r.path, "%s/%s", s->folder, row->name);
	int m = snprintf(r.remote, sizeof r.remote, "%s", row->remote ? row->remote : "");
	int k = snprintf(r.pointer, sizeof r.pointer, "%s", row->pointer ? row->pointer : "");
	if (n < 0 || m < 0 || k < 0 || (size_t)n >= sizeof r.path || (size_t)m >= sizeof r.remote ||
	    (size_t)k >= sizeof r.pointer)
		return err_set(err, PAWL_ELIMIT, "%s/%.200s: the path is too long", s->folder, row->name);
	memcpy(ret, &r, ret->size < sizeof r ? ret->size : sizeof r);
	return 0;
}

int
pawl_saver_get(struct pawl_saver *s, size_t i, int all, struct pawl_saved *ret, struct pawl_error *err)
{
	TRY(check_handle(s, s, err));
	if (!ret || !ret->size)
		return err_set(err, PAWL_EUSAGE, "checkpoint saver: the row has no size; start from PAWL_SAVED_INIT");
	pthread_mutex_lock(&s->lock);
	size_t at = i + (all ? 0 : first_shown(s));
	int rc = at < s->n_rows ? show_row(s, &s->rows[at], ret, err)
	                        : err_set(err, PAWL_ENOTFOUND, "%s: there is no checkpoint number %zu", s->folder, i);
	pthread_mutex_unlock(&s->lock);
	return rc;
}

int
pawl_saver_path(struct pawl_saver *s, const struct pawl_saved *row, int32_t rank, char *ret, size_t cap,
                struct pawl_error *err)
{
	PAWL_FREE char *folder = NULL, *name = NULL, *path = NULL;
	if (!s || !row || !ret)
		return err_set(
			err, PAWL_EUSAGE,
			"checkpoint saver: expected a handle, a row and a pointer that receives the path, found NULL");
	struct name_values values = composer_values(s, &row->progress);
	if (!s->of_folders || rank == s->rank.rank)
		return composer_give_text(row->path, ret, cap, err);
	values.rank = rank;
	if (s->rank.local_world_size > 0) {
		values.local_rank = rank % s->rank.local_world_size;
		values.node_rank = rank / s->rank.local_world_size;
	}
	TRY(composer_fill_folder(s->folder_template, &values, &folder, err));
	TRY(composer_fill(s->filename, &values, true, &name, err));
	path = mem_printf("%s/%s", folder, name);
	return path ? composer_give_text(path, ret, cap, err) : err_nomem(err, "checkpoint saver");
}

uint32_t
pawl_saver_writers(const struct pawl_saver *s)
{
	return s->of_folders ? (uint32_t)s->rank.world_size : 1;
}

static int
note_upload(struct pawl_saver *s, uint64_t seq, struct pawl_error *err)
{
	int rc = 0;
	TRY(check_handle(s, s, err));
	pthread_mutex_lock(&s->lock);
	for (size_t i = 0; i < s->n_rows; i++)
		if (s->rows[i].seq == seq) {
			s->rows[i].uploaded = true;
			rc = composer_journal_write(s, err);
		}
	if (rc == 0 && s->begun)
		rc = composer_drop_spent(s, err);
	pthread_mutex_unlock(&s->lock);
	return rc;
}

int
pawl_saver_uploaded(struct pawl_saver *s, uint64_t seq, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, note_upload(s, seq, &own), &own);
}
