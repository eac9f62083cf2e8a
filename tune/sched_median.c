/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched_median: stops a trial whose best metric so far is worse than the median of the other
 * trials' averages up to the same time. Source: Golovin et al., Google Vizier: A Service for
 * Black-Box Optimization, KDD 2017, section 3.2.2. There the others are completed trials. Here
 * trials run in parallel, so all trials that have reached that time count.
 */
#include <math.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/vec.h"
#include "sched_own.h"

static int
remember_score(struct sched_trial *t, struct pawl_error *err)
{
	size_t room = t->cap_reports; /* both arrays grow alike */

	if (!array_reserve(t->times, room, t->n_reports + 1) ||
	    !array_reserve(t->sums, t->cap_reports, t->n_reports + 1))
		return err_nomem(err, NULL);
	t->times[t->n_reports] = t->time;
	t->sums[t->n_reports] = (t->n_reports ? t->sums[t->n_reports - 1] : 0) + t->metric;
	t->n_reports++;
	return 0;
}

/* Mean of the reports up to a time; at least one exists. */
static double
mean_until(const struct sched_trial *t, double time)
{
	size_t low = 0, high = t->n_reports;

	while (low + 1 < high) {
		const size_t middle = low + (high - low) / 2;
		if (t->times[middle] <= time)
			low = middle;
		else
			high = middle;
	}
	return t->sums[low] / (double)(low + 1);
}

static int
compare_doubles(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static int
median_report(struct sched *s, uint32_t trial, struct sched_decision *ret, struct pawl_error *err)
{
	struct sched_trial *t = &s->trials[trial];
	size_t n = 0;

	TRY(remember_score(t, err));
	if (t->time < s->opts.grace)
		return 0;
	PAWL_FREE double *means = mem_alloc(s->n_trials * sizeof(*means));
	if (!means)
		return err_nomem(err, NULL);
	for (size_t i = 0; i < s->n_trials; i++) {
		const struct sched_trial *other = &s->trials[i];
		if (i != trial && other->n_reports && other->time >= t->time && other->times[0] <= t->time)
			means[n++] = mean_until(other, t->time);
	}
	if (n >= s->opts.min_samples) {
		qsort(means, n, sizeof(*means), compare_doubles);
		const double median = n % 2 ? means[n / 2] : (means[n / 2 - 1] + means[n / 2]) / 2;
		if (t->best < median)
			ret->verdict = s->opts.hard_stop ? SCHED_STOP : SCHED_PAUSE;
	}
	return 0;
}

/* A paused trial runs again when no other trial needs the place; it does not wait for other
 * trials. */
static void
resume_paused(struct sched *s)
{
	for (size_t i = 0; i < s->n_trials; i++)
		s->trials[i].go_on = s->trials[i].paused;
}

const struct sched_algorithm sched_median = {
	.name = "median stopping", .report = median_report, .settle = resume_paused};
