/* SPDX-License-Identifier: Apache-2.0 */
/*
 * retain: what to keep and why. Pure: a list of checkpoints and a policy in; a decision and a
 * reason for each out. No I/O, no memory, no clock, so the same input always gives the same answer.
 *
 * A checkpoint that any rule keeps is kept. Pins, holds, the latest and the best take precedence
 * over the rules (P6). If the latest are flagged for NaN or Inf, the newest that is not is kept too
 * (R157): a training run can return to it. The byte budget comes after the rules and removes the
 * oldest of the rest.
 *
 * Ranking: a score counts only if every attribute is a finite number (P13). Scored checkpoints come
 * first, better before worse; the others only fill a best list that is not full. Of a tie, also of
 * two without a score, the older one comes first (E3), so a NaN never replaces another checkpoint
 * (E5). Order in time is the order of ids, never a clock (P9).
 */
#include "policy/retain.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/names.h"
#include "policy/retain_own.h"

#define MAX_SCORES 16

/* ------------------------------------------------------------------ scores */

static const struct pawl_metric *
find_metric(const char *name, const struct pawl_metric *metrics, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (strcmp(metrics[i].name, name) == 0)
			return &metrics[i];
	}
	return NULL;
}

/* true and the score by all attributes (larger is better), or false if any of them is not a finite
 * number. */
static bool
score_of(const struct pawl_retention *policy, const struct pawl_metric *metrics, size_t n, double ret[MAX_SCORES])
{
	for (size_t i = 0; i < policy->n_scores; i++) {
		const struct pawl_metric *m = find_metric(policy->score_attributes[i], metrics, n);

		if (!m || m->not_a_number || !isfinite(m->value))
			return false;
		ret[i] = policy->score_orders && policy->score_orders[i] < 0 ? -m->value : m->value;
	}
	return true;
}

static bool
is_scored(const struct pawl_retention *policy, const struct retain_item *item)
{
	double score[MAX_SCORES];

	return score_of(policy, item->metrics, item->n_metrics, score);
}

int
retain_compare(const struct pawl_retention *policy, const struct pawl_metric *a, size_t n_a,
               const struct pawl_metric *b, size_t n_b)
{
	double score_a[MAX_SCORES], score_b[MAX_SCORES];
	bool scored_a = score_of(policy, a, n_a, score_a);
	bool scored_b = score_of(policy, b, n_b, score_b);

	if (!scored_a || !scored_b)
		return (int)scored_a - (int)scored_b;
	for (size_t i = 0; i < policy->n_scores; i++) {
		if (score_a[i] > score_b[i])
			return 1;
		if (score_a[i] < score_b[i])
			return -1;
	}
	return 0;
}

static int
compare_items(const struct pawl_retention *policy, const struct retain_item *a, const struct retain_item *b)
{
	return retain_compare(policy, a->metrics, a->n_metrics, b->metrics, b->n_metrics);
}

size_t
retain_best(const struct pawl_retention *policy, const struct retain_item *items, size_t n)
{
	size_t best = SIZE_MAX;

	if (policy->num_to_keep == PAWL_KEEP_MEMORY)
		return SIZE_MAX; /* R3: the best stays unset */
	if (policy->n_scores == 0)
		return n ? n - 1 : SIZE_MAX;
	for (size_t i = 0; i < n; i++) {
		if (best == SIZE_MAX ? is_scored(policy, &items[i])
		                     : compare_items(policy, &items[i], &items[best]) > 0)
			best = i;
	}
	return best;
}

/* ------------------------------------------------------------------ checks */

static int
check_scores(const struct pawl_retention *policy, struct pawl_error *err)
{
	if (policy->n_scores > MAX_SCORES)
		return err_set(err, PAWL_EUSAGE, "retention: at most %d score attributes are allowed, received %zu",
		               MAX_SCORES, policy->n_scores);
	if (policy->n_scores && !policy->score_attributes)
		return err_set(err, PAWL_EUSAGE, "retention: %zu score attributes announced, but no names given",
		               policy->n_scores);
	for (size_t i = 0; i < policy->n_scores; i++) {
		const char *name = policy->score_attributes[i];
		int order = policy->score_orders ? policy->score_orders[i] : 1;

		if (!name || !*name)
			return err_set(err, PAWL_EUSAGE, "retention: score attribute %zu has no name", i + 1);
		if (order != 1 && order != -1)
			return err_set(err, PAWL_EUSAGE,
			               "retention: score order of '%s' must be 'max' (+1) or 'min' (-1), received %d",
			               name, order);
		for (size_t k = 0; k < i; k++) {
			if (strcmp(name, policy->score_attributes[k]) == 0)
				return err_set(err, PAWL_EUSAGE, "retention: score attribute '%s' is given twice",
				               name);
		}
	}
	return 0;
}

