/* SPDX-License-Identifier: Apache-2.0 */
/*
 * restore: takes a checkpoint (restore_pick.c), alone or with other ranks, and falls back to an
 * older one when it is damaged.
 *
 *   open ──> picked ── bind, match ──> bound ── read ──> done
 *              ▲                                  │ damage
 *              └──────────── fallback ────────────┘
 *
 * Only "latest" falls back. A caller that names a checkpoint gets that one or an error. Promises P1
 * (damage is always reported), P6 (the hold), P9, P12; R137, R139.
 */
#include "restore/restore.h"

#include "catalog/mirrors.h"
#include "ranks/agree.h"

#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/vec.h"
#include "restore/restore_gone.h"
#include "restore/restore_pick.h"

int
restore_add_row(struct restore_rows *rows, char *text, struct pawl_error *err)
{
	PAWL_FREE char *line = text;
	if (!line || !array_reserve(rows->rows, rows->cap, rows->n + 1))
		return err_nomem(err, "report of a restore");
	rows->rows[rows->n++] = steal(&line);
	return 0;
}

void
restore_cut_rows(struct restore_rows *rows, size_t n)
{
	while (rows->n > n)
		mem_free(rows->rows[--rows->n]);
}

void
restore_rows_clear(struct restore_rows *rows)
{
	restore_cut_rows(rows, 0);
	mem_free(rows->rows);
	*rows = (struct restore_rows){0};
}

int
restore_check_handle(const struct pawl_restore *r, struct pawl_error *err)
{
	return r ? 0 : err_set(err, PAWL_EUSAGE, "restore: expected a handle, found NULL");
}

int
restore_note_reason(struct pawl_restore *r, int rc, const struct pawl_error *err)
{
	if (rc < 0 && err) {
		r->reason = *err;
		r->reason.code = rc;
	}
	return rc;
}

/* ---- life ---- */

static int
copy_options(struct pawl_restore *r, const struct pawl_restore_opts *given, struct pawl_error *err)
{
	struct pawl_restore_opts o = PAWL_RESTORE_OPTS_INIT;
	if (given && !given->size)
		return err_set(err, PAWL_EUSAGE,
		               "restore: the options have no size; start from PAWL_RESTORE_OPTS_INIT");
	if (given)
		memcpy(&o, given, given->size < sizeof o ? given->size : sizeof o);
	bool latest = !o.selector || strcmp(o.selector, "latest") == 0;
	r->non_strict = o.non_strict != 0;
	r->rank_values = o.rank_values;
	if (o.rank_values < PAWL_RANK_VALUES_STRICT || o.rank_values > PAWL_RANK_VALUES_WRAP)
		return err_set(err, PAWL_EUSAGE, "restore: rank_values: expected 0 to %d, found %d",
		               PAWL_RANK_VALUES_WRAP, o.rank_values);
	r->can_fall_back = latest && !o.no_fallback;
	r->ring_bytes = o.ring_bytes;
	r->share_fn = o.share_reads;
	r->share_arg = o.share_arg;
	if (!latest)
		r->selector = bump_strndup(&r->options, o.selector, strlen(o.selector));
	if (!latest && !r->selector)
		return err_nomem(err, "restore");
	TRY(restore_copy_texts(r, "restore: include", o.include, o.n_include, &r->include, &r->n_include, err));
	TRY(restore_copy_texts(r, "restore: rename", o.rename, o.n_rename, &r->rules.rename, &r->rules.n_rename, err));
	TRY(restore_copy_texts(r, "restore: cast", o.cast, o.n_cast, &r->rules.cast, &r->rules.n_cast, err));
	return restore_check_rules(&r->rules, err);
}

/* Events are optional: if one cannot be written, it is left out. */
static void
fallback_event(struct pawl_restore *r, size_t first_row)
{
	PAWL_CLEAN(buf_clear) struct buf fields = {0};
	if (first_row >= r->fallbacks.n || run_check_writable(r->run, NULL) < 0)
		return;
	const char *why = r->fallbacks.rows[first_row];
	json_add_u64(&fields, "to", r->info.id);
	json_add_text(&fields, "why", why);
	if (!fields.failed)
		events_add(&r->run->events, "fallback", buf_str(&fields));
}

/* Announces rank 0's choice to all ranks. Returns rc. */
static int
announce_choice(struct pawl_restore *r, int rc, struct pawl_error *err)
{
	agree_announce(r->run, r->info.id, rc, err);
	r->owes_word = rc == 0 && r->run->modes.agree->is_shared;
	return rc;
}

static int
take_announced(struct pawl_restore *r, struct pawl_error *err)
{
	uint64_t id = 0;
	TRY(agree_listen(r->run, &id, err));
	r->owes_word = true;
	int rc = restore_pick_id(r, id, err);
	if (rc != PAWL_ENOTFOUND)
		return rc;
	TRY(pawl_reload(r->run, err));
	mirrors_list(r->run, NULL);
	return restore_pick_id(r, id, err);
}

