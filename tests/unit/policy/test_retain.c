/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of retain.c: tables for each rule. Random histories against an oracle:
 * test_retain_histories.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "policy/retain.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define MAX_ITEMS 16

static const char *const accuracy[] = {"accuracy"};
static const char *const two_names[] = {"accuracy", "loss"};
static const int order_min[] = {-1};
static const int max_then_min[] = {1, -1};

/* A list of checkpoints with one metric "accuracy" each; ids and steps from 1. */
struct list {
	struct retain_item items[MAX_ITEMS];
	struct pawl_metric metrics[MAX_ITEMS];
	struct retain_decision out[MAX_ITEMS];
	size_t n;
};

#define MISSING (-12345.0) /* this value stands for: no such metric */

static void
list_add(struct list *l, double score)
{
	size_t i = l->n++;

	l->metrics[i] = (struct pawl_metric){.name = "accuracy", .value = score};
	l->items[i] = (struct retain_item){.id = i + 1,
	                                   .step = (int64_t)i + 1,
	                                   .unix_seconds = 100.0 * (double)(i + 1),
	                                   .bytes = 10,
	                                   .metrics = &l->metrics[i],
	                                   .n_metrics = score == MISSING ? 0 : 1};
}

static void
list_fill(struct list *l, const double *scores, size_t n)
{
	memset(l, 0, sizeof(*l));
	for (size_t i = 0; i < n; i++)
		list_add(l, scores[i]);
}

/* The kept ids as text, e.g. "1 3". */
static const char *
kept(struct list *l, const struct pawl_retention *policy, double now, char out[64])
{
	size_t len = 0;

	out[0] = '\0';
	retain_decide(policy, l->items, l->n, now, l->out);
	for (size_t i = 0; i < l->n; i++) {
		if (l->out[i].keep)
			len += (size_t)snprintf(out + len, 64 - len, "%s%llu", len ? " " : "",
			                        (unsigned long long)l->items[i].id);
		assert_true(l->out[i].reason[0] != '\0');
		assert_non_null(memchr(l->out[i].reason, '\0', sizeof(l->out[i].reason)));
	}
	return out;
}

#define ASSERT_KEPT(expected, policy, ...)                                       \
	do {                                                                     \
		const double scores_[] = {__VA_ARGS__};                          \
		struct list list_;                                               \
		char text_[64];                                                  \
		list_fill(&list_, scores_, COUNT(scores_));                      \
		assert_string_equal(kept(&list_, (policy), 0, text_), expected); \
	} while (0)

static struct pawl_retention
best_policy(int64_t num_to_keep)
{
	return (struct pawl_retention){.size = sizeof(struct pawl_retention),
	                               .num_to_keep = num_to_keep,
	                               .score_attributes = accuracy,
	                               .n_scores = 1};
}

/* Exactly N: rules 31-34 of the older manager, where the latest has no protection. */
static struct pawl_retention
exact_policy(int64_t num_to_keep)
{
	struct pawl_retention p = best_policy(num_to_keep);

	p.drop_latest = 1;
	p.strict_score = 1;
	return p;
}

/* ------------------------------------------------------------- the policies */

static void
test_R1_R2_default_policy_keeps_everything(void **state)
{
	(void)state;
	struct pawl_retention p = PAWL_RETENTION_INIT;

	assert_int_equal(retain_check(&p, NULL), 0);
	ASSERT_KEPT("1 2 3 4 5", &p, 0, 0, 0, 0, 0);
}

static void
test_R3_E2_memory_only_keeps_the_newest_whatever_the_scores(void **state)
{
	(void)state;
	struct pawl_retention p = best_policy(PAWL_KEEP_MEMORY);
	struct pawl_error err;

	assert_int_equal(retain_check(&p, &err), 0);
	ASSERT_KEPT("3", &p, 1, NAN, MISSING);
	p.keep_last = 1;
	assert_int_equal(retain_check(&p, &err), PAWL_EUSAGE);
}

static void
test_R4_at_most_n_and_the_new_one_is_there_before_the_loser_goes(void **state)
{
	(void)state;
	struct pawl_retention p = {.num_to_keep = 2};

	ASSERT_KEPT("1", &p, 0);
	ASSERT_KEPT("1 2", &p, 0, 0);
	ASSERT_KEPT("2 3", &p, 0, 0, 0);
}

static void
test_R5_negative_num_to_keep_is_refused_naming_the_value(void **state)
{
	(void)state;
	const int64_t bad[] = {-1, -3, INT64_MIN};
	struct pawl_error err;

	for (size_t i = 0; i < COUNT(bad); i++) {
		struct pawl_retention p = {.num_to_keep = bad[i]};
		char number[32];

		snprintf(number, sizeof(number), "received %lld", (long long)bad[i]);
		assert_int_equal(retain_check(&p, &err), PAWL_EUSAGE);
		assert_non_null(strstr(err.message, "must be 0 (keep all), a positive number or PAWL_KEEP_MEMORY"));
		assert_non_null(strstr(err.message, number));
	}
}

