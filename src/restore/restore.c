/* SPDX-License-Identifier: Apache-2.0 */
/*
 * restore: selects a checkpoint, holds it against deletion, reads its manifest, and falls back to
 * an older one when it is damaged.
 *
 *   open ──> picked ── bind, match ──> bound ── read ──> done
 *              ▲                                  │ damage
 *              └──────────── fallback ────────────┘
 *
 * Only "latest" falls back. A caller that names a checkpoint gets that one or an error. Promises P1
 * (damage is always reported), P6 (the hold), P9, P12; R137, R139.
 */
#include "restore/restore.h"

#include "catalog/far.h"
#include "catalog/hold_root.h"
#include "ranks/agree.h"

#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/vec.h"
#include "restore/restore_gone.h"

#define LOOK_PAUSE_MS 20

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
restore_note_reason(struct pawl_restore *r, int rc, const struct pawl_error *err)
{
	if (rc < 0 && err) {
		r->reason = *err;
		r->reason.code = rc;
	}
	return rc;
}

/* ---- picking ---- */

/* "checkpoint_000007: why", without naming it twice. */
static int
note(struct pawl_restore *r, const char *name, const char *why, struct pawl_error *err)
{
	size_t len = strlen(name);
	bool named = strncmp(why, name, len) == 0 && why[len] == ':';
	return restore_add_row(&r->fallbacks, named ? mem_strdup(why) : mem_printf("%s: %s", name, why), err);
}

/* Reads the full manifest, also of a checkpoint whose deletion has begun and will be called off
 * because of the hold. */
static int
read_manifest(struct pawl *run, uint64_t id, const struct pawl_hold *hold, struct manifest **ret,
              struct pawl_error *err)
{
	PAWL_FREE char *name = NULL;
	int rc = mirrors_manifest(run, id, false, ret, err);
	if (rc != PAWL_ENOTFOUND || !hold)
		return rc;
	run_lock(run);
	const struct catalog_entry *e = catalog_get(run->catalog, id);
	if (e && !e->at)
		name = mem_strdup(e->name);
	run_unlock(run);
	return name && restore_wait_put_back(run, name) ? mirrors_manifest(run, id, false, ret, err) : rc;
}

/* Makes the checkpoint with this id the current one. On failure the old one stays. */
static int
adopt_checkpoint(struct pawl_restore *r, uint64_t id, struct pawl_error *err)
{
	struct pawl *run = r->run;
	PAWL_CLEAN(buf_clear) struct buf folder = {0};
	struct manifest *manifest = NULL;
	struct pawl_hold *hold = NULL;
	PAWL_CLEAN(restore_rows_clear) struct restore_rows rows = {0};
	struct bump memory = {0};
	struct pawl_info info;
	char *key = NULL;
	/* If no hold can be made (read-only folders), reading continues without. A deletion is
	 * noticed then. */
	int rc = hold_for_reading(run, id, &hold, err);
	if (rc != PAWL_ENOTFOUND || run->mirrors->n > 0) /* else it was deleted */
		rc = read_manifest(run, id, hold, &manifest, err);
	if (rc == 0)
		rc = restore_resolve(r, manifest, &rows, err);
	r->has_vanished = rc == PAWL_ENOTFOUND || (rc == PAWL_ECONFLICT && !run->home.foreign);
	run_lock(run);
	const struct catalog_entry *e = rc == 0 ? catalog_get(run->catalog, id) : NULL;
	struct store *at = e ? e->at : NULL;
	if (rc == 0 && !e)
		rc = err_set(err, PAWL_ENOTFOUND, "%s no longer has a checkpoint with id %" PRIu64, run->home.root, id);
	r->has_vanished = r->has_vanished || rc == PAWL_ENOTFOUND;
	if (rc == 0)
		rc = catalog_info(run->catalog, e, &run->settings.retention, &memory, &info, err);
	if (rc == 0) {
		catalog_key(run->catalog, e->name, &folder);
		key = mem_strdup(buf_str(&folder));
		if (folder.failed || !key)
			rc = err_nomem(err, e->name);
	}
	run_unlock(run);
	if (rc < 0) {
		mem_free(key);
		bump_clear(&memory);
		manifest_free(manifest);
		pawl_hold_close(hold);
		return rc;
	}
	restore_cut_bindings(r, 0);
	restore_rows_clear(&r->report);
	r->report = rows;
	r->n_unused_rules = rows.n;
	rows = (struct restore_rows){0};
	mem_free(r->folder);
	bump_clear(&r->info_memory);
	manifest_free(r->manifest);
	pawl_hold_close(r->hold);
	r->folder = key;
	r->at = at;
	r->info_memory = memory;
	r->info = info;
	r->manifest = manifest;
	r->hold = hold;
	return 0;
}

