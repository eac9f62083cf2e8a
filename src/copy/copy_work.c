/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy_work: see copy_work.h. Promises P1, P14, P16.
 *
 * Workers take pieces of the first file that still has some. So files are finished in order, and a
 * sent file is read back while the next is sent. At most as many files are open as there are
 * workers. When a file is not yet open, or all its pieces are done, one worker opens or closes it
 * with the lock released. The others continue with the next file meanwhile.
 */
#include "copy/copy_work.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/pool.h"
#include "base/sum.h"

#define BUFFER_ALIGN ((uint64_t)4096)
#define IDLE_MS 200 /* how often a waiting worker checks the clock and the cancel flag */

struct worker {
	struct copy_work *w;
	char *buffer;
};

/* ------------------------------------------------------------------- blocks */

static uint64_t
block_at(const struct manifest_file *f, uint64_t begin, uint64_t end)
{
	return end - begin < f->block_bytes ? end - begin : f->block_bytes;
}

/* The first block in [begin, end) that differs from the manifest; `end` if there is none. */
static uint64_t
first_bad(const struct manifest_file *f, const char *bytes, uint64_t begin, uint64_t end)
{
	for (uint64_t at = begin; at < end; at += f->block_bytes) {
		if (!sum_equal(f->sums[at / f->block_bytes],
		               sum_bytes(bytes + (at - begin), (size_t)block_at(f, at, end))))
			return at;
	}
	return end;
}

/* Reads a block that is bad or unreadable from another of the source's copies. */
static bool
heal_block(const struct copy_work *w, const struct copy_item *it, char *bytes, uint64_t at, uint64_t end)
{
	const uint64_t n = block_at(it->file, at, end);
	for (unsigned copy = 0; w->from_copies > 1; copy++) {
		int rc = store_read_copy(w->from, it->reader, copy, at, bytes, (size_t)n, NULL);
		if (rc == PAWL_ENOTFOUND)
			break;
		if (rc == 0 && first_bad(it->file, bytes, at, at + n) == at + n)
			return true;
	}
	return false;
}

static int
say_damaged(const struct copy_work *w, const struct copy_item *it, uint64_t at, uint64_t end, struct pawl_error *err)
{
	return err_set(err, PAWL_ECORRUPT,
	               "%s: %s: bytes %" PRIu64 " to %" PRIu64 " in %s are not what was written; it is not copied",
	               w->name, it->file->name, at, at + block_at(it->file, at, end), w->from->root);
}

/* Its checkpoint may also have been deleted: catalog_judge. */
static int
say_missing(const struct copy_work *w, const struct copy_item *it, struct pawl_error *err)
{
	int rc = err_set(err, PAWL_ECORRUPT, "%s: %s: the file is missing in %s", w->name, it->file->name,
	                 w->from->root);
	err->sys = ENOENT;
	return rc;
}

/* Reads a piece of the source, and verifies it (P1) or learns its checksum. */
static int
read_source(const struct copy_work *w, const struct copy_item *it, char *bytes, uint64_t begin, uint64_t end,
            struct pawl_error *err)
{
	const struct manifest_file *f = it->file;
	struct store_reader *reader = it->source ? it->source : it->reader;
	struct pawl_error why = {0};
	int rc = store_read(w->from, reader, begin, bytes, (size_t)(end - begin), &why);
	if (it->learned) {
		it->learned[begin / f->block_bytes] = sum_bytes(bytes, (size_t)(end - begin));
		return err_give(err, rc, &why);
	}
	if (rc == PAWL_ENOTFOUND)
		return say_missing(w, it, err);
	if (rc < 0 && (w->from_copies <= 1 || (rc != PAWL_EIO && rc != PAWL_ECORRUPT)))
		return err_give(err, err_prefix(&why, rc, "%s: %s", w->name, f->name), &why);
	for (uint64_t at = begin; at < end; at += f->block_bytes) {
		uint64_t n = block_at(f, at, end);
		char *block = bytes + (at - begin);
		bool good = rc == 0 && first_bad(f, block, at, at + n) == at + n;
		if (!good && !heal_block(w, it, block, at, end))
			return say_damaged(w, it, at, end, err);
	}
	return 0;
}

/* Names the target. If it is gone, that is not the source's code: callers would read that as "no
 * such checkpoint". */
