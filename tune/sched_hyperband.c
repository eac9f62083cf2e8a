/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched_hyperband: HyperBand with trials that pause (Li et al., Hyperband: A Novel Bandit-Based
 * Approach to Hyperparameter Optimization, JMLR 18, 2018, algorithm 1). Let R = max_time and eta =
 * reduction; s_max is the largest s with eta^s <= R.
 *
 * - Bracket s of a band takes n = ceil((s_max + 1) / (s + 1) * eta^s) trials. They run to r = R /
 *   eta^s.
 * - Each trial pauses there until all counted trials of its bracket have reached r.
 * - The best floor(n / eta) run on to r * eta; the others are dropped. This repeats up to R.
 * - A report beyond several rungs counts at each of them.
 * - Trials fill bracket s_max first, then s_max - 1, .., 0, then a new band.
 *
 * BOHB (Falkner et al., ICML 2018) runs its trials through the same brackets.
 *
 * in_step selects the synchronous successive halving that ASHA is compared with: one bracket of all
 * trials, with ASHA's rungs. Source: Jamieson, Talwalkar, Non-stochastic Best Arm Identification,
 * AISTATS 2016.
 *
 *   filling --full or no more trials--> running --all live trials at the rung--> halved
 *     --> running (the next rung) ..
 */
#include <math.h>

#include "base/err.h"
#include "sched_own.h"

#define MAX_RUNGS 65u

/* The largest s with eta^s <= R, tolerating rounding. */
static unsigned
largest_s(const struct sched_opts *o)
{
	double power = o->reduction;
	unsigned s = 0;

	while (power <= o->max_time * (1 + 1e-12)) {
		power *= o->reduction;
		s++;
	}
	return s;
}

/* grace, grace * eta, .. below R, and R. */
static size_t
count_rungs(const struct sched_opts *o)
{
	size_t n = 1;

	for (double time = o->grace; sched_rung_time(time) < o->max_time && n <= MAX_RUNGS; time *= o->reduction)
		n++;
	return n;
}

static int
hyperband_init(struct sched *s, struct pawl_error *err)
{
	if (s->opts.in_step && count_rungs(&s->opts) > MAX_RUNGS)
		return err_set(err, PAWL_EUSAGE,
		               "scheduler: from grace %g to max_time %g by reduction %g are more than %u rungs",
		               s->opts.grace, s->opts.max_time, s->opts.reduction, MAX_RUNGS);
	if (!s->opts.in_step && largest_s(&s->opts) > 64)
		return err_set(err, PAWL_EUSAGE, "scheduler: max_time %g by reduction %g makes more than 65 brackets",
		               s->opts.max_time, s->opts.reduction);
	return 0;
}

static int
open_only_bracket(struct sched *s, struct pawl_error *err)
{
	const size_t n = count_rungs(&s->opts);
	struct sched_bracket *b;
	double time = s->opts.grace;

	TRY(sched_bracket_add(s, n, &b, err));
	b->capacity = UINT32_MAX;
	for (size_t i = 0; i < n; i++, time *= s->opts.reduction)
		b->rungs[i].time = i + 1 == n ? s->opts.max_time : sched_rung_time(time);
	return 0;
}

static int
open_bracket(struct sched *s, struct pawl_error *err)
{
	const unsigned s_max = largest_s(&s->opts), k = s_max - (unsigned)(s->n_brackets % (s_max + 1));
	struct sched_bracket *b;
	double time = s->opts.max_time / pow(s->opts.reduction, k);

	TRY(sched_bracket_add(s, k + 1, &b, err));
	b->capacity = (uint32_t)ceil((double)(s_max + 1) / (k + 1) * pow(s->opts.reduction, k) - 1e-9);
	for (size_t i = 0; i <= k; i++, time *= s->opts.reduction)
		b->rungs[i].time = i == k ? s->opts.max_time : sched_rung_time(time);
	return 0;
}

