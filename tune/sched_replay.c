/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched_replay: the schedule of values that population based training found for one trial (Jaderberg et al., 2017,
 * section 4: "the discovered schedule"), once more. When a report comes to a change the trial pauses, and goes on from
 * what it has saved with the values of the change; when it jumps over several, with those of the last.
 */
#include "sched_inner.h"

static int
report(struct sched *s, uint32_t trial, struct sched_decision *ret, struct pawl_error *err)
{
	struct sched_trial *t = &s->trials[trial];
	const size_t before = t->n_changed;

	(void)err;
	while (t->n_changed < s->opts.n_changes && t->time >= s->opts.changes[t->n_changed])
		t->n_changed++;
	if (t->n_changed == before)
		return 0;
	t->go_on = t->exploits = true;
	t->donor = trial;
	ret->verdict = SCHED_PAUSE;
	return 0;
}

const struct sched_algorithm sched_replay = {.report = report};
