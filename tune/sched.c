/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched: the common part of all schedulers: the trials and their reports.
 *
 * Pure: the state is a function of the reports; chance is a seed and a counter.
 */
#include "sched.h"

#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/mix.h"
#include "base/vec.h"
#include "sched_own.h"

#define SCHED_MAX_TRIALS 10000000u

PAWL_DEFINE_CLEAN(struct sched, sched_free);

const struct sched_algorithm sched_fifo = {.name = "fifo"};

/* SplitMix64 of a counter, so that a sequence needs no state except its length. */
double
sched_draw(struct sched *s)
{
	return mix_unit(mix_bits(s->opts.seed + ++s->drawn * MIX_STEP));
}

static int
check_range(const char *name, double value, double least, double most, struct pawl_error *err)
{
	if (value >= least && value <= most)
		return 0;
	return err_set(err, PAWL_EUSAGE, "scheduler: %s must be %g to %g, found %g", name, least, most, value);
}

void
sched_set_defaults(struct sched_opts *o)
{
	const bool halves = o->algorithm == &sched_hyperband && !o->in_step;

	if (o->complete)
		return;
	o->complete = true;
	if (o->grace == 0)
		o->grace = 1;
	if (o->max_time == 0)
		o->max_time = halves ? 81 : 100;
	if (o->reduction == 0)
		o->reduction = halves ? 3 : 4;
	if (o->brackets == 0)
		o->brackets = 1;
	if (o->min_samples == 0)
		o->min_samples = 3;
	if (o->interval == 0)
		o->interval = 60;
	if (o->quantile == 0)
		o->quantile = 0.25;
	if (o->resample < 0)
		o->resample = 0.25;
	if (o->factor_up == 0)
		o->factor_up = 1.2;
	if (o->factor_down == 0)
		o->factor_down = 0.8;
}

static int
check_opts(const struct sched_opts *o, struct pawl_error *err)
{
	const bool has_rungs = o->algorithm == &sched_asha || o->in_step; /* multiples of grace */

	TRY(check_range("grace", o->grace, has_rungs ? 1e-9 : 0, HUGE_VAL, err));
	TRY(check_range("reduction", o->reduction, 1.0 + 1e-9, 1e6, err));
	TRY(check_range("max_time", o->max_time, has_rungs ? o->grace : 1, 1e15, err));
	TRY(check_range("interval", o->interval, 1e-9, HUGE_VAL, err));
	TRY(check_range("quantile", o->quantile, 0, 0.5, err));
	TRY(check_range("resample", o->resample, 0, 1, err));
	for (size_t i = 0; i < o->n_mutations; i++) {
		const struct sched_mutation *m = &o->mutations[i];
		if (m->n_choices == 0 && !(m->low < m->high && (!m->log_scale || m->low > 0)))
			return err_set(err, PAWL_EUSAGE,
			               "scheduler: the range of '%s' must have its lower end first%s, found %g to %g",
			               m->name, m->log_scale ? " and above 0" : "", m->low, m->high);
	}
	return 0;
}

static int
prepare_sched(struct sched *s, const struct sched_opts *opts, struct pawl_error *err)
{
	s->opts = *opts;
	if (!s->opts.algorithm)
		s->opts.algorithm = &sched_fifo;
	sched_set_defaults(&s->opts);
	TRY(check_opts(&s->opts, err));
	if (opts->n_mutations) {
		s->mutations = mem_zalloc(opts->n_mutations, sizeof(*s->mutations));
		s->values = mem_zalloc(opts->n_mutations, sizeof(*s->values));
		if (!s->mutations || !s->values)
			return err_nomem(err, NULL);
		memcpy(s->mutations, opts->mutations, opts->n_mutations * sizeof(*s->mutations));
	}
	s->opts.mutations = s->mutations;
	return s->opts.algorithm->init ? s->opts.algorithm->init(s, err) : 0;
}

