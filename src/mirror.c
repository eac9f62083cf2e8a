/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mirror: see mirror.h. Life of the mirrors of a run: opening, listing, the uploading threads, the end. Called by
 * run.c, save.c and restore.c; calls the stores, the catalog and mirror_upload.c. Promises P6, P16 (each upload has a
 * deadline, each pause an end); R94-R96.
 */
#include "mirror.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/pool.h"
#include "store/layer_tiers.h"

#define SAME_WAIT_MS 1000
#define LISTINGS 3u /* tries, where uploads make them old */

/* ------------------------------------------------------------------ opening */

/* An absolute path, so that the journal means the same wherever a process is started; URLs stay as they are. */
static int
settle_url(struct mirror *m, struct pawl_error *err)
{
	struct store *store = atomic_load(&m->store);
	struct store_caps caps;
	char *whole;
	if (!store)
		return 0;
	store_get_caps(store, &caps);
	whole = caps.local ? realpath(store->root, NULL) : NULL;
	if (whole) {
		mem_free(m->url);
		m->url = mem_strdup(whole);
		free(whole);
	}
	return m->url ? 0 : err_set(err, PAWL_ENOMEM, "mirror: out of memory");
}

static int
check_place(const struct mirrors *ms, size_t i, struct pawl_error *err)
{
	const char *url = ms->list[i].url, *root = ms->run->root;
	size_t len = strlen(root);
	if (strncmp(url, root, len) == 0 && (url[len] == 0 || url[len] == '/'))
		return err_set(err, PAWL_EUSAGE, "mirror %s: expected a place outside of the run %s", url, root);
	for (size_t k = 0; k < i; k++) {
		if (strcmp(ms->list[k].url, url) == 0)
			return err_set(err, PAWL_EUSAGE, "mirror %s is given twice", url);
	}
	return 0;
}

/* May the training go on without this mirror for now? What will not pass by itself is told at once. */
static bool
may_wait(const struct pawl *run, int code)
{
	const bool reads = run->opts.read_only || run->rank > 0;
	if (code == PAWL_ENOTFOUND && reads)
		return true; /* nothing has been copied there yet */
	return !run->opts.mirror_errors && (pawl_code_is_transient(code) || code == PAWL_EIO);
}

static int
open_one(struct mirrors *ms, size_t i, const char *url, struct pawl_error *err)
{
	struct mirror *m = &ms->list[i];
	struct pawl_error why = {0};
	m->run = ms->run;
	m->given = ms->run->opts.n_mirrors > 0;
	m->url = mem_strdup(url);
	if (!m->url)
		return err_set(err, PAWL_ENOMEM, "mirror: out of memory");
	if (m->given) {
		int rc = mirror_open_store(m, !ms->run->opts.read_only && ms->run->rank == 0, &why);
		if (rc < 0 && !may_wait(ms->run, rc))
			return err_give(err, rc, &why);
		if (rc < 0 && rc != PAWL_ENOTFOUND) {
			m->last = why;
			m->unseen = true;
			m->n_row++;
			run_warn(ms->run, &why);
		}
		TRY(settle_url(m, err));
		TRY(check_place(ms, i, err));
	}
	m->journal_key = mirror_journal_key(m->url);
	if (!m->journal_key)
		return err_set(err, PAWL_ENOMEM, "mirror: out of memory");
	mirror_journal_read(m);
	return 0;
}

int
mirrors_open(struct pawl *run, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	const char *const *urls = run->opts.mirrors;
	size_t n = run->opts.n_mirrors;
	run->reads = run->store;
	if (run->single_name || (n == 0 && (run->caps.is_private || run->rank > 0)))
		return 0;
	if (n == 0) {
		const char **found = NULL;
		TRY(mirror_journal_urls(run->store, &memory, &found, &n, err));
		urls = found;
	}
	if (n == 0)
		return 0;
	struct mirrors *ms = mem_zalloc(1, sizeof *ms + n * sizeof ms->list[0]);
	if (!ms)
		return err_set(err, PAWL_ENOMEM, "mirror: out of memory");
	ms->run = run;
	cond_init(&ms->changed);
	ms->wait_end_ms = INT64_MIN / 2;
	run->mirrors = ms;
	while (ms->n < n) { /* what has been begun is freed */
		size_t i = ms->n++;
		TRY(open_one(ms, i, urls[i], err));
	}
	if (run->opts.n_mirrors == 0)
		return 0;
	TRY(store_tiers_new(run->store, n, &run->reads, err));
	for (size_t i = 0; i < n; i++)
		store_tiers_set(run->reads, i, atomic_load(&ms->list[i].store));
	return 0;
}

