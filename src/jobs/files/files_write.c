/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files_write: the image of a file -> the disk, under a hidden name; then its own name. Called by files.c on the thread
 * that writes file after file; calls the store of the folder (direct I/O, reservation, fsync) and codec.
 *
 *   behind the copying: sums filled in, written by several threads; or, after it, through the compression
 *   -> fsync -> renamed -> folder fsynced
 *
 * Promises P4 (until the file has its name, what had it stays; a failure leaves nothing), P5 (an error of write, fsync
 * or close is final).
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fileio.h"
#include "base/mem.h"
#include "jobs/files/files.h"

/* Waits for bytes [begin, end) of the image and all before them, and puts the sums among them there: each one is of a
 * tensor that lies before it. */
static void
finish_image(struct files_job *job, uint64_t begin, uint64_t end)
{
	files_copy_wait(job, end);
	for (size_t i = file_plan_at(&job->plan, begin); i < job->plan.n && job->plan.pieces[i].at < end; i++) {
		const struct file_piece *p = &job->plan.pieces[i];

		if (p->kind != FILE_CRC)
			continue;
		/* the tensor is a piece or, with no bytes, none */
		uint64_t nbytes =
			job->summed[p->tensor] < job->plan.n ? job->plan.pieces[job->summed[p->tensor]].nbytes : 0;
		const uint32_t sum = crc32_whole(&job->files->crc, atomic_load(&job->sums[p->tensor]), nbytes);

		for (unsigned b = 0; b < 4; b++)
			if (p->at + b >= begin && p->at + b < end) /* the rest is another thread's */
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
		atomic_store(&job->next_write, job->plan.nbytes / FILES_UNIT_BYTES + 1); /* no need to go on */
		return;
	}
}

static int
write_plain(struct files_job *job, struct pawl_error *err)
{
	const struct store_create create = {.nbytes = job->plan.nbytes};
	const uint64_t units = (job->plan.nbytes + FILES_UNIT_BYTES - 1) / FILES_UNIT_BYTES;
	struct group group;

	TRY(store_create(job->store, job->temp, &create, &job->file, err));
	group_init(&group);
	for (unsigned i = 1; i < pool_threads(job->files->writers) && i < units; i++) {
		if (pool_add(job->files->writers, &group, write_work, job, NULL) < 0)
			break; /* fewer do it, too */
	}
	write_work(job);
	group_wait(&group);
	group_clear(&group);
	if (job->failed) {
		store_abort(job->store, job->file);
		if (err)
			*err = job->error;
		return job->failed;
	}
	return store_finish(job->store, job->file, err);
}

/* ------------------------------------------------------------------ compressed */

/* Its size is not known before, so it is written from front to end. */
struct packed_file {
	int fd;
	uint64_t nbytes;
	const char *name;
	struct rate rate;
};

static int
put_packed(void *arg, const void *ptr, size_t nbytes, struct pawl_error *err)
{
	struct packed_file *f = arg;
	const int64_t wait_ns = rate_take(&f->rate, nbytes, clock_mono_ns());

	if (wait_ns > 0)
		clock_sleep_ms((wait_ns + 999999) / 1000000);
	TRY(fd_pwrite_all(f->fd, ptr, nbytes, f->nbytes, f->name, err));
	f->nbytes += nbytes;
	return 0;
}

static void
free_writer(struct codec_writer **w)
{
	codec_writer_free(*w);
}

static int
pack_image(struct files_job *job, struct packed_file *f, struct pawl_error *err)
{
	PAWL_CLEAN(free_writer) struct codec_writer *w = NULL;

	/* The processors are the caller's first, who waits for the copy. */
	files_copy_wait(job, UINT64_MAX);
	finish_image(job, 0, job->plan.nbytes);
	TRY(codec_writer_new(job->target.codec, job->level, job->files->threads, put_packed, f, &w, err));
	for (uint64_t at = 0; at < job->plan.nbytes; at += FILES_UNIT_BYTES) {
		const uint64_t left = job->plan.nbytes - at;

		TRY(codec_writer_put(w, (const char *)job->region.ptr + at,
		                     (size_t)(left < FILES_UNIT_BYTES ? left : FILES_UNIT_BYTES), err));
	}
	return codec_writer_finish(w, NULL, NULL, err);
}

