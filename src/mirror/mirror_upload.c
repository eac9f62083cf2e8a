/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mirror_upload: copies one checkpoint to one mirror, then its pins and late scores, pointers and
 * retention. The run's lock is not held. Promises P6 (the source is held; the mirror's retention
 * spares what its rules keep, and the run's best and latest), P7, P12, P14, P15; R89.
 */
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/hidden.h"
#include "base/json.h"
#include "catalog/holds.h"
#include "catalog/pins.h"
#include "copy/copy.h"
#include "keep/apply_retention.h"
#include "keep/pointers.h"
#include "mirror/mirror.h"
#include "run/lease.h"

#define RUN_FILE_MAX 65536u

/* What is to be uploaded, as it was when the lock was held. */
struct parcel {
	uint64_t id;
	int64_t step;
	char token[33];
	char *name, *like; /* like: NULL, or another checkpoint in the mirror */
	bool pinned;
	struct pawl_metric *late; /* one block */
	size_t n_late;
	int64_t begin_ns; /* of the upload */
};

static void
parcel_clear(struct parcel *p)
{
	mem_free(p->name);
	mem_free(p->like);
	mem_free(p->late);
}

/* ---------------------------------------------------------------- preparing */

/* The mirror's nearest checkpoint before this one, or else after it: it shares most of its data. */
static const struct catalog_entry *
find_like(const struct mirror *m, const struct catalog *c, uint64_t id)
{
	const struct catalog_entry *found = NULL;
	for (size_t i = 0; i < c->n; i++) {
		const struct catalog_entry *e = &c->entries[i];
		if (e->id != id && e->summary && mirror_has(m, e->id, e->summary->token) && (!found || e->id < id))
			found = e;
	}
	return found;
}

/* 1 = packed, 0 = the run's own store no longer has it. */
static int
pack_parcel(const struct mirror *m, uint64_t id, struct parcel *p, struct pawl_error *err)
{
	struct catalog *c = m->run->catalog;
	const struct catalog_entry *e = catalog_get(c, id);
	const struct catalog_entry *like = find_like(m, c, id);
	if (!e || e->at)
		return 0;
	p->id = id;
	p->step = e->summary->step;
	memcpy(p->token, e->summary->token, sizeof p->token);
	p->pinned = e->pinned;
	p->name = mem_strdup(e->name);
	p->like = like ? mem_printf(CATALOG_FOLDER "/%s", like->name) : NULL;
	PAWL_FREE struct pawl_metric *late = mem_zalloc(e->n_metrics, sizeof *late);
	if (!p->name || (like && !p->like) || !late)
		return err_nomem(err, "mirror");
	size_t n = pins_late(e->summary->metrics, e->summary->n_metrics, e->metrics, e->n_metrics, late);
	p->late = pins_overlay(late, n, NULL, 0, &p->n_late);
	return p->late ? 1 : err_nomem(err, "mirror");
}

/* The text between "://" and the last '@' may be a password, so it is not shown (P18). */
static int
refuse_store(const struct mirror *m, int rc, struct pawl_error *err)
{
	const char *begin = strstr(m->url, "://");
	begin = begin ? begin + 3 : m->url;
	const char *at = begin > m->url ? strrchr(begin, '@') : NULL;
	PAWL_FREE char *shown = mem_printf("%.*s%s", (int)(begin - m->url), m->url, at ? at + 1 : begin);
	return shown ? mirrors_prefix(shown, rc, err) : err_nomem(err, "mirror");
}

int
mirror_open_store(struct mirror *m, bool create, struct pawl_error *err)
{
	struct store *s = atomic_load(&m->store);
	if (s)
		return 0;
	int rc = store_open_with(m->run->opts.io.stores, m->url, create, m->run->opts.io.no_direct, &s, err);
	if (rc < 0)
		return refuse_store(m, rc, err);
	rc = store_limit(&s, m->run->opts.uploads.bytes_per_second, 0, &m->meter, err);
	if (rc < 0) {
		store_close(s);
		return rc;
	}
	atomic_store(&m->store, s);
	return 0;
}