/* If only this rank meets damage, it reports that to the others, and rank 0 names an older
 * checkpoint. */
static int
take_with_others(struct pawl_restore *r, struct pawl_error *err)
{
	for (;;) {
		int rc = take_announced(r, err);
		if (rc == 0 || !r->owes_word || !err_is_damage(rc) || !r->can_fall_back)
			return restore_note_reason(r, rc, err);
		if (rc != PAWL_ENOTFOUND) /* deleted: rank 0 selects again */
			TRY(restore_add_row(&r->fallbacks, mem_strdup(err->message), err));
		r->owes_word = false;
		rc = agree_outcome(r->run, rc, NULL, err);
		if (!err_is_damage(rc))
			return rc;
	}
}

/* Reports to the other ranks of this restore why it fails. */
static void
refuse_options(struct pawl_restore *r, int rc, const struct pawl_error *err)
{
	struct pawl_error why = err ? *err : (struct pawl_error){0};
	uint64_t id;
	if (!r->run->modes.agree->is_shared)
		return;
	if (!r->run->modes.agree->is_led)
		announce_choice(r, rc, &why);
	else
		r->owes_word = agree_listen(r->run, &id, NULL) == 0;
	restore_note_reason(r, rc, &why);
}

static int
restore_open(struct pawl *run, const struct pawl_restore_opts *opts, struct pawl_restore **ret, struct pawl_error *err)
{
	if (!run || !ret)
		return err_set(err, PAWL_EUSAGE,
		               "restore: expected a run and a pointer that receives the handle, found NULL");
	PAWL_CLEAN(pawl_restore_close_clean) struct pawl_restore *r = mem_zalloc(1, sizeof *r);
	if (!r)
		return err_nomem(err, "restore");
	r->run = run;
	run_wait_committed(run, -1);
	int rc = copy_options(r, opts, err);
	if (rc < 0) {
		refuse_options(r, rc, err);
		return rc;
	}
	TRY(run->modes.agree->is_led ? take_with_others(r, err) : announce_choice(r, restore_pick(r, err), err));
	fallback_event(r, 0);
	*ret = steal(&r);
	return 0;
}

int
pawl_restore_open(struct pawl *run, const struct pawl_restore_opts *opts, struct pawl_restore **ret,
                  struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, restore_open(run, opts, ret, &own), &own);
}

void
pawl_restore_failed(struct pawl_restore *r, int code, const char *why)
{
	struct pawl_error err = {0};

	if (r && code < 0 && why)
		restore_note_reason(r, err_set(&err, code, "%s", why), &err);
}

void
pawl_restore_close(struct pawl_restore *r)
{
	if (!r)
		return;
	if (r->owes_word) {
		/* Damage would make the others look for an older checkpoint, without this rank. */
		if (!r->reason.message[0])
			memcpy(r->reason.message, "cancelled the restore", sizeof("cancelled the restore"));
		if (r->reason.code == 0 || err_is_damage(r->reason.code))
			r->reason.code = PAWL_ECANCELLED;
		agree_give_up(r->run, &r->reason);
	}
	fetch_free(r->fetch);
	restore_cut_bindings(r, 0);
	mem_free(r->bindings);
	mem_free(r->casts);
	restore_rows_clear(&r->fallbacks);
	restore_rows_clear(&r->report);
	mem_free(r->folder);
	manifest_free(r->manifest);
	bump_clear(&r->info_memory);
	bump_clear(&r->options);
	pawl_hold_close(r->hold);
	mem_free(r);
}

const struct pawl_info *
pawl_restore_info(const struct pawl_restore *r)
{
	return &r->info;
}

const struct pawl_state *
pawl_restore_state(const struct pawl_restore *r)
{
	return r->manifest->state;
}

const struct pawl_state *
pawl_restore_metadata(const struct pawl_restore *r)
{
	return r->manifest->metadata;
}

/* ---- falling back ---- */

/* The current checkpoint was deleted while it was read. Selects again: the user's selector may now
 * mean another one. */
static int
select_again(struct pawl_restore *r, struct pawl_error *err)
{
	TRY(pawl_reload(r->run, err));
	return restore_pick(r, err);
}

