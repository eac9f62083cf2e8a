/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verify: see verify.h. Reads every byte of checkpoints and compares every block with its checksum.
 * Changes nothing. Promise P1; R136.
 */
#include "keep/verify.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/vec.h"
#include "catalog/mirrors.h"
#include "restore/restore.h"
#include "restore/restore_gone.h"

#define MAX_FINDINGS 100000u

struct pawl_findings {
	struct bump memory; /* of texts */
	VEC(struct pawl_finding) rows;
	bool missing; /* a file was missing since this was last cleared */
};

/* What may end a verification early. */
struct limit {
	struct pawl_meter *meter; /* or NULL */
	int64_t deadline_ms;      /* of clock_mono_ms; 0 = none */
};

/* Findings of one checkpoint, as the reading threads report them. */
struct collector {
	struct pawl_findings *findings;
	const struct pawl_restore *r;
	int failed; /* out of memory, too many */
};

static int
add_finding(struct pawl_findings *f, const struct pawl_finding *given)
{
	if (f->rows.n == MAX_FINDINGS)
		return PAWL_ELIMIT;
	struct pawl_finding row = *given;
	row.file = bump_strndup(&f->memory, given->file, strlen(given->file));
	row.tensor = bump_strndup(&f->memory, given->tensor, strlen(given->tensor));
	row.message = bump_strndup(&f->memory, given->message, strlen(given->message));
	if (!row.file || !row.tensor || !row.message)
		return PAWL_ENOMEM;
	struct pawl_finding *added = vec_add(&f->rows);
	if (!added)
		return PAWL_ENOMEM;
	*added = row;
	return 0;
}

static int
report_damage(void *arg, uint32_t file, uint64_t begin, uint64_t end, const struct pawl_error *why)
{
	struct collector *c = arg;
	const struct manifest *m = c->r->manifest;
	struct pawl_finding row = {.id = m->id,
	                           .file = m->files[file].name,
	                           .begin = begin,
	                           .end = end,
	                           .tensor = "", /* named once neighbours have been joined */
	                           .message = why->message};
	c->findings->missing = c->findings->missing || why->sys == ENOENT;
	c->failed = add_finding(c->findings, &row);
	return c->failed < 0 ? why->code : 0;
}

static int
compare_findings(const void *a, const void *b)
{
	const struct pawl_finding *x = a, *y = b;
	int c = strcmp(x->file, y->file);
	return c ? c : (x->begin > y->begin) - (x->begin < y->begin);
}

/* Threads report in any order, block by block. Sorts the rows from `first` on, and joins
 * neighbours. */
static void
join_findings(struct pawl_findings *f, size_t first)
{
	size_t n = first;
	if (f->rows.n - first < 2)
		return;
	qsort(f->rows.items + first, f->rows.n - first, sizeof *f->rows.items, compare_findings);
	for (size_t i = first + 1; i < f->rows.n; i++) {
		struct pawl_finding *last = &f->rows.items[n];
		if (strcmp(last->file, f->rows.items[i].file) == 0 && last->end == f->rows.items[i].begin) {
			last->end = f->rows.items[i].end;
		} else {
			f->rows.items[++n] = f->rows.items[i];
		}
	}
	f->rows.n = n + 1;
}

static int
name_tensors(struct pawl_findings *f, size_t first, const struct manifest *m)
{
	for (size_t i = first; i < f->rows.n; i++) {
		PAWL_CLEAN(buf_clear) struct buf names = {0};
		for (uint32_t file = 0; file < m->n_files; file++) {
			if (strcmp(m->files[file].name, f->rows.items[i].file) == 0)
				fetch_tensors_at(m, file, f->rows.items[i].begin, f->rows.items[i].end, &names);
		}
		f->rows.items[i].tensor = bump_strndup(&f->memory, names.len ? names.ptr : "", names.len);
		if (names.failed || !f->rows.items[i].tensor)
			return PAWL_ENOMEM;
	}
	return 0;
}

