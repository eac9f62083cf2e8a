/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched_top: from `grace` on, a trial stops as soon as min_samples others are better: their best
 * metric is, at this time or later.
 */
#include "sched_own.h"

static int
top_report(struct sched *s, uint32_t trial, struct sched_decision *ret, struct pawl_error *err)
{
	const struct sched_trial *t = &s->trials[trial];
	uint32_t better = 0;

	(void)err;
	for (size_t i = 0; i < s->n_trials; i++)
		better += s->trials[i].time >= t->time && s->trials[i].best > t->best;
	if (t->time >= s->opts.grace && better >= s->opts.min_samples)
		ret->verdict = SCHED_STOP;
	return 0;
}

const struct sched_algorithm sched_top = {.name = "top", .report = top_report};