const struct retain_period retain_periods[RETAIN_PERIODS] = {
	{"keep_hourly", "hour", 3600, offsetof(struct pawl_retention, keep_hourly)},
	{"keep_daily", "day", 86400, offsetof(struct pawl_retention, keep_daily)},
	{"keep_weekly", "week", 604800, offsetof(struct pawl_retention, keep_weekly)},
};

double
retain_span_of(const struct pawl_retention *policy, const struct retain_period *p)
{
	double seconds;

	memcpy(&seconds, (const char *)policy + p->span, sizeof(seconds));
	return seconds;
}

/* Is a rule by steps or by time set? */
static bool
has_spans(const struct pawl_retention *policy)
{
	return policy->keep_every || policy->keep_seconds > 0 || policy->keep_hourly > 0 || policy->keep_daily > 0 ||
	       policy->keep_weekly > 0;
}

static int
check_span(const char *option, double seconds, struct pawl_error *err)
{
	if (isfinite(seconds) && seconds >= 0)
		return 0;
	return err_set(err, PAWL_EUSAGE, "retention: %s must be a non-negative number of seconds, received %g", option,
	               seconds);
}

static int
check_spans(const struct pawl_retention *policy, struct pawl_error *err)
{
	for (size_t i = 0; i < RETAIN_PERIODS; i++)
		TRY(check_span(retain_periods[i].option, retain_span_of(policy, &retain_periods[i]), err));
	return check_span("keep_seconds", policy->keep_seconds, err);
}

int
retain_take(const struct pawl_retention *given, struct pawl_retention *ret, struct pawl_error *err)
{
	if (!given->size)
		return err_set(err, PAWL_EUSAGE, "retention: the policy has no size; start from PAWL_RETENTION_INIT");
	*ret = (struct pawl_retention)PAWL_RETENTION_INIT;
	memcpy(ret, given, given->size < sizeof(*ret) ? given->size : sizeof(*ret));
	return 0;
}

int
retain_check(const struct pawl_retention *policy, struct pawl_error *err)
{
	if (policy->num_to_keep < 0 && policy->num_to_keep != PAWL_KEEP_MEMORY)
		return err_set(err, PAWL_EUSAGE,
		               "retention: num_to_keep must be 0 (keep all), a positive number or PAWL_KEEP_MEMORY, "
		               "received %lld",
		               (long long)policy->num_to_keep);
	TRY(check_scores(policy, err));
	if (policy->keep_best && !policy->n_scores)
		return err_set(err, PAWL_EUSAGE, "retention: keep_best %llu needs a score attribute, none is given",
		               (unsigned long long)policy->keep_best);
	TRY(check_spans(policy, err));
	if (policy->num_to_keep == PAWL_KEEP_MEMORY &&
	    (policy->keep_last || policy->keep_best || has_spans(policy) || policy->keep || policy->max_bytes))
		return err_set(err, PAWL_EUSAGE,
		               "retention: nothing is written when num_to_keep is memory only, "
		               "so no other rule may be given");
	return 0;
}

void
retain_count_newest(struct pawl_retention *policy)
{
	if (policy->num_to_keep <= 0)
		return;
	if ((uint64_t)policy->num_to_keep > policy->keep_last)
		policy->keep_last = (uint64_t)policy->num_to_keep;
	policy->num_to_keep = 0;
}

int
retain_check_names(const char *what, const struct pawl_metric *metrics, size_t n, struct pawl_error *err)
{
	for (size_t i = 0; i < n; i++) {
		if (!metrics[i].name || !*metrics[i].name)
			return err_set(err, PAWL_EUSAGE, "%s: metric %zu of %zu has no name", what, i + 1, n);
		for (size_t k = 0; k < i; k++)
			if (strcmp(metrics[i].name, metrics[k].name) == 0)
				return err_set(err, PAWL_EUSAGE, "%s: metric '%s' is given twice", what,
				               metrics[i].name);
	}
	return 0;
}

/* Names the metrics that there are. */
static int
refuse_missing(const char *name, const struct pawl_metric *metrics, size_t n, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf known = {0};
	PAWL_FREE const char **names = mem_zalloc(n + 1, sizeof(*names));

	for (size_t i = 0; names && i < n; i++)
		names[i] = metrics[i].name;
	if (names && n > 0)
		names_put_known(&known, name, names, n);
	return err_set(err, PAWL_EUSAGE,
	               "the checkpoint was not saved: score attribute '%s' is missing; "
	               "include it in the metrics of this save%s",
	               name, buf_str(&known));
}

int
retain_check_metrics(const struct pawl_retention *policy, const struct pawl_metric *metrics, size_t n_metrics,
                     struct pawl_error *err)
{
	for (size_t i = 0; i < policy->n_scores; i++) {
		const char *name = policy->score_attributes[i];
		const struct pawl_metric *m = find_metric(name, metrics, n_metrics);

		if (!m)
			return refuse_missing(name, metrics, n_metrics, err);
		if (m->not_a_number)
			return err_set(err, PAWL_EUSAGE,
			               "the checkpoint was not saved: score attribute '%s' must be "
			               "numerical, received a value that is not a number",
			               name);
	}
	return 0;
}