static int
say_target(const struct copy_work *w, int rc, struct pawl_error *err)
{
	return rc == PAWL_ENOTFOUND ? err_prefix(err, PAWL_EIO, "%s: cannot be written to %s", w->name, w->to->root)
	                            : err_prefix(err, rc, "%s", w->name);
}

static int
send_piece(const struct worker *k, const struct copy_item *it, uint64_t begin, uint64_t end, struct pawl_error *err)
{
	const struct copy_work *w = k->w;
	TRY(read_source(w, it, k->buffer, begin, end, err));
	int rc = store_write(w->to, it->target, begin, k->buffer, (size_t)(end - begin), err);
	return rc < 0 ? say_target(w, rc, err) : 0;
}

/* Reads a piece of the target back. 1 = it differs. */
static int
check_piece(const struct worker *k, const struct copy_item *it, uint64_t begin, uint64_t end, struct pawl_error *err)
{
	const struct copy_work *w = k->w;
	if (it->learned && it->phase == COPY_OLD)
		TRY(read_source(w, it, k->buffer, begin, end, err));
	int rc = store_read(w->to, it->reader, begin, k->buffer, (size_t)(end - begin), err);
	if (rc == PAWL_ECORRUPT) /* shorter than the size it reported */
		return 1;
	if (rc < 0)
		return err_prefix(err, rc, "%s", w->name);
	return first_bad(it->file, k->buffer, begin, end) < end;
}

/* -------------------------------------------------------------------- files */

static void
close_reader(const struct copy_work *w, struct copy_item *it)
{
	if (it->reader)
		store_close_reader(it->phase == COPY_SEND ? w->from : w->to, steal(&it->reader));
}

static int
open_source(const struct copy_work *w, struct copy_item *it, struct pawl_error *err)
{
	uint64_t found = 0;
	int rc = store_open_reader(w->from, it->from_key, &it->reader, &found, err);
	if (rc == PAWL_ENOTFOUND)
		return say_missing(w, it, err);
	if (rc < 0)
		return err_prefix(err, rc, "%s", w->name);
	if (found != it->file->nbytes)
		return err_set(err, PAWL_ECORRUPT, "%s: %s: %" PRIu64 " bytes expected in the file, %" PRIu64 " found",
		               w->name, it->file->name, it->file->nbytes, found);
	return 0;
}

/* Starts to send a file. If the target can link one it has instead, *ret_linked is set. */
static int
enter_send(const struct copy_work *w, struct copy_item *it, bool *ret_linked, struct pawl_error *err)
{
	struct store *to = w->to;
	int rc;
	if (it->stale)
		TRY(store_remove(to, it->to_key, err));
	it->stale = false;
	if (it->link_key) {
		const char *link_key = it->link_key;
		it->link_key = NULL; /* tried once; if it fails, the file is sent */
		*ret_linked = store_link(to, link_key, it->to_key, NULL) == 0;
		if (*ret_linked)
			return 0;
	}
	if (!it->source)
		TRY(open_source(w, it, err));
	rc = store_create(to, it->to_key, &(struct store_create){.nbytes = it->file->nbytes}, &it->target, err);
	return rc < 0 ? say_target(w, rc, err) : 0;
}

/* Opens the target's object. 1 = it is missing or has another size. */
static int
enter_check(const struct copy_work *w, struct copy_item *it, struct pawl_error *err)
{
	struct pawl_error why = {0};
	uint64_t found = 0;
	int rc = store_open_reader(w->to, it->to_key, &it->reader, &found, &why);
	if (rc == PAWL_ENOTFOUND)
		return 1;
	if (rc < 0)
		return err_give(err, err_prefix(&why, rc, "%s", w->name), &why);
	return found != it->file->nbytes;
}

static int
say_not_kept(const struct copy_work *w, const struct copy_item *it, struct pawl_error *err)
{
	return err_set(err, PAWL_EIO, "%s: %s: the bytes read back from %s differ from those sent", w->name,
	               it->file->name, w->to->root);
}

/* Syncs a file that an earlier process left: it may be only in the page cache. False: the sync
 * failed, and the file is sent again. */
static bool
make_last(const struct copy_work *w, const struct copy_item *it)
{
	PAWL_FREE char *path = mem_printf("%s/%s", w->to->root, it->to_key);
	PAWL_FD int fd = path ? fd_openat(AT_FDCWD, path, O_RDONLY, 0, NULL) : -1;
	return fd >= 0 && fd_sync(fd, it->to_key, NULL) == 0;
}

