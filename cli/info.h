/* SPDX-License-Identifier: Apache-2.0 */
/* info: how the summary of a checkpoint is shown, the same in every command. */
#ifndef PAWL_CLI_INFO_H
#define PAWL_CLI_INFO_H

#include "cli.h"
#include "grid.h"
#include "jsonout.h"

/* One object: id, name, path, step, attempt, unix_seconds, progress, metrics, score, bytes, new_bytes, tensors, files,
 * world_size, format, blocked_seconds, state, marks, problem. */
void info_json(struct jsonout *j, const char *key, const struct pawl_info *info);
/* "saved", "nonfinite" or "bad", in its colour. */
struct cell info_state(const struct pawl_info *info);
/* The names of its marks, each in its colour: latest best pinned held. */
struct cell info_marks(struct keep *keep, const struct pawl_info *info);
/* "epoch 3, batch 400": the known counters of a progress; "" if none. */
const char *info_progress(struct keep *keep, const struct pawl_progress *progress);
double info_now(void); /* unix seconds */

/* A file that another program wrote: it has no step, no sums and no run. */
bool info_is_foreign(const struct pawl_info *info);
/* Of these: a format that carries no sums at all? */
bool info_has_no_sums(const struct pawl_info *info);

#endif
