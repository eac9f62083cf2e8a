/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mirror: see mirror.h. Life of the mirrors of a run: opening, the uploading threads, the end.
 * Promises P6, P16 (each upload has a deadline, each pause an end); R94-R96.
 */
#include "mirror/mirror.h"

#include <errno.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/pool.h"
#include "run/lease.h"
#include "store/layers/tiers/store_tiers.h"

#define SAME_WAIT_MS 1000

/* ------------------------------------------------------------------ opening */

/* Takes the path that the store resolved, so that the journal does not depend on the working
 * directory. URLs stay as they are. */
static int
resolve_url(struct mirror *m, struct pawl_error *err)
{
	struct store *store = atomic_load(&m->store);
	struct store_caps caps;
	if (!store)
		return 0;
	store_get_caps(store, &caps);
	if (caps.local) {
		mem_free(m->url);
		m->url = mem_strdup(store->root);
	}
	return m->url ? 0 : err_nomem(err, "mirror");
}

static int
check_place(const struct mirrors *ms, size_t i, struct pawl_error *err)
{
	const char *url = ms->list[i].url, *root = ms->run->home.root;
	size_t len = strlen(root);
	if (strncmp(url, root, len) == 0 && (url[len] == 0 || url[len] == '/'))
		return err_set(err, PAWL_EUSAGE, "mirror %s: expected a place outside of the run %s", url, root);
	for (size_t k = 0; k < i; k++) {
		if (strcmp(ms->list[k].url, url) == 0)
			return err_set(err, PAWL_EUSAGE, "mirror %s is given twice", url);
	}
	return 0;
}

/* May the training continue without this mirror for now? A permanent failure is an error at
 * once. */
static bool
may_wait(const struct pawl *run, int code)
{
	const bool reads = run->opts.read_only || run->group.rank > 0;
	if (code == PAWL_ENOTFOUND && reads)
		return true; /* nothing has been copied there yet */
	return !run->opts.uploads.fail_saves && (pawl_code_is_transient(code) || code == PAWL_EIO);
}

static int
open_one(struct mirrors *ms, size_t i, const char *url, struct pawl_error *err)
{
	struct mirror *m = &ms->list[i];
	struct pawl_error why = {0};
	m->run = ms->run;
	m->given = ms->run->opts.n_mirrors > 0;
	if (m->given) {
		m->options = &ms->run->opts.mirrors[i];
		if (m->options->every) {
			TRY(triggers_parse(m->options->every, &m->every, err));
			m->every_text = mem_strdup(m->options->every);
			if (!m->every_text)
				return err_nomem(err, "mirror");
		}
	}
	m->url = mem_strdup(url);
	if (!m->url)
		return err_nomem(err, "mirror");
	if (m->given) {
		int rc = mirror_open_store(m, !ms->run->opts.read_only && ms->run->group.rank == 0, &why);
		if (rc < 0 && !may_wait(ms->run, rc))
			return err_give(err, rc, &why);
		if (rc < 0 && rc != PAWL_ENOTFOUND) {
			m->last = why;
			m->unseen = true;
			m->n_row++;
			events_warn(&ms->run->events, &why);
		}
		TRY(resolve_url(m, err));
		TRY(check_place(ms, i, err));
	}
	m->journal_key = mirror_journal_key(m->url);
	if (!m->journal_key)
		return err_nomem(err, "mirror");
	mirror_journal_read(m);
	return 0;
}

/* The URLs of the run's mirrors: from the options, or else from its journals. */
static int
find_urls(struct pawl *run, struct bump *memory, const char *const **ret, size_t *ret_n, struct pawl_error *err)
{
	const struct pawl_open_opts *o = &run->opts;
	const char **found = bump_array(memory, o->n_mirrors + 1, sizeof(*found));

	if (!found)
		return err_nomem(err, "mirror");
	for (size_t i = 0; i < o->n_mirrors; i++)
		found[i] = o->mirrors[i].url;
	*ret_n = o->n_mirrors;
	if (o->n_mirrors == 0 && !run->home.caps.is_private && run->group.rank == 0 && run->catalog->kind->is_run)
		TRY(mirror_journal_urls(run->store, run->opts.read_only, memory, &found, ret_n, err));
	*ret = found;
	return 0;
}