/* The mirror belongs to this run, or does from now on. */
static int
check_identity(struct mirror *m, struct store *store, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf mine = {0}, there = {0};
	if (m->is_ours)
		return 0;
	TRY(store_get(m->run->store, RUN_KEY, RUN_FILE_MAX, &mine, err));
	TRY(mirror_check_owner(m, store, &there, err));
	if (there.len != mine.len || memcmp(there.ptr, mine.ptr, mine.len) != 0)
		TRY(store_put_bytes(store, RUN_KEY, mine.ptr, mine.len, STORE_DURABLE, err));
	m->is_ours = true;
	return 0;
}

/* ----------------------------------------------------------------- pointers */

/* The mirror's checkpoints, oldest first; the run's lock is held. names borrow from the catalog. */
static int
list_there(const struct mirror *m, struct retain_item **ret, const char ***ret_names, size_t *ret_n,
           struct pawl_error *err)
{
	const struct catalog *c = m->run->catalog;
	PAWL_FREE struct retain_item *items = mem_zalloc(c->n, sizeof *items);
	PAWL_FREE const char **names = mem_zalloc(c->n, sizeof *names);
	size_t n = 0;
	if (!items || !names)
		return err_nomem(err, "mirror");
	for (size_t i = 0; i < c->n; i++) {
		const struct catalog_entry *e = &c->entries[i];
		if (!e->summary || !mirror_has(m, e->id, e->summary->token))
			continue;
		names[n] = e->name;
		items[n++] = catalog_retain_item(e);
	}
	*ret = steal(&items);
	*ret_names = steal(&names);
	*ret_n = n;
	return 0;
}

static int
put_pointer(struct store *store, const char *pointer, const char *name, char **known, struct pawl_error *err)
{
	PAWL_FREE char *target = NULL;
	if (!name || (*known && strcmp(*known, name) == 0))
		return 0;
	target = mem_printf(CATALOG_FOLDER "/%s", name);
	if (!target)
		return err_nomem(err, "mirror");
	TRY(store_pointer(store, pointer, target, err));
	mem_free(*known);
	*known = mem_strdup(name);
	return 0;
}

/* R89: pointers lead only to checkpoints that are verified in the mirror. */
static int
point_to(struct mirror *m, struct store *store, struct pawl_error *err)
{
	PAWL_FREE struct retain_item *items = NULL;
	PAWL_FREE const char **names = NULL;
	PAWL_FREE char *latest = NULL, *best = NULL;
	size_t n = 0;
	run_lock(m->run);
	int rc = list_there(m, &items, &names, &n, err);
	if (rc == 0 && n) {
		size_t at =
			m->run->settings.retention.n_scores ? retain_best(&m->run->settings.retention, items, n) : n;
		latest = mem_strdup(names[n - 1]);
		best = at < n ? mem_strdup(names[at]) : NULL;
	}
	run_unlock(m->run);
	TRY(rc);
	TRY(put_pointer(store, "latest", latest, &m->latest, err));
	return put_pointer(store, "best", best, &m->best, err);
}

/* ----------------------------------------------------- retention in the mirror */

/* P6: other processes use the mirror as a run of its own. Checkpoints that they hold or pin there
 * stay. */
static int
is_spared(struct store *store, const char *name, bool *ret, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct hold *holds = NULL;
	struct pin_mark *mark = NULL;
	size_t n_holds = 0, n_marks = 0;
	TRY(holds_read(store, &memory, &holds, &n_holds, err));
	TRY(pins_read(store, &name, 1, &memory, &mark, &n_marks, err));
	*ret = n_marks && mark[0].pinned;
	for (size_t i = 0; i < n_holds && !*ret; i++)
		*ret = holds[i].alive && strcmp(holds[i].name, name) == 0;
	return 0;
}

/* Its manifest in the mirror is gone, and with it the checkpoint. */
static void
note_removed(struct mirror *m, struct store *store, const char *name)
{
	run_edit(m->run);
	run_lock(m->run);
	struct catalog *c = m->run->catalog;
	for (size_t i = 0; i < c->n; i++) {
		struct catalog_entry *e = &c->entries[i];
		if (!e->summary || strcmp(e->name, name) != 0)
			continue;
		mirror_note_done(m, e->id, e->summary->token, true, NULL); /* its row exists, so no memory is needed */
		if (e->at == store && !mirrors_keep(m->run->mirrors, e))
			catalog_drop(c, e->id);
		break;
	}
	run_unlock(m->run);
	run_edited(m->run);
}

