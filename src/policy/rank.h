/* SPDX-License-Identifier: Apache-2.0 */
/* rank: which process of a job this is, from what its launcher put into the environment. Pure but
 * for pawl_rank_identify. */
#ifndef PAWL_RANK_H
#define PAWL_RANK_H

#include "pawl.h"

/* Value of a variable, or NULL. Borrowed until rank_identify returns. */
typedef const char *rank_get_fn(void *ctx, const char *name);

/* As pawl_rank_identify, of the environment that get(ctx, ...) shows. */
int rank_identify(struct pawl_rank *rank, rank_get_fn *get, void *ctx, struct pawl_error *err);

#endif
