/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The schedulers against the small examples of their papers, and over random histories. Oracles for
 * these are written down naively from the papers: every report of every trial, in any order, with
 * ends, metrics that are not finite and trials that return to an older checkpoint.
 */
#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "helpers/sched_bed.h"

#define N_HISTORIES 300u
#define MAX_TRIALS 40u
#define MAX_TIME 64u

/* ---- numbers that are the same on every machine ---- */

static uint64_t drawn;

static uint32_t
draw(uint32_t n)
{
	drawn = drawn * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)((drawn >> 33) % n);
}

static double
draw_metric(void)
{
	const uint32_t what = draw(50);

	return what == 0 ? NAN : what == 1 ? (double)INFINITY : (double)draw(20) - 10; /* ties are frequent */
}

static enum sched_verdict
paused(const struct sched *s, uint32_t trial)
{
	struct sched_decision what;

	sched_paused(s, trial, &what);
	return what.verdict;
}

/* As the schedulers see a metric: larger is better, what is not finite is the worst. */
static double
seen(double metric, bool maximize)
{
	return !isfinite(metric) ? -HUGE_VAL : maximize ? metric : -metric;
}

/* ---- HyperBand ---- */

/* Table 1 of the paper (R = 81, eta = 3): of each bracket s = 4 .. 0 the trials and the resources
 * of each rung, by its algorithm 1: n = ceil((s_max + 1) / (s + 1) * eta^s), then floor(n / eta).
 * All five brackets at once. The best are those with the largest numbers. */
static void
test_hyperband_has_the_table_of_its_paper(void **state)
{
	static const struct {
		unsigned n[5], r[5], n_rungs;
	} table[] = {
		{{81, 27, 9, 3, 1}, {1, 3, 9, 27, 81}, 5},
		{{34, 11, 3, 1}, {3, 9, 27, 81}, 4},
		{{15, 5, 1}, {9, 27, 81}, 3},
		{{8, 2}, {27, 81}, 2},
		{{5}, {81}, 1},
	};
	const struct sched_opts opts = {.algorithm = &sched_hyperband, .maximize = true};
	struct sched *s = make(opts, 143);
	unsigned first = 0;

	(void)state;
	for (unsigned b = 0; b < 5; first += table[b++].n[0]) {
		for (unsigned rung = 0; rung < table[b].n_rungs; rung++) {
			const unsigned n = table[b].n[0], left = table[b].n[rung];
			for (unsigned i = n - left; i < n; i++) {
				const bool is_last = i == n - 1, ends = rung + 1 == table[b].n_rungs;
				if (table[b].r[rung] > 1) /* just before the rung no trial is stopped */
					assert_int_equal(decide(s, first + i, table[b].r[rung] - 0.5, i).verdict,
					                 SCHED_CONTINUE);
				assert_int_equal(decide(s, first + i, table[b].r[rung], i).verdict,
				                 ends      ? SCHED_STOP
				                 : is_last ? SCHED_CONTINUE
				                           : SCHED_PAUSE);
			}
			for (unsigned i = 0; i < n && rung + 1 < table[b].n_rungs; i++)
				assert_int_equal(paused(s, first + i),
				                 i >= n - table[b].n[rung + 1] ? SCHED_CONTINUE : SCHED_STOP);
		}
	}
	sched_free(s);
}

/* Figure 1 of the paper of ASHA: successive halving with n = 9, r = 1, R = 9, eta = 3. Bracket s
 * begins with 9 trials at r * eta^s, then 3, then 1. */