/* Hides the folder. A reader that made a hold on it meanwhile, or a process that pinned it, gets it
 * back (P6). They make their hold or mark first and look for the manifest afterwards. */
static int
hide_folder(struct store *store, const char *name, const char *folder, const char *hidden, bool *ret_spared,
            struct pawl_error *err)
{
	TRY(store_publish(store, folder, hidden, err));
	int rc = is_spared(store, name, ret_spared, err);
	if (rc == 0 && !*ret_spared)
		return 0;
	int back = store_publish(store, hidden, folder, rc == 0 ? err : NULL);
	if (back < 0)
		return err_prefix(err, rc < 0 ? rc : back, "%s: %s is still needed and remains in %s; rename it",
		                  store->root, folder, hidden);
	return rc;
}

/* The same where folders cannot be renamed: removes the manifest, and may put it back. */
static int
take_manifest(struct store *store, const char *name, const char *key, bool *ret_spared, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	struct store_caps caps;
	int rc = store_get(store, key, MANIFEST_MAX_BYTES, &text, err);
	if (rc == PAWL_ENOTFOUND)
		return 0;
	TRY(rc);
	TRY(store_remove(store, key, err));
	rc = is_spared(store, name, ret_spared, err);
	if (rc == 0 && !*ret_spared)
		return 0;
	store_get_caps(store, &caps);
	const int flags = STORE_DURABLE | (caps.exclusive_put ? STORE_EXCLUSIVE : 0);
	int put = store_put_bytes(store, key, text.ptr, text.len, flags, rc == 0 ? err : NULL);
	return rc < 0 ? rc : put;
}

/* Ends a checkpoint of the mirror, manifest first (P7). */
static int
remove_there(struct mirror *m, struct store *store, const char *name, struct pawl_error *err)
{
	struct store_caps caps;
	bool spared = false;
	char hidden[HIDDEN_NAME_BYTES];
	PAWL_FREE char *folder = mem_printf(CATALOG_FOLDER "/%s", name);
	PAWL_FREE char *mark = mem_printf(PINS_FOLDER "/%s.json", name);
	PAWL_FREE char *other = NULL;
	TRY(hidden_name(name, HIDDEN_PARTIAL, hidden, err));
	store_get_caps(store, &caps);
	other = caps.rename_folder ? mem_printf(CATALOG_FOLDER "/%s", hidden)
	                           : mem_printf(CATALOG_FOLDER "/%s/" MANIFEST_NAME, name);
	if (!folder || !mark || !other)
		return err_nomem(err, "mirror");
	TRY(is_spared(store, name, &spared, err));
	if (spared)
		return 0;
	TRY(caps.rename_folder ? hide_folder(store, name, folder, other, &spared, err)
	                       : take_manifest(store, name, other, &spared, err));
	if (spared)
		return 0;
	note_removed(m, store, name);
	store_remove(store, mark, NULL);
	return store_remove_folder(store, caps.rename_folder ? other : folder, err);
}

static int
choose_doomed(struct mirror *m, struct bump *memory, const char ***ret, size_t *ret_n, struct pawl_error *err)
{
	PAWL_FREE struct retain_item *items = NULL;
	PAWL_FREE const char **names = NULL;
	struct pawl_retention policy = *m->options->retention;
	size_t n;
	if (!policy.n_scores && m->run->settings.retention.n_scores) { /* the best is the best of the training */
		policy.score_attributes = m->run->settings.retention.score_attributes;
		policy.score_orders = m->run->settings.retention.score_orders;
		policy.n_scores = m->run->settings.retention.n_scores;
		retain_count_newest(&policy);
	}
	TRY(list_there(m, &items, &names, &n, err));
	PAWL_FREE struct retain_decision *decisions = mem_zalloc(n, sizeof *decisions);
	const char **doomed = bump_array(memory, n + 1, sizeof *doomed);
	if (!decisions || !doomed)
		return err_nomem(err, "mirror");
	retain_decide(&policy, items, n, (double)clock_unix_ns() / 1e9, decisions);
	for (size_t i = 0; i < n; i++) {
		if (decisions[i].keep)
			continue;
		doomed[*ret_n] = bump_strndup(memory, names[i], strlen(names[i]));
		if (!doomed[(*ret_n)++])
			return err_nomem(err, "mirror");
	}
	*ret = doomed;
	return 0;
}

