/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rename: names of tensors by rules. A rule is "GLOB=TEMPLATE": in the glob '*' stands for any characters and '?' for one;
 * in the template {1}, {2}, .. stand for what they matched, in their order, {0} for the whole name, {{ and }} for braces.
 * The first rule whose glob matches the whole name gives the new one; a name that none matches stays. Of several ways to
 * match, a '*' takes as little as it can, from the left on. Pure.
 *
 *   model.*={1}           model.layer.0.w -> layer.0.w
 *   *.h.*.w={1}.{2}.w     a.h.3.w -> a.3.w
 */
#ifndef PAWL_RENAME_H
#define PAWL_RENAME_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

#define RENAME_MAX_GROUPS 16u

/* Is it a rule? PAWL_EUSAGE says what is wrong with it. */
int rename_check(const char *rule, struct pawl_error *err);
/* Appends the name by these rules, which have been checked. */
void rename_apply(const char *const *rules, size_t n_rules, const char *name, struct buf *out);

#endif
