/* SPDX-License-Identifier: Apache-2.0 */
/* retain_own: what retain.c decides and retain_reason.c puts into words. */
#ifndef PAWL_RETAIN_OWN_H
#define PAWL_RETAIN_OWN_H

#include "policy/retain.h"

struct retain_rules {
	uint64_t n_best, n_newest; /* 0 = not set */
	bool any;                  /* some rule is set; otherwise everything is kept */
	bool guard_latest;
};

#define RETAIN_PERIODS 3
/* One checkpoint of each period is kept, of those younger than the span. */
struct retain_period {
	const char *option, *name;
	double seconds;
	size_t span; /* of the option, in the policy */
};
extern const struct retain_period retain_periods[RETAIN_PERIODS];

double retain_span_of(const struct pawl_retention *policy, const struct retain_period *p);
uint64_t retain_steps_of(const struct retain_item *item);

/* All reasons for and against one item. The decision and its explanation follow from it. */
struct retain_verdict {
	bool latest, best, good; /* guarded as such; good: the newest without NaN or Inf, followed by others */
	bool scored;
	size_t rank; /* 0 = no best list */
	bool in_best, in_newest, on_step, young;
	bool first_of[RETAIN_PERIODS];
};

struct retain_wording {
	const struct pawl_retention *policy;
	struct retain_rules rules;
	char by[64]; /* score attributes */
};
struct retain_wording retain_wording_make(const struct pawl_retention *policy, struct retain_rules rules);
/* Write the reason to out[cap], which holds an empty text. */
void retain_say_kept(const struct retain_wording *w, const struct retain_item *items, size_t n, size_t i,
                     const struct retain_verdict *v, char *out, size_t cap);
void retain_say_removed(const struct retain_wording *w, const struct retain_item *item, const struct retain_verdict *v,
                        char *out, size_t cap);

#endif