static void
test_R6_E6_default_score_is_the_sequence_not_the_clock(void **state)
{
	(void)state;
	struct pawl_retention p = {.num_to_keep = 2};
	const double scores[] = {9, 8, 1, 1};
	struct list l;
	char text[64];

	list_fill(&l, scores, COUNT(scores));
	for (size_t i = 0; i < l.n; i++) /* a clock that runs backwards must not matter (P9) */
		l.items[i].unix_seconds = -100.0 * (double)i;
	assert_string_equal(kept(&l, &p, 0, text), "3 4");
	assert_int_equal(retain_best(&p, l.items, l.n), 3);
}

static void
test_R7_R8_best_by_attribute_max_by_default_min_on_request(void **state)
{
	(void)state;
	struct pawl_retention p = exact_policy(2);

	assert_int_equal(retain_check(&p, NULL), 0);
	ASSERT_KEPT("2 4", &p, 0.1, 0.9, 0.2, 0.8, 0.3);
	p.score_orders = order_min;
	assert_int_equal(retain_check(&p, NULL), 0);
	ASSERT_KEPT("1 3", &p, 0.1, 0.9, 0.2, 0.8, 0.3);
}

static void
test_R9_other_orders_are_refused_naming_both_words(void **state)
{
	(void)state;
	const int bad[] = {0, 2, -2};
	struct pawl_error err;

	for (size_t i = 0; i < COUNT(bad); i++) {
		struct pawl_retention p = best_policy(1);

		p.score_orders = &bad[i];
		assert_int_equal(retain_check(&p, &err), PAWL_EUSAGE);
		assert_non_null(strstr(err.message, "'max'"));
		assert_non_null(strstr(err.message, "'min'"));
	}
}

static void
test_policies_that_contradict_themselves_are_refused(void **state)
{
	(void)state;
	static const char *const twice[] = {"a", "a"}, *const empty[] = {""}, *const none[] = {NULL};
	static const char *const many[17] = {"a", "b", "c", "d", "e", "f", "g", "h", "i",
	                                     "j", "k", "l", "m", "n", "o", "p", "q"};
	const struct pawl_retention bad[] = {
		{.keep_best = 2},
		{.score_attributes = twice, .n_scores = 2},
		{.score_attributes = empty, .n_scores = 1},
		{.score_attributes = none, .n_scores = 1},
		{.score_attributes = NULL, .n_scores = 1},
		{.score_attributes = many, .n_scores = 17},
		{.keep_seconds = -1},
		{.keep_seconds = NAN},
		{.keep_seconds = INFINITY},
		{.num_to_keep = PAWL_KEEP_MEMORY, .keep_best = 1, .score_attributes = accuracy, .n_scores = 1},
		{.num_to_keep = PAWL_KEEP_MEMORY, .keep_every = 10},
		{.num_to_keep = PAWL_KEEP_MEMORY, .keep_seconds = 10},
		{.num_to_keep = PAWL_KEEP_MEMORY, .max_bytes = 10},
	};

	for (size_t i = 0; i < COUNT(bad); i++) {
		struct pawl_error err = {0};

		assert_int_equal(retain_check(&bad[i], &err), PAWL_EUSAGE);
		assert_true(err.message[0] != '\0');
		assert_int_equal(retain_check(&bad[i], NULL), PAWL_EUSAGE);
	}
	struct pawl_retention most = {.score_attributes = many, .n_scores = 16};
	assert_int_equal(retain_check(&most, NULL), 0);
}

/* ------------------------------------------------------------------- scores */

static void
test_R16_best_is_the_best_one_or_none(void **state)
{
	(void)state;
	struct pawl_retention p = best_policy(3);
	const double scores[] = {0.5, 0.9, 0.7};
	struct list l;

	list_fill(&l, scores, COUNT(scores));
	assert_int_equal(retain_best(&p, l.items, l.n), 1);
	assert_true(retain_best(&p, l.items, 0) == SIZE_MAX);
	p.n_scores = 0;
	assert_true(retain_best(&p, l.items, 0) == SIZE_MAX);
}

static void
test_R17_R18_latest_is_the_highest_id_whatever_its_score(void **state)
{
	(void)state;
	struct pawl_retention p = best_policy(1);
	const double scores[] = {0.9, 0.1};
	struct list l;
	char text[64];

	list_fill(&l, scores, COUNT(scores));
	kept(&l, &p, 0, text);
	assert_string_equal(l.out[1].reason, "latest");
}

static void
test_R27_missing_score_is_refused(void **state)
{
	(void)state;
	struct pawl_retention p = best_policy(2);
	struct pawl_metric other = {.name = "loss", .value = 1};
	struct pawl_error err;

	assert_int_equal(retain_check_metrics(&p, &other, 1, &err), PAWL_EUSAGE);
	assert_non_null(strstr(err.message, "'accuracy'"));
	assert_non_null(strstr(err.message, "include it"));
	assert_non_null(strstr(err.message, "(known: loss)"));
	assert_int_equal(retain_check_metrics(&p, NULL, 0, NULL), PAWL_EUSAGE);
}

