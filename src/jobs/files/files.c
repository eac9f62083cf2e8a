/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files: pawl_files_*: the queue of single files, their tickets and errors.
 *
 *   caller: target, plan, checks, queued, image -> STAGED, returns
 *   worker: file after file -> SETTLED or FAILED
 *
 * Memory (P16): images that wait to be written take at most FREE_BYTES, or the size of the new one
 * if that is more. A save beyond that waits for earlier ones.
 */
#include "jobs/files/files.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/vec.h"
#include "pawl_jobs.h"
#include "state/state.h"

#define MAX_THREADS 16u
#define MAX_WRITERS 4u
#define FREE_BYTES ((uint64_t)256 << 20)

/* ------------------------------------------------------------- opening, closing */

static unsigned
n_threads(uint32_t wanted)
{
	const long cores = sysconf(_SC_NPROCESSORS_ONLN);

	if (wanted)
		return wanted < MAX_THREADS ? (unsigned)wanted : MAX_THREADS;
	return cores < 1 ? 1 : cores < (long)MAX_THREADS ? (unsigned)cores : MAX_THREADS;
}

static void
free_files(struct pawl_files **pf)
{
	struct pawl_files *f = *pf;

	if (!f)
		return;
	pool_free(f->worker); /* runs the queued jobs first */
	pool_free(f->writers);
	pool_free(f->copiers);
	for (size_t i = 0; i < f->n_tickets; i++)
		pawl_ticket_free(f->tickets[i]);
	mem_free(f->tickets);
	mem_free(f->swept);
	if (f->own_arena)
		pawl_arena_free(f->arena);
	pthread_cond_destroy(&f->changed);
	pthread_mutex_destroy(&f->lock);
	mem_free(f);
	*pf = NULL;
}

static int
open_files(const struct pawl_files_opts *given, struct pawl_files **ret, struct pawl_error *err)
{
	struct pawl_files_opts opts = PAWL_FILES_OPTS_INIT;
	PAWL_CLEAN(free_files) struct pawl_files *f = NULL;

	if (given && !given->size)
		return err_set(err, PAWL_EUSAGE, "files: the options have no size; start from PAWL_FILES_OPTS_INIT");
	if (given)
		memcpy(&opts, given, given->size < sizeof opts ? given->size : sizeof opts);
	f = mem_zalloc(1, sizeof *f);
	if (!f)
		return err_nomem(err, "files");
	pthread_mutex_init(&f->lock, NULL);
	pool_cond_init(&f->changed);
	f->threads = n_threads(opts.threads);
	f->bandwidth = opts.bytes_per_second;
	f->fault = opts.fault;
	f->arena = opts.arena;
	if (!f->arena) {
		TRY(pawl_arena_new(0, &f->arena, err));
		f->own_arena = true;
	}
	if (f->threads > 1)
		TRY(pool_new("pawl-copy", f->threads - 1, &f->copiers, err));
	TRY(pool_new("pawl-write", f->threads < MAX_WRITERS ? f->threads : MAX_WRITERS, &f->writers, err));
	TRY(pool_new("pawl-files", 1, &f->worker, err));
	*ret = steal(&f);
	return 0;
}

int
pawl_files_open(const struct pawl_files_opts *options, struct pawl_files **ret, struct pawl_error *err)
{
	struct pawl_error own = {0};

	if (!ret)
		return err_set(err, PAWL_EUSAGE, "files: expected a pointer that receives the handle, found NULL");
	return err_give(err, open_files(options, ret, &own), &own);
}

/* --------------------------------------------------------------------- tickets */

/* The first error of an ended save that was not reported yet. Tickets that ended and were reported
 * are dropped. The lock is held. */
static int
take_error(struct pawl_files *f, struct pawl_error *err)
{
	size_t kept = 0;
	int rc = 0;

	for (size_t i = 0; i < f->n_tickets; i++) {
		struct pawl_ticket *t = f->tickets[i];

		if (rc < 0 || pawl_ticket_stage(t) < PAWL_STAGE_SETTLED) {
			f->tickets[kept++] = t;
			continue;
		}
		struct pawl_error found = {0};

		if (ticket_take_error(t, &found)) {
			rc = found.code;
			if (err)
				*err = found;
		}
		pawl_ticket_free(t);
	}
	f->n_tickets = kept;
	return rc;
}