int
sched_new(const struct sched_opts *opts, struct sched **ret, struct pawl_error *err)
{
	PAWL_CLEAN(sched_free_clean) struct sched *s = mem_zalloc(1, sizeof(*s));

	if (!s)
		return err_nomem(err, NULL);
	TRY(prepare_sched(s, opts, err));
	*ret = steal(&s);
	return 0;
}

void
sched_free(struct sched *s)
{
	if (!s)
		return;
	for (size_t i = 0; i < s->n_brackets; i++) {
		for (size_t k = 0; k < s->brackets[i].n_rungs; k++)
			mem_free(s->brackets[i].rungs[k].metrics);
		mem_free(s->brackets[i].rungs);
	}
	for (size_t i = 0; i < s->n_trials; i++) {
		mem_free(s->trials[i].values);
		mem_free(s->trials[i].times);
		mem_free(s->trials[i].sums);
	}
	mem_free(s->brackets);
	mem_free(s->trials);
	mem_free(s->mutations);
	mem_free(s->values);
	mem_free(s);
}

double
sched_rung_time(double time)
{
	const double whole = rint(time);

	return fabs(time - whole) <= 1e-9 * fabs(whole) ? whole : time;
}

int
sched_rung_put(struct sched_rung *rung, double metric, struct pawl_error *err)
{
	size_t low = 0, high = rung->n;

	if (!array_reserve(rung->metrics, rung->cap, rung->n + 1))
		return err_nomem(err, NULL);
	while (low < high) { /* the first greater one */
		const size_t middle = low + (high - low) / 2;
		if (rung->metrics[middle] > metric)
			high = middle;
		else
			low = middle + 1;
	}
	memmove(&rung->metrics[low + 1], &rung->metrics[low], (rung->n - low) * sizeof(*rung->metrics));
	rung->metrics[low] = metric;
	rung->n++;
	return 0;
}

int
sched_bracket_add(struct sched *s, size_t n_rungs, struct sched_bracket **ret, struct pawl_error *err)
{
	if (!array_reserve(s->brackets, s->cap_brackets, s->n_brackets + 1))
		return err_nomem(err, NULL);
	struct sched_bracket *b = &s->brackets[s->n_brackets];
	*b = (struct sched_bracket){.rungs = mem_zalloc(n_rungs ? n_rungs : 1, sizeof(*b->rungs)), .n_rungs = n_rungs};
	if (!b->rungs)
		return err_nomem(err, NULL);
	s->n_brackets++;
	*ret = b;
	return 0;
}

int
sched_add(struct sched *s, uint32_t trial, const double *values, struct pawl_error *err)
{
	if (trial != s->n_trials || trial >= SCHED_MAX_TRIALS)
		return err_set(err, PAWL_EUSAGE, "scheduler: expected trial %zu next, found %u", s->n_trials, trial);
	if (!array_reserve(s->trials, s->cap_trials, s->n_trials + 1))
		return err_nomem(err, NULL);
	struct sched_trial *t = &s->trials[trial];
	*t = (struct sched_trial){.known = true, .time = -HUGE_VAL, .metric = -HUGE_VAL, .best = -HUGE_VAL};
	if (s->opts.n_mutations) {
		t->values = mem_zalloc(s->opts.n_mutations, sizeof(*t->values));
		if (!t->values)
			return err_nomem(err, NULL);
		if (values)
			memcpy(t->values, values, s->opts.n_mutations * sizeof(*t->values));
	}
	s->n_trials++;
	return s->opts.algorithm->add ? s->opts.algorithm->add(s, trial, err) : 0;
}

int
sched_report(struct sched *s, uint32_t trial, double time, double metric, bool others_wait, struct sched_decision *ret,
             struct pawl_error *err)
{
	const struct sched_algorithm *algorithm = s->opts.algorithm;