static void
test_successive_halving_has_the_figure_of_its_paper(void **state)
{
	(void)state;
	for (unsigned bracket = 0; bracket < 3; bracket++) {
		const struct sched_opts opts = {.algorithm = &sched_hyperband,
		                                .in_step = true,
		                                .maximize = true,
		                                .grace = pow(3, bracket),
		                                .max_time = 9,
		                                .reduction = 3};
		struct sched *s = make(opts, 9);
		double time = opts.grace;
		sched_close(s);
		for (unsigned n = 9; time < 9; n /= 3, time *= 3) {
			for (unsigned i = 9 - n; i < 9; i++)
				decide(s, i, time, i);
			for (unsigned i = 0; i < 9; i++)
				assert_int_equal(paused(s, i), i >= 9 - n / 3 ? SCHED_CONTINUE : SCHED_STOP);
		}
		for (unsigned i = 0; i < 9; i++)
			assert_int_equal(decide(s, i, 9, i).verdict, SCHED_STOP);
		sched_free(s);
	}
}

/* Nine trials, rungs 1, 3, 9, 27. Trials 1 to 8 report their number at 1. Trial 0 has jumped over
 * rungs: its report counts at each of them, and it waits at those that the others have not reached
 * yet. */
static void
test_a_report_counts_at_every_rung_that_it_jumps_over(void **state)
{
	static const struct {
		double time, metric;         /* of trial 0 */
		enum sched_verdict at_first; /* the answer to it */
		enum sched_verdict after[4]; /* of trials 0, 8, 7 and 6, once all have reached 1 */
		enum sched_verdict at_last;  /* of trial 0, once those that continued have reached 3 */
	} rows[] = {
		{1, 100, SCHED_PAUSE, {SCHED_CONTINUE, SCHED_CONTINUE, SCHED_CONTINUE, SCHED_STOP}, SCHED_CONTINUE},
		{2, 100, SCHED_PAUSE, {SCHED_CONTINUE, SCHED_CONTINUE, SCHED_CONTINUE, SCHED_STOP}, SCHED_CONTINUE},
		{3, 100, SCHED_PAUSE, {SCHED_PAUSE, SCHED_CONTINUE, SCHED_CONTINUE, SCHED_STOP}, SCHED_CONTINUE},
		{10, 100, SCHED_PAUSE, {SCHED_PAUSE, SCHED_CONTINUE, SCHED_CONTINUE, SCHED_STOP}, SCHED_CONTINUE},
		{10, 7.5, SCHED_PAUSE, {SCHED_PAUSE, SCHED_CONTINUE, SCHED_CONTINUE, SCHED_STOP}, SCHED_STOP},
		{10, 6, SCHED_PAUSE, {SCHED_PAUSE, SCHED_CONTINUE, SCHED_CONTINUE, SCHED_STOP}, SCHED_STOP}, /* older */
		{10, 0, SCHED_PAUSE, {SCHED_STOP, SCHED_CONTINUE, SCHED_CONTINUE, SCHED_CONTINUE}, SCHED_STOP},
		{10, NAN, SCHED_PAUSE, {SCHED_STOP, SCHED_CONTINUE, SCHED_CONTINUE, SCHED_CONTINUE}, SCHED_STOP},
		{27, 100, SCHED_STOP, {SCHED_STOP, SCHED_CONTINUE, SCHED_CONTINUE, SCHED_STOP}, SCHED_STOP},
		{30, 0, SCHED_STOP, {SCHED_STOP, SCHED_CONTINUE, SCHED_CONTINUE, SCHED_CONTINUE}, SCHED_STOP},
	};
	const struct sched_opts opts = {
		.algorithm = &sched_hyperband, .in_step = true, .maximize = true, .max_time = 27, .reduction = 3};

	(void)state;
	for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
		struct sched *s = make(opts, 9);
		sched_close(s);
		assert_int_equal(decide(s, 0, rows[r].time, rows[r].metric).verdict, rows[r].at_first);
		if (r % 2) /* it has ended, too: its result stays */
			sched_end(s, rows[r].at_first == SCHED_STOP ? 0 : 99);
		for (unsigned i = 1; i < 9; i++)
			decide(s, i, 1, i);
		assert_int_equal(paused(s, 0), rows[r].after[0]);
		for (unsigned i = 1; i < 4; i++)
			assert_int_equal(paused(s, 9 - i), rows[r].after[i]);
		for (unsigned i = 1; i < 4; i++)
			if (rows[r].after[i] == SCHED_CONTINUE)
				decide(s, 9 - i, 3, 9 - i);
		if (rows[r].time < 3)
			decide(s, 0, 3, rows[r].metric);
		assert_int_equal(paused(s, 0), rows[r].at_last);
		assert_int_equal(paused(s, 8), rows[r].metric == 100 ? SCHED_STOP : SCHED_CONTINUE);
		sched_free(s);
	}
}