static int
write_packed(struct files_job *job, struct pawl_error *err)
{
	struct packed_file f = {.name = job->temp, .rate = {.bytes_per_second = job->files->bandwidth}};
	PAWL_FREE char *path = mem_printf("%s/%s", job->store->root, job->temp);

	if (!path)
		return err_set(err, PAWL_ENOMEM, "out of memory");
	PAWL_FD int fd = fd_openat(AT_FDCWD, path, O_CREAT | O_EXCL | O_WRONLY, 0666, err);

	if (fd < 0)
		return fd;
	f.fd = fd;
	int rc = pack_image(job, &f, err);

	if (rc == 0)
		rc = fd_sync(fd, job->temp, err);
	if (rc == 0)
		rc = fd_close(&fd, job->temp, err);
	if (rc < 0)
		unlinkat(AT_FDCWD, path, 0);
	return rc;
}

/* -------------------------------------------------------------------- its name */

/* Without overwrite by a link, which never replaces; where links do not work, by a look and a rename. */
static int
reveal(struct files_job *job, struct pawl_error *err)
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
			return err_set(err, PAWL_EEXISTS, "%s: exists already", name);
	}
	return store_move(job->store, job->temp, name, err);
}

/* To free a large file takes the file system as long as to write it: while it is open here, that does not happen before
 * the new one has its name. -1: there is none. */
static int
hold_old(const struct files_job *job)
{
	PAWL_FREE char *path = job->overwrite ? mem_printf("%s/%s", job->store->root, job->target.name) : NULL;

	return path ? open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC) : -1;
}

/* The region is given back as soon as its bytes are on the disk. */
static int
write_all(struct files_job *job, int *ret_old, struct pawl_error *err)
{
	int rc = job->target.codec ? write_packed(job, err) : write_plain(job, err);

	files_copy_wait(job, UINT64_MAX); /* the caller's, after a failure */
	files_release_image(job);
	if (rc < 0)
		return rc;
	job->written_ns = clock_mono_ns();
	ticket_stage(job->ticket, PAWL_STAGE_WRITTEN);
	*ret_old = hold_old(job);
	rc = reveal(job, err);
	if (rc < 0) {
		store_remove(job->store, job->temp, NULL);
		return rc;
	}
	rc = store_sync(job->store, "", err);
	return rc < 0 ? err_prefix(err, rc, "it has its name, but may not survive a power cut") : 0;
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
	s->write_seconds = (double)(job->written_ns - job->staged_ns) / 1e9;
	s->commit_seconds = (double)(now_ns - job->written_ns) / 1e9;
	s->total_seconds = (double)(now_ns - job->begin_ns) / 1e9;
	pthread_mutex_unlock(&job->ticket->lock);
}

void
files_write(struct files_job *job)
{
	struct pawl_error err = {0};
	struct store_entry entry = {0};
	PAWL_FD int old = -1; /* closed when everybody has been told */
	const int rc = write_all(job, &old, &err);

	if (rc < 0) {
		err_prefix(&err, rc, "%s", job->target.path);
		ticket_fail(job->ticket, rc, &err);
		ticket_stage(job->ticket, PAWL_STAGE_FAILED);
		return;
	}
	/* of a compressed file the size is known by now */
	const bool is_known = job->target.codec && store_stat(job->store, job->target.name, &entry, NULL) == 0;

	set_stats(job, is_known ? entry.nbytes : job->plan.nbytes);
	ticket_stage(job->ticket, PAWL_STAGE_COMMITTED);
	ticket_stage(job->ticket, PAWL_STAGE_SETTLED);
}
