/* SPDX-License-Identifier: Apache-2.0 */
/* mark: the progress that save intervals are counted from. A save moves it when it is taken, and back when it fails. */
#include "run/run.h"
#include "save/save.h"

void
run_mark_saved(struct pawl *run, struct save *s)
{
	run_lock(run);
	if (!s->mark_settled || s->mark_good) {
		run->last_saved = s->progress;
		run->has_saved = true;
		run->marking_id = s->mark_settled ? 0 : s->id;
	}
	run_unlock(run);
}

/* Ranks learn of a failure at different points of the training; they must all come to the same about what is due, so
 * that their mark stays. */
void
run_mark_outcome(struct pawl *run, struct save *s, bool good)
{
	run_lock(run);
	s->mark_settled = true;
	s->mark_good = good || run->meet;
	if (s->mark_good) {
		run->last_good = s->progress;
		run->has_good = true;
	} else if (run->marking_id == s->id) {
		run->last_saved = run->last_good;
		run->has_saved = run->has_good;
	}
	if (run->marking_id == s->id)
		run->marking_id = 0;
	run_unlock(run);
}
