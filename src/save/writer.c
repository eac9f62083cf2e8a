/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writer: see writer.h.
 *
 *   caller: admit -> save_new -> plan -> space -> stage_prepare -> hand over -> copy -> return
 */
#include "save/writer.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "catalog/catalog.h"
#include "policy/retain.h"
#include "ranks/agree.h"
#include "save/commit.h"
#include "save/compress.h"
#include "save/from_device.h"
#include "save/role.h"

#define SPACE_RESERVE_BYTES ((uint64_t)1 << 20) /* folders, journal, pointers */

static const struct run_queue_ops queue_ops;

/* In a bucket the packs are in the checkpoint's own folder, perhaps with those of another save. So
 * no rank removes that one. */
static struct save_env
env_of(struct writer *w, struct pawl *run)
{
	const struct run_modes *modes = &run->modes;

	return (struct save_env){.opts = &run->opts,
	                         .store = run->store,
	                         .caps = &run->home.caps,
	                         .commit = modes->commit,
	                         .arena = run->saves.arena,
	                         .recycle = &run->saves.recycle,
	                         .writer = w,
	                         .is_timed = run->settings.compress_by_rule,
	                         .owns_partial = modes->role->is_keeper && modes->commit->is_hidden};
}

int
writer_new(struct pawl *run, struct writer **ret, struct pawl_error *err)
{
	struct writer *w = mem_zalloc(1, sizeof(*w));
	int rc = 0;

	if (!w)
		return err_nomem(err, "run");
	w->run = run;
	w->env = env_of(w, run);
	pthread_mutex_init(&w->lock, NULL);
	pool_cond_init(&w->changed);
	device_set_init(&w->devices);
	rc = pool_new("pawl-copy", run->opts.staging.copy_threads > 1 ? run->opts.staging.copy_threads - 1 : 1,
	              &w->copiers, err);
	if (rc == 0)
		rc = (run->settings.codec ? pool_new_calm : pool_new)("pawl-write", run->opts.io.threads, &w->writers,
		                                                      err);
	if (rc == 0)
		rc = pool_new("pawl-save", 1, &w->saver, err);
	if (rc == 0 && run->opts.packs.recycle)
		recycle_load(&run->saves.recycle);
	if (rc < 0) {
		writer_free(w);
		return rc;
	}
	run->saves.queue_ops = &queue_ops;
	*ret = w;
	return 0;
}

void
writer_free(struct writer *w)
{
	if (!w)
		return;
	writer_wait(w, -1);
	pthread_mutex_lock(&w->lock);
	w->closing = true;
	pthread_mutex_unlock(&w->lock);
	pool_free(w->saver);
	pool_free(w->writers);
	pool_free(w->copiers);
	device_set_clear(&w->devices);
	plan_free(w->plan);
	reuse_free(w->reuse);
	past_free(w->past);
	pthread_cond_destroy(&w->changed);
	pthread_mutex_destroy(&w->lock);
	mem_free(w);
}

static void
un_admit(struct writer *w, struct save *s)
{
	pthread_mutex_lock(&w->lock);
	w->admitting = false;
	w->preparing = NULL;
	if (s && s->image.plan && !w->plan && !s->image.packs) {
		w->plan = s->image.plan;
		s->image.plan = NULL;
	}
	pthread_cond_broadcast(&w->changed);
	pthread_mutex_unlock(&w->lock);
	save_unref(s);
}

/* Makes s the running save, or the queued one. Returns with a reference kept for the caller. */
static int
hand_over(struct writer *w, struct save *s, struct pawl_error *err)
{
	int rc = 0;

	pthread_mutex_lock(&w->lock);
	atomic_fetch_add(&s->refs, 1);
	s->progress.stagers = 1; /* this call, until stage_start: the saver cannot overtake the copy */
	s->progress.is_held = !s->image.lazy.is_on && save_offers_late(&s->image);
	if (w->active) {
		w->queued = s;
	} else {
		rc = pool_add(w->saver, NULL, save_run, s, err);
		if (rc == 0)
			w->active = s;
	}
	if (rc < 0) {
		atomic_fetch_sub(&s->refs, 1);
	} else {
		w->admitting = false;
		w->preparing = NULL;
	}
	pthread_cond_broadcast(&w->changed);
	pthread_mutex_unlock(&w->lock);
	return rc;
}