/* ----------------------------------------------------------------- ranking */

static struct retain_rules
rules_of(const struct pawl_retention *policy)
{
	struct retain_rules r = {.n_best = policy->keep_best, .n_newest = policy->keep_last};
	bool memory = policy->num_to_keep == PAWL_KEEP_MEMORY; /* the newest, whatever its score */
	uint64_t num = policy->num_to_keep > 0 ? (uint64_t)policy->num_to_keep : memory;
	uint64_t *by_num = policy->n_scores && !memory ? &r.n_best : &r.n_newest;

	if (num > *by_num)
		*by_num = num;
	r.any = r.n_best || r.n_newest || has_spans(policy) || policy->keep;
	/* Only a list of best ones can leave the latest out on purpose (E4). */
	r.guard_latest = !policy->drop_latest || !r.n_best;
	return r;
}

bool
retain_would_keep(const struct pawl_retention *policy, const struct retain_item *items, size_t n,
                  const struct pawl_metric *metrics, size_t n_metrics)
{
	uint64_t n_best = rules_of(policy).n_best;
	uint64_t not_worse = 0;

	for (size_t i = 0; i < n; i++) {
		if (retain_compare(policy, metrics, n_metrics, items[i].metrics, items[i].n_metrics) <= 0)
			not_worse++;
	}
	return n_best == 0 || n < n_best || not_worse < n_best;
}

/*
 * The sort needs two numbers per item. They live in the reason buffers, which are written only
 * afterwards: so deciding needs no memory and cannot fail.
 */
struct scratch {
	size_t order; /* of entry k: the item at place k of the ranking */
	size_t rank;  /* of entry i: the place of item i, from 1 */
};
_Static_assert(sizeof(struct scratch) <= sizeof(((struct retain_decision *)0)->reason), "scratch fits a reason");

static struct scratch
scratch_get(const struct retain_decision *d)
{
	struct scratch s;

	memcpy(&s, d->reason, sizeof(s));
	return s;
}

static void
scratch_put(struct retain_decision *d, struct scratch s)
{
	memcpy(d->reason, &s, sizeof(s));
}

/* Does item a rank before item b? A strict total order. */
static bool
ranks_before(const struct pawl_retention *policy, const struct retain_item *items, size_t a, size_t b)
{
	int c = compare_items(policy, &items[a], &items[b]);

	return c != 0 ? c > 0 : a < b;
}

/* Heap sort: in place and never worse than n log n. The heap's top is the one that ranks last. */
static void
sift_down(const struct pawl_retention *policy, const struct retain_item *items, struct retain_decision *ret, size_t at,
          size_t n)
{
	for (size_t child = 2 * at + 1; child < n; at = child, child = 2 * at + 1) {
		struct scratch top = scratch_get(&ret[at]);
		struct scratch low = scratch_get(&ret[child]);

		if (child + 1 < n) {
			struct scratch right = scratch_get(&ret[child + 1]);

			if (ranks_before(policy, items, low.order, right.order)) {
				low = right;
				child++;
			}
		}
		if (!ranks_before(policy, items, top.order, low.order))
			return;
		scratch_put(&ret[at], low);
		scratch_put(&ret[child], top);
	}
}

static void
rank_items(const struct pawl_retention *policy, const struct retain_item *items, size_t n, struct retain_decision *ret)
{
	for (size_t i = 0; i < n; i++)
		scratch_put(&ret[i], (struct scratch){.order = i});
	for (size_t i = n / 2; i-- > 0;)
		sift_down(policy, items, ret, i, n);
	for (size_t end = n; end-- > 1;) {
		struct scratch first = scratch_get(&ret[0]);

		scratch_put(&ret[0], scratch_get(&ret[end]));
		scratch_put(&ret[end], first);
		sift_down(policy, items, ret, 0, end);
	}
	for (size_t k = 0; k < n; k++) {
		struct retain_decision *d = &ret[scratch_get(&ret[k]).order];
		struct scratch s = scratch_get(d);

		s.rank = k + 1;
		scratch_put(d, s);
	}
}

/* ----------------------------------------------------------------- deciding */

/* Items with a role that no rule takes away; SIZE_MAX = none. */
struct roles {
	size_t best, good;
};

static struct roles
find_roles(const struct pawl_retention *policy, const struct retain_item *items, size_t n)
{
	struct roles r = {.best = retain_best(policy, items, n), .good = SIZE_MAX};

	for (size_t i = n; i-- > 0 && r.good == SIZE_MAX;)
		if (!items[i].nonfinite)
			r.good = i;
	/* The latest has its own rules; in memory there is room for one only. */
	if ((n && r.good == n - 1) || policy->num_to_keep == PAWL_KEEP_MEMORY)
		r.good = SIZE_MAX;
	return r;
}