static void
test_R28_score_that_is_no_number_is_refused_but_nan_and_inf_pass(void **state)
{
	(void)state;
	struct pawl_retention p = best_policy(2);
	struct pawl_metric m = {.name = "accuracy", .value = 7, .not_a_number = 1};
	const double fine[] = {1, 0, NAN, INFINITY, -INFINITY};
	struct pawl_error err;

	assert_int_equal(retain_check_metrics(&p, &m, 1, &err), PAWL_EUSAGE);
	assert_non_null(strstr(err.message, "'accuracy'"));
	assert_non_null(strstr(err.message, "must be numerical"));
	m.not_a_number = 0;
	for (size_t i = 0; i < COUNT(fine); i++) {
		m.value = fine[i];
		assert_int_equal(retain_check_metrics(&p, &m, 1, &err), 0);
	}
}

static void
test_R29_score_checks_hold_also_when_everything_is_kept(void **state)
{
	(void)state;
	struct pawl_retention p = best_policy(0), none = PAWL_RETENTION_INIT;

	assert_int_equal(retain_check_metrics(&p, NULL, 0, NULL), PAWL_EUSAGE);
	assert_int_equal(retain_check_metrics(&none, NULL, 0, NULL), 0);
}

static void
test_R31_keep_all_mode_keeps_any_score(void **state)
{
	(void)state;
	struct pawl_retention p = best_policy(0);

	p.drop_latest = 1;
	ASSERT_KEPT("1 2 3 4", &p, 3, NAN, 1, MISSING);
	assert_true(retain_would_keep(&p, NULL, 0, NULL, 0));
}

static bool
would_keep(const struct pawl_retention *p, const double *scores, size_t n, double score)
{
	struct pawl_metric m = {.name = "accuracy", .value = score};
	struct list l;

	list_fill(&l, scores, n);
	return retain_would_keep(p, l.items, l.n, &m, score == MISSING ? 0 : 1);
}

static void
test_R32_R33_R34_R36_what_a_full_best_list_takes(void **state)
{
	(void)state;
	struct pawl_retention p = exact_policy(2);
	const double one[] = {0.5}, full[] = {0.5, 0.8}, with_nan[] = {NAN, 0.8}, nans[] = {NAN, MISSING};

	assert_true(would_keep(&p, one, 1, 0.1)); /* R32: not full */
	assert_true(would_keep(&p, one, 1, NAN)); /* R36: stored when not full */
	assert_true(would_keep(&p, one, 1, MISSING));
	assert_true(would_keep(&p, full, 2, 0.6));  /* R33: strictly better than the worst */
	assert_false(would_keep(&p, full, 2, 0.5)); /* R34: a tie loses */
	assert_false(would_keep(&p, full, 2, 0.4));
	assert_false(would_keep(&p, full, 2, NAN));      /* R36: skipped when full */
	assert_false(would_keep(&p, full, 2, INFINITY)); /* P13 */
	assert_false(would_keep(&p, full, 2, MISSING));
	assert_true(would_keep(&p, with_nan, 2, 0.1)); /* any number beats none */
	assert_false(would_keep(&p, with_nan, 2, NAN));
	assert_false(would_keep(&p, nans, 2, NAN));
	p.score_orders = order_min;
	assert_true(would_keep(&p, full, 2, 0.7));
	assert_false(would_keep(&p, full, 2, 0.8));
	p = (struct pawl_retention){.num_to_keep = 1, .strict_score = 1};
	assert_true(would_keep(&p, full, 2, -1)); /* without attributes the newest always wins */
}

static void
test_R33_R34_E3_full_list_swaps_out_the_worst_and_ties_keep_the_older(void **state)
{
	(void)state;
	struct pawl_retention p = exact_policy(2);

	ASSERT_KEPT("2 3", &p, 0.5, 0.8, 0.6);
	ASSERT_KEPT("1 2", &p, 0.5, 0.8, 0.5);
	ASSERT_KEPT("1 2", &p, 0.5, 0.5, 0.5, 0.5);
	ASSERT_KEPT("1 3", &p, 0.5, 0.3, 0.5, 0.5);
}

static void
test_R35_best_moves_only_on_strictly_better_and_does_not_depend_on_n(void **state)
{
	(void)state;
	const double scores[] = {0.2, 0.9, 0.9, 0.9, 0.1};
	struct list l;

	list_fill(&l, scores, COUNT(scores));
	for (int64_t n = 0; n <= 4; n++) {
		struct pawl_retention p = best_policy(n);

		assert_int_equal(retain_best(&p, l.items, l.n), 1);
	}
}

