/* SPDX-License-Identifier: Apache-2.0 */
/* run: see run.h. The locks of an open run, what its handle may do, and the marks that intervals are counted from. */
#include "run/run.h"

#include "base/clock.h"
#include "base/err.h"
#include "run/ticket.h"

void
run_lock(struct pawl *run)
{
	pthread_mutex_lock(&run->lock);
}

void
run_unlock(struct pawl *run)
{
	pthread_mutex_unlock(&run->lock);
}

void
run_edit(struct pawl *run)
{
	pthread_mutex_lock(&run->edit);
}

void
run_edited(struct pawl *run)
{
	pthread_mutex_unlock(&run->edit);
}

int
run_check_writable(const struct pawl *run, struct pawl_error *err)
{
	if (run->opts.read_only)
		return err_set(err, PAWL_EREADONLY, "%s was opened read-only", run->root);
	return 0;
}

int
run_check_keeper(const struct pawl *run, struct pawl_error *err)
{
	TRY(run_check_writable(run, err));
	if (run->rank > 0)
		return err_set(err, PAWL_EUSAGE, "rank %u of %u may not delete or repair checkpoints; rank 0 may",
		               run->rank, run->world);
	return 0;
}

void
run_set_pending(struct pawl *run, struct pawl_ticket *ticket)
{
	run_lock(run);
	if (!run->pending)
		run->pending = ticket_ref(ticket);
	run_unlock(run);
}

int
run_take_pending(struct pawl *run, struct pawl_error *err)
{
	struct pawl_ticket *t;
	int code = 0;

	run_lock(run);
	t = run->pending;
	run->pending = NULL;
	run_unlock(run);
	if (t && ticket_take_error(t, err))
		code = t->code;
	pawl_ticket_free(t);
	return code;
}

void
run_mark_at(struct pawl *run, const struct pawl_progress *progress)
{
	static const struct pawl_progress nothing = PAWL_PROGRESS_INIT;

	run_lock(run);
	run->last_saved = run->last_good = progress ? *progress : nothing;
	run->has_saved = run->has_good = progress != NULL;
	run->marking_id = 0;
	run->wct_before = run->last_saved.total_wct > 0 ? run->last_saved.total_wct : 0;
	run->wct_from_ns = clock_mono_ns();
	run_unlock(run);
}

const char *
pawl_root(const struct pawl *run)
{
	return run->root;
}

const char *
pawl_warning(const struct pawl *run)
{
	return run->warning;
}

uint32_t
pawl_my_rank(const struct pawl *run)
{
	return run->rank;
}

uint32_t
pawl_world_size(const struct pawl *run)
{
	return run->world;
}

const char *
pawl_run_id(const struct pawl *run)
{
	return run->run_id;
}