/* All have jumped over all rungs but the last. They are compared at each of them, and no trial
 * waits forever. */
static void
test_a_bracket_that_has_jumped_over_its_rungs_goes_on(void **state)
{
	const struct sched_opts opts = {
		.algorithm = &sched_hyperband, .in_step = true, .maximize = true, .max_time = 27, .reduction = 3};
	struct sched *s = make(opts, 9);

	(void)state;
	sched_close(s);
	for (unsigned i = 0; i < 8; i++)
		assert_int_equal(decide(s, i, 10 + i, i).verdict, SCHED_PAUSE);
	assert_int_equal(decide(s, 8, 9, 8).verdict, SCHED_CONTINUE);
	for (unsigned i = 0; i < 8; i++)
		assert_int_equal(paused(s, i), SCHED_STOP);
	sched_free(s);
}

/* 50 * 1.1 is a little more than 55 in floating point; a report at 55 has reached that rung. 60.5
 * stays as it is: 61 is the first integer there. */
static void
test_rungs_are_exact_where_they_are_whole_numbers(void **state)
{
	static const struct sched_opts kinds[] = {
		{.algorithm = &sched_hyperband, .in_step = true, .maximize = true, .grace = 50, .reduction = 1.1},
		{.algorithm = &sched_asha, .maximize = true, .grace = 50, .reduction = 1.1},
	};

	(void)state;
	for (size_t k = 0; k < 2; k++) {
		const bool waits = k == 0;
		struct sched *s = make(kinds[k], 4);
		sched_close(s);
		for (unsigned i = 0; i < 3; i++)
			assert_int_equal(decide(s, i, 50, 1).verdict, waits ? SCHED_PAUSE : SCHED_CONTINUE);
		assert_int_equal(decide(s, 3, 50, 1).verdict, waits ? SCHED_STOP : SCHED_CONTINUE);
		assert_int_equal(decide(s, 0, 55, 1).verdict, waits ? SCHED_PAUSE : SCHED_CONTINUE);
		assert_int_equal(decide(s, 1, 55, 0).verdict, waits ? SCHED_PAUSE : SCHED_STOP);
		if (waits) {
			assert_int_equal(decide(s, 2, 55, 1).verdict, SCHED_CONTINUE); /* 2 of 3 */
			assert_int_equal(paused(s, 1), SCHED_STOP);
			assert_int_equal(decide(s, 0, 60, 1).verdict, SCHED_CONTINUE);
			assert_int_equal(decide(s, 0, 61, 1).verdict, SCHED_PAUSE);
		}
		sched_free(s);
	}
}

struct run {
	double time, metric;
	bool over, waits;
};

/* Plays trials in a random order, each waiting on the verdict PAUSE, until all are over. A waiting
 * one continues or is dropped. At each rung all live trials of a bracket are compared, and the kept
 * ones are the best. */