int
mirrors_get_run_file(struct pawl *run, struct buf *out, struct pawl_error *err)
{
	const struct mirrors *ms = run->mirrors;
	int untold = 0;
	for (size_t i = 0; ms && i < ms->n; i++) {
		const struct mirror *m = &ms->list[i];
		struct store *store = atomic_load(&m->store);
		struct pawl_error why = m->last;
		if (!m->given)
			continue;
		int rc = store ? store_get(store, RUN_KEY, 65536, out, &why) : why.code;
		if (rc == 0 && store)
			return 0;
		if (rc < 0 && rc != PAWL_ENOTFOUND && untold == 0)
			untold = err_set(err, rc,
			                 "nothing has been saved here, and whether the mirror has something cannot be "
			                 "told: %s",
			                 why.message);
	}
	return untold ? untold : err_set(err, PAWL_ENOTFOUND, "no mirror has a run yet");
}

/* ------------------------------------------------------------------ listing */

/* A checkpoint in the mirror that may not be read, and may be newer than all that can be: going on from an older one
 * would go back. The run's lock is held. */
static int
check_denied(struct mirror *m, struct catalog *there, struct pawl_error *err)
{
	struct catalog *here = &m->run->catalog;
	const struct catalog_entry *mine = catalog_latest(here), *theirs = catalog_latest(there);
	const struct catalog_entry *e =
		catalog_denied(there, !mine || (theirs && theirs->id > mine->id) ? theirs : mine);
	if (!e || (e->id && catalog_get(here, e->id)))
		return 0;
	m->run->mirrors->is_denied = true;
	return err_set(err, PAWL_EAUTH, "mirror %s: %s cannot be read: %s", m->url, e->name, e->problem);
}

/* 1 = something has come there or gone from there meanwhile, so that the listing is old and says nothing. */
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
		rc = catalog_load(&there, store, NULL, run->opts.name_template, err);
	if (rc < 0) {
		catalog_clear(&there);
		return err_prefix(err, rc, "mirror %s", m->url);
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
		if (e->summary && strcmp(e->summary->run_id, run->run_id) == 0)
			rc = mirror_note_done(m, e->id, e->summary->token, false, err);
	}
	if (rc == 0)
		rc = catalog_take_far(&run->catalog, &there, store, run->run_id, err);
	run_unlock(run);
	run_edited(run);
	catalog_clear(&there);
	return rc;
}

/* What is known stays where there is always something new: it is not older than a listing. */
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
	for (size_t i = 0; ms && i < ms->n; i++) {
		struct pawl_error why = {0};
		int rc = list_one(&ms->list[i], &why);
		if (rc == 0)
			continue;
		run_warn(run, &why);
		if (first == 0)
			first = err_give(err, rc, &why);
	}
	return first;
}

/* ------------------------------------------------------------------ uploading */

/* The end of an upload; the run's lock is held. */
static void
end_upload(struct mirrors *ms, struct mirror *m)
{
	m->uploading = false;
	if (ms->run->reads != ms->run->store)
		store_tiers_set(ms->run->reads, (size_t)(m - ms->list), atomic_load(&m->store));
	pthread_cond_broadcast(&ms->changed);
}

/* A pin or score that was given after the upload; the run's lock is held, and given up meanwhile. false: nothing to do
 * now. */
static bool
serve_marks(struct mirror *m)
{
	struct pawl_error why = {0};
	const struct mirror_done *stale =
		clock_mono_ms() < m->marks_not_before_ms ? NULL : mirror_stale_marks(m, &m->run->catalog);
	if (!stale)
		return false;
	const uint64_t id = stale->id;
	run_unlock(m->run);
	int rc = mirror_put_marks(m, id, &why);
	run_lock(m->run);
	if (rc < 0) {
		m->n_failed++;
		m->n_row++;
		m->last = why;
		m->unseen = true;
		m->marks_failed_ms = clock_mono_ms();
		m->marks_not_before_ms = m->marks_failed_ms + mirror_pause_ms(2);
	}
	pthread_cond_broadcast(&m->run->mirrors->changed);
	return true;
}

/* Job: uploads what is to be uploaded, until told to stop. */
static void
serve(void *arg)
{
	struct mirror *m = arg;
	struct pawl *run = m->run;
	struct mirrors *ms = run->mirrors;
	run_lock(run);
	while (!atomic_load(&ms->stop)) {
		int64_t until;
		const struct catalog_entry *e = mirror_next(m, &run->catalog, clock_mono_ms(), &until);
		if (!e && serve_marks(m))
			continue;
		if (!e && clock_mono_ms() < m->marks_not_before_ms && (until < 0 || m->marks_not_before_ms < until))
			until = m->marks_not_before_ms;
		if (!e) {
			cond_wait_until(&ms->changed, &run->lock, until);
			continue;
		}
		const uint64_t id = e->id;
		m->uploading = true;
		m->meter.done_bytes = m->meter.total_bytes = 0;
		run_unlock(run);
		mirror_upload(m, id, &m->meter, NULL);
		run_lock(run);
		end_upload(ms, m);
	}
	run_unlock(run);
}