/* -------------------------------------------------------------- state machine */

static void
fail_work(struct copy_work *w, int code, const struct pawl_error *err)
{
	if (w->error.code == 0) {
		w->error = *err;
		w->error.code = code;
	}
	pthread_cond_broadcast(&w->changed);
}

/* Changes the phase of a file. The lock is held. */
static void
move_on(struct copy_work *w, struct copy_item *it, enum copy_phase phase)
{
	it->phase = phase;
	it->entered = false;
	it->next = 0;
	while (w->first < w->n && w->items[w->first].phase == COPY_DONE)
		w->first++;
	pthread_cond_broadcast(&w->changed);
}

static void
count_bytes(struct copy_work *w, uint64_t *field, uint64_t nbytes)
{
	struct pawl_error err = {0};
	*field += nbytes;
	int rc = w->step(w->step_arg, nbytes, &err);
	if (rc < 0)
		fail_work(w, rc, &err);
}

/* Opens what the first piece needs. The lock is held, and released meanwhile. */
static void
open_item(struct copy_work *w, struct copy_item *it)
{
	struct pawl_error err = {0};
	bool linked = false;
	it->busy = true;
	pthread_mutex_unlock(&w->lock);
	int rc = it->phase == COPY_SEND ? enter_send(w, it, &linked, &err) : enter_check(w, it, &err);
	pthread_mutex_lock(&w->lock);
	it->busy = false;
	it->entered = true;
	if (rc < 0) {
		fail_work(w, rc, &err);
	} else if (linked) {
		it->linked = true;
		move_on(w, it, COPY_OLD);
	} else if (rc > 0) {
		it->differs = true;
		it->next = it->file->nbytes;
	}
	pthread_cond_broadcast(&w->changed);
}

/* Closes a file whose pieces are all done, and moves it to the next phase. The lock is held, and
 * released meanwhile. */
static void
close_item(struct copy_work *w, struct copy_item *it)
{
	struct pawl_error err = {0};
	int rc = 0;
	it->busy = true;
	pthread_mutex_unlock(&w->lock);
	close_reader(w, it);
	if (it->phase == COPY_SEND)
		rc = store_finish(w->to, steal(&it->target), &err);
	if (rc < 0)
		rc = say_target(w, rc, &err);
	if (it->phase == COPY_CHECK && it->differs) {
		store_remove(w->to, it->to_key, NULL); /* the next call would find the damage, too */
		rc = say_not_kept(w, it, &err);
	}
	if (it->phase == COPY_OLD && !it->differs && w->caps.local)
		it->differs = !make_last(w, it);
	pthread_mutex_lock(&w->lock);
	it->busy = false;
	if (rc < 0) {
		fail_work(w, rc, &err);
	} else if (it->phase == COPY_SEND) {
		move_on(w, it, it->no_check ? COPY_DONE : COPY_CHECK);
	} else if (it->phase == COPY_OLD && it->differs && !it->no_sending) {
		it->differs = it->linked = false;
		it->stale = true;
		move_on(w, it, COPY_SEND);
	} else {
		if (it->phase == COPY_OLD && !it->differs)
			count_bytes(w, it->linked ? &w->result.linked_bytes : &w->result.found_bytes, it->file->nbytes);
		move_on(w, it, COPY_DONE);
	}
}

static void
do_piece(struct worker *k, struct copy_item *it)
{
	struct copy_work *w = k->w;
	struct pawl_error err = {0};
	const uint64_t begin = it->next, left = it->file->nbytes - begin;
	const uint64_t end = begin + (left < it->unit_bytes ? left : it->unit_bytes);
	const enum copy_phase phase = it->phase;
	it->next = end;
	it->out++;
	pthread_mutex_unlock(&w->lock);
	int rc = phase == COPY_SEND ? send_piece(k, it, begin, end, &err) : check_piece(k, it, begin, end, &err);
	pthread_mutex_lock(&w->lock);
	it->out--;
	if (rc < 0) {
		fail_work(w, rc, &err);
	} else if (rc > 0) {
		it->differs = true;
		it->next = it->file->nbytes; /* the rest need not be read */
	} else if (phase == COPY_SEND) {
		count_bytes(w, &w->result.sent_bytes, end - begin);
	}
	pthread_cond_broadcast(&w->changed);
}

