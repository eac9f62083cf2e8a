/* SPDX-License-Identifier: Apache-2.0 */
/* retain: what to keep and why. Pure functions (P6, P9, P13; E2-E7); they remove nothing. */
#ifndef PAWL_RETAIN_H
#define PAWL_RETAIN_H

#include <stdbool.h>

#include "pawl.h"

struct retain_item {
	uint64_t id; /* ascending in the array */
	int64_t step;
	double unix_seconds;
	uint64_t bytes; /* what deleting it would free at most (new_bytes) */
	const struct pawl_metric *metrics;
	size_t n_metrics;
	bool pinned, held; /* held: read, cloned or uploaded right now */
	bool nonfinite;    /* flagged: its state holds NaN or Inf */
	bool unmirrored;   /* a mirror still lacks it: kept, whatever the rules are (P6) */
	bool ruled;        /* the caller's rule keeps it */
	bool spent;        /* mirrors have it, and nothing is to stay here (R95): only pins and holds keep it */
};

struct retain_decision {
	bool keep;
	char reason[160];
};

/* Copies the fields that the caller knows; the others are 0. PAWL_EUSAGE if it has no size. */
int retain_take(const struct pawl_retention *given, struct pawl_retention *ret, struct pawl_error *err);
/* Refuses contradictory or out-of-range policies with PAWL_EUSAGE. The message gives the value
 * received and what is allowed (R5, in C's words; R9: order names both words 'max' and 'min'). */
int retain_check(const struct pawl_retention *policy, struct pawl_error *err);
/* For a policy without score attributes that then gets those of the run: its num_to_keep still
 * means the newest ones. */
void retain_count_newest(struct pawl_retention *policy);
/* Fills ret[n]. now: unix seconds. Never fails; the policy has been checked. */
void retain_decide(const struct pawl_retention *policy, const struct retain_item *items, size_t n, double now,
                   struct retain_decision *ret);
/* 1 if the score rule would keep a new checkpoint with these metrics now. 0 if a full best list
 * refuses it (strict_score, R34: ties lose). */
bool retain_would_keep(const struct pawl_retention *policy, const struct retain_item *items, size_t n,
                       const struct pawl_metric *metrics, size_t n_metrics);
/* Index of the best item (earliest of ties, R35; never a NaN or infinite score), or SIZE_MAX.
 * Without score attributes the newest is best (E6). */
size_t retain_best(const struct pawl_retention *policy, const struct retain_item *items, size_t n);
/* PAWL_EUSAGE if a metric has no name, or two have the same one. what: the call, for messages. */
int retain_check_names(const char *what, const struct pawl_metric *metrics, size_t n, struct pawl_error *err);
/* PAWL_EUSAGE if a score attribute is missing or is not a number. R27: names the missing attribute
 * and asks to include it in the metrics of the save. R28: names attribute and value. Checked before
 * anything is written (R29). */
int retain_check_metrics(const struct pawl_retention *policy, const struct pawl_metric *metrics, size_t n_metrics,
                         struct pawl_error *err);
/* Compares two metric sets by the score attributes: > 0 if a is strictly better. Scores that are
 * missing, NaN or infinite are worse than any number and equal among themselves. */
int retain_compare(const struct pawl_retention *policy, const struct pawl_metric *a, size_t n_a,
                   const struct pawl_metric *b, size_t n_b);

#endif
