/* SPDX-License-Identifier: Apache-2.0 */
/*
 * write: writes staged units to files, on the I/O threads.
 *
 * The first unit that is written opens the pack; the last one finishes it (fsync). Units are parked
 * while all blocks of their pack equal those of the checkpoint before. A pack that stays equal to
 * the end is linked, not written (R140). Promise P5: an error of write, fsync or close is final for
 * the file and fails the save.
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "save/compress.h"
#include "save/ring.h"
#include "save/save.h"
#include "save/writer.h"
#include "store/store.h"

static int
pack_key(const char *folder, const char *name, struct buf *out, struct pawl_error *err)
{
	buf_printf(out, "%s/%s", folder, name);
	return buf_check(out, "save", err);
}

/* The pack's file, opened by the first caller. */
static int
pack_file(struct save_pack *p, struct store_file **ret, struct pawl_error *err)
{
	struct save_image *m = p->image;
	PAWL_CLEAN(buf_clear) struct buf key = {0}, old = {0};
	int rc = 0;

	pthread_mutex_lock(&p->lock);
	if (!p->file) {
		bool recycled = !p->compress && recycle_take(m->env->recycle, p->plan->nbytes, &old);
		struct store_create opts = {.nbytes = p->compress ? codec_most_bytes(p->plan->nbytes) : p->plan->nbytes,
		                            .recycle_key = recycled ? buf_str(&old) : NULL,
		                            .buffered = m->env->opts->io.no_direct,
		                            .own_name = true};

		rc = pack_key(m->partial, p->name, &key, err);
		if (rc == 0)
			rc = store_create(m->env->store, buf_str(&key), &opts, &p->file, err);
	}
	*ret = p->file;
	pthread_mutex_unlock(&p->lock);
	return rc;
}

/* Measures the time in which any thread sends. That is the time the link needs, with any number of
 * threads. */
static void
note_sending(struct save_image *m, bool begins)
{
	const int64_t now_ns = clock_mono_ns();

	if (!m->env->is_timed)
		return;
	pthread_mutex_lock(&m->progress->lock);
	if (begins && m->progress->n_sending++ == 0)
		m->progress->sending_from_ns = now_ns;
	else if (!begins && --m->progress->n_sending == 0)
		m->progress->sending_ns += now_ns - m->progress->sending_from_ns;
	pthread_mutex_unlock(&m->progress->lock);
}

int
write_bytes(struct save_image *m, struct store_file *file, uint64_t offset, const void *ptr, size_t n,
            struct pawl_error *err)
{
	note_sending(m, true);
	const int rc = store_write(m->env->store, file, offset, ptr, n, err);
	note_sending(m, false);
	return rc;
}

static int
write_unit(struct save_unit *u, struct pawl_error *err)
{
	struct save_pack *p = u->pack;
	struct save_image *m = p->image;
	struct store_file *file;
	size_t nbytes = u->nbytes;

	if (p->compress) {
		if (m->env->caps->can_cut)
			TRY(pack_file(p, &file, err));
		return compress_unit(p->compress, u, err);
	}
	if (m->env->caps->offset_align > 1)
		nbytes = (size_t)mem_round_up(nbytes, m->env->caps->offset_align);
	if (nbytes > mem_round_up(u->nbytes, IMAGE_ALIGN))
		nbytes = u->nbytes;
	TRY(pack_file(p, &file, err));
	TRY(write_bytes(m, file, u->offset, u->mem, nbytes, err));
	atomic_fetch_add(&m->progress->written_bytes, u->nbytes);
	return 0;
}

static int
finish_pack(struct save_pack *p, struct pawl_error *err)
{
	struct store_file *file;

	if (p->compress)
		TRY(compress_finish(p->compress, err));
	pthread_mutex_lock(&p->lock);
	file = p->file;
	p->file = NULL;
	pthread_mutex_unlock(&p->lock);
	if (!file)
		return 0;
	note_sending(p->image, true);
	const int rc = store_finish(p->image->env->store, file, err);
	note_sending(p->image, false);
	return rc;
}

/* Job: one unit on an I/O thread. */
static void
write_job(void *arg)
{
	struct save_unit *u = arg;
	struct save_pack *p = u->pack;
	struct save_image *m = p->image;
	struct pawl_error err = {0};
	int rc = 0;

	if (!save_has_failed(m->progress)) {
		learn_unit(u);
		rc = write_unit(u, &err);
		if (rc < 0)
			save_fail(m->progress, rc, &err);
	}
	ring_give_slot(m, u);
	if (atomic_fetch_sub(&p->units_left, 1) == 1 && !save_has_failed(m->progress)) {
		rc = finish_pack(p, &err);
		if (rc < 0)
			save_fail(m->progress, rc, &err);
	}
}

