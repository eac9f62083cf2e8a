/* SPDX-License-Identifier: Apache-2.0 */
/*
 * retain: what to keep and why. Pure: a list of checkpoints and a policy in; a decision and a
 * reason for each out. No I/O, no memory, no clock, so the same input always gives the same answer.
 *
 * A checkpoint that any rule keeps is kept. Pins, holds, the latest and the best take precedence
 * over the rules (P6). If the latest are flagged for NaN or Inf, the newest that is not is kept too
 * (R157): a training can return to it. The byte budget comes after the rules and removes the oldest
 * of the rest.
 *
 * Ranking: a score counts only if every attribute is a finite number (P13). Scored checkpoints come
 * first, better before worse; the others only fill a best list that is not full. Of a tie, also of
 * two without a score, the older one comes first (E3), so a NaN never replaces another checkpoint
 * (E5). Order in time is the order of ids, never a clock (P9).
 */
#include "policy/retain.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/text.h"

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

/* One checkpoint of each period is kept, of those younger than the span. */
struct period {
	const char *option, *name;
	double seconds;
	size_t span; /* of the option, in the policy */
};

static const struct period periods[] = {
	{"keep_hourly", "hour", 3600, offsetof(struct pawl_retention, keep_hourly)},
	{"keep_daily", "day", 86400, offsetof(struct pawl_retention, keep_daily)},
	{"keep_weekly", "week", 604800, offsetof(struct pawl_retention, keep_weekly)},
};
#define N_PERIODS (sizeof(periods) / sizeof(periods[0]))

static double
span_of(const struct pawl_retention *policy, const struct period *p)
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
	for (size_t i = 0; i < N_PERIODS; i++)
		TRY(check_span(periods[i].option, span_of(policy, &periods[i]), err));
	return check_span("keep_seconds", policy->keep_seconds, err);
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
retain_check_metrics(const struct pawl_retention *policy, const struct pawl_metric *metrics, size_t n_metrics,
                     struct pawl_error *err)
{
	for (size_t i = 0; i < policy->n_scores; i++) {
		const char *name = policy->score_attributes[i];
		const struct pawl_metric *m = find_metric(name, metrics, n_metrics);

		if (!m)
			return err_set(err, PAWL_EUSAGE,
			               "the checkpoint was not saved: score attribute '%s' is missing; "
			               "include it in the metrics of this save",
			               name);
		if (m->not_a_number)
			return err_set(err, PAWL_EUSAGE,
			               "the checkpoint was not saved: score attribute '%s' must be "
			               "numerical, received a value that is not a number",
			               name);
	}
	return 0;
}

/* ----------------------------------------------------------------- ranking */

struct rules {
	uint64_t n_best, n_newest; /* 0 = not set */
	bool any;                  /* some rule is set; otherwise everything is kept */
	bool guard_latest;
};