static void
test_R36_P13_nan_inf_and_missing_are_never_best_and_never_evict(void **state)
{
	(void)state;
	const double odd[] = {NAN, INFINITY, -INFINITY, MISSING};
	struct pawl_retention p = exact_policy(2);

	for (size_t i = 0; i < COUNT(odd); i++) {
		for (int min = 0; min < 2; min++) {
			const double first[] = {odd[i], 0.1}, alone[] = {odd[i]};
			struct list l;

			p.score_orders = min ? order_min : NULL;
			list_fill(&l, first, 2);
			assert_int_equal(retain_best(&p, l.items, l.n), 1);
			list_fill(&l, alone, 1);
			assert_true(retain_best(&p, l.items, l.n) == SIZE_MAX);
			ASSERT_KEPT("2 3", &p, odd[i], 0.1, 0.2);            /* a first one does not stay forever */
			ASSERT_KEPT("1 2", &p, 0.1, 0.2, odd[i]);            /* a later one evicts none */
			ASSERT_KEPT("1 2", &p, odd[i], 0.1, odd[i], odd[i]); /* not even one of its own kind (E3) */
		}
	}
	p.drop_latest = 0;
	ASSERT_KEPT("1 2 3", &p, 0.1, 0.2, NAN); /* unless it is the latest (E4) */
}

static void
test_R157_the_newest_without_nan_or_inf_stays_when_flagged_ones_follow(void **state)
{
	(void)state;
	struct pawl_retention p = {.num_to_keep = 1};
	const double scores[] = {0.1, 0.2, 0.3, 0.4};
	struct list l;
	char text[64];

	list_fill(&l, scores, COUNT(scores));
	l.items[3].nonfinite = true;
	assert_string_equal(kept(&l, &p, 0, text), "3 4");
	assert_string_equal(l.out[2].reason, "newest without NaN or Inf");
	l.items[2].nonfinite = true;
	assert_string_equal(kept(&l, &p, 0, text), "2 4");
	p.num_to_keep = 0;
	p.max_bytes = 15; /* the budget spares it, too */
	assert_string_equal(kept(&l, &p, 0, text), "2 4");
	p = best_policy(1);
	p.drop_latest = 1;
	assert_string_equal(kept(&l, &p, 0, text), "2 4");
	l.items[0].nonfinite = l.items[1].nonfinite = true; /* none is good: nothing to spare */
	assert_string_equal(kept(&l, &p, 0, text), "4");
	list_fill(&l, scores, COUNT(scores)); /* one in the midst takes nothing from any other */
	l.items[1].nonfinite = true;
	p = (struct pawl_retention){.num_to_keep = 1};
	assert_string_equal(kept(&l, &p, 0, text), "4");
	l.items[3].nonfinite = true;
	p.num_to_keep = PAWL_KEEP_MEMORY; /* there is one place only */
	assert_string_equal(kept(&l, &p, 0, text), "4");
}

static void
test_E4_latest_is_kept_besides_the_best_unless_dropped(void **state)
{
	(void)state;
	struct pawl_retention p = best_policy(2);

	ASSERT_KEPT("1 2 4", &p, 0.9, 0.8, 0.2, 0.1);
	ASSERT_KEPT("1 4", &p, 0.9, 0.1, 0.2, 0.8); /* it is among them: exactly N */
	p.drop_latest = 1;
	ASSERT_KEPT("1 2", &p, 0.9, 0.8, 0.2, 0.1);
	p = (struct pawl_retention){.keep_every = 3, .drop_latest = 1}; /* lifts no other rule's protection */
	ASSERT_KEPT("1 3 5", &p, 0, 0, 0, 0, 0);
}

static void
test_E5_R155_late_scores_reorder(void **state)
{
	(void)state;
	struct pawl_retention p = best_policy(1);
	const double scores[] = {0.5, MISSING, 0.4};
	struct list l;
	char text[64];

	list_fill(&l, scores, COUNT(scores));
	assert_int_equal(retain_best(&p, l.items, l.n), 0);
	assert_string_equal(kept(&l, &p, 0, text), "1 3");
	l.metrics[1].value = 0.7;
	l.items[1].n_metrics = 1;
	assert_int_equal(retain_best(&p, l.items, l.n), 1);
	assert_string_equal(kept(&l, &p, 0, text), "2 3");
}

static void
test_R155_several_attributes_order_lexicographically(void **state)
{
	(void)state;
	struct pawl_retention p = {.num_to_keep = 1,
	                           .drop_latest = 1,
	                           .score_attributes = two_names,
	                           .score_orders = max_then_min,
	                           .n_scores = 2};
	const struct pawl_metric m[][2] = {
		{{.name = "loss", .value = 0.3}, {.name = "accuracy", .value = 0.9}},
		{{.name = "loss", .value = 0.2}, {.name = "accuracy", .value = 0.9}},
		{{.name = "loss", .value = 0.1}, {.name = "accuracy", .value = 0.8}},
		{{.name = "loss", .value = NAN}, {.name = "accuracy", .value = 1.0}}, /* half a score is none */
	};
	struct retain_item items[4] = {0};
	struct retain_decision out[4];

	assert_int_equal(retain_check(&p, NULL), 0);
	for (size_t i = 0; i < 4; i++)
		items[i] = (struct retain_item){.id = i + 1, .metrics = m[i], .n_metrics = 2};
	assert_int_equal(retain_best(&p, items, 4), 1);
	assert_true(retain_compare(&p, m[1], 2, m[0], 2) > 0);
	assert_true(retain_compare(&p, m[2], 2, m[0], 2) < 0);
	assert_true(retain_compare(&p, m[3], 2, m[2], 2) < 0);
	assert_int_equal(retain_compare(&p, m[3], 2, NULL, 0), 0);
	retain_decide(&p, items, 4, 0, out);
	assert_false(out[0].keep || out[2].keep || out[3].keep);
	assert_string_equal(out[1].reason, "best 1 of 1 by accuracy then loss");
}

