/* SPDX-License-Identifier: Apache-2.0 */
/*
 * composer_work: executes a save on the threads of a saver, in the order of the diagram in
 * composer.h. It decides nothing. P2, P6, P12, P14; R85, R88, R89, R94-R96.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/hidden.h"
#include "base/pool.h"
#include "jobs/composer/composer.h"
#include "pawl_jobs.h"

char *
composer_path(const struct pawl_saver *s, const char *name)
{
	return mem_printf("%s/%s", s->folder, name);
}

static void
note_error(struct pawl_error *slot, int rc, const struct pawl_error *why)
{
	if (rc < 0 && slot->code == 0)
		*slot = *why;
}

static size_t
row_of(const struct pawl_saver *s, uint64_t seq)
{
	for (size_t i = 0; i < s->n_rows; i++)
		if (s->rows[i].seq == seq)
			return i;
	return SIZE_MAX;
}

int
composer_drop_spent(struct pawl_saver *s, struct pawl_error *err)
{
	bool changed = false;
	uint64_t linked;
	TRY(composer_linked(s, &linked, err));
	for (;;) {
		size_t i = composer_spent(s->rows, s->n_rows, s->keep, linked);
		if (i == SIZE_MAX)
			return changed ? composer_journal_write(s, err) : 0;
		TRY(store_remove(s->here, s->rows[i].name, err));
		composer_drop_row(s, i);
		changed = true;
	}
}

/* ------------------------------------------------------------ one checkpoint
 */

/* The folder of a path; NULL: out of memory. */
static char *
folder_of(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash ? mem_strndup(path, slash > path ? (size_t)(slash - path) : 1) : mem_strdup(".");
}

static int
wait_written(struct composer_job *job, struct pawl_error *err)
{
	return job->ticket ? pawl_ticket_wait_for(job->ticket, PAWL_STAGE_COMMITTED, -1, err) : 0;
}

/* Gives the file its name, replacing another. Durable. */
static int
rename_over(const char *from, const char *to, struct pawl_error *err)
{
	const int sys = hidden_file_appear(AT_FDCWD, from, AT_FDCWD, to, true);

	return sys != 0 ? err_sys(err, sys, "%s: rename", to) : fd_sync_parent(AT_FDCWD, to, err);
}

/* Marks or unmarks the rows of earlier saves whose file has this name. Returns whether there is
 * one. The lock is held. */
static bool
mark_replaced(struct pawl_saver *s, const char *name, bool replaced)
{
	bool found = false;
	for (size_t i = 0; i < s->n_rows; i++)
		if (strcmp(s->rows[i].name, name) == 0) {
			s->rows[i].replaced = replaced;
			found = true;
		}
	return found;
}

static void
drop_replaced(struct pawl_saver *s)
{
	for (size_t i = s->n_rows; i-- > 0;)
		if (s->rows[i].replaced)
			composer_drop_row(s, i);
}

/* The journal is written first, so that a file with its name is always known. A save that fails
 * leaves the rows as they were (P4). The lock is held. */
static int
give_name_locked(struct composer_job *job, const char *path, struct pawl_error *err)
{
	struct pawl_saver *s = job->saver;
	const size_t n = s->n_rows;
	job->row.replaces = mark_replaced(s, job->row.name, true);
	int rc = composer_add_row(s, &job->row, err);
	if (rc == 0)
		rc = composer_journal_write(s, err);
	if (rc == 0)
		rc = rename_over(job->staged, path, err);
	if (rc < 0) {
		s->n_rows = n; /* the job still owns its row */
		mark_replaced(s, job->row.name, false);
		composer_journal_write(s, NULL);
		return rc;
	}
	memset(&job->row, 0, sizeof job->row); /* the saver owns it now */
	drop_replaced(s);
	return 0;
}

static int
give_name(struct composer_job *job, struct pawl_error *err)
{
	struct pawl_saver *s = job->saver;
	PAWL_FREE char *path = composer_path(s, job->row.name);
	PAWL_FREE char *folder = path ? folder_of(path) : NULL;
	if (!folder)
		return err_nomem(err, "checkpoint saver");
	TRY(fd_mkdirs(AT_FDCWD, folder, err));
	pthread_mutex_lock(&s->lock);
	int rc = give_name_locked(job, path, err);
	pthread_mutex_unlock(&s->lock);
	return rc;
}