int
mirrors_start(struct pawl *run, struct pawl_error *err)
{
	struct mirrors *ms = run->mirrors;
	if (!ms)
		return 0;
	if (run->opts.n_mirrors == 0) { /* the training has none any more: what is here may go again */
		mirrors_free(ms);
		run->mirrors = NULL;
		run->catalog.mirrors = NULL;
		struct mirrors none = {.run = run};
		return mirror_journal_tidy(&none, err);
	}
	TRY(mirror_journal_tidy(ms, err));
	for (size_t i = 0; i < ms->n; i++) /* from here on nobody deletes what is not there */
		TRY(mirror_journal_write(&ms->list[i], err));
	store_remove_folder(run->store, ".pawl/repair", NULL); /* what a repair that was killed has left */
	TRY(pool_new("pawl-mirror", (unsigned)ms->n, &ms->pool, err));
	for (size_t i = 0; i < ms->n; i++)
		TRY(pool_add(ms->pool, NULL, serve, &ms->list[i], err));
	return 0;
}

void
mirrors_wake(struct pawl *run)
{
	if (!run->mirrors)
		return;
	run_lock(run);
	pthread_cond_broadcast(&run->mirrors->changed);
	run_unlock(run);
}

/* ------------------------------------------------------------------- waiting */

int
mirrors_take_error(struct pawl *run, struct pawl_error *err)
{
	struct mirrors *ms = run->mirrors;
	int code = 0;
	if (!ms)
		return 0;
	run_lock(run);
	struct mirror_try *failed = mirrors_unseen(ms);
	if (failed) {
		failed->seen = true;
		code = err_give(err, failed->why.code, &failed->why);
		if (run->opts.upload_error_budget) /* one error for all of a row that was passed over */
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
mirrors_wait(struct pawl *run, int64_t deadline_ms, struct pawl_error *err)
{
	struct mirrors *ms = run->mirrors;
	struct mirror_try *failed = NULL;
	int rc = 0;
	run_lock(run);
	if (clock_mono_ms() - ms->wait_end_ms >
	    SAME_WAIT_MS) { /* callers that wait in slices, without an answer, wait once */
		ms->wait_from_ms = clock_mono_ms();
		mirrors_hurry(ms);
		pthread_cond_broadcast(&ms->changed);
	}
	while (mirrors_outstanding(ms, ms->wait_from_ms, &failed) > 0 && rc == 0)
		rc = cond_wait_until(&ms->changed, &run->lock, deadline_ms);
	ms->wait_end_ms = rc == ETIMEDOUT ? clock_mono_ms() : INT64_MIN / 2;
	if (rc == ETIMEDOUT) {
		rc = 1;
	} else if (failed) {
		failed->seen = true;
		rc = err_give(err, failed->why.code, &failed->why);
	}
	run_unlock(run);
	return rc;
}

int
mirrors_stop(struct pawl *run, struct pawl_error *err)
{
	struct mirrors *ms = run->mirrors;
	int rc = 0;
	if (!ms || !ms->pool)
		return 0;
	if (!run->opts.leave_uploads)
		rc = mirrors_wait(run, -1, err);
	run_lock(run);
	atomic_store(&ms->stop, true);
	for (size_t i = 0; i < ms->n; i++)
		__atomic_store_n(&ms->list[i].meter.cancel, 1, __ATOMIC_RELAXED);
	pthread_cond_broadcast(&ms->changed);
	run_unlock(run);
	pool_free(ms->pool);
	ms->pool = NULL;
	return rc < 0 ? rc : mirrors_take_error(run, err);
}

void
mirrors_free(struct mirrors *ms)
{
	if (!ms)
		return;
	ms->run->opts.leave_uploads = 1;
	mirrors_stop(ms->run, NULL);
	if (ms->run->reads != ms->run->store)
		store_close(ms->run->reads);
	ms->run->reads = ms->run->store;
	for (size_t i = 0; i < ms->n; i++) {
		struct mirror *m = &ms->list[i];
		store_close(atomic_load(&m->store));
		mem_free(m->url);
		mem_free(m->journal_key);
		mem_free(m->done);
		mem_free(m->tries);
		mem_free(m->latest);
		mem_free(m->best);
	}
	pthread_cond_destroy(&ms->changed);
	mem_free(ms);
}
