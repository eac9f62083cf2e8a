/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files_write: writes the image of a file to the disk under a hidden name; then gives it its own
 * name.
 *
 *   while copying: CRCs filled in, written by several threads; or, after it, through compression
 *   -> fsync -> renamed -> folder fsynced
 *
 * Promises P4: an existing file stays until the new one gets its name, and a failure leaves
 * nothing. P5: an error of write, fsync or close is final.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/os.h"
#include "jobs/files/files.h"
#include "store/outfile.h"

/* Waits for all bytes of the image up to `end`, and fills in the CRCs in [begin, end). The tensor
 * of each is stored before it. */
static void
finish_image(struct files_job *job, uint64_t begin, uint64_t end)
{
	files_copy_wait(job, end);
	for (size_t i = piece_plan_find(&job->plan, begin);
	     i < job->plan.pieces.n && job->plan.pieces.items[i].at < end; i++) {
		const struct file_piece *p = &job->plan.pieces.items[i];

		if (p->kind != FILE_CRC)
			continue;
		/* an empty tensor has no piece */
		uint64_t nbytes = job->crc_piece[p->tensor] < job->plan.pieces.n
		                          ? job->plan.pieces.items[job->crc_piece[p->tensor]].nbytes
		                          : 0;
		const uint32_t sum = crc32_whole(atomic_load(&job->sums[p->tensor]), nbytes);

		for (unsigned b = 0; b < 4; b++)
			if (p->at + b >= begin && p->at + b < end) /* another thread writes the rest */
				((unsigned char *)job->region.ptr)[p->at + b] = (unsigned char)(sum >> 8 * b);
	}
}

/* ------------------------------------------------------------ plain, in pieces */

static void
write_work(void *arg)
{
	struct files_job *job = arg;

	for (;;) {
		const uint64_t at = atomic_fetch_add(&job->next_write, 1) * FILES_UNIT_BYTES;
		struct pawl_error err = {0};

		if (at >= job->plan.nbytes)
			return;
		const uint64_t left = job->plan.nbytes - at, n = left < FILES_UNIT_BYTES ? left : FILES_UNIT_BYTES;
		finish_image(job, at, at + n);
		const int rc =
			store_write(job->store, job->file, at, (const char *)job->region.ptr + at, (size_t)n, &err);

		if (rc == 0)
			continue;
		pthread_mutex_lock(&job->lock);
		if (!job->failed) {
			job->failed = rc;
			job->error = err;
		}
		pthread_mutex_unlock(&job->lock);
		atomic_store(&job->next_write, job->plan.nbytes / FILES_UNIT_BYTES + 1); /* others can stop */
		return;
	}
}

static int
write_plain(struct files_job *job, struct pawl_error *err)
{
	const struct store_create create = {.nbytes = job->plan.nbytes};
	const uint64_t units = (job->plan.nbytes + FILES_UNIT_BYTES - 1) / FILES_UNIT_BYTES;
	struct pool_group group;

	TRY(store_create(job->store, job->temp, &create, &job->file, err));
	pool_group_init(&group);
	for (unsigned i = 1; i < pool_threads(job->files->writers) && i < units; i++) {
		if (pool_add(job->files->writers, &group, write_work, job, NULL) < 0)
			break; /* fewer writers are enough */
	}
	write_work(job);
	pool_group_wait(&group);
	pool_group_clear(&group);
	if (job->failed) {
		store_abort(job->store, job->file);
		if (err)
			*err = job->error;
		return job->failed;
	}
	return store_finish(job->store, job->file, err);
}

/* ------------------------------------------------------------------ compressed */