/* Replaces a link atomically. It is relative, so that the folder can be moved. */
static int
put_link(const struct pawl_saver *s, const char *link, const char *target, struct pawl_error *err)
{
	PAWL_FREE char *path = composer_path(s, link);
	PAWL_FREE char *folder = path ? folder_of(path) : NULL;
	PAWL_FREE char *hidden = path ? mem_printf("%s.%ld.new", path, (long)getpid()) : NULL;
	if (!hidden || !folder)
		return err_nomem(err, "checkpoint saver");
	TRY(fd_mkdirs(AT_FDCWD, folder, err));
	unlink(hidden); /* left by a killed process */
	if (symlink(target, hidden) < 0)
		return err_sys(err, errno, "%s: make a symbolic link", path);
	int rc = rename_over(hidden, path, err);
	if (rc < 0)
		unlink(hidden);
	return rc;
}

static int
put_latest(struct composer_job *job, const char *name, struct pawl_error *err)
{
	if (!job->link)
		return 0;
	PAWL_FREE char *target = composer_relative(job->link, name);
	return target ? put_link(job->saver, job->link, target, err) : err_nomem(err, "checkpoint saver");
}

static int
finish_job(struct composer_job *job, struct pawl_error *err)
{
	struct pawl_saver *s = job->saver;
	TRY(wait_written(job, err));
	if (job->inner)
		TRY(pawl_tar_pack(job->inner, job->staged, NULL, err));
	PAWL_FREE char *name = mem_strdup(job->row.name);
	if (!name)
		return err_nomem(err, "checkpoint saver");
	TRY(give_name(job, err));
	TRY(put_latest(job, name, err));
	pthread_mutex_lock(&s->lock);
	int rc = composer_drop_spent(s, err);
	pthread_mutex_unlock(&s->lock);
	return rc;
}

void
composer_job_free(struct composer_job *job)
{
	if (job->room)
		fd_remove_tree(AT_FDCWD, job->room, NULL);
	pawl_ticket_free(job->ticket);
	composer_row_clear(&job->row);
	mem_free(job->room);
	mem_free(job->staged);
	mem_free(job->inner);
	mem_free(job->link);
	mem_free(job);
}

void
composer_finish(void *arg)
{
	struct composer_job *job = arg;
	struct pawl_saver *s = job->saver;
	struct pawl_error why = {0};
	int rc = finish_job(job, &why);
	composer_job_free(job);
	pthread_mutex_lock(&s->lock);
	note_error(&s->save_error, rc, &why);
	composer_begin_uploads(s);
	s->n_busy--;
	s->n_saving--;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
}

/* ------------------------------------------------------------------ uploads */

struct upload {
	struct upload *next; /* of those in flight */
	struct pawl_saver *saver;
	uint64_t seq;
	char *path, *key, *pointer;
	bool overwrite;
};

static void
upload_free(struct upload *u)
{
	mem_free(u->path);
	mem_free(u->key);
	mem_free(u->pointer);
	mem_free(u);
}

/* Opened once, by the first thread that needs it. */
static int
get_store(struct pawl_saver *s, struct store **ret, struct pawl_error *err)
{
	struct store *there = NULL;
	int rc = 0;
	pthread_mutex_lock(&s->lock);
	while (s->opening)
		pthread_cond_wait(&s->changed, &s->lock);
	there = s->there;
	s->opening = !there;
	pthread_mutex_unlock(&s->lock);
	if (!there) {
		rc = store_open(s->remote_root, true, false, &there, err);
		pthread_mutex_lock(&s->lock);
		s->opening = false;
		if (rc == 0)
			s->there = there;
		pthread_cond_broadcast(&s->changed);
		pthread_mutex_unlock(&s->lock);
	}
	if (rc == 0)
		*ret = there;
	return rc;
}

/* A pointer never moves back to an older checkpoint, and moves only after its target was read back
 * (R89). */
