/* SPDX-License-Identifier: Apache-2.0 */
/* interval: see interval.h. */
#include "run/interval.h"

#include "base/clock.h"

void
interval_restart(struct interval *i, const struct pawl_progress *progress)
{
	static const struct pawl_progress nothing = PAWL_PROGRESS_INIT;

	pthread_mutex_lock(&i->lock);
	i->last_saved = i->last_good = progress ? *progress : nothing;
	i->has_saved = i->has_good = progress != NULL;
	i->marking_id = 0;
	i->wct_before = i->last_saved.total_wct > 0 ? i->last_saved.total_wct : 0;
	i->wct_from_ns = clock_mono_ns();
	pthread_mutex_unlock(&i->lock);
}

void
interval_add_wct(struct interval *i, struct pawl_progress *progress)
{
	pthread_mutex_lock(&i->lock);
	if (progress->total_wct < 0)
		progress->total_wct = i->wct_before + (double)(clock_mono_ns() - i->wct_from_ns) / 1e9;
	pthread_mutex_unlock(&i->lock);
}

void
interval_mark(struct interval *i, const struct pawl_progress *progress)
{
	pthread_mutex_lock(&i->lock);
	i->last_saved = i->last_good = *progress;
	i->has_saved = i->has_good = true;
	i->marking_id = 0;
	pthread_mutex_unlock(&i->lock);
}

void
interval_note_cost(struct interval *i, double seconds)
{
	pthread_mutex_lock(&i->lock);
	i->save_cost_seconds = seconds;
	pthread_mutex_unlock(&i->lock);
}

bool
interval_read(struct interval *i, struct pawl_progress *ret_last, double *ret_cost_seconds)
{
	pthread_mutex_lock(&i->lock);
	const bool has_saved = i->has_saved;

	*ret_last = i->last_saved;
	*ret_cost_seconds = i->save_cost_seconds;
	pthread_mutex_unlock(&i->lock);
	return has_saved;
}