/* ------------------------------------------------------------ R141: algebra */

static void
test_R141_every_m_steps(void **state)
{
	(void)state;
	struct pawl_retention p = {.keep_every = 2};
	const double scores[] = {0, 0, 0, 0, 0};
	struct list l;
	char text[64];

	ASSERT_KEPT("1 2 4 5", &p, 0, 0, 0, 0, 0);
	list_fill(&l, scores, COUNT(scores));
	l.items[0].step = INT64_MIN; /* even */
	l.items[1].step = -3;
	l.items[2].step = 0;
	assert_string_equal(kept(&l, &p, 0, text), "1 2 3 4 5");
	p.keep_every = UINT64_MAX;
	assert_string_equal(kept(&l, &p, 0, text), "1 3 5");
}

static void
test_R141_one_in_every_m_steps_also_off_the_multiples(void **state)
{
	(void)state;
	struct pawl_retention p = {.keep_every = 1000};
	const double scores[] = {0, 0, 0, 0, 0, 0};
	const int64_t steps[] = {999, 1499, 1999, 2500, 2999, 2999};
	struct list l;
	char text[64];

	list_fill(&l, scores, COUNT(scores));
	for (size_t i = 0; i < COUNT(steps); i++)
		l.items[i].step = steps[i];
	assert_string_equal(kept(&l, &p, 0, text), "1 2 4 6");
	assert_string_equal(l.out[1].reason, "step 1499 is the first after a multiple of 1000");
	assert_string_equal(l.out[2].reason, "step 1999 is not the first after a multiple of 1000");

	size_t n = 0; /* what was kept is kept again */
	for (size_t i = 0; i < l.n; i++)
		if (l.out[i].keep)
			l.items[n++] = l.items[i];
	l.n = n;
	assert_string_equal(kept(&l, &p, 0, text), "1 2 4 6");
}

static void
test_R141_one_an_hour_a_day_and_a_week(void **state)
{
	(void)state;
	const double scores[] = {0, 0, 0, 0, 0, 0};
	const double hours[] = {0, 0.5, 1, 25, 26, 200};
	struct pawl_retention p = {.keep_hourly = 1000 * 3600};
	struct list l;
	char text[64];

	list_fill(&l, scores, COUNT(scores));
	for (size_t i = 0; i < COUNT(hours); i++)
		l.items[i].unix_seconds = hours[i] * 3600;
	assert_string_equal(kept(&l, &p, 200 * 3600, text), "1 3 4 5 6");
	assert_string_equal(l.out[0].reason, "first of its hour");
	assert_string_equal(l.out[1].reason, "not the first of its hour");
	p = (struct pawl_retention){.keep_daily = 1000 * 3600};
	assert_string_equal(kept(&l, &p, 200 * 3600, text), "1 4 6");
	p = (struct pawl_retention){.keep_weekly = 1000 * 3600, .keep_hourly = 175 * 3600};
	assert_string_equal(kept(&l, &p, 200 * 3600, text), "1 5 6"); /* 25 h is 175 hours ago */
	assert_string_equal(l.out[5].reason, "latest, first of its hour, first of its week");
	p = (struct pawl_retention){.keep_weekly = -1};
	assert_int_equal(retain_check(&p, NULL), PAWL_EUSAGE);
}

static int
no_rule(void *arg, const struct pawl_candidate *candidates, size_t n, unsigned char *keep, struct pawl_error *err)
{
	(void)arg, (void)candidates, (void)n, (void)keep, (void)err;
	return 0;
}

static void
test_a_rule_of_the_caller_keeps_what_it_names(void **state)
{
	(void)state;
	struct pawl_retention p = {.keep = no_rule};
	const double scores[] = {0, 0, 0};
	struct list l;
	char text[64];

	list_fill(&l, scores, COUNT(scores));
	l.items[1].ruled = true;
	assert_string_equal(kept(&l, &p, 0, text), "2 3");
	assert_string_equal(l.out[0].reason, "not kept by the caller's rule");
	assert_string_equal(l.out[1].reason, "kept by the caller's rule");
}

