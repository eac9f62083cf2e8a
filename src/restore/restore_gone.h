/* SPDX-License-Identifier: Apache-2.0 */
/* restore_gone: tells whether an unreadable checkpoint is damaged, or was deleted while it was
 * read. */
#ifndef PAWL_RESTORE_GONE_H
#define PAWL_RESTORE_GONE_H

#include "restore/restore.h"

#define RESTORE_LOOKS 100u /* for a run whose checkpoints are deleted each time before they are read */

/* catalog_judge of the current checkpoint. */
int restore_judge(struct pawl_restore *r, const struct pawl_error *why, unsigned tries, struct pawl_error *err);
/* catalog_fetch of it. */
int restore_fetch_run(struct pawl_restore *r, struct fetch *fetch, const struct fetch_job *job, struct pawl_error *err);

#endif