static void
play_rungs(const struct sched_opts *opts, unsigned n_trials)
{
	struct sched *s = make(*opts, n_trials);
	struct run runs[MAX_TRIALS] = {0};
	unsigned n_over = 0, idle = 0;

	for (unsigned i = 0; i < n_trials; i++)
		runs[i].metric = seen(draw_metric(), opts->maximize); /* the same at each rung */
	sched_close(s);
	while (n_over < n_trials) {
		const uint32_t i = draw(n_trials);
		enum sched_verdict verdict;
		if (runs[i].over)
			continue;
		verdict = paused(s, i);
		if (runs[i].waits && verdict == SCHED_PAUSE) {
			bool somebody = false; /* may any trial run? else it waits forever */
			for (unsigned k = 0; k < n_trials; k++)
				somebody |= !runs[k].over && paused(s, k) != SCHED_PAUSE;
			assert_true(somebody);
			assert_true(++idle < 1000000);
			continue;
		}
		if (verdict == SCHED_STOP) { /* dropped: so many others of the same rung were no worse */
			unsigned no_worse = 0;
			assert_true(runs[i].waits);
			for (unsigned k = 0; k < n_trials; k++)
				no_worse += k != i && runs[k].metric >= runs[i].metric;
			assert_true(no_worse >= 1);
			runs[i].over = true;
			n_over++;
			continue;
		}
		if (draw(40) == 0) {
			sched_end(s, i);
			runs[i].over = true;
			n_over++;
			continue;
		}
		runs[i].time++;
		runs[i].waits = false;
		verdict = decide(s, i, runs[i].time, opts->maximize ? runs[i].metric : -runs[i].metric).verdict;
		assert_true(runs[i].time <= opts->max_time);
		runs[i].waits = verdict == SCHED_PAUSE;
		if (verdict == SCHED_STOP) {
			runs[i].over = true;
			n_over++;
		}
		assert_true(runs[i].time < opts->max_time || verdict == SCHED_STOP);
		if (draw(10) == 0 && runs[i].time > 1) /* from an older checkpoint: it is known, and changes nothing */
			assert_true(decide(s, i, runs[i].time - 1, 1e9).verdict ==
			            (verdict == SCHED_STOP ? SCHED_STOP : SCHED_CONTINUE));
	}
	sched_free(s);
}

static void
test_rungs_in_step_end_in_every_order(void **state)
{
	(void)state;
	drawn = 1;
	for (unsigned i = 0; i < N_HISTORIES; i++) {
		struct sched_opts opts = {.algorithm = &sched_hyperband,
		                          .maximize = draw(2) != 0,
		                          .in_step = draw(2) != 0,
		                          .max_time = 1 + draw(MAX_TIME),
		                          .reduction = 1.5 + draw(4)};
		play_rungs(&opts, 1 + draw(MAX_TRIALS));
	}
}

/* ---- ASHA ---- */

struct naive_rung {
	double time, metrics[MAX_TRIALS];
	unsigned n;
	bool has[MAX_TRIALS];
};