static int
fall_back(struct pawl_restore *r, const struct pawl_error *why, struct pawl_error *err)
{
	TRY(restore_check_handle(r, err));
	const size_t before = r->fallbacks.n;
	const uint64_t id = r->info.id;
	if (why && why->code == PAWL_ENOTFOUND && r->n_looks++ < RESTORE_LOOKS)
		return r->run->modes.agree->is_led ? take_with_others(r, err)
		                                   : announce_choice(r, select_again(r, err), err);
	if (!r->can_fall_back)
		return err_set(err, PAWL_ENOTFOUND, "%s (falling back to an older checkpoint is off)",
		               why && why->message[0] ? why->message : r->info.name);
	TRY(restore_pick_note(r, r->info.name, why && why->message[0] ? why->message : "cancelled by the caller", err));
	int rc = 0;
	if (r->run->modes.agree->is_led)
		rc = take_with_others(r, err);
	else
		rc = announce_choice(
			r,
			id == 0 ? err_set(err, PAWL_ENOTFOUND, "%s has no checkpoint that is older", r->run->home.root)
				: restore_pick_below(r, id - 1, true, err),
			err);
	if (err_is_damage(rc)) /* report the damage to the caller */
		rc = before > 0 ? err_set(err, PAWL_ENOTFOUND, "%s: no checkpoint can be used; the newest: %s",
		                          r->run->home.root, r->fallbacks.rows[0])
		                : err_set(err, PAWL_ENOTFOUND, "%s",
		                          why && why->message[0] ? why->message : "there is no older checkpoint");
	if (rc < 0) {
		restore_cut_rows(&r->fallbacks, before);
		return rc;
	}
	fallback_event(r, before);
	return 0;
}

int
pawl_restore_fallback(struct pawl_restore *r, const struct pawl_error *why, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, fall_back(r, why, &own), &own);
}

size_t
pawl_restore_fallback_count(const struct pawl_restore *r)
{
	return r->fallbacks.n;
}

const char *
pawl_restore_fallback_get(const struct pawl_restore *r, size_t i)
{
	return i < r->fallbacks.n ? r->fallbacks.rows[i] : NULL;
}

size_t
pawl_restore_report_count(const struct pawl_restore *r)
{
	return r->report.n;
}

const char *
pawl_restore_report_get(const struct pawl_restore *r, size_t i)
{
	return i < r->report.n ? r->report.rows[i] : NULL;
}

/* Prepares memory for the next save: a resumed training will save what it restored; with many
 * ranks, each its part. */
static void
prepare_save(struct pawl_restore *r, uint64_t nbytes)
{
	const struct manifest *m = r->manifest;
	const uint64_t share = (m->plain_bytes ? m->plain_bytes : m->bytes) / r->run->group.world;

	if (r->run->saves.writer && !r->run->opts.maintenance)
		r->run->saves.queue_ops->prepare(r->run->saves.writer,
		                                 r->run->group.world > 1 && share < nbytes ? share : nbytes);
}

static int
restore_read(struct pawl_restore *r, struct pawl_error *err)
{
	TRY(restore_check_handle(r, err));
	const uint64_t wanted = restore_wanted_bytes(r->bindings, r->n_bindings);
	int rc = restore_read_own(r, err);
	uint64_t nbytes = r->read_bytes;
	if (r->owes_word) {
		r->owes_word = false;
		rc = agree_outcome(r->run, rc, &nbytes, err);
	}
	if (rc == 0) {
		restore_read_event(r, nbytes);
		mirror_repair(r);
		/* training resumes here: intervals and the clock are counted from this checkpoint,
		 * not from a newer one */
		interval_restart(&r->run->interval, &r->info.progress);
		prepare_save(r, wanted);
	} else if (err_is_damage(rc) && r->run->saves.writer) {
		r->run->saves.queue_ops->distrust(r->run->saves.writer, r->folder);
	}
	return rc;
}

int
pawl_restore_read(struct pawl_restore *r, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, restore_read(r, &own), &own);
}

/* ---- all in one ---- */

static int
restore_live(struct pawl *run, const struct pawl_restore_opts *opts, const struct pawl_state *live,
             struct pawl_restore **ret, struct pawl_error *err)
{
	PAWL_CLEAN(pawl_restore_close_clean) struct pawl_restore *r = NULL;
	TRY(pawl_restore_open(run, opts, &r, err));
	for (;;) {
		struct pawl_error why = {0};
		if (live)
			TRY(pawl_restore_match(r, live, err));
		int rc = pawl_restore_read(r, &why);
		if (rc == 0)
			break;
		int fallback = err_is_damage(rc) ? pawl_restore_fallback(r, &why, err) : rc;
		if (!err_is_damage(rc))
			*err = why;
		if (fallback == PAWL_ENOTFOUND) /* none is left, because of damage */
			fallback = err->code = rc;
		TRY(fallback);
	}
	if (ret)
		*ret = steal(&r);
	return 0;
}

int
pawl_restore(struct pawl *run, const struct pawl_restore_opts *opts, const struct pawl_state *live,
             struct pawl_restore **ret, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, restore_live(run, opts, live, ret, &own), &own);
}
