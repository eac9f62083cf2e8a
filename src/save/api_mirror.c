/* SPDX-License-Identifier: Apache-2.0 */
/* api_mirror: the public calls of mirrors: wait for a level, figures, copy by hand. */
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/text.h"
#include "mirror/mirror.h"

/* Can this handle wait for copies on another machine? */
static int
check_remote(const struct pawl *run, struct pawl_error *err)
{
	const bool far_home = run->home.caps.flat && !run->home.caps.is_private, has_mirrors = run->mirrors->n > 0;

	if (far_home && !has_mirrors)
		return 0;
	if (run->group.rank > 0)
		return err_set(err, PAWL_EUNSUPPORTED,
		               "wait: rank %u does not upload to mirrors; wait on rank 0, which does",
		               (unsigned)run->group.rank);
	if (!has_mirrors)
		return err_set(err, PAWL_EUSAGE, "wait: %s has no mirrors, so no checkpoint of it becomes remote",
		               run->home.root);
	if (!run->mirrors->pool)
		return err_set(
			err, PAWL_EUSAGE,
			"wait: this handle does not upload; the training does, or pawl_sync of a handle opened with maintenance");
	return 0;
}

static int
wait_level(struct pawl *run, int level, int64_t timeout_ms, struct pawl_error *err)
{
	const int64_t deadline_ms = clock_deadline_ms(timeout_ms);
	if (!run)
		return err_set(err, PAWL_EUSAGE, "wait: expected a run, found NULL");
	if (level != PAWL_LEVEL_LOCAL && level != PAWL_LEVEL_REMOTE)
		return err_set(err, PAWL_EUSAGE, "wait: expected level %d (local) or %d (remote), found %d",
		               PAWL_LEVEL_LOCAL, PAWL_LEVEL_REMOTE, level);
	if (level == PAWL_LEVEL_REMOTE)
		TRY(check_remote(run, err));
	TRY(pawl_wait(run, timeout_ms, err));
	if (level == PAWL_LEVEL_LOCAL || run->mirrors->n == 0)
		return 0;
	int rc = mirrors_wait(run, deadline_ms, err);
	return rc > 0 ? err_waited(err, "checkpoints are still being copied to mirrors after %lld ms",
	                           (long long)timeout_ms)
	              : rc;
}

int
pawl_wait_level(struct pawl *run, int level, int64_t timeout_ms, struct pawl_error *err)
{
	struct pawl_error own = {0};
	return err_give(err, wait_level(run, level, timeout_ms, &own), &own);
}

size_t
pawl_mirror_count(const struct pawl *run)
{
	return run ? run->mirrors->n : 0;
}

int
pawl_mirror_get(struct pawl *run, size_t i, struct pawl_mirror_info *ret, struct pawl_error *err)
{
	struct pawl_mirror_info info = PAWL_MIRROR_INFO_INIT;
	if (!run || !ret || !ret->size)
		return err_set(err, PAWL_EUSAGE,
		               "mirror: expected a run and a pointer that receives the answer, found NULL");
	if (i >= pawl_mirror_count(run))
		return err_set(err, PAWL_ENOTFOUND, "%s has no mirror %zu", run->home.root, i);
	struct mirror *m = &run->mirrors->list[i];
	run_lock(run);
	for (size_t k = 0; k < run->catalog->n; k++) {
		const struct catalog_entry *e = &run->catalog->entries[k];
		if (e->summary && !e->at && mirror_lacks(m, e->id, e->summary->token))
			info.n_waiting++;
		else if (e->summary && mirror_has(m, e->id, e->summary->token))
			info.n_done++;
	}
	info.url = m->url;
	info.n_failed = m->n_failed;
	if (m->uploading) {
		info.done_bytes = __atomic_load_n(&m->meter.done_bytes, __ATOMIC_RELAXED);
		info.total_bytes = __atomic_load_n(&m->meter.total_bytes, __ATOMIC_RELAXED);
	}
	info.code = m->last.code;
	text_copy(info.message, sizeof info.message, m->last.message);
	run_unlock(run);
	info.size = ret->size;
	memcpy(ret, &info, ret->size < sizeof info ? ret->size : sizeof info);
	return 0;
}

/* ----------------------------------------------------------------- by hand */

/* The newest checkpoint that the mirror lacks and that was not tried since; 0 = none. */
static uint64_t
next_of(struct mirror *m, int64_t since_ms)
{
	int64_t until;
	run_lock(m->run);
	const struct catalog_entry *e = mirror_next(m, m->run->catalog, since_ms, &until);
	uint64_t id = e ? e->id : 0;
	run_unlock(m->run);
	return id;
}

static bool
is_cancelled(const struct pawl_meter *meter)
{
	return meter && __atomic_load_n(&meter->cancel, __ATOMIC_RELAXED);
}

static int
sync_one(struct mirror *m, struct pawl_meter *meter, struct pawl_error *err)
{
	const int64_t since_ms = clock_mono_ms();
	int first = 0;
	for (uint64_t id; (id = next_of(m, since_ms));) {
		struct pawl_error why = {0};
		int rc = is_cancelled(meter) ? err_set(&why, PAWL_ECANCELLED, "sync: the uploads were cancelled")
		                             : mirror_upload(m, id, meter, &why);
		if (rc < 0 && first == 0)
			first = err_give(err, rc, &why);
		if (rc == PAWL_ECANCELLED)
			break;
	}
	return first;
}

static int
sync_all(struct pawl *run, struct pawl_meter *meter, struct pawl_error *err)
{
	int first = 0;
	if (!run)
		return err_set(err, PAWL_EUSAGE, "sync: expected a run, found NULL");
	TRY(run_check_keeper(run, err));
	if (run->mirrors->n == 0)
		return err_set(err, PAWL_EUSAGE, "sync: %s has no mirrors; name the places to copy to", run->home.root);
	if (run->mirrors->pool)
		return pawl_wait_level(run, PAWL_LEVEL_REMOTE, -1, err);
	TRY(pawl_reload(run, err));
	run_lock(run);
	mirrors_hurry(run->mirrors);
	run_unlock(run);
	for (size_t i = 0; i < run->mirrors->n; i++) {
		struct pawl_error why = {0};
		int rc = sync_one(&run->mirrors->list[i], meter, &why);
		if (rc < 0 && first == 0)
			first = err_give(err, rc, &why);
	}
	return first;
}

int
pawl_sync(struct pawl *run, struct pawl_meter *meter, struct pawl_error *err)
{
	struct pawl_error own = {0};
	return err_give(err, sync_all(run, meter, &own), &own);
}
