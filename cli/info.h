/* SPDX-License-Identifier: Apache-2.0 */
/* info: shows the summary of a checkpoint, in the same way in every command. */
#ifndef PAWL_CLI_INFO_H
#define PAWL_CLI_INFO_H

#include "cli.h"
#include "grid.h"
#include "jsonout.h"

/* One object: id, name, path, step, attempt, unix_seconds, progress, metrics, score, bytes,
 * new_bytes, tensors, files, world_size, format, blocked_seconds, state, marks, problem. */
void info_json(struct jsonout *j, const char *key, const struct pawl_info *info);
/* "saved", "nonfinite" or "bad", in its colour. */
struct cell info_state(const struct pawl_info *info);
/* The names of its marks, each in its colour: latest best pinned held. */
struct cell info_marks(struct keep *keep, const struct pawl_info *info);
/* "epoch 3, batch 400": the known counters of a progress; "" if none. */
const char *info_progress(struct keep *keep, const struct pawl_progress *progress);
double info_now(void); /* unix seconds */

/* Is it a file of another program? Such a file has no step, no checksums and no run. */
bool info_is_foreign(const struct pawl_info *info);
/* Is it a foreign file in a format without checksums? */
bool info_has_no_sums(const struct pawl_info *info);

#endif