static int
by_value(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* The value below which there is a share q of them, with linear interpolation. */
static double
naive_quantile(const double *values, unsigned n, double q)
{
	double sorted[MAX_TRIALS], at = q * (n - 1), part = at - floor(at);
	const unsigned low = (unsigned)at;

	memcpy(sorted, values, n * sizeof(*values));
	qsort(sorted, n, sizeof(*sorted), by_value);
	if (part <= 0 || !isfinite(sorted[low]))
		return sorted[low];
	return sorted[low] + part * (sorted[low + 1] - sorted[low]);
}

/* The highest rung that the trial has reached and not been measured at decides: below the quantile
 * it stops. */
static void
test_asha_is_its_naive_form_over_random_histories(void **state)
{
	(void)state;
	drawn = 2;
	for (unsigned history = 0; history < N_HISTORIES; history++) {
		const struct sched_opts opts = {.algorithm = &sched_asha,
		                                .maximize = draw(2) != 0,
		                                .grace = 1 + draw(3),
		                                .max_time = 4 + draw(MAX_TIME),
		                                .reduction = 2 + draw(3)};
		const unsigned n_trials = 1 + draw(MAX_TRIALS);
		struct sched *s = make(opts, n_trials);
		struct naive_rung rungs[16] = {0};
		double times[MAX_TRIALS] = {0};
		bool over[MAX_TRIALS] = {false};
		unsigned n_rungs = 0;

		for (double time = opts.grace; time <= opts.max_time; time *= opts.reduction)
			rungs[n_rungs++].time = time;
		for (unsigned step = 0; step < 1000; step++) {
			const uint32_t i = draw(n_trials);
			const double metric = draw_metric(), value = seen(metric, opts.maximize);
			bool stops = over[i];
			times[i] += over[i] ? 0 : 1 + draw(4);
			for (unsigned k = n_rungs; k-- > 0 && !over[i];) {
				struct naive_rung *rung = &rungs[k];
				if (times[i] < rung->time)
					continue;
				if (!rung->has[i]) {
					stops = !isfinite(value) ||
					        (rung->n && value < naive_quantile(rung->metrics, rung->n,
					                                           1 - 1 / opts.reduction));
					rung->metrics[rung->n++] = value;
					rung->has[i] = true;
				}
				break;
			}
			stops |= times[i] >= opts.max_time;
			assert_int_equal(decide(s, i, times[i], metric).verdict, stops ? SCHED_STOP : SCHED_CONTINUE);
			over[i] |= stops;
		}
		sched_free(s);
	}
}

/* ---- the median rule ---- */

/* Vizier, section 3.2.2: at step t a trial stops if its best objective is strictly worse than the
 * median of the running averages of the others up to t. Three others with the averages 2, 4 and 9
 * at step 3; one of them ran backwards. */
static void
test_the_median_rule_by_hand(void **state)
{
	static const double others[3][3] = {{1, 2, 3}, {4, 4, 4}, {12, 9, 6}};
	static const struct {
		double metrics[3];
		enum sched_verdict verdict; /* at step 3 */
	} rows[] = {
		{{0, 0, 0}, SCHED_STOP},       {{3.9, 0, 0}, SCHED_STOP},   {{4, 0, 0}, SCHED_CONTINUE}, /* not worse */
		{{0, 0, 4.1}, SCHED_CONTINUE}, {{0, 5, 0}, SCHED_CONTINUE}, /* its best, not its last */
		{{0, NAN, 3}, SCHED_STOP},
	};

	(void)state;
	for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
		const struct sched_opts opts = {
			.algorithm = &sched_median, .maximize = true, .grace = 3, .hard_stop = true};
		struct sched *s = make(opts, 4);
		for (unsigned i = 0; i < 3; i++)
			for (unsigned t = 1; t <= 3; t++)
				decide(s, i, t, others[i][t - 1]);
		for (unsigned t = 1; t <= 3; t++)
			assert_int_equal(decide(s, 3, t, rows[r].metrics[t - 1]).verdict,
			                 t < 3 ? SCHED_CONTINUE : rows[r].verdict);
		sched_free(s);
	}
}

static void
test_the_median_rule_is_its_naive_form_over_random_histories(void **state)
{
	(void)state;
	drawn = 3;
	for (unsigned history = 0; history < N_HISTORIES; history++) {
		const struct sched_opts opts = {.algorithm = &sched_median,
		                                .maximize = draw(2) != 0,
		                                .grace = 1 + draw(5),
		                                .min_samples = 1 + draw(4),
		                                .hard_stop = true};
		const unsigned n_trials = 1 + draw(12);
		struct sched *s = make(opts, n_trials);
		double metrics[12][MAX_TIME];
		unsigned n[12] = {0};
		bool over[12] = {false};

		for (unsigned step = 0; step < 400; step++) {
			const uint32_t i = draw(n_trials);
			const double metric = (double)draw(40) - 20;
			double best = -HUGE_VAL, means[12];
			unsigned n_means = 0;
			bool stops;
			if (n[i] == MAX_TIME)
				continue;
			if (!over[i])
				metrics[i][n[i]++] = seen(metric, opts.maximize);
			for (unsigned t = 0; t < n[i]; t++)
				best = fmax(best, metrics[i][t]);
			for (unsigned k = 0; k < n_trials; k++) {
				double sum = 0;
				if (k == i || n[k] < n[i])
					continue;
				for (unsigned t = 0; t < n[i]; t++)
					sum += metrics[k][t];
				means[n_means++] = sum / n[i];
			}
			stops = over[i] || (n[i] >= opts.grace && n_means >= opts.min_samples &&
			                    best < naive_quantile(means, n_means, 0.5) - 1e-12);
			assert_int_equal(decide(s, i, n[i], metric).verdict, stops ? SCHED_STOP : SCHED_CONTINUE);
			over[i] |= stops;
		}
		sched_free(s);
	}
}

