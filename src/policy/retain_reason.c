/* SPDX-License-Identifier: Apache-2.0 */
/* retain_reason: the reason of a decision in words. Pure. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "policy/retain_own.h"

/* Appends a phrase, after a comma if it is not the first one; what does not fit is cut. */
static void __attribute__((format(printf, 3, 4)))
add_words(char *text, size_t cap, const char *format, ...)
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

struct retain_wording
retain_wording_make(const struct pawl_retention *policy, struct retain_rules rules)
{
	struct retain_wording w = {.policy = policy, .rules = rules};

	name_scores(policy, w.by, sizeof(w.by));
	return w;
}

void
retain_say_kept(const struct retain_wording *w, const struct retain_item *items, size_t n, size_t i,
                const struct retain_verdict *v, char *out, size_t cap)
{
	const struct retain_item *item = &items[i];

	if (item->pinned)
		add_words(out, cap, "pinned");
	if (item->held)
		add_words(out, cap, "held by a reader");
	if (item->unmirrored)
		add_words(out, cap, "not in every mirror yet");
	if (item->spent)
		return;
	if (v->latest)
		add_words(out, cap, "latest");
	if (v->good)
		add_words(out, cap, "newest without NaN or Inf");
	if (v->in_best && v->scored)
		add_words(out, cap, "best %zu of %llu by %s", v->rank, (unsigned long long)w->rules.n_best, w->by);
	else if (v->in_best)
		add_words(out, cap, "fills the best %llu by %s without a score", (unsigned long long)w->rules.n_best,
		          w->by);
	else if (v->best)
		add_words(out, cap, "best by %s", w->by);
	if (v->in_newest)
		add_words(out, cap, "newest %zu of %llu", n - i, (unsigned long long)w->rules.n_newest);
	if (v->on_step)
		add_words(out, cap,
		          retain_steps_of(item) % w->policy->keep_every
		                  ? "step %lld is the first after a multiple of %llu"
		                  : "step %lld is a multiple of %llu",
		          (long long)item->step, (unsigned long long)w->policy->keep_every);
	if (v->young)
		add_words(out, cap, "younger than %.15g s", w->policy->keep_seconds);
	for (size_t k = 0; k < RETAIN_PERIODS; k++)
		if (v->first_of[k])
			add_words(out, cap, "first of its %s", retain_periods[k].name);
	if (item->ruled)
		add_words(out, cap, "kept by the caller's rule");
	if (!w->rules.any)
		add_words(out, cap, w->policy->max_bytes ? "within the byte budget" : "everything is kept");
}

void
retain_say_removed(const struct retain_wording *w, const struct retain_item *item, const struct retain_verdict *v,
                   char *out, size_t cap)
{
	if (item->spent) {
		add_words(out, cap, "in every mirror");
		return;
	}
	if (w->rules.n_best)
		add_words(out, cap, "not among the best %llu by %s%s", (unsigned long long)w->rules.n_best, w->by,
		          v->scored ? "" : " (no score)");
	if (w->rules.n_newest)
		add_words(out, cap, "not among the newest %llu", (unsigned long long)w->rules.n_newest);
	if (w->policy->keep_every)
		add_words(out, cap, "step %lld is not the first after a multiple of %llu", (long long)item->step,
		          (unsigned long long)w->policy->keep_every);
	if (w->policy->keep_seconds > 0)
		add_words(out, cap, "not younger than %.15g s", w->policy->keep_seconds);
	for (size_t k = 0; k < RETAIN_PERIODS; k++)
		if (retain_span_of(w->policy, &retain_periods[k]) > 0)
			add_words(out, cap, "not the first of its %s", retain_periods[k].name);
	if (w->policy->keep)
		add_words(out, cap, "not kept by the caller's rule");
}