int
pawl_files_check(struct pawl_files *f, struct pawl_error *err)
{
	if (!f)
		return err_set(err, PAWL_EUSAGE, "files: expected a handle, found NULL");
	pthread_mutex_lock(&f->lock);
	const int rc = take_error(f, err);
	pthread_mutex_unlock(&f->lock);
	return rc;
}

int
pawl_files_wait(struct pawl_files *f, int64_t timeout_ms, struct pawl_error *err)
{
	const int64_t deadline_ms = clock_deadline_ms(timeout_ms);
	int rc = 0;

	if (!f)
		return err_set(err, PAWL_EUSAGE, "files: expected a handle, found NULL");
	pthread_mutex_lock(&f->lock);
	const uint64_t until = f->n_begun;

	while (f->n_done < until && rc == 0)
		rc = pool_cond_wait_until(&f->changed, &f->lock, deadline_ms);
	rc = f->n_done < until ? err_waited(err, "%" PRIu64 " files are still being written after %lld ms",
	                                    until - f->n_done, (long long)timeout_ms)
	                       : take_error(f, err);
	pthread_mutex_unlock(&f->lock);
	return rc;
}

int
pawl_files_close(struct pawl_files *f, struct pawl_error *err)
{
	if (!f)
		return 0;
	const int rc = pawl_files_wait(f, -1, err);

	free_files(&f);
	return rc;
}

/* ------------------------------------------------------------------------ saves */

void
files_release_image(struct files_job *job)
{
	struct pawl_files *f = job->files;

	arena_give(f->arena, &job->region);
	pthread_mutex_lock(&f->lock);
	f->staged_bytes -= job->reserved;
	job->reserved = 0;
	pthread_cond_broadcast(&f->changed);
	pthread_mutex_unlock(&f->lock);
}

static void
free_job(struct files_job **pjob)
{
	struct files_job *job = *pjob;

	if (!job)
		return;
	files_release_image(job);
	store_close(job->store);
	piece_plan_clear(&job->plan);
	files_target_clear(&job->target);
	pawl_ticket_free(job->ticket);
	mem_free(job->sums);
	mem_free(job->crc_piece);
	mem_free(job->data);
	mem_free(job->copied);
	pthread_cond_destroy(&job->changed);
	pthread_mutex_destroy(&job->lock);
	mem_free(job);
	*pjob = NULL;
}

/* Job of the worker. */
static void
write_job(void *arg)
{
	struct files_job *job = arg;
	struct pawl_files *f = job->files;

	if (!f->swept || strcmp(f->swept, job->store->root) != 0) {
		files_sweep(job->store);
		mem_free(f->swept); /* no other thread reads it */
		f->swept = mem_strdup(job->store->root);
	}
	files_write(job);
	free_job(&job);
	pthread_mutex_lock(&f->lock);
	f->n_done++;
	pthread_cond_broadcast(&f->changed);
	pthread_mutex_unlock(&f->lock);
}

/* Waits while too much is staged, then counts the new image. */
static void
reserve_bytes(struct pawl_files *f, struct files_job *job)
{
	const uint64_t n = job->plan.nbytes, most = n > FREE_BYTES ? n : FREE_BYTES;

	pthread_mutex_lock(&f->lock);
	while (f->staged_bytes > most)
		pool_cond_wait_until(&f->changed, &f->lock, -1);
	f->staged_bytes += n;
	job->reserved = n;
	pthread_mutex_unlock(&f->lock);
}

static int
open_folder(struct files_job *job, struct pawl_error *err)
{
	struct store *outer = NULL;

	TRY(store_file_open(job->target.folder, false, false, &job->store, err));
	if (job->files->fault) {
		TRY(store_fault_wrap(job->store, job->files->fault, &outer, err));
		job->store = outer;
	}
	return store_limit(&job->store, job->files->bandwidth, 0, NULL, err);
}

/* Checks what can be known before anything is copied. */
static int
check_place(struct files_job *job, struct pawl_error *err)
{
	struct store_entry entry;
	uint64_t free_bytes = UINT64_MAX;
	const int rc = store_stat(job->store, job->target.name, &entry, err);

	if (rc == 0 && entry.is_folder)
		return err_set(err, PAWL_EUSAGE, "%s: is a folder, expected the name of a file", job->target.path);
	if (rc == 0 && !job->overwrite)
		return err_set(err, PAWL_EEXISTS, "%s: already exists", job->target.path);
	if (rc < 0 && rc != PAWL_ENOTFOUND)
		return rc;
	if (!job->target.codec && store_space(job->store, &free_bytes, NULL) == 0 && free_bytes < job->plan.nbytes)
		return err_set(err, PAWL_ENOSPACE,
		               "%s: the file has %" PRIu64 " bytes, and %" PRIu64 " are free in its folder",
		               job->target.path, job->plan.nbytes, free_bytes);
	return 0;
}