/* ---- population based training ---- */

static double
objective(const double theta[2])
{
	return 1.2 - (theta[0] * theta[0] + theta[1] * theta[1]);
}

/* One step up the surrogate 1.2 - (h0 theta0^2 + h1 theta1^2). */
static void
climb(double theta[2], const double h[2])
{
	for (unsigned k = 0; k < 2; k++)
		theta[k] -= 0.02 * 2 * h[k] * theta[k];
}

/* The toy of figure 2 of the paper: two workers climb a surrogate of the objective, each blind for
 * one coordinate. Alone they reach 1.2 - 0.9^2 = 0.39; as a population that exploits and explores,
 * the optimum of 1.2. */
static void
test_pbt_solves_the_toy_of_its_paper(void **state)
{
	static const struct sched_mutation h[] = {{.name = "h0", .low = 0, .high = 1},
	                                          {.name = "h1", .low = 0, .high = 1}};

	(void)state;
	for (unsigned is_population = 0; is_population < 2; is_population++) {
		double theta[2][2] = {{0.9, 0.9}, {0.9, 0.9}}, values[2][2] = {{1, 0}, {0, 1}}, best;
		const struct sched_opts opts = {.algorithm = is_population ? &sched_pbt : &sched_fifo,
		                                .maximize = true,
		                                .interval = 4,
		                                .quantile = 0.5,
		                                .resample = -1,
		                                .mutations = h,
		                                .n_mutations = 2,
		                                .seed = 1};
		struct pawl_error err = {0};
		struct sched *s = NULL;
		assert_int_equal(sched_new(&opts, &s, &err), 0);
		for (unsigned i = 0; i < 2; i++)
			assert_int_equal(sched_add(s, i, values[i], &err), 0);
		for (unsigned t = 1; t <= 600; t++) {
			for (unsigned i = 0; i < 2; i++) {
				struct sched_decision what;
				climb(theta[i], values[i]);
				what = decide(s, i, t, objective(theta[i]));
				if (what.verdict != SCHED_EXPLOIT)
					continue;
				assert_int_equal(what.donor, 1 - i);
				memcpy(theta[i], theta[what.donor], sizeof(theta[i]));
				memcpy(values[i], what.values, sizeof(values[i]));
				sched_exploited(s, i, what.donor, t);
			}
		}
		best = fmax(objective(theta[0]), objective(theta[1]));
		assert_true(is_population ? best > 1.19 : best > 0.38 && best < 0.4);
		sched_free(s);
	}
}

#define N_VALUES 4u
static const struct sched_mutation mutations[N_VALUES] = {
	{.name = "uniform", .low = -1, .high = 3},
	{.name = "log", .low = 1e-4, .high = 1e-1, .log_scale = true},
	{.name = "whole", .low = 1, .high = 100, .whole = true},
	{.name = "choice", .n_choices = 5},
};

/* Is it the donor's value times a factor, its neighbour in the list, or drawn again? */
static bool
is_explored(const struct sched_mutation *m, double from, double to)
{
	const bool is_drawn = m->n_choices ? to >= 0 && to < m->n_choices : to >= m->low && to <= m->high;

	if (m->n_choices)
		return is_drawn && rint(to) == to;
	if (m->whole && rint(to) != to)
		return false;
	return is_drawn || fabs(to - from * 1.2) <= (m->whole ? 0.5 : 1e-9) ||
	       fabs(to - from * 0.8) <= (m->whole ? 0.5 : 1e-9);
}