static void
test_R141_younger_than(void **state)
{
	(void)state;
	struct pawl_retention p = {.keep_seconds = 250};
	const double scores[] = {0, 0, 0, 0};
	struct list l;
	char text[64];

	list_fill(&l, scores, COUNT(scores)); /* saved at 100, 200, 300, 400 */
	assert_string_equal(kept(&l, &p, 450, text), "3 4");
	assert_string_equal(kept(&l, &p, 449, text), "2 3 4");
	assert_string_equal(kept(&l, &p, 1e9, text), "4");
	assert_string_equal(kept(&l, &p, -1e9, text), "1 2 3 4"); /* clock went back: kept, not lost */
	assert_string_equal(kept(&l, &p, NAN, text), "1 2 3 4");
}

static void
test_R141_P6_pins_and_holds_stand_above_all_rules(void **state)
{
	(void)state;
	struct pawl_retention p = {.num_to_keep = 1, .max_bytes = 1};
	const double scores[] = {0, 0, 0, 0};
	struct list l;
	char text[64];

	list_fill(&l, scores, COUNT(scores));
	l.items[0].pinned = true;
	l.items[2].held = true;
	assert_string_equal(kept(&l, &p, 0, text), "1 3 4");
}

/* What a mirror lacks stays, whatever the rules are. If nothing is to be kept of a checkpoint, it
 * is removed once every mirror has it, also the latest and the best. */
static void
test_R95_P6_only_what_every_mirror_has_goes(void **state)
{
	(void)state;
	static const struct {
		const char *unmirrored, *spent, *pinned; /* one letter per checkpoint */
		int64_t num_to_keep;
		uint64_t max_bytes;
		const char *expected;
	} rows[] = {
		{"----", "----", "----", 1, 0, "4"},        {"yy--", "----", "----", 1, 0, "1 2 4"},
		{"yyyy", "----", "----", 1, 0, "1 2 3 4"},  {"----", "yyyy", "----", 0, 0, ""},
		{"----", "yyyy", "----", 3, 0, ""},         {"---y", "yyy-", "----", 0, 0, "4"},
		{"----", "yyyy", "-y--", 2, 0, "2"},        {"y---", "-yy-", "----", 0, 0, "1 4"},
		{"yyy-", "----", "----", 0, 10, "1 2 3 4"}, /* the budget takes nothing that is not there */
		{"-y--", "----", "----", 0, 10, "2 4"},
	};
	for (size_t r = 0; r < COUNT(rows); r++) {
		struct pawl_retention p = {
			.size = sizeof p, .num_to_keep = rows[r].num_to_keep, .max_bytes = rows[r].max_bytes};
		struct list l;
		char text[64];

		list_fill(&l, (const double[]){1, 2, 3, 4}, 4);
		for (size_t i = 0; i < 4; i++) {
			l.items[i].unmirrored = rows[r].unmirrored[i] == 'y';
			l.items[i].spent = rows[r].spent[i] == 'y';
			l.items[i].pinned = rows[r].pinned[i] == 'y';
		}
		assert_string_equal(kept(&l, &p, 0, text), rows[r].expected);
		for (size_t i = 0; i < 4; i++) {
			if (l.items[i].unmirrored)
				assert_non_null(strstr(l.out[i].reason, "not in every mirror yet"));
			if (l.items[i].spent && !l.items[i].pinned)
				assert_string_equal(l.out[i].reason, "in every mirror");
		}
	}
}

static void
test_R141_byte_budget_takes_the_oldest_unprotected(void **state)
{
	(void)state;
	struct pawl_retention p = {.max_bytes = 25};
	struct pawl_retention scored = best_policy(3);
	const double scores[] = {0, 0, 0, 0};
	struct list l;
	char text[64];

	ASSERT_KEPT("3 4", &p, 0, 0, 0, 0); /* 10 bytes each */
	p.max_bytes = 20;
	ASSERT_KEPT("3 4", &p, 0, 0, 0, 0);
	p.max_bytes = 1;
	ASSERT_KEPT("4", &p, 0, 0, 0, 0); /* never the latest */
	scored.max_bytes = 1;
	ASSERT_KEPT("2 4", &scored, 0.1, 0.9, 0.8, 0.2); /* nor the best */
	p.max_bytes = 20;
	list_fill(&l, scores, COUNT(scores));
	l.items[1].bytes = UINT64_MAX; /* a sum that overflows is over any budget */
	assert_string_equal(kept(&l, &p, 0, text), "3 4");
	assert_string_equal(l.out[0].reason, "beyond the byte budget");
	assert_string_equal(l.out[2].reason, "within the byte budget");
}

static void
test_R141_rules_are_united(void **state)
{
	(void)state;
	struct pawl_retention p = best_policy(0);

	p.keep_best = 1;
	p.keep_last = 2;
	p.keep_every = 3;
	ASSERT_KEPT("1 2 3 5 6", &p, 0.1, 0.9, 0.3, 0.4, 0.5, 0.6);
	p.num_to_keep = 2; /* two rules for the same list: the longer one counts */
	ASSERT_KEPT("1 2 3 5 6", &p, 0.1, 0.9, 0.3, 0.4, 0.5, 0.6);
	p.keep_every = 0;
	ASSERT_KEPT("1 2 5 6", &p, 0.8, 0.9, 0.3, 0.4, 0.5, 0.6);
	p = (struct pawl_retention){.num_to_keep = 1, .keep_last = 3};
	ASSERT_KEPT("4 5 6", &p, 0, 0, 0, 0, 0, 0);
}