static int
check_limit(const struct limit *limit, const char *name, struct pawl_error *err)
{
	if (limit->meter && __atomic_load_n(&limit->meter->cancel, __ATOMIC_RELAXED))
		return err_set(err, PAWL_ECANCELLED, "%s: reading was cancelled", name);
	if (limit->deadline_ms && clock_mono_ms() >= limit->deadline_ms)
		return err_set(err, PAWL_ETIMEOUT, "%s: reading exceeded its time limit", name);
	return 0;
}

/* Reads a compressed file as it is stored. Even wrong bytes may decompress correctly, for example
 * those of a table that was not needed. Files that cannot be opened are in the findings already. */
static int
read_stored(struct pawl_restore *r, struct store *store, unsigned only_copy, uint32_t file, const struct limit *limit,
            struct collector *c, struct pawl_error *err)
{
	const struct manifest_file *f = &r->manifest->files[file];
	PAWL_FREE char *key = mem_printf("%s/%s", r->folder, f->name);
	PAWL_FREE char *block = mem_alloc((size_t)(f->block_bytes < f->nbytes ? f->block_bytes : f->nbytes + 1));
	struct store_reader *reader = NULL;
	uint64_t nbytes;
	int over = 0;
	if (!key || !block)
		return err_nomem(err, r->info.name);
	if (store_open_reader(store, key, &reader, &nbytes, NULL) < 0)
		return 0;
	for (size_t i = 0; i < f->n_blocks && nbytes == f->nbytes && c->failed == 0; i++) {
		over = check_limit(limit, r->info.name, err);
		if (over < 0)
			break;
		const uint64_t at = i * f->block_bytes, left = f->nbytes - at;
		const size_t n = (size_t)(left < f->block_bytes ? left : f->block_bytes);
		struct pawl_error why = {0};
		int rc = only_copy ? store_read_copy(store, reader, only_copy - 1, at, block, n, &why)
		                   : store_read(store, reader, at, block, n, &why);
		if (rc == PAWL_ENOTFOUND && only_copy)
			break;
		if (rc == 0 && !sum_equal(f->sums[i], sum_bytes(block, n)))
			rc = err_set(&why, PAWL_ECORRUPT, "compressed: not what was written");
		if (rc < 0)
			report_damage(c, file, at, at + n, &why);
	}
	store_close_reader(store, reader);
	return over;
}

/* only_copy: as in struct fetch_job. */
static int
read_copy(struct pawl_restore *r, struct store *store, struct fetch *fetch, unsigned only_copy,
          const struct limit *limit, struct pawl_findings *findings, struct pawl_error *err)
{
	PAWL_CLEAN(reshard_free_clean) struct reshard_plan *plan = NULL;
	struct collector c = {.findings = findings, .r = r};
	const size_t first = findings->rows.n;
	struct fetch_job job = {.name = r->info.name,
	                        .folder = r->folder,
	                        .manifest = r->manifest,
	                        .meter = limit->meter,
	                        .deadline_ms = limit->deadline_ms,
	                        .bad = report_damage,
	                        .arg = &c,
	                        .only_copy = only_copy};
	TRY(reshard_plan_all(r->manifest, fetch_unit_bytes(fetch, r->manifest->bytes), &plan, err));
	job.plan = plan;
	int rc = fetch_run(fetch, &job, err);
	join_findings(findings, first);
	if (name_tensors(findings, first, r->manifest) < 0)
		c.failed = PAWL_ENOMEM;
	for (uint32_t i = 0; rc == 0 && i < r->manifest->n_files; i++)
		if (r->manifest->files[i].codec)
			rc = read_stored(r, store, only_copy, i, limit, &c, err);
	if (c.failed == PAWL_ENOMEM)
		return err_nomem(err, r->info.name);
	return c.failed == PAWL_ELIMIT ? 0 : rc; /* there are enough findings */
}