static int
add_trial(struct sched *s, uint32_t trial, struct pawl_error *err)
{
	struct sched_bracket *b = s->n_brackets ? &s->brackets[s->n_brackets - 1] : NULL;

	if (!b || b->n_trials == b->capacity) {
		TRY(s->opts.in_step ? open_only_bracket(s, err) : open_bracket(s, err));
		b = &s->brackets[s->n_brackets - 1];
	}
	s->trials[trial].bracket = (uint32_t)s->n_brackets - 1;
	if (b->n_trials++ == 0)
		b->first = trial;
	return 0;
}

/* Is it compared with the others of its bracket? A trial that reached R is: it has stopped, but has
 * its result. */
static bool
is_counted(const struct sched *s, const struct sched_trial *t, size_t bracket)
{
	if (t->bracket != bracket || t->dropped)
		return false;
	return t->time >= s->opts.max_time || (!t->ended && !t->stopped);
}

/* Have all counted trials of the bracket reached its rung? False at R, and while more trials may be
 * added. */
static bool
is_complete(const struct sched *s, size_t bracket, size_t *ret_n)
{
	const struct sched_bracket *b = &s->brackets[bracket];

	*ret_n = 0;
	for (size_t i = b->first; i < b->first + b->n_trials; i++) {
		if (!is_counted(s, &s->trials[i], bracket))
			continue;
		if (s->trials[i].time < b->rungs[b->level].time)
			return false;
		++*ret_n;
	}
	return *ret_n && b->level + 1 < b->n_rungs && (b->n_trials == b->capacity || s->closed);
}

/* The trial's rank in its bracket, from 0. The older one wins a tie. */
static size_t
place_of(const struct sched *s, size_t bracket, size_t trial)
{
	const struct sched_bracket *b = &s->brackets[bracket];
	size_t better = 0;

	for (size_t i = b->first; i < b->first + b->n_trials; i++) {
		if (i != trial && is_counted(s, &s->trials[i], bracket) &&
		    (s->trials[i].metric > s->trials[trial].metric ||
		     (s->trials[i].metric == s->trials[trial].metric && i < trial)))
			better++;
	}
	return better;
}

/* Drops all but the best 1 / eta of the counted trials. A trial whose last report is beyond the
 * next rung as well waits there for the others. */
static void
halve_bracket(struct sched *s, size_t bracket, size_t n)
{
	struct sched_bracket *b = &s->brackets[bracket];
	size_t kept = (size_t)((double)n / s->opts.reduction + 1e-9);

	if (kept == 0)
		kept = 1;
	b->level++;
	/* Mark first: ranks are taken among all counted trials. */
	for (size_t i = b->first; i < b->first + b->n_trials; i++)
		if (is_counted(s, &s->trials[i], bracket))
			s->trials[i].is_kept = place_of(s, bracket, i) < kept;
	for (size_t i = b->first; i < b->first + b->n_trials; i++) {
		struct sched_trial *t = &s->trials[i];
		if (!is_counted(s, t, bracket))
			continue;
		t->go_on = t->is_kept && t->time < b->rungs[b->level].time;
		t->dropped = !t->is_kept;
		t->stopped |= t->dropped;
	}
}

static void
halve_brackets(struct sched *s)
{
	size_t n;

	for (size_t i = 0; i < s->n_brackets; i++)
		while (is_complete(s, i, &n))
			halve_bracket(s, i, n);
}

static int
hyperband_report(struct sched *s, uint32_t trial, struct sched_decision *ret, struct pawl_error *err)
{
	struct sched_trial *t = &s->trials[trial];
	const struct sched_bracket *b = &s->brackets[t->bracket];

	(void)err;
	if (t->time < b->rungs[b->level].time)
		return 0;
	if (t->time >= s->opts.max_time) {
		ret->verdict = SCHED_STOP;
		return 0;
	}
	halve_brackets(s);
	if (t->stopped)
		ret->verdict = SCHED_STOP;
	else if (!t->go_on)
		ret->verdict = SCHED_PAUSE;
	return 0;
}

const struct sched_algorithm sched_hyperband = {.name = "hyperband",
                                                .init = hyperband_init,
                                                .add = add_trial,
                                                .report = hyperband_report,
                                                .settle = halve_brackets};