/* What pick_below found. */
struct candidate {
	uint64_t id; /* 0 = none */
	char *name;
	char *damage; /* the first bad one that was skipped, and why; NULL = none */
};

static void
candidate_clear(struct candidate *c)
{
	mem_free(c->name);
	mem_free(c->damage);
}

/* True if a mirror's good copy replaces a bad entry. */
static bool
is_elsewhere(struct catalog *c, const struct catalog_entry *e)
{
	const struct catalog_entry *good = e->summary ? NULL : catalog_get(c, e->id);
	return good && good->at && strcmp(good->name, e->name) == 0;
}

/* Finds the newest valid checkpoint with an id of at most `most`. Bad ones that are skipped are
 * noted. A folder without a manifest is noted too, but it is not a checkpoint, so it does not count
 * as damage. */
static int
pick_below(struct pawl_restore *r, uint64_t most, struct candidate *ret, struct pawl_error *err)
{
	struct pawl *run = r->run;
	bool lacking = false;
	int rc = 0;
	ret->id = 0;
	run_lock(run);
	for (size_t i = run->catalog->n; i-- > 0 && ret->id == 0 && rc == 0;) {
		const struct catalog_entry *e = &run->catalog->entries[i];
		if (e->id > most || is_elsewhere(run->catalog, e))
			continue;
		if (e->summary) {
			ret->id = e->id;
			mem_free(ret->name);
			ret->name = mem_strdup(e->name);
			lacking = !ret->name;
		} else if (e->code == PAWL_EAUTH) {
			rc = err_set(err, PAWL_EAUTH, "%s cannot be read: %s", e->name, e->problem);
		} else {
			rc = note(r, e->name, e->problem, err);
			if (!ret->damage && e->code != PAWL_ENOTFOUND) {
				ret->damage = mem_printf("%s: %s", e->name, e->problem);
				lacking = !ret->damage;
			}
		}
	}
	run_unlock(run);
	return rc == 0 && lacking ? err_nomem(err, "restore") : rc;
}

/* Takes the newest valid checkpoint with an id of at most `most`, going down until one can be
 * opened. final: a vanished one is skipped like a damaged one; else it is PAWL_ENOTFOUND or
 * PAWL_ECONFLICT. An unreadable one (permissions) is PAWL_EAUTH: it may be intact. */
static int
take_below(struct pawl_restore *r, uint64_t most, bool final, struct pawl_error *err)
{
	PAWL_CLEAN(candidate_clear) struct candidate c = {0};
	for (;;) {
		struct pawl_error why = {0};
		TRY(pick_below(r, most, &c, err));
		if (c.damage && !r->can_fall_back)
			return err_set(err, PAWL_ECORRUPT, "%s (falling back to an older checkpoint is off)", c.damage);
		if (c.id == 0 && c.damage)
			return err_set(err, PAWL_ECORRUPT, "no checkpoint can be used; the newest: %s", c.damage);
		if (c.id == 0)
			return err_set(err, PAWL_ENOTFOUND, "%s has no checkpoint%s", r->run->home.root,
			               most < UINT64_MAX ? " that is older" : "");
		int rc = adopt_checkpoint(r, c.id, &why);
		if (rc == 0)
			return 0;
		if (!(err_is_damage(rc) || r->has_vanished) || !r->can_fall_back || (r->has_vanished && !final)) {
			if (err)
				*err = why;
			return rc;
		}
		TRY(note(r, c.name, why.message, err));
		if (!c.damage && !r->has_vanished)
			c.damage = mem_strdup(why.message);
		most = c.id - 1;
	}
}

static int
take_selected(struct pawl_restore *r, bool final, struct pawl_error *err)
{
	struct catalog_entry *e;
	if (!r->selector)
		return take_below(r, UINT64_MAX, final, err);
	run_lock(r->run);
	int rc = catalog_find(r->run->catalog, &r->run->settings.retention, r->selector, &e, err);
	uint64_t id = rc == 0 ? e->id : 0;
	run_unlock(r->run);
	TRY(rc);
	return adopt_checkpoint(r, id, err);
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
	r->can_fall_back = latest && !o.no_fallback && !r->run->opts.strict_latest;
	r->ring_bytes = o.ring_bytes;
	r->share_fn = o.share_reads;
	r->share_arg = o.share_arg;
	if (!latest)
		r->selector = bump_strndup(&r->options, o.selector, strlen(o.selector));
	if (!latest && !r->selector)
		return err_nomem(err, "restore");
	TRY(restore_copy_texts(r, "include", o.include, o.n_include, &r->include, &r->n_include, err));
	TRY(restore_copy_texts(r, "rename", o.rename, o.n_rename, &r->rules.rename, &r->rules.n_rename, err));
	TRY(restore_copy_texts(r, "cast", o.cast, o.n_cast, &r->rules.cast, &r->rules.n_cast, err));
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
	buf_printf(&fields, "\"to\":%" PRIu64 ",\"why\":", r->info.id);
	json_put_string(&fields, why, strlen(why));
	if (!fields.failed)
		events_add(&r->run->events, "fallback", buf_str(&fields));
}

