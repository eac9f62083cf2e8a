/* SPDX-License-Identifier: Apache-2.0 */
/* mark: the progress that save intervals are counted from. A save moves it when it is taken, and
 * back when it fails. */
#include "save/role.h"
#include "save/save.h"

void
mark_saved(struct pawl *run, struct save *s)
{
	struct interval *at = &run->interval;

	pthread_mutex_lock(&at->lock);
	if (!s->mark_settled || s->mark_good) {
		at->last_saved = s->request.counters;
		at->has_saved = true;
		at->marking_id = s->mark_settled ? 0 : s->request.id;
	}
	pthread_mutex_unlock(&at->lock);
}

/* Ranks learn of a failure at different points of the training, but must agree on when a save is
 * due. So their mark stays. */
void
mark_outcome(struct pawl *run, struct save *s, bool good)
{
	struct interval *at = &run->interval;

	pthread_mutex_lock(&at->lock);
	s->mark_settled = true;
	s->mark_good = good || run->modes.role->keeps_mark;
	if (s->mark_good) {
		at->last_good = s->request.counters;
		at->has_good = true;
	} else if (at->marking_id == s->request.id) {
		at->last_saved = at->last_good;
		at->has_saved = at->has_good;
	}
	if (at->marking_id == s->request.id)
		at->marking_id = 0;
	pthread_mutex_unlock(&at->lock);
}