/* Reads every copy by itself: a good copy does not excuse a damaged one. */
static int
read_all(struct pawl_restore *r, struct fetch *fetch, const struct limit *limit, struct pawl_findings *findings,
         struct pawl_error *err)
{
	const unsigned n = r->run->home.caps.copies;
	const struct limit uncounted = {.deadline_ms = limit->deadline_ms};

	if (n <= 1)
		return read_copy(r, r->run->store, fetch, 0, limit, findings, err);
	for (unsigned k = 1; k <= n; k++) /* the meter counts bytes of the checkpoint, not of its copies */
		TRY(read_copy(r, r->run->store, fetch, k, k == 1 ? limit : &uncounted, findings, err));
	return 0;
}

PAWL_DEFINE_CLEAN(struct fetch, fetch_free);

/* Verifies a checkpoint that exists only in a mirror. */
static int
read_far(struct pawl_restore *r, const struct limit *limit, struct pawl_findings *findings, struct pawl_error *err)
{
	PAWL_CLEAN(fetch_free_clean) struct fetch *fetch = NULL;

	TRY(fetch_new(r->at, r->run->opts.io.threads, 0, &fetch, err));
	return read_copy(r, r->at, fetch, 0, limit, findings, err);
}

static int
check_manifest(struct pawl *run, uint64_t id, struct pawl_error *err)
{
	struct manifest *m = NULL;

	if (run->mirrors->n == 0)
		return 0;
	run_edit(run); /* it stays while its manifest is read */
	const struct catalog_entry *e = catalog_get(run->catalog, id);
	int rc = e ? catalog_manifest(run->catalog, e, &m, err) : 0;
	run_edited(run);
	manifest_free(m);
	return rc;
}

/* What is known of a checkpoint before it is read. */
struct target {
	uint64_t id, nbytes;
	const char *problem; /* of a bad one: why its manifest cannot be used */
	int code;            /* PAWL_ECORRUPT, or why one that may be intact cannot be read */
};

struct targets {
	struct bump memory;
	struct target *rows;
	size_t n;
};

static void
targets_clear(struct targets *t)
{
	bump_clear(&t->memory);
}

/* Is it in the table, as read before, and not damaged? */
static bool
is_known_good(struct pawl *run, uint64_t id)
{
	run_lock(run);
	const struct catalog_entry *e = catalog_get(run->catalog, id);
	const bool ret = e && e->summary;
	run_unlock(run);
	return ret;
}

/* The good or the bad checkpoints with this id, or all of them (0). A good one needs no new look at
 * all others, so verifying one of many stays cheap. A read finds what was deleted. */
static int
list_targets(struct pawl *run, uint64_t id, bool bad, struct targets *ret, struct pawl_error *err)
{
	if (id == 0 || !is_known_good(run, id))
		TRY(pawl_reload(run, err));
	run_lock(run);
	ret->rows = bump_array(&ret->memory, run->catalog->n, sizeof *ret->rows);
	bool lacking = !ret->rows;
	for (size_t i = 0; i < run->catalog->n && !lacking; i++) {
		const struct catalog_entry *e = &run->catalog->entries[i];
		struct target *t = &ret->rows[ret->n];
		if ((id != 0 && e->id != id) || bad == (e->summary != NULL))
			continue;
		if (id == 0 && catalog_is_unfinished(run->catalog, e)) /* gc and repair handle it */
			continue;
		t->id = e->id;
		t->nbytes = e->summary ? e->summary->bytes : 0;
		t->code = catalog_may_be_intact(e) ? e->code : PAWL_ECORRUPT;
		t->problem = bad ? bump_printf(&ret->memory, "%s: %s", e->name, e->problem) : NULL;
		lacking = bad && !t->problem;
		ret->n++;
	}
	run_unlock(run);
	return lacking ? err_nomem(err, "verify") : 0;
}