static void
test_P6_best_is_kept_also_when_no_rule_names_it(void **state)
{
	(void)state;
	struct pawl_retention p = best_policy(0);

	p.keep_last = 2;
	ASSERT_KEPT("2 4 5", &p, 0.1, 0.9, 0.3, 0.4, 0.5);
	ASSERT_KEPT("4 5", &p, NAN, NAN, NAN, NAN, NAN);
}

static void
test_R141_reasons_are_for_people(void **state)
{
	(void)state;
	struct pawl_retention p = best_policy(3);
	const double scores[] = {0.1, 0.9, 0.8, NAN, 0.7, 0.2};
	const char *const expected[] = {
		"step 200 is the first after a multiple of 400",
		"pinned, best 1 of 3 by accuracy, step 400 is a multiple of 400",
		"best 2 of 3 by accuracy",
		"not among the best 3 by accuracy (no score), step 500 is not the first after a multiple of 400, not younger than 3600 s",
		"held by a reader, best 3 of 3 by accuracy, younger than 3600 s",
		"latest, younger than 3600 s",
	};
	const int64_t steps[] = {200, 400, 401, 500, 600, 700};
	struct list l;
	char text[64];

	list_fill(&l, scores, COUNT(scores));
	for (size_t i = 0; i < l.n; i++) {
		l.items[i].step = steps[i];
		l.items[i].unix_seconds = i < 4 ? 0 : 5000;
	}
	l.items[1].pinned = true;
	l.items[4].held = true;
	p.keep_every = 400;
	p.keep_seconds = 3600;
	assert_string_equal(kept(&l, &p, 5001, text), "1 2 3 5 6");
	for (size_t i = 0; i < l.n; i++)
		assert_string_equal(l.out[i].reason, expected[i]);

	p = (struct pawl_retention){.num_to_keep = 2};
	kept(&l, &p, 0, text);
	assert_string_equal(l.out[0].reason, "not among the newest 2");
	assert_string_equal(l.out[4].reason, "held by a reader, newest 2 of 2");
	assert_string_equal(l.out[5].reason, "latest, newest 1 of 2");
	p = (struct pawl_retention){0};
	kept(&l, &p, 0, text);
	assert_string_equal(l.out[0].reason, "everything is kept");
	p = best_policy(5);
	l.n = 4;
	kept(&l, &p, 0, text);
	assert_string_equal(l.out[3].reason, "latest, fills the best 5 by accuracy without a score");
}

static void
test_long_names_are_cut_between_characters(void **state)
{
	(void)state;
	char name[301];
	const char *names[1] = {name};
	struct pawl_retention p = {.num_to_keep = 1,
	                           .keep_last = 1,
	                           .keep_every = 7,
	                           .keep_seconds = 1e300,
	                           .score_attributes = names,
	                           .n_scores = 1};
	const double scores[] = {1, 2};
	struct list l;
	char text[64];

	for (size_t shift = 0; shift < 2; shift++) {
		memset(name, 0, sizeof(name));
		memset(name, 'x', shift);
		for (size_t i = shift; i + 2 < sizeof(name); i += 2)
			memcpy(name + i, "\xc3\xa9", 2);
		list_fill(&l, scores, 2);
		l.items[0].pinned = l.items[0].held = true;
		kept(&l, &p, 0, text);
		for (size_t k = 0; k < 2; k++) {
			const unsigned char *r = (const unsigned char *)l.out[k].reason;

			for (; *r; r += *r == 0xc3 ? 2 : 1)
				assert_true(*r < 0x80 || (*r == 0xc3 && r[1] == 0xa9));
		}
	}
}

static void
test_hostile_names_do_no_harm_to_a_terminal(void **state)
{
	(void)state;
	static const char *const hostile[] = {"a\x1b[2J\xff\x7f\xe2\x82z", "\xc3"};
	struct pawl_retention p = {.num_to_keep = 1, .score_attributes = hostile, .n_scores = 2};
	struct pawl_metric m[] = {{.name = hostile[0], .value = 1}, {.name = hostile[1], .value = 1}};
	struct retain_item item = {.id = 1, .metrics = m, .n_metrics = 2};
	struct retain_decision out;

	retain_decide(&p, &item, 1, 0, &out);
	assert_string_equal(out.reason, "latest, best 1 of 1 by a?[2J????z then ?");
}