/* A trial that exploits is in the lowest quantile of the live and ranked ones; its donor is in the
 * highest. */
static void
check_exploit(const double *scores, const bool *ranked, unsigned n_trials, uint32_t trial, uint32_t donor,
              double quantile)
{
	unsigned n = 0, above_donor = 0, above_trial = 0, size;

	for (unsigned k = 0; k < n_trials; k++) {
		n += ranked[k];
		above_donor += ranked[k] && k != donor && scores[k] > scores[donor];
		above_trial += ranked[k] && k != trial &&
		               (scores[k] > scores[trial] || (scores[k] == scores[trial] && k < trial));
	}
	size = (unsigned)ceil(n * quantile);
	size = size > n / 2 ? n / 2 : size;
	assert_true(donor != trial && ranked[donor]);
	assert_true(above_donor < size);
	assert_true(above_trial >= n - size);
}

static struct sched_opts
draw_pbt(unsigned history)
{
	return (struct sched_opts){.algorithm = &sched_pbt,
	                           .maximize = draw(2) != 0,
	                           .interval = 1 + draw(5),
	                           .burn_in = draw(8),
	                           .quantile = 0.05 + 0.05 * draw(10),
	                           .resample = 0.1 * draw(11),
	                           .mutations = mutations,
	                           .n_mutations = N_VALUES,
	                           .takes_turns = draw(2) != 0,
	                           .seed = history};
}

static void
test_pbt_over_random_histories(void **state)
{
	(void)state;
	drawn = 4;
	for (unsigned history = 0; history < N_HISTORIES; history++) {
		const struct sched_opts opts = draw_pbt(history);
		const unsigned n_trials = 1 + draw(MAX_TRIALS);
		double values[MAX_TRIALS][N_VALUES], times[MAX_TRIALS] = {0}, changed[MAX_TRIALS] = {0};
		double scores[MAX_TRIALS];
		bool ranked[MAX_TRIALS] = {false}, over[MAX_TRIALS] = {false};
		struct pawl_error err = {0};
		struct sched *s = NULL;

		assert_int_equal(sched_new(&opts, &s, &err), 0);
		for (unsigned i = 0; i < n_trials; i++) {
			const double first[N_VALUES] = {draw(3), 0.01, 1 + draw(90), draw(5)};
			memcpy(values[i], first, sizeof(first));
			assert_int_equal(sched_add(s, i, first, &err), 0);
		}
		for (unsigned step = 0; step < 600; step++) {
			const uint32_t i = draw(n_trials);
			const double metric = draw_metric();
			struct sched_decision what;
			const bool is_due = ++times[i] >= opts.burn_in && times[i] - changed[i] >= opts.interval;
			if (over[i])
				continue;
			if (draw(60) == 0) {
				sched_end(s, i);
				over[i] = true;
				ranked[i] = false;
				continue;
			}
			const bool others_wait = draw(2) != 0;
			what = decide_in_turn(s, i, times[i], metric, others_wait);
			if (!is_due) {
				assert_int_equal(what.verdict, SCHED_CONTINUE);
				assert_false(what.save);
				continue;
			}
			changed[i] = times[i];
			scores[i] = seen(metric, opts.maximize);
			ranked[i] = true;
			if (what.verdict != SCHED_EXPLOIT) {
				assert_int_equal(what.verdict,
				                 opts.takes_turns && others_wait ? SCHED_PAUSE : SCHED_CONTINUE);
				assert_int_equal(paused(s, i), SCHED_CONTINUE); /* as soon as it is its turn */
				continue;
			}
			check_exploit(scores, ranked, n_trials, i, what.donor, opts.quantile);
			for (unsigned v = 0; v < N_VALUES; v++)
				assert_true(is_explored(&mutations[v], values[what.donor][v], what.values[v]));
			if (draw(8) == 0) { /* what it was to continue from is not there */
				sched_decline(s, i, values[i]);
			} else {
				memcpy(values[i], what.values, sizeof(values[i]));
				times[i] = times[what.donor] - draw(2); /* where its newest checkpoint is */
				changed[i] = fmin(changed[what.donor], times[i]);
				sched_exploited(s, i, what.donor, times[i]);
			}
		}
		sched_free(s);
	}
}

