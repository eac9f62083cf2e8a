/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched_pbt: population based training (Jaderberg et al., Population Based Training of Neural
 * Networks, 2017, algorithm 1 and section 4.1: truncation selection, perturbing and resampling).
 * Every `interval` a trial is ranked by its metric among all live trials that have been ranked
 * once. A trial of the lowest quantile continues from the checkpoint of a random trial of the
 * highest, with changed hyperparameters. A trial of the highest quantile saves, because others may
 * continue from it. If there are more trials than places, they take turns from one perturbation to
 * the next, so that all advance together.
 */
#include <math.h>

#include "base/err.h"
#include "sched_own.h"

static int
pbt_init(struct sched *s, struct pawl_error *err)
{
	if (s->opts.n_mutations == 0 && !s->opts.custom_explore)
		return err_set(err, PAWL_EUSAGE, "scheduler: pbt needs a hyperparameter to mutate, found none");
	return 0;
}

static int
add_trial(struct sched *s, uint32_t trial, struct pawl_error *err)
{
	(void)err;
	s->trials[trial].score = NAN; /* not ranked yet */
	return 0;
}

/* An ended trial does not belong to the population: a trial that continued from it would have
 * nothing left to train. */
static bool
is_ranked(const struct sched_trial *t)
{
	return !isnan(t->score) && !t->stopped && !t->ended;
}

/* Counts trials with a better score, or an equal score and a lower number. *n: all ranked
 * trials. */
static size_t
place_of(const struct sched *s, uint32_t trial, size_t *n)
{
	size_t better = 0;

	*n = 0;
	for (uint32_t i = 0; i < s->n_trials; i++) {
		const struct sched_trial *other = &s->trials[i];
		if (!is_ranked(other))
			continue;
		++*n;
		if (i != trial &&
		    (other->score > s->trials[trial].score || (other->score == s->trials[trial].score && i < trial)))
			better++;
	}
	return better;
}

/* Members of each quantile. */
static size_t
quantile_size(const struct sched *s, size_t n)
{
	size_t size = n > 1 ? (size_t)ceil((double)n * s->opts.quantile) : 0;

	return size > n / 2 ? n / 2 : size;
}

/* Draws one of the best `size` at random. */
static uint32_t
choose_donor(struct sched *s, size_t size)
{
	const size_t wanted = (size_t)(sched_draw(s) * (double)size);
	size_t n;

	for (uint32_t i = 0; i < s->n_trials; i++)
		if (is_ranked(&s->trials[i]) && place_of(s, i, &n) == wanted)
			return i;
	return 0;
}

static double
draw_anew(struct sched *s, const struct sched_mutation *m)
{
	const double x = sched_draw(s);

	if (m->n_choices)
		return floor(x * m->n_choices);
	const double value =
		m->log_scale ? exp(log(m->low) + x * (log(m->high) - log(m->low))) : m->low + x * (m->high - m->low);
	return m->whole ? fmin(floor(value), m->high - 1) : value;
}

static double
explore_value(struct sched *s, const struct sched_mutation *m, double value)
{
	const bool anew = sched_draw(s) < s->opts.resample, up = sched_draw(s) < 0.5;

	if (anew)
		return draw_anew(s, m);
	if (m->n_choices) {
		value += up ? 1 : -1;
		return value < 0 ? 0 : value >= m->n_choices ? m->n_choices - 1 : value;
	}
	value *= up ? s->opts.factor_up : s->opts.factor_down;
	return m->whole ? rint(value) : value;
}

/* Chooses the donor and the new values. The trial keeps its score until it reports with the new
 * values; no trial exploits it before that. */
static void
exploit_donor(struct sched *s, uint32_t trial, size_t size)
{
	struct sched_trial *t = &s->trials[trial];

	t->exploits = true;
	t->donor = choose_donor(s, size);
	for (size_t i = 0; i < s->opts.n_mutations; i++)
		t->values[i] = explore_value(s, &s->mutations[i], s->trials[t->donor].values[i]);
}

/* synchronous: once all live trials have reached their perturbation, they are ranked together and
 * continue. */
static void
rank_together(struct sched *s)
{
	size_t n;

	if (!s->opts.synchronous || !s->closed)
		return; /* with part of the population, the result would depend on which trial was fast */
	for (size_t i = 0; i < s->n_trials; i++)
		if (!s->trials[i].ended && !s->trials[i].stopped && (!s->trials[i].paused || s->trials[i].go_on))
			return;
	for (uint32_t i = 0; i < s->n_trials; i++) {
		if (!s->trials[i].paused)
			continue;
		s->trials[i].go_on = true;
		const size_t place = place_of(s, i, &n), size = quantile_size(s, n);
		if (place >= n - size)
			exploit_donor(s, i, size);
	}
}

static void
rank_alone(struct sched *s, uint32_t trial, struct sched_decision *ret)
{
	size_t n, place = place_of(s, trial, &n), size = quantile_size(s, n);

	if (size && place < size)
		ret->save = true;
	if (size && place >= n - size)
		exploit_donor(s, trial, size);
}

static int
pbt_report(struct sched *s, uint32_t trial, struct sched_decision *ret, struct pawl_error *err)
{
	struct sched_trial *t = &s->trials[trial];

	(void)err;
	if (t->time < s->opts.burn_in || t->time - t->perturbed < s->opts.interval)
		return 0;
	t->perturbed = t->time;
	t->score = t->metric;
	if (s->opts.synchronous) {
		t->paused = true;
		rank_together(s);
		ret->verdict = SCHED_PAUSE; /* the last one, too: others may continue from what it saves now */
		return 0;
	}
	rank_alone(s, trial, ret);
	if (t->exploits) {
		*ret = (struct sched_decision){SCHED_EXPLOIT, false, t->donor, t->values};
	} else if (s->opts.takes_turns && t->others_wait) {
		t->go_on = true; /* as soon as its turn comes */
		ret->verdict = SCHED_PAUSE;
	}
	return 0;
}

/* Chooses the trial whose last perturbation is the longest ago; a trial that has not begun has had
 * none. */
static int64_t
next_turn(const struct sched *s, const struct sched_candidate *candidates, size_t n, bool may_add)
{
	const struct sched_candidate *best = NULL;

	for (size_t i = 0; i < n; i++)
		if (sched_may_run(s, &candidates[i]) &&
		    (!best || s->trials[candidates[i].trial].perturbed < s->trials[best->trial].perturbed))
			best = &candidates[i];
	if (may_add && (!best || s->trials[best->trial].perturbed > 0))
		return (int64_t)n;
	return best ? best - candidates : -1;
}

static int64_t
pbt_next(const struct sched *s, const struct sched_candidate *candidates, size_t n, bool may_add)
{
	return (s->opts.takes_turns ? next_turn : sched_next_furthest)(s, candidates, n, may_add);
}

const struct sched_algorithm sched_pbt = {.name = "pbt",
                                          .init = pbt_init,
                                          .add = add_trial,
                                          .report = pbt_report,
                                          .settle = rank_together,
                                          .next = pbt_next};