int
mirrors_open(struct pawl *run, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	const char *const *urls;
	size_t n;
	run->home.reads = run->store;
	TRY(find_urls(run, &memory, &urls, &n, err));
	struct mirrors *ms = mem_zalloc(1, sizeof *ms + n * sizeof ms->list[0]);
	if (!ms)
		return err_nomem(err, "mirror");
	ms->run = run;
	pool_cond_init(&ms->changed);
	ms->wait_end_ms = INT64_MIN / 2;
	run->mirrors = ms;
	while (ms->n < n) { /* what has been begun is freed */
		size_t i = ms->n++;
		TRY(open_one(ms, i, urls[i], err));
	}
	if (run->opts.n_mirrors == 0)
		return 0;
	TRY(store_tiers_new(run->store, n, &run->home.reads, err));
	for (size_t i = 0; i < n; i++)
		store_tiers_set(run->home.reads, i, atomic_load(&ms->list[i].store));
	return 0;
}

int
mirrors_get_run_file(struct pawl *run, struct buf *out, struct pawl_error *err)
{
	const struct mirrors *ms = run->mirrors;
	int untold = 0;
	for (size_t i = 0; i < ms->n; i++) {
		const struct mirror *m = &ms->list[i];
		struct store *store = atomic_load(&m->store);
		struct pawl_error why = m->last;
		if (!m->given)
			continue;
		int rc = store ? store_get(store, RUN_KEY, 65536, out, &why) : why.code;
		if (rc == 0 && store)
			return 0;
		if (rc < 0 && rc != PAWL_ENOTFOUND && untold == 0)
			untold = err_set(err, rc, "nothing has been saved here, and the mirror cannot be read: %s",
			                 why.message);
	}
	return untold ? untold : err_set(err, PAWL_ENOTFOUND, "no mirror has a run yet");
}

/* ------------------------------------------------------------------ uploading */

/* The run's lock is held. */
static void
begin_upload(struct mirror *m)
{
	m->uploading = true;
	m->meter.done_bytes = m->meter.total_bytes = 0;
}

/* The end of an upload; the run's lock is held. */
static void
end_upload(struct mirrors *ms, struct mirror *m)
{
	m->uploading = false;
	if (ms->run->home.reads != ms->run->store)
		store_tiers_set(ms->run->home.reads, (size_t)(m - ms->list), atomic_load(&m->store));
	pthread_cond_broadcast(&ms->changed);
}

/* A pin or score that was given after the upload. The run's lock is held, and released meanwhile.
 * False: nothing to do now. */
static bool
serve_marks(struct mirror *m)
{
	struct pawl_error why = {0};
	const int64_t begin_ns = clock_mono_ns();
	const struct mirror_done *stale =
		clock_mono_ms() < m->marks_not_before_ms ? NULL : mirror_stale_marks(m, m->run->catalog);
	if (!stale)
		return false;
	const uint64_t id = stale->id;
	begin_upload(m); /* so a wait includes the pointers and the result */
	run_unlock(m->run);
	int rc = mirror_put_marks(m, id, &why);
	run_lock(m->run);
	if (rc < 0) {
		m->n_failed++;
		m->n_row++;
		m->last = why;
		m->unseen = true;
		m->marks_failed_ns = begin_ns;
		m->marks_not_before_ms = clock_mono_ms() + mirror_pause_ms(2);
		if (begin_ns < m->run->mirrors->wait_from_ns)
			mirrors_hurry(m->run->mirrors);
	} else {
		m->unseen = false;
		if (m->n_tries == 0) { /* no upload has failed since its last success */
			m->last = (struct pawl_error){0};
			m->n_row = 0;
		}
	}
	end_upload(m->run->mirrors, m);
	return true;
}

/* Job: uploads until it is stopped. */
static void
serve_mirror(void *arg)
{
	struct mirror *m = arg;
	struct pawl *run = m->run;
	struct mirrors *ms = run->mirrors;
	run_lock(run);
	while (!atomic_load(&ms->stop)) {
		int64_t until;
		mirror_skip_undue(m, run->catalog);
		const struct catalog_entry *e = mirror_next(m, run->catalog, clock_mono_ms(), &until);
		if (!e && serve_marks(m))
			continue;
		if (!e && clock_mono_ms() < m->marks_not_before_ms && (until < 0 || m->marks_not_before_ms < until))
			until = m->marks_not_before_ms;
		if (!e) {
			pool_cond_wait_until(&ms->changed, &run->guard.lock, until);
			continue;
		}
		const uint64_t id = e->id;
		begin_upload(m);
		run_unlock(run);
		mirror_upload(m, id, &m->meter, NULL);
		run_lock(run);
		end_upload(ms, m);
	}
	run_unlock(run);
}