uint64_t
retain_steps_of(const struct retain_item *item)
{
	return item->step < 0 ? 0 - (uint64_t)item->step : (uint64_t)item->step;
}

/* Is it the first in its span of steps? An item stays the first as long as it exists, so what was
 * kept is kept at the next decision. */
static bool
opens_steps(uint64_t every, const struct retain_item *items, size_t i)
{
	return every && (i == 0 || retain_steps_of(&items[i]) % every == 0 ||
	                 retain_steps_of(&items[i]) / every != retain_steps_of(&items[i - 1]) / every);
}

/* The same for an hour, a day or a week. */
static bool
opens_period(const struct pawl_retention *policy, const struct retain_period *p, const struct retain_item *items,
             size_t i, double now)
{
	const double span = retain_span_of(policy, p);

	return span > 0 && !(now - items[i].unix_seconds >= span) &&
	       (i == 0 || floor(items[i].unix_seconds / p->seconds) != floor(items[i - 1].unix_seconds / p->seconds));
}

static struct retain_verdict
judge_item(const struct pawl_retention *policy, const struct retain_rules *rules, const struct retain_item *items,
           size_t n, size_t i, struct roles roles, size_t rank, double now)
{
	const struct retain_item *item = &items[i];
	struct retain_verdict v = {
		.latest = i == n - 1 && rules->guard_latest,
		.best = i == roles.best && policy->n_scores > 0,
		.good = i == roles.good,
		.scored = is_scored(policy, item),
		.rank = rank,
		.in_best = rank && rank <= rules->n_best,
		.in_newest = n - i <= rules->n_newest,
		.on_step = opens_steps(policy->keep_every, items, i),
		/* A clock that went backwards, or no clock at all, makes a checkpoint young: kept
	         * rather than lost. */
		.young = policy->keep_seconds > 0 && !(now - item->unix_seconds >= policy->keep_seconds),
	};

	for (size_t k = 0; k < RETAIN_PERIODS; k++)
		v.first_of[k] = opens_period(policy, &retain_periods[k], items, i, now);
	return v;
}

static bool
is_kept(const struct retain_rules *rules, const struct retain_item *item, const struct retain_verdict *v)
{
	if (item->pinned || item->held || item->unmirrored)
		return true;
	if (item->spent)
		return false;
	return !rules->any || v->latest || v->best || v->good || v->in_best || v->in_newest || v->on_step || v->young ||
	       v->first_of[0] || v->first_of[1] || v->first_of[2] || item->ruled;
}

/* Removes the oldest items that no pin, hold or role protects, until the rest fits. The last item
 * stays. */
static void
apply_budget(const struct pawl_retention *policy, const struct retain_item *items, size_t n, struct roles roles,
             struct retain_decision *ret)
{
	uint64_t total = 0;
	size_t n_kept = 0;

	for (size_t i = 0; i < n; i++) {
		n_kept += ret[i].keep;
		if (ret[i].keep && __builtin_add_overflow(total, items[i].bytes, &total))
			total = UINT64_MAX;
	}
	for (size_t i = 0; i + 1 < n && total > policy->max_bytes && n_kept > 1; i++) {
		if (!ret[i].keep || items[i].pinned || items[i].held || items[i].unmirrored || i == roles.best ||
		    i == roles.good)
			continue;
		ret[i].keep = false;
		n_kept--;
		snprintf(ret[i].reason, sizeof(ret[i].reason), "beyond the byte budget");
		total -= items[i].bytes < total ? items[i].bytes : total;
	}
}

void
retain_decide(const struct pawl_retention *policy, const struct retain_item *items, size_t n, double now,
              struct retain_decision *ret)
{
	const struct retain_wording w = retain_wording_make(policy, rules_of(policy));
	struct roles roles = find_roles(policy, items, n);

	if (w.rules.n_best)
		rank_items(policy, items, n, ret);
	for (size_t i = 0; i < n; i++) {
		size_t rank = w.rules.n_best ? scratch_get(&ret[i]).rank : 0;
		struct retain_verdict v = judge_item(policy, &w.rules, items, n, i, roles, rank, now);

		ret[i].keep = is_kept(&w.rules, &items[i], &v);
		ret[i].reason[0] = '\0';
		if (ret[i].keep)
			retain_say_kept(&w, items, n, i, &v, ret[i].reason, sizeof(ret[i].reason));
		else
			retain_say_removed(&w, &items[i], &v, ret[i].reason, sizeof(ret[i].reason));
	}
	if (policy->max_bytes)
		apply_budget(policy, items, n, roles, ret);
}