/* In step: no trial continues before all live ones have reached the perturbation. Then the verdicts
 * do not depend on the order of their arrival. */
static void
test_pbt_in_step_does_not_hang_on_who_was_quick(void **state)
{
	(void)state;
	drawn = 5;
	for (unsigned history = 0; history < N_HISTORIES; history++) {
		const struct sched_opts opts = {.algorithm = &sched_pbt,
		                                .maximize = true,
		                                .interval = 3,
		                                .synchronous = true,
		                                .mutations = mutations,
		                                .n_mutations = N_VALUES,
		                                .seed = history};
		const unsigned n_trials = 2 + draw(MAX_TRIALS - 2), gone = draw(n_trials);
		struct sched_decision what[2][MAX_TRIALS];
		double values[2][MAX_TRIALS][N_VALUES], metrics[MAX_TRIALS];

		for (unsigned i = 0; i < n_trials; i++)
			metrics[i] = draw_metric();
		for (unsigned pass = 0; pass < 2; pass++) {
			struct pawl_error err = {0};
			struct sched *s = NULL;
			const double first[N_VALUES] = {1, 0.01, 10, 2};
			assert_int_equal(sched_new(&opts, &s, &err), 0);
			for (unsigned i = 0; i < n_trials; i++)
				assert_int_equal(sched_add(s, i, first, &err), 0);
			sched_close(s);
			sched_end(s, gone);
			for (unsigned k = 0; k < n_trials; k++) {
				const uint32_t i = pass ? n_trials - 1 - k : k;
				const bool is_last =
					k + 1 == n_trials || (k + 2 == n_trials && gone == (pass ? 0 : k + 1));
				if (i == gone)
					continue;
				decide(s, i, 1, metrics[i]);
				assert_int_equal(decide(s, i, 3, metrics[i]).verdict, SCHED_PAUSE);
				if (!is_last)
					assert_int_equal(paused(s, i), SCHED_PAUSE);
			}
			for (unsigned i = 0; i < n_trials; i++) {
				sched_paused(s, i, &what[pass][i]);
				assert_true(what[pass][i].verdict != SCHED_PAUSE);
				if (what[pass][i].verdict == SCHED_EXPLOIT)
					memcpy(values[pass][i], what[pass][i].values, sizeof(values[pass][i]));
			}
			sched_free(s);
		}
		for (unsigned i = 0; i < n_trials; i++) {
			assert_int_equal(what[0][i].verdict, what[1][i].verdict);
			assert_int_equal(what[0][i].donor, what[1][i].donor);
			if (what[0][i].verdict == SCHED_EXPLOIT)
				assert_memory_equal(values[0][i], values[1][i], sizeof(values[0][i]));
		}
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_hyperband_has_the_table_of_its_paper),
		cmocka_unit_test(test_successive_halving_has_the_figure_of_its_paper),
		cmocka_unit_test(test_a_report_counts_at_every_rung_that_it_jumps_over),
		cmocka_unit_test(test_a_bracket_that_has_jumped_over_its_rungs_goes_on),
		cmocka_unit_test(test_rungs_are_exact_where_they_are_whole_numbers),
		cmocka_unit_test(test_rungs_in_step_end_in_every_order),
		cmocka_unit_test(test_asha_is_its_naive_form_over_random_histories),
		cmocka_unit_test(test_the_median_rule_by_hand),
		cmocka_unit_test(test_the_median_rule_is_its_naive_form_over_random_histories),
		cmocka_unit_test(test_pbt_solves_the_toy_of_its_paper),
		cmocka_unit_test(test_pbt_over_random_histories),
		cmocka_unit_test(test_pbt_in_step_does_not_hang_on_who_was_quick),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