static void
test_E7_decisions_depend_on_the_list_alone(void **state)
{
	(void)state;
	struct pawl_retention p = best_policy(2);
	const double scores[] = {0.3, NAN, 0.9, 0.9, MISSING};
	struct list a, b;
	char text_a[64], text_b[64];

	list_fill(&a, scores, COUNT(scores));
	list_fill(&b, scores, COUNT(scores));
	memset(b.out, 0xa5, sizeof(b.out));
	kept(&a, &p, 7, text_a);
	kept(&b, &p, 7, text_b);
	for (size_t i = 0; i < a.n; i++) {
		assert_int_equal(a.out[i].keep, b.out[i].keep);
		assert_string_equal(a.out[i].reason, b.out[i].reason);
	}
	retain_decide(&p, NULL, 0, 0, NULL); /* nothing to decide */
}

static void
test_ranking_of_many_is_a_sort(void **state)
{
	(void)state;
	enum { N = 5000 };
	static struct retain_item items[N];
	static struct pawl_metric metrics[N];
	static struct retain_decision out[N];
	struct pawl_retention p = exact_policy(100);

	for (size_t i = 0; i < N; i++) {
		metrics[i] = (struct pawl_metric){.name = "accuracy", .value = (double)(i * 2654435761u % N)};
		items[i] = (struct retain_item){.id = i + 1, .metrics = &metrics[i], .n_metrics = 1};
	}
	retain_decide(&p, items, N, 0, out);
	for (size_t i = 0; i < N; i++) {
		size_t better = 0;
		char reason[64];

		for (size_t k = 0; k < N; k++)
			better +=
				metrics[k].value > metrics[i].value || (metrics[k].value == metrics[i].value && k < i);
		assert_int_equal(out[i].keep, better < 100);
		snprintf(reason, sizeof(reason), "best %zu of 100 by accuracy", better + 1);
		if (better < 100)
			assert_string_equal(out[i].reason, reason);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_R1_R2_default_policy_keeps_everything),
		cmocka_unit_test(test_R3_E2_memory_only_keeps_the_newest_whatever_the_scores),
		cmocka_unit_test(test_R4_at_most_n_and_the_new_one_is_there_before_the_loser_goes),
		cmocka_unit_test(test_R5_negative_num_to_keep_is_refused_naming_the_value),
		cmocka_unit_test(test_R6_E6_default_score_is_the_sequence_not_the_clock),
		cmocka_unit_test(test_R7_R8_best_by_attribute_max_by_default_min_on_request),
		cmocka_unit_test(test_R9_other_orders_are_refused_naming_both_words),
		cmocka_unit_test(test_policies_that_contradict_themselves_are_refused),
		cmocka_unit_test(test_R16_best_is_the_best_one_or_none),
		cmocka_unit_test(test_R17_R18_latest_is_the_highest_id_whatever_its_score),
		cmocka_unit_test(test_R27_missing_score_is_refused),
		cmocka_unit_test(test_R28_score_that_is_no_number_is_refused_but_nan_and_inf_pass),
		cmocka_unit_test(test_R29_score_checks_hold_also_when_everything_is_kept),
		cmocka_unit_test(test_R31_keep_all_mode_keeps_any_score),
		cmocka_unit_test(test_R32_R33_R34_R36_what_a_full_best_list_takes),
		cmocka_unit_test(test_R33_R34_E3_full_list_swaps_out_the_worst_and_ties_keep_the_older),
		cmocka_unit_test(test_R35_best_moves_only_on_strictly_better_and_does_not_depend_on_n),
		cmocka_unit_test(test_R36_P13_nan_inf_and_missing_are_never_best_and_never_evict),
		cmocka_unit_test(test_R157_the_newest_without_nan_or_inf_stays_when_flagged_ones_follow),
		cmocka_unit_test(test_E4_latest_is_kept_besides_the_best_unless_dropped),
		cmocka_unit_test(test_E5_R155_late_scores_reorder),
		cmocka_unit_test(test_R155_several_attributes_order_lexicographically),
		cmocka_unit_test(test_R141_every_m_steps),
		cmocka_unit_test(test_R141_one_in_every_m_steps_also_off_the_multiples),
		cmocka_unit_test(test_R141_one_an_hour_a_day_and_a_week),
		cmocka_unit_test(test_a_rule_of_the_caller_keeps_what_it_names),
		cmocka_unit_test(test_R141_younger_than),
		cmocka_unit_test(test_R141_P6_pins_and_holds_stand_above_all_rules),
		cmocka_unit_test(test_R95_P6_only_what_every_mirror_has_goes),
		cmocka_unit_test(test_R141_byte_budget_takes_the_oldest_unprotected),
		cmocka_unit_test(test_R141_rules_are_united),
		cmocka_unit_test(test_P6_best_is_kept_also_when_no_rule_names_it),
		cmocka_unit_test(test_R141_reasons_are_for_people),
		cmocka_unit_test(test_long_names_are_cut_between_characters),
		cmocka_unit_test(test_hostile_names_do_no_harm_to_a_terminal),
		cmocka_unit_test(test_E7_decisions_depend_on_the_list_alone),
		cmocka_unit_test(test_ranking_of_many_is_a_sort),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
