/* SPDX-License-Identifier: Apache-2.0 */
/* mirrors: see mirrors.h. Lists the mirrors; reads a manifest from the run's own store or from a
 * mirror. Promises P2, P6, P14. */
#include "catalog/mirrors.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/bump.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"

#define RUN_FILE_MAX 65536u
#define LISTINGS 3u /* tries, since uploads make a listing out of date */

static int
run_of(const struct buf *text, char ret[33], struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct json *root;
	const char *id;
	TRY(json_parse(RUN_KEY, text->ptr, text->len, NULL, &memory, &root, err));
	TRY(json_get_str(RUN_KEY, root, "run", &id, err));
	snprintf(ret, 33, "%s", id);
	return 0;
}

int
mirror_check_owner(const struct mirror *m, struct store *store, struct buf *ret_text, struct pawl_error *err)
{
	struct pawl_error why = {0};
	char id[33] = "";
	int rc = store_get(store, RUN_KEY, RUN_FILE_MAX, ret_text, &why);
	if (rc < 0 && rc != PAWL_ENOTFOUND)
		return err_give(err, rc, &why);
	if (rc == 0 && run_of(ret_text, id, NULL) == 0 && strcmp(id, m->run->self.run_id) != 0)
		return err_set(err, PAWL_EEXISTS, "%s holds another run (%s, this one is %s); choose another place",
		               m->url, id, m->run->self.run_id);
	return 0;
}

/* Refuses if the mirror has a checkpoint that cannot be read and may be newer than all others.
 * Continuing from an older one would lose progress. The run's lock is held. */
static int
check_denied(struct mirror *m, struct catalog *there, struct pawl_error *err)
{
	struct catalog *here = m->run->catalog;
	const struct catalog_entry *mine = catalog_latest(here), *theirs = catalog_latest(there);
	const struct catalog_entry *e =
		catalog_denied(there, !mine || (theirs && theirs->id > mine->id) ? theirs : mine);
	if (!e || (e->id && catalog_get(here, e->id)))
		return 0;
	m->run->mirrors->is_denied = true;
	return err_prefix(err, catalog_refuse(e, err), "mirror %s", m->url);
}

int
mirrors_prefix(const char *place, int rc, struct pawl_error *err)
{
	const size_t len = strlen(place);

	if (err && strncmp(err->message, place, len) == 0 && strncmp(err->message + len, ": ", 2) == 0)
		memmove(err->message, err->message + len + 2, strlen(err->message + len + 2) + 1);
	return err_prefix(err, rc, "mirror %s", place);
}

/* 1 = the mirror changed meanwhile, so the listing is out of date. */
static int
list_once(struct mirror *m, struct pawl_error *err)
{
	struct pawl *run = m->run;
	struct store *store = atomic_load(&m->store);
	struct catalog there = {0};
	if (!m->given)
		return 0;
	if (!store)
		return err_give(err, m->last.code, &m->last);
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	run_lock(run);
	const uint64_t began_at = m->n_changes;
	run_unlock(run);
	int rc = mirror_check_owner(m, store, &text, err);
	if (rc == 0)
		rc = catalog_load(&there, store, NULL, run->opts.naming.name_template, err);
	if (rc < 0) {
		catalog_clear(&there);
		return mirrors_prefix(m->url, rc, err);
	}
	run_edit(run);
	run_lock(run);
	if (m->n_changes != began_at) {
		run_unlock(run);
		run_edited(run);
		catalog_clear(&there);
		return 1;
	}
	rc = check_denied(m, &there, err);
	if (rc == 0)
		mirror_forget_done(m);
	for (size_t i = 0; i < there.n && rc == 0; i++) {
		const struct catalog_entry *e = &there.entries[i];
		if (e->summary && strcmp(e->summary->run_id, run->self.run_id) == 0)
			rc = mirror_note_done(m, e->id, e->summary->token, false, err);
	}
	if (rc == 0)
		rc = catalog_take_far(run->catalog, &there, store, run->self.run_id, err);
	run_unlock(run);
	run_edited(run);
	catalog_clear(&there);
	return rc;
}