static int
make_job(struct pawl_files *f, const char *path, const struct pawl_file_opts *opts, const struct pawl_state *state,
         struct files_job **ret, struct pawl_error *err)
{
	PAWL_CLEAN(free_job) struct files_job *job = mem_zalloc(1, sizeof *job);

	if (!job)
		return err_nomem(err, "files");
	pthread_mutex_init(&job->lock, NULL);
	pool_cond_init(&job->changed);
	job->files = f;
	job->begin_ns = clock_mono_ns();
	job->overwrite = opts->overwrite != 0;
	job->level = opts->level;
	TRY(files_target_set(path, opts->format, &job->target, err));
	if (job->target.codec)
		TRY(codec_check_level(job->target.codec, opts->level, err));
	TRY(state_check_complete(state, err));

	const struct file_plan_opts plan_opts = {.stem = job->target.stem, .raw_pickle = opts->raw_pickle != 0};

	TRY(job->target.plan(state, &plan_opts, &job->plan, err));
	if (job->plan.nbytes > SIZE_MAX / 4)
		return err_set(err, PAWL_ELIMIT, "%s: %" PRIu64 " bytes are too many", path, job->plan.nbytes);
	TRY(open_folder(job, err));
	TRY(check_place(job, err));
	TRY(files_temp_name(job->temp, err));
	TRY(ticket_new(&job->ticket, err));
	*ret = steal(&job);
	return 0;
}

/* Queues a job whose image has only been started. */
static int
submit_job(struct pawl_files *f, struct files_job *job, struct pawl_error *err)
{
	struct pawl_ticket *ticket = ticket_ref(job->ticket);

	pthread_mutex_lock(&f->lock);
	int rc = array_reserve(f->tickets, f->cap_tickets, f->n_tickets + 1) ? 0 : err_nomem(err, "files");

	if (rc == 0)
		rc = pool_add(f->worker, NULL, write_job, job, err);
	if (rc == 0) {
		f->tickets[f->n_tickets++] = ticket;
		f->n_begun++;
	}
	pthread_mutex_unlock(&f->lock);
	if (rc < 0)
		pawl_ticket_free(ticket);
	return rc;
}

static int
save_file(struct pawl_files *f, const char *path, const struct pawl_file_opts *opts, const struct pawl_state *state,
          struct pawl_ticket **ret, struct pawl_error *err)
{
	PAWL_CLEAN(free_job) struct files_job *job = NULL;

	TRY(pawl_files_check(f, err));
	TRY(make_job(f, path, opts, state, &job, err));
	reserve_bytes(f, job);
	const int rc = files_copy_begin(job, state, err);

	if (rc < 0)
		return err_prefix(err, rc, "%s", path);
	TRY(submit_job(f, job, err));

	struct pawl_ticket *ticket = ticket_ref(job->ticket);
	const int64_t begin_ns = job->begin_ns;

	files_copy(steal(&job));
	pthread_mutex_lock(&ticket->lock);
	ticket->stats.blocked_seconds = (double)(clock_mono_ns() - begin_ns) / 1e9;
	pthread_mutex_unlock(&ticket->lock);
	if (ret)
		*ret = ticket;
	else
		pawl_ticket_free(ticket);
	return 0;
}

int
pawl_files_save(struct pawl_files *f, const char *path, const struct pawl_file_opts *options,
                const struct pawl_state *state, struct pawl_ticket **ret_ticket, struct pawl_error *err)
{
	struct pawl_file_opts opts = PAWL_FILE_OPTS_INIT;
	struct pawl_error own = {0};

	if (!f || !state)
		return err_set(err, PAWL_EUSAGE, "files: expected a handle and a state, found NULL");
	if (options && !options->size)
		return err_set(err, PAWL_EUSAGE, "files: the options have no size; start from PAWL_FILE_OPTS_INIT");
	if (options)
		memcpy(&opts, options, options->size < sizeof opts ? options->size : sizeof opts);
	return err_give(err, save_file(f, path, &opts, state, ret_ticket, &own), &own);
}