static int
manifest_finding(struct pawl_findings *f, uint64_t id, const char *message, struct pawl_error *err)
{
	struct pawl_finding row = {.id = id, .file = MANIFEST_NAME, .tensor = "", .message = message};
	int rc = add_finding(f, &row);
	return rc < 0 && rc != PAWL_ELIMIT ? err_set(err, rc, "verify: out of memory") : 0;
}

/* Reads the opened checkpoint. PAWL_ENOTFOUND: it was deleted meanwhile, and its missing files are
 * not findings. */
static int
read_opened(struct pawl_restore *r, struct fetch *fetch, const struct limit *limit, struct pawl_findings *findings,
            struct pawl_error *err)
{
	const size_t first = findings->rows.n;
	for (unsigned tries = 0;; tries++) {
		struct pawl_error why = {0};
		findings->rows.n = first;
		findings->missing = false;
		int rc = r->at ? read_far(r, limit, findings, &why) : read_all(r, fetch, limit, findings, &why);
		if (rc == 0 && findings->rows.n > first) {
			why.code = PAWL_ECORRUPT;
			why.sys = findings->missing ? ENOENT : 0;
		}
		int verdict = why.code < 0 ? restore_judge(r, &why, tries, err) : 0;
		if (verdict < 0)
			findings->rows.n = first;
		if (verdict <= 0)
			return verdict < 0 ? verdict : rc < 0 ? err_give(err, rc, &why) : 0;
	}
}

static int
verify_one(struct pawl *run, uint64_t id, struct fetch *fetch, const struct limit *limit,
           struct pawl_findings *findings, struct pawl_error *err)
{
	PAWL_CLEAN(pawl_restore_close_clean) struct pawl_restore *r = NULL;
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	struct pawl_error why = {0};
	char selector[32];
	snprintf(selector, sizeof selector, "id:%" PRIu64, id);
	opts.selector = selector;
	int rc = check_manifest(run, id, &why); /* a restore would accept a mirror's */
	if (rc == 0)
		rc = pawl_restore_open(run, &opts, &r, &why);
	if (rc == 0)
		return read_opened(r, fetch, limit, findings, err);
	if (rc == PAWL_ECORRUPT || rc == PAWL_EIO || rc == PAWL_ELIMIT)
		return manifest_finding(findings, id, why.message, err);
	return err_give(err, rc, &why);
}

PAWL_DEFINE_CLEAN(struct pawl_findings, pawl_findings_free);

/* Verifies one or all. *ret_n: how many there were, without those that were deleted meanwhile.
 * unread: the first one that may be intact but cannot be read, which is not a finding. */
static int
verify_good(struct pawl *run, uint64_t id, const struct limit *limit, struct pawl_findings *findings, size_t *ret_n,
            struct pawl_error *unread, struct pawl_error *err)
{
	PAWL_CLEAN(targets_clear) struct targets good = {0};
	PAWL_CLEAN(fetch_free_clean) struct fetch *fetch = NULL;
	uint64_t total = 0;
	TRY(list_targets(run, id, false, &good, err));
	for (size_t i = 0; i < good.n; i++)
		total += good.rows[i].nbytes;
	if (limit->meter)
		__atomic_store_n(&limit->meter->total_bytes, total, __ATOMIC_RELAXED);
	TRY(fetch_new(run->store, run->opts.io.threads, 0, &fetch, err));
	for (size_t i = 0; i < good.n; i++) {
		struct pawl_error why = {0};
		int rc = verify_one(run, good.rows[i].id, fetch, limit, findings, &why);
		const bool is_unread = rc == PAWL_EAUTH || rc == PAWL_EVERSION;
		if (rc < 0 && !is_unread && (rc != PAWL_ENOTFOUND || id != 0))
			return err_give(err, rc, &why);
		if (is_unread && unread->code == 0)
			*unread = why;
		*ret_n += rc != PAWL_ENOTFOUND;
	}
	return *ret_n == 0 && good.n > 0; /* newer ones were saved before those were deleted */
}

