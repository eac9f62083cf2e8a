/* SPDX-License-Identifier: Apache-2.0 */
/* sched_bed: a scheduler with some trials, and what it decides. Failures of the scheduler fail the
 * test. Include after cmocka.h. */
#ifndef PAWL_TESTS_SCHED_BED_H
#define PAWL_TESTS_SCHED_BED_H

#include "sched.h"

static inline struct sched *
make(struct sched_opts opts, unsigned n_trials)
{
	struct pawl_error err = {0};
	struct sched *s = NULL;

	if (sched_new(&opts, &s, &err) < 0)
		fail_msg("%s", err.message);
	for (unsigned i = 0; i < n_trials; i++)
		assert_int_equal(sched_add(s, i, NULL, &err), 0);
	return s;
}

static inline struct sched_decision
decide_in_turn(struct sched *s, uint32_t trial, double time, double metric, bool others_wait)
{
	struct sched_decision what;
	struct pawl_error err = {0};

	if (sched_report(s, trial, time, metric, others_wait, &what, &err) < 0)
		fail_msg("%s", err.message);
	return what;
}

static inline struct sched_decision
decide(struct sched *s, uint32_t trial, double time, double metric)
{
	return decide_in_turn(s, trial, time, metric, false);
}

#endif