void
writer_settled(struct writer *w)
{
	pthread_mutex_lock(&w->lock);
	w->settling--;
	pthread_cond_broadcast(&w->changed);
	pthread_mutex_unlock(&w->lock);
}

void
writer_distrust(struct writer *w, const char *folder)
{
	pthread_mutex_lock(&w->lock);
	if (w->reuse && strcmp(w->reuse->folder, folder) == 0)
		atomic_store(&w->reuse->is_damaged, true);
	pthread_mutex_unlock(&w->lock);
}

/* Has the save linked packs before a restore found them damaged? The lock is held. */
static bool
has_linked_damage(const struct writer *w, const struct save *s)
{
	for (size_t k = 0; k < s->image.plan->n_packs; k++)
		if (s->image.packs[k].linked)
			return atomic_load(&w->reuse->is_damaged);
	return false;
}

void
writer_release(struct writer *w, struct save *s, struct reuse *reuse)
{
	struct save *next = NULL;
	struct past *past = NULL;
	struct pawl_error err = {0};
	const bool stale = reuse && learn_packs(&s->image, &past);

	pthread_mutex_lock(&w->lock);
	recycle_expect(&w->run->saves.recycle, s->image.plan->n_packs);
	if (reuse) {
		atomic_store(&reuse->is_damaged, has_linked_damage(w, s));
		reuse_free(w->reuse);
		w->reuse = reuse;
		past_free(w->past);
		w->past = past;
	}
	for (size_t k = 0; k < s->image.plan->n_packs; k++) {
		pthread_mutex_destroy(&s->image.packs[k].lock);
		compress_free(s->image.packs[k].compress);
	}
	if (stale) {
		plan_free(steal(&w->plan));
		plan_free(s->image.plan);
	} else if (!w->plan) {
		w->plan = s->image.plan;
	} else {
		plan_free(s->image.plan);
	}
	s->image.plan = NULL;
	arena_give(w->run->saves.arena, &s->image.region);
	arena_give(w->run->saves.arena, &s->image.fill_region);
	w->settling++;
	w->active = w->queued;
	w->queued = NULL;
	if (w->active && pool_add(w->saver, NULL, save_run, w->active, &err) < 0) {
		next = w->active;
		w->active = NULL;
	}
	pthread_cond_broadcast(&w->changed);
	pthread_mutex_unlock(&w->lock);
	writer_warm(w);
	if (next) {
		stage_wait(&next->image);
		mark_outcome(w->run, next, false);
		ticket_fail(next->progress.ticket, PAWL_ENOMEM, &err);
		run_saves_set_failed(&w->run->saves, next->progress.ticket);
		ticket_stage(next->progress.ticket, PAWL_STAGE_FAILED);
		save_unref(next);
	}
}

static struct plan_opts
plan_opts(const struct writer *w)
{
	return (struct plan_opts){.pack_bytes = w->run->opts.packs.pack_bytes,
	                          .block_bytes = w->run->opts.packs.block_bytes,
	                          .rank = w->run->group.rank,
	                          .run_id = w->run->self.run_id,
	                          .regroup = run_links_packs(w->run) && w->run->modes.role->regroups};
}

static int
new_plan(struct writer *w, const struct pawl_state *share, struct plan_opts *opts, struct plan **ret,
         struct pawl_error *err)
{
	PAWL_CLEAN(past_free_clean) struct past *past = NULL;
	int rc = 0;

	pthread_mutex_lock(&w->lock); /* a running save may replace it */
	if (w->past)
		rc = past_new(w->past->tensors, w->past->n, &past, err);
	pthread_mutex_unlock(&w->lock);
	TRY(rc);
	opts->past = past;
	return plan_make(share, opts, ret, err);
}

/* Can the save use the cached plan? It cannot if the state has another structure, or if packs are
 * divided. */
static int
fits_plan(struct plan *plan, const struct save_image *m, const struct plan_opts *opts, bool *ret,
          struct pawl_error *err)
{
	bool divided = false;

