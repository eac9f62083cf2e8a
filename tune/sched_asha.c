/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched_asha: successive halving without waiting (Li et al., A System for Massively Parallel
 * Hyperparameter Tuning, MLSys 2020, algorithm 2). This is the form of its section 3.3 remark: it
 * stops trials instead of promoting them, so that no trial waits.
 *
 * Rungs are at grace, grace * eta, grace * eta^2, and so on. At each of them a trial continues if
 * it is among the best 1 / eta of the trials that have reached it so far. The first trial at a rung
 * always continues. Further brackets begin their rungs later. Trials are assigned to brackets at
 * random, in proportion to e^(number of the bracket's rungs).
 */
#include <math.h>

#include "base/err.h"
#include "sched_own.h"

#define MAX_RUNGS 32u /* bits of sched_trial.rungs_done */

static int
asha_init(struct sched *s, struct pawl_error *err)
{
	for (uint32_t b = 0; b < s->opts.brackets; b++) {
		struct sched_bracket *bracket;
		double time = s->opts.grace * pow(s->opts.reduction, b);
		size_t n = 0;

		for (double at = time; sched_rung_time(at) <= s->opts.max_time && n <= MAX_RUNGS;
		     at *= s->opts.reduction)
			n++;
		if (n > MAX_RUNGS)
			return err_set(err, PAWL_EUSAGE,
			               "scheduler: from grace %g to max_time %g by reduction %g are more than %u rungs",
			               s->opts.grace, s->opts.max_time, s->opts.reduction, MAX_RUNGS);
		TRY(sched_bracket_add(s, n, &bracket, err));
		for (size_t i = 0; i < n; i++, time *= s->opts.reduction)
			bracket->rungs[i].time = sched_rung_time(time);
	}
	return 0;
}

static int
add_trial(struct sched *s, uint32_t trial, struct pawl_error *err)
{
	double total = 0, most = 0;

	(void)err;
	for (size_t i = 0; i < s->n_brackets; i++)
		most = fmax(most, (double)s->brackets[i].n_rungs);
	for (size_t i = 0; i < s->n_brackets; i++)
		total += exp((double)s->brackets[i].n_rungs - most);
	double drawn = s->n_brackets > 1 ? sched_draw(s) * total : 0;
	for (size_t i = 0; i + 1 < s->n_brackets; i++) {
		drawn -= exp((double)s->brackets[i].n_rungs - most);
		if (drawn < 0)
			break;
		s->trials[trial].bracket = (uint32_t)i + 1;
	}
	return 0;
}

/* The quantile with linear interpolation; the rung is not empty. */
static double
rung_quantile(const struct sched_rung *rung, double q)
{
	const double at = q * (double)(rung->n - 1), part = at - floor(at);
	const size_t low = (size_t)at, high = low + 1 < rung->n ? low + 1 : low;
	const double value =
		part > 0 ? rung->metrics[low] + part * (rung->metrics[high] - rung->metrics[low]) : rung->metrics[low];

	return isnan(value) ? rung->metrics[low] : value; /* between infinities */
}

static int
asha_report(struct sched *s, uint32_t trial, struct sched_decision *ret, struct pawl_error *err)
{
	struct sched_trial *t = &s->trials[trial];
	struct sched_bracket *b = &s->brackets[t->bracket];

	if (t->time >= s->opts.max_time)
		ret->verdict = SCHED_STOP;
	for (size_t i = b->n_rungs; i-- > 0;) {
		struct sched_rung *rung = &b->rungs[i];
		double cut = -HUGE_VAL;
		if (t->time < rung->time)
			continue;
		if (t->rungs_done >> i & 1)
			break; /* it has all lower ones, too */
		if (rung->n)
			cut = rung_quantile(rung, 1 - 1 / s->opts.reduction);
		t->rungs_done |= 1u << i;
		TRY(sched_rung_put(rung, t->metric, err));
		if (t->metric < cut || !isfinite(t->metric))
			ret->verdict = SCHED_STOP;
		break;
	}
	return 0;
}

const struct sched_algorithm sched_asha = {.name = "asha", .init = asha_init, .add = add_trial, .report = asha_report};