static struct rules
rules_of(const struct pawl_retention *policy)
{
	struct rules r = {.n_best = policy->keep_best, .n_newest = policy->keep_last};
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

/* All reasons for and against one item. The decision and its explanation follow from it. */
struct verdict {
	bool latest, best, good; /* guarded as such; good: the newest without NaN or Inf, followed by others */
	bool scored;
	size_t rank; /* 0 = no best list */
	bool in_best, in_newest, on_step, young;
	bool first_of[N_PERIODS];
};

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

static uint64_t
steps_of(const struct retain_item *item)
{
	return item->step < 0 ? 0 - (uint64_t)item->step : (uint64_t)item->step;
}

/* Is it the first in its span of steps? An item stays the first as long as it exists, so what was
 * kept is kept at the next decision. */
static bool
opens_steps(uint64_t every, const struct retain_item *items, size_t i)
{
	return every && (i == 0 || steps_of(&items[i]) % every == 0 ||
	                 steps_of(&items[i]) / every != steps_of(&items[i - 1]) / every);
}

/* The same for an hour, a day or a week. */
static bool
opens_period(const struct pawl_retention *policy, const struct period *p, const struct retain_item *items, size_t i,
             double now)
{
	const double span = span_of(policy, p);

	return span > 0 && !(now - items[i].unix_seconds >= span) &&
	       (i == 0 || floor(items[i].unix_seconds / p->seconds) != floor(items[i - 1].unix_seconds / p->seconds));
}

static struct verdict
judge(const struct pawl_retention *policy, const struct rules *rules, const struct retain_item *items, size_t n,
      size_t i, struct roles roles, size_t rank, double now)
{
	const struct retain_item *item = &items[i];
	struct verdict v = {
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

	for (size_t k = 0; k < N_PERIODS; k++)
		v.first_of[k] = opens_period(policy, &periods[k], items, i, now);
	return v;
}

static bool
is_kept(const struct rules *rules, const struct retain_item *item, const struct verdict *v)
{
	if (item->pinned || item->held || item->unmirrored)
		return true;
	if (item->spent)
		return false;
	return !rules->any || v->latest || v->best || v->good || v->in_best || v->in_newest || v->on_step || v->young ||
	       v->first_of[0] || v->first_of[1] || v->first_of[2] || item->ruled;
}

/* Appends a phrase, after a comma if it is not the first one; what does not fit is cut. */
static void __attribute__((format(printf, 3, 4)))
say(char *text, size_t cap, const char *format, ...)
{
	size_t len = strlen(text);
	va_list args;

	if (len + 3 >= cap)
		return;
	if (len) {
		memcpy(text + len, ", ", 3);
		len += 2;
	}
	va_start(args, format);
	vsnprintf(text + len, cap - len, format, args);
	va_end(args);
}

/* Appends a text by complete characters as far as they fit. Characters that could harm a terminal
 * become '?'. Returns the new length. */
static size_t
put_chars(char *out, size_t len, size_t cap, const char *text)
{
	while (*text) {
		size_t n = text_utf8_char(text, strnlen(text, 4)), step = n ? n : 1;

		if (len + step >= cap)
			break;
		memcpy(out + len, n == 0 || (unsigned char)*text < 0x20 || *text == 0x7f ? "?" : text, step);
		len += step;
		text += step;
	}
	out[len] = '\0';
	return len;
}

/* "accuracy" or "accuracy then loss"; short enough to leave room for the rest of a reason. */
static void
name_scores(const struct pawl_retention *policy, char *out, size_t cap)
{
	size_t len = 0;

	out[0] = '\0';
	for (size_t i = 0; i < policy->n_scores; i++) {
		len = put_chars(out, len, cap, i ? " then " : "");
		len = put_chars(out, len, cap, policy->score_attributes[i]);
	}
}

struct wording {
	const struct pawl_retention *policy;
	struct rules rules;
	char by[64]; /* score attributes */
};

static void
say_kept(const struct wording *w, const struct retain_item *items, size_t n, size_t i, const struct verdict *v,
         char *out, size_t cap)
{
	const struct retain_item *item = &items[i];

	if (item->pinned)
		say(out, cap, "pinned");
	if (item->held)
		say(out, cap, "held by a reader");
	if (item->unmirrored)
		say(out, cap, "not in every mirror yet");
	if (item->spent)
		return;
	if (v->latest)
		say(out, cap, "latest");
	if (v->good)
		say(out, cap, "newest without NaN or Inf");
	if (v->in_best && v->scored)
		say(out, cap, "best %zu of %llu by %s", v->rank, (unsigned long long)w->rules.n_best, w->by);
	else if (v->in_best)
		say(out, cap, "fills the best %llu by %s without a score", (unsigned long long)w->rules.n_best, w->by);
	else if (v->best)
		say(out, cap, "best by %s", w->by);
	if (v->in_newest)
		say(out, cap, "newest %zu of %llu", n - i, (unsigned long long)w->rules.n_newest);
	if (v->on_step)
		say(out, cap,
		    steps_of(item) % w->policy->keep_every ? "step %lld is the first after a multiple of %llu"
		                                           : "step %lld is a multiple of %llu",
		    (long long)item->step, (unsigned long long)w->policy->keep_every);
	if (v->young)
		say(out, cap, "younger than %.15g s", w->policy->keep_seconds);
	for (size_t k = 0; k < N_PERIODS; k++)
		if (v->first_of[k])
			say(out, cap, "first of its %s", periods[k].name);
	if (item->ruled)
		say(out, cap, "kept by the caller's rule");
	if (!w->rules.any)
		say(out, cap, w->policy->max_bytes ? "within the byte budget" : "everything is kept");
}

static void
say_removed(const struct wording *w, const struct retain_item *item, const struct verdict *v, char *out, size_t cap)
{
	if (item->spent) {
		say(out, cap, "in every mirror");
		return;
	}
	if (w->rules.n_best)
		say(out, cap, "not among the best %llu by %s%s", (unsigned long long)w->rules.n_best, w->by,
		    v->scored ? "" : " (no score)");
	if (w->rules.n_newest)
		say(out, cap, "not among the newest %llu", (unsigned long long)w->rules.n_newest);
	if (w->policy->keep_every)
		say(out, cap, "step %lld is not the first after a multiple of %llu", (long long)item->step,
		    (unsigned long long)w->policy->keep_every);
	if (w->policy->keep_seconds > 0)
		say(out, cap, "not younger than %.15g s", w->policy->keep_seconds);
	for (size_t k = 0; k < N_PERIODS; k++)
		if (span_of(w->policy, &periods[k]) > 0)
			say(out, cap, "not the first of its %s", periods[k].name);
	if (w->policy->keep)
		say(out, cap, "not kept by the caller's rule");
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
	struct wording w = {.policy = policy, .rules = rules_of(policy)};
	struct roles roles = find_roles(policy, items, n);

	name_scores(policy, w.by, sizeof(w.by));
	if (w.rules.n_best)
		rank_items(policy, items, n, ret);
	for (size_t i = 0; i < n; i++) {
		size_t rank = w.rules.n_best ? scratch_get(&ret[i]).rank : 0;
		struct verdict v = judge(policy, &w.rules, items, n, i, roles, rank, now);

		ret[i].keep = is_kept(&w.rules, &items[i], &v);
		ret[i].reason[0] = '\0';
		if (ret[i].keep)
			say_kept(&w, items, n, i, &v, ret[i].reason, sizeof(ret[i].reason));
		else
			say_removed(&w, &items[i], &v, ret[i].reason, sizeof(ret[i].reason));
	}
	if (policy->max_bytes)
		apply_budget(policy, items, n, roles, ret);
}
