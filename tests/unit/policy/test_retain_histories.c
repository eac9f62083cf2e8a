/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Retention under random histories and policies, against a naive oracle that is written in another
 * way. Also damaged deciders, which the oracle must catch. Seeded: a failure repeats.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "policy/retain.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define MAX_ITEMS 16

static const char *const two_names[] = {"accuracy", "loss"};

struct rng {
	uint64_t s;
};

static uint64_t
draw(struct rng *r, uint64_t below)
{
	uint64_t z = (r->s += 0x9e3779b97f4a7c15u);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return (z ^ (z >> 31)) % below;
}

struct world {
	struct retain_item items[MAX_ITEMS];
	struct pawl_metric metrics[MAX_ITEMS][2];
	size_t n;
	uint64_t next_id;
	double now;
};

static double
random_score(struct rng *r)
{
	static const double values[] = {0, 1, 2, 3, -1, 0.5, NAN, INFINITY, -INFINITY, -0.0};

	return values[draw(r, COUNT(values))];
}

static void
random_metrics(struct rng *r, struct world *w, size_t i)
{
	w->metrics[i][0] =
		(struct pawl_metric){.name = "accuracy", .value = random_score(r), .not_a_number = draw(r, 12) == 0};
	w->metrics[i][1] = (struct pawl_metric){.name = "loss", .value = random_score(r)};
	w->items[i].n_metrics = draw(r, 6) == 0 ? draw(r, 2) : 2;
}

static void
random_policy(struct rng *r, struct pawl_retention *p)
{
	static const int orders[4][2] = {{1, 1}, {1, -1}, {-1, 1}, {-1, -1}};

	*p = (struct pawl_retention){.size = sizeof(*p)};
	p->n_scores = draw(r, 3);
	p->score_attributes = two_names;
	p->score_orders = draw(r, 4) ? orders[draw(r, 4)] : NULL;
	p->num_to_keep = (int64_t)draw(r, 4);
	p->keep_last = draw(r, 3) ? 0 : draw(r, 4);
	p->keep_best = p->n_scores && draw(r, 3) == 0 ? draw(r, 4) : 0;
	p->keep_every = draw(r, 3) ? 0 : draw(r, 5);
	p->keep_seconds = draw(r, 3) ? 0 : (double)draw(r, 10);
	p->max_bytes = draw(r, 3) ? 0 : draw(r, 40);
	p->drop_latest = draw(r, 3) == 0;
}

static void
random_event(struct rng *r, struct world *w)
{
	uint64_t kind = draw(r, 8);

	w->now += (double)draw(r, 7) - 1; /* sometimes the clock goes back */
	if (w->n && kind == 0) {
		w->items[draw(r, w->n)].pinned ^= true;
	} else if (w->n && kind == 1) {
		w->items[draw(r, w->n)].held ^= true;
	} else if (w->n && kind == 2) {
		random_metrics(r, w, draw(r, w->n));
	} else if (w->n < MAX_ITEMS) {
		size_t i = w->n++;

		w->next_id += 1 + draw(r, 2);
		w->items[i] = (struct retain_item){.id = w->next_id,
		                                   .step = (int64_t)draw(r, 12) - 3,
		                                   .unix_seconds = w->now,
		                                   .bytes = draw(r, 20),
		                                   .pinned = draw(r, 20) == 0,
		                                   .held = draw(r, 20) == 0,
		                                   .nonfinite = draw(r, 3) == 0};
		random_metrics(r, w, i);
	}
	for (size_t i = 0; i < w->n; i++)
		w->items[i].metrics = w->metrics[i];
}

/* The oracle decides which of two items a person would prefer: +1 the first, -1 the second, 0
 * neither. */
static int
oracle_prefers(const struct pawl_retention *p, const struct world *w, size_t a, size_t b)
{
	int valid[2] = {1, 1}, answer = 0;
	const size_t who[2] = {a, b};

	for (size_t s = p->n_scores; s-- > 0;) {
		double v[2] = {0, 0};

		for (int side = 0; side < 2; side++) {
			const struct pawl_metric *m = &w->metrics[who[side]][s];

			if (w->items[who[side]].n_metrics <= s || m->not_a_number || m->value != m->value ||
			    m->value > 1e300 || m->value < -1e300)
				valid[side] = 0;
			v[side] = m->value;
		}
		int wants_more = !p->score_orders || p->score_orders[s] == 1;
		if (v[0] != v[1])
			answer = (v[0] > v[1]) == wants_more ? 1 : -1;
	}
	if (valid[0] != valid[1])
		return valid[0] ? 1 : -1;
	return valid[0] ? answer : 2; /* 2: neither has a score */
}