static int
verify_bad(struct pawl *run, uint64_t id, struct pawl_findings *findings, size_t *ret_n, struct pawl_error *unread,
           struct pawl_error *err)
{
	PAWL_CLEAN(targets_clear) struct targets bad = {0};
	TRY(list_targets(run, id, true, &bad, err));
	*ret_n += bad.n;
	for (size_t i = 0; i < bad.n; i++) {
		if (bad.rows[i].code == PAWL_ECORRUPT)
			TRY(manifest_finding(findings, bad.rows[i].id, bad.rows[i].problem, err));
		else if (unread->code == 0)
			err_set(unread, bad.rows[i].code, "cannot be verified: %s", bad.rows[i].problem);
	}
	return 0;
}

static int
verify_targets(struct pawl *run, uint64_t id, const struct limit *limit, struct pawl_findings *findings,
               struct pawl_error *err)
{
	struct pawl_error unread = {0};
	size_t n = 0;
	int rc = 1;
	for (unsigned looks = 0; rc == 1 && looks < RESTORE_LOOKS; looks++)
		rc = verify_good(run, id, limit, findings, &n, &unread, err);
	TRY(rc);
	/* Last: a folder that was being deleted while we read had lost its manifest only for a
	 * moment. */
	TRY(verify_bad(run, id, findings, &n, &unread, err));
	if (n == 0 && id != 0)
		return err_set(err, PAWL_ENOTFOUND, "%s has no checkpoint with id %" PRIu64, run->home.root, id);
	return findings->rows.n == 0 ? err_give(err, unread.code, &unread) : 0;
}

static int
verify_checkpoint(struct pawl *run, uint64_t id, const struct limit *limit, struct pawl_findings **ret,
                  struct pawl_error *err)
{
	if (!run)
		return err_set(err, PAWL_EUSAGE, "verify: expected a run, found NULL");
	PAWL_CLEAN(pawl_findings_free_clean) struct pawl_findings *f = mem_zalloc(1, sizeof *f);
	if (!f)
		return err_nomem(err, "verify");
	TRY(verify_targets(run, id, limit, f, err));
	int rc = 0;
	if (f->rows.n > 0) {
		const struct pawl_finding *first = &f->rows.items[0];
		rc = err_set(err, PAWL_ECORRUPT,
		             "%zu damaged range%s, the first: checkpoint %" PRIu64 ", %s, bytes %" PRIu64 " to %" PRIu64
		             "%s%s%s: %s",
		             f->rows.n, f->rows.n == 1 ? "" : "s", first->id, first->file, first->begin, first->end,
		             first->tensor[0] ? " (tensor " : "", first->tensor, first->tensor[0] ? ")" : "",
		             first->message);
	}
	if (ret)
		*ret = steal(&f);
	return rc;
}

int
verify_until(struct pawl *run, uint64_t id, struct pawl_meter *meter, int64_t deadline_ms, struct pawl_findings **ret,
             struct pawl_error *err)
{
	const struct limit limit = {.meter = meter, .deadline_ms = deadline_ms};
	struct pawl_error own = {0};

	return err_give(err, verify_checkpoint(run, id, &limit, ret, &own), &own);
}

int
pawl_verify(struct pawl *run, uint64_t id, struct pawl_meter *meter, struct pawl_findings **ret, struct pawl_error *err)
{
	return verify_until(run, id, meter, 0, ret, err);
}

size_t
pawl_findings_count(const struct pawl_findings *f)
{
	return f->rows.n;
}

const struct pawl_finding *
pawl_findings_get(const struct pawl_findings *f, size_t i)
{
	return i < f->rows.n ? &f->rows.items[i] : NULL;
}

void
pawl_findings_free(struct pawl_findings *f)
{
	if (!f)
		return;
	bump_clear(&f->memory);
	vec_free(&f->rows);
	mem_free(f);
}