static void
drop_all(struct mirrors *ms)
{
	for (size_t i = 0; i < ms->n; i++) {
		struct mirror *m = &ms->list[i];
		store_close(atomic_load(&m->store));
		mem_free(m->url);
		mem_free(m->journal_key);
		mem_free(m->every_text);
		mem_free(m->done);
		mem_free(m->tries);
		mem_free(m->latest);
		mem_free(m->best);
	}
	ms->n = 0;
}

int
mirrors_start(struct pawl *run, struct pawl_error *err)
{
	struct mirrors *ms = run->mirrors;
	if (ms->n == 0)
		return 0;
	if (run->opts.n_mirrors == 0) { /* the training no longer has mirrors: retention may delete local checkpoints */
		drop_all(ms);
		return mirror_journal_tidy(ms, err);
	}
	TRY(mirror_journal_tidy(ms, err));
	for (size_t i = 0; i < ms->n; i++) /* from here on no process deletes what the mirrors lack */
		TRY(mirror_journal_write(&ms->list[i], err));
	store_remove_folder(run->store, ".pawl/repair", NULL); /* left by a repair that was killed */
	TRY(pool_new("pawl-mirror", (unsigned)ms->n, &ms->pool, err));
	for (size_t i = 0; i < ms->n; i++)
		TRY(pool_add(ms->pool, NULL, serve_mirror, &ms->list[i], err));
	return 0;
}

/* ------------------------------------------------------------------- waiting */

int
mirrors_wait(struct pawl *run, int64_t deadline_ms, struct pawl_error *err)
{
	struct mirrors *ms = run->mirrors;
	struct mirror_try *failed = NULL;
	int rc = 0;
	run_lock(run);
	if (clock_mono_ms() - ms->wait_end_ms >
	    SAME_WAIT_MS) { /* callers that wait in slices, without an answer, wait once */
		ms->wait_from_ns = clock_mono_ns();
		mirrors_hurry(ms);
		pthread_cond_broadcast(&ms->changed);
	}
	while (mirrors_outstanding(ms, ms->wait_from_ns, &failed) > 0 && rc == 0)
		rc = pool_cond_wait_until(&ms->changed, &run->guard.lock, deadline_ms);
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

/* What was not due since the last upload. Not by a process that has lost the run (P10). */
static void
write_journals(struct pawl *run)
{
	for (size_t i = 0; i < run->mirrors->n; i++) {
		struct mirror *m = &run->mirrors->list[i];
		if (m->n_written != m->n_changes && (!run->self.lease || lease_check(run->self.lease, NULL) == 0))
			mirror_journal_write(m, NULL);
	}
}

int
mirrors_stop(struct pawl *run, struct pawl_error *err)
{
	struct mirrors *ms = run->mirrors;
	int rc = 0;
	if (!ms->pool)
		return 0;
	if (!run->opts.uploads.leave_uploads)
		rc = mirrors_wait(run, -1, err);
	run_lock(run);
	atomic_store(&ms->stop, true);
	for (size_t i = 0; i < ms->n; i++)
		__atomic_store_n(&ms->list[i].meter.cancel, 1, __ATOMIC_RELAXED);
	pthread_cond_broadcast(&ms->changed);
	run_unlock(run);
	pool_free(ms->pool);
	ms->pool = NULL;
	write_journals(run);
	return rc < 0 ? rc : mirrors_take_error(run, err);
}

void
mirrors_free(struct mirrors *ms)
{
	if (!ms)
		return;
	ms->run->opts.uploads.leave_uploads = 1;
	mirrors_stop(ms->run, NULL);
	if (ms->run->home.reads != ms->run->store)
		store_close(ms->run->home.reads);
	ms->run->home.reads = ms->run->store;
	drop_all(ms);
	pthread_cond_destroy(&ms->changed);
	mem_free(ms);
}