static int
point_to(const struct upload *u, struct store *there, struct pawl_error *err)
{
	struct pawl_saver *s = u->saver;
	int rc = 0;
	if (!u->pointer)
		return 0;
	pthread_mutex_lock(&s->lock);
	while (s->pointing)
		pthread_cond_wait(&s->changed, &s->lock);
	bool newer = u->seq > s->pointed_seq;
	s->pointing = newer;
	pthread_mutex_unlock(&s->lock);
	if (newer) {
		rc = composer_put_pointer(there, u->pointer, u->key, err);
		pthread_mutex_lock(&s->lock);
		s->pointing = false;
		if (rc == 0)
			s->pointed_seq = u->seq;
		pthread_cond_broadcast(&s->changed);
		pthread_mutex_unlock(&s->lock);
	}
	return rc;
}

static int
upload_one(const struct upload *u, struct pawl_error *err)
{
	struct pawl_saver *s = u->saver;
	struct store *there = NULL;
	TRY(get_store(s, &there, err));
	int64_t deadline_ms = s->timeout_ms > 0 ? clock_deadline_ms(s->timeout_ms) : 0;
	TRY(composer_put_file(u->path, there, u->key, u->overwrite, deadline_ms, &s->stop, err));
	return point_to(u, there, err);
}

/* The lock is held. */
static int
note_uploaded(struct pawl_saver *s, uint64_t seq, int rc, struct pawl_error *err)
{
	size_t i = row_of(s, seq);
	if (i == SIZE_MAX) /* replaced meanwhile */
		return 0;
	s->rows[i].uploading = false;
	if (rc < 0)
		return rc;
	s->rows[i].uploaded = true;
	TRY(composer_journal_write(s, err));
	return composer_drop_spent(s, err);
}

/* The lock is held. */
static void
end_flight(struct pawl_saver *s, const struct upload *u)
{
	struct upload **at = &s->in_flight;
	while (*at != u)
		at = &(*at)->next;
	*at = u->next;
}

static void begin_next(struct pawl_saver *s, const struct upload *ended);

static void
upload_run(void *arg)
{
	struct upload *u = arg;
	struct pawl_saver *s = u->saver;
	struct pawl_error why = {0};
	int rc = upload_one(u, &why);
	pthread_mutex_lock(&s->lock);
	rc = note_uploaded(s, u->seq, rc, &why);
	note_error(&s->upload_error, rc, &why);
	end_flight(s, u);
	begin_next(s, u);
	s->n_busy--;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
	upload_free(u);
}

static int
begin_upload(struct pawl_saver *s, struct composer_row *row, struct pawl_error *err)
{
	struct upload *u = mem_zalloc(1, sizeof *u);
	if (!u)
		return err_nomem(err, "checkpoint saver");
	*u = (struct upload){.saver = s, .seq = row->seq, .overwrite = s->overwrite || row->replaces};
	u->path = composer_path(s, row->name);
	u->key = mem_strdup(row->remote);
	u->pointer = row->pointer ? mem_strdup(row->pointer) : NULL;
	int rc = u->path && u->key && (u->pointer || !row->pointer) ? 0 : err_nomem(err, "checkpoint saver");
	if (rc == 0)
		rc = pool_add(s->uploader, NULL, upload_run, u, err);
	if (rc < 0) {
		upload_free(u);
		return rc;
	}
	u->next = s->in_flight;
	s->in_flight = u;
	row->uploading = true;
	s->n_busy++;
	return 0;
}

/* Two uploads of one object at a time could end in the wrong order, so the later one waits. */
static bool
is_in_flight(const struct pawl_saver *s, const char *key)
{
	for (const struct upload *u = s->in_flight; u; u = u->next)
		if (strcmp(u->key, key) == 0)
			return true;
	return false;
}

static void
begin_waiting(struct pawl_saver *s, struct composer_row *row)
{
	struct pawl_error why = {0};
	if (row->remote && !row->uploaded && !row->uploading && !is_in_flight(s, row->remote))
		note_error(&s->upload_error, begin_upload(s, row, &why), &why);
}

/* Starts what waited for the end of an upload. One that has failed waits for the next save. */
static void
begin_next(struct pawl_saver *s, const struct upload *ended)
{
	for (size_t i = 0; i < s->n_rows; i++)
		if (s->rows[i].seq > ended->seq && s->rows[i].remote && strcmp(s->rows[i].remote, ended->key) == 0)
			begin_waiting(s, &s->rows[i]);
}

void
composer_begin_uploads(struct pawl_saver *s)
{
	for (size_t i = 0; s->remote_root && i < s->n_rows; i++)
		begin_waiting(s, &s->rows[i]);
}
