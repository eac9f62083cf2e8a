/* SPDX-License-Identifier: Apache-2.0 */
/*
 * write: staged units -> files, on the I/O threads. Called by stage.c (write_offer) and save.c; calls the store.
 *
 * A pack is opened by the first unit that is written and finished (fsync) by the last one. While every block staged so
 * far equals that of the checkpoint before, its units are parked; a pack that stays equal to the end is linked, not
 * written (R140). Promise P5: an error of write, fsync or close is final for the file and fails the save.
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "save/lazy.h"
#include "save/press.h"
#include "save/save.h"
#include "save/writer.h"
#include "store/store.h"

#define IMAGE_ALIGN 4096u

static int
pack_key(const char *folder, const char *name, struct buf *out, struct pawl_error *err)
{
	buf_printf(out, "%s/%s", folder, name);
	return buf_check(out, "save", err);
}

/* The pack's file, opened by whoever comes first. */
static int
pack_file(struct save_pack *p, struct store_file **ret, struct pawl_error *err)
{
	struct save *s = p->save;
	PAWL_CLEAN(buf_clear) struct buf key = {0}, old = {0};
	int rc = 0;

	pthread_mutex_lock(&p->lock);
	if (!p->file) {
		bool recycled = !p->press && recycle_take(s->run, p->plan->nbytes, &old);
		struct store_create opts = {.nbytes = p->press ? press_most_bytes(p->plan->nbytes) : p->plan->nbytes,
		                            .recycle_key = recycled ? buf_str(&old) : NULL,
		                            .buffered = s->run->opts.no_direct_io,
		                            .own_name = !s->run->caps.rename_folder};

		rc = pack_key(s->partial, p->name, &key, err);
		if (rc == 0)
			rc = store_create(s->run->store, buf_str(&key), &opts, &p->file, err);
	}
	*ret = p->file;
	pthread_mutex_unlock(&p->lock);
	return rc;
}

/* The time for which anything at all is on its way is what the link needs, however many threads there are. */
static void
note_sending(struct save *s, bool begins)
{
	const int64_t now_ns = clock_mono_ns();

	if (!s->run->compress_by_rule)
		return;
	pthread_mutex_lock(&s->lock);
	if (begins && s->n_sending++ == 0)
		s->sending_from_ns = now_ns;
	else if (!begins && --s->n_sending == 0)
		s->sending_ns += now_ns - s->sending_from_ns;
	pthread_mutex_unlock(&s->lock);
}

int
write_bytes(struct save *s, struct store_file *file, uint64_t offset, const void *ptr, size_t n, struct pawl_error *err)
{
	note_sending(s, true);
	const int rc = store_write(s->run->store, file, offset, ptr, n, err);
	note_sending(s, false);
	return rc;
}

static int
write_unit(struct save_unit *u, struct pawl_error *err)
{
	struct save_pack *p = u->pack;
	struct save *s = p->save;
	struct store_file *file;
	size_t nbytes = u->nbytes;

	if (p->press) {
		if (s->run->caps.can_cut)
			TRY(pack_file(p, &file, err));
		return press_unit(p->press, u, err);
	}
	if (!u->slot && !p->image)
		; /* a live tensor: what lies behind it is not ours to write */
	else if (s->run->caps.offset_align > 1)
		nbytes = (size_t)round_up(nbytes, s->run->caps.offset_align);
	if (nbytes > round_up(u->nbytes, IMAGE_ALIGN))
		nbytes = u->nbytes;
	TRY(pack_file(p, &file, err));
	TRY(write_bytes(s, file, u->offset, u->mem, nbytes, err));
	atomic_fetch_add(&s->written_bytes, u->nbytes);
	return 0;
}

static int
finish_pack(struct save_pack *p, struct pawl_error *err)
{
	struct store_file *file;

	if (p->press)
		TRY(press_finish(p->press, err));
	pthread_mutex_lock(&p->lock);
	file = p->file;
	p->file = NULL;
	pthread_mutex_unlock(&p->lock);
	if (!file)
		return 0;
	note_sending(p->save, true);
	const int rc = store_finish(p->save->run->store, file, err);
	note_sending(p->save, false);
	return rc;
}