	if (!sum_equal(plan->fingerprint, plan_fingerprint(&m->share, opts)))
		return 0;
	if (plan->tensors)
		TRY(regroup_expect(plan->tensors, plan->n_tensors, opts->probes, opts->pack_bytes, &divided, err));
	*ret = !divided;
	return 0;
}

/* The cached plan if it fits, else a new one; then the headers of this save. */
static int
make_plan(struct writer *w, struct save *s, struct pawl_error *err)
{
	struct plan_opts opts = plan_opts(w);
	PAWL_CLEAN(buf_clear) struct buf summary = {0};
	bool fits = false;
	int rc = 0;

	if (opts.regroup)
		TRY(learn_probes(&s->image, err));
	opts.probes = s->image.probes;
	opts.rests = s->image.rests;
	pthread_mutex_lock(&w->lock);
	s->image.plan = w->plan;
	w->plan = NULL;
	pthread_mutex_unlock(&w->lock);
	if (s->image.plan)
		rc = fits_plan(s->image.plan, &s->image, &opts, &fits, err);
	if (!fits)
		plan_free(steal(&s->image.plan));
	TRY(rc);
	if (!fits)
		TRY(new_plan(w, &s->image.share, &opts, &s->image.plan, err));
	TRY(commit_summary(s, &summary, err));
	TRY(plan_refresh(s->image.plan, &opts, (struct pawl_slice){summary.ptr, summary.len},
	                 (struct pawl_slice){s->request.state_json.ptr, s->request.state_json.len}, err));
	s->nbytes = s->plain_nbytes = s->image.plan->nbytes;
	return 0;
}

int
writer_plan(struct writer *w, const struct pawl_state *share, struct plan **ret, struct pawl_error *err)
{
	PAWL_CLEAN(plan_free_clean) struct plan *plan = NULL;
	const struct pawl_slice none = {"{}", 2};
	struct plan_opts opts = plan_opts(w);

	TRY(new_plan(w, share, &opts, &plan, err));
	TRY(plan_refresh(plan, &opts, none, none, err));
	*ret = steal(&plan);
	return 0;
}

/* By the probes of its tensors the pack will be linked. Pack 0 holds what changes at every save. */
static bool
expects_link(const struct writer *w, const struct save_image *m, size_t k)
{
	const struct plan_pack *pack = &m->plan->packs[k];

	if (k == 0 || m->deferred || !m->plan->tensors || !stage_find_before(w->reuse, m->plan, pack, m->codec))
		return false;
	for (size_t i = 0; i < pack->n_slots; i++)
		if (m->plan->tensors[pack->slots[i].tensor].seen != REGROUP_SAME)
			return false;
	return true;
}

static uint64_t
needed_bytes(const struct writer *w, const struct save *s, bool with_links)
{
	const struct save_image *m = &s->image;
	uint64_t need = 2 * s->request.state_json.len + SPACE_RESERVE_BYTES;

	for (size_t k = 0; k < m->plan->n_packs; k++)
		if (with_links || !expects_link(w, m, k))
			need += m->codec ? codec_most_bytes(m->plan->packs[k].nbytes) : m->plan->packs[k].nbytes;
	return need;
}

/* R143: too little space is an error with both figures before anything is written. */
static int
check_space(struct writer *w, const struct save *s, struct pawl_error *err)
{
	uint64_t free_bytes, kept_bytes = 0, need = needed_bytes(w, s, true);

	TRY(store_space(w->run->store, &free_bytes, err));
	pthread_mutex_lock(&w->lock);
	kept_bytes += recycle_bytes(&w->run->saves.recycle);
	pthread_mutex_unlock(&w->lock);
	if (free_bytes == UINT64_MAX || need <= free_bytes + kept_bytes)
		return 0;
	need = needed_bytes(w, s, false);
	if (need <= free_bytes + kept_bytes)
		return 0;
	return err_set(err, PAWL_ENOSPACE, "save of step %lld needs about %llu bytes, but %s has %llu bytes free",
	               (long long)s->request.step, (unsigned long long)need, w->run->home.root,
	               (unsigned long long)(free_bytes + kept_bytes));
}