/* Starts when everything is copied: until then the caller waits, and all processors are busy. */
static int
write_compressed(struct files_job *job, struct pawl_error *err)
{
	PAWL_CLEAN(outfile_abort_clean) struct outfile *file = NULL;
	const struct outfile_opts opts = {.store = job->store,
	                                  .key = job->temp,
	                                  .nbytes = job->plan.nbytes,
	                                  .codec = job->target.codec,
	                                  .level = job->level,
	                                  .threads = job->files->threads};

	TRY(outfile_open(&opts, &file, err));
	files_copy_wait(job, UINT64_MAX);
	finish_image(job, 0, job->plan.nbytes);
	TRY(outfile_put_bytes(file, job->region.ptr, job->plan.nbytes, err));
	return outfile_finish(&file, NULL, err);
}

/* -------------------------------------------------------------------- its name */

/* Without overwrite by a link, which never replaces. If links do not work, by a check and a
 * rename. */
static int
reveal_file(struct files_job *job, struct pawl_error *err)
{
	const char *name = job->target.name;
	struct store_entry entry;
	int rc;

	if (!job->overwrite) {
		rc = store_link(job->store, job->temp, name, err);
		if (rc == 0)
			store_remove(job->store, job->temp, NULL);
		if (rc != PAWL_EUNSUPPORTED)
			return rc;
		if (store_stat(job->store, name, &entry, NULL) == 0)
			return err_set(err, PAWL_EEXISTS, "%s: already exists", name);
	}
	return store_move(job->store, job->temp, name, err);
}

/* Freeing a large file takes the file system as long as writing it. Holding the old file open
 * delays that until the new one has its name. -1: there is none. */
static int
hold_old(const struct files_job *job)
{
	PAWL_FREE char *path = job->overwrite ? mem_printf("%s/%s", job->store->root, job->target.name) : NULL;

	return path ? open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC) : -1;
}

/* The region is released as soon as its bytes are on the disk. */
static int
write_all(struct files_job *job, int *ret_old, struct pawl_error *err)
{
	int rc = job->target.codec ? write_compressed(job, err) : write_plain(job, err);

	files_copy_wait(job, UINT64_MAX); /* the caller may still use it after a failure */
	files_release_image(job);
	if (rc < 0)
		return rc;
	job->written_ns = clock_mono_ns();
	ticket_stage(job->ticket, PAWL_STAGE_WRITTEN);
	*ret_old = hold_old(job);
	rc = reveal_file(job, err);
	if (rc < 0) {
		store_remove(job->store, job->temp, NULL);
		return rc;
	}
	rc = store_sync(job->store, "", err);
	return rc < 0 ? err_prefix(err, rc, "the file is in place, but may not survive a power failure") : 0;
}

static void
set_stats(struct files_job *job, uint64_t nbytes)
{
	const int64_t now_ns = clock_mono_ns();
	struct pawl_save_stats *s = &job->ticket->stats;

	pthread_mutex_lock(&job->ticket->lock);
	s->bytes = nbytes;
	s->written_bytes = nbytes;
	s->stage_seconds = (double)(job->staged_ns - job->begin_ns) / 1e9;
	s->write_seconds = (double)(job->written_ns - job->begin_ns) / 1e9;
	s->commit_seconds = (double)(now_ns - job->written_ns) / 1e9;
	s->total_seconds = (double)(now_ns - job->begin_ns) / 1e9;
	pthread_mutex_unlock(&job->ticket->lock);
}

void
files_write(struct files_job *job)
{
	struct pawl_error err = {0};
	struct store_entry entry = {0};
	PAWL_FD int old = -1; /* closed after all waiters were notified */
	const int rc = write_all(job, &old, &err);

	if (rc < 0) {
		err_prefix(&err, rc, "%s", job->target.path);
		ticket_fail(job->ticket, rc, &err);
		ticket_stage(job->ticket, PAWL_STAGE_FAILED);
		return;
	}
	/* the size of a compressed file is known by now */
	const bool is_known = job->target.codec && store_stat(job->store, job->target.name, &entry, NULL) == 0;

	set_stats(job, is_known ? entry.nbytes : job->plan.nbytes);
	ticket_stage(job->ticket, PAWL_STAGE_COMMITTED);
	ticket_stage(job->ticket, PAWL_STAGE_SETTLED);
}