/* Decides one item at a time by counting rivals, with none of retain.c's machinery. */
static void
oracle_decide(const struct pawl_retention *p, const struct world *w, bool keep[MAX_ITEMS])
{
	uint64_t best_n = p->keep_best, last_n = p->keep_last, sum = 0, n_kept = 0;
	size_t champion = SIZE_MAX, sound = w->n;

	if (p->n_scores && (uint64_t)p->num_to_keep > best_n)
		best_n = (uint64_t)p->num_to_keep;
	if (!p->n_scores && (uint64_t)p->num_to_keep > last_n)
		last_n = (uint64_t)p->num_to_keep;
	while (sound > 0 && w->items[sound - 1].nonfinite)
		sound--; /* the one before this is where to go back to */
	if (sound == w->n)
		sound = 0; /* the latest itself, which has its own rules */
	for (size_t i = 0; i < w->n; i++) {
		const struct retain_item *it = &w->items[i];
		uint64_t rivals = 0, newer = w->n - 1 - i;
		bool unscored = p->n_scores && oracle_prefers(p, w, i, i) == 2;

		for (size_t k = 0; k < w->n; k++) {
			int c = oracle_prefers(p, w, k, i);

			if (k != i && (c == 1 || ((c == 0 || c == 2) && k < i)))
				rivals++;
		}
		if (p->n_scores && rivals == 0 && !unscored)
			champion = i;
		keep[i] = it->pinned || it->held || i == champion || i + 1 == sound;
		keep[i] |= newer == 0 && !(p->drop_latest && best_n);
		keep[i] |= rivals < best_n || newer < last_n;
		keep[i] |= p->keep_every && (i == 0 || it->step % (int64_t)p->keep_every == 0 ||
		                             llabs(it->step) / (int64_t)p->keep_every !=
		                                     llabs(w->items[i - 1].step) / (int64_t)p->keep_every);
		keep[i] |= p->keep_seconds > 0 && w->now - it->unix_seconds < p->keep_seconds;
		keep[i] |= !best_n && !last_n && !p->keep_every && p->keep_seconds <= 0;
		sum += keep[i] ? it->bytes : 0;
		n_kept += keep[i];
	}
	for (size_t i = 0; p->max_bytes && sum > p->max_bytes && n_kept > 1 && i < w->n; i++) {
		if (keep[i] && !w->items[i].pinned && !w->items[i].held && i != champion && i + 1 != sound &&
		    i != w->n - 1) {
			keep[i] = false;
			n_kept--;
			sum -= w->items[i].bytes;
		}
	}
}

typedef void decider(const struct pawl_retention *p, const struct retain_item *items, size_t n, double now,
                     struct retain_decision *ret);

/* What must hold whatever the oracle says. */
static bool
breaks_a_promise(const struct pawl_retention *p, const struct world *w, const struct retain_decision *d)
{
	size_t n_kept = 0;

	for (size_t i = 0; i < w->n; i++) {
		n_kept += d[i].keep;
		if ((w->items[i].pinned || w->items[i].held) && !d[i].keep)
			return true;
	}
	bool may_drop_latest = p->drop_latest && p->n_scores && (p->num_to_keep > 0 || p->keep_best);
	return w->n && (n_kept == 0 || (!d[w->n - 1].keep && !may_drop_latest));
}

/* Plays histories; returns how many decisions differ from the oracle or break a promise. */
static uint64_t
play(decider *decide, uint64_t seed, unsigned n_histories, uint64_t *ret_decisions)
{
	uint64_t bad = 0;

	*ret_decisions = 0;
	for (unsigned h = 0; h < n_histories; h++) {
		struct rng r = {seed + h};
		struct world w = {.now = 100};
		struct pawl_retention p;

		random_policy(&r, &p);
		if (retain_check(&p, NULL) < 0)
			return UINT64_MAX;
		for (uint64_t events = 1 + draw(&r, 12); events-- > 0;) {
			struct retain_decision d[MAX_ITEMS];
			bool expected[MAX_ITEMS], differs = false;
			size_t n = 0;

			random_event(&r, &w);
			if (draw(&r, 40) == 0)
				random_policy(&r, &p); /* reopened with other options */
			decide(&p, w.items, w.n, w.now, d);
			oracle_decide(&p, &w, expected);
			for (size_t i = 0; i < w.n; i++)
				differs |= d[i].keep != expected[i];
			bad += differs || breaks_a_promise(&p, &w, d);
			++*ret_decisions;
			for (size_t i = 0; i < w.n; i++) { /* carry it out; sometimes a crash prevents that */
				if (!d[i].keep && draw(&r, 8))
					continue;
				w.items[n] = w.items[i];
				memcpy(w.metrics[n], w.metrics[i], sizeof(w.metrics[n]));
				w.items[n].metrics = w.metrics[n];
				n++;
			}
			w.n = n;
		}
	}
	return bad;
}

