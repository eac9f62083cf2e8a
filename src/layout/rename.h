/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rename: renames tensors by rules. A rule is "GLOB=TEMPLATE". In the glob, '*' matches any
 * characters and '?' matches one. In the template, {1}, {2}, .. are what they matched, in order.
 * The n-th '*' of the template is {n}. {0} is the complete name; {{ and }} are braces. The first
 * rule whose glob matches the complete name gives the new one; a name without a match stays. Of
 * several possible matches, each '*' takes as little as it can, from the left on. Pure.
 *
 *   model.*={1}           model.layer.0.w -> layer.0.w
 *   a.*.w=b.*.v           a.3.w -> b.3.v
 *   *.h.*.w={1}.{2}.w     a.h.3.w -> a.3.w
 */
#ifndef PAWL_RENAME_H
#define PAWL_RENAME_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

#define RENAME_MAX_GROUPS 16u

/* Checks that it is a rule. PAWL_EUSAGE says what is wrong. */
int rename_check(const char *rule, struct pawl_error *err);
/* Appends the new name of `name`. The rules were checked before. Returns the index of the rule that
 * matched; n_rules = none, the name stays. */
size_t rename_apply(const char *const *rules, size_t n_rules, const char *name, struct buf *out);

#endif