	*ret = (struct sched_decision){.verdict = SCHED_CONTINUE};
	if (trial >= s->n_trials)
		return err_set(err, PAWL_EUSAGE, "scheduler: a report of trial %u, known are %zu", trial, s->n_trials);
	struct sched_trial *t = &s->trials[trial];
	if (t->ended || t->stopped) {
		ret->verdict = SCHED_STOP;
		return 0;
	}
	if (!(time > t->time))
		return 0; /* it resumed from an older checkpoint: this time is known */
	t->paused = t->go_on = t->exploits = false;
	t->others_wait = others_wait;
	t->time = time;
	t->metric = !isfinite(metric) ? -HUGE_VAL : s->opts.maximize ? metric : -metric;
	if (t->metric > t->best)
		t->best = t->metric;
	if (algorithm->report)
		TRY(algorithm->report(s, trial, ret, err));
	t->paused = ret->verdict == SCHED_PAUSE;
	if (ret->verdict == SCHED_STOP) {
		t->stopped = true;
		if (algorithm->settle)
			algorithm->settle(s);
	}
	return 0;
}

void
sched_end(struct sched *s, uint32_t trial)
{
	if (trial >= s->n_trials || s->trials[trial].ended)
		return;
	s->trials[trial].ended = true;
	s->trials[trial].paused = false;
	if (s->opts.algorithm->settle)
		s->opts.algorithm->settle(s);
}

void
sched_revive(struct sched *s, uint32_t trial)
{
	if (trial < s->n_trials)
		s->trials[trial].ended = s->trials[trial].stopped = false;
}

void
sched_exploited(struct sched *s, uint32_t trial, uint32_t donor, double at)
{
	struct sched_trial *t = trial < s->n_trials ? &s->trials[trial] : NULL;

	if (!t || donor >= s->n_trials)
		return;
	t->exploits = false;
	if (s->opts.algorithm != &sched_pbt)
		return;
	t->time = at;
	t->perturbed = fmin(s->trials[donor].perturbed, at); /* the state may be older than the perturbation */
}

void
sched_decline(struct sched *s, uint32_t trial, const double *values)
{
	if (trial >= s->n_trials)
		return;
	s->trials[trial].exploits = false;
	if (s->opts.n_mutations)
		memcpy(s->trials[trial].values, values, s->opts.n_mutations * sizeof(*values));
}

void
sched_close(struct sched *s)
{
	s->closed = true;
	if (s->opts.algorithm->settle)
		s->opts.algorithm->settle(s);
}

void
sched_paused(const struct sched *s, uint32_t trial, struct sched_decision *ret)
{
	const struct sched_trial *t = trial < s->n_trials ? &s->trials[trial] : NULL;

	*ret = (struct sched_decision){.verdict = SCHED_CONTINUE};
	if (!t || t->stopped || t->ended)
		ret->verdict = SCHED_STOP;
	else if (t->paused && !t->go_on)
		ret->verdict = SCHED_PAUSE;
	else if (t->paused && t->exploits)
		*ret = (struct sched_decision){SCHED_EXPLOIT, false, t->donor, t->values};
}

bool
sched_may_run(const struct sched *s, const struct sched_candidate *candidate)
{
	struct sched_decision what;

	if (!candidate->paused)
		return true;
	sched_paused(s, candidate->trial, &what);
	return what.verdict != SCHED_PAUSE && what.verdict != SCHED_STOP;
}

int64_t
sched_next_furthest(const struct sched *s, const struct sched_candidate *candidates, size_t n, bool may_add)
{
	const struct sched_candidate *best = NULL;

	for (size_t i = 0; i < n; i++) {
		const struct sched_candidate *one = &candidates[i];
		if (one->interrupted)
			return (int64_t)i;
		if (sched_may_run(s, one) &&
		    (!best ||
		     (one->paused && (!best->paused || s->trials[one->trial].time > s->trials[best->trial].time))))
			best = one;
	}
	return best ? best - candidates : may_add ? (int64_t)n : -1;
}

int64_t
sched_next(const struct sched *s, const struct sched_candidate *candidates, size_t n, bool may_add)
{
	const struct sched_algorithm *algorithm = s->opts.algorithm;

	return (algorithm->next ? algorithm->next : sched_next_furthest)(s, candidates, n, may_add);
}