static void
test_P6_P13_random_histories_agree_with_the_oracle(void **state)
{
	(void)state;
	uint64_t decisions;
	uint64_t bad = play(retain_decide, 20260, 120000, &decisions);

	assert_int_equal(bad, 0);
	assert_true(decisions > 600000);
}

/* Damaged deciders: each forgets one rule. */
static void
forgets_pins(const struct pawl_retention *p, const struct retain_item *items, size_t n, double now,
             struct retain_decision *ret)
{
	struct retain_item copy[MAX_ITEMS];

	memcpy(copy, items, n * sizeof(*items));
	for (size_t i = 0; i < n; i++)
		copy[i].pinned = false;
	retain_decide(p, copy, n, now, ret);
}

static void
forgets_holds(const struct pawl_retention *p, const struct retain_item *items, size_t n, double now,
              struct retain_decision *ret)
{
	struct retain_item copy[MAX_ITEMS];

	memcpy(copy, items, n * sizeof(*items));
	for (size_t i = 0; i < n; i++)
		copy[i].held = false;
	retain_decide(p, copy, n, now, ret);
}

static void
with_metrics(const struct pawl_retention *p, const struct retain_item *items, size_t n, double now,
             struct retain_decision *ret, double for_nan, double per_place)
{
	struct retain_item copy[MAX_ITEMS];
	struct pawl_metric metrics[MAX_ITEMS][2];

	memcpy(copy, items, n * sizeof(*items));
	for (size_t i = 0; i < n; i++) {
		memcpy(metrics[i], items[i].metrics, items[i].n_metrics * sizeof(metrics[i][0]));
		for (size_t k = 0; k < items[i].n_metrics; k++) {
			int order = p->score_orders && k < p->n_scores ? p->score_orders[k] : 1;

			if (isnan(metrics[i][k].value))
				metrics[i][k].value = for_nan;
			metrics[i][k].value += per_place * order * (double)i;
		}
		copy[i].metrics = metrics[i];
	}
	retain_decide(p, copy, n, now, ret);
}

static void
takes_nan_for_a_number(const struct pawl_retention *p, const struct retain_item *items, size_t n, double now,
                       struct retain_decision *ret)
{
	with_metrics(p, items, n, now, ret, 1e9, 0);
}

static void
lets_the_newer_win_a_tie(const struct pawl_retention *p, const struct retain_item *items, size_t n, double now,
                         struct retain_decision *ret)
{
	with_metrics(p, items, n, now, ret, NAN, 1e-6);
}

static void
turns_the_order_round(const struct pawl_retention *p, const struct retain_item *items, size_t n, double now,
                      struct retain_decision *ret)
{
	static const int all_min[] = {-1, -1};
	struct pawl_retention other = *p;

	other.score_orders = all_min;
	retain_decide(&other, items, n, now, ret);
}

static void
drops_the_latest(const struct pawl_retention *p, const struct retain_item *items, size_t n, double now,
                 struct retain_decision *ret)
{
	struct pawl_retention other = *p;

	other.drop_latest = 1;
	retain_decide(&other, items, n, now, ret);
}

static void
ignores_the_budget(const struct pawl_retention *p, const struct retain_item *items, size_t n, double now,
                   struct retain_decision *ret)
{
	struct pawl_retention other = *p;

	other.max_bytes = 0;
	retain_decide(&other, items, n, now, ret);
}

static void
keeps_one_too_few(const struct pawl_retention *p, const struct retain_item *items, size_t n, double now,
                  struct retain_decision *ret)
{
	struct pawl_retention other = *p;

	other.num_to_keep -= other.num_to_keep > 1;
	retain_decide(&other, items, n, now, ret);
}

static void
test_negative_control_damaged_deciders_are_caught(void **state)
{
	(void)state;
	decider *const damaged[] = {
		forgets_pins,          forgets_holds,    takes_nan_for_a_number, lets_the_newer_win_a_tie,
		turns_the_order_round, drops_the_latest, ignores_the_budget,     keeps_one_too_few};
	uint64_t decisions;

	for (size_t i = 0; i < COUNT(damaged); i++)
		assert_true(play(damaged[i], 20260, 2000, &decisions) > 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_P6_P13_random_histories_agree_with_the_oracle),
		cmocka_unit_test(test_negative_control_damaged_deciders_are_caught),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