/* R34 by request: a full list of best ones refuses a score that ties or is worse. 1 = refused; the
 * id has advanced. */
static int
refused_by_score(struct writer *w, const struct save *s, struct pawl_error *err)
{
	PAWL_FREE struct retain_item *items = NULL;
	size_t n_items;
	bool keep;

	if (!w->run->settings.retention.strict_score)
		return 0;
	run_lock(w->run);
	int rc = catalog_items(w->run->catalog, &items, &n_items, err);

	keep = rc == 0 &&
	       retain_would_keep(&w->run->settings.retention, items, n_items, s->request.metrics, s->request.n_metrics);
	run_unlock(w->run);
	TRY(rc);
	return !keep;
}

static int
prepare_save(struct writer *w, struct save *s, const struct pawl_save_opts *opts, struct pawl_error *err)
{
	uint64_t limit = w->run->opts.staging.arena_bytes;

	pthread_mutex_lock(&w->lock);
	w->preparing = s; /* packs may be linked into its folder before the hand-over */
	pthread_mutex_unlock(&w->lock);
	TRY(make_plan(w, s, err));
	TRY(check_space(w, s, err));
	if (s->image.deferred &&
	    (s->image.mode != PAWL_MODE_SNAPSHOT || (limit && s->image.plan->image_bytes > limit))) {
		TRY(writer_wait_active(w, opts, err)); /* a ring cannot be filled before it is written */
		s->image.deferred = false;
	}
	return stage_prepare(&s->image, &s->image.share, err);
}

static void
set_blocked(struct save *s)
{
	pthread_mutex_lock(&s->progress.ticket->lock);
	s->progress.ticket->stats.blocked_seconds = (double)(clock_mono_ns() - s->progress.begin_ns) / 1e9;
	s->progress.ticket->stats.id = s->request.id;
	pthread_mutex_unlock(&s->progress.ticket->lock);
}

/* Copies the tensors. Where the copy waits for the store, the copy threads do it, and this call
 * asks its caller meanwhile. If that interrupts, the save fails. */
static int
copy_state(struct save *s, const struct pawl_save_opts *opts, struct pawl_error *err)
{
	const struct save_image *m = &s->image;
	const bool asks = opts->interrupted && m->mode != PAWL_MODE_SNAPSHOT && !m->passes_through && !m->lazy.is_on;
	int rc = 0;

	stage_start(&s->image, !s->image.lazy.is_on && !asks);
	if (!asks)
		return 0;
	while (rc == 0 && stage_wait_until(&s->image, clock_deadline_ms(WRITER_ASK_MS)) != 0)
		rc = writer_ask(opts, err);
	if (rc < 0)
		stage_cancel(&s->image, rc, err);
	return rc;
}

/* Waits until the packs are written. If the caller interrupts, or has done so
 * (rc < 0), the save fails, unless it was written meanwhile. The call waits only for what is being
 * written now. */
static int
wait_written(struct save *s, const struct pawl_save_opts *opts, int rc, struct pawl_error *err)
{
	struct pawl_ticket *t = s->progress.ticket;

	pthread_mutex_lock(&t->lock);
	while (t->stage < PAWL_STAGE_WRITTEN) {
		const bool asks = opts->interrupted && rc == 0;

		pool_cond_wait_until(&t->changed, &t->lock, asks ? clock_deadline_ms(WRITER_ASK_MS) : -1);
		if (!asks)
			continue;
		pthread_mutex_unlock(&t->lock);
		rc = writer_ask(opts, err);
		if (rc < 0)
			save_fail(&s->progress, rc, err);
		pthread_mutex_lock(&t->lock);
	}
	pthread_mutex_unlock(&t->lock);
	return rc;
}

/* Waits for what the mode promises the caller, then reports an error that is already known, or rc.
 * No later call reports it again. */