static int
retain_there(struct mirror *m, struct store *store, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	const char **doomed = NULL;
	size_t n = 0;
	if (!m->options || !m->options->retention)
		return 0; /* R96 */
	run_lock(m->run);
	int rc = choose_doomed(m, &memory, &doomed, &n, err);
	run_unlock(m->run);
	TRY(rc);
	for (size_t i = 0; i < n && rc == 0; i++)
		rc = remove_there(m, store, doomed[i], err);
	int journalled = n ? mirror_journal_write(m, rc < 0 ? NULL : err) : 0; /* what is retired, and at once */
	return rc < 0 ? rc : journalled;
}

/* ------------------------------------------------------------------- upload */

static void
report_upload(struct mirror *m, const struct parcel *p, const struct copy_result *r, const struct pawl_error *why)
{
	PAWL_CLEAN(buf_clear) struct buf fields = {0};
	json_add_u64(&fields, "id", p->id);
	json_add_i64(&fields, "step", p->step);
	json_add_text(&fields, "name", p->name);
	json_add_text(&fields, "mirror", m->url);
	buf_printf(&fields, ",\"seconds\":%.6f", (double)(clock_mono_ns() - p->begin_ns) / 1e9);
	if (why) {
		events_put_error(&fields, why);
	} else {
		json_add_u64(&fields, "bytes", r->bytes);
		json_add_u64(&fields, "sent_bytes", r->sent_bytes);
		json_add_u64(&fields, "found_bytes", r->found_bytes);
		json_add_u64(&fields, "linked_bytes", r->linked_bytes);
	}
	if (!fields.failed)
		events_add(&m->run->events, why ? "upload failed" : "upload", buf_str(&fields));
}

/* P6: a pin that was made in the mirror stays. One that came from the run ends with the run's. */
static int
put_mark(struct store *store, const struct parcel *p, struct pawl_error *err)
{
	PAWL_CLEAN(pins_unlock) struct pins_lock lock = {0};
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	const char *const names[] = {p->name};
	struct pin_mark *there = NULL;
	size_t n = 0;
	TRY(pins_lock(store, p->name, &lock, err));
	TRY(pins_read(store, names, 1, &memory, &there, &n, err));
	const bool own = n && there->pinned && !there->pin_copied;
	const struct pin_mark mark = {.name = p->name,
	                              .pinned = p->pinned || own,
	                              .pin_copied = !own,
	                              .metrics = p->late,
	                              .n_metrics = p->n_late};
	return pins_write(store, &mark, err);
}

static int
send_parcel(struct mirror *m, const struct parcel *p, struct pawl_meter *meter, struct copy_result *result,
            struct pawl_error *err)
{
	const struct pawl_open_opts *o = &m->run->opts;
	struct pawl_hold *hold = NULL;
	TRY(mirror_open_store(m, true, err));
	struct store *store = atomic_load(&m->store);
	TRY(check_identity(m, store, err));
	PAWL_FREE char *folder = mem_printf(CATALOG_FOLDER "/%s", p->name);
	if (!folder)
		return err_nomem(err, "mirror");
	const struct copy_job job = {.from = m->run->store,
	                             .to = store,
	                             .from_folder = folder,
	                             .to_folder = folder,
	                             .like_folder = p->like,
	                             .n_streams = o->uploads.n_streams,
	                             .memory_bytes = o->uploads.memory_bytes,
	                             .deadline_ms = clock_mono_ms() + o->timeouts.upload_ms,
	                             .meter = meter};
	TRY(pawl_hold_open(m->run, p->id, &hold, err));
	int rc = copy_checkpoint(&job, result, err);
	if (rc == 0 && result->was_there) { /* copied, but without a record that it was read back (P14) */
		rc = mirror_read_back(store, folder, meter, job.deadline_ms, err);
		result->found_bytes = result->bytes;
	}
	pawl_hold_close(hold);
	if (rc == 0 && (p->pinned || p->n_late))
		rc = put_mark(store, p, err);
	return rc;
}