/* If the mirror changes every time, the known contents stay: they are as new as a listing. */
static int
list_one(struct mirror *m, struct pawl_error *err)
{
	int rc = 1;
	for (unsigned n = 0; n < LISTINGS && rc == 1; n++)
		rc = list_once(m, err);
	return rc < 0 ? rc : 0;
}

int
mirrors_list(struct pawl *run, struct pawl_error *err)
{
	struct mirrors *ms = run->mirrors;
	int first = 0;
	for (size_t i = 0; i < ms->n; i++) {
		struct pawl_error why = {0};
		int rc = list_one(&ms->list[i], &why);
		if (rc == 0)
			continue;
		events_warn(&run->events, &why);
		if (first == 0)
			first = err_give(err, rc, &why);
	}
	return first;
}

void
mirrors_wake(struct pawl *run)
{
	run_lock(run);
	for (size_t i = 0; i < run->mirrors->n; i++)
		mirror_skip_undue(&run->mirrors->list[i], run->catalog);
	pthread_cond_broadcast(&run->mirrors->changed);
	run_unlock(run);
}

int
mirrors_take_error(struct pawl *run, struct pawl_error *err)
{
	struct mirrors *ms = run->mirrors;
	int code = 0;
	run_lock(run);
	struct mirror_try *failed = mirrors_unseen(ms);
	if (failed) {
		failed->seen = true;
		code = err_give(err, failed->why.code, &failed->why);
		if (run->opts.uploads.error_budget) /* one error for all failures in a row */
			mirrors_see_all(ms);
	}
	for (size_t i = 0; i < ms->n && code == 0; i++) {
		if (!ms->list[i].unseen || ms->list[i].last.code == 0 || !mirror_is_over_budget(&ms->list[i]))
			continue;
		ms->list[i].unseen = false;
		code = err_give(err, ms->list[i].last.code, &ms->list[i].last);
	}
	run_unlock(run);
	return code;
}

int
mirrors_take_pending(struct pawl *run, struct pawl_error *err)
{
	int rc = run_saves_take_failed(&run->saves, err);

	return rc == 0 && run->opts.uploads.fail_saves ? mirrors_take_error(run, err) : rc;
}

/* An entry as it was while the run's lock was held, and the stores that have it, the run's own
 * first. */
struct known {
	struct catalog_entry entry;
	struct manifest summary; /* its id and token, where the entry has a summary */
	struct store *stores[1 + MIRROR_MAX];
	size_t n;
};

static void
known_clear(struct known *k)
{
	mem_free(k->entry.name);
}

static int
known_fill(struct pawl *run, uint64_t id, struct known *k, struct pawl_error *err)
{
	const struct catalog_entry *e = catalog_get(run->catalog, id);
	if (!e)
		return err_set(err, PAWL_ENOTFOUND, "%s has no checkpoint with id %" PRIu64, run->home.root, id);
	k->entry = (struct catalog_entry){.name = mem_strdup(e->name), .id = e->id};
	k->stores[k->n++] = e->at; /* NULL = the run's own */
	if (e->summary) {
		k->summary.id = e->summary->id;
		memcpy(k->summary.token, e->summary->token, sizeof k->summary.token);
		k->entry.summary = &k->summary;
	}
	if (!k->entry.name)
		return err_nomem(err, run->home.root);
	for (size_t i = 0; i < run->mirrors->n; i++) {
		struct store *store = mirrors_store(run->mirrors, i, e);
		if (store)
			k->stores[k->n++] = store;
	}
	return 0;
}

int
mirrors_manifest(struct pawl *run, uint64_t id, bool summary, struct manifest **ret, struct pawl_error *err)
{
	PAWL_CLEAN(known_clear) struct known k = {0};
	struct pawl_error first = {0}, own;
	run_lock(run);
	int rc = known_fill(run, id, &k, err);
	run_unlock(run);
	TRY(rc);
	for (size_t i = 0; i < k.n; i++) {
		own = (struct pawl_error){0};
		k.entry.at = k.stores[i];
		rc = (summary ? catalog_summary : catalog_manifest)(run->catalog, &k.entry, ret, &own);
		if (rc == 0)
			return 0;
		if (i == 0)
			first = own;
		if (i == 0 && !err_is_damage(rc))
			break;
	}
	return err_give(err, first.code, &first);
}