static int
finish_call(struct save *s, const struct pawl_save_opts *opts, int rc, struct pawl_error *err)
{
	struct pawl_ticket *t = s->progress.ticket;

	if (s->image.mode == PAWL_MODE_DIRECT)
		rc = wait_written(s, opts, rc, err);
	set_blocked(s);
	stage_let_go(&s->image);
	if (rc == 0 && !s->image.lazy.is_on && save_has_failed(&s->progress))
		return pawl_ticket_wait(t, -1, err);
	if (rc < 0) {
		pthread_mutex_lock(&t->lock);
		t->seen = true;
		pthread_mutex_unlock(&t->lock);
	}
	return rc;
}

/* The save counts from here, and the caller gets its ticket. */
static void
hand_out(struct save *s, struct pawl_ticket **ret)
{
	mark_saved(s->run, s);
	if (ret)
		*ret = ticket_ref(s->progress.ticket);
}

/* Its score is refused. That is not an error. */
static int
end_refused(struct writer *w, struct save *s, struct pawl_ticket **ret)
{
	ticket_stage(s->progress.ticket, PAWL_STAGE_SKIPPED);
	set_blocked(s);
	hand_out(s, ret);
	un_admit(w, s);
	return 0;
}

/* It cannot begin, and the other ranks learn that. s: NULL if no save was made. */
static int
end_unbegun(struct writer *w, struct save *s, uint64_t id, int code, const struct pawl_error *err)
{
	struct pawl_error why = {0};

	if (err)
		why = *err;
	why.code = code;
	w->run->modes.agree->report_save(w->run, id, &why);
	if (s)
		write_unlink(&s->image);
	un_admit(w, s);
	return code;
}

int
writer_save(struct writer *w, const struct pawl_save_opts *opts, const struct pawl_state *state,
            struct pawl_ticket **ret, struct pawl_error *err)
{
	const struct agree_ops *agree = w->run->modes.agree;
	struct save *s = NULL;
	bool deferred = false;
	int64_t begin_ns = clock_mono_ns();

	/* One of many ranks is not interrupted before it has counted the save. */
	TRY(writer_admit(w, opts->on_busy ? opts->on_busy - 1 : w->run->opts.on_busy, agree->is_shared ? NULL : opts,
	                 &deferred, err));
	const uint64_t id = agree->next_save(w->run);
	int rc = save_new(w, opts, state, id, &s, err);

	if (rc == 0) {
		s->progress.begin_ns = begin_ns; /* waiting for a turn blocks the caller too */
		s->image.deferred = deferred;
		rc = refused_by_score(w, s, err);
	}
	if (rc > 0)
		return end_refused(w, s, ret);
	if (rc == 0)
		rc = prepare_save(w, s, opts, err);
	if (rc == 0)
		rc = hand_over(w, s, err);
	if (rc < 0)
		return end_unbegun(w, s, id, rc, err);
	if (s->image.lazy.is_on)
		set_blocked(s);
	rc = finish_call(s, opts, copy_state(s, opts, err), err);
	if (rc == 0)
		hand_out(s, ret);
	save_unref(s);
	return rc;
}

int
writer_skip(struct writer *w, int code, struct pawl_error *err)
{
	bool deferred;

	if (writer_admit(w, w->run->opts.on_busy, NULL, &deferred, NULL) == 0)
		end_unbegun(w, NULL, w->run->modes.agree->next_save(w->run), code, err);
	return code;
}

static bool
is_busy(struct writer *w)
{
	bool busy;

	pthread_mutex_lock(&w->lock);
	busy = w->active || w->queued || w->preparing || w->settling;
	pthread_mutex_unlock(&w->lock);
	return busy;
}

static bool
is_of_token(const struct save *s, const char *token)
{
	return s && strncmp(s->image.token, token, 32) == 0;
}

static bool
has_token(struct writer *w, const char *token)
{
	pthread_mutex_lock(&w->lock);
	bool found = is_of_token(w->active, token) || is_of_token(w->queued, token) || is_of_token(w->preparing, token);
	pthread_mutex_unlock(&w->lock);
	return found;
}

static const struct run_queue_ops queue_ops = {.is_busy = is_busy,
                                               .has_token = has_token,
                                               .prepare = writer_prepare,
                                               .distrust = writer_distrust,
                                               .wait_committed = writer_wait_committed};