/* A file with work for one more worker, or NULL. *ret_wait: not all files are done. */
static struct copy_item *
pick_item(struct copy_work *w, bool *ret_wait)
{
	*ret_wait = w->first < w->n;
	for (size_t i = w->first; i < w->n; i++) {
		struct copy_item *it = &w->items[i];
		if (it->phase == COPY_DONE || it->busy)
			continue;
		if (!it->entered || it->next < it->file->nbytes || it->out == 0)
			return it;
	}
	return NULL;
}

static void
work_on_items(void *arg)
{
	struct worker *k = arg;
	struct copy_work *w = k->w;
	struct pawl_error err = {0};
	bool wait = true;
	pthread_mutex_lock(&w->lock);
	while (wait && w->error.code == 0) {
		struct copy_item *it = pick_item(w, &wait);
		int rc = w->step(w->step_arg, 0, &err);
		if (rc < 0 && wait)
			fail_work(w, rc, &err);
		else if (!it && wait)
			pool_cond_wait_until(&w->changed, &w->lock, clock_mono_ms() + IDLE_MS);
		else if (it && !it->entered)
			open_item(w, it);
		else if (it && it->next < it->file->nbytes)
			do_piece(k, it);
		else if (it)
			close_item(w, it);
	}
	pthread_mutex_unlock(&w->lock);
}

/* ------------------------------------------------------------------- running */

static unsigned
count_workers(const struct copy_work *w)
{
	const uint64_t memory = w->memory_bytes ? w->memory_bytes : COPY_MEMORY;
	uint64_t n = w->n_streams ? w->n_streams : COPY_STREAMS, pieces = 0;
	for (size_t i = 0; i < w->n && pieces < n; i++)
		pieces += 1 + w->items[i].file->nbytes / w->items[i].unit_bytes;
	n = n > COPY_MAX_STREAMS ? COPY_MAX_STREAMS : n;
	n = n > memory / w->buffer_bytes ? memory / w->buffer_bytes : n;
	n = n > pieces ? pieces : n;
	return n ? (unsigned)n : 1;
}

static int
run_workers(struct copy_work *w, unsigned n, char *buffers, struct pawl_error *err)
{
	PAWL_FREE struct worker *workers = mem_zalloc(n, sizeof *workers);
	struct pool *pool = NULL;
	struct pool_group group;
	int rc = 0;
	if (!workers)
		return err_nomem(err, w->name);
	if (n > 1)
		TRY(pool_new("pawl-copy-ckpt", n - 1, &pool, err));
	pool_group_init(&group);
	for (unsigned i = 0; i < n; i++)
		workers[i] = (struct worker){w, buffers + i * w->buffer_bytes};
	for (unsigned i = 1; i < n && rc == 0; i++)
		rc = pool_add(pool, &group, work_on_items, &workers[i], err);
	if (rc == 0) {
		work_on_items(&workers[0]);
	} else {
		pthread_mutex_lock(&w->lock);
		fail_work(w, rc, &(struct pawl_error){.message = "out of memory"});
		pthread_mutex_unlock(&w->lock);
	}
	pool_group_wait(&group);
	pool_group_clear(&group);
	pool_free(pool);
	if (rc == 0 && w->error.code < 0) {
		rc = w->error.code;
		if (err)
			*err = w->error;
	}
	return rc;
}

int
copy_work_run(struct copy_work *w, struct pawl_error *err)
{
	PAWL_FREE char *memory = NULL;
	w->buffer_bytes = BUFFER_ALIGN;
	for (size_t i = 0; i < w->n; i++) {
		uint64_t unit = mem_round_up(w->items[i].unit_bytes, BUFFER_ALIGN);
		w->buffer_bytes = unit > w->buffer_bytes ? unit : w->buffer_bytes;
	}
	const unsigned n = count_workers(w);
	memory = mem_alloc((size_t)(n * w->buffer_bytes + BUFFER_ALIGN));
	if (!memory)
		return err_nomem(err, w->name);
	pthread_mutex_init(&w->lock, NULL);
	pool_cond_init(&w->changed);
	int rc = run_workers(w, n, memory + (BUFFER_ALIGN - (uintptr_t)memory % BUFFER_ALIGN), err);
	for (size_t i = 0; i < w->n; i++) {
		close_reader(w, &w->items[i]);
		if (w->items[i].target)
			store_abort(w->to, steal(&w->items[i].target));
	}
	pthread_cond_destroy(&w->changed);
	pthread_mutex_destroy(&w->lock);
	return rc;
}