/* Job: one unit on an I/O thread. */
static void
write_job(void *arg)
{
	struct save_unit *u = arg;
	struct save_pack *p = u->pack;
	struct save *s = p->save;
	struct pawl_error err = {0};
	int rc = 0;

	if (!save_has_failed(s)) {
		learn_unit(u);
		rc = write_unit(u, &err);
		if (rc == 0 && !u->slot &&
		    !p->image) /* a live tensor: it may have changed between its sum and the write */
			rc = lazy_check_unit(s, u, &err);
		if (rc < 0)
			save_fail(s, rc, &err);
	}
	stage_give_slot(s, u->slot);
	if (atomic_fetch_sub(&p->units_left, 1) == 1 && !save_has_failed(s)) {
		rc = finish_pack(p, &err);
		if (rc < 0)
			save_fail(s, rc, &err);
	}
}

static void
submit(struct save_unit *u)
{
	struct save *s = u->pack->save;
	struct pawl_error err = {0};
	int rc = pool_add(s->writer->writers, &s->writing, write_job, u, &err);

	if (rc < 0) {
		save_fail(s, rc, &err);
		stage_give_slot(s, u->slot);
	}
}

static bool
equals_before(const struct save_unit *u)
{
	const struct save_pack *p = u->pack;
	uint64_t block_bytes = p->save->plan->block_bytes;
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
		submit(u);
	for (size_t i = 0; i < n_released; i++) /* nobody parks any more, so the array is ours */
		submit(p->parked[i]);
}

/* Job: links one unchanged pack; where that cannot be done its units are written after all. */
static void
link_job(void *arg)
{
	struct save_pack *p = arg;
	struct save *s = p->save;
	struct pawl_error err = {0};
	PAWL_CLEAN(buf_clear) struct buf from = {0}, to = {0};

	if (save_has_failed(s))
		return;
	if (pack_key(s->writer->reuse->folder, p->before->name, &from, &err) == 0 &&
	    pack_key(s->partial, p->name, &to, &err) == 0 &&
	    store_link(s->run->store, buf_str(&from), buf_str(&to), &err) == 0) {
		p->linked = true;
		for (size_t i = 0; p->image && !p->before->ends && i < p->n_parked; i++)
			learn_unit(p->parked[i]);
		atomic_fetch_add(&s->reused_bytes, p->press ? p->before->packed_bytes : p->plan->nbytes);
		return;
	}
	p->linked = false;
	if (!p->image) { /* the bytes are gone with the ring */
		save_fail(s, err.code ? err.code : PAWL_EIO, &err);
		return;
	}
	for (size_t i = 0; i < p->n_parked; i++)
		submit(p->parked[i]);
}

int
write_settle(struct save *s, struct pawl_error *err)
{
	if (save_offers_late(s))
		for (size_t i = 0; i < s->n_units; i++)
			write_offer(&s->units[i]);
	for (size_t k = 0; k < s->plan->n_packs; k++) {
		struct save_pack *p = &s->packs[k];

		if (p->undecided && pool_add(s->writer->writers, &s->writing, link_job, p, err) < 0)
			save_fail(s, PAWL_ENOMEM, err);
	}
	group_wait(&s->writing);
	pthread_mutex_lock(&s->lock);
	int rc = s->failed;

	if (rc < 0 && err)
		*err = s->error;
	s->written_ns = clock_mono_ns();
	pthread_mutex_unlock(&s->lock);
	return rc;
}

/* The folder is everybody's: a rank takes away only what is its own. */
static void
abandon_own(struct save *s)
{
	for (size_t k = 0; s->packs && s->partial && k < s->plan->n_packs; k++) {
		PAWL_CLEAN(buf_clear) struct buf key = {0};

		if (pack_key(s->partial, s->packs[k].name, &key, NULL) == 0)
			store_remove(s->run->store, buf_str(&key), NULL);
	}
}

void
write_abandon(struct save *s)
{
	struct pawl_error ignored;

	for (size_t k = 0; s->packs && k < s->plan->n_packs; k++) {
		if (s->packs[k].file)
			store_abort(s->run->store, s->packs[k].file);
		s->packs[k].file = NULL;
	}
	/* In a bucket the packs lie where the checkpoint would be, perhaps beside those of another save. */
	if (s->run->rank > 0 || !s->run->caps.rename_folder) {
		if (!s->in_doubt)
			abandon_own(s);
		return;
	}
	if (s->partial)
		store_remove_folder(s->run->store, s->partial, &ignored);
	if (s->run->meet && !s->run->left_behind)
		s->run->left_behind = mem_strdup(s->partial); /* a slow rank may make it anew */
}