static void
submit_unit(struct save_unit *u)
{
	struct save_image *m = u->pack->image;
	struct pawl_error err = {0};
	int rc = pool_add(m->env->writer->writers, &m->progress->writing, write_job, u, &err);

	if (rc < 0) {
		save_fail(m->progress, rc, &err);
		ring_give_slot(m, u);
	}
}

static bool
equals_before(const struct save_unit *u)
{
	const struct save_pack *p = u->pack;
	uint64_t block_bytes = p->image->plan->block_bytes;
	size_t first = (size_t)(u->offset / block_bytes);
	size_t n = (size_t)((u->nbytes + block_bytes - 1) / block_bytes);

	for (size_t i = first; i < first + n; i++)
		if (!sum_equal(p->sums[i], p->before->sums[i]))
			return false;
	return true;
}

void
write_offer(struct save_unit *u)
{
	struct save_pack *p = u->pack;
	size_t n_released = 0;

	pthread_mutex_lock(&p->lock);
	if (p->undecided) {
		p->parked[p->n_parked++] = u;
		if (equals_before(u)) {
			pthread_mutex_unlock(&p->lock);
			return;
		}
		p->undecided = false;
		n_released = p->n_parked;
	}
	pthread_mutex_unlock(&p->lock);
	if (!n_released)
		submit_unit(u);
	for (size_t i = 0; i < n_released; i++) /* no unit is parked any more, so the array is ours */
		submit_unit(p->parked[i]);
}

/* Job: links one unchanged pack, if its checkpoint still exists. */
static void
link_pack(void *arg)
{
	struct save_pack *p = arg;
	struct save_image *m = p->image;
	PAWL_CLEAN(buf_clear) struct buf from = {0}, to = {0};

	p->linked = pack_key(m->env->writer->reuse->folder, p->before->name, &from, NULL) == 0 &&
	            pack_key(m->partial, p->name, &to, NULL) == 0 &&
	            store_link(m->env->store, buf_str(&from), buf_str(&to), NULL) == 0;
	if (p->linked)
		atomic_fetch_add(&m->progress->reused_bytes,
		                 p->compress ? p->before->compressed_bytes : p->plan->nbytes);
}

/* Job: links one unchanged pack. If that fails, its units are written. */
static void
link_job(void *arg)
{
	struct save_pack *p = arg;

	if (save_has_failed(p->image->progress))
		return;
	link_pack(p);
	for (size_t i = 0; i < p->n_parked; i++) {
		if (!p->linked)
			submit_unit(p->parked[i]);
		else if (!p->before->ends)
			learn_unit(p->parked[i]);
	}
}

int
write_link_ahead(struct save_image *m, struct pawl_error *err)
{
	struct pool_group linking;
	int rc = 0;

	pool_group_init(&linking);
	for (size_t k = 0; k < m->plan->n_packs && rc == 0; k++)
		if (m->packs[k].undecided)
			rc = pool_add(m->env->writer->writers, &linking, link_pack, &m->packs[k], err);
	pool_group_wait(&linking);
	pool_group_clear(&linking);
	for (size_t k = 0; k < m->plan->n_packs; k++)
		m->packs[k].undecided = false;
	return rc;
}

int
write_settle(struct save_image *m, struct pawl_error *err)
{
	if (save_offers_late(m))
		for (size_t i = 0; i < m->n_units; i++)
			write_offer(&m->units[i]);
	for (size_t k = 0; k < m->plan->n_packs; k++) {
		struct save_pack *p = &m->packs[k];

		if (p->undecided && pool_add(m->env->writer->writers, &m->progress->writing, link_job, p, err) < 0)
			save_fail(m->progress, PAWL_ENOMEM, err);
	}
	pool_group_wait(&m->progress->writing);
	pthread_mutex_lock(&m->progress->lock);
	int rc = m->progress->failed;

	if (rc < 0 && err)
		*err = m->progress->error;
	m->progress->written_ns = clock_mono_ns();
	pthread_mutex_unlock(&m->progress->lock);
	return rc;
}

void
write_unlink(struct save_image *m)
{
	for (size_t k = 0; m->packs && k < m->plan->n_packs; k++) {
		PAWL_CLEAN(buf_clear) struct buf key = {0};

		/* Packs that memory did not suffice for have no name. */
		if (m->packs[k].name && pack_key(m->partial, m->packs[k].name, &key, NULL) == 0)
			store_remove(m->env->store, buf_str(&key), NULL);
	}
}

void
write_abandon(struct save_image *m, bool in_doubt)
{
	struct pawl_error ignored;

	for (size_t k = 0; m->packs && k < m->plan->n_packs; k++) {
		if (m->packs[k].file)
			store_abort(m->env->store, m->packs[k].file);
		m->packs[k].file = NULL;
	}
	if (!m->env->owns_partial) {
		if (!in_doubt)
			write_unlink(m);
		return;
	}
	store_remove_folder(m->env->store, m->partial, &ignored);
}
