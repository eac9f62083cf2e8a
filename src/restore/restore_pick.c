/* SPDX-License-Identifier: Apache-2.0 */
/* restore_pick: see restore_pick.h. Promises P1 (damage is always reported), P6 (the hold), P12. */
#include "restore/restore_pick.h"

#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "catalog/hold_root.h"
#include "catalog/mirrors.h"
#include "restore/restore_gone.h"

#define LOOK_PAUSE_MS 20

int
restore_pick_note(struct pawl_restore *r, const char *name, const char *why, struct pawl_error *err)
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
	struct store *at = NULL;
	int rc = mirrors_manifest(run, id, false, ret, err);
	if (rc != PAWL_ENOTFOUND || !hold)
		return rc;
	run_lock(run);
	const struct catalog_entry *e = catalog_get(run->catalog, id);
	if (e) {
		name = mem_strdup(e->name);
		at = e->at;
	}
	run_unlock(run);
	int back = name ? catalog_wait_put_back(run->catalog, at, name, err) : 0;

	if (back > 0)
		return mirrors_manifest(run, id, false, ret, err);
	return back < 0 ? back : rc;
}

/* A checkpoint that can be read, until the handle takes it. */
struct picked {
	struct restore_rows rows; /* rules that match no path */
	struct store *at;
	char *folder;
	struct bump memory; /* of info */
	struct pawl_info info;
	struct manifest *manifest;
	struct pawl_hold *hold; /* NULL: none can be made, as in read-only folders; a deletion is noticed then */
};

static void
picked_clear(struct picked *p)
{
	restore_rows_clear(&p->rows);
	mem_free(p->folder);
	bump_clear(&p->memory);
	manifest_free(p->manifest);
	pawl_hold_close(p->hold);
}

static int
read_picked(struct pawl_restore *r, uint64_t id, struct picked *p, struct pawl_error *err)
{
	struct pawl *run = r->run;
	int rc = hold_for_reading(run, id, &p->hold, err);
	if (rc != PAWL_ENOTFOUND || run->mirrors->n > 0) /* else it was deleted */
		rc = read_manifest(run, id, p->hold, &p->manifest, err);
	if (rc == 0)
		rc = restore_resolve(r, p->manifest, &p->rows, err);
	r->has_vanished = rc == PAWL_ENOTFOUND || (rc == PAWL_ECONFLICT && !run->home.foreign);
	return rc;
}

/* The run's lock is held. */
static int
describe_picked(struct pawl_restore *r, uint64_t id, struct picked *p, struct pawl_error *err)
{
	const struct pawl *run = r->run;
	PAWL_CLEAN(buf_clear) struct buf folder = {0};
	const struct catalog_entry *e = catalog_get(run->catalog, id);
	r->has_vanished = !e;
	if (!e)
		return err_set(err, PAWL_ENOTFOUND, "%s no longer has a checkpoint with id %" PRIu64, run->home.root,
		               id);
	p->at = e->at;
	TRY(catalog_info(run->catalog, e, &run->settings.retention, &p->memory, &p->info, err));
	catalog_key(run->catalog, e->name, &folder);
	p->folder = mem_strdup(buf_str(&folder));
	return folder.failed || !p->folder ? err_nomem(err, e->name) : 0;
}

/* Gives the handle the checkpoint. Afterwards *p has what the handle had. */
static void
take_picked(struct pawl_restore *r, struct picked *p)
{
	restore_cut_bindings(r, 0);
	const struct picked old = {.rows = r->report,
	                           .folder = r->folder,
	                           .memory = r->info_memory,
	                           .manifest = r->manifest,
	                           .hold = r->hold};
	r->report = p->rows;
	r->n_unused_rules = p->rows.n;
	r->folder = p->folder;
	r->at = p->at;
	r->info_memory = p->memory;
	r->info = p->info;
	r->manifest = p->manifest;
	r->hold = p->hold;
	*p = old;
}

int
restore_pick_id(struct pawl_restore *r, uint64_t id, struct pawl_error *err)
{
	PAWL_CLEAN(picked_clear) struct picked picked = {0};
	TRY(read_picked(r, id, &picked, err));
	run_lock(r->run);
	int rc = describe_picked(r, id, &picked, err);
	run_unlock(r->run);
	if (rc == 0)
		take_picked(r, &picked);
	return rc;
}

/* What pick_below found. */
struct candidate {
	uint64_t id; /* 0 = none */
	char *name;
	char *damage; /* the first bad one that was skipped, and why; NULL = none */
	int code;     /* of the damage */
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
 * as damage. In a bucket it is an unfinished save, and not noted. One that may be intact is
 * refused. */
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
		if (e->id > most || is_elsewhere(run->catalog, e) || catalog_is_unfinished(run->catalog, e))
			continue;
		if (e->summary) {
			ret->id = e->id;
			mem_free(ret->name);
			ret->name = mem_strdup(e->name);
			lacking = !ret->name;
		} else if (catalog_may_be_intact(e)) {
			rc = catalog_refuse(e, err);
		} else {
			rc = restore_pick_note(r, e->name, e->problem, err);
			if (!ret->damage && e->code != PAWL_ENOTFOUND) {
				ret->damage = mem_printf("%s: %s", e->name, e->problem);
				ret->code = e->code;
				lacking = !ret->damage;
			}
		}
	}
	run_unlock(run);
	return rc == 0 && lacking ? err_nomem(err, "restore") : rc;
}

int
restore_pick_below(struct pawl_restore *r, uint64_t most, bool final, struct pawl_error *err)
{
	PAWL_CLEAN(candidate_clear) struct candidate c = {0};
	for (;;) {
		struct pawl_error why = {0};
		TRY(pick_below(r, most, &c, err));
		if (c.damage && !r->can_fall_back)
			return err_set(err, c.code, "%s (falling back to an older checkpoint is off)", c.damage);
		if (c.id == 0 && c.damage)
			return err_set(err, c.code, "no checkpoint can be used; the newest: %s", c.damage);
		if (c.id == 0)
			return err_set(err, PAWL_ENOTFOUND, "%s has no checkpoint%s", r->run->home.root,
			               most < UINT64_MAX ? " that is older" : "");
		int rc = restore_pick_id(r, c.id, &why);
		if (rc == 0)
			return 0;
		if (!(err_is_damage(rc) || r->has_vanished) || !r->can_fall_back || (r->has_vanished && !final)) {
			if (err)
				*err = why;
			return rc;
		}
		TRY(restore_pick_note(r, c.name, why.message, err));
		if (!c.damage && !r->has_vanished) {
			c.damage = mem_strdup(why.message);
			c.code = rc;
		}
		most = c.id - 1;
	}
}

static int
take_selected(struct pawl_restore *r, bool final, struct pawl_error *err)
{
	struct catalog_entry *e;
	if (!r->selector)
		return restore_pick_below(r, UINT64_MAX, final, err);
	run_lock(r->run);
	int rc = catalog_find(r->run->catalog, &r->run->settings.retention, r->selector, &e, err);
	uint64_t id = rc == 0 ? e->id : 0;
	run_unlock(r->run);
	TRY(rc);
	return restore_pick_id(r, id, err);
}

int
restore_pick(struct pawl_restore *r, struct pawl_error *err)
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