/* A checkpoint that vanishes during selection was deleted by a process that had saved a newer one.
 * So it selects again. */
static int
select_one(struct pawl_restore *r, struct pawl_error *err)
{
	const size_t n_rows = r->fallbacks.n;
	for (unsigned looks = 0;; looks++) {
		const bool final = looks == RESTORE_LOOKS;
		r->has_vanished = false;
		int rc = take_selected(r, final, err);
		if (rc == 0 || final || !(r->has_vanished || (rc == PAWL_ENOTFOUND && looks == 0)))
			return rc;
		restore_cut_rows(&r->fallbacks, n_rows);
		if (looks > 0)
			clock_sleep_ms(looks < LOOK_PAUSE_MS ? looks : LOOK_PAUSE_MS);
		TRY(pawl_reload(r->run, err));
		mirrors_list(r->run, NULL);
	}
}

/* Announces rank 0's choice to all ranks. Returns rc. */
static int
announce(struct pawl_restore *r, int rc, struct pawl_error *err)
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
	int rc = adopt_checkpoint(r, id, err);
	if (rc != PAWL_ENOTFOUND)
		return rc;
	TRY(pawl_reload(r->run, err));
	mirrors_list(r->run, NULL);
	return adopt_checkpoint(r, id, err);
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
		announce(r, rc, &why);
	else
		r->owes_word = agree_listen(r->run, &id, NULL) == 0;
	restore_note_reason(r, rc, &why);
}

static int
restore_open(struct pawl *run, const struct pawl_restore_opts *opts, struct pawl_restore **ret, struct pawl_error *err)
{
	if (!run || !ret)
		return err_set(err, PAWL_EUSAGE, "restore: expected a run and a place for the handle, found NULL");
	PAWL_CLEAN(pawl_restore_close_clean) struct pawl_restore *r = mem_zalloc(1, sizeof *r);
	if (!r)
		return err_nomem(err, "restore");
	r->run = run;
	int rc = copy_options(r, opts, err);
	if (rc < 0) {
		refuse_options(r, rc, err);
		return rc;
	}
	TRY(run->modes.agree->is_led ? take_with_others(r, err) : announce(r, select_one(r, err), err));
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
reselect(struct pawl_restore *r, struct pawl_error *err)
{
	TRY(pawl_reload(r->run, err));
	return select_one(r, err);
}

static int
fall_back(struct pawl_restore *r, const struct pawl_error *why, struct pawl_error *err)
{
	const size_t before = r->fallbacks.n;
	const uint64_t id = r->info.id;
	if (why && why->code == PAWL_ENOTFOUND && r->n_looks++ < RESTORE_LOOKS)
		return r->run->modes.agree->is_led ? take_with_others(r, err) : announce(r, reselect(r, err), err);
	if (!r->can_fall_back)
		return err_set(err, PAWL_ENOTFOUND, "%s (falling back to an older checkpoint is off)",
		               why && why->message[0] ? why->message : r->info.name);
	TRY(note(r, r->info.name, why && why->message[0] ? why->message : "cancelled by the caller", err));
	int rc = 0;
	if (r->run->modes.agree->is_led)
		rc = take_with_others(r, err);
	else
		rc = announce(
			r,
			id == 0 ? err_set(err, PAWL_ENOTFOUND, "%s has no checkpoint that is older", r->run->home.root)
				: take_below(r, id - 1, true, err),
			err);
	if (rc == PAWL_ECORRUPT || rc == PAWL_ENOTFOUND) /* report the damage to the caller */
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

int
pawl_restore(struct pawl *run, const struct pawl_restore_opts *opts, const struct pawl_state *live,
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
		if (!err_is_damage(rc) && err)
			*err = why;
		if (fallback == PAWL_ENOTFOUND) { /* none is left, because of damage */
			if (err)
				err->code = rc;
			fallback = rc;
		}
		TRY(fallback);
	}
	if (ret)
		*ret = steal(&r);
	return 0;
}