int
mirror_put_marks(struct mirror *m, uint64_t id, struct pawl_error *err)
{
	PAWL_CLEAN(parcel_clear) struct parcel p = {0};
	TRY(mirror_open_store(m, true, err));
	struct store *store = atomic_load(&m->store);
	run_lock(m->run);
	int rc = pack_parcel(m, id, &p, err);
	run_unlock(m->run);
	if (rc <= 0)
		return rc;
	TRY(put_mark(store, &p, err));
	run_lock(m->run);
	struct mirror_done *done = mirror_find_done(m, id);
	if (done)
		done->marks = mirror_marks_sum(p.pinned, p.late, p.n_late);
	run_unlock(m->run);
	TRY(mirror_journal_write(m, err));
	return point_to(m, store, err);
}

/* After an upload: the journal, the mirror's pointers and retention, then those of the run. */
static int
finish_upload(struct mirror *m, struct pawl_error *err)
{
	struct store *store = atomic_load(&m->store);

	TRY(mirror_journal_write(m, err));
	if (m->run->self.lease) /* a process that has lost the run decides nothing in the mirror (P10) */
		TRY(lease_check(m->run->self.lease, err));
	TRY(point_to(m, store, err));
	TRY(retain_there(m, store, err));
	TRY(apply_retention(m->run, &m->run->settings.retention, false, NULL, err));
	return pointers_update(m->run, err);
}

/* Notes that a checkpoint was copied and read back. The run's lock is held. */
static int
note_success(struct mirror *m, const struct parcel *p, uint64_t sent_bytes, struct pawl_error *err)
{
	TRY(mirror_note_done(m, p->id, p->token, false, err));
	struct mirror_done *done = mirror_find_done(m, p->id);
	done->marks = mirror_marks_sum(p->pinned, p->late, p->n_late);
	done->verified = true;
	mirror_forget_failure(m, p->id);
	m->last = (struct pawl_error){0};
	m->n_row = 0;
	compress_measure(&m->run->saves.compress_rule.mirror, sent_bytes,
	                 (double)(clock_mono_ns() - p->begin_ns) / 1e9);
	return 0;
}

/* Notes a failure. Returns true instead if the checkpoint was deleted meanwhile, by request. The
 * run's lock is held. */
static bool
note_failure(struct mirror *m, const struct parcel *p, const struct pawl_error *why)
{
	const struct catalog_entry *e = catalog_get(m->run->catalog, p->id);
	if (!e || e->at)
		return true;
	if (why->code == PAWL_ECANCELLED)
		return false;
	mirror_note_failure(m, p->id, p->begin_ns, why);
	if (p->begin_ns < m->run->mirrors->wait_from_ns) /* a caller waits for an upload after its call */
		mirrors_hurry(m->run->mirrors);
	return false;
}

/* Errors are reported only: the checkpoint exists. */
static void
end_success(struct mirror *m, const struct parcel *p, const struct copy_result *result)
{
	struct pawl_error later = {0};
	if (finish_upload(m, &later) < 0)
		report_upload(m, p, result, &later);
	report_upload(m, p, result, NULL);
}

int
mirror_upload(struct mirror *m, uint64_t id, struct pawl_meter *meter, struct pawl_error *err)
{
	PAWL_CLEAN(parcel_clear) struct parcel p = {.id = id, .begin_ns = clock_mono_ns()};
	struct copy_result result = {0};
	struct pawl_error why = {0};
	run_lock(m->run);
	int rc = pack_parcel(m, id, &p, &why);
	run_unlock(m->run);
	if (rc == 0)
		return 0;
	if (rc > 0)
		rc = send_parcel(m, &p, meter, &result, &why);
	const bool failed = rc < 0;
	if (failed)
		run_edit(m->run); /* waits for a running removal */
	run_lock(m->run);
	if (rc == 0)
		rc = note_success(m, &p, result.sent_bytes, &why);
	why.code = rc;
	const bool gone = rc < 0 && note_failure(m, &p, &why);
	run_unlock(m->run);
	if (failed)
		run_edited(m->run);
	if (gone)
		return 0;
	if (rc == 0)
		end_success(m, &p, &result);
	else if (rc != PAWL_ECANCELLED && p.name)
		report_upload(m, &p, &result, &why);
	return err_give(err, rc, &why);
}
